//! Rules by which a frame leads to its caller, from the call frame information.
//!
//! Code in a traced program cannot interpret `.eh_frame`: that takes memory, and time. So it is
//! interpreted beforehand, for all addresses, and only the rules that need nothing but the stack
//! pointer and rbp are kept, which are nearly all. (The kernel's ORC tables are made in the same
//! way, from the instructions: Documentation/arch/x86/orc-unwinder.rst.)
//!
//! Code of Go has no call frame information, but a table of the stack pointer's distance from what it was
//! at the function's entry (`pcsp` of `runtime.pcvalue`). Other functions without call frame information
//! have rules if they begin as the ABI describes functions with frame pointers (System V ABI, x86-64, 3.2.2):
//! then rbp leads to the caller. The built-in functions of V8 have one rule for return addresses: its code makes each
//! call inside a frame with a frame pointer (`v8::Unwinder` in include/v8-unwinder.h relies on the same). Nothing is
//! guessed of others.
//!
//! Words of DWARF 5, 6.4: the *canonical frame address* (CFA) of a frame is the stack pointer of
//! its caller, before the call. The return address is right below it.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, Encoding, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Operation, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection, UnwindTableRow, X86_64,
};
use std::collections::HashMap;

use super::Text;
use super::elf::Headers;
use super::go::GoFunctions;
use super::source::Source;
use super::unwind::eh_frame;
use crate::symbols::SymbolTable;
use capriole_insn::Extent;

/// Largest distance in bytes of a frame's parts from one another that a [`FrameRule`] has.
pub const MOST_DISTANCE: u32 = ((1 << 18) - 1) * 8;
/// Largest distance in bytes of the saved rbp from the CFA that a [`FrameRule`] has.
pub const MOST_SAVED: u32 = 2000 * 8;

/// How to find the caller of the frame at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameRule {
    /// No rule, or one that needs other registers.
    Unknown,
    /// There is no caller: a program or a thread begins there.
    Outermost,
    /// The code to which a signal handler returns: the kernel's signal frame is at the stack pointer.
    Signal,
    /// A frame with a frame pointer at all places to which calls return; elsewhere none is known.
    Called,
    /// A function's frame.
    Frame {
        /// The CFA.
        cfa: Cfa,
        /// The caller's rbp.
        rbp: SavedRbp,
    },
}

impl FrameRule {
    /// Returns the rule for a return address.
    #[must_use]
    pub fn returned_to(self) -> FrameRule {
        match self {
            FrameRule::Called => FrameRule::Frame {
                cfa: Cfa::Rbp(16),
                rbp: SavedRbp::AtRbp,
            },
            rule => rule,
        }
    }
}

/// Location of the CFA. Distances are multiples of 8, at most [`MOST_DISTANCE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// This many bytes above the stack pointer.
    Rsp(u32),
    /// This many bytes above rbp.
    Rbp(u32),
    /// In memory, this many bytes below rbp: functions that align their stacks.
    Saved(u32),
    /// The entries of a procedure linkage table: 16 bytes above the stack pointer in the last five
    /// bytes of each 16, behind a push; else 8.
    Plt,
}

/// Location of the caller's rbp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SavedRbp {
    /// In rbp.
    Unchanged,
    /// In memory, this many bytes below the CFA: a multiple of 8, from 8 to [`MOST_SAVED`].
    BelowCfa(u32),
    /// In memory, at rbp.
    AtRbp,
    /// Not known.
    Unknown,
}

/// A rule, and where it begins to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleStart {
    /// Link address of the first instruction with the rule, which holds until the next one's.
    pub address: u64,
    /// The rule.
    pub rule: FrameRule,
}

