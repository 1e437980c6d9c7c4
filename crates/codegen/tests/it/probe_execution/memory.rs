//! Memory that a run can access: a library mapped as the loader would, the stack, a data
//! area for pointers, a thread block, and room for generated code. Everything
//! that can change is restored before each run and compared after it.

use std::collections::BTreeMap;
use std::ops::Range;

use capriole_insn::Extent;

use crate::support::elf::{Elf, Fixup};
use crate::support::random::Random;

/// Difference between a library's mapped and linked addresses.
pub const BIAS: u64 = 0x2_4000_0000;
/// Generated code: residents and the detour.
pub const ARENA: u64 = 0x2_3000_0000;
pub const ARENA_SIZE: usize = 0x2_0000;
/// Target of random pointers. Fits in 31 bits, so that it survives truncation
/// to 32 bits.
pub const DATA: u64 = 0x5800_0000;
pub const DATA_SIZE: usize = 0x8000;
pub const STACK: u64 = 0x5c00_0000;
const STACK_SIZE: usize = 0x8000;
/// The stack pointer at the start.
pub const STACK_POINTER: u64 = STACK + 0x4000;
/// Thread-local memory; see [`super::machine::THREAD`].
pub const TLS: u64 = 0x6000_0000;
const TLS_SIZE: usize = 0x2000;
/// Offsets of `struct rseq` from the thread pointer: the one that the kernel
/// knows, and one that reads as "not registered".
pub const RSEQ: i32 = -0x100;
pub const NO_RSEQ: i32 = -0x140;
/// Offset of the thread id, and the id.
pub const TID: (i32, u32) = (0x2d0, 4242);
const RSEQ_SIZE: usize = 32;
/// A return address that ends a run; nothing is mapped there.
pub const SENTINEL: u64 = 0x6400_0000;

const PAGE: u64 = 4096;
const INT3: u8 = 0xcc;

/// Memory for code that can be changed although its executable mapping is not writable.
struct CodeMemory {
    address: u64,
    size: usize,
    writable: *mut u8,
}

