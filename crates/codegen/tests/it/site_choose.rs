//! `choose` on small functions, each with its disassembly.

use capriole_insn::{Code, Extent, FunctionFlow, Hints, RelocateError, Targets};
use capriole_tactic::place::{Placer, Space};
use capriole_tactic::site::{
    Refusal, Refused, Shape, SiteInput, StubTo, Tactic, choose, choose_from, choose_placed,
};
use iced_x86::Register;

/// Start address of the function under test.
const START: u64 = 0x40_1000;

/// Address of its jump table, if it has one.
const TABLE: u64 = 0x50_0000;

/// A function, followed by padding, and what is known about it.
struct Function {
    bytes: Vec<u8>,
    size: u64,
    table: Vec<u8>,
    next: Option<Extent>,
    targets: Targets,
    forbidden: Vec<Extent>,
    pads: Vec<u64>,
    shadow_stack: bool,
    int3: Result<(), Refusal>,
    go: bool,
    split_part: bool,
}

impl Function {
    /// `padding` follows the function and belongs to no function.
    fn new(bytes: &[u8], padding: &[u8]) -> Self {
        let size = bytes.len() as u64;
        let bytes = [bytes, padding].concat();
        let code = Code::new(&bytes, START);
        let extent = Extent::new(START, START + size);
        let mut targets = Targets::of(&code, &[extent], &|_, _| None);
        targets.insert_entry(START);
        Self {
            bytes,
            size,
            table: Vec::new(),
            next: None,
            targets,
            forbidden: Vec::new(),
            pads: Vec::new(),
            shadow_stack: false,
            int3: Ok(()),
            go: false,
            split_part: false,
        }
    }

    /// Chooses a shape at an offset from the start.
    fn at(&self, offset: u64) -> Result<Shape, Refused> {
        self.choose(offset, None)
    }

    /// Chooses a shape with room for stubs in `free`.
    fn placed(&self, offset: u64, free: &[std::ops::Range<u64>]) -> Result<Shape, Refused> {
        let mut placer = Placer::new(Space::new(free.to_vec(), 100));
        self.choose(offset, Some(&mut placer))
    }

    fn choose(&self, offset: u64, placer: Option<&mut Placer>) -> Result<Shape, Refused> {
        self.with_input(offset, |input| match placer {
            None => choose(input),
            Some(placer) => choose_placed(input, placer),
        })
    }

    fn with_input<T>(&self, offset: u64, then: impl FnOnce(&SiteInput<'_>) -> T) -> T {
        let code = Code::new(&self.bytes, START);
        let extent = Extent::new(START, START + self.size);
        let hints = Hints {
            landing_pads: &self.pads,
            read: &|address, len| {
                let at = address.checked_sub(TABLE)? as usize;
                self.table.get(at..at + len).map(<[u8]>::to_vec)
            },
        };
        then(&SiteInput {
            code: &code,
            flow: &FunctionFlow::analyse_with(&code, &extent, &hints).unwrap(),
            site: START + offset,
            targets: &self.targets,
            padding_end: match self.next {
                Some(next) => next.start,
                None => START + self.bytes.len() as u64,
            },
            next: self.next,
            forbidden: &self.forbidden,
            shadow_stack: self.shadow_stack,
            int3: self.int3,
            go: self.go,
            split_part: self.split_part,
        })
    }

    /// The shape at an offset, reached by a jump placed at another offset.
    fn from(&self, offset: u64, from: u64) -> Result<Shape, Refusal> {
        self.with_input(offset, |input| choose_from(input, START + from))
    }

    /// The reason why `tactic` was not used at an offset.
    fn refusal(&self, offset: u64, tactic: Tactic) -> Refusal {
        let refusals = match self.at(offset) {
            Ok(shape) => shape.refusals,
            Err(refused) => refused.refusals,
        };
        let found = refusals.iter().find(|(tried, _)| *tried == tactic);
        found
            .unwrap_or_else(|| panic!("{tactic} was not refused"))
            .1
    }
}

/// Tactic of a shape, offsets of its covered bytes and of the address where it resumes,
/// and number of displaced instructions.
fn summary(shape: &Shape) -> (Tactic, u64, u64, u64, usize) {
    (
        shape.tactic,
        shape.covered.start - START,
        shape.covered.end - START,
        shape.resume - START,
        shape.displaced.len(),
    )
}

/// ```text
///  0: 55        push %rbp
///  1: 48 89 e5  mov  %rsp,%rbp
///  4: 41 57     push %r15
///  6: 31 c0     xor  %eax,%eax
///  8: 41 5f     pop  %r15
/// 10: 5d        pop  %rbp
/// 11: c3        ret
/// ```
const PROLOGUE: &[u8] = &[
    0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x31, 0xc0, 0x41, 0x5f, 0x5d, 0xc3,
];

#[test]
fn a_prologue_is_a_region() {
    let shape = Function::new(PROLOGUE, &[]).at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Region, 0, 6, 6, 3));
    assert!(shape.at_entry);
    assert!(!shape.live.gprs.contains(Register::RAX));
    assert!(!shape.live.flags);
    assert_eq!(
        shape.refusals,
        [
            (Tactic::Reserved, Refusal::NoReservedBytes),
            (
                Tactic::OneInstruction,
                Refusal::ShortInstruction { bytes: 1 }
            ),
        ]
    );
}

