//! The detour, instruction by instruction.

use super::assembly::{Names, formatter, instructions};
use super::parts::{Notes, name, symbol};
use super::threads::Threads;
use super::used::{Used, used};
use capriole_codegen::detour::{CompileError, Compiler, Detour, Point, Purpose, room};
use capriole_codegen::runtime::{ClockReading, Counters, Frames, Runtime};
use capriole_object::Objects;
use capriole_proc::maps::{GapQuery, Layout, PAGE_SIZE, find_gaps};
use capriole_select::select::Selected;
use capriole_tactic::site::Shape;
use iced_x86::{Formatter, Instruction};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;

/// One instruction of a detour.
#[derive(Debug)]
struct Line {
    address: u64,
    text: String,
    /// Part that the instruction belongs to: `save`, `record`, `commit`, `restore`,
    /// `copy of ADDRESS`, `evicted copy of ADDRESS`, `go on`.
    what: String,
    /// Purpose of a recording instruction.
    note: String,
}

/// The detour as it would be compiled, at an address that it could have.
#[derive(Debug)]
pub(super) struct Sketch {
    entry: u64,
    /// Size of its own code in bytes, how much of that is off the hot path (`cold`), and the size
    /// of the code that it shares with other detours.
    size: usize,
    cold: usize,
    shared: usize,
    lines: Vec<Line>,
    used: Vec<Used>,
}

/// Returns an address for detours: free memory near the object in a process, or right after the
/// end of a file's image.
fn arena(event: &Selected, objects: &Objects, size: u64) -> u64 {
    let near = event.site.object.range();
    let free = objects.process().and_then(|process| {
        let query = GapQuery::new(size, near.clone());
        let gaps = find_gaps(&process.maps().ok()?, &Layout::of(process), &query);
        gaps.first().copied()
    });
    free.unwrap_or(near.end.next_multiple_of(PAGE_SIZE))
}

impl Sketch {
    pub(super) fn of(
        event: &Selected,
        shape: &Shape,
        objects: &Objects,
        threads: &Threads,
    ) -> Result<Sketch, CompileError> {
        let work = [event.record()];
        // Space for the resident code, which has two entries for records.
        let resident = PAGE_SIZE as usize;
        let start = arena(event, objects, PAGE_SIZE + room(&work));
        let session = start + (1 << 20);
        let runtime = Runtime {
            shadow_stack: false,
            clock: ClockReading::default(),
            streams: session,
            limit: u32::MAX >> 4,
            directories: 0,
            frames: Frames::default(),
            counters: Counters::default(),
            rseq_offset: threads.rseq_offset,
            tid_offset: threads.tid_offset,
            switch: start,
            locked: start + 1,
            run: start + 2,
        };
        let mut compiler = Compiler::new(runtime, start, vec![0xcc; resident]);
        let point = Point {
            site: shape.site,
            work: &work,
            after: &[],
            red_zone: !shape.at_entry,
            live: shape.live,
        };
        let chain = compiler.compile_chain(&[point], &shape.displaced, shape.resume)?;
        // The first part runs before the site, if the jump is before the site.
        let (detour, lead) = match chain.parts.as_slice() {
            [lead, detour, ..] => (detour, Some(lead)),
            [detour] => (detour, None),
            [] => unreachable!("there is at least one"),
        };
        let mut evicted = Vec::new();
        for instruction in shape.placed.iter().flat_map(|p| &p.evicted) {
            evicted.push(compiler.copy_out(instruction)?);
        }
        let anatomy = compiler.anatomy(detour);
        let decode = |detour: &Detour| {
            let (from, to) = (detour.entry - start, detour.end() - start);
            instructions(&compiler.image()[from as usize..to as usize], detour.entry)
        };
        let code = decode(detour);
        let mut names = HashMap::from([
            (u64::from(runtime.limit), "limit".to_owned()),
            (runtime.switch, "switch".to_owned()),
            (runtime.locked, "locked".to_owned()),
            (runtime.run, "run".to_owned()),
        ]);
        let named = anatomy.named.iter();
        names.extend(named.map(|(address, named)| (*address, symbol(*named).to_owned())));
        // The formatter treats negative offsets from the thread pointer as addresses.
        for offset in threads.rseq_offset.into_iter().flat_map(|o| [o + 4, o + 8]) {
            if offset < 0 {
                names.insert(i64::from(offset) as u64, format!("-{:#x}", -offset));
            }
        }
        let mut formatter = formatter(Some(Names(names)));
        let notes = Notes {
            event,
            threads,
            place: anatomy.record_end,
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
        if let Some(lead) = lead {
            let parts = compiler.anatomy(lead);
            for instruction in decode(lead) {
                let what = parts.purpose(instruction.ip()).map(name);
                lines.push(line(&instruction, what.unwrap_or_default(), String::new()));
            }
        }
        let flags = event.fields.fetch.flags.is_some();
        for instruction in &code {
            let purpose = anatomy.purpose(instruction.ip());
            let first = instruction.ip() == detour.entry && flags;
            let note = match purpose {
                Some(Purpose::Work(_)) => notes.of(instruction),
                Some(Purpose::Save) if first && instruction.is_jcc_short_or_near() => {
                    "the function is not left here".to_owned()
                }
                Some(
                    Purpose::Cold
                    | Purpose::Save
                    | Purpose::Commit(_)
                    | Purpose::Restore
                    | Purpose::Copy(_)
                    | Purpose::Back,
                )
                | None => String::new(),
            };
            let what = purpose.map(name).unwrap_or_default();
            lines.push(line(instruction, what, note));
        }
        for copy in &evicted {
            let parts = compiler.anatomy(copy);
            for instruction in decode(copy) {
                let what = match parts.purpose(instruction.ip()) {
                    Some(Purpose::Copy(old)) => format!("evicted copy of {old:#x}"),
                    other => other.map(name).unwrap_or_default(),
                };
                lines.push(line(&instruction, what, String::new()));
            }
        }
        let own = |i: &&Instruction| {
            let purpose = anatomy.purpose(i.ip());
            !matches!(purpose, Some(Purpose::Copy(_) | Purpose::Back))
        };
        Ok(Sketch {
            entry: chain.entry(),
            size: chain.size(),
            cold: (detour.entry - detour.address) as usize,
            shared: anatomy.shared,
            lines,
            used: used(event, shape, &detour.saved, code.iter().filter(own)),
        })
    }
}

impl Sketch {
    /// Appends the detour as text.
    pub(super) fn describe(&self, threads: &Threads, text: &mut String) {
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

    /// Adds the detour to the site's JSON.
    pub(super) fn json(&self, site: &mut Value) {
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
