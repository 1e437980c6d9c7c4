//! Results of `choose` for every function of real libraries, and checks that they are
//! consistent with the code.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use crate::object::Object;
use capriole_insn::decode::is_padding;
use capriole_insn::{Code, Extent, FunctionFlow};
use capriole_tactic::place::{Placer, Space};
use capriole_tactic::site::{
    JUMP, Placed, Refusal, Shape, SiteInput, StubTo, Tactic, choose, choose_placed,
};
use capriole_testkit::effort::rounds;
use iced_x86::{FlowControl, Mnemonic};

/// Checks the properties of every shape, using only the bytes.
fn check(object: &Object, flow: &FunctionFlow, input: &SiteInput<'_>, shape: &Shape) {
    let code = object.code();
    let extent = flow.extent();
    let say = |what: &str| format!("{what}: {:#x} in {extent}: {shape:#x?}", input.site);
    let led = shape.tactic == Tactic::Region && shape.covered.contains(shape.site);
    assert!(led || shape.covered.start == shape.site, "{}", say("start"));
    assert!(flow.is_boundary(shape.site), "{}", say("boundary"));
    let displaced = shape.displaced.iter().any(|i| i.ip() == shape.site);
    assert!(displaced || shape.displaced.is_empty(), "{}", say("site"));
    assert_eq!(shape.tactic.is_prescribed(), shape.placed.is_some());
    if let Some(placed) = &shape.placed {
        check_placed(&code, flow, shape, placed, &say);
    } else if shape.tactic == Tactic::Int3 {
        assert_eq!(shape.covered.len(), 1);
    } else {
        assert!(shape.covered.len() >= JUMP, "{}", say("too short"));
        assert!(
            shape.covered.end <= input.padding_end.max(extent.end),
            "{}",
            say("outside")
        );
        let inside = Extent::new(shape.covered.start + 1, shape.covered.end);
        assert_eq!(
            object.targets.any_in(inside),
            None,
            "{}",
            say("target inside")
        );
    }
    // The covered bytes are whole, consecutive instructions.
    let mut at = shape.covered.start;
    for displaced in &shape.displaced {
        assert_eq!(displaced.ip(), at, "{}", say("gap"));
        at = displaced.next_ip();
    }
    match shape.tactic {
        Tactic::Reserved => assert!(shape.displaced.is_empty()),
        Tactic::OneInstruction | Tactic::Int3 => assert_eq!(shape.displaced.len(), 1),
        Tactic::Punned
        | Tactic::PunnedByte
        | Tactic::Evicted
        | Tactic::Trapped
        | Tactic::Region => assert!(!shape.displaced.is_empty()),
    }
    if shape.tactic != Tactic::Reserved {
        assert_eq!(shape.resume, at, "{}", say("resume"));
    }
    while shape.tactic == Tactic::Region && at < shape.covered.end {
        let padding = code.instruction_at(at, shape.covered.end).expect("padding");
        assert!(is_padding(&padding), "{}", say("padding"));
        at = padding.next_ip();
    }
    // Every tactic before the chosen one has a refusal.
    let before: Vec<Tactic> = Tactic::ALL
        .into_iter()
        .take_while(|&tactic| tactic != shape.tactic)
        .collect();
    let refused: Vec<Tactic> = shape.refusals.iter().map(|(tactic, _)| *tactic).collect();
    assert_eq!(before, refused);
}