#[test]
fn the_probe_goes_behind_endbr64() {
    let bytes = [&[0xf3, 0x0f, 0x1e, 0xfa], PROLOGUE].concat();
    let function = Function::new(&bytes, &[]);
    let shape = function.at(0).unwrap();
    assert_eq!(shape.site, START + 4);
    assert_eq!(summary(&shape), (Tactic::Region, 4, 10, 10, 3));
    assert!(shape.at_entry);
    assert_eq!(function.at(4).unwrap(), shape);
}

#[test]
fn reserved_nops() {
    // -fpatchable-function-entry=5
    let nops = [&[0x90; 5], PROLOGUE].concat();
    let shape = Function::new(&nops, &[]).at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Reserved, 0, 5, 5, 0));
    // -mnop-mcount: nopl 0x0(%rax,%rax,1)
    let fentry = [&[0x0f, 0x1f, 0x44, 0, 0], PROLOGUE].concat();
    let shape = Function::new(&fentry, &[]).at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Reserved, 0, 5, 5, 0));
    // nopl (%rax); nopl 0x0(%rax)
    let two = [&[0x0f, 0x1f, 0, 0x0f, 0x1f, 0x40, 0], PROLOGUE].concat();
    let mut function = Function::new(&two, &[]);
    let shape = function.at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Reserved, 0, 7, 7, 0));
    function.targets.insert(START + 3);
    let refusal = function.refusal(0, Tactic::Reserved);
    assert_eq!(refusal, Refusal::BranchTarget { at: START + 3 });
    // Go's scheduler may stop a thread between two nops, not inside one.
    let mut function = Function::new(&two, &[]);
    function.go = true;
    assert_eq!(function.refusal(0, Tactic::Reserved), Refusal::GoPreemption);
    let mut function = Function::new(&fentry, &[]);
    function.go = true;
    assert_eq!(function.at(0).unwrap().tactic, Tactic::Reserved);
    // nop; nop
    let few = [&[0x90, 0x90], PROLOGUE].concat();
    let function = Function::new(&few, &[]);
    let refusal = function.refusal(0, Tactic::Reserved);
    assert_eq!(refusal, Refusal::NopsTooShort { bytes: 2 });
    assert_eq!(function.at(0).unwrap().tactic, Tactic::Region);
}

#[test]
fn an_xray_sled() {
    // jmp .+11; nopw 0x200(%rax,%rax,1)
    let sled = [0xeb, 0x09, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0x02, 0, 0];
    let bytes = [&sled, PROLOGUE].concat();
    let shape = Function::new(&bytes, &[]).at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Reserved, 0, 11, 11, 0));
}

#[test]
fn one_long_instruction() {
    // mov $0x1,%eax; ret
    let shape = Function::new(&[0xb8, 1, 0, 0, 0, 0xc3], &[]).at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::OneInstruction, 0, 5, 5, 1));
    // call .+5+0x100; ret
    let call = Function::new(&[0xe8, 0, 1, 0, 0, 0xc3], &[]);
    assert_eq!(
        summary(&call.at(0).unwrap()),
        (Tactic::OneInstruction, 0, 5, 5, 1)
    );
    // In Go, too: only that one instruction's bytes change.
    let go = Function { go: true, ..call };
    assert_eq!(go.at(0).unwrap().tactic, Tactic::OneInstruction);
    // With a shadow stack the return address must come from a call.
    let shadow = Function {
        shadow_stack: true,
        go: false,
        ..go
    };
    let refused = shadow.at(0).unwrap_err();
    for tactic in [Tactic::OneInstruction, Tactic::Region, Tactic::Int3] {
        let wanted = (tactic, Refusal::ShadowStack { at: START });
        assert!(refused.refusals.contains(&wanted), "{refused:?}");
    }
}

