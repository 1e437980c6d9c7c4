//! The `capriole` command.
fn main() {}
