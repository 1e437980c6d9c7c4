//! `capriole check`: one site, looked at closely.

use crate::selection::{self, Selected};
use capriole_insn::RegSet;
use capriole_plan::detour::{CompileError, Compiler, Counters, Request, Runtime, Work, room};
use capriole_plan::site::{Placed, Shape, StubTo, Tactic, Write};
use capriole_ring::layout::record;
use capriole_target::maps::{GapQuery, Layout, PAGE_SIZE, find_gaps};
use capriole_target::object::Objects;
use capriole_target::symbols::OtherSymbol;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, SymbolResolver, SymbolResult,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show how a site would be probed: tactics, reasons, bytes, the detour
#[derive(Debug, clap::Args)]
#[command(override_usage = "capriole check [OPTIONS] EVENT (-p PID | PATH)")]
pub struct Arguments {
    /// The event, such as `libc:malloc` or `:main+4`
    event: String,
    /// A file instead of a process
    #[arg(required_unless_present = "pid", conflicts_with = "pid")]
    path: Option<PathBuf>,
    /// The running process
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command. Exit status 0 if every site can be probed, 1 if not.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let events = selection::parse_plain(std::slice::from_ref(&arguments.event), &[])?;
    let path = arguments
        .path
        .as_deref()
        .map(selection::existing)
        .transpose()?;
    let (objects, planner) = selection::subject(arguments.pid, path.as_deref())?;
    let selected = selection::select(&objects, &planner, &events)?;
    let threads = Threads::of(&objects);
    if arguments.json {
        let sites: Vec<_> = selected
            .iter()
            .map(|event| {
                let mut site = event.json();
                if let Ok(plan) = &event.plan {
                    let live: Vec<String> = plan
                        .shape
                        .live
                        .gprs
                        .iter()
                        .map(|r| format!("{r:?}").to_lowercase())
                        .collect();
                    site["site"] = json!(format!("{:#x}", plan.shape.site));
                    site["before"] = json!(hex(&plan.before));
                    if let Some(placed) = &plan.shape.placed {
                        let writes = placed.writes.iter().map(|w| {
                            json!({
                                "address": format!("{:#x}", w.address),
                                "before": hex(&w.before),
                                "after": hex(&w.after),
                            })
                        });
                        let stubs = placed.stubs.iter().map(|s| format!("{:#x}", s.address));
                        site["writes"] = writes.collect();
                        site["stubs"] = stubs.map(Value::from).collect();
                    }
                    site["resume"] = json!(format!("{:#x}", plan.shape.resume));
                    site["live_registers"] = json!(live);
                    site["live_flags"] = json!(plan.shape.live.flags);
                    site["red_zone"] = json!(!plan.shape.at_entry);
                    if let Ok(sketch) = Sketch::of(event, &plan.shape, &objects, &threads) {
                        sketch.json(&mut site);
                    }
                }
                site
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&sites)?);
    } else {
        for event in &selected {
            let mut text = describe(event);
            if let Ok(plan) = &event.plan {
                match Sketch::of(event, &plan.shape, &objects, &threads) {
                    Ok(sketch) => sketch.describe(&threads, &mut text),
                    Err(reason) => {
                        let _ = writeln!(text, "  detour    cannot be made: {reason}");
                    }
                }
            }
            print!("{text}");
        }
    }
    let all = selected.iter().all(|e| e.plan.is_ok());
    Ok(if all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn formatter(names: Option<Names>) -> GasFormatter {
    let names = names.map(|names| Box::new(names) as Box<dyn SymbolResolver>);
    let mut formatter = GasFormatter::with_options(names, None);
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    formatter
}

fn assembly(instruction: &Instruction) -> String {
    let mut formatter = formatter(None);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

/// The site for a person.
fn describe(event: &Selected) -> String {
    let mut text = String::new();
    let site = &event.site;
    let _ = writeln!(
        text,
        "{} in {}, file offset {:#x}, address {:#x}",
        event.name(),
        site.object.path().display(),
        site.file_offset,
        site.address
    );
    let refusals = event.refusals();
    if let (Err(_), Some((_, reason))) = (&event.plan, refusals.first())
        && refusals.iter().all(|(_, other)| other == reason)
    {
        let _ = writeln!(text, "  it cannot be probed: {reason}");
        return text;
    }
    for (tactic, refusal) in refusals {
        let _ = writeln!(text, "  {:<8}  no: {refusal}", tactic.as_str());
    }
    let Ok(plan) = &event.plan else {
        let _ = writeln!(text, "  it cannot be probed");
        return text;
    };
    let shape = &plan.shape;
    let what = match shape.tactic {
        Tactic::Reserved => "yes: nops that may be overwritten stand here",
        Tactic::OneInstruction => "yes: a jump over one instruction",
        Tactic::Region => "yes: a jump over several instructions",
        Tactic::Punned => "yes: a jump that shares bytes with the next instruction",
        Tactic::PunnedByte => "yes: a jump of which only the first byte is new",
        Tactic::Evicted => "yes: a jump for which something nearby makes room",
        Tactic::Trapped => {
            "yes: a jump over several instructions, with breakpoints inside for who still comes there"
        }
        Tactic::Int3 => "yes: a breakpoint, which costs about 100 times more than a jump",
    };
    let _ = writeln!(text, "  {:<8}  {what}", shape.tactic.as_str());
    if shape.site != site.address {
        let _ = writeln!(
            text,
            "  the probe goes behind endbr64, to {:#x}",
            shape.site
        );
    }
    match &shape.placed {
        None => {
            let after: String = match shape.tactic {
                Tactic::Int3 => "cc".into(),
                _ => {
                    let rest = plan.before.get(5..).map(hex).unwrap_or_default();
                    format!("e9 .. .. .. .. {rest}").trim_end().to_owned()
                }
            };
            let _ = writeln!(text, "  before    {}", hex(&plan.before));
            let _ = writeln!(text, "  after     {after}");
        }
        Some(placed) => describe_placed(placed, &mut text),
    }
    if shape.displaced.is_empty() {
        let _ = writeln!(text, "  displaced nothing");
    }
    for (index, instruction) in shape.displaced.iter().enumerate() {
        let label = if index == 0 { "displaced" } else { "" };
        let _ = writeln!(
            text,
            "  {label:<9} {:#x}: {}",
            instruction.ip(),
            assembly(instruction)
        );
    }
    let leaves = shape.displaced.last().is_some_and(|last| {
        let flow = last.flow_control();
        use FlowControl::{IndirectBranch, Return, UnconditionalBranch};
        matches!(flow, IndirectBranch | Return | UnconditionalBranch)
    });
    match leaves {
        true => text.push_str("  goes on   where the last of these leads\n"),
        false => {
            let at = shape.resume;
            let _ = writeln!(text, "  goes on   at {at:#x}{}", next(event, at));
        }
    }
    let live: Vec<String> = shape
        .live
        .gprs
        .iter()
        .map(|r| format!("{r:?}").to_lowercase())
        .collect();
    let _ = writeln!(
        text,
        "  live      {}{}",
        live.join(" "),
        if shape.live.flags { ", flags" } else { "" }
    );
    let _ = writeln!(
        text,
        "  red zone  {}",
        if shape.at_entry {
            "dead: the function is entered here"
        } else {
            "may be in use, skipped"
        }
    );
    text
}

/// What stands where, of a jump whose bytes are given.
fn describe_placed(placed: &Placed, text: &mut String) {
    let changes = |at: u64| {
        let holds = |w: &&Write| (w.address..w.address + w.after.len() as u64).contains(&at);
        placed.writes.iter().find(holds)
    };
    for (start, bytes) in &placed.relies_on {
        let after: Vec<u8> = (*start..)
            .zip(bytes)
            .map(|(at, byte)| changes(at).map_or(*byte, |w| w.after[(at - w.address) as usize]))
            .collect();
        let _ = writeln!(text, "  before    {start:#x}: {}", hex(bytes));
        let _ = writeln!(text, "  after     {start:#x}: {}", hex(&after));
    }
    for stub in &placed.stubs {
        let to = match stub.to {
            StubTo::Detour => "the detour".to_owned(),
            StubTo::Evicted(index) => {
                let evicted = &placed.evicted[index];
                format!("a copy of {:#x}: {}", evicted.ip(), assembly(evicted))
            }
        };
        // A file that is not loaded is taken to be at 0, and there is room below it.
        let at = stub.address as i64;
        let sign = if at < 0 { "-" } else { "" };
        let at = at.unsigned_abs();
        let _ = writeln!(text, "  stub      {sign}{at:#x}, to {to}");
    }
    for at in &placed.traps {
        let _ = writeln!(
            text,
            "  trap      {at:#x}, to the copy of what stands there"
        );
    }
}

/// The instruction at which the program goes on.
fn next(event: &Selected, address: u64) -> String {
    let code = event
        .site
        .object
        .code()
        .ok()
        .and_then(|c| c.code_at(address));
    let Some(code) = code else {
        return String::new();
    };
    let at = (address - code.address) as usize;
    let bytes = &code.bytes[at..code.bytes.len().min(at + 15)];
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    format!(": {}", assembly(&decoder.decode()))
}

/// Where threads keep what detours read, in bytes from the thread pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Threads {
    rseq_offset: Option<i32>,
    tid_offset: Option<i32>,
    /// Whose they are.
    whose: &'static str,
}

impl Threads {
    /// As the C library of a process tells debuggers; it need not be stopped for that.
    /// Attaching asks the kernel for each thread instead.
    fn of(objects: &Objects) -> Threads {
        let usual = Threads {
            rseq_offset: Some(0x920),
            tid_offset: Some(0x2d0),
            whose: "glibc 2.36",
        };
        let Some(process) = objects.process() else {
            return usual;
        };
        let word = |name: &str, offset: u64| {
            let address = objects.all().find_map(|object| {
                match object.file().other_symbol(name).ok().flatten() {
                    Some(OtherSymbol::Data(link)) => Some(object.run_time(link) + offset),
                    _ => None,
                }
            })?;
            let mut bytes = [0; 4];
            (process.read_memory(address, &mut bytes).ok()? == 4)
                .then_some(u32::from_le_bytes(bytes))
        };
        // The lower half of a `ptrdiff_t`; the size is 0 where the kernel refused.
        let rseq = word("__rseq_offset", 0).zip(word("__rseq_size", 0));
        // For libthread_db: bits, how many, offset; u32 each.
        let tid = word("_thread_db_pthread_tid", 8);
        match rseq {
            Some((offset, size)) => Threads {
                rseq_offset: (size > 0).then_some(offset as i32),
                tid_offset: tid.map(|offset| offset as i32),
                whose: "this process",
            },
            None => Threads {
                whose: "glibc 2.36 (this process does not tell)",
                ..usual
            },
        }
    }
}

/// One instruction of a detour.
#[derive(Debug)]
struct Line {
    address: u64,
    text: String,
    /// `save`, `record`, `commit`, `restore`, `copy of ADDRESS`, `evicted copy of
    /// ADDRESS`, `go on`.
    what: String,
    /// What a recording instruction is for.
    note: String,
}

/// What becomes of a register that the detour uses, or of the flags.
#[derive(Debug)]
struct Used {
    name: String,
    live: bool,
    saved: bool,
    written: bool,
    field: Option<String>,
}

impl Used {
    fn why(&self) -> String {
        let live = if self.live { "live" } else { "dead" };
        match (&self.field, self.written, self.saved) {
            (Some(field), false, _) => format!("holds the field {field}, is only read"),
            (Some(field), true, _) => format!("holds the field {field}, saved"),
            (None, _, true) => format!("{live}, saved"),
            (None, true, false) => format!("{live}, not saved"),
            (None, false, false) => format!("{live}, not changed"),
        }
    }
}

/// The detour as it would be made, at an address where it could be.
#[derive(Debug)]
struct Sketch {
    entry: u64,
    /// Bytes of its own, those of them off the hot path, and those that it shares.
    size: usize,
    cold: usize,
    shared: usize,
    lines: Vec<Line>,
    used: Vec<Used>,
}

/// Names for the addresses of a session that does not exist.
struct Names(HashMap<u64, String>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let name = self.0.get(&address)?;
        Some(SymbolResult::with_str(address, name))
    }
}

/// Where the memory for detours could be: in a process where it is free now, of a file
/// right behind it.
fn arena(event: &Selected, objects: &Objects, size: u64) -> u64 {
    let near = event.site.object.range();
    let free = objects.process().and_then(|process| {
        let query = GapQuery::new(size, near.clone());
        let gaps = find_gaps(&process.maps().ok()?, &Layout::of(process), &query);
        gaps.first().copied()
    });
    free.unwrap_or(near.end.next_multiple_of(PAGE_SIZE))
}

/// Decodes copies. A displaced call pushes its return address from 8 bytes that stand
/// behind it.
fn instructions(bytes: &[u8], start: u64) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut literals: Vec<u64> = Vec::new();
    let mut found = Vec::new();
    while decoder.can_decode() {
        let at = decoder.ip();
        let position = decoder.position();
        let literal = bytes.get(position..position + 8);
        if let Some(Ok(word)) = literal.map(<[u8; 8]>::try_from)
            && literals.contains(&at)
            && decoder.set_position(position + 8).is_ok()
        {
            decoder.set_ip(at + 8);
            let mut quad = Instruction::with_declare_qword_1(u64::from_le_bytes(word));
            quad.set_len(8);
            quad.set_ip(at);
            found.push(quad);
            continue;
        }
        let instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Push && instruction.is_ip_rel_memory_operand() {
            literals.push(instruction.ip_rel_memory_address());
        }
        found.push(instruction);
    }
    found
}

