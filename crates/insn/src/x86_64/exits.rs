//! Exits: the instructions through which control leaves a function.
//!
//! # What counts
//!
//! * A near `ret` of any form (`ret`, `ret imm16`, `rep ret`, `bnd ret`) is an
//!   [`ExitKind::Return`].
//! * A direct jump, conditional or not, to code that is not part of the function, and an
//!   indirect jump that cannot lead into the function, is an [`ExitKind::TailCall`]. An
//!   indirect jump while the function still has something of its own on the stack stays inside
//!   (a computed `goto`), wherever its pointer may lead. A conditional jump is an exit only
//!   with certain flags: [`Exit::condition`].
//! * In assembly, control may fall through past the function's last instruction into another
//!   function (`__memcpy_chk` of the C library falls through into `memcpy`). That is a tail
//!   call as well, through whatever instruction comes last, if the function has nothing of its
//!   own left on the stack: the stack pointer there is the same as at a return. Control never
//!   falls through the end of a part that a compiler split off (`name.cold`).
//! * Calls are not exits, even if they never return; neither are `ud2`, `hlt`, `int3` and the
//!   like, which do not continue to the next instruction.
//!
//! A function may consist of several parts: its own code, and rarely used code that the
//! compiler put elsewhere (`name.cold`). Jumps between the parts stay inside; an exit in any
//! part is an exit of the function.
//!
//! # Undecided cases are reported
//!
//! A missing exit would be a call that never ends, and a jump wrongly taken for an exit would
//! be a call that ends too early. So every undecidable case is an [`Undecided`], with its
//! address: the caller can refuse the function, or accept the gap.
//!
//! Unreached `ret`s are in [`Exits::unreached`]. If some indirect jump of the function is not
//! understood, it may lead to them, so they then count as exits.

use std::cell::LazyCell;

use iced_x86::{ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use thiserror::Error;

use crate::arch::depth::{Depths, grows};
use crate::arch::sweep::{Kind, Record};
use crate::ascending;
use crate::decode::{Code, Extent, is_nop};
use crate::flow::{FlowError, FunctionFlow, Hints, ReadMemory};
use crate::jump_table::{IndirectJump, Resolution};
use crate::targets::Targets;

/// Kind of exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExitKind {
    /// Back to the caller, with a result.
    Return,
    /// To another function, which will return in its place: by a jump, or by falling through past
    /// the last instruction.
    TailCall,
}

/// An instruction through which control leaves the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Exit {
    /// Its run-time address.
    pub address: u64,
    /// Kind of exit.
    pub kind: ExitKind,
    /// Condition on the flags, as they are before the instruction, under which control leaves;
    /// `None` if it always leaves.
    pub condition: Option<ConditionCode>,
}

/// An instruction that may or may not be an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Undecided {
    /// A jump that may lead anywhere: to another function, or elsewhere in this one.
    #[error("it is not known where the jump at {at:#x} leads")]
    IndirectJump {
        /// The jump.
        at: u64,
    },
    /// An address that control reaches but that holds no instruction.
    #[error("there is no instruction at {at:#x}, where control leads")]
    NoInstruction {
        /// The address.
        at: u64,
    },
    /// Control falls through past the function's last instruction, but not into a known function,
    /// or with something left on the stack.
    #[error("control runs past the function's end behind {at:#x}")]
    FallsThrough {
        /// The last instruction.
        at: u64,
    },
    /// A jump out of the function while something of the function's own is still on the stack.
    #[error("the jump at {at:#x} leads out of the function, which keeps its stack frame")]
    KeepsFrame {
        /// The jump.
        at: u64,
    },
    /// `loop`, `jrcxz` and the like, leading out of the function.
    #[error("the jump at {at:#x} depends on a register")]
    Counted {
        /// The jump.
        at: u64,
    },
    /// A far return, or a return from an interrupt.
    #[error("the return at {at:#x} is not an ordinary one")]
    FarReturn {
        /// The instruction.
        at: u64,
    },
}

