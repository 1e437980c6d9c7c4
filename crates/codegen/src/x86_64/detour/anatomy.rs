//! Purpose of each byte of a compiled detour.
//!
//! ```text
//! address  cold       ways out of the hot path, words
//! entry    save       stack pointer, registers, conditions
//!          work       the work; the last instruction of a record is its commit
//!          restore
//!          copies     the displaced instructions
//!          back       jmp resume
//! ```

use super::compiler::Template;
use super::emit::Named;
use super::{Compiler, Detour};
use iced_x86::Register;
use std::ops::Range;

/// Purpose of some bytes of a detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Code and words that are not on the hot path.
    Cold,
    /// Moves the stack pointer, saves registers, tests conditions; also between two works.
    Save,
    /// The work with this index in the request.
    Work(usize),
    /// The instruction that publishes the record of the work with this index.
    Commit(usize),
    /// Restores registers and the stack pointer.
    Restore,
    /// Copy of the displaced instruction at this address; it may take several instructions.
    Copy(u64),
    /// The jump to the address at which the program continues.
    Back,
}

/// The parts of a detour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anatomy {
    /// All bytes of the detour, in ascending order, none of them empty.
    pub stretches: Vec<(Range<u64>, Purpose)>,
    /// Addresses that the hot path refers to.
    pub named: Vec<(u64, Named)>,
    /// Register that holds the address just past the record, in the [work](Purpose::Work) that
    /// makes a record; [`Register::None`] if there is no such work.
    pub record_end: Register,
    /// Size in bytes of the code that the detour shares with others.
    pub shared: usize,
}

impl Anatomy {
    /// Returns the purpose of the byte at an address in the detour.
    #[must_use]
    pub fn purpose(&self, at: u64) -> Option<Purpose> {
        let found = self.stretches.iter().find(|(range, _)| range.contains(&at));
        found.map(|(_, purpose)| *purpose)
    }
}

impl Compiler {
    /// Returns the parts of a detour that this compiler made.
    #[must_use]
    pub fn anatomy(&self, detour: &Detour) -> Anatomy {
        let template = &self.templates()[detour.template];
        let sequences = template
            .body
            .parts
            .iter()
            .filter_map(|p| p.sequence.as_ref());
        let is_record = sequences.clone().any(|sequence| sequence.commit.is_some());
        Anatomy {
            stretches: stretches(template, detour),
            named: self.named(template, detour),
            record_end: match is_record {
                true => template.record_end,
                false => Register::None,
            },
            shared: match sequences.count() {
                0 => 0,
                _ => template.shared_size,
            },
        }
    }

    fn named(&self, template: &Template, detour: &Detour) -> Vec<(u64, Named)> {
        let mut named = Vec::new();
        for (part, shared) in template.body.parts.iter().zip(&template.shared) {
            if let Some((at, name)) = part.apart {
                named.push((detour.address + at as u64, name));
            }
            let Some(sequence) = &part.sequence else {
                continue;
            };
            let at = detour.address + sequence.descriptor as u64;
            named.push((self.target_of(at), Named::Descriptor));
            if sequence.streams > 0 {
                named.push((shared.streams, Named::Streams));
            }
        }
        named
    }
}

fn stretches(template: &Template, detour: &Detour) -> Vec<(Range<u64>, Purpose)> {
    let mut all = Vec::new();
    let mut at = detour.address;
    let mut up_to = |end: u64, purpose: Purpose| {
        if at < end {
            all.push((at..end, purpose));
            at = end;
        }
    };
    up_to(detour.entry, Purpose::Cold);
    let mut parts: Vec<_> = template.body.parts.iter().enumerate().collect();
    parts.sort_by_key(|(_, part)| part.begin);
    let address = |offset: usize| detour.address + offset as u64;
    for (index, part) in parts {
        up_to(address(part.begin), Purpose::Save);
        let commit = part.sequence.as_ref().and_then(|s| s.commit);
        up_to(address(commit.unwrap_or(part.done)), Purpose::Work(index));
        up_to(address(part.done), Purpose::Commit(index));
    }
    up_to(address(template.body.bytes.len()), Purpose::Restore);
    let end = address(detour.size);
    let back = detour.back.unwrap_or(end);
    for (index, (old, _)) in detour.copies.iter().enumerate() {
        let next = detour.copies.get(index + 1).map_or(back, |(_, copy)| *copy);
        up_to(next, Purpose::Copy(*old));
    }
    up_to(end, Purpose::Back);
    all
}
