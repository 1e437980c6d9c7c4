//! Progress of the reader in a stream, noted in session memory for the successor of a reader
//! that was killed.
//!
//! A reader hands over records of one packet at a time: those from byte `before` to byte
//! `after` of the packet `seq`. The receiver writes them to a file, as number `number` of the
//! stream (1 + [`Packet::seq`](crate::Packet::seq)), as a whole or not at all. When a reader
//! was killed, the file shows whether the receiver had written them:
//!
//! ```text
//! taken = (seq, after)     if the file has `number`
//!         (seq, before)    if not
//! ```
//!
//! `seq`, `before` and `after` share one word; `number` is another word. From one hand-over to
//! the next they change by single stores, and the rule above holds after each of them:
//!
//! | store | the file has `number` | taken |
//! | --- | --- | --- |
//! | (from before: `n`, (s, b, a)) | yes | (s, a) |
//! | (s, a, a), or (s + 1, 0, 0) if s was closed and a its end | yes | (s, a) |
//! | `n + 1` | no | (s, a) |
//! | (s, a, c) | no | (s, a) |
//! | to the file, as a whole | yes | (s, c) |
//!
//! A packet is given back to the writers only when the word names a later one.

use crate::layout::{MAX_PACKETS, UNIT};

/// Number of bits of `before` and `after`, in units of 8 bytes: enough for any packet size.
const BITS: u32 = 20;
/// Number of bits kept of a packet's number. No packet that still exists is that far from the
/// latest one.
const SEQ_BITS: u32 = 64 - 2 * BITS;
const _: () = assert!(MAX_PACKETS < 1 << (SEQ_BITS - 1));

/// The bytes of a packet's records that are being handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub seq: u64,
    pub before: usize,
    pub after: usize,
}

impl Taken {
    pub(crate) fn word(self) -> u64 {
        let units = |bytes: usize| (bytes / UNIT) as u64 & ((1 << BITS) - 1);
        self.seq << (2 * BITS) | units(self.before) << BITS | units(self.after)
    }

    /// Decodes the word of a stream whose latest packet has the number `latest`.
    pub(crate) fn of(word: u64, latest: u64) -> Taken {
        let bytes = |word: u64| (word & ((1 << BITS) - 1)) as usize * UNIT;
        let seq = word >> (2 * BITS);
        let behind = latest.wrapping_sub(seq) & ((1 << SEQ_BITS) - 1);
        Taken {
            // A greater distance is never noted, and no packet is that old.
            seq: latest.saturating_sub(behind.min(MAX_PACKETS as u64)),
            before: bytes(word >> BITS),
            after: bytes(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_noted() {
        for seq in [0, 1, 4096, (1 << 24) - 1, 1 << 24, (1 << 40) + 5] {
            for (before, after) in [(0, 0), (0, 8), (800, 4 << 20)] {
                let taken = Taken { seq, before, after };
                for latest in [seq, seq + 1, seq + 4096] {
                    assert_eq!(Taken::of(taken.word(), latest), taken);
                }
            }
        }
        assert_eq!(Taken::of(0, 4000).seq, 0);
        assert_eq!(Taken::of(u64::MAX, 7).seq, 0);
    }
}
