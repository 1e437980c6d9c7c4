//! Exits of functions, as sites.
//!
//! Either all exits of a function are found, or none is used ([`NoExits`]): a missing exit
//! would create calls that never end, and a jump wrongly taken for an exit calls that end too
//! early. A function consists of its own code and of the parts split off from it: by name
//! (`name.cold`), and in files without such names, code without a name that only this function
//! jumps to, that no code calls and to which no pointer leads. Jumps between functions are
//! collected when the object is swept (`Targets::crossing_into`).
//!
//! A function of one instruction is entered and left at the same place. The order of work there
//! is: exits of other functions, entries, exits of the function itself.
//!
//! If a region would cover the instruction of another probe, as at the entry of a short
//! function whose exit is probed too, both share the jump; if they cannot, the site is planned
//! again so that the other's instruction stays in place.

use std::sync::Arc;

use capriole_insn::{Code, Exit, ExitKind, Exits, Extent, Surroundings, Undecided};

use iced_x86::ConditionCode;

use super::{ResolveError, Site};
use capriole_object::symbols::SymbolTable;
use capriole_object::{Object, ObjectCode};

/// Maximum number of parts of one function to search for exits; each part may lead to further
/// ones.
const MOST_PARTS: usize = 64;
/// Maximum number of places that a message lists.
const NAMED: usize = 4;

/// Relation between a site and the function that is left there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leaving {
    /// Run-time address of the function's entry.
    pub function: u64,
    /// Kind of the exit. If the function's exits cannot all be probed, the reason why; the site is
    /// then the function's entry.
    pub way: Result<ExitKind, NoExits>,
    /// Condition under which control leaves the function, if the site is a conditional jump.
    pub condition: Option<ConditionCode>,
}

/// Reason why the exits of a function cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoExits {
    /// The function has no exits.
    #[error("it never returns: it ends the program or the thread, throws, or loops for ever")]
    Never,
    /// Some of the function's exits could not be determined.
    #[error("not all of its exits are known: {}", told(.0))]
    Undecided(Vec<Undecided>),
    /// The function's code is missing.
    #[error("its code is not known: a table of the file is damaged")]
    Damaged,
}

fn told(undecided: &[Undecided]) -> String {
    let mut told: Vec<String> = undecided
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    if undecided.len() > NAMED {
        told.push(format!("and {} more", undecided.len() - NAMED));
    }
    told.join("; ")
}

impl NoExits {
    /// Returns the message, with offsets from the function's name in place of addresses.
    fn within(&self, function: &Site) -> String {
        let mut text = self.to_string();
        let addresses: Vec<u64> = match self {
            NoExits::Undecided(undecided) => undecided.iter().map(Undecided::address).collect(),
            NoExits::Never | NoExits::Damaged => Vec::new(),
        };
        let Some(name) = &function.symbol else {
            return text;
        };
        for at in addresses.iter().filter(|at| function.extent.contains(**at)) {
            let offset = at - function.extent.start;
            text = text.replace(&format!("{at:#x}"), &format!("{name}+{offset:#x}"));
        }
        text
    }
}

/// Returns all exits of functions, which are given by their entries; by address within each
/// function. If the exits of a function cannot all be probed, returns an error if `named` is
/// true, and otherwise the function's entry with the reason.
pub(super) fn of_functions(entries: Vec<Site>, named: bool) -> Result<Vec<Site>, ResolveError> {
    let found = each(&entries);
    let mut sites = Vec::new();
    for (entry, found) in entries.into_iter().zip(found) {
        match found {
            Ok(exits) => sites.extend(exits),
            Err(reason) if named => {
                return Err(ResolveError::NoExits {
                    reason: reason.within(&entry),
                    function: entry.symbol.clone().unwrap_or_else(|| {
                        format!("{}:{:#x}", entry.object.name(), entry.file_offset)
                    }),
                });
            }
            Err(reason) => sites.push(Site {
                leaving: Some(Leaving {
                    function: entry.address,
                    way: Err(reason),
                    condition: None,
                }),
                ..entry
            }),
        }
    }
    Ok(sites)
}

