//! The command, tried from outside, and the engine on programs that run. One program, as each takes long to link.

#[path = "common/conversation.rs"]
mod conversation;
#[path = "common/instructions.rs"]
mod instructions;
#[path = "common/limited.rs"]
mod limited;
#[path = "common/probed.rs"]
mod probed;
#[path = "common/programs.rs"]
mod programs;
#[path = "common/target.rs"]
mod target;
#[path = "common/traces.rs"]
mod traces;
#[path = "common/uprobe.rs"]
mod uprobe;

mod actions;
mod additions;
mod against_gdb;
mod bench;
mod bench_hit;
mod bench_marker;
mod boundary;
mod calls;
mod conditional_exits;
mod counts;
mod errors;
mod escapes;
mod every_instruction;
mod fake_sessions;
mod filtered;
mod floats;
mod gotos;
mod hammered;
mod hostile;
mod inlined;
mod kept;
mod kernel_fields;
mod killed;
mod kinds;
mod lanes;
mod lives;
mod mark;
mod markers;
mod markers_constant;
mod markers_hammered;
mod markers_real;
mod numbers;
mod output;
mod own_storage;
mod parked;
mod places;
mod red_zone;
mod references;
mod report_calls;
mod return_stack;
mod return_stack_detach;
mod returns;
mod saved;
mod scoped;
mod shown;
mod sleepers;
mod stacks;
mod stat;
mod stat_adds;
mod states;
mod strange_files;
mod test_programs;
mod tight;
mod toolchains;
mod translated;
mod unhurt;
mod uprobes;
