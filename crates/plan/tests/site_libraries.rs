//! What `choose` says about every function of real libraries, and whether all
//! that it says is consistent with the code.

#[path = "../../insn/tests/support/elf.rs"]
mod elf;

use std::collections::BTreeMap;
use std::time::Instant;

use capriole_insn::decode::is_padding;
use capriole_insn::{Code, Extent, FunctionFlow, Hints, Targets, landing_pads};
use capriole_plan::site::{JUMP, Shape, SiteInput, Tactic, choose};
use elf::Elf;

/// Everything that `choose` needs to know about one object.
struct Object {
    elf: Elf,
    functions: Vec<(String, Extent)>,
    starts: Vec<u64>,
    targets: Targets,
    pads: Vec<u64>,
}

impl Object {
    fn open(name: &str) -> Option<Self> {
        let Some(elf) = elf::find_library(name).and_then(|path| Elf::open(&path)) else {
            println!("skipped: no {name} on this system");
            return None;
        };
        let functions = elf.functions();
        let fdes = elf.fdes();
        let mut extents: Vec<Extent> = functions
            .iter()
            .map(|(_, extent)| *extent)
            .chain(fdes.iter().map(|fde| fde.extent))
            .collect();
        extents.sort_unstable();
        extents.dedup();
        let mut pads = Vec::new();
        for fde in &fdes {
            if let Some(lsda) = fde.lsda {
                let bytes = elf.rest(lsda);
                pads.extend(landing_pads(bytes, lsda, fde.extent.start).expect("a damaged LSDA"));
            }
        }
        pads.sort_unstable();
        let (bytes, address) = elf.text();
        let code = Code::new(bytes, address);
        let read = |address, len| elf.read(address, len);
        let mut targets = Targets::of(&code, &extents, &read);
        pads.iter().for_each(|&pad| targets.insert(pad));
        elf.pointers()
            .iter()
            .for_each(|&p| targets.insert_pointer(p));
        targets.set_pointers_known();
        functions
            .iter()
            .for_each(|(_, f)| targets.insert_entry(f.start));
        let starts = extents.iter().map(|extent| extent.start).collect();
        Some(Self {
            functions,
            starts,
            targets,
            pads,
            elf,
        })
    }

    fn code(&self) -> Code<'_> {
        let (bytes, address) = self.elf.text();
        Code::new(bytes, address)
    }

    fn flow(&self, extent: &Extent) -> FunctionFlow {
        let read = |address, len| self.elf.read(address, len);
        let hints = Hints {
            landing_pads: &self.pads,
            read: &read,
        };
        FunctionFlow::analyse_with(&self.code(), extent, &hints).unwrap()
    }

    fn padding_end(&self, extent: &Extent) -> u64 {
        let next = self.starts.partition_point(|&start| start < extent.end);
        let end = self.code().extent().end;
        self.starts.get(next).copied().unwrap_or(end).min(end)
    }
}

/// What must hold for every shape, looked at with nothing but the bytes.
fn check(object: &Object, flow: &FunctionFlow, input: &SiteInput<'_>, shape: &Shape) {
    let code = object.code();
    let extent = flow.extent();
    let say = |what: &str| format!("{what}: {:#x} in {extent}: {shape:#x?}", input.site);
    assert_eq!(shape.covered.start, shape.site, "{}", say("start"));
    assert!(flow.is_boundary(shape.site), "{}", say("boundary"));
    if shape.tactic == Tactic::Int3 {
        assert_eq!(shape.covered.len(), 1);
    } else {
        assert!(shape.covered.len() >= JUMP, "{}", say("too short"));
        assert!(
            shape.covered.end <= input.padding_end.max(extent.end),
            "{}",
            say("outside")
        );
        let inside = Extent::new(shape.site + 1, shape.covered.end);
        assert_eq!(
            object.targets.any_in(inside),
            None,
            "{}",
            say("target inside")
        );
    }
    // The covered bytes are whole instructions, one after the other.
    let mut at = shape.site;
    for displaced in &shape.displaced {
        assert_eq!(displaced.ip(), at, "{}", say("gap"));
        at = displaced.next_ip();
    }
    match shape.tactic {
        Tactic::Reserved => assert!(shape.displaced.is_empty()),
        Tactic::OneInstruction | Tactic::Int3 => assert_eq!(shape.displaced.len(), 1),
        Tactic::Region => assert!(!shape.displaced.is_empty()),
    }
    if shape.tactic != Tactic::Reserved {
        assert_eq!(shape.resume, at, "{}", say("resume"));
    }
    while shape.tactic == Tactic::Region && at < shape.covered.end {
        let padding = code.instruction_at(at, shape.covered.end).expect("padding");
        assert!(is_padding(&padding), "{}", say("padding"));
        at = padding.next_ip();
    }
    // Every tactic before the chosen one has a reason.
    let before: Vec<Tactic> = Tactic::ALL
        .into_iter()
        .take_while(|&tactic| tactic != shape.tactic)
        .collect();
    let refused: Vec<Tactic> = shape.refusals.iter().map(|(tactic, _)| *tactic).collect();
    assert_eq!(before, refused);
}

/// Chooses at each site of `sites`, prints what came out, and returns the share
/// of sites that need a breakpoint or more.
fn survey(name: &str, every_instruction: bool) -> Option<f64> {
    let started = Instant::now();
    let object = Object::open(name)?;
    let opened = started.elapsed();
    let code = object.code();
    let mut tactics: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut sites, mut poor) = (0usize, 0usize);
    for (index, (function, extent)) in object.functions.iter().enumerate() {
        if every_instruction && index % 16 != 0 {
            continue;
        }
        let flow = object.flow(extent);
        let mut input = SiteInput {
            code: &code,
            flow: &flow,
            site: extent.start,
            targets: &object.targets,
            padding_end: object.padding_end(extent),
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
            sites += 1;
            input.site = site;
            let (key, refusals) = match choose(&input) {
                Ok(shape) => {
                    check(&object, &flow, &input, &shape);
                    (shape.tactic.as_str(), shape.refusals)
                }
                Err(refused) => ("refused", refused.refusals),
            };
            *tactics.entry(key).or_default() += 1;
            if key == "int3" || key == "refused" {
                poor += 1;
                let region = refusals
                    .iter()
                    .find(|(tactic, _)| *tactic == Tactic::Region);
                let (_, reason) = region.expect("no reason for the region");
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
                share < 0.10,
                "{name}: {share} of the entries need a breakpoint"
            );
        }
    }
}

#[test]
fn every_instruction() {
    for name in ["libc.so.6", "libsqlite3.so.0", "libstdc++.so.6"] {
        survey(name, true);
    }
}
