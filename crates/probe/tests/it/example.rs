//! The example counts its own calls.

use crate::support::probing;
use std::process::Command;

#[test]
fn the_example_counts_calls_by_size() {
    let own = std::env::current_exe().unwrap();
    let example = own.ancestors().nth(2).unwrap().join("examples/malloc");
    if !example.exists() {
        return println!("skipped: the example is not built (cargo test without --test builds it)");
    }
    let output = probing(&mut Command::new(example));
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}{wrong}", output.status);
    let thousand = said.lines().find(|line| line.contains("512 to 1023"));
    let count = thousand.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count >= 1000), "{said}");
}
