//! Targets of indirect jumps: the `switch` tables of GCC and Clang.
//!
//! # Recognised patterns
//!
//! Position-independent code, a table of 32-bit offsets from the table:
//!
//! ```text
//! cmp    $N, %edi ; ja default          (may be missing)
//! lea    table(%rip), %rdx              (may be far away)
//! movslq (%rdx,%rdi,4), %rax
//! add    %rdx, %rax
//! jmp    *%rax
//! ```
//!
//! and a table of 64-bit addresses: `jmp *table(,%rax,8)`, `jmp *(%rdx,%rax,8)`
//! with `lea table(%rip), %rdx`, or the same through a register.
//!
//! # Why no entry can be missed
//!
//! Too many entries only add targets, which forbids a few more regions. Too few entries would
//! let a jump land inside a patched region, so:
//!
//! * The load, the addition and the jump must be in one block: no jump of the function leads
//!   between them. The addresses are kept as [`IndirectJump::idiom`] so that jumps from
//!   elsewhere can be checked too.
//! * The table's address is the one that the nearest `lea` of the same block puts in the base
//!   register. If there is none, *every* constant address that the function makes is tried and
//!   all that look like tables are taken: a hoisted or spilled base is one of them.
//! * If a comparison in the same straight-line code bounds the index, exactly the entries
//!   within that bound are read: no others can be used there. If one of them is not an address
//!   in the text, this is not the table.
//! * Without such a comparison, entries are read until one does not lead into the function. If
//!   that one leads to other text, it may still be an entry (for a part of the function that
//!   was split off), and the jump stays unknown.
//! * Reading stops at [`MAX_ENTRIES`]; a longer table is unknown.
//!
//! All other jumps are either through a pointer exactly as it was loaded
//! ([`Resolution::Pointer`]) or unknown.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

mod bound;
mod origin;
mod table;

use self::table::Entry;
pub use self::table::MAX_ENTRIES;
use crate::arch::sweep::{Kind, Record};
use crate::ascending;
use crate::decode::{Code, Extent, changes, is_call};
use crate::flow::Hints;
use crate::liveness::RegSet;

/// Number of instructions searched before an indirect jump.
const WINDOW: usize = 32;

/// An indirect jump and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectJump {
    /// The address of the `jmp`.
    pub address: u64,
    /// From the load of the table's entry to the end of the jump. A jump from elsewhere into this
    /// range (except to its start) would use another table.
    pub idiom: Extent,
    /// Possible targets of the jump.
    pub resolution: Resolution,
}

/// Possible targets of an indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Through a table that was found and read.
    Table {
        /// Every address that an entry leads to, and possibly some more.
        targets: Vec<u64>,
        /// Number of leading `targets` that are certainly entries; the others are added to be safe.
        certain: usize,
    },
    /// To an address that was loaded from memory outside the stack, or passed to the function, and
    /// not changed since. It appears in data in this form, or some code made it with `lea`.
    Pointer,
    /// Not understood: could lead anywhere in the function.
    Unknown,
}

/// Resolves all indirect jumps among `records`, which are the instructions of
/// `extent` in order.
pub(crate) fn resolve(
    code: &Code<'_>,
    extent: Extent,
    records: &[Record],
    hints: &Hints<'_>,
) -> Vec<IndirectJump> {
    let jumps: Vec<usize> = (0..records.len())
        .filter(|&i| records[i].kind == Kind::IndirectJump)
        .collect();
    if jumps.is_empty() {
        return Vec::new();
    }
    let joins = records
        .iter()
        .filter(|r| r.kind.jumps_to_target() && extent.contains(r.target))
        .map(|r| r.target);
    let joins = ascending(joins.chain(hints.landing_pads.iter().copied()).collect());
    let constants = records.iter().filter(|r| r.kind == Kind::Constant);
    let constants = ascending(constants.map(|r| r.target).collect());
    let mut resolver = Resolver {
        code,
        records,
        edges: None,
        frame_pointer: None,
        extent,
        joins,
        constants,
        hints,
        info: InstructionInfoFactory::new(),
        window: Vec::new(),
    };
    jumps
        .into_iter()
        .map(|index| resolver.resolve_one(index))
        .collect()
}