/// Finds the exits of each function, on all processors.
fn each(entries: &[Site]) -> Vec<Result<Vec<Site>, NoExits>> {
    for entry in entries {
        // Analyse each object once, in advance; the analysis uses all processors.
        let _ = entry.object.code();
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = entries.len().div_ceil(threads).max(64);
    std::thread::scope(|scope| {
        let shares = entries.chunks(share);
        let find = |share: &[Site]| share.iter().map(of_function).collect::<Vec<_>>();
        let work: Vec<_> = shares
            .map(|share| scope.spawn(move || find(share)))
            .collect();
        work.into_iter()
            .flat_map(|work| match work.join() {
                Ok(found) => found,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

/// Finds the exits of one function.
fn of_function(entry: &Site) -> Result<Vec<Site>, NoExits> {
    let looked = Looked::at(&entry.object, entry.extent).ok_or(NoExits::Damaged)?;
    let (parts, found) = looked.function(entry.extent).ok_or(NoExits::Damaged)?;
    if found.never_returns() {
        return Err(NoExits::Never);
    }
    if !found.undecided.is_empty() {
        return Err(NoExits::Undecided(found.undecided));
    }
    let site = |exit: &Exit| {
        let part = parts.iter().find(|part| part.contains(exit.address))?;
        let in_part = Site {
            extent: *part,
            ..entry.clone()
        };
        Some(Site {
            leaving: Some(Leaving {
                function: entry.address,
                way: Ok(exit.kind),
                condition: exit.condition,
            }),
            body: entry.body.clone(),
            ..in_part.at(exit.address)?
        })
    };
    found
        .exits
        .iter()
        .map(|exit| site(exit).ok_or(NoExits::Damaged))
        .collect()
}

/// The parts of an object that are needed to find exits.
struct Looked<'a> {
    object: &'a Object,
    symbols: &'a SymbolTable,
    all: &'a ObjectCode,
    code: Code<'a>,
}

impl<'a> Looked<'a> {
    fn at(object: &'a Arc<Object>, extent: Extent) -> Option<Looked<'a>> {
        let all = object.code().ok()?;
        Some(Looked {
            object,
            symbols: object.symbols().ok()?,
            all,
            code: all.code_at(extent.start)?,
        })
    }

    /// Returns the parts of a function, its own code first, and its exits.
    fn function(&self, extent: Extent) -> Option<(Vec<Extent>, Exits)> {
        let mut parts = vec![extent];
        parts.extend(self.cold_by_name(extent));
        loop {
            let found = self.exits(&parts)?;
            let before = parts.len();
            let tails = found.exits.iter();
            let tails = tails.filter(|exit| exit.kind == ExitKind::TailCall);
            // Most jumps to another part keep the function's frame.
            let others = found.undecided.iter().filter(|undecided| {
                use Undecided::{Counted, KeepsFrame};
                matches!(undecided, KeepsFrame { .. } | Counted { .. })
            });
            let jumps = tails.map(|exit| exit.address);
            for jump in jumps.chain(others.map(Undecided::address)) {
                let target = self.target(jump);
                if let Some(part) = target.and_then(|target| self.part(target, &parts))
                    && !parts.contains(&part)
                {
                    parts.push(part);
                }
            }
            if parts.len() == before || parts.len() > MOST_PARTS {
                return Some((parts, found));
            }
        }
    }

    fn exits(&self, parts: &[Extent]) -> Option<Exits> {
        let pads = |extent| self.all.landing_pads_in(extent).to_vec();
        let read = |address, size| self.all.read(address, size);
        let around = Surroundings {
            landing_pads: &pads,
            read: &read,
            targets: self.all.targets_at(self.code.address),
            is_function: &|at| {
                let function = self.symbols.function_starting_at(self.object.link(at));
                function.is_some()
            },
            is_cold: &|part| {
                let function = self
                    .symbols
                    .function_starting_at(self.object.link(part.start));
                function.is_some_and(|function| self.symbols.is_split_off(function))
            },
        };
        Exits::find(&self.code, parts, &around).ok()
    }

    /// Returns the target of a direct jump.
    fn target(&self, jump: u64) -> Option<u64> {
        let instruction = self.code.instruction_at(jump, self.code.extent().end)?;
        let target = instruction.near_branch_target();
        (target != 0).then_some(target)
    }

    /// Returns the function's cold part, found by its name with the suffix `.cold`: it may be
    /// reached only by exceptions. If several functions have the same name, the part is ambiguous,
    /// and only a jump can identify it.
    fn cold_by_name(&self, extent: Extent) -> Option<Extent> {
        let function = self
            .symbols
            .function_starting_at(self.object.link(extent.start))?;
        let mut colds = self.symbols.names(function).filter_map(|name| {
            let whole = self.symbols.linked(name.linkage);
            let cold = self.symbols.linked(&format!("{}.cold", name.linkage));
            match (whole.as_slice(), cold.as_slice()) {
                ([_], [cold]) => Some(cold.function.extent),
                _ => None,
            }
        });
        let cold = self.object.run_time_extent(colds.next()?);
        self.code.get(cold).map(|_| cold)
    }

    /// Returns the part of the function that contains a jump's target: either code that was split
    /// off, as its name shows, or code without a name to which only this function leads.
    fn part(&self, target: u64, parts: &[Extent]) -> Option<Extent> {
        let function = self.symbols.function_at(self.object.link(target))?;
        let extent = self.object.run_time_extent(function.extent);
        self.code.get(extent)?;
        if self.symbols.is_split_off(function) {
            return Some(extent);
        }
        if function.is_named() || self.all.is_go() {
            return None;
        }
        let targets = self.all.targets_at(extent.start)?;
        let start = Extent::new(extent.start, extent.start + 1);
        let own =
            |source: u64| extent.contains(source) || parts.iter().any(|part| part.contains(source));
        let alone = !targets.called(extent.start)
            && targets.pointers_known()
            && targets.pointed_in(start).is_none()
            && targets.crossing_into(extent).iter().all(|jump| own(jump.1));
        alone.then_some(extent)
    }
}