#[test]
fn a_jump_over_a_lock_prefix_is_a_jump_into_an_instruction() {
    // 0: 74 01           je   3
    // 2: f0 48 0f b1 0f  lock cmpxchg %rcx,(%rdi)
    // 7: c3              ret
    let function = Function::new(&[0x74, 0x01, 0xf0, 0x48, 0x0f, 0xb1, 0x0f, 0xc3], &[]);
    let refusal = function.refusal(2, Tactic::OneInstruction);
    assert_eq!(refusal, Refusal::BranchTarget { at: START + 3 });
    // A breakpoint changes the prefix only.
    assert_eq!(function.at(2).unwrap().tactic, Tactic::Int3);
}

/// ```text
/// 0: 31 c0  xor %eax,%eax
/// 2: ff c0  inc %eax
/// 4: 39 f8  cmp %edi,%eax
/// 6: 75 fa  jne 2
/// 8: c3     ret
/// ```
const LOOP: &[u8] = &[0x31, 0xc0, 0xff, 0xc0, 0x39, 0xf8, 0x75, 0xfa, 0xc3];

#[test]
fn a_loop_into_the_region() {
    let function = Function::new(LOOP, &[]);
    let refusal = function.refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::BranchTarget { at: START + 2 });
    let shape = function.at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Int3, 0, 1, 2, 1));
    // The loop's head itself may be a jump target.
    let shape = function.at(2).unwrap();
    assert_eq!(summary(&shape), (Tactic::Region, 2, 8, 8, 3));
    assert!(!shape.at_entry);
}

#[test]
fn without_breakpoints_the_reason_is_passed_on() {
    let mut function = Function::new(LOOP, &[]);
    function.int3 = Err(Refusal::TrapUnusable("thread 7 blocks SIGTRAP"));
    let refused = function.at(0).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "region: something may jump to 0x401002, which would be covered; \
         int3: breakpoints cannot be used: thread 7 blocks SIGTRAP"
    );
}

/// Above the program, as far as a jump reaches.
const ABOVE: std::ops::Range<u64> = 0x1000_0000..0x8000_0000;

/// ```text
/// before  31 c0 │ ff c0 39 f8 …       xor %eax,%eax; inc %eax; cmp %edi,%eax
/// after   e9 xx │ ff c0 39            jmp .+5+0x39c0ffxx
/// ```
#[test]
fn a_pun_shares_the_bytes_behind() {
    let function = Function::new(LOOP, &[]);
    let shape = function.placed(0, std::slice::from_ref(&ABOVE)).unwrap();
    assert_eq!(summary(&shape), (Tactic::Punned, 0, 2, 6, 3));
    let placed = shape.placed.expect("a placed shape");
    let [write] = &placed.writes[..] else {
        panic!("{placed:x?}")
    };
    assert_eq!(
        (write.address, write.before.len(), write.after[0]),
        (START, 2, 0xe9)
    );
    let [stub] = placed.stubs[..] else {
        panic!("{placed:x?}")
    };
    let displacement = u64::from(u32::from_le_bytes([
        write.after[1],
        LOOP[2],
        LOOP[3],
        LOOP[4],
    ]));
    assert_eq!(
        (stub.address, stub.to),
        (START + 5 + displacement, StubTo::Detour)
    );
    assert_eq!(placed.relies_on, [(START, LOOP[..6].to_vec())]);
    // The required address is not free, and no neighbouring bytes lead to free memory.
    let elsewhere = function
        .placed(0, std::slice::from_ref(&(ABOVE.start..0x3000_0000)))
        .unwrap();
    assert_eq!(elsewhere.tactic, Tactic::Int3);
}

/// A `ret` before other code: the whole displacement is given by that code.
#[test]
fn a_pun_over_one_byte_has_one_address() {
    // c3 ret │ 89 f8 mov %edi,%eax; 5b pop %rbx; 48 … is other code
    let mut function = Function::new(&[0xc3], &[0x89, 0xf8, 0x5b, 0x48, 0x90]);
    function.next = Some(Extent::new(START + 1, START + 1)); // nothing is known of it
    let stub = START + 5 + 0x485b_f889;
    let shape = function.placed(0, std::slice::from_ref(&ABOVE)).unwrap();
    assert_eq!(summary(&shape), (Tactic::PunnedByte, 0, 1, 1, 1));
    let placed = shape.placed.expect("a placed shape");
    assert_eq!(placed.stubs[0].address, stub);
    assert_eq!(placed.writes[0].after, [0xe9]);
    // If that address is taken, only a breakpoint is left.
    let page = stub & !0xfff;
    let shape = function
        .placed(0, &[ABOVE.start..page, page + 0x1000..ABOVE.end])
        .unwrap();
    assert_eq!(shape.tactic, Tactic::Int3);
}

