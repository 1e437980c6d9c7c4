//! Every number is true: counts, times, names and values, one file for each kind.

#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;
#[path = "common/traces.rs"]
mod traces;

#[path = "numbers/crowd.rs"]
mod crowd;
#[path = "numbers/dense_files.rs"]
mod dense_files;
#[path = "numbers/ended_threads.rs"]
mod ended_threads;
#[path = "numbers/every_error.rs"]
mod every_error;
#[path = "numbers/forked.rs"]
mod forked;
#[path = "numbers/go_entries.rs"]
mod go_entries;
#[path = "numbers/go_registers.rs"]
mod go_registers;
#[path = "numbers/handover.rs"]
mod handover;
#[path = "numbers/honest_counts.rs"]
mod honest_counts;
#[path = "numbers/keep_going.rs"]
mod keep_going;
#[path = "numbers/kernel_grammar.rs"]
mod kernel_grammar;
#[path = "numbers/landing.rs"]
mod landing;
#[path = "numbers/members.rs"]
mod members;
#[path = "numbers/read_later.rs"]
mod read_later;
#[path = "numbers/strange_words.rs"]
mod strange_words;
#[path = "numbers/thrown.rs"]
mod thrown;
#[path = "numbers/wordings.rs"]
mod wordings;
