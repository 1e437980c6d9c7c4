//! Resolves a probe to addresses: object, function, site.

mod anywhere;
mod choose;
mod copies;
mod error;
mod exits;
mod follow;
mod indirect;
mod marked;

use std::collections::HashSet;
use std::sync::Arc;

use capriole_dwarf::DebugInfo as _;
use capriole_event::{At, ObjectRef, Place, Probe};
use capriole_insn::Extent;

pub use copies::namesakes;
pub use error::{Candidate, Namesake, ResolveError};
pub use exits::{Leaving, NoExits};
pub use follow::{NotFollowed, followed};

use capriole_dwarf;
use capriole_dwarf::LinePlace;
use capriole_object::markers::Marker;
use capriole_object::symbols::{Found, Function, OtherSymbol, SymbolKind, display};
use capriole_object::{Object, ObjectError, Objects};

/// Maximum number of candidates or implementations that a message lists.
const NAMED: usize = 8;

/// Minimum number of names for which demangling uses several threads.
const WORTH_A_THREAD: usize = 2000;

/// One site to probe.
#[derive(Debug, Clone)]
pub struct Site {
    /// The object that contains the code.
    pub object: Arc<Object>,
    /// Demangled name of the function, if it has a name. Of several names, this is the one that the
    /// event gave.
    pub symbol: Option<String>,
    /// The linkage name of the same symbol.
    pub linkage_name: Option<String>,
    /// Offset from the start of the function, bytes.
    pub offset: u64,
    /// Offset in the object's file, bytes.
    pub file_offset: u64,
    /// Link address.
    pub link_address: u64,
    /// Run-time address; equal to the link address if there is no process.
    pub address: u64,
    /// Run-time extent of the function. If no function is known, the extent from the site to the
    /// next function or the end of the section.
    pub extent: Extent,
    /// True if the site was found by the name of its function, not by another kind of place.
    pub by_name: bool,
    /// Role of this code: the function's own code, a clone or an inlined copy.
    pub body: Body,
    /// Scope in which to look up variable names, if already known.
    pub scope: Option<capriole_dwarf::Site>,
    /// Kind of exit, if control leaves the function here ([`At::Return`]).
    pub leaving: Option<Leaving>,
    /// The static marker here, if a marker was requested.
    pub marker: Option<Arc<Marker>>,
    /// Length in bytes of the stack check at the start of a Go function. The check may run several
    /// times in one call, so the site is the function's entry after the check. 0 for all other
    /// sites.
    pub check: u64,
}

/// One of the places where a compiler puts a function's code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Body {
    /// The function's own code; also used if the place was not given by the name of a function.
    Own,
    /// A copy that is called with other parameters (`name.constprop.0`; [`Site::symbol`] holds that
    /// name).
    Clone,
    /// A copy that is inlined into the function in [`Site::symbol`].
    Inlined {
        /// Demangled name of the inlined function.
        function: String,
    },
}

impl Site {
    /// True if the site is the entry of the function.
    #[must_use]
    pub fn is_entry(&self) -> bool {
        self.offset == self.check
    }

    /// Returns the run-time address of the start of the function that is entered or left here; for
    /// any other site, the address of the site itself.
    #[must_use]
    pub fn function(&self) -> u64 {
        let leaving = self.leaving.as_ref();
        leaving.map_or(self.address - self.check, |leaving| leaving.function)
    }

    /// Moves a site at a function's entry past the stack check, if there is one.
    fn behind_stack_check(mut self) -> Site {
        let own = self.offset == 0 && self.marker.is_none();
        if !own || matches!(self.body, Body::Inlined { .. }) {
            return self;
        }
        let start = self.extent.start;
        let function = Extent::new(self.object.link(start), self.object.link(self.extent.end));
        let Some(check) = self.object.file().stack_check(function) else {
            return self;
        };
        self.check = check;
        self.offset += check;
        self.file_offset += check;
        self.link_address += check;
        self.address += check;
        self
    }

    /// Returns the run-time address of the instruction that contains the site, found by decoding
    /// from the start of the function. This is the site itself if an instruction starts there.
    /// `None` if the bytes before the site cannot be decoded.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more.
    pub fn instruction(&self) -> Result<Option<u64>, ObjectError> {
        let mut at = self.extent.start;
        let Some(code) = self.object.code()?.code_at(at) else {
            return Ok(None);
        };
        while at <= self.address {
            if let Some(data) = code.data_in(Extent::new(at, at + 1)) {
                at = data.end;
                continue;
            }
            let Some(instruction) = code.instruction_at(at, code.extent().end) else {
                return Ok(None);
            };
            if self.address < instruction.next_ip() {
                return Ok(Some(at));
            }
            at = instruction.next_ip();
        }
        Ok(None)
    }
}

