//! The kernel's uprobe tracer and `record` get the same definitions, each on a run of the same
//! program: the fields must be identical, letter for letter.

use crate::programs::{Compiler, build};
use crate::target::*;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TRACEFS: &str = "/sys/kernel/tracing";

/// Arguments of events at `fetch_target`; CONSTANT and OFFSET stand for the address and the
/// offset of `fetch_constant`.
const EVENTS: [&str; 10] = [
    "fd=+0(%di):s32 port=+4(%di):u16 level=+6(%di):s8 bits=+7(%di):x8 ub=+7(%di):u8 w=+4(%di):x32",
    "low=+7(%di):b3@1/8 all=+7(%di):b8@0/8 mid=+56(%di):b13@51/64 big=+56(%di):u64 hex=+56(%di)",
    "number=%si:s64 s8=%si:s8 s16=%si:s16 s32=%si:s32 u8=%si:u8 u16=%si:u16 u32=%si:u32 x=%si",
    "path=+0(+8(%di)):string text=+40(%di):string odd=+0(%dx):ustring at=+0(+16(+16(%di))):string",
    "words=+24(%di):u32[4] half=+24(%di):x16[3] sb=+4(%di):s8[4]",
    "ch=+0(%dx):char chars=+40(%di):char[4] word=%cx:u32 wx=%cx:x32 ws=%cx:s32 last=%r9:s64",
    "seventh=$stack1:s64 eighth=$stack2:u16 back=-1(%dx):x8 comm=$comm",
    "number=\\42 negative=\\-3:s32 small=\\0x1ff:u8 address=@CONSTANT:x64 part=@CONSTANT:u16 offset=@+OFFSET:x32",
    "gone=+0(%r8):string far=+0(+0(%di)):string ok=+0(%dx):string",
    "inner=+21(%di):u8 names=+16(+16(%di)):string[3]",
];

/// The last definition is compared only where its strings can be read: after a string that
/// cannot, the kernel shows memory of its own (the old contents of a buffer, of any length,
/// with line breaks in it).
const ONLY_READABLE: (usize, &str) = (9, "inner > 0");
const UNREADABLE: &str = "names=(fault)";

/// Number of calls of the function, and of those whose second pointer is invalid.
const CALLS: usize = 20;
const UNREADABLE_CALLS: usize = 5;

/// A trace instance of the kernel and its own events; both are removed when this is dropped.
struct Kernel {
    group: String,
    instance: PathBuf,
}

impl Kernel {
    fn open() -> Result<Kernel, String> {
        let group = format!("capriole_fields_{}", std::process::id());
        let instance = Path::new(TRACEFS).join("instances").join(&group);
        let events = Path::new(TRACEFS).join("uprobe_events");
        let open = OpenOptions::new().append(true).open(&events);
        open.map_err(|error| format!("{}: {error}", events.display()))?;
        fs::create_dir(&instance).map_err(|error| format!("{}: {error}", instance.display()))?;
        Ok(Kernel { group, instance })
    }

    fn define(&self, line: &str) -> std::io::Result<()> {
        let path = Path::new(TRACEFS).join("uprobe_events");
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.instance.join(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = fs::write(
            self.instance
                .join("events")
                .join(&self.group)
                .join("enable"),
            "0",
        );
        let _ = fs::remove_dir(&self.instance);
        let _ = self.define(&format!("-:{}/", self.group));
    }
}

/// Returns the text after the address in each line of either trace, by event: `e1 fd=3 ...`.
fn fields(trace: &str) -> Vec<String> {
    let field = |line: &str| {
        let (_, rest) = line.split_once(": e")?;
        let (event, rest) = rest.split_once(": (")?;
        let (_, fields) = rest.split_once(") ")?;
        Some(format!("e{event} {fields}"))
    };
    let mut all: Vec<String> = trace.lines().filter_map(field).collect();
    all.sort();
    all
}

/// Returns the address of a symbol in a program at a fixed address.
fn address(program: &Path, name: &str) -> Option<u64> {
    let output = Command::new("nm").arg(program).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {name}")))?;
    u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
}

fn run(program: &Path) {
    let mut running = Running::start(program, &[&CALLS.to_string()]);
    running.say("go");
    running.finished();
}

#[test]
fn fields_are_those_of_the_kernel() {
    let Some(built) = build(Compiler::Gcc, "fetch_values.c", &["-no-pie"]) else {
        return;
    };
    // Use a separate file, because the kernel's probes affect all processes that run the same
    // file.
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("fetch_values");
    fs::copy(&built, &program).expect("a copy");
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let (Some(site), Some(constant)) = (
        address(&program, "fetch_target"),
        address(&program, "fetch_constant"),
    ) else {
        println!("skipped: nm does not tell where functions are");
        return;
    };
    // The linker's layout of a program at a fixed address.
    const BASE: u64 = 0x40_0000;
    let mut file = String::from("# the same for both\n\n");
    let mut expected = 0;
    for (index, arguments) in EVENTS.iter().enumerate() {
        let arguments = arguments
            .replace("CONSTANT", &format!("{constant:#x}"))
            .replace("OFFSET", &format!("{:#x}", constant - BASE));
        let (group, path) = (&kernel.group, program.display());
        let line = format!("p:{group}/e{index} {path}:{:#x} {arguments}", site - BASE);
        match kernel.define(&line) {
            Ok(()) => {
                file += &format!("{line}\n");
                expected += CALLS;
                if index == ONLY_READABLE.0 {
                    let filter = format!("events/{group}/e{index}/filter");
                    kernel.set(&filter, ONLY_READABLE.1);
                    expected -= UNREADABLE_CALLS;
                }
            }
            Err(error) => println!("skipped: this kernel does not take {arguments}: {error}"),
        }
    }
    assert!(
        expected > 5 * CALLS,
        "the kernel takes few of the definitions"
    );
    let enable = format!("events/{}/enable", kernel.group);
    kernel.set("trace", "");
    kernel.set(&enable, "1");
    run(&program);
    kernel.set(&enable, "0");
    let theirs = fs::read_to_string(kernel.instance.join("trace")).expect("the kernel's trace");

    let definitions = directory.path().join("definitions");
    fs::write(&definitions, &file).expect("a file");
    let trace = directory.path().join("trace");
    let mut recorder = command(&["record", "-f"])
        .arg(&definitions)
        .arg("-o")
        .arg(&trace)
        .arg("--")
        .arg(&program)
        .arg(CALLS.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("capriole starts");
    let input = recorder.stdin.as_mut().expect("a pipe");
    input.write_all(b"go\n").expect("it listens");
    let output = recorder.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", told(&output));
    let report = command(&["report"])
        .arg(&trace)
        .output()
        .expect("it starts");
    let ours = String::from_utf8(report.stdout).expect("text");
    let (theirs, mut ours) = (fields(&theirs), fields(&ours));
    assert_eq!(theirs.len(), expected, "the kernel saw every call");
    ours.retain(|line| !line.ends_with(UNREADABLE));
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert_eq!(theirs, ours);
    }
    assert_eq!(ours.len(), theirs.len());
}
