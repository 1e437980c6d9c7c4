//! Jump tables as the compilers of this machine make them: every `case` must be
//! among the targets that are found.

use std::path::Path;
use std::process::Command;

use crate::support::elf::Elf;
use capriole_insn::{Code, Extent, FunctionFlow, Hints, Resolution, Targets};

/// `case_N` marks where case N begins, give or take what the compiler moves in
/// front of it.
const SOURCE: &str = r#"
int work(int);
#define HERE(n) __asm__ volatile(".globl case_" #n "\n.type case_" #n ", @function\n" \
    "case_" #n ":\n.size case_" #n ", 1" ::: "memory")
__attribute__((noinline)) int dispatch(unsigned x, int y)
{
    y = work(y);
    switch (x) {
    case 0: HERE(0); y += work(1); break;
    case 1: HERE(1); y -= work(2); break;
    case 2: HERE(2); y *= work(3); break;
    case 3: HERE(3); y ^= work(4); break;
    case 4: HERE(4); y |= work(5); break;
    case 5: HERE(5); y &= work(6); break;
    case 6: HERE(6); y <<= work(7) & 7; break;
    case 7: HERE(7); return work(8);
#ifdef NO_DEFAULT
    default: __builtin_unreachable();
#endif
    }
    return y + work(9);
}
"#;

/// Labels as values: a table of addresses, and one of differences.
const GOTO: &str = r#"
int work(int);
__attribute__((noinline)) int addresses(unsigned x, int y)
{
    static const void *const table[] = { &&a, &&b, &&c };
    goto *table[x];
a:  y += work(1);
b:  y -= work(2);
c:  return y + work(3);
}
__attribute__((noinline)) int differences(unsigned x, int y)
{
    static const int table[] = { &&a - &&a, &&b - &&a, &&c - &&a };
    goto *(&&a + table[x]);
a:  y += work(1);
b:  y -= work(2);
c:  return y + work(3);
}
"#;

/// Compiles `source`, or `None` if the compiler is missing.
fn compile(directory: &Path, compiler: &str, source: &str, flags: &[&str]) -> Option<Elf> {
    let input = directory.join("code.c");
    let output = directory.join("code.so");
    std::fs::write(&input, source).unwrap();
    let done = Command::new(compiler)
        .args(flags)
        .args([
            "-nostdlib",
            "-Wl,--unresolved-symbols=ignore-all",
            "-Wl,-e,0",
            "-w",
            "-o",
        ])
        .arg(&output)
        .arg(&input)
        .output()
        .ok()?;
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{compiler} {flags:?}: {errors}");
    Elf::open(&output)
}

/// A directory that goes away at the end.
struct Temporary(std::path::PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("capriole-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn function(elf: &Elf, name: &str) -> Extent {
    let functions = elf.functions();
    let found = functions.iter().find(|(symbol, _)| symbol == name);
    found.unwrap_or_else(|| panic!("no symbol {name}")).1
}

const PLACES: [&[&str]; 2] = [&["-shared", "-fPIC"], &["-no-pie", "-fno-pie", "-static"]];

#[test]
fn every_case_of_a_switch_is_found() {
    let directory = Temporary::new("switches");
    let mut compiled = 0;
    for compiler in ["gcc", "clang"] {
        for place in PLACES {
            for optimise in ["-O0", "-O2", "-Os"] {
                for default in ["-DDEFAULT", "-DNO_DEFAULT"] {
                    let flags = [place, &[optimise, default]].concat();
                    let Some(elf) = compile(&directory.0, compiler, SOURCE, &flags) else {
                        continue;
                    };
                    compiled += 1;
                    check_switch(
                        &elf,
                        &format!("{compiler} {flags:?}"),
                        default == "-DDEFAULT",
                    );
                }
            }
        }
    }
    if compiled == 0 {
        println!("skipped: no C compiler on this system");
    }
}

fn check_switch(elf: &Elf, what: &str, must_resolve: bool) {
    let (bytes, address) = elf.text();
    let code = Code::new(bytes, address);
    let extent = function(elf, "dispatch");
    let read = |address, len| elf.read(address, len);
    let hints = Hints {
        landing_pads: &[],
        read: &read,
    };
    let flow = FunctionFlow::analyse_with(&code, &extent, &hints).unwrap();
    assert_eq!(flow.undecodable(), None);
    assert_eq!(flow.overlap(), None);
    let jumps = flow.indirect_jumps();
    assert_eq!(jumps.len(), 1, "{what}: {jumps:x?}");
    let Resolution::Table { targets, certain } = &jumps[0].resolution else {
        println!("{what}: {:?}", jumps[0].resolution);
        assert!(!must_resolve, "{what}: {:?}", jumps[0].resolution);
        return;
    };
    println!("{what}: {} targets, {certain} for sure", targets.len());
    for case in 0..8 {
        let label = function(elf, &format!("case_{case}")).start;
        let target = targets.iter().copied().filter(|&t| t <= label).max();
        let target = target.unwrap_or_else(|| panic!("{what}: nothing leads to case {case}"));
        // From there, control runs straight to the label.
        let mut at = target;
        while at < label {
            at = code
                .instruction_at(at, label)
                .expect("no straight line")
                .next_ip();
        }
        assert!(flow.is_reached(label), "{what}: case {case} is not reached");
        let shared = (0..case).any(|other| {
            let other = function(elf, &format!("case_{other}")).start;
            target <= other && other < label
        });
        assert!(!shared, "{what}: the entry of case {case} is missing");
    }
}

#[test]
fn labels_as_values_are_never_taken_for_a_table_of_something_else() {
    let directory = Temporary::new("goto");
    for compiler in ["gcc", "clang"] {
        for place in PLACES {
            for optimise in ["-O0", "-O2"] {
                let flags = [place, &[optimise]].concat();
                let Some(elf) = compile(&directory.0, compiler, GOTO, &flags) else {
                    continue;
                };
                let what = format!("{compiler} {flags:?}");
                check_goto(&elf, "addresses", &what);
                check_goto(&elf, "differences", &what);
            }
        }
    }
}

/// Blocks that are reached by the `goto` only must be in what was found, or the
/// jump must count as unknown.
fn check_goto(elf: &Elf, name: &str, what: &str) {
    let (bytes, address) = elf.text();
    let code = Code::new(bytes, address);
    let extent = function(elf, name);
    let read = |address, len| elf.read(address, len);
    let hints = Hints {
        landing_pads: &[],
        read: &read,
    };
    let flow = FunctionFlow::analyse_with(&code, &extent, &hints).unwrap();
    let mut targets = Targets::of(&code, &[extent], &read);
    elf.pointers()
        .iter()
        .for_each(|&p| targets.insert_pointer(p));
    // Without relocations the addresses stand in the file as they are.
    for (segment, _) in elf.data() {
        targets.insert_pointers(segment);
    }
    targets.set_pointers_known();
    for jump in flow.indirect_jumps() {
        println!("{what} {name}: {:x?}", jump.resolution);
    }
    if flow
        .unresolved_indirect_jump(targets.pointers_known())
        .is_some()
    {
        return;
    }
    // The block behind the jump is where some label is.
    for jump in flow.indirect_jumps() {
        let label = flow.boundaries().find(|&at| {
            at >= jump.idiom.end
                && !code
                    .instruction_at(at, extent.end)
                    .is_some_and(|i| capriole_insn::decode::is_padding(&i))
        });
        let label = label.expect("nothing behind the jump");
        assert!(
            targets.contains(label) || flow.is_jumped_to(label),
            "{what} {name}: {label:#x} is missing"
        );
    }
}
