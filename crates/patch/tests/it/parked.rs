//! A thread stops at each instruction in turn, of the bytes that change and of the detours,
//! when Capriole attaches to the program and detaches from it. Also tests saved addresses
//! that lead there: of a signal handler that will return, of a call, of any word on a stack.
//!
//! `make test` tries every third instruction of a detour, the soak each.
//!
//! The thread is brought there by a hardware breakpoint and kept there by SIGSTOP, or by a
//! signal handler of the program that does not return until it is allowed to.

use capriole_codegen::runtime::ClockReading;
use capriole_host::ptrace;
use capriole_host::ptrace::requests;
use capriole_host::ptrace::requests::Event;
use capriole_patch::attach::{Attached, Probe, Site, SiteError, SiteState, attach};
use capriole_planner::guards;
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::*;
use capriole_testkit::waiting::{HANGS, until, until_stopped};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl};
use std::time::{Duration, Instant};

/// Time for which a thread runs that does not come to a place: enough for thousands of its rounds.
const WAY: Duration = Duration::from_millis(10);

/// Stops the program with one thread at `address`. `false`: no thread reached it.
fn park(running: &Running, address: u64) -> bool {
    let parked = bring_to(running, address, 0);
    if parked {
        until_stopped(running.pid);
    }
    parked
}