impl Undecided {
    /// Returns the address of the instruction, or the address where one is missing.
    #[must_use]
    pub const fn address(&self) -> u64 {
        match *self {
            Self::IndirectJump { at }
            | Self::NoInstruction { at }
            | Self::FallsThrough { at }
            | Self::KeepsFrame { at }
            | Self::Counted { at }
            | Self::FarReturn { at } => at,
        }
    }
}

/// Knowledge about a function besides its bytes.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Returns the landing pads (where execution continues after an exception) in an extent.
    pub landing_pads: &'a dyn Fn(Extent) -> Vec<u64>,
    /// Reads memory of the object, for jump tables.
    pub read: ReadMemory<'a>,
    /// All known jump targets of the whole object. Without them every indirect jump through a
    /// pointer is undecided.
    pub targets: Option<&'a Targets>,
    /// True if a function begins at the address, so that another function may fall through into it.
    pub is_function: &'a dyn Fn(u64) -> bool,
    /// True if the compiler split off this part, according to its symbol (`name.cold`).
    pub is_cold: &'a dyn Fn(Extent) -> bool,
}

impl Surroundings<'static> {
    /// No further knowledge.
    pub const NONE: Self = Self {
        landing_pads: &|_| Vec::new(),
        read: &|_, _| None,
        targets: None,
        is_function: &|_| false,
        is_cold: &|_| false,
    };
}

/// All exits of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Certain exits, by address.
    pub exits: Vec<Exit>,
    /// Undecided instructions, by address.
    pub undecided: Vec<Undecided>,
    /// `ret`s that no control flow reaches, by address. They are not in `exits`.
    pub unreached: Vec<u64>,
}

/// Maximum number of rounds for following the jumps between the parts of a function. Each round
/// reaches at least one more instruction.
const ROUNDS: usize = 64;

impl Exits {
    /// Finds the exits of the function that consists of `parts`: first the code
    /// where it is entered, then the parts that were split off, all inside `code`.
    ///
    /// # Errors
    ///
    /// [`FlowError`] if a part is empty or not inside `code`.
    pub fn find(
        code: &Code<'_>,
        parts: &[Extent],
        around: &Surroundings<'_>,
    ) -> Result<Self, FlowError> {
        let function = Function {
            code,
            parts,
            around,
        };
        let flows = function.flows()?;
        let mut found = Self::default();
        // Computed only on demand: most functions do not need them.
        let depths: Lazy<'_> = LazyCell::new(Box::new(|| function.depths(&flows)));
        let unknown = function.indirect(&flows, &depths, &mut found);
        for flow in &flows {
            function.direct(flow, &depths, unknown, &mut found);
        }
        found.undecided.sort_unstable_by_key(Undecided::address);
        found.undecided.dedup();
        Ok(Self {
            exits: ascending(found.exits),
            unreached: ascending(found.unreached),
            undecided: found.undecided,
        })
    }

    fn add(&mut self, address: u64, kind: ExitKind, condition: Option<ConditionCode>) {
        self.exits.push(Exit {
            address,
            kind,
            condition,
        });
    }

    /// Adds an indirect jump, which may be known to leave the function.
    fn add_indirect(&mut self, at: u64, leaves: bool) {
        match leaves {
            true => self.add(at, ExitKind::TailCall, None),
            false => self.undecided.push(Undecided::IndirectJump { at }),
        }
    }

    /// Adds a jump out of the function, under the condition that [`leaves_if`] returns.
    fn add_jump(&mut self, at: u64, condition: Option<Option<ConditionCode>>) {
        match condition {
            Some(condition) => self.add(at, ExitKind::TailCall, condition),
            None => self.undecided.push(Undecided::Counted { at }),
        }
    }