/// Finds the sites of an event.
///
/// A file offset gives one site (for each time that the object is loaded). A pattern gives any
/// number of functions, at least one, by address. The name of a function gives the function's
/// own code, and then, by address, the copies that compilers make of it (inlined into other
/// functions, or as clones), as far as debug information describes them. A name with an offset
/// gives only the function's own code.
///
/// An event at the return of a function gives the function's exits instead of its entry
/// ([`Leaving`]). If a pattern matches a function whose exits cannot all be probed, the
/// function is included with the reason. Exits are those of a function's own code, so events of
/// calls ([`Probe::of_calls`]) never have sites in copies.
///
/// A name that no function has is that of members of classes, namespaces and modules: `cost` is
/// `shop::cart::cost`. An indirect function (IFUNC) is the implementation that the process uses.
///
/// A name that contains `*`, `?` or `[` is first looked up literally, so that `operator*` is
/// found.
///
/// # Errors
///
/// See [`ResolveError`]; every message tells the user what to write instead.
pub fn resolve(objects: &Objects, probe: &Probe) -> Result<Vec<Site>, ResolveError> {
    let mut sites = Vec::new();
    for object in chosen(objects, probe)? {
        match in_object(objects, object, probe) {
            Ok(found) => sites.extend(only_mapped(object, found)),
            // The loaded file itself has sites.
            Err(_) if object.is_part() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sites)
}

/// Returns the object in which the place of an event is looked up; several if its file was loaded
/// several times. If the event names no object, this is one that has the place.
///
/// # Errors
///
/// There is no such object, or several have the place.
pub fn chosen<'a>(objects: &'a Objects, probe: &Probe) -> Result<&'a [Arc<Object>], ResolveError> {
    match &probe.object {
        ObjectRef::Any => anywhere::choose(objects, probe),
        object => choose::choose(objects, object),
    }
}

/// Removes the sites of functions of which some code is not mapped, in a part of a file.
fn only_mapped(object: &Object, mut sites: Vec<Site>) -> Vec<Site> {
    let outside = sites.iter().filter(|site| !object.is_mapped(site.address));
    let outside: HashSet<u64> = outside.map(Site::function).collect();
    sites.retain(|site| !outside.contains(&site.function()));
    sites
}

/// Finds the sites of an event in one object.
fn in_object(
    objects: &Objects,
    object: &Arc<Object>,
    probe: &Probe,
) -> Result<Vec<Site>, ResolveError> {
    let mut sites = match &probe.place {
        Place::FileOffset(offset) => vec![at_file_offset(object, *offset)?],
        Place::Line { file, line } => at_line(object, file, *line)?,
        Place::Static { .. } => marked::sites(object, probe)?,
        Place::Symbol { pattern, offset } => {
            let finder = Finder {
                objects,
                object,
                probe,
                pattern,
                offset: *offset,
            };
            finder.sites()?
        }
    };
    // A file offset means exactly that place, except if it stands for a function (events of
    // calls).
    let entered = probe.of_calls || !matches!(probe.place, Place::FileOffset(_));
    if probe.at == At::Entry && entered && object.file().is_go() {
        sites = sites.into_iter().map(Site::behind_stack_check).collect();
    }
    if probe.at != At::Return {
        return Ok(sites);
    }
    if let (Some(entry), Place::FileOffset(offset)) = (sites.first(), &probe.place)
        && entry.offset != 0
    {
        return Err(ResolveError::NotAnEntry {
            offset: *offset,
            object: object.path().to_owned(),
        });
    }
    let named = !probe.place.is_glob() || matches!(probe.place, Place::FileOffset(_));
    exits::of_functions(sites, named).map_err(|error| match error {
        ResolveError::NoExits { function, reason } if probe.of_calls => {
            ResolveError::NoCalls { function, reason }
        }
        error => error,
    })
}

