//! A Rust program with threads, generics, closures, trait objects, and caught panics.
//! `rustprog [--threads N] [--seconds S] [--calls N]`; ends like hammer. In each round a thread calls
//! `rustprog::work` once with (thread, seq).

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

#[inline(never)]
pub fn work(thread: u64, seq: u64) -> u64 {
    mix(thread).wrapping_add(mix(seq))
}

/// Returns two words, which come back in two registers.
#[inline(never)]
pub fn halves(thread: u64, seq: u64) -> (u64, u64) {
    (mix(seq) >> 32, mix(thread) & 0xffff_ffff)
}

#[inline(never)]
pub fn fallible(seq: u64) -> Result<u64, String> {
    if seq % 5 == 0 { Err(format!("fifth: {seq}")) } else { Ok(seq * 2) }
}

/// Increments the borrowed number when dropped, also during a panic.
struct Guard<'a>(&'a mut u64);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *self.0 += 1;
    }
}

#[inline(never)]
pub fn panicking(seq: u64, dropped: &mut u64) -> u64 {
    let _guard = Guard(dropped);
    if seq % 7 == 0 {
        std::panic::resume_unwind(Box::new(seq));
    }
    seq + 1
}

trait Shape {
    fn area(&self, scale: u64) -> u64;
}
struct Square(u64);
struct Pair(u64, u64);
impl Shape for Square {
    #[inline(never)]
    fn area(&self, scale: u64) -> u64 {
        self.0 * self.0 * scale
    }
}
impl Shape for Pair {
    #[inline(never)]
    fn area(&self, scale: u64) -> u64 {
        self.0 * self.1 + scale
    }
}

#[inline(never)]
pub fn apply<F: Fn(u64) -> u64>(f: F, x: u64) -> u64 {
    f(x).wrapping_add(1)
}

fn bad(what: &str, thread: u64, seq: u64) -> ! {
    println!("BAD {what} thread {thread} seq {seq}");
    std::process::exit(1)
}

fn round(thread: u64, seq: u64, shapes: &[Box<dyn Shape>; 2]) {
    let small = seq % 1000;
    if work(thread, seq) != mix(thread).wrapping_add(mix(seq)) {
        bad("work", thread, seq);
    }
    if halves(thread, seq) != (mix(seq) >> 32, mix(thread) & 0xffff_ffff) {
        bad("halves", thread, seq);
    }
    match fallible(small) {
        Ok(value) if small % 5 != 0 && value == small * 2 => {}
        Err(text) if small % 5 == 0 && text == format!("fifth: {small}") => {}
        _ => bad("fallible", thread, seq),
    }
    let mut dropped = 0;
    let result = catch_unwind(AssertUnwindSafe(|| panicking(seq, &mut dropped)));
    let right = match result {
        Ok(value) => seq % 7 != 0 && value == seq + 1,
        Err(payload) => seq % 7 == 0 && payload.downcast_ref::<u64>() == Some(&seq),
    };
    if !right || dropped != 1 {
        bad("panicking", thread, seq);
    }
    if shapes[0].area(3) != 12 || shapes[1].area(3) != 9 {
        bad("area", thread, seq);
    }
    if apply(|x| x ^ thread, seq) != (seq ^ thread).wrapping_add(1) {
        bad("apply", thread, seq);
    }
}

fn main() {
    let mut threads = 2;
    let mut limit = None;
    let mut most = u64::MAX;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    for pair in arguments.chunks(2) {
        match (pair[0].as_str(), pair.get(1)) {
            ("--threads", Some(n)) => threads = n.parse().expect("a number"),
            ("--seconds", Some(s)) => limit = Some(Duration::from_secs_f64(s.parse().expect("seconds"))),
            ("--calls", Some(n)) => most = n.parse().expect("a number"),
            _ => panic!("what is {}?", pair[0]),
        }
    }
    let pool: Vec<_> = (0..threads)
        .map(|thread: u64| {
            std::thread::spawn(move || {
                let shapes: [Box<dyn Shape>; 2] = [Box::new(Square(2)), Box::new(Pair(2, 3))];
                let mut seq = 0;
                while !STOP.load(Ordering::Relaxed) && seq < most {
                    round(thread, seq, &shapes);
                    seq += 1;
                }
                seq
            })
        })
        .collect();
    println!("ready {}", std::process::id());
    std::io::stdout().flush().expect("standard output");
    let start = Instant::now();
    match limit {
        _ if most < u64::MAX => {}
        Some(limit) => {
            while start.elapsed() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        None => drop(std::io::stdin().read(&mut [0; 64])),
    }
    STOP.store(most == u64::MAX, Ordering::Relaxed);
    let mut sum = 0;
    for (thread, handle) in pool.into_iter().enumerate() {
        match handle.join() {
            Ok(calls) => {
                println!("thread {thread} calls {calls}");
                sum += calls;
            }
            Err(_) => bad("a thread panicked", thread as u64, 0),
        }
    }
    println!("ok calls={sum}");
}
