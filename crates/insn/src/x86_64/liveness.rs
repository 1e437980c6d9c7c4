//! Liveness: the registers and flags whose values still matter at a site.

use std::collections::HashMap;

use iced_x86::{
    Code as Opcode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits,
};

use crate::decode::{Code, Extent};

/// Maximum number of instructions examined, over all paths.
const LIMIT: usize = 128;

/// A set of the 16 general registers. Bit n is the register with the hardware
/// number n: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RegSet(pub u16);

impl RegSet {
    /// No register.
    pub const EMPTY: Self = Self(0);
    /// All 16 registers.
    pub const ALL: Self = Self(0xffff);
    /// Registers that functions preserve under the System V ABI: rbx, rsp, rbp, r12 to r15.
    pub const PRESERVED: Self = Self(0xf038);

    /// Returns the set that holds `register`, whatever its width (`al` counts as `rax`); empty for
    /// registers other than the general ones.
    #[must_use]
    pub fn of(register: Register) -> Self {
        let full = register.full_register();
        if full.is_gpr64() {
            Self(1 << full.number())
        } else {
            Self::EMPTY
        }
    }

    /// True if `register`, of any width, is in the set.
    #[must_use]
    pub fn contains(self, register: Register) -> bool {
        self.0 & Self::of(register).0 != 0
    }

    /// True if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the 64-bit registers in the set, ascending by hardware number.
    pub fn iter(self) -> impl Iterator<Item = Register> {
        (0..16u32)
            .filter(move |n| self.0 & (1 << n) != 0)
            .map(|n| Register::RAX + n)
    }
}

impl std::ops::BitOr for RegSet {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Registers and flags that must be preserved at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Live {
    /// The general registers whose value may still be used.
    pub gprs: RegSet,
    /// True if one of the flags OF, SF, ZF, AF, PF, CF may still be used. The other flags (DF, AC,
    /// ...) are always live: never change them.
    pub flags: bool,
}

impl Live {
    /// Everything may still be used.
    pub const ALL: Self = Self {
        gprs: RegSet::ALL,
        flags: true,
    };
}

/// The six arithmetic flags.
const FLAGS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Registers in the low 16 bits, arithmetic flags above.
const EVERYTHING: u32 = 0xffff | (FLAGS << 16);

/// Returns the registers and flags that may still be used when control is at `site`, before the
/// instruction there has run.
///
/// The instructions that can follow are explored over all paths, at most 128 of them. A
/// register or flag is dead only if every path overwrites it completely before reading it. A
/// path that ends (at a `ret`, a call, an indirect jump, the end of `extent`, a trap,
/// undecodable bytes, or the limit) keeps alive everything that it has not overwritten until
/// then. In particular no calling convention is assumed: GCC's `-fipa-ra` lets callers keep
/// values in registers that the ABI calls clobbered, and assembly has conventions of its own.
///
/// The registers of [`RegSet::PRESERVED`] are always live. Where an instruction may fault and
/// the program turns that into an exception (`-fnon-call-exceptions`, Ada, D), control may
/// continue in a handler that is not among the successors here, but it can find its values only
/// in memory and in preserved registers.
///
/// Writing 32 bits of a register is a full write. Writing 8 or 16 bits is not, and neither is a
/// conditional move. `xor %eax, %eax` does not read `eax`.
#[must_use]
pub fn live_at(code: &Code<'_>, extent: &Extent, site: u64) -> Live {
    live_among(code, extent, site, &[])
}

/// Like [`live_at`], but all registers count as read at the addresses `markers` (ascending),
/// whatever the instructions there are. These are static markers, whose notes tell other tools
/// which registers hold values. Notes cannot name flags, so flags are live only as far as the
/// instructions need them.
#[must_use]
pub fn live_among(code: &Code<'_>, extent: &Extent, site: u64, markers: &[u64]) -> Live {
    let live = Explorer::new(code, extent, markers).explore(site);
    Live {
        gprs: RegSet(live as u16) | RegSet::PRESERVED,
        flags: live >> 16 & FLAGS != 0,
    }
}

/// One explored instruction.
struct Node {
    /// Registers and flags that it reads.
    uses: u32,
    /// Registers and flags that it overwrites completely.
    defines: u32,
    /// Indices of its successors; `LEAVES` for paths that are not explored.
    next: [usize; 2],
    /// Registers and flags live before it, as far as known.
    live: u32,
}

const LEAVES: usize = usize::MAX;
const NOWHERE: usize = usize::MAX - 1;

struct Explorer<'a> {
    code: &'a Code<'a>,
    extent: &'a Extent,
    markers: &'a [u64],
    info: InstructionInfoFactory,
    nodes: Vec<Node>,
    /// Addresses that have a node.
    known: HashMap<u64, usize>,
    /// (address, index) of all nodes, in the order in which they were found.
    work: Vec<(u64, usize)>,
}

impl<'a> Explorer<'a> {
    fn new(code: &'a Code<'a>, extent: &'a Extent, markers: &'a [u64]) -> Self {
        Self {
            code,
            extent,
            markers,
            info: InstructionInfoFactory::new(),
            nodes: Vec::new(),
            known: HashMap::new(),
            work: Vec::new(),
        }
    }

