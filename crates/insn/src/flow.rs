//! The control flow of one function.

use thiserror::Error;

use crate::arch::sweep::{Kind, Record, sweep};
use crate::ascending;
use crate::decode::{Code, Extent};
use crate::jump_table;
use crate::jump_table::{IndirectJump, Resolution};

/// Reads `len` bytes of the object at a run-time address (jump tables are in read-only data).
/// `None` if the bytes cannot be read.
pub type ReadMemory<'a> = &'a dyn Fn(u64, usize) -> Option<Vec<u8>>;

/// Knowledge about a function besides its bytes.
#[derive(Clone, Copy)]
pub struct Hints<'a> {
    /// Landing pads of this function: where execution continues after exceptions. Without them the
    /// code of handlers counts as unreached.
    pub landing_pads: &'a [u64],
    /// Reads memory of the object, for jump tables.
    pub read: ReadMemory<'a>,
}

impl Hints<'static> {
    /// No further knowledge; jump tables cannot be read.
    pub const NONE: Self = Self {
        landing_pads: &[],
        read: &|_, _| None,
    };
}

/// Reason why a function could not be analysed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum FlowError {
    /// The extent is empty: the symbol has no size.
    #[error("the function at {start:#x} has no size")]
    Empty {
        /// Start of the extent.
        start: u64,
    },
    /// Some of the function lies outside the code that was given.
    #[error("the function {extent} is not wholly inside the code {code}")]
    OutsideCode {
        /// The function.
        extent: Extent,
        /// The code.
        code: Extent,
    },
}

/// The control flow of one function: where its instructions begin, where its
/// jumps lead, and which parts are not understood.
#[derive(Clone, Debug)]
pub struct FunctionFlow {
    extent: Extent,
    records: Vec<Record>,
    reached: Vec<bool>,
    /// Targets of direct jumps of this function (inside it), sorted.
    jumped: Vec<u64>,
    indirect_jumps: Vec<IndirectJump>,
    undecodable: Option<u64>,
    overlap: Option<u64>,
}

impl FunctionFlow {
    /// Analyses the function at `extent` without hints.
    ///
    /// # Errors
    ///
    /// [`FlowError`] if the extent is empty or not inside `code`.
    pub fn analyse(code: &Code<'_>, extent: &Extent) -> Result<Self, FlowError> {
        Self::analyse_with(code, extent, &Hints::NONE)
    }

    /// Analyses the function at `extent`.
    ///
    /// Instructions are found in two passes. The first decodes from the start, one instruction
    /// after the other; it goes wrong where data is interleaved with the code. The second follows
    /// control flow and calls from the start, the landing pads and the entries of jump tables: an
    /// instruction [reached](Self::is_reached) this way is certainly code.
    ///
    /// # Errors
    ///
    /// [`FlowError`] if the extent is empty or not inside `code`.
    pub fn analyse_with(
        code: &Code<'_>,
        extent: &Extent,
        hints: &Hints<'_>,
    ) -> Result<Self, FlowError> {
        let extent = *extent;
        if extent.is_empty() {
            return Err(FlowError::Empty {
                start: extent.start,
            });
        }
        if code.get(extent).is_none() {
            return Err(FlowError::OutsideCode {
                extent,
                code: code.extent(),
            });
        }
        let mut records = Vec::with_capacity(extent.len() as usize / 4 + 1);
        let undecodable = sweep(code, extent, false, |record| records.push(record));
        let jumps = records.iter().filter(|r| r.kind.jumps_to_target());
        let inside = jumps.map(|r| r.target).filter(|at| extent.contains(*at));
        let jumped = ascending(inside.collect());
        let indirect_jumps = jump_table::resolve(code, extent, &records, hints);
        let mut flow = Self {
            extent,
            reached: vec![false; records.len()],
            records,
            jumped,
            indirect_jumps,
            undecodable,
            overlap: None,
        };
        flow.follow(hints.landing_pads);
        Ok(flow)
    }

    /// Marks the instructions that control flow reaches.
    fn follow(&mut self, landing_pads: &[u64]) {
        let mut work = vec![self.extent.start];
        let inside = |address: &u64| self.extent.contains(*address);
        work.extend(landing_pads.iter().filter(|pad| inside(pad)));
        for jump in &self.indirect_jumps {
            if let Resolution::Table { targets, certain } = &jump.resolution {
                let targets = targets.iter().copied().enumerate();
                let code = targets.filter(|(i, target)| {
                    inside(target) && (i < certain || self.is_boundary(*target))
                });
                work.extend(code.map(|(_, target)| target));
            }
        }
        while let Some(address) = work.pop() {
            let mut index = match self.index(address) {
                Ok(index) => index,
                // `je 1f; lock; 1: cmpxchg`: the jump skips the prefix.
                Err(next) if next > 0 && self.skips_lock(next - 1, address) => next,
                Err(_) => {
                    if Some(address) != self.undecodable {
                        self.overlap.get_or_insert(address);
                    }
                    continue;
                }
            };
            while index < self.records.len() && !self.reached[index] {
                self.reached[index] = true;
                let record = self.records[index];
                let leads = record.kind.jumps_to_target() || record.kind == Kind::Call;
                if leads && self.extent.contains(record.target) {
                    work.push(record.target);
                }
                let next = self.records.get(index + 1);
                // Known data may lie between the two.
                let goes_on = next.is_some_and(|next| next.address == record.end());
                if !record.kind.falls_through() || !goes_on {
                    break;
                }
                index += 1;
            }
        }
    }