    /// True if control never leaves: the function loops forever, or ends the program.
    #[must_use]
    pub const fn never_returns(&self) -> bool {
        self.exits.is_empty() && self.undecided.is_empty()
    }
}

/// Stack depths of a function, computed on first use.
type Lazy<'a> = LazyCell<Depths, Box<dyn FnOnce() -> Depths + 'a>>;

struct Function<'a> {
    code: &'a Code<'a>,
    parts: &'a [Extent],
    around: &'a Surroundings<'a>,
}

impl Function<'_> {
    fn holds(&self, address: u64) -> bool {
        self.parts.iter().any(|part| part.contains(address))
    }

    /// Analyses the flow of each part, including the jumps from the other parts.
    fn flows(&self) -> Result<Vec<FunctionFlow>, FlowError> {
        let pads: Vec<Vec<u64>> = self
            .parts
            .iter()
            .map(|part| (self.around.landing_pads)(*part))
            .collect();
        let analyse = |part: &Extent, pads: &[u64]| {
            let hints = Hints {
                landing_pads: pads,
                read: self.around.read,
            };
            FunctionFlow::analyse_with(self.code, part, &hints)
        };
        let both = || self.parts.iter().zip(&pads);
        let mut flows: Vec<FunctionFlow> = both()
            .map(|(part, pads)| analyse(part, pads))
            .collect::<Result<_, _>>()?;
        if self.parts.len() < 2 {
            return Ok(flows);
        }
        for _ in 0..ROUNDS {
            let across: Vec<u64> = flows
                .iter()
                .flat_map(|flow| {
                    let jumps = flow.reached_records();
                    let jumps = jumps.filter(|r| r.kind.jumps_to_target());
                    let jumps = jumps.map(|record| record.target);
                    let tables = flow.indirect_jumps().iter();
                    let tables = tables.flat_map(|jump| match &jump.resolution {
                        Resolution::Table { targets, .. } => targets.as_slice(),
                        _ => &[],
                    });
                    let own = flow.extent();
                    jumps
                        .chain(tables.copied())
                        .filter(move |target| !own.contains(*target) && self.holds(*target))
                })
                .collect();
            let mut changed = false;
            for ((part, pads), flow) in both().zip(&mut flows) {
                let new = |target: &&u64| part.contains(**target) && !flow.is_reached(**target);
                let mut entries: Vec<u64> = across.iter().filter(new).copied().collect();
                if entries.is_empty() {
                    continue;
                }
                // The new analysis needs the earlier entries as well.
                let inside = across.iter().filter(|target| part.contains(**target));
                entries = pads.iter().chain(inside).copied().collect();
                let again = analyse(part, &entries)?;
                changed |= again.reached_records().count() != flow.reached_records().count();
                *flow = again;
            }
            if !changed {
                break;
            }
        }
        Ok(flows)
    }

    /// Computes the stack depths in the first part. (A part that was split off can be entered at
    /// any depth.)
    fn depths(&self, flows: &[FunctionFlow]) -> Depths {
        let Some(flow) = flows.first() else {
            return Depths::default();
        };
        let is_open = |jump: &&IndirectJump| !matches!(jump.resolution, Resolution::Table { .. });
        let open = || flow.indirect_jumps().iter().filter(is_open);
        let depths = Depths::of(self.code, flow, &[]);
        // At the targets of computed gotos, the stack is as deep as at the jumps themselves.
        let mut kept = open().filter_map(|jump| depths.at(jump.address).filter(|d| *d != 0));
        let Some(depth) = kept
            .next()
            .filter(|depth| kept.all(|other| other == *depth))
        else {
            return depths;
        };
        let mut labels = Vec::new();
        let mut rest = Extent::new(flow.extent().start.saturating_add(1), flow.extent().end);
        while let Some(label) = self.around.targets.and_then(|t| t.pointed_in(rest)) {
            labels.push((label, depth));
            rest = Extent::new(label + 1, rest.end);
        }
        Depths::of(self.code, flow, &labels)
    }

    /// Classifies the indirect jumps. Returns true if one of them may lead anywhere in the
    /// function.
    fn indirect(&self, flows: &[FunctionFlow], depths: &Lazy<'_>, found: &mut Exits) -> bool {
        let mut unreached = Vec::new();
        let mut stays = false;
        for flow in flows {
            for jump in flow.indirect_jumps() {
                let at = jump.address;
                let is_table = matches!(jump.resolution, Resolution::Table { .. });
                if !is_table && depths.at(at).is_some_and(|depth| depth != 0) {
                    stays = true;
                    continue;
                }
                let leaves = match &jump.resolution {
                    Resolution::Table { targets, certain } => {
                        let mut certain = targets[..*certain].iter();
                        if certain.all(|target| self.holds(*target)) {
                            continue;
                        }
                        false
                    }
                    Resolution::Pointer => self.no_pointer_leads_inside(),
                    Resolution::Unknown => false,
                };
                match flow.is_reached(at) {
                    true => found.add_indirect(at, leaves),
                    false => unreached.push((at, leaves)),
                }
            }
        }
        let unknown = stays || !found.undecided.is_empty();
        if unknown {
            // The unknown jump may lead to these.
            for (at, leaves) in unreached {
                found.add_indirect(at, leaves);
            }
        }
        unknown
    }

    /// True if all pointers into the text are known and none leads past the start of a part.
    fn no_pointer_leads_inside(&self) -> bool {
        let Some(targets) = self.around.targets else {
            return false;
        };
        targets.pointers_known()
            && targets.incomplete().is_none()
            && self.parts.iter().all(|part| {
                let inside = Extent::new(part.start.saturating_add(1), part.end);
                targets.pointed_in(inside).is_none()
            })
    }

    /// Classifies returns, direct jumps, and the function's end. `unknown` means that any
    /// instruction may be reached.
    fn direct(&self, flow: &FunctionFlow, depths: &Lazy<'_>, unknown: bool, found: &mut Exits) {
        let mut runs_on = None;
        let mut last = None;
        let mut last_end = flow.extent().start;
        let mut leaving = Vec::new();
        // The end of the call before the record, if that is one.
        let mut behind_call = None;
        for (record, reached) in flow.records() {
            last_end = record.end();
            let counts = reached || unknown;
            let Some(instruction) = self.code.instruction_at(record.address, record.end()) else {
                continue;
            };
            let at = record.address;
            match record.kind {
                Kind::Stop => match stop(&instruction) {
                    Stop::Return if counts => found.add(at, ExitKind::Return, None),
                    Stop::Return => found.unreached.push(at),
                    Stop::FarReturn if counts => found.undecided.push(Undecided::FarReturn { at }),
                    Stop::FarReturn | Stop::Never => {}
                },
                Kind::Jump | Kind::Conditional if counts && !self.holds(record.target) => {
                    // Nothing of the function is there: clang without optimisation ends blocks so
                    // that control never leaves, because the call throws.
                    let is_unreachable = record.kind == Kind::Jump
                        && record.target == flow.extent().end
                        && behind_call == Some(at);
                    leaving.push((instruction, is_unreachable));
                }
                _ => {}
            }
            behind_call = matches!(record.kind, Kind::Call).then_some(record.end());
            runs_on = match (runs_on, goes_on(record, &instruction)) {
                // Nops inherit from the instruction before them, unless control never reaches them.
                (before, GoesOn::Nop) => before,
                (_, GoesOn::Yes) if reached => Some(at),
                _ => None,
            };
            last = Some(instruction);
        }
        let runs_on = runs_on.filter(|_| !self.holds(flow.extent().end));
        let is_first = self.parts.first() == Some(&flow.extent());
        for (jump, is_unreachable) in &leaving {
            let at = jump.ip();
            let depth = depths.at(at).filter(|_| is_first);
            match depth.is_some_and(|depth| depth != 0) {
                true if *is_unreachable => {}
                true => found.undecided.push(Undecided::KeepsFrame { at }),
                false => found.add_jump(at, leaves_if(jump)),
            }
        }
        if let Some(at) = flow.undecodable() {
            // It is data unless control leads there.
            if last_end == at && runs_on.is_some() || unknown {
                found.undecided.push(Undecided::NoInstruction { at });
            }
        } else if !is_first && (self.around.is_cold)(flow.extent()) {
            // A compiler never lets a function fall through into something else. Where compiled
            // code ends without a jump or return, control never gets there
            // (`__builtin_unreachable()`). Assembly may do it.
        } else if let (Some(at), Some(last)) = (runs_on, last) {
            let depth = depths.at(last.ip()).filter(|_| is_first);
            match depth == Some(0) && self.function_behind(&last) {
                true => self.run_on(&last, found),
                false => found.undecided.push(Undecided::FallsThrough { at }),
            }
        }
        if let Some(at) = flow.overlap() {
            found.undecided.push(Undecided::NoInstruction { at });
        }
    }

    /// True if an instruction leaves the stack pointer unchanged and only nops separate it from
    /// another function.
    fn function_behind(&self, last: &Instruction) -> bool {
        let mut at = last.next_ip();
        let still = grows(last, &mut InstructionInfoFactory::new()) == Some(0);
        let end = self.code.extent().end;
        while still && !(self.around.is_function)(at) {
            match self.code.instruction_at(at, end) {
                Some(nop) if is_nop(&nop) => at = nop.next_ip(),
                _ => return false,
            }
        }
        still
    }

    /// Records an exit at the last instruction, for control that falls through past it, in place of
    /// any other exit there.
    fn run_on(&self, last: &Instruction, found: &mut Exits) {
        let at = last.ip();
        let condition = match last.flow_control() {
            // Control falls through a conditional jump back into the function only if the jump is
            // not taken; one that leads out is an exit in any case.
            FlowControl::ConditionalBranch if self.holds(last.near_branch_target()) => {
                let mut passed = *last;
                passed.negate_condition_code();
                leaves_if(&passed)
            }
            _ => Some(None),
        };
        found.exits.retain(|exit| exit.address != at);
        found.add_jump(at, condition);
    }
}

