//! Traces of calls, made by hand.

use std::collections::BTreeMap;
use std::path::Path;

use capriole_event::FieldType;
use capriole_report::calls::{Begin, Call, Counts, Exit, Functions, Visitor, walk};
use capriole_trace::{Event, EventInfo, FieldInfo, Health, PacketMeta, Role, Trace, TraceWriter};

use super::{START, record};

/// Event ids of function `n`: `10 * n` for its entry, one more for its return, two more for its
/// tail call, and three more for an event inside it.
pub fn function(n: u32, name: &str) -> Vec<EventInfo> {
    let event = |role, add: u32, suffix: &str, fields: &[(&str, FieldType)]| {
        let mut event = super::event(10 * n + add, &format!("{name}{suffix}"), &[]);
        event.symbol = Some(name.to_string());
        event.role = role;
        event.call = (role != Role::Point).then_some(10 * n);
        event.fields = fields
            .iter()
            .map(|(name, field_type)| FieldInfo::new(name.to_string(), *field_type))
            .collect();
        event
    };
    let sp = ("_sp", FieldType::X64);
    let number = "s64".parse().unwrap();
    vec![
        event(Role::Entry, 0, "", &[sp, ("n", number)]),
        event(Role::Return, 1, "__return", &[sp, ("ret", number)]),
        event(Role::TailCall, 2, "__tail", &[sp]),
        event(Role::Point, 3, "__note", &[("n", number)]),
    ]
}

/// An event to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Ticks since the beginning.
    pub time: u64,
    pub tid: u32,
    pub cpu: u32,
    pub id: u32,
    pub stack_pointer: u64,
    /// The argument or the returned value; tail calls have none.
    pub value: u64,
    /// Events lost before this one.
    pub lost: u64,
}

/// A script of events; the time advances by 1000 ticks for each.
#[derive(Debug, Default, Clone)]
pub struct Script {
    pub steps: Vec<Step>,
    pub tid: u32,
    pub cpu: u32,
    pub time: u64,
}

impl Script {
    pub fn new() -> Script {
        Script {
            tid: 4242,
            ..Script::default()
        }
    }

    fn step(&mut self, id: u32, stack_pointer: u64, value: u64) -> &mut Step {
        self.time += 1000;
        self.steps.push(Step {
            time: self.time,
            tid: self.tid,
            cpu: self.cpu,
            id,
            stack_pointer,
            value,
            lost: 0,
        });
        self.steps.last_mut().unwrap()
    }

    pub fn enter(&mut self, function: u32, stack_pointer: u64) -> &mut Step {
        self.step(10 * function, stack_pointer, u64::from(function))
    }

    pub fn leave(&mut self, function: u32, stack_pointer: u64) -> &mut Step {
        self.step(10 * function + 1, stack_pointer, u64::from(function) + 100)
    }

    pub fn jump(&mut self, function: u32, stack_pointer: u64) -> &mut Step {
        self.step(10 * function + 2, stack_pointer, 0)
    }

    pub fn note(&mut self, function: u32) -> &mut Step {
        self.step(10 * function + 3, 0, 7)
    }

    /// Writes the trace of functions with these names.
    pub fn write(&self, directory: &Path, names: &[&str]) -> Trace {
        write(directory, names, &self.steps)
    }
}

pub fn write(directory: &Path, names: &[&str], steps: &[Step]) -> Trace {
    let mut info = super::info();
    info.events = (0..)
        .zip(names)
        .flat_map(|(n, name)| function(n, name))
        .collect();
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    let mut streams: BTreeMap<u32, (PacketMeta, Vec<u8>)> = BTreeMap::new();
    for step in steps {
        let (meta, content) = streams.entry(step.cpu).or_default();
        meta.cpu = step.cpu;
        if step.lost > 0 || content.len() > 100_000 {
            if !content.is_empty() {
                writer.write_packet(meta, content).unwrap();
                content.clear();
                meta.seq += 1;
            }
            meta.discarded += step.lost;
        }
        let words: &[u64] = match step.id % 10 {
            2 => &[step.stack_pointer],
            3 => &[step.value],
            _ => &[step.stack_pointer, step.value],
        };
        let bytes = record(START + step.time, step.id, step.tid, words);
        content.extend_from_slice(&bytes);
    }
    for (meta, content) in streams.values() {
        writer.write_packet(meta, content).unwrap();
    }
    // Losses occur between packets.
    writer.note_losses((0, u64::MAX), false);
    writer.finish(super::finish()).unwrap();
    Trace::open(directory).unwrap()
}

