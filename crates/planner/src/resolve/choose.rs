//! Selection of the object that an event refers to.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capriole_event::ObjectRef;

use super::ResolveError;
use capriole_object::symbols::nearest;
use capriole_object::{Entry, FileId, Object, Objects};
use capriole_proc::maps::Device;

/// Number of loaded objects that a message lists if none has a similar name.
const LISTED: usize = 6;

/// Returns the object that an event refers to; several if its file was loaded several times.
pub(super) fn choose<'a>(
    objects: &'a Objects,
    reference: &ObjectRef,
) -> Result<&'a [Arc<Object>], ResolveError> {
    let entry = match reference {
        ObjectRef::Any | ObjectRef::Main => objects.main_entry()?,
        ObjectRef::Path(path) => by_path(objects, path)?,
        ObjectRef::Name(name) => by_name(objects, name)?,
    };
    Ok(objects.open(entry)?)
}

/// Finds an object by path, as either the tracer or the process sees it. Symbolic links are
/// followed, and the object is found even if the file has been replaced since it was loaded.
fn by_path<'a>(objects: &'a Objects, text: &str) -> Result<&'a Entry, ResolveError> {
    let path = Path::new(text);
    let views: Vec<PathBuf> = match objects.process() {
        Some(process) if path.is_absolute() => vec![process.in_root(path), path.to_owned()],
        _ => vec![path.to_owned()],
    };
    let canonical: Vec<PathBuf> = views
        .iter()
        .filter_map(|p| fs::canonicalize(p).ok())
        .collect();
    let ids: Vec<FileId> = views.iter().filter_map(|p| FileId::of_path(p)).collect();
    let same_path = |entry: &&Entry| {
        entry.path() == path || canonical.iter().any(|c| c.as_path() == entry.path())
    };
    let same_mapped = |entry: &&Entry| {
        ids.iter()
            .any(|id| entry.mapped_id() == Some((Device::from_st_dev(id.dev), id.inode)))
    };
    // On some file systems, the inode in the memory map differs from the one that stat returns.
    let same_file = |entry: &&Entry| {
        let in_root = objects
            .process()
            .map(|process| process.in_root(entry.path()));
        let paths = in_root.into_iter().chain([entry.path().to_owned()]);
        paths
            .filter_map(|path| FileId::of_path(&path))
            .any(|id| ids.contains(&id))
    };
    let entries = objects.entries();
    let named: Vec<&Entry> = entries.iter().filter(same_path).collect();
    if named.len() > 1 && text.starts_with("/memfd:") {
        return Err(ResolveError::AmbiguousObject {
            name: text.to_owned(),
            candidates: named.iter().map(|entry| entry.path().to_owned()).collect(),
        });
    }
    entries
        .iter()
        .find(same_mapped)
        .or_else(|| entries.iter().find(same_path))
        .or_else(|| entries.iter().find(same_file))
        .ok_or_else(|| missing(objects, text))
}

/// Quality of a file name match, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// The name is the whole file name.
    Whole,
    /// `NAME.so`, `NAME.so.6`, `NAME-2.31.so`.
    Library,
    /// The file name starts with the name and is that of a library.
    LibraryPrefix,
    /// The file name starts with the name.
    Prefix,
}

fn fit(file: &str, name: &str) -> Option<Fit> {
    let rest = file.strip_prefix(name)?;
    let is_library = rest.ends_with(".so") || rest.contains(".so.");
    let versioned = rest
        .strip_prefix('-')
        .is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()));
    Some(match rest {
        "" => Fit::Whole,
        _ if rest == ".so" || rest.starts_with(".so.") || (versioned && is_library) => Fit::Library,
        _ if is_library => Fit::LibraryPrefix,
        _ => Fit::Prefix,
    })
}

