//! Messages about processes that cannot be traced, and results for one that can.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use capriole_proc::process::{Process, ProcessError, Seccomp, Stat, State, Status};
use capriole_testkit::tools::is_root;
use capriole_testkit::waiting::until;
use capriole_testkit::workshop::{Started, Workshop, run};

/// Copies a program by a separate process. Otherwise, a child that another thread is just
/// forking could inherit the new file, open for writing; such a file cannot be executed.
fn copied(program: &Path, copy: &Path) {
    assert!(run(Command::new("cp").args([program, copy])));
}

#[test]
fn reads_a_name_with_blanks_and_parentheses() {
    let shop = Workshop::new();
    let program = shop.path("a) R 1 (b");
    copied(Path::new("/bin/sleep"), &program);
    let mut child = Command::new(&program).arg("1000").spawn().unwrap();
    let process = Process::open(child.id()).unwrap();
    until("the program runs", || {
        process.exe().is_ok_and(|exe| exe == program)
    });
    assert_eq!(process.stat().unwrap().comm, "a) R 1 (b");
    assert_eq!(process.stat().unwrap().parent, std::process::id());
    assert_eq!(process.thread_name(child.id()).unwrap(), "a) R 1 (b");
    process.preflight().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert_eq!(process.exe().unwrap(), program);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!process.is_alive());
    assert!(matches!(
        process.stat(),
        Err(ProcessError::NoSuchProcess { .. })
    ));
}

#[test]
fn parses_hostile_and_damaged_files() {
    let stat =
        b"12 (x) Z 7) S 1 12 12 0 -1 4194560 0 0 0 0 1 2 0 0 20 0 3 0 777 0 0 18446744073709551615";
    let parsed = Stat::parse(stat).unwrap();
    assert_eq!(
        (parsed.comm.as_str(), parsed.state),
        ("x) Z 7", State::Sleeping)
    );
    assert_eq!((parsed.start_time, parsed.start_brk), (777, None));
    assert!(!parsed.is_kernel_thread());
    for damaged in [&b""[..], b"1", b"1 (", b"1 )(", b"1 (a)", b"1 (a) S 1 2"] {
        assert_eq!(Stat::parse(damaged), None);
    }
    let status = std::fs::read("/proc/self/status").unwrap();
    assert!(Status::parse(&status).is_some());
    assert_eq!(Status::parse(&status[..status.len() / 3]), None);
    assert_eq!(Status::parse(b"Tgid:\tx\n"), None);
}

#[test]
fn kernel_threads_zombies_and_missing_processes_are_named_as_such() {
    let error = Process::open(u32::MAX).unwrap_err().to_string();
    assert_eq!(
        error,
        "no process has the number 4294967295 (it may have ended)"
    );

    let mut child = Command::new("true").spawn().unwrap();
    let process = Process::open(child.id()).unwrap();
    until("it is a zombie", || {
        process.stat().unwrap().state == State::Zombie
    });
    let error = process.preflight().unwrap_err();
    assert!(matches!(error, ProcessError::Zombie { .. }), "{error}");
    assert!(!process.is_alive());
    child.wait().unwrap();

    match Process::open(2) {
        Ok(process) if process.name() == "kthreadd" => {
            let error = process.preflight().unwrap_err().to_string();
            assert!(
                error.starts_with("process 2 (kthreadd) is a thread of the kernel"),
                "{error}"
            );
            let error = process.exe().unwrap_err();
            assert!(
                !matches!(error, ProcessError::NoSuchProcess { .. }),
                "{error}"
            );
        }
        _ => println!("skipped: no kernel threads are visible here"),
    }
}

const THREADS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
static void handler(int s) { }
static void *run(void *arg) {
	sigset_t set; sigemptyset(&set); sigaddset(&set, SIGTRAP);
	pthread_sigmask(SIG_BLOCK, &set, 0);
	pthread_setname_np(pthread_self(), "worker (1)");
	puts("ready"); fflush(stdout);
	for (;;) pause();
}
int main(void) {
	signal(SIGUSR1, handler); signal(SIGUSR2, SIG_IGN);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	pthread_t t; pthread_create(&t, 0, run, 0);
	pthread_join(t, 0);
}
"#;

