//! Landing pads, where execution continues after an exception, from the call-site table of a
//! language-specific data area (LSDA).
//!
//! The layout is defined by GCC's `unwind-pe.h` and `eh_personality.cc`; C++, Rust, D and Ada
//! share it:
//!
//! ```text
//! u8       encoding of the landing pads' base; the base, unless 0xff
//! u8       encoding of the type table;  uleb128 its offset, unless 0xff
//! u8       encoding of the call sites
//! uleb128  length of the call-site table in bytes
//! call site: start, length, landing pad (in that encoding), uleb128 action
//! ```
//!
//! Only landing pads matter here. A value of 0 means that there is none.

use crate::ascending;
use thiserror::Error;

/// Reason why an LSDA cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum LandingPadError {
    /// The data ends inside the table.
    #[error("exception table ends at offset {offset} of its data")]
    Truncated {
        /// Offset from the start of the LSDA at which more bytes were expected.
        offset: usize,
    },
    /// A pointer encoding that no compiler uses here.
    #[error("unknown pointer encoding {encoding:#04x} in an exception table")]
    UnknownEncoding {
        /// The DW_EH_PE byte.
        encoding: u8,
    },
}

/// Returns the landing pads of the function whose LSDA is at the start of `lsda`.
///
/// `lsda_address` is the run-time address of `lsda[0]`; `lsda` may extend beyond the LSDA.
/// `function_start` is the run-time address of the function's FDE (its `initial_location`), the
/// base of landing pads that specify no other base.
///
/// # Errors
///
/// [`LandingPadError`] if the data is damaged or of an unknown kind. Then the landing pads are
/// unknown and regions must not be patched; see
/// [`Targets::mark_incomplete`](crate::Targets::mark_incomplete).
pub fn landing_pads(
    lsda: &[u8],
    lsda_address: u64,
    function_start: u64,
) -> Result<Vec<u64>, LandingPadError> {
    let mut reader = Reader {
        bytes: lsda,
        offset: 0,
        address: lsda_address,
    };
    let base_encoding = reader.u8()?;
    let base = if base_encoding == OMIT {
        function_start
    } else {
        reader.pointer(base_encoding)?
    };
    if reader.u8()? != OMIT {
        reader.uleb()?;
    }
    let encoding = reader.u8()?;
    let length = usize::try_from(reader.uleb()?).unwrap_or(usize::MAX);
    let end = reader.offset.saturating_add(length);
    let mut pads = Vec::new();
    while reader.offset < end {
        reader.pointer(encoding)?;
        reader.pointer(encoding)?;
        let pad = reader.pointer(encoding)?;
        reader.uleb()?;
        if pad != 0 {
            pads.push(base.wrapping_add(pad));
        }
    }
    Ok(ascending(pads))
}

const OMIT: u8 = 0xff;

struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    address: u64,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], LandingPadError> {
        let bytes = self
            .bytes
            .get(self.offset..)
            .and_then(|rest| rest.first_chunk::<N>())
            .ok_or(LandingPadError::Truncated {
                offset: self.offset,
            })?;
        self.offset += N;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, LandingPadError> {
        Ok(self.take::<1>()?[0])
    }

    /// Reads a LEB128 number of at most 64 bits; higher bits are dropped.
    fn leb(&mut self) -> Result<(u64, u32, u8), LandingPadError> {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                return Ok((value, shift, byte));
            }
        }
    }

    fn uleb(&mut self) -> Result<u64, LandingPadError> {
        Ok(self.leb()?.0)
    }

    /// Reads a value in a DW_EH_PE encoding.
    fn pointer(&mut self, encoding: u8) -> Result<u64, LandingPadError> {
        let here = self.address.wrapping_add(self.offset as u64);
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => u64::from_le_bytes(self.take()?),
            0x01 => self.uleb()?,
            0x02 => u64::from(u16::from_le_bytes(self.take()?)),
            0x03 => u64::from(u32::from_le_bytes(self.take()?)),
            0x09 => {
                let (value, shift, last) = self.leb()?;
                let negative = last & 0x40 != 0 && shift < 64;
                if negative {
                    value | u64::MAX << shift
                } else {
                    value
                }
            }
            0x0a => i64::from(i16::from_le_bytes(self.take()?)) as u64,
            0x0b => i64::from(i32::from_le_bytes(self.take()?)) as u64,
            _ => return Err(LandingPadError::UnknownEncoding { encoding }),
        };
        match encoding & 0xf0 {
            0x00 => Ok(value),
            0x10 => Ok(if value == 0 {
                0
            } else {
                value.wrapping_add(here)
            }),
            _ => Err(LandingPadError::UnknownEncoding { encoding }),
        }
    }
}