/// Everything that a walk of the calls reports.
#[derive(Debug, Default)]
pub struct Heard {
    pub calls: Vec<Call>,
    pub begun: Vec<Begin>,
    pub unpaired: Vec<usize>,
    pub counts: Counts,
    pub health: Health,
}

impl Visitor for Heard {
    fn begin(&mut self, begin: &Begin, _: &Event<'_>) -> std::io::Result<()> {
        self.begun.push(*begin);
        Ok(())
    }

    fn end(&mut self, call: &Call, event: Option<&Event<'_>>) -> std::io::Result<()> {
        let seen = matches!(call.exit, Exit::Returned | Exit::TailCall);
        assert_eq!(event.is_some(), seen);
        self.calls.push(*call);
        Ok(())
    }

    fn unpaired(&mut self, function: usize, _: &Event<'_>) -> std::io::Result<()> {
        self.unpaired.push(function);
        Ok(())
    }
}

impl Heard {
    pub fn of(trace: &Trace) -> Heard {
        let mut heard = Heard::default();
        let functions = Functions::of(&trace.document().events);
        (heard.counts, heard.health) = walk(trace, &functions, &mut heard).unwrap();
        heard.check();
        heard
    }

    /// Checks the properties of every walk.
    pub fn check(&self) {
        assert_eq!(self.begun.len(), self.calls.len());
        let roots = self.calls.iter().filter(|call| call.begin.parent.is_none());
        let roots: u128 = roots.map(|call| u128::from(call.duration())).sum();
        let own: u128 = self.calls.iter().map(|call| u128::from(call.own)).sum();
        assert_eq!(own, roots, "self times make up the whole");
        let begun: BTreeMap<u64, &Begin> = self.begun.iter().map(|b| (b.id, b)).collect();
        let ends: BTreeMap<u64, &Call> = self.calls.iter().map(|c| (c.begin.id, c)).collect();
        assert_eq!(begun.len(), self.begun.len());
        assert_eq!(ends.len(), self.calls.len());
        for call in &self.calls {
            assert_eq!(begun[&call.begin.id], &call.begin);
            assert!(call.own <= call.duration());
            let Some(parent) = call.begin.parent else {
                assert_eq!((call.begin.depth, call.begin.caller), (0, None));
                continue;
            };
            let parent = ends[&parent];
            assert_eq!(call.begin.depth, parent.begin.depth + 1);
            assert_eq!(call.begin.caller, Some(parent.begin.function));
            assert!(parent.begin.time <= call.begin.time && call.end <= parent.end);
        }
    }

    /// Returns the calls of one stack after the other, in the order in which they began: function,
    /// times in ticks from the beginning, depth, how they ended.
    pub fn told(&self, names: &[&str]) -> String {
        let mut calls = self.calls.clone();
        calls.sort_by_key(|call| (call.begin.stack, call.begin.id));
        let line = |call: &Call| {
            format!(
                "{}{} {}..{} self {} {:?}{}\n",
                "  ".repeat(call.begin.depth),
                names[call.begin.function],
                call.begin.time - START,
                call.end.saturating_sub(START),
                call.own,
                call.exit,
                if call.doubtful { " doubtful" } else { "" },
            )
        };
        let mut text: String = calls.iter().map(line).collect();
        for function in &self.unpaired {
            text += &format!("unpaired {}\n", names[*function]);
        }
        text
    }
}
