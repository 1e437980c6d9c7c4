//! Where control leaves a function.
//!
//! # What counts
//!
//! * A near `ret` of any form (`ret`, `ret imm16`, `rep ret`, `bnd ret`) is an
//!   [`ExitKind::Return`].
//! * A direct jump, conditional or not, to code that is no part of the function,
//!   and an indirect one that cannot lead into the function, is an
//!   [`ExitKind::TailCall`]. With something of the function's own on the stack an indirect
//!   jump stays inside (a computed `goto`), wherever it may lead to. By a conditional one control leaves only if the
//!   flags are such: [`Exit::condition`].
//! * Control may run past the function's last instruction into another function, in
//!   assembly (`__memcpy_chk` of the C library runs on into `memcpy`). That is a tail
//!   call as well, by whatever instruction stands last, if there is nothing left on the
//!   stack of the function's own: then the stack pointer there is that of a return.
//!   Behind what a compiler put elsewhere (`name.cold`) control never runs on.
//! * Calls are no exits, also if they never come back; nor are `ud2`, `hlt`,
//!   `int3` and the like, behind which nothing follows.
//!
//! A function may consist of several parts: its own code, and what the compiler
//! put elsewhere because it is rarely used (`name.cold`). Jumps between the parts
//! stay inside; an exit in any of them is one of the function.
//!
//! # What is not known is said
//!
//! A missing exit would be a call that never ends, and a jump that is no exit a
//! call that ends too early. So what cannot be decided is an [`Undecided`], with
//! its address: the caller can refuse the function, or live with it.
//!
//! `ret`s that nothing leads to are in [`Exits::unreached`]. If some indirect jump
//! of the function is not understood, it may lead there, and they count as exits.

use std::cell::LazyCell;

use iced_x86::{ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use thiserror::Error;

use crate::decode::{Code, Extent, is_nop};
use crate::depth::{Depths, grows};
use crate::flow::{FlowError, FunctionFlow, Hints, ReadMemory};
use crate::jump_table::{IndirectJump, Resolution};
use crate::sweep::{Kind, Record};
use crate::targets::Targets;

/// How control leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExitKind {
    /// Back to the caller, with a result.
    Return,
    /// To another function, which will return in this one's stead: by a jump, or past the
    /// last instruction.
    TailCall,
}

/// An instruction by which control leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Exit {
    /// Its run-time address.
    pub address: u64,
    /// How.
    pub kind: ExitKind,
    /// Control leaves only if the flags, as they are before the instruction, are such; always
    /// if there is none.
    pub condition: Option<ConditionCode>,
}

/// An instruction of which it is not known whether, or how, control leaves by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Undecided {
    /// It may lead anywhere: to another function, or to somewhere in this one.
    #[error("it is not known where the jump at {at:#x} leads")]
    IndirectJump {
        /// The jump.
        at: u64,
    },
    /// No instruction, though control leads there.
    #[error("there is no instruction at {at:#x}, where control leads")]
    NoInstruction {
        /// The address.
        at: u64,
    },
    /// Behind this instruction, which is the function's last one, control goes on
    /// in what follows: no function that is known, or with something on the stack.
    #[error("control runs past the function's end behind {at:#x}")]
    RunsOn {
        /// The last instruction.
        at: u64,
    },
    /// Something of the function's own is still on the stack.
    #[error("the jump at {at:#x} leads out of the function, which keeps its stack frame")]
    KeepsFrame {
        /// The jump.
        at: u64,
    },
    /// `loop`, `jrcxz` and their kin, out of the function.
    #[error("the jump at {at:#x} depends on a register")]
    Counted {
        /// The jump.
        at: u64,
    },
    /// A far return, or one from an interrupt.
    #[error("the return at {at:#x} is not an ordinary one")]
    FarReturn {
        /// The instruction.
        at: u64,
    },
}

