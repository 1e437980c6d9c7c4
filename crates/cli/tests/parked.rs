//! A thread that stands at each instruction in turn, of the bytes that change and of the
//! detours, when the program is attached to and detached from.
//!
//! The thread is brought there by a hardware breakpoint and kept there by SIGSTOP.

#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;

use capriole_target::process::Process;
use capriole_target::ptrace::{self, Event};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use programs::{Compiler, build};
use std::time::{Duration, Instant};
use target::*;

/// How long a thread may take to come to a place.
const WAY: Duration = Duration::from_millis(500);

/// Stops the program with one thread standing at `address`. `false`: no thread came there.
fn park(running: &Running, address: u64) -> bool {
    let process = running.process();
    for tid in process.threads().expect("threads") {
        let tid = tid as i32;
        if tid as u32 == running.pid {
            continue; // it only waits for the others
        }
        ptrace::seize(tid, 0).expect("seize");
        ptrace::interrupt(tid).expect("interrupt");
        let signal = match ptrace::wait(tid, true).expect("wait") {
            Some(Event::Signal(signal)) => signal, // it has run into one of our breakpoints
            _ => 0,
        };
        ptrace::set_hardware_breakpoint(tid, Some(address)).expect("a breakpoint");
        ptrace::cont(tid, signal).expect("go on");
        let started = Instant::now();
        loop {
            match ptrace::wait(tid, false).expect("wait") {
                Some(Event::Signal(signal)) => {
                    if ptrace::registers(tid).expect("registers").rip == address {
                        break;
                    }
                    // One of our breakpoints, and the program's own signals.
                    ptrace::cont(tid, signal).expect("go on");
                }
                Some(_) if started.elapsed() <= WAY => ptrace::cont(tid, 0).expect("go on"),
                Some(_) => break,
                None if started.elapsed() > WAY => {
                    let _ = ptrace::interrupt(tid);
                }
                None => std::thread::yield_now(),
            }
        }
        let arrived = ptrace::registers(tid).expect("registers").rip == address;
        if arrived {
            running.signal(libc::SIGSTOP);
        }
        ptrace::set_hardware_breakpoint(tid, None).expect("no breakpoint");
        ptrace::detach(tid, 0).expect("detach");
        if arrived {
            wait_until_stopped(&process);
            return true;
        }
    }
    false
}

fn wait_until_stopped(process: &Process) {
    let stopped = |tid: u32| {
        let stat = std::fs::read_to_string(process.proc_path(&format!("task/{tid}/stat")));
        stat.is_ok_and(|s| s[s.rfind(')').expect("a name") + 2..].starts_with('T'))
    };
    while !process.threads().expect("threads").into_iter().all(stopped) {
        std::thread::yield_now();
    }
}

/// Attaches with the program as it stands, lets it go on, records, detaches.
fn attach_and_go_on(running: &mut Running, process: &Process, probes: &Probes) {
    let mut recording = attach_to(process, probes, 4 << 20);
    running.signal(libc::SIGCONT);
    recording.record(Duration::from_millis(2));
    running.assert_alive();
    if let Some(calls) = recording.detach() {
        assert_gap_free(&probes.names, &calls);
    }
    running.assert_alive();
    assert_text_is_the_files(process, true);
    assert_no_session(process);
}

#[test]
fn at_each_instruction_of_the_changed_bytes() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    for reach in [Reach::Best, Reach::Breakpoint] {
        let mut running = Running::start(&program, &["--threads", "2"]);
        let process = running.process();
        let probes = Probes::of(&process, HAMMER, reach);
        let mut places = 0;
        for probe in &probes.probes {
            let ips = probe.shape.displaced.iter().map(|i| i.ip());
            let ips: Vec<u64> = match ips.len() {
                0 => vec![probe.shape.covered.start],
                _ => ips.collect(),
            };
            for address in ips {
                assert!(park(&running, address), "nobody comes to {address:#x}");
                attach_and_go_on(&mut running, &process, &probes);
                places += 1;
            }
        }
        println!("{reach:?}: {places} places");
        assert!(places > probes.probes.len() / 2);
        running.finish();
    }
}

#[test]
fn at_each_instruction_of_a_detour() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    for (reach, names) in [
        (Reach::Best, &["work", "work_short", "work_switch"][..]),
        (Reach::Breakpoint, &["work_loop"]),
    ] {
        let mut running = Running::start(&program, &["--threads", "2"]);
        let process = running.process();
        let mut probes = Probes::of(&process, HAMMER, reach);
        probes.keep(|name| names.contains(&name));
        let mut places = 0;
        for which in 0..probes.probes.len() {
            // How many instructions there are is known once it is attached.
            let mut number = 0;
            loop {
                let recording = attach_to(&process, &probes, 4 << 20);
                let site = *recording.attached.outcomes[which].as_ref().expect("a site");
                let mut bytes = vec![0; site.detour_size];
                let len = process.read_memory(site.detour, &mut bytes).expect("read");
                let mut decoder =
                    Decoder::with_ip(64, &bytes[..len], site.detour, DecoderOptions::NONE);
                let mut ips = Vec::new();
                while decoder.can_decode() {
                    let instruction = decoder.decode();
                    ips.push(instruction.ip());
                    let to = instruction.near_branch_target();
                    if instruction.flow_control() == FlowControl::UnconditionalBranch
                        && to == probes.probes[which].shape.resume
                    {
                        break;
                    }
                }
                if number >= ips.len() {
                    recording.detach();
                    break;
                }
                let parked = park(&running, ips[number]);
                places += usize::from(parked);
                recording.detach();
                if parked {
                    wait_until_stopped(&process);
                    running.signal(libc::SIGCONT);
                }
                running.assert_alive();
                assert_no_session(&process);
                assert_text_is_the_files(&process, true);
                number += 1;
            }
        }
        println!("{reach:?}: {places} places");
        assert!(places > 10);
        running.finish();
    }
}