/// `mov $15, %rax; syscall` and `mov $15, %eax; syscall`: rt_sigreturn(2), to which handlers
/// return. Unwinders know it by these bytes in C libraries without information about it.
pub const SIGRETURN: [&[u8]; 2] = [b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05", b"\xb8\x0f\0\0\0\x0f\x05"];

const ENDBR64: &[u8] = b"\xf3\x0f\x1e\xfa";
/// `push %rbp; mov %rsp,%rbp`, in both encodings.
const PROLOGUES: [&[u8]; 2] = [b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"];
/// Instructions after which rbp is the caller's, and the starts of those that may follow.
const LEAVE: u8 = 0xc9;
const POP_RBP: u8 = 0x5d;
const LEAVING: [&[u8]; 4] = [b"\xc3", b"\xf3\xc3", b"\xe9", b"\xeb"];

/// Start of the names of V8's built-in functions.
const BUILTIN: &str = "Builtins_";
/// Parts of the names of those that break the rule. Some call while rbp is the frame pointer of their caller, or of
/// another stack. Others are called by code that has made no frame: write barriers, which save or ignore floating
/// point registers, and what ends the program.
const WITHOUT_FRAMES: [&str; 9] = [
    "SaveFP",
    "IgnoreFP",
    "DeoptimizationEntry",
    "BaselineOutOfLinePrologue",
    "BaselineLeaveFrame",
    "WasmRe",
    "WasmSuspend",
    "Abort",
    "Illegal",
];

/// Reads the rules of an object, by address; each differs from the one before. In a damaged section,
/// those before the damage.
pub(crate) fn read(
    source: &Source,
    headers: &Headers,
    texts: &[Text],
    go: Option<&GoFunctions>,
    symbols: Option<&SymbolTable>,
) -> Vec<RuleStart> {
    let (address, bytes) = match eh_frame(source, headers) {
        Ok(Some(found)) => found,
        Ok(None) | Err(_) => (0, Vec::new()),
    };
    let section = EhFrame::new(&bytes, LittleEndian);
    let bases = BaseAddresses::default()
        .set_eh_frame(address)
        .set_text(headers.section(".text").map_or(0, |s| s.address))
        .set_got(headers.section(".got").map_or(0, |s| s.address));
    let mut rules = Rules::default();
    let mut context = UnwindContext::new();
    let mut cies = HashMap::new();
    let mut entries = section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(cie) = cies.get(&offset) {
                return Ok(CommonInformationEntry::clone(cie));
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(offset, cie.clone());
            Ok(cie)
        });
        let Ok(fde) = fde else { continue };
        rules.add(&section, &bases, &mut context, &fde);
    }
    let described = rules.described();
    let functions = symbols.map_or(&[][..], SymbolTable::functions).iter();
    for function in functions.filter(|function| !is_in(&described, function.extent.start)) {
        let names = symbols
            .into_iter()
            .flat_map(|symbols| symbols.names(function));
        let builtin = names
            .filter_map(|name| name.linkage.strip_prefix(BUILTIN))
            .next();
        if builtin.is_none_or(|name| !WITHOUT_FRAMES.iter().any(|part| name.contains(part))) {
            // Built-in functions may do much after they have given up their frames.
            let within = match builtin {
                Some(_) => FrameRule::Called,
                None => FrameRule::Called.returned_to(),
            };
            let has = rules.add_with_frame_pointer(texts, function.extent, within);
            if !has && builtin.is_some() {
                let Extent { start, end } = function.extent;
                rules.0.push((start, end, within));
            }
        }
    }
    if let Some(go) = go {
        rules.add_go(go);
    }
    rules.add_signal_returns(texts);
    rules.joined()
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Rules of ranges of addresses, in any order: start, end and rule.
#[derive(Default)]
struct Rules(Vec<(u64, u64, FrameRule)>);

impl Rules {
    /// Adds the rules of an entry of the section.
    fn add<'a>(
        &mut self,
        section: &EhFrame<Slice<'a>>,
        bases: &BaseAddresses,
        context: &mut UnwindContext<usize>,
        fde: &FrameDescriptionEntry<Slice<'a>>,
    ) {
        let start = fde.initial_address();
        // For a function that the linker dropped, an entry at address 0 remains.
        let Some(end) = start.checked_add(fde.len()).filter(|_| start != 0) else {
            return;
        };
        if fde.is_signal_trampoline() {
            self.0.push((start, end, FrameRule::Signal));
            return;
        }
        let encoding = fde.cie().encoding();
        let Ok(mut table) = fde.rows(section, bases, context) else {
            return self.0.push((start, end, FrameRule::Unknown));
        };
        let mut known = start;
        while let Ok(Some(row)) = table.next_row() {
            let (from, to) = (row.start_address().max(known), row.end_address().min(end));
            if from < to {
                let rule = rule_of(row, section, encoding).unwrap_or(FrameRule::Unknown);
                self.0.push((from, to, rule));
                known = to;
            }
        }
        if known < end {
            self.0.push((known, end, FrameRule::Unknown));
        }
    }

    /// Returns the ranges that have rules, by address.
    fn described(&self) -> Vec<(u64, u64)> {
        let mut described: Vec<_> = self
            .0
            .iter()
            .map(|(start, end, _)| (*start, *end))
            .collect();
        described.sort_unstable();
        described
    }

    /// Adds the rules of a function that keeps a frame pointer from its start on:
    ///
    /// ```text
    /// [endbr64]       CFA = rsp + 8
    /// push %rbp       CFA = rsp + 16, the caller's rbp is at rsp
    /// mov %rsp,%rbp   CFA = rbp + 16, the caller's rbp is at rbp
    /// ...
    /// leave | pop %rbp
    /// ret | jmp       CFA = rsp + 8
    /// ```
    ///
    /// `within` is the rule once rbp is set. Returns false if the function does not begin so.
    fn add_with_frame_pointer(
        &mut self,
        texts: &[Text],
        function: Extent,
        within: FrameRule,
    ) -> bool {
        let Some(bytes) = texts.iter().find_map(|text| text.at(function)) else {
            return false;
        };
        let behind = bytes.strip_prefix(ENDBR64).unwrap_or(bytes);
        if !PROLOGUES
            .iter()
            .any(|prologue| behind.starts_with(prologue))
        {
            return false;
        }
        let pushed = function.start + (bytes.len() - behind.len()) as u64 + 1;
        let framed = pushed + 3;
        let frame = |cfa, rbp| FrameRule::Frame { cfa, rbp };
        let called = frame(Cfa::Rsp(8), SavedRbp::Unchanged);
        self.0.push((function.start, pushed, called));
        let rule = frame(Cfa::Rsp(16), SavedRbp::BelowCfa(16));
        self.0.push((pushed, framed, rule));
        self.0.push((framed, function.end, within));
        for at in memchr::memchr2_iter(LEAVE, POP_RBP, bytes) {
            let left = &bytes[at + 1..];
            if LEAVING.iter().any(|leaving| left.starts_with(leaving)) {
                let at = function.start + at as u64 + 1;
                self.0.push((at, at + 1, called));
            }
        }
        true
    }

    /// Adds the rules of Go's own functions. One that moves the stack pointer to another stack has none.
    fn add_go(&mut self, go: &GoFunctions) {
        for function in go.functions.iter().filter(|function| function.go) {
            let Extent { start, end } = function.extent;
            if function.outermost || function.sets_stack {
                self.0.push((
                    start,
                    end,
                    match function.outermost {
                        true => FrameRule::Outermost,
                        false => FrameRule::Unknown,
                    },
                ));
                continue;
            }
            for (from, to, size) in go.stack_sizes(function) {
                let cfa = u32::try_from(size)
                    .ok()
                    .and_then(|size| distance(i64::from(size) + 8));
                let rbp = match (size, function.assembly) {
                    (0, _) => SavedRbp::Unchanged,
                    // Below the return address, unless the function is just beginning.
                    (_, false) => SavedRbp::BelowCfa(16),
                    (_, true) => SavedRbp::Unknown,
                };
                self.0.push((
                    from,
                    to,
                    match cfa {
                        Some(cfa) => FrameRule::Frame {
                            cfa: Cfa::Rsp(cfa),
                            rbp,
                        },
                        None => FrameRule::Unknown,
                    },
                ));
            }
        }
    }

    /// Adds the places of rt_sigreturn, each with the byte before it, by which return addresses are
    /// looked up.
    fn add_signal_returns(&mut self, texts: &[Text]) {
        for text in texts {
            for code in SIGRETURN {
                // By its system call instruction, which is rare.
                let [.., first, last] = code else { continue };
                let found = text.bytes.windows(2).enumerate();
                let calls = found.filter(|(_, bytes)| *bytes == [*first, *last]);
                for (at, _) in calls {
                    let Some(start) = (at + 2).checked_sub(code.len()) else {
                        continue;
                    };
                    if text.bytes[start..at + 2] == *code {
                        let start = text.address + start as u64;
                        let end = start + code.len() as u64;
                        self.0.push((start - 1, end, FrameRule::Signal));
                    }
                }
            }
        }
    }

    /// Returns the rules one after the other. Where ranges overlap, the last that begins counts, and
    /// of those that begin together the last that was added.
    fn joined(mut self) -> Vec<RuleStart> {
        self.0.sort_by_key(|(start, ..)| *start);
        let mut joined: Vec<RuleStart> = Vec::with_capacity(self.0.len());
        let mut put = |address: u64, rule: FrameRule| match joined.last_mut() {
            Some(last) if last.address == address => last.rule = rule,
            Some(last) if last.rule == rule => {}
            None if rule == FrameRule::Unknown => {}
            _ => joined.push(RuleStart { address, rule }),
        };
        // Ranges that are open: end and rule, the innermost last.
        let mut open: Vec<(u64, FrameRule)> = Vec::new();
        for (start, end, rule) in self.0 {
            close(&mut open, start, &mut put);
            put(start, rule);
            open.push((end, rule));
        }
        close(&mut open, u64::MAX, &mut put);
        joined.dedup_by(|next, last| next.rule == last.rule);
        joined
    }
}

