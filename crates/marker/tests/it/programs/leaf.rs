//! A leaf function that keeps variables in memory across a marker.
use std::ptr::{read_volatile, write_volatile};

#[inline(never)]
fn leaf(a: i64, n: usize) -> i64 {
    let mut kept = [0_i64; 6];
    for (value, place) in (a..).zip(&mut kept) {
        // SAFETY: `place` is a reference.
        unsafe { write_volatile(place, value) };
    }
    capriole_marker::mark!(leaf, leaf, "a=%ld", a);
    // SAFETY: the argument is a reference.
    unsafe { read_volatile(&kept[n]) - n as i64 }
}

fn main() {
    let wrong = (0..10_000).filter(|&i| leaf(i, i as usize % 6) != i).count();
    println!("{wrong} of 10000 wrong");
}
