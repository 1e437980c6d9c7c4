//! Bounds of functions.

use capriole_insn::Extent;

use super::{Function, RawSymbols, SymbolKind, SymbolTable};
use crate::elf::Headers;
use crate::unwind::Frame;

/// Merges the symbols (sorted by address) and the frames into functions.
///
/// The size of its symbol determines where a function ends. Without a symbol size, it ends at
/// the end of the frame that starts at the same address. Without such a frame, it ends at the
/// end of the frame around it, the next function or the end of the section, whichever comes
/// first. A frame that does not start inside a function becomes a function without a name.
pub(super) fn build(raw: RawSymbols, headers: &Headers, frames: &[Frame]) -> SymbolTable {
    let mut functions = named(&raw);
    let nameless = nameless(&functions, headers, frames);
    functions.extend(nameless);
    functions.sort_by_key(|f| (f.extent.start, !f.is_named()));
    functions.dedup_by_key(|f| f.extent.start);

    let starts: Vec<u64> = functions.iter().map(|f| f.extent.start).collect();
    let mut frame_index = 0;
    for (index, function) in functions.iter_mut().enumerate() {
        let start = function.extent.start;
        while frames
            .get(frame_index)
            .is_some_and(|f| f.extent.end <= start)
        {
            frame_index += 1;
        }
        let text_end = headers.text_range(start).map_or(start, |(_, end, _)| end);
        if function.extent.is_empty() {
            let next = starts.get(index + 1).copied().unwrap_or(u64::MAX);
            let frame = frames.get(frame_index).map(|frame| frame.extent);
            function.extent.end = match frame.filter(|extent| extent.contains(start)) {
                Some(frame) if frame.start == start => frame.end,
                Some(frame) => frame.end.min(next),
                None => next,
            };
        }
        function.extent.end = function.extent.end.min(text_end).max(start);
    }

    let mut bounds = starts;
    bounds.extend(text_ends(headers));
    bounds.extend(raw.data.iter().map(|data| data.0));
    bounds.sort_unstable();
    bounds.dedup();
    let data = data(&raw, &functions, &bounds);
    SymbolTable {
        data,
        enclosing: enclosing(&functions),
        functions,
        bounds,
        raw,
        ..SymbolTable::default()
    }
}

/// Makes one function for each address that has symbols, with the largest of the symbol sizes.
fn named(raw: &RawSymbols) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    for (index, symbol) in raw.symbols.iter().enumerate() {
        let end = symbol.address.saturating_add(symbol.size);
        let is_resolver = symbol.kind == SymbolKind::Resolver;
        match functions.last_mut() {
            Some(last) if last.extent.start == symbol.address => {
                last.extent.end = last.extent.end.max(end);
                last.is_resolver |= is_resolver;
                last.names += 1;
            }
            _ => functions.push(Function {
                extent: Extent::new(symbol.address, end),
                is_resolver,
                first_name: index as u32,
                names: 1,
            }),
        }
    }
    functions
}

/// Makes functions from the frames that start in the text and inside none of `named`.
fn nameless(named: &[Function], headers: &Headers, frames: &[Frame]) -> Vec<Function> {
    let mut covered = 0;
    let mut index = 0;
    let mut found = Vec::new();
    for frame in frames {
        let start = frame.extent.start;
        while let Some(function) = named.get(index).filter(|f| f.extent.start <= start) {
            covered = covered
                .max(function.extent.end)
                .max(function.extent.start + 1);
            index += 1;
        }
        let in_text = || headers.text_range(start).is_some_and(|(.., plt)| !plt);
        if start >= covered && in_text() {
            found.push(Function {
                extent: frame.extent,
                is_resolver: false,
                first_name: 0,
                names: 0,
            });
        }
    }
    found
}

/// Returns the data in the text. Data without a size extends to the next symbol. The start of a
/// function is never data, whatever a symbol says about it.
fn data(raw: &RawSymbols, functions: &[Function], bounds: &[u64]) -> Vec<Extent> {
    let mut labels = raw.labels.clone();
    labels.sort_unstable();
    let behind = |sorted: &[u64], at: u64| {
        let next = sorted.partition_point(|address| *address <= at);
        sorted.get(next).copied().unwrap_or(at + 1)
    };
    let mut found: Vec<Extent> = Vec::new();
    let mut symbols = raw.data.clone();
    symbols.sort_unstable();
    for (start, size) in symbols {
        let end = match size {
            0 => behind(bounds, start).min(behind(&labels, start).max(start + 1)),
            size => start.saturating_add(size),
        };
        let next = functions.partition_point(|f| f.extent.start < start);
        let function = functions.get(next).map_or(u64::MAX, |f| f.extent.start);
        let start = found.last().map_or(start, |last| start.max(last.end));
        let extent = Extent::new(start, end.min(function));
        if !extent.is_empty() {
            found.push(extent);
        }
    }
    found
}

fn text_ends(headers: &Headers) -> Vec<u64> {
    let sections = headers
        .sections
        .iter()
        .filter(|s| s.executable && s.allocated);
    let segments = headers.segments.iter().filter(|s| s.perms.execute);
    sections
        .flat_map(|s| [s.address, s.end()])
        .chain(segments.map(|s| s.address + s.file_size))
        .collect()
}

/// Finds, for each function, the nearest earlier one that ends beyond its start, or the
/// function itself if there is none. Following these links finds every function around an
/// address, because any function between two linked ones ends before the address.
fn enclosing(functions: &[Function]) -> Vec<u32> {
    let mut open: Vec<usize> = Vec::new();
    let mut enclosing = Vec::with_capacity(functions.len());
    for (index, function) in functions.iter().enumerate() {
        while open
            .last()
            .is_some_and(|&outer| functions[outer].extent.end <= function.extent.start)
        {
            open.pop();
        }
        enclosing.push(open.last().copied().unwrap_or(index) as u32);
        open.push(index);
    }
    enclosing
}