impl Sketch {
    fn of(
        event: &Selected,
        shape: &Shape,
        objects: &Objects,
        threads: &Threads,
    ) -> Result<Sketch, CompileError> {
        let work = [event.record()];
        // Where the resident would stand: it has two entries for records.
        let resident = PAGE_SIZE as usize;
        let start = arena(event, objects, PAGE_SIZE + room(&work));
        let session = start + (1 << 20);
        let runtime = Runtime {
            shadow_stack: false,
            heads: session,
            directories: 0,
            counters: Counters::default(),
            rseq_offset: threads.rseq_offset,
            tid_offset: threads.tid_offset,
            switch: start,
            locked: start + 1,
            run: start + 2,
        };
        let mut compiler = Compiler::new(runtime, start, vec![0xcc; resident]);
        let detour = compiler.compile(&Request {
            work: &work,
            displaced: &shape.displaced,
            resume: shape.resume,
            red_zone: !shape.at_entry,
            live: shape.live,
        })?;
        let mut evicted = Vec::new();
        for instruction in shape.placed.iter().flat_map(|p| &p.evicted) {
            let copy = compiler.copy_out(instruction)?;
            let end = start + compiler.image().len() as u64;
            evicted.push((instruction, copy..end));
        }
        let image = compiler.into_image();
        let decode = |range: Range<u64>| {
            let bytes = &image[(range.start - start) as usize..(range.end - start) as usize];
            instructions(bytes, range.start)
        };
        let end = detour.address + detour.size as u64;
        let code = decode(detour.entry..end);
        let copies = detour.copies.first().map(|(_, copy)| *copy);
        // Without copies there is the way back only: `jmp rel32`.
        let copies = copies.unwrap_or(end - 5);
        let descriptor = code.iter().find(|i| {
            i.ip() < copies && i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand()
        });
        let descriptor = descriptor.map(|i| (i.ip(), i.ip_rel_memory_address()));
        let parts = match descriptor {
            Some((begin, descriptor)) => {
                let word = |at: u64| {
                    let at = (descriptor - start + at) as usize;
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&image[at..at + 8]);
                    u64::from_le_bytes(bytes)
                };
                Parts::of(begin, word(8) + word(16), copies, &code)
            }
            // The locked way moves the stack pointer around what it does.
            None => {
                let moves = |i: &&Instruction| {
                    i.mnemonic() == Mnemonic::Lea
                        && i.op0_register() == Register::RSP
                        && i.ip() < copies
                };
                let call = code.iter().position(|i| i.mnemonic() == Mnemonic::Call);
                let call = call.unwrap_or(0);
                let begin = code[..call]
                    .iter()
                    .rfind(moves)
                    .map_or(detour.entry, Instruction::ip);
                let done = code[call..]
                    .iter()
                    .filter(moves)
                    .nth(1)
                    .map_or(copies, Instruction::next_ip);
                Parts::of(begin, done, copies, &code)
            }
        };
        // What the resident runs stands before the code.
        let cold = match &work[0] {
            Work::Run { .. } => "program",
            _ => "cold",
        };
        let mut names = HashMap::from([
            (runtime.heads, "heads".to_owned()),
            (runtime.switch, "switch".to_owned()),
            (runtime.locked, "locked".to_owned()),
            (runtime.run, "run".to_owned()),
            (detour.address, cold.to_owned()),
        ]);
        if let Some((_, descriptor)) = descriptor {
            names.insert(descriptor, "descriptor".to_owned());
        }
        // The formatter takes what is below the thread pointer for an address.
        for offset in threads.rseq_offset.into_iter().flat_map(|o| [o + 4, o + 8]) {
            if offset < 0 {
                names.insert(i64::from(offset) as u64, format!("-{:#x}", -offset));
            }
        }
        let mut formatter = formatter(Some(Names(names)));
        let notes = Notes {
            event,
            threads,
            place: parts.place,
        };
        let mut line = |instruction: &Instruction, what: String, note: String| {
            let mut text = String::new();
            formatter.format(instruction, &mut text);
            Line {
                address: instruction.ip(),
                text,
                what,
                note,
            }
        };
        let mut lines = Vec::new();
        let mut copied = None;
        for instruction in &code {
            let at = instruction.ip();
            if let Some((old, _)) = detour.copies.iter().find(|(_, new)| *new == at) {
                copied = Some(*old);
            }
            let is_back = at + 5 == end && instruction.near_branch_target() == shape.resume;
            let what = match (parts.name(at), copied) {
                (Some(part), _) => part.to_owned(),
                (None, Some(old)) if !is_back => format!("copy of {old:#x}"),
                (None, _) => "go on".to_owned(),
            };
            let note = match parts.name(at) {
                Some("record") => notes.of(instruction),
                _ => String::new(),
            };
            lines.push(line(instruction, what, note));
        }
        for (old, range) in evicted {
            for instruction in decode(range.clone()) {
                let is_last = instruction.next_ip() == range.end;
                let what = match is_last && instruction.near_branch_target() == old.next_ip() {
                    true => "go on".to_owned(),
                    false => format!("evicted copy of {:#x}", old.ip()),
                };
                lines.push(line(&instruction, what, String::new()));
            }
        }
        let shared = descriptor.map_or(0, |(_, descriptor)| {
            let all = &image[resident..(descriptor - start) as usize];
            all.iter()
                .rposition(|byte| *byte != 0xcc)
                .map_or(0, |last| last + 1)
        });
        Ok(Sketch {
            entry: detour.entry,
            size: detour.size,
            cold: (detour.entry - detour.address) as usize,
            shared,
            lines,
            used: used(
                event,
                shape,
                &detour.saved,
                code.iter().filter(|i| i.ip() < copies),
            ),
        })
    }
}

