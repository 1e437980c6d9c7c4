//! Looks up global variables, static variables and static members by name in a function.
//!
//! The lookup order is the C++ order (ISO C++ 6.5, "Name lookup"), of which C uses a subset:
//! the namespaces and classes around the function from the inside out, each with the names
//! that `using` adds to it. In each of them, the function's own unit comes before other units.

use std::collections::{HashMap, HashSet};

use capriole_object::symbols::demangle::{is_without_blanks, without_blanks};
use gimli::constants as dw;

use super::die::Die;
use super::error::{DebugError, Refusal};
use super::namespace::{Part, seen};
use super::scope::{Site, Variable};
use super::units::{Debug, DieKey, UnitKey};

/// A global or static variable or a static member, as one entry describes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Global {
    pub key: DieKey,
    /// The first declaration that the entry refers to. All entries of one variable in one unit
    /// share it.
    pub root: DieKey,
    /// The unit whose source contains it.
    pub home: UnitKey,
    /// Its index in [`Scopes`].
    pub scope: u32,
    /// True if marked external; otherwise it is a static variable of its unit.
    pub external: bool,
    pub state: State,
}

/// Location information in the entry of a variable, the most useful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Placed,
    /// It is declared with a value, which is the only one if it is a constant.
    Initial,
    /// It is defined elsewhere.
    Declared,
    /// Optimised out.
    Gone,
}

/// A `using` declaration or directive outside of functions.
#[derive(Debug)]
pub(super) struct Import {
    /// The namespace that contains it, as [`Scopes::seen`] names it.
    pub at: String,
    /// The variable or namespace.
    pub what: DieKey,
    /// True for all names of a namespace (`using namespace`), false for a single name.
    pub module: bool,
}

/// Names of namespaces and classes.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// For each scope: its name without `inline` namespaces, its name with them, and true if one
    /// of its namespaces is anonymous.
    all: Vec<(String, String, bool)>,
    numbers: HashMap<(String, String, bool), u32>,
}

impl Scopes {
    /// Returns the number of a scope, whose parts are given outermost first.
    pub(super) fn number<'p>(&mut self, parts: impl Iterator<Item = &'p Part> + Clone) -> u32 {
        let whole = parts.clone().map(|part| part.name.as_str());
        let whole: Vec<&str> = whole.filter(|name| !name.is_empty()).collect();
        let local = parts.clone().any(|part| part.local);
        let scope = (seen(parts), whole.join("::"), local);
        if let Some(&number) = self.numbers.get(&scope) {
            return number;
        }
        let number = self.all.len() as u32;
        self.all.push(scope.clone());
        self.numbers.insert(scope, number);
        number
    }

    /// Returns the name of the scope without its anonymous and `inline` namespaces.
    pub(super) fn seen(&self, number: u32) -> &str {
        &self.all[number as usize].0
    }

    fn is(&self, number: u32, name: &str) -> bool {
        let (seen, whole, _) = &self.all[number as usize];
        if !name.contains('<') {
            return seen == name || whole == name;
        }
        let name = without_blanks(name);
        is_without_blanks(seen, &name) || is_without_blanks(whole, &name)
    }

    fn is_local(&self, number: u32) -> bool {
        self.all[number as usize].2
    }
}

/// A scope in which names are looked up.
struct Level {
    /// `net::Server`, or empty outside of all namespaces.
    name: String,
    /// Namespaces whose names are visible in it because of `using namespace`.
    used: Vec<String>,
}

/// Maximum number of namespaces reached through a chain of `using namespace`.
const USED: usize = 64;
/// Maximum number of units imported, directly or through other units.
const UNITS: usize = 4096;