    /// Returns the node for `address`, or `LEAVES`.
    fn node(&mut self, address: u64) -> usize {
        if let Some(&index) = self.known.get(&address) {
            return index;
        }
        if self.nodes.len() >= LIMIT || !self.extent.contains(address) {
            return LEAVES;
        }
        let index = self.nodes.len();
        self.nodes.push(Node {
            uses: 0,
            defines: 0,
            next: [NOWHERE; 2],
            live: 0,
        });
        self.known.insert(address, index);
        self.work.push((address, index));
        index
    }

    fn explore(mut self, site: u64) -> u32 {
        let start = self.node(site);
        if start == LEAVES {
            return EVERYTHING;
        }
        // Breadth first: nearby code tells more than one long path.
        let mut done = 0;
        while done < self.work.len() {
            let (address, index) = self.work[done];
            done += 1;
            self.look(address, index);
        }
        // Iterate backwards until nothing changes: live before = read, or live after
        // and not overwritten.
        loop {
            let mut changed = false;
            for index in (0..self.nodes.len()).rev() {
                let node = &self.nodes[index];
                let after = node.next.iter().fold(0, |live, &next| {
                    live | match next {
                        NOWHERE => 0,
                        LEAVES => EVERYTHING,
                        next => self.nodes[next].live,
                    }
                });
                let live = node.uses | (after & !node.defines);
                changed |= live != node.live;
                self.nodes[index].live = live;
            }
            if !changed {
                return self.nodes[start].live;
            }
        }
    }

    fn look(&mut self, address: u64, index: usize) {
        let instruction = self.code.instruction_at(address, self.extent.end);
        let Some(instruction) = instruction else {
            self.nodes[index].uses = EVERYTHING;
            return;
        };
        let next = match instruction.flow_control() {
            FlowControl::Next if !enters_kernel(&instruction) => {
                [self.node(instruction.next_ip()), NOWHERE]
            }
            FlowControl::ConditionalBranch => [
                self.node(instruction.next_ip()),
                self.node(instruction.near_branch_target()),
            ],
            FlowControl::UnconditionalBranch
                if matches!(
                    instruction.code(),
                    Opcode::Jmp_rel8_64 | Opcode::Jmp_rel32_64
                ) =>
            {
                [self.node(instruction.near_branch_target()), NOWHERE]
            }
            _ => {
                self.nodes[index].uses = EVERYTHING;
                return;
            }
        };
        let (mut uses, defines) = self.effects(&instruction);
        if self.markers.binary_search(&address).is_ok() {
            uses |= u32::from(RegSet::ALL.0);
        }
        let node = &mut self.nodes[index];
        node.next = next;
        node.uses = uses;
        node.defines = defines;
    }

    /// Returns the registers and flags that the instruction reads, and those that it overwrites
    /// completely.
    fn effects(&mut self, instruction: &Instruction) -> (u32, u32) {
        let (mut uses, mut defines) = (0, 0);
        for used in self.info.info(instruction).used_registers() {
            let register = used.register();
            let bit = u32::from(RegSet::of(register).0);
            let whole = register.is_gpr64() || register.is_gpr32();
            match used.access() {
                OpAccess::None | OpAccess::NoMemAccess => {}
                OpAccess::Write if whole => defines |= bit,
                OpAccess::ReadWrite if whole => {
                    uses |= bit;
                    defines |= bit;
                }
                // All or part of the old value may remain.
                _ => uses |= bit,
            }
        }
        if leaves_destination(instruction) && instruction.op0_kind() == OpKind::Register {
            uses |= u32::from(RegSet::of(instruction.op0_register()).0);
        }
        uses |= (instruction.rflags_read() & FLAGS) << 16;
        if !leaves_flags(instruction) {
            // Processors leave unchanged some of the flags that the manual calls undefined. AF
            // counts as written anyway: every logical instruction leaves it undefined, and nothing
            // tests it.
            let defined = instruction.rflags_written()
                | instruction.rflags_cleared()
                | instruction.rflags_set()
                | (instruction.rflags_undefined() & RflagsBits::AF);
            defines |= (defined & FLAGS) << 16;
        }
        (uses, defines)
    }
}

/// True if the kernel or a hypervisor may read the registers.
fn enters_kernel(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Syscall
            | Mnemonic::Sysenter
            | Mnemonic::Vmcall
            | Mnemonic::Vmmcall
            | Mnemonic::Int
            | Mnemonic::Int1
            | Mnemonic::Int3
            | Mnemonic::Hlt
    ) || instruction.is_privileged()
}

/// True if the instruction may leave its destination unchanged: `bsf` and `bsr` of zero, and
/// `rdssp` without a shadow stack, where it is a nop and its users clear the register first
/// (`_Unwind_Resume`, `longjmp`).
fn leaves_destination(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Bsf | Mnemonic::Bsr | Mnemonic::Rdsspd | Mnemonic::Rdsspq
    )
}

/// True if the instruction may leave the flags unchanged although it is listed as changing them:
/// shifts by `cl`, where the count may be 0, and repeated string comparisons, where `rcx` may be 0.
fn leaves_flags(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Shl
        | Mnemonic::Sal
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Rcl
        | Mnemonic::Rcr => instruction.op1_kind() == OpKind::Register,
        Mnemonic::Shld | Mnemonic::Shrd => instruction.op2_kind() == OpKind::Register,
        _ => instruction.has_rep_prefix() || instruction.has_repne_prefix(),
    }
}
