//! The helper of a program that probes itself: the other end of `library/helper.c`.
//!
//! ```text
//!  program, with libcapriole            this process
//!    capriole_probe_register ── ADD ──▶ Helper ──▶ capriole::Session ── ptrace, /proc/PID/mem ──▶ program
//!                            ◀─────────
//!  a hit: detour ─▶ library/hit.S ─▶ handlers        (nobody else is involved)
//! ```
//!
//! It serves one program, from a connection that is its standard input, until that ends or the program says
//! goodbye. Between requests it replaces breakpoints by jumps, in batches, and does what else a
//! session needs.
//!
//! The program is not trusted with anything but itself: whatever it asks for is done in the process
//! that holds the other end of the connection, with the rights that this process has inherited from
//! it.
#![forbid(unsafe_code)]

mod branch;
mod line;
mod message;
mod one_line;
mod rows;
mod server;
mod vectors;

pub use capriole_host::volunteer::try_ptrace;
use line::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::Server;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The version of the messages.
pub const VERSION: u64 = 2;

/// Serves the program at the other end of a connection, until it ends.
///
/// # Errors
/// The connection is broken in the middle of a message, or what comes are no messages.
pub fn serve(mut connection: UnixStream) -> io::Result<()> {
    unlimited();
    let peer = socket_peercred(&connection)?;
    let line = Arc::new(Line::new(connection.try_clone()?)?);
    let mut server = Server::new(peer.pid.as_raw_nonzero().get() as u32, line.clone());
    loop {
        if !is_ready(&connection, server.pause())? {
            server.work();
            continue;
        }
        let Some(request) = message::receive(&mut connection)? else {
            return Ok(());
        };
        let is_last = request.kind == message::GOODBYE;
        line.set_open(true);
        let answer = server.answer(request);
        line.set_open(false);
        message::send(&mut connection, &answer)?;
        if is_last && answer.is_ok() {
            return Ok(());
        }
    }
}

/// Takes back the limit of the address space that the program has set itself, as far as that is
/// permitted: it is not meant for what maps the program's files and memory as well.
fn unlimited() {
    let limit = getrlimit(Resource::As);
    let _ = setrlimit(
        Resource::As,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// Waits for a request, or the end of the connection. Returns `false` after `pause`.
fn is_ready(connection: &UnixStream, pause: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    let pause = Timespec::try_from(pause).ok();
    match poll(&mut fds, pause.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
