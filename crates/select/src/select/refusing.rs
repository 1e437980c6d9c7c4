//! Errors about events that cannot be probed.

use super::fate::Fate;
use super::selected::Selected;
use crate::advice::{Advice, Message};
use crate::error::{Code, Error, Result, err};
use capriole_planner::resolve::ResolveError;
use capriole_tactic::site::{Refusal, Refused};
use capriole_text::units;
use std::collections::HashSet;

/// Returns an error if events that the user named cannot be probed: [`Code::Misplaced`](crate::error::Code) if
/// other load addresses could make a difference for all of them.
pub fn refuse_named(selected: &[Selected]) -> Result<()> {
    let named = selected.iter().filter(|e| e.origin.is_named());
    let refused = named.filter_map(|event| match &event.fate {
        Fate::Refused(refused) => Some((event, refused)),
        Fate::Planned(_) | Fate::LeftOut { .. } => None,
    });
    let (misplaced, impossible): (Vec<_>, Vec<_>) =
        refused.partition(|(_, refused)| depends_on_addresses(refused));
    if let Some((event, refused)) = impossible.first() {
        return Err(refusal(event, refused));
    }
    if let Some((event, refused)) = misplaced.first() {
        return Err(refusal(event, refused).recoded(Code::Misplaced));
    }
    let asked = || selected.iter().filter(|event| !event.origin.is_implied());
    if let Some(event) = asked().next()
        && asked().all(|event| !matches!(event.fate, Fate::Planned(_)))
    {
        let example = match &event.fate {
            Fate::Refused(refused) => refusal(event, refused).whole(),
            fate => Message::from(format!("{}: ", event.function()))
                .then(fate.left_out().cloned().unwrap_or_default()),
        };
        let functions: HashSet<u32> = asked().map(|event| event.id).collect();
        let (one, several) = Selected::nouns(asked());
        let message = format!(
            "none of {} can be probed; for example: ",
            units::counted(functions.len() as u64, one, several)
        );
        return Err(Error::new(
            Code::NotProbeable,
            Message::from(message).then(example),
        ));
    }
    Ok(())
}

/// True if the site might be probed if the program were loaded elsewhere: fixed bytes of a jump led
/// to an address that was not free, or to one that another probe uses.
fn depends_on_addresses(refused: &Refused) -> bool {
    let depends =
        |refusal: &Refusal| matches!(refusal, Refusal::NoStubAddress | Refusal::BytesInUse { .. });
    refused.refusals.iter().any(|(_, refusal)| depends(refusal))
}

/// Returns the error for an event that cannot be probed. For an offset inside an instruction, shows the
/// nearest valid ones, in the notation that the user chose.
fn refusal(event: &Selected, refused: &Refused) -> Error {
    if event.part.is_probed_exit() {
        let function = event.function();
        let before = format!("its exit at {} has no probe: ", event.place());
        let reason = format!("{before}{refused}");
        let error: Error = match event.part.is_of_calls() {
            true => ResolveError::NoCalls { function, reason }.into(),
            false => ResolveError::NoExits { function, reason }.into(),
        };
        return error.within(&refused.to_string(), refused.into());
    }
    let Some((_, Refusal::NotABoundary { site, instruction })) = refused.refusals.first() else {
        let error = err!(NotProbeable, "{} cannot be probed: ", event.name());
        return error.then(refused).advise(Advice::CheckShowsTheSite);
    };
    let at = |address: u64| {
        let from_start = address.wrapping_sub(event.site.extent.start);
        match (&event.site.symbol, from_start) {
            (Some(symbol), 0) => symbol.clone(),
            (Some(symbol), offset) => format!("{symbol}+{offset:#x}"),
            (None, _) => {
                let offset = event
                    .site
                    .file_offset
                    .wrapping_add(address.wrapping_sub(*site));
                format!("{}:{offset:#x}", event.object_name())
            }
        }
    };
    err!(
        NotABoundary,
        "no instruction starts at {}: it is in the middle of the one at {}; the next starts at {}",
        event.name(),
        at(instruction.start),
        at(instruction.end)
    )
}
