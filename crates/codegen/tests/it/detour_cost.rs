//! Cost of the detours at entries of real functions: time to compile one, and bytes of code.
//! These are measurements, not checks, so they run only on request:
//! `cargo test --release -p capriole-codegen --test it detour_cost:: -- --ignored --nocapture`

use crate::support::elf;

use capriole_codegen::detour::{Compiler, Request};
use capriole_codegen::runtime::{ClockReading, Counters, Frames, Runtime};
use capriole_codegen::work::{Record, Work};
use capriole_insn::Code;
use capriole_insn::liveness::live_at;
use capriole_insn::relocate::relocatable;
use elf::Elf;
use iced_x86::{Instruction, Mnemonic, Register};
use std::time::Instant;

/// A site as the planner would choose it, but without checking for jumps into it.
struct Site {
    displaced: Vec<Instruction>,
    resume: u64,
    live: capriole_insn::liveness::Live,
}

fn sites(elf: &Elf) -> Vec<Site> {
    let (bytes, address) = elf.text();
    let code = Code::new(bytes, address);
    let site = |extent: &capriole_insn::Extent| {
        let mut at = extent.start;
        if code.instruction_at(at, extent.end)?.mnemonic() == Mnemonic::Endbr64 {
            at += 4;
        }
        let start = at;
        let mut displaced = Vec::new();
        while at < start + 5 {
            let instruction = code.instruction_at(at, extent.end)?;
            relocatable(&instruction).ok()?;
            at = instruction.next_ip();
            displaced.push(instruction);
        }
        let live = live_at(&code, extent, start);
        Some(Site {
            displaced,
            resume: at,
            live,
        })
    };
    elf.functions()
        .iter()
        .filter_map(|(_, extent)| site(extent))
        .collect()
}

#[test]
#[ignore = "prints numbers"]
fn time_and_bytes_of_detours() {
    let Some(elf) = elf::find_library("libcrypto.so.3").and_then(|path| Elf::open(&path)) else {
        println!("skipped: no libcrypto.so.3 on this system");
        return;
    };
    let sites = sites(&elf);
    let argument = [Register::RDI, Register::RSI];
    measure("count", &sites, |counter| Work::Count {
        counter,
        filter: None,
    });
    for count in 0..=2 {
        measure(&format!("{count} arguments"), &sites, |event| {
            let fields = argument[..count].to_vec();
            Record::new(event, fields).into()
        });
    }
}

fn measure(what: &str, sites: &[Site], work: impl Fn(u32) -> Work) {
    let runtime = Runtime {
        shadow_stack: false,
        clock: ClockReading::default(),
        streams: 0x7f12_3456_7000,
        limit: 1 << 20,
        directories: 0,
        frames: Frames::default(),
        counters: Counters {
            address: 0x7f12_3457_0000,
            stride: 64 * 1024,
            cpus: 4,
        },
        rseq_offset: Some(-160),
        tid_offset: Some(720),
        switch: 0x4000_0100,
        locked: 0x4000_0200,
        run: 0x4000_0300,
    };
    let works: Vec<[Work; 1]> = (0..sites.len() as u32).map(|i| [work(i)]).collect();
    let started = Instant::now();
    let mut compiler = Compiler::new(runtime, 0x4000_1000, Vec::new());
    let (mut done, mut own, mut saved) = (0, 0, 0);
    for (work, site) in works.iter().zip(sites) {
        let request = Request {
            work,
            displaced: &site.displaced,
            resume: site.resume,
            red_zone: false,
            live: site.live,
        };
        if let Ok(detour) = compiler.compile(&request) {
            done += 1;
            own += detour.size;
            saved += detour.saved.len();
        }
    }
    let time = started.elapsed();
    let average = |sum: usize| sum as f64 / f64::from(done);
    println!(
        "{what}: {done} detours, {:?} each; {:.1} bytes each, {:.1} of them its own; \
         {:.2} registers saved",
        time / done,
        average(compiler.image().len()),
        average(own),
        average(saved)
    );
}
