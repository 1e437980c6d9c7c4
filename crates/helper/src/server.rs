//! The requests of a program.

use crate::branch::{Branch, NoPost};
use crate::handlers::{ARGUMENTS, Analysis, RETURN};
use crate::line::Line;
use crate::message::{self, Answer, Failure, Malformed, Request};
use crate::one_line::one_line;
use crate::{VERSION, rows};
use capriole::session::sites::{AddedSite, Excluded, Pace, Reached, SiteId, Spot};
use capriole::{Code, EventId, ProbeOptions, Session, Status};
use capriole_event::{At, Call, EventSpec, ObjectRef, Place, Probe};
use capriole_host::Host;
use capriole_host::host::Routines;
use capriole_host::signals;
use capriole_host::survey::has_shadow_stack;
use capriole_host::volunteer::{self, Volunteer};
use capriole_proc::files;
use capriole_proc::maps::{Mapping, containing};
use capriole_proc::process::{Process, deputy, is_helper};
use capriole_text::chain;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after a breakpoint was put in during which others may join it before all of them are
/// replaced by jumps in one pause.
const BATCH: Duration = Duration::from_millis(50);
/// Interval of what a session needs.
const UPKEEP: Duration = Duration::from_millis(100);
/// Interval while the records of a session are written into a trace, so that its memory does not become full.
const RECORDING: Duration = Duration::from_millis(10);
/// Time in which a helper that has lost its connection ends.
const LEAVING: Duration = Duration::from_secs(20);
/// Records that are kept until the program reads them.
const KEPT: usize = 100_000;

/// Address space that is enough for a session and the records of threads, bytes; most of it is never
/// touched.
const ADDRESS_SPACE: u64 = 1 << 30;

/// What a site does.
const BEFORE: u64 = 0;
const AFTER: u64 = 1;
/// Goes on elsewhere.
const REPLACE: u64 = 2;

/// Size of `endbr64`, bytes.
const ENDBR64: u64 = 4;

/// State numbers of `enum capriole_state`.
const BREAKPOINT: u64 = 1;
const WAITING: u64 = 2;
const OPTIMIZED: u64 = 3;
const OFF: u64 = 4;
const GONE: u64 = 5;
const OCCUPIED: u64 = 6;

/// A site of the program's library.
struct Site {
    added: AddedSite,
    armed: bool,
    /// True if its breakpoint is to stay.
    held: bool,
    /// Its address in the library.
    own: u64,
}

/// The mappings of the program when a request was begun, once they were needed, and the files that were
/// opened since.
#[derive(Default)]
struct Known {
    maps: Option<Vec<Mapping>>,
    files: BTreeMap<String, Option<File>>,
}

pub struct Server {
    pid: u32,
    process: Option<Process>,
    line: Arc<Line>,
    /// Mappings and files of the program, kept until the next request: one may have thousands of addresses.
    known: RefCell<Known>,
    host: Option<Arc<Volunteer>>,
    /// The thread that waits for an answer.
    tid: i32,
    /// The helper that the program had before; 0: none.
    earlier: u32,
    session: Option<Session>,
    /// Addresses of the routines in the library, in the order of `library/helper.c`.
    routines: [u64; 3],
    /// Code of the library that must not be probed: what detours call, where a probe would be hit by every
    /// hit, and its system calls.
    own: [Range<u64>; 2],
    /// Sites by their numbers; the program names them by these.
    sites: Vec<Site>,
    /// The sites of each patch, by their indices.
    of_patch: BTreeMap<SiteId, Vec<usize>>,
    events: BTreeMap<u64, EventId>,
    records: Vec<String>,
    /// Number of records that were dropped because nobody read them.
    dropped: u64,
    /// True if jumps are allowed.
    allowed: bool,
    /// When the first breakpoint that waits for its jump was put in.
    waiting: Option<Instant>,
    upkeep: Instant,
}

type Answered = Result<Answer, Failure>;

fn failure(code: i32, message: impl Into<String>) -> Failure {
    Failure {
        code,
        message: message.into(),
        recorder: None,
    }
}

impl From<capriole::Error> for Failure {
    fn from(error: capriole::Error) -> Failure {
        Failure {
            recorder: error.recorder(),
            ..failure(errno(error.code()), one_line(&error.full()))
        }
    }
}

/// Returns the errno(3) code for an error of the engine. `capriole-probe(3)` and `docs/probes.md` have
/// the table.
fn errno(code: Code) -> i32 {
    match code {
        Code::NotFound => libc::ENOENT,
        Code::Ambiguous => libc::ENOTUNIQ,
        Code::NotCode
        | Code::NoExits
        | Code::NotProbeable
        | Code::NoReturnStack
        | Code::UnsupportedProcess
        | Code::ForbiddenByProgram
        | Code::Sandboxed => libc::EOPNOTSUPP,
        Code::NotABoundary => libc::EILSEQ,
        Code::Limit => libc::ENOSPC,
        Code::NoProcess | Code::Vanished => libc::ESRCH,
        Code::NotPermitted => libc::EPERM,
        Code::AlreadyTraced | Code::AlreadyRecorded => libc::EBUSY,
        Code::Busy | Code::Misplaced => libc::EAGAIN,
        Code::NoResources => libc::ENOMEM,
        Code::Damaged | Code::System | Code::Clock | Code::Trace => libc::EIO,
        Code::Object => libc::ENOEXEC,
        _ => libc::EINVAL,
    }
}

impl Server {
    pub fn new(pid: u32, line: Arc<Line>) -> Server {
        Server {
            pid,
            line,
            host: None,
            known: RefCell::default(),
            tid: 0,
            earlier: 0,
            process: Process::open(pid).ok(),
            session: None,
            routines: [0; 3],
            own: [0..0, 0..0],
            sites: Vec::new(),
            of_patch: BTreeMap::new(),
            events: BTreeMap::new(),
            records: Vec::new(),
            dropped: 0,
            allowed: true,
            waiting: None,
            upkeep: Instant::now(),
        }
    }

