//! The objects of a process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::bias::{Instance, instances};
use super::loaded::Object;
use super::{ObjectError, ObjectFile, ObjectProblem};
use capriole_proc::files;
use capriole_proc::maps::{Device, Mapping};
use capriole_proc::process::{Auxv, FileSystem, Process, ProcessError};

/// Number of bytes at the start of a file to compare with memory: they contain the headers and,
/// in most files, the build id.
const COMPARED: usize = 1024;

/// The program and the libraries of a process, or a single file without a process. Each file is
/// opened on first use.
#[derive(Debug)]
pub struct Objects {
    process: Option<Process>,
    entries: Vec<Entry>,
}

/// A mapped file with code.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    is_main: bool,
    mappings: Vec<Mapping>,
    objects: OnceLock<Result<Vec<Arc<Object>>, ObjectError>>,
}

impl Objects {
    /// Lists the objects that a process has mapped now.
    ///
    /// # Errors
    ///
    /// The memory map cannot be read.
    pub fn of_process(process: &Process) -> Result<Objects, ProcessError> {
        let maps = process.maps()?;
        let auxv = process.auxv().unwrap_or_default();
        let exe = process.exe()?;
        let mut entries = group(maps);
        let main = entries
            .iter()
            .position(|e| {
                auxv.phdr
                    .is_some_and(|at| e.mappings.iter().any(|m| m.contains(at)))
            })
            .or_else(|| entries.iter().position(|e| e.path == exe));
        if let Some(main) = main {
            entries[main].is_main = true;
            entries.swap(0, main);
        }
        // Processes also map files for other purposes: a file without code is not an object, unless it
        // is the program (which may have moved its code).
        entries.retain(|e| e.is_main || e.mappings.iter().any(|m| m.perms.execute));
        Ok(Objects {
            process: Some(process.clone()),
            entries,
        })
    }

    /// Opens a single file without a process, at bias 0.
    ///
    /// # Errors
    ///
    /// See [`ObjectFile::open`].
    pub fn offline(path: &Path) -> Result<Objects, ObjectError> {
        Ok(Objects::of_file(Arc::new(ObjectFile::open(path)?)))
    }

    /// Takes a single file that is already open, at bias 0.
    #[must_use]
    pub fn of_file(file: Arc<ObjectFile>) -> Objects {
        let entry = Entry {
            path: file.path().to_owned(),
            is_main: true,
            mappings: Vec::new(),
            objects: OnceLock::new(),
        };
        entry
            .objects
            .get_or_init(|| Ok(vec![Arc::new(Object::offline(file))]));
        Objects {
            process: None,
            entries: vec![entry],
        }
    }

    /// True if both are objects of one process that has mapped the same parts of the same files to
    /// the same addresses: then all that is known of their files and code is the same.
    #[must_use]
    pub fn are_mapped_as(&self, other: &Objects) -> bool {
        let of = |objects: &Objects| {
            let process = objects.process.as_ref();
            process.map(|process| (process.pid(), process.start_time()))
        };
        let same = |(one, other): (&Entry, &Entry)| {
            one.is_main == other.is_main && one.path == other.path && one.mappings == other.mappings
        };
        of(self).is_some()
            && of(self) == of(other)
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(same)
    }

    /// Returns the process; `None` for a single file.
    #[must_use]
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Returns the paths of all objects, as the process names them; the main program first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.entries.iter().map(|entry| entry.path.as_path())
    }

    /// Returns the program's own entry.
    ///
    /// # Errors
    ///
    /// It is not mapped as one file.
    pub fn main_entry(&self) -> Result<&Entry, ObjectError> {
        let main = self.entries.iter().find(|entry| entry.is_main);
        main.ok_or_else(|| {
            let program = self.process.as_ref().and_then(|p| p.exe().ok());
            ObjectError::new(&program.unwrap_or_default(), ObjectProblem::StrangeMapping)
        })
    }

    /// Returns all objects whose files can be used; usually one for each file.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.entries
            .iter()
            .filter_map(|entry| self.open(entry).ok())
            .flatten()
    }

    /// Returns the object around a run-time address.
    #[must_use]
    pub fn containing(&self, address: u64) -> Option<&Arc<Object>> {
        let holds = |e: &&Entry| e.mappings.iter().any(|m| m.contains(address));
        let entry = self.entries.iter().find(holds)?;
        let objects = self.open(entry).ok()?.iter();
        let mut holding = objects.filter(|object| object.contains(address));
        holding.find(|object| object.is_mapped(address))
    }

    /// Returns the mapped files with code.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the objects made of one mapped file: more than one if it was loaded several times
    /// (dlmopen), or its code was mapped once more ([`Object::is_part`]); never none.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn open<'a>(&self, entry: &'a Entry) -> Result<&'a [Arc<Object>], ObjectError> {
        let objects = entry.objects.get_or_init(|| match &self.process {
            Some(process) => entry.load(process),
            None => Err(ObjectError::new(&entry.path, ObjectProblem::StrangeMapping)),
        });
        objects.as_ref().map(Vec::as_slice).map_err(Clone::clone)
    }
}

/// Groups the mappings by file, ordered by first address.
fn group(maps: Vec<Mapping>) -> Vec<Entry> {
    let mut index = std::collections::HashMap::<(Device, u64, OsString), usize>::new();
    let mut entries: Vec<Entry> = Vec::new();
    for mapping in maps.into_iter().filter(Mapping::is_file) {
        let key = (mapping.dev, mapping.inode, mapping.path.clone());
        let at = *index.entry(key).or_insert_with(|| {
            entries.push(Entry {
                path: PathBuf::from(&mapping.path),
                is_main: false,
                mappings: Vec::new(),
                objects: OnceLock::new(),
            });
            entries.len() - 1
        });
        entries[at].mappings.push(mapping);
    }
    entries
}

