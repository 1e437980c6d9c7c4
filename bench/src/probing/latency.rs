//! The time that it takes to register probes, to replace their breakpoints by jumps, and to
//! unregister them.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Serialize;

use super::{CROWD, Programs};
use crate::runner::Trouble;
use crate::spread::Spread;

/// What other threads of the program do meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The second part of the rows' names.
    pub name: &'static str,
    /// Number of threads that call the function.
    threads: u32,
    /// Turns of an empty loop between two calls.
    work: u32,
}

/// The loads: none; eight threads that call the function now and then, and that do nothing else.
pub const LOADS: [Load; 3] = [
    Load {
        name: "idle",
        threads: 0,
        work: 0,
    },
    Load {
        name: "busy",
        threads: 8,
        work: 100_000,
    },
    Load {
        name: "hot",
        threads: 8,
        work: 0,
    },
];

/// What takes the time, in the order in which the program answers.
pub const STEPS: [&str; 3] = ["register", "optimise", "unregister"];

/// Quantiles of one step of a probe's life.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// `latency.STEP.LOAD`.
    pub name: String,
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// Number of probes that were timed, one after the other.
    pub samples: u32,
    /// Threads that ran through the function meanwhile.
    pub threads: u32,
}

/// A row without numbers, or with them.
pub type Timed<T> = Result<T, (String, Trouble)>;

/// Returns the name of a row.
#[must_use]
pub fn name(step: &str, load: Load) -> String {
    format!("latency.{step}.{}", load.name)
}

/// Measures the latencies of one probe under a load, in a program of its own.
pub fn measure(programs: &Rc<RefCell<Programs>>, load: Load, samples: u32) -> Vec<Timed<Latency>> {
    let answer = programs.borrow_mut().start(&[]).and_then(|mut program| {
        let question = format!("latency {samples} {} {}", load.threads, load.work);
        program.ask::<7>(&question).map_err(Trouble::Wrong)
    });
    let row = |(index, step): (usize, &&str)| {
        let name = name(step, load);
        match &answer {
            Ok([jumps, ..]) if *step == "optimise" && *jumps == 0.0 => {
                let why = "a breakpoint was not replaced within a second: at each attempt a thread \
                           was at the probe";
                Err((name, Trouble::Missing(why.to_owned())))
            }
            Ok(numbers) => Ok(Latency {
                name,
                p50_ns: numbers[1 + 2 * index],
                p99_ns: numbers[2 + 2 * index],
                samples,
                threads: load.threads,
            }),
            Err(why) => Err((name, why.clone())),
        }
    };
    STEPS.iter().enumerate().map(row).collect()
}

/// Times of very many probes that are registered in one call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Many {
    /// `many.PROBES`.
    pub name: String,
    /// Number of probes.
    pub probes: usize,
    /// Number of those that were jumps in the end.
    pub optimised: usize,
    /// The first registration of the program, of one probe, for which the helper reads the program.
    pub first_ns: Spread,
    /// Registering all.
    pub register_ns: Spread,
    /// From then on until there are jumps in the place of all breakpoints.
    pub optimise_ns: Spread,
    /// Unregistering all.
    pub unregister_ns: Spread,
    /// Number of programs in which this was done.
    pub rounds: usize,
}

/// Measures `probes` probes at once, at most [`CROWD`], in `rounds` programs, one after the other.
pub fn measure_many(programs: &Rc<RefCell<Programs>>, probes: usize, rounds: usize) -> Timed<Many> {
    let probes = probes.clamp(1, CROWD);
    let name = format!("many.{probes}");
    let round = |_| -> Result<[f64; 5], Trouble> {
        let mut program = programs.borrow_mut().start(&[])?;
        let answer = program.ask(&format!("many {probes}"));
        answer.map_err(Trouble::Wrong)
    };
    let all: Result<Vec<[f64; 5]>, Trouble> = (0..rounds).map(round).collect();
    let all = all.map_err(|why| (name.clone(), why))?;
    let of = |index: usize| Spread::of(&all.iter().map(|round| round[index]).collect::<Vec<_>>());
    Ok(Many {
        name,
        probes,
        optimised: of(4).min as usize,
        first_ns: of(0),
        register_ns: of(1),
        optimise_ns: of(2),
        unregister_ns: of(3),
        rounds,
    })
}
