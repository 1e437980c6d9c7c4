//! Probes of instructions, each test in a process of its own.

use crate::support::{in_child, may_end};
use capriole_probe::{Action, Fault, Place, Probe, State};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[inline(never)]
fn threefold(number: u64) -> u64 {
    black_box(number) * 3
}

#[inline(never)]
extern "C" fn triple(number: u64) -> u64 {
    let product = threefold(number);
    product + black_box(1)
}

/// Calls it where the compiler does not see which function that is.
fn called(number: u64) -> u64 {
    black_box(triple as extern "C" fn(u64) -> u64)(number)
}

fn place() -> usize {
    triple as extern "C" fn(u64) -> u64 as usize
}

#[test]
fn a_closure_is_called_at_each_hit_until_its_guard_is_dropped() {
    in_child(
        "probes::a_closure_is_called_at_each_hit_until_its_guard_is_dropped",
        || {
            let sum = Arc::new(AtomicU64::new(0));
            let inside = Arc::clone(&sum);
            let probe = Probe::at(place()).before(move |regs| {
                inside.fetch_add(regs.argument(0).unwrap(), Relaxed);
                Action::Continue
            });
            let registered = unsafe { probe.register() }.unwrap();
            for number in 0..100 {
                assert_eq!(called(number), 3 * number + 1);
            }
            assert_eq!(sum.load(Relaxed), 4950);
            assert_eq!(capriole_probe::optimize(Duration::from_secs(300)), Ok(0));
            let status = registered.status().unwrap();
            assert_eq!(status.state, State::Optimized, "{status:?}");
            assert!(status.why.contains("jump"), "{status:?}");
            called(1000);
            assert_eq!(sum.load(Relaxed), 5950);
            registered.disable().unwrap();
            assert_eq!(registered.status().unwrap().state, State::Disabled);
            called(1000);
            assert_eq!(sum.load(Relaxed), 5950);
            registered.enable().unwrap();
            called(50);
            assert_eq!(sum.load(Relaxed), 6000);
            assert_eq!(registered.missed(), 0);
            let list = capriole_probe::list().unwrap();
            assert!(list.contains("  k  ") && list.contains("triple"), "{list}");
            assert_eq!(Arc::strong_count(&sum), 2);
            drop(registered);
            assert_eq!(Arc::strong_count(&sum), 1, "the closure is dropped");
            called(1000);
            assert_eq!(sum.load(Relaxed), 6000);
            unsafe { capriole_probe::finish() }.unwrap();
            capriole_probe::start().unwrap();
            capriole_probe::start().unwrap();
        },
    );
}

#[test]
fn all_are_disarmed_and_armed_again() {
    in_child("probes::all_are_disarmed_and_armed_again", || {
        static HITS: AtomicU64 = AtomicU64::new(0);
        let probe = Probe::at(place()).before(|_| {
            HITS.fetch_add(1, Relaxed);
            Action::Continue
        });
        let registered = unsafe { probe.register() }.unwrap();
        assert!(!capriole_probe::all_disarmed());
        capriole_probe::disarm_all().unwrap();
        assert!(capriole_probe::all_disarmed());
        called(1);
        assert_eq!(HITS.load(Relaxed), 0);
        let status = registered.status().unwrap();
        assert_eq!(status.state, State::Disabled, "{status:?}");
        assert!(status.why.contains("all probes are disarmed"), "{status:?}");
        capriole_probe::arm_all().unwrap();
        assert!(!capriole_probe::all_disarmed());
        called(1);
        assert_eq!(HITS.load(Relaxed), 1);
    });
}

#[test]
fn handlers_change_registers_and_skip() {
    in_child("probes::handlers_change_registers_and_skip", || {
        let changed = Probe::at(place()).before(|regs| {
            regs.di += 10;
            Action::Continue
        });
        let changed = unsafe { changed.register() }.unwrap();
        assert_eq!(called(1), 34);
        changed.unregister().unwrap();
        let returned = Probe::at(place()).before(|regs| {
            // As if the function had returned.
            regs.ax = 77;
            regs.ip = unsafe { *(regs.sp as *const u64) };
            regs.sp += 8;
            Action::Skip
        });
        let returned = unsafe { returned.register() }.unwrap();
        assert_eq!(called(1), 77);
        returned.unregister().unwrap();
        assert_eq!(called(1), 4);
    });
}

