//! A site: tactics and reasons, the bytes before and after, the displaced instructions.

use super::assembly::{assembly, hex, name};
use crate::advice;
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_select::marker;
use capriole_select::select::{Fate, Selected};
use capriole_tactic::site::{Patch, Placed, StubTo, Write};
use capriole_text::printable;
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Formats the site as text.
pub(super) fn describe(event: &Selected) -> String {
    let mut text = String::new();
    let site = &event.site;
    let _ = writeln!(
        text,
        "{}{} in {}, file offset {:#x}, address {:#x}",
        printable(&event.name()),
        event.at_exit(&ShownNames::of([], Form::Full)),
        printable(&site.object.path().to_string_lossy()),
        site.file_offset,
        site.address
    );
    if site.check > 0 {
        let _ = writeln!(
            text,
            "  place     behind the check of the stack, {} bytes from the function's beginning: Go \
             may run the check again",
            site.check
        );
    }
    if let Some(marker) = &site.marker {
        marker::describe(marker, site, &mut text);
    }
    if let Some(reason) = event.fate.left_out() {
        let _ = writeln!(text, "  it is left out: {}", advice::told(reason));
        return text;
    }
    let refusals = event.refusals();
    if let (Err(_), Some((_, reason))) = (event.fate.plan(), refusals.first())
        && refusals.iter().all(|(_, other)| other == reason)
    {
        let reason = advice::told(&(*reason).into());
        let _ = writeln!(text, "  it cannot be probed: {reason}");
        return text;
    }
    for (tactic, refusal) in refusals {
        let refusal = advice::told(&(*refusal).into());
        let _ = writeln!(text, "  {:<8}  no: {refusal}", tactic.as_str());
    }
    let Ok(plan) = event.fate.plan() else {
        let _ = writeln!(text, "  it cannot be probed");
        return text;
    };
    let shape = &plan.shape;
    let tactic = shape.tactic;
    let _ = writeln!(
        text,
        "  {:<8}  yes: {}",
        tactic.as_str(),
        tactic.description()
    );
    if shape.site != site.address {
        let _ = writeln!(
            text,
            "  the probe goes behind endbr64, to {:#x}",
            shape.site
        );
    }
    match &shape.placed {
        None => {
            let after: String = match tactic.patch() {
                Patch::Breakpoint => "cc".into(),
                Patch::Jump => {
                    let rest = plan.before.get(5..).map(hex).unwrap_or_default();
                    format!("e9 .. .. .. .. {rest}").trim_end().to_owned()
                }
            };
            if shape.site != shape.covered.start {
                let at = shape.covered.start;
                let _ = writeln!(text, "  at        {at:#x}, before the site");
            }
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
    let live: Vec<String> = shape.live.gprs.iter().map(name).collect();
    let _ = writeln!(
        text,
        "  live      {}{}",
        live.join(" "),
        if shape.live.flags { ", flags" } else { "" }
    );
    if let Some(counter) = &event.counter {
        let _ = writeln!(
            text,
            "  counter   at {:#x} in the file, address {:#x}: one more while the probe is there",
            counter.offset, counter.address
        );
    }
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

/// Appends the bytes, stubs and traps of a jump whose target bytes are fixed.
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
    if let Some((at, bytes)) = &placed.builds_on {
        let _ = writeln!(text, "  needs     the jump at {at:#x}, with {}", hex(bytes));
    }
    for stub in &placed.stubs {
        let to = match stub.to {
            StubTo::Detour => "the detour".to_owned(),
            StubTo::Evicted(index) => {
                let evicted = &placed.evicted[index];
                format!("a copy of {:#x}: {}", evicted.ip(), assembly(evicted))
            }
        };
        // A file that is not loaded is assumed to be at 0, with room below it.
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

/// Formats the instruction at which the program continues.
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

/// Formats the site for `--json`.
pub(super) fn json(event: &Selected) -> Value {
    let mut site = event.json(advice::words);
    if let Fate::Planned(plan) = &event.fate {
        let live: Vec<String> = plan.shape.live.gprs.iter().map(name).collect();
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
    }
    site
}
