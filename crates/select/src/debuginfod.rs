//! Debug information from debuginfod servers, for variables by name.
//!
//! Servers are asked by `debuginfod-find` of elfutils, which has their addresses, limits and certificates
//! from its own environment, and keeps what it gets. Without `DEBUGINFOD_URLS` nobody is asked. What it
//! returns is not trusted: it is read as any debug file, and must have the wanted build id.

use crate::event::Event;
use crate::marker;
use capriole_dwarf::{DebugInfo as _, NotFetched};
use capriole_event::{Base, FetchArg, Place, Probe};
use capriole_host::signals;
use capriole_object::{Object, Objects};
use capriole_planner::resolve::{chosen, resolve};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The client of the servers.
const CLIENT: &str = "debuginfod-find";
/// Environment variable with the addresses of the servers.
const SERVERS: &str = "DEBUGINFOD_URLS";
/// Maximum time for one file. The client has limits of its own, by default 90 s without progress.
const LIMIT: Duration = Duration::from_secs(600);
/// Time after which the user is told.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between looks at the time and at requests to end.
const TICK: Duration = Duration::from_millis(100);
/// Interval between looks at a client that has closed its output.
const SHORT_TICK: Duration = Duration::from_millis(2);
/// Bytes kept of each of the client's outputs; a path has at most 4,096.
const KEPT: usize = 8 << 10;
/// Maximum length of the client's message in ours, characters.
const MESSAGE: usize = 200;
/// Maximum length of a build id, bytes; usual ones have 20.
const BUILD_ID: usize = 64;
/// Prefix of the client's message about the servers' answer; an error of errno(3) follows.
const ANSWER: &str = "Server query failed: ";

/// Fetches debug information that events need for variables by name, and that no file of this machine
/// has. `tell` gets messages about what takes long. The reason of a failure is in the error that
/// selecting the event returns. Each file is asked for once.
pub fn fetch(objects: &Objects, events: &[Event], tell: &dyn Fn(&str)) {
    for probe in events.iter().flat_map(Event::probes) {
        if needs_debug(objects, probe) {
            fetch_of(objects, probe, tell);
        }
    }
}

/// As [`fetch`], for all variables in the objects of the events, whatever they read.
pub fn fetch_all(objects: &Objects, events: &[Event], tell: &dyn Fn(&str)) {
    for probe in events.iter().flat_map(Event::probes) {
        fetch_of(objects, probe, tell);
    }
}

fn fetch_of(objects: &Objects, probe: &Probe, tell: &dyn Fn(&str)) {
    for object in chosen(objects, probe).unwrap_or_default() {
        let mut ask = |build_id: &[u8]| find(object, build_id, tell);
        object.file().fetch_debug(&mut ask);
    }
}

/// True if any of the events reads a variable by name.
#[must_use]
pub fn may_fetch(events: &[Event]) -> bool {
    events.iter().flat_map(Event::probes).any(|probe| {
        let mut values = probe.all_values();
        values.any(|value| names(value, &|_| true))
    })
}

/// True if a probe reads a variable by the names of debug information.
fn needs_debug(objects: &Objects, probe: &Probe) -> bool {
    let needs = |is_other: &dyn Fn(&Base) -> bool| {
        let mut values = probe.all_values();
        values.any(|value| names(value, is_other))
    };
    if !needs(&|_| true) {
        return false;
    }
    if !matches!(probe.place, Place::Static { .. }) {
        return true;
    }
    // A marker's own arguments have names too.
    let sites = resolve(objects, probe).unwrap_or_default();
    sites
        .iter()
        .filter_map(|site| site.marker.as_ref())
        .any(|marker| {
            let own = marker::names(marker);
            needs(&|base| match base {
                Base::Variable(path) => !own.contains(path),
                _ => false,
            })
        })
}

/// True if a value, or the length of its text, is a variable, or all parameters, and `wanted`.
fn names(value: &FetchArg, wanted: &dyn Fn(&Base) -> bool) -> bool {
    fn is_named(base: &Base, wanted: &dyn Fn(&Base) -> bool) -> bool {
        match base {
            Base::Variable(_) | Base::AllArguments => wanted(base),
            Base::Entry(entry) => is_named(&entry.fetch.base, wanted),
            _ => false,
        }
    }
    value.starts_from(|base| is_named(base, wanted))
}

/// Finds the debug file with a build id, for an object.
fn find(object: &Object, build_id: &[u8], tell: &dyn Fn(&str)) -> Result<PathBuf, NotFetched> {
    let servers = std::env::var_os(SERVERS).unwrap_or_default();
    let servers = servers.to_string_lossy();
    if servers.trim().is_empty() {
        return Err(NotFetched::NoServer);
    }
    let client = Client {
        program: OsStr::new(CLIENT),
        limit: LIMIT,
        patience: PATIENCE,
    };
    client.find(build_id, || {
        let name = object.name();
        let from = shown(&servers);
        tell(&format!(
            "debug information of {name} is fetched from {from}"
        ));
    })
}