impl Undecided {
    /// The address that it is about.
    #[must_use]
    pub const fn address(&self) -> u64 {
        match *self {
            Self::IndirectJump { at }
            | Self::NoInstruction { at }
            | Self::RunsOn { at }
            | Self::KeepsFrame { at }
            | Self::Counted { at }
            | Self::FarReturn { at } => at,
        }
    }
}

/// What is known of a function besides its bytes.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Where exceptions continue in an extent.
    pub landing_pads: &'a dyn Fn(Extent) -> Vec<u64>,
    /// How to read jump tables.
    pub read: ReadMemory<'a>,
    /// What leads into the code of the whole object. Without it every indirect
    /// jump through a pointer is undecided.
    pub targets: Option<&'a Targets>,
    /// Whether a function begins at an address: one into which another may run on.
    pub is_function: &'a dyn Fn(u64) -> bool,
    /// Whether a part is one that a compiler put elsewhere, as its symbol says (`name.cold`).
    pub is_cold: &'a dyn Fn(Extent) -> bool,
}

impl Surroundings<'static> {
    /// Nothing else is known.
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
    /// By address.
    pub exits: Vec<Exit>,
    /// What could not be decided, by address.
    pub undecided: Vec<Undecided>,
    /// `ret`s that nothing leads to, by address. They are none of `exits`.
    pub unreached: Vec<u64>,
}

/// Rounds in which the parts of a function find out where they jump into each
/// other. Each makes at least one more instruction reached.
const ROUNDS: usize = 64;

impl Exits {
    /// Finds the exits of the function that consists of `parts`: first the code
    /// where it is entered, then what was split off, all inside `code`.
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
        // Most functions have nothing that asks for them.
        let depths: Lazy<'_> = LazyCell::new(Box::new(|| function.depths(&flows)));
        let unknown = function.indirect(&flows, &depths, &mut found);
        for flow in &flows {
            function.direct(flow, &depths, unknown, &mut found);
        }
        found.exits.sort_unstable();
        found.exits.dedup();
        found.undecided.sort_unstable_by_key(Undecided::address);
        found.undecided.dedup();
        found.unreached.sort_unstable();
        found.unreached.dedup();
        Ok(found)
    }

    /// Control never leaves: the function loops for ever, or ends the program.
    #[must_use]
    pub const fn never_returns(&self) -> bool {
        self.exits.is_empty() && self.undecided.is_empty()
    }
}