/// Finds the start of the code of a source line, in each function and inlined copy.
fn at_line(object: &Arc<Object>, file: &str, line: u32) -> Result<Vec<Site>, ResolveError> {
    let debug = object.file().debug()?;
    let places = debug.line(file, line.into())?;
    // A thunk continues in the virtual function and has the same line.
    let described = places.iter().any(|place| place.site.is_some());
    let wanted = |place: &LinePlace| place.first && (place.site.is_some() || !described);
    places
        .into_iter()
        .filter(wanted)
        .filter_map(|place| Some((object.file().file_offset(place.address)?, place.site)))
        .map(|(offset, scope)| {
            Ok(Site {
                scope,
                ..at_file_offset(object, offset)?
            })
        })
        .collect()
}

fn at_file_offset(object: &Arc<Object>, file_offset: u64) -> Result<Site, ResolveError> {
    let outside = || ResolveError::NotInText {
        offset: file_offset,
        object: object.path().to_owned(),
    };
    let file = object.file();
    let link_address = file.link_address(file_offset).ok_or_else(outside)?;
    if !file.is_text(link_address) {
        return Err(outside());
    }
    let symbols = object.symbols()?;
    let function = symbols.function_at(link_address);
    let extent = function.map_or_else(
        || {
            let end = symbols
                .next_boundary(link_address)
                .unwrap_or(link_address + 1);
            Extent::new(link_address, end)
        },
        |function| function.extent,
    );
    let linkage = function.and_then(|function| symbols.linkage_name(function));
    Ok(Site {
        object: Arc::clone(object),
        symbol: linkage.map(|name| display(name).into_owned()),
        linkage_name: linkage.map(str::to_owned),
        offset: link_address - extent.start,
        file_offset,
        link_address,
        address: object.run_time(link_address),
        extent: object.run_time_extent(extent),
        by_name: false,
        body: Body::Own,
        scope: None,
        leaving: None,
        marker: None,
        check: 0,
    })
}

/// Lookup of a function in one object.
struct Finder<'a> {
    objects: &'a Objects,
    object: &'a Arc<Object>,
    probe: &'a Probe,
    pattern: &'a str,
    offset: u64,
}

