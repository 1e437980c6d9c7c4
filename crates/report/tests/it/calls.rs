//! Pairing of entries and exits into calls.

use crate::common::calls::{Heard, Script};

const NAMES: [&str; 4] = ["main", "parse", "read", "throw"];
const MAIN: u32 = 0;
const PARSE: u32 = 1;
const READ: u32 = 2;
const THROW: u32 = 3;

/// Stack addresses of a thread and of a coroutine.
const STACK: u64 = 0x7ffc_0000_8000;
const HEAP: u64 = 0x55d0_0000_9000;

fn heard(script: &Script) -> Heard {
    let scratch = tempfile::tempdir().unwrap();
    Heard::of(&script.write(scratch.path(), &NAMES))
}

fn told(script: &Script) -> String {
    heard(script).told(&NAMES)
}

#[test]
fn calls_are_nested() {
    let mut script = Script::new();
    script.enter(MAIN, STACK);
    script.enter(PARSE, STACK - 0x40);
    script.leave(PARSE, STACK - 0x40);
    script.cpu = 1;
    script.enter(PARSE, STACK - 0x40);
    script.enter(READ, STACK - 0x80);
    script.leave(READ, STACK - 0x80);
    script.leave(PARSE, STACK - 0x40);
    script.leave(MAIN, STACK);
    insta::assert_snapshot!(told(&script), @r"
    main 1000..8000 self 3000 Returned
      parse 2000..3000 self 1000 Returned
      parse 4000..7000 self 2000 Returned
        read 5000..6000 self 1000 Returned
    ");
}

#[test]
fn a_tail_call_ends_at_the_jump() {
    let mut script = Script::new();
    script.enter(MAIN, STACK);
    script.enter(PARSE, STACK - 0x40);
    script.jump(PARSE, STACK - 0x40);
    script.enter(READ, STACK - 0x40);
    script.leave(READ, STACK - 0x40);
    // A tail call whose jump was not recorded.
    script.enter(PARSE, STACK - 0x40);
    script.enter(READ, STACK - 0x40);
    script.leave(READ, STACK - 0x40);
    script.leave(MAIN, STACK);
    insta::assert_snapshot!(told(&script), @r"
    main 1000..9000 self 5000 Returned
      parse 2000..3000 self 1000 TailCall
      read 4000..5000 self 1000 Returned
      parse 6000..6000 self 0 Abandoned
      read 7000..8000 self 1000 Returned
    ");
}

#[test]
fn recursion_is_without_limit() {
    const LEVELS: u64 = 100_000;
    let mut script = Script::new();
    for level in 0..LEVELS {
        script.enter(PARSE, STACK - level * 48);
    }
    for level in (0..LEVELS).rev() {
        script.leave(PARSE, STACK - level * 48);
    }
    let heard = heard(&script);
    assert_eq!(heard.calls.len() as u64, LEVELS);
    assert!(heard.unpaired.is_empty());
    for (n, call) in (1..).zip(&heard.calls) {
        assert_eq!(call.begin.depth as u64, LEVELS - n);
        assert_eq!(call.duration(), (2 * n - 1) * 1000);
        assert_eq!(call.begin.recursive, n < LEVELS);
        assert!(call.is_certain());
    }
}

/// `main` catches the exception, and then returns, or calls something else.
#[test]
fn what_an_exception_leaves_is_abandoned() {
    let mut script = Script::new();
    script.enter(MAIN, STACK);
    for goes_on in [false, true] {
        script.enter(PARSE, STACK - 0x40);
        script.enter(READ, STACK - 0x80);
        script.leave(READ, STACK - 0x80);
        script.enter(THROW, STACK - 0x90);
        script.time += 50_000;
        if goes_on {
            script.enter(READ, STACK - 0x40);
            script.leave(READ, STACK - 0x40);
        }
    }
    script.leave(MAIN, STACK);
    insta::assert_snapshot!(told(&script), @r"
    main 1000..112000 self 104000 Returned
      parse 2000..5000 self 2000 Abandoned
        read 3000..4000 self 1000 Returned
        throw 5000..5000 self 0 Abandoned
      parse 56000..59000 self 2000 Abandoned
        read 57000..58000 self 1000 Returned
        throw 59000..59000 self 0 Abandoned
      read 110000..111000 self 1000 Returned
    ");
}

#[test]
fn what_began_before_the_recording_is_counted() {
    let mut script = Script::new();
    script.leave(READ, STACK - 0x80);
    script.enter(READ, STACK - 0x80);
    script.leave(READ, STACK - 0x80);
    script.leave(PARSE, STACK - 0x40);
    script.enter(THROW, STACK - 0x40);
    script.leave(MAIN, STACK);
    script.enter(READ, STACK + 0x40);
    insta::assert_snapshot!(told(&script), @r"
    read 2000..3000 self 1000 Returned
    throw 5000..5000 self 0 Abandoned
    read 7000..7000 self 0 Open
    unpaired read
    unpaired parse
    unpaired main
    ");
}

#[test]
fn threads_do_not_mix() {
    let mut script = Script::new();
    script.enter(MAIN, STACK);
    script.tid = 4243;
    script.cpu = 1;
    // The same stack address, as in a forked child.
    script.enter(PARSE, STACK);
    script.enter(READ, STACK - 0x40);
    script.tid = 4242;
    script.leave(MAIN, STACK);
    script.tid = 4243;
    script.cpu = 0;
    script.leave(READ, STACK - 0x40);
    script.leave(PARSE, STACK);
    insta::assert_snapshot!(told(&script), @r"
    main 1000..4000 self 3000 Returned
    parse 2000..6000 self 2000 Returned
      read 3000..5000 self 2000 Returned
    ");
}

/// A coroutine that yields in the middle of its calls, and a signal handler on a separate
/// stack.
#[test]
fn a_thread_may_have_several_stacks() {
    let mut script = Script::new();
    script.enter(MAIN, STACK);
    script.enter(PARSE, HEAP);
    script.enter(READ, HEAP - 0x40);
    // Back on the thread's stack, which has open calls.
    script.enter(READ, STACK - 0x40);
    script.leave(READ, STACK - 0x40);
    script.leave(READ, HEAP - 0x40);
    // A second coroutine below the first, another one above it.
    script.enter(THROW, HEAP - 0x8_0000);
    script.enter(PARSE, HEAP + 0x8_0000);
    script.leave(MAIN, STACK);
    script.leave(PARSE, HEAP);
    script.leave(THROW, HEAP - 0x8_0000);
    script.leave(PARSE, HEAP + 0x8_0000);
    insta::assert_snapshot!(told(&script), @r"
    main 1000..9000 self 7000 Returned
      read 4000..5000 self 1000 Returned
    parse 2000..10000 self 5000 Returned
      read 3000..6000 self 3000 Returned
    throw 7000..11000 self 4000 Returned
    parse 8000..12000 self 4000 Returned
    ");
}

/// Adjacent stacks of 64 KiB look like one, until an unexpected exit occurs.
#[test]
fn stacks_next_to_each_other_are_told_apart_once_it_shows() {
    let mut script = Script::new();
    let place = |n: u64| HEAP + n * 0x1_0000;
    for _ in 0..3 {
        for n in 0..3 {
            script.enter(PARSE, place(n));
            script.enter(READ, place(n) - 0x100);
        }
        for n in 0..3 {
            script.leave(READ, place(n) - 0x100);
            script.leave(PARSE, place(n));
        }
    }
    let heard = heard(&script);
    let last = |calls: usize| heard.calls[heard.calls.len() - calls..].iter();
    assert!(
        last(12).all(|call| call.is_certain()),
        "{}",
        heard.told(&NAMES)
    );
    assert_eq!(last(12).filter(|call| call.begin.depth == 0).count(), 6);
    assert!(heard.unpaired.len() <= 4, "{}", heard.told(&NAMES));
}

/// After a gap: the exits of the open calls are missing, and the entries of calls that end
/// later.
#[test]
fn after_losses_pairing_goes_on() {
    let mut script = Script::new();
    script.enter(MAIN, STACK);
    script.enter(PARSE, STACK - 0x40);
    script.enter(READ, STACK - 0x80);
    // Lost: read and parse return, parse is called again and calls throw.
    script.leave(THROW, STACK - 0x80).lost = 4;
    script.enter(READ, STACK - 0x80);
    script.leave(READ, STACK - 0x80);
    script.leave(PARSE, STACK - 0x40);
    script.enter(PARSE, STACK - 0x40);
    script.leave(PARSE, STACK - 0x40);
    script.leave(MAIN, STACK);
    let heard = heard(&script);
    assert_eq!(heard.health.lost_events, 4);
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    main 1000..10000 self 3000 Returned doubtful
      parse 2000..7000 self 4000 Returned doubtful
        read 3000..3000 self 0 Abandoned doubtful
        read 5000..6000 self 1000 Returned
      parse 8000..9000 self 1000 Returned
    unpaired throw
    ");
}

/// Go gives `parse` a larger stack when it calls `read`, and runs `read`'s beginning again
/// there; later it moves the stack back, and the goroutine continues in another thread.
#[test]
fn stacks_of_go_move() {
    const OLD: u64 = 0xc0_0004_6f00;
    const NEW: u64 = 0xc0_0008_4f00;
    let mut script = Script::new();
    script.enter(MAIN, OLD);
    script.enter(PARSE, OLD - 0x40);
    script.enter(READ, OLD - 0x80);
    script.enter(READ, NEW - 0x80);
    script.leave(READ, NEW - 0x80);
    // The scheduler preempts it: the same function begins twice at one address.
    script.enter(READ, NEW - 0x80);
    script.enter(READ, NEW - 0x80);
    script.leave(READ, NEW - 0x80);
    script.leave(PARSE, OLD - 0x40);
    // Another goroutine, 2 KiB away.
    script.enter(MAIN, OLD - 0x800);
    script.tid = 4243;
    script.leave(MAIN, OLD);
    script.leave(MAIN, OLD - 0x800);
    let heard = heard(&script);
    assert_eq!(heard.counts.moved, 5);
    insta::assert_snapshot!(heard.told(&NAMES), @r"
    main 1000..11000 self 3000 Returned
      parse 2000..9000 self 3000 Returned
        read 3000..5000 self 2000 Returned
        read 6000..8000 self 2000 Returned
    main 10000..12000 self 2000 Returned
    ");
}

/// As users may record them: entries and exits without a stack pointer.
#[test]
fn without_stack_pointers_the_newest_call_ends() {
    let mut script = Script::new();
    script.leave(READ, 0);
    script.enter(MAIN, 0);
    script.enter(PARSE, 0);
    script.enter(PARSE, 0);
    script.leave(PARSE, 0);
    script.enter(READ, 0);
    script.leave(PARSE, 0);
    script.leave(MAIN, 0);
    let scratch = tempfile::tempdir().unwrap();
    script.write(scratch.path(), &NAMES);
    let path = scratch.path().join("info/capriole.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"_sp\"", "\"arg1\"")).unwrap();
    let trace = capriole_trace::Trace::open(scratch.path()).unwrap();
    insta::assert_snapshot!(Heard::of(&trace).told(&NAMES), @r"
    main 2000..8000 self 2000 Returned
      parse 3000..7000 self 3000 Returned
        parse 4000..5000 self 1000 Returned
        read 6000..6000 self 0 Abandoned
    unpaired read
    ");
}