/// Where the parts of a detour begin.
struct Parts {
    record: u64,
    commit: u64,
    restore: u64,
    copies: u64,
    /// What holds the address of the record.
    place: Register,
}

impl Parts {
    /// With restartable sequences the last instruction before `done` is the commit:
    /// `mov %place, (%control)`.
    fn of(begin: u64, done: u64, copies: u64, code: &[Instruction]) -> Parts {
        let last = code.iter().rfind(|i| i.next_ip() == done);
        let commit =
            last.filter(|i| i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Memory);
        Parts {
            record: begin,
            commit: commit.map_or(done, Instruction::ip),
            restore: done,
            copies,
            place: commit.map_or(Register::None, Instruction::op1_register),
        }
    }

    /// The part that an instruction belongs to; none of the copies.
    fn name(&self, at: u64) -> Option<&'static str> {
        match at {
            _ if at < self.record => Some("save"),
            _ if at < self.commit => Some("record"),
            _ if at < self.restore => Some("commit"),
            _ if at < self.copies => Some("restore"),
            _ => None,
        }
    }
}

/// What is known about the record's fields.
struct Notes<'a> {
    event: &'a Selected,
    threads: &'a Threads,
    place: Register,
}

impl Notes<'_> {
    /// What a recording instruction is for, where that is not plain to see.
    fn of(&self, instruction: &Instruction) -> String {
        let i = instruction;
        let displacement = i.memory_displacement64() as i64;
        let rseq = self.threads.rseq_offset.map(i64::from);
        let note = match i.mnemonic() {
            Mnemonic::Rdtsc => "the time",
            Mnemonic::Ja => "no room",
            Mnemonic::Call => "records the event",
            _ if i.memory_segment() == Register::FS => match displacement {
                _ if rseq.is_some_and(|rseq| displacement == rseq + 4) => "the CPU",
                _ if rseq.is_some_and(|rseq| displacement == rseq + 8) => "restartable from here",
                _ => "the thread's id",
            },
            Mnemonic::Mov if i.op0_kind() == OpKind::Memory && i.memory_base() == self.place => {
                const FIELDS: i64 = record::FIELDS as i64;
                match displacement {
                    _ if displacement == record::ID as i64 => "event 0",
                    _ if displacement >= FIELDS => {
                        let index = (displacement - FIELDS) / 8;
                        let field = self.event.fields.infos.get(index as usize);
                        return field.map(|info| info.name.clone()).unwrap_or_default();
                    }
                    _ => "",
                }
            }
            _ => "",
        };
        note.to_owned()
    }
}

