//! Functions that share a name: each is an instance of one generic function, or a closure of it.
//!
//! `rust_namesakes` calls `show` of bytes ten times, that of words twenty times, and `alone` ten times.

use std::hint::black_box;
use std::ops::AddAssign;

#[inline(never)]
fn show<T: Copy + AddAssign + Into<u64>>(value: T) -> u64 {
    let mut sum = black_box(value);
    sum += value;
    let times = |by: u64| black_box(black_box(sum).into() * by);
    black_box(&times as &dyn Fn(u64) -> u64)(3)
}

#[inline(never)]
fn alone(value: u64) -> u64 {
    black_box(black_box(value) * 5 + 1)
}

fn main() {
    let mut sum = 0_u64;
    for round in 0..10_u64 {
        sum += show(round as u8);
        sum += show(round as u32) + show(round as u32 + 1);
        sum += alone(round);
    }
    println!("ok {sum}");
}