/// How deep the stack is in a function, found out if somebody asks.
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

    /// The flow of each part, with the jumps from the others.
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
                // Those that were found before are found again.
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

    /// How deep the stack is in the first part. (One that was split off is entered at any
    /// depth.)
    fn depths(&self, flows: &[FunctionFlow]) -> Depths {
        let Some(flow) = flows.first() else {
            return Depths::default();
        };
        let is_open = |jump: &&IndirectJump| !matches!(jump.resolution, Resolution::Table { .. });
        let open = || flow.indirect_jumps().iter().filter(is_open);
        let depths = Depths::of(self.code, flow, &[]);
        // Where computed gotos lead, the stack is as deep as where they stand.
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

    /// Indirect jumps. Returns whether one of them may lead anywhere in the function.
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
                match (leaves, flow.is_reached(at)) {
                    (true, true) => found.exits.push(Exit {
                        address: at,
                        kind: ExitKind::TailCall,
                        condition: None,
                    }),
                    (false, true) => found.undecided.push(Undecided::IndirectJump { at }),
                    (leaves, false) => unreached.push((at, leaves)),
                }
            }
        }
        let unknown = stays || !found.undecided.is_empty();
        if unknown {
            // It may lead to these.
            for (at, leaves) in unreached {
                match leaves {
                    true => found.exits.push(Exit {
                        address: at,
                        kind: ExitKind::TailCall,
                        condition: None,
                    }),
                    false => found.undecided.push(Undecided::IndirectJump { at }),
                }
            }
        }
        unknown
    }

    /// All pointers into the text are known, and none leads behind the start of a part.
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

    /// Returns, direct jumps, and the ends. `unknown` says that everything may be reached.
    fn direct(&self, flow: &FunctionFlow, depths: &Lazy<'_>, unknown: bool, found: &mut Exits) {
        let mut runs_on = None;
        let mut last = None;
        let mut last_end = flow.extent().start;
        let mut leaving = Vec::new();
        for (record, reached) in flow.records() {
            last_end = record.end();
            let counts = reached || unknown;
            let Some(instruction) = self.code.instruction_at(record.address, record.end()) else {
                continue;
            };
            let at = record.address;
            match record.kind {
                Kind::Stop => match stop(&instruction) {
                    Stop::Return if counts => found.exits.push(Exit {
                        address: at,
                        kind: ExitKind::Return,
                        condition: None,
                    }),
                    Stop::Return => found.unreached.push(at),
                    Stop::FarReturn if counts => found.undecided.push(Undecided::FarReturn { at }),
                    Stop::FarReturn | Stop::Never => {}
                },
                Kind::Jump | Kind::Conditional if counts && !self.holds(record.target) => {
                    leaving.push(instruction);
                }
                _ => {}
            }
            runs_on = match (runs_on, goes_on(record, &instruction)) {
                // Nops are passed, but not by what never comes that far.
                (before, GoesOn::Nop) => before,
                (_, GoesOn::Yes) if reached => Some(at),
                _ => None,
            };
            last = Some(instruction);
        }
        let runs_on = runs_on.filter(|_| !self.holds(flow.extent().end));
        let is_first = self.parts.first() == Some(&flow.extent());
        for jump in &leaving {
            let at = jump.ip();
            let depth = depths.at(at).filter(|_| is_first);
            match leaves_if(jump) {
                _ if depth.is_some_and(|depth| depth != 0) => {
                    found.undecided.push(Undecided::KeepsFrame { at });
                }
                Some(condition) => found.exits.push(Exit {
                    address: at,
                    kind: ExitKind::TailCall,
                    condition,
                }),
                None => found.undecided.push(Undecided::Counted { at }),
            }
        }
        if let Some(at) = flow.undecodable() {
            // It is data unless something leads there.
            if last_end == at && runs_on.is_some() || unknown {
                found.undecided.push(Undecided::NoInstruction { at });
            }
        } else if !is_first && (self.around.is_cold)(flow.extent()) {
            // A compiler never has a function run on into something else. Where code ends
            // like that, control never comes (`__builtin_unreachable()`). Assembly may.
        } else if let (Some(at), Some(last)) = (runs_on, last) {
            let depth = depths.at(last.ip()).filter(|_| is_first);
            match depth == Some(0) && self.function_behind(&last) {
                true => self.run_on(&last, found),
                false => found.undecided.push(Undecided::RunsOn { at }),
            }
        }
        if let Some(at) = flow.overlap() {
            found.undecided.push(Undecided::NoInstruction { at });
        }
    }

    /// Whether nothing but nops stands between an instruction, which leaves the stack as it
    /// is, and another function.
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

    /// Control leaves behind the last instruction, whatever other way there is.
    fn run_on(&self, last: &Instruction, found: &mut Exits) {
        let at = last.ip();
        let condition = match last.flow_control() {
            // One that leads back into the function has to be passed; one that leads out of
            // it is an exit in any case.
            FlowControl::ConditionalBranch if self.holds(last.near_branch_target()) => {
                let mut passed = *last;
                passed.negate_condition_code();
                leaves_if(&passed)
            }
            _ => Some(None),
        };
        found.exits.retain(|exit| exit.address != at);
        match condition {
            Some(condition) => found.exits.push(Exit {
                address: at,
                kind: ExitKind::TailCall,
                condition,
            }),
            None => found.undecided.push(Undecided::Counted { at }),
        }
    }
}

/// With which flags a jump is taken; `None` if they do not tell.
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

/// What an instruction does behind which control never goes on.
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

/// Whether control comes behind an instruction that is a function's last one. A call
/// that stands there never returns.
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
