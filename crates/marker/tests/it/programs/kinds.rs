//! Markers of every kind. Prints how often a guarded argument was evaluated.
use capriole_marker::{Argument, enabled, mark, mark_guarded, mark_text};
use std::cell::Cell;
use std::ptr::NonNull;

unsafe extern "C" {
    static mut kinds_guarded_semaphore: u16;
}

thread_local! { static EVALUATED: Cell<u32> = const { Cell::new(0) }; }

fn costly() -> u32 {
    EVALUATED.set(EVALUATED.get() + 1);
    EVALUATED.get()
}

fn generic<T: Argument>(value: T, label: &str) {
    mark!(kinds, generic, "length=%zu", label.len());
    let _ = value;
}

#[inline(never)]
fn rounds() -> u32 {
    for round in 0..5_u8 {
        mark_guarded!(kinds, guarded, "%u %hhu", costly(), round);
        if enabled!(kinds, guarded) {
            let prepared = costly();
            mark!(kinds, guarded, "%u", prepared);
        }
    }
    EVALUATED.get()
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leaf(a: i32, b: i64) -> i32 {
    mark!(kinds, leaf, "a=%d b=%ld", a, b);
    a
}

pub fn never_called(a: u32) {
    mark!(kinds, never_called, "%u", a);
}

fn main() {
    let mut number = std::env::args().count() as u32;
    mark!(kinds, bare);
    mark!(kinds, none, "nothing");
    mark!(kinds, integers, "%hhd %hd %d %ld %zd %hhu %hu %u %lu %zu %d %c", -1_i8, -2_i16, -3_i32, -4_i64, -5_isize,
        1_u8, 2_u16, number, 4_u64, 5_usize, number > 1, 'x');
    mark!(kinds, floats, "%u %f %g", number, f64::from(number), 2.5_f32);
    let pointer: *const u32 = &number;
    mark!(kinds, pointers, "%p %p %p %s %s %p", pointer, &3_u64, NonNull::<u64>::dangling(), c"text", c"raw".as_ptr(),
        Some(&4_u16));
    mark!(kinds, exclusive, "%p", &mut number);
    mark!(kinds, signs, "100%% {x} {{y}} $1 \"q\" \\ \t%u\n é", number,);
    generic(1_u8, "one");
    generic(1.0_f64, "two");
    mark_text(c"done");
    leaf(1, 2);
    let off = rounds();
    // SAFETY: there is one thread, and the counter is never borrowed.
    unsafe { kinds_guarded_semaphore += 1 };
    let on = rounds();
    // SAFETY: as above.
    unsafe { kinds_guarded_semaphore -= 1 };
    println!("off {off} on {on} off {}", rounds());
}
