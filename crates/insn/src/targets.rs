//! All addresses of an object that some code can jump to.

use crate::arch::sweep::{Kind, Record, sweep};
use crate::ascending;
use crate::decode::{Code, Extent};
use crate::flow::{Hints, ReadMemory};
use crate::jump_table;
use crate::jump_table::Resolution;

/// The set of addresses in an object's text to which a jump, a call, a jump
/// table, a pointer or an exception can lead, as far as that can be known.
///
/// Three bitmaps with one bit for each byte of text: the addresses that direct
/// calls reach, those that jumps reach, and those that are stored as pointers.
/// Checking whether a range of a few bytes holds a target costs a few instructions, so that a
/// region can be checked against the whole object and not only against its function.
///
/// [`scan`](Self::scan) finds the targets that follow from the code. The rest must come from the
/// caller, by [`insert`](Self::insert):
///
/// * exception landing pads (see [`landing_pads`](crate::landing_pads())), or
///   [`mark_incomplete`](Self::mark_incomplete) if they cannot be read;
/// * addresses in the symbol table, by [`insert_entry`](Self::insert_entry);
/// * addresses stored in data or added by relocations, by
///   [`insert_pointer`](Self::insert_pointer), and then
///   [`set_pointers_known`](Self::set_pointers_known).
#[derive(Clone, Debug)]
pub struct Targets {
    text: Extent,
    /// Reached by `call rel32`, or the entry of a function.
    calls: Vec<u64>,
    /// Reached by jumps, jump tables, exceptions.
    jumps: Vec<u64>,
    /// Made by some instruction, or stored in data: addresses of functions or labels.
    pointers: Vec<u64>,
    /// Targets of code that has an indirect jump that is not understood: that jump may lead into
    /// the same function as these targets.
    suspects: Vec<u64>,
    /// Direct jumps that lead out of their function: target and source.
    crossing: Vec<(u64, u64)>,
    /// Targets of jumps whose own addresses are uncertain: from tables of other functions, and from
    /// bytes that may not be code.
    strays: Vec<u64>,
    /// Functions, and gaps after functions, with indirect jumps whose targets are not known.
    indirect: Vec<Extent>,
    /// Static markers, ascending.
    markers: Vec<u64>,
    pointers_known: bool,
    incomplete: Option<&'static str>,
}

impl Targets {
    /// Creates the empty set over `text` (an address range of at most a few hundred MiB: three
    /// eighths of its size are allocated).
    #[must_use]
    pub fn new(text: Extent) -> Self {
        let words = usize::try_from(text.len().div_ceil(64)).unwrap_or(0);
        Self {
            text,
            calls: vec![0; words],
            jumps: vec![0; words],
            pointers: vec![0; words],
            suspects: Vec::new(),
            crossing: Vec::new(),
            strays: Vec::new(),
            indirect: Vec::new(),
            markers: Vec::new(),
            pointers_known: false,
            incomplete: None,
        }
    }

    /// Finds the targets in all of `code`; see [`scan`](Self::scan).
    #[must_use]
    pub fn of(code: &Code<'_>, functions: &[Extent], read: ReadMemory<'_>) -> Self {
        let mut targets = Self::new(code.extent());
        targets.scan(code, code.extent(), functions, read);
        targets
    }

    /// Cuts `text` into at most `count` pieces of about the same size that
    /// begin at functions, for [`scan`](Self::scan) on several threads.
    #[must_use]
    pub fn pieces(text: Extent, functions: &[Extent], count: usize) -> Vec<Extent> {
        let step = (text.len() / count.max(1) as u64).max(1);
        let mut cuts = vec![text.start];
        for function in functions {
            if text.contains(function.start)
                && function.start >= cuts[cuts.len() - 1].saturating_add(step)
                && cuts.len() < count
            {
                cuts.push(function.start);
            }
        }
        cuts.push(text.end);
        cuts.windows(2)
            .map(|pair| Extent::new(pair[0], pair[1]))
            .filter(|piece| !piece.is_empty())
            .collect()
    }

