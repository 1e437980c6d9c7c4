//! Checks that timestamps of several CPUs agree with the actual order.

use crate::programs::{Compiler, build};
use crate::target::rounds;
use crate::traces::{record_program, scratch};
use capriole_trace::{Trace, Value};

/// Two threads take turns many times. Without `--ordered-clock` about one in ten
/// thousand of their timestamps contradicts that order.
#[test]
fn an_ordered_clock_does_not_contradict_what_happened_first() {
    let Some(program) = build(Compiler::Gcc, "handover.c", &["-O2", "-pthread"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let turns = rounds(50_000, 900_000, 3_000_000);
    let words = ["--ordered-clock", "-e", ":handover_taken n=$arg1:u64"];
    let said = record_program(&trace, &words, &program, &[&turns.to_string()]);
    assert_eq!(said, "ok\n");
    let trace = Trace::open(&trace).expect("a trace");
    let mut times = vec![0; turns];
    let mut events = trace.events().expect("events");
    while let Some(event) = events.next().expect("an event") {
        let Some(Value::Unsigned(n)) = event.fields().next() else {
            panic!("no number");
        };
        times[n as usize] = event.tsc;
    }
    let wrong = times.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    assert_eq!(wrong, 0, "of {turns} turns");
}
