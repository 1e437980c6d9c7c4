//! Replacements, each test in a process of its own.

use crate::support::in_child;
use capriole_probe::{Original, Place, Replacement, State};
use std::hint::black_box;
use std::time::Duration;

type Function = extern "C" fn(u64, u64) -> u64;

#[inline(never)]
extern "C" fn sum(a: u64, b: u64) -> u64 {
    black_box(a) + black_box(b)
}

fn called(a: u64, b: u64) -> u64 {
    black_box(sum as Function)(a, b)
}

static ORIGINAL: Original<Function> = Original::new();

extern "C" fn product(a: u64, b: u64) -> u64 {
    let sum = ORIGINAL.get().map_or(0, |sum| sum(a, b));
    1000 * a * b + sum
}

#[test]
fn a_replacement_is_called_and_may_call_the_function() {
    in_child(
        "replace::a_replacement_is_called_and_may_call_the_function",
        || {
            assert!(ORIGINAL.get().is_none());
            let replacement = Replacement::<Function>::new(sum, product).original(&ORIGINAL);
            let replaced = unsafe { replacement.register() }.unwrap();
            assert_eq!(called(3, 4), 12_007);
            assert_eq!(capriole_probe::optimize(Duration::from_secs(300)), Ok(0));
            let status = replaced.status().unwrap();
            assert_eq!(status.state, State::Optimized, "{status:?}");
            assert_eq!(called(3, 5), 15_008);
            assert!(replaced.address() >= sum as Function as usize);
            replaced.restore().unwrap();
            assert_eq!(called(3, 4), 7);
            assert_eq!(ORIGINAL.get().unwrap()(3, 4), 7, "it stays valid");
            for _ in 0..5 {
                let again = Replacement::<Function>::new(sum, product).original(&ORIGINAL);
                let again = unsafe { again.register() }.unwrap();
                assert_eq!(called(3, 4), 12_007);
                drop(again);
                assert_eq!(called(3, 4), 7);
            }
        },
    );
}

#[test]
fn a_replacement_is_disabled_and_enabled() {
    in_child("replace::a_replacement_is_disabled_and_enabled", || {
        let replacement = Replacement::<Function>::new(sum, product).disabled();
        let replaced = unsafe { replacement.original(&ORIGINAL).register() }.unwrap();
        assert_eq!(called(3, 4), 7);
        assert_eq!(replaced.status().unwrap().state, State::Disabled);
        replaced.enable().unwrap();
        assert_eq!(called(3, 4), 12_007);
        replaced.disable().unwrap();
        assert_eq!(called(3, 4), 7);
    });
}

#[test]
fn a_function_of_a_library_is_replaced_by_its_name() {
    type Srandom = unsafe extern "C" fn(u32);
    unsafe extern "C" {
        fn srandom(seed: u32);
        fn random() -> i64;
    }
    static ORIGINAL: Original<Srandom> = Original::new();
    unsafe extern "C" fn same(_: u32) {
        unsafe { ORIGINAL.get().unwrap()(1) }
    }
    in_child(
        "replace::a_function_of_a_library_is_replaced_by_its_name",
        || {
            let seeded = |seed| {
                unsafe { srandom(seed) };
                unsafe { random() }
            };
            let (one, two) = (seeded(1), seeded(2));
            assert_ne!(one, two);
            let place = Place::symbol("libc", "srandom");
            let replacement = Replacement::<Srandom>::placed(place, same).original(&ORIGINAL);
            let replaced = unsafe { replacement.register() }.unwrap();
            assert_eq!(seeded(2), one);
            drop(replaced);
            assert_eq!(seeded(2), two);
        },
    );
}
