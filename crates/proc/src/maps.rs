//! `/proc/PID/maps` (proc_pid_maps(5)), and the free address ranges between the mappings.

mod cover;
mod gap;
mod parse;

use crate::files;
use std::ffi::OsString;

pub use cover::{Aside, COVER_NAME, Cover, as_made, asides, covers, is_covered};
pub(crate) use gap::NULL_END;
pub use gap::{GapQuery, Layout, find_gaps, free_stretches};
pub use parse::{MapsError, parse_maps};

/// Size of a page on x86-64, bytes.
pub const PAGE_SIZE: u64 = 4096;

/// Maximum number of mappings per process, `vm.max_map_count`; the kernel's default if it
/// cannot be read.
#[must_use]
pub fn max_map_count() -> usize {
    let text = files::read_pseudo_text("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65530)
}

/// Permissions of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Perms {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub execute: bool,
    /// `s` (`MAP_SHARED`) instead of `p` (private, copy on write).
    pub shared: bool,
}

/// Device number of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// Converts the `st_dev` of stat(2).
    #[must_use]
    pub fn from_st_dev(dev: u64) -> Device {
        Device {
            major: rustix::fs::major(dev),
            minor: rustix::fs::minor(dev),
        }
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Permissions.
    pub perms: Perms,
    /// Offset in the file of the byte at `start`.
    pub offset: u64,
    /// Device of the file, 0:0 for none.
    pub dev: Device,
    /// Inode of the file, 0 for none.
    pub inode: u64,
    /// Path of the file as the process sees it, or a name in brackets such as
    /// `[heap]`; empty for anonymous memory. Without the kernel's ` (deleted)`.
    pub path: OsString,
    /// True if the kernel appended ` (deleted)`: the file no longer has a name (or its name really
    /// ends in ` (deleted)`, which looks the same).
    pub deleted: bool,
}

/// Returns the mapping that contains an address, among mappings in ascending order, as the kernel lists them.
#[must_use]
pub fn containing(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let mapping = maps.get(maps.partition_point(|m| m.end <= address))?;
    mapping.contains(address).then_some(mapping)
}

impl Mapping {
    /// True if `address` lies in the mapping.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// True if a file (or other object with an inode, such as a memfd) is mapped.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// True if this is the special mapping that the kernel calls `name`, e.g. `[heap]`.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        self.inode == 0 && self.path.as_os_str() == name
    }
}

/// The lowest address a program may map (`vm.mmap_min_addr`).
#[must_use]
pub fn mmap_min_addr() -> u64 {
    files::read_pseudo_text("/proc/sys/vm/mmap_min_addr")
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(64 * 1024)
}