    /// Checks that `/proc` shows the program: what is called by its number there may be another process,
    /// if `/proc` was mounted for another PID namespace.
    fn check_proc(&self) -> Result<(), Failure> {
        let refuse = |message: &str| Err(failure(libc::EOPNOTSUPP, message));
        let Ok(status) = files::read_pseudo_text("/proc/self/status") else {
            return refuse(
                "/proc is not mounted, or is that of another PID namespace, and probes need it: mount one there",
            );
        };
        // The ids in the namespaces from that of /proc to our own (proc_pid_status(5)).
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        if ids.is_some_and(|ids| ids.split_whitespace().count() != 1) {
            return refuse(
                "/proc is that of another PID namespace, where the program has another number: mount one of its \
                 own",
            );
        }
        if !std::path::Path::new(&format!("/proc/{}", self.pid)).exists() {
            return refuse("/proc does not show the program: it is mounted with `hidepid`");
        }
        Ok(())
    }

    /// Returns the time until there is something to do.
    pub fn pause(&self) -> Duration {
        let upkeep = (self.upkeep + self.interval()).saturating_duration_since(Instant::now());
        match self.waiting {
            Some(since) if self.allowed => {
                upkeep.min((since + BATCH).saturating_duration_since(Instant::now()))
            }
            _ => match self.session {
                Some(_) => upkeep,
                None => Duration::from_secs(3600),
            },
        }
    }

    /// Returns the interval of what the session needs.
    fn interval(&self) -> Duration {
        match self.session.as_ref().is_some_and(Session::is_traced) {
            true => RECORDING,
            false => UPKEEP,
        }
    }

    /// Does what is due.
    pub fn work(&mut self) {
        if self.waiting.is_some_and(|since| since.elapsed() >= BATCH) && self.allowed {
            self.optimize();
        }
        if self.upkeep.elapsed() >= self.interval() {
            self.upkeep = Instant::now();
            self.read();
        }
    }

    /// Replaces the breakpoints that may be replaced.
    fn optimize(&mut self) {
        self.waiting = None;
        let free = self.sites.iter().filter(|site| site.armed && !site.held);
        let held: BTreeSet<SiteId> = self
            .sites
            .iter()
            .filter(|s| s.armed && s.held)
            .map(|s| s.added.id)
            .collect();
        let free: Vec<SiteId> = free
            .map(|s| s.added.id)
            .filter(|id| !held.contains(id))
            .collect();
        if let Some(session) = &mut self.session
            && !free.is_empty()
        {
            // A program that cannot be stopped now keeps its breakpoints; the next request tries again.
            let _ = session.optimise_sites(&free);
        }
    }

    /// Reads records, and does the upkeep of the session.
    fn read(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        for record in session.read().into_iter().flatten() {
            match self.records.len() < KEPT {
                true => self.records.push(record.to_string()),
                false => self.dropped += 1,
            }
        }
    }

    /// Returns what changes the program: by ptrace, or without.
    fn host(&mut self) -> Result<Arc<dyn Host>, Failure> {
        let gone = || failure(libc::ESRCH, "the program is gone");
        let process = self.process.as_ref().ok_or_else(gone)?;
        let may_trace = volunteer::may_trace(|| {
            let trial = std::process::Command::new("/proc/self/exe")
                .args(["probe-helper", "try-ptrace"])
                .stdin(std::process::Stdio::null())
                .status();
            Some(trial.ok()?.success())
        });
        let line: Arc<dyn volunteer::Line> = self.line.clone();
        let host = Arc::new(Volunteer::new(process, line, may_trace, self.tid));
        self.host = Some(host.clone());
        Ok(host)
    }

    fn session(&mut self) -> Result<&mut Session, Failure> {
        if self.session.is_none() {
            let mut options = capriole::Options::default();
            options.probes = ProbeOptions {
                breakpoints: true,
                ..ProbeOptions::default()
            };
            let host = self.host()?;
            self.await_earlier();
            Session::part(&*host)?;
            self.session = Some(Session::attach_by(host, options)?);
        }
        self.session.as_mut().ok_or_else(|| Malformed.into())
    }

