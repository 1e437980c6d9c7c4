//! Finds the debug information of a file: in itself, or in a separate file by build id or by
//! `.gnu_debuglink`, or in one that the caller fetches from elsewhere by build id; with dwz(1)'s common
//! file, and the files that `-gsplit-dwarf` makes.
//!
//! The rules are those of gdb ("Debugging Information in Separate Files") and of DWARF 5,
//! chapter 7.3.5 and appendix F.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gimli::{DwarfPackageSections, DwarfSections, SectionId};

use super::error::{DebugError, NotFetched, NotUsed, Tried};
use super::sections::{Sections, check_sum, open};
use super::units::Unit;
use capriole_object::ObjectFile;
pub use capriole_object::source::Source;

/// Finds a debug file by build id, and returns its path.
pub(crate) type Fetch<'a> = dyn FnMut(&[u8]) -> Result<PathBuf, NotFetched> + 'a;

/// The debug information of one file: its bytes, and cached results for the whole file.
#[derive(Debug)]
pub(crate) struct DebugData {
    /// The file that it was found in.
    pub(super) path: PathBuf,
    pub(super) main: DwarfSections<Vec<u8>>,
    /// The common parts of several files that dwz(1) moved into one file.
    pub(super) supplement: Option<DwarfSections<Vec<u8>>>,
    /// The common file, if it is named but missing.
    pub(super) supplement_missing: Option<PathBuf>,
    /// `.dwp` beside the file.
    pub(super) package: Option<DwarfPackageSections<Vec<u8>>>,
    /// `.eh_frame` of the program or library, and its link address.
    pub(super) eh_frame: Option<(u64, Vec<u8>)>,
    pub(super) debug_frame: Vec<u8>,
    pub(super) units: OnceLock<Result<Vec<Unit>, DebugError>>,
    pub(super) names: OnceLock<Result<super::index::Names, DebugError>>,
}

impl DebugData {
    /// Finds and reads the debug information of `object`.
    pub(crate) fn read(
        object: &ObjectFile,
        directories: &[PathBuf],
    ) -> Result<DebugData, DebugError> {
        let source = object.source();
        let own = Sections::read(source).map_err(damaged)?;
        if own.has(".debug_info") {
            return DebugData::of(object, object.path(), &own, directories);
        }
        let mut tried = Vec::new();
        for Candidate { path, check } in candidates(object, &own, directories) {
            let found = open(&path).and_then(|source| {
                let sections = Sections::read(&source)?;
                check.of(object, &source, &sections)?;
                if !sections.has(".debug_info") {
                    return Err(NotUsed::Empty);
                }
                DebugData::of(object, &path, &sections, directories)
                    .map_err(|_| NotUsed::Damaged("bad section"))
            });
            match found {
                Ok(data) => return Ok(data),
                Err(why) => tried.push(Tried { path, why }),
            }
        }
        Err(DebugError::None {
            path: object.path().to_owned(),
            tried,
            not_fetched: None,
        })
    }

    /// Reads the debug information of `object` from files that `fetch` finds by build id.
    pub(crate) fn fetched(
        object: &ObjectFile,
        directories: &[PathBuf],
        fetch: &mut Fetch<'_>,
    ) -> Result<DebugData, NotFetched> {
        let build_id = object.build_id().ok_or(NotFetched::NoBuildId)?;
        let path = fetch(build_id)?;
        let source = with_build_id(&path, build_id)?;
        let unusable = |why| unusable(&path, why);
        let sections = Sections::read(&source).map_err(unusable)?;
        if !sections.has(".debug_info") {
            return Err(unusable(NotUsed::Empty));
        }
        let mut data = DebugData::of(object, &path, &sections, directories)
            .map_err(|_| unusable(NotUsed::Damaged("bad section")))?;
        if let (Some(name), Some((_, build_id))) = (
            data.supplement_missing.take(),
            sections.link(".gnu_debugaltlink"),
        ) {
            let common = fetched_supplement(&build_id, fetch);
            let why = |why| NotFetched::Common {
                name,
                why: Box::new(why),
            };
            data.supplement = Some(common.map_err(why)?);
        }
        Ok(data)
    }

