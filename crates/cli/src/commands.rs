//! One module per subcommand.

pub mod bench;
pub mod check;
pub mod detach;
pub mod generate;
pub mod help;
pub mod list;
pub mod mark;
pub mod probe_helper;
pub mod record;
pub mod report;
pub mod stat;