/// Returns the flags condition under which a jump is taken; `None` if the jump does not depend
/// on flags alone.
fn leaves_if(jump: &Instruction) -> Option<Option<ConditionCode>> {
    match (jump.flow_control(), jump.condition_code()) {
        (FlowControl::UnconditionalBranch, _) => Some(None),
        (_, ConditionCode::None) => None,
        (_, condition) if jump.is_jcc_short_or_near() => Some(Some(condition)),
        _ => None,
    }
}

enum Stop {
    Return,
    FarReturn,
    Never,
}

/// Classifies an instruction that never continues to the next one.
fn stop(instruction: &Instruction) -> Stop {
    match (instruction.mnemonic(), instruction.flow_control()) {
        (Mnemonic::Ret, _) => Stop::Return,
        (_, FlowControl::Return) => Stop::FarReturn,
        _ => Stop::Never,
    }
}

enum GoesOn {
    Yes,
    Nop,
    No,
}

/// Classifies whether control continues past an instruction if that is the function's last one.
/// A call in that position never returns.
fn goes_on(record: &Record, instruction: &Instruction) -> GoesOn {
    if is_nop(instruction) {
        return GoesOn::Nop;
    }
    let never = matches!(
        instruction.mnemonic(),
        Mnemonic::Hlt | Mnemonic::Int3 | Mnemonic::Int1 | Mnemonic::Ud2
    );
    let call = matches!(record.kind, Kind::Call | Kind::IndirectCall);
    match record.kind.falls_through() && !call && !never {
        true => GoesOn::Yes,
        false => GoesOn::No,
    }
}
