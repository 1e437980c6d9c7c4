//! The resident: the small blob of code that Capriole places in a target at the head of every
//! arena, for what a detour cannot do in straight-line code: taking the next packet, recording
//! without restartable sequences, and handling SIGTRAP.
//!
//! The code itself is `resident.c`, `summary.c`, `interval.c`, `chain.c`, `frames.c` and `entry.S`, compiled for general registers
//! only and linked into one flat, position-independent blob without data. This
//! crate holds the blob and fills in its configuration.
//!
//! **Packet switch.** A thread takes a free packet from a bitmap (atomically), fills in its
//! control, and installs it with one store of position and end, under a restartable sequence
//! that also checks that both are unchanged, in the same life of the old packet. After that
//! store no thread writes to the old packet. Only the thread that installed a packet retries;
//! all others take the locked path. A writer interrupted for good between two steps can leak a
//! packet, but never lose or tear one.
//!
//! **Faults.** A displaced instruction may fault. If the program handles SIGILL, SIGBUS, SIGFPE
//! or SIGSEGV, the resident's handler is installed before the program's, by the tracer before those
//! that are there when Capriole attaches, and by the resident before those that are set later:
//! it passes the original address as program counter (Go turns such a fault into a panic with a
//! traceback), and if the handler returns to that address, the copy is tried again. A handler
//! that moves the program counter by a few bytes steps over the instruction; its target is
//! looked up in the table of copies, because the jump may cover it.
//!
//! **Unwinding.** An unwinder of the program that starts from a signal that has interrupted a detour or the
//! resident finds its way by `frames.c`.
//!
//! **Callers** are found by a [table](unwinding) that stands in the first arena, see `chain.c`.
#![forbid(unsafe_code)]

pub mod returns;
pub mod unwinding;

use capriole_ring::layout::Geometry;
use capriole_ring::numbers::session::RESIDENT_MAGIC;
use capriole_ring::numbers::{config, filter, flag};

static BLOB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/resident.bin"));
static FRAMES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/resident.frames"));

/// The first bytes of a blob, and so of every arena.
pub const MAGIC: [u8; 4] = RESIDENT_MAGIC.to_le_bytes();

pub use capriole_ring::numbers::session::RSEQ_SIGNATURE;

/// Configuration of the resident: facts about the target, found by the tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Address of session memory in the target.
    pub session: u64,
    /// Geometry of session memory.
    pub geometry: Geometry,
    /// Offset of `struct rseq` from the thread pointer, if every thread has one there.
    pub rseq_offset: Option<i32>,
    /// Offset of the thread id from the thread pointer, if every thread has it there.
    pub tid_offset: Option<i32>,
    /// Two readings of the time stamp counter may be equal.
    pub coarse_clock: bool,
    /// Detours call routines of the program.
    pub has_routines: bool,
    /// For tests: step in which the time stamp counter advances; 0: unchanged.
    pub clock_step: u32,
    /// Address of the [table](trap_table) of breakpoints.
    pub traps: u64,
    /// The program's own SIGTRAP handler (0 default, 1 ignored) and its flags.
    pub old_trap: (u64, u64),
    /// Address of a word with the address of the [table](unwinding::Table) by which callers are found; 0:
    /// there is none.
    pub unwinding: u64,
    /// Address of the resident's own call frame information, [`frames`]; 0: it is not there.
    pub own_frames: u64,
}

/// Addresses of the resident's entries once it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries {
    /// Address of the blob.
    pub base: u64,
    /// Called by a detour whose packet is full.
    pub switch: u64,
    /// Called by a detour that cannot use restartable sequences.
    pub locked: u64,
    /// The SIGTRAP handler.
    pub trap: u64,
    /// `rt_sigreturn`, as the restorer of the handler.
    pub restorer: u64,
    /// Code to which a thread is sent to make many system calls, see `entry.S`.
    pub batch: u64,
    /// Address behind the system call in which such a thread waits.
    pub batch_waits: u64,
    /// The code for a batch of moves of mappings, which ends as that of other calls.
    pub batch_moves: u64,
    /// Address behind that from which a `ret` leads back.
    pub batch_home: u64,
    /// Signal handler for faults.
    pub fault: u64,
    /// Called by a detour to run a program.
    pub run: u64,
    /// Called by a guard before a system call that may install a system call filter, with
    /// [`FilterCall::argument`] as its argument.
    pub filtering: u64,
    /// Called by a guard after a system call that may be `rt_sigaction`: the argument is its
    /// number, or a different one if the number is not known.
    pub action: u64,
    /// Called by a guard before libgcc's unwinder looks up an address.
    pub frame: u64,
    /// Address of the program's own signal actions: those of `FAULTS` of the ledger, then of
    /// SIGTRAP, four words each.
    pub actions: u64,
    /// Location of the address of the table of copies.
    pub copies: u64,
    /// Location of the address of the table of breakpoints.
    pub traps: u64,
    /// Location of the program's own SIGTRAP handler and its flags.
    pub old_trap: u64,
}