/// Returns the addresses of servers as they are shown: without passwords.
fn shown(servers: &str) -> String {
    let server = |server: &str| match server.split_once("://") {
        None => server.to_owned(),
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = host.rsplit('@').next().unwrap_or(host);
            format!("{scheme}://{host}{path}")
        }
    };
    let all: Vec<String> = servers.split_whitespace().map(server).collect();
    all.join(" ")
}

/// A client, and how long it may take.
struct Client<'a> {
    program: &'a OsStr,
    limit: Duration,
    patience: Duration,
}

impl Client<'_> {
    /// Returns the path of the debug file with a build id. Calls `waiting` once if it takes long.
    fn find(&self, build_id: &[u8], waiting: impl FnOnce()) -> Result<PathBuf, NotFetched> {
        if !(2..=BUILD_ID).contains(&build_id.len()) {
            return Err(NotFetched::NoBuildId);
        }
        let id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(self.program);
        command.args(["debuginfo", &id]).env("LC_ALL", "C");
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        signals::tie(&mut command);
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => NotFetched::NotInstalled,
            _ => NotFetched::Failed(error.to_string()),
        })?;
        let ended = Ended::of(child, self, waiting)?;
        match ended.status.is_none_or(|status| status.success()) {
            true => path(ended.output),
            false => Err(ended.failure()),
        }
    }
}

/// Returns the path that the client has printed.
fn path(mut output: Vec<u8>) -> Result<PathBuf, NotFetched> {
    if output.last() == Some(&b'\n') {
        output.pop();
    }
    let path = PathBuf::from(OsString::from_vec(output));
    match path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&b'\n') {
        true => Ok(path),
        false => Err(NotFetched::Failed("it printed no path".to_owned())),
    }
}

/// A client that has ended.
struct Ended {
    /// `None` if the kernel does not tell it, because SIGCHLD is ignored.
    status: Option<ExitStatus>,
    /// The start of its standard output.
    output: Vec<u8>,
    /// The end of its standard error.
    messages: Vec<u8>,
}

impl Ended {
    /// Waits for the end of a client. It is killed if it takes too long, or an end is requested.
    fn of(child: Child, limits: &Client<'_>, waiting: impl FnOnce()) -> Result<Ended, NotFetched> {
        let mut child = Killed(child);
        let mut output = Output::of(child.0.stdout.take());
        let mut messages = Output::of(child.0.stderr.take());
        let (started, requests) = (Instant::now(), signals::requests());
        let mut waiting = Some(waiting);
        let mut status = None;
        loop {
            let came = read([&mut output, &mut messages]);
            // Then all that it has written is read. Whoever else has its output is not waited for.
            if let (false, Some(status)) = (came, status) {
                return Ok(Ended {
                    status,
                    output: output.first,
                    messages: messages.last,
                });
            }
            status = status.or_else(|| child.status());
            let elapsed = started.elapsed();
            if elapsed >= limits.patience
                && let Some(waiting) = waiting.take()
            {
                waiting();
            }
            if elapsed >= limits.limit {
                return Err(NotFetched::Stopped(limits.limit));
            }
            if signals::requests() != requests {
                return Err(NotFetched::Interrupted);
            }
        }
    }

    /// Returns the reason why it failed.
    fn failure(&self) -> NotFetched {
        let messages = String::from_utf8_lossy(&self.messages);
        let mut lines = messages.split(['\n', '\r']).map(str::trim);
        let last = lines.rfind(|line| !line.is_empty()).unwrap_or_default();
        let answer = last.strip_prefix(ANSWER);
        match (answer, self.status) {
            (Some("No such file or directory"), _) => NotFetched::NotFound,
            (Some("Timer expired" | "Connection timed out"), _) => NotFetched::TimedOut,
            (_, Some(status)) if last.is_empty() => NotFetched::Failed(status.to_string()),
            _ => {
                let message = answer.unwrap_or(last).chars().take(MESSAGE);
                NotFetched::Failed(message.collect())
            }
        }
    }
}

/// A child that is killed when this is dropped.
struct Killed(Child);

