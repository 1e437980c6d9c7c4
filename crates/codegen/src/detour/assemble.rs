//! Machine code made by the assembler: everything in a detour except the copies, and the code
//! that detours of the same form share.

use super::filter::{Literals, common_flags, reject_unless, reject_unless_flags};
use super::frame::Frame;
use super::long;
use super::tally::{self, Patch};
use super::timing;
use super::{Filter, Runtime, Work};
use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, IcedError, Instruction};

/// Signature before every abort address, as registered by glibc (`RSEQ_SIG`).
pub(super) const RSEQ_SIGNATURE: u32 = 0x5305_3053;
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

/// Labels of a restartable sequence. `descriptor` and `other` mark the end of a rel32.
pub(super) struct SequenceLabels {
    pub start: CodeLabel,
    pub abort: CodeLabel,
    pub after_abort: Option<CodeLabel>,
    pub descriptor: CodeLabel,
    pub other: CodeLabel,
    /// End of the rel32 of [`Shared::streams`], if the work is a record.
    pub streams: Option<CodeLabel>,
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
    let mut tallies = Vec::new();
    let mut longs = Vec::new();
    for (work, links) in work.iter().zip(links) {
        longs.push(match work {
            Work::Long(work) => Some(long::before(&mut a, frame, runtime, work, links.program)?),
            _ => None,
        });
        tallies.push(match work {
            Work::Tally(straight) => {
                let program = links.program;
                Some(tally::before(&mut a, frame, runtime, straight, program)?)
            }
            _ => None,
        });
    }
    let mut colds = Vec::new();
    for (work, links) in work.iter().zip(links) {
        colds.push(match (work, runtime.rseq_offset) {
            (Work::Record(_), Some(_)) => Some(super::record::cold(&mut a, runtime, links)?),
            (Work::Count { .. }, Some(_)) => {
                Some(super::count::cold(&mut a, frame, runtime, links)?)
            }
            _ => None,
        });
    }
    let mut programs = Vec::new();
    for (work, links) in work.iter().zip(links) {
        programs.push(match work {
            Work::Run { .. } => Some(super::run::literal(&mut a, frame, links.program)?),
            _ => None,
        });
    }
    let mut helps = Vec::new();
    for work in work {
        helps.push(match work {
            Work::Help { routine, argument } => {
                Some(super::help::words(&mut a, *routine, *argument)?)
            }
            _ => None,
        });
    }
    let entry = mark(&mut a)?;
    let common = common_flags(work);
    let mut copies = a.create_label();
    if let Some(flags) = common {
        reject_unless_flags(&mut a, flags, copies)?;
    }
    // Flags that this work tests by itself; `None` if all work shares the test.
    let flags_of = |work: &Work| match common {
        Some(_) => None,
        None => work.filter().and_then(Filter::flags),
    };
    frame.enter(&mut a)?;
    let mut labels: Vec<Option<Labels>> = work.iter().map(|_| None).collect();
    // If a call begins and ends at the same instruction, the program that the resident runs needs
    // the call's start, so `Enter` comes first.
    let runs = work.iter().any(|w| matches!(w, Work::Run { .. }));
    let is_first = |w: &Work| runs && matches!(w, Work::Enter { .. });
    for (work, labels) in work.iter().zip(&mut labels) {
        if !is_first(work) {
            continue;
        }
        frame.save(&mut a)?;
        let rejected = a.create_label();
        if let Some(flags) = flags_of(work) {
            reject_unless_flags(&mut a, flags, rejected)?;
        }
        if let Some(filter) = work.filter() {
            reject_unless(&mut a, filter, runtime, Some(frame), &literals, rejected)?;
        }
        *labels = Some(enter(&mut a, frame, runtime, work, rejected)?);
        frame.restore(&mut a)?;
    }
    let early = work.iter().zip(programs).zip(helps);
    for (((work, program), help), labels) in early.zip(&mut labels) {
        if let Some(words) = help {
            *labels = Some(super::help::early(&mut a, frame, words)?);
            continue;
        }
        if !work.is_early() {
            continue;
        }
        let mut rejected = a.create_label();
        if let Some(flags) = flags_of(work) {
            reject_unless_flags(&mut a, flags, rejected)?;
        }
        *labels = match (work, program) {
            (Work::Run { event, filter, .. }, Some(program)) => {
                let code = |a: &mut CodeAssembler| super::run::early(a, runtime, *event, program);
                Some(match filter {
                    None => code(&mut a)?,
                    Some(filter) => early_if(&mut a, frame, runtime, filter, &literals, code)?,
                })
            }
            (Work::Unregister, _) => Some(super::unregister::hot(&mut a, runtime.rseq_offset)?),
            _ => None,
        };
        bind(&mut a, &mut rejected)?;
    }
    let is_late = |w: &Work| !w.is_early() && !is_first(w);
    let late = work.iter().filter(|w| is_late(w)).count();
    let mut out = a.create_label();
    // If possible, reject before anything is saved. (A rejected `Enter` still has something to
    // do.)
    let enters = work.iter().any(|w| matches!(w, Work::Enter { .. }));
    let soon = late == 1 && !frame.flags_live && !enters;
    if soon && let Some(filter) = work.iter().find_map(|w| w.filter().filter(|_| is_late(w))) {
        reject_unless(&mut a, filter, runtime, None, &literals, out)?;
    }
    if late > 0 {
        frame.save(&mut a)?;
    }
    let all = work.iter().zip(links).zip(colds).zip(tallies).zip(longs);
    for (((((work, links), cold), tally), long), labels) in all.zip(&mut labels) {
        if !is_late(work) {
            continue;
        }
        let mut rejected = a.create_label();
        if let Some(flags) = flags_of(work) {
            frame.restore_flags(&mut a)?;
            reject_unless_flags(&mut a, flags, rejected)?;
        }
        if let Some(filter) = work.filter().filter(|_| !soon) {
            reject_unless(&mut a, filter, runtime, Some(frame), &literals, rejected)?;
        }
        *labels = Some(match (work, runtime.rseq_offset, cold) {
            (Work::Tally(straight), Some(rseq), _) => {
                let Some(before) = tally else { continue };
                tally::hot(&mut a, frame, runtime, rseq, straight, links, before)?
            }
            (Work::Enter { .. }, ..) => {
                *labels = Some(enter(&mut a, frame, runtime, work, rejected)?);
                continue;
            }
            (Work::Long(work), ..) => {
                let Some(before) = long else { continue };
                self::long::hot(&mut a, frame, runtime, work, before)?
            }
            (Work::Record(record), Some(rseq), Some(cold)) => {
                super::record::hot(&mut a, frame, runtime, rseq, record, links, cold)?
            }
            (Work::Count { counter, .. }, Some(rseq), Some(cold)) => {
                super::count::hot(&mut a, frame, runtime, rseq, *counter, links, cold)?
            }
            (Work::Record(record), ..) => super::record::locked(&mut a, frame, runtime, record)?,
            (Work::Count { counter, .. }, ..) => {
                super::count::locked(&mut a, frame, runtime, *counter)?
            }
            // These run early, or do not occur without restartable sequences.
            (Work::Run { .. } | Work::Unregister | Work::Help { .. } | Work::Tally(_), ..) => {
                continue;
            }
        });
        bind(&mut a, &mut rejected)?;
    }
    if late > 0 {
        frame.restore(&mut a)?;
    }
    bind(&mut a, &mut out)?;
    frame.leave(&mut a)?;
    bind(&mut a, &mut copies)?;
    let labels: Vec<Labels> = labels.into_iter().flatten().collect();
    a.zero_bytes()?; // binds the last labels, if nothing follows
    let code = a.assemble_options(address, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let offset = |label: &CodeLabel| -> Result<usize, IcedError> {
        Ok((code.label_ip(label)? - address) as usize)
    };
    let mut parts = Vec::new();
    for labels in &labels {
        let sequence = match &labels.sequence {
            Some(s) => Some(Sequence {
                start: offset(&s.start)?,
                abort: offset(&s.abort)?,
                way: match &s.after_abort {
                    Some(label) => offset(label)? - offset(&s.abort)?,
                    None => 0,
                },
                descriptor: offset(&s.descriptor)? - 4,
                other: offset(&s.other)? - 4,
                streams: match &s.streams {
                    Some(label) => offset(label)? - 4,
                    None => 0,
                },
            }),
            None => None,
        };
        let locked = match &labels.locked {
            Some(label) => Some(offset(label)? - 4),
            None => None,
        };
        let more = labels.more.iter();
        let more = more.map(|(label, patch)| Ok((offset(label)? - patch.size(), *patch)));
        parts.push(Part {
            more: more.collect::<Result<_, IcedError>>()?,
            value: offset(&labels.value.0)? - labels.value.1,
            begin: offset(&labels.begin)?,
            done: offset(&labels.done)?,
            sequence,
            locked,
        });
    }
    let entry = offset(&entry)?;
    let mut bytes = code.inner.code_buffer;
    if runtime.shadow_stack {
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
    Ok(Body {
        bytes,
        entry,
        parts,
    })
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
            (Work::Record(record), Some(sequence)) => Some(super::record::shared(
                &mut a, frame, runtime, record, part, sequence,
            )?),
            (Work::Count { .. }, Some(sequence)) => Some(super::count::shared(
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