impl CodeMemory {
    fn new(address: u64, size: usize) -> Self {
        // SAFETY: a terminated name.
        let file = unsafe { libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: changes the size of the file just made.
        let sized = unsafe { libc::ftruncate(file, size as i64) };
        assert_eq!(sized, 0);
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        map(address, size, executable, file);
        let writable = map(0, size, both, file) as *mut u8;
        // SAFETY: the mappings keep the file.
        unsafe { libc::close(file) };
        Self {
            address,
            size,
            writable,
        }
    }

    /// The bytes at `extent`.
    fn bytes(&mut self, extent: Extent) -> &mut [u8] {
        assert!(
            extent.start >= self.address && extent.end <= self.address + self.size as u64,
            "{extent} is not in this code"
        );
        let at = (extent.start - self.address) as usize;
        // SAFETY: `at` and the length are inside the mapping, as just checked.
        let start = unsafe { self.writable.add(at) };
        // SAFETY: as above; `self` is borrowed as long as the slice lives, and the
        // code does not run meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start, extent.len() as usize) }
    }
}

/// Maps a file, or anonymous memory, at `address` unless that is 0.
fn map(address: u64, size: usize, protection: i32, file: i32) -> u64 {
    let kind = if file < 0 {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
    } else {
        libc::MAP_SHARED
    };
    let fixed = if address == 0 {
        0
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    // SAFETY: a new mapping that replaces no other.
    let mapped = unsafe { libc::mmap(address as *mut _, size, protection, kind | fixed, file, 0) };
    assert_ne!(
        mapped,
        libc::MAP_FAILED,
        "cannot map {size} bytes at {address:#x}"
    );
    mapped as u64
}

/// Memory that a run may change.
struct Area {
    address: u64,
    pristine: Vec<u8>,
}

/// The contents of all areas, by their addresses.
pub type Snapshot = BTreeMap<u64, Vec<u8>>;

/// All memory of a run.
pub struct Memory {
    text: CodeMemory,
    arena: CodeMemory,
    areas: Vec<Area>,
    /// End of the library.
    end: u64,
}

/// Reads a word of the stack, if `address` is in it.
pub fn stack_word(address: u64) -> Option<u64> {
    let inside = (STACK..STACK + STACK_SIZE as u64 - 8).contains(&address);
    // SAFETY: the stack is mapped and `address` was checked to be inside.
    inside.then(|| unsafe { (address as *const u64).read_unaligned() })
}

/// Bytes below the stack pointer that a detour may use.
pub const BELOW: u64 = 0x800;

/// Overwrites the stack below `stack_pointer`, except the nearest `spared` bytes,
/// with noise.
pub fn scribble_below(stack_pointer: u64, spared: u64, noise: u64) {
    if !has_room_below(stack_pointer) {
        return;
    }
    let mut random = Random::new(noise);
    for at in stack_pointer - BELOW..stack_pointer - spared {
        // SAFETY: in the stack, which is mapped and has room, as just checked.
        unsafe { (at as *mut u8).write(random.number() as u8) };
    }
}

/// The `struct rseq` that is not registered: detours write to it.
pub fn unregistered_rseq() -> Extent {
    let start = super::machine::THREAD.wrapping_add_signed(i64::from(NO_RSEQ));
    Extent::new(start, start + RSEQ_SIZE as u64)
}

/// Returns true if there is room for a detour's work below a stack pointer.
pub fn has_room_below(stack_pointer: u64) -> bool {
    (STACK + 0x1000..STACK + STACK_SIZE as u64).contains(&stack_pointer)
}

impl Memory {
    /// Maps everything; the library's text is all `int3`.
    pub fn new(elf: &Elf, random: &mut Random) -> Self {
        let (text, address) = elf.text();
        let page = address / PAGE * PAGE;
        let size = (address - page) as usize + text.len();
        let text = CodeMemory::new(page, size.next_multiple_of(PAGE as usize));
        let arena = CodeMemory::new(ARENA, ARENA_SIZE);
        let mut memory = Self {
            text,
            arena,
            areas: Vec::new(),
            end: elf
                .segments()
                .map(|(s, _)| (s.address + s.memory_size).next_multiple_of(PAGE))
                .max()
                .expect("a library without segments"),
        };
        let all = Extent::new(page, page + memory.text.size as u64);
        memory.text.bytes(all).fill(INT3);
        for (address, size) in [(DATA, DATA_SIZE), (STACK, STACK_SIZE), (TLS, TLS_SIZE)] {
            map(address, size, libc::PROT_READ | libc::PROT_WRITE, -1);
        }
        memory.map_data(elf, random);
        let thread = super::machine::THREAD;
        let rseq = thread.wrapping_add_signed(i64::from(RSEQ));
        let after = rseq + RSEQ_SIZE as u64;
        for (from, to) in [
            (DATA, DATA + DATA_SIZE as u64),
            (STACK, STACK + STACK_SIZE as u64),
            (TLS, rseq),
            (after, TLS + TLS_SIZE as u64),
        ] {
            memory.areas.push(Area {
                address: from,
                pristine: vec![0; (to - from) as usize],
            });
        }
        memory
    }

    /// Maps the segments without code and applies the relocations.
    fn map_data(&mut self, elf: &Elf, random: &mut Random) {
        let mut ends = Vec::new();
        for (segment, bytes) in elf.segments().filter(|(s, _)| !s.executable) {
            let page = segment.address / PAGE * PAGE;
            let end = (segment.address + segment.memory_size).next_multiple_of(PAGE);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            map(page, (end - page) as usize, both, -1);
            write(segment.address, bytes);
            ends.push((segment, page, end));
        }
        let mapped = |at: u64| {
            ends.iter()
                .any(|(s, _, _)| s.address <= at && at + 8 <= s.address + s.memory_size)
        };
        for (place, fixup) in elf.fixups(false).into_iter().filter(|(at, _)| mapped(*at)) {
            let value = match fixup {
                Fixup::Inside(address) => address,
                Fixup::Elsewhere => data_pointer(random),
                Fixup::Module => 1,
                Fixup::ThreadOffset => (-0x400i64 - 8 * random.below(64) as i64) as u64,
            };
            write(place, &value.to_le_bytes());
        }
        let fixed = elf.read_only_later();
        for (segment, page, end) in ends {
            let writable = if !segment.writable {
                end
            } else if fixed.is_empty() || !(page..end).contains(&fixed.start) {
                page
            } else {
                fixed.end / PAGE * PAGE
            };
            // SAFETY: the pages were mapped above and nothing refers to them.
            unsafe { libc::mprotect(page as *mut _, (writable - page) as usize, libc::PROT_READ) };
            if writable < end {
                self.areas.push(Area {
                    address: writable,
                    pristine: read(writable, (end - writable) as usize),
                });
            }
        }
    }

    /// Fills data, stack and thread block with new contents.
    pub fn randomise(&mut self, random: &mut Random) {
        for area in &mut self.areas {
            let sentinels = match area.address {
                DATA => 0,
                STACK => 8,
                at if (TLS..TLS + TLS_SIZE as u64).contains(&at) => 0,
                _ => continue,
            };
            for word in area.pristine.chunks_exact_mut(8) {
                let value = if random.below(64) < sentinels {
                    SENTINEL
                } else {
                    random_word(random)
                };
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        let thread = super::machine::THREAD;
        self.preset(thread, thread);
        self.preset(thread + 0x10, thread);
        let id = thread.wrapping_add_signed(i64::from(TID.0));
        self.preset(id, u64::from(TID.1));
        // cpu_id_start 0, cpu_id -1: not registered.
        let fake = unregistered_rseq().start;
        for (i, word) in [u64::from(u32::MAX) << 32, 0, 0, 0].into_iter().enumerate() {
            self.preset(fake + 8 * i as u64, word);
        }
    }

    /// Sets the value of a word at the start of a run.
    pub fn preset(&mut self, address: u64, word: u64) {
        for area in &mut self.areas {
            let Some(at) = address.checked_sub(area.address).map(|at| at as usize) else {
                continue;
            };
            if let Some(bytes) = area.pristine.get_mut(at..at + 8) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Restores the contents of all areas.
    pub fn reset(&mut self) {
        for area in &self.areas {
            write(area.address, &area.pristine);
        }
    }

    /// Returns the contents of all areas.
    pub fn snapshot(&self) -> Snapshot {
        let contents = |area: &Area| (area.address, read(area.address, area.pristine.len()));
        self.areas.iter().map(contents).collect()
    }

    /// Ranges of unmapped addresses around the library.
    pub fn free(&self) -> Vec<Range<u64>> {
        const REACH: u64 = 1 << 31;
        vec![
            BIAS - REACH + 0x10_0000..ARENA,
            ARENA + ARENA_SIZE as u64..BIAS,
            self.end..BIAS + REACH,
        ]
    }

    /// Writes code of the library, or other bytes in its place.
    pub fn write_text(&mut self, address: u64, bytes: &[u8]) {
        let extent = Extent::new(address, address + bytes.len() as u64);
        self.text.bytes(extent).copy_from_slice(bytes);
    }

    /// Returns the bytes of the text.
    pub fn text(&self, extent: Extent) -> Vec<u8> {
        read(extent.start, extent.len() as usize)
    }

    /// Returns true if a run ends when it reaches this address outside the function.
    pub fn stops_at(&self, address: u64) -> bool {
        let (start, end) = (self.text.address, self.text.address + self.text.size as u64);
        !(start..end).contains(&address) || read(address, 1) == [INT3]
    }

    /// Fills text with `int3` again.
    pub fn clear_text(&mut self, extent: Extent) {
        self.text.bytes(extent).fill(INT3);
    }

    /// Returns the writable address of a byte of the arena.
    pub fn writable_arena(&mut self, address: u64) -> usize {
        let extent = Extent::new(address, address + 1);
        self.arena.bytes(extent).as_mut_ptr() as usize
    }

    /// Writes generated code.
    pub fn write_arena(&mut self, address: u64, bytes: &[u8]) {
        let extent = Extent::new(address, address + bytes.len() as u64);
        self.arena.bytes(extent).copy_from_slice(bytes);
    }
}

fn write(address: u64, bytes: &[u8]) {
    // SAFETY: only called for areas and segments that this module has mapped
    // writable, with bytes that fit.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}

fn read(address: u64, len: usize) -> Vec<u8> {
    // SAFETY: only called for memory that this module has mapped.
    unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec()
}

/// An address in the middle of the data.
pub fn data_pointer(random: &mut Random) -> u64 {
    let at = DATA + DATA_SIZE as u64 / 4 + random.below(DATA_SIZE / 2) as u64;
    if random.below(8) == 0 { at } else { at & !0xf }
}

/// A pointer, or a number, mostly a small one.
pub fn random_word(random: &mut Random) -> u64 {
    match random.below(16) {
        0..9 => data_pointer(random),
        9..12 => random.below(4) as u64,
        12 => random.below(300) as u64,
        13 => (random.below(5) as u64).wrapping_sub(2),
        14 => u64::from(random.number() as u32),
        _ => random.number(),
    }
}
