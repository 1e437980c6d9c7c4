//! Source lines and the instructions that belong to them.
//!
//! The line table (DWARF 5, chapter 6.2) names a file by its directory and name; users write the
//! end of that path: `server.c`, `net/server.c`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use super::error::{DebugError, LineError};
use super::scope::Site;
use super::units::{Bytes, Debug, DieKey, Loaded};

/// Maximum number of files named in an error.
const SHOWN: usize = 8;

/// An instruction at which a statement of a source line begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePlace {
    /// Its link address.
    pub address: u64,
    /// True for the first instruction of the line in its function or inlined copy. Later
    /// instructions are other parts of the line (the condition of a loop, a call's arguments): at
    /// these, execution reaches the same line again.
    pub first: bool,
    /// The scope in which names are resolved there: the innermost function. `None` if there is no
    /// debug information about the function.
    pub site: Option<Site>,
}

/// A row of a line table that begins a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub address: u64,
    pub line: u64,
    /// Number of the file in the line table.
    pub file: u64,
}

impl<'a> Debug<'a> {
    /// Returns the instructions of a source line, in all functions and inlined copies, sorted by
    /// address. `file` is a file name or the end of a path.
    ///
    /// # Errors
    ///
    /// No file or several files match, or the line has no code.
    pub fn line(&self, file: &str, line: u64) -> Result<Vec<LinePlace>, LineError> {
        self.begin();
        let wanted = components(file);
        let mut paths = BTreeSet::new();
        let mut near = BTreeSet::new();
        let mut addresses: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        let mut lines: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        self.programs(|unit, program| {
            let header = program.header().clone();
            let mut fitting: BTreeMap<u64, String> = BTreeMap::new();
            // Versions before 5 count files from 1.
            let count = header.file_names().len() as u64;
            for index in 0..=count {
                let Some(path) = file_path(unit, &header, index) else {
                    continue;
                };
                let parts = components(&path);
                if parts.ends_with(&wanted) {
                    fitting.insert(index, parts.join("/"));
                } else if parts.last() == wanted.last() && near.len() < SHOWN {
                    near.insert(path);
                }
            }
            if fitting.is_empty() {
                return Ok(());
            }
            for row in &self.rows(program)? {
                let Some(path) = fitting.get(&row.file) else {
                    continue;
                };
                paths.insert(path.clone());
                lines.entry(path.clone()).or_default().insert(row.line);
                if row.line == line {
                    addresses
                        .entry(path.clone())
                        .or_default()
                        .insert(row.address);
                }
            }
            Ok(())
        })?;
        // A whole path is unambiguous even if another path ends in it.
        let whole = wanted.join("/");
        let path = match paths.len() {
            0 => {
                return Err(LineError::UnknownFile {
                    file: file.to_owned(),
                    near: near.into_iter().collect(),
                });
            }
            1 => paths.into_iter().next().unwrap_or_default(),
            _ if paths.contains(&whole) => whole,
            _ => {
                return Err(LineError::Ambiguous {
                    file: file.to_owned(),
                    of: paths.into_iter().take(SHOWN).collect(),
                });
            }
        };
        let Some(addresses) = addresses.remove(&path) else {
            let lines = lines.remove(&path).unwrap_or_default();
            let mut near: Vec<u64> = lines.range(..line).rev().take(2).copied().collect();
            near.reverse();
            near.extend(lines.range(line..).take(2));
            return Err(LineError::NoCode {
                file: file.to_owned(),
                line,
                near,
            });
        };
        Ok(self.places(addresses, line))
    }

    /// Marks the first address of each function or inlined copy.
    pub(super) fn places(&self, addresses: BTreeSet<u64>, line: u64) -> Vec<LinePlace> {
        let mut seen: HashSet<Option<DieKey>> = HashSet::new();
        addresses
            .into_iter()
            .map(|address| {
                self.begin();
                let site = self.site(address, Some("")).ok();
                let site = site.map(|site| Site {
                    line: Some(line),
                    ..site
                });
                let frame = site.as_ref().map(|site| site.frame().key);
                LinePlace {
                    address,
                    first: frame.is_none() || seen.insert(frame),
                    site,
                }
            })
            .collect()
    }

    /// Returns the line of an instruction, from the unit that describes it.
    pub(super) fn line_at(&self, address: u64) -> Option<u64> {
        Some(self.row_at(address)?.line)
    }

    /// Returns the last row at or before an instruction, from the unit that describes it.
    pub(super) fn row_at(&self, address: u64) -> Option<Row> {
        let rows = self.rows_of_unit(address);
        let rows = rows.iter().filter(|row| row.address <= address);
        rows.max_by_key(|row| row.address).copied()
    }