#[test]
fn a_handler_after_the_instruction_sees_what_it_did() {
    static STACK: AtomicU64 = AtomicU64::new(0);
    static STEP: AtomicU64 = AtomicU64::new(0);
    in_child(
        "probes::a_handler_after_the_instruction_sees_what_it_did",
        || {
            let probe = Probe::at(place())
                .before(|regs| {
                    STACK.store(regs.ip, Relaxed);
                    Action::Continue
                })
                .after(|regs| STEP.store(regs.ip - STACK.load(Relaxed), Relaxed));
            let registered = unsafe { probe.register() }.unwrap();
            assert_eq!(called(5), 16);
            assert_eq!(STACK.load(Relaxed), registered.address() as u64);
            assert!((1..16).contains(&STEP.load(Relaxed)), "{STEP:?}");
        },
    );
}

#[test]
fn closures_may_use_vector_registers() {
    #[inline(never)]
    extern "C" fn scaled(a: f64, b: f64) -> f64 {
        black_box(a) * b
    }
    in_child("probes::closures_may_use_vector_registers", || {
        let bits = AtomicU64::new(1f64.to_bits());
        let place = scaled as extern "C" fn(f64, f64) -> f64 as usize;
        let probe = Probe::at(place).before(move |_| {
            let value = f64::from_bits(bits.load(Relaxed));
            bits.store((value * 1.5 + value.sqrt()).to_bits(), Relaxed);
            Action::Continue
        });
        let _registered = unsafe { probe.register() }.unwrap();
        for number in 0..100 {
            let number = f64::from(number);
            let result = black_box(scaled as extern "C" fn(f64, f64) -> f64)(number, 2.0);
            assert_eq!(result, number * 2.0);
        }
    });
}

#[test]
fn several_are_registered_together_or_not_at_all() {
    static HITS: AtomicU64 = AtomicU64::new(0);
    fn counting(place: Place) -> Probe {
        Probe::new(place).before(|_| {
            HITS.fetch_add(1, Relaxed);
            Action::Continue
        })
    }
    in_child(
        "probes::several_are_registered_together_or_not_at_all",
        || {
            let bad = vec![
                counting(Place::at(place())),
                counting(Place::symbol("libc", "no_such_function")),
            ];
            let error = unsafe { Probe::register_all(bad) }.unwrap_err();
            assert_eq!(error.code(), 2, "{error}");
            assert!(error.message().contains("no_such_function"), "{error}");
            called(1);
            assert_eq!(HITS.load(Relaxed), 0);
            let good = [
                counting(Place::at(place())),
                counting(Place::symbol("libc", "getppid")),
            ];
            let registered = unsafe { Probe::register_all(good) }.unwrap();
            called(1);
            let _ = std::os::unix::process::parent_id();
            assert_eq!(HITS.load(Relaxed), 2);
            drop(registered);
            called(1);
            assert_eq!(HITS.load(Relaxed), 2);
        },
    );
}

#[test]
fn what_cannot_be_given_to_the_library_is_an_error() {
    in_child(
        "probes::what_cannot_be_given_to_the_library_is_an_error",
        || {
            let never = |place| Probe::new(place).before(|_| Action::Continue);
            for (place, code) in [
                (Place::symbol(None, "a\0b"), 22),
                (Place::line("file.c:12").offset(3), 22),
                (Place::line("file.c"), 22),
                (Place::line("no_such_file.c:12"), 2),
                (Place::at(0x1000), 14),
                (Place::symbol("libno_such", "f"), 2),
            ] {
                let error = unsafe { never(place.clone()).register() }.unwrap_err();
                assert_eq!(error.code(), code, "{place:?}: {error}");
                assert!(!error.message().is_empty());
            }
        },
    );
}

