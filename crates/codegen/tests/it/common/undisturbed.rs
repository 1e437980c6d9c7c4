//! State that must not change when a detour has done its work.

use crate::support::sandbox::{Outcome, STACK_POINTER};
use capriole_insn::liveness::Live;

/// Compares a run through a detour with the `plain` one: live registers and flags,
/// memory, and the stack above the part that may be written.
pub fn undisturbed(
    plain: &Outcome,
    out: &Outcome,
    live: Live,
    red_zone: bool,
) -> Result<(), String> {
    for register in live.gprs.iter() {
        let i = register.number();
        let (was, is) = (plain.state.gprs[i], out.state.gprs[i]);
        if is != was {
            return Err(format!("register: {register:?} {was:#x} became {is:#x}"));
        }
    }
    let (was, is) = (plain.state.flags, out.state.flags);
    if live.flags && is != was {
        return Err(format!("flags: {was:#x} became {is:#x}"));
    }
    if out.data != plain.data {
        return Err("data: changed".to_owned());
    }
    let kept = (STACK_POINTER & 0xfff) as usize - if red_zone { 128 } else { 0 };
    match out.stack[kept..2048] == plain.stack[kept..2048] {
        true => Ok(()),
        false => Err("stack: changed".to_owned()),
    }
}
