//! The facts about an object's code that are needed to plan probes in it.
//!
//! Some bytes of the text are not code: objects with symbols of their own, `__cfi_NAME` before
//! `NAME`, nops before an entry that `__patchable_function_entries` names, and the bytes at
//! entries that [`conventions`](capriole_insn::conventions) lists (hashes and words of Clang's
//! sanitizers, room for hot patching). They are kept apart, so that they are neither decoded
//! nor changed nor taken for padding.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use capriole_insn::conventions::Convention;
use capriole_insn::decode::is_padding;
use capriole_insn::{Code, Extent, Shown, Targets};

use super::roots;
use super::{ObjectError, ObjectFile, ObjectKind, Text, pointers};

/// Known uses of the red zone, found when they are needed first.
#[derive(Debug, Default)]
pub(super) struct RedZone {
    /// For each piece of code, by its run-time address: true if it uses the red zone.
    pub(super) uses: Mutex<HashMap<u64, bool>>,
    /// True if some indirect jump with unknown targets can be taken with the red zone in use.
    pub(super) indirect: OnceLock<bool>,
}

/// The code of an object in one process, in run-time addresses.
#[derive(Debug)]
pub struct ObjectCode {
    file: Arc<ObjectFile>,
    bias: u64,
    functions: Vec<Extent>,
    targets: Vec<Targets>,
    landing_pads: Vec<u64>,
    forbidden: Vec<Extent>,
    data: Vec<Extent>,
    pub(super) red_zone: RedZone,
    /// Known starts of instructions, ascending.
    roots: OnceLock<Vec<u64>>,
    shown: OnceLock<Vec<Shown>>,
}

impl ObjectCode {
    /// Reads the code, its functions, and all branch targets and pointers into it.
    pub(super) fn build(file: &Arc<ObjectFile>, bias: u64) -> Result<ObjectCode, ObjectError> {
        let symbols = file.symbols()?;
        let run_time =
            |e: Extent| Extent::new(e.start.wrapping_add(bias), e.end.wrapping_add(bias));
        let functions = symbols.functions().iter().map(|f| run_time(f.extent));
        let pads = file.landing_pads();
        let pads = pads.iter().flat_map(|pads| &pads.addresses);
        let forbidden = file.rseq_sections()?.iter().flat_map(|s| s.forbidden());
        let mut code = ObjectCode {
            file: Arc::clone(file),
            bias,
            functions: functions.collect(),
            targets: Vec::new(),
            landing_pads: pads.map(|pad| pad.wrapping_add(bias)).collect(),
            forbidden: forbidden.map(run_time).collect(),
            data: symbols.data().iter().map(|e| run_time(*e)).collect(),
            red_zone: RedZone::default(),
            roots: OnceLock::new(),
            shown: OnceLock::new(),
        };
        code.functions.sort_unstable();
        let texts = file.text()?;
        code.keep_conventions(texts);
        code.targets = texts.iter().map(|text| code.scan(text)).collect();
        code.insert_symbols()?;
        code.insert_landing_pads();
        code.insert_pointers()?;
        // Notes that we cannot read are of no use to other tools either, so ignore them.
        if let Ok(markers) = file.markers() {
            let addresses = markers.all.iter().map(|marker| marker.address);
            let addresses: Vec<u64> = addresses.map(|at| at.wrapping_add(bias)).collect();
            for targets in &mut code.targets {
                targets.insert_markers(addresses.iter().copied());
            }
        }
        Ok(code)
    }

