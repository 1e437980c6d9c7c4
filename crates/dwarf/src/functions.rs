//! Functions by name, with every place where they were inlined.

use std::collections::HashMap;

use gimli::constants as dw;

use super::error::DebugError;
use super::names::{is_called, is_member_called, may_be_called};
use super::origin::{Declarations, Origin};
use super::scope::Site;
use super::units::{Debug, DieKey};
use capriole_prologue::instructions;

use capriole_object::symbols::demangle::{
    demangle, is_mangled, last_identifier, may_be_code, without_blanks,
};
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
    /// The function that contains the code, if this is an inlined copy.
    pub inlined_into: Option<String>,
    /// The scope in which names are resolved at this place.
    pub site: Site,
    /// Distinguishes the function from others of the same name.
    pub origin: Origin,
}

impl Debug<'_> {
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
        let is = |plain: Option<&str>, linkage: Option<&str>| is_called(name, plain, linkage);
        match self.functions_called(name, is) {
            Err(DebugError::UnknownFunction(_)) => {
                let spelling = Spelling::of(name);
                self.functions_called(name, |_, linkage| may_be_called(&spelling, linkage))
            }
            found => found,
        }
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
        self.functions_called(&wanted, |_, linkage| is_member_called(&wanted, linkage))
    }

    /// Finds the functions for which `is` holds, given their names: as in the source, unless that is
    /// only a part of the name, and the linkage name. Their last identifier is that of `name`.
    fn functions_called(
        &self,
        name: &str,
        is: impl Fn(Option<&str>, Option<&str>) -> bool,
    ) -> Result<Vec<FunctionPlace>, DebugError> {
        self.begin();
        let names = self.names()?;
        let mut indices: Vec<u32> = names.functions.get(name).cloned().unwrap_or_default();
        let identifier = last_identifier(name);
        if indices.is_empty() && (identifier.is_some() || may_be_code(name)) {
            let has_it = |linkage: &str| identifier.is_none_or(|word| linkage.contains(word));
            let fits =
                |linkage: &str| is_mangled(linkage) && has_it(linkage) && is(None, Some(linkage));
            let found = names.functions.iter().filter(|(linkage, _)| fits(linkage));
            indices = found.flat_map(|(_, indices)| indices).copied().collect();
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
        for index in indices {
            let body = &names.bodies[index as usize];
            self.begin();
            let address = match body.within {
                Some(_) => self.behind_padding(body.key, body.address),
                None => body.address,
            };
            // Skip a damaged function.
            let Ok(site) = self.site_of(address, body.key) else {
                continue;
            };
            let frame = site.frame();
            let linkage = frame.linkage_name.as_deref();
            // The plain name `add` must not match `shop::Order::add`.
            let plain = Some(frame.name.as_str()).filter(|_| !linkage.is_some_and(is_mangled));
            if !is(plain, linkage) || self.is_part(&site) {
                continue;
            }
            let Ok(die) = self.die(body.key) else {
                continue;
            };
            let origin = self.origin(&die, &mut declared);
            let inlined_into = body.within.map(|key| {
                let entry = called.entry(key);
                entry.or_insert_with(|| self.title(key)).clone()
            });
            places.push(FunctionPlace {
                address,
                inlined_into,
                site,
                origin,
            });
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

    /// Returns the first address of an inlined copy that is executed each time. LLVM counts the padding before a
    /// loop among the copy with which the loop begins: only its first round passes there. If the branch that
    /// begins another round is not part of the copy, each round executes the copy anew.
    fn behind_padding(&self, copy: DieKey, address: u64) -> u64 {
        let code = self.object.read(address, PADDING).unwrap_or_default();
        let behind = instructions::behind_nops(&code, address);
        let branches_back = || {
            let copy = self.die(copy).ok()?;
            let around = self.site(address, None).ok()?.frames.first()?.key;
            let ranges = self.die(around).ok()?.ranges(RANGES);
            let (start, end) = ranges
                .into_iter()
                .find(|range| range.0 <= address && address < range.1)?;
            let code = self.object.read(start, (end - start).min(CODE))?;
            let mut branches = instructions::branches(&code, start, behind);
            branches.find(|&from| copy.covers(from) == Some(false))
        };
        match behind > address && branches_back().is_some() {
            true => behind,
            false => address,
        }
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
