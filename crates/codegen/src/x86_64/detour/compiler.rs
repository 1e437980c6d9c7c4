//! Compiler of an arena's detours: the image, and the code that detours in it share.

use super::assemble::{self, Body};
use super::emit::{Links, Patch, Shared};
use super::frame::Frame;
use super::places::{self, Piece};
use super::timing::{above_pointer, area};
use super::{CompileError, Detour, Request};
use crate::program::Program;
use crate::runtime::Runtime;
use crate::work::{Filter, Word, Work};
use capriole_insn::liveness::Live;
use capriole_insn::relocate::relocate;
use capriole_ring::layout::directory;
use iced_x86::{Instruction, Register};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// `struct rseq_cs` must be aligned to its size (linux/rseq.h).
const DESCRIPTOR: usize = 32;
/// Alignment of programs.
const PROGRAM_ALIGN: usize = 8;
/// Filler between the pieces, so that a stray jump traps.
const INT3: u8 = 0xcc;

/// Maximum number of descriptors reserved at once.
const DESCRIPTORS: usize = 64;

/// Number of bytes of an image for the places of its first forms. Those of later ones take what sites
/// have left of their room; where that is not enough, there are none.
pub const PLACES_ROOM: u64 = 2048;

/// Returns the maximum number of bytes that a site with this work takes in an image. The sum of
/// this over all sites is enough, even if no two detours have the same form. Most sites take a
/// quarter of it.
pub fn room(work: &[Work]) -> u64 {
    // Saving and restoring, copies, jump back, aligned; the first descriptors, aligned.
    const SITE: u64 = 224 + 5 * DESCRIPTOR as u64;
    // Hot, cold and shared code; descriptors, of which at most half stay unused.
    const WORK: u64 = 304 + 2 * DESCRIPTOR as u64;
    // A comparison, its jump, and a constant.
    const COMPARE: u64 = 40;
    // The test of the flags, and a jump.
    const FLAGS: u64 = 24;
    // A second save and restore of registers, if something precedes a program.
    const ENTER: u64 = 128;
    // The amount, the row, and a second save and restore of registers.
    const TALLY: u64 = 608;
    // Stored in the hot path, and pushed in the shared code or for a program.
    const FIELD: u64 = 48;
    // Read from the detour byte by byte.
    const CONSTANT: u64 = 96;
    let more = |w: &Work| {
        let compares = w.filter().map_or(0, Filter::compares_len) as u64;
        let flags = w.filter().and_then(Filter::flags).map_or(0, |_| FLAGS);
        let program = w.program().map_or(0, |p| p.bytes.len() + PROGRAM_ALIGN);
        let tally = if matches!(w, Work::Tally(_) | Work::Long(_) | Work::Enter { .. }) {
            TALLY
        } else {
            0
        };
        let enter = match w {
            Work::Enter { .. } => ENTER,
            _ => 0,
        };
        let fields = w.words().len().max(w.registers().count()) as u64;
        let constants = w.words().iter().filter(|w| matches!(w, Word::Constant(_)));
        let constants = constants.count() as u64;
        enter
            + FIELD * fields
            + CONSTANT * constants
            + COMPARE * compares
            + flags
            + program as u64
            + tally
    };
    work.iter().map(|w| WORK + more(w)).sum::<u64>() + SITE
}

/// The parts that all detours of one form share.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) body: Body,
    /// The shared code for each work; used by this form's detours only.
    pub(super) shared: Vec<Shared>,
    /// Address of that code.
    pub(super) shared_at: u64,
    /// Size of that code in bytes.
    pub(super) shared_size: usize,
    /// Addresses of the places of the body and of the shared code, 0 if there are none; `None` until the
    /// first detour is made.
    pub(super) places: Option<(u64, u64)>,
    /// Register that holds the address just past a record.
    pub(super) record_end: Register,
}

