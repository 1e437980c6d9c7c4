//! Real programs with a fixed amount of work, to be measured with and without probes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::process::BenchError;
use crate::talk::{Talk, numbers};

/// Time that some work took, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Wall-clock time.
    pub wall: u64,
    /// CPU time of the program.
    pub cpu: u64,
}

/// A program that does `units` of work on request.
pub trait Workload {
    /// Returns its name in results.
    fn name(&self) -> &'static str;

    /// Its process id.
    fn pid(&self) -> u32;

    /// Returns the event that matches every function of its library (or of the program, if that has
    /// no library).
    fn event(&self) -> &str;

    /// Does `units` units of work, all alike.
    ///
    /// # Errors
    /// The program has ended, or its result is wrong.
    fn work(&mut self, units: u64) -> Result<Times, BenchError>;

    /// Closes its input, and waits until it exits by itself.
    ///
    /// # Errors
    ///
    /// It fails.
    fn end(self: Box<Self>) -> Result<(), BenchError>;
}

/// CPython that serialises a document as JSON and parses it again.
#[derive(Debug)]
pub struct Python {
    talk: Talk,
    event: String,
}

/// Script that does the work, and times itself with `perf_counter_ns` and `process_time_ns`.
const PYTHON: &str = r#"
import json, sys, time
document = [{"id": i, "name": "name %d" % i, "tags": ["a", "bc", "def"], "value": i / 7,
             "flag": i % 3 == 0, "none": None, "inner": {"x": i, "y": [i, i + 1, i * i]}}
            for i in range(200)]
print("ok", flush=True)
for line in sys.stdin:
    units = int(line)
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    same = True
    for _ in range(units):
        same = json.loads(json.dumps(document)) == document and same
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    print("ok %d %d" % (wall, cpu) if same else "error JSON changed the document", flush=True)
"#;

/// Returns the programs of this name in `PATH`, in order.
fn in_path(name: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).map(|directory| directory.join(name));
    all.filter(|program| program.is_file()).collect()
}

/// Finds the library of a process whose name begins with `start`.
fn library(pid: u32, start: &str) -> Option<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    library_in(&maps, start)
}

fn library_in(maps: &str, start: &str) -> Option<String> {
    let names = maps.lines().filter(|line| line.contains("r-xp"));
    let mut names = names.filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    names
        .find(|name| name.starts_with(start))
        .map(str::to_owned)
}

/// Finds the executable that a `python3`, possibly a wrapper script, really runs, and whether its
/// functions are in a library.
fn interpreter(python: &Path) -> Option<(PathBuf, bool)> {
    let script = "import sys, sysconfig\n\
                  print(sys.executable, sysconfig.get_config_var('Py_ENABLE_SHARED'))";
    let output = Command::new(python)
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let (path, shared) = said.trim().rsplit_once(' ')?;
    Some((path.into(), shared == "1"))
}

impl Python {
    /// Starts the first `python3` in `PATH` that has a libpython, or else the first
    /// one.
    ///
    /// # Errors
    ///
    /// [`BenchError::Skipped`] if there is none.
    pub fn start() -> Result<Python, BenchError> {
        Python::start_by(&mut Command::new(Python::program()?))
    }

    /// Finds the Python executable that [`start`](Self::start) runs.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn program() -> Result<PathBuf, BenchError> {
        let found: Vec<(PathBuf, bool)> = in_path("python3")
            .iter()
            .filter_map(|python| interpreter(python))
            .collect();
        let best = found.iter().find(|(_, shared)| *shared).or(found.first());
        let (python, _) =
            best.ok_or_else(|| BenchError::Skipped("no python3 in PATH".to_owned()))?;
        Ok(python.clone())
    }

    /// Starts Python with a command to which Python's own arguments are added; it may be a tracer's
    /// command.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start_by(command: &mut Command) -> Result<Python, BenchError> {
        let mut talk = Talk::start(command.args(["-u", "-c", PYTHON]))?;
        talk.answer()?;
        let event = match library(talk.pid(), "libpython") {
            Some(library) => format!("{library}:*"),
            None => ":*".to_owned(),
        };
        Ok(Python { talk, event })
    }
}

