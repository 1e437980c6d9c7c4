//! Small pieces of code with their disassembly, and the expected analysis.

use crate::support::elf::{Elf, find_library};
use crate::support::random::listing;
use capriole_insn::{
    Code, Extent, LandingPadError, Live, RegSet, RelocateError, landing_pads, live_among, live_at,
    relocate,
};
use iced_x86::{Instruction, Register};

const START: u64 = 0x40_1000;

fn decode(bytes: &[u8]) -> Vec<Instruction> {
    let code = Code::new(bytes, START);
    let end = code.extent().end;
    std::iter::successors(code.instruction_at(START, end), |last| {
        code.instruction_at(last.next_ip(), end)
    })
    .collect()
}

/// The disassembly of the copy at `to`.
fn relocated(bytes: &[u8], to: u64) -> String {
    let copy = relocate(&decode(bytes), to).unwrap();
    let code = Code::new(&copy.bytes, to);
    let mut instructions = Vec::new();
    let mut at = to;
    while let Some(instruction) = code.instruction_at(at, u64::MAX) {
        at = instruction.next_ip();
        let ends = instruction.flow_control() == iced_x86::FlowControl::UnconditionalBranch
            || instruction.flow_control() == iced_x86::FlowControl::IndirectBranch;
        instructions.push(instruction);
        if ends && !copy.falls_through {
            break;
        }
    }
    listing(&instructions)
}

fn refused(bytes: &[u8]) -> RelocateError {
    relocate(&decode(bytes), START + 0x1000).unwrap_err()
}

fn live(bytes: &[u8]) -> Live {
    live_at(
        &Code::new(bytes, START),
        &Extent::new(START, START + bytes.len() as u64),
        START,
    )
}

fn dead(bytes: &[u8]) -> Vec<Register> {
    crate::support::dead(&live(bytes)).iter().collect()
}

#[test]
fn copies_of_relative_instructions() {
    // mov 0x100(%rip),%rax
    assert_eq!(
        relocated(&[0x48, 0x8b, 0x05, 0, 1, 0, 0], 0x50_0000),
        "0x500000: mov 0x401107,%rax\n"
    );
    // je .+0x12
    assert_eq!(
        relocated(&[0x74, 0x10], 0x50_0000),
        "0x500000: je 0x0000000000401012\n"
    );
    // jrcxz .+0x12
    assert_eq!(
        relocated(&[0xe3, 0x10], 0x50_0000),
        "0x500000: jrcxz 0x0000000000500004\n\
         0x500002: jmp 0x0000000000500009\n\
         0x500004: jmp 0x0000000000401012\n"
    );
}

#[test]
fn copies_of_calls_push_the_original_return_address() {
    // call .+0x105
    let bytes = [0xe8, 0, 1, 0, 0];
    assert_eq!(
        relocated(&bytes, 0x50_0000),
        "0x500000: pushq 0x500010\n0x500006: jmp 0x0000000000401105\n"
    );
    let copy = relocate(&decode(&bytes), 0x50_0000).unwrap();
    assert_eq!(copy.bytes[0x10..0x18], (START + 5).to_le_bytes());
    assert!(!copy.falls_through);
    // call *0x8(%rsp): the pushed word moves the operand.
    assert_eq!(
        relocated(&[0xff, 0x54, 0x24, 0x08], 0x50_0000),
        "0x500000: pushq 0x500010\n0x500006: jmpq *0x10(%rsp)\n"
    );
    // call *0x78(%rsp): the new displacement no longer fits in 8 bits.
    assert_eq!(
        relocated(&[0xff, 0x54, 0x24, 0x78], 0x50_0000),
        "0x500000: pushq 0x500010\n0x500006: jmpq *0x80(%rsp)\n"
    );
    // call *%rax
    assert_eq!(
        relocated(&[0xff, 0xd0], 0x50_0000),
        "0x500000: pushq 0x500008\n0x500006: jmp *%rax\n"
    );
}

#[test]
fn a_branch_to_the_first_instruction_hits_the_probe_again() {
    // 0: ff c8 dec %eax; 2: 75 fc jne 0; 4: 74 fc je 2
    assert_eq!(
        relocated(&[0xff, 0xc8, 0x75, 0xfc, 0x74, 0xfc], 0x50_0000),
        "0x500000: dec %eax\n\
         0x500002: jne 0x0000000000401000\n\
         0x500008: je 0x0000000000500002\n"
    );
}