/// Location of a system call's number, just before the call is made. Registers are given by their
/// numbers in machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallNumber {
    /// The number itself.
    Known(u32),
    /// In this register.
    Register(u8),
    /// In memory, at this offset from the address in a register.
    Memory(u8, i32),
}

/// Description of a system call that may install a system call filter: the argument of
/// [`Entries::filtering`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterCall {
    /// Its number.
    pub number: CallNumber,
    /// The register with its first argument. If there is none, every `prctl` is treated as one that
    /// installs a filter.
    pub option: Option<u8>,
    /// The register with its second argument.
    pub mode: Option<u8>,
}

impl FilterCall {
    /// Encodes the argument for the entry.
    #[must_use]
    pub fn argument(self) -> u64 {
        let register = |register: u8, shift| u64::from(register & 15) << shift;
        let number = match self.number {
            CallNumber::Known(number) => u64::from(number),
            CallNumber::Register(at) => {
                filter::NUMBER_REGISTER | register(at, filter::NUMBER_SHIFT)
            }
            CallNumber::Memory(at, offset) => {
                filter::NUMBER_MEMORY
                    | register(at, filter::NUMBER_SHIFT)
                    | u64::from(offset as u32)
            }
        };
        let option = |at| filter::OPTION_REGISTER | register(at, filter::OPTION_SHIFT);
        let mode = |at| filter::MODE_REGISTER | register(at, filter::MODE_SHIFT);
        number | self.option.map_or(0, option) | self.mode.map_or(0, mode)
    }
}

pub use capriole_ring::numbers::copy::{
    CHANGED as COPY_CHANGED, CODE as COPY_CODE, EXACT as COPY_EXACT, RESIDENT as COPY_RESIDENT,
};

/// Returns the call frame information of the resident, the same wherever that is placed; in the target it
/// has to be at a multiple of 8.
#[must_use]
pub fn frames() -> &'static [u8] {
    FRAMES
}

/// Encodes the table of breakpoints from (address, where to continue) pairs; in the target it has
/// to be at a multiple of 16. The table of copies has the same form: (start of a row of copies as
/// long as their originals, address of the first original), or with [`COPY_EXACT`] (start of a
/// copy, the original's address), both perhaps with [`COPY_CHANGED`]; (start of other code of ours, [`COPY_CODE`] with the address of its
/// places or [`COPY_RESIDENT`]); and (end of a row, 0).
///
/// `older` is the address of the table of those that are not in this one; 0 for none.
pub fn trap_table(traps: &[(u64, u64)], older: u64) -> Vec<u8> {
    let mut sorted = traps.to_vec();
    sorted.sort_unstable();
    let mut bytes = Vec::with_capacity(16 + 16 * sorted.len());
    for word in [sorted.len() as u64, older] {
        bytes.extend(word.to_le_bytes());
    }
    for (site, detour) in sorted {
        bytes.extend(site.to_le_bytes());
        bytes.extend(detour.to_le_bytes());
    }
    bytes
}

fn head(index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([BLOB[at], BLOB[at + 1], BLOB[at + 2], BLOB[at + 3]])
}

/// Bytes of the blob.
pub fn size() -> usize {
    BLOB.len()
}

/// Returns the code for batches of system calls, which is the same wherever it is placed.
pub fn batch() -> &'static [u8] {
    let own = entries(0);
    &BLOB[own.batch as usize..=own.batch_home as usize]
}

