//! Threads that wait in system calls stay asleep: stopping them must not make the call return.

use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::*;
use std::time::Duration;

fn assert_asleep(running: &mut Running, when: &str) {
    running.say("report");
    let line = running.line();
    assert_eq!(line, "report done", "{when}");
}

#[test]
fn nobody_is_woken_by_attach_and_detach() {
    for flags in [&[][..], &["-static", "-no-pie"]] {
        let Some(program) = build(Compiler::Gcc, "sleeper.c", flags) else {
            return;
        };
        let mut running = Running::start(&program, &[]);
        let process = running.process();
        let before = looks(&process);
        let probes = Probes::of(&process, &[":sleep_in", ":wait_*"], Reach::Best);
        for round in 0..rounds(4, 75, 1000) {
            let recording = attach_to(&process, &probes, 1 << 20);
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(2));
                assert_asleep(&mut running, &format!("attached, round {round}"));
            }
            recording.detach();
            assert_asleep(&mut running, &format!("round {round}"));
        }
        assert_looks(&process, &before, "at the end");
        running.say("wake");
        assert_eq!(running.line(), "woken");
        running.finish();
    }
}

/// A program stopped by SIGSTOP before attach stays stopped, whatever Capriole does to it; it
/// continues after SIGCONT.
#[test]
fn a_stopped_program_stays_stopped() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--threads", "3"]);
    let process = running.process();
    let probes = Probes::of(&process, HAMMER, Reach::Best);
    let state = || {
        let threads = process.threads().expect("threads");
        let letter = |tid| {
            let stat = std::fs::read_to_string(process.proc_path(&format!("task/{tid}/stat")));
            let stat = stat.expect("it lives");
            stat[stat.rfind(')').expect("a name") + 2..].chars().next()
        };
        threads.into_iter().map(letter).collect::<Vec<_>>()
    };
    let stopped = || state().iter().all(|letter| *letter == Some('T'));
    for round in 0..rounds(3, 30, 500) {
        running.signal(libc::SIGSTOP);
        until("it stops", stopped);
        let mut recording = attach_to(&process, &probes, 1 << 20);
        // A thread may be on its way from our stop to the other.
        until("it stops", stopped);
        recording.record(Duration::from_millis(2));
        assert!(stopped(), "{:?}", state());
        assert_eq!(recording.calls, []);
        if round % 2 == 0 {
            running.signal(libc::SIGCONT);
            recording.record_calls(1000);
            running.signal(libc::SIGSTOP);
        }
        let calls = recording.detach();
        until("it stops", stopped);
        if let Some(calls) = calls {
            assert_gap_free(&probes.names, &calls);
        }
        assert_text_is_the_files(&process, true);
        running.signal(libc::SIGCONT);
    }
    running.finish();
}
