//! Random call trees are reconstructed exactly, and random events do no harm.

use crate::common::START;
use crate::common::calls::{Heard, Step, write};
use capriole_report::calls::Exit;
use proptest::prelude::*;

const NAMES: [&str; 4] = ["main", "parse", "read", "throw"];

/// A thread's stacks: its own, and two for coroutines.
const STACKS: [u64; 3] = [0x7ffc_0000_8000, 0x55d0_0000_9000, 0x7f00_1234_0000];

/// The next action of a program.
#[derive(Debug, Clone)]
enum Action {
    Call {
        function: u32,
        frame: u64,
    },
    Return,
    /// Jump to another function.
    Tail {
        function: u32,
    },
    /// Leave this many calls without returning, and call something.
    Throw {
        levels: usize,
        function: u32,
    },
    /// Continue in another thread, on another stack, on another CPU.
    Switch {
        thread: usize,
        stack: usize,
        cpu: u32,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let function = 0..NAMES.len() as u32;
    prop_oneof![
        6 => (function.clone(), 1..200_u64).prop_map(|(function, words)| Action::Call {
            function,
            frame: words * 8
        }),
        5 => Just(Action::Return),
        1 => function.clone().prop_map(|function| Action::Tail { function }),
        1 => (1..6_usize, function).prop_map(|(levels, function)| Action::Throw {
            levels,
            function
        }),
        2 => (0..3_usize, 0..STACKS.len(), 0..4_u32).prop_map(|(thread, stack, cpu)| {
            Action::Switch { thread, stack, cpu }
        }),
    ]
}

/// A call, with times relative to the beginning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    begin: u64,
    end: u64,
    tid: u32,
    function: usize,
    depth: usize,
    own: u64,
    exit: &'static str,
}

#[derive(Debug, Clone)]
struct Open {
    function: u32,
    stack_pointer: u64,
    frame: u64,
    begin: u64,
    last: u64,
    children: u64,
}

/// A model of a program that records its own calls.
struct Program {
    open: Vec<[Vec<Open>; 3]>,
    thread: usize,
    stack: usize,
    cpu: u32,
    time: u64,
    steps: Vec<Step>,
    told: Vec<Told>,
}

impl Program {
    fn new() -> Program {
        Program {
            open: vec![Default::default(); 3],
            thread: 0,
            stack: 0,
            cpu: 0,
            time: 0,
            steps: Vec::new(),
            told: Vec::new(),
        }
    }

    fn open(&mut self) -> &mut Vec<Open> {
        &mut self.open[self.thread][self.stack]
    }

    fn step(&mut self, id: u32, stack_pointer: u64) {
        self.time += 1 + stack_pointer % 977;
        self.steps.push(Step {
            time: self.time,
            tid: 100 + self.thread as u32,
            cpu: self.cpu,
            id,
            stack_pointer,
            value: 0,
            lost: 0,
        });
    }

    fn call(&mut self, function: u32, frame: u64) {
        let base = STACKS[self.stack];
        let place = self
            .open()
            .last()
            .map_or(base, |open| open.stack_pointer - open.frame);
        self.step(10 * function, place);
        let time = self.time;
        if let Some(parent) = self.open().last_mut() {
            parent.last = time;
        }
        self.open().push(Open {
            function,
            stack_pointer: place,
            frame,
            begin: time,
            last: time,
            children: 0,
        });
    }

    fn end(&mut self, exit: &'static str) {
        let depth = self.open().len() - 1;
        let call = self.open().pop().unwrap();
        let end = match exit {
            "Abandoned" => call.last,
            _ => self.time,
        };
        if let Some(parent) = self.open().last_mut() {
            parent.children += end - call.begin;
            parent.last = end;
        }
        self.told.push(Told {
            begin: call.begin,
            end,
            tid: 100 + self.thread as u32,
            function: call.function as usize,
            depth,
            own: end - call.begin - call.children,
            exit,
        });
    }

    fn leave(&mut self) {
        if let Some(call) = self.open().last().cloned() {
            self.step(10 * call.function + 1, call.stack_pointer);
            self.end("Returned");
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Call { function, frame } => self.call(function, frame),
            Action::Return => self.leave(),
            Action::Tail { function } => {
                if let Some(call) = self.open().last().cloned() {
                    self.step(10 * call.function + 2, call.stack_pointer);
                    self.end("TailCall");
                    self.call(function, 64);
                }
            }
            Action::Throw { levels, function } => {
                for _ in 0..levels.min(self.open().len()) {
                    self.end("Abandoned");
                }
                self.call(function, 64);
            }
            Action::Switch { thread, stack, cpu } => {
                (self.thread, self.stack, self.cpu) = (thread, stack, cpu);
            }
        }
    }

