//! Machine code made by the assembler: everything in a detour except the copies, and the code
//! that detours of the same form share.

use super::filter::{Literals, common_flags, reject_unless, reject_unless_flags};
use super::frame::Frame;
use super::tally::Patch;
use super::{Named, count, help, long, record, run, tally, timing, unregister};
use crate::runtime::Runtime;
use crate::work::{Filter, Work};
use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, ConditionCode, IcedError, Instruction};

pub(super) use capriole_ring::numbers::session::RSEQ_SIGNATURE;
/// Offsets in `struct rseq` (linux/rseq.h).
pub(super) const RSEQ_CPU_ID: i32 = 4;
pub(super) const RSEQ_CS: i32 = 8;

/// The addresses that one work's code refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Links {
    /// Its `struct rseq_cs`; 0 without restartable sequences.
    pub descriptor: u64,
    /// The shared code.
    pub shared: Shared,
    /// The program that the resident is to run, if the work has one.
    pub program: u64,
}

/// Addresses in the code that detours share, for one work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shared {
    /// Address at which an aborted attempt continues.
    pub aborted: u64,
    /// For a record: the address at which it continues when the packet is full. For a count or
    /// tally: the word that holds the address of the first CPU's counters.
    pub other: u64,
    /// For a record: the word that holds the address of the first CPU's stream.
    pub streams: u64,
}

/// Positions in a body of the words that differ from detour to detour, and of points that other
/// code refers to. All are offsets from the body's first byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Part {
    /// u32 event id or offset of the counter; u64 address of the counter without restartable
    /// sequences. Unused for work that has no value.
    pub value: usize,
    /// Start of the work.
    pub begin: usize,
    /// End of the work.
    pub done: usize,
    /// Present with restartable sequences only.
    pub sequence: Option<Sequence>,
    /// rel32 of the call to the resident.
    pub locked: Option<usize>,
    /// Further words to patch.
    pub more: Vec<(usize, Patch)>,
    /// Start of the code or word before the entry that the work refers to.
    pub apart: Option<(usize, Named)>,
}

impl Part {
    /// Returns the position of the field `field`, if it is a constant.
    pub fn constant(&self, field: usize) -> Option<(usize, Patch)> {
        let wanted = [Patch::Short(field), Patch::Long(field)];
        let mut more = self.more.iter();
        more.find(|(_, patch)| wanted.contains(patch)).copied()
    }
}

/// A restartable sequence in a body, in offsets from the body's first byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sequence {
    /// The first instruction of the sequence; `done` is just past the last.
    pub start: usize,
    /// The abort address: a [way into shared code](into_shared).
    pub abort: usize,
    /// Length of that way in bytes; 0 if it does not lead into shared code.
    pub way: usize,
    /// rel32 of the descriptor.
    pub descriptor: usize,
    /// rel32 of [`Shared::other`].
    pub other: usize,
    /// rel32 of [`Shared::streams`]; 0 if the work is not a record.
    pub streams: usize,
    /// The instruction that publishes a record, the last of its sequence.
    pub commit: Option<usize>,
}

impl Sequence {
    /// Returns the rel32 of [`Shared::aborted`].
    pub fn aborted(&self) -> usize {
        self.after_abort() - 4
    }
    /// Returns the offset of the address that shared code finds on the stack after an abort.
    pub fn after_abort(&self) -> usize {
        self.abort + self.way
    }
}

/// A detour up to the copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Body {
    pub bytes: Vec<u8>,
    pub entry: usize,
    pub parts: Vec<Part>,
}

/// Labels of one work's code.
pub(super) struct Labels {
    pub begin: CodeLabel,
    pub done: CodeLabel,
    /// End of the instruction that holds the value, and the distance back to the value's start.
    pub value: (CodeLabel, usize),
    pub sequence: Option<SequenceLabels>,
    pub locked: Option<CodeLabel>,
    /// Ends of further words to patch.
    pub more: Vec<(CodeLabel, Patch)>,
}

