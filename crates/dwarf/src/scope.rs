//! The function and inlined copies that an instruction belongs to, and the variables visible there.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::constants as dw;

use super::captured::captured_at;
use super::die::Die;
use super::error::{DebugError, Refusal};
use super::names;
use super::path::Step;
use super::setup::Setup;
use super::units::{Debug, DieKey, Loaded};

/// A function, or an inlined copy of one, around an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its name as in the source, or the linkage name if it has no other.
    pub name: String,
    /// The linkage name, if the language mangles names.
    pub linkage_name: Option<String>,
    /// True for a copy that was inlined into the previous frame.
    pub inlined: bool,
    pub(super) key: DieKey,
}

/// An instruction with the functions around it: the scope in which names are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Its link address.
    pub address: u64,
    /// The function that contains the code, then the copies inlined into it, innermost last.
    /// Never empty.
    pub frames: Vec<Frame>,
    /// Index in `frames` of the frame whose variables are visible.
    pub chosen: usize,
    /// True if the site was requested as the entry of that frame: names then belong to the
    /// function as a whole, not to a block in it.
    pub at_entry: bool,
    /// The requested source line.
    pub line: Option<u64>,
    /// True for an inlined copy of which the compiler has left nothing where it is entered: no instruction is
    /// executed exactly as often.
    pub empty: bool,
}

impl Site {
    /// Returns the frame whose variables are visible.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        &self.frames[self.chosen]
    }
}

/// A parameter or a variable.
pub(super) struct Variable<'a> {
    pub die: Die<'a>,
    pub name: String,
    pub parameter: bool,
    /// True if the described object is its address: Go moves variables that outlive a call to the heap.
    pub moved: bool,
    pub block: Block,
    /// The debug information entry of that block, or of the function.
    within: DieKey,
}

impl<'a> Variable<'a> {
    /// Creates a variable that belongs to no function.
    pub(super) fn global(die: Die<'a>, name: &str, function: DieKey) -> Variable<'a> {
        Variable {
            die,
            name: name.to_owned(),
            parameter: false,
            moved: false,
            block: Block::Function,
            within: function,
        }
    }
}

/// Result of resolving a name at a site.
pub(super) struct Meaning<'a> {
    pub variable: Variable<'a>,
    /// The frame that the variable belongs to; none for a global one.
    pub frame: Option<DieKey>,
    /// Steps from the variable to the named object: from `this` to its member.
    pub steps: Vec<Step>,
}

impl<'a> From<Variable<'a>> for Meaning<'a> {
    fn from(variable: Variable<'a>) -> Meaning<'a> {
        Meaning {
            variable,
            frame: None,
            steps: Vec::new(),
        }
    }
}

/// The block that a variable belongs to, as seen from an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// The function itself.
    Function,
    /// An inner block that contains the address.
    Around,
    /// An inner block that does not contain the address.
    Elsewhere,
    /// An inner block whose addresses are unknown: the copy of the function does not describe it.
    Unknown,
}

/// The variables of a function as seen from a site.
pub(super) struct Scope<'a> {
    pub visible: Vec<Variable<'a>>,
    /// Variables of blocks that do not contain the site.
    pub hidden: Vec<Variable<'a>>,
}

/// Maximum number of ranges of a block examined for its lines.
const MOST_PARTS: usize = 16;

/// Maximum number of chained origins of a function followed.
const MOST_ORIGINS: usize = 8;

/// Maximum nesting of inlined copies.
const MOST_FRAMES: usize = 256;

/// Functions of a unit by address: start, end and entry.
pub(super) type Bodies = Vec<(u64, u64, gimli::UnitOffset)>;