impl Killed {
    /// Returns how it ended, if it has; the inner `None` if the kernel does not tell.
    fn status(&mut self) -> Option<Option<ExitStatus>> {
        self.0.try_wait().transpose().map(Result::ok)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pipe from a client, and a part of what came out of it.
struct Output {
    /// `None` at the end.
    pipe: Option<std::fs::File>,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Output {
    fn of(pipe: Option<impl Into<OwnedFd>>) -> Output {
        Output {
            pipe: pipe.map(|pipe| std::fs::File::from(pipe.into())),
            first: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Reads once. Does not block if there is something to read.
    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut bytes = [0; KEPT];
        match pipe.read(&mut bytes) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.keep(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.pipe = None,
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = KEPT - self.first.len();
        self.first.extend(bytes.iter().take(room));
        self.last.extend(bytes);
        let excess = self.last.len().saturating_sub(KEPT);
        self.last.drain(..excess);
    }
}

/// Waits a moment for output, and reads it. Returns true if there was some, or one has ended.
fn read(outputs: [&mut Output; 2]) -> bool {
    let mut open: Vec<&mut Output> = outputs.into_iter().filter(|o| o.pipe.is_some()).collect();
    let tick = match open.is_empty() {
        true => SHORT_TICK,
        false => TICK,
    };
    let pipes = open.iter().filter_map(|output| output.pipe.as_ref());
    let mut pipes: Vec<PollFd<'_>> = pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
    // Interrupted by a signal, it finds none.
    let _ = poll(&mut pipes, Timespec::try_from(tick).ok().as_ref());
    let ready: Vec<bool> = pipes.iter().map(|p| !p.revents().is_empty()).collect();
    for (output, ready) in open.iter_mut().zip(&ready) {
        if *ready {
            output.read();
        }
    }
    ready.contains(&true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const ID: [u8; 20] = [0xab; 20];

    /// A directory with a client that is this script.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(script: &str) -> Fake {
            let fake = Fake(tempfile::tempdir().expect("a directory"));
            // Another process writes it: one that is forked meanwhile could have it open for writing.
            let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod +x \"$1\"";
            let mut writer = Command::new("sh");
            writer
                .args(["-c", write, "sh"])
                .arg(fake.path())
                .arg(script);
            assert!(writer.status().expect("a shell").success());
            fake
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("client")
        }

        fn find(&self) -> Result<PathBuf, NotFetched> {
            self.find_within(LIMIT, || {})
        }

        fn find_within(
            &self,
            limit: Duration,
            waiting: impl FnOnce(),
        ) -> Result<PathBuf, NotFetched> {
            let path = self.path();
            let client = Client {
                program: path.as_os_str(),
                limit,
                patience: Duration::ZERO,
            };
            client.find(&ID, waiting)
        }
    }

    #[test]
    fn the_path_is_what_the_client_prints_for_the_build_id() {
        let fake = Fake::new("echo some progress >&2; echo /cache/$2/$1");
        let expected = format!("/cache/{}/debuginfo", "ab".repeat(20));
        assert_eq!(fake.find(), Ok(PathBuf::from(expected)));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for script in [
            "",
            "echo",
            "echo relative",
            "echo /one; echo /two",
            "yes /x | head -c 999999",
        ] {
            let printed = NotFetched::Failed("it printed no path".to_owned());
            assert_eq!(Fake::new(script).find(), Err(printed), "{script}");
        }
    }

    #[test]
    fn answers_of_servers_are_told_apart() {
        let failed = |text: &str| NotFetched::Failed(text.to_owned());
        for (answer, expected) in [
            ("No such file or directory", NotFetched::NotFound),
            ("Timer expired", NotFetched::TimedOut),
            ("Connection timed out", NotFetched::TimedOut),
            ("Connection refused", failed("Connection refused")),
        ] {
            let script = format!("echo progress >&2; echo '{ANSWER}{answer}' >&2; exit 1");
            assert_eq!(Fake::new(&script).find(), Err(expected), "{answer}");
        }
        let cases = [
            ("exit 7", failed("exit status: 7")),
            ("echo broken >&2; exit 1", failed("broken")),
        ];
        for (script, expected) in cases {
            assert_eq!(Fake::new(script).find(), Err(expected), "{script}");
        }
    }

    #[test]
    fn much_output_neither_blocks_the_client_nor_fills_the_message() {
        let much = "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1";
        let Err(NotFetched::Failed(message)) = Fake::new(much).find() else {
            panic!("it succeeded");
        };
        assert_eq!(message, "x".repeat(MESSAGE));
    }

    #[test]
    fn a_client_that_hangs_is_killed() {
        // With its outputs open, and closed.
        for script in ["exec sleep 1000", "exec >&- 2>&-; exec sleep 1000"] {
            let limit = Duration::from_millis(50);
            let waited = Cell::new(false);
            let found = Fake::new(script).find_within(limit, || waited.set(true));
            assert_eq!(found, Err(NotFetched::Stopped(limit)), "{script}");
            assert!(waited.get(), "{script}");
        }
    }

    #[test]
    fn who_else_has_its_output_is_not_waited_for() {
        let fake = Fake::new("sleep 1000 & echo /found $! | cut -d' ' -f1; echo $! >\"$0.pid\"");
        assert_eq!(fake.find(), Ok(PathBuf::from("/found")));
        let pid = std::fs::read_to_string(fake.0.path().join("client.pid")).expect("a number");
        let pid = pid.trim().parse().expect("a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a number");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it sleeps");
    }

    #[test]
    fn a_missing_client_and_an_implausible_build_id_are_told() {
        let client = Client {
            program: OsStr::new("/nowhere/debuginfod-find"),
            limit: LIMIT,
            patience: PATIENCE,
        };
        assert_eq!(client.find(&ID, || {}), Err(NotFetched::NotInstalled));
        for id in [&[0; 1][..], &[0; 65]] {
            assert_eq!(client.find(id, || {}), Err(NotFetched::NoBuildId));
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for (servers, expected) in [
            ("https://a.example/ ", "https://a.example/"),
            (
                "https://me:secret@a.example/x@y http://b",
                "https://a.example/x@y http://b",
            ),
            ("ima:enforcing file:///srv", "ima:enforcing file:///srv"),
        ] {
            assert_eq!(shown(servers), expected);
        }
    }
}