/// The registers that a detour reads or writes for its work, and the flags.
fn used<'a>(
    event: &Selected,
    shape: &Shape,
    saved: &[Register],
    code: impl Iterator<Item = &'a Instruction> + Clone,
) -> Vec<Used> {
    let mut written = RegSet::EMPTY;
    let mut info = InstructionInfoFactory::new();
    let mut flags = false;
    for instruction in code.clone() {
        flags |= instruction.rflags_modified() != 0;
        for register in info.info(instruction).used_registers() {
            let only_read = matches!(register.access(), OpAccess::Read | OpAccess::CondRead);
            if !only_read && register.register().full_register() != Register::RSP {
                written.0 |= RegSet::of(register.register()).0;
            }
        }
    }
    let field = |register: Register| {
        let found = event.fields.registers().find(|(_, r)| *r == register);
        found.map(|(name, _)| name.to_owned())
    };
    let mut used: Vec<Used> = RegSet::ALL
        .iter()
        .filter(|r| written.contains(*r) || field(*r).is_some())
        .map(|register| Used {
            name: name(register),
            live: shape.live.gprs.contains(register),
            saved: saved.contains(&register),
            written: written.contains(register),
            field: field(register),
        })
        .collect();
    used.push(Used {
        name: "flags".to_owned(),
        live: shape.live.flags,
        saved: code.clone().any(|i| i.mnemonic() == Mnemonic::Lahf),
        written: flags,
        field: None,
    });
    used
}

