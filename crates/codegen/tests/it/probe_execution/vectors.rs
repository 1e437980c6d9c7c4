//! The extended state of a signal frame: x87, vector and mask registers, laid out
//! as XSAVE does (Intel SDM vol. 1, 13.4; linux/sigcontext.h).

use crate::support::random::Random;

/// Bytes of the legacy region and the header.
const HEADER_END: usize = 576;
const XSTATE_BV: usize = 512;
/// Offset at which the kernel stores the length of the state, in bytes not used otherwise.
const MAGIC: usize = 464;
const SIZE: usize = MAGIC + 16;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;

/// The components that hold registers, in addition to x87 and SSE.
const COMPONENTS: [(u32, &str); 4] = [
    (2, "upper halves of ymm0-15"),
    (5, "mask registers"),
    (6, "upper halves of zmm0-15"),
    (7, "zmm16-31"),
];

/// The length of a frame's state in bytes.
///
/// # Safety
/// There must be at least 512 bytes, written by the kernel.
pub unsafe fn size_of_state(state: *const u8) -> usize {
    let word = |at: usize| {
        // SAFETY: within the 512 bytes of the legacy region.
        unsafe { state.wrapping_add(at).cast::<u32>().read_unaligned() }
    };
    if word(MAGIC) == FP_XSTATE_MAGIC1 {
        word(SIZE) as usize
    } else {
        512
    }
}

/// Marks all components as not in their initial state.
pub fn mark_all_used(state: &mut [u8]) {
    if state.len() >= HEADER_END {
        let features = state[MAGIC + 8];
        // x87, SSE, AVX and the three of AVX-512.
        state[XSTATE_BV] |= features & 0xe7;
    }
}

/// The offsets of a component, if the processor has it.
fn component(number: u32) -> Option<(usize, usize)> {
    let leaf = std::arch::x86_64::__cpuid_count(0xd, 0);
    if leaf.eax >> number & 1 == 0 {
        return None;
    }
    let leaf = std::arch::x86_64::__cpuid_count(0xd, number);
    let start = leaf.ebx as usize;
    Some((start, start + leaf.eax as usize))
}

/// Control words of x87 without the addresses of the last instruction, MXCSR, and
/// the registers.
pub fn register_ranges() -> Vec<(usize, usize)> {
    let legacy = [(0, 6), (24, 28), (32, 416)];
    let rest = COMPONENTS.into_iter().filter_map(|(n, _)| component(n));
    legacy.into_iter().chain(rest).collect()
}

/// The names of all registers that are compared on this processor.
pub fn names() -> String {
    let size = register_ranges().iter().map(|r| r.1).max().unwrap_or(512);
    let all = registers(&vec![0; size.max(HEADER_END)]);
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Random registers; the x87 stack is empty most of the time, the rounding modes are
/// the usual ones most of the time, and no exception is unmasked.
pub fn random(random: &mut Random) -> Vec<u8> {
    let size = register_ranges().iter().map(|r| r.1).max().unwrap_or(512);
    let mut state: Vec<u8> = (0..size.div_ceil(8))
        .flat_map(|_| random.number().to_le_bytes())
        .collect();
    // Doubles and integers of ordinary size test more than noise.
    for lane in (160..size.saturating_sub(8)).step_by(8) {
        let value = match random.below(4) {
            0 => (random.below(2000) as f64 - 1000.0).to_bits(),
            1 => random.below(300) as u64,
            _ => continue,
        };
        state[lane..lane + 8].copy_from_slice(&value.to_le_bytes());
    }
    state[0..2].copy_from_slice(&0x37fu16.to_le_bytes());
    state[2..6].fill(0);
    if random.below(8) == 0 {
        state[4] = random.number() as u8;
    }
    for i in 0..8 {
        let (st, value) = (32 + 16 * i, random.below(1000) as u64 | 1);
        let shift = value.leading_zeros();
        let exponent = 16383 + 63 - shift as u16;
        state[st..st + 8].copy_from_slice(&(value << shift).to_le_bytes());
        state[st + 8..st + 10].copy_from_slice(&exponent.to_le_bytes());
        state[st + 10..st + 16].fill(0);
    }
    let rounding = if random.below(8) == 0 {
        random.below(4) as u32
    } else {
        0
    };
    state[24..28].copy_from_slice(&(0x1f80 | rounding << 13).to_le_bytes());
    state
}

/// The registers in a state, by name. A component in its initial state reads as its initial
/// values.
pub fn registers(state: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let used = if state.len() >= HEADER_END {
        state[XSTATE_BV]
    } else {
        3
    };
    let has = |component: u32| used >> component & 1 != 0;
    let mut x87 = vec![0x7f, 3, 0, 0, 0];
    let mut st = vec![0; 80];
    if has(0) {
        x87.copy_from_slice(&state[0..5]);
        for i in 0..8 {
            st[10 * i..10 * i + 10].copy_from_slice(&state[32 + 16 * i..42 + 16 * i]);
        }
    }
    let sse = if has(1) {
        state[160..416].to_vec()
    } else {
        vec![0; 256]
    };
    let mut all = vec![
        ("x87 control, status and tags", x87),
        ("st0-7", st),
        ("mxcsr", state[24..28].to_vec()),
        ("xmm0-15", sse),
    ];
    for (number, name) in COMPONENTS {
        if let Some((from, to)) = component(number).filter(|(_, to)| *to <= state.len()) {
            let bytes = if has(number) {
                state[from..to].to_vec()
            } else {
                vec![0; to - from]
            };
            all.push((name, bytes));
        }
    }
    all
}