/// Compiles detours into the image of an arena, one after the other.
///
/// ```text
///  address   head: whatever the caller puts there first
///            shared code of a form        when the first detour of that form is made
///            descriptors                  when there are none free, for many detours
///            detour
///            detour
///            ...
/// ```
///
/// The image must be written unchanged and complete, at the address it is made for.
#[derive(Debug)]
pub struct Compiler {
    runtime: Runtime,
    address: u64,
    image: Vec<u8>,
    templates: Vec<Template>,
    /// Templates by the form of their detours.
    known: HashMap<Vec<u8>, usize>,
    key: Vec<u8>,
    /// Programs in the image, and their addresses.
    programs: HashMap<Arc<Program>, u64>,
    /// Addresses of unused descriptors, the next one last.
    free: Vec<u64>,
    /// Total number of descriptors.
    descriptors: usize,
    /// Length that the image may have.
    room: u64,
}

impl Compiler {
    /// Creates a compiler of an image that begins with `head` and is placed at `address`, a
    /// multiple of 32.
    pub fn new(runtime: Runtime, address: u64, head: Vec<u8>) -> Compiler {
        assert!(address.is_multiple_of(DESCRIPTOR as u64));
        Compiler {
            runtime,
            address,
            room: head.len() as u64 + PLACES_ROOM,
            image: head,
            templates: Vec::new(),
            known: HashMap::new(),
            key: Vec::new(),
            programs: HashMap::new(),
            free: Vec::new(),
            descriptors: 0,
        }
    }

    /// Returns the image so far.
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// Returns the finished image.
    pub fn into_image(self) -> Vec<u8> {
        self.image
    }

    /// Returns the forms of the detours.
    pub(super) fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// Returns the target of the rel32 at an address in the image.
    pub(super) fn target_of(&self, at: u64) -> u64 {
        let from = (at - self.address) as usize;
        let mut rel32 = [0; 4];
        rel32.copy_from_slice(&self.image[from..from + 4]);
        (at + 4).wrapping_add_signed(i32::from_le_bytes(rel32).into())
    }

    fn here(&self) -> u64 {
        self.address + self.image.len() as u64
    }

    /// Compiles the detour of a site and appends it to the image.
    ///
    /// # Errors
    /// A displaced instruction or the jump back is out of reach. The image may have grown by shared
    /// parts that later detours will use.
    ///
    /// # Panics
    /// If the session has no room for a requested counter, or for open calls.
    pub fn compile(&mut self, request: &Request<'_>) -> Result<Detour, CompileError> {
        let restartable = self.runtime.rseq_offset.is_some();
        let tally = |w: &Work| matches!(w, Work::Tally(_) | Work::Long(_));
        let impossible = |w: &Work| match w {
            Work::Tally(straight) => !straight.is_possible(&self.runtime),
            Work::Long(_) => self.runtime.frames.slots == 0,
            Work::Record(_)
            | Work::Enter { .. }
            | Work::Count { .. }
            | Work::Run { .. }
            | Work::Unregister
            | Work::Help { .. }
            | Work::Handler(_)
            | Work::Replace(_) => false,
        };
        let enters = request.work.iter().any(|w| matches!(w, Work::Enter { .. }));
        assert!(
            !enters || self.runtime.frames.slots > 0,
            "no room for open calls"
        );
        let frame = Frame::new(request, restartable);
        let crowded = frame.is_none() && request.work.iter().any(tally);
        if crowded || request.work.iter().any(impossible) {
            let possible = |w: &Work| w.possible(&self.runtime, crowded);
            let work: Vec<Work> = request.work.iter().map(possible).collect();
            return self.compile(&Request {
                work: &work,
                ..*request
            });
        }
        let frame = frame.ok_or(CompileError::TooManyRegisters)?;
        if !request.work.is_empty() {
            self.room += room(request.work);
        }
        for filter in request.work.iter().filter_map(Work::filter) {
            filter.check(&self.runtime)?;
        }
        let programs: Vec<u64> = request.work.iter().map(|w| self.program(w)).collect();
        let template = self.template(&frame, request.work, &programs)?;
        if restartable {
            self.reserve(request.work.len());
        }
        self.align();
        let address = self.here();
        let body = &self.templates[template].body;
        // Do everything that can fail before anything is allocated.
        let copies_at = address + body.bytes.len() as u64;
        let relocated = relocate(request.displaced, copies_at)?;
        let back_at = copies_at + relocated.bytes.len() as u64;
        let back = match relocated.falls_through {
            true => Some(displacement(back_at + 5, request.resume)?),
            false => None,
        };

        let from = self.image.len();
        self.image.extend_from_slice(&body.bytes);
        self.image.extend_from_slice(&relocated.bytes);
        if let Some(back) = back {
            self.image.push(0xe9);
            self.image.extend_from_slice(&back.to_le_bytes());
        }
        self.patch(template, request.work, from)?;
        let size = self.image.len() - from;
        let (places, _) = self.places(template, from);
        let body = &self.templates[template].body;
        let copy = |(old, offset): &(u64, usize)| (*old, copies_at + *offset as u64);
        Ok(Detour {
            address,
            size,
            entry: address + body.entry as u64,
            copies: relocated.offsets.iter().map(copy).collect(),
            saved: frame.saved().to_vec(),
            back: back.map(|_| back_at),
            goes_to: request.resume,
            places,
            template,
        })
    }

