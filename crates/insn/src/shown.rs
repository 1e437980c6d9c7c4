//! Instruction starts, as far as control flow proves them.

use crate::arch::sweep::{Kind, Walk, record};
use crate::decode::{Code, Extent, is_padding};

/// The addresses at which control flow from known starting points proves instructions to begin.
///
/// Direct jumps and calls are followed, and so is the code after a call, except where padding
/// follows the call: that call may never return.
#[derive(Clone, Debug)]
pub struct Shown {
    text: Extent,
    /// One bit for each byte.
    begins: Vec<u64>,
}

impl Shown {
    /// Follows the code from `roots`, which must be addresses where instructions begin.
    #[must_use]
    pub fn from(code: &Code<'_>, roots: impl IntoIterator<Item = u64>) -> Self {
        let text = code.extent();
        let words = usize::try_from(text.len().div_ceil(64)).unwrap_or(0);
        let mut shown = Self {
            text,
            begins: vec![0; words],
        };
        let mut pending: Vec<u64> = roots.into_iter().collect();
        let mut walk = Walk::new(code, text);
        while let Some(at) = pending.pop() {
            if shown.contains(at) || !walk.go_to(at) {
                continue;
            }
            let mut behind_call = false;
            while let Some(instruction) = walk.next() {
                if shown.contains(instruction.ip()) || behind_call && is_padding(instruction) {
                    break;
                }
                let record = record(instruction);
                shown.insert(record.address);
                if matches!(record.kind, Kind::Jump | Kind::Conditional | Kind::Call) {
                    pending.push(record.target);
                }
                if !record.kind.falls_through() {
                    break;
                }
                behind_call = matches!(record.kind, Kind::Call | Kind::IndirectCall);
            }
        }
        shown
    }

    fn insert(&mut self, address: u64) {
        let offset = address - self.text.start;
        self.begins[(offset / 64) as usize] |= 1 << (offset % 64);
    }

    /// True if an instruction is proved to begin at `address`.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.text.start);
        let word = usize::try_from(offset / 64).ok();
        let word = word.and_then(|word| self.begins.get(word));
        word.is_some_and(|word| word & 1 << (offset % 64) != 0)
    }

    /// Returns the proved instruction that contains `address` but begins before it, if there is
    /// one.
    #[must_use]
    pub fn around(&self, code: &Code<'_>, address: u64) -> Option<Extent> {
        (1..crate::decode::MAX_INSTRUCTION as u64)
            .filter_map(|before| address.checked_sub(before))
            .filter(|at| self.contains(*at))
            .filter_map(|at| code.instruction_at(at, self.text.end))
            .map(|instruction| Extent::new(instruction.ip(), instruction.next_ip()))
            .find(|extent| extent.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> Vec<u64> {
        let code = Code::new(bytes, 0x1000);
        let shown = Shown::from(&code, [0x1000]);
        (0..bytes.len() as u64)
            .filter(|at| shown.contains(0x1000 + at))
            .collect()
    }

    #[test]
    fn calls_show_code_and_the_middle_of_an_instruction_does_not() {
        // call 7; ret; nop; 7: mov $1,%eax; ret
        let bytes = [0xe8, 2, 0, 0, 0, 0xc3, 0x90, 0xb8, 1, 0, 0, 0, 0xc3];
        assert_eq!(shown(&bytes), [0, 5, 7, 12]);
        let code = Code::new(&bytes, 0x1000);
        let shown = Shown::from(&code, [0x1000]);
        assert_eq!(
            shown.around(&code, 0x1009),
            Some(Extent::new(0x1007, 0x100c))
        );
        assert_eq!(shown.around(&code, 0x1007), None);
        assert_eq!(shown.around(&code, 0x1006), None);
    }

    #[test]
    fn what_may_never_be_run_shows_nothing() {
        // call +0x100; nop; ret
        assert_eq!(shown(&[0xe8, 0, 1, 0, 0, 0x90, 0xc3]), [0]);
        // jmp 4; two bytes; 4: ret
        assert_eq!(shown(&[0xeb, 2, 1, 2, 0xc3]), [0, 4]);
        // je 3; ret; 3: (bad)
        assert_eq!(shown(&[0x74, 1, 0xc3, 0x06]), [0, 2]);
    }
}
