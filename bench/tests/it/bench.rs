//! Short runs of `capriole bench attach` and `capriole bench program`. The tests check that
//! numbers are possible, never how large they are. The commands themselves fail if something is
//! left in a program, or if the program no longer works.

use crate::command;
use capriole_testkit::files::{scratch, text};
use capriole_testkit::target::told;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Runs it with only these programs findable, as far as they are installed, and returns the
/// rows. Checks that temporary files are gone.
fn rows(arguments: &[&str], programs: Option<&[&str]>) -> Vec<Value> {
    let (path, files) = (scratch(), scratch());
    let mut command = command(&[&["--json"], arguments].concat());
    command.env("TMPDIR", files.path());
    if let Some(programs) = programs {
        for program in programs {
            if let Some(found) = find(program) {
                symlink(found, path.path().join(program)).expect("a link");
            }
        }
        command.env("PATH", path.path());
    }
    let output = command.output().expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let left: Vec<_> = std::fs::read_dir(files.path()).expect("list").collect();
    assert!(left.is_empty(), "{left:?}");
    serde_json::from_slice(&output.stdout).expect("a list")
}

fn find(program: &str) -> Option<OsString> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|directory| directory.join(program));
    all.find(|file| file.is_file()).map(OsString::from)
}

/// Returns a row that was measured. `None`, with a message on standard output, if its program
/// was skipped.
fn row<'a>(rows: &'a [Value], name: &str) -> Option<&'a Value> {
    let named = |name: &str| rows.iter().find(|row| row["name"] == name);
    let program = name.split('.').next().unwrap_or(name);
    let row = named(name).or(named(program));
    let row = row.unwrap_or_else(|| panic!("no {name} in {rows:?}"));
    match row["skipped"].as_str() {
        Some(why) => {
            println!("skipped: {name}: {why}");
            None
        }
        None => Some(row),
    }
}

fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is no number"))
}

fn assert_spreads(row: &Value, names: &[&str]) {
    for name in names {
        let [min, median, max] = ["min", "median", "max"].map(|what| number(&row[*name][what]));
        let ascending = min <= median && median <= max;
        assert!(min >= 0.0 && ascending && max > 0.0, "{name} of {row}");
    }
}

fn sum(counts: &Value) -> u64 {
    let counts = counts.as_object().expect("counts");
    counts.values().filter_map(Value::as_u64).sum()
}

/// Checks that every site has a probe or a reason, and every probe a tactic and memory.
fn assert_attached(row: &Value, sites: u64) {
    let probed = row["probed"].as_u64().expect("a number");
    assert_eq!(row["sites"], sites, "{row}");
    assert_eq!(sum(&row["tactics"]), probed, "{row}");
    assert_eq!(probed + sum(&row["refused"]), sites, "{row}");
    assert!(probed > 0, "{row}");
    assert_spreads(
        row,
        &[
            "plan_ns",
            "attach_ns",
            "attach_standstill_ns",
            "attach_one_thread_ns",
            "detach_ns",
            "detach_standstill_ns",
        ],
    );
    let [detours, code] = ["detour_bytes", "code_bytes"].map(|name| number(&row[name]));
    assert!(0.0 < detours && detours <= code, "{row}");
    // The journal takes 64 bytes per change, plus the pages of code.
    let [without, with] =
        ["bytes_per_probe", "bytes_per_probe_with_code"].map(|name| number(&row[name]));
    assert!(without >= 64.0 && with > without, "{row}");
    assert!(number(&row["attach_ns"]["min"]) > number(&row["attach_standstill_ns"]["min"]));
}

#[test]
fn many_probes_come_and_go() {
    let rows = rows(
        &[
            "attach",
            "--sites",
            "150",
            "--rounds",
            "2",
            "--round-ms",
            "1",
        ],
        Some(&["cc", "as", "ld"]),
    );
    assert!(row(&rows, "node.1").is_none(), "{rows:?}");
    let Some(one) = row(&rows, "crowd.1") else {
        return;
    };
    assert_attached(one, 1);
    assert_attached(row(&rows, "crowd.100").expect("a row"), 100);
    assert_eq!(row(&rows, "crowd.100").expect("a row")["rounds"], 2);
    let [bare, alone, among] =
        ["hit.bare", "hit.alone", "hit.among100"].map(|name| row(&rows, name).expect("a row"));
    assert_eq!(bare["hits"], Value::Null);
    for row in [alone, among] {
        assert_eq!(row["hits"], row["calls"], "{row}");
        assert!(
            number(&row["ns"]) > 0.0 && number(&row["calls"]) > 0.0,
            "{row}"
        );
    }
    let names = rows.iter().filter(|row| row["skipped"].is_null()).count();
    assert_eq!(names, 5, "{rows:?}");
}

