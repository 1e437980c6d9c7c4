//! Probes that come and go at random instructions while eight threads, each with a thousand signals
//! a second, run through them.
//!
//! The long form, 100,000 cycles:
//!
//! ```text
//! CAPRIOLE_LONG=1 cargo test --release -p capriole-cli --test it probes::hammered:: -- --nocapture
//! ```

use super::{PATIENCE, command, output_within, program, well};
use crate::target::{rounds, told};
use capriole_testkit::files;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the offsets of the instructions of a section, but its first, from its first function on.
fn instructions(program: &Path, section: &str, first: &str) -> Option<Vec<u64>> {
    let mut objdump = Command::new("objdump");
    objdump
        .args(["-d", "--no-show-raw-insn", "-j", section])
        .arg(program);
    let Ok(output) = objdump.output() else {
        println!("skipped: there is no objdump");
        return None;
    };
    assert!(output.status.success(), "{}", told(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    let start = format!("<{first}>:");
    let begin = text.lines().find(|line| line.ends_with(&start));
    let begin = begin
        .and_then(|line| number(line.split_once(' ')?.0))
        .expect("it has that");
    let instruction = |line: &str| {
        let (address, words) = line.split_once(":\t")?;
        let word = words.split_whitespace().next()?;
        let is_padding = ["nop", "data16", "cs", "xchg", "int3"]
            .iter()
            .any(|p| word.starts_with(p));
        (!is_padding).then(|| number(address))?
    };
    let addresses = text.lines().filter_map(instruction);
    Some(
        addresses
            .filter(|a| *a > begin)
            .map(|a| a - begin)
            .collect(),
    )
}

/// Builds the program, and writes the file with its sites.
pub(super) fn hammer(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let program = program("probes_hammer.c")?;
    let sites = instructions(&program, "work_code", "work_begin")?;
    let list = directory.join("sites");
    let lines: Vec<String> = sites.iter().map(u64::to_string).collect();
    std::fs::write(&list, lines.join("\n")).expect("a file");
    Some((program, list))
}

#[test]
fn probes_come_and_go() {
    let directory = files::scratch();
    let Some((program, list)) = hammer(directory.path()) else {
        return;
    };
    let cycles = rounds(50, 600, 100_000);
    let seed = capriole_testkit::effort::seed().to_string();
    let arguments = [files::text(&list), &cycles.to_string(), &seed];
    let patience = PATIENCE * if cycles > 1000 { 200 } else { 1 };
    let output = output_within(&mut command(&program, &arguments), patience);
    println!("{}", well(&output));
}

/// Probes at instructions of one function, which come to share jumps: after each step every enabled
/// one is hit once, and others are not.
#[test]
fn neighbours_come_and_go() {
    let Some(program) = program("probes_random.c") else {
        return;
    };
    let last = rounds(5, 60, 2000).to_string();
    let patience = PATIENCE * if last.len() > 3 { 30 } else { 1 };
    let output = output_within(&mut command(&program, &["1", &last, "40"]), patience);
    println!("{}", well(&output));
}