    /// Adds the targets that follow from the code in `piece`: direct jumps and calls, addresses
    /// that it takes (`lea x(%rip)`), and the entries of the jump tables that are understood.
    ///
    /// `code` is all of the object's contiguous text; `functions` are the extents of all known
    /// functions, sorted by their start. Decoding starts anew at each of them. Code between
    /// functions (a stripped object keeps its cold parts there) is decoded as well, and since the
    /// starts of its instructions are unknown, a 32-bit relative jump or call at *any* byte of it
    /// counts too. That may add addresses that are not targets, but it cannot miss one.
    pub fn scan(
        &mut self,
        code: &Code<'_>,
        piece: Extent,
        functions: &[Extent],
        read: ReadMemory<'_>,
    ) {
        let piece = Extent::new(
            piece.start.max(code.extent().start),
            piece.end.min(code.extent().end),
        );
        let mut records = Vec::new();
        let mut at = piece.start;
        let mut index = functions.partition_point(|function| function.start < piece.start);
        while at < piece.end {
            while functions.get(index).is_some_and(|next| next.start < at) {
                index += 1;
            }
            let here = functions.get(index).filter(|next| next.start == at);
            // Several symbols may begin at one address: take the longest.
            let mut known_end = here.map_or(at, |function| function.end);
            while let Some(function) = functions.get(index).filter(|next| next.start == at) {
                known_end = known_end.max(function.end);
                index += 1;
            }
            let next = functions
                .get(index)
                .map_or(piece.end, |next| next.start)
                .min(piece.end);
            let known_end = known_end.clamp(at, next);
            let function = Extent::new(at, known_end);
            self.scan_run(code, function, true, functions, read, &mut records);
            let gap = Extent::new(known_end, next);
            self.scan_run(code, gap, false, functions, read, &mut records);
            at = next;
        }
        self.crossing.sort_unstable();
        tidy(&mut self.strays);
    }

    /// Scans one function (`known`) or the gap after it.
    fn scan_run(
        &mut self,
        code: &Code<'_>,
        run: Extent,
        known: bool,
        functions: &[Extent],
        read: ReadMemory<'_>,
        records: &mut Vec<Record>,
    ) {
        if run.is_empty() {
            return;
        }
        records.clear();
        let mut sure = known;
        let mut at = run.start;
        while let Some(bad) = sweep(code, Extent::new(at, run.end), true, |r| records.push(r)) {
            sure = false;
            at = bad.saturating_add(1);
            if at >= run.end {
                break;
            }
        }
        if !sure {
            self.scan_every_byte(code, run, functions);
        }
        let text = self.text;
        let leads_out = |target: &u64| text.contains(*target) && !run.contains(*target);
        for record in records.iter() {
            match record.kind {
                Kind::Jump | Kind::Conditional => {
                    self.insert(record.target);
                    if leads_out(&record.target) && sure {
                        self.crossing.push((record.target, record.address));
                    } else if leads_out(&record.target) {
                        self.strays.push(record.target);
                    }
                }
                Kind::Constant => self.insert_pointer(record.target),
                Kind::Call => set(&mut self.calls, self.text, record.target),
                _ => {}
            }
        }
        if !records.iter().any(|r| r.kind == Kind::IndirectJump) {
            return;
        }
        let hints = Hints {
            landing_pads: &[],
            read,
        };
        let (mut unknown, mut open) = (false, false);
        for jump in jump_table::resolve(code, run, records, &hints) {
            match jump.resolution {
                Resolution::Table { targets, .. } => {
                    targets.iter().for_each(|&target| self.insert(target));
                    self.strays.extend(targets.into_iter().filter(leads_out));
                }
                Resolution::Pointer => open = true,
                Resolution::Unknown => unknown = true,
            }
        }
        if unknown || open {
            self.indirect.push(run);
        }
        if !unknown {
            return;
        }
        let is_entry = |address| {
            functions
                .binary_search_by_key(&address, |function: &Extent| function.start)
                .is_ok()
        };
        for record in records.iter() {
            if leads_out(&record.target)
                && matches!(record.kind, Kind::Jump | Kind::Conditional | Kind::Constant)
                && !is_entry(record.target)
            {
                self.suspects.push(record.target);
            }
        }
        tidy(&mut self.suspects);
    }