    /// Waits until the helper that the program had before is gone, whose session would be taken for one
    /// in use. It ends when it notices that its connection is closed: on a busy machine not at once.
    fn await_earlier(&self) {
        let pid = i32::try_from(self.earlier).ok().and_then(Pid::from_raw);
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).ok();
        let Some(earlier) = pid.and_then(open) else {
            return;
        };
        // A process that is ending releases its memory first, and shows no arguments from then on.
        let is_ending = || Process::open(self.earlier).is_ok_and(|process| process.is_over());
        if !is_helper(self.earlier) && !is_ending() {
            return;
        }
        // It becomes readable when the last thread has ended.
        let mut ends = [PollFd::new(&earlier, PollFlags::IN)];
        let _ = poll(&mut ends, Timespec::try_from(LEAVING).ok().as_ref());
    }

    pub fn answer(&mut self, request: Request) -> Answered {
        // The program waits meanwhile, and with it who loads its libraries, usually.
        *self.known.borrow_mut() = Known::default();
        self.answer_plainly(request)
            .map_err(|failure| self.explained(failure))
    }

    /// Adds advice to an error where the kernel does not let this process look into the program, or
    /// limits its memory, or where the program has two libraries that probe it.
    fn explained(&self, failure: Failure) -> Failure {
        let memory = File::open(format!("/proc/{}/mem", deputy(self.pid)));
        let is_closed = memory.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        let is_narrow = address_space_left(self.pid).is_some_and(|left| left < ADDRESS_SPACE);
        if failure.recorder.is_some_and(is_helper) {
            let message = "another libcapriole in this process has probes: there is a copy of it in the program \
                           or in a library; link all of them with libcapriole.so, or have the other one call \
                           capriole_finish first";
            return Failure {
                message: message.to_owned(),
                ..failure
            };
        }
        let advice = if is_closed {
            "; the program is not dumpable (it has changed its user, or set PR_SET_DUMPABLE): call \
             prctl(PR_SET_DUMPABLE, 1), or start as a user that may trace it, and call capriole_start \
             before that is given up"
        } else if is_narrow && failure.message.contains("memory") {
            "; the program's address space is limited (ulimit -v), and probes need 1 GB of that, of which \
             little becomes memory"
        } else {
            return failure;
        };
        let message = failure.message + advice;
        Failure { message, ..failure }
    }

    fn answer_plainly(&mut self, mut request: Request) -> Answered {
        let tid = request.word()? as i32;
        self.tid = tid;
        match request.kind {
            message::HELLO => self.hello(&mut request),
            message::RESOLVE => self.resolve(&mut request),
            message::ADD => self.add(&mut request),
            message::ARM => self.arm(&mut request, tid),
            message::DISARM => self.disarm(&mut request, tid),
            message::OPTIMIZE => self.wait_for_jumps(&mut request),
            message::STATUS => self.status(&mut request),
            message::EXITS => self.exits(&mut request),
            message::ANALYZE => self.analyze(&mut request),
            message::EVENT_ADD => self.add_event(&mut request),
            message::EVENT_REMOVE => self.remove_event(&mut request),
            message::ROWS => self.rows(&mut request),
            message::READ => self.records(),
            message::ALLOW => self.allow(&mut request, tid),
            message::PLACE => self.place(&mut request),
            message::FAULTS => self.faults(),
            message::EXCLUDED => self.excluded(),
            message::RECORD_START => self.start_recording(&mut request),
            message::RECORD_STOP => self.stop_recording(),
            message::GOODBYE => self.goodbye(),
            _ => Err(Malformed.into()),
        }
    }

    fn hello(&mut self, request: &mut Request) -> Answered {
        let version = request.word()?;
        if version != VERSION {
            return Err(failure(
                libc::EPROTO,
                format!(
                    "the library speaks version {version} with its helper, and this command version {VERSION}: install both from the same source"
                ),
            ));
        }
        let pid = request.word()?;
        if pid != u64::from(self.pid) {
            return Err(failure(
                libc::EPROTO,
                format!(
                    "the program says that it is process {pid}, and the kernel that it is {}",
                    self.pid
                ),
            ));
        }
        self.earlier = u32::try_from(request.word()?).unwrap_or(0);
        self.check_proc()?;
        for routine in &mut self.routines {
            *routine = request.word()?;
        }
        self.own = [
            request.word()?..request.word()?,
            request.word()?..request.word()?,
        ];
        self.line.set_scratch(request.word()?);
        let routines = Routines {
            text: self.own[0].clone(),
            records: request.word()?..request.word()?,
            record_size: request.word()?,
        };
        let mut copied = Vec::new();
        while !request.is_over() {
            copied.push(request.word()?);
        }
        self.line.set_routines(routines, copied);
        Ok(Answer::default())
    }

    fn resolve(&mut self, request: &mut Request) -> Answered {
        let mut answer = Answer::default();
        while !request.is_over() {
            let kind = request.word()?;
            let offset = request.word()?;
            let object = ObjectRef::from(&*request.text()?);
            let name = request.text()?;
            let place = match kind {
                1 => Place::Symbol {
                    pattern: name,
                    offset,
                },
                _ => line(&name)?,
            };
            no_pattern(&place)?;
            let probe = own_code(Probe::new(object, place, At::Entry));
            answer.word(self.spot(&probe)?);
        }
        Ok(answer)
    }

    /// Returns the address of the one place of a probe.
    fn spot(&mut self, probe: &Probe) -> Result<u64, Failure> {
        let spots = newest(self.session()?.spots(probe)?);
        let mut addresses: Vec<u64> = spots.iter().map(|spot| spot.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        match addresses[..] {
            [address] => Ok(address),
            [] => Err(failure(
                libc::ENOENT,
                format!(
                    "`{}` has no code of its own: it is inlined everywhere",
                    probe.label
                ),
            )),
            _ => {
                let mut message = format!(
                    "`{}` is at {} places; give one of these addresses:",
                    probe.label,
                    addresses.len()
                );
                for address in addresses.iter().take(8) {
                    let _ = write!(message, " {address:#x}");
                }
                Err(failure(libc::ENOTUNIQ, message))
            }
        }
    }

    /// Returns the mapping at an address of the program.
    fn mapping_at(&self, address: u64) -> Result<Option<Mapping>, Failure> {
        let gone = || failure(libc::ESRCH, "the program is gone");
        let maps = &mut self.known.borrow_mut().maps;
        if maps.is_none() {
            let process = self.process.as_ref().ok_or_else(gone)?;
            *maps = Some(process.maps().map_err(|_| gone())?);
        }
        let maps = maps.as_deref().unwrap_or_default();
        Ok(containing(maps, address).cloned())
    }

    /// Returns the file and the offset in it of an address of the program.
    fn file_at(&self, address: u64) -> Result<(String, u64), Failure> {
        let mapping = self
            .mapping_at(address)?
            .ok_or_else(|| failure(libc::EFAULT, format!("nothing is mapped at {address:#x}")))?;
        if !mapping.perms.execute {
            return Err(failure(
                libc::EFAULT,
                format!("there is no code at {address:#x}: the memory is not executable"),
            ));
        }
        if !mapping.is_file() {
            return Err(failure(
                libc::EOPNOTSUPP,
                format!(
                    "{address:#x} is not in a file that is mapped: code that a program generates cannot be probed"
                ),
            ));
        }
        Ok((
            mapping.path.to_string_lossy().into_owned(),
            address - mapping.start + mapping.offset,
        ))
    }

    /// Refuses code of a file that is mapped once more: a place is known by its offset in the file.
    fn check_loaded(&mut self, address: u64) -> Result<(), Failure> {
        match self.session()?.is_mapped_again(address)? {
            false => Ok(()),
            true => Err(failure(
                libc::EOPNOTSUPP,
                format!(
                    "{address:#x} is in code that the program has mapped once more: probe it where its file is loaded"
                ),
            )),
        }
    }

    /// Refuses what must never be probed.
    fn check_place(&mut self, address: u64) -> Result<(), Failure> {
        let (path, _) = self.file_at(address)?;
        self.check_loaded(address)?;
        let file = path.rsplit('/').next().unwrap_or_default();
        let is_own = |own: &Range<u64>| own.contains(&address);
        if self.own.iter().any(is_own) || file.starts_with("libcapriole.so") {
            return Err(failure(
                libc::EPERM,
                format!("{address:#x} is in libcapriole itself, which must not be probed"),
            ));
        }
        if file.starts_with("ld-linux") {
            return Err(failure(
                libc::EPERM,
                format!("{address:#x} is in the dynamic loader, which handlers need"),
            ));
        }
        if self.session()?.is_excluded(address)? {
            let all = self.session()?.excluded()?;
            let function = all.into_iter().find(|each| each.code.contains(&address));
            let name = function.and_then(|function| function.symbol);
            return Err(failure(
                libc::EINVAL,
                format!(
                    "{address:#x} is in {}, which must not be probed: the program has excluded it (CAPRIOLE_NOPROBE)",
                    name.as_deref().unwrap_or("a function")
                ),
            ));
        }
        Ok(())
    }

    /// Refuses a replacement that is not one of a function by another one.
    fn check_replacement(
        &mut self,
        probe: &Probe,
        address: u64,
        target: u64,
    ) -> Result<(), Failure> {
        let label = &probe.label;
        let spots = self.session()?.spots(probe)?;
        let offset = spots.first().map_or(0, |spot| spot.offset);
        let is_endbr = |at: u64| {
            let found = self.instruction(at);
            found.is_some_and(|found| found.mnemonic() == Mnemonic::Endbr64)
        };
        let start = address.wrapping_sub(offset);
        if offset != 0 && !(offset == ENDBR64 && is_endbr(start)) {
            return Err(failure(
                libc::EINVAL,
                format!(
                    "{label} is not the entry of a function, but {offset:#x} bytes behind one: only a whole function can be replaced"
                ),
            ));
        }
        let is_own = |at: u64| at == start || at == start + ENDBR64 && is_endbr(start);
        if is_own(target) {
            return Err(failure(
                libc::EINVAL,
                format!("{label} cannot be replaced by itself"),
            ));
        }
        match self
            .mapping_at(target)?
            .is_some_and(|mapping| mapping.perms.execute)
        {
            true => Ok(()),
            false => Err(failure(
                libc::EFAULT,
                format!("the replacement, at {target:#x}, is not in executable memory"),
            )),
        }
    }

    fn probe_at(&self, address: u64) -> Result<Probe, Failure> {
        let (path, offset) = self.file_at(address)?;
        let place = Place::FileOffset(offset);
        let probe = Probe::new(&*path, place, At::Entry);
        Ok(probe.labelled(format!("{path}:{offset:#x} (at {address:#x})")))
    }

    fn pace(&self, tid: i32) -> Pace {
        Pace::Running(tid)
    }

    fn add(&mut self, request: &mut Request) -> Answered {
        let count = request.word()?;
        let (mut probes, mut held, mut own) = (Vec::new(), Vec::new(), Vec::new());
        // For each of the request, the description if the library carries out the instruction itself.
        let mut branches = Vec::new();
        for _ in 0..count {
            let address = request.word()?;
            let argument = request.word()?;
            let (kind, hold, target) = (request.word()?, request.word()?, request.word()?);
            let [routine, with_flags, after] = self.routines;
            self.check_place(address)?;
            let probe = self.probe_at(address)?;
            let branch = match kind {
                AFTER => match self.branch(address) {
                    Ok(branch) => branch,
                    // Bytes that look like this may be the middle of an instruction.
                    Err(reason) => match self.session()?.check_site(&probe) {
                        Err(error) if error.code() == Code::NotABoundary => {
                            return Err(error.into());
                        }
                        _ => return Err(reason),
                    },
                },
                _ => None,
            };
            branches.push(branch);
            if branch.is_some() {
                continue;
            }
            own.push(argument);
            probes.push(match kind {
                BEFORE => probe.call(Call {
                    routine,
                    with_flags,
                    argument,
                    after: false,
                }),
                AFTER => probe.call(Call {
                    routine: after,
                    with_flags: after,
                    argument,
                    after: true,
                }),
                REPLACE => {
                    self.check_replacement(&probe, address, target)?;
                    probe.replace(target)
                }
                _ => return Err(Malformed.into()),
            });
            held.push(hold != 0);
        }
        // Armed by another request: the program first notes what it gets as an answer, because it is
        // hit as soon as they are armed.
        let added = match probes.is_empty() {
            true => Vec::new(),
            false => self.session()?.add_sites(&probes, Pace::Later)?,
        };
        let mut answer = Answer::default();
        let patches = added.iter().map(|added| added.id).collect();
        let mut sites = added.into_iter().zip(held).zip(own);
        for branch in branches {
            if let Some((next, address, branch)) = branch {
                answer.word(0).word(next).word(address);
                for word in branch.words() {
                    answer.word(word);
                }
                continue;
            }
            let ((added, held), own) = sites.next().ok_or(Malformed)?;
            answer.word(self.sites.len() as u64 + 1);
            answer.word(self.next(added.address));
            answer.word(added.address);
            let of_patch = self.of_patch.entry(added.id).or_default();
            of_patch.push(self.sites.len());
            self.sites.push(Site {
                added,
                armed: false,
                held,
                own,
            });
        }
        self.tell_ways(&patches, &mut answer);
        Ok(answer)
    }

    /// Appends, for each site of some patches, where the original is and which instructions are
    /// covered: also for those that were there before others joined their patches.
    fn tell_ways(&self, patches: &BTreeSet<SiteId>, answer: &mut Answer) {
        let Some(session) = &self.session else {
            return;
        };
        for site in self.sites_of(patches) {
            let site = &self.sites[site];
            let id = site.added.id;
            let original = session.original(id, site.added.address);
            let covered = session.inside(id);
            answer.word(site.own).word(original.unwrap_or_default());
            answer.word(covered.len() as u64);
            for (address, goes_on) in covered {
                answer.word(address).word(goes_on);
            }
        }
        answer.word(0);
    }

    /// Returns the indices of the sites of some patches.
    fn sites_of<'a>(&'a self, patches: &'a BTreeSet<SiteId>) -> impl Iterator<Item = usize> + 'a {
        let sites = patches.iter().filter_map(|id| self.of_patch.get(id));
        sites.flatten().copied()
    }

    fn hold(&mut self, sites: &[SiteId], tid: i32) -> Result<(), Failure> {
        match &mut self.session {
            Some(session) if !sites.is_empty() => Ok(session.hold_sites(sites, tid)?),
            _ => Ok(()),
        }
    }

    /// Has the breakpoints of those of some patches stay where a probe is not to be optimised, or none is.
    fn hold_some(&mut self, patches: &BTreeSet<SiteId>, tid: i32) -> Result<(), Failure> {
        let sites = self.sites_of(patches).map(|site| &self.sites[site]);
        let held = sites.filter(|site| site.armed && (site.held || !self.allowed));
        let held: Vec<SiteId> = held.map(|site| site.added.id).collect();
        self.hold(&held, tid)
    }

    fn wait_for_batch(&mut self) {
        self.waiting.get_or_insert_with(Instant::now);
    }

    /// Reads the bytes of the instruction at an address. Those in memory may be changed already; these
    /// are from the file.
    fn bytes(&self, address: u64) -> Option<Vec<u8>> {
        let (path, offset) = self.file_at(address).ok()?;
        let mut bytes = vec![0; 15];
        let process = self.process.as_ref()?;
        let open = |path: &String| File::open(process.in_root(path.as_ref())).ok();
        let files = &mut self.known.borrow_mut().files;
        let file = files.entry(path).or_insert_with_key(open).as_ref()?;
        let len = file.read_at(&mut bytes, offset).ok()?;
        bytes.truncate(len);
        Some(bytes)
    }

    /// Decodes the instruction at an address.
    fn instruction(&self, address: u64) -> Option<Instruction> {
        let bytes = self.bytes(address)?;
        Some(Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE).decode())
    }

    /// Returns the address of the instruction after the one at an address; 0 if it is not known.
    fn next(&self, address: u64) -> u64 {
        self.instruction(address).map_or(0, |found| found.next_ip())
    }

    /// Describes the instruction at an address where the next one does not always follow: a copy of it
    /// leaves the detour, so the library carries it out, and then calls post-handlers. Returns the
    /// address of the next instruction, its own, and the description.
    fn branch(&self, address: u64) -> Result<Option<(u64, u64, Branch)>, Failure> {
        let mut found = self.instruction(address);
        if let Some(first) = &found
            && first.mnemonic() == Mnemonic::Endbr64
        {
            found = self.instruction(first.next_ip());
        }
        let described = found.ok_or(NoPost::Unknown).and_then(|found| {
            let bytes = self.bytes(found.ip()).unwrap_or_default();
            match Branch::of(&found, &bytes)? {
                Some(_) if self.process.as_ref().is_some_and(has_shadow_stack) => {
                    Err(NoPost::ShadowStack)
                }
                branch => Ok(branch.map(|branch| (found.next_ip(), found.ip(), branch))),
            }
        });
        described.map_err(|reason| {
            failure(
                libc::EOPNOTSUPP,
                format!("no post-handler is possible at {address:#x}: {reason}"),
            )
        })
    }

    fn numbered(&self, number: u64) -> Result<usize, Malformed> {
        let index = (number as usize).checked_sub(1).ok_or(Malformed)?;
        (index < self.sites.len()).then_some(index).ok_or(Malformed)
    }

    fn arm(&mut self, request: &mut Request, tid: i32) -> Answered {
        let count = request.word()?;
        let (mut ids, mut before) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let index = self.numbered(request.word()?)?;
            let held = request.word()? != 0;
            let site = &mut self.sites[index];
            before.push((site.armed, std::mem::replace(&mut site.held, held)));
            ids.push((index, site.added.id));
        }
        let pace = self.pace(tid);
        let sites: Vec<SiteId> = ids.iter().map(|(_, id)| *id).collect();
        // Their libraries may have been mapped again: what was written there went with the mappings.
        let gone = ids.iter().filter(|(index, _)| self.sites[*index].armed);
        let gone = gone.filter(|(index, _)| self.reached(*index) == Some(Reached::Gone));
        let gone: Vec<SiteId> = gone.map(|(_, id)| *id).collect();
        if !gone.is_empty() {
            self.session()?.disarm_sites(&gone, pace)?;
        }
        let patches = sites.iter().copied().collect();
        let armed = self.arm_all(&ids, &patches, tid);
        if let Err(failure) = armed {
            for ((index, _), (armed, held)) in ids.iter().zip(before) {
                self.sites[*index].armed = armed;
                self.sites[*index].held = held;
            }
            // Of two errors the first says why.
            let _ = self.disarm_idle(&sites, pace);
            return Err(failure);
        }
        self.wait_for_batch();
        let mut answer = Answer::default();
        self.tell_ways(&patches, &mut answer);
        Ok(answer)
    }

    /// Arms sites, given by index and patch, and has those breakpoints stay that are not to be optimised.
    /// After an error some may be armed.
    fn arm_all(
        &mut self,
        sites: &[(usize, SiteId)],
        patches: &BTreeSet<SiteId>,
        tid: i32,
    ) -> Result<(), Failure> {
        let ids: Vec<SiteId> = sites.iter().map(|(_, id)| *id).collect();
        let pace = self.pace(tid);
        let refused = self.session()?.arm_sites(&ids, pace)?;
        if let Some((_, reason)) = refused.first() {
            return Err(failure(libc::EAGAIN, reason.clone()));
        }
        for (index, _) in sites {
            self.sites[*index].armed = true;
        }
        self.hold_some(patches, tid)
    }

    fn disarm(&mut self, request: &mut Request, tid: i32) -> Answered {
        let count = request.word()?;
        let mut indexes = Vec::new();
        for _ in 0..count {
            indexes.push(self.numbered(request.word()?)?);
        }
        for index in &indexes {
            self.sites[*index].armed = false;
        }
        let ids: Vec<SiteId> = indexes.iter().map(|i| self.sites[*i].added.id).collect();
        let pace = self.pace(tid);
        let disarmed = self.disarm_idle(&ids, pace);
        // The program takes them to be armed still after an error.
        for index in indexes {
            self.sites[index].armed = disarmed.is_err();
        }
        disarmed?;
        Ok(Answer::default())
    }

    /// Disarms those patches of which no instruction is wanted any more.
    fn disarm_idle(&mut self, ids: &[SiteId], pace: Pace) -> Result<(), Failure> {
        let is_wanted = |id: &SiteId| {
            let mut sites = self.of_patch.get(id).into_iter().flatten();
            sites.any(|site| self.sites[*site].armed)
        };
        let idle: Vec<SiteId> = ids.iter().copied().filter(|id| !is_wanted(id)).collect();
        if !idle.is_empty() {
            self.session()?.disarm_sites(&idle, pace)?;
        }
        Ok(())
    }

    fn reached(&self, index: usize) -> Option<Reached> {
        let session = self.session.as_ref()?;
        Some(session.site(self.sites[index].added.id)?.reached)
    }

    fn wait_for_jumps(&mut self, request: &mut Request) -> Answered {
        let limit = Instant::now() + Duration::from_millis(request.word()?);
        loop {
            if self.allowed {
                self.optimize();
            }
            let waits = |index: &usize| {
                let site = &self.sites[*index];
                let reached = || self.reached(*index);
                site.armed
                    && !site.held
                    && matches!(reached(), Some(Reached::Waiting | Reached::Occupied))
            };
            let waiting = (0..self.sites.len()).filter(waits).count();
            if waiting == 0 || !self.allowed || Instant::now() >= limit {
                let mut answer = Answer::default();
                answer.word(waiting as u64);
                return Ok(answer);
            }
            std::thread::sleep(Duration::from_millis(2));
            self.read();
        }
    }

    fn status(&mut self, request: &mut Request) -> Answered {
        let index = self.numbered(request.word()?)?;
        let site = &self.sites[index];
        if let Some(Status::Ended(ended)) = self.session.as_ref().map(Session::status) {
            let mut answer = Answer::default();
            let why = format!("all probes were taken out: {}", ended.as_str());
            answer.word(GONE).text(&why);
            return Ok(answer);
        }
        let status = self
            .session
            .as_ref()
            .and_then(|session| session.site(site.added.id));
        let Some(status) = status else {
            let mut answer = Answer::default();
            answer
                .word(GONE)
                .text("its place is not in the program any more");
            return Ok(answer);
        };
        let (state, mut why) = match status.reached {
            Reached::Optimised => (
                OPTIMIZED,
                format!("a jump ({}){}", status.tactic, self.why_not_held(site)),
            ),
            Reached::Waiting if site.held => (
                BREAKPOINT,
                "a breakpoint; the probe is not to be optimized".to_owned(),
            ),
            Reached::Waiting if !self.allowed => {
                (BREAKPOINT, "a breakpoint; optimization is off".to_owned())
            }
            Reached::Waiting => (
                WAITING,
                format!(
                    "a breakpoint, until it is proved that no thread is inside the bytes of the jump ({})",
                    status.tactic
                ),
            ),
            Reached::Breakpoint => (BREAKPOINT, "a breakpoint".to_owned()),
            Reached::Disarmed => (OFF, "disarmed".to_owned()),
            Reached::Occupied => (
                OCCUPIED,
                format!(
                    "not in yet: a thread is inside the bytes that change; {}",
                    Server::why_no_breakpoint(site)
                ),
            ),
            _ => (
                GONE,
                "another tool has changed the place, or its library is unmapped".to_owned(),
            ),
        };
        for (tactic, refusal) in &site.added.refusals {
            let _ = write!(why, "; no {tactic}: {refusal}");
        }
        let why_not = self.host.as_ref().and_then(|host| host.why_not_stopped());
        if let Some(reason) = why_not.filter(|_| state == WAITING) {
            let _ = write!(why, "; no jump over several instructions: {reason}");
        }
        let mut answer = Answer::default();
        answer.word(state).text(&why);
        Ok(answer)
    }

    /// Returns the reason why no breakpoint is at a site.
    fn why_no_breakpoint(site: &Site) -> String {
        match &site.added.no_breakpoint {
            Some(refusal) => refusal.to_string(),
            None if site.added.in_stops => {
                "a jump of this kind is written at once, while the program is stopped".to_owned()
            }
            None => "breakpoints cannot be used: SIGTRAP was blocked or ignored when the probe was put in"
                .to_owned(),
        }
    }

    /// Explains why a site is reached by a jump that is to have a breakpoint.
    fn why_not_held(&self, site: &Site) -> String {
        let wish = match (site.held, self.allowed) {
            (true, _) => "the probe is not to be optimized",
            (false, false) => "optimization is off",
            (false, true) => return String::new(),
        };
        format!(", although {wish}: {}", Server::why_no_breakpoint(site))
    }

    fn exits(&mut self, request: &mut Request) -> Answered {
        let by_address = request.word()? != 0;
        let address = request.word()?;
        let object = ObjectRef::from(&*request.text()?);
        let symbol = request.text()?;
        let entry = match address {
            0 => {
                let place = Place::function(symbol);
                no_pattern(&place)?;
                own_code(Probe::new(object, place, At::Entry))
            }
            _ => self.probe_at(address)?,
        };
        let start = self.spot(&entry)?;
        if by_address {
            let returns = Probe {
                at: At::Return,
                ..entry
            };
            if let Some(reason) = self.session()?.not_followed(&returns)? {
                let label = &returns.label;
                return Err(failure(
                    libc::EOPNOTSUPP,
                    format!("the return addresses of {label} must not be replaced: {reason}"),
                ));
            }
            let mut answer = Answer::default();
            answer.word(0).word(start);
            return Ok(answer);
        }
        let exits = Probe {
            at: At::Return,
            ..entry
        };
        let label = exits.label.clone();
        let spots = newest(self.session()?.spots(&exits)?);
        if let Some(reason) = spots.iter().find_map(|spot| spot.unknown.clone()) {
            return Err(failure(
                libc::EOPNOTSUPP,
                format!("the returns of {label} cannot be probed: {reason}"),
            ));
        }
        if spots.iter().any(|spot| !spot.plain) {
            return Err(failure(
                libc::EOPNOTSUPP,
                format!(
                    "{label} leaves by a jump to another function, whose return is not one of its own exits; set by_address"
                ),
            ));
        }
        let mut answer = Answer::default();
        answer.word(spots.len() as u64).word(start);
        for spot in spots {
            answer.word(spot.address);
        }
        Ok(answer)
    }

    fn analyze(&mut self, request: &mut Request) -> Answered {
        let mut answer = Answer::default();
        let mut analysis = Analysis::new(self.process.as_ref());
        while !request.is_over() {
            let kind = request.word()?;
            let mut words = [0; 4];
            let count = if kind == RETURN { 4 } else { 3 };
            for word in &mut words[..count] {
                *word = request.word()?;
            }
            answer.word(match kind {
                ARGUMENTS => analysis.arguments(words[0], words[1]),
                RETURN => analysis.of_return(words),
                _ => analysis.handlers(words[0], &words[1..3]),
            });
        }
        Ok(answer)
    }

    fn add_event(&mut self, request: &mut Request) -> Answered {
        let text = request.text()?;
        let name = request.text()?;
        let address = request.word()?;
        let added = if address == 0 {
            self.session()?.add(&text)?
        } else {
            six_values(&text)?;
            let (path, offset) = self.file_at(address)?;
            self.check_loaded(address)?;
            let spec = EventSpec::parse(&format!("{path}:{offset:#x} {text}"))
                .map_err(|error| failure(libc::EINVAL, one_line(&chain(&error))))?;
            let probe = Probe::from(spec).named(name);
            self.session()?.add_probe(probe)?
        };
        let number = self.events.last_key_value().map_or(1, |(last, _)| last + 1);
        self.events.insert(number, added.id);
        let mut answer = Answer::default();
        answer.word(number);
        Ok(answer)
    }

    fn event(&self, number: u64) -> Result<EventId, Failure> {
        let event = self.events.get(&number).copied();
        event.ok_or_else(|| failure(libc::ENOENT, format!("there is no event {}", number as i64)))
    }

    fn remove_event(&mut self, request: &mut Request) -> Answered {
        let number = request.word()?;
        let event = self.event(number)?;
        self.session()?.remove(event)?;
        self.events.remove(&number);
        Ok(Answer::default())
    }

    fn rows(&mut self, request: &mut Request) -> Answered {
        let event = self.event(request.word()?)?;
        let session = self.session()?;
        let groups = session.rows(event);
        let text = rows::text(session, &groups);
        let mut answer = Answer::default();
        answer.text(&text);
        Ok(answer)
    }

    fn records(&mut self) -> Answered {
        self.read();
        let mut text = String::new();
        for record in self.records.drain(..) {
            text.push_str(&record);
            text.push('\n');
        }
        let lost =
            self.session.as_ref().map_or(0, Session::lost) + std::mem::take(&mut self.dropped);
        if lost > 0 {
            let _ = writeln!(text, "# {lost} events were lost");
        }
        let mut answer = Answer::default();
        answer.text(&text);
        Ok(answer)
    }

    fn start_recording(&mut self, request: &mut Request) -> Answered {
        let directory = request.text()?;
        self.check_root()?;
        self.session()?.record_to(&directory)?;
        // A service manager ends all processes of a service at once. The last events of the program are
        // still to come then, and it ends soon, or this process is killed.
        signals::catch();
        signals::hold();
        Ok(Answer::default())
    }

    fn stop_recording(&mut self) -> Answered {
        let session = self.session.as_mut();
        let ended = session.map(Session::end_trace);
        signals::release();
        match ended {
            Some(result) => drop(result?),
            None => {
                return Err(failure(libc::ENOENT, "no trace is being written"));
            }
        }
        Ok(Answer::default())
    }

    /// Completes the trace, if one is being written: nobody asks for anything any more.
    pub fn end_trace(&mut self) {
        let goes_on = self.process.as_ref().is_some_and(Process::is_alive);
        if let Some(session) = self.session.as_mut().filter(|session| session.is_traced()) {
            if goes_on {
                session.warn_trace(
                    "the program has closed the connection to its helper process and went on: what it recorded after \
                     that is missing",
                );
            }
            // What the program might be told it would not hear.
            let _ = session.end_trace();
        }
    }

    /// Checks that a path means the same to the program and to this process.
    fn check_root(&self) -> Result<(), Failure> {
        let root = |pid: &str| {
            let root = std::fs::metadata(format!("/proc/{pid}/root/."));
            root.map(|root| (root.dev(), root.ino()))
        };
        match (root("self"), root(&self.pid.to_string())) {
            (Ok(own), Ok(of_program)) if own != of_program => Err(failure(
                libc::EXDEV,
                "the program has changed its root directory since the helper process was started, which would \
                 write the trace elsewhere: start the recording before that",
            )),
            // A program that is not dumpable does not show its root directory; it is as a rule the same.
            _ => Ok(()),
        }
    }

    fn allow(&mut self, request: &mut Request, tid: i32) -> Answered {
        let before = std::mem::replace(&mut self.allowed, request.word()? != 0);
        if self.allowed {
            self.wait_for_batch();
        } else {
            let armed = self.sites.iter().filter(|site| site.armed);
            let armed: Vec<SiteId> = armed.map(|site| site.added.id).collect();
            if let Err(failure) = self.hold(&armed, tid) {
                self.allowed = before;
                self.wait_for_batch();
                return Err(failure);
            }
        }
        let mut answer = Answer::default();
        answer.word(before.into());
        Ok(answer)
    }

    fn place(&mut self, request: &mut Request) -> Answered {
        let address = request.word()?;
        // What a probe was registered by, if it was by name.
        let given = Some(request.text()?).filter(|name| !name.is_empty());
        let mut answer = Answer::default();
        let (path, offset) = self.file_at(address)?;
        let name = path.rsplit('/').next().unwrap_or_default();
        let probe = self.probe_at(address)?;
        let session = self.session()?;
        let spot = session.spots(&probe).unwrap_or_default().into_iter().next();
        let inside = spot.as_ref().map_or(0, |spot| spot.offset);
        let mut symbol = spot.and_then(|spot| spot.symbol).or(given);
        if symbol.is_none() {
            let names = session.indirect_names(address).unwrap_or_default();
            symbol = names.into_iter().next();
        }
        match (symbol, inside) {
            (Some(symbol), 0) => answer.text(&format!("{name}:{symbol}")),
            (Some(symbol), inside) => answer.text(&format!("{name}:{symbol}+{inside:#x}")),
            _ => answer.text(&format!("{name}:{offset:#x}")),
        };
        Ok(answer)
    }

    /// Answers with a line for each function that must not be probed.
    fn excluded(&mut self) -> Answered {
        let mut text = String::new();
        for Excluded {
            code,
            object,
            symbol,
            ..
        } in self.session()?.excluded()?
        {
            let name = symbol.as_deref().unwrap_or("?");
            let _ = writeln!(
                text,
                "{:016x}-{:016x}  {object}:{name}",
                code.start, code.end
            );
        }
        let mut answer = Answer::default();
        answer.text(&text);
        Ok(answer)
    }

    /// Answers with the handlers that stand before the program's own, and these: the library puts one
    /// of its own before both, and the kernel does not tell it about the first. Then, those of a recorder,
    /// and the actions that they have replaced: the library takes the latter for the program's.
    fn faults(&mut self) -> Answered {
        let mut answer = Answer::default();
        self.session()?.begin()?;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            let session = self.session.as_ref();
            let found = session.and_then(|session| session.fault_handler(signal));
            let (handler, own) = found.unwrap_or_default();
            answer.word(handler).word(own);
            let other = session.and_then(|session| session.other_fault_handler(signal));
            let (handler, replaced) = other.unwrap_or_default();
            answer.word(handler);
            for word in replaced {
                answer.word(word);
            }
        }
        Ok(answer)
    }

    fn goodbye(&mut self) -> Answered {
        if let Some(reason) = self.host.as_ref().and_then(|host| host.why_not_stopped()) {
            // Only for a moment, maybe.
            let moved_on = self.host().is_ok_and(|host| host.can_stop());
            if !moved_on && self.session.is_some() {
                return Err(failure(
                    libc::EPERM,
                    format!(
                        "all probes are out, but their memory stays, and the helper process with it: {reason}"
                    ),
                ));
            }
        }
        if let Some(session) = self.session.take() {
            session.detach()?;
        }
        let host: Arc<dyn Host> = match &self.host {
            Some(host) => host.clone(),
            None => self.host()?,
        };
        Session::clear(&*host)?;
        Ok(Answer::default())
    }
}

