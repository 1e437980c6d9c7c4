//! Which function, and which copies of inlined ones, an instruction belongs to, and which
//! variables are visible there.

use std::rc::Rc;

use gimli::constants as dw;

use super::die::Die;
use super::error::DebugError;
use super::units::{Debug, DieKey, Loaded};

/// A function, or the copy of one that was inlined, around an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its name as in the source, or the linker's if it has no other.
    pub name: String,
    /// The linker's name, if the language mangles names.
    pub linkage_name: Option<String>,
    /// A copy that was inlined into the frame before.
    pub inlined: bool,
    pub(super) key: DieKey,
}

/// An instruction with the functions around it: what names mean there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Its link address.
    pub address: u64,
    /// The function whose code it is, then what was inlined into it, the innermost last.
    /// Never empty.
    pub frames: Vec<Frame>,
    /// The one of `frames` whose variables are meant first.
    pub chosen: usize,
}

impl Site {
    /// The frame whose variables are meant first.
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
}

/// Copies of inlined functions within each other.
const MOST_FRAMES: usize = 256;

/// Functions of a unit by address: start, end and entry.
pub(super) type Bodies = Vec<(u64, u64, gimli::UnitOffset)>;

impl<'a> Debug<'a> {
    /// What is around the instruction at a link address. Names mean what they mean in the
    /// function called `function` (with whatever name it has), if that is one of them, and
    /// otherwise in the function whose code it is; `""` means the innermost.
    ///
    /// # Errors
    ///
    /// No debug information about that code, or it is damaged.
    pub fn site(&self, address: u64, function: Option<&str>) -> Result<Site, DebugError> {
        self.begin();
        let frames = self.frames_at(address)?;
        let is_called = |frame: &Frame, name: &str| {
            super::functions::is_called(name, Some(&frame.name), frame.linkage_name.as_deref())
        };
        let chosen = match function {
            Some("") => frames.len() - 1,
            Some(name) => frames.iter().position(|f| is_called(f, name)).unwrap_or(0),
            None => 0,
        };
        Ok(Site {
            address,
            frames,
            chosen,
        })
    }

    /// The site at `address` with the frame `key` chosen.
    pub(super) fn site_of(&self, address: u64, key: DieKey) -> Result<Site, DebugError> {
        let mut frames = self.frames_at(address)?;
        let chosen = frames.iter().position(|frame| frame.key == key);
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => {
                // Its ranges are not within those of what it was inlined into.
                let die = self.die(key)?;
                let inlined = die.tag() == dw::DW_TAG_inlined_subroutine;
                frames.push(self.frame(&die, inlined));
                frames.len() - 1
            }
        };
        Ok(Site {
            address,
            chosen,
            frames,
        })
    }

    fn frames_at(&self, address: u64) -> Result<Vec<Frame>, DebugError> {
        let unit = self.unit_at(address)?;
        let bodies = self.bodies(&unit)?;
        // Of nested functions the one that begins last.
        let after = bodies.partition_point(|body| body.0 <= address);
        let body = bodies[..after].iter().rev().find(|body| address < body.1);
        let &(.., offset) = body.ok_or(DebugError::NoFunction(address))?;
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

    /// The functions of a unit that have code.
    fn bodies(&self, unit: &Rc<Loaded<'a>>) -> Result<Rc<Bodies>, DebugError> {
        if let Some(bodies) = unit.bodies.get() {
            return Ok(bodies.clone());
        }
        let mut bodies = Bodies::new();
        let mut entries = unit.unit.entries_raw(None)?;
        let mut attributes = Vec::new();
        // What follows a damaged entry is not found.
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

    /// Parameters and variables of a frame at an address; those of inner blocks behind those
    /// of outer ones. `address` is none for all blocks.
    pub(super) fn variables_of(
        &self,
        frame: DieKey,
        address: Option<u64>,
    ) -> Result<Vec<Variable<'a>>, DebugError> {
        let mut found = Vec::new();
        let mut blocks = vec![self.die(frame)?];
        while let Some(block) = blocks.pop() {
            for die in self.children(&block)? {
                let parameter = match die.tag() {
                    dw::DW_TAG_formal_parameter => !self.is_go_result(&die),
                    dw::DW_TAG_variable => false,
                    dw::DW_TAG_lexical_block => {
                        let here = address.is_none_or(|a| die.covers(a) != Some(false));
                        if here {
                            blocks.push(die);
                        }
                        continue;
                    }
                    _ => continue,
                };
                if let Some(name) = self.name_of(&die) {
                    found.push(Variable {
                        die,
                        name,
                        parameter,
                    });
                }
            }
        }
        Ok(found)
    }

    /// The variable that a name means at a site, and the frame it is of; no frame for one
    /// that is global.
    pub(super) fn variable(
        &self,
        site: &Site,
        name: &str,
    ) -> Result<Option<(Variable<'a>, Option<DieKey>)>, DebugError> {
        let outer = site.frames[..site.chosen].iter().rev();
        let inner = site.frames[site.chosen + 1..].iter();
        for frame in std::iter::once(site.frame()).chain(outer).chain(inner) {
            let variables = self.variables_of(frame.key, Some(site.address))?;
            if let Some(found) = variables.into_iter().rfind(|v| v.name == name) {
                return Ok(Some((found, Some(frame.key))));
            }
        }
        Ok(self.global(site, name)?.map(|variable| (variable, None)))
    }

    /// A global or static variable: of the site's own unit first.
    fn global(&self, site: &Site, name: &str) -> Result<Option<Variable<'a>>, DebugError> {
        let last = name.rsplit("::").next().unwrap_or(name);
        let found = |die| Variable {
            die,
            name: name.to_owned(),
            parameter: false,
        };
        if last == name {
            let unit = self.unit(site.frames[0].key.unit)?;
            let mut gone = None;
            for die in self.children(&self.root(&unit)?)? {
                let fits =
                    die.tag() == dw::DW_TAG_variable && self.name_of(&die).as_deref() == Some(name);
                if fits && (die.has(dw::DW_AT_location) || die.has(dw::DW_AT_const_value)) {
                    return Ok(Some(found(die)));
                }
                // Not one that is only declared here.
                if fits
                    && !self
                        .with_origins(&die)
                        .iter()
                        .any(|d| d.flag(dw::DW_AT_declaration))
                {
                    gone = Some(die);
                }
            }
            // Optimised out.
            if let Some(die) = gone {
                return Ok(Some(found(die)));
            }
        }
        let variables = &self.names()?.variables;
        let linked = || {
            let (_, key) = variables
                .iter()
                .find(|(linkage, _)| super::functions::is_called(name, None, Some(linkage)))?;
            Some(key)
        };
        let key = match last == name {
            true => variables.get(name),
            false => linked(),
        };
        key.map(|&key| self.die(key).map(found)).transpose()
    }
}