/// Unused bytes after the function hold the jump, and the site holds a short jump to it.
#[test]
fn unused_bytes_nearby_hold_the_jump() {
    // 31 c0 xor %eax,%eax; 1: ff c0 inc; 39 f8 cmp; 75 fa jne 1b; c3 ret; cc…
    let bytes = [0x31, 0xc0, 0xff, 0xc0, 0x39, 0xf8, 0x75, 0xfa, 0xc3];
    let function = Function::new(&bytes, &[0xcc; 7]);
    // Only there: neither the bytes after the site nor a jump in them reach the free memory.
    let shape = function
        .placed(0, std::slice::from_ref(&(0x1000_0000..0x1000_1000)))
        .unwrap();
    assert_eq!(shape.tactic, Tactic::Evicted);
    let placed = shape.placed.expect("a placed shape");
    let [hole, site] = &placed.writes[..] else {
        panic!("{placed:x?}")
    };
    assert!(
        hole.address >= START + 9 && hole.after[0] == 0xe9,
        "{placed:x?}"
    );
    let landing = site.address + 2 + u64::from(site.after[1]);
    assert_eq!(
        (site.address, site.after[0], landing),
        (START, 0xeb, hole.address)
    );
}

#[test]
fn calls_only_at_the_end() {
    // 53 push %rbx; ff d0 call *%rax; 5b pop %rbx; c3 ret
    let function = Function::new(&[0x53, 0xff, 0xd0, 0x5b, 0xc3], &[]);
    let refusal = function.refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::CallInside { at: START + 1 });
    // 48 89 fb mov %rdi,%rbx; ff d0 call *%rax; c3 ret
    let mut function = Function::new(&[0x48, 0x89, 0xfb, 0xff, 0xd0, 0xc3], &[]);
    let shape = function.at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Region, 0, 5, 5, 2));
    function.shadow_stack = true;
    let refusal = function.refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::ShadowStack { at: START + 3 });
    // A call that does not return, before padding: its return address is in the padding.
    let function = Function::new(&[0xff, 0xd0], &[0xcc; 14]);
    let refusal = function.refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::CallInside { at: START });
}

#[test]
fn padding_behind_the_function() {
    // 31 c0 xor %eax,%eax; c3 ret
    let tiny = [0x31, 0xc0, 0xc3];
    for padding in [&[0xcc; 13][..], &[0x90; 2], &[0x66, 0x0f, 0x1f, 0x44, 0, 0]] {
        let shape = Function::new(&tiny, padding).at(0).unwrap();
        let end = if padding.len() == 6 { 9 } else { 5 };
        assert_eq!(summary(&shape), (Tactic::Region, 0, end, 3, 2));
    }
    // The next function begins too soon, or there is other code.
    for padding in [&[][..], &[0x90], &[0x90, 0x55]] {
        let refusal = Function::new(&tiny, padding).refusal(0, Tactic::Region);
        assert_eq!(refusal, Refusal::EndsTooSoon { at: START + 3 });
    }
    // Something jumps to the padding.
    let mut function = Function::new(&tiny, &[0xcc; 13]);
    function.targets.insert(START + 3);
    let refusal = function.refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::BranchTarget { at: START + 3 });
    // The function runs off its end: 31 c0 xor %eax,%eax
    let refusal = Function::new(&[0x31, 0xc0], &[0x90; 14]).refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::EndsTooSoon { at: START + 2 });
}

#[test]
fn indirect_jumps() {
    // 48 8b 07 mov (%rdi),%rax; 48 ff c7 inc %rdi; ff 60 10 jmp *0x10(%rax)
    let bytes = [0x48, 0x8b, 0x07, 0x48, 0xff, 0xc7, 0xff, 0x60, 0x10];
    let mut function = Function::new(&bytes, &[]);
    let unresolved = Refusal::UnresolvedIndirectJump { at: START + 6 };
    assert_eq!(function.refusal(0, Tactic::Region), unresolved);
    // All pointers to code are known: it is a tail call.
    function.targets.set_pointers_known();
    let shape = function.at(0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Region, 0, 6, 6, 2));
    assert!(!shape.at_entry, "a computed goto could lead to the start");
    // 48 01 f8 add %rdi,%rax; ff e0 jmp *%rax: a computed address.
    let mut function = Function::new(&[0x48, 0x01, 0xf8, 0xff, 0xe0], &[]);
    function.targets.set_pointers_known();
    let unresolved = Refusal::UnresolvedIndirectJump { at: START + 3 };
    assert_eq!(function.refusal(0, Tactic::Region), unresolved);
}