/// The probes stay. Only [`Server::goodbye`] takes them out; everything else is an end of which the
/// program knows nothing, and its next registration takes over what is there.
impl Drop for Server {
    fn drop(&mut self) {
        std::mem::forget(self.session.take());
    }
}

/// Returns the places in the version of a function that dlsym(3) finds, without those for old programs (`f@V1`); all
/// if one of these was asked for.
fn newest(spots: Vec<Spot>) -> Vec<Spot> {
    let is_old = |spot: &Spot| spot.symbol.as_ref().is_some_and(|name| name.contains('@'));
    let (old, newest): (Vec<Spot>, Vec<Spot>) = spots.into_iter().partition(is_old);
    if newest.is_empty() { old } else { newest }
}

/// Returns how much more a program may map, in bytes, if that is limited (RLIMIT_AS).
fn address_space_left(pid: u32) -> Option<u64> {
    let limits = files::read_pseudo_text(format!("/proc/{pid}/limits")).ok()?;
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    let sizes = files::read_pseudo_text(format!("/proc/{}/statm", deputy(pid))).ok()?;
    let pages: u64 = sizes.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

/// A probe has one place, also when a library gets another function that a pattern matches.
fn no_pattern(place: &Place) -> Result<(), Failure> {
    match place.is_glob() {
        false => Ok(()),
        true => Err(failure(
            libc::EINVAL,
            format!("`{place}` is a pattern; a probe has one place, so give a name"),
        )),
    }
}

/// Refuses arguments that `CAPRIOLE_WRITE` does not pass.
fn six_values(fields: &str) -> Result<(), Failure> {
    for (at, start) in fields.match_indices("$arg") {
        let digits = fields[at + start.len()..].split(|c: char| !c.is_ascii_digit());
        let digits = digits.into_iter().next().unwrap_or_default();
        if !digits.is_empty() && !matches!(digits.parse(), Ok(1..=6)) {
            return Err(failure(
                libc::EINVAL,
                format!(
                    "there is no `$arg{digits}`, at column {} of `{fields}`: a record has the values $arg1 to $arg6",
                    fields[..at].chars().count() + 1
                ),
            ));
        }
    }
    Ok(())
}

/// Has a function's name mean its own code only, and not the copies that compilers have made of it:
/// these are found in debug information, which takes long.
fn own_code(probe: Probe) -> Probe {
    Probe {
        of_calls: true,
        ..probe
    }
}

/// Reads `FILE:LINE`.
fn line(text: &str) -> Result<Place, Failure> {
    let found = text
        .rsplit_once(':')
        .and_then(|(file, line)| Some((file, line.parse().ok()?)));
    let (file, line) = found
        .filter(|(file, _)| !file.is_empty())
        .ok_or_else(|| failure(libc::EINVAL, format!("`{text}` is not FILE:LINE")))?;
    Ok(Place::Line {
        file: file.to_owned(),
        line,
    })
}

#[cfg(test)]
mod tests {
    use super::errno;
    use capriole::Code;

    #[test]
    fn errors_have_the_numbers_that_callers_expect() {
        for (code, number) in [
            (Code::NotFound, libc::ENOENT),
            (Code::NotPermitted, libc::EPERM),
            (Code::AlreadyTraced, libc::EBUSY),
            (Code::AlreadyRecorded, libc::EBUSY),
            (Code::NotABoundary, libc::EILSEQ),
            (Code::NotProbeable, libc::EOPNOTSUPP),
            (Code::Ambiguous, libc::ENOTUNIQ),
            (Code::Busy, libc::EAGAIN),
            (Code::Vanished, libc::ESRCH),
            (Code::NoResources, libc::ENOMEM),
            (Code::Limit, libc::ENOSPC),
            (Code::System, libc::EIO),
            (Code::Object, libc::ENOEXEC),
            (Code::Syntax, libc::EINVAL),
        ] {
            assert_eq!(errno(code), number, "{code}");
        }
    }
}