    /// Returns the contiguous piece of code around a run-time address, as in the file. Compare it
    /// with memory before relying on it.
    #[must_use]
    pub fn code_at(&self, address: u64) -> Option<Code<'_>> {
        let (index, _) = self.piece(address)?;
        self.pieces().nth(index)
    }

    /// Returns all executable segments.
    pub fn pieces(&self) -> impl Iterator<Item = Code<'_>> {
        let texts = self.file.text().unwrap_or_default();
        texts.iter().map(|text| self.code(text))
    }

    /// Returns the branch targets in the piece of code around a run-time address.
    #[must_use]
    pub fn targets_at(&self, address: u64) -> Option<&Targets> {
        self.piece(address).map(|(_, targets)| targets)
    }

    /// Returns the branch targets of each piece of code.
    pub(super) fn all_targets(&self) -> impl Iterator<Item = &Targets> {
        self.targets.iter()
    }

    /// Returns the run-time addresses of all static markers.
    pub fn markers(&self) -> impl Iterator<Item = u64> + '_ {
        let markers = self.targets.iter().flat_map(|targets| targets.markers());
        markers.copied()
    }

    /// Returns the extents of all functions, by start address.
    #[must_use]
    pub fn functions(&self) -> &[Extent] {
        &self.functions
    }

    /// Returns the landing pads inside `extent`.
    #[must_use]
    pub fn landing_pads_in(&self, extent: Extent) -> &[u64] {
        let start = self.landing_pads.partition_point(|&pad| pad < extent.start);
        let tail = &self.landing_pads[start..];
        &tail[..tail.partition_point(|&pad| pad < extent.end)]
    }

    /// Returns the ranges that must not be changed and that a probe in the extent could change,
    /// ascending: restartable sequences and the signatures of their abort handlers, data, and bytes
    /// that tool chains keep at entries.
    #[must_use]
    pub fn forbidden_near(&self, extent: Extent) -> &[Extent] {
        /// A distance larger than the reach of a short jump plus some instructions.
        const NEAR: u64 = 512;
        let (from, to) = (
            extent.start.saturating_sub(NEAR),
            extent.end.saturating_add(NEAR),
        );
        let start = self.forbidden.partition_point(|range| range.end <= from);
        let tail = &self.forbidden[start..];
        &tail[..tail.partition_point(|range| range.start < to)]
    }

    /// True if the code is Go's.
    #[must_use]
    pub fn is_go(&self) -> bool {
        self.file.is_go()
    }

    /// Returns the file's bytes at a run-time address (jump tables, constants); `None` unless all
    /// of them are in the file.
    #[must_use]
    pub fn read(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        self.file.read(address.wrapping_sub(self.bias), size as u64)
    }

    /// Returns the end of the padding (nops and `int3`) that follows a function, at most up to the
    /// next function or the end of the section; `extent.end` if there is no padding.
    #[must_use]
    pub fn padding_end(&self, extent: Extent) -> u64 {
        let link_end = extent.end.wrapping_sub(self.bias);
        let limit = self
            .file
            .symbols()
            .ok()
            .and_then(|symbols| symbols.next_boundary(link_end.checked_sub(1)?))
            .map_or(extent.end, |bound| bound.wrapping_add(self.bias));
        // Padding that must be kept for another purpose does not count.
        let index = self.forbidden.partition_point(|f| f.end <= extent.end);
        let kept = self.forbidden.get(index).map_or(limit, |kept| kept.start);
        let limit = limit.min(kept).max(extent.end);
        let Some(code) = self.code_at(extent.start) else {
            return extent.end;
        };
        let mut end = extent.end;
        while end < limit {
            match code.instruction_at(end, limit) {
                Some(padding) if is_padding(&padding) => end = padding.next_ip(),
                _ => break,
            }
        }
        end
    }

    /// Checks that an instruction is known to begin at a run-time address: from the file, or from
    /// calls and jumps of known code. If the address is known to be in the middle of an
    /// instruction, the error is `Some` with that instruction.
    ///
    /// # Errors
    ///
    /// Nothing shows that an instruction begins there.
    pub fn shown(&self, address: u64) -> Result<(), Option<Extent>> {
        if self.shown.get().is_none() && self.is_shown_nearby(address) {
            return Ok(());
        }
        let shown = self.shown.get_or_init(|| {
            self.pieces()
                .map(|code| Shown::from(&code, self.roots().iter().copied()))
                .collect()
        });
        let mut pieces = self.pieces().zip(shown);
        let piece = pieces.find(|(code, _)| code.extent().contains(address));
        match piece {
            Some((_, shown)) if shown.contains(address) => Ok(()),
            Some((code, shown)) => Err(shown.around(&code, address)),
            None => Err(None),
        }
    }

    /// True if the code behind the nearest known start of an instruction shows that one begins at a
    /// run-time address: that saves following all code.
    fn is_shown_nearby(&self, address: u64) -> bool {
        const NEAR: u64 = 4096;
        let roots = self.roots();
        let behind = roots.partition_point(|root| *root <= address);
        let root = behind.checked_sub(1).map(|index| roots[index]);
        let Some(root) = root.filter(|root| address - root <= NEAR) else {
            return false;
        };
        self.code_at(root).is_some_and(|code| {
            let end = code.extent().end.min(address.saturating_add(NEAR));
            let Some(bytes) = code.get(Extent::new(root, end)) else {
                return false;
            };
            let code = Code::new(bytes, root).with_data(&self.data);
            Shown::from(&code, [root]).contains(address)
        })
    }

    /// Returns the run-time addresses of known starts of instructions, ascending.
    fn roots(&self) -> &[u64] {
        self.roots.get_or_init(|| {
            let roots = roots::roots(&self.file).into_iter();
            let mut roots: Vec<u64> = roots.map(|root| root.wrapping_add(self.bias)).collect();
            roots.sort_unstable();
            roots.dedup();
            roots
        })
    }

    /// True if the call frame information has an entry that begins at a run-time address.
    pub(super) fn has_frame(&self, start: u64) -> bool {
        let link = start.wrapping_sub(self.bias);
        let frames = self.file.frames().unwrap_or_default();
        let found = frames.binary_search_by_key(&link, |frame| frame.extent.start);
        found.is_ok()
    }

    /// Returns the extent that ends at a run-time address and begins at the start of the function
    /// before it, or of the section if there is no such function. Empty if a section begins at the
    /// address.
    pub(super) fn before(&self, address: u64) -> Extent {
        let link = address.wrapping_sub(self.bias);
        let section = self.file.headers.text_range(link);
        let section = section.map_or(link, |(start, ..)| start.wrapping_add(self.bias));
        let index = self.functions.partition_point(|f| f.start < address);
        let function = index
            .checked_sub(1)
            .map(|index| self.functions[index].start);
        let start = function.map_or(section, |function| function.max(section));
        // Bytes that a tool chain keeps before the entry are never executed.
        let index = self.data.partition_point(|data| data.end < address);
        let data = self.data.get(index).filter(|data| data.end == address);
        let end = data.map_or(address, |data| data.start);
        Extent::new(start.min(end), end)
    }

    /// Returns the extent from the start of the function at or before a run-time address (or of the
    /// section if there is no such function) to the start of the next function.
    pub(super) fn around(&self, address: u64) -> Extent {
        let start = self.before(address.saturating_add(1)).start.min(address);
        let link = address.wrapping_sub(self.bias);
        let bound = self.file.symbols().ok().and_then(|s| s.next_boundary(link));
        let end = bound.map_or(address + 1, |bound| bound.wrapping_add(self.bias));
        Extent::new(start, end)
    }

    fn piece(&self, address: u64) -> Option<(usize, &Targets)> {
        let mut pieces = self.targets.iter().enumerate();
        pieces.find(|(_, targets)| targets.text().contains(address))
    }

    fn code<'a>(&'a self, text: &'a Text) -> Code<'a> {
        Code::new(&text.bytes, text.address.wrapping_add(self.bias)).with_data(&self.data)
    }

    /// Finds bytes that are not code and must not change: data that tool chains keep at the entries
    /// of functions, and objects in the text.
    fn keep_conventions(&mut self, texts: &[Text]) {
        let mut kept = self.data.clone();
        let mut data = Vec::new();
        for text in texts {
            let code = Code::new(&text.bytes, text.address.wrapping_add(self.bias));
            let inside = |function: &&Extent| code.extent().contains(function.start);
            // Highest end of the functions so far.
            let mut reach = 0;
            for function in self.functions.iter().filter(inside) {
                let is_label = function.start < reach;
                reach = reach.max(function.end);
                for convention in Convention::at(code, function.start) {
                    // The bytes before a label inside a function are code of that function.
                    if is_label && convention.is_before() {
                        continue;
                    }
                    kept.push(convention.kept(function.start));
                    data.push(convention.data(function.start));
                }
            }
        }
        let patchable = roots::patchable(&self.file);
        for nops in patchable
            .into_iter()
            .map(|nops| nops.wrapping_add(self.bias))
        {
            // Keep only nops before the entry; the others are inside the function.
            let next = self.functions.partition_point(|f| f.start < nops);
            let next = self.functions.get(next).map_or(nops, |f| f.start);
            if next - nops <= MOST_NOPS && self.text_is_nops(texts, Extent::new(nops, next)) {
                kept.push(Extent::new(nops, next));
            }
        }
        self.data
            .extend(data.into_iter().filter(|data| !data.is_empty()));
        join(&mut self.data);
        self.forbidden.extend(kept);
        join(&mut self.forbidden);
    }

    fn text_is_nops(&self, texts: &[Text], extent: Extent) -> bool {
        let codes = texts.iter().map(|text| self.code(text));
        let bytes = codes.into_iter().find_map(|code| code.get(extent));
        bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0x90))
    }

    /// Scans the code for branches, on all processors.
    fn scan(&self, text: &Text) -> Targets {
        let code = self.code(text);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let pieces = Targets::pieces(code.extent(), &self.functions, threads);
        let scan = |piece: Extent| {
            let mut targets = Targets::new(code.extent());
            let read = |address, size| self.read(address, size);
            targets.scan(&code, piece, &self.functions, &read);
            targets
        };
        std::thread::scope(|scope| {
            let scan = &scan;
            let work: Vec<_> = pieces
                .into_iter()
                .map(|piece| scope.spawn(move || scan(piece)))
                .collect();
            let mut all = Targets::new(code.extent());
            for part in work {
                match part.join() {
                    Ok(targets) => all.merge(&targets),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        })
    }

    /// Adds the entries of named functions as called. Code without a name may be the cold part of a
    /// function, which is entered by a jump, and so may a label.
    fn insert_symbols(&mut self) -> Result<(), ObjectError> {
        let file = Arc::clone(&self.file);
        let symbols = file.symbols()?;
        for function in symbols.functions() {
            let entry = function.extent.start.wrapping_add(self.bias);
            let is_called = function.is_named() && !symbols.is_split_off(function);
            for targets in &mut self.targets {
                if is_called {
                    targets.insert_entry(entry);
                } else {
                    targets.insert(entry);
                }
            }
        }
        for label in symbols.labels() {
            self.insert(label.wrapping_add(self.bias));
        }
        Ok(())
    }

    /// Adds the landing pads. A function whose handler table cannot be parsed may have a landing
    /// pad at every byte.
    fn insert_landing_pads(&mut self) {
        let file = Arc::clone(&self.file);
        let mut incomplete = None;
        match file.landing_pads() {
            Ok(pads) => {
                for &pad in &pads.addresses {
                    self.insert(pad.wrapping_add(self.bias));
                }
                for extent in &pads.unknown {
                    if extent.len() > UNKNOWN_LIMIT {
                        incomplete = Some("its exception tables are damaged");
                        continue;
                    }
                    for pad in extent.start..extent.end {
                        self.insert(pad.wrapping_add(self.bias));
                    }
                }
            }
            Err(_) => incomplete = Some("its call frame information is damaged"),
        }
        if let Some(why) = incomplete {
            self.targets
                .iter_mut()
                .for_each(|targets| targets.mark_incomplete(why));
        }
    }

    /// Adds the code addresses in the object's data. Entries of named functions count as called,
    /// and are already in the set.
    fn insert_pointers(&mut self) -> Result<(), ObjectError> {
        let file = Arc::clone(&self.file);
        let problem = |reason| ObjectError::new(file.path(), reason);
        let symbols = file.symbols()?;
        let (source, headers) = (&file.source, &file.headers);
        let relocated = pointers::relative_relocations(source, headers).map_err(problem)?;
        // Fast path: almost no word of a program's data is a code address.
        let texts = file.text()?;
        let lowest = texts.iter().map(|text| text.address).min().unwrap_or(0);
        let highest = texts.iter().map(|text| text.end()).max().unwrap_or(0);
        let mut insert = |place: u64, link: u64| {
            if (lowest..highest).contains(&link)
                && file.is_text(link)
                && !pointers::is_in_patch_table(headers, place)
                && symbols
                    .function_starting_at(link)
                    .is_none_or(|function| !function.is_named())
            {
                let address = link.wrapping_add(self.bias);
                self.insert(address);
                // An indirect jump through a pointer may lead here.
                for targets in &mut self.targets {
                    targets.insert_pointer(address);
                }
            }
        };
        relocated
            .into_iter()
            .for_each(|(place, value)| insert(place, value));
        if file.kind() == ObjectKind::FixedProgram {
            pointers::data_words(source, headers, insert).map_err(problem)?;
        }
        // Without section headers, the relocations were not found.
        if !headers.sections.is_empty() || file.kind() == ObjectKind::FixedProgram {
            self.targets
                .iter_mut()
                .for_each(Targets::set_pointers_known);
        }
        Ok(())
    }

    fn insert(&mut self, address: u64) {
        for targets in &mut self.targets {
            targets.insert(address);
        }
    }
}

/// Maximum size of the patchable nops before an entry, bytes; real ones are not larger.
const MOST_NOPS: u64 = 1 << 12;

/// Sorts extents and merges those that overlap.
fn join(extents: &mut Vec<Extent>) {
    extents.sort_unstable();
    extents.dedup_by(|later, earlier| {
        let overlaps = later.overlaps(earlier);
        if overlaps {
            earlier.end = earlier.end.max(later.end);
        }
        overlaps
    });
}

/// Maximum size of a function with unknown landing pads, bytes: a damaged file may claim any
/// size.
const UNKNOWN_LIMIT: u64 = 1 << 20;
