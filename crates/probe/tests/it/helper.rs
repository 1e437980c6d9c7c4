//! The helper process of the programs under test: this program.

use crate::support;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Serves the program that has started it, by way of [`support::helper`]. Does nothing in other runs.
#[test]
fn serves() {
    if std::env::var_os(support::SERVES).is_none() {
        return;
    }
    let input = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let served = capriole_helper::serve(UnixStream::from(input));
    std::process::exit(i32::from(served.is_err()));
}
