//! `bpftrace.count`: bpftrace counts hits of a uprobe that it has placed on the function.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::build::{installed, plain, program};
use super::{Program, Session, Tool};

pub(super) struct Bpftrace;

/// Opcode of a breakpoint.
const INT3: u8 = 0xcc;

impl Tool for Bpftrace {
    fn build(&self, files: &Path) -> Result<(), String> {
        installed("bpftrace")?;
        plain(files).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        let mut command = program(files);
        let file = Path::new(command.get_program()).display().to_string();
        let mut calling = Program::start(&mut command, files)?;
        let address = calling.address()?;
        let memory = File::open(format!("/proc/{}/mem", calling.pid()))
            .map_err(|error| format!("cannot read its program's memory: {error}"))?;
        let script = format!("uprobe:\"{file}\":capriole_peer {{ @hits = count(); }}");
        let mut tool = Program::start(Command::new("bpftrace").args(["-e", &script]), files)?;
        tool.until(|| {
            let mut byte = [0];
            memory.read_exact_at(&mut byte, address).is_ok() && byte == [INT3]
        })?;
        Ok(Session {
            tool: Some(tool),
            program: calling,
        })
    }

    fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
        let mut tool = session.tool.ok_or("bpftrace is not running")?;
        session.program.end()?;
        tool.signal(Signal::INT);
        let said = tool.end()?;
        counted(&said).ok_or_else(|| format!("bpftrace printed no count, but {said:?}"))
    }
}

/// Parses `@hits: N`.
fn counted(said: &str) -> Option<u64> {
    said.lines()
        .find_map(|line| line.strip_prefix("@hits: ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        assert_eq!(
            counted("Attaching 1 probe...\n\n\n@hits: 1234\n"),
            Some(1234)
        );
        assert_eq!(counted("Attaching 1 probe...\n"), None);
    }
}
