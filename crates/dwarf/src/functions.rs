//! Functions by name, with every place where they were inlined.

use std::collections::HashMap;

use gimli::constants as dw;

use super::die::Die;
use super::error::DebugError;
use super::names::{is_called, is_member_called, may_be_called};
use super::origin::{Declarations, Origin};
use super::scope::Site;
use super::units::{Debug, DieKey};
use capriole_prologue::instructions;

use capriole_object::symbols::demangle::{
    Demangled, demangle, is_mangled, last_identifier, may_be_code, without_blanks,
};
use capriole_object::symbols::display;
use capriole_object::symbols::spelling::Spelling;

/// Maximum bytes of padding before a loop.
const PADDING: u64 = 64;
/// Maximum number of ranges of a function examined, and bytes of its code.
const RANGES: usize = 64;
const CODE: u64 = 1 << 16;

/// A place where a function is entered: its own code, or an inlined copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionPlace {
    /// Link address of the first instruction.
    pub address: u64,
    /// Name of the function with its namespaces, demangled, as an event can give it.
    pub name: String,
    /// The function that contains the code, if this is an inlined copy.
    pub inlined_into: Option<String>,
    /// The scope in which names are resolved at this place.
    pub site: Site,
    /// Distinguishes the function from others of the same name.
    pub origin: Origin,
}

/// The names of a function in debug information.
struct Called<'n> {
    /// As in the source, unless that is only a part of the name.
    plain: Option<&'n str>,
    linkage: Option<&'n str>,
    /// The whole name of a function that has no mangled one, where all are tried.
    path: Option<Demangled>,
}

impl<'a> Debug<'a> {
    /// Returns the places where a function is entered, by address: its own code and each inlined
    /// copy. The name is one that [`SymbolTable::exact`] would accept: mangled, or demangled with
    /// or without parameters. Functions without a mangled name (C functions, and those that GCC
    /// knows to be local in C++) are named as in the source. Several functions may have the name:
    /// see [`FunctionPlace::origin`].
    ///
    /// [`SymbolTable::exact`]: capriole_object::symbols::SymbolTable::exact
    ///
    /// # Errors
    ///
    /// No function has that name, or the debug information is damaged.
    pub fn functions(&self, name: &str) -> Result<Vec<FunctionPlace>, DebugError> {
        let is = |function: &Called<'_>| is_called(name, function.plain, function.linkage);
        let spelling = Spelling::of(name);
        self.functions_called(name, false, is)
            .or_else(|error| match error {
                DebugError::UnknownFunction(_) => self.functions_called(name, false, |function| {
                    may_be_called(&spelling, function.linkage)
                }),
                error => Err(error),
            })
            .or_else(|error| match error {
                // Local functions of C++ have no linkage name.
                DebugError::UnknownFunction(_) if name.contains(['(', ':']) => self
                    .functions_called(name, true, |function| {
                        function.path.as_ref().is_some_and(|path| spelling.is(path))
                    }),
                error => Err(error),
            })
    }

    /// Like [`Debug::functions`], but for functions of any class, namespace or module whose name ends with this
    /// one: those that [`SymbolTable::members`] would find if they had a symbol.
    ///
    /// [`SymbolTable::members`]: capriole_object::symbols::SymbolTable::members
    ///
    /// # Errors
    ///
    /// No function has such a name, or the debug information is damaged.
    pub fn members(&self, name: &str) -> Result<Vec<FunctionPlace>, DebugError> {
        let wanted = without_blanks(name.trim_start_matches(':'));
        let spelling = Spelling::of(name.trim_start_matches(':'));
        self.functions_called(&wanted, true, |function| match &function.path {
            Some(path) => spelling.is_member(path),
            None => is_member_called(&wanted, function.linkage),
        })
    }