impl<'a> Debug<'a> {
    /// Resolves a name at a site to a global or static variable: `name`, `net::name`, `::name`,
    /// `'file.c'::name` or, for a static variable of a function, `function::name`. Static members
    /// are found only by a qualified name, or in the classes around the function.
    pub(super) fn global(&self, site: &Site, name: &str) -> Result<Option<Variable<'a>>, Refusal> {
        if let Some(found) = self.package_variable(site, name)? {
            return Ok(Some(found));
        }
        if let Some((file, rest)) = name.strip_prefix('\'').and_then(|n| n.split_once("'::")) {
            return self.of_file(site, file, rest, name);
        }
        let (absolute, path) = match name.strip_prefix("::") {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let (qualifier, last) = path.rsplit_once("::").unwrap_or(("", path));
        let own = self.own_units(site)?;
        let levels = self.levels(site, &own, absolute)?;
        let names = self.names()?;
        let all = names.globals.get(last).map_or(&[][..], Vec::as_slice);
        // Search all levels first, then all levels again for static variables of other units.
        for of_others in [false, true] {
            for level in &levels {
                if !of_others
                    && qualifier.is_empty()
                    && let Some(found) = self.used_at(&own, &level.name, last)?
                {
                    return Ok(Some(self.global_at(site, name, found)?));
                }
                let scopes = std::iter::once(&level.name).chain(&level.used);
                let scopes: Vec<String> = scopes.map(|scope| join(scope, qualifier)).collect();
                let fits =
                    |global: &&Global| scopes.iter().any(|s| names.scopes.is(global.scope, s));
                let here: Vec<&Global> = all.iter().filter(fits).collect();
                let found = match of_others {
                    false => self.pick(&here, &own, name)?,
                    true => self.only_one(&here, name)?,
                };
                if let Some(key) = found {
                    return Ok(Some(self.global_at(site, name, key)?));
                }
            }
        }
        if !absolute && qualifier.is_empty() {
            return match names.linked.get(name) {
                Some(&key) => Ok(Some(self.global_at(site, name, key)?)),
                None => Ok(None),
            };
        }
        match qualifier.is_empty() {
            true => Ok(None),
            false => self.static_of(qualifier, last, None, name),
        }
    }

