//! Output for people and for programs: tables, reports, JSON, help.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use serde_json::Value;
use std::path::{Path, PathBuf};
use traces::{record, scratch, text};

/// Builds a program of fixed bytes at fixed addresses.
fn shapes() -> Option<PathBuf> {
    let flags = [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-Ttext=0x401000",
        "-Wl,--build-id=none",
    ];
    build(Compiler::Gcc, "shapes.S", &flags)
}

fn of(program: &Path, words: &[&str], status: i32) -> String {
    let output = capriole(words);
    assert_eq!(output.status.code(), Some(status), "{}", told(&output));
    assert_eq!(output.stderr, b"", "{}", told(&output));
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    stdout.replace(text(program), "PROGRAM")
}

#[test]
fn list() {
    let Some(program) = shapes() else { return };
    let path = text(&program);
    insta::assert_snapshot!(of(&program, &["list", path], 0), @r"
     ADDRESS    BYTES  TACTIC    FUNCTION
    0x401000       70  region    _start
    0x401050       10  reserved  shape_reserved
    0x401060        6  jump      shape_jump
    0x401070        9  region    shape_region
    0x401080       10  jump      shape_endbr
    0x401090        1  pun-byte  shape_short
    0x401091        3  region    shape_behind
    0x4010a0        7  pun       shape_loop
    0x4010b0       22  region    shape_table
    0x4010d0        3  int3      shape_stubborn  (something may jump to 0x4010d1, which would be covered)
    0x4010e0        2  int3      shape_overlap  (less than 5 bytes up to 0x4010e2, and no unused padding follows)
    ");
    insta::assert_snapshot!(of(&program, &["list", "--summary", path], 0), @r"
    11 functions
      reserved                             1    9.09 %
      jump                                 2   18.18 %
      region                               4   36.36 %
      pun                                  1    9.09 %
      pun-byte                             1    9.09 %
      evict                                0    0.00 %
      trapped                              0    0.00 %
      int3                                 2   18.18 %
      none                                 0    0.00 %
    why not a jump:
      branch-target                        1    9.09 %
      ends-too-soon                        1    9.09 %
    refused, tactic by tactic:
      reserved  no-reserved-bytes                   10
      jump      short-instruction                    8
      region    branch-target                        2
                ends-too-soon                        2
      pun       branch-target                        1
                no-stub-address                      1
                other-length                         1
      pun-byte  other-length                         2
      evict     branch-target                        1
                no-neighbour                         1
      trapped   branch-target                        1
                ends-too-soon                        1
    ");
    insta::assert_snapshot!(of(&program, &["list", "--summary", "--json", path], 0), @r#"{"functions":11,"tactics":{"int3":2,"jump":2,"pun":1,"pun-byte":1,"region":4,"reserved":1},"refusals":{"branch-target":1,"ends-too-soon":1},"refused":{"evict":{"branch-target":1,"no-neighbour":1},"jump":{"short-instruction":8},"pun":{"branch-target":1,"no-stub-address":1,"other-length":1},"pun-byte":{"other-length":2},"region":{"branch-target":2,"ends-too-soon":2},"reserved":{"no-reserved-bytes":10},"trapped":{"branch-target":1,"ends-too-soon":1}}}"#);
    insta::assert_snapshot!(of(&program, &["list", "shape_jump", "--json", path], 0), @r#"
    [
      {
        "event": "shape_jump",
        "object": "PROGRAM",
        "symbol": "shape_jump",
        "offset": "0x1060",
        "address": "0x401060",
        "tactic": "jump",
        "refusals": [
          {
            "tactic": "reserved",
            "reason": "no nops at the site"
          }
        ]
      }
    ]
    "#);
}

#[test]
fn list_every_instruction() {
    let Some(program) = shapes() else { return };
    let path = text(&program);
    let words = ["list", "--summary", "--instructions", path];
    insta::assert_snapshot!(of(&program, &words, 0), @r"
    46 instructions of 11 functions, without 0 that nothing leads to
      reserved                             1    2.17 %
      jump                                18   39.13 %
      region                              22   47.83 %
      pun                                  1    2.17 %
      pun-byte                             0    0.00 %
      evict                                0    0.00 %
      trapped                              0    0.00 %
      int3                                 3    6.52 %
      none                                 1    2.17 %
    why not a jump:
      ends-too-soon                        2    4.35 %
      branch-target                        1    2.17 %
      not-relocatable                      1    2.17 %
    refused, tactic by tactic:
      reserved  no-reserved-bytes                   45
      jump      short-instruction                   27
      region    branch-target                        2
                ends-too-soon                        2
                not-relocatable                      1
      pun       branch-target                        1
                no-stub-address                      1
                not-relocatable                      1
                other-length                         1
      pun-byte  other-length                         3
                no-stub-address                      1
      evict     no-neighbour                         2
                branch-target                        1
                not-relocatable                      1
      trapped   ends-too-soon                        2
                branch-target                        1
                not-relocatable                      1
      int3      not-relocatable                      1
    ");
    let words = [
        "list",
        "--summary",
        "--instructions",
        "--json",
        "shape_[rj]*",
        path,
    ];
    insta::assert_snapshot!(of(&program, &words, 0), @r#"{"functions":3,"tactics":{"jump":1,"region":8,"reserved":1},"refusals":{},"refused":{"jump":{"short-instruction":8},"reserved":{"no-reserved-bytes":9}},"instructions":10,"not_reached":0}"#);
}

/// Returns the output about the sites, without the detours.
fn without_detours(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in text.lines() {
        inside = line.starts_with("  registers") || inside && line.starts_with("  ");
        if !inside {
            out += line;
            out.push('\n');
        }
    }
    out
}

#[test]
fn check() {
    let Some(program) = shapes() else { return };
    let path = text(&program);
    insta::assert_snapshot!(without_detours(&of(&program, &["check", ":shape_*", path], 0)), @r"
    shape_reserved in PROGRAM, file offset 0x1050, address 0x401050
      reserved  yes: nops that may be overwritten stand here
      before    0f 1f 44 00 00
      after     e9 .. .. .. ..
      displaced nothing
      goes on   at 0x401055: lea (%rdi,%rsi),%rax
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_jump in PROGRAM, file offset 0x1060, address 0x401060
      reserved  no: no nops at the site
      jump      yes: a jump over one instruction
      before    b8 07 00 00 00
      after     e9 .. .. .. ..
      displaced 0x401060: mov $7,%eax
      goes on   at 0x401065: ret
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_region in PROGRAM, file offset 0x1070, address 0x401070
      reserved  no: no nops at the site
      jump      no: the instruction has 1 byte, 5 are needed
      region    yes: a jump over several instructions
      before    55 48 89 e5 48 89 f8
      after     e9 .. .. .. .. 89 f8
      displaced 0x401070: push %rbp
                0x401071: mov %rsp,%rbp
                0x401074: mov %rdi,%rax
      goes on   at 0x401077: pop %rbp
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_endbr in PROGRAM, file offset 0x1080, address 0x401080
      reserved  no: no nops at the site
      jump      yes: a jump over one instruction
      the probe goes behind endbr64, to 0x401084
      before    b8 08 00 00 00
      after     e9 .. .. .. ..
      displaced 0x401084: mov $8,%eax
      goes on   at 0x401089: ret
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_short in PROGRAM, file offset 0x1090, address 0x401090
      reserved  no: no nops at the site
      jump      no: the instruction has 1 byte, 5 are needed
      region    no: less than 5 bytes up to 0x401091, and no unused padding follows
      pun       no: the instruction has 1 byte
      pun-byte  yes: a jump of which only the first byte is new
      before    0x401090: c3
      after     0x401090: e9
      needs     the jump at 0x401091, with e9 ef c9 75
      stub      0x760a007e, to the detour
      displaced 0x401090: ret
      goes on   where the last of these leads
      live      rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_behind in PROGRAM, file offset 0x1091, address 0x401091
      reserved  no: no nops at the site
      jump      no: the instruction has 2 bytes, 5 are needed
      region    yes: a jump over several instructions
      before    0x401091: 89 f8 c3 cc cc
      after     0x401091: e9 ef c9 75 12
      stub      0x12b5da85, to the detour
      displaced 0x401091: mov %edi,%eax
                0x401093: ret
      goes on   where the last of these leads
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_loop in PROGRAM, file offset 0x10a0, address 0x4010a0
      reserved  no: no nops at the site
      jump      no: the instruction has 2 bytes, 5 are needed
      region    no: something may jump to 0x4010a2, which would be covered
      pun       yes: a jump that shares bytes with the next instruction
      before    0x4010a0: 89 f9 ff c9 75
      after     0x4010a0: e9 00 ff c9 75
      stub      0x760a0fa5, to the detour
      displaced 0x4010a0: mov %edi,%ecx
                0x4010a2: dec %ecx
      goes on   at 0x4010a4: jne 0x4010a2
      live      rax rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_table in PROGRAM, file offset 0x10b0, address 0x4010b0
      reserved  no: no nops at the site
      jump      no: the instruction has 3 bytes, 5 are needed
      region    yes: a jump over several instructions
      before    83 e7 03 ff 24 fd 00 20 40 00
      after     e9 .. .. .. .. fd 00 20 40 00
      displaced 0x4010b0: and $3,%edi
                0x4010b3: jmpq *0x402000(,%rdi,8)
      goes on   where the last of these leads
      live      rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15
      red zone  dead: the function is entered here
    shape_stubborn in PROGRAM, file offset 0x10d0, address 0x4010d0
      reserved  no: no nops at the site
      jump      no: the instruction has 2 bytes, 5 are needed
      region    no: something may jump to 0x4010d1, which would be covered
      pun       no: something may jump to 0x4010d1, which would be covered
      pun-byte  no: the instruction has 2 bytes
      evict     no: something may jump to 0x4010d1, which would be covered
      trapped   no: something may jump to 0x4010d1, which would be covered
      int3      yes: a breakpoint, which costs about 100 times more than a jump
      before    89
      after     cc
      displaced 0x4010d0: mov %edi,%eax
      goes on   at 0x4010d2: ret
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    shape_overlap in PROGRAM, file offset 0x10e0, address 0x4010e0
      reserved  no: no nops at the site
      jump      no: the instruction has 2 bytes, 5 are needed
      region    no: less than 5 bytes up to 0x4010e2, and no unused padding follows
      pun       no: the bytes behind the instruction would lead the jump to addresses that are in use
      pun-byte  no: the instruction has 2 bytes
      evict     no: no instruction or unused bytes nearby could make room for the jump
      trapped   no: less than 5 bytes up to 0x4010e2, and no unused padding follows
      int3      yes: a breakpoint, which costs about 100 times more than a jump
      before    eb
      after     cc
      displaced 0x4010e0: jmp 0x4010d1
      goes on   where the last of these leads
      live      rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
    ");
    insta::assert_snapshot!(of(&program, &["check", ":shape_loop+3", path], 1), @r"
    shape_loop+0x3 in PROGRAM, file offset 0x10a3, address 0x4010a3
      it cannot be probed: 0x4010a3 is in the middle of the instruction at 0x4010a2; the next one begins at 0x4010a4
    ");
}

#[test]
fn check_detours() {
    let Some(program) = shapes() else { return };
    let path = text(&program);
    let event = ":shape_region $arg1 third=$arg3";
    // Live flags, a field that is only read, and a field whose register is needed.
    insta::assert_snapshot!(of(&program, &["check", event, path], 0), @r"
    shape_region in PROGRAM, file offset 0x1070, address 0x401070
      reserved  no: no nops at the site
      jump      no: the instruction has 1 byte, 5 are needed
      region    yes: a jump over several instructions
      before    55 48 89 e5 48 89 f8
      after     e9 .. .. .. .. 89 f8
      displaced 0x401070: push %rbp
                0x401071: mov %rsp,%rbp
                0x401074: mov %rdi,%rax
      goes on   at 0x401077: pop %rbp
      live      rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  dead: the function is entered here
      registers rax: dead, not saved
                rdx: holds the field third, saved
                rdi: holds the field arg1, is only read
                r10: live, saved
                r11: live, saved
                flags: live, saved
      detour    185 bytes, for threads as glibc 2.36 has them
      save      0x40412e: mov %rdx,-0x10(%rsp)
                0x404133: mov %r11,-0x18(%rsp)
                0x404138: mov %r10,-0x20(%rsp)
                0x40413d: lahf
                0x40413e: seto %al
                0x404141: mov %rax,-0x28(%rsp)
      record    0x404146: lea descriptor,%rax
                0x40414d: mov %rax,%fs:0x928               restartable from here
                0x404156: movslq %fs:0x924,%r11            the CPU
                0x40415f: shl $6,%r11
                0x404163: add streams,%r11
                0x40416a: rdtsc                            the time
                0x40416c: mov (%r11),%r10d
                0x404170: add $4,%r10d
                0x404174: cmp 4(%r11),%r10d
                0x404178: ja cold                          no room
                0x40417a: cmp $limit,%r10d
                0x404181: ja cold                          no room
                0x404183: mov %eax,-0x20(%r11,%r10,8)
                0x404188: mov %edx,-0x1c(%r11,%r10,8)
                0x40418d: mov %rdi,-0x10(%r11,%r10,8)      arg1
                0x404192: mov -0x10(%rsp),%rax
                0x404197: mov %rax,-8(%r11,%r10,8)         third
                0x40419c: movl $0,-0x18(%r11,%r10,8)       event 0
                0x4041a5: mov %fs:0x2d0,%eax               the thread's id
                0x4041ad: mov %eax,-0x14(%r11,%r10,8)
      commit    0x4041b2: mov %r10d,(%r11)
      restore   0x4041b6: mov -0x28(%rsp),%rax
                0x4041bb: add $0x7f,%al
                0x4041bd: sahf
                0x4041be: mov -0x20(%rsp),%r10
                0x4041c3: mov -0x18(%rsp),%r11
                0x4041c8: mov -0x10(%rsp),%rdx
      copy      0x4041cd: push %rbp                        of 0x401070
                0x4041ce: mov %rsp,%rbp                    of 0x401071
                0x4041d1: mov %rdi,%rax                    of 0x401074
      go on     0x4041d4: jmp 0x401077
      cold      14 bytes, and 138 shared: `switch` if a packet is full, `locked` if restarted
    ");
    // Dead flags, and an indirect jump that does not return.
    insta::assert_snapshot!(of(&program, &["check", ":shape_table", path], 0), @r"
    shape_table in PROGRAM, file offset 0x10b0, address 0x4010b0
      reserved  no: no nops at the site
      jump      no: the instruction has 3 bytes, 5 are needed
      region    yes: a jump over several instructions
      before    83 e7 03 ff 24 fd 00 20 40 00
      after     e9 .. .. .. .. fd 00 20 40 00
      displaced 0x4010b0: and $3,%edi
                0x4010b3: jmpq *0x402000(,%rdi,8)
      goes on   where the last of these leads
      live      rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15
      red zone  dead: the function is entered here
      registers rax: live, saved
                rdx: live, saved
                r10: live, saved
                r11: live, saved
                flags: dead, not saved
      detour    161 bytes, for threads as glibc 2.36 has them
      save      0x40410e: mov %rax,-0x10(%rsp)
                0x404113: mov %rdx,-0x18(%rsp)
                0x404118: mov %r11,-0x20(%rsp)
                0x40411d: mov %r10,-0x28(%rsp)
      record    0x404122: lea descriptor,%rax
                0x404129: mov %rax,%fs:0x928               restartable from here
                0x404132: movslq %fs:0x924,%r11            the CPU
                0x40413b: shl $6,%r11
                0x40413f: add streams,%r11
                0x404146: rdtsc                            the time
                0x404148: mov (%r11),%r10d
                0x40414c: add $2,%r10d
                0x404150: cmp 4(%r11),%r10d
                0x404154: ja cold                          no room
                0x404156: cmp $limit,%r10d
                0x40415d: ja cold                          no room
                0x40415f: mov %eax,-0x10(%r11,%r10,8)
                0x404164: mov %edx,-0xc(%r11,%r10,8)
                0x404169: movl $0,-8(%r11,%r10,8)          event 0
                0x404172: mov %fs:0x2d0,%eax               the thread's id
                0x40417a: mov %eax,-4(%r11,%r10,8)
      commit    0x40417f: mov %r10d,(%r11)
      restore   0x404183: mov -0x28(%rsp),%r10
                0x404188: mov -0x20(%rsp),%r11
                0x40418d: mov -0x18(%rsp),%rdx
                0x404192: mov -0x10(%rsp),%rax
      copy      0x404197: and $3,%edi                      of 0x4010b0
                0x40419a: jmpq *0x402000(,%rdi,8)          of 0x4010b3
      cold      14 bytes, and 127 shared: `switch` if a packet is full, `locked` if restarted
    ");
    // In the middle of a function, where the red zone may be in use; with a neighbour's copy.
    insta::assert_snapshot!(of(&program, &["check", ":shape_table+15", path], 0), @r"
    shape_table+0xf in PROGRAM, file offset 0x10bf, address 0x4010bf
      reserved  no: no nops at the site
      jump      no: the instruction has 1 byte, 5 are needed
      region    yes: a jump over several instructions
      at        0x4010ba, before the site
      before    b8 01 00 00 00 c3
      after     e9 .. .. .. .. c3
      displaced 0x4010ba: mov $1,%eax
                0x4010bf: ret
      goes on   where the last of these leads
      live      rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15, flags
      red zone  may be in use, skipped
      registers rax: live, saved
                rdx: live, saved
                r10: live, saved
                r11: live, saved
                flags: live, saved
      detour    192 bytes, for threads as glibc 2.36 has them
      copy      0x404298: mov $1,%eax                      of 0x4010ba
      go on     0x40429d: jmp 0x40412e
      save      0x40412e: lea -0x80(%rsp),%rsp
                0x404133: mov %rax,-0x10(%rsp)
                0x404138: mov %rdx,-0x18(%rsp)
                0x40413d: mov %r11,-0x20(%rsp)
                0x404142: mov %r10,-0x28(%rsp)
                0x404147: lahf
                0x404148: seto %al
                0x40414b: mov %rax,-0x30(%rsp)
      record    0x404150: lea descriptor,%rax
                0x404157: mov %rax,%fs:0x928               restartable from here
                0x404160: movslq %fs:0x924,%r11            the CPU
                0x404169: shl $6,%r11
                0x40416d: add streams,%r11
                0x404174: rdtsc                            the time
                0x404176: mov (%r11),%r10d
                0x40417a: add $2,%r10d
                0x40417e: cmp 4(%r11),%r10d
                0x404182: ja cold                          no room
                0x404184: cmp $limit,%r10d
                0x40418b: ja cold                          no room
                0x40418d: mov %eax,-0x10(%r11,%r10,8)
                0x404192: mov %edx,-0xc(%r11,%r10,8)
                0x404197: movl $0,-8(%r11,%r10,8)          event 0
                0x4041a0: mov %fs:0x2d0,%eax               the thread's id
                0x4041a8: mov %eax,-4(%r11,%r10,8)
      commit    0x4041ad: mov %r10d,(%r11)
      restore   0x4041b1: mov -0x30(%rsp),%rax
                0x4041b6: add $0x7f,%al
                0x4041b8: sahf
                0x4041b9: mov -0x28(%rsp),%r10
                0x4041be: mov -0x20(%rsp),%r11
                0x4041c3: mov -0x18(%rsp),%rdx
                0x4041c8: mov -0x10(%rsp),%rax
                0x4041cd: lea 0x80(%rsp),%rsp
      copy      0x4041d5: ret                              of 0x4010bf
      cold      14 bytes, and 133 shared: `switch` if a packet is full, `locked` if restarted
    ");
    insta::assert_snapshot!(of(&program, &["check", ":shape_reserved", "--json", path], 0), @r#"
    [
      {
        "event": "shape_reserved",
        "object": "PROGRAM",
        "symbol": "shape_reserved",
        "offset": "0x1050",
        "address": "0x401050",
        "tactic": "reserved",
        "refusals": [],
        "site": "0x401050",
        "before": "0f 1f 44 00 00",
        "resume": "0x401055",
        "live_registers": [
          "rcx",
          "rdx",
          "rbx",
          "rsp",
          "rbp",
          "rsi",
          "rdi",
          "r8",
          "r9",
          "r10",
          "r11",
          "r12",
          "r13",
          "r14",
          "r15"
        ],
        "live_flags": true,
        "red_zone": false,
        "detour": [
          {
            "address": "0x40412e",
            "text": "mov %rdx,-0x10(%rsp)",
            "what": "save"
          },
          {
            "address": "0x404133",
            "text": "mov %r11,-0x18(%rsp)",
            "what": "save"
          },
          {
            "address": "0x404138",
            "text": "mov %r10,-0x20(%rsp)",
            "what": "save"
          },
          {
            "address": "0x40413d",
            "text": "lahf",
            "what": "save"
          },
          {
            "address": "0x40413e",
            "text": "seto %al",
            "what": "save"
          },
          {
            "address": "0x404141",
            "text": "mov %rax,-0x28(%rsp)",
            "what": "save"
          },
          {
            "address": "0x404146",
            "text": "lea descriptor,%rax",
            "what": "record"
          },
          {
            "address": "0x40414d",
            "text": "mov %rax,%fs:0x928",
            "what": "record",
            "note": "restartable from here"
          },
          {
            "address": "0x404156",
            "text": "movslq %fs:0x924,%r11",
            "what": "record",
            "note": "the CPU"
          },
          {
            "address": "0x40415f",
            "text": "shl $6,%r11",
            "what": "record"
          },
          {
            "address": "0x404163",
            "text": "add streams,%r11",
            "what": "record"
          },
          {
            "address": "0x40416a",
            "text": "rdtsc",
            "what": "record",
            "note": "the time"
          },
          {
            "address": "0x40416c",
            "text": "mov (%r11),%r10d",
            "what": "record"
          },
          {
            "address": "0x404170",
            "text": "add $2,%r10d",
            "what": "record"
          },
          {
            "address": "0x404174",
            "text": "cmp 4(%r11),%r10d",
            "what": "record"
          },
          {
            "address": "0x404178",
            "text": "ja cold",
            "what": "record",
            "note": "no room"
          },
          {
            "address": "0x40417a",
            "text": "cmp $limit,%r10d",
            "what": "record"
          },
          {
            "address": "0x404181",
            "text": "ja cold",
            "what": "record",
            "note": "no room"
          },
          {
            "address": "0x404183",
            "text": "mov %eax,-0x10(%r11,%r10,8)",
            "what": "record"
          },
          {
            "address": "0x404188",
            "text": "mov %edx,-0xc(%r11,%r10,8)",
            "what": "record"
          },
          {
            "address": "0x40418d",
            "text": "movl $0,-8(%r11,%r10,8)",
            "what": "record",
            "note": "event 0"
          },
          {
            "address": "0x404196",
            "text": "mov %fs:0x2d0,%eax",
            "what": "record",
            "note": "the thread's id"
          },
          {
            "address": "0x40419e",
            "text": "mov %eax,-4(%r11,%r10,8)",
            "what": "record"
          },
          {
            "address": "0x4041a3",
            "text": "mov %r10d,(%r11)",
            "what": "commit"
          },
          {
            "address": "0x4041a7",
            "text": "mov -0x28(%rsp),%rax",
            "what": "restore"
          },
          {
            "address": "0x4041ac",
            "text": "add $0x7f,%al",
            "what": "restore"
          },
          {
            "address": "0x4041ae",
            "text": "sahf",
            "what": "restore"
          },
          {
            "address": "0x4041af",
            "text": "mov -0x20(%rsp),%r10",
            "what": "restore"
          },
          {
            "address": "0x4041b4",
            "text": "mov -0x18(%rsp),%r11",
            "what": "restore"
          },
          {
            "address": "0x4041b9",
            "text": "mov -0x10(%rsp),%rdx",
            "what": "restore"
          },
          {
            "address": "0x4041be",
            "text": "jmp 0x401055",
            "what": "go on"
          }
        ],
        "detour_entry": "0x40412e",
        "detour_bytes": {
          "own": 163,
          "cold": 14,
          "shared": 133
        },
        "registers": [
          {
            "register": "rax",
            "live": false,
            "saved": false,
            "field": null
          },
          {
            "register": "rdx",
            "live": true,
            "saved": true,
            "field": null
          },
          {
            "register": "r10",
            "live": true,
            "saved": true,
            "field": null
          },
          {
            "register": "r11",
            "live": true,
            "saved": true,
            "field": null
          },
          {
            "register": "flags",
            "live": true,
            "saved": true,
            "field": null
          }
        ],
        "saved": [
          "rdx",
          "r10",
          "r11",
          "flags"
        ]
      }
    ]
    "#);
}

#[test]
fn check_of_a_process() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--wait"]);
    let pid = running.pid.to_string();
    let said = of(&program, &["check", ":main", "-p", &pid], 0);
    let at = |start: &str| {
        let line = said.lines().find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("no {start:?} in:\n{said}"));
        line[start.len()..].trim_start().to_owned()
    };
    let detour = at("  detour");
    assert!(detour.contains("for threads as "), "{said}");
    // The detour would be placed in unmapped memory within reach of the program.
    let number = |text: &str| {
        let hex = text
            .split(':')
            .next()
            .and_then(|word| word.strip_prefix("0x"));
        u64::from_str_radix(hex.expect("an address"), 16).expect("an address")
    };
    let saved = number(&at("  save"));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    for line in maps.lines() {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let (start, end) = range.expect("a range");
        let address = |hex| u64::from_str_radix(hex, 16).expect("an address");
        assert!(
            !(address(start)..address(end)).contains(&saved),
            "{saved:#x}: {line}"
        );
        if line.ends_with(text(&program)) {
            assert!(
                saved.abs_diff(address(start)) < 1 << 31,
                "{saved:#x}: {line}"
            );
        }
    }
}

/// Returns the keys of an object, and of the first object in each of its lists.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), shape(v))).collect(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "bool".into(),
        Value::Null => Value::Null,
    }
}

fn shape_of(json: &str) -> String {
    let value: Value = serde_json::from_str(json).expect("JSON");
    serde_json::to_string_pretty(&shape(&value)).expect("JSON")
}

/// Removes variable parts: numbers before an event become a single 9, and blanks become one
/// blank, because columns are as wide as necessary.
fn figures_aside(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = words.join(" ");
        match line.split_once(": shape_") {
            None => out += &line,
            Some((head, event)) => {
                let mut last = ' ';
                for c in head
                    .chars()
                    .map(|c| if c.is_ascii_digit() { '9' } else { c })
                {
                    if (c, last) != ('9', '9') {
                        out.push(c);
                    }
                    last = c;
                }
                out += ": shape_";
                out += event;
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn record_and_report() {
    let Some(program) = shapes() else { return };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = ":shape_r* $arg1 second=$arg2";
    let output = record(
        &trace,
        &[
            "--json",
            "--breakpoints",
            "-e",
            event,
            "-e",
            ":shape_short",
            "--",
            text(&program),
        ],
    );
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    insta::assert_snapshot!(shape_of(&said), @r#"
    {
      "trace": "text",
      "pid": "number",
      "events": "number",
      "lost": "number",
      "lost_busy": "number",
      "damaged": "number",
      "bytes": "number",
      "duration_ns": "number",
      "standstill_ns": {
        "attach": "number",
        "attach_one_thread": "number",
        "detach": "number"
      },
      "restartable_sequences": "bool",
      "thread_ids": "bool",
      "ended": "text",
      "executed_children": "number",
      "not_covered": [],
      "copied_code": [],
      "taken_out": "number",
      "unreached_uprobes": "number",
      "repaired": "number",
      "sites": [
        {
          "event": "text",
          "object": "text",
          "symbol": "text",
          "offset": "text",
          "address": "text",
          "tactic": "text",
          "refusals": [],
          "state": "text"
        }
      ],
      "not_read": "number"
    }
    "#);
    let value: Value = serde_json::from_str(&said).expect("JSON");
    let states = value["sites"].as_array().expect("sites").iter();
    let states: Vec<_> = states
        .map(|s| format!("{} {} {}", s["event"], s["tactic"], s["state"]))
        .collect();
    insta::assert_snapshot!(states.join("\n"), @r#"
    "shape_reserved" "reserved" "optimised"
    "shape_region" "region" "optimised"
    "shape_short" "int3" "breakpoint"
    "#);

    let report = |words: &[&str]| {
        let mut all = vec!["report", text(&trace)];
        all.extend(words);
        let name = program
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        of(&program, &all, 0)
            .replace(&name, "NAME")
            .replace(text(directory.path()), "DIR")
    };
    let lines = report(&[]);
    let pid = value["pid"].to_string();
    insta::assert_snapshot!(figures_aside(&lines.replace(&format!("(pid {pid})"), "(pid PID)")), @r"
    # tracer: capriole
    #
    # program: PROGRAM (pid PID)
    # warning: thread ids are unknown: every event has thread 0
    #
    # TASK-PID CPU# TIMESTAMP FUNCTION
    # | | | | |
    <...>-9 [9] 9.9: shape_reserved: (NAME+0x401050) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_region: (NAME+0x401070) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_short: (NAME+0x401090)
    <...>-9 [9] 9.9: shape_reserved: (NAME+0x401050) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_region: (NAME+0x401070) arg1=0x5 second=0x6
    <...>-9 [9] 9.9: shape_short: (NAME+0x401090)
    ");
    let json = report(&["--json"]);
    assert_eq!(json.lines().count(), 6);
    insta::assert_snapshot!(shape_of(json.lines().next().expect("events")), @r#"
    {
      "time_ns": "number",
      "cpu": "number",
      "tid": "number",
      "comm": null,
      "event": "text",
      "id": "number",
      "object": "text",
      "offset": "text",
      "arguments": {
        "arg1": "text",
        "second": "text"
      }
    }
    "#);
    insta::assert_snapshot!(shape_of(&report(&["--summary", "--json"])), @r#"
    {
      "directory": "text",
      "events": "number",
      "lost_events": "number",
      "lost_packets": "number",
      "damages": "number",
      "duration_ns": "number",
      "threads": "number",
      "cpus": "number",
      "complete": "bool",
      "warnings": [
        "text"
      ],
      "by_event": [
        {
          "event": "text",
          "calls": "number",
          "share": "number",
          "calls_per_second": "number",
          "first_ns": "number",
          "last_ns": "number",
          "threads": "number"
        }
      ],
      "silent": "number"
    }
    "#);
    let summary = report(&["--summary"]);
    for event in ["shape_reserved", "shape_region", "shape_short"] {
        let row = summary
            .lines()
            .find(|line| line.ends_with(event))
            .expect("a row");
        assert_eq!(row.split_whitespace().next(), Some("2"), "{summary}");
    }

    // Without --json, all messages go to standard error.
    let output = record(&trace, &["-e", ":shape_jump", "--", text(&program)]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{}",
        told(&output)
    );
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let said = said.replace(text(directory.path()), "DIR");
    let words = said.split(' ').map(|word| match word {
        "ns" | "us" | "ms" | "s" => "UNIT",
        _ if word
            .trim_start_matches('(')
            .starts_with(|c: char| c.is_ascii_digit()) =>
        {
            "N"
        }
        _ => word,
    });
    insta::assert_snapshot!(words.collect::<Vec<_>>().join(" "), @r"
    capriole: N events in N UNIT -> DIR/t N B); the program has ended
    capriole: thread ids are unknown: a static program has none yet when it starts; attach with -p PID to have them
    capriole: program paused for N UNIT (attach)
    capriole: show it with `capriole report DIR/t`
    ");
}

#[test]
fn detach() {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let running = Running::start(&program, &["--wait"]);
    let pid = running.pid.to_string();
    let directory = scratch();
    let output = capriole(&["detach", &pid]);
    assert_eq!(output.status.code(), Some(1));
    let said = told(&output);
    assert!(
        said.contains(&format!(
            "capriole: process {pid} has no probes of capriole"
        )),
        "{said}"
    );
    for json in [false, true] {
        let trace = directory.path().join("t");
        let recorder = traces::Background::attach(&trace, running.pid, &[":counted_work", ":main"]);
        let mut words = vec!["detach", &pid];
        words.extend(json.then_some("--json"));
        let output = capriole(&words);
        assert!(output.status.success(), "{}", told(&output));
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        if json {
            insta::assert_snapshot!(shape_of(&said), @r#"
            {
              "pid": "number",
              "restored": "number",
              "changed_by_others": "number",
              "repaired": "number",
              "still_mapped": "bool",
              "standstill_ns": "number",
              "saved": null
            }
            "#);
        } else {
            let wanted = format!("2 probes taken out of process {pid} (counted-");
            assert!(said.starts_with(&wanted), "{said}");
        }
        assert_eq!(recorder.ended_by_itself()["ended"], "detached");
    }
    drop(running);
}
