//! Errors about events that cannot be probed.

use super::fate::Fate;
use super::selected::Selected;
use crate::error::{Result, bail};
use capriole_planner::resolve::ResolveError;
use capriole_tactic::site::{Refusal, Refused};
use capriole_text::units;
use std::collections::HashSet;

/// Returns an error if events that the user named cannot be probed: [`Code::Misplaced`](crate::Code) if
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
        bail!(NotProbeable, "{}", refusal(event, refused));
    }
    if let Some((event, refused)) = misplaced.first() {
        bail!(Misplaced, "{}", refusal(event, refused));
    }
    let asked = || selected.iter().filter(|event| !event.origin.is_implied());
    if let Some(event) = asked().next()
        && asked().all(|event| !matches!(event.fate, Fate::Planned(_)))
    {
        let example = match &event.fate {
            Fate::Refused(refused) => refusal(event, refused),
            fate => format!(
                "{}: {}",
                event.function(),
                fate.left_out().unwrap_or_default()
            ),
        };
        let functions: HashSet<u32> = asked().map(|event| event.id).collect();
        let (one, several) = Selected::nouns(asked());
        bail!(
            NotProbeable,
            "none of {} can be probed; for example: {example}",
            units::counted(functions.len() as u64, one, several),
        );
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

/// Formats the reason why an event cannot be probed. For an offset inside an instruction, shows the
/// nearest valid ones, in the notation that the user chose.
fn refusal(event: &Selected, refused: &Refused) -> String {
    if event.part.is_probed_exit() {
        let function = event.function();
        let reason = format!("its exit at {} has no probe: {refused}", event.place());
        return match event.part.is_of_calls() {
            true => ResolveError::NoCalls { function, reason }.to_string(),
            false => ResolveError::NoExits { function, reason }.to_string(),
        };
    }
    let Some((_, Refusal::NotABoundary { site, instruction })) = refused.refusals.first() else {
        return format!(
            "{} cannot be probed: {refused}; `capriole check` shows the site",
            event.name()
        );
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
                format!("{}:{offset:#x}", event.site.object.name())
            }
        }
    };
    format!(
        "no instruction starts at {}: it is in the middle of the one at {}; the next starts at {}",
        event.name(),
        at(instruction.start),
        at(instruction.end)
    )
}