#[test]
fn threads_and_their_signals() {
    let shop = Workshop::new();
    let Some(path) = shop.compile("gcc", &["-pthread"], THREADS, "threads") else {
        return;
    };
    let running = Started::start(&mut Command::new(path));
    let process = Process::open(running.pid()).unwrap();
    let threads = process.threads().unwrap();
    assert_eq!(threads.len(), 2);
    assert_eq!(threads[0], process.pid());
    // The C library blocks all signals in the creating thread for a moment.
    until("the signal is not blocked", || {
        !process.status().unwrap().blocked.contains(libc::SIGTRAP)
    });
    let (main, worker) = (
        process.status().unwrap(),
        process.thread_status(threads[1]).unwrap(),
    );
    assert_eq!(process.thread_name(threads[1]).unwrap(), "worker (1)");
    assert_eq!((main.tgid, worker.tgid), (process.pid(), process.pid()));
    assert_eq!(main.threads, 2);
    assert!(!main.blocked.contains(libc::SIGTRAP) && worker.blocked.contains(libc::SIGTRAP));
    assert!(main.caught.contains(libc::SIGUSR1) && !main.caught.contains(libc::SIGUSR2));
    assert!(main.ignored.contains(libc::SIGUSR2) && !main.ignored.contains(libc::SIGTRAP));
    assert!(!main.blocked.contains(0) && !main.blocked.contains(65));
    assert_eq!((main.seccomp, main.no_new_privs), (Seccomp::Off, true));
    assert_eq!(
        (main.tracer, main.uid),
        (0, rustix::process::geteuid().as_raw())
    );
    let error = Process::open(threads[1]).unwrap_err().to_string();
    let expected = format!("{} is a thread of process {}", threads[1], process.pid());
    assert_eq!(error, expected);

    let auxv = process.auxv().unwrap();
    let maps = process.maps().unwrap();
    let at = |address: Option<u64>| maps.iter().find(|m| m.contains(address.unwrap())).unwrap();
    assert!(
        at(auxv.entry).perms.execute && at(auxv.entry).path.to_str().unwrap().ends_with("threads")
    );
    assert!(at(auxv.phdr).perms.read);
    assert!(at(auxv.base).path.to_str().unwrap().contains("ld"));
    assert!(at(auxv.sysinfo_ehdr).is_named("[vdso]"));
    assert!(!auxv.secure);
    let heap = maps.iter().find(|m| m.is_named("[heap]")).unwrap();
    assert_eq!(process.stat().unwrap().start_brk, Some(heap.start));
}

/// A child process, killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn says_who_traces_a_process_already() {
    let tracer = Command::new("strace")
        .args(["-f", "-e", "trace=none", "sh", "-c", "echo ready; read x"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(tracer) = tracer else {
        println!("skipped: no strace");
        return;
    };
    let mut tracer = Killed(tracer);
    let mut line = String::new();
    BufReader::new(tracer.0.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line != "ready\n" {
        println!("skipped: strace cannot trace here");
        return;
    }
    let strace = tracer.0.id();
    let children =
        std::fs::read_to_string(format!("/proc/{strace}/task/{strace}/children")).unwrap();
    let traced: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    let error = Process::open(traced)
        .unwrap()
        .preflight()
        .unwrap_err()
        .to_string();
    let expected = format!("process {traced} is already traced by strace (pid {strace})");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn refuses_a_32_bit_program() {
    let shop = Workshop::new();
    // pause() through the 32-bit system call interface.
    let source = "asm(\".globl _start\\n_start: mov $29,%eax\\n int $0x80\\n jmp _start\");";
    let options = ["-m32", "-nostdlib", "-static", "-no-pie"];
    let Some(path) = shop.compile("gcc", &options, source, "small") else {
        return;
    };
    let child = match Command::new(&path).spawn() {
        Ok(child) => Killed(child),
        Err(error) => return println!("skipped: the kernel runs no 32-bit programs: {error}"),
    };
    let process = Process::open(child.0.id()).unwrap();
    let error = process.preflight().unwrap_err();
    assert!(
        matches!(error, ProcessError::ThirtyTwoBit { .. }),
        "{error}"
    );
}

#[test]
fn somebody_elses_process_is_not_permitted() {
    if !is_root("become somebody else") {
        return;
    }
    let child = Killed(Command::new("sleep").arg("1000").spawn().unwrap());
    // Run this program again as a user who may not inspect the child.
    let copy = Workshop::new();
    let program = copy.path("test");
    copied(&std::env::current_exe().unwrap(), &program);
    if !run(Command::new("chmod")
        .arg("755")
        .arg(&program)
        .arg(copy.path("")))
    {
        return;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args([
            "--exact",
            "process::as_somebody_else",
            "--nocapture",
            "--ignored",
        ])
        .env("CAPRIOLE_TEST_PID", child.0.id().to_string());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return println!("skipped: setpriv: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("was not permitted"),
        "{text}"
    );
}

/// The other half of the test above; does nothing by itself.
#[test]
#[ignore = "run by somebody_elses_process_is_not_permitted"]
fn as_somebody_else() {
    let Ok(pid) = std::env::var("CAPRIOLE_TEST_PID") else {
        return;
    };
    let process = Process::open(pid.parse().unwrap()).unwrap();
    let error = process.preflight().unwrap_err();
    assert!(
        matches!(error, ProcessError::NotPermitted { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("run as root or with CAP_SYS_PTRACE"),
        "{text}"
    );
    assert!(matches!(
        process.maps(),
        Err(ProcessError::NotPermitted { .. })
    ));
    println!("was not permitted");
}

/// A child is as old as the time since it was started, or younger; who has started it is older.
#[test]
fn the_age_of_a_process_is_the_time_since_it_began() {
    const STEP: Duration = Duration::from_millis(20);
    let own = Process::open(std::process::id()).unwrap();
    let before = Instant::now();
    let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    let started = Instant::now();
    let process = Process::open(child.id()).unwrap();
    let least = started.elapsed();
    let age = process.age();
    assert!(age <= before.elapsed() + STEP, "{age:?}");
    assert!(age + STEP >= least, "{age:?}");
    assert!(own.age() + STEP >= age);
    child.kill().unwrap();
    child.wait().unwrap();
}
