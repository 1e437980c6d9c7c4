//! Counts, times, names and values must all be correct; one file for each kind.

mod crowd;
mod dense_files;
mod ended_threads;
mod every_error;
mod forked;
mod go_entries;
mod go_registers;
mod handover;
mod honest_counts;
mod keep_going;
mod kernel_grammar;
mod landing;
mod members;
mod read_later;
mod strange_words;
mod thrown;
mod wordings;