impl Finder<'_> {
    fn sites(&self) -> Result<Vec<Site>, ResolveError> {
        let symbols = self.object.symbols()?;
        if self.pattern.bytes().all(|byte| byte == b'*') {
            return self.matching(); // no function is called that
        }
        let found = symbols.exact(self.pattern);
        match found.as_slice() {
            [] if self.probe.place.is_glob() => self.matching(),
            [] if self.pattern.contains('\\') => {
                // A name with escaped wildcards.
                let found = symbols.matching(self.probe.place.matcher());
                self.one(&found).map(|site| vec![site])
            }
            [] => {
                let copies = self.only_copies()?;
                if !copies.is_empty() {
                    return Ok(copies);
                }
                match symbols.members(self.pattern).as_slice() {
                    [] => match self.only_copies_of_members()? {
                        copies if copies.is_empty() => self.label().map(|site| vec![site]),
                        copies => Ok(copies),
                    },
                    members => self.with_copies(members),
                }
            }
            found => self.with_copies(found),
        }
    }

    /// Returns the sites of the only function found, of its copies, and of versions that are kept for old
    /// programs.
    fn with_copies(&self, found: &[Found<'_>]) -> Result<Vec<Site>, ResolveError> {
        let mut sites = vec![self.one(found)?];
        if let [own, ..] = found {
            if own.name.kind == SymbolKind::Resolver {
                let used = indirect::in_use(self.objects, self.object, own).into_iter();
                let more = used.skip(1).map(|link| self.implementation_at(own, link));
                sites.extend(more.collect::<Result<Vec<Site>, _>>()?);
            }
            sites.extend(self.copies(own));
            if self.offset == 0 && !self.pattern.contains('@') {
                sites.extend(self.old_versions(own)?);
            }
        }
        Ok(sites)
    }

    /// Returns the site at a local label in assembly code that is in no function.
    ///
    /// # Errors
    ///
    /// There is none of this name, or several are.
    fn label(&self) -> Result<Site, ResolveError> {
        let symbols = self.object.symbols()?;
        let start = match symbols.lone_labels(self.pattern)[..] {
            [] => return Err(self.not_a_function()),
            [start] => start,
            ref several => {
                let candidates = several.iter().filter_map(|start| {
                    Some(Candidate {
                        symbol: self.pattern.to_owned(),
                        linkage_name: self.pattern.to_owned(),
                        object: self.object.path().to_owned(),
                        file_offset: self.object.file().file_offset(*start)?,
                    })
                });
                return Err(ResolveError::AmbiguousSymbol {
                    symbol: self.pattern.to_owned(),
                    candidates: candidates.collect(),
                });
            }
        };
        let end = symbols.next_boundary(start).unwrap_or(start + 1);
        let link_address = start.saturating_add(self.offset);
        let file_offset = self.object.file().file_offset(link_address);
        let file_offset = file_offset.filter(|_| link_address < end);
        let site = at_file_offset(
            self.object,
            file_offset.ok_or_else(|| self.not_a_function())?,
        )?;
        Ok(Site {
            symbol: Some(self.pattern.to_owned()),
            linkage_name: Some(self.pattern.to_owned()),
            offset: self.offset,
            extent: self.object.run_time_extent(Extent::new(start, end)),
            by_name: true,
            ..site
        })
    }

    /// Returns the sites of a function's versions that are kept for old programs. The implementations of indirect
    /// ones are among those of the newest, if they are in use.
    fn old_versions(&self, own: &Found<'_>) -> Result<Vec<Site>, ResolveError> {
        let symbols = self.object.symbols()?;
        let versions = symbols.old_versions(own.name.linkage).into_iter();
        let direct = versions.filter(|version| version.name.kind != SymbolKind::Resolver);
        direct.map(|version| self.one(&[version])).collect()
    }

    /// Returns the site of the only function found.
    fn one(&self, found: &[Found<'_>]) -> Result<Site, ResolveError> {
        match found {
            [] => Err(self.not_a_function()),
            [one] if one.name.kind == SymbolKind::Resolver => self.implementation(one),
            [one] => {
                let size = one.function.extent.len();
                let site = (self.offset < size).then(|| self.site(one)).flatten();
                site.ok_or_else(|| self.outside(one, size))
            }
            several => Err(ResolveError::AmbiguousSymbol {
                symbol: self.pattern.to_owned(),
                candidates: several
                    .iter()
                    .filter_map(|found| self.candidate(found))
                    .collect(),
            }),
        }
    }

    /// Returns all matches, except functions that are too short for the offset.
    fn matching(&self) -> Result<Vec<Site>, ResolveError> {
        let symbols = self.object.symbols()?;
        let mut found = symbols.matching(self.probe.place.matcher());
        let is_mapped = |link| self.object.is_mapped(self.object.run_time(link));
        found.retain(|found| is_mapped(found.function.extent.start));
        let some = |found: &[Found<'_>]| -> Vec<Site> {
            let long_enough = |found: &&Found<'_>| self.offset < found.function.extent.len();
            let found = found.iter().filter(long_enough);
            found.filter_map(|found| self.site(found)).collect()
        };
        // Use several threads: each name is demangled, which is slow.
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = found.len().div_ceil(threads).max(WORTH_A_THREAD);
        let sites: Vec<Site> = std::thread::scope(|scope| {
            let shares = found.chunks(share);
            let work: Vec<_> = shares.map(|share| scope.spawn(|| some(share))).collect();
            work.into_iter()
                .flat_map(|work| match work.join() {
                    Ok(sites) => sites,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect()
        });
        if sites.is_empty() {
            return Err(ResolveError::NoMatch {
                pattern: self.pattern.to_owned(),
                object: self.object.path().to_owned(),
                functions: symbols.functions().iter().filter(|f| f.is_named()).count(),
            });
        }
        Ok(sites)
    }

    fn site(&self, found: &Found<'_>) -> Option<Site> {
        let Function { extent, .. } = *found.function;
        let link_address = extent.start.checked_add(self.offset)?;
        Some(Site {
            object: Arc::clone(self.object),
            symbol: Some(self.object.symbols().ok()?.versioned_name(found)),
            linkage_name: Some(found.name.linkage.to_owned()),
            offset: self.offset,
            file_offset: self.object.file().file_offset(link_address)?,
            link_address,
            address: self.object.run_time(link_address),
            extent: self.object.run_time_extent(extent),
            by_name: true,
            body: Body::Own,
            scope: None,
            leaving: None,
            marker: None,
            check: 0,
        })
    }

    fn candidate(&self, found: &Found<'_>) -> Option<Candidate> {
        let start = found.function.extent.start;
        Some(Candidate {
            symbol: display(found.name.linkage).into_owned(),
            linkage_name: found.name.linkage.to_owned(),
            object: self.object.path().to_owned(),
            file_offset: self.object.file().file_offset(start)?,
        })
    }

    /// Makes the error for a name that is not a function here; it depends on the kind of the
    /// symbol.
    fn not_a_function(&self) -> ResolveError {
        let symbol = self.pattern.to_owned();
        let object = self.object.path().to_owned();
        let other = match self.object.file().other_symbol(self.pattern) {
            Ok(other) => other,
            Err(error) => return error.into(),
        };
        match other {
            Some(OtherSymbol::Label(address)) => match self.place_of(address) {
                Some(place) => ResolveError::Label {
                    symbol,
                    object,
                    place,
                },
                None => ResolveError::Data { symbol, object },
            },
            Some(OtherSymbol::Data(_)) => ResolveError::Data { symbol, object },
            Some(OtherSymbol::Imported) => ResolveError::Imported {
                defined_in: self.definer(),
                symbol,
                object,
            },
            None if self.is_only_inlined() => ResolveError::OnlyInlined { symbol, object },
            None => match self.object.symbols() {
                Ok(symbols) => ResolveError::NoSuchSymbol {
                    nearest: symbols.nearest(self.pattern),
                    defined_in: self.definer(),
                    stripped: symbols.functions().iter().all(|f| !f.is_named()),
                    symbol,
                    object,
                },
                Err(error) => error.into(),
            },
        }
    }

    /// Returns the place of a label inside of a function, as events name it.
    fn place_of(&self, address: u64) -> Option<String> {
        let file = self.object.file();
        let symbols = self.object.symbols().ok()?;
        let function = symbols
            .function_at(address)
            .filter(|_| file.is_text(address))?;
        match symbols.display_name(function) {
            Some(name) => Some(format!("{name}+{:#x}", address - function.extent.start)),
            None => Some(format!("{:#x}", file.file_offset(address)?)),
        }
    }

    /// Returns the file name of another loaded object that defines the function.
    fn definer(&self) -> Option<String> {
        let has = |object: &&Arc<Object>| {
            !Arc::ptr_eq(object, self.object)
                && object
                    .symbols()
                    .is_ok_and(|s| s.has_linkage_name(self.pattern))
        };
        let object = self.objects.all().find(has)?;
        Some(choose::written(&object.name()).to_owned())
    }

    fn outside(&self, found: &Found<'_>, size: u64) -> ResolveError {
        ResolveError::OffsetOutside {
            symbol: display(found.name.linkage).into_owned(),
            size,
            offset: self.offset,
        }
    }

    /// Returns the site of an indirect function in the implementation that the process uses.
    fn implementation(&self, found: &Found<'_>) -> Result<Site, ResolveError> {
        let name = found.name.linkage;
        // Which of them a version has is not known.
        let is_version = self.pattern.contains('@');
        let used = indirect::in_use(self.objects, self.object, found);
        match used.first().filter(|_| !is_version) {
            Some(link) => self.implementation_at(found, *link),
            None => Err(ResolveError::Indirect {
                symbol: name.to_owned(),
                implementations: self.implementations(name),
                running: self.objects.process().is_some(),
            }),
        }
    }

    /// Returns the site of an indirect function in its implementation at a link address.
    fn implementation_at(&self, found: &Found<'_>, link: u64) -> Result<Site, ResolveError> {
        let name = found.name.linkage;
        let start = self.object.file().file_offset(link);
        let entry = at_file_offset(self.object, start.unwrap_or(u64::MAX))?;
        if self.offset >= entry.extent.len() {
            return Err(self.outside(found, entry.extent.len()));
        }
        Ok(Site {
            symbol: Some(display(name).into_owned()),
            linkage_name: Some(name.to_owned()),
            offset: self.offset,
            file_offset: entry.file_offset + self.offset,
            link_address: entry.link_address + self.offset,
            address: entry.address + self.offset,
            by_name: true,
            ..entry
        })
    }

    /// Finds functions whose names look like implementations of `name`, such as
    /// `__memcpy_avx_unaligned`.
    fn implementations(&self, name: &str) -> Vec<String> {
        let prefixes = [format!("__{name}_"), format!("{name}_")];
        let Ok(symbols) = self.object.symbols() else {
            return Vec::new();
        };
        let has_prefix = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let found = symbols.matching(has_prefix);
        let names = found.iter().map(|found| found.name.linkage.to_owned());
        let mut names: Vec<String> = names.take(NAMED).collect();
        names.sort();
        names
    }
}