impl Workload for Python {
    fn name(&self) -> &'static str {
        "python"
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.talk.end()
    }

    fn pid(&self) -> u32 {
        self.talk.pid()
    }

    fn event(&self) -> &str {
        &self.event
    }

    fn work(&mut self, units: u64) -> Result<Times, BenchError> {
        let [wall, cpu] = numbers(&self.talk.ask(&units.to_string())?)?;
        Ok(Times { wall, cpu })
    }
}

/// The sqlite3 shell with a table, whose rows it prints to /dev/null.
#[derive(Debug)]
pub struct Sqlite {
    talk: Talk,
    event: String,
}

const TABLE: &str = "\
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, value REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO item SELECT i, 'item ' || (i * 7919 % 2000), i / 7.0 FROM n;
CREATE INDEX by_name ON item(name);
CREATE TABLE times(i INTEGER PRIMARY KEY);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
INSERT INTO times SELECT i FROM n;
.print ok";

impl Sqlite {
    /// Starts `sqlite3`.
    ///
    /// # Errors
    ///
    /// [`BenchError::Skipped`] if there is none, or it has no libsqlite3.
    pub fn start() -> Result<Sqlite, BenchError> {
        let mut command = Command::new("sqlite3");
        command.args(["-batch", "-init", "/dev/null", ":memory:"]);
        let mut talk = Talk::start(&mut command)
            .map_err(|error| BenchError::Skipped(format!("no sqlite3 ({error})")))?;
        talk.ask(TABLE)?;
        let library = library(talk.pid(), "libsqlite3")
            .ok_or_else(|| BenchError::Skipped("sqlite3 has no libsqlite3".to_owned()))?;
        Ok(Sqlite {
            talk,
            event: format!("{library}:*"),
        })
    }

    /// Returns the CPU time of its only thread so far, in nanoseconds.
    fn cpu(&self) -> Result<u64, BenchError> {
        let path = format!("/proc/{}/schedstat", self.pid());
        let text = std::fs::read_to_string(&path);
        let time = text
            .ok()
            .and_then(|text| text.split(' ').next()?.parse().ok());
        time.ok_or(BenchError::Proc(path))
    }
}

impl Workload for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite3"
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.talk.end()
    }

    fn pid(&self) -> u32 {
        self.talk.pid()
    }

    fn event(&self) -> &str {
        &self.event
    }

    fn work(&mut self, units: u64) -> Result<Times, BenchError> {
        let query = format!(
            ".output /dev/null\n\
             SELECT a.id, upper(a.name), round(a.value, 2), b.id FROM times JOIN item a \
             JOIN item b ON b.name = 'item ' || a.id WHERE times.i <= {units};\n\
             .output stdout\n.print ok"
        );
        let before = self.cpu()?;
        let started = Instant::now();
        self.talk.ask(&query)?;
        let wall = started.elapsed().as_nanos() as u64;
        let cpu = self.cpu()?.saturating_sub(before);
        Ok(Times { wall, cpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(workload: Result<impl Workload + 'static, BenchError>) {
        let mut workload = match workload {
            Err(BenchError::Skipped(why)) => {
                println!("skipped: {why}");
                return;
            }
            workload => workload.expect("it starts"),
        };
        let times = workload.work(2).expect("it works");
        assert!(times.wall > 0, "{times:?}");
        assert!(workload.event().ends_with(":*"), "{}", workload.event());
        Box::new(workload).end().expect("it ends well");
    }

    #[test]
    fn python_works() {
        works(Python::start());
    }

    #[test]
    fn sqlite_works() {
        works(Sqlite::start());
    }

    #[test]
    fn a_library_is_found_by_its_code() {
        let maps =
            "7f00-7f01 r--p 0 fe:00 1 /lib/libab.so.1\n7f01-7f02 r-xp 0 fe:00 1 /lib/libabc.so.2\n";
        assert_eq!(library_in(maps, "libab"), Some("libabc.so.2".to_owned()));
        assert_eq!(library_in(maps, "libx"), None);
    }
}
