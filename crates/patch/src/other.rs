//! The other session of a process: a recorder's beside that of a program that probes itself.
//!
//! A process has at most one living session of each [kind](Kind). Each has its own ledger, memory,
//! arenas and guards, and finds, detaches and clears away only those of its kind. They come and go in
//! any order, and either tracer may die at any moment. What they share is the program's code, its signal
//! actions, and ptrace.
//!
//! **Code.** Each change in a journal has the bytes that its probe changes, displaces or relies on: its
//! [claim](Change::claim). No session writes to bytes that the other claims:
//!
//! - *Plans* avoid claimed bytes, so another way to reach a site is found, or a refusal names the other
//!   session. A guard that the other session has in its place is missing; what that means for a session
//!   is the same as if its place had not been found.
//! - *Writing* compares with the claims that are there at that moment. A claim is in the journal before
//!   its bytes are written, and claims of the other session are read again after that. So of two sessions
//!   that claim the same bytes at the same moment, each later reader sees the earlier writer, and at least
//!   one of them does not write. (Where both use ptrace, they exclude each other anyway.)
//! - *A claim stays* as long as the ledger is mapped, also while its probe is disarmed, or after its tracer
//!   has died. So it holds as long as a thread may be in the detour, or the program has the address of a
//!   copy. A ledger is unmapped after everything else.
//!
//! Why the two are safe then: a detour leads back to the address behind its claimed bytes, or to where
//! the copy of an instruction leads. The latter are targets of branches and return addresses, which no
//! patch covers. The former cannot be in the middle of a patch of the other session either: that patch
//! would have the byte before it, which is claimed. The bytes that a patch shares with instructions
//! behind it are claimed as well, so they stay as they are. And a journal leads back to the program's own
//! bytes without a look at the other's: the two never have a byte in common.
//!
//! **Signals.** At most one session has a handler for a signal, and no session has an address of a handler
//! of the other. A session that is not alone replaces an action only if the program sees its own
//! instead, by guards behind each `rt_sigaction`, and the other has not replaced it. It notes the action
//! in its ledger before it looks at the other's. The library's own handlers of faults, which are code of
//! the program and stay mapped, may stand before or behind those of a session; they call the program's,
//! never a recorder's (`watch_faults` in `library/run.c`). A detach restores an action only if its own
//! handler is there; one that somebody has set since stays.
//!
//! **ptrace.** Both stop threads for moments only, and wait for each other
//! ([`TRACER_NAME`](capriole_proc::process::TRACER_NAME)).
//!
//! **Return addresses** are replaced by one of them only: a recorder refuses to replace any beside the
//! library's session, and the library while a recorder does.

use crate::actions;
use crate::ranges::Ranges;
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_ledger::{Action, Entry, Kind, Ledger};
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use std::fmt;
use std::ops::Range;

#[cfg(doc)]
use capriole_ledger::change::Change;

/// Attempts to read ledgers that are just being unmapped.
const TRIES: u32 = 5;

/// A session of the other kind, with what earlier tracers of that kind may have left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Its owner.
    pub owner: Owner,
    /// The bytes that it claims. None has a number of its own.
    claims: Ranges,
    /// The signal actions that it has replaced, or may at any time, with the program's newest.
    actions: Vec<Action>,
    /// True if it has probes through which the program sees its own signal actions.
    guards_actions: bool,
    /// True if it replaces return addresses.
    pub follows: bool,
}

/// Owner of a session, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The kind of the session.
    pub kind: Kind,
    /// Its tracer, if that is alive.
    pub tracer: Option<u32>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.tracer) {
            (Kind::Library, _) => f.write_str("the program itself"),
            (Kind::Recorder, Some(pid)) => write!(f, "a recorder (capriole, process {pid})"),
            (Kind::Recorder, None) => {
                f.write_str("a recorder that has ended without taking its probes out")
            }
        }
    }
}

impl Other {
    /// Returns the session beside one of `kind`, if the process has one.
    ///
    /// # Errors
    /// The process is gone, or the ledger of the other session is invalid.
    pub fn find(
        process: &Process,
        remote: &dyn TargetMemory,
        kind: Kind,
    ) -> Result<Option<Other>, TargetError> {
        let mut tries = 0;
        loop {
            let maps = process.maps()?;
            tries += 1;
            match Other::among(process.pid() as i32, &maps, remote, kind) {
                // It may have been unmapped since.
                Err(_) if tries < TRIES => {}
                found => return found,
            }
        }
    }