/// ```text
///  0: 31 c0                 xor  %eax,%eax
///  2: ff c0                 inc  %eax
///  4: 90                    nop
///  5: 83 ff 01              cmp  $1,%edi
///  8: 77 0f                 ja   25
/// 10: 89 ff                 mov  %edi,%edi
/// 12: 48 8b 04 fd 00 00 50 00
///                           mov  TABLE(,%rdi,8),%rax
/// 20: ff e0                 jmp  *%rax
/// 22: ff c0                 inc  %eax
/// 24: c3                    ret
/// 25: ff c8                 dec  %eax
/// 27: c3                    ret
/// ```
#[test]
fn what_jumps_past_the_load_of_a_switch_may_go_anywhere() {
    let bytes = [
        0x31, 0xc0, 0xff, 0xc0, 0x90, 0x83, 0xff, 1, 0x77, 0x0f, 0x89, 0xff, 0x48, 0x8b, 0x04,
        0xfd, 0, 0, 0x50, 0, 0xff, 0xe0, 0xff, 0xc0, 0xc3, 0xff, 0xc8, 0xc3,
    ];
    let mut function = Function::new(&bytes, &[]);
    let cases = [START + 22, START + 25];
    function.table = cases.iter().flat_map(|case| case.to_le_bytes()).collect();
    let region = (Tactic::Region, 0, 5, 5, 3);
    assert_eq!(summary(&function.at(0).unwrap()), region);
    // What jumps to the load itself uses this table.
    function.targets.insert(START + 12);
    assert_eq!(summary(&function.at(0).unwrap()), region);
    function.targets.insert(START + 20);
    let unresolved = Refusal::UnresolvedIndirectJump { at: START + 20 };
    assert_eq!(function.refusal(0, Tactic::Region), unresolved);
}

#[test]
fn where_nothing_may_be_changed() {
    let mut function = Function::new(PROLOGUE, &[]);
    function.forbidden = vec![Extent::new(START + 4, START + 6)];
    let range = function.forbidden[0];
    let refusal = function.refusal(0, Tactic::Region);
    assert_eq!(refusal, Refusal::Forbidden { range });
    assert_eq!(function.at(0).unwrap().tactic, Tactic::Int3);
    let refused = function.at(4).unwrap_err();
    assert_eq!(
        refused.refusals,
        Tactic::ALL.map(|t| (t, Refusal::Forbidden { range }))
    );
    assert_eq!(
        refused.to_string(),
        "the code at 0x401004-0x401006 must not be changed"
    );
}

#[test]
fn sites_that_are_none() {
    let function = Function::new(PROLOGUE, &[0xcc; 4]);
    let instruction = Extent::new(START + 1, START + 4);
    let site = START + 2;
    let refusal = function.refusal(2, Tactic::Int3);
    assert_eq!(refusal, Refusal::NotABoundary { site, instruction });
    let site = START + 12;
    let extent = Extent::new(START, START + 12);
    let refusal = function.refusal(12, Tactic::Int3);
    assert_eq!(
        refusal,
        Refusal::OutsideFunction {
            site,
            function: extent
        }
    );
    // cc int3; c3 ret
    let refusal = Function::new(&[0xcc, 0xc3], &[]).refusal(0, Tactic::Int3);
    assert_eq!(refusal, Refusal::BreakpointPresent { at: START });
}

