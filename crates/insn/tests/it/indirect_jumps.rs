//! Indirect jumps that are no ordinary switch, with their disassembly.

use capriole_insn::{Code, Extent, FunctionFlow, Hints, Resolution};

const START: u64 = 0x40_1000;
/// Address of the table, after the code.
const TABLE: u64 = 0x40_2000;

/// Returns the resolution of the only indirect jump of a function that is followed by 64
/// bytes of other code. The words of `table` are stored at `TABLE`.
fn resolve(function: &[u8], table: &[i32]) -> Resolution {
    let mut bytes = function.to_vec();
    bytes.resize(function.len() + 64, 0xcc);
    let code = Code::new(&bytes, START);
    let table: Vec<u8> = table.iter().flat_map(|word| word.to_le_bytes()).collect();
    let read = |address: u64, len: usize| {
        let start = usize::try_from(address.checked_sub(TABLE)?).ok()?;
        table.get(start..start + len).map(<[u8]>::to_vec)
    };
    let hints = Hints {
        landing_pads: &[],
        read: &read,
    };
    let extent = Extent::new(START, START + function.len() as u64);
    let flow = FunctionFlow::analyse_with(&code, &extent, &hints).unwrap();
    let [jump] = flow.indirect_jumps() else {
        panic!("{:?}", flow.indirect_jumps());
    };
    jump.resolution.clone()
}

/// An entry of `TABLE` that leads to an offset in the function.
fn to(offset: u64) -> i32 {
    (START + offset).wrapping_sub(TABLE) as i32
}

/// `lea TABLE(%rip),%rdx` at an offset of the function.
fn lea_table(offset: u64) -> Vec<u8> {
    let displacement = (TABLE - (START + offset + 7)) as u32;
    [&[0x48, 0x8d, 0x15][..], &displacement.to_le_bytes()].concat()
}

/// movslq (%rdx,%rdi,4),%rax; add %rdx,%rax; jmp *%rax; ret
const DISPATCH: &[u8] = &[0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0, 0xc3];

fn table(targets: &[u64], certain: usize) -> Resolution {
    Resolution::Table {
        targets: targets.iter().map(|offset| START + offset).collect(),
        certain,
    }
}

#[test]
fn tables_end_at_the_bound() {
    // 0: 83 ff 01 cmp $1,%edi; 3: 77 10 ja 21; 5: lea; 12: dispatch
    let code = [&[0x83, 0xff, 0x01, 0x77, 0x10], &lea_table(5)[..], DISPATCH].concat();
    let words = [to(0), to(21), to(5), to(12)];
    assert_eq!(resolve(&code, &words), table(&[0, 21], 2));
    // An entry may lead to a part of the function that was split off.
    assert_eq!(resolve(&code, &[to(0), to(40)]), table(&[0, 40], 2));
    // An entry that leads nowhere means that this is not the table.
    assert_eq!(resolve(&code, &[to(0), 0x7000_0000]), Resolution::Unknown);
    assert_eq!(resolve(&code, &[to(0)]), Resolution::Unknown);
    // jae: one entry fewer.
    let below = [&[0x83, 0xff, 0x01, 0x73, 0x10], &lea_table(5)[..], DISPATCH].concat();
    assert_eq!(resolve(&below, &words), table(&[0], 1));
}

#[test]
fn tables_without_a_bound() {
    // 0: lea; 7: dispatch
    let code = [&lea_table(0)[..], DISPATCH].concat();
    // They end where an entry can mean nothing else,
    assert_eq!(
        resolve(&code, &[to(0), to(16), 0x7000_0000]),
        table(&[0, 16], 0)
    );
    assert_eq!(resolve(&code, &[to(0), to(16)]), table(&[0, 16], 0));
    // and not where an entry leads to other code.
    assert_eq!(
        resolve(&code, &[to(0), to(30), to(16)]),
        Resolution::Unknown
    );
    // A table of the maximum size is rejected as implausible.
    assert_eq!(resolve(&code, &vec![to(16); 5000]), Resolution::Unknown);
    // 0: 83 e7 03 and $3,%edi; lea; dispatch: four entries at most.
    let masked = [&[0x83, 0xe7, 0x03], &lea_table(3)[..], DISPATCH].concat();
    assert_eq!(resolve(&masked, &[to(0); 9]), table(&[0; 4], 0));
}

#[test]
fn a_way_into_the_dispatch() {
    // 0: 74 07 je 9; 2: lea; 9: dispatch: the base has two origins, of which
    // one is a constant of the function and the other unknown. All constants
    // are tried.
    let code = [&[0x74, 0x07], &lea_table(2)[..], DISPATCH].concat();
    assert_eq!(resolve(&code, &[to(0), to(18)]), table(&[0, 18], 0));
    // 0: 74 0b je 13, after the load: the entry is not from the table.
    let code = [&[0x74, 0x0b], &lea_table(2)[..], DISPATCH].concat();
    assert_eq!(resolve(&code, &[to(0), to(18)]), Resolution::Unknown);
}

