//! Static markers in `list`.

use super::Arguments;
use crate::advice;
use capriole_object::Objects;
use capriole_select::marker;
use capriole_select::select::Selected;
use capriole_text::printable;
use capriole_text::units;
use capriole_text::{note, tell};
use std::io::Write;

/// Writes the markers as a table.
pub(super) fn table(selected: &[Selected], out: &mut impl Write) -> anyhow::Result<()> {
    let lists: Vec<String> = selected
        .iter()
        .map(|event| event.site.marker.as_deref().map(marker::list))
        .map(|list| printable(&list.unwrap_or_default()))
        .collect();
    let names: Vec<String> = selected
        .iter()
        .map(|event| printable(&event.name()))
        .collect();
    let width = |texts: &[String], most: usize| {
        let longest = texts.iter().map(|text| text.chars().count()).max();
        longest.unwrap_or(0).min(most)
    };
    let (name_width, list_width) = (width(&names, 40).max(6), width(&lists, 40).max(9));
    writeln!(
        out,
        "{:>18}  {:<8}  {:>9}  {:<name_width$}  {:<list_width$}  SOURCE",
        "ADDRESS", "TACTIC", "SEMAPHORE", "MARKER", "ARGUMENTS"
    )?;
    for ((event, name), list) in selected.iter().zip(&names).zip(&lists) {
        let semaphore = match &event.counter {
            Some(counter) => format!("{:#x}", counter.address),
            None => "-".to_owned(),
        };
        let described = event.site.marker.as_ref();
        let described = described.and_then(|marker| marker.described.as_ref());
        let source = match described {
            Some(described) => format!("{}:{}", printable(&described.file), described.line),
            None => event.place(),
        };
        write!(
            out,
            "{:>#18x}  {:<8}  {semaphore:>9}  {name:<name_width$}  {list:<list_width$}  {source}",
            event.site.address,
            event.tactic(),
        )?;
        match event.fate.reason() {
            Some(reason) => writeln!(out, "  ({})", advice::told(&reason).replace('\n', " "))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// Prints that the object also has markers, if all its functions were listed.
pub(super) fn mention(arguments: &Arguments, objects: &Objects, selected: &[Selected]) {
    let all = match arguments.pid {
        Some(_) => arguments.words.is_empty(),
        None => arguments.words.len() < 2,
    };
    let (true, Some(first)) = (all, selected.first()) else {
        return;
    };
    let object = &first.site.object;
    let Ok(markers) = object.file().markers() else {
        return;
    };
    let places = markers.all.len() as u64;
    if places > 0 {
        let whose = match (objects.process(), arguments.pid) {
            (Some(_), Some(pid)) => format!("-p {pid} 'usdt::*'"),
            _ => format!("'usdt::*' {}", object.path().display()),
        };
        note!(
            "capriole: it also has {}: capriole list {whose}",
            units::counted(places, "static marker", "static markers")
        );
    }
    if markers.unusable > 0 {
        let notes = units::counted(
            markers.unusable as u64,
            "marker note is",
            "marker notes are",
        );
        tell!("capriole: {notes} damaged, or describe code that is not in this file");
    }
}
