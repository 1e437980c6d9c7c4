//! Compares the parser with the running kernel: both must accept the same definitions, and the
//! kernel's `error_log` must point at the same column. Differences are listed here and in
//! docs/events-reference.md.

use capriole_event::{EventSpec, automatic_name};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

const TRACEFS: &str = "/sys/kernel/tracing";
/// The file used in the definitions; any file would do.
const FILE: &str = "/bin/sh";

/// Outcome of a definition: accepted, or rejected, with the column if it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Taken,
    Refused(Option<usize>),
}
use Verdict::{Refused, Taken};

/// The kernel's `uprobe_events`, with an event group of our own. Only one test uses it at a
/// time, because the error log is short.
struct Kernel {
    group: String,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Kernel {
    fn open() -> Result<Kernel, String> {
        let group = format!("capriole_test_{}", std::process::id());
        let kernel = Kernel {
            group,
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let path = format!("{TRACEFS}/error_log");
        fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
        match kernel.verdict("%di") {
            Taken => Ok(kernel),
            Refused(_) => Err("the kernel takes no uprobes".to_string()),
        }
    }

    /// Returns the whole definition with these arguments, as it is written to the kernel.
    fn definition(&self, arguments: &str) -> String {
        format!("p:{}/e {FILE}:0x1000 {arguments}", self.group)
    }

    fn write(&self, line: &str) -> std::io::Result<()> {
        let path = format!("{TRACEFS}/uprobe_events");
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// Returns the kernel's verdict on these arguments, or on a whole definition with `GROUP` in
    /// it.
    fn verdict(&self, text: &str) -> Verdict {
        let definition = self.whole(text);
        let result = self.write(&definition);
        if result.is_ok() {
            self.remove();
            return Taken;
        }
        Refused(self.logged(&definition))
    }

    fn whole(&self, text: &str) -> String {
        if text.contains(FILE) {
            text.replace("GROUP", &self.group)
        } else {
            self.definition(text)
        }
    }

    /// Returns the column in `error_log` of the last error in this definition. Other programs may
    /// write to that log as well.
    fn logged(&self, definition: &str) -> Option<usize> {
        let log = fs::read_to_string(format!("{TRACEFS}/error_log")).ok()?;
        let lines: Vec<&str> = log.lines().collect();
        let command = "  Command: ";
        let at = lines.iter().rposition(|line| {
            line.strip_prefix(command).map(str::trim_end) == Some(definition.trim_end())
        })?;
        lines.get(at + 1)?.find('^')?.checked_sub(command.len())
    }

    fn remove(&self) {
        let _ = self.write(&format!("-:{}/", self.group));
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.remove();
    }
}

fn ours(definition: &str) -> Verdict {
    match EventSpec::parse(definition) {
        Ok(_) => Taken,
        Err(error) => Refused(Some(error.column)),
    }
}

fn kernel() -> Option<Kernel> {
    if !Path::new(FILE).exists() || File::open(TRACEFS).is_err() {
        println!("skipped: no tracefs at {TRACEFS}");
        return None;
    }
    match Kernel::open() {
        Ok(kernel) => Some(kernel),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Accepted by both, or rejected by both at the same column.
const SAME: [&str; 130] = [
    "%di %si",
    "%ax %bx %cx %dx %bp %sp %r8 %r9 %r10 %r11 %r12 %r13 %r14 %r15",
    "%edi",
    "%DI",
    "%",
    "%zz",
    "%di,%si",
    "@0x1000",
    "@+0x1000",
    "@+4096:u32",
    "@-4",
    "@main",
    "@",
    "@+",
    "@+zz",
    "@+-4",
    "@++4",
    "@+--4",
    "@+-+4",
    "@+0x7fffffffffffffff",
    "@+0x8000000000000000",
    "@+-0x8000000000000000",
    "@0xffffffffffffffff",
    "@0zz",
    "$stack $stack0 $stack5 $stack010",
    "$stack0x10",
    "$stackx",
    "$stack-1",
    "$retval",
    "$comm",
    "$COMM",
    "$comm:string",
    "$comm:ustring",
    "$comm:u8",
    "$comm:string[2]",
    "+0($comm)",
    "$argx",
    "$",
    "+0(%di)",
    "+u0(%di)",
    "-u8(%di):ustring",
    "+U0(%di)",
    "0(%di)",
    "+(%di)",
    "+0x10(-0x8(+8(%di))):string",
    "+0(%di",
    "+0(%di))",
    "+0(+8(%di)",
    "+0)",
    "+0",
    "+0()",
    "+zz(%di)",
    "+010(%di)",
    "+--8(%di)",
    "+-8(%di)",
    "++8(%di)",
    "+++8(%di)",
    "-+8(%di)",
    "--8(%di)",
    "+u-0(%di)",
    "+u-8(%di)",
    "+u+8(%di)",
    "-u-8(%di)",
    "-u+8(%di)",
    "+0xffffffffffffffff(%di)",
    "+0x7fffffffffffffff(%di)",
    "-0x8000000000000000(%di)",
    "+0(@0x100)",
    "+0(@+0x100):u8",
    "+0(\\100)",
    "+0(\\\"abc\")",
    "+0(%di:u8)",
    "+0( %di )",
    "\\100",
    "\\0x100:u8",
    "\\-1:s8",
    "\\+1",
    "\\+-1",
    "\\++1",
    "\\-+1",
    "\\--1",
    "\\+18446744073709551615",
    "\\18446744073709551615",
    "\\18446744073709551616",
    "\\zz",
    "\\",
    "\\\"abc\"",
    "\\\"abc\":string",
    "\\\"abc\":u8",
    "\\\"abc",
    "\\\"a\\\"b\"",
    "\\\"\"",
    "\\\"",
    "\"abc\"",
    "%di:u8 %di:u16 %di:u32 %di:u64 %di:s8 %di:s64 %di:x8 %di:x64 %di:char",
    "%di:u33",
    "%di:",
    "%di:b3@5/32",
    "%di:b8@1/8",
    "%di:b0@1/8",
    "%di:b64@0/64",
    "%di:b1@0/24",
    "%di:b1@0/+32",
    "%di:b+1@0/32",
    "%di:b1@0",
    "%di:b0x3@0x5/0x20",
    "+0(%di):b3@5/32[2]",
    "+0(%di):u8[64]",
    "+0(%di):u8[65]",
    "+0(%di):u8[0]",
    "+0(%di):u8[+4]",
    "+0(%di):u8[++4]",
    "+0(%di):u8[-4]",
    "+0(%di):u8[]",
    "+0(%di):u8[4",
    "+0(%di):u8[4]x",
    "+0(%di):u8[4][4]",
    "+0(%di):string[2]",
    "x=%di x=%si",
    "arg2=%di %si",
    "1x=%di",
    "a-b=%di",
    "=%di",
    "x=",
    "x= %di",
    "common_pid=%di",
    "__probe_ip=%di",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=%di",
    "%di:u8:u8",
    "if=%di",
];

/// Whole definitions that both treat alike.
const SAME_WHOLE: [&str; 28] = [
    "p:GROUP/e /bin/sh:0x1000",
    "r:GROUP/e /bin/sh:0x1000 ret=$retval %ax $stack0",
    "p:GROUP/e /bin/sh:0x1000%return x=$retval",
    "r:GROUP/e /bin/sh:0x1000%return",
    "p:GROUP/ /bin/sh:0x1000",
    "p:GROUP.e /bin/sh:0x1000",
    "p:GROUP/e /bin/sh:4096",
    "p:GROUP/e /bin/sh:010000",
    "p:GROUP/e  /bin/sh:0x1000   %di   ",
    "p:GROUP/e /bin/sh:0x1000(0x10)",
    "p:GROUP/e /bin/sh:0x1000%return(16)",
    "p:GROUP/e /bin/sh:0x1000(0x10",
    "p:GROUP/e /bin/sh:0x1000(0x10)x",
    "p:GROUP/e /bin/sh:0x1000()",
    "p:GROUP/e /bin/sh:0x1000(+16)",
    "p:GROUP/e /bin/sh:0x1000(++16)",
    "p:GROUP/e /bin/sh:0x1000(-16)",
    "p:GROUP/e /bin/sh:0x1000%return(+16)",
    "p:GROUP/e /bin/sh:0x1000%retur",
    "p:GROUP/e /bin/sh:1000x",
    "p:GROUP/e /bin/sh:0xzz",
    "p:GROUP/1a /bin/sh:0x1000",
    "p:GROUP/a-b /bin/sh:0x1000",
    "p:GROUP/a/b /bin/sh:0x1000",
    "p: /bin/sh:0x1000",
    "p:/a /bin/sh:0x1000",
    "p:1GROUP/a /bin/sh:0x1000",
    "p:GROUP/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa /bin/sh:0x1000",
];

#[test]
fn the_kernel_takes_the_same_and_points_at_the_same_place() {
    let Some(kernel) = kernel() else { return };
    let mut different = Vec::new();
    for text in SAME.iter().chain(&SAME_WHOLE) {
        let definition = kernel.whole(text);
        let (theirs, ours) = (kernel.verdict(text), ours(&definition));
        if theirs != ours {
            different.push(format!("{definition}: kernel {theirs:?}, here {ours:?}"));
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// Definitions that the kernel accepts and we reject (`true`), or the other way round. If a
/// newer kernel behaves differently, docs/events-reference.md has to be changed.
const DIFFERENT: [(&str, bool); 25] = [
    ("%di:string", false),
    ("%di:u8[4]", false),
    ("%ip", true),
    ("%flags", true),
    ("%cs", true),
    ("%orig_ax", true),
    ("%rdi", false),
    ("$stack99999", true),
    ("$arg1", false),
    ("$arg*", false),
    ("size", false),
    ("+0(%di)x", true),
    ("\\1:string", true),
    ("\\\"a b\"", false),
    ("\\\"a:b\"", false),
    ("\\\"a=b\"", false),
    ("%di:symbol", false),
    ("+0(%di):symbol", false),
    ("x=%di # a comment", true),
    ("x=%di if x > 3", false),
    ("r:GROUP/e /bin/sh:0x1000 $retvalx", true),
    ("p:GROUP/e /bin/sh:0x1000(16)%return", false),
    ("p2:GROUP/e /bin/sh:0x1000", true),
    ("p:GROUP/e /bin/sh:main", false),
    ("p:GROUP/e /bin/sh:main.c:120", false),
];

#[test]
fn differences_are_as_documented() {
    let Some(kernel) = kernel() else { return };
    for (text, taken) in DIFFERENT {
        let definition = kernel.whole(text);
        if text.starts_with("p2") {
            // The kernel drops the name as well, so the event is removed by its automatic name.
            kernel.write(&definition).unwrap();
            let name = automatic_name(capriole_event::At::Entry, FILE, 0x1000);
            kernel.write(&format!("-:uprobes/{name}")).unwrap();
        } else {
            assert_eq!(
                kernel.verdict(text) == Taken,
                taken,
                "the kernel: {definition}"
            );
        }
        assert_eq!(ours(&definition) == Taken, !taken, "here: {definition}");
    }
}

/// The limits on dereferences, arguments and bytes of a name equal the kernel's.
#[test]
fn limits_are_the_kernels() {
    let Some(kernel) = kernel() else { return };
    let check = |text: &str, expected: bool| {
        assert_eq!(
            kernel.verdict(text) == Taken,
            expected,
            "the kernel: {text}"
        );
        assert_eq!(ours(&kernel.whole(text)) == Taken, expected, "here: {text}");
    };
    let nested = |depth: usize| format!("{}%di{}", "+0(".repeat(depth), ")".repeat(depth));
    let many = |count: usize| -> String { (0..count).map(|n| format!("a{n}=%di ")).collect() };
    let group = |length: usize| {
        let more = "a".repeat(length - kernel.group.len());
        format!("p:GROUP{more}/e /bin/sh:0x1000 %zz")
    };
    check(&nested(14), true);
    check(&nested(15), false);
    check(&many(128), true);
    check(&many(129), false);
    check(&format!("{}=%di", "a".repeat(32)), true);
    check(&format!("{}=%di", "a".repeat(33)), false);
    // The name comes first: the caret points at it only if it is too long.
    for (length, column) in [(63, true), (64, false)] {
        let definition = kernel.whole(&group(length));
        let Refused(Some(theirs)) = kernel.verdict(&definition) else {
            panic!("{definition}");
        };
        assert_eq!(ours(&definition), Refused(Some(theirs)));
        assert_eq!(theirs > 2, column, "{definition}");
    }
}

/// Filters over these fields.
const FIELDS: &str = "x=%di:s32 s=+0(%si):string c=$comm a=+0(%si):u8[2] ch=+0(%si):char";

/// Accepted by both, or rejected by both.
const SAME_FILTERS: [(&str, bool); 40] = [
    ("x > 3", true),
    ("x>=3&&x<=0x10", true),
    ("x == -1", true),
    ("x == 010", true),
    ("x == 08", false),
    ("x & 3", true),
    ("x & 3 == 1", false),
    ("x ~ \"a\"", false),
    ("x == \"ab\"", false),
    ("x == 'ab'", false),
    ("x == a", false),
    ("x == 3k", false),
    ("x == 99999999999999999999", false),
    ("x == - 1", false),
    ("x ==", false),
    ("x", false),
    ("x = 3", false),
    ("x => 3", false),
    ("x <> 3", false),
    ("3 == x", false),
    ("x == 3 x", false),
    ("x == 3 and x == 4", false),
    ("x==3||x==4&&s==\"a\"", true),
    ("(x == 3", false),
    ("x == 3)", false),
    ("(((x==3)))", true),
    ("!x==3", true),
    ("!!(x==3)", true),
    ("s == \"a\"", true),
    ("s == 'a'", true),
    ("s ~ \"a*\" && !(c != \"sh\")", true),
    ("s < \"a\"", false),
    ("s & 3", false),
    ("s == \"a", false),
    ("ch == 97", true),
    ("comm ~ \"ngi*\" || COMM == \"x\"", true),
    ("comm < \"x\"", false),
    ("comm == 3", false),
    ("CPU == 0 && cpu & 1", true),
    ("common_pid == 1", true),
];

/// Filters that the kernel accepts and we reject (`true`), or the other way round.
const DIFFERENT_FILTERS: [(&str, bool); 8] = [
    ("y == 1", false),
    ("x == 18446744073709551615", false),
    ("tid == 1", false),
    ("s !~ \"a*\"", false),
    ("ch == 'a'", false),
    ("s == \"a\\\"b\"", false),
    ("x == 3 &&", true),
    ("a == 1", true),
];

#[test]
fn filters_are_the_kernels() {
    let Some(kernel) = kernel() else { return };
    kernel.write(&kernel.definition(FIELDS)).unwrap();
    let path = format!("{TRACEFS}/events/{}/e/filter", kernel.group);
    let write = |text: &str| -> bool {
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all(format!("{text}\n").as_bytes()).is_ok()
    };
    let here = |text: &str| {
        let event = EventSpec::parse(&format!(":f {FIELDS} if {text}"));
        event.is_ok()
    };
    for (text, taken) in SAME_FILTERS {
        assert_eq!(write(text), taken, "the kernel: {text}");
        assert_eq!(here(text), taken, "here: {text}");
    }
    for (text, taken) in DIFFERENT_FILTERS {
        assert_eq!(write(text), taken, "the kernel: {text}");
        assert_eq!(here(text), !taken, "here: {text}");
    }
}
