//! Starting a program and stopping it when its libraries are loaded and before any of its own
//! code runs.
//!
//! A dynamic program is stopped where the loader tells debuggers that all libraries are mapped
//! and relocated (`_dl_debug_state`, glibc and musl), before their constructors run. A static one
//! relocates itself, chooses its implementations of `memcpy` and the like, and makes its first
//! thread, all in `__libc_start_main`; it is stopped behind that, at `_init`, which is called before
//! the constructors, or at `main`; where these are not known, at its entry. Hardware breakpoints stop
//! it, so no byte changes. Until then the kernel kills the program if we die (PTRACE_O_EXITKILL);
//! afterwards it would run on.

#![allow(unsafe_code)]

use crate::error::TargetError;
use crate::host::TargetMemory;
use crate::ptrace::memory::RemoteMemory;
use crate::ptrace::requests;
use crate::ptrace::requests::Event;
use crate::ptrace::threads::Hold;
use crate::signals::Actions;
use crate::steps::step;
use capriole_proc::files;
use capriole_proc::process::Process;
use object::{Object, ObjectSymbol};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

/// A program stopped before the first instruction of its own code.
#[derive(Debug)]
pub struct Launched {
    /// The process.
    pub process: Process,
    /// The child, for its exit status.
    pub child: Child,
    /// Drop this to let the program run.
    pub hold: Hold,
}

/// Offset of `r_state` in `struct r_debug` (link.h); RT_CONSISTENT is 0.
const R_STATE: u64 = 24;
/// Maximum size of a loader file that is read, bytes; real ones are smaller than one MiB.
const MAX_LOADER: u64 = 256 << 20;

/// Starts `program` and stops it. The calling thread becomes its tracer.
///
/// # Errors
/// The program cannot be executed, or ends before it is ready.
pub fn launch(program: &OsString, arguments: &[OsString]) -> Result<Launched, TargetError> {
    let name = program.to_string_lossy().into_owned();
    let fail = |reason: String| TargetError::Launch {
        program: name.clone(),
        reason,
    };
    let io = |e: std::io::Error| fail(e.to_string());
    let (mut pid_read, pid_write) = std::io::pipe().map_err(io)?;
    let (go_read, go_write) = std::io::pipe().map_err(io)?;

    let mut command = Command::new(program);
    command.args(arguments);
    let go_end = go_write.as_raw_fd();
    let actions = Actions::before();
    let before_exec = move || {
        // The program inherits what our caller wants to be ignored, not what we caught.
        if let Some(actions) = &actions {
            actions.restore();
        }
        // The child has a copy of our end of the pipe. With that copy open, the child would wait
        // forever if we were killed now: no other process closes the pipe.
        // SAFETY: nothing in the child, which executes the program next, uses that copy.
        unsafe { rustix::io::close(go_end) };
        let pid = std::process::id().to_le_bytes();
        rustix::io::write(&pid_write, &pid)?;
        let mut go = [0];
        match rustix::io::read(&go_read, &mut go)? {
            // We were killed: nobody is left to whom an error could be told.
            // SAFETY: ends the child at once, without running anything of it.
            0 => unsafe { libc::_exit(127) },
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec the closure makes only system calls.
    unsafe { command.pre_exec(before_exec) };
    // `spawn` returns after exec, and the child waits for us before exec.
    let spawner = std::thread::spawn(move || command.spawn());

    let mut pid = [0; 4];
    if let Err(error) = std::io::Read::read_exact(&mut pid_read, &mut pid) {
        // There is no child: `spawn` returned the reason.
        let spawned = spawner.join();
        let why = spawned.ok().and_then(Result::err);
        return Err(io(why.unwrap_or(error)));
    }
    let pid = i32::from_le_bytes(pid);
    step("child made");
    let traced = follow_to_start(pid, go_write);
    let spawned = spawner
        .join()
        .map_err(|_| fail("the starting thread failed".into()))?;
    let child = spawned.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => fail("no such program; is it in PATH?".into()),
        _ => fail(e.to_string()),
    })?;
    let hold = traced?;
    let process = Process::open(pid as u32)?;
    Ok(Launched {
        process,
        child,
        hold,
    })
}