    fn of(
        object: &ObjectFile,
        path: &Path,
        sections: &Sections<'_>,
        directories: &[PathBuf],
    ) -> Result<DebugData, DebugError> {
        let load = |id: SectionId| sections.bytes(id.name()).map_err(damaged);
        let (supplement, supplement_missing) = match sections.link(".gnu_debugaltlink") {
            None => (None, None),
            Some((name, build_id)) => match supplement(path, &name, &build_id, directories) {
                Some(found) => (Some(found), None),
                None => (None, Some(PathBuf::from(name))),
            },
        };
        Ok(DebugData {
            path: path.to_owned(),
            main: DwarfSections::load(load)?,
            supplement,
            supplement_missing,
            package: [object.path(), path].into_iter().find_map(package),
            // Damaged call frame information counts as absent.
            eh_frame: object.eh_frame().ok().flatten(),
            debug_frame: load(SectionId::DebugFrame).unwrap_or_default(),
            units: OnceLock::new(),
            names: OnceLock::new(),
        })
    }
}

pub(super) fn damaged(why: NotUsed) -> DebugError {
    match why {
        NotUsed::Damaged(why) => DebugError::Damaged(why),
        _ => DebugError::Damaged("it cannot be read"),
    }
}

/// Check that a separate file belongs to the program.
enum Check {
    BuildId,
    Sum(u32),
}

impl Check {
    fn of(
        &self,
        object: &ObjectFile,
        source: &Source,
        sections: &Sections<'_>,
    ) -> Result<(), NotUsed> {
        match self {
            Check::BuildId if sections.build_id().as_deref() == object.build_id() => Ok(()),
            Check::BuildId => Err(NotUsed::OtherBuild),
            Check::Sum(sum) if check_sum(source) == Some(*sum) => Ok(()),
            Check::Sum(_) => Err(NotUsed::CheckSum),
        }
    }
}

struct Candidate {
    path: PathBuf,
    check: Check,
}

/// Returns the path `.build-id/xx/yyy.debug` in a directory.
fn by_build_id(directory: &Path, build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(directory.join(format!(".build-id/{first:02x}/{rest}.debug")))
}

fn candidates(object: &ObjectFile, own: &Sections<'_>, directories: &[PathBuf]) -> Vec<Candidate> {
    let mut found = Vec::new();
    if let Some(build_id) = object.build_id() {
        let paths = directories.iter().filter_map(|d| by_build_id(d, build_id));
        found.extend(paths.map(|path| Candidate {
            path,
            check: Check::BuildId,
        }));
    }
    let Some((name, rest)) = own.link(".gnu_debuglink") else {
        return found;
    };
    // The checksum is at the next multiple of four bytes.
    let padding = (name.len() + 1).next_multiple_of(4) - (name.len() + 1);
    let sum = rest.get(padding..padding + 4);
    let Some(sum) = sum.and_then(|sum| Some(u32::from_le_bytes(sum.try_into().ok()?))) else {
        return found;
    };
    let Some(directory) = object.path().parent() else {
        return found;
    };
    let absolute = directory.strip_prefix("/").unwrap_or(directory);
    let places = [directory.to_owned(), directory.join(".debug")];
    let inside = object.root().map(|(root, directory)| {
        let inside = directory.strip_prefix("/").unwrap_or(directory);
        let place = root.join(inside);
        let central = directories.first().unwrap_or(&place).join(inside);
        [place.join(".debug"), place, central]
    });
    let central = directories.iter().map(|root| root.join(absolute));
    let all = inside.into_iter().flatten().chain(places).chain(central);
    found.extend(all.map(|place| Candidate {
        path: place.join(&name),
        check: Check::Sum(sum),
    }));
    found
}