pub(crate) struct Resolver<'a> {
    code: &'a Code<'a>,
    records: &'a [Record],
    extent: Extent,
    /// Targets of jumps inside the function, sorted.
    joins: Vec<u64>,
    /// All constants that the function makes and that may be addresses, sorted.
    constants: Vec<u64>,
    hints: &'a Hints<'a>,
    /// Direct jumps inside the function, collected on first use: (target,
    /// index of the jump), sorted.
    edges: Option<Vec<(u64, usize)>>,
    /// True if `rbp` is a frame pointer; computed on first use.
    frame_pointer: Option<bool>,
    info: InstructionInfoFactory,
    /// The instructions before the jump that run whenever the jump runs, in order.
    window: Vec<Instruction>,
}

impl Resolver<'_> {
    fn resolve_one(&mut self, index: usize) -> IndirectJump {
        let record = self.records[index];
        let unknown = IndirectJump {
            address: record.address,
            idiom: Extent::new(record.address, record.end()),
            resolution: Resolution::Unknown,
        };
        let Some(jump) = self.code.instruction_at(record.address, record.end()) else {
            return unknown;
        };
        if jump.mnemonic() != Mnemonic::Jmp
            || !matches!(jump.op0_kind(), OpKind::Register | OpKind::Memory)
        {
            return unknown;
        }
        self.fill_window(index);
        let (start, resolution) = match jump.op0_kind() {
            OpKind::Memory => self.through_memory(&jump, self.window.len()),
            _ => self.through_register(index, jump.op0_register()),
        };
        IndirectJump {
            idiom: Extent::new(start.unwrap_or(record.address), record.end()),
            resolution,
            ..unknown
        }
    }

    /// Fills the window with the straight-line code that ends just before the jump.
    fn fill_window(&mut self, jump: usize) {
        let records = self.records;
        self.window.clear();
        let mut first = jump;
        while first > 0 && jump - first < WINDOW {
            let join = self.joins.binary_search(&records[first].address).is_ok();
            let before = &records[first - 1];
            if join || !before.kind.falls_through() || before.end() != records[first].address {
                break;
            }
            first -= 1;
        }
        for record in &records[first..jump] {
            if let Some(instruction) = self.code.instruction_at(record.address, record.end()) {
                self.window.push(instruction);
            } else {
                self.window.clear();
            }
        }
    }

    /// Resolves `jmp *mem`, or a jump to the result of a 64-bit load. `before` is the number of
    /// instructions of the window that run before it.
    fn through_memory(&mut self, load: &Instruction, before: usize) -> (Option<u64>, Resolution) {
        if load.segment_prefix() == Register::FS || load.segment_prefix() == Register::GS {
            return (None, Resolution::Pointer);
        }
        if self.is_stack_slot(load) {
            return (None, Resolution::Unknown);
        }
        let base = load.memory_base();
        let index = load.memory_index();
        if index != Register::None && load.memory_index_scale() == 8 {
            let bound = self.bound(index, before);
            let tables = match base {
                Register::None => Some(vec![load.memory_displacement64()]),
                _ if load.memory_displacement64() == 0 => self.constant_in(base, before),
                _ => None,
            };
            // Any other base may be an array that the program fills in.
            let targets = tables.and_then(|t| self.read_tables(&t, Entry::Address, bound));
            if let Some((targets, certain)) = targets {
                let start = Some(load.ip());
                return (start, Resolution::Table { targets, certain });
            }
        }
        (None, self.pointer())
    }

    /// Resolves a jump through a pointer from memory. If the function also makes addresses inside
    /// itself, it may have computed the pointer from them and stored it.
    fn pointer(&self) -> Resolution {
        let inside = Extent::new(self.extent.start.saturating_add(1), self.extent.end);
        let index = self.constants.partition_point(|&c| c < inside.start);
        match self.constants.get(index) {
            Some(&constant) if inside.contains(constant) => Resolution::Unknown,
            _ => Resolution::Pointer,
        }
    }

    fn through_register(&mut self, jump: usize, register: Register) -> (Option<u64>, Resolution) {
        let wanted = register.full_register();
        // A table jump loads, adds and jumps in one straight line of code.
        if let Some(at) = self.writer(wanted, self.window.len()) {
            let instruction = self.window[at];
            if writes_whole(&instruction, wanted) {
                match (instruction.mnemonic(), instruction.op1_kind()) {
                    (Mnemonic::Mov, OpKind::Memory) => {
                        let (start, resolution) = self.through_memory(&instruction, at);
                        if start.is_some() {
                            return (start, resolution);
                        }
                    }
                    (Mnemonic::Add, OpKind::Register) => {
                        let other = instruction.op1_register().full_register();
                        return match self.offsets(wanted, other, at) {
                            Some((start, resolution)) => (Some(start), resolution),
                            None => (None, Resolution::Unknown),
                        };
                    }
                    _ => {}
                }
            }
        }
        let pointer = self.origins_are_pointers(jump, wanted);
        match pointer {
            true => (None, self.pointer()),
            false => (None, Resolution::Unknown),
        }
    }

    /// Resolves a target made by `add a, b` at index `add` of the window: one operand is an offset
    /// loaded from the table, the other is the table's address.
    fn offsets(&mut self, a: Register, b: Register, add: usize) -> Option<(u64, Resolution)> {
        let (load, base) = [(a, b), (b, a)]
            .into_iter()
            .find_map(|(offset, base)| Some((self.offset_load(offset, add)?, base)))?;
        let instruction = self.window[load];
        let tables = self.constant_in(base, add);
        let index = if instruction.memory_base() == base && instruction.memory_index_scale() == 4 {
            // The base must still be the same when it is added.
            if (load + 1..add).any(|i| self.writes_at(i, base)) {
                return None;
            }
            instruction.memory_index()
        } else {
            // Unoptimised GCC code: the base is computed again, and the address of the entry is a
            // sum of two registers.
            let table = *tables.as_ref()?.first()?;
            let (x, y) = (instruction.memory_base(), instruction.memory_index());
            if instruction.memory_index_scale() != 1 {
                return None;
            }
            let made = |this: &mut Self, register| {
                this.constant_in(register, load)
                    .is_some_and(|c| c == [table])
            };
            if made(self, x) {
                y
            } else if made(self, y) {
                x
            } else {
                return None;
            }
        };
        if instruction.memory_displacement64() != 0 {
            return None;
        }
        let bound = self.bound(index, load);
        let (targets, certain) = match &tables {
            Some(tables) => self.read_tables(tables, Entry::Offset, bound)?,
            None => self.read_tables(&self.constants, Entry::Offset, bound)?,
        };
        Some((instruction.ip(), Resolution::Table { targets, certain }))
    }

    /// Returns the window index of the instruction that loads 32 bits from memory that end up
    /// sign-extended in `register`.
    fn offset_load(&mut self, register: Register, before: usize) -> Option<usize> {
        let at = self.writer(register, before)?;
        let instruction = self.window[at];
        match instruction.mnemonic() {
            Mnemonic::Movsxd if instruction.op1_kind() == OpKind::Memory => Some(at),
            Mnemonic::Cdqe => self.plain_load(Register::RAX, at),
            Mnemonic::Movsxd => self.plain_load(instruction.op1_register().full_register(), at),
            _ => None,
        }
    }

    fn plain_load(&mut self, register: Register, before: usize) -> Option<usize> {
        let at = self.writer(register, before)?;
        let instruction = self.window[at];
        let load = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().size() == 4
            && instruction.op1_kind() == OpKind::Memory;
        load.then_some(at)
    }

    /// Returns the last instruction before `before` that changes `register`.
    fn writer(&mut self, register: Register, before: usize) -> Option<usize> {
        (0..before).rev().find(|&i| self.writes_at(i, register))
    }

    fn writes_at(&mut self, index: usize, register: Register) -> bool {
        let instruction = self.window[index];
        self.writes(&instruction, register)
            || (is_call(&instruction) && !RegSet::PRESERVED.contains(register))
    }

    fn writes(&mut self, instruction: &Instruction, register: Register) -> bool {
        changes(instruction, register.full_register(), &mut self.info)
    }

    /// Returns the address that `lea x(%rip)` of the window put in `register`; `None` if the
    /// register was not set that way in this block.
    fn constant_in(&mut self, register: Register, before: usize) -> Option<Vec<u64>> {
        let at = self.writer(register, before)?;
        let instruction = self.window[at];
        match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Lea, _) if instruction.is_ip_rel_memory_operand() => {
                Some(vec![instruction.ip_rel_memory_address()])
            }
            (Mnemonic::Mov, OpKind::Immediate32) => {
                Some(vec![u64::from(instruction.immediate32())])
            }
            (Mnemonic::Mov, OpKind::Register) => {
                self.constant_in(instruction.op1_register().full_register(), at)
            }
            _ => None,
        }
    }
}

/// True if the instruction writes all 64 bits of `register`, as its first operand.
fn writes_whole(instruction: &Instruction, register: Register) -> bool {
    instruction.op0_kind() == OpKind::Register && instruction.op0_register() == register
}