    /// Returns all instructions, each with true if it is reached.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&Record, bool)> {
        self.records.iter().zip(self.reached.iter().copied())
    }

    /// Returns the reached instructions.
    pub(crate) fn reached_records(&self) -> impl Iterator<Item = &Record> {
        self.records()
            .filter(|(_, reached)| *reached)
            .map(|(r, _)| r)
    }

    fn skips_lock(&self, index: usize, address: u64) -> bool {
        let record = &self.records[index];
        record.lock && record.address + 1 == address
    }

    fn index(&self, address: u64) -> Result<usize, usize> {
        self.records.binary_search_by_key(&address, |r| r.address)
    }

    /// Returns the bounds of the function.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Returns the addresses of all instructions that decoding from the start finds.
    pub fn boundaries(&self) -> impl Iterator<Item = u64> + '_ {
        self.records.iter().map(|record| record.address)
    }

    /// True if decoding from the start finds an instruction at `address`.
    #[must_use]
    pub fn is_boundary(&self, address: u64) -> bool {
        self.index(address).is_ok()
    }

    /// Returns the extent of the instruction that contains `address`.
    #[must_use]
    pub fn instruction_around(&self, address: u64) -> Option<Extent> {
        let index = match self.index(address) {
            Ok(index) => index,
            Err(next) => next.checked_sub(1)?,
        };
        let record = &self.records[index];
        let extent = Extent::new(record.address, record.end());
        extent.contains(address).then_some(extent)
    }

    /// True if control flow leads from the function's start, a landing pad or a jump table to the
    /// instruction at `address`.
    #[must_use]
    pub fn is_reached(&self, address: u64) -> bool {
        self.index(address).is_ok_and(|index| self.reached[index])
    }

    /// True if a jump of this function leads to `address`, directly or by a jump table.
    #[must_use]
    pub fn is_jumped_to(&self, address: u64) -> bool {
        self.any_jump_into(Extent::new(address, address.saturating_add(1)))
            .is_some()
    }

    /// Returns the first address in `range` to which a jump of this function leads.
    #[must_use]
    pub fn any_jump_into(&self, range: Extent) -> Option<u64> {
        let index = self.jumped.partition_point(|&target| target < range.start);
        let direct = self
            .jumped
            .get(index)
            .copied()
            .filter(|&t| range.contains(t));
        direct.or_else(|| {
            self.indirect_jumps
                .iter()
                .find_map(|jump| match &jump.resolution {
                    Resolution::Table { targets, .. } => {
                        targets.iter().copied().find(|&t| range.contains(t))
                    }
                    _ => None,
                })
        })
    }

    /// Returns the indirect jumps of the function, in order.
    #[must_use]
    pub fn indirect_jumps(&self) -> &[IndirectJump] {
        &self.indirect_jumps
    }

    /// Returns the address of an indirect jump that could lead anywhere: one whose target is
    /// computed in a way that is not understood. A jump through a pointer counts unless
    /// `pointers_known` (see [`Targets::set_pointers_known`](crate::Targets::set_pointers_known)).
    #[must_use]
    pub fn unresolved_indirect_jump(&self, pointers_known: bool) -> Option<u64> {
        self.indirect_jumps
            .iter()
            .find(|jump| match jump.resolution {
                Resolution::Table { .. } => false,
                Resolution::Pointer => !pointers_known,
                Resolution::Unknown => true,
            })
            .map(|jump| jump.address)
    }

    /// True if [`unresolved_indirect_jump`](Self::unresolved_indirect_jump) finds one when nothing
    /// is known about pointers.
    #[must_use]
    pub fn has_unresolved_indirect_jump(&self) -> bool {
        self.unresolved_indirect_jump(false).is_some()
    }

    /// Returns the addresses of the direct and indirect calls of the function.
    pub fn calls(&self) -> impl Iterator<Item = u64> + '_ {
        self.records
            .iter()
            .filter(|r| matches!(r.kind, Kind::Call | Kind::IndirectCall))
            .map(|r| r.address)
    }

    /// Returns the first byte at which no instruction begins, where decoding stopped. The code
    /// after it is unknown.
    #[must_use]
    pub const fn undecodable(&self) -> Option<u64> {
        self.undecodable
    }

    /// Returns an address in the middle of a decoded instruction to which a jump leads: decoding
    /// went wrong somewhere before it, or instructions overlap. (A jump over a `lock` prefix does
    /// not count.)
    #[must_use]
    pub const fn overlap(&self) -> Option<u64> {
        self.overlap
    }

    /// True if control reaches `address` from the function's start without a jump, so that an
    /// instruction certainly begins there.
    #[must_use]
    pub fn is_straight_from_start(&self, address: u64) -> bool {
        let before = self.records.partition_point(|r| r.address < address);
        let joined = |pair: &[Record]| pair[0].end() == pair[1].address;
        self.records[..before]
            .iter()
            .all(|r| r.kind.falls_through())
            && self.is_boundary(address)
            && self.records[..=before].windows(2).all(joined)
    }
}
