//! Files, and the information that a planner needs about their code.

use capriole_insn::Extent;
use capriole_object::{ObjectFile, ObjectProblem, Objects};
use capriole_testkit::files::system_files;
use capriole_testkit::objects::{main_object, open};
use capriole_testkit::workshop::Workshop;
use std::path::Path;

#[test]
fn files_that_are_no_objects_are_refused() {
    let shop = Workshop::new();
    let reason = |bytes: &[u8]| {
        let path = shop.path("file");
        std::fs::write(&path, bytes).unwrap();
        ObjectFile::open(&path).unwrap_err().reason
    };
    assert!(matches!(reason(b""), ObjectProblem::NotElf));
    assert!(matches!(
        reason(b"#!/bin/sh\necho hello, world\n"),
        ObjectProblem::NotElf
    ));
    assert!(matches!(reason(b"\x7fELF"), ObjectProblem::Damaged(_)));
    let header = |class: u8, data: u8, kind: u16, machine: u16| {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data, 1]);
        let (kind, machine) = match data {
            2 => (kind.to_be_bytes(), machine.to_be_bytes()),
            _ => (kind.to_le_bytes(), machine.to_le_bytes()),
        };
        bytes[16..18].copy_from_slice(&kind);
        bytes[18..20].copy_from_slice(&machine);
        bytes
    };
    assert!(matches!(
        reason(&header(1, 1, 2, 3)),
        ObjectProblem::ThirtyTwoBit
    ));
    let said = ObjectFile::open(&shop.path("file"))
        .unwrap_err()
        .to_string();
    assert!(
        said.ends_with("file: a 32-bit file; only 64-bit x86 programs can be traced"),
        "{said}"
    );
    assert!(matches!(
        reason(&header(1, 1, 2, 62)),
        ObjectProblem::ThirtyTwoBit
    ));
    assert!(matches!(
        reason(&header(2, 1, 2, 183)),
        ObjectProblem::ForeignArchitecture(183)
    ));
    assert!(matches!(
        reason(&header(2, 2, 2, 22)),
        ObjectProblem::ForeignArchitecture(22)
    ));
    assert!(matches!(
        reason(&header(2, 1, 1, 62)),
        ObjectProblem::NotLoadable(1)
    ));
    assert!(matches!(
        reason(&header(2, 1, 2, 62)),
        ObjectProblem::Damaged(_)
    ));
    let directory = ObjectFile::open(Path::new("/")).unwrap_err();
    assert_eq!(
        directory.to_string(),
        "/: cannot read it: it is a directory, not a file"
    );
    let missing = Objects::offline(Path::new("/no/such/file"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("/no/such/file: cannot read it: No such file"),
        "{missing}"
    );
}

const RSEQ: &str = r#"
asm(".pushsection __rseq_cs, \"aw\"\n.balign 32\n3: .long 0, 0\n"
    ".quad critical_start, critical_end - critical_start, critical_abort\n.popsection\n"
    ".pushsection __rseq_cs_ptr_array, \"aw\"\n.quad 3b\n.popsection\n"
    ".text\n.globl f\n.type f,@function\nf:\n nop\n"
    ".globl critical_start\n.hidden critical_start\ncritical_start:\n nop\n nop\n mov %rax,%rbx\n"
    "critical_end:\n ret\n .long 0x53053053\n"
    ".globl critical_abort\n.hidden critical_abort\ncritical_abort:\n jmp f\n.size f,.-f\n");
"#;