    fn finish(&mut self) {
        for thread in 0..3 {
            for stack in 0..STACKS.len() {
                (self.thread, self.stack) = (thread, stack);
                while !self.open().is_empty() {
                    self.leave();
                }
            }
        }
    }
}

fn exit(exit: Exit) -> &'static str {
    match exit {
        Exit::Returned => "Returned",
        Exit::TailCall => "TailCall",
        Exit::Abandoned => "Abandoned",
        Exit::Open => "Open",
        Exit::ThreadEnded => "ThreadEnded",
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn call_trees_come_back(actions in prop::collection::vec(action(), 0..400)) {
        let mut program = Program::new();
        for action in &actions {
            program.act(action);
        }
        program.finish();
        let scratch = tempfile::tempdir().unwrap();
        let heard = Heard::of(&write(scratch.path(), &NAMES, &program.steps));
        prop_assert!(heard.unpaired.is_empty());
        prop_assert_eq!(heard.counts.events, program.steps.len() as u64);
        let mut told: Vec<Told> = heard
            .calls
            .iter()
            .map(|call| Told {
                begin: call.begin.time - START,
                end: call.end - START,
                tid: call.begin.tid,
                function: call.begin.function,
                depth: call.begin.depth,
                own: call.own,
                exit: exit(call.exit),
            })
            .collect();
        told.sort();
        program.told.sort();
        prop_assert_eq!(told, program.told);
        prop_assert!(heard.calls.iter().all(|call| !call.doubtful));
    }

    /// With losses and nonsense. `Heard` checks that times add up and calls are nested.
    #[test]
    fn nonsense_does_no_harm(
        steps in prop::collection::vec(
            (0..3_u64, 0..4_u32, 0..4_u32, 0..3_u32, place(), prop::bool::weighted(0.05)),
            0..600,
        ),
    ) {
        let mut time = 0;
        let steps: Vec<Step> = steps
            .into_iter()
            .map(|(ticks, thread, function, part, stack_pointer, lost)| {
                time += ticks;
                Step {
                    time,
                    tid: thread,
                    cpu: thread ^ function,
                    id: 10 * function + part,
                    stack_pointer,
                    value: 0,
                    lost: u64::from(lost),
                }
            })
            .collect();
        let scratch = tempfile::tempdir().unwrap();
        let trace = write(scratch.path(), &NAMES, &steps);
        let heard = Heard::of(&trace);
        prop_assert_eq!(heard.counts.events, steps.len() as u64);
        let left = heard.calls.iter().filter(|call| {
            matches!(call.exit, Exit::Returned | Exit::TailCall)
        });
        let exits = steps.iter().filter(|step| step.id % 10 > 0).count();
        prop_assert_eq!(left.count() + heard.unpaired.len(), exits);
        every_report(&trace, heard.calls.len() as u64);
    }
}

/// A stack pointer: one of a few values, or any value.
fn place() -> impl Strategy<Value = u64> {
    let near = (0..3_usize, 0..64_u64).prop_map(|(stack, words)| STACKS[stack] - words * 8);
    let go = (0..4_u64, 0..64_u64)
        .prop_map(|(stack, words)| 0xc0_0004_0000 + stack * 0x800 - words * 16);
    prop_oneof![
        8 => near,
        4 => go,
        1 => Just(0_u64),
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

/// Checks that all reports agree about a trace, whatever it contains.
fn every_report(trace: &capriole_trace::Trace, calls: u64) {
    use capriole_report::*;
    let options = GraphOptions::default();
    let mut text = Vec::new();
    write_graph(trace, &mut text, &options).unwrap();
    let mut json = Vec::new();
    write_graph_json(trace, &mut json, &options).unwrap();
    let json = String::from_utf8(json).unwrap();
    let lines = json.lines().map(|line| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        u64::from(value["function"].is_string())
    });
    assert_eq!(lines.sum::<u64>(), calls);
    let text = String::from_utf8(text).unwrap();
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count() as u64;
    assert_eq!(count(") {"), count("}"));
    assert_eq!(count(" us |  ") + count("  - |  "), calls);
    let (summary, _) = CallSummary::of(trace, Order::Total).unwrap();
    assert_eq!(summary.calls, calls);
    let (callers, _) = Callers::of(trace).unwrap();
    assert_eq!(callers.calls, calls);
    for function in &callers.functions {
        assert_eq!(
            function.callers.iter().map(|edge| edge.calls).sum::<u64>(),
            function.calls
        );
    }
    let (flame, _) = Flame::of(trace).unwrap();
    assert_eq!(
        flame.stacks.iter().map(|stack| stack.calls).sum::<u64>(),
        calls
    );
    let mut picture = Vec::new();
    let drawn = flame.draw(FlameBy::Calls, Form::Short, "a title", &mut picture);
    assert_eq!(drawn.is_ok(), calls > 0);
}