#[test]
fn data_between_the_code() {
    // 0: eb 04        jmp 6
    // 2: 01 02 b8 04  data, which would decode as add %eax,(%rdx); mov $...,%eax
    // 6: 31 c0        xor %eax,%eax
    // 8: c3 90        ret; nop
    let bytes = [0xeb, 0x04, 0x01, 0x02, 0xb8, 0x04, 0x31, 0xc0, 0xc3, 0x90];
    let function = Function::new(&bytes, &[0x90; 6]);
    let overlap = Refusal::OverlappingCode { at: START + 6 };
    assert_eq!(function.refusal(2, Tactic::Int3), overlap);
    // The path to the jump is certain, but other jumps and their targets are not.
    assert_eq!(function.refusal(0, Tactic::Region), overlap);
    assert_eq!(function.at(0).unwrap().tactic, Tactic::Int3);
    // 31 c0 xor %eax,%eax; c3 ret; 06 no instruction in 64-bit mode
    let function = Function::new(&[0x31, 0xc0, 0xc3, 0x06, 0x90, 0x90], &[]);
    let undecodable = Refusal::Undecodable { at: START + 3 };
    assert_eq!(function.refusal(0, Tactic::Region), undecodable);
    assert_eq!(function.refusal(4, Tactic::Int3), undecodable);
}

#[test]
fn code_that_nothing_reaches() {
    // 31 c0 xor %eax,%eax; c3 ret; b8 .. mov $0,%eax; c3 ret
    let bytes = [0x31, 0xc0, 0xc3, 0xb8, 0, 0, 0, 0, 0xc3];
    let mut function = Function::new(&bytes, &[]);
    let site = START + 3;
    assert_eq!(
        function.refusal(3, Tactic::Int3),
        Refusal::NotReached { site }
    );
    // A landing pad, where execution continues after an exception.
    function.pads = vec![site];
    function.targets.insert(site);
    assert_eq!(function.at(3).unwrap().tactic, Tactic::OneInstruction);
}

#[test]
fn what_cannot_be_run_elsewhere() {
    // 0f 05 syscall; c3 ret
    let function = Function::new(&[0x0f, 0x05, 0xc3], &[0x90; 13]);
    let refusal = Refusal::NotRelocatable(RelocateError::SystemCall { at: START });
    assert_eq!(function.refusal(0, Tactic::Region), refusal);
    assert_eq!(function.refusal(0, Tactic::Int3), refusal);
    // The same further on: 31 c0 xor %eax,%eax; 0f 05 syscall; c3 ret
    let function = Function::new(&[0x31, 0xc0, 0x0f, 0x05, 0xc3], &[]);
    let refusal = Refusal::NotRelocatable(RelocateError::SystemCall { at: START + 2 });
    assert_eq!(function.refusal(0, Tactic::Region), refusal);
    assert_eq!(function.at(0).unwrap().tactic, Tactic::Int3);
}

#[test]
fn go_and_missing_knowledge_forbid_regions() {
    let mut function = Function::new(PROLOGUE, &[]);
    function.go = true;
    assert_eq!(function.refusal(0, Tactic::Region), Refusal::GoPreemption);
    let mut function = Function::new(PROLOGUE, &[]);
    function
        .targets
        .mark_incomplete("its exception tables are damaged");
    let refusal = function.refusal(0, Tactic::Region);
    let why = "not all jumps of the object are known: its exception tables are damaged";
    assert_eq!(refusal.to_string(), why);
}

#[test]
fn a_cold_part_with_an_unknown_jump() {
    // Another piece of code, 0x40 after the start, jumps into the function and
    // has an indirect jump: eb c4 jmp START+6; 48 01 f8 add; ff e0 jmp *%rax
    let mut text = PROLOGUE.to_vec();
    text.resize(0x40, 0xcc);
    text.extend([0xeb, 0xc4, 0x48, 0x01, 0xf8, 0xff, 0xe0]);
    let mut function = Function::new(PROLOGUE, &text[PROLOGUE.len()..]);
    assert_eq!(
        function.refusal(0, Tactic::Region),
        Refusal::UnresolvedPartJump { at: START + 6 }
    );
    // Without the indirect jump, that code is harmless, except for the target address itself.
    text.truncate(0x42);
    function = Function::new(PROLOGUE, &text[PROLOGUE.len()..]);
    assert_eq!(
        summary(&function.at(0).unwrap()),
        (Tactic::Region, 0, 6, 6, 3)
    );
    // A region that starts at the third instruction would cover it, so the jump is placed at the
    // second.
    let led = function.at(4).unwrap();
    assert_eq!(led.site, START + 4);
    assert_eq!(summary(&led), (Tactic::Region, 1, 6, 6, 2));
}

