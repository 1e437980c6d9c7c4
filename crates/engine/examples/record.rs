//! Prints an event of a running process until it ends: `record PID EVENT`.

use std::time::Duration;

fn main() -> capriole::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, pid, event] = &words[..] else {
        eprintln!("usage: record PID EVENT");
        std::process::exit(2);
    };
    let pid = pid.parse().unwrap_or(0);
    let mut session = capriole::Session::attach(pid)?;
    let added = session.add(event)?;
    eprintln!("{} sites", added.sites);
    while session.status() == capriole::Status::Running {
        session.wait(Duration::from_millis(100));
        for record in session.read()? {
            println!("{record}");
        }
    }
    Ok(())
}
