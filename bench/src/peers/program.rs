//! A program of a peer, or the tool itself: started in a process group of its own, read with a
//! timeout, and killed with its group on drop.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::interrupt;

/// Longest silence of a tool while output is expected.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of checks for a signal while waiting.
const TICK: Duration = Duration::from_millis(50);

/// A running program. Killed on drop, with all processes of its group.
pub(crate) struct Program {
    child: Child,
    /// `None` once it is to end.
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// Output that has been read but not yet consumed.
    unread: Vec<u8>,
    /// File for its error output.
    errors: PathBuf,
    /// True if it is an `unshare` that waits for the first process of its namespaces.
    secluded: bool,
    /// A file that it leaves behind, removed on drop.
    residue: Option<PathBuf>,
}

impl Program {
    /// Starts a program. Its error output goes to a file in the directory.
    pub(crate) fn start(command: &mut Command, files: &Path) -> Result<Program, String> {
        let name = Path::new(command.get_program()).file_name();
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        let errors = files.join(format!("{name}.err"));
        let file = File::create(&errors)
            .map_err(|error| format!("cannot write {}: {error}", errors.display()))?;
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .process_group(0);
        let die_with_parent = || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        };
        // SAFETY: the code between fork and exec is one system call (prctl(2)), which
        // neither allocates nor locks.
        let mut child = unsafe { command.pre_exec(die_with_parent) }
            .spawn()
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => format!("{name} is not installed"),
                _ => format!("cannot start {name}: {error}"),
            })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked to be pipes");
        };
        Ok(Program {
            child,
            input: Some(input),
            output,
            unread: Vec::new(),
            errors,
            secluded: false,
            residue: None,
        })
    }

    /// Runs a shell script in PID and mount namespaces of its own, which end with it: nothing that
    /// it starts or mounts can stay, even if it is killed. `/run` and `/dev/shm` are empty there.
    /// `$1` is the directory, the arguments follow.
    pub(crate) fn secluded(
        script: &str,
        files: &Path,
        arguments: &[&OsStr],
    ) -> Result<Program, String> {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["--propagation", "private", "sh", "-c"]);
        let mounts = "set -e; mount -t tmpfs none /run; mount -t tmpfs none /dev/shm\n";
        command.arg(format!("{mounts}{script}")).arg("sh");
        command.arg(files).args(arguments);
        let mut program = Program::start(&mut command, files)?;
        program.secluded = true;
        Ok(program)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Registers a file to be removed once the program has ended.
    pub(crate) fn leaves(&mut self, file: PathBuf) {
        self.residue = Some(file);
    }

    /// Reads the address of the function, which our own programs print first.
    pub(crate) fn address(&mut self) -> Result<u64, String> {
        let line = self.line()?;
        let hex = line.strip_prefix("ok 0x").unwrap_or_default();
        u64::from_str_radix(hex, 16).map_err(|_| format!("it began with {line:?}"))
    }

    /// Sends a line to one of our own programs; returns the numbers of its answer.
    pub(crate) fn ask<const N: usize>(&mut self, what: &str) -> Result<[f64; N], String> {
        let sent = match &mut self.input {
            Some(input) => writeln!(input, "{what}").and_then(|()| input.flush()),
            None => Ok(()),
        };
        if sent.is_err() {
            return Err(self.gone());
        }
        let line = self.line()?;
        let mut words = line.split(' ');
        let ok = words.next() == Some("ok");
        let numbers: Result<Vec<f64>, _> = words.map(str::parse).collect();
        let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        numbers
            .filter(|_| ok)
            .ok_or_else(|| format!("to {what:?} it said {line:?}"))
    }

    /// Reads the next line of its output.
    pub(crate) fn line(&mut self) -> Result<String, String> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if !self.more()? {
                return Err(self.gone());
            }
        }
    }

    /// Waits for a line that begins with `start`.
    pub(crate) fn wait_for(&mut self, start: &str) -> Result<(), String> {
        while !self.line()?.starts_with(start) {}
        Ok(())
    }

    /// Waits until `holds` returns true; its condition is outside the program.
    pub(crate) fn until(&mut self, mut holds: impl FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            if !self.lives() {
                return Err(self.gone());
            }
            patience_left(deadline)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Closes its input.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    /// Sends it a signal.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.lives() {
            // It fails only if it has ended already.
            let _ = kill_process(pid_of(&self.child), signal);
        }
    }

    /// Closes its input and waits until it exits by itself; returns the output not yet read.
    pub(crate) fn end(mut self) -> Result<String, String> {
        self.close();
        while self.more()? {}
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => patience_left(deadline)?,
                Err(error) => return Err(format!("cannot wait for it: {error}")),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        match status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&self.unread).into_owned()),
            _ => Err(self.gone()),
        }
    }

    /// Waits for output and reads it; false at its end.
    fn more(&mut self) -> Result<bool, String> {
        let deadline = Instant::now() + PATIENCE;
        let tick = Timespec {
            tv_sec: 0,
            tv_nsec: TICK.as_nanos() as i64,
        };
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => patience_left(deadline)?,
                Ok(_) => break,
                Err(error) => return Err(format!("cannot listen to it: {error}")),
            }
        }
        let mut bytes = [0; 4096];
        let read = self.output.read(&mut bytes);
        let read = read.map_err(|error| format!("cannot listen to it: {error}"))?;
        self.unread.extend_from_slice(&bytes[..read]);
        Ok(read > 0)
    }

    /// Returns the error for a program that has ended or does not answer: the last line of its
    /// error output, or else its exit status.
    fn gone(&mut self) -> String {
        let errors = std::fs::read(&self.errors).unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors).into_owned();
        if let Some(last) = errors.lines().rfind(|line| !line.trim().is_empty()) {
            return last.trim().to_owned();
        }
        // Its pipe is closed, so it is about to end.
        std::thread::sleep(Duration::from_millis(50));
        match self.child.try_wait() {
            Ok(Some(status)) => match status.signal() {
                Some(signal) => format!("it was killed by signal {signal}"),
                None => format!("it ended with {status}"),
            },
            _ => "it has closed its output".to_owned(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.secluded {
            self.end_namespaces();
        }
        // It fails if all have ended.
        let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
        let _ = self.child.wait();
        if let Some(file) = &self.residue {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Program {
    /// Kills the first process of its namespaces. Its exit completes only when all others in them
    /// have ended; then our child, which waits for it, exits by itself. After that, no process
    /// writes files any more.
    fn end_namespaces(&mut self) {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for first in children.unwrap_or_default().split_whitespace() {
            if let Some(first) = first.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(first, Signal::KILL);
            }
        }
        for _ in 0..500 {
            if !self.lives() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Checks that waiting may go on.
///
/// # Errors
///
/// A signal has requested termination, or the deadline has passed.
fn patience_left(deadline: Instant) -> Result<(), String> {
    if interrupt::came() {
        return Err("a signal came while it was waited for".to_owned());
    }
    match Instant::now() < deadline {
        true => Ok(()),
        false => Err(format!("it was silent for {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn shell(script: &str, files: &Scratch) -> Program {
        Program::start(Command::new("sh").args(["-c", script]), files.path()).expect("a shell")
    }

    #[test]
    fn answers_are_numbers_and_what_is_left_is_the_end() {
        let files = Scratch::new().expect("a directory");
        let script = "echo ok 0x1f; read x; echo ok 2 $x; read x; echo no; cat; echo the end";
        let mut program = shell(script, &files);
        assert_eq!(program.address(), Ok(0x1f));
        assert_eq!(program.ask::<2>("3.5"), Ok([2.0, 3.5]));
        let why = program.ask::<1>("4").expect_err("no numbers");
        assert_eq!(why, "to \"4\" it said \"no\"");
        assert_eq!(program.end().as_deref(), Ok("the end\n"));
    }

    #[test]
    fn what_it_said_last_is_why_it_ended() {
        let files = Scratch::new().expect("a directory");
        let mut program = shell("echo first >&2; echo last >&2; echo >&2; exit 3", &files);
        assert_eq!(program.line(), Err("last".to_owned()));
        let mut program = shell("kill -9 $$", &files);
        let why = program.line().expect_err("it is gone");
        assert_eq!(why, "it was killed by signal 9");
        let none = Program::start(&mut Command::new("/nowhere/tool"), files.path());
        assert_eq!(none.err().as_deref(), Some("tool is not installed"));
    }

    #[test]
    fn what_is_secluded_ends_as_a_whole() {
        let files = Scratch::new().expect("a directory");
        // A daemon: in another session, and no child of the script.
        let script =
            r#"mkdir /run/mine; (setsid sleep 1000 <&- >&- &); echo "ok $(ls -d /run/mi*) $#""#;
        let script = format!("{script}; read x; exit 0");
        let arguments = ["one".as_ref(), "two".as_ref()];
        let mut program = Program::secluded(&script, files.path(), &arguments).expect("a shell");
        match program.line() {
            Ok(line) => assert_eq!(line, "ok /run/mine 3"),
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        }
        assert!(!Path::new("/run/mine").exists());
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let unshare = program.pid();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let children = children.expect("it lives");
        let inside = namespace(children.trim()).expect("a namespace");
        let all = || {
            let processes = std::fs::read_dir("/proc").expect("processes").flatten();
            let names = processes.filter_map(|entry| entry.file_name().into_string().ok());
            names
                .filter(|pid| namespace(pid).as_ref() == Some(&inside))
                .count()
        };
        assert!(all() >= 2, "{}", all());
        drop(program);
        assert_eq!(all(), 0);
    }

    #[test]
    fn what_it_leaves_is_removed() {
        let files = Scratch::new().expect("a directory");
        let residue = files.path().join("residue");
        let script = format!("echo > '{}'; echo made; read x", residue.display());
        let mut program = shell(&script, &files);
        program.leaves(residue.clone());
        assert_eq!(program.line(), Ok("made".to_owned()));
        assert!(residue.exists());
        drop(program);
        assert!(!residue.exists());
    }

    #[test]
    fn the_group_ends_with_it() {
        let files = Scratch::new().expect("a directory");
        let mut program = shell("sleep 1000 & echo $!; wait", &files);
        let sleeper = program.line().expect("a number");
        drop(program);
        let stat = || std::fs::read_to_string(format!("/proc/{sleeper}/stat"));
        for _ in 0..200 {
            // A zombie that init has not yet waited for has ended, too.
            if stat().map_or(true, |stat| stat.contains(") Z ")) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?}", stat());
    }
}