    /// Returns the addresses of the places of a template's body and of its shared code, of which the body
    /// is at offset `from` in the image. The first time they are found and written.
    fn places(&mut self, template: usize, from: usize) -> (u64, u64) {
        let Template {
            body,
            shared_at,
            shared_size,
            places: found,
            ..
        } = &self.templates[template];
        if let Some(found) = found {
            return *found;
        }
        if body.bytes.is_empty() {
            return (0, 0);
        }
        let address = self.address + from as u64;
        let shared = (shared_at - self.address) as usize;
        let sequences = body.parts.iter().filter_map(|part| part.sequence.as_ref());
        let aborts = sequences.map(|s| (address + s.start as u64, address + s.abort as u64));
        let found = places::places(
            Piece {
                address,
                bytes: &self.image[from..from + body.bytes.len()],
            },
            address + body.entry as u64,
            Piece {
                address: *shared_at,
                bytes: &self.image[shared..shared + shared_size],
            },
            &aborts.collect::<Vec<_>>(),
        );
        let found = found.unwrap_or_default();
        let found = (
            self.write_places(&found.body),
            self.write_places(&found.shared),
        );
        self.templates[template].places = Some(found);
        found
    }

    /// Appends places to the image; returns their address, 0 if there are none, or no room.
    fn write_places(&mut self, places: &[u64]) -> u64 {
        let start = self.image.len().next_multiple_of(8);
        if places.is_empty() || (start + 8 * places.len()) as u64 > self.room {
            return 0;
        }
        self.image.resize(start, INT3);
        let bytes = places.iter().flat_map(|row| row.to_le_bytes());
        self.image.extend(bytes);
        self.address + start as u64
    }

    /// Returns the code that detours share, each piece with the address of its places, or 0 if there are
    /// none.
    #[must_use]
    pub fn shared(&self) -> Vec<(Range<u64>, u64)> {
        let shared = |template: &Template| {
            let code = template.shared_at..template.shared_at + template.shared_size as u64;
            (code, template.places.map_or(0, |(_, shared)| shared))
        };
        let all = self.templates.iter().map(shared);
        all.filter(|(code, _)| !code.is_empty()).collect()
    }

    /// Appends a detour without work for one instruction to the image: a copy that continues after
    /// the original.
    ///
    /// # Errors
    /// The instruction, or the jump back, does not work from there.
    pub fn copy_out(&mut self, instruction: &Instruction) -> Result<Detour, CompileError> {
        self.compile(&Request {
            work: &[],
            displaced: std::slice::from_ref(instruction),
            resume: instruction.next_ip(),
            red_zone: false,
            live: Live::ALL,
        })
    }

    /// Returns the address of the program that the resident runs for `work`; 0 for other work.
    fn program(&mut self, work: &Work) -> u64 {
        let Some(program) = work.program() else {
            return 0;
        };
        if let Some(address) = self.programs.get(program) {
            return *address;
        }
        let start = self.image.len().next_multiple_of(PROGRAM_ALIGN);
        self.image.resize(start, INT3);
        self.image.extend_from_slice(&program.bytes);
        let address = self.address + start as u64;
        self.programs.insert(program.clone(), address);
        address
    }