#[test]
fn what_is_not_copied() {
    use RelocateError as E;
    let at = START;
    assert_eq!(refused(&[0x0f, 0x05]), E::SystemCall { at }); // syscall
    assert_eq!(refused(&[0xcd, 0x80]), E::SystemCall { at }); // int $0x80
    assert_eq!(refused(&[0xcc]), E::Trap { at }); // int3
    assert_eq!(refused(&[0x0f, 0x0b]), E::Trap { at }); // ud2
    assert_eq!(refused(&[0xf4]), E::Trap { at }); // hlt
    assert_eq!(refused(&[0xc7, 0xf8, 0, 0, 0, 0]), E::Transaction { at }); // xbegin
    assert_eq!(refused(&[0xc6, 0xf8, 0xff]), E::Transaction { at }); // xabort
    assert_eq!(refused(&[0x0f, 0x01, 0xd5]), E::Transaction { at }); // xend
    assert_eq!(refused(&[0x48, 0xcf]), E::FarBranch { at }); // iretq
    assert_eq!(refused(&[0xcb]), E::FarBranch { at }); // lret
    assert_eq!(refused(&[0xff, 0x18]), E::FarBranch { at }); // lcall *(%rax)
    assert_eq!(refused(&[0xff, 0xd4]), E::CallThroughStack { at }); // call *%rsp
    assert_eq!(
        refused(&[0xff, 0x54, 0x24, 0xf8]), // call *-0x8(%rsp)
        E::CallThroughStack { at }
    );
    assert_eq!(
        refused(&[0x67, 0x8b, 0x05, 0, 0, 0, 0]), // mov 0x0(%eip),%eax
        E::NotEncodable { at }
    );
    assert_eq!(refused(&[0xff, 0xd0, 0x90]), E::CallInside { at }); // call *%rax; nop
    assert_eq!(
        relocate(&decode(&[0x48, 0x8b, 0x05, 0, 1, 0, 0]), 0x7f00_0000_0000),
        Err(E::OutOfReach {
            at,
            target: START + 0x107
        })
    );
    assert_eq!(
        relocate(&decode(&[0x74, 0x10]), 0x7f00_0000_0000),
        Err(E::OutOfReach {
            at,
            target: START + 0x12
        })
    );
}

#[test]
fn what_is_alive() {
    use Register as R;
    // mov $1,%eax; ret
    assert_eq!(dead(&[0xb8, 1, 0, 0, 0, 0xc3]), [R::RAX]);
    // mov $1,%al; ret
    assert_eq!(dead(&[0xb0, 1, 0xc3]), []);
    // xor %ecx,%ecx; ret
    assert_eq!(dead(&[0x31, 0xc9, 0xc3]), [R::RCX]);
    assert!(!live(&[0x31, 0xc9, 0xc3]).flags);
    // inc %ecx leaves CF as it was.
    assert!(live(&[0xff, 0xc1, 0xc3]).flags);
    // shl %cl,%eax leaves the flags as they were if cl is 0.
    assert!(live(&[0xd3, 0xe0, 0xc3]).flags);
    // So do shld %cl,%ecx,%eax and shrd; with a number, shld $1,%ecx,%eax changes them.
    assert!(live(&[0x0f, 0xa5, 0xc8, 0xc3]).flags);
    assert!(live(&[0x0f, 0xad, 0xc8, 0xc3]).flags);
    assert!(!live(&[0x0f, 0xa4, 0xc8, 1, 0xc3]).flags);
    // repz cmpsb and repnz scasb leave them if rcx is 0; cmpsb changes them.
    assert!(live(&[0xf3, 0xa6, 0xc3]).flags);
    assert!(live(&[0xf2, 0xae, 0xc3]).flags);
    assert!(!live(&[0xa6, 0xc3]).flags);
    // nop; nop; mov $1,%eax; ret: but at a marker, eax may be read.
    let marked = [0x90, 0x90, 0xb8, 1, 0, 0, 0, 0xc3];
    assert_eq!(dead(&marked), [R::RAX]);
    let code = Code::new(&marked, START);
    for marker in [START, START + 1] {
        let live = live_among(&code, &code.extent(), START, &[marker]);
        assert!(live.flags && live.gprs == RegSet::ALL);
    }
    // A note cannot refer to flags, so they are dead if they are overwritten after the marker:
    // nop; xor %ecx,%ecx; ret.
    let marked_flags = [0x90, 0x31, 0xc9, 0xc3];
    let flags = Code::new(&marked_flags, START);
    let at_marker = live_among(&flags, &flags.extent(), START, &[START]);
    assert!(!at_marker.flags && at_marker.gprs == RegSet::ALL);
    let behind = live_among(&code, &code.extent(), START, &[START + 8]);
    assert_eq!(behind, live(&marked));
    // cmove %ecx,%eax; xor %eax,%eax reads eax first.
    assert_eq!(dead(&[0x0f, 0x44, 0xc1, 0x31, 0xc0, 0xc3]), []);
    // rdsspq %rdx; ret, and rdsspd: nops unless there is a shadow stack.
    assert_eq!(dead(&[0xf3, 0x48, 0x0f, 0x1e, 0xca, 0xc3]), []);
    assert_eq!(dead(&[0xf3, 0x0f, 0x1e, 0xca, 0xc3]), []);
    // je 4; xor %edx,%edx; 4: ret: only one of two paths overwrites it.
    assert_eq!(dead(&[0x74, 0x02, 0x31, 0xd2, 0xc3]), []);
    // je 4; xor %edx,%edx; 4: mov %eax,%edx; ret: both paths do.
    assert_eq!(dead(&[0x74, 0x02, 0x31, 0xd2, 0x89, 0xc2, 0xc3]), [R::RDX]);
    // 0: dec %edi; jne 0; mov %edi,%edx; ret: round a loop.
    assert_eq!(dead(&[0xff, 0xcf, 0x75, 0xfc, 0x89, 0xfa, 0xc3]), [R::RDX]);
    // call .+5; mov $1,%eax; ret: the callee may read any register.
    assert_eq!(live(&[0xe8, 0, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3]), Live::ALL);
    // syscall; mov $1,%eax; ret
    assert_eq!(live(&[0x0f, 0x05, 0xb8, 1, 0, 0, 0, 0xc3]), Live::ALL);
    // Nothing is known about an invalid instruction.
    assert_eq!(live(&[0x06]), Live::ALL);
    // mov $1,%eax at the function's end: the register that it overwrites is dead.
    assert_eq!(dead(&[0xb8, 1, 0, 0, 0]), [R::RAX]);
    // 200 nops, then mov $1,%eax: beyond the range of the analysis.
    let far = [&[0x90; 200][..], &[0xb8, 1, 0, 0, 0, 0xc3]].concat();
    assert_eq!(live(&far), Live::ALL);
}

