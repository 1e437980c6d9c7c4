//! Properties of instructions that decide how they can be replaced.

use capriole_insn::decode::is_nop;
use capriole_insn::{Code, Extent};
use iced_x86::{FlowControl, Mnemonic};

pub(crate) use capriole_insn::decode::is_call;
pub(crate) use iced_x86::Instruction;

/// True if control never continues past the instruction.
pub(crate) fn ends_flow(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// True for `endbr64`, which allows indirect branches to its address and must stay there.
pub(crate) fn is_landmark(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Endbr64
}

/// True for `int3`.
pub(crate) fn is_breakpoint(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Int3
}

/// Returns the end of an XRay entry sled at `site`: `jmp .+11` over a nine-byte nop
/// (LLVM's `X86AsmPrinter::LowerPATCHABLE_FUNCTION_ENTER`). `end` is the end of the function.
pub(crate) fn xray_sled(code: &Code<'_>, site: u64, end: u64) -> Option<u64> {
    let nop_at = site + 2;
    let bytes = code.get(Extent::new(site, nop_at))?;
    let nop = code.instruction_at(nop_at, end)?;
    (bytes == [0xeb, 0x09] && is_nop(&nop) && nop.len() == 9).then(|| nop.next_ip())
}
