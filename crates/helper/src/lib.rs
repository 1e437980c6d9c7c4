//! The helper of a program that probes itself: the other end of `library/helper.c`.
//!
//! ```text
//!  program, with libcapriole            this process
//!    capriole_probe_register ── ADD ──▶ Helper ──▶ capriole::Session ── ptrace, /proc/PID/mem ──▶ program
//!                            ◀─────────
//!  a hit: detour ─▶ library/hit.S ─▶ handlers        (nobody else is involved)
//! ```
//!
//! It serves one program, from a connection that is its standard input, until the program ends, closes the
//! connection or says goodbye. Between requests it replaces breakpoints by jumps, in batches, and does what else a
//! session needs.
//!
//! The program is not trusted with anything but itself: whatever it asks for is done in the process
//! that holds the other end of the connection, with the rights that this process has inherited from
//! it.
#![forbid(unsafe_code)]

mod branch;
mod handlers;
mod line;
mod message;
mod one_line;
mod reads;
mod rows;
mod server;
mod uses;

pub use capriole_host::volunteer::try_ptrace;
use line::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use server::Server;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The version of the messages.
pub const VERSION: u64 = 7;

/// Serves the program at the other end of a connection, until one of both ends.
///
/// Only a program that says goodbye has its probes taken out. One that closes the connection, as daemons do
/// with all descriptors, keeps them, as it does if this process is killed. A trace of the program is completed in
/// each case but the last.
///
/// # Errors
/// The connection is broken in the middle of a message, or what comes are no messages.
pub fn serve(mut connection: UnixStream) -> io::Result<()> {
    let peer = socket_peercred(&connection)?;
    // A child of the program may have the connection as well, and outlive the program.
    let program = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
    let line = Arc::new(Line::new(connection.try_clone()?)?);
    let mut server = Server::new(peer.pid.as_raw_nonzero().get() as u32, line.clone());
    let served = answer_all(&mut connection, program.as_ref(), &line, &mut server);
    server.end_trace();
    served
}

/// Answers requests until the program or the connection ends.
fn answer_all(
    connection: &mut UnixStream,
    program: Option<&OwnedFd>,
    line: &Line,
    server: &mut Server,
) -> io::Result<()> {
    loop {
        match wait(connection, program, server.pause())? {
            Event::Request => {}
            Event::Nothing => {
                server.work();
                continue;
            }
            Event::End => return Ok(()),
        }
        let Some(request) = message::receive(connection)? else {
            return Ok(());
        };
        let is_last = request.kind == message::GOODBYE;
        line.set_open(true);
        let answer = server.answer(request);
        line.set_open(false);
        message::send(connection, &answer)?;
        if is_last && answer.is_ok() {
            return Ok(());
        }
    }
}

/// Answers the first request with an error: this process cannot serve.
///
/// # Errors
/// The connection is broken.
pub fn refuse(mut connection: UnixStream, message: String) -> io::Result<()> {
    let code = libc::EAGAIN;
    let _ = Line::new(connection.try_clone()?)?;
    if message::receive(&mut connection)?.is_some() {
        let failure = message::Failure {
            code,
            message,
            recorder: None,
        };
        message::send(&mut connection, &Err(failure))?;
    }
    Ok(())
}

enum Event {
    /// A request, or the end of the connection.
    Request,
    /// The end of the program.
    End,
    /// The pause is over.
    Nothing,
}

fn wait(connection: &UnixStream, program: Option<&OwnedFd>, pause: Duration) -> io::Result<Event> {
    let mut fds = vec![PollFd::new(connection, PollFlags::IN)];
    fds.extend(program.map(|program| PollFd::new(program, PollFlags::IN)));
    let pause = Timespec::try_from(pause).ok();
    match poll(&mut fds, pause.as_ref()) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(Event::Nothing),
        Ok(_) if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) => Ok(Event::End),
        Ok(_) => Ok(Event::Request),
        Err(error) => Err(error.into()),
    }
}