    /// Adds the targets of `jmp rel32`, `call rel32` and `jcc rel32` at every byte. Short jumps,
    /// whose opcodes are common bytes, count only if they lead to the start of a function.
    fn scan_every_byte(&mut self, code: &Code<'_>, run: Extent, functions: &[Extent]) {
        let end = run.end.saturating_add(6).min(code.extent().end);
        let Some(bytes) = code.get(Extent::new(run.start, end)) else {
            return;
        };
        for (offset, window) in bytes.windows(5).enumerate() {
            let address = run.start + offset as u64;
            // The target of a branch whose opcode has this many bytes.
            let branch = |opcode: usize| {
                let displacement = bytes[offset + opcode..].first_chunk()?;
                let displacement = i64::from(i32::from_le_bytes(*displacement));
                let behind = address.wrapping_add(opcode as u64 + 4);
                Some(behind.wrapping_add_signed(displacement))
            };
            let jump = match window[0] {
                0xe8 => {
                    branch(1).into_iter().for_each(|call| self.insert(call));
                    continue;
                }
                0xe9 => branch(1),
                0x0f if window[1] & 0xf0 == 0x80 => branch(2),
                0x70..=0x7f | 0xe0..=0xe3 | 0xeb => {
                    let target = (address + 2).wrapping_add_signed(i64::from(window[1] as i8));
                    let start = |function: &Extent| function.start;
                    if functions.binary_search_by_key(&target, start).is_ok() {
                        self.strays.push(target);
                    }
                    continue;
                }
                _ => continue,
            };
            let Some(jump) = jump else { continue };
            self.insert(jump);
            if self.text.contains(jump) {
                self.strays.push(jump);
            }
        }
    }

    /// Adds an address that may be jumped to; ignored outside the text.
    pub fn insert(&mut self, address: u64) {
        set(&mut self.jumps, self.text, address);
    }

    /// Adds the entry of a function, which is *called*: nothing of a caller is live below the stack
    /// pointer there. Do not use it for the cold part that a compiler split off from a function
    /// (`name.cold`).
    pub fn insert_entry(&mut self, address: u64) {
        set(&mut self.calls, self.text, address);
    }

    /// Adds static markers: nops described by notes that tell other tools where values are. Those
    /// tools read registers at the marker that no instruction reads, and may write a breakpoint
    /// there at any time.
    pub fn insert_markers(&mut self, addresses: impl IntoIterator<Item = u64>) {
        let text = self.text;
        let inside = addresses.into_iter().filter(|at| text.contains(*at));
        self.markers.extend(inside);
        tidy(&mut self.markers);
    }

    /// Returns the first static marker in a range.
    #[must_use]
    pub fn marker_in(&self, range: Extent) -> Option<u64> {
        first_in(&self.markers, range)
    }

    /// Returns all static markers, ascending.
    #[must_use]
    pub fn markers(&self) -> &[u64] {
        &self.markers
    }

    /// Adds an address that is stored somewhere as a pointer, for instance the
    /// addend of a relative relocation.
    pub fn insert_pointer(&mut self, address: u64) {
        set(&mut self.pointers, self.text, address);
    }

    /// Records that all text addresses contained in the object's data have been inserted. Then a
    /// jump through a pointer (`jmp *16(%rax)`: a tail call of a virtual function, or a computed
    /// `goto`) can only lead to an address in this set and is no longer a reason to refuse.
    pub fn set_pointers_known(&mut self) {
        self.pointers_known = true;
    }

    /// True if [`set_pointers_known`](Self::set_pointers_known) was called.
    #[must_use]
    pub const fn pointers_known(&self) -> bool {
        self.pointers_known
    }

    /// Records that some targets could not be found, and why (a fragment such as
    /// `"its exception tables are damaged"`).
    pub fn mark_incomplete(&mut self, why: &'static str) {
        self.incomplete = Some(why);
    }