/// The entries of a blob placed at `base`.
pub fn entries(base: u64) -> Entries {
    let at = |index| base + u64::from(head(index));
    Entries {
        base,
        switch: at(2),
        locked: at(3),
        trap: at(4),
        restorer: at(5),
        batch: at(8),
        batch_waits: at(14),
        batch_moves: at(15),
        frame: at(16),
        batch_home: at(9),
        fault: at(10),
        run: at(11),
        filtering: at(12),
        action: at(13),
        actions: at(6) + config::ACTIONS as u64,
        copies: at(6) + config::COPIES as u64,
        traps: at(6) + config::TRAPS as u64,
        old_trap: at(6) + config::OLD_HANDLER as u64,
    }
}

/// Returns the offset of PKRU in an XSAVE area of this processor, or 0.
fn pkru_offset() -> u32 {
    const XSAVE: u32 = 0xd;
    const PKRU: u32 = 9;
    std::arch::x86_64::__cpuid_count(XSAVE, PKRU).ebx
}

/// Returns the configured blob for the address `base`.
pub fn place(base: u64, configured: &Config) -> Vec<u8> {
    let mut blob = BLOB.to_vec();
    let mut put = |at: usize, bytes: &[u8]| blob[at..at + bytes.len()].copy_from_slice(bytes);
    let g = &configured.geometry;
    let address = |offset: usize| configured.session + offset as u64;
    let flags = [
        (configured.rseq_offset.is_some(), flag::RSEQ),
        (configured.tid_offset.is_some(), flag::TID),
        (configured.coarse_clock, flag::COARSE),
        (configured.has_routines, flag::ROUTINES),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set);
    let frames = match g.frames {
        0 => 0,
        _ => address(g.frames_offset()),
    };
    let windows = match g.windows {
        true => address(g.windows_offset()),
        false => 0,
    };
    let at = head(6) as usize;
    for (offset, value) in [
        (config::SESSION, configured.session),
        (config::STREAMS, address(g.streams())),
        (config::CONTROLS, address(g.controls())),
        (config::PACKETS, address(g.packets_offset())),
        (config::TRAPS, configured.traps),
        (config::OLD_HANDLER, configured.old_trap.0),
        (config::OLD_FLAGS, configured.old_trap.1),
        (config::DIRECTORIES, address(g.directories_offset())),
        (config::COUNTERS, address(g.counters_offset())),
        (config::OWN, address(g.own_offset())),
        (config::FRAMES, frames),
        (config::UNWINDING, configured.unwinding),
        (config::OWN_FRAMES, configured.own_frames),
        (config::OWN_FRAMES_SIZE, FRAMES.len() as u64),
        (config::WINDOWS, windows),
    ] {
        put(at + offset, &value.to_le_bytes());
    }
    for (offset, value) in [
        (config::CPUS, g.cpus),
        (config::PACKET_COUNT, g.packets),
        (config::PACKET_SHIFT, g.packet_size.trailing_zeros()),
        (config::FLAGS, flags.fold(0, |all, (_, flag)| all | flag)),
        (
            config::RSEQ_OFFSET,
            configured.rseq_offset.unwrap_or(0) as u32,
        ),
        (
            config::TID_OFFSET,
            configured.tid_offset.unwrap_or(0) as u32,
        ),
        (config::CLOCK_STEP, configured.clock_step),
        (config::LIMIT, g.limit()),
        (config::COUNTER_STRIDE, g.counter_stride() as u32),
        (config::FRAME_MASK, g.frames.wrapping_sub(1)),
        (config::FRAME_SHIFT, g.frame_size().trailing_zeros()),
        (config::PKRU, pkru_offset()),
    ] {
        put(at + offset, &value.to_le_bytes());
    }
    // The descriptors of the two restartable sequences hold two absolute addresses each.
    let cs = head(7) as usize;
    for offset in [8, 24, 32 + 8, 32 + 24] {
        let mut word = [0; 8];
        word.copy_from_slice(&BLOB[cs + offset..cs + offset + 8]);
        put(
            cs + offset,
            &(u64::from_le_bytes(word) + base).to_le_bytes(),
        );
    }
    blob
}

#[cfg(test)]
mod tests {
    use super::*;
    use capriole_ring::numbers::trap;
    use iced_x86::{
        Code, CpuidFeature, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic,
        OpAccess, Register,
    };

