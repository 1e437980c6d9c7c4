//! Tests of the command, from outside. They form one
//! program, because each takes long to link.

use capriole_testkit::{programs, uprobe};

#[path = "common/limited.rs"]
mod limited;
#[path = "common/target.rs"]
mod target;
#[path = "common/tools.rs"]
mod tools;
#[path = "common/traces.rs"]
mod traces;

mod actions;
mod against_gdb;
mod apart;
mod boundary;
mod calls;
mod closed;
mod coarse_clock;
mod compared;
mod conditional_exits;
mod cookbook;
mod counts;
mod cxx_names;
mod descriptors;
mod durations;
mod enumerations;
mod errors;
mod escapes;
mod fake_sessions;
mod filter_values;
mod filtered;
mod floats;
mod forwarded;
mod frequent;
mod gotos;
mod help;
mod hostile;
mod inlined;
mod intervals;
mod kept;
mod kernel_fields;
mod killed;
mod kinds;
mod lanes;
mod lives;
mod mark;
mod markers;
mod markers_constant;
mod markers_real;
mod named;
mod namesakes;
mod network;
mod numbers;
mod output;
mod own_storage;
mod packages;
mod places;
mod probe_examples;
mod probes;
mod red_zone;
mod references;
mod report_calls;
mod return_stack;
mod return_stack_detach;
mod returns;
mod saved;
mod scoped;
mod shown;
mod sized;
mod spellings;
mod stacks;
mod stat;
mod stat_adds;
mod stat_stacks;
mod states;
mod static_command;
mod strange_files;
mod symbols;
mod talk;
mod texts;
mod tight;
mod toolchains;
mod translated;
mod unended;
mod unhurt;
mod uprobes;
