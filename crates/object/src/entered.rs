//! Detection of functions that may be entered with the red zone in use.
//!
//! A call or a tail call in compiled code leaves nothing live below the stack pointer. In
//! assembly code, however, a symbol may lie inside a function, whose values are still live when
//! control falls through or jumps to the symbol. The red zone counts as free at an entry only
//! if this is proven not to happen:
//!
//! * no code before the entry falls through to it, except after a call, which leaves nothing
//!   live;
//! * for every jump to the entry, the code that contains the jump uses no memory below the
//!   stack pointer, nor does the code that leads into that code, and so on;
//! * unless call frame information begins at the entry, which marks it as a function, the
//!   previous condition also holds for each indirect jump whose targets are not known.
//!
//! Jumps from code that may be data, and from jump tables of other functions, count as uses of
//! the red zone.

use std::collections::HashSet;
use std::sync::PoisonError;

use capriole_insn::Extent;
use capriole_insn::red_zone::{runs_into_end, uses_red_zone};

use super::code::ObjectCode;

/// Maximum number of pieces of code to check for one entry. If there are more, the red zone
/// counts as in use.
const MOST: usize = 64;

impl ObjectCode {
    /// True if values may be live below the stack pointer when control reaches `start`, the first
    /// byte of a function, or the instruction after it. This is so if other code falls through to
    /// it, or jumps to it and is not proven to keep nothing below the stack pointer.
    #[must_use]
    pub fn is_entered_in_use(&self, start: u64) -> bool {
        // After an `endbr64` there may be a second entry, for jumps.
        const ENDBR: u64 = 4;
        may_come_in_use(self, Extent::new(start, start + ENDBR + 1))
            || !self.has_frame(start) && indirect(self)
    }
}

/// True if some indirect jump with unknown targets can be taken with the red zone in use.
fn indirect(code: &ObjectCode) -> bool {
    *code.red_zone.indirect.get_or_init(|| {
        let jumpers = code.all_targets().flat_map(|t| t.indirect_jumpers());
        jumpers
            .map(|jumper| code.around(jumper.start))
            .any(|piece| uses(code, piece) || may_come_in_use(code, piece))
    })
}

/// True if control may enter `range` from elsewhere with the red zone in use.
fn may_come_in_use(code: &ObjectCode, range: Extent) -> bool {
    let mut seen = HashSet::new();
    let mut pending = vec![range];
    while let Some(range) = pending.pop() {
        let Some(from) = sources(code, range) else {
            return true;
        };
        for piece in from {
            if seen.insert(piece.start) {
                if seen.len() > MOST || uses(code, piece) {
                    return true;
                }
                pending.push(piece);
            }
        }
    }
    false
}

/// True if a piece of code uses the red zone.
fn uses(code: &ObjectCode, piece: Extent) -> bool {
    let known = &code.red_zone.uses;
    let known = || known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(uses) = known().get(&piece.start) {
        return *uses;
    }
    let text = code.code_at(piece.start);
    let uses = text.is_none_or(|text| uses_red_zone(&text, piece));
    known().insert(piece.start, uses);
    uses
}

/// Returns the pieces of code from which control enters `range` other than by calls. `None` if
/// they are not all known.
fn sources(code: &ObjectCode, range: Extent) -> Option<Vec<Extent>> {
    let targets = code.targets_at(range.start)?;
    if targets.stray_into(range).is_some() {
        return None;
    }
    let jumps = targets.crossing_into(range).iter();
    let mut from: Vec<Extent> = jumps.map(|jump| code.around(jump.1)).collect();
    let before = code.before(range.start);
    let is_target = |padding| targets.any_in(padding).is_some();
    if runs_into_end(&code.code_at(range.start)?, before, is_target) {
        from.push(before);
    }
    Some(from)
}