impl<'a> Debug<'a> {
    /// Returns the functions around the instruction at a link address. Names are resolved in the
    /// function called `function` (by any of its names) if it is one of these functions, and
    /// otherwise in the function that contains the code; `""` means the innermost.
    ///
    /// # Errors
    ///
    /// No debug information about that code, or it is damaged.
    pub fn site(&self, address: u64, function: Option<&str>) -> Result<Site, DebugError> {
        self.begin();
        let frames = self.frames_at(address)?;
        let is_called = |frame: &Frame, name: &str| {
            names::is_called(name, Some(&frame.name), frame.linkage_name.as_deref())
        };
        let chosen = match function {
            Some("") => frames.len() - 1,
            Some(name) => frames.iter().position(|f| is_called(f, name)).unwrap_or(0),
            None => 0,
        };
        let at_entry = function != Some("") && self.is_entry(&frames, chosen, address)?;
        Ok(Site {
            address,
            frames,
            chosen,
            at_entry,
            line: None,
            empty: false,
        })
    }

    /// Returns the site at `address` with the frame `key` chosen.
    pub(super) fn site_of(&self, address: u64, key: DieKey) -> Result<Site, DebugError> {
        let mut frames = self.frames_at(address)?;
        let chosen = frames.iter().position(|frame| frame.key == key);
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => {
                // The copy's ranges lie outside the ranges of the function it was inlined into.
                let die = self.die(key)?;
                let inlined = die.tag() == dw::DW_TAG_inlined_subroutine;
                frames.push(self.frame(&die, inlined));
                frames.len() - 1
            }
        };
        Ok(Site {
            address,
            at_entry: self.is_entry(&frames, chosen, address)?,
            chosen,
            frames,
            line: None,
            empty: false,
        })
    }

    fn is_entry(&self, frames: &[Frame], chosen: usize, address: u64) -> Result<bool, DebugError> {
        let die = self.die(frames[chosen].key)?;
        let entry = self.entry_address(&die);
        Ok(entry.is_some_and(|e| e <= address && self.does_nothing(e, address)))
    }

    pub(super) fn frames_at(&self, address: u64) -> Result<Vec<Frame>, DebugError> {
        let unit = self.unit_at(address)?;
        let bodies = self.bodies(&unit)?;
        // Of nested functions, take the one that begins last.
        let after = bodies.partition_point(|body| body.0 <= address);
        let body = bodies[..after].iter().rev().find(|body| address < body.1);
        let &(.., offset) = body.ok_or(DebugError::Added(address))?;
        let mut die = self.die(DieKey {
            unit: unit.key,
            offset,
        })?;
        let mut frames = vec![self.frame(&die, false)];
        'down: while frames.len() < MOST_FRAMES {
            for child in self.children(&die)? {
                let inlined = child.tag() == dw::DW_TAG_inlined_subroutine;
                if !inlined && child.tag() != dw::DW_TAG_lexical_block {
                    continue;
                }
                if child.covers(address) == Some(true) {
                    if inlined {
                        frames.push(self.frame(&child, true));
                    }
                    die = child;
                    continue 'down;
                }
            }
            break;
        }
        Ok(frames)
    }

    /// True if the code at an address belongs to this function or copy, and to none inlined into it.
    pub(super) fn is_innermost(&self, frame: DieKey, address: u64) -> bool {
        let frames = self.frames_at(address).ok();
        frames.is_some_and(|frames| frames.last().is_some_and(|last| last.key == frame))
    }

    fn frame(&self, die: &Die<'a>, inlined: bool) -> Frame {
        let linkage_name = self.linkage_name_of(die);
        Frame {
            name: self
                .name_of(die)
                .or_else(|| linkage_name.clone())
                .unwrap_or_else(|| "?".to_owned()),
            linkage_name,
            inlined,
            key: die.key(),
        }
    }

    /// Returns the functions of a unit that have code.
    fn bodies(&self, unit: &Rc<Loaded<'a>>) -> Result<Rc<Bodies>, DebugError> {
        if let Some(bodies) = unit.bodies.get() {
            return Ok(bodies.clone());
        }
        let mut bodies = Bodies::new();
        let mut entries = unit.unit.entries_raw(None)?;
        let mut attributes = Vec::new();
        // Ignore the entries after a damaged one.
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Ok(abbreviation) = entries.read_abbreviation() else {
                break;
            };
            let Some(abbreviation) = abbreviation else {
                continue;
            };
            self.spend(1 + abbreviation.attributes().len() as u64 / 4)?;
            attributes.clear();
            if abbreviation.tag() != dw::DW_TAG_subprogram {
                if entries.skip_attributes(abbreviation.attributes()).is_err() {
                    break;
                }
                continue;
            }
            if entries
                .read_attributes(abbreviation.attributes(), &mut attributes)
                .is_err()
            {
                break;
            }
            let die = Die {
                unit: unit.clone(),
                entry: unit.unit.entry(offset)?,
            };
            let ranges = die.ranges(1 << 12);
            bodies.extend(ranges.iter().map(|range| (range.0, range.1, offset)));
        }
        bodies.sort_unstable_by_key(|body| body.0);
        Ok(unit.bodies.get_or_init(|| Rc::new(bodies)).clone())
    }

    /// Returns the parameters and variables of a frame, outer blocks before inner blocks.
    fn variables_of(&self, frame: DieKey, address: u64) -> Result<Vec<Variable<'a>>, DebugError> {
        let mut found = Vec::new();
        let mut blocks = vec![(self.die(frame)?, Block::Function)];
        while let Some((around, block)) = blocks.pop() {
            for die in self.children(&around)? {
                if die.tag() == dw::DW_TAG_GNU_formal_parameter_pack {
                    let elements = self.children(&die)?;
                    // GCC does not record the name of the pack.
                    let pack = self.name_of(&die).unwrap_or_else(|| "args".to_owned());
                    let element = |(index, die)| Variable {
                        die,
                        name: format!("{pack}#{index}"),
                        parameter: true,
                        moved: false,
                        block,
                        within: around.key(),
                    };
                    found.extend(elements.into_iter().enumerate().map(element));
                    continue;
                }
                let parameter = match die.tag() {
                    dw::DW_TAG_formal_parameter => !self.is_go_result(&die),
                    dw::DW_TAG_variable => false,
                    dw::DW_TAG_lexical_block => {
                        // A block without addresses has no code.
                        let around = block != Block::Elsewhere && die.covers(address) == Some(true);
                        let inner = if around {
                            Block::Around
                        } else {
                            Block::Elsewhere
                        };
                        blocks.push((die, inner));
                        continue;
                    }
                    _ => continue,
                };
                if let Some(name) = self.name_of(&die) {
                    // Go calls the address of `x` `&x`.
                    let (name, moved) = match name.strip_prefix('&') {
                        Some(name) => (name.to_owned(), true),
                        None => (name, false),
                    };
                    found.push(Variable {
                        die,
                        name,
                        parameter,
                        moved,
                        block,
                        within: around.key(),
                    });
                }
            }
        }
        number_packs(&mut found);
        Ok(found)
    }

    /// Returns the variables of a site's chosen function, visible and hidden. The visible ones
    /// are in source order, parameters first; if two have the same name, the later one hides the
    /// other. Includes variables that a copy does not mention.
    pub(super) fn variables(&self, site: &Site) -> Result<Scope<'a>, DebugError> {
        self.all_there()?;
        let frame = site.frame().key;
        let mut all = self.variables_of(frame, site.address)?;
        if all.is_empty() && !self.has_types(frame)? {
            return Err(DebugError::NoVariables(site.frame().name.clone()));
        }
        if let Some(whole) = self.whole_function(frame)? {
            self.complete(site, &mut all, self.variables_of(whole, site.address)?)?;
        }
        let (hidden, mut visible): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|variable| variable.block == Block::Elsewhere);
        if self.die(frame)?.language() == Some(dw::DW_LANG_Go) {
            // Results without a name have one that cannot be written, `~r0`.
            visible.retain(|variable| !variable.name.starts_with('~'));
            self.keep_meant(site, &mut visible)?;
        }
        if site.at_entry {
            // Execution has not entered a block yet, even if this instruction belongs to one.
            visible.sort_by_key(|variable| variable.block == Block::Function);
        }
        Ok(Scope { visible, hidden })
    }

    /// Removes variables of the function itself that a name cannot mean at a site, where several have it. Go describes parameters, captured variables and variables in one block: the parameter is meant on the
    /// line on which the function begins, also where Go moves it to the heap, and a variable from the line behind
    /// its declaration on.
    fn keep_meant(&self, site: &Site, visible: &mut Vec<Variable<'a>>) -> Result<(), DebugError> {
        let own = |variable: &Variable<'a>| variable.block == Block::Function;
        let mut counts: HashMap<String, usize> = HashMap::new();
        for variable in visible.iter().filter(|v| own(v)) {
            *counts.entry(variable.name.clone()).or_default() += 1;
        }
        if counts.values().all(|&count| count < 2) {
            return Ok(());
        }
        let entry = self.entry_address(&self.die(site.frame().key)?);
        let first = entry.and_then(|entry| self.line_at(entry));
        let here = site.line.or_else(|| self.line_within(site));
        let is_first = site.at_entry || here == first;
        let declared = |variable: &Variable<'a>| match variable.parameter {
            true => first,
            false => self.declared_at(&variable.die),
        };
        // A moved parameter is a variable of its own, which is declared where the parameter is.
        let order = |variable: &Variable<'a>| (declared(variable), !variable.parameter);
        let mut meant: HashMap<String, (Option<u64>, bool)> = HashMap::new();
        for variable in visible.iter().filter(|v| own(v) && declared(v) < here) {
            let last = meant.entry(variable.name.clone()).or_default();
            *last = (*last).max(order(variable));
        }
        visible.retain(|variable| {
            if !own(variable) || counts.get(&variable.name).is_none_or(|&count| count < 2) {
                return true;
            }
            match is_first {
                true => variable.parameter || captured_at(&variable.die).is_some(),
                false => meant.get(&variable.name) == Some(&order(variable)),
            }
        });
        Ok(())
    }

    /// True if the unit of an entry describes types; with `-g1` it does not.
    fn has_types(&self, key: DieKey) -> Result<bool, DebugError> {
        let root = self.root(&self.unit(key.unit)?)?;
        let typed = |die: &Die<'a>| {
            let marks = [
                dw::DW_AT_type,
                dw::DW_AT_prototyped,
                dw::DW_AT_abstract_origin,
            ];
            let functions = [dw::DW_TAG_subprogram, dw::DW_TAG_variable];
            !functions.contains(&die.tag()) || marks.iter().any(|&mark| die.has(mark))
        };
        Ok(self.children(&root)?.iter().any(typed))
    }

    /// Returns the abstract function that a copy, or the function's own code, is made from.
    fn whole_function(&self, frame: DieKey) -> Result<Option<DieKey>, DebugError> {
        let mut found = None;
        for _ in 0..MOST_ORIGINS {
            let die = self.die(found.unwrap_or(frame))?;
            match self.reference(&die, dw::DW_AT_abstract_origin)? {
                Some(next) => found = Some(next),
                None => break,
            }
        }
        Ok(found)
    }

    /// Adds variables that the copy of a function does not mention. LLVM omits variables that it
    /// optimised out, and whole blocks without any remaining variable; GCC omits variables that
    /// it does not copy (static variables).
    fn complete(
        &self,
        site: &Site,
        all: &mut Vec<Variable<'a>>,
        whole: Vec<Variable<'a>>,
    ) -> Result<(), DebugError> {
        let order: HashMap<DieKey, usize> = whole
            .iter()
            .enumerate()
            .map(|(index, variable)| (variable.die.key(), index))
            .collect();
        let mut places = vec![None; whole.len()];
        for (place, variable) in all.iter().enumerate() {
            let origins = self.with_origins(&variable.die);
            if let Some(&index) = origins.iter().find_map(|die| order.get(&die.key())) {
                places[index] = Some(place);
            }
        }
        let line = self.line_within(site);
        let mut own: Vec<Option<Variable<'a>>> = all.drain(..).map(Some).collect();
        let mut inner = Vec::new();
        for (mut variable, place) in whole.into_iter().zip(places) {
            let of_function = variable.block == Block::Function;
            let mentioned = place.and_then(|place| own[place].take());
            match mentioned {
                Some(mut mentioned) if of_function => {
                    mentioned.block = Block::Function;
                    all.push(mentioned);
                }
                Some(mentioned) => inner.push(mentioned),
                None if of_function => all.push(variable),
                None => {
                    // A block begins with its first declaration.
                    let declared = self.declared_at(&variable.die);
                    let before = declared.zip(line).is_some_and(|(at, line)| line < at);
                    if !before && !site.at_entry {
                        variable.block = Block::Unknown;
                    }
                    inner.push(variable);
                }
            }
        }
        all.extend(own.into_iter().flatten());
        all.extend(inner);
        Ok(())
    }

    /// Returns the source line of a site in its chosen function: the line of the call, if another
    /// function is inlined there.
    fn line_within(&self, site: &Site) -> Option<u64> {
        match site.frames.get(site.chosen + 1) {
            Some(inner) => self.die(inner.key).ok()?.unsigned(dw::DW_AT_call_line),
            None => self.line_at(site.address),
        }
    }

    /// Returns the address of the first line behind the declaration of a variable of the function itself, if a
    /// site is before that: its place in the frame has something else there. A variable of the function around
    /// it, from which compilers make a function of its own (GCC's parallel regions of OpenMP), is copied to the
    /// frame on the line on which the function begins.
    pub(super) fn first_use(
        &self,
        site: &Site,
        setup: Setup,
        variable: &Variable<'a>,
    ) -> Option<u64> {
        if variable.parameter || variable.block != Block::Function {
            return None;
        }
        let declared = self.declared_at(&variable.die)?;
        let (row, entry) = (self.row_at(site.address)?, self.row_at(setup.start)?);
        let file = match variable.die.attr(dw::DW_AT_decl_file)? {
            gimli::AttributeValue::FileIndex(file) => file,
            value => value.udata_value()?,
        };
        let here = site.line.unwrap_or(row.line);
        if row.file != file || entry.file != file || here > declared.max(entry.line) {
            return None;
        }
        let statements = self.rows_within(setup.start, setup.end);
        let is_behind = |line: u64| match entry.line <= declared {
            true => line > declared,
            false => line != entry.line,
        };
        let mut behind = statements.iter();
        let first = behind.find(|row| row.file == file && is_behind(row.line));
        first.map(|row| row.address)
    }

    /// Returns the source line of a declaration.
    pub(super) fn declared_at(&self, die: &Die<'a>) -> Option<u64> {
        let dies = self.with_origins(die);
        let line = |die: &Die<'a>| die.unsigned(dw::DW_AT_decl_line);
        dies.iter().find_map(line)
    }

    /// Resolves a name at a site. As in the source, the name means a variable of the chosen
    /// function, a member of its class, or a global variable, never a variable of the function
    /// around it.
    pub(super) fn variable(&self, site: &Site, name: &str) -> Result<Meaning<'a>, Refusal> {
        let Scope { visible, hidden } = self.variables(site)?;
        let pack = |v: &&Variable<'_>| {
            let rest = v.name.strip_prefix(name);
            v.parameter && rest.is_some_and(|rest| rest.starts_with('#'))
        };
        let pack: Vec<String> = visible
            .iter()
            .filter(pack)
            .map(|v| v.name.clone())
            .collect();
        let mut called = visible.into_iter().rev().filter(|v| v.name == name);
        if let Some(found) = called.next() {
            let dies = self.with_origins(&found.die);
            if dies.iter().any(|die| die.flag(dw::DW_AT_declaration)) {
                // `extern` within a function.
                if let Some(global) = self.global(site, name)? {
                    return Ok(global.into());
                }
            }
            // Refuse the name unless it is certain which variable it means.
            let others = called.next().is_some();
            let mut inner = hidden.iter().filter(|v| v.name == name);
            let meant = match found.block {
                Block::Unknown => !others,
                Block::Function => true,
                _ => !others && inner.clone().next().is_none() || self.may_mean(site, &found),
            };
            if !meant || site.line.is_some() && inner.any(|v| self.may_mean(site, v)) {
                return Err(self.optimised_out(name, site.frames[0].key, None, &[]));
            }
            return Ok(Meaning {
                variable: found,
                frame: Some(site.frame().key),
                steps: Vec::new(),
            });
        }
        if !pack.is_empty() {
            return Err(Refusal::Pack {
                name: name.to_owned(),
                elements: pack,
            });
        }
        if let Some(used) = self.used_within(site, name)? {
            return Ok(used.into());
        }
        if let Some(member) = self.of_class(site, name)? {
            return Ok(member);
        }
        if let Some(global) = self.global(site, name)? {
            return Ok(global.into());
        }
        if let Some(hidden) = hidden.iter().rfind(|v| v.name == name) {
            return Err(Refusal::OutOfScope {
                name: name.to_owned(),
                line: self.declared_at(&hidden.die),
            });
        }
        self.unknown(site, name)
    }

    /// True if the requested line may be in a variable's block. In optimised code, a line may
    /// begin with an instruction of another block.
    fn may_mean(&self, site: &Site, variable: &Variable<'a>) -> bool {
        let (Some(line), Some(declared)) = (site.line, self.declared_at(&variable.die)) else {
            return true;
        };
        let last = || {
            let ranges = self.die(variable.within).ok()?.ranges(MOST_PARTS);
            let rows = ranges.into_iter().flat_map(|(a, b)| self.statements(a, b));
            rows.map(|row| row.1).max()
        };
        declared <= line && last().is_some_and(|last| line <= last)
    }

    /// Returns the refusal for a name that is unknown at a site.
    fn unknown<T>(&self, site: &Site, name: &str) -> Result<T, Refusal> {
        for chosen in (0..site.frames.len()).rev().filter(|&f| f != site.chosen) {
            let other = Site {
                chosen,
                ..site.clone()
            };
            let scope = self.variables(&other)?;
            if scope.visible.iter().any(|v| v.name == name) {
                return Err(Refusal::OtherFunction {
                    name: name.to_owned(),
                    own: site.frame().name.clone(),
                    of: other.frame().name.clone(),
                    inlined: chosen > site.chosen,
                });
            }
        }
        let mut there: Vec<String> = Vec::new();
        for variable in self.variables(site)?.visible {
            if !there.contains(&variable.name) {
                there.push(variable.name);
            }
        }
        Err(Refusal::Unknown {
            name: name.to_owned(),
            there,
        })
    }
}

/// Numbers the elements of parameter packs. clang describes each element as a parameter with
/// the pack's name; no other parameters share a name.
fn number_packs(variables: &mut [Variable<'_>]) {
    let mut counts: HashMap<(DieKey, String), usize> = HashMap::new();
    let own = |v: &Variable<'_>| v.parameter && v.block == Block::Function;
    for variable in variables.iter().filter(|v| own(v)) {
        *counts
            .entry((variable.within, variable.name.clone()))
            .or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    let mut next: HashMap<(DieKey, String), usize> = HashMap::new();
    for variable in variables.iter_mut().filter(|v| own(v)) {
        let key = (variable.within, variable.name.clone());
        if counts.contains_key(&key) {
            let index = next.entry(key).or_default();
            variable.name = format!("{}#{index}", variable.name);
            *index += 1;
        }
    }
}
