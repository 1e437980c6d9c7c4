//! `gdb.fast_tracepoint`: GDB's fast tracepoint, with gdbserver and its in-process agent, which is
//! loaded with the program. It collects the two registers with the arguments. The trace buffer is
//! circular and of the default size (5 MiB); the agent's records of 2 KiB and more soon fill it,
//! and gdbserver then has to stop the program for a moment.

use std::path::Path;
use std::process::Command;

use super::build::{build, installed, program};
use super::{Program, Session, Tool, put};

pub(super) struct Gdb;

const FUNCTION: &str = include_str!("../../peers/gdb.c");
/// The in-process agent: a library to be loaded with the program.
const AGENT: &str = "libinproctrace.so";
/// Directories where distributions install it.
const PLACES: [&str; 4] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/lib",
];
/// Line that GDB prints just before it continues the program.
const READY: &str = "capriole: ready";

impl Tool for Gdb {
    fn build(&self, files: &Path) -> Result<(), String> {
        available()?;
        // The agent allocates memory in jump range of the usual load address, hence no PIE.
        let options = ["-O1", "-fno-pie"];
        build(files, "cc", ("gdb.c", FUNCTION), &options, &["-no-pie"]).map(drop)
    }

    fn start(&self, files: &Path) -> Result<Session, String> {
        let mut command = program(files);
        let file = Path::new(command.get_program()).to_owned();
        command.env("LD_PRELOAD", agent()?);
        let mut calling = Program::start(&mut command, files)?;
        // The agent's socket (gdbserver/tracepoint.cc: in P_tmpdir, whatever TMPDIR is).
        calling.leaves(format!("/tmp/gdb_ust{}", calling.pid()).into());
        calling.address()?;
        let tracepoints = FastTracepoints {
            pid: calling.pid(),
            sites: &["capriole_peer_site"],
            collected: "$rdi, $rsi",
            end: "capriole_peer_end",
        };
        let tool = tracepoints.start(&file, files)?;
        Ok(Session {
            tool: Some(tool),
            program: calling,
        })
    }

    fn end(&self, session: Session, _: &Path) -> Result<u64, String> {
        let (tool, mut program) = (session.tool.ok_or("gdb is not running")?, session.program);
        // The program then hits the breakpoint at its end, and GDB's script continues.
        program.close();
        frames(tool)
    }
}

/// Fast tracepoints in a program that has the agent ([`agent`]) loaded with it.
pub(crate) struct FastTracepoints<'a> {
    /// The program's process id.
    pub(crate) pid: u32,
    /// Symbols of instructions of at least five bytes.
    pub(crate) sites: &'a [&'a str],
    /// What a hit collects, as GDB writes it.
    pub(crate) collected: &'a str,
    /// The function that the program calls once, when all hits were made.
    pub(crate) end: &'a str,
}

impl FastTracepoints<'_> {
    /// Starts GDB with gdbserver, and waits until the tracepoints are in place. The program has
    /// this executable file.
    pub(crate) fn start(&self, executable: &Path, files: &Path) -> Result<Program, String> {
        let script = put(files, "script.gdb", &self.script())?;
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-batch", "-x"]).arg(script);
        let mut tool = Program::start(gdb.arg(executable), files)?;
        tool.wait_for(READY)?;
        Ok(tool)
    }

    /// Returns GDB's script.
    fn script(&self) -> String {
        let mut lines: Vec<String> = vec![
            "set pagination off".into(),
            "set confirm off".into(),
            // Otherwise GDB reads files through gdbserver to look for debug information.
            "set sysroot /".into(),
            "set debug-file-directory /nonexistent".into(),
            "set circular-trace-buffer on".into(),
            format!("target remote | gdbserver --once --attach - {}", self.pid),
        ];
        for site in self.sites {
            let collect = format!("collect {}", self.collected);
            lines.extend([
                format!("ftrace *{site}"),
                "actions".into(),
                collect,
                "end".into(),
            ]);
        }
        lines.extend([
            format!("break {}", self.end),
            "tstart".into(),
            format!("echo {READY}\\n"),
            "continue".into(),
            "tstop".into(),
            "tstatus".into(),
            "kill".into(),
        ]);
        lines.join("\n") + "\n"
    }
}

/// Waits until GDB has ended, after the program's end; returns the number of hits.
pub(crate) fn frames(tool: Program) -> Result<u64, String> {
    let said = tool.end()?;
    counted(&said).ok_or_else(|| "GDB has not said how many calls it saw".to_owned())
}

/// Checks that all parts are installed.
pub(crate) fn available() -> Result<(), String> {
    installed("gdb")?;
    installed("gdbserver")?;
    agent().map(drop)
}

/// Returns the path of the in-process agent, for `LD_PRELOAD`.
pub(crate) fn agent() -> Result<String, String> {
    let mut paths = PLACES.iter().map(|place| format!("{place}/{AGENT}"));
    paths
        .find(|path| Path::new(path).is_file())
        .ok_or_else(|| format!("gdbserver's in-process agent ({AGENT}) is not installed"))
}

/// Parses `Collected N trace frames.` or `Buffer contains M trace frames (of N created total).`
fn counted(said: &str) -> Option<u64> {
    let number = |text: &str| text.split_whitespace().next()?.parse().ok();
    said.lines().find_map(|line| {
        if let Some(rest) = line.strip_prefix("Collected ") {
            return number(rest);
        }
        let rest = line.strip_prefix("Buffer contains ")?;
        match rest.split_once("(of ") {
            Some((_, total)) => number(total),
            None => number(rest),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_site_has_its_actions() {
        let tracepoints = FastTracepoints {
            pid: 7,
            sites: &["one", "two"],
            collected: "$rdi",
            end: "done",
        };
        let script = tracepoints.script();
        for site in ["one", "two"] {
            let lines = format!("\nftrace *{site}\nactions\ncollect $rdi\nend\n");
            assert!(script.contains(&lines), "{script}");
        }
        assert!(script.contains(" --attach - 7\n"), "{script}");
        assert!(script.contains("\nbreak done\ntstart\n"), "{script}");
    }

    #[test]
    fn frames_of_the_status() {
        let status = "Trace stopped by a tstop command ().\n\
                      Buffer contains 2162 trace frames (of 61500 created total).\n";
        assert_eq!(counted(status), Some(61_500));
        assert_eq!(counted("Collected 12 trace frames.\n"), Some(12));
        assert_eq!(counted("Buffer contains 1 trace frame.\n"), Some(1));
        assert_eq!(counted("Trace can not be run on this target.\n"), None);
    }
}