    /// Returns the reason why targets may be missing, if any.
    #[must_use]
    pub const fn incomplete(&self) -> Option<&'static str> {
        self.incomplete
    }

    /// Adds all of `other`, which must cover the same text.
    ///
    /// # Panics
    ///
    /// If `other` covers different text.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.text, other.text, "targets of different text");
        for (mine, theirs) in [
            (&mut self.calls, &other.calls),
            (&mut self.jumps, &other.jumps),
            (&mut self.pointers, &other.pointers),
        ] {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine |= theirs;
            }
        }
        self.markers.extend_from_slice(&other.markers);
        tidy(&mut self.markers);
        self.suspects.extend_from_slice(&other.suspects);
        tidy(&mut self.suspects);
        self.crossing.extend_from_slice(&other.crossing);
        self.crossing.sort_unstable();
        self.strays.extend_from_slice(&other.strays);
        self.strays.sort_unstable();
        self.indirect.extend_from_slice(&other.indirect);
        self.pointers_known |= other.pointers_known;
        self.incomplete = self.incomplete.or(other.incomplete);
    }

    /// Returns the text that the set covers.
    #[must_use]
    pub const fn text(&self) -> Extent {
        self.text
    }

    /// True if anything leads to `address`.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.called(address) || self.jumped(address) || get(&self.pointers, self.text, address)
    }

    /// True if `address` is called, or known as the entry of a function.
    #[must_use]
    pub fn called(&self, address: u64) -> bool {
        get(&self.calls, self.text, address)
    }

    /// True if a jump, a jump table or an exception leads to `address`.
    #[must_use]
    pub fn jumped(&self, address: u64) -> bool {
        get(&self.jumps, self.text, address)
    }

    /// Returns the first target in `range`. Intended for ranges of a few bytes.
    #[must_use]
    pub fn any_in(&self, range: Extent) -> Option<u64> {
        (range.start.max(self.text.start)..range.end.min(self.text.end))
            .find(|&address| self.contains(address))
    }

    /// Returns the first address in `range` to which code with an unresolved indirect jump leads:
    /// that code may belong to the same function.
    #[must_use]
    pub fn suspect_in(&self, range: Extent) -> Option<u64> {
        first_in(&self.suspects, range)
    }

    /// Returns the direct jumps that leave their function and lead into `range`, as pairs of target
    /// and address of the jump, sorted by target. Where functions overlap, a jump from one to the
    /// other is among them.
    #[must_use]
    pub fn crossing_into(&self, range: Extent) -> &[(u64, u64)] {
        let start = self.crossing.partition_point(|jump| jump.0 < range.start);
        let tail = &self.crossing[start..];
        &tail[..tail.partition_point(|jump| jump.0 < range.end)]
    }

    /// Returns the first address in `range` to which a jump may lead that is not in
    /// [`crossing_into`](Self::crossing_into): through a jump table of another function, or from
    /// bytes between functions, which may not be code.
    #[must_use]
    pub fn stray_into(&self, range: Extent) -> Option<u64> {
        first_in(&self.strays, range)
    }

    /// Returns the functions, and the gaps after functions, that hold indirect jumps with unknown
    /// targets.
    #[must_use]
    pub fn indirect_jumpers(&self) -> &[Extent] {
        &self.indirect
    }

    /// Returns the first address in `range` that some instruction makes or that is stored in data,
    /// as far as such pointers have been inserted.
    #[must_use]
    pub fn pointed_in(&self, range: Extent) -> Option<u64> {
        let start = range.start.max(self.text.start);
        let mut at = start;
        while at < range.end.min(self.text.end) {
            let (word, _) = position(self.text, at)?;
            let offset = (at - self.text.start) % 64;
            let left = self.pointers[word] >> offset;
            if left != 0 {
                let found = at + u64::from(left.trailing_zeros());
                return (found < range.end).then_some(found);
            }
            at += 64 - offset;
        }
        None
    }
}

/// Sorts addresses, and drops those that are there twice.
fn tidy(addresses: &mut Vec<u64>) {
    *addresses = ascending(std::mem::take(addresses));
}

/// Returns the first of some ascending addresses that lies in a range.
fn first_in(addresses: &[u64], range: Extent) -> Option<u64> {
    let at = addresses.partition_point(|address| *address < range.start);
    let found = addresses.get(at).copied();
    found.filter(|address| range.contains(*address))
}

fn position(text: Extent, address: u64) -> Option<(usize, u64)> {
    if !text.contains(address) {
        return None;
    }
    let offset = address - text.start;
    Some(((offset / 64) as usize, 1 << (offset % 64)))
}

fn set(bits: &mut [u64], text: Extent, address: u64) {
    if let Some((word, bit)) = position(text, address) {
        bits[word] |= bit;
    }
}

fn get(bits: &[u64], text: Extent, address: u64) -> bool {
    position(text, address).is_some_and(|(word, bit)| bits[word] & bit != 0)
}
