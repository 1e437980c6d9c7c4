//! Measurement for `capriole bench probes`: a program that probes itself.
//!
//! The program (`bench/probes`) is compiled with the sources of libcapriole for the run. It has
//! copies of one empty function with six arguments. It puts a probe on one of them, calls it, and
//! takes the probe out again, as it is told line by line. A second copy of the program never uses
//! the library: there the probes are those of a classical implementation (`step.c`), a breakpoint
//! and a single step, since both want the program's SIGTRAP.
//!
//! | module | about |
//! | --- | --- |
//! | `build` | the program's sources and how it is compiled |
//! | [`latency`] | the time that registering, optimising and unregistering take |

mod build;
pub mod latency;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use crate::peers::program::Program;
use crate::process::Run;
use crate::runner::{Caller, Row, Trouble};
use crate::scratch::Scratch;
use crate::single::Singles;

/// Functions that can be probed at once.
pub const CROWD: usize = 10_000;
/// Size of a thread's ring in bytes.
const RING_BYTES: u64 = 64 * 1024;
/// The event that records of entries have.
const EVENT: u64 = 7;
/// Most calls in a round of a row whose records are read as text by the helper.
const MOST_WRITTEN: u64 = 200_000;

/// A row: its name, and the words by which the program is told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// The row's name.
    pub name: &'static str,
    /// `none`, `floor`, `step`, `boosted` or `optimised`.
    method: &'static str,
    /// `probe`, `argument`, `exits`, `address`, `replacement` or `write`.
    kind: &'static str,
    /// `empty` or `record`.
    what: &'static str,
}

macro_rules! specs {
    ($($name:literal $method:ident $kind:ident $what:ident,)*) => {
        &[$(Spec {
            name: $name,
            method: stringify!($method),
            kind: stringify!($kind),
            what: stringify!($what),
        }),*]
    };
}

/// The rows that the program measures, in the order of the table.
pub const SPECS: &[Spec] = specs![
    "bare" none probe empty,
    "floor.call" floor probe empty,
    "floor.record" floor probe record,
    "step.empty" step probe empty,
    "step.record" step probe record,
    "step.return.empty" step address empty,
    "step.return.record" step address record,
    "boosted.empty" boosted probe empty,
    "boosted.record" boosted probe record,
    "boosted.argument.empty" boosted argument empty,
    "boosted.argument.record" boosted argument record,
    "boosted.return.exits.empty" boosted exits empty,
    "boosted.return.exits.record" boosted exits record,
    "boosted.return.address.empty" boosted address empty,
    "boosted.return.address.record" boosted address record,
    "optimised.empty" optimised probe empty,
    "optimised.record" optimised probe record,
    "optimised.argument.empty" optimised argument empty,
    "optimised.argument.record" optimised argument record,
    "optimised.return.exits.empty" optimised exits empty,
    "optimised.return.exits.record" optimised exits record,
    "optimised.return.address.empty" optimised address empty,
    "optimised.return.address.record" optimised address record,
    "replacement.empty" optimised replacement empty,
    "replacement.record" optimised replacement record,
    "written.record" optimised write record,
];

/// Sample overhead that the kernel's documentation has for the same kind of probe in the kernel, in
/// nanoseconds: Documentation/trace/kprobes.rst, "Optimized Probe Overhead", x86-64, Intel Xeon
/// E5410, 2.33 GHz.
#[must_use]
pub fn published(name: &str) -> Option<f64> {
    Some(match name {
        "step.empty" => 990.0,
        "boosted.empty" => 430.0,
        "optimised.empty" => 60.0,
        "step.return.empty" => 1240.0,
        "boosted.return.address.empty" => 680.0,
        "optimised.return.address.empty" => 300.0,
        _ => return None,
    })
}

/// The program, built on first use.
#[derive(Default)]
struct Built {
    program: Option<Result<(Scratch, PathBuf), Trouble>>,
}

impl Built {
    fn get(&mut self) -> Result<(PathBuf, PathBuf), Trouble> {
        let built = self.program.get_or_insert_with(|| {
            let helper = helper()?;
            let scratch = Scratch::new()
                .map_err(|error| Trouble::Missing(format!("no place for files: {error}")))?;
            let program = build::build(scratch.path(), &helper)?;
            Ok((scratch, program))
        });
        match built {
            Ok((scratch, program)) => Ok((program.clone(), scratch.path().to_owned())),
            Err(why) => Err(why.clone()),
        }
    }
}

/// Returns the path of the command that is the library's helper.
fn helper() -> Result<PathBuf, Trouble> {
    let command = crate::command();
    if command.is_absolute() {
        return Ok(command);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).map(|directory| directory.join(&command));
    all.find(|file| file.is_file()).ok_or_else(|| {
        Trouble::Missing("the command capriole, which is the library's helper, is not there".into())
    })
}