#[test]
fn pointers() {
    let resolve = |code: &[u8]| resolve(code, &[]);
    // jmp *0x10(%rdi)
    assert_eq!(resolve(&[0xff, 0x67, 0x10]), Resolution::Pointer);
    // jmp *0x100(%rip)
    assert_eq!(resolve(&[0xff, 0x25, 0, 1, 0, 0]), Resolution::Pointer);
    // jmp *%rdx: an argument.
    assert_eq!(resolve(&[0xff, 0xe2]), Resolution::Pointer);
    // mov (%rdi),%rax; mov %rax,%rcx; jmp *%rcx
    let moved = [0x48, 0x8b, 0x07, 0x48, 0x89, 0xc1, 0xff, 0xe1];
    assert_eq!(resolve(&moved), Resolution::Pointer);
    // mov (%rdi),%rax; je 6; nop; 6: jmp *%rax: the same value on both paths.
    let joined = [0x48, 0x8b, 0x07, 0x74, 0x01, 0x90, 0xff, 0xe0];
    assert_eq!(resolve(&joined), Resolution::Pointer);
    // call .+5; jmp *%rax: the function's return value; but it may have changed %rcx.
    assert_eq!(
        resolve(&[0xe8, 0, 0, 0, 0, 0xff, 0xe0]),
        Resolution::Pointer
    );
    assert_eq!(
        resolve(&[0xe8, 0, 0, 0, 0, 0xff, 0xe1]),
        Resolution::Unknown
    );
    // mov %rsi,%rbx; call .+5; jmp *%rbx: preserved across the call.
    let preserved = [0x48, 0x89, 0xf3, 0xe8, 0, 0, 0, 0, 0xff, 0xe3];
    assert_eq!(resolve(&preserved), Resolution::Pointer);
    // mov 8(%rdi),%rax; lea 0x5d25(%rip),%rdx; test %rax,%rax; cmove %rdx,%rax; jmp *%rax: a
    // member, or else a default function. The address of the jump itself is not a function's.
    let chosen = |to: i32| {
        let lea = [&[0x48, 0x8d, 0x15], &to.to_le_bytes()[..]].concat();
        let rest = [0x48, 0x85, 0xc0, 0x48, 0x0f, 0x44, 0xc2, 0xff, 0xe0];
        [&[0x48, 0x8b, 0x47, 0x08], &lea[..], &rest].concat()
    };
    assert_eq!(resolve(&chosen(0x5d25)), Resolution::Pointer);
    assert_eq!(resolve(&chosen(7)), Resolution::Unknown);
    // lea 0x5d25(%rip),%rax; add %rdi,%rax; jmp *%rax: may lead anywhere.
    let added = [
        0x48, 0x8d, 0x05, 0x25, 0x5d, 0, 0, 0x48, 0x01, 0xf8, 0xff, 0xe0,
    ];
    assert_eq!(resolve(&added), Resolution::Unknown);
}

#[test]
fn computed_addresses() {
    let resolve = |code: &[u8]| resolve(code, &[]);
    // mov (%rdi),%rax; je 8; inc %rax; 8: jmp *%rax: changed on one path.
    let changed = [0x48, 0x8b, 0x07, 0x74, 0x03, 0x48, 0xff, 0xc0, 0xff, 0xe0];
    assert_eq!(resolve(&changed), Resolution::Unknown);
    // xor %fs:0x30,%rdx; jmp *%rdx: longjmp.
    let mangled = [0x64, 0x48, 0x33, 0x14, 0x25, 0x30, 0, 0, 0, 0xff, 0xe2];
    assert_eq!(resolve(&mangled), Resolution::Unknown);
    // jmp *8(%rsp): a computed address may have been spilled.
    assert_eq!(resolve(&[0xff, 0x64, 0x24, 0x08]), Resolution::Unknown);
    // jmp *-8(%rbp): a pointer if rbp is an ordinary register,
    assert_eq!(resolve(&[0xff, 0x65, 0xf8]), Resolution::Pointer);
    // but not if it points to the frame: mov %rsp,%rbp; jmp *-8(%rbp)
    let framed = [0x48, 0x89, 0xe5, 0xff, 0x65, 0xf8];
    assert_eq!(resolve(&framed), Resolution::Unknown);
    // lea 0(%rip),%rax; jmp *(%rdi): the function computes addresses inside
    // itself, and may have computed and stored others.
    let labels = [0x48, 0x8d, 0x05, 0, 0, 0, 0, 0xff, 0x27];
    assert_eq!(resolve(&labels), Resolution::Unknown);
}