fn name(register: Register) -> String {
    format!("{register:?}").to_lowercase()
}

impl Sketch {
    /// For a person.
    fn describe(&self, threads: &Threads, text: &mut String) {
        for (index, used) in self.used.iter().enumerate() {
            let label = if index == 0 { "registers" } else { "" };
            let _ = writeln!(text, "  {label:<9} {}: {}", used.name, used.why());
        }
        let _ = writeln!(
            text,
            "  detour    {} bytes, for threads as {} has them",
            self.size, threads.whose
        );
        let mut part = "";
        for line in &self.lines {
            let (label, note) = match line.what.split_once(" of ") {
                Some((copy, old)) => (copy.trim_end_matches(" copy"), format!("of {old}")),
                None => (line.what.as_str(), line.note.clone()),
            };
            let shown = if label == part { "" } else { label };
            part = label;
            let row = format!("  {shown:<9} {:#x}: {:<32} {note}", line.address, line.text);
            let _ = writeln!(text, "{}", row.trim_end());
        }
        if self.shared == 0 && self.cold > 0 {
            let _ = writeln!(text, "  cold      {} bytes", self.cold);
        } else if self.cold > 0 {
            let _ = writeln!(
                text,
                "  cold      {} bytes, and {} shared: `switch` if a packet is full, `locked` if restarted",
                self.cold, self.shared
            );
        }
    }

    fn json(&self, site: &mut Value) {
        let hex = |address: u64| format!("{address:#x}");
        let line = |line: &Line| {
            let mut value = json!({
                "address": hex(line.address),
                "text": line.text,
                "what": line.what,
            });
            if !line.note.is_empty() {
                value["note"] = json!(line.note);
            }
            value
        };
        let used = |used: &Used| {
            json!({
                "register": used.name,
                "live": used.live,
                "saved": used.saved,
                "field": used.field,
            })
        };
        let saved = self.used.iter().filter(|used| used.saved);
        site["detour"] = self.lines.iter().map(line).collect();
        site["detour_entry"] = json!(hex(self.entry));
        site["detour_bytes"] = json!({"own": self.size, "cold": self.cold, "shared": self.shared});
        site["registers"] = self.used.iter().map(used).collect();
        site["saved"] = saved.map(|used| Value::from(used.name.clone())).collect();
    }
}