#[test]
fn a_jump_before_the_site() {
    let led = |code: &[u8], site: u64| {
        let shape = Function::new(code, &[]).at(site);
        let shape = shape.ok().filter(|shape| shape.tactic == Tactic::Region)?;
        assert_eq!((shape.site, shape.at_entry), (START + site, false));
        Some(shape.covered.start - START)
    };
    // push %rbx; add $8,%rsp; ret: placed at the add.
    assert_eq!(led(&[0x53, 0x48, 0x83, 0xc4, 0x08, 0xc3], 5), Some(1));
    // nop of 9 bytes; mov %rdi,%rax; ret: placed at an instruction that is long enough by itself.
    let nop = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    let code = [&[0x53], &nop[..], &[0x48, 0x89, 0xf8, 0xc3]].concat();
    assert_eq!(led(&code, 13), Some(1));
    // test %edi,%edi; je 7; xor %eax,%eax; ret; 7: ... The conditional jump is part of the region.
    let jump = [0x85, 0xff, 0x74, 0x03, 0x31, 0xc0, 0xc3, 0x0f, 0x0b];
    assert_eq!(led(&jump, 6), Some(2));
    // The same, but the ret is a jump target: xor %eax,%eax; test %edi,%edi; je 7; inc %eax; ret
    let target = [0x31, 0xc0, 0x85, 0xff, 0x74, 0x02, 0xff, 0xc0, 0xc3];
    assert_eq!(led(&target, 8), None);
    // call; pop %rbx; ret: only a call precedes it, which returns to the pop.
    let call = [0xe8, 0, 1, 0, 0, 0x5b, 0xc3];
    assert_eq!(led(&call, 6), None);
    // jmp back; pop %rbx; ret: the preceding instruction does not lead there.
    assert_eq!(
        led(&[0x85, 0xff, 0x74, 0x02, 0xeb, 0xfa, 0x5b, 0xc3], 7),
        None
    );
    // Not over `endbr64`, where indirect jumps may arrive: endbr64; xor %eax,%eax; ret
    let tracked = [0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xc0, 0xc3];
    assert_eq!(led(&tracked, 6), None);
    // Not from too far away.
    let far = [&[0x48, 0x31, 0xc0][..], &nop, &nop, &nop, &nop, &[0xc3]].concat();
    assert_eq!(led(&far, 39), Some(30));
    let mut pushes = vec![0x48, 0x83, 0xec, 0x08];
    pushes.extend([0x66, 0x90].repeat(20));
    pushes.push(0xc3);
    assert_eq!(led(&pushes, 44), Some(40));
}

#[test]
fn the_next_function_gives_way() {
    // test %edi,%edi; je 5; nop; 5: ret | push %rbp; mov %rsp,%rbp; push %rbx; push %rdi; ...
    let code = [0x85, 0xff, 0x74, 0x01, 0x90, 0xc3];
    let next = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x57, 0x5f, 0x5b, 0x5d, 0xc3];
    let mut function = Function::new(&code, &next);
    function.int3 = Err(Refusal::BreakpointsOff);
    // 0xe5894855, the displacement given by the bytes after the ret, does not lead to free memory.
    let free = std::slice::from_ref(&(START + (1 << 24)..START + 0x7fff_0000)).to_vec();
    let second = START + code.len() as u64;
    function.next = Some(Extent::new(second, second)); // nothing is known of it
    assert!(function.placed(5, &free).is_err());
    function.next = Some(Extent::new(second, second + next.len() as u64));
    let shape = function.placed(5, &free).unwrap();
    assert_eq!(shape.tactic, Tactic::Evicted);
    let placed = shape.placed.unwrap();
    let evicted: Vec<u64> = placed.evicted.iter().map(|i| i.ip() - second).collect();
    assert_eq!(evicted, [0, 1]);
    let writes: Vec<u64> = placed.writes.iter().map(|w| w.address).collect();
    assert_eq!(writes, [second + 1, second, START + 5]);
    // Not if something may jump past its first byte; nor over `endbr64`.
    function.targets.insert(second + 2);
    assert!(function.placed(5, &free).is_err());
    let tracked = [&[0xf3, 0x0f, 0x1e, 0xfa], &next[..]].concat();
    let mut function = Function::new(&code, &tracked);
    function.int3 = Err(Refusal::BreakpointsOff);
    function.next = Some(Extent::new(second, second + tracked.len() as u64));
    assert!(function.placed(5, &free).is_err());
}

