//! The `capriole` command, linked statically by scripts/static.sh.

fn main() -> std::process::ExitCode {
    capriole_cli::main()
}