    /// Returns the template for the form that `work` takes in `frame`.
    fn template(
        &mut self,
        frame: &Frame,
        work: &[Work],
        programs: &[u64],
    ) -> Result<usize, CompileError> {
        self.key.clear();
        frame.key(&mut self.key);
        for (work, program) in work.iter().zip(programs) {
            match work {
                Work::Record(record) => {
                    self.key.push(1 + record.fields.len() as u8);
                    self.key.extend(record.fields.iter().map(|word| word.key()));
                }
                Work::Count { .. } => self.key.push(0),
                Work::Unregister => self.key.push(u8::MAX),
                Work::Enter { call, kept, .. } => {
                    self.key.extend([u8::MAX - 3, area(*call) as u8]);
                    self.key.push(kept.len() as u8);
                    self.key.extend(kept.iter().map(|word| word.key()));
                }
                Work::Long(long) => {
                    self.key.extend([u8::MAX - 5, area(long.call) as u8]);
                    self.key.extend(program.to_le_bytes());
                    self.key.extend(long.least.to_le_bytes());
                }
                Work::Help { routine, .. } => {
                    self.key.push(u8::MAX - 4);
                    self.key.extend(routine.to_le_bytes());
                }
                Work::Handler(of) => {
                    self.key.push(u8::MAX - 6);
                    self.key.extend(of.routine.to_le_bytes());
                    self.key.extend(of.with_flags.to_le_bytes());
                }
                Work::Replace(target) => {
                    self.key.push(u8::MAX - 7);
                    self.key.extend(target.to_le_bytes());
                }
                Work::Run { .. } => {
                    self.key.push(u8::MAX - 1);
                    self.key.extend(program.to_le_bytes());
                }
                Work::Tally(straight) => {
                    self.key.push(u8::MAX - 2);
                    self.key.extend(program.to_le_bytes());
                    straight.key(&mut self.key);
                }
            }
            if let Some(filter) = work.filter() {
                filter.key(&mut self.key);
            }
        }
        if let Some(index) = self.known.get(&self.key) {
            return Ok(*index);
        }
        // The targets do not exist yet, but are about as near as they will be.
        self.align();
        let here = self.here();
        let nowhere = Links {
            descriptor: here,
            shared: Shared {
                aborted: here,
                other: here,
                streams: here,
            },
            program: 0,
        };
        let link = |program: &u64| Links {
            program: *program,
            ..nowhere
        };
        let links: Vec<Links> = programs.iter().map(link).collect();
        let body = assemble::body(frame, &self.runtime, work, &links, here)?;
        let (bytes, shared) = assemble::shared(frame, &self.runtime, work, &body.parts, here)?;
        self.image.extend_from_slice(&bytes);
        self.templates.push(Template {
            body,
            shared,
            shared_at: here,
            shared_size: bytes.len(),
            places: None,
            record_end: frame.place,
        });
        let index = self.templates.len() - 1;
        self.known.insert(self.key.clone(), index);
        Ok(index)
    }

    /// Aligns what comes next: code begins with its constants, and a thread may have its accesses checked
    /// for alignment (EFLAGS.AC).
    fn align(&mut self) {
        let start = self.image.len().next_multiple_of(8);
        self.image.resize(start, INT3);
    }

    /// Makes sure that `wanted` descriptors are free. They are allocated in batches: between
    /// detours each would need padding for alignment.
    fn reserve(&mut self, wanted: usize) {
        if self.free.len() >= wanted {
            return;
        }
        let count = self.descriptors.clamp(4, DESCRIPTORS).max(wanted);
        let start = self.image.len().next_multiple_of(DESCRIPTOR);
        self.image.resize(start, INT3);
        self.image.resize(start + count * DESCRIPTOR, 0);
        self.descriptors += count;
        let at = |i: usize| self.address + (start + i * DESCRIPTOR) as u64;
        let more: Vec<u64> = (0..count).rev().map(at).collect();
        self.free.splice(0..0, more);
    }

