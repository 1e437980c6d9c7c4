//! The programs whose loops are measured: compiled on first use by a row, running until all rounds
//! are over.

use std::path::Path;

use super::{HEADER, LOOP_OPTIONS, LOOPS, real};
use crate::peers::build;
use crate::peers::build::{compile_one, link_program};
use crate::peers::program::Program;
use crate::peers::put;
use crate::process::{Run, TargetInfo};
use crate::scratch::Scratch;

/// A measured program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// `bench/marker/loops.c`.
    Loops,
    /// zlib's minigzip without markers.
    Minigzip,
    /// zlib's minigzip with a marker.
    MarkedMinigzip,
}

impl Subject {
    const ALL: [Subject; 3] = [Subject::Loops, Subject::Minigzip, Subject::MarkedMinigzip];

    fn build(self, files: &Path) -> Result<(), String> {
        put_header(files)?;
        let include = format!("-I{}", files.display());
        match self {
            Subject::Loops => {
                let options = [&LOOP_OPTIONS[..], &[include.as_str()]].concat();
                let object = compile_one(files, "cc", ("loops.c", LOOPS), &options)?;
                link_program(files, "cc", &[object], &[]).map(drop)
            }
            Subject::Minigzip => real::build(files, &[&include, "-DCAPRIOLE_MARK_NONE"]),
            Subject::MarkedMinigzip => real::build(files, &[&include]),
        }
    }
}

/// Writes the header into the directory, at the path of `#include <capriole/marker.h>`.
pub(super) fn put_header(files: &Path) -> Result<(), String> {
    let place = files.join("capriole");
    std::fs::create_dir_all(&place)
        .map_err(|error| format!("cannot make {}: {error}", place.display()))?;
    put(&place, "marker.h", HEADER).map(drop)
}

/// A running program. Killed on drop, before its directory is removed.
struct Running {
    program: Program,
    _files: Scratch,
}

impl Running {
    fn start(subject: Subject, cpu: Option<usize>) -> Result<Running, String> {
        let files = Scratch::new().map_err(|error| format!("no place for files: {error}"))?;
        subject.build(files.path())?;
        let mut command = build::program(files.path());
        command.args(cpu.map(|cpu| cpu.to_string()));
        let mut program = Program::start(&mut command, files.path())?;
        program.address()?;
        Ok(Running {
            program,
            _files: files,
        })
    }
}

/// The programs used so far, or the reasons why they could not be started.
pub(super) struct Subjects {
    cpu: Option<usize>,
    running: [Option<Result<Running, String>>; 3],
}

impl Subjects {
    pub(super) fn new(cpu: Option<usize>) -> Subjects {
        Subjects {
            cpu,
            running: [const { None }; 3],
        }
    }

    fn get(&mut self, subject: Subject) -> Result<&mut Running, String> {
        let cpu = self.cpu;
        let at = Subject::ALL.iter().position(|one| *one == subject);
        let running = &mut self.running[at.unwrap_or(0)];
        let running = running.get_or_insert_with(|| Running::start(subject, cpu));
        running.as_mut().map_err(|why| why.clone())
    }

    /// Returns the program's [`TargetInfo`] for a probe; builds and starts it on first use.
    pub(super) fn info(&mut self, subject: Subject) -> Result<TargetInfo, String> {
        let running = self.get(subject)?;
        Ok(TargetInfo::of_program(running.program.pid()))
    }

    /// Runs one of the program's loops.
    pub(super) fn run(&mut self, subject: Subject, name: &str, calls: u64) -> Result<Run, String> {
        let running = self.get(subject)?;
        let [ns] = running.program.ask(&format!("run {name} {calls}"))?;
        Ok(Run {
            ns: ns as u64,
            hits: None,
        })
    }
}