impl Entry {
    /// Returns the file's path in the process.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the device and inode from the memory map; `None` without a process.
    pub fn mapped_id(&self) -> Option<(Device, u64)> {
        self.mappings.first().map(|m| (m.dev, m.inode))
    }

    fn load(&self, process: &Process) -> Result<Vec<Arc<Object>>, ObjectError> {
        let problem = |reason: ObjectProblem| ObjectError::new(&self.path, reason);
        let file = self.open_file(process).map_err(problem)?;
        let mut file = ObjectFile::from_file(file, &self.path)?;
        if process.has_other_root() {
            let root = process.in_root(Path::new("/"));
            // After chroot(2) the kernel shows the path from outside.
            let seen = std::fs::read_link(root.parent().unwrap_or(&root).join("root"));
            let inside = seen.ok().and_then(|seen| self.path.strip_prefix(seen).ok());
            let inside = inside
                .unwrap_or(&self.path)
                .parent()
                .unwrap_or(Path::new("/"));
            file = file.in_root(root, inside.to_owned());
        }
        let file = Arc::new(file);
        let auxv = match self.is_main {
            true => process.auxv().unwrap_or_default(),
            false => Auxv::default(),
        };
        let instances = instances(&file, &self.mappings, auxv.entry);
        if instances.is_empty() {
            return Err(problem(ObjectProblem::StrangeMapping));
        }
        let own = instances[0].bias;
        let object = |instance: Instance| {
            let part_of = (!instance.is_whole && instance.bias != own).then_some(own);
            let object = Object::new(Arc::clone(&file), instance, self.is_main, part_of);
            Arc::new(object)
        };
        Ok(instances.into_iter().map(object).collect())
    }

    /// Opens exactly the file that is mapped: through the kernel's own links if permitted,
    /// otherwise by path in the process's root, with a check.
    fn open_file(&self, process: &Process) -> Result<File, ObjectProblem> {
        if self.is_main
            && let Ok(file) = process.open_exe()
            && self.is_mapped_file(&file, process)
        {
            return Ok(file);
        }
        for mapping in &self.mappings {
            if let Ok(file) = process.open_mapped(mapping) {
                return Ok(file);
            }
        }
        // If possible, the kernel shows the path relative to the reader's root.
        let mut problem = ObjectProblem::Deleted;
        for path in [process.in_root(&self.path), self.path.clone()] {
            match files::open(&path) {
                Ok(file) if self.is_mapped_file(&file, process) => return Ok(file),
                Ok(_) => problem = ObjectProblem::Replaced,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => {
                    let denying = FileSystem::denying(process, &self.path, &e);
                    problem = denying.map_or_else(|| e.into(), ObjectProblem::NotReadable);
                }
            }
        }
        Err(problem)
    }

    /// True if device and inode match. Some file systems (btrfs, overlayfs) show other numbers in
    /// the memory map; then, true if the contents of memory match the file.
    fn is_mapped_file(&self, file: &File, process: &Process) -> bool {
        let numbers = file.metadata().is_ok_and(|metadata| {
            let id = (Device::from_st_dev(metadata.dev()), metadata.ino());
            self.mapped_id() == Some(id)
        });
        numbers || self.memory_agrees(file, process).unwrap_or(false)
    }

    fn memory_agrees(&self, file: &File, process: &Process) -> Option<bool> {
        let header = self
            .mappings
            .iter()
            .find(|m| m.offset == 0 && m.perms.read)?;
        let (mut mapped, mut on_disk) = ([0; COMPARED], [0; COMPARED]);
        let count = process.read_memory(header.start, &mut mapped).ok()?;
        file.read_exact_at(&mut on_disk[..count], 0).ok()?;
        Some(count > 64 && mapped[..count] == on_disk[..count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the C library of this process with wrong mapping addresses, so that the kernel's
    /// links lead nowhere and the file is found by path.
    fn library(process: &Process) -> Entry {
        let objects = Objects::of_process(process).unwrap();
        let is_libc = |e: &Entry| e.path.to_string_lossy().contains("libc.so");
        let mut entry = objects.entries.into_iter().find(is_libc).unwrap();
        for mapping in &mut entry.mappings {
            mapping.end -= 1;
        }
        entry
    }

    fn this() -> Process {
        Process::open(std::process::id()).unwrap()
    }

    #[test]
    fn a_file_is_known_by_its_numbers_or_by_what_is_in_memory() {
        let (process, mut entry) = (this(), library(&this()));
        assert!(entry.open_file(&process).is_ok());
        // Different numbers, as on btrfs, but memory matches.
        entry.mappings.iter_mut().for_each(|m| m.inode += 1);
        assert!(entry.open_file(&process).is_ok());
        // Neither numbers nor memory match.
        entry.mappings.iter_mut().for_each(|m| m.offset += 1 << 40);
        assert!(matches!(
            entry.open_file(&process),
            Err(ObjectProblem::Replaced)
        ));
    }

    #[test]
    fn a_replaced_and_a_deleted_file_are_told_apart() {
        let (process, mut entry) = (this(), library(&this()));
        entry.path = std::env::current_exe().unwrap();
        assert!(matches!(
            entry.open_file(&process),
            Err(ObjectProblem::Replaced)
        ));
        entry.path = PathBuf::from("/no/such/library.so");
        assert!(matches!(
            entry.open_file(&process),
            Err(ObjectProblem::Deleted)
        ));
    }
}