/// Brings a thread to `address`, and makes it handle `signal` there; 0 stops the program.
/// `false`: no thread reached it.
fn bring_to(running: &Running, address: u64, signal: i32) -> bool {
    let process = running.process();
    for tid in process.threads().expect("threads") {
        let tid = tid as i32;
        if tid as u32 == running.pid {
            continue; // it only waits for the others
        }
        requests::seize(tid, 0).expect("seize");
        requests::interrupt(tid).expect("interrupt");
        let pending = match requests::wait(tid, true).expect("wait") {
            Some(Event::Signal(pending)) => pending, // it has run into one of our breakpoints
            _ => 0,
        };
        requests::set_hardware_breakpoints(tid, &[address]).expect("a breakpoint");
        requests::cont(tid, pending).expect("go on");
        let started = Instant::now();
        let before = time_on_processor(&process, tid);
        // It may have to wait for a processor much longer than that.
        let is_late = || time_on_processor(&process, tid) - before > WAY;
        loop {
            match requests::wait(tid, false).expect("wait") {
                Some(Event::Signal(other)) => {
                    if requests::registers(tid).expect("registers").rip == address {
                        break;
                    }
                    // One of our breakpoints, or one of the program's own signals.
                    requests::cont(tid, other).expect("go on");
                }
                Some(_) if !is_late() => requests::cont(tid, 0).expect("go on"),
                Some(_) => break,
                None if is_late() => {
                    let _ = requests::interrupt(tid);
                }
                None => {
                    assert!(started.elapsed() < HANGS, "thread {tid} does not run");
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
        let arrived = requests::registers(tid).expect("registers").rip == address;
        if arrived && signal == 0 {
            running.signal(libc::SIGSTOP);
        }
        requests::set_hardware_breakpoints(tid, &[]).expect("no breakpoint");
        requests::detach(tid, if arrived { signal } else { 0 }).expect("detach");
        if arrived {
            return true;
        }
    }
    false
}

/// Time that a thread has been on a processor.
fn time_on_processor(process: &Process, tid: i32) -> Duration {
    let ran = process.time_on_processor(tid as u32);
    Duration::from_nanos(ran.expect("the kernel counts it"))
}

/// The functions of `tight`, from entry to exit.
const TIGHT: &[&str] = &[":tight_*", ":tight_*%return"];

/// Attaches with the program as it stands, resumes it, records, and detaches.
fn attach_and_go_on(running: &mut Running, process: &Process, probes: &Probes) {
    let mut recording = attach_to(process, probes, 16 << 20);
    running.signal(libc::SIGCONT);
    recording.record_calls(100);
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

/// Entries and exits that share jumps, and jumps that include the next one.
#[test]
fn at_each_instruction_of_shared_jumps() {
    let Some(program) = build(Compiler::Gcc, "tight.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "2"]);
    let process = running.process();
    let probes = Probes::joined(&process, TIGHT);
    let points: usize = probes.probes.iter().map(|p| p.points.len()).sum();
    assert!(points > probes.probes.len() + 3, "few of them are shared");
    let mut places = 0;
    for probe in &probes.probes {
        for instruction in &probe.shape.displaced {
            let address = instruction.ip();
            assert!(park(&running, address), "nobody comes to {address:#x}");
            attach_and_go_on(&mut running, &process, &probes);
            places += 1;
        }
    }
    println!("{places} places, {points} sites");
    assert!(places >= 20);
    running.finish();
}

#[test]
fn at_each_instruction_of_a_detour() {
    let Some(program) = build(Compiler::Gcc, "hammer.c", &[]) else {
        return;
    };
    let interval = rounds(3, 1, 1);
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
            // The number of instructions is known once it is attached.
            let mut number = 0;
            loop {
                let recording = attach_to(&process, &probes, 4 << 20);
                let site = recording.attached.outcome(which).expect("a site");
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
                    until_stopped(running.pid);
                    running.signal(libc::SIGCONT);
                }
                running.assert_alive();
                assert_no_session(&process);
                assert_text_is_the_files(&process, true);
                number += interval;
            }
        }
        println!("{reach:?}: {places} places");
        assert!(places * interval > 10);
        running.finish();
    }
}

/// Returns the instructions by which the handler of SIGTRAP leads a thread back without a system
/// call, from the one that loads the vector registers.
fn way_back(process: &Process, detour: u64) -> Vec<u64> {
    let maps = process.maps().expect("maps");
    let arena = maps.iter().find(|m| m.contains(detour)).expect("an arena");
    let mut bytes = vec![0; capriole_resident::size()];
    process
        .read_memory(arena.start, &mut bytes)
        .expect("it can be read");
    assert!(bytes.starts_with(&capriole_resident::MAGIC));
    let decode = |from: u64| {
        let code = &bytes[(from - arena.start) as usize..];
        Decoder::with_ip(64, code, from, DecoderOptions::NONE).into_iter()
    };
    let (mut ips, mut last) = (Vec::new(), None);
    let trap = capriole_resident::entries(arena.start).trap;
    for instruction in decode(trap).skip_while(|i| i.code() != Code::Xrstor64_mem) {
        ips.push(instruction.ip());
        if instruction.is_call_near() {
            last = Some(instruction.near_branch_target());
            break;
        }
    }
    for instruction in decode(last.expect("it is called")) {
        if instruction.code() != Code::Int3 {
            ips.push(instruction.ip());
        }
        if instruction.code() == Code::Retnq_imm16 {
            break;
        }
    }
    ips
}

/// Attaches to `trapped`, with a breakpoint; returns that, and each instruction of the way back.
fn trapped(running: &Running, probes: &Probes) -> (Recording, Vec<u64>) {
    let recording = attach_to(&running.process(), probes, 256 << 20);
    let site = recording.attached.outcome(0).expect("a site");
    let ips = way_back(&running.process(), site.detour);
    assert!(ips.len() > 25, "{ips:x?}");
    (recording, ips)
}

#[test]
fn at_each_instruction_of_the_way_back_from_a_breakpoint() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    let mut running = Running::start(&program, &["--threads", "2"]);
    let process = running.process();
    let probes = Probes::of(&process, &[":trapped_work"], Reach::Breakpoint);
    for number in 0.. {
        let (recording, ips) = trapped(&running, &probes);
        let Some(address) = ips.get(number) else {
            recording.detach();
            break;
        };
        assert!(
            park(&running, *address),
            "nobody comes to instruction {number}"
        );
        recording.detach();
        until_stopped(running.pid);
        running.signal(libc::SIGCONT);
        running.assert_alive();
        assert_no_session(&process);
        assert_text_is_the_files(&process, true);
    }
    running.finish();
}

/// The handler hits the breakpoint as well.
#[test]
fn a_signal_at_each_instruction_of_the_way_back_from_a_breakpoint() {
    let Some(program) = build(Compiler::Gcc, "trapped.c", &[]) else {
        return;
    };
    for arguments in [&[][..], &["--stack"]] {
        let mut running = Running::start(&program, arguments);
        let probes = Probes::of(&running.process(), &[":trapped_work"], Reach::Breakpoint);
        let (mut recording, ips) = trapped(&running, &probes);
        let in_handlers = |calls: &[Call]| calls.iter().filter(|call| call.thread > 1000).count();
        for (number, address) in ips.iter().enumerate() {
            let before = recording.calls.len();
            assert!(
                bring_to(&running, *address, libc::SIGUSR1),
                "{arguments:?}: nobody comes to instruction {number}"
            );
            // Two of each signal, but the last ones may come after the probe has gone.
            recording.record_until("a call in the handler", |calls| {
                in_handlers(&calls[before..]) > 0
            });
            running.assert_alive();
        }
        if let Some(calls) = recording.detach() {
            assert_gap_free(&probes.names, &calls);
            let found = in_handlers(&calls);
            assert!(found >= ips.len(), "{arguments:?}: {found}");
        }
        running.assert_alive();
        assert_no_session(&running.process());
        running.finish();
    }
}

/// The functions of the program `regions`.
pub const REGIONS: &[&str] = &[":region_*"];

pub fn regions() -> Option<Running> {
    let program = build(Compiler::Gcc, "regions.c", &[])?;
    Some(Running::start(&program, &["--threads", "2"]))
}

/// Returns every instruction of the bytes that change, and the first one after them, each with
/// the index of its probe.
pub fn places(probes: &Probes) -> Vec<(usize, u64)> {
    let mut places = Vec::new();
    for (which, probe) in probes.probes.iter().enumerate() {
        places.extend(probe.shape.displaced.iter().map(|i| (which, i.ip())));
        // No thread comes to the address after a jump or a return.
        let last = probe
            .shape
            .displaced
            .last()
            .expect("a region has instructions");
        if !matches!(
            last.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch
        ) {
            places.push((which, probe.shape.resume));
        }
    }
    places
}

/// Checks a site's outcome while a saved address leads into its bytes: either the site is left
/// out, or a breakpoint replaces the jump until the address is gone. Tighten this to match the
/// implementation.
fn assert_waits(outcome: &Result<Site, SiteError>, what: &str) {
    match outcome {
        Err(SiteError::Occupied) => {}
        Ok(site) if site.state == SiteState::StandIn => {}
        other => panic!("{what}: {other:?}, though a saved address leads there"),
    }
}

/// Checks that the planned tactic was used.
fn assert_reached(outcome: &Result<Site, SiteError>, probe: &Probe, what: &str) {
    match outcome {
        Ok(site) if site.tactic == probe.shape.tactic && site.state == SiteState::Final => {}
        other => panic!("{what}: {other:?} instead of {}", probe.shape.tactic),
    }
}

fn attached_to(process: &Process, probes: &Probes) -> Attached {
    let geometry = |journal| Geometry::for_buffer(4 << 20, 64, journal);
    let guards = guards::of_process(process).expect("guards");
    attach(
        &ptrace::host(process),
        probes.probes.clone(),
        &guards,
        ClockReading::default(),
        geometry,
    )
    .expect("attach")
}

/// True if a thread is in a handler.
fn in_handler(process: &Process) -> bool {
    let maps_to = |tid: u32| {
        let path = process.proc_path(&format!("task/{tid}/status"));
        std::fs::read_to_string(path).is_ok_and(|status| {
            let blocked = status.lines().find_map(|l| l.strip_prefix("SigBlk:"));
            let blocked = blocked.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
            blocked.is_some_and(|set| set >> (libc::SIGUSR1 - 1) & 1 == 1)
        })
    };
    process.threads().expect("threads").into_iter().any(maps_to)
}

#[test]
fn at_each_instruction_of_regions_of_every_shape() {
    let Some(mut running) = regions() else { return };
    let process = running.process();
    let mut probes = Probes::of(&process, REGIONS, Reach::Best);
    // It jumps back to its start, so each of its calls has several records.
    probes.keep(|name| name != "region_3_loop");
    let counts: Vec<usize> = probes
        .probes
        .iter()
        .map(|p| p.shape.displaced.len())
        .collect();
    assert!((2..=5).all(|n| counts.contains(&n)), "{counts:?}");
    let places = places(&probes);
    for (which, address) in &places {
        let name = &probes.names[*which];
        assert!(
            park(&running, *address),
            "{name}: nobody comes to {address:#x}"
        );
        attach_and_go_on(&mut running, &process, &probes);
    }
    println!("{} places", places.len());
    running.finish();
}

#[test]
fn a_signal_handler_returns_to_each_instruction() {
    let Some(mut running) = regions() else { return };
    let process = running.process();
    let probes = Probes::of(&process, REGIONS, Reach::Best);
    let mut inside = 0;
    for (which, address) in places(&probes) {
        let probe = &probes.probes[which];
        let what = format!("{} at {address:#x}", probes.names[which]);
        assert!(
            bring_to(&running, address, libc::SIGUSR1),
            "{what}: nobody comes"
        );
        until("a thread is in the handler", || in_handler(&process));
        let mut attached = attached_to(&process, &probes);
        for (number, outcome) in attached.outcomes().iter().enumerate() {
            let covered = probes.probes[number].shape.covered;
            if covered.start < address && address < covered.end {
                assert_waits(outcome, &what);
                inside += 1;
            } else {
                assert_reached(outcome, &probes.probes[number], &what);
            }
        }
        running.assert_alive();
        running.signal(libc::SIGUSR2);
        until("the handler returns", || !in_handler(&process));
        std::thread::sleep(Duration::from_millis(2));
        running.assert_alive();
        // A stale word on a stack may still look like an address.
        until("no site waits", || {
            attached.optimise().expect("optimise") == 0
        });
        assert_reached(&attached.outcome(which), probe, &what);
        std::thread::sleep(Duration::from_millis(2));
        running.assert_alive();
        let report = attached.detach().expect("detach");
        assert_eq!(report.foreign, 0, "{what}: {report:?}");
        running.assert_alive();
        assert_text_is_the_files(&process, true);

        // No saved address leads there now.
        let attached = attached_to(&process, &probes);
        assert_reached(&attached.outcome(which), probe, &what);
        attached.detach().expect("detach");
    }
    println!("{inside} times a handler was to return into the bytes");
    assert!(inside > 15);
    running.finish();
}

#[test]
fn a_call_returns_behind_the_bytes() {
    let Some(mut running) = regions() else { return };
    let process = running.process();
    let probes = Probes::of(&process, REGIONS, Reach::Best);
    let at = |name: &str| {
        probes
            .names
            .iter()
            .position(|n| n == name)
            .expect("it is there")
    };
    let (caller, callee) = (
        &probes.probes[at("region_3_call")],
        &probes.probes[at("region_callee")],
    );
    // The call is the last of the displaced instructions, so its return address is their end.
    assert_eq!(caller.shape.covered.end, caller.shape.resume);
    for instruction in &callee.shape.displaced {
        assert!(park(&running, instruction.ip()), "nobody is called");
        let attached = attached_to(&process, &probes);
        for (outcome, probe) in attached.outcomes().iter().zip(&probes.probes) {
            assert_reached(outcome, probe, "while a call returns behind the bytes");
        }
        running.signal(libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(2));
        running.assert_alive();
        attached.detach().expect("detach");
        assert_text_is_the_files(&process, true);
    }
    running.finish();
}

#[test]
fn a_word_on_a_stack_leads_to_each_instruction() {
    let Some(mut running) = regions() else { return };
    let process = running.process();
    let probes = Probes::of(&process, REGIONS, Reach::Best);
    for (which, address) in places(&probes) {
        let probe = &probes.probes[which];
        let what = format!("{} at {address:#x}", probes.names[which]);
        let hold = format!("hold {address:x}");
        running.say(&hold);
        assert_eq!(running.line(), hold);
        let attached = attached_to(&process, &probes);
        let outcome = &attached.outcome(which);
        match probe.shape.covered.start < address && address < probe.shape.covered.end {
            true => assert_waits(outcome, &what),
            false => assert_reached(outcome, probe, &what),
        }
        running.say("let go");
        assert_eq!(running.line(), "let go");
        attached.detach().expect("detach");
        running.assert_alive();
    }
    running.finish();
}
