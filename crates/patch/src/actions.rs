//! The program's own signal actions, which the resident's handlers stand before.
//!
//! The resident's handler of a signal may be before an action that the program had when the session
//! began, which is in the ledger, or before one that it has set since: behind each `rt_sigaction` stands
//! a guard, by which the resident keeps the program's new action and puts its handler back (`follow` in
//! `resident.c`). What it keeps is in the words that are private to each process, so a forked child has
//! a copy.

use crate::session::write;
use capriole_host::error::TargetError;
use capriole_host::host::TargetMemory;
use capriole_host::survey::own_tid;
use capriole_ledger::{Action, FAULTS, Ledger};
use capriole_ring::layout::own;

/// Returns the number of a signal among those whose actions are replaced.
fn index_of(signal: i32) -> Option<usize> {
    let mut signals = FAULTS.into_iter().chain([libc::SIGTRAP]);
    signals.position(|known| known == signal)
}

/// Returns the address of a word for each signal, of this signal.
fn word_of(own: u64, words: usize, signal: i32) -> Option<u64> {
    Some(own + words as u64 + 4 * index_of(signal)? as u64)
}

/// True if the resident's handler is to stand before an action for a fault: not before the default, not
/// if the signal is ignored, and not before a handler that the kernel removes as it calls it.
pub(crate) fn is_preceded(action: &[u64; 4]) -> bool {
    let once = libc::SA_RESETHAND as u32 as u64;
    action[0] > 1 && action[1] & once != once
}

/// Makes the resident put its handler before each action of these signals that the program sets from
/// now on, or no longer. `own` is the address of the process's own words.
pub(crate) fn follow(
    pid: i32,
    remote: &dyn TargetMemory,
    own: u64,
    signals: &[i32],
    follows: bool,
) -> Result<(), TargetError> {
    let at = own + own::FOLLOWED as u64;
    let mut followed = remote.read_u32(at).map_err(TargetError::reading(pid, at))?;
    for index in signals.iter().filter_map(|signal| index_of(*signal)) {
        match follows {
            true => followed |= 1 << index,
            false => followed &= !(1 << index),
        }
    }
    if follows {
        let process = own_tid(pid, pid).unwrap_or(0);
        let at = own + own::FOLLOWED_PROCESS as u64;
        write(pid, remote, at, &process.to_le_bytes())?;
    }
    write(pid, remote, at, &followed.to_le_bytes())
}

/// Makes the resident take the action in its configuration for the newest one of a signal.
pub(crate) fn forget_newest(
    pid: i32,
    remote: &dyn TargetMemory,
    own: u64,
    signal: i32,
) -> Result<(), TargetError> {
    match word_of(own, own::NEWEST, signal) {
        Some(at) => write(pid, remote, at, &0u32.to_le_bytes()),
        None => Ok(()),
    }
}

/// Makes the resident put its handlers before no further actions. Where they are, they stay.
pub(crate) fn end(pid: i32, remote: &dyn TargetMemory, ledger: &Ledger) -> Result<(), TargetError> {
    match ledger.header(remote)?.own() {
        Some(own) => write(pid, remote, own + own::FOLLOWED as u64, &[0; 4]),
        None => Ok(()),
    }
}

/// Returns the action of a signal before which the resident has put its handler last, if the program has
/// set that since the session began.
pub(crate) fn set_since(
    pid: i32,
    remote: &dyn TargetMemory,
    own: Option<u64>,
    signal: i32,
) -> Result<Option<[u64; 4]>, TargetError> {
    let newest = own.and_then(|own| Some((own, word_of(own, own::NEWEST, signal)?)));
    let (Some((own, at)), Some(index)) = (newest, index_of(signal)) else {
        return Ok(None);
    };
    let read = |at| remote.read_u32(at).map_err(TargetError::reading(pid, at));
    // Another one may be kept in its place meanwhile.
    loop {
        let number = read(at)?;
        if number == 0 {
            return Ok(None);
        }
        let place = index * own::KEPT_ACTIONS + number as usize % own::KEPT_ACTIONS;
        let kept = own + (own::KEPT + 32 * place) as u64;
        let mut words = [[0; 8]; 4];
        let bytes = remote.read(kept, words.as_flattened_mut());
        bytes.map_err(TargetError::reading(pid, kept))?;
        if read(at)? == number {
            return Ok(Some(words.map(u64::from_le_bytes)));
        }
    }
}

/// Returns the program's own action of a signal that a session has replaced.
pub(crate) fn newest(
    pid: i32,
    remote: &dyn TargetMemory,
    own: Option<u64>,
    action: &Action,
) -> Result<[u64; 4], TargetError> {
    Ok(set_since(pid, remote, own, action.signal)?.unwrap_or(action.old))
}

/// Returns those actions that the resident's handler may stand before, or may have stood before since
/// the session began.
pub(crate) fn replaced(
    pid: i32,
    remote: &dyn TargetMemory,
    own: Option<u64>,
    actions: &[Action],
) -> Result<Vec<Action>, TargetError> {
    let mut replaced = Vec::new();
    for action in actions {
        let at_first = action.signal == libc::SIGTRAP || is_preceded(&action.old);
        if at_first || set_since(pid, remote, own, action.signal)?.is_some() {
            replaced.push(*action);
        }
    }
    Ok(replaced)
}