/// Lets the child execute the program and run to the address where it is stopped.
fn follow_to_start(pid: i32, go: std::io::PipeWriter) -> Result<Hold, TargetError> {
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
    let fail = |what| move |errno| TargetError::ptrace(what, pid, errno);
    let seized = requests::seize(pid, options).map_err(fail("seize"));
    let _ = rustix::io::write(&go, &[1]);
    drop(go);
    seized?;
    loop {
        // A child that could not execute the program ends, and `spawn` waits for it to report why:
        // this checks for its end without reaping it.
        if has_ended(pid)? {
            return Err(TargetError::Vanished { pid });
        }
        match requests::wait(pid, true).map_err(fail("wait for"))? {
            Some(Event::Exec) => break,
            Some(Event::Signal(signal)) => requests::cont(pid, signal).map_err(fail("resume"))?,
            _ => requests::cont(pid, 0).map_err(fail("resume"))?,
        }
    }
    let process = Process::open(pid as u32)?;
    // First, because the code below fails on a 32-bit program.
    process.check_architecture()?;
    let remote = RemoteMemory::open(pid)?;
    let mask = requests::signal_mask(pid).map_err(fail("read the signals of"))?;
    let (stops, state) = stopping_places(&process)?;
    requests::set_hardware_breakpoints(pid, &stops).map_err(fail("set a breakpoint in"))?;
    loop {
        requests::cont(pid, 0).map_err(fail("resume"))?;
        until(pid, |e| e == Event::Signal(libc::SIGTRAP))?;
        let consistent = state.is_none_or(|at| remote.read_u32(at).is_ok_and(|s| s == 0));
        let here = requests::registers(pid)
            .map_err(fail("read the registers of"))?
            .rip;
        if stops.contains(&here) && consistent {
            break;
        }
        // On resuming at the breakpoint itself, the processor would stop at once again but for the
        // resume flag, which the kernel sets for us.
    }
    requests::set_hardware_breakpoints(pid, &[]).map_err(fail("clear a breakpoint of"))?;
    // Turn the signal stop into an ordinary one, with the SIGTRAP discarded.
    requests::interrupt(pid).map_err(fail("interrupt"))?;
    requests::cont(pid, 0).map_err(fail("resume"))?;
    until(pid, |e| e == Event::Interrupted)?;
    // The kernel unblocks a trap that it has to deliver.
    requests::set_signal_mask(pid, mask).map_err(fail("set the signals of"))?;
    requests::set_options(pid, libc::PTRACE_O_TRACESYSGOOD).map_err(fail("trace"))?;
    Ok(Hold::new(pid))
}

/// Waits until a child stops or ends, without consuming the event. Returns true if it ended.
fn has_ended(pid: i32) -> Result<bool, TargetError> {
    // SAFETY: zero is a valid `siginfo_t`, which the kernel fills.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
    loop {
        // SAFETY: `info` is valid for the kernel to write.
        if unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) } == 0 {
            break;
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // The child has already been reaped: it has ended.
            _ => return Ok(true),
        }
    }
    Ok([libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&info.si_code))
}

/// Waits for an event, and delivers signals meanwhile.
fn until(pid: i32, wanted: impl Fn(Event) -> bool) -> Result<(), TargetError> {
    loop {
        match requests::wait(pid, true).map_err(|e| TargetError::ptrace("wait for", pid, e))? {
            Some(event) if wanted(event) => return Ok(()),
            Some(Event::Gone(status)) => return Err(TargetError::gone(pid, status)),
            None => return Err(TargetError::Vanished { pid }),
            Some(event) => {
                let signal = if let Event::Signal(signal) = event {
                    signal
                } else {
                    0
                };
                requests::cont(pid, signal).map_err(|e| TargetError::ptrace("resume", pid, e))?;
            }
        }
    }
}

/// Returns the addresses to stop at, and the address of the loader's state word if it has one.
fn stopping_places(process: &Process) -> Result<(Vec<u64>, Option<u64>), TargetError> {
    let auxv = process.auxv()?;
    let no_entry = || TargetError::Launch {
        program: process.name().to_owned(),
        reason: "the kernel does not tell its entry point (AT_ENTRY)".into(),
    };
    let entry = auxv.entry.ok_or_else(no_entry)?;
    let at_entry = || (vec![entry], None);
    let Some(base) = auxv.base.filter(|b| *b != 0) else {
        let places = behind_start(process, entry);
        return Ok(places.map_or_else(at_entry, |places| (places, None)));
    };
    let maps = process.maps()?;
    let loader = maps
        .iter()
        .find(|m| m.start == base && m.inode != 0)
        .and_then(|m| files::read(&process.in_root(Path::new(&m.path)), MAX_LOADER).ok());
    let Some(bytes) = loader else {
        return Ok(at_entry());
    };
    let Ok(file) = object::File::parse(&*bytes) else {
        return Ok(at_entry());
    };
    let symbol = |name: &str| {
        file.dynamic_symbols()
            .chain(file.symbols())
            .find(|s| s.name() == Ok(name) && s.is_definition())
            .map(|s| base + s.address())
    };
    Ok(match symbol("_dl_debug_state") {
        Some(hook) => (vec![hook], symbol("_r_debug").map(|at| at + R_STATE)),
        None => at_entry(),
    })
}

/// Returns addresses at which the C library of a static program is ready, and none of the program's own code has
/// run: `_init` and `main`, at least one of which `__libc_start_main` calls (glibc's csu/libc-start.c, musl's
/// env/__libc_start_main.c). `None` for a program without these.
fn behind_start(process: &Process, entry: u64) -> Option<Vec<u64>> {
    let file = std::fs::File::open(process.proc_path("exe")).ok()?;
    let cache = object::ReadCache::new(file);
    let file = object::File::parse(&cache).ok()?;
    let bias = entry.wrapping_sub(file.entry());
    let mut known: HashMap<&str, u64> = HashMap::new();
    let wanted = [
        "__libc_start_main",
        "_init",
        "main",
        "__preinit_array_start",
        "__preinit_array_end",
    ];
    for symbol in file.symbols().filter(ObjectSymbol::is_definition) {
        let name = symbol.name().unwrap_or_default();
        if let Some(name) = wanted.iter().find(|wanted| **wanted == name) {
            known.insert(name, symbol.address());
        }
    }
    known.get("__libc_start_main")?;
    // These run before `_init`.
    let bounds = ["__preinit_array_start", "__preinit_array_end"].map(|name| known.get(name));
    if bounds[0] != bounds[1] {
        return None;
    }
    let places = ["_init", "main"].map(|name| Some(known.get(name)?.wrapping_add(bias)));
    places.into_iter().collect()
}