#[test]
fn restartable_sequences_are_found_through_relocations() {
    let shop = Workshop::new();
    let library = ["-shared", "-nostdlib"];
    let kinds: [&[&str]; 3] = [
        &library,
        &["-nostdlib", "-static", "-no-pie", "-Wl,-e,f"],
        &["-shared", "-nostdlib", "-Wl,-z,pack-relative-relocs"],
    ];
    for options in kinds {
        let Some(path) = shop.compile("gcc", options, RSEQ, "rseq") else {
            continue;
        };
        let file = open(&path);
        let symbols = file.symbols().unwrap();
        let f = symbols.exact("f")[0].function.extent;
        let sections = file.rseq_sections().unwrap();
        assert_eq!(sections.len(), 1, "{options:?}");
        // f: nop; critical: nop, nop, mov (3 bytes); ret; signature (4); abort
        assert_eq!(sections[0].critical, Extent::new(f.start + 1, f.start + 6));
        assert_eq!(sections[0].abort, f.start + 11);
        assert_eq!(
            sections[0].forbidden()[1],
            Extent::new(f.start + 7, f.start + 12)
        );
        let objects = Objects::offline(&path).unwrap();
        let code = main_object(&objects);
        assert_eq!(code.code().unwrap().forbidden_near(f).len(), 2);
    }
}

#[test]
fn the_code_of_an_object_knows_what_leads_where() {
    for path in system_files() {
        let objects = Objects::offline(&path).unwrap();
        let object = main_object(&objects);
        let (code, symbols) = (object.code().unwrap(), object.symbols().unwrap());
        assert_eq!(code.functions().len(), symbols.functions().len());
        for function in symbols.functions() {
            let Extent { start, end } = function.extent;
            let targets = code.targets_at(start).unwrap();
            assert!(targets.contains(start), "{start:#x}");
            assert!(targets.pointers_known() && targets.incomplete().is_none());
            if function.is_named() && !symbols.is_split_off(function) {
                assert!(targets.called(start), "{start:#x}");
            }
            let padding = code.padding_end(function.extent);
            assert!(padding >= end);
            assert!(padding == end || padding <= symbols.next_boundary(end - 1).unwrap());
        }
        let pads = code.landing_pads_in(Extent::new(0, u64::MAX));
        for &pad in pads {
            assert!(code.targets_at(pad).unwrap().jumped(pad), "{pad:#x}");
        }
        println!("{}: {} landing pads", path.display(), pads.len());
    }
}

#[test]
fn padding_ends_at_the_next_function() {
    let shop = Workshop::new();
    let source = r#"
        asm(".text\n.globl a, b, c, d\n"
            ".type a,@function\na: ret\n.size a,.-a\n nopw 0x0(%rax,%rax,1)\n int3\n nop\n"
            ".type b,@function\nb: ret\n.size b,.-b\n nop\n ud2\n"
            ".type c,@function\nc: ret\n.size c,.-c\n"
            ".type d,@function\nd: ret\n.size d,.-d\n int3\n int3\n");
    "#;
    let Some(path) = shop.compile("gcc", &["-shared", "-nostdlib"], source, "libpad.so") else {
        return;
    };
    let objects = Objects::offline(&path).unwrap();
    let object = main_object(&objects);
    let code = object.code().unwrap();
    let symbols = object.symbols().unwrap();
    let extent = |name: &str| symbols.exact(name)[0].function.extent;
    assert_eq!(code.padding_end(extent("a")), extent("b").start);
    assert_eq!(code.padding_end(extent("b")), extent("b").end + 1);
    assert_eq!(code.padding_end(extent("c")), extent("c").end);
    assert_eq!(code.padding_end(extent("d")), extent("d").end + 2);
}

/// The code that signal handlers return to (`mov $15, %rax; syscall`, found by its bytes,
/// because a stripped libc has no symbol for it) has an FDE that begins one byte early.
#[test]
fn no_function_begins_before_the_return_from_signal_handlers() {
    let restorer = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    let mut seen = 0;
    for path in system_files() {
        let Ok(file) = ObjectFile::open(&path) else {
            continue;
        };
        let Ok(text) = file.text() else { continue };
        for piece in text {
            let mut windows = piece.bytes.windows(restorer.len());
            let Some(at) = windows.position(|bytes| bytes == restorer) else {
                continue;
            };
            let address = piece.address + at as u64;
            let symbols = file.symbols().expect("symbols");
            let early = symbols.function_starting_at(address - 1);
            assert_eq!(early, None, "{}", path.display());
            seen += 1;
        }
    }
    if seen == 0 {
        println!("skipped: no libc was found");
    }
}