    #[test]
    fn the_blob_has_its_head_and_is_small() {
        assert_eq!(head(0), u32::from_le_bytes(MAGIC));
        assert_eq!(head(1) as usize, BLOB.len());
        // Six pages in each arena.
        assert!(BLOB.len() < 6 * 4096, "{} bytes", BLOB.len());
        let entries = entries(0x1000);
        for entry in [
            entries.switch,
            entries.locked,
            entries.trap,
            entries.restorer,
        ] {
            assert!(entry > 0x1000 && entry < 0x1000 + BLOB.len() as u64);
        }
    }

    /// Reads the blob's own disassembly: no vector register is written, only the sixteen that hold
    /// floating point numbers are read, no x87 register, no call out of the blob, and no system
    /// call except at the few intended places.
    #[test]
    fn the_blob_touches_general_registers_only() {
        // The code begins after the last piece of data, `capriole_patience`.
        let start = head(7) as usize + 2 * 32 + 16;
        let mut decoder = Decoder::new(64, &BLOB[start..], DecoderOptions::NONE);
        decoder.set_ip(start as u64);
        let mut info = InstructionInfoFactory::new();
        let (mut syscalls, mut handlers, mut loads) = (0, 0, Vec::new());
        let mut read = std::collections::BTreeSet::new();
        for instruction in &mut decoder {
            if instruction.is_invalid() {
                continue; // the signature in front of the abort address
            }
            syscalls += usize::from(instruction.mnemonic() == Mnemonic::Syscall);
            assert_eq!(
                foreign_feature(&instruction),
                None,
                "{instruction} at {:#x}",
                instruction.ip()
            );
            if instruction.code() == Code::Xrstor64_mem {
                loads.push(instruction.ip());
            }
            assert_ne!(instruction.mnemonic(), Mnemonic::Pause, "it never waits");
            for used in info.info(&instruction).used_registers() {
                let r = used.register();
                if r.is_xmm() && used.access() == OpAccess::Read {
                    assert_eq!(instruction.code(), Code::Movq_rm64_xmm, "{instruction}");
                    read.insert(r);
                    continue;
                }
                assert!(
                    !r.is_vector_register() && !r.is_st() && !r.is_mm() && !r.is_k(),
                    "{instruction} uses {r:?}"
                );
            }
            if instruction.is_call_near() {
                assert!(
                    instruction.near_branch_target() < BLOB.len() as u64,
                    "{instruction}"
                );
            }
            // By a call, or by a tail jump.
            let leaves = instruction.is_call_near_indirect() || instruction.is_jmp_near_indirect();
            handlers += usize::from(leaves);
        }
        assert_eq!(read.len(), 16, "{read:?}");
        // The program's own handlers, of SIGTRAP and of faults, are the only things outside that
        // are called; the compiler emits the call of the latter up to four times, with a constant
        // index or not.
        assert!((2..=6).contains(&handlers), "{handlers}");
        // The restorer; the three in code that only the tracer sends threads to; to read a field
        // getpid and process_vm_readv, and before that, where a page may be long in coming, move_pages and
        // mincore; prctl and gettid; in a forked child gettid and getpid; and sched_yield before a filter.
        // Behind the program's rt_sigaction getpid, in a child gettid, and rt_sigaction.
        assert_eq!(syscalls, 18);
        assert_eq!(loads.len(), 1, "{loads:x?}");
        assert_leads_back(loads[0]);
    }

    /// Returns what an instruction needs that the resident is not to use: some of those change state
    /// without a register that they name.
    fn foreign_feature(instruction: &Instruction) -> Option<CpuidFeature> {
        let is_own = |feature: &&CpuidFeature| {
            matches!(
                feature,
                CpuidFeature::INTEL8086
                    | CpuidFeature::INTEL186
                    | CpuidFeature::INTEL386
                    | CpuidFeature::INTEL486
                    | CpuidFeature::X64
                    | CpuidFeature::CMOV
                    | CpuidFeature::MULTIBYTENOP
                    | CpuidFeature::SYSCALL
                    | CpuidFeature::TSC
                    | CpuidFeature::RDTSCP
            )
        };
        let features = instruction.cpuid_features();
        match instruction.code() {
            Code::Xrstor64_mem
            | Code::Movq_rm64_xmm
            | Code::Rdsspq_r64
            | Code::Tzcnt_r64_rm64 // `bsf` on a processor without it
            | Code::Lfence
            | Code::Ud2 => None,
            _ => features.iter().find(|feature| !is_own(feature)).copied(),
        }
    }