#[test]
fn padding_between_blocks_is_room() {
    // test %edi,%edi; je 10; mov %edi,%eax; js 8; 8: ret | nop | 10: mov $20,%eax; ret
    let code = [
        0x85, 0xff, 0x74, 0x05, 0x89, 0xf8, 0x78, 0x00, 0xc3, 0xb8, 0x14, 0, 0, 0, 0xc3,
    ];
    let mut padded = code.to_vec();
    padded.insert(9, 0x90);
    padded[3] = 0x06;
    // The bytes of the mov lead 1.3 MB further, where memory is not free.
    let free = [START + (1 << 24)..START + 0x7fff_0000, 0..0];
    let mut function = Function::new(&padded, &[]);
    function.int3 = Err(Refusal::BreakpointsOff);
    let shape = function.placed(8, &free).unwrap();
    let placed = shape.placed.unwrap();
    // The nop is changed together with the ret, and the mov is evicted.
    let writes: Vec<(u64, usize)> = placed
        .writes
        .iter()
        .map(|w| (w.address - START, w.after.len()))
        .collect();
    assert_eq!(writes, [(10, 5), (8, 2)]);
    assert_eq!(placed.evicted.len(), 1);
    // If something may jump to the nop, it cannot be used.
    function.targets.insert(START + 9);
    assert!(function.placed(8, &free).is_err());
}

#[test]
fn static_markers_stay_where_they_are() {
    // mov %edi,%eax; nop, a marker; lea 1(%rax),%eax; ret
    let code = [0x89, 0xf8, 0x90, 0x8d, 0x40, 0x01, 0xc3];
    let mut function = Function::new(&code, &[]);
    function.targets.insert_markers([START + 2]);
    assert_eq!(
        function.refusal(0, Tactic::Region),
        Refusal::MarkerInside { at: START + 2 }
    );
    // The marker itself is an ordinary site; a jump before it is possible only if the marker is
    // the site.
    assert_eq!(summary(&function.at(2).unwrap()).0, Tactic::Region);
    assert!(function.from(3, 2).is_ok() && function.from(3, 0).is_err());
}

#[test]
fn a_jump_for_two_sites() {
    // mov 8(%rdi),%rax; ret: both are reached from the start.
    let function = Function::new(&[0x48, 0x8b, 0x47, 0x08, 0xc3], &[]);
    let shape = function.from(4, 0).unwrap();
    assert_eq!(summary(&shape), (Tactic::Region, 0, 5, 5, 2));
    assert_eq!((shape.site, shape.at_entry), (START + 4, false));
    let first = function.from(0, 0).unwrap();
    assert_eq!(summary(&first), summary(&shape));
    assert_eq!((first.site, first.at_entry), (START, true));
    // Not from after it, from inside an instruction, from too far away, or over a return.
    assert!(function.from(0, 4).is_err());
    assert!(function.from(4, 1).is_err());
    let far = Function::new(&[&[0x90; 40][..], &[0xc3]].concat(), &[]);
    assert!(far.from(40, 0).is_err() && far.from(32, 0).is_ok());
    let twice = Function::new(&[0xc3, 0x31, 0xc0, 0x31, 0xc0, 0xc3], &[]);
    assert!(twice.from(5, 0).is_err());
}

#[test]
fn below_the_stack_pointer() {
    assert!(Function::new(PROLOGUE, &[]).at(0).unwrap().at_entry);
    assert!(!Function::new(PROLOGUE, &[]).at(1).unwrap().at_entry);
    // A split-off part is entered with the red zone in use.
    let mut cold = Function::new(PROLOGUE, &[]);
    cold.split_part = true;
    assert!(!cold.at(0).unwrap().at_entry);
    // The same holds if nothing calls the function but something jumps to it.
    let mut jumped = Function::new(PROLOGUE, &[]);
    jumped.targets = Targets::new(Extent::new(START, START + 64));
    jumped.targets.insert(START);
    assert!(!jumped.at(0).unwrap().at_entry);
    jumped.targets.insert_entry(START);
    assert!(jumped.at(0).unwrap().at_entry);
    // ff c7 inc %edi; 83 ff 63 cmp $99,%edi; 75 f9 jne 0; c3 ret
    let again = Function::new(&[0xff, 0xc7, 0x83, 0xff, 0x63, 0x75, 0xf9, 0xc3], &[]);
    assert!(!again.at(0).unwrap().at_entry);
}

#[test]
fn every_refusal_reads_as_a_sentence() {
    for refusal in [
        Refusal::BreakpointsOff,
        Refusal::TrapUnusable("the program is traced"),
        Refusal::NotReached { site: START },
        Refusal::NotRelocatable(RelocateError::Trap { at: START }),
    ] {
        let text = refusal.to_string();
        assert!(
            !text.ends_with('.') && !text.contains('\n') && text.len() > 15,
            "{text}"
        );
        assert!(
            refusal
                .key()
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        );
    }
}