#[test]
fn a_source_line_is_a_place() {
    static HITS: AtomicU64 = AtomicU64::new(0);
    in_child("probes::a_source_line_is_a_place", || {
        let line = include_str!("probes.rs")
            .lines()
            .position(|line| line.contains("product = threefold"))
            .unwrap();
        let probe = Probe::line(&format!("it/probes.rs:{}", line + 1)).before(|_| {
            HITS.fetch_add(1, Relaxed);
            Action::Continue
        });
        let _registered = unsafe { probe.register() }.unwrap();
        called(1);
        assert_eq!(HITS.load(Relaxed), 1);
    });
}

#[test]
fn handlers_do_not_register_and_their_own_hits_are_missed() {
    static CODE: AtomicU64 = AtomicU64::new(0);
    in_child(
        "probes::handlers_do_not_register_and_their_own_hits_are_missed",
        || {
            let probe = Probe::at(place()).before(|_| {
                called(1);
                let inner = Probe::symbol("libc", "getppid").before(|_| Action::Continue);
                let error = unsafe { inner.register() }.map(drop).unwrap_err();
                CODE.store(error.code() as u64, Relaxed);
                Action::Continue
            });
            let registered = unsafe { probe.register() }.unwrap();
            called(1);
            called(2);
            assert_eq!(CODE.load(Relaxed), 35, "EDEADLK");
            assert_eq!(registered.missed(), 2);
        },
    );
}

#[test]
fn a_guard_that_a_handler_drops_stays_registered() {
    use std::sync::Mutex;
    static GUARD: Mutex<Option<capriole_probe::Registered>> = Mutex::new(None);
    static HITS: AtomicU64 = AtomicU64::new(0);
    in_child(
        "probes::a_guard_that_a_handler_drops_stays_registered",
        || {
            let probe = Probe::at(place()).before(|_| {
                HITS.fetch_add(1, Relaxed);
                drop(GUARD.lock().unwrap().take());
                Action::Continue
            });
            *GUARD.lock().unwrap() = Some(unsafe { probe.register() }.unwrap());
            for number in 0..10 {
                assert_eq!(called(number), 3 * number + 1);
            }
            assert_eq!(HITS.load(Relaxed), 10);
        },
    );
}

#[test]
fn a_fault_in_a_handler_may_be_abandoned() {
    static SIGNAL: AtomicU64 = AtomicU64::new(0);
    in_child("probes::a_fault_in_a_handler_may_be_abandoned", || {
        let probe = Probe::at(place())
            .before(|regs| {
                let nowhere = black_box(8usize) as *const u64;
                regs.di = unsafe { nowhere.read_volatile() };
                Action::Skip
            })
            .on_fault(|_, signal| {
                SIGNAL.store(signal as u64, Relaxed);
                Fault::Abandon
            });
        let _registered = unsafe { probe.register() }.unwrap();
        assert_eq!(called(1), 4);
        assert_eq!(SIGNAL.load(Relaxed), 11);
    });
}

#[test]
fn a_panic_in_a_handler_aborts() {
    let output = may_end("probes::a_panic_in_a_handler_aborts", || {
        let probe = Probe::at(place()).before(|_| panic!("of a handler"));
        let _registered = unsafe { probe.register() }.unwrap();
        let _ = std::panic::catch_unwind(|| called(1));
        std::process::exit(0);
    });
    if let Some(output) = output {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(output.status.signal(), Some(6), "{:?}", output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("of a handler"), "{said}");
    }
}

#[test]
fn all_threads_hit_it_while_it_comes_and_goes() {
    in_child("probes::all_threads_hit_it_while_it_comes_and_goes", || {
        let stop = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    let mut calls = 0;
                    while stop.load(Relaxed) == 0 {
                        assert_eq!(called(calls), 3 * calls + 1);
                        calls += 1;
                    }
                })
            })
            .collect();
        let seen = Arc::new(AtomicU64::new(0));
        for _ in 0..20 {
            let before = seen.load(Relaxed);
            let inside = Arc::clone(&seen);
            let probe = Probe::at(place()).before(move |_| {
                inside.fetch_add(1, Relaxed);
                Action::Continue
            });
            let registered = unsafe { probe.register() }.unwrap();
            while seen.load(Relaxed) == before {
                std::thread::yield_now();
            }
            registered.unregister().unwrap();
            assert_eq!(Arc::strong_count(&seen), 1);
        }
        stop.store(1, Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
