//! Bytes that tool chains place at function entries and read there.
//!
//! They lie before the entry, where other code has padding, or at the entry, after a jump that
//! skips them. None of them is ever executed, and none may change: a caller compares them with
//! an expected value and ends the program on a mismatch, or a tool looks for them.

use crate::decode::{Code, Extent};

/// One kind of bytes that a tool chain places at entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convention {
    /// Start of the pattern, in bytes from the entry.
    from: i64,
    /// Bytes of the pattern; `None` matches any byte.
    pattern: &'static [Option<u8>],
    /// Range that must not change: start and end, in bytes from the entry.
    kept: (i64, i64),
    /// Range that is data, not instructions: start and end, in bytes from the entry.
    data: (i64, i64),
    /// Offset from the entry, in bytes, at which execution continues after the entry is called.
    goes_on: u64,
}

const ANY: Option<u8> = None;
const fn is(byte: u8) -> Option<u8> {
    Some(byte)
}

/// All conventions recognisable from bytes alone. Those that need symbols or sections are found by
/// callers that have them: `__cfi_NAME` (`-fsanitize=kcfi`), objects in the text, and the nops
/// before an entry that `__patchable_function_entries` names (`-fpatchable-function-entry=N,M`),
/// which the program itself may write to.
const CONVENTIONS: &[Convention] = &[
    // `-fsanitize=kcfi`: nop; mov $HASH, %eax. Callers read the hash at -4 and run into ud2 if it
    // differs. The nops before it align the entry.
    Convention {
        from: -6,
        pattern: &[is(0x90), is(0xb8), ANY, ANY, ANY, ANY],
        kept: (-5, 0),
        data: (-5, 0),
        goes_on: 0,
    },
    // `-fsanitize=function`: Clang 17 and later: 0xc105cafe and a hash, read at -8 and -4.
    Convention {
        from: -8,
        pattern: &[is(0xfe), is(0xca), is(0x05), is(0xc1), ANY, ANY, ANY, ANY],
        kept: (-8, 0),
        data: (-8, 0),
        goes_on: 0,
    },
    // `-fsanitize=function`: Clang before 17: jmp .+8, "v2", and the location of the type description.
    Convention {
        from: 0,
        pattern: &[is(0xeb), is(0x06), is(b'v'), is(b'2')],
        kept: (0, 8),
        data: (2, 8),
        goes_on: 8,
    },
    // `-fsanitize=function`: Older Clang: jmp .+8, "FT", and the location of the type description.
    Convention {
        from: 0,
        pattern: &[is(0xeb), is(0x06), is(b'F'), is(b'T')],
        kept: (0, 8),
        data: (2, 8),
        goes_on: 8,
    },
    // 8-byte lea 0(%rsp), %rsp, which hooking code replaces with a jump to the 32 bytes before it
    // (`ms_hook_prologue` of GCC, for Wine).
    Convention {
        from: -1,
        pattern: &[
            is(0xcc),
            is(0x48),
            is(0x8d),
            is(0xa4),
            is(0x24),
            is(0),
            is(0),
            is(0),
            is(0),
        ],
        kept: (-32, 0),
        data: (0, 0),
        goes_on: 0,
    },
];

impl Convention {
    /// Returns the conventions whose pattern matches at `entry`.
    pub fn at(code: Code<'_>, entry: u64) -> impl Iterator<Item = &'static Convention> {
        CONVENTIONS.iter().filter(move |convention| {
            let start = entry.wrapping_add_signed(convention.from);
            let end = start.wrapping_add(convention.pattern.len() as u64);
            let fits = |bytes: &[u8]| {
                let pairs = bytes.iter().zip(convention.pattern);
                pairs
                    .into_iter()
                    .all(|(byte, wanted)| wanted.is_none_or(|wanted| wanted == *byte))
            };
            code.get(Extent::new(start, end)).is_some_and(fits)
        })
    }

    /// True if its bytes lie before the entry.
    #[must_use]
    pub fn is_before(&self) -> bool {
        self.from < 0
    }

    /// Returns the bytes that must not change, for a function at `entry`.
    #[must_use]
    pub fn kept(&self, entry: u64) -> Extent {
        around(entry, self.kept)
    }

    /// Returns the bytes that are data, not instructions, for a function at `entry`.
    #[must_use]
    pub fn data(&self, entry: u64) -> Extent {
        around(entry, self.data)
    }

    /// Returns where execution continues if `entry` holds a jump over such bytes; `None` if it does
    /// not.
    #[must_use]
    pub fn behind(code: Code<'_>, entry: u64) -> Option<u64> {
        let over = Self::at(code, entry).find(|convention| convention.goes_on != 0)?;
        Some(entry + over.goes_on)
    }
}

fn around(entry: u64, (from, to): (i64, i64)) -> Extent {
    Extent::new(
        entry.saturating_add_signed(from),
        entry.saturating_add_signed(to),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the conventions found at the entry, which is at 0x1010, after 16 bytes.
    fn found(before: &[u8], entry: &[u8]) -> Vec<&'static Convention> {
        let mut bytes = vec![0xc3; 16 - before.len()];
        bytes.extend(before);
        bytes.extend(entry);
        Convention::at(Code::new(&bytes, 0x1000), 0x1010).collect()
    }

    fn one(before: &[u8], entry: &[u8]) -> &'static Convention {
        let found = found(before, entry);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    #[test]
    fn hash_of_kcfi() {
        // nop; mov $0x12345678,%eax; | mov %edi,%eax; ret
        let kcfi = one(&[0x90, 0xb8, 0x78, 0x56, 0x34, 0x12], &[0x89, 0xf8, 0xc3]);
        assert_eq!(kcfi.kept(0x1010), Extent::new(0x100b, 0x1010));
        assert_eq!(kcfi.data(0x1010), Extent::new(0x100b, 0x1010));
    }

    #[test]
    fn words_before_the_entry() {
        // 0xc105cafe; hash; | mov %edi,%eax; ret
        let before = [0xfe, 0xca, 0x05, 0xc1, 1, 2, 3, 4];
        let words = one(&before, &[0x89, 0xf8, 0xc3]);
        assert_eq!(words.kept(0x1010), Extent::new(0x1008, 0x1010));
    }

    #[test]
    fn jump_over_the_signature() {
        for mark in [b"v2", b"FT"] {
            let entry = [0xeb, 0x06, mark[0], mark[1], 1, 2, 3, 4, 0xc3];
            let jump = one(&[], &entry);
            assert_eq!(jump.kept(0x1010), Extent::new(0x1010, 0x1018));
            assert_eq!(jump.data(0x1010), Extent::new(0x1012, 0x1018));
            let code = Code::new(&entry, 0x1010);
            assert_eq!(Convention::behind(code, 0x1010), Some(0x1018));
        }
    }

    #[test]
    fn room_for_hooks() {
        let hook = one(&[0xcc; 16], &[0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0, 0x55]);
        assert_eq!(hook.kept(0x1010), Extent::new(0xff0, 0x1010));
        assert!(hook.data(0x1010).is_empty());
    }

    #[test]
    fn other_entries_have_none() {
        assert!(found(&[0x90; 16], &[0x55, 0xc3]).is_empty());
        // A short jump over code.
        assert!(found(&[], &[0xeb, 0x06, 0x89, 0xf8, 0x90, 0x90]).is_empty());
        // mov $1,%eax; ret; nop before the entry
        assert!(found(&[0xb8, 1, 0, 0, 0, 0xc3, 0x90], &[0x55]).is_empty());
        assert_eq!(Convention::behind(Code::new(&[0x55], 0x1000), 0x1000), None);
    }
}