    /// Returns the static member of a class, by name or qualified with the name of a base class.
    pub(super) fn static_member(
        &self,
        site: &Site,
        class: DieKey,
        name: &str,
    ) -> Result<Variable<'a>, Refusal> {
        let last = name.rsplit("::").next().unwrap_or(name);
        let scope = self.path_of(class)?;
        let names = self.names()?;
        let all = names.globals.get(last).map_or(&[][..], Vec::as_slice);
        let here = all
            .iter()
            .filter(|global| names.scopes.is(global.scope, &scope));
        let here: Vec<&Global> = here.collect();
        match self.pick(&here, &self.own_units(site)?, name)? {
            Some(key) => Ok(self.global_at(site, name, key)?),
            None => match self.only_one(&here, name)? {
                Some(key) => Ok(self.global_at(site, name, key)?),
                None => Err(self.optimised_out(name, site.frames[0].key, None, &[])),
            },
        }
    }

    pub(super) fn global_at(
        &self,
        site: &Site,
        name: &str,
        key: DieKey,
    ) -> Result<Variable<'a>, DebugError> {
        Ok(Variable::global(self.die(key)?, name, site.frames[0].key))
    }

    /// Returns the unit whose source contains the chosen function, and the units that it imports.
    /// For an inlined copy, this is the unit of the original function.
    fn own_units(&self, site: &Site) -> Result<HashSet<UnitKey>, DebugError> {
        let mut home = site.frames[0].key.unit;
        for frame in site.frames[..=site.chosen].iter().rev() {
            let die = self.die(frame.key)?;
            let chain = self.with_origins(&die);
            let copies = chain
                .iter()
                .take_while(|die| die.has(dw::DW_AT_abstract_origin));
            let unit = &chain[copies.count().min(chain.len() - 1)].unit;
            // An entry that dwz(1) found in several units belongs to each of them; it is now in a
            // partial unit.
            if self.root(unit)?.tag() != dw::DW_TAG_partial_unit {
                home = unit.key;
                break;
            }
        }
        let mut own = HashSet::from([home]);
        let mut left = vec![home];
        while let Some(unit) = left.pop() {
            let root = self.root(&self.unit(unit)?)?;
            for die in self.children(&root)? {
                if die.tag() == dw::DW_TAG_imported_unit
                    && own.len() < UNITS
                    && let Ok(Some(what)) = self.reference(&die, dw::DW_AT_import)
                    && own.insert(what.unit)
                {
                    left.push(what.unit);
                }
            }
        }
        Ok(own)
    }

    /// Returns the scopes around the chosen function, from the innermost to the outermost.
    fn levels(
        &self,
        site: &Site,
        own: &HashSet<UnitKey>,
        absolute: bool,
    ) -> Result<Vec<Level>, DebugError> {
        let level = |name: String| Level {
            name,
            used: Vec::new(),
        };
        let mut levels = Vec::new();
        if !absolute {
            let parts = self.enclosing(site.frame().key)?;
            for (index, part) in parts.0.iter().enumerate() {
                if !part.transparent {
                    levels.push(level(seen(parts.0[index..].iter().rev())));
                }
            }
        }
        levels.push(level(String::new()));
        let names = self.names()?;
        let mut uses: Vec<(String, DieKey)> = Vec::new();
        for import in own
            .iter()
            .filter_map(|unit| names.imports.get(unit))
            .flatten()
        {
            if import.module {
                uses.push((import.at.clone(), import.what));
            }
        }
        let inner = levels[0].name.clone();
        for import in self.imports_within(site)? {
            if import.tag() == dw::DW_TAG_imported_module
                && let Some(what) = self.reference(&import, dw::DW_AT_import)?
            {
                uses.push((inner.clone(), what));
            }
        }
        let mut used = Vec::new();
        for (at, what) in uses {
            used.push((at, self.path_of(what)?));
        }
        // `using namespace` is transitive. Names appear in the nearest namespace around both.
        for level in 0..levels.len() {
            let name = levels[level].name.clone();
            let mut from = vec![name.clone()];
            let mut next = 0;
            while next < from.len() && from.len() < USED {
                let at = from[next].clone();
                for (_, to) in used.iter().filter(|used| used.0 == at) {
                    if !from.contains(to) {
                        from.push(to.clone());
                    }
                }
                next += 1;
            }
            for to in from.split_off(1) {
                let around = levels
                    .iter_mut()
                    .find(|around| is_around(&around.name, &name) && is_around(&around.name, &to));
                if let Some(around) = around.filter(|around| around.name != to) {
                    around.used.push(to);
                }
            }
        }
        Ok(levels)
    }

    /// Returns the qualified name of a namespace or class.
    pub(super) fn path_of(&self, key: DieKey) -> Result<String, DebugError> {
        let parts = self.enclosing(key)?;
        let own = self.part(&self.die(key)?);
        Ok(seen(parts.0.iter().rev().chain([&own])))
    }

    /// Returns each `using` in the chosen function, in blocks that contain the site.
    fn imports_within(&self, site: &Site) -> Result<Vec<Die<'a>>, DebugError> {
        let frame = self.die(site.frame().key)?;
        let mut found = Vec::new();
        for (index, function) in self.with_origins(&frame).into_iter().enumerate() {
            let mut blocks = vec![function];
            while let Some(block) = blocks.pop() {
                for die in self.children(&block)? {
                    match die.tag() {
                        dw::DW_TAG_imported_module | dw::DW_TAG_imported_declaration => {
                            found.push(die);
                        }
                        dw::DW_TAG_lexical_block
                            if index == 0 && die.covers(site.address) == Some(true) =>
                        {
                            blocks.push(die);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(found)
    }

    /// Finds the variable that a `using` in the chosen function introduces by this name.
    pub(super) fn used_within(
        &self,
        site: &Site,
        name: &str,
    ) -> Result<Option<Variable<'a>>, Refusal> {
        for import in self.imports_within(site)? {
            if import.tag() == dw::DW_TAG_imported_declaration
                && let Some(what) = self.reference(&import, dw::DW_AT_import)?
                && let Some(key) = self.imported(what, name)?
            {
                return Ok(Some(self.global_at(site, name, key)?));
            }
        }
        Ok(None)
    }

    /// Like `used_within`, but for a `using` in a namespace.
    fn used_at(
        &self,
        own: &HashSet<UnitKey>,
        scope: &str,
        name: &str,
    ) -> Result<Option<DieKey>, Refusal> {
        let imports = &self.names()?.imports;
        for import in own.iter().filter_map(|unit| imports.get(unit)).flatten() {
            if !import.module
                && import.at == scope
                && let Some(key) = self.imported(import.what, name)?
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Returns the variable at `what` if it has this name, preferably its definition.
    fn imported(&self, what: DieKey, name: &str) -> Result<Option<DieKey>, Refusal> {
        let die = self.die(what)?;
        if die.tag() != dw::DW_TAG_variable || self.name_of(&die).as_deref() != Some(name) {
            return Ok(None);
        }
        let names = self.names()?;
        let all = names.globals.get(name).map_or(&[][..], Vec::as_slice);
        let declared = self.with_origins(&die);
        let root = declared.last().map_or(what, Die::key);
        let scope = self.enclosing(what)?.seen();
        let is_it = |global: &&Global| global.root == root;
        let same = |global: &&Global| is_it(global) || names.scopes.is(global.scope, &scope);
        let here: Vec<&Global> = all.iter().filter(same).collect();
        let own = here.iter().filter(|g| is_it(g)).map(|g| g.home).collect();
        Ok(self.pick(&here, &own, name)?.or(Some(what)))
    }

    /// Picks the variable of a scope that belongs to one of the function's own units or has
    /// external linkage.
    fn pick(
        &self,
        here: &[&Global],
        own: &HashSet<UnitKey>,
        name: &str,
    ) -> Result<Option<DieKey>, Refusal> {
        let scopes = &self.names()?.scopes;
        let is_own = |global: &&&Global| own.contains(&global.home);
        let linked = |global: &&&Global| global.external && !scopes.is_local(global.scope);
        let mut mine: Vec<&Global> = here.iter().filter(is_own).copied().collect();
        let elsewhere: Vec<&Global> = match mine.iter().all(|global| linked(&global)) {
            true => here.iter().filter(linked).copied().collect(),
            false => Vec::new(),
        };
        mine.sort_by_key(|global| global.state);
        // All candidates must be in one scope: `using namespace` may add several.
        let Some(first) = mine.first().or(elsewhere.first()) else {
            return Ok(None);
        };
        let several = |global: &&&Global| {
            scopes.seen(global.scope) != scopes.seen(first.scope)
                || is_own(global) && is_own(&first) && global.root != first.root && !linked(global)
        };
        let mut others = mine.iter().chain(&elsewhere);
        if others.any(|global| several(&global)) {
            let all: Vec<&Global> = mine.iter().chain(&elsewhere).copied().collect();
            return Err(self.ambiguous(&all, name));
        }
        let best = mine
            .iter()
            .chain(&elsewhere)
            .filter(|global| global.state <= State::Initial);
        let best = best.min_by_key(|global| global.state).unwrap_or(first);
        Ok(Some(best.key))
    }

    /// Returns the variable if all candidates are the same one; refuses several different ones.
    fn only_one(&self, here: &[&Global], name: &str) -> Result<Option<DieKey>, Refusal> {
        let placed = here.iter().filter(|global| global.state <= State::Initial);
        let Some(first) = placed.min_by_key(|global| global.state).or(here.first()) else {
            return Ok(None);
        };
        match here.iter().all(|global| global.root == first.root) {
            true => Ok(Some(first.key)),
            false => Err(self.ambiguous(here, name)),
        }
    }

    /// Finds a static or namespace variable by the source file of its unit.
    fn of_file(
        &self,
        site: &Site,
        file: &str,
        path: &str,
        name: &str,
    ) -> Result<Option<Variable<'a>>, Refusal> {
        let (qualifier, last) = path.rsplit_once("::").unwrap_or(("", path));
        let names = self.names()?;
        let mut here = Vec::new();
        for global in names.globals.get(last).into_iter().flatten() {
            let of_it = || {
                self.file_of(global.home)
                    .is_some_and(|path| ends_in(&path, file))
            };
            if names.scopes.is(global.scope, qualifier) && of_it() {
                here.push(global);
            }
        }
        let defined = here.iter().any(|global| global.state != State::Declared);
        here.retain(|global| !defined || global.state != State::Declared);
        match self.only_one(&here, name)? {
            Some(key) => Ok(Some(self.global_at(site, name, key)?)),
            None if qualifier.is_empty() => Ok(None),
            None => self.static_of(qualifier, last, Some(file), name),
        }
    }

    /// Returns the source file of a unit, with its directory.
    fn file_of(&self, unit: UnitKey) -> Option<String> {
        let root = self.root(&self.unit(unit).ok()?).ok()?;
        let name = root.text(dw::DW_AT_name)?;
        match root.text(dw::DW_AT_comp_dir) {
            Some(directory) if !name.starts_with('/') => Some(format!("{directory}/{name}")),
            _ => Some(name),
        }
    }

    /// Finds a static variable of a function, in any unit or only in the units of a source file.
    fn static_of(
        &self,
        function: &str,
        last: &str,
        file: Option<&str>,
        name: &str,
    ) -> Result<Option<Variable<'a>>, Refusal> {
        let Ok(places) = self.functions(function) else {
            return Ok(None);
        };
        let mut found: Vec<(DieKey, Variable<'a>)> = Vec::new();
        for place in places {
            let scope = self.variables(&place.site)?;
            for variable in scope.visible.into_iter().chain(scope.hidden) {
                if variable.name != last || !self.is_static(&variable.die)? {
                    continue;
                }
                let chain = self.with_origins(&variable.die);
                let root = chain[chain.len() - 1].key();
                let path = || self.file_of(root.unit);
                if file.is_some_and(|file| !path().is_some_and(|path| ends_in(&path, file))) {
                    continue;
                }
                if !found.iter().any(|known| known.0 == root) {
                    found.push((root, variable));
                }
            }
        }
        match found.len() {
            0 | 1 => Ok(found.pop().map(|(_, variable)| variable)),
            _ => Err(Refusal::Ambiguous {
                name: name.to_owned(),
                candidates: found
                    .iter()
                    .map(|(key, variable)| self.described(*key, &variable.die, function, last))
                    .collect(),
            }),
        }
    }

    /// True if a variable is at a fixed address, and not in a frame.
    fn is_static(&self, die: &Die<'a>) -> Result<bool, DebugError> {
        for die in self.with_origins(die) {
            if let Some(gimli::AttributeValue::Exprloc(expression)) = die.attr(dw::DW_AT_location) {
                let mut operations = expression.operations(die.unit.unit.encoding());
                return Ok(matches!(
                    operations.next()?,
                    Some(gimli::Operation::Address { .. } | gimli::Operation::AddressIndex { .. })
                ));
            }
        }
        Ok(false)
    }

    /// Returns the refusal for a name that several variables have.
    fn ambiguous(&self, all: &[&Global], name: &str) -> Refusal {
        let Ok(names) = self.names() else {
            return Refusal::Syntax("another name");
        };
        let last = name.rsplit("::").next().unwrap_or(name);
        let mut candidates = Vec::new();
        for global in all {
            if let Ok(die) = self.die(global.root) {
                let scope = names.scopes.seen(global.scope);
                let text = match global.external && !names.scopes.is_local(global.scope) {
                    true => format!("::{}", join(scope, last)),
                    false => self.described(global.root, &die, scope, last),
                };
                if !candidates.contains(&text) {
                    candidates.push(text);
                }
            }
        }
        Refusal::Ambiguous {
            name: name.to_owned(),
            candidates,
        }
    }

    /// Formats an unambiguous name of a static variable, and where it is declared.
    fn described(&self, root: DieKey, die: &Die<'a>, scope: &str, last: &str) -> String {
        let file = self.file_of(root.unit).unwrap_or_default();
        let line = self.declared_at(die);
        let line = line
            .map(|line| format!(" (line {line})"))
            .unwrap_or_default();
        format!("'{file}'::{}{line}", join(scope, last))
    }
}

/// Returns `a::b`, or one of them if the other is empty.
fn join(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", one) | (one, "") => one.to_owned(),
        _ => format!("{outer}::{inner}"),
    }
}

/// True if the namespace `inner` is `outer`, or is in it.
fn is_around(outer: &str, inner: &str) -> bool {
    let rest = inner.strip_prefix(outer);
    rest.is_some_and(|rest| outer.is_empty() || rest.is_empty() || rest.starts_with("::"))
}

/// True if the path ends in these components.
fn ends_in(path: &str, end: &str) -> bool {
    let rest = path.strip_suffix(end);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/') || end.starts_with('/'))
}
