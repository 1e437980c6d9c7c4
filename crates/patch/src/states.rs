//! Thread states in which a detour would kill the program. They are checked before anything in
//! the program is changed, and such a program is refused.

use crate::session::Agent;
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_ledger::Ledger;

impl Agent {
    /// Refuses a program that has forbidden itself to read the time stamp counter (`PR_SET_TSC`): a
    /// detour reads it. The setting cannot be read from outside, so a thread is made to query it.
    /// Each thread has its own setting, inherited from the thread that created it.
    pub(crate) fn refuse_forbidden_clock(
        &self,
        remote: &dyn TargetMemory,
        ledger: &Ledger,
    ) -> Result<(), TargetError> {
        let (place, answer) = self.scratch_and_more(ledger);
        let asked = self.with(remote, place, |i| {
            i.call(
                libc::SYS_prctl,
                [libc::PR_GET_TSC as u64, answer, 0, 0, 0, 0],
            )
        })?;
        // A kernel without this option does not restrict the counter.
        if asked.is_err() {
            return Ok(());
        }
        let pid = self.pid();
        let setting = remote.read_u32(answer);
        let setting = setting.map_err(TargetError::reading(pid, answer))?;
        match setting == libc::PR_TSC_SIGSEGV as u32 {
            true => Err(TargetError::ForbiddenClock { pid }),
            false => Ok(()),
        }
    }
}