#[test]
fn a_server_is_attached_to() {
    let rows = rows(
        &["attach", "--sites", "1", "--rounds", "1"],
        Some(&["node"]),
    );
    let crowd = rows.iter().find(|row| row["name"] == "crowd");
    let why = crowd.and_then(|row| row["skipped"].as_str());
    assert!(
        why.is_some_and(|why| why.contains("no C compiler")),
        "{rows:?}"
    );
    if let Some(row) = row(&rows, "node.1") {
        assert_attached(row, 1);
    }
}

#[test]
fn programs_are_measured_with_and_without() {
    let command = Path::new(env!("CARGO_BIN_EXE_capriole-bench")).with_file_name("capriole");
    if !command.exists() {
        println!(
            "skipped: {} is not built (cargo build -p capriole-cli)",
            command.display()
        );
        return;
    }
    let arguments = ["program", "--rounds", "1", "--round-ms", "2"];
    let rows = rows(&[&arguments[..], &["--buffer-size", "64M"]].concat(), None);
    for program in ["python", "sqlite3"] {
        let of = |way: &str| row(&rows, &format!("{program}.{way}"));
        let Some(untraced) = of("untraced") else {
            continue;
        };
        assert_eq!(number(&untraced["times"]), 1.0, "{untraced}");
        assert!(untraced["events"].is_null(), "{untraced}");
        let [stat, record] = ["stat", "record"].map(|way| of(way).expect("a row"));
        for row in [untraced, stat, record] {
            assert_spreads(row, &["wall_ns", "cpu_ns"]);
        }
        for row in [stat, record] {
            let [functions, probed, events] =
                ["functions", "probed", "events"].map(|name| number(&row[name]));
            assert!(0.0 < probed && probed <= functions, "{row}");
            // Each workload makes many calls.
            assert!(events > 1000.0, "{row}");
        }
        assert_eq!(stat["probed"], record["probed"], "{rows:?}");
        assert_eq!(stat["lost"], 0, "{stat}");
        // A record takes sixteen bytes.
        assert!(number(&record["bytes"]) >= 16.0 * number(&record["events"]));
    }
}

#[test]
fn without_the_programs_all_is_skipped() {
    for (what, names) in [
        ("attach", ["crowd", "node"]),
        ("program", ["python", "sqlite3"]),
    ] {
        let rows = rows(&[what, "--rounds", "1"], Some(&[]));
        let skipped = rows.iter().filter(|row| row["skipped"].is_string());
        let found: Vec<_> = skipped.filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(found, names, "{rows:?}");
    }
}

#[test]
fn what_cannot_be_measured_so_is_said() {
    for (what, rounds, why) in [
        ("hit", "3", "at least 7 rounds"),
        ("hit", "0", "at least 7 rounds"),
        ("marker", "0", "at least 7 rounds"),
        ("probes", "6", "at least 7 rounds"),
        ("attach", "0", "at least 1 round"),
        ("program", "0", "at least 1 round"),
    ] {
        let output = command(&[what, "--rounds", rounds]).output();
        let output = output.expect("capriole starts");
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(why), "{said}");
    }
    // A directory for files that does not exist.
    let nowhere = scratch();
    let nowhere = text(Path::new(nowhere.path())).to_owned() + "/none";
    let output = command(&["attach"]).env("TMPDIR", nowhere).output();
    let output = output.expect("capriole starts");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
}

#[test]
fn help() {
    let mut command = command(&["--help"]);
    let output = command.env_remove("COLUMNS").output().expect("it starts");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        told(&output)
    );
    let help = String::from_utf8(output.stdout).expect("UTF-8");
    insta::assert_snapshot!(help, @r"
    Measure what probes cost on this machine

    Usage: capriole bench [OPTIONS] [WHAT]

    Arguments:
      [WHAT]  Benchmark to run: hit (a probe hit next to other ways of observing a call), attach
              (attaching to programs with many functions), program (real programs with every function
              probed), marker (static markers, off and on), or probes (probes that a program puts into
              itself) [default: hit] [possible values: hit, attach, program, marker, probes]

    Options:
          --rounds <ROUNDS>      Number of rounds, whose median counts: for hit, marker and probes at
                                 least 7 [default: 9], for the others at least 1 [default: 5]
          --round-ms <ROUND_MS>  Length of a round of one row, in milliseconds [default: 25, for program
                                 100]
          --cpu <CPU>            hit, marker, probes: measure on this CPU
          --threads <N>          hit: add rows with this many threads to those with one [default: the
                                 number of CPUs]
          --rows <NAME,...>      hit, marker, probes: only these rows and the rows they are compared
                                 with; the first part of a name selects all rows that begin with it
          --svg <FILE>           hit: also draw a chart
          --sites <SITES>        attach, probes: maximum number of sites [default: 40000]
          --buffer-size <SIZE>   program: size of the memory shared with the recorded program [default:
                                 1G]
          --json                 Print JSON
      -h, --help                 Print help
      -V, --version              Print version
    ");
}