/// Reads the common file that dwz made, by its path, which is relative to the file that names it,
/// or by build id.
fn supplement(
    path: &Path,
    name: &str,
    build_id: &[u8],
    directories: &[PathBuf],
) -> Option<DwarfSections<Vec<u8>>> {
    let beside = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let beside = beside.parent().unwrap_or(Path::new("/")).join(name);
    let central = directories.iter().filter_map(|d| by_build_id(d, build_id));
    std::iter::once(beside).chain(central).find_map(|path| {
        let source = open(&path).ok()?;
        let sections = Sections::read(&source).ok()?;
        if sections.build_id().as_deref() != Some(build_id) {
            return None;
        }
        DwarfSections::load(|id| sections.bytes(id.name()).map_err(damaged)).ok()
    })
}

/// Reads the common file that dwz made, from where `fetch` finds it.
fn fetched_supplement(
    build_id: &[u8],
    fetch: &mut Fetch<'_>,
) -> Result<DwarfSections<Vec<u8>>, NotFetched> {
    let path = fetch(build_id)?;
    let source = with_build_id(&path, build_id)?;
    let unusable = |why| unusable(&path, why);
    let sections = Sections::read(&source).map_err(unusable)?;
    DwarfSections::load(|id| sections.bytes(id.name()))
        .map_err(|_| unusable(NotUsed::Damaged("bad section")))
}

/// Opens a fetched file, which must have this build id.
fn with_build_id(path: &Path, build_id: &[u8]) -> Result<Source, NotFetched> {
    let opened = || {
        let source = open(path)?;
        match Sections::read(&source)?.build_id().as_deref() == Some(build_id) {
            true => Ok(source),
            false => Err(NotUsed::OtherBuild),
        }
    };
    opened().map_err(|why| unusable(path, why))
}

fn unusable(path: &Path, why: NotUsed) -> NotFetched {
    NotFetched::Unusable(Tried {
        path: path.to_owned(),
        why,
    })
}

/// Reads the `.dwp` of a program: its name with `.dwp` appended.
fn package(path: &Path) -> Option<DwarfPackageSections<Vec<u8>>> {
    let mut name = path.file_name()?.to_owned();
    name.push(".dwp");
    let source = open(&path.with_file_name(name)).ok()?;
    let sections = Sections::read(&source).ok()?;
    DwarfPackageSections::load(|id| split_section(&sections, id)).ok()
}

/// Reads the `.dwo` of one compilation unit: where the compiler put it, or beside the program.
pub(super) fn split(
    name: &str,
    directory: Option<&str>,
    program: &Path,
) -> Result<DwarfSections<Vec<u8>>, DebugError> {
    let name = Path::new(name);
    let program = program.parent().unwrap_or(Path::new("/"));
    let mut places = vec![
        Path::new(directory.unwrap_or("/")).join(name),
        program.join(name),
    ];
    places.extend(name.file_name().map(|name| program.join(name)));
    let mut problem = None;
    for path in places {
        let read = open(&path).and_then(|source| {
            let sections = Sections::read(&source)?;
            if !sections.has(".debug_info.dwo") {
                return Err(NotUsed::Empty);
            }
            DwarfSections::load(|id| split_section(&sections, id))
                .map_err(|_| NotUsed::Damaged("bad section"))
        });
        match read {
            Ok(sections) => return Ok(sections),
            Err(NotUsed::Absent) => {}
            Err(why) => _ = problem.get_or_insert(Tried { path, why }),
        }
    }
    Err(match problem {
        Some(tried) => DebugError::SplitDamaged(tried),
        None => DebugError::SplitMissing(name.to_owned()),
    })
}

fn split_section(sections: &Sections<'_>, id: SectionId) -> Result<Vec<u8>, DebugError> {
    match id.dwo_name() {
        Some(name) => sections.bytes(name).map_err(damaged),
        None => Ok(Vec::new()),
    }
}
