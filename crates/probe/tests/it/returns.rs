//! Return probes, each test in a process of its own.

use crate::support::in_child;
use capriole_probe::{ReturnProbe, State};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[inline(never)]
extern "C" fn depth(number: u64) -> u64 {
    if black_box(number) == 0 {
        return 0;
    }
    let below = black_box(depth as extern "C" fn(u64) -> u64)(number - 1);
    black_box(below) + 1
}

fn called(number: u64) -> u64 {
    black_box(depth as extern "C" fn(u64) -> u64)(number)
}

fn place() -> usize {
    depth as extern "C" fn(u64) -> u64 as usize
}

#[test]
fn data_of_each_call_comes_to_its_return() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU64 = AtomicU64::new(0);
    in_child("returns::data_of_each_call_comes_to_its_return", || {
        let probe = ReturnProbe::at(place());
        let registered = unsafe {
            probe.register(
                |regs| Some((regs.di as u8, regs.di, [regs.di; 3])),
                |(byte, number, three), call, regs| {
                    CALLS.fetch_add(1, Relaxed);
                    let right = regs.ax == number
                        && three == [number; 3]
                        && u64::from(byte) == number
                        && regs.sp == call.sp + 8
                        && regs.ip == call.return_address;
                    WRONG.fetch_add(u64::from(!right), Relaxed);
                },
            )
        }
        .unwrap();
        assert_eq!(called(50), 50);
        assert_eq!(CALLS.load(Relaxed), 51);
        assert_eq!(WRONG.load(Relaxed), 0);
        assert_eq!(registered.missed(), 0);
        assert!(registered.address() >= place());
        registered.unregister().unwrap();
        assert_eq!(called(50), 50);
        assert_eq!(CALLS.load(Relaxed), 51);
    });
}

#[test]
fn an_entry_chooses_and_a_return_changes_the_result() {
    in_child(
        "returns::an_entry_chooses_and_a_return_changes_the_result",
        || {
            let probe = ReturnProbe::at(place());
            let _registered = unsafe {
                probe.register(
                    |regs| (regs.di == 7).then_some(()),
                    |(), _, regs| regs.ax += 100,
                )
            }
            .unwrap();
            assert_eq!(called(6), 6);
            assert_eq!(called(7), 107);
            assert_eq!(called(8), 108);
        },
    );
}

#[test]
fn a_function_that_ends_in_a_jump_is_followed_by_its_return_address() {
    #[inline(never)]
    extern "C" fn jumping(number: u64) -> u64 {
        black_box(depth as extern "C" fn(u64) -> u64)(number + 1)
    }
    static RESULT: AtomicU64 = AtomicU64::new(0);
    in_child(
        "returns::a_function_that_ends_in_a_jump_is_followed_by_its_return_address",
        || {
            let place = jumping as extern "C" fn(u64) -> u64 as usize;
            let handler = |twice: u64, _: &_, regs: &mut capriole_probe::Registers| {
                RESULT.store(twice * 1000 + regs.result(), Relaxed);
            };
            let entry = |regs: &mut capriole_probe::Registers| Some(2 * regs.di);
            let probe = ReturnProbe::at(place).by_address();
            let registered = unsafe { probe.register(entry, handler) }.unwrap();
            let function = black_box(jumping as extern "C" fn(u64) -> u64);
            assert_eq!(function(20), 21);
            assert_eq!(RESULT.load(Relaxed), 40_021);
            assert_eq!(registered.missed(), 0);
            registered.unregister().unwrap();
            assert_eq!(function(30), 31);
            assert_eq!(RESULT.load(Relaxed), 40_021);
        },
    );
}

#[test]
fn several_are_registered_together_enabled_and_disabled() {
    #[inline(never)]
    extern "C" fn plus_one(number: u64) -> u64 {
        black_box(number) + 1
    }
    static CALLS: AtomicU64 = AtomicU64::new(0);
    in_child(
        "returns::several_are_registered_together_enabled_and_disabled",
        || {
            let other = plus_one as extern "C" fn(u64) -> u64;
            let register = |places: [usize; 2]| {
                let probes = places.map(|place| ReturnProbe::at(place).disabled());
                let handler = |(), _: &_, _: &mut capriole_probe::Registers| {
                    CALLS.fetch_add(1, Relaxed);
                };
                unsafe { ReturnProbe::register_all(probes, |_| Some(()), handler) }
            };
            assert!(register([place(), 8]).is_err());
            let probes = register([place(), other as usize]).unwrap();
            let both = || called(2) + black_box(other)(4);
            assert_eq!(both(), 7);
            assert_eq!(CALLS.load(Relaxed), 0);
            assert_eq!(probes[0].status().unwrap().state, State::Disabled);
            probes[0].enable().unwrap();
            assert_ne!(probes[0].status().unwrap().state, State::Disabled);
            assert_eq!(both(), 7);
            assert_eq!(CALLS.load(Relaxed), 3);
            probes[1].enable().unwrap();
            probes[0].disable().unwrap();
            assert_eq!(both(), 7);
            assert_eq!(CALLS.load(Relaxed), 4);
            drop(probes);
            assert_eq!(both(), 7);
            assert_eq!(CALLS.load(Relaxed), 4);
        },
    );
}

#[test]
fn calls_above_the_limit_are_missed() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    in_child("returns::calls_above_the_limit_are_missed", || {
        let probe = ReturnProbe::at(place()).max_active(3);
        let registered = unsafe {
            probe.register(
                |_| Some(()),
                |(), _, _| {
                    CALLS.fetch_add(1, Relaxed);
                },
            )
        }
        .unwrap();
        assert_eq!(called(9), 9);
        assert_eq!(CALLS.load(Relaxed), 3);
        assert_eq!(registered.missed(), 7);
    });
}

#[test]
fn closures_may_use_vector_registers() {
    #[inline(never)]
    extern "C" fn scaled(a: f64, b: f64) -> f64 {
        black_box(a) * b
    }
    in_child("returns::closures_may_use_vector_registers", || {
        let place = scaled as extern "C" fn(f64, f64) -> f64 as usize;
        let used = |bits: u64| {
            let value = f64::from_bits(bits | 0x3ff0_0000_0000_0000);
            black_box((black_box(value) * 1.5 + value.sqrt()).to_bits())
        };
        let _registered = unsafe {
            ReturnProbe::at(place).register(
                move |regs| Some(used(regs.sp)),
                move |value, _, _| {
                    used(value);
                },
            )
        }
        .unwrap();
        for number in 0..100 {
            let number = f64::from(number);
            let result = black_box(scaled as extern "C" fn(f64, f64) -> f64)(number, 2.0);
            assert_eq!(result, number * 2.0);
        }
    });
}
