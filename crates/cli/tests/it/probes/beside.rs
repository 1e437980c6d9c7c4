//! Programs that probe themselves while they are recorded.
//!
//! The long forms of `under_load`, with 200 recorders, and of `probes_and_recorders_come_and_go`, with
//! 20,000 cycles:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test -p capriole-cli --test it probes::beside:: -- --nocapture
//! ```

use super::hammered::hammer;
use super::{command, library, output, parts, well};
use crate::programs::{Compiler, build};
use crate::target::{self, rounds, told};
use crate::tools::root;
use capriole_testkit::files;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

parts!("probes_beside.c":
    library_first,
    recorder_first,
    same_function_recorded,
    same_function_probed,
    neighbours,
    library_code,
    breakpoints,
    return_addresses,
    helper_killed,
    recorder_killed,
    all_killed,
    forks,
    recorder_leaves_a_child,
    ends,
    fault_orders,
    under_load,
);

/// The library is loaded while the program is recorded, so that no guard hides the recorder's handlers
/// of faults from it.
#[test]
fn fault_orders_with_a_library_that_is_loaded_late() {
    let include = format!("-I{}", root().join("include").display());
    let flags = [
        &*include,
        "-DLATE",
        "-Wl,--unresolved-symbols=ignore-all",
        "-ldl",
    ];
    let Some(program) = build(Compiler::Gcc, "probes_beside.c", &flags) else {
        return;
    };
    let mut command = command(&program, &["fault_orders"]);
    command.env("LATE_LIBRARY", library().join("libcapriole.so.0"));
    println!("{}", well(&output(&mut command)));
}

/// Recorders come and go at functions while the program puts probes in at random instructions of them,
/// and takes them out, and eight threads with a thousand signals a second run through both.
#[test]
fn probes_and_recorders_come_and_go() {
    let directory = files::scratch();
    let Some((program, list)) = hammer(directory.path()) else {
        return;
    };
    let cycles = rounds(50, 600, 20_000).to_string();
    let arguments = [files::text(&list), &cycles, "1", "beside"];
    let mut child = command(&program, &arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    let pid = line
        .trim()
        .strip_prefix("ready ")
        .expect("it is ready")
        .to_owned();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let trace = directory.path().join("trace");
    let kinds = [
        "branches", "loop", "choice", "calls", "tail", "strings", "vectors",
    ];
    let (mut recorded, mut round) = (0, 0);
    while child.try_wait().expect("a child").is_none() {
        round += 1;
        let mut record =
            target::command(&["record", "-p", &pid, "--keep-going", "--duration", "20ms"]);
        record.args(["--buffer-size", "4M", "-o"]).arg(&trace);
        for kind in kinds {
            record.args(["-e", &format!(":{kind}_{} $arg1", round % 12 + 1)]);
        }
        let output = record.output().expect("capriole starts");
        let text = told(&output);
        if output.status.success() {
            recorded += 1;
        } else {
            // All of them may be probed, or the program may be at its end.
            let is_usual = [
                "cannot be probed",
                "no such process",
                "process has ended",
                "ended",
            ]
            .iter()
            .any(|usual| text.contains(usual));
            assert!(is_usual, "{text}");
        }
    }
    let text = reader.join().expect("no panic").expect("text");
    let status = child.wait().expect("a child");
    let output = std::process::Output {
        status,
        stdout: text.into_bytes(),
        stderr: Vec::new(),
    };
    println!("{}{recorded} of {round} recorders recorded", well(&output));
    assert!(recorded > 0, "nothing was recorded");
}
