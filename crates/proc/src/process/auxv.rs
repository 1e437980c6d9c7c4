//! The auxiliary vector (`<elf.h>`, getauxval(3)).

/// Addresses and flags from the auxiliary vector; `None` for values that the kernel did not
/// provide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Auxv {
    /// `AT_PHDR`: run-time address of the main program's program headers.
    pub phdr: Option<u64>,
    /// `AT_ENTRY`: run-time address of the main program's entry point.
    pub entry: Option<u64>,
    /// `AT_BASE`: address of the dynamic loader; `None` (or 0) for a statically linked program.
    pub base: Option<u64>,
    /// `AT_SYSINFO_EHDR`: address of the vDSO.
    pub sysinfo_ehdr: Option<u64>,
    /// True if the program runs with raised privileges, such as set-user-ID (`AT_SECURE`).
    pub secure: bool,
}

impl Auxv {
    /// Parses the pairs of 64-bit words of `/proc/PID/auxv`. An incomplete last pair is ignored.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Auxv {
        const AT_NULL: u64 = 0;
        const AT_PHDR: u64 = 3;
        const AT_BASE: u64 = 7;
        const AT_ENTRY: u64 = 9;
        const AT_SECURE: u64 = 23;
        const AT_SYSINFO_EHDR: u64 = 33;

        let mut auxv = Auxv::default();
        let (words, _) = bytes.as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        for [key, value] in pairs {
            let value = u64::from_le_bytes(*value);
            match u64::from_le_bytes(*key) {
                AT_NULL => break,
                AT_PHDR => auxv.phdr = Some(value),
                AT_ENTRY => auxv.entry = Some(value),
                AT_BASE => auxv.base = (value != 0).then_some(value),
                AT_SYSINFO_EHDR => auxv.sysinfo_ehdr = Some(value),
                AT_SECURE => auxv.secure = value != 0,
                _ => {}
            }
        }
        auxv
    }
}