    /// Returns the unit that has the line table: for split debug information, the skeleton unit in
    /// the program.
    fn line_unit(&self, address: u64) -> Option<std::rc::Rc<Loaded<'a>>> {
        let covers = |r: &(u64, u64)| r.0 <= address && address < r.1;
        let mut units = self.units().ok()?.iter();
        let unit = units.find(|unit| unit.ranges.iter().any(covers))?;
        self.main_unit(unit.head.key.offset).ok()
    }

    /// Returns the statements that begin in a function's code: address and source line, sorted by
    /// address.
    pub fn statements(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let rows = self.rows_within(start, end).into_iter();
        rows.map(|row| (row.address, row.line)).collect()
    }

    /// Returns the number of the source file of an instruction, in the line table of its unit.
    pub(super) fn file_at(&self, address: u64) -> Option<u64> {
        self.rows_within(address, address.saturating_add(1))
            .first()
            .map(|row| row.file)
    }

    /// Returns the rows of the line table at which statements in this range begin, sorted by address.
    pub(super) fn rows_within(&self, start: u64, end: u64) -> Vec<Row> {
        let rows = self.rows_of_unit(start);
        let within = |row: &&Row| start <= row.address && row.address < end;
        let mut found: Vec<Row> = rows.iter().filter(within).copied().collect();
        found.sort_by_key(|row| row.address);
        found
    }

    /// Returns the rows of the line table of the unit that describes an instruction.
    pub(super) fn rows_of_unit(&self, address: u64) -> Rc<[Row]> {
        let unit = self.line_unit(address);
        let Some(program) = unit.and_then(|unit| unit.unit.line_program.clone()) else {
            return Rc::default();
        };
        let offset = program.header().offset().0;
        if let Some(known) = self.rows.borrow().get(&offset) {
            return known.clone();
        }
        let Ok(rows) = self.rows(program) else {
            return Rc::default();
        };
        let rows: Rc<[Row]> = rows.into();
        self.rows.borrow_mut().insert(offset, rows.clone());
        rows
    }

    /// Calls `look` with the line programs of all units, each once.
    fn programs(
        &self,
        mut look: impl FnMut(&Loaded<'a>, Program<'a>) -> Result<(), DebugError>,
    ) -> Result<(), DebugError> {
        let mut seen = HashSet::new();
        for unit in self.units()? {
            self.begin();
            // A damaged unit has no lines.
            let Ok(unit) = self.main_unit(unit.head.key.offset) else {
                continue;
            };
            let Some(program) = unit.unit.line_program.clone() else {
                continue;
            };
            if seen.insert(program.header().offset().0)
                && let Err(DebugError::TooMuch) = look(&unit, program)
            {
                return Err(DebugError::TooMuch);
            }
        }
        Ok(())
    }

    /// Returns the rows at which statements begin, for code that is in the program.
    fn rows(&self, program: Program<'a>) -> Result<Vec<Row>, DebugError> {
        let mut found = Vec::new();
        let mut rows = program.rows();
        // A sequence that the linker dropped begins at an address without code.
        let mut kept: Option<bool> = None;
        loop {
            self.spend(1)?;
            // Ignore the rows after a damaged one.
            let Ok(Some((_, row))) = rows.next_row() else {
                break;
            };
            let address = row.address();
            if !*kept.get_or_insert_with(|| self.object.is_text(address)) {
                if row.end_sequence() {
                    kept = None;
                }
                continue;
            }
            if row.end_sequence() {
                kept = None;
            } else if let (true, Some(line)) = (row.is_stmt(), row.line()) {
                found.push(Row {
                    address,
                    line: line.get(),
                    file: row.file_index(),
                });
            }
        }
        found.retain(|row| self.object.is_text(row.address));
        Ok(found)
    }
}

type Program<'a> = gimli::IncompleteLineProgram<Bytes<'a>>;
type Header<'a> = gimli::LineProgramHeader<Bytes<'a>>;

/// Splits a path into components, without `.` and with `..` resolved.
fn components(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|&last| last != "..") => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts
}

/// Returns a path without `.` and with `..` resolved.
pub(super) fn normal(path: &str) -> String {
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", components(path).join("/"))
}

/// Returns the path of a file: compilation directory, directory and name.
pub(super) fn file_path(unit: &Loaded<'_>, header: &Header<'_>, index: u64) -> Option<String> {
    let file = header.file(index)?;
    let text = |value| {
        let bytes = unit.dwarf.attr_string(&unit.unit, value).ok()?;
        Some(String::from_utf8_lossy(bytes.slice()).into_owned())
    };
    let mut path = text(file.path_name())?;
    if !path.starts_with('/')
        && let Some(directory) = file.directory(header).and_then(text)
    {
        path = format!("{directory}/{path}");
    }
    if !path.starts_with('/')
        && let Some(directory) = &unit.unit.comp_dir
    {
        path = format!("{}/{path}", directory.to_string_lossy());
    }
    Some(path)
}