    /// Finds the functions for which `is` holds. Their last identifier is that of `name`. Unless all are to be
    /// tried, those that have just that name come first.
    fn functions_called(
        &self,
        name: &str,
        all: bool,
        is: impl Fn(&Called<'_>) -> bool,
    ) -> Result<Vec<FunctionPlace>, DebugError> {
        self.begin();
        let names = self.names()?;
        let identifier = last_identifier(name);
        let own = if all { identifier } else { Some(name) };
        let own = own.and_then(|name| names.functions.get(name));
        let mut indices: Vec<u32> = own.cloned().unwrap_or_default();
        if (all || indices.is_empty()) && (identifier.is_some() || may_be_code(name)) {
            let has_it = |linkage: &str| identifier.is_none_or(|word| linkage.contains(word));
            let fits = |linkage: &str| {
                let function = Called {
                    plain: None,
                    linkage: Some(linkage),
                    path: None,
                };
                is_mangled(linkage) && has_it(linkage) && is(&function)
            };
            let found = names.functions.iter().filter(|(linkage, _)| fits(linkage));
            indices.extend(found.flat_map(|(_, indices)| indices));
            indices.sort_unstable();
            indices.dedup();
        }
        if indices.is_empty() {
            self.all_there()?;
            return Err(match &names.problem {
                Some(problem) => problem.clone(),
                None => DebugError::UnknownFunction(name.to_owned()),
            });
        }
        let mut called: HashMap<DieKey, String> = HashMap::new();
        let mut declared = Declarations::new();
        let mut places = Vec::new();
        let mut whole: Vec<String> = Vec::new();
        let mut add = |index: u32, is: &dyn Fn(&Called<'_>) -> bool| {
            let body = &names.bodies[index as usize];
            self.begin();
            let address = match body.within {
                Some(_) => self.behind_padding(body.key, body.address),
                None => body.address,
            };
            // Skip a damaged function.
            let mut site = self.site_of(address, body.key).ok()?;
            let die = self.die(body.key).ok()?;
            site.empty = body.within.is_some() && self.is_left_empty(&die, body.address);
            let frame = site.frame();
            let linkage = frame.linkage_name.as_deref();
            // The plain name `add` must not match `shop::Order::add`.
            let plain = Some(frame.name.as_str()).filter(|_| !linkage.is_some_and(is_mangled));
            let name = match (plain, linkage) {
                (Some(plain), _) => self.scope_of(&die) + plain,
                (None, linkage) => display(linkage.unwrap_or(&frame.name)).into_owned(),
            };
            let path = plain.filter(|_| all);
            let path = path.map(|_| Demangled::of_source(&name, &self.parameters_of(&die)));
            let function = Called {
                plain,
                linkage,
                path,
            };
            if !is(&function) || self.is_part(&site) {
                return None;
            }
            let origin = self.origin(&die, &mut declared);
            let inlined_into = body.within.map(|key| {
                let entry = called.entry(key);
                entry.or_insert_with(|| self.title(key)).clone()
            });
            places.push(FunctionPlace {
                address,
                name,
                inlined_into,
                site,
                origin,
            });
            Some(die)
        };
        for &index in &indices {
            if let Some(die) = add(index, &is) {
                whole.extend(self.linkage_name_of_origin(&die));
            }
        }
        // Inlined copies of a constructor have the name of what all its symbols are made of.
        whole.sort();
        whole.dedup();
        for linkage in whole {
            let more = names.functions.get(&linkage).into_iter().flatten();
            for &index in more.filter(|index| !indices.contains(index)) {
                add(index, &|function| {
                    function.linkage == Some(linkage.as_str())
                });
            }
        }
        places.sort_by_key(|place| (place.address, place.site.chosen));
        // Several units may describe one body.
        places.dedup_by(|later, earlier| {
            later.address == earlier.address && later.origin.is_same(&earlier.origin)
        });
        match places.is_empty() {
            true => Err(DebugError::UnknownFunction(name.to_owned())),
            false => Ok(places),
        }
    }

    /// Returns the namespaces around a function, each with `::`.
    fn scope_of(&self, die: &Die<'a>) -> String {
        let around = self.enclosing(die.key()).map(|parts| parts.seen());
        match around {
            Ok(scope) if !scope.is_empty() => scope + "::",
            _ => String::new(),
        }
    }

    /// Returns the types of the parameters in a function's declaration.
    fn parameters_of(&self, die: &Die<'a>) -> Vec<String> {
        let own = self.with_origins(die).pop();
        let children = own
            .and_then(|own| self.children(&own).ok())
            .unwrap_or_default();
        let is_parameter = |die: &&Die<'_>| {
            die.tag() == dw::DW_TAG_formal_parameter && !die.flag(dw::DW_AT_artificial)
        };
        let parameters = children.iter().filter(is_parameter);
        let type_of = |die: &Die<'a>| self.c_type(self.type_of(die).ok().flatten());
        parameters.map(type_of).collect()
    }

