//! Large structures that are passed on the stack: as pointers, or in `extern "C"` functions themselves.
use std::hint::black_box;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Large {
    first: u64,
    small: u32,
    sign: i16,
    list: [u64; 4],
    real: f64,
}

#[inline(never)]
fn other(k: u64) -> u64 {
    black_box(k).wrapping_mul(3)
}

#[inline(never)]
#[allow(clippy::too_many_arguments)]
pub fn pointers(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, s: Large, g: u64, t: Large) -> u64 {
    let x = other(a ^ b ^ c ^ d);
    let y = other(x ^ e ^ f ^ s.first);
    other(y ^ t.list[3] ^ g ^ s.list[1])
}

#[inline(never)]
#[allow(clippy::too_many_arguments)]
pub fn all(a: Large, b: Large, c: Large, d: Large, e: Large, f: Large, s: Large, t: Large) -> u64 {
    let x = other(a.first ^ b.first ^ c.first);
    let y = other(x ^ d.first ^ e.first ^ f.first);
    other(y ^ s.list[3] ^ t.list[1])
}

#[inline(never)]
pub extern "C" fn values(g: u64, s: Large, t: Large) -> u64 {
    let x = other(s.first ^ g);
    let y = other(x ^ t.list[1]);
    other(y ^ s.list[3])
}

/// Nothing tells whether `s` is a pointer or the structure.
#[inline(never)]
#[allow(clippy::too_many_arguments)]
pub fn unclear(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, s: Large) -> u64 {
    let x = other(a ^ b ^ c ^ d ^ e ^ f);
    other(x ^ s.first)
}

fn main() {
    let large = |first: u64| {
        black_box(Large {
            first,
            small: 12,
            sign: -13,
            list: [1, 2, 3, 4],
            real: 1.5,
        })
    };
    let n = |number: u64| black_box(number);
    let mut sum = pointers(n(1), n(2), n(3), n(4), n(5), n(6), large(11), n(7), large(77));
    sum ^= all(
        large(1),
        large(2),
        large(3),
        large(4),
        large(5),
        large(6),
        large(11),
        large(77),
    );
    sum ^= values(n(7), large(11), large(77));
    sum ^= unclear(n(1), n(2), n(3), n(4), n(5), n(6), large(11));
    println!("{sum}");
}
