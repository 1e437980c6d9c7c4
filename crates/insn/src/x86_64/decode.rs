//! Pieces of code, their addresses, and single instructions in them.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};

/// The longest x86-64 instruction, in bytes (Intel SDM vol. 2, 2.3.11).
pub(crate) const MAX_INSTRUCTION: usize = 15;

/// A half-open range of run-time addresses, `start <= address < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The first address.
    pub start: u64,
    /// The first address past the range.
    pub end: u64,
}

impl Extent {
    /// Creates the range `[start, end)`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Returns the number of bytes in the range; 0 if `end <= start`.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// True if no address lies in the range.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// True if `address` lies in the range.
    #[must_use]
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// True if some address lies in both ranges.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end && other.start < self.end
    }
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end)
    }
}

/// A contiguous piece of machine code and the run-time address of its first byte.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The bytes as they are in memory (or in the file, before any patch).
    pub bytes: &'a [u8],
    /// The run-time address of `bytes[0]`.
    pub address: u64,
    /// Ranges within it that are known to be data, not instructions; ascending.
    pub data: &'a [Extent],
}

impl<'a> Code<'a> {
    /// Creates code consisting of `bytes` as they run at `address`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], address: u64) -> Self {
        Self {
            bytes,
            address,
            data: &[],
        }
    }

    /// Adds `data` (ascending), the ranges known not to be instructions.
    #[must_use]
    pub const fn with_data(mut self, data: &'a [Extent]) -> Self {
        self.data = data;
        self
    }

    /// Returns the first piece of data that lies in `extent`, partly or wholly.
    #[must_use]
    pub fn data_in(&self, extent: Extent) -> Option<Extent> {
        let index = self.data.partition_point(|data| data.end <= extent.start);
        let data = self.data.get(index).copied();
        data.filter(|data| data.overlaps(&extent))
    }

    /// Returns the addresses of all bytes.
    #[must_use]
    pub const fn extent(&self) -> Extent {
        Extent::new(
            self.address,
            self.address.saturating_add(self.bytes.len() as u64),
        )
    }

    /// Returns the bytes of `extent`, or `None` if it is not entirely inside.
    #[must_use]
    pub fn get(&self, extent: Extent) -> Option<&'a [u8]> {
        let start = usize::try_from(extent.start.checked_sub(self.address)?).ok()?;
        let end = usize::try_from(extent.end.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..end)
    }

    /// Returns the byte at `address`, or `None` if that is outside.
    #[must_use]
    pub fn byte(&self, address: u64) -> Option<u8> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(offset).copied()
    }

    /// Returns the instruction that begins at `address` and ends at or before `end`, or `None` if
    /// the bytes there do not decode, or some of them are known to be data.
    #[must_use]
    pub fn instruction_at(&self, address: u64, end: u64) -> Option<Instruction> {
        let end = end
            .min(self.extent().end)
            .min(address.saturating_add(MAX_INSTRUCTION as u64));
        let bytes = self.get(Extent::new(address, end))?;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let extent = Extent::new(address, instruction.next_ip());
        let is_code = !instruction.is_invalid() && self.data_in(extent).is_none();
        is_code.then_some(instruction)
    }
}

/// True for a call of any kind.
#[must_use]
pub fn is_call(instruction: &Instruction) -> bool {
    let flow = instruction.flow_control();
    matches!(flow, FlowControl::Call | FlowControl::IndirectCall)
}

/// True if an access may change the register or the memory.
pub(crate) fn is_write(access: OpAccess) -> bool {
    use OpAccess::{CondRead, NoMemAccess, None, Read};
    !matches!(access, Read | CondRead | NoMemAccess | None)
}

/// True if the instruction may change a 64-bit register, or a part of it.
pub(crate) fn changes(
    instruction: &Instruction,
    register: Register,
    factory: &mut InstructionInfoFactory,
) -> bool {
    let used = factory.info(instruction).used_registers();
    used.iter()
        .any(|used| used.register().full_register() == register && is_write(used.access()))
}

/// True if the instruction does nothing but take up space: `nop` in its one-byte and multi-byte
/// forms. `pause`, `endbr64` and hint space reserved for later processors are not nops.
#[must_use]
pub fn is_nop(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Nop
}

/// True for instructions that compilers and linkers use to fill the space between blocks and
/// functions: nops and `int3`.
#[must_use]
pub fn is_padding(instruction: &Instruction) -> bool {
    is_nop(instruction) || instruction.mnemonic() == Mnemonic::Int3
}
