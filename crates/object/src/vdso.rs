//! The vDSO (vdso(7)): code of the kernel in each process, an ELF file that exists in memory only.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};

use super::bias::instances;
use super::{Object, ObjectFile};
use capriole_proc::maps::Mapping;
use capriole_proc::process::Process;

/// The kernel's name of its mapping.
const NAME: &str = "[vdso]";
/// Maximum size in bytes; it has two pages in most kernels.
const MAX_SIZE: u64 = 1 << 20;

/// Returns the vDSO of a process, from its memory; `None` if the process has none, or it cannot be read.
#[must_use]
pub fn vdso(process: &Process, maps: &[Mapping]) -> Option<Arc<Object>> {
    let mapping = maps.iter().find(|mapping| mapping.is_named(NAME))?;
    let size = mapping.end.checked_sub(mapping.start)?;
    let mut image = vec![0; usize::try_from(size.min(MAX_SIZE)).ok()?];
    let read = process.read_memory(mapping.start, &mut image).ok()?;
    // What reads objects reads files.
    let mut file = File::from(memfd_create("capriole-vdso", MemfdFlags::CLOEXEC).ok()?);
    file.write_all(&image[..read]).ok()?;
    let file = Arc::new(ObjectFile::from_file(file, Path::new(NAME)).ok()?);
    let instance = instances(&file, std::slice::from_ref(mapping), None)
        .into_iter()
        .next()?;
    Some(Arc::new(Object::new(file, instance, false, None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_rules::FrameRule;

    #[test]
    fn the_vdso_of_this_process_has_functions_and_rules() {
        let process = Process::open(std::process::id()).expect("this process");
        let maps = process.maps().expect("mappings");
        let mapping = maps.iter().find(|mapping| mapping.is_named(NAME));
        let Some(mapping) = mapping else {
            println!("skipped: the kernel gives programs no vDSO");
            return;
        };
        let object = vdso(&process, &maps).expect("an object");
        let symbols = object.symbols().expect("symbols");
        let clock = symbols.exact("__vdso_clock_gettime");
        let extent = object.run_time_extent(clock.first().expect("a function").function.extent);
        assert!(mapping.contains(extent.start), "{extent}");
        let link = object.link(extent.start);
        let rules = object.file().frame_rules();
        let next = rules.partition_point(|rule| rule.address <= link);
        let rule = rules[next.checked_sub(1).expect("a rule")].rule;
        assert!(matches!(rule, FrameRule::Frame { .. }), "{rule:?}");
    }

    #[test]
    fn a_process_without_a_vdso_has_none() {
        let process = Process::open(std::process::id()).expect("this process");
        assert!(vdso(&process, &[]).is_none());
        // What is there is not an ELF file.
        let bytes = vec![b'x'; 8192];
        let start = bytes.as_ptr() as u64;
        let mapping = Mapping {
            start,
            end: start + 4096,
            path: NAME.into(),
            ..Mapping::default()
        };
        assert!(vdso(&process, &[mapping]).is_none());
    }
}