    /// As [`find`](Self::find), among these mappings of the process.
    ///
    /// # Errors
    /// A ledger is not mapped any more, or is invalid.
    pub fn among(
        pid: i32,
        maps: &[Mapping],
        remote: &dyn TargetMemory,
        kind: Kind,
    ) -> Result<Option<Other>, TargetError> {
        let kind = kind.other();
        let mut ledgers = Ledger::of(kind, pid, maps).peekable();
        if ledgers.peek().is_none() {
            return Ok(None);
        }
        let mut other = Other {
            owner: Owner { kind, tracer: None },
            claims: Ranges::default(),
            actions: Vec::new(),
            guards_actions: false,
            follows: false,
        };
        for ledger in ledgers {
            let header = ledger.header(remote)?;
            // It may have been mapped just now.
            if !header.is_begun()? {
                continue;
            }
            let (owner, started) = header.owner();
            let is_it = |p: &Process| p.start_time() == started && p.is_alive();
            let alive = Process::open(owner).is_ok_and(|p| is_it(&p));
            other.owner.tracer = other.owner.tracer.or(alive.then_some(owner));
            let own = header.own();
            other
                .actions
                .extend(header.actions().into_iter().map(|action| Action {
                    old: actions::newest(pid, remote, own, &action).unwrap_or(action.old),
                    ..action
                }));
            other.follows |= header.returns() != 0;
            header.journal(remote, |entry| {
                if let Entry::Change(change) = entry {
                    other.guards_actions |= change.action;
                    other.claims.insert(change.claim(), 0);
                }
            })?;
        }
        Ok(Some(other))
    }

    /// Returns the bytes that it claims which begin or end in `near`, or contain it.
    pub fn claims_in(&self, near: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.claims.meeting(near).map(|(claim, _)| claim)
    }

    /// Returns all bytes that it claims.
    pub fn claims(&self) -> impl Iterator<Item = Range<u64>> {
        self.claims_in(0..u64::MAX)
    }

    /// True if it claims a byte of `bytes`.
    #[must_use]
    pub fn claims_any(&self, bytes: Range<u64>) -> bool {
        self.claims_in(bytes).next().is_some()
    }

    /// True if it has replaced the action of one of these signals, or may at any time.
    #[must_use]
    pub fn handles(&self, signals: &[i32]) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|action| signals.contains(&action.signal))
    }

    /// Returns the action of a signal that it has replaced, or may at any time, with the program's newest.
    #[must_use]
    pub fn action(&self, signal: i32) -> Option<&Action> {
        let mut actions = self.actions.iter();
        actions.find(|action| action.signal == signal)
    }

    /// Checks that a session beside this one may use breakpoints; `guarded`: the program sees its own
    /// actions in place of those of that session.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check_breakpoints(&self, guarded: bool) -> Result<(), &'static str> {
        match (guarded && !self.handles(&[libc::SIGTRAP]), self.owner.kind) {
            (true, _) => Ok(()),
            (false, Kind::Library) => Err(
                "the program probes itself, and only one of two sessions can handle breakpoints",
            ),
            (false, Kind::Recorder) => {
                Err("the program is recorded, and only one of two sessions can handle breakpoints")
            }
        }
    }

    /// True if a session beside this one can have guards behind `rt_sigaction`.
    #[must_use]
    pub fn leaves_actions(&self) -> bool {
        !self.guards_actions
    }
}

/// Refuses to replace a signal action, which this session has just noted in its ledger, if the other
/// one has noted the same.
pub(crate) fn check_action(
    ledger: &Ledger,
    remote: &dyn TargetMemory,
    signal: i32,
) -> Result<(), TargetError> {
    let process = Process::open(ledger.pid as u32)?;
    match Other::find(&process, remote, ledger.kind)? {
        Some(other) if other.handles(&[signal]) => {
            ledger.forget_action(remote, signal)?;
            Err(TargetError::AlreadyRecorded {
                pid: ledger.pid,
                owner: other.owner.tracer.unwrap_or(0) as i32,
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(bytes: &[Range<u64>]) -> Other {
        let mut claims = Ranges::default();
        for claim in bytes {
            claims.insert(claim.clone(), 0);
        }
        Other {
            owner: Owner {
                kind: Kind::Library,
                tracer: None,
            },
            claims,
            actions: vec![Action {
                signal: libc::SIGTRAP,
                handler: 1,
                old: [0; 4],
            }],
            guards_actions: true,
            follows: false,
        }
    }

    #[test]
    fn claims_are_found_wherever_they_begin() {
        let other = other(&[10..12, 11..40, 30..35, 50..51]);
        for (bytes, claimed) in [
            (0..10, false),
            (9..11, true),
            (39..40, true),
            (40..50, false),
            (45..60, true),
            (51..60, false),
        ] {
            assert_eq!(other.claims_any(bytes.clone()), claimed, "{bytes:?}");
        }
        assert_eq!(other.claims_in(34..50).count(), 2);
    }

    #[test]
    fn breakpoints_need_a_free_signal_and_guards() {
        let mut other = other(&[]);
        assert!(other.check_breakpoints(true).is_err());
        other.actions.clear();
        assert_eq!(other.check_breakpoints(true), Ok(()));
        assert!(other.check_breakpoints(false).is_err());
    }
}
