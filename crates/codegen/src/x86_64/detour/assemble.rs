//! Machine code made by the assembler: everything in a detour except the copies, and the code
//! that detours of the same form share.

use super::emit::{Cold, Labels, Links, Named, Part, Patch, Shared, bind, mark};
use super::filter::{Literals, reject_unless, reject_unless_flags};
use super::frame::Frame;
use super::{count, handler, help, long, record, run, tally, timing, unregister};
use crate::runtime::Runtime;
use crate::work::{Filter, Work, common_flags};
use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, ConditionCode, IcedError};

/// A detour up to the copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Body {
    pub bytes: Vec<u8>,
    pub entry: usize,
    pub parts: Vec<Part>,
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
    /// After everything is restored, right before the copies.
    Last,
    /// Instead of the copies.
    Instead,
}

impl Order {
    /// Returns the order of a work among all work of a detour. If a call begins and ends at the
    /// same instruction, the program that the resident runs needs the call's start, so `Enter`
    /// comes first.
    fn of(work: &Work, all: &[Work]) -> Order {
        let runs = || all.iter().any(|w| matches!(w, Work::Run { .. }));
        match work {
            _ if work.is_early() => Order::Early,
            Work::Handler(_) => Order::Last,
            Work::Replace(_) => Order::Instead,
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
    Word(CodeLabel),
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

/// The words of one work. Those of all stand at the start, where they are aligned: a thread may have its
/// accesses checked for alignment.
enum Words {
    Nothing,
    Program(CodeLabel),
    Tally(tally::Words),
    Help(help::Words),
    Word(CodeLabel),
}

impl Words {
    /// Emits the words.
    fn new(
        a: &mut CodeAssembler,
        frame: &Frame,
        runtime: &Runtime,
        work: &Work,
        program: u64,
    ) -> Result<Words, IcedError> {
        Ok(match work {
            Work::Long(_) | Work::Run { .. } => Words::Program(run::literal(a, frame, program)?),
            Work::Tally(work) => Words::Tally(tally::words(a, frame, runtime, work, program)?),
            Work::Help { routine, argument } => Words::Help(help::words(a, *routine, *argument)?),
            Work::Handler(of) => Words::Word(handler::word(
                a,
                match frame.flags_live {
                    true => of.with_flags,
                    false => of.routine,
                },
            )?),
            Work::Replace(target) => Words::Word(handler::word(a, *target)?),
            Work::Record(_) | Work::Count { .. } | Work::Enter { .. } | Work::Unregister => {
                Words::Nothing
            }
        })
    }
}

impl<'a> Section<'a> {
    /// Emits the code before the entry.
    fn new(
        a: &mut CodeAssembler,
        frame: &Frame,
        runtime: &Runtime,
        (work, words): (&'a Work, Words),
        links: &'a Links,
        order: Order,
    ) -> Result<Section<'a>, IcedError> {
        let before = match (work, words, runtime.rseq_offset) {
            (Work::Long(work), Words::Program(program), _) => {
                Before::Long(run::apart(a, frame, runtime, work.event, program)?)
            }
            (Work::Tally(work), Words::Tally(words), _) => {
                Before::Tally(tally::before(a, frame, runtime, work, words)?)
            }
            (Work::Record(_), _, Some(_)) => Before::Cold(record::cold(a, runtime, links)?),
            (Work::Count { .. }, _, Some(_)) => {
                Before::Cold(count::cold(a, frame, runtime, links)?)
            }
            (_, Words::Program(program), _) => Before::Program(program),
            (_, Words::Help(words), _) => Before::Help(words),
            (_, Words::Word(word), _) => Before::Word(word),
            (_, Words::Nothing | Words::Tally(_), _) => Before::Nothing,
        };
        Ok(Section {
            work,
            links,
            order,
            apart: match &before {
                Before::Nothing | Before::Help(_) | Before::Word(_) => None,
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
                | Work::Long(_)
                | Work::Handler(_)
                | Work::Replace(_),
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
                | Work::Help { .. }
                | Work::Handler(_)
                | Work::Replace(_),
                ..,
            ) => unreachable!("late work has its code before the entry, and a tally a sequence"),
        };
        self.labels = Some(labels);
        bind(a, &mut rejected)
    }
}

impl Section<'_> {
    /// Emits work that comes [last](Order::Last) or [instead](Order::Instead) of the copies.
    fn last(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let before = std::mem::replace(&mut self.before, Before::Nothing);
        self.labels = match (self.work, before) {
            (Work::Handler(of), Before::Word(routine)) => Some(handler::call(a, of, routine)?),
            (Work::Replace(_), Before::Word(target)) => Some(handler::replace(a, target)?),
            _ => None,
        };
        Ok(())
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
    let mut words = Vec::new();
    for (each, links) in work.iter().zip(links) {
        words.push(Words::new(&mut a, frame, runtime, each, links.program)?);
    }
    let mut sections = Vec::new();
    for ((each, words), links) in work.iter().zip(words).zip(links) {
        let order = Order::of(each, work);
        let section = Section::new(&mut a, frame, runtime, (each, words), links, order)?;
        sections.push(section);
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
    for order in [Order::Last, Order::Instead] {
        for section in sections.iter_mut().filter(of(order)) {
            section.last(&mut a)?;
        }
    }
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
    let value = timing::reject(a, frame, runtime, call)?;
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
        Frame::push_status(a)?;
    }
    reject_unless(a, filter, runtime, None, literals, rejected)?;
    let labels = match frame.flags_live {
        false => code(a)?,
        true => {
            let mut done = a.create_label();
            Frame::pop_status(a)?;
            let labels = code(a)?;
            a.jmp(done)?;
            bind(a, &mut rejected)?;
            Frame::pop_status(a)?;
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
