//! Places that refusals suggest instead of the one that was asked for. Each is tried first as an event there would
//! be: a line has several places, of which a probe is put at the first in each function and inlined copy, and the
//! variable has to be readable at each of them.

use std::collections::{BTreeMap, BTreeSet};

use capriole_object::symbols::demangle::demangle;

use super::error::{Onward, Refusal};
use super::scope::Site;
use super::setup::Setup;
use super::units::{Debug, DieKey};

/// Maximum number of lines or instructions that are tried for one refusal, and of places of one line.
const TRIED: usize = 32;
const PLACES: usize = 64;

impl Debug<'_> {
    /// Returns the first `limit` of some lines at which events can read a variable. They are lines of the source
    /// file that has a number in the line table of the unit that describes `address`.
    pub(super) fn lines_with(
        &self,
        name: &str,
        (file, address): (u64, u64),
        lines: &BTreeSet<u64>,
        limit: usize,
    ) -> Vec<u64> {
        if self.trying.replace(true) {
            return Vec::new();
        }
        let mut places: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let rows = self.rows_of_unit(address);
        let rows = rows
            .iter()
            .filter(|row| row.file == file && lines.contains(&row.line));
        for row in rows {
            places.entry(row.line).or_default().insert(row.address);
        }
        let tried = places.into_iter().take(TRIED);
        let found = tried.filter(|(line, places)| self.is_readable_at_line(name, *line, places));
        let found = found.map(|(line, _)| line).take(limit).collect();
        self.trying.set(false);
        found
    }

    fn is_readable_at_line(&self, name: &str, line: u64, addresses: &BTreeSet<u64>) -> bool {
        if addresses.len() > PLACES {
            return false;
        }
        let places = self.places(addresses.clone(), line).into_iter();
        let mut first = places.filter(|place| place.first);
        first.all(|place| place.site.is_some_and(|site| self.is_readable(&site, name)))
    }

    /// True if an event at a site can read a variable, or a part of it: its type has nothing to do with the place.
    fn is_readable(&self, site: &Site, name: &str) -> bool {
        self.begin();
        let Ok(thing) = self.walk(site, name) else {
            return false;
        };
        !matches!(
            self.typed(thing, None),
            Err(Refusal::Computed(_)
                | Refusal::Pieces(_)
                | Refusal::VectorRegister(_)
                | Refusal::NotSaved(_)
                | Refusal::OptimisedOut { .. })
        )
    }

    /// Returns the first place from a link address on at which a variable of a function can be read, as a line if
    /// none of its code comes before. `None` if there is none, or while another is tried.
    pub(super) fn onward(&self, setup: Setup, name: &str, from: u64) -> Option<Onward> {
        let statements = self.statements(setup.start, setup.end);
        let (before, behind) = statements.split_at(statements.partition_point(|s| s.0 < from));
        let is_later = |line: u64| before.iter().all(|statement| statement.1 != line);
        let lines: BTreeSet<u64> = behind
            .iter()
            .map(|s| s.1)
            .filter(|l| is_later(*l))
            .collect();
        let file = self.file_at(from.max(setup.start));
        let lines = file.map(|file| self.lines_with(name, (file, setup.start), &lines, TRIED));
        let lines = lines.unwrap_or_default();
        let line = behind.iter().take(TRIED).find(|s| lines.contains(&s.1));
        let address = self.first_readable(setup.function, name, behind);
        match (line, address) {
            (Some(&(by_line, line)), address) if address.is_none_or(|a| by_line <= a) => {
                Some(Onward::Line(line))
            }
            (_, address) => self.as_place(setup, address?),
        }
    }

    /// Returns a name of the symbol at a function's entry, which may be that of a copy (`name.part.0`), if no other
    /// function has it.
    fn symbol_at(&self, setup: Setup) -> Option<String> {
        let symbols = self.object.symbols().ok()?;
        let function = symbols.function_starting_at(setup.start)?;
        let title = self.title(setup.function);
        let short = |linkage: &str| demangle(linkage).map_or(linkage.to_owned(), |name| name.short);
        let mut known = symbols.names(function);
        let known = match known.any(|name| short(name.linkage) == title) {
            true => Some(title),
            false => symbols.linkage_name(function).map(short),
        };
        // Of several functions of one name, the linker may know one by another.
        let linkage = symbols.linkage_name(function).map(str::to_owned);
        let mut names = known.into_iter().chain(linkage);
        names.find(|name| symbols.exact(name).len() == 1)
    }

    /// Returns an address in a function as an event can give it.
    fn as_place(&self, setup: Setup, address: u64) -> Option<Onward> {
        if let Some(name) = self.symbol_at(setup) {
            return Some(Onward::Offset(name, address - setup.start));
        }
        let object = self.object.path().display().to_string();
        Some(Onward::File(object, self.object.file_offset(address)?))
    }

    /// Returns the address of the first of some statements at which a function's variable can be read.
    fn first_readable(
        &self,
        function: DieKey,
        name: &str,
        statements: &[(u64, u64)],
    ) -> Option<u64> {
        if self.trying.replace(true) {
            return None;
        }
        let mut tried = statements.iter().take(TRIED);
        let found = tried.find(|statement| {
            let site = self.site_of(statement.0, function);
            site.is_ok_and(|site| self.is_readable(&site, name))
        });
        self.trying.set(false);
        found.map(|statement| statement.0)
    }
}
