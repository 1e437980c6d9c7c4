//! The `capriole` command.

fn main() -> std::process::ExitCode {
    capriole_cli::main()
}
