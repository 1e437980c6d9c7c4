//! Proof by execution: random functions of real libraries run from random registers
//! and memory, unmodified and with a probe, in a child process. General,
//! vector and flag registers, memory and every step of control flow must be the
//! same, and each arrival at the site must have been recorded and counted once.
//!
//! `CAPRIOLE_LONG` runs more cases, `CAPRIOLE_SEED=n` varies them, and
//! `CAPRIOLE_CASE=library:n` runs one case, as printed by a failure.

mod case;
mod child;
mod compare;
mod machine;
mod memory;
mod patch;
mod session;
mod tally;
mod vectors;

use capriole_testkit::effort::{rounds, seed};
use std::time::Instant;

use crate::object::Object;
use crate::support::sandbox::in_child;
use case::Prover;
use tally::Tally;

/// Libraries, and each one's share of all cases. A case makes about ten
/// site-runs: a hundred thousand in total in the long form.
const LIBRARIES: [(&str, usize); 9] = [
    ("libc.so.6", 6),
    ("libcrypto.so.3", 6),
    ("libstdc++.so.6", 3),
    ("libsqlite3.so.0", 3),
    ("libm.so.6", 3),
    ("libz.so.1", 1),
    ("libzstd.so.1", 1),
    ("liblzma.so.5", 1),
    ("libpython3.11.so.1.0", 3),
];

#[test]
fn probed_code_does_what_the_original_does() {
    let seed = seed();
    let unit = rounds(10, 48, 480);
    let only = std::env::var("CAPRIOLE_CASE").ok();
    let only = only.as_deref().and_then(|case| case.split_once(':'));
    let tally = Tally::shared();
    let mut all = 0;
    for (number, (name, share)) in LIBRARIES.into_iter().enumerate() {
        if only.is_some_and(|(library, _)| library != name) {
            continue;
        }
        let Some(object) = Object::find(name, memory::BIAS) else {
            continue;
        };
        let cases: Vec<u64> = match only {
            Some((_, case)) => vec![case.parse().expect("the number of a case")],
            None => (0..(unit * share) as u64).collect(),
        };
        all += cases.len() as u64;
        let started = Instant::now();
        let before = tally.runs();
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number as u64) << 24;
        let mut prover = None;
        in_child(
            &cases,
            |_, &case| {
                let prover = prover.get_or_insert_with(|| Prover::new(&object, seed, tally));
                prover.prove(seed + case, tally)
            },
            |case| format!("CAPRIOLE_CASE={name}:{case}"),
        );
        let runs = tally.runs() - before;
        println!("{name}: {runs} site-runs in {:?}", started.elapsed());
    }
    println!("{tally}");
    if !tally.has_rseq() {
        println!("skipped: restartable sequences cannot be registered anew here");
    }
    println!("compared: general registers, flags, {}", vectors::names());
    if only.is_none() {
        tally.check(all);
    }
}