#[test]
fn an_exception_table() {
    // No base for landing pads, a type table 17 bytes on, call sites as
    // uleb128, 13 bytes in total: [0,5) no pad; [5,10) to 0x20; [10,0x8a) to 0x30.
    let lsda = [
        0xff, 0x9b, 17, 0x01, 13, 0, 5, 0, 0, 5, 5, 0x20, 1, 10, 0x80, 0x01, 0x30, 0, 0xaa,
    ];
    assert_eq!(
        landing_pads(&lsda, 0x9000, START),
        Ok(vec![START + 0x20, START + 0x30])
    );
    // The same base, encoded relative to the field itself; call sites of 4 bytes.
    let mut lsda = vec![0x1b];
    lsda.extend((START as u32 - 0x9001).to_le_bytes());
    lsda.extend([0xff, 0x03, 13]);
    for word in [0u32, 16, 0x44] {
        lsda.extend(word.to_le_bytes());
    }
    lsda.push(0);
    assert_eq!(landing_pads(&lsda, 0x9000, 7), Ok(vec![START + 0x44]));
    assert_eq!(
        landing_pads(&lsda[..12], 0x9000, 7),
        Err(LandingPadError::Truncated { offset: 12 })
    );
    assert_eq!(
        landing_pads(&[0xff, 0xff, 0x3b, 4, 0, 0, 0, 0], 0, 0),
        Err(LandingPadError::UnknownEncoding { encoding: 0x3b })
    );
}

/// In a C++ library every landing pad is an instruction of its function, and
/// most begin as the ABI requires: with `endbr64`, or by taking the exception
/// from rax and rdx.
#[test]
fn landing_pads_of_a_library() {
    let Some(elf) = find_library("libstdc++.so.6").and_then(|path| Elf::open(&path)) else {
        println!("skipped: no libstdc++.so.6 on this system");
        return;
    };
    let (bytes, address) = elf.text();
    let code = Code::new(bytes, address);
    let fdes = elf.fdes();
    let (mut count, mut outside) = (0, 0);
    for fde in &fdes {
        let Some(lsda) = fde.lsda else { continue };
        for pad in landing_pads(elf.rest(lsda), lsda, fde.extent.start).unwrap() {
            count += 1;
            // The pads of a function may be in its cold part, which has an
            // FDE of its own.
            let home = fdes.iter().find(|fde| fde.extent.contains(pad));
            let home = home.unwrap_or_else(|| panic!("{pad:#x} is in no function"));
            if home.extent != fde.extent {
                outside += 1;
            }
            let flow = capriole_insn::FunctionFlow::analyse(&code, &home.extent).unwrap();
            assert!(
                flow.is_boundary(pad),
                "{pad:#x} is in the middle of an instruction"
            );
        }
    }
    println!("{count} landing pads, {outside} in another part of the function");
    assert!(count > 500);
}
