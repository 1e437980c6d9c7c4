//! Random constants as fields.

#![allow(dead_code)] // each test uses a part

use crate::support::random::Random;
use capriole_codegen::work::Word;

/// Returns a constant that fits in a sign-extended 32-bit immediate, or one that needs 64 bits;
/// often close to the boundary between them.
pub fn random(random: &mut Random) -> u64 {
    let border = [i32::MIN, -1, 0, i32::MAX].map(|edge| i64::from(edge) as u64);
    let border = random.pick(&border).wrapping_add(random.below(5) as u64);
    match random.below(4) {
        0 => border.wrapping_sub(2),
        1 => random.below(300) as u64,
        2 => (random.below(300) as u64).wrapping_neg(),
        _ => random.number(),
    }
}

/// Changes a constant to another one of the same form.
pub fn change(word: &mut Word) {
    if let Word::Constant(value) = word {
        *value ^= 0x55;
    }
}