    /// Returns the first address of an inlined copy that is executed each time. LLVM counts the padding before a
    /// loop among the copy with which the loop begins: only its first round passes there. If the branch that
    /// begins another round is not part of the copy, each round executes the copy anew.
    fn behind_padding(&self, copy: DieKey, address: u64) -> u64 {
        let code = self.object.read(address, PADDING).unwrap_or_default();
        // The program's own no-ops may follow.
        let ends = instructions::ends_of_nops(&code, address);
        let first = || {
            let copy = self.die(copy).ok()?;
            let (start, code) = self.code_around(address)?;
            let branches = instructions::branches(&code, start);
            let branches = branches.filter(|(_, target)| ends.contains(target));
            let from_outside = branches.filter(|(from, _)| copy.covers(*from) == Some(false));
            from_outside.map(|(_, target)| target).min()
        };
        match ends.is_empty() {
            true => address,
            false => first().unwrap_or(address),
        }
    }

    /// Returns the start of the range of a function that contains an address, and its code.
    fn code_around(&self, address: u64) -> Option<(u64, Vec<u8>)> {
        let around = self.frames_at(address).ok()?.first()?.key;
        let ranges = self.die(around).ok()?.ranges(RANGES);
        let (start, end) = ranges
            .into_iter()
            .find(|range| range.0 <= address && address < range.1)?;
        Some((start, self.object.read(start, (end - start).min(CODE))?))
    }

    /// True if the optimiser has left nothing of an inlined copy, or has moved what is left, from `address` on, out of
    /// a loop: no instruction is executed as often as the copy is called.
    fn is_left_empty(&self, copy: &Die<'a>, address: u64) -> bool {
        if copy.covers(address) != Some(true) {
            return true;
        }
        let entry = copy.named_entry();
        let Some(entry) = entry.filter(|entry| copy.covers(*entry) == Some(false)) else {
            return false;
        };
        let Some((start, code)) = self.code_around(entry) else {
            return false;
        };
        // GCC names the place where the copy was, in the loop.
        let mut branches = instructions::branches(&code, start);
        branches
            .any(|(from, head)| entry <= from && (start..head).contains(&address) && head <= entry)
    }

    /// Like [`Debug::functions`], for the function that begins at a link address. Uses its name
    /// in the debug information, which may differ from its symbol (`read` is `__libc_read`).
    ///
    /// # Errors
    ///
    /// No debug information about that code, or it is damaged.
    pub fn functions_like(&self, address: u64) -> Result<Vec<FunctionPlace>, DebugError> {
        let site = self.site(address, None)?;
        let own = &site.frames[0];
        self.functions(own.linkage_name.as_deref().unwrap_or(&own.name))
    }

    /// True if the chosen frame is a part of the function around it and not a call. GCC splits a
    /// function in two so that it can inline the first part. Where it also inlines the second
    /// part, it describes that part as a call of the function at the line of its own declaration.
    fn is_part(&self, site: &Site) -> bool {
        let own = site.frame();
        let same = |frame: &super::scope::Frame| {
            frame.name == own.name && frame.linkage_name == own.linkage_name
        };
        if !own.inlined || !site.frames[..site.chosen].iter().any(same) {
            return false;
        }
        let Ok(die) = self.die(own.key) else {
            return false;
        };
        let declared = |name| {
            let dies = self.with_origins(&die);
            dies.iter().find_map(|die| die.unsigned(name))
        };
        let called = |name| die.unsigned(name);
        called(dw::DW_AT_call_line) == declared(dw::DW_AT_decl_line)
            && called(dw::DW_AT_call_column) == declared(dw::DW_AT_decl_column)
    }

    /// Returns a human-readable name of a function.
    pub(super) fn title(&self, key: DieKey) -> String {
        let Ok(die) = self.die(key) else {
            return "?".to_owned();
        };
        let linkage = self.linkage_name_of(&die);
        let demangled = linkage.as_deref().and_then(demangle).map(|name| name.short);
        demangled
            .or_else(|| self.name_of(&die))
            .or(linkage)
            .unwrap_or_else(|| "?".to_owned())
    }
}