/// The running programs: with the library, and without. Killed when dropped, before the directory
/// is removed.
pub struct Programs {
    cpu: Option<usize>,
    with_library: Option<Program>,
    without: Option<Program>,
    built: Built,
}

impl Programs {
    /// Creates programs that stay on a CPU; they are built and started on first use.
    #[must_use]
    pub fn new(cpu: Option<usize>) -> Rc<RefCell<Programs>> {
        Rc::new(RefCell::new(Programs {
            cpu,
            with_library: None,
            without: None,
            built: Built::default(),
        }))
    }

    /// Starts a program of its own; `arguments` as described in `main.c`.
    fn start(&mut self, arguments: &[String]) -> Result<Program, Trouble> {
        let (program, files) = self.built.get()?;
        let mut command = Command::new(program);
        // The path that was built in.
        command.args(arguments).env_remove("CAPRIOLE_HELPER");
        let wrong = Trouble::Wrong;
        let mut program = Program::start(&mut command, &files).map_err(wrong)?;
        program.address().map_err(wrong)?;
        Ok(program)
    }

    fn get(&mut self, library: bool) -> Result<&mut Program, Trouble> {
        let known = match library {
            true => &self.with_library,
            false => &self.without,
        };
        if known.is_none() {
            let mut arguments: Vec<String> =
                self.cpu.map(|cpu| cpu.to_string()).into_iter().collect();
            if library && !arguments.is_empty() {
                arguments.push("helper".to_owned());
            }
            let program = Some(self.start(&arguments)?);
            match library {
                true => self.with_library = program,
                false => self.without = program,
            }
        }
        let program = match library {
            true => &mut self.with_library,
            false => &mut self.without,
        };
        program
            .as_mut()
            .ok_or_else(|| Trouble::Wrong("the program is not running".to_owned()))
    }
}

/// The calls of a row.
struct Calling {
    spec: Spec,
    /// The row's own copy of the function.
    copy: usize,
    programs: Rc<RefCell<Programs>>,
}

impl Calling {
    fn ask<const N: usize>(&self, what: &str) -> Result<[f64; N], Trouble> {
        let mut programs = self.programs.borrow_mut();
        let program = programs.get(self.spec.method != "step")?;
        program.ask(what).map_err(Trouble::Wrong)
    }

    fn asked<const N: usize>(&self, what: &str) -> Result<[f64; N], String> {
        self.ask(what).map_err(|trouble| match trouble {
            Trouble::Missing(why) | Trouble::Wrong(why) => why,
        })
    }
}

impl Caller for Calling {
    fn arm(&mut self) -> Result<(), Trouble> {
        let Spec {
            method, kind, what, ..
        } = self.spec;
        let [] = self.ask(&format!("arm {method} {kind} {what} {}", self.copy))?;
        Ok(())
    }

    fn run(&mut self, calls: u64) -> Result<Run, String> {
        let [ns] = self.asked(&format!("run {calls}"))?;
        Ok(Run {
            ns: ns as u64,
            hits: None,
        })
    }

    fn single(&mut self, calls: u64) -> Result<Singles, String> {
        let [p50, p99] = self.asked(&format!("single {calls}"))?;
        Ok(Singles {
            p50,
            p99,
            hits: None,
        })
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        let [hits] = self.asked("hits")?;
        Ok((hits >= 0.0).then_some(hits as u64))
    }

    fn most_calls(&self) -> u64 {
        match self.spec.kind {
            "write" => MOST_WRITTEN,
            _ => u64::MAX,
        }
    }

    fn disarm(&mut self) -> Result<(), String> {
        // It is not running if it could not be built or started.
        let running = {
            let programs = self.programs.borrow();
            programs.with_library.is_some() || programs.without.is_some()
        };
        if running {
            let [] = self.asked("disarm")?;
        }
        Ok(())
    }
}

/// Returns the rows that the program measures.
#[must_use]
pub fn rows(programs: &Rc<RefCell<Programs>>) -> Vec<Row> {
    let row = |(copy, spec): (usize, &Spec)| {
        let caller = Calling {
            spec: *spec,
            copy,
            programs: Rc::clone(programs),
        };
        Row::by(spec.name, Box::new(caller))
    };
    SPECS.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_copy_of_its_own() {
        // The last one is for latencies.
        assert!(SPECS.len() < build::COPIES);
        let names: std::collections::BTreeSet<&str> = SPECS.iter().map(|spec| spec.name).collect();
        assert_eq!(names.len(), SPECS.len());
    }

    #[test]
    fn published_numbers_belong_to_rows() {
        let published = SPECS.iter().filter(|spec| published(spec.name).is_some());
        assert_eq!(published.count(), 6);
    }
}