/// Checks the code with all bytes written as prescribed: every jump leads to its stub, every
/// instruction other than the replaced ones is intact, and the code is correct after each
/// write.
fn check_placed(
    code: &Code<'_>,
    flow: &FunctionFlow,
    shape: &Shape,
    placed: &Placed,
    say: &dyn Fn(&str) -> String,
) {
    let first = shape.covered.start;
    let window = Extent::new(first.saturating_sub(300), first + 300);
    let text = code.extent();
    let window = Extent::new(window.start.max(text.start), window.end.min(text.end));
    let original = code.get(window).expect("bytes");
    let mut bytes = original.to_vec();
    let stub = |to| {
        let found = placed.stubs.iter().find(|stub| stub.to == to);
        found
            .unwrap_or_else(|| panic!("{}", say("no stub")))
            .address
    };
    for write in &placed.writes {
        let at = (write.address - window.start) as usize;
        let range = at..at + write.after.len();
        assert_eq!(bytes[range.clone()], write.before, "{}", say("before"));
        bytes[range].copy_from_slice(&write.after);
        // Each write covers one instruction's own bytes and padding behind them, unused ones, or the whole
        // site.
        let own = flow.instruction_around(write.address);
        let end = write.address + write.after.len() as u64;
        let is_site = write.address == first && end <= shape.covered.end;
        let is_unused = own.is_none_or(|own| {
            let mut next = own.end;
            while next < end
                && !flow.is_reached(next)
                && let Some(padding) = code.instruction_at(next, flow.extent().end)
                && is_padding(&padding)
            {
                next = padding.next_ip();
            }
            write.address >= flow.extent().end || !flow.is_reached(own.start) || end <= next
        });
        let is_last = end > flow.extent().end;
        assert!(is_site || is_unused || is_last, "{}", say("write"));
        // An instruction that has been changed so far leads to its stub.
        let new = Code::new(&bytes, window.start);
        for evicted in &placed.evicted {
            let at = evicted.ip();
            if placed.writes.iter().any(|w| w.address == at)
                && code.get(Extent::new(at, at + 1)) != new.get(Extent::new(at, at + 1))
            {
                let index = placed.evicted.iter().position(|e| e.ip() == at).unwrap();
                assert_eq!(
                    lands(&new, at),
                    stub(StubTo::Evicted(index)),
                    "{}",
                    say("evicted")
                );
            }
        }
    }
    let new = Code::new(&bytes, window.start);
    assert_eq!(lands(&new, first), stub(StubTo::Detour), "{}", say("site"));
    for (index, evicted) in placed.evicted.iter().enumerate() {
        let to = stub(StubTo::Evicted(index));
        assert_eq!(lands(&new, evicted.ip()), to, "{}", say("evicted"));
    }
    for at in &placed.traps {
        assert_eq!(new.byte(*at), Some(0xcc), "{}", say("trap"));
        assert!(
            shape.displaced.iter().any(|i| i.ip() == *at),
            "{}",
            say("no copy")
        );
    }
    for (at, bytes) in &placed.relies_on {
        let extent = Extent::new(*at, at + bytes.len() as u64);
        assert_eq!(code.get(extent), Some(&bytes[..]), "{}", say("relies on"));
    }
    // All other instructions decode as before.
    let led_away = |at: u64| {
        at == first || placed.traps.contains(&at) || placed.evicted.iter().any(|e| e.ip() == at)
    };
    for at in flow
        .boundaries()
        .filter(|at| window.contains(*at) && !led_away(*at))
    {
        if !flow.is_reached(at) || shape.tactic == Tactic::Trapped && shape.covered.contains(at) {
            continue;
        }
        let end = flow.extent().end.min(window.end);
        if let Some(is) = code.instruction_at(at, end) {
            assert_eq!(Some(is), new.instruction_at(at, end), "{}", say("broken"));
        }
    }
}

/// Follows the jumps at an address; returns the final target.
fn lands(code: &Code<'_>, at: u64) -> u64 {
    let mut at = at;
    let all = code.extent();
    for _ in 0..2 {
        if !all.contains(at) {
            break;
        }
        let jump = code.instruction_at(at, all.end).expect("a jump");
        assert_eq!(jump.mnemonic(), Mnemonic::Jmp, "{jump}");
        assert_eq!(jump.flow_control(), FlowControl::UnconditionalBranch);
        at = jump.near_branch_target();
    }
    at
}