impl Labels {
    /// Returns the positions of the labels; `offset` gives the position of one.
    fn resolve(
        &self,
        offset: impl Fn(&CodeLabel) -> Result<usize, IcedError>,
    ) -> Result<Part, IcedError> {
        let ends_rel32 = |label: &CodeLabel| Ok::<_, IcedError>(offset(label)? - 4);
        let sequence = match &self.sequence {
            Some(s) => Some(Sequence {
                start: offset(&s.start)?,
                abort: offset(&s.abort)?,
                way: match &s.after_abort {
                    Some(label) => offset(label)? - offset(&s.abort)?,
                    None => 0,
                },
                descriptor: ends_rel32(&s.descriptor)?,
                other: ends_rel32(&s.other)?,
                streams: s.streams.as_ref().map_or(Ok(0), ends_rel32)?,
                commit: s.commit.as_ref().map(&offset).transpose()?,
            }),
            None => None,
        };
        let more = self.more.iter();
        let more = more.map(|(label, patch)| Ok((offset(label)? - patch.size(), *patch)));
        Ok(Part {
            more: more.collect::<Result<_, IcedError>>()?,
            value: offset(&self.value.0)? - self.value.1,
            begin: offset(&self.begin)?,
            done: offset(&self.done)?,
            sequence,
            locked: self.locked.as_ref().map(ends_rel32).transpose()?,
            apart: None,
        })
    }
}

/// Labels of a restartable sequence. `descriptor` and `other` mark the end of a rel32.
pub(super) struct SequenceLabels {
    pub start: CodeLabel,
    pub abort: CodeLabel,
    pub after_abort: Option<CodeLabel>,
    pub descriptor: CodeLabel,
    pub other: CodeLabel,
    /// End of the rel32 of [`Shared::streams`], if the work is a record.
    pub streams: Option<CodeLabel>,
    /// The instruction that publishes a record, if the work is one.
    pub commit: Option<CodeLabel>,
}

/// Creates a label for the current position. Several labels may share a position.
pub(super) fn mark(a: &mut CodeAssembler) -> Result<CodeLabel, IcedError> {
    let mut label = a.create_label();
    bind(a, &mut label)?;
    Ok(label)
}

/// Binds `label` to the current position.
pub(super) fn bind(a: &mut CodeAssembler, label: &mut CodeLabel) -> Result<(), IcedError> {
    a.set_label(label)?;
    a.zero_bytes() // takes the label, so that the next instruction can have one, too
}

/// Emits a jump into shared code, which expects on the stack the address after this code, and
/// returns by a jump. Overwrites `scratch`. Returns the label of that address.
///
/// A call is shorter, but a shadow stack would keep its return address forever.
pub(super) fn into_shared(
    a: &mut CodeAssembler,
    runtime: &Runtime,
    scratch: iced_x86::Register,
    to: u64,
) -> Result<CodeLabel, IcedError> {
    let mut behind = a.create_label();
    if runtime.shadow_stack {
        let scratch = get_gpr64(scratch).unwrap_or(rax); // it is one
        a.lea(scratch, ptr(behind))?;
    }
    // With a shadow stack this becomes a jump. Since the assembler would choose the jump's length,
    // it is written as a call, and `body` changes the opcode.
    a.call(to)?;
    bind(a, &mut behind)?;
    Ok(behind)
}

/// Emits the start of shared code, where [`into_shared`] leads.
pub(super) fn from_detour(
    a: &mut CodeAssembler,
    runtime: &Runtime,
    scratch: iced_x86::Register,
) -> Result<(), IcedError> {
    if runtime.shadow_stack {
        a.add_instruction(Instruction::with1(iced_x86::Code::Push_r64, scratch)?)?;
    }
    Ok(())
}

/// Labels of the code off the hot path, written before the work's own code.
pub(super) struct Cold {
    /// The label that the hot path jumps to when it cannot continue.
    pub way_out: CodeLabel,
    pub abort: CodeLabel,
    /// End of the way into shared code, if the abort address leads there.
    pub after_abort: Option<CodeLabel>,
    /// End of the rel32 of the call to [`Shared::other`], if that is called.
    pub other: Option<CodeLabel>,
}

