//! The jumps that lead to detours, and the stubs between them.

/// The length of `jmp rel32`, in bytes.
pub const JUMP: u64 = 5;
/// The length of `int3`, in bytes.
pub(crate) const BREAKPOINT: u64 = 1;
/// Reach of a 32-bit displacement.
pub(crate) const REACH: u64 = 1 << 31;
/// Size in bytes of a near stub: `jmp rel32`.
pub(crate) const NEAR_STUB: u64 = JUMP;
/// Size in bytes of `notrack jmp *rel32(%rip)`, and of the address that it reads.
const FAR_JUMP: u64 = 7;
const ADDRESS: u64 = 8;
/// Size in bytes of a far stub: the jump, up to seven bytes that align the address, and that.
pub const FAR_STUB: u64 = FAR_JUMP + 7 + ADDRESS;

/// `int3`.
const INT3: u8 = 0xcc;

/// Returns the bytes of a stub of `size` bytes at `address` that leads to `target`; `None` if that
/// is out of its reach.
pub(crate) fn stub(address: u64, size: u64, target: u64) -> Option<Vec<u8>> {
    let displacement = target.wrapping_sub(address.wrapping_add(NEAR_STUB)) as i64;
    if let Ok(near) = i32::try_from(displacement) {
        let mut bytes = vec![0xe9];
        bytes.extend(near.to_le_bytes());
        return Some(bytes);
    }
    if size < FAR_STUB {
        return None;
    }
    // `notrack`: detours do not begin with the `endbr64` that indirect branch tracking requires,
    // as that would cost every other detour one more instruction.
    // A thread may have its accesses checked for alignment (EFLAGS.AC): the address is aligned.
    let behind = address.wrapping_add(FAR_JUMP);
    let padding = behind.wrapping_neg() % ADDRESS;
    let mut bytes = vec![0x3e, 0xff, 0x25];
    bytes.extend((padding as u32).to_le_bytes());
    bytes.extend(std::iter::repeat_n(INT3, padding as usize));
    bytes.extend(target.to_le_bytes());
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_is_as_long_as_it_has_to_be() {
        let near = stub(0x1000, NEAR_STUB, 0x2000);
        assert_eq!(near, Some(vec![0xe9, 0xfb, 0x0f, 0, 0]));
        assert_eq!(stub(0x1000, FAR_STUB, 0x2000), near);
        assert_eq!(stub(0x1000, NEAR_STUB, 0x1000 + REACH * 2), None);
        for address in 0x1000..0x1010 {
            let far = stub(address, FAR_STUB, 0x1122_3344_5566_7788).expect("any target");
            assert!(far.len() as u64 <= FAR_STUB);
            let padding = u64::from(far[3]);
            assert_eq!((address + 7 + padding) % 8, 0);
            assert_eq!(
                far[7 + padding as usize..],
                0x1122_3344_5566_7788_u64.to_le_bytes()
            );
        }
    }
}