    /// Once the vector registers are those of the program, the handler of SIGTRAP goes straight on
    /// to the one `ret` that drops the red zone. From where the stack pointer is raised only words
    /// above it are read, in the order of the frame, and nothing is written.
    fn assert_leads_back(load: u64) {
        let decode = |from: u64| {
            let code = &BLOB[from as usize..];
            Decoder::with_ip(64, code, from, DecoderOptions::NONE).into_iter()
        };
        assert!(load > entries(0).trap, "{load:#x} is not in the handler");
        let mut straight = decode(load).skip(1);
        let call = straight
            .find(|i| i.mnemonic() != Mnemonic::Mov && i.mnemonic() != Mnemonic::Lea)
            .expect("an instruction");
        assert!(call.is_call_near(), "{call}");
        let path: Vec<Instruction> = decode(call.near_branch_target()).take(40).collect();
        let raised = |i: &Instruction| {
            i.code() == Code::Mov_r64_rm64 && i.op0_register() == Register::RSP
                || i.code() == Code::Mov_rm64_r64 && i.op0_register() == Register::RSP
        };
        let at = path.iter().position(raised).expect("it leaves the stack");
        let restored: Vec<Register> = path[at + 1..]
            .iter()
            .take_while(|i| i.code() == Code::Pop_r64)
            .map(Instruction::op0_register)
            .collect();
        use Register::{R8, R9, R10, R11, R12, R13, R14, R15};
        use Register::{RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
        // As in struct sigcontext_64.
        let frame = [
            R8, R9, R10, R11, R12, R13, R14, R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP,
        ];
        assert_eq!(restored, frame);
        let last = &path[at + 1 + frame.len()..][..2];
        assert_eq!(last[0].code(), Code::Popfq);
        assert_eq!(last[1].code(), Code::Retnq_imm16);
        assert_eq!(usize::from(last[1].immediate16()), trap::ABOVE);
    }

    /// Its sleep must not be one that the kernel resumes by `restart_syscall`: the program may have
    /// one of those pending.
    #[test]
    fn a_batch_waits_with_a_call_that_leaves_nothing_behind() {
        let entries = entries(0);
        let mut decoder = Decoder::new(64, BLOB, DecoderOptions::NONE);
        decoder
            .set_position(entries.batch as usize)
            .expect("inside");
        decoder.set_ip(entries.batch);
        let mut numbers = Vec::new();
        let mut number = None;
        for instruction in decoder.iter().take_while(|i| i.ip() < entries.batch_waits) {
            match instruction.mnemonic() {
                Mnemonic::Mov if instruction.op0_register().full_register() == Register::RAX => {
                    number = instruction.try_immediate(1).ok();
                }
                Mnemonic::Syscall => numbers.push(number.take()),
                _ => {}
            }
        }
        // The tracer's system calls, of either form, and rt_sigtimedwait.
        assert_eq!(numbers, [None, None, Some(128)]);
    }

    #[test]
    fn placing_fills_in_the_configuration() {
        let geometry = Geometry::for_buffer(1 << 20, 2, 10);
        let configured = Config {
            session: 0x7000_0000,
            geometry,
            rseq_offset: Some(-160),
            tid_offset: Some(0x2d0),
            coarse_clock: false,
            has_routines: false,
            clock_step: 0,
            traps: 0x5000,
            old_trap: (1, 2),
            unwinding: 0,
            own_frames: 0,
        };
        let blob = place(0x10_0000, &configured);
        let at = head(6) as usize;
        assert_eq!(blob[at..at + 8], 0x7000_0000u64.to_le_bytes());
        assert_eq!(blob[at + config::FLAGS], 3);
        assert_eq!(
            blob[at + config::RSEQ_OFFSET..][..4],
            (-160i32).to_le_bytes()
        );
        for cs in [head(7) as usize, head(7) as usize + 32] {
            let abort = u64::from_le_bytes(blob[cs + 24..cs + 32].try_into().expect("8 bytes"));
            let signature = (abort - 0x10_0000 - 4) as usize;
            assert_eq!(blob[signature..signature + 4], RSEQ_SIGNATURE.to_le_bytes());
        }
    }
}