/// True if an address is in one of the ranges, which are sorted and do not overlap.
fn is_in(ranges: &[(u64, u64)], address: u64) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= address);
    after
        .checked_sub(1)
        .is_some_and(|at| address < ranges[at].1)
}

/// Ends the ranges that end up to an address: the one around them goes on.
fn close(open: &mut Vec<(u64, FrameRule)>, until: u64, put: &mut impl FnMut(u64, FrameRule)) {
    while let Some((end, _)) = open.last().copied()
        && end <= until
    {
        open.retain(|(other, _)| *other > end);
        put(
            end,
            open.last().map_or(FrameRule::Unknown, |(_, rule)| *rule),
        );
    }
}

/// Translates a row of the table that the call frame information describes; `None` if only a
/// debugger could use it.
fn rule_of(
    row: &UnwindTableRow<usize>,
    section: &EhFrame<Slice<'_>>,
    encoding: Encoding,
) -> Option<FrameRule> {
    match row.register(X86_64::RA) {
        Some(RegisterRule::Offset(-8)) => {}
        Some(RegisterRule::Undefined) => return Some(FrameRule::Outermost),
        _ => return None,
    }
    let operations = |expression: &UnwindExpression<usize>| -> Option<Vec<Operation<Slice<'_>>>> {
        let mut all = Vec::new();
        let mut operations = expression.get(section).ok()?.operations(encoding);
        while let Some(operation) = operations.next().ok()? {
            all.push(operation);
        }
        Some(all)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let offset = distance(*offset)?;
            match *register {
                X86_64::RSP => Cfa::Rsp(offset),
                X86_64::RBP => Cfa::Rbp(offset),
                _ => return None,
            }
        }
        CfaRule::Expression(expression) => match &operations(expression)?[..] {
            [
                Operation::RegisterOffset {
                    register: X86_64::RBP,
                    offset,
                    ..
                },
                Operation::Deref {
                    size: 8,
                    space: false,
                    ..
                },
            ] => Cfa::Saved(distance(offset.checked_neg()?)?),
            plt if is_plt(plt) => Cfa::Plt,
            _ => return None,
        },
    };
    let rbp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue) => SavedRbp::Unchanged,
        Some(RegisterRule::Offset(offset)) => match offset.checked_neg().and_then(distance) {
            Some(below @ 8..=MOST_SAVED) => SavedRbp::BelowCfa(below),
            _ => SavedRbp::Unknown,
        },
        Some(RegisterRule::Expression(expression)) => match operations(&expression)?[..] {
            [
                Operation::RegisterOffset {
                    register: X86_64::RBP,
                    offset: 0,
                    ..
                },
            ] => SavedRbp::AtRbp,
            _ => SavedRbp::Unknown,
        },
        Some(_) => SavedRbp::Unknown,
    };
    Some(FrameRule::Frame { cfa, rbp })
}

/// Returns a distance that a rule can have.
fn distance(offset: i64) -> Option<u32> {
    let offset = u32::try_from(offset).ok()?;
    (offset.is_multiple_of(8) && offset <= MOST_DISTANCE).then_some(offset)
}

/// True for the expression that linkers write for procedure linkage tables:
/// `rsp + 8 + ((rip & 15) >= 11) * 8`.
fn is_plt(operations: &[Operation<Slice<'_>>]) -> bool {
    let constant = |operation: &Operation<Slice<'_>>| match operation {
        Operation::UnsignedConstant { value } => Some(*value),
        _ => None,
    };
    match operations {
        [
            Operation::RegisterOffset {
                register: X86_64::RSP,
                offset: 8,
                ..
            },
            Operation::RegisterOffset {
                register: X86_64::RA,
                offset: 0,
                ..
            },
            mask,
            Operation::And,
            from,
            Operation::Ge,
            by,
            Operation::Shl,
            Operation::Plus,
        ] => [mask, from, by].map(constant) == [Some(15), Some(11), Some(3)],
        _ => false,
    }
}

#[cfg(test)]
mod tests;
