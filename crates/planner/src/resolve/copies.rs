//! Compiler-made copies of a function, to which the function's name also refers. Other
//! functions with the same name are distinguished by their declarations in debug information.
//!
//! Copies are known only from debug information. For a pattern it is not read, because reading
//! takes a while for large programs.

use capriole_dwarf::DebugInfo as _;
use capriole_event::At;

use super::{Body, Finder, Namesake, ResolveError, Site, at_file_offset};
use capriole_dwarf::{Debug, FunctionPlace, Origin};
use capriole_object::symbols::{Binding, Found, display};

/// Suffixes by which compilers make a function's name unique: in link-time optimisation, and with
/// `-funique-internal-linkage-names`.
const RENAMING: [&str; 3] = ["lto_priv", "llvm", "__uniq"];

/// A function with all of its known places.
struct Whole {
    /// Origins that the function's places give, without duplicates.
    origins: Vec<Origin>,
    places: Vec<FunctionPlace>,
}

impl Finder<'_> {
    /// Returns the places of a symbol's function, except the place of the symbol itself and those
    /// of other functions with the same name. Empty without debug information.
    pub(super) fn copies(&self, own: &Found<'_>) -> Vec<Site> {
        let Some(debug) = self.debug() else {
            return Vec::new();
        };
        let start = own.function.extent.start;
        let whole = of_symbol(&debug, own);
        let places = whole.into_iter().flat_map(|whole| whole.places);
        places
            .filter(|place| place.address != start)
            .filter_map(|place| self.copy(place))
            .collect()
    }

    /// Returns the places of the function with the requested name, for a name without a symbol.
    /// Empty without debug information.
    ///
    /// # Errors
    ///
    /// Several functions have the name.
    pub(super) fn only_copies(&self) -> Result<Vec<Site>, ResolveError> {
        let Some(debug) = self.debug() else {
            return Ok(Vec::new());
        };
        self.of_one_function(debug.functions(self.pattern).unwrap_or_default())
    }

    /// Like [`Finder::only_copies`], for a function of any class, namespace or module whose name ends with the
    /// requested one.
    pub(super) fn only_copies_of_members(&self) -> Result<Vec<Site>, ResolveError> {
        let Some(debug) = self.debug() else {
            return Ok(Vec::new());
        };
        self.of_one_function(debug.members(self.pattern).unwrap_or_default())
    }

    /// Converts places to sites, if they are all of one function.
    fn of_one_function(&self, places: Vec<FunctionPlace>) -> Result<Vec<Site>, ResolveError> {
        let mut found: Vec<(Namesake, Vec<Site>)> = Vec::new();
        for whole in apart(places) {
            let Some(first) = whole.places.first() else {
                continue;
            };
            let mut namesake = Namesake {
                symbol: first.name.clone(),
                declared: whole.origins.iter().find_map(|o| o.declared.clone()),
                object: self.object.path().to_owned(),
                file_offsets: Vec::new(),
            };
            let places = whole.places.into_iter();
            let sites: Vec<Site> = places.filter_map(|place| self.copy(place)).collect();
            if !sites.is_empty() {
                namesake.file_offsets = sites.iter().map(|site| site.file_offset).collect();
                found.push((namesake, sites));
            }
        }
        if found.len() > 1 {
            return Err(ResolveError::AmbiguousCopies {
                symbol: self.pattern.to_owned(),
                candidates: found.into_iter().map(|(namesake, _)| namesake).collect(),
            });
        }
        Ok(found.pop().map(|(_, sites)| sites).unwrap_or_default())
    }

    /// True if debug information has copies of the function with the requested name that are inlined.
    pub(super) fn is_only_inlined(&self) -> bool {
        let debug = self.object.file().debug();
        let places = debug.and_then(|debug| {
            let whole = debug.functions(self.pattern);
            whole.or_else(|_| debug.members(self.pattern))
        });
        places.is_ok_and(|places| places.iter().any(|place| place.site.frame().inlined))
    }

    /// Returns the debug information in which to search for copies, if the event may refer to
    /// copies.
    fn debug(&self) -> Option<Debug<'_>> {
        if self.offset != 0 || self.probe.at != At::Entry || self.probe.of_calls {
            return None;
        }
        self.object.file().debug().ok()
    }

    fn copy(&self, place: FunctionPlace) -> Option<Site> {
        let object = self.object;
        let site = at_file_offset(object, object.file().file_offset(place.address)?).ok()?;
        let frame = place.site.frame();
        let linkage = frame.linkage_name.clone();
        let linkage = linkage.unwrap_or_else(|| frame.name.clone());
        let function = display(&linkage).into_owned();
        if frame.inlined {
            return Some(Site {
                symbol: site.symbol.or(place.inlined_into),
                body: Body::Inlined { function },
                scope: Some(place.site),
                ..site
            });
        }
        let symbols = object.symbols().ok()?;
        let starting = symbols.function_starting_at(place.address);
        let mut marks = starting
            .into_iter()
            .flat_map(|function| symbols.names(function))
            .filter_map(|name| name.linkage.strip_prefix(linkage.as_str()))
            .filter(|mark| mark.starts_with('.'))
            .peekable();
        // GCC names copies `name.constprop.0` and `name.isra.0`. `name.part.0` is only a part, which
        // the rest of the function calls.
        if marks.peek().is_some() {
            let (mut is_part, mut is_renamed) = (false, true);
            for mark in marks {
                is_part |= mark.contains(".part.");
                is_renamed &= only_renames(mark);
            }
            let body = match is_renamed {
                true => Body::Own,
                false => Body::Clone,
            };
            return (!is_part).then_some(Site {
                body,
                scope: Some(place.site),
                ..site
            });
        }
        // This is the function's own code; its symbol has another name, or it has no symbol.
        Some(Site {
            symbol: Some(function),
            linkage_name: Some(linkage),
            offset: 0,
            scope: Some(place.site),
            ..site
        })
    }
}

