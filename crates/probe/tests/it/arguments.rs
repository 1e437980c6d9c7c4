//! Probes with the parameters of the function, each test in a process of its own.

use crate::support::in_child;
use capriole_probe::{ArgumentProbe, Place};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static SEEN: AtomicU64 = AtomicU64::new(0);

type Many = extern "C" fn(u64, f64, u64, u64, f64, u64, u64, u64, u64) -> u64;

#[inline(never)]
extern "C" fn many(a: u64, b: f64, c: u64, d: u64, e: f64, f: u64, g: u64, h: u64, i: u64) -> u64 {
    black_box(a + b as u64 + c + d + e as u64 + f + g + h + i)
}

extern "C" fn sees_many(
    a: u64,
    b: f64,
    c: u64,
    d: u64,
    e: f64,
    f: u64,
    g: u64,
    h: u64,
    i: u64,
) -> u64 {
    let digits = [a, b as u64, c, d, e as u64, f, g, h, i];
    SEEN.store(
        digits.iter().fold(0, |all, digit| all * 10 + digit),
        Relaxed,
    );
    0
}

#[test]
fn the_handler_has_all_arguments() {
    in_child("arguments::the_handler_has_all_arguments", || {
        let registered = unsafe { ArgumentProbe::<Many>::new(many, sees_many).register() }.unwrap();
        let sum = black_box(many as Many)(1, 2.0, 3, 4, 5.0, 6, 7, 8, 9);
        assert_eq!(sum, 45);
        assert_eq!(SEEN.load(Relaxed), 123_456_789);
        registered.disable().unwrap();
        black_box(many as Many)(9, 2.0, 3, 4, 5.0, 6, 7, 8, 9);
        assert_eq!(SEEN.load(Relaxed), 123_456_789);
        registered.enable().unwrap();
        assert_eq!(registered.missed(), 0);
        registered.status().unwrap();
        black_box(many as Many)(9, 2.0, 3, 4, 5.0, 6, 7, 8, 9);
        assert_eq!(SEEN.load(Relaxed), 923_456_789);
        registered.unregister().unwrap();
    });
}

#[test]
fn several_are_registered_together() {
    in_child("arguments::several_are_registered_together", || {
        let probe = || ArgumentProbe::<Many>::new(many, sees_many).disabled();
        let bad = ArgumentProbe::<Many>::placed(Place::at(8), sees_many);
        assert!(unsafe { ArgumentProbe::register_all([probe(), bad]) }.is_err());
        let probes = unsafe { ArgumentProbe::register_all([probe(), probe()]) }.unwrap();
        let call = || black_box(many as Many)(1, 2.0, 3, 4, 5.0, 6, 7, 8, 9);
        assert_eq!((call(), SEEN.load(Relaxed)), (45, 0));
        probes[1].enable().unwrap();
        assert_eq!((call(), SEEN.load(Relaxed)), (45, 123_456_789));
    });
}

#[test]
fn functions_of_rust_are_called_as_rust_calls_them() {
    type Texts = fn(&'static str, &'static str, [u64; 5]) -> String;
    #[inline(never)]
    fn joined(a: &'static str, b: &'static str, numbers: [u64; 5]) -> String {
        format!("{a}{b}{}", numbers.iter().sum::<u64>())
    }
    fn seen(a: &'static str, b: &'static str, numbers: [u64; 5]) -> String {
        SEEN.store((a.len() * 100 + b.len()) as u64 + numbers[4], Relaxed);
        String::new()
    }
    in_child(
        "arguments::functions_of_rust_are_called_as_rust_calls_them",
        || {
            let probe = ArgumentProbe::<Texts>::new(joined, seen);
            let _registered = unsafe { probe.register() }.unwrap();
            let text = black_box(joined as Texts)("abc", "defg", [1, 2, 3, 4, 5000]);
            assert_eq!(text, "abcdefg5010");
            assert_eq!(SEEN.load(Relaxed), 5304);
        },
    );
}

#[test]
fn a_function_by_its_name_is_called_with_its_arguments() {
    type Random = unsafe extern "C" fn(u32);
    unsafe extern "C" {
        fn srandom(seed: u32);
    }
    unsafe extern "C" fn seen(seed: u32) {
        SEEN.store(u64::from(seed), Relaxed);
    }
    in_child(
        "arguments::a_function_by_its_name_is_called_with_its_arguments",
        || {
            let place = Place::symbol("libc", "srandom");
            let probe = ArgumentProbe::<Random>::placed(place, seen);
            let _registered = unsafe { probe.register() }.unwrap();
            unsafe { srandom(4711) };
            assert_eq!(SEEN.load(Relaxed), 4711);
        },
    );
}
