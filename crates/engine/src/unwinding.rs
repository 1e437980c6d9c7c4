//! The tables by which the program finds callers: the rules of all code that it has mapped.
//!
//! Code that the program itself compiles has no rules in a file. Where its compiler is known to keep frame pointers
//! ([`Compiler::keeps_frame_pointers`]), its memory has one rule, for return addresses. Compilers reserve memory
//! first, and use it bit by bit: so the rule holds for all anonymous memory that is connected with some executable
//! one, and no new table is needed when more of it is used. Whether there is code at an address is checked when
//! it is named.

use crate::error::Result;
use crate::names::{CodeMapping, until_next, with_code};
use capriole_object::frame_rules::{FrameRule, RuleStart};
use capriole_object::{Object, Objects, vdso};
use capriole_patch::attach::Attached;
use capriole_planner::unwinders::Compiler;
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;
use capriole_resident::unwinding::Module;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The code of a process whose rules it has.
#[derive(Debug)]
pub(crate) struct Callers {
    known: HashSet<CodeMapping>,
    /// Memory of code that the program compiles, with the rule of frame pointers; `None` if it does not keep them.
    compiled: Option<Vec<Range<u64>>>,
    /// Reads rules on a thread of its own: for a large library that takes a second, in which the others
    /// go on.
    reading: Option<JoinHandle<Read>>,
    /// Time of the last search, and how long it took.
    looked: Instant,
    spent: Duration,
}

/// Rules of files that were mapped later.
#[derive(Debug, Default)]
struct Read {
    modules: Vec<Module>,
    keeps_frame_pointers: bool,
}

impl Callers {
    /// Returns the rules of all files that a process has mapped as code now. There are none of those that
    /// cannot be read.
    ///
    /// # Errors
    /// The memory map cannot be read.
    pub fn of(objects: &Objects, process: &Process) -> Result<(Callers, Vec<Module>)> {
        let maps = process.maps()?;
        let all: Vec<&Mapping> = with_code(&maps).collect();
        let mut callers = Callers {
            known: all
                .iter()
                .map(|mapping| CodeMapping::from(*mapping))
                .collect(),
            compiled: keeps_frame_pointers(objects, process).then(Vec::new),
            reading: None,
            looked: Instant::now(),
            spent: Duration::ZERO,
        };
        let mut modules = modules(objects, &all);
        modules.extend(module_of_vdso(process, &maps));
        modules.extend(callers.compiled_modules(&maps, &[]));
        Ok((callers, modules))
    }

    /// Gives the program the rules of code that it has mapped since, if it is time to look for it.
    pub fn keep_looking(&mut self, attached: &mut Attached) {
        if let Some(reading) = self.reading.take_if(|reading| reading.is_finished())
            && let Ok(read) = reading.join()
        {
            // Without these rules, call stacks end at this code.
            let _ = attached.add_callers(&read.modules);
            if read.keeps_frame_pointers {
                self.compiled.get_or_insert_default();
            }
        }
        if self.looked.elapsed() < until_next(self.spent) {
            return;
        }
        self.looked = Instant::now();
        let maps = attached.process().maps();
        self.spent = self.looked.elapsed();
        // A process that has just ended needs nothing more.
        let maps = maps.unwrap_or_default();
        if self.reading.is_none() {
            self.look(attached.process(), &maps);
        }
        let compiled = self.compiled_modules(&maps, &attached.signal_returns());
        if !compiled.is_empty() {
            let _ = attached.add_callers(&compiled);
        }
    }

    fn look(&mut self, process: &Process, maps: &[Mapping]) {
        let new: Vec<Mapping> = with_code(maps)
            .filter(|mapping| !self.known.contains(&CodeMapping::from(*mapping)))
            .cloned()
            .collect();
        if new.is_empty() {
            return;
        }
        for mapping in new.iter().map(CodeMapping::from) {
            // The table has one at each address: the same code may come back there.
            self.known.retain(|known| !known.overlaps(&mapping));
            self.known.insert(mapping);
        }
        // A table with rules of a file has none of memory that this file has taken the place of.
        if let Some(compiled) = &mut self.compiled {
            compiled.retain(|range| !new.iter().any(|mapping| overlap(range, mapping)));
        }
        let process = process.clone();
        let read = move || match Objects::of_process(&process) {
            Ok(objects) => Read {
                modules: modules(&objects, &new.iter().collect::<Vec<_>>()),
                keeps_frame_pointers: keeps_frame_pointers(&objects, &process),
            },
            Err(_) => Read::default(),
        };
        let thread = std::thread::Builder::new().name("rules".to_owned());
        self.reading = thread.spawn(read).ok();
    }

    /// Returns the rule of frame pointers for memory of compiled code that does not have it yet. Mappings with one of
    /// the addresses `ours` are of the session.
    fn compiled_modules(&mut self, maps: &[Mapping], ours: &[u64]) -> Vec<Module> {
        let Some(known) = &mut self.compiled else {
            return Vec::new();
        };
        let new = compiled(maps, known, ours);
        known.retain(|old| {
            !new.iter()
                .any(|new| old.start < new.end && new.start < old.end)
        });
        known.extend(new.iter().cloned());
        let module = |addresses| Module {
            addresses,
            link: 0,
            rules: vec![RuleStart {
                address: 0,
                rule: FrameRule::Called,
            }],
        };
        new.into_iter().map(module).collect()
    }
}