/// True if compilers give this suffix (`.0`, `.lto_priv.0`) to a local function's name only to make it
/// unique: the code is the function's own, with the parameters of the source. GCC names nested functions
/// `name.0`.
fn only_renames(suffix: &str) -> bool {
    let mut words = suffix.split('.').skip(1);
    words.all(|word| RENAMING.contains(&word) || word.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the other functions with the name of the function at this site, as far as debug
/// information describes them.
#[must_use]
pub fn namesakes(site: &Site) -> Vec<Namesake> {
    let file = site.object.file();
    let (Some(linkage), Ok(debug)) = (&site.linkage_name, file.debug()) else {
        return Vec::new();
    };
    let start = site.object.link(site.extent.start);
    let is_own = |place: &FunctionPlace| place.address == start && !place.site.frame().inlined;
    let mut found = Vec::new();
    for whole in apart(debug.functions(linkage).unwrap_or_default()) {
        let is_it = |origin: &Origin| origin.is_external(linkage);
        if whole.places.iter().any(is_own) || whole.origins.iter().any(is_it) {
            continue;
        }
        let places = whole.places.iter();
        let file_offsets: Vec<u64> = places.filter_map(|p| file.file_offset(p.address)).collect();
        if !file_offsets.is_empty() {
            found.push(Namesake {
                symbol: site.symbol.clone().unwrap_or_else(|| linkage.clone()),
                declared: whole.origins.iter().find_map(|o| o.declared.clone()),
                object: site.object.path().to_owned(),
                file_offsets,
            });
        }
    }
    found
}

/// Finds the function to which a symbol's code belongs.
fn of_symbol(debug: &Debug<'_>, own: &Found<'_>) -> Option<Whole> {
    let (start, linkage) = (own.function.extent.start, own.name.linkage);
    let is_own = |place: &FunctionPlace| place.address == start && !place.site.frame().inlined;
    let has_own = |whole: &Whole| whole.places.iter().any(is_own);
    let named = debug.functions(linkage).unwrap_or_default();
    let mut named = apart(named);
    if let Some(at) = named.iter().position(has_own) {
        return Some(named.swap_remove(at));
    }
    // The function may have another name in the debug information.
    let like = debug.functions_like(start).unwrap_or_default();
    if let Some(whole) = apart(like).into_iter().find(has_own) {
        return (!is_clone(&whole, linkage)).then_some(whole);
    }
    // The function's own code was compiled without debug information, but other functions inlined
    // it.
    let shared = own.name.binding != Binding::Local;
    let is_it = |origin: &Origin| shared && origin.is_external(linkage);
    named
        .into_iter()
        .find(|whole| whole.origins.iter().any(is_it))
}

/// True if `linkage` is the name of one copy (`name.constprop.0`), and so refers only to that
/// copy.
fn is_clone(whole: &Whole, linkage: &str) -> bool {
    whole.places.iter().any(|place| {
        let frame = place.site.frame();
        let name = frame.linkage_name.as_deref().unwrap_or(&frame.name);
        let mark = linkage.strip_prefix(name);
        mark.is_some_and(|mark| mark.starts_with('.'))
    })
}

/// Groups places by function, in order of the first place of each function.
fn apart(places: Vec<FunctionPlace>) -> Vec<Whole> {
    let mut found: Vec<Whole> = Vec::new();
    for place in places {
        let is_same = |whole: &Whole| whole.origins.iter().any(|o| o.is_same(&place.origin));
        let mut fitting = (0..found.len()).filter(|&index| is_same(&found[index]));
        let Some(first) = fitting.next() else {
            found.push(Whole {
                origins: vec![place.origin.clone()],
                places: vec![place],
            });
            continue;
        };
        // This place shows that several groups are one function.
        let joined: Vec<usize> = fitting.collect();
        for &index in joined.iter().rev() {
            let other = found.remove(index);
            found[first].origins.extend(other.origins);
            found[first].places.extend(other.places);
        }
        let whole = &mut found[first];
        if !whole.origins.contains(&place.origin) {
            whole.origins.push(place.origin.clone());
        }
        whole.places.push(place);
    }
    for whole in &mut found {
        whole
            .places
            .sort_by_key(|place| (place.address, place.site.chosen));
        whole.places.dedup_by_key(|place| place.address);
    }
    found
}