/// All addresses of an object, and room for stubs around it.
fn range(object: &Object) -> Range<u64> {
    let text = object.code().extent();
    let data = object.elf.pointers().iter().copied().max().unwrap_or(0);
    0..text.end.max(data) + (64 << 20)
}

/// Chooses at each site of `sites`, prints the results, and returns the share
/// of sites that need a breakpoint or are refused.
fn survey(name: &str, every_instruction: bool) -> Option<f64> {
    let started = Instant::now();
    let object = Object::find(name, 0)?;
    let opened = started.elapsed();
    let code = object.code();
    let mut tactics: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut sites, mut poor) = (0usize, 0usize);
    let empty = Placer::new(Space::around(range(&object)));
    let every = rounds(32, 4, 1);
    for (index, (function, extent)) in object.functions.iter().enumerate() {
        if every_instruction && index % every != 0 {
            continue;
        }
        let flow = object.flow(extent);
        let mut input = SiteInput {
            code: &code,
            flow: &flow,
            site: extent.start,
            targets: &object.targets,
            padding_end: object.padding_end(extent),
            next: None,
            forbidden: &[],
            shadow_stack: false,
            int3: Ok(()),
            go: false,
            split_part: function.ends_with(".cold"),
        };
        let wanted: Vec<u64> = if every_instruction {
            flow.boundaries().collect()
        } else {
            vec![extent.start]
        };
        for site in wanted {
            input.site = site;
            let free = choose(&input);
            let chosen = match free {
                Ok(shape) if shape.tactic != Tactic::Int3 => Ok(shape),
                _ => choose_placed(&input, &mut empty.clone()),
            };
            let (key, refusals) = match chosen {
                Ok(shape) => {
                    check(&object, &flow, &input, &shape);
                    (shape.tactic.as_str(), shape.refusals)
                }
                Err(refused) => ("refused", refused.refusals),
            };
            // Padding between blocks is not an instruction of the function.
            let unreached = |(_, refusal): &(_, Refusal)| refusal.key() == "not-reached";
            if key == "refused" && refusals.iter().any(unreached) {
                continue;
            }
            sites += 1;
            *tactics.entry(key).or_default() += 1;
            if key == "int3" || key == "refused" {
                poor += 1;
                let evicted = refusals
                    .iter()
                    .find(|(tactic, _)| *tactic == Tactic::Evicted);
                let (_, reason) = evicted.expect("no reason against eviction");
                *reasons.entry(reason.key()).or_default() += 1;
                if std::env::var_os("CAPRIOLE_VERBOSE").is_some() {
                    println!("{function} {site:#x}: {reason}");
                }
            }
        }
    }
    let share = poor as f64 / sites.max(1) as f64;
    let what = if every_instruction {
        "instructions"
    } else {
        "entries"
    };
    println!(
        "{name}: {sites} {what}: {tactics:?}; {:.2} % not by a jump: {reasons:?}",
        share * 100.0
    );
    let (kib, all) = (code.bytes.len() / 1024, started.elapsed());
    println!("{name}: {kib} KiB of code; targets {opened:?}, with all sites {all:?}");
    assert!(sites > 0);
    Some(share)
}

#[test]
fn function_entries() {
    for name in [
        "libc.so.6",
        "libsqlite3.so.0",
        "libcrypto.so.3",
        "libstdc++.so.6",
        "libpython3.11.so.1.0",
    ] {
        if let Some(share) = survey(name, false) {
            assert!(
                share <= 0.001,
                "{name}: {share} of the entries need a breakpoint"
            );
        }
    }
}

#[test]
fn every_instruction() {
    for name in [
        "libc.so.6",
        "libsqlite3.so.0",
        "libcrypto.so.3",
        "libstdc++.so.6",
    ] {
        if let Some(share) = survey(name, true) {
            assert!(
                share <= 0.01,
                "{name}: {share} of the instructions need a breakpoint"
            );
        }
    }
}