/// Finds an object by the start of its file name. If none matches, finds it by the start of its
/// soname (musl's `ld-musl-x86_64.so.1` has the soname `libc.musl-x86_64.so.1`).
pub(super) fn by_name<'a>(objects: &'a Objects, name: &str) -> Result<&'a Entry, ResolveError> {
    let by_file = best(objects, |entry| fit(&file_name(entry.path()), name));
    let by_soname = |entry: &Entry| {
        let object = objects.open(entry).ok()?.first()?;
        fit(object.file().soname()?, name)
    };
    let found = if by_file.is_empty() {
        best(objects, by_soname)
    } else {
        by_file
    };
    match found.as_slice() {
        [] => Err(missing(objects, name)),
        [entry] => Ok(entry),
        several => {
            let mut candidates: Vec<PathBuf> =
                several.iter().map(|e| e.path().to_owned()).collect();
            candidates.sort();
            Err(ResolveError::AmbiguousObject {
                name: name.to_owned(),
                candidates,
            })
        }
    }
}

/// Returns the objects with the best match.
fn best(objects: &Objects, fit: impl Fn(&Entry) -> Option<Fit>) -> Vec<&Entry> {
    let fits = || objects.entries().iter().filter_map(|e| Some((fit(e)?, e)));
    let Some(best) = fits().map(|(fit, _)| fit).min() else {
        return Vec::new();
    };
    fits()
        .filter(|&(fit, _)| fit == best)
        .map(|(_, entry)| entry)
        .collect()
}

fn missing(objects: &Objects, name: &str) -> ResolveError {
    let name = name.to_owned();
    if objects.process().is_none() {
        let file = objects.paths().next().unwrap_or(Path::new("")).to_owned();
        return ResolveError::OtherFile { name, file };
    }
    // Our own memory, such as stubs, is mapped like files.
    let ours = |name: &String| name.starts_with("memfd:capriole-");
    let names = objects.paths().map(file_name);
    let names = names.filter(|name| !ours(name));
    let names: Vec<String> = names.map(|name| written(&name).to_owned()).collect();
    let wanted = file_name(Path::new(&name));
    let mut near = nearest(&wanted, names.iter().map(String::as_str));
    if near.is_empty() {
        near = names.into_iter().take(LISTED).collect();
    }
    ResolveError::NoSuchObject {
        name,
        nearest: near,
    }
}

/// Returns the part of a file name that an event can have as its object: up to a character with another
/// meaning there. The start of the name is enough.
pub(super) fn written(name: &str) -> &str {
    const MEMFD: &str = "memfd:";
    let is_memory = name.starts_with(MEMFD);
    let begin = if is_memory { MEMFD.len() } else { 0 };
    let ends = |c: char| match c {
        ':' | '*' | '?' => true,
        '$' | '%' | '@' | '=' => is_memory,
        '(' => !is_memory,
        c => !is_memory && c.is_whitespace(),
    };
    match name[begin..].find(ends) {
        None | Some(0) => name,
        Some(length) => &name[..begin + length],
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_suggested_as_far_as_they_can_be_written() {
        for (name, expected) in [
            ("libc.so.6", "libc.so.6"),
            ("memfd:the plugin", "memfd:the plugin"),
            ("memfd:a:b", "memfd:a"),
            ("memfd:all*", "memfd:all"),
            ("memfd:a=1", "memfd:a"),
            ("memfd:", "memfd:"),
            ("off:set", "off"),
            ("a b(1)", "a"),
            (":", ":"),
        ] {
            assert_eq!(written(name), expected, "{name}");
        }
    }

    #[test]
    fn prefers_the_library_of_that_name() {
        let cases = [
            ("libc.so.6", "libc", Some(Fit::Library)),
            ("libc.so", "libc", Some(Fit::Library)),
            ("libc-2.31.so", "libc", Some(Fit::Library)),
            ("libc-client.so.2007", "libc", Some(Fit::LibraryPrefix)),
            ("libcrypto.so.3", "libc", Some(Fit::LibraryPrefix)),
            ("libc.so.6", "libc.so.6", Some(Fit::Whole)),
            ("python3.11", "python3", Some(Fit::Prefix)),
            ("libpython3.11.so.1.0", "libpython3.11", Some(Fit::Library)),
            ("libpython3.11.so.1.0", "python", None),
            ("nginx", "nginx", Some(Fit::Whole)),
        ];
        for (file, name, expected) in cases {
            assert_eq!(fit(file, name), expected, "{file} {name}");
        }
    }
}