/// Place of a work's code in a detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Before everything else, with registers saved for it alone.
    First,
    /// Before registers are saved.
    Early,
    /// After registers are saved.
    Late,
}

impl Order {
    /// Returns the order of a work among all work of a detour. If a call begins and ends at the
    /// same instruction, the program that the resident runs needs the call's start, so `Enter`
    /// comes first.
    fn of(work: &Work, all: &[Work]) -> Order {
        let runs = || all.iter().any(|w| matches!(w, Work::Run { .. }));
        match work {
            _ if work.is_early() => Order::Early,
            Work::Enter { .. } if runs() => Order::First,
            _ => Order::Late,
        }
    }
}

/// Code and words that a work has before the detour's entry.
enum Before {
    Nothing,
    Cold(Cold),
    Program(CodeLabel),
    Help(help::Words),
    Tally(tally::Before),
    Long(run::Apart),
}

/// One work of a detour while the detour is assembled.
struct Section<'a> {
    work: &'a Work,
    links: &'a Links,
    order: Order,
    before: Before,
    /// Start of that code, or of the word that the work's code refers to.
    apart: Option<(CodeLabel, Named)>,
    /// Present once the work's code is emitted.
    labels: Option<Labels>,
}

/// Everything that the code of all sections needs.
struct Scope<'a> {
    frame: &'a Frame,
    runtime: &'a Runtime,
    literals: Literals,
    /// Condition on flags that all work shares, tested once for all.
    common: Option<ConditionCode>,
    /// True if the filter of the only late work is tested before registers are saved.
    soon: bool,
}