    /// Turns the template's bytes at offset `from` of the image into the detour for `work`.
    fn patch(&mut self, template: usize, work: &[Work], from: usize) -> Result<(), CompileError> {
        let Template { body, shared, .. } = &self.templates[template];
        let address = self.address + from as u64;
        let image = &mut self.image;
        let counters = &self.runtime.counters;
        let relative = |image: &mut Vec<u8>, at: usize, to: u64| {
            let value = displacement(address + at as u64 + 4, to)?;
            put(image, from + at, &value.to_le_bytes());
            Ok::<(), CompileError>(())
        };
        for ((work, part), shared) in work.iter().zip(&body.parts).zip(shared) {
            let value = from + part.value;
            match (work, &part.sequence) {
                (Work::Record(record), _) => {
                    put(image, value, &record.event.to_le_bytes());
                    constants(image, from, &part.more, &record.fields);
                }
                (Work::Run { event, .. }, _) => put(image, value, &event.to_le_bytes()),
                (Work::Count { counter, .. }, Some(_)) => {
                    put(image, value, &counters.offset(*counter).to_le_bytes());
                }
                (Work::Count { counter, .. }, None) => {
                    let address = counters.shared() + u64::from(counters.offset(*counter));
                    put(image, value, &address.to_le_bytes());
                }
                (Work::Tally(straight), _) => {
                    let offset = counters.offset(straight.counter);
                    put(image, value, &offset.to_le_bytes());
                    for (at, patch) in &part.more {
                        let word = match patch {
                            Patch::Event => straight.event,
                            Patch::Tag => straight.event.wrapping_add(directory::FIRST_TAG),
                            Patch::Counter => offset,
                            Patch::Call => above_pointer(straight.call()),
                            Patch::Short(_) | Patch::Long(_) => continue,
                        };
                        put(image, from + at, &word.to_le_bytes());
                    }
                }
                (Work::Enter { call, kept, .. }, _) => {
                    let word = above_pointer(*call).to_le_bytes();
                    put(image, value, &word);
                    for (at, patch) in &part.more {
                        if *patch == Patch::Call {
                            put(image, from + at, &word);
                        }
                    }
                    constants(image, from, &part.more, kept);
                }
                (Work::Long(long), _) => {
                    put(image, value, &long.event.to_le_bytes());
                    for (at, _) in &part.more {
                        put(image, from + at, &above_pointer(long.call).to_le_bytes());
                    }
                }
                (Work::Help { argument, .. }, _) => put(image, value, &argument.to_le_bytes()),
                (Work::Handler(of), _) => put(image, value, &of.argument.to_le_bytes()),
                (Work::Unregister | Work::Replace(_), _) => {}
            }
            if let Some(at) = part.locked {
                let to = match work {
                    Work::Run { .. } | Work::Tally(_) | Work::Long(_) => self.runtime.run,
                    Work::Record(_)
                    | Work::Enter { .. }
                    | Work::Count { .. }
                    | Work::Unregister
                    | Work::Help { .. }
                    | Work::Handler(_)
                    | Work::Replace(_) => self.runtime.locked,
                };
                relative(image, at, to)?;
            }
            let Some(sequence) = &part.sequence else {
                continue;
            };
            if sequence.way > 0 {
                relative(image, sequence.aborted(), shared.aborted)?;
            }
            relative(image, sequence.other, shared.other)?;
            if sequence.streams > 0 {
                relative(image, sequence.streams, shared.streams)?;
            }
            let Some(descriptor) = self.free.pop() else {
                unreachable!("descriptors were reserved");
            };
            relative(image, sequence.descriptor, descriptor)?;
            let words = [
                0, // version and flags
                address + sequence.start as u64,
                (part.done - sequence.start) as u64,
                address + sequence.abort as u64,
            ];
            let at = (descriptor - self.address) as usize;
            for (i, word) in words.iter().enumerate() {
                put(image, at + 8 * i, &word.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Writes the constants among these words into the body at offset `from`.
fn constants(image: &mut [u8], from: usize, more: &[(usize, Patch)], words: &[Word]) {
    for (at, patch) in more {
        let (Patch::Short(index) | Patch::Long(index)) = patch else {
            continue;
        };
        if let Some(Word::Constant(value)) = words.get(*index) {
            put(image, from + at, &value.to_le_bytes()[..patch.size()]);
        }
    }
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns the displacement from `from`, the end of an instruction, to `to`.
fn displacement(from: u64, to: u64) -> Result<i32, CompileError> {
    i32::try_from(to.wrapping_sub(from) as i64)
        .map_err(|_| CompileError::Encode(format!("{to:#x} is out of reach from {from:#x}")))
}

#[cfg(test)]
mod tests;