fn keeps_frame_pointers(objects: &Objects, process: &Process) -> bool {
    Compiler::of(objects.all()).is_some_and(|compiler| compiler.keeps_frame_pointers(process))
}

fn overlap(range: &Range<u64>, mapping: &Mapping) -> bool {
    range.start < mapping.end && mapping.start < range.end
}

/// Returns ranges of connected anonymous memory, each with some that is executable and in none of the `known` ranges.
/// Mappings with one of the addresses `ours` are left out.
fn compiled(maps: &[Mapping], known: &[Range<u64>], ours: &[u64]) -> Vec<Range<u64>> {
    let is_ours = |mapping: &Mapping| ours.iter().any(|at| mapping.contains(*at));
    let is_known = |mapping: &Mapping| {
        let contains =
            |range: &Range<u64>| range.start <= mapping.start && mapping.end <= range.end;
        known.iter().any(contains)
    };
    // Each with true if it is wanted.
    let mut connected: Vec<(Range<u64>, bool)> = Vec::new();
    let anonymous = maps.iter().filter(|mapping| is_anonymous(mapping));
    for mapping in anonymous.filter(|mapping| !is_ours(mapping)) {
        let wanted = mapping.perms.execute && !is_known(mapping);
        match connected.last_mut() {
            Some((last, is_wanted)) if last.end == mapping.start => {
                last.end = mapping.end;
                *is_wanted |= wanted;
            }
            _ => connected.push((mapping.start..mapping.end, wanted)),
        }
    }
    let wanted = connected.into_iter().filter(|(_, wanted)| *wanted);
    wanted.map(|(range, _)| range).collect()
}

/// True for memory without a file and without another purpose, such as that of a stack.
fn is_anonymous(mapping: &Mapping) -> bool {
    let name = mapping.path.as_encoded_bytes();
    !mapping.is_file() && (name.is_empty() || name.starts_with(b"[anon:"))
}

/// Returns the rules of the vDSO, which a signal may interrupt.
fn module_of_vdso(process: &Process, maps: &[Mapping]) -> Option<Module> {
    let object = vdso(process, maps)?;
    let mapping = object.mappings().first()?;
    Some(Module {
        addresses: mapping.start..mapping.end,
        link: object.link(mapping.start),
        rules: object.file().frame_rules(),
    })
}

/// Returns the rules of mappings.
fn modules(objects: &Objects, mappings: &[&Mapping]) -> Vec<Module> {
    let mut rules: HashMap<*const Object, Vec<RuleStart>> = HashMap::new();
    let mut modules = Vec::new();
    for mapping in mappings {
        let Some(object) = objects.containing(mapping.start) else {
            continue;
        };
        let rules = rules
            .entry(Arc::as_ptr(object))
            .or_insert_with(|| object.file().frame_rules());
        modules.push(Module {
            addresses: mapping.start..mapping.end,
            link: object.link(mapping.start),
            rules: rules.clone(),
        });
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use capriole_proc::maps::parse_maps;

    /// As node has it: reserved memory, in which some is executable and a part of the program is mapped once more.
    const MAPS: &[u8] = b"\
00b72000-025fe000 r-xp 00772000 fe:00 247580 /usr/bin/node
7f3111fc0000-7f3111fc3000 rw-p 00000000 00:00 0
7f3111fc3000-7f3111fff000 rwxp 00000000 00:00 0
7f3111fff000-7f3131e00000 ---p 00000000 00:00 0
7f3131e00000-7f3131f92000 r-xp 014c4000 fe:00 247580 /usr/bin/node
7f3131f92000-7f3131fc0000 ---p 00000000 00:00 0
7f3131ffd000-7f31327fd000 rw-p 00000000 00:00 0
7f3139249000-7f313924b000 r-xp 00000000 00:00 0 [vdso]
7f3139250000-7f3139251000 rw-p 00000000 00:00 0 [stack]
7f3139251000-7f3139252000 rwxp 00000000 00:00 0 [anon:code]
";

    #[test]
    fn memory_around_compiled_code_has_its_rule() {
        let maps = parse_maps(MAPS).expect("mappings");
        let reserved = 0x7f31_11fc_0000..0x7f31_31e0_0000;
        let named = 0x7f31_3925_1000..0x7f31_3925_2000;
        let both = vec![reserved.clone(), named.clone()];
        assert_eq!(compiled(&maps, &[], &[]), both);
        let reserved = std::slice::from_ref(&reserved);
        assert_eq!(compiled(&maps, &[], &[named.start]), reserved);
        assert_eq!(compiled(&maps, reserved, &[]), [named]);
        assert!(compiled(&maps, &both, &[]).is_empty());
        // More of what was reserved is used: nothing is new.
        let more = String::from_utf8(MAPS.to_vec()).expect("text");
        let more = more.replace(
            "7f3111fff000-7f3131e00000 ---p",
            "7f3111fff000-7f3131e00000 r-xp",
        );
        let more = parse_maps(more.as_bytes()).expect("mappings");
        assert!(compiled(&more, &both, &[]).is_empty());
    }
}