impl<'a> Section<'a> {
    /// Emits the code and words before the entry.
    fn new(
        a: &mut CodeAssembler,
        frame: &Frame,
        runtime: &Runtime,
        work: &'a Work,
        links: &'a Links,
        order: Order,
    ) -> Result<Section<'a>, IcedError> {
        let program = links.program;
        let before = match (work, runtime.rseq_offset) {
            (Work::Long(work), _) => Before::Long(long::before(a, frame, runtime, work, program)?),
            (Work::Tally(work), _) => {
                Before::Tally(tally::before(a, frame, runtime, work, program)?)
            }
            (Work::Record(_), Some(_)) => Before::Cold(record::cold(a, runtime, links)?),
            (Work::Count { .. }, Some(_)) => Before::Cold(count::cold(a, frame, runtime, links)?),
            (Work::Run { .. }, _) => Before::Program(run::literal(a, frame, program)?),
            (Work::Help { routine, argument }, _) => {
                Before::Help(help::words(a, *routine, *argument)?)
            }
            (Work::Record(_) | Work::Count { .. }, None)
            | (Work::Enter { .. } | Work::Unregister, _) => Before::Nothing,
        };
        Ok(Section {
            work,
            links,
            order,
            apart: match &before {
                Before::Nothing | Before::Help(_) => None,
                Before::Cold(cold) => Some((cold.way_out, Named::Cold)),
                Before::Program(program) => Some((*program, Named::Program)),
                Before::Tally(before) => Some((before.way.out, Named::Cold)),
                Before::Long(apart) => Some((apart.out, Named::Cold)),
            },
            before,
            labels: None,
        })
    }

    /// Emits work that comes [first](Order::First): it begins a call.
    fn first(&mut self, a: &mut CodeAssembler, scope: &Scope<'_>) -> Result<(), IcedError> {
        let (frame, runtime) = (scope.frame, scope.runtime);
        frame.save(a)?;
        let rejected = a.create_label();
        if let Some(flags) = scope.flags_of(self.work) {
            reject_unless_flags(a, flags, rejected)?;
        }
        if let Some(filter) = self.work.filter() {
            reject_unless(a, filter, runtime, Some(frame), &scope.literals, rejected)?;
        }
        self.labels = Some(enter(a, frame, runtime, self.work, rejected)?);
        frame.restore(a)
    }

    /// Emits work that comes [early](Order::Early).
    fn early(&mut self, a: &mut CodeAssembler, scope: &Scope<'_>) -> Result<(), IcedError> {
        let (frame, runtime) = (scope.frame, scope.runtime);
        let mut rejected = a.create_label();
        if let Some(flags) = scope.flags_of(self.work) {
            reject_unless_flags(a, flags, rejected)?;
        }
        let before = std::mem::replace(&mut self.before, Before::Nothing);
        self.labels = Some(match (self.work, before) {
            (Work::Help { .. }, Before::Help(words)) => help::early(a, frame, words)?,
            (Work::Run { event, filter, .. }, Before::Program(program)) => {
                let code = |a: &mut CodeAssembler| run::early(a, runtime, *event, program);
                match filter {
                    None => code(a)?,
                    Some(filter) => early_if(a, frame, runtime, filter, &scope.literals, code)?,
                }
            }
            (Work::Unregister, _) => unregister::hot(a, runtime.rseq_offset)?,
            (
                Work::Help { .. }
                | Work::Run { .. }
                | Work::Enter { .. }
                | Work::Record(_)
                | Work::Count { .. }
                | Work::Tally(_)
                | Work::Long(_),
                _,
            ) => unreachable!("early work has its words before the entry"),
        });
        bind(a, &mut rejected)
    }

    /// Emits work that comes [late](Order::Late).
    fn late(&mut self, a: &mut CodeAssembler, scope: &Scope<'_>) -> Result<(), IcedError> {
        let (frame, runtime, links) = (scope.frame, scope.runtime, self.links);
        let mut rejected = a.create_label();
        if let Some(flags) = scope.flags_of(self.work) {
            frame.restore_flags(a)?;
            reject_unless_flags(a, flags, rejected)?;
        }
        if let Some(filter) = self.work.filter().filter(|_| !scope.soon) {
            reject_unless(a, filter, runtime, Some(frame), &scope.literals, rejected)?;
        }
        let before = std::mem::replace(&mut self.before, Before::Nothing);
        let labels = match (self.work, before, runtime.rseq_offset) {
            (Work::Enter { .. }, ..) => {
                self.labels = Some(enter(a, frame, runtime, self.work, rejected)?);
                return Ok(());
            }
            (Work::Tally(work), Before::Tally(before), Some(rseq)) => {
                tally::hot(a, frame, runtime, rseq, work, links, before)?
            }
            (Work::Long(work), Before::Long(before), _) => {
                long::hot(a, frame, runtime, work, before)?
            }
            (Work::Record(work), Before::Cold(cold), Some(rseq)) => {
                record::hot(a, frame, runtime, rseq, work, links, cold)?
            }
            (Work::Record(work), ..) => record::locked(a, frame, runtime, work)?,
            (Work::Count { counter, .. }, Before::Cold(cold), Some(rseq)) => {
                count::hot(a, frame, runtime, rseq, *counter, links, cold)?
            }
            (Work::Count { counter, .. }, ..) => count::locked(a, frame, runtime, *counter)?,
            (
                Work::Tally(_)
                | Work::Long(_)
                | Work::Run { .. }
                | Work::Unregister
                | Work::Help { .. },
                ..,
            ) => unreachable!("late work has its code before the entry, and a tally a sequence"),
        };
        self.labels = Some(labels);
        bind(a, &mut rejected)
    }
}

impl Scope<'_> {
    /// Returns the flags that a work tests by itself; `None` if all work shares the test.
    fn flags_of(&self, work: &Work) -> Option<ConditionCode> {
        match self.common {
            Some(_) => None,
            None => work.filter().and_then(Filter::flags),
        }
    }
}

