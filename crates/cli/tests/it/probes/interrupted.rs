//! Signals at any instruction of a hit change nothing.

use super::{program, run};
use crate::target::rounds;

#[test]
fn branches() {
    let Some(program) = program("probes_interrupted.c") else {
        return;
    };
    let count = rounds(12, 60, 600).to_string();
    println!("{}", run(&program, &["branches", &count]));
}