/// Assembles a detour for `address` without its copies. `links` has as many elements
/// as `work`.
pub(super) fn body(
    frame: &Frame,
    runtime: &Runtime,
    work: &[Work],
    links: &[Links],
    address: u64,
) -> Result<Body, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut literals = Literals::default();
    for filter in work.iter().filter_map(Work::filter) {
        literals.add(&mut a, filter)?;
    }
    let mut sections = Vec::new();
    for (each, links) in work.iter().zip(links) {
        let order = Order::of(each, work);
        sections.push(Section::new(&mut a, frame, runtime, each, links, order)?);
    }
    let late = || work.iter().filter(|w| Order::of(w, work) == Order::Late);
    // If possible, reject before anything is saved. (A rejected `Enter` still has something to
    // do.)
    let enters = work.iter().any(|w| matches!(w, Work::Enter { .. }));
    let scope = Scope {
        frame,
        runtime,
        literals,
        common: common_flags(work),
        soon: late().count() == 1 && !frame.flags_live && !enters,
    };

    let entry = mark(&mut a)?;
    let mut copies = a.create_label();
    if let Some(flags) = scope.common {
        reject_unless_flags(&mut a, flags, copies)?;
    }
    frame.enter(&mut a)?;
    let of = |order| move |section: &&mut Section<'_>| section.order == order;
    for section in sections.iter_mut().filter(of(Order::First)) {
        section.first(&mut a, &scope)?;
    }
    for section in sections.iter_mut().filter(of(Order::Early)) {
        section.early(&mut a, &scope)?;
    }
    let mut out = a.create_label();
    if scope.soon
        && let Some(filter) = late().find_map(Work::filter)
    {
        reject_unless(&mut a, filter, runtime, None, &scope.literals, out)?;
    }
    if late().next().is_some() {
        frame.save(&mut a)?;
    }
    for section in sections.iter_mut().filter(of(Order::Late)) {
        section.late(&mut a, &scope)?;
    }
    if late().next().is_some() {
        frame.restore(&mut a)?;
    }
    bind(&mut a, &mut out)?;
    frame.leave(&mut a)?;
    bind(&mut a, &mut copies)?;
    a.zero_bytes()?; // binds the last labels, if nothing follows

    let code = a.assemble_options(address, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let offset = |label: &CodeLabel| -> Result<usize, IcedError> {
        Ok((code.label_ip(label)? - address) as usize)
    };
    let mut parts = Vec::new();
    for section in sections {
        let Some(labels) = section.labels else {
            unreachable!("every work has an order, and its code was emitted");
        };
        let apart = |(label, name): (CodeLabel, Named)| Ok::<_, IcedError>((offset(&label)?, name));
        parts.push(Part {
            apart: section.apart.map(apart).transpose()?,
            ..labels.resolve(offset)?
        });
    }
    let entry = offset(&entry)?;
    let mut bytes = code.inner.code_buffer;
    if runtime.shadow_stack {
        jump_to_shared(&mut bytes, &parts);
    }
    Ok(Body {
        bytes,
        entry,
        parts,
    })
}

/// Turns the calls of shared code into jumps, see [`into_shared`].
fn jump_to_shared(bytes: &mut [u8], parts: &[Part]) {
    const CALL: u8 = 0xe8;
    const JUMP: u8 = 0xe9;
    for sequence in parts.iter().filter_map(|part| part.sequence.as_ref()) {
        // A count has no other way into shared code: its `other` is not a call.
        let aborted = (sequence.way > 0).then(|| sequence.aborted());
        for rel32 in aborted.into_iter().chain([sequence.other]) {
            if bytes[rel32 - 1] == CALL {
                bytes[rel32 - 1] = JUMP;
            }
        }
    }
}

/// Emits the code that begins a call, and the code for a call that the filter `rejected`.
fn enter(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    work: &Work,
    mut rejected: CodeLabel,
) -> Result<Labels, IcedError> {
    let (call, kept) = match work {
        Work::Enter { call, kept, .. } => (*call, kept.as_slice()),
        _ => (0, [].as_slice()),
    };
    let mut entered = timing::enter(a, frame, runtime, call, kept)?;
    if work.filter().is_none() {
        bind(a, &mut rejected)?;
        return Ok(entered);
    }
    let mut done = a.create_label();
    a.jmp(done)?;
    bind(a, &mut rejected)?;
    let value = timing::forget(a, frame, runtime, call)?;
    entered.more.push((value, Patch::Call));
    bind(a, &mut done)?;
    entered.done = mark(a)?;
    Ok(entered)
}

/// Emits code that comes before registers are saved, run only if the filter holds.
fn early_if(
    a: &mut CodeAssembler,
    frame: &Frame,
    runtime: &Runtime,
    filter: &Filter,
    literals: &Literals,
    code: impl FnOnce(&mut CodeAssembler) -> Result<Labels, IcedError>,
) -> Result<Labels, IcedError> {
    let mut rejected = a.create_label();
    if frame.flags_live {
        a.pushfq()?;
    }
    reject_unless(a, filter, runtime, None, literals, rejected)?;
    let labels = match frame.flags_live {
        false => code(a)?,
        true => {
            let mut done = a.create_label();
            a.popfq()?;
            let labels = code(a)?;
            a.jmp(done)?;
            bind(a, &mut rejected)?;
            a.popfq()?;
            bind(a, &mut done)?;
            return Ok(labels);
        }
    };
    bind(a, &mut rejected)?;
    Ok(labels)
}

/// Assembles, for `address`, the code shared by all detours whose body has these `parts`, and
/// returns its addresses for each work. Empty without restartable sequences.
pub(super) fn shared(
    frame: &Frame,
    runtime: &Runtime,
    work: &[Work],
    parts: &[Part],
    address: u64,
) -> Result<(Vec<u8>, Vec<Shared>), IcedError> {
    if runtime.rseq_offset.is_none() || work.is_empty() {
        return Ok((Vec::new(), vec![Shared::default(); work.len()]));
    }
    let mut a = CodeAssembler::new(64)?;
    let counts = |w: &Work| matches!(w, Work::Count { .. } | Work::Tally(_));
    let records = work.iter().any(|w| matches!(w, Work::Record(_)));
    // Literals come first, so their addresses are known before the code that refers to them.
    let streams = address.next_multiple_of(8);
    let bases = streams + if records { 8 } else { 0 };
    a.db(&[0xcc; 8][..(streams - address) as usize])?;
    if records {
        a.dq(&[runtime.streams])?;
    }
    if work.iter().any(counts) {
        let counters = &runtime.counters;
        a.dq(&[counters.address, counters.shared()])?;
    }
    let mut labels = Vec::new();
    for (work, part) in work.iter().zip(parts) {
        labels.push(match (work, &part.sequence) {
            (Work::Record(record), Some(sequence)) => Some(record::shared(
                &mut a, frame, runtime, record, part, sequence,
            )?),
            (Work::Count { .. }, Some(sequence)) => Some(count::shared(
                &mut a,
                frame,
                runtime,
                part,
                sequence,
                bases + 8,
            )?),
            _ => None,
        });
    }
    let code = a.assemble_options(address, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let mut entries = Vec::new();
    for label in &labels {
        let Some((aborted, other)) = label else {
            entries.push(Shared {
                aborted: bases,
                other: bases,
                streams,
            });
            continue;
        };
        entries.push(Shared {
            aborted: code.label_ip(aborted)?,
            other: match other {
                Some(label) => code.label_ip(label)?,
                None => bases,
            },
            streams,
        });
    }
    Ok((code.inner.code_buffer, entries))
}

/// Jumps from shared code to offset `to` of the detour that it serves: `register` holds the
/// address of that detour's offset `from`, and is overwritten.
pub(super) fn go(
    a: &mut CodeAssembler,
    register: iced_x86::Register,
    from: usize,
    to: usize,
) -> Result<(), IcedError> {
    advance(a, register, from, to)?;
    a.add_instruction(Instruction::with1(iced_x86::Code::Jmp_rm64, register)?)
}

/// Changes `register` from the address of a detour's offset `from` to the address of its offset
/// `to`.
pub(super) fn advance(
    a: &mut CodeAssembler,
    register: iced_x86::Register,
    from: usize,
    to: usize,
) -> Result<(), IcedError> {
    let by = super::frame::at(register, to as i64 - from as i64);
    a.add_instruction(Instruction::with2(iced_x86::Code::Lea_r64_m, register, by)?)
}
