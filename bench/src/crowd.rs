//! A generated program with very many functions: small ones with the first instructions that
//! compilers emit, called in turn by several threads.
//! Every function takes two integer arguments and returns a number that depends on the first one
//! and on the function. The threads check the sum of all results, which reveals a wrongly patched
//! function.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::process::BenchError;
use crate::scratch::Scratch;
use crate::talk::{Talk, numbers};

/// Function whose calls are timed; not part of the crowd.
pub const MEASURED: &str = "crowd_measured";

/// Event that matches every function of the program except those of `main.c`.
pub const ALL: &str = ":crowd*";

/// Sizes of the nested sets, in functions: the first set is one function, the second has 100
/// including that one, and so on.
pub const SETS: [usize; 4] = [1, 100, 5_000, 40_000];

const MAIN: &str = include_str!("crowd/main.c");

/// Code of one kind of function. `K` is replaced by a number of the function's own.
struct Kind {
    body: &'static str,
    /// Number of functions of this kind among 64.
    share: usize,
}

const KINDS: [Kind; 14] = [
    // Emitted by GCC and Clang without a frame pointer, and with one.
    Kind {
        body: "push %rbp\n mov %rsp, %rbp\n mov %rdi, -8(%rbp)\n mov -8(%rbp), %rax\n add $K, %rax\n pop %rbp\n ret",
        share: 10,
    },
    Kind {
        body: "push %r14\n push %rbx\n mov %rdi, %rbx\n lea K(%rbx,%rbx,2), %rax\n pop %rbx\n pop %r14\n ret",
        share: 8,
    },
    Kind {
        body: "endbr64\n push %rbx\n mov %edi, %ebx\n lea K(%rbx), %eax\n cltq\n pop %rbx\n ret",
        share: 6,
    },
    Kind {
        body: "endbr64\n sub $24, %rsp\n mov %rdi, 8(%rsp)\n mov 8(%rsp), %rax\n imul $K, %rax, %rax\n add $24, %rsp\n ret",
        share: 4,
    },
    Kind {
        body: "sub $40, %rsp\n lea (%rdi,%rdi), %rax\n add $K, %rax\n add $40, %rsp\n ret",
        share: 6,
    },
    Kind {
        body: "mov %rdi, %rax\n xor $K, %rax\n ret",
        share: 6,
    },
    Kind {
        body: "test %rdi, %rdi\n je 1f\n lea K(%rdi), %rax\n ret\n1: mov $K, %eax\n ret",
        share: 5,
    },
    Kind {
        body: "cmp $7, %edi\n jg 1f\n mov $K, %eax\n sub %rdi, %rax\n ret\n1: lea K(%rdi,%rdi,4), %rax\n ret",
        share: 4,
    },
    Kind {
        body: "lea K(,%rdi,8), %rax\n ret",
        share: 4,
    },
    Kind {
        body: "xor %eax, %eax\n cmp $9, %rdi\n setg %al\n add $K, %eax\n ret",
        share: 4,
    },
    Kind {
        body: "mov crowd_word(%rip), %rax\n lea K(%rax,%rdi), %rax\n ret",
        share: 3,
    },
    Kind {
        body: "sub $8, %rsp\n add $K, %rdi\n call crowd_helper\n add $8, %rsp\n ret",
        share: 2,
    },
    // A loop back to the second instruction, which lies within the bytes that a jump at the entry
    // would overwrite.
    Kind {
        body: "xor %eax, %eax\n1: add $K, %rax\n dec %rdi\n jg 1b\n ret",
        share: 1,
    },
    // A jump table as GCC makes it for position-independent code.
    Kind {
        body: "mov %edi, %eax\n and $3, %eax\n lea 9f(%rip), %rdx\n movslq (%rdx,%rax,4), %rax\n add %rdx, %rax\n jmp *%rax\n\
               1: mov $K, %eax\n ret\n2: lea K(%rdi), %rax\n ret\n3: lea K(%rdi,%rdi), %rax\n ret\n4: mov %rdi, %rax\n ret\n\
               .section .rodata\n .balign 4\n9: .long 1b-9b, 2b-9b, 3b-9b, 4b-9b\n .text",
        share: 1,
    },
];

/// Kinds of 64 consecutive functions: each as often as its share, interleaved.
fn order() -> Vec<&'static Kind> {
    let kinds = KINDS
        .iter()
        .flat_map(|kind| std::iter::repeat_n(kind, kind.share));
    let kinds: Vec<&Kind> = kinds.collect();
    (0..kinds.len())
        .map(|i| kinds[i * 37 % kinds.len()])
        .collect()
}

/// Name of a function. It contains the set number, so that one pattern matches all sets up to a
/// given one.
fn name(index: usize) -> String {
    let set = SETS.partition_point(|size| *size <= index);
    format!("crowd{set}_{index:05}")
}

/// Event that matches the first `functions` functions; `functions` is one of [`SETS`].
pub fn event(functions: usize) -> String {
    let last = SETS.partition_point(|size| *size < functions);
    match last {
        0 => format!(":{}", name(0)),
        last => {
            let sets: String = (0..=last).map(|set| set.to_string()).collect();
            format!(":crowd[{sets}]_*")
        }
    }
}

/// Assembly source of a crowd.
fn assembly(functions: usize) -> String {
    let mut text = String::from(".text\n");
    let mut add = |name: &str, body: &str, visibility: &str| {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            ".balign 16\n.{visibility} {name}\n.type {name}, @function\n{name}:\n {body}\n\
             .size {name}, . - {name}\n"
        );
    };
    add("crowd_helper", "lea 1(%rdi), %rax\n ret", "local");
    // GCC 12's code at -O0 for an empty function, as in `capriole bench hit`.
    let empty = "push %rbp\n mov %rsp, %rbp\n mov %rdi, -8(%rbp)\n mov %rsi, -16(%rbp)\n nop\n pop %rbp\n ret";
    add(MEASURED, empty, "globl");
    let order = order();
    for index in 0..functions {
        let kind = order[index % order.len()];
        let body = kind.body.replace('K', &(index % 50_000 + 300).to_string());
        add(&name(index), &body, "globl");
    }
    text += ".section .data.rel.ro, \"aw\"\n.balign 8\n.globl crowd_table\ncrowd_table:\n";
    for index in 0..functions {
        let _ = writeln!(text, ".quad {}", name(index));
    }
    let _ = write!(
        text,
        ".globl crowd_size\ncrowd_size: .quad {functions}\n.local crowd_word\n.comm crowd_word, 8, 8\n\
         .section .note.GNU-stack, \"\", @progbits\n"
    );
    text
}

/// A running crowd.
#[derive(Debug)]
pub struct Crowd {
    talk: Talk,
    /// Directory of the executable; kept while the crowd runs.
    _scratch: Scratch,
}

impl Crowd {
    /// Generates, compiles (with `cc`) and starts a program with `functions` functions, which
    /// `threads` threads will call.
    ///
    /// # Errors
    ///
    /// [`BenchError::Skipped`] if there is no working C compiler; otherwise the program
    /// cannot be written or started.
    pub fn start(functions: usize, threads: usize) -> Result<Crowd, BenchError> {
        let scratch = Scratch::new().map_err(BenchError::Start)?;
        let path = |name| scratch.path().join(name);
        std::fs::write(path("crowd.s"), assembly(functions)).map_err(BenchError::Start)?;
        std::fs::write(path("main.c"), MAIN).map_err(BenchError::Start)?;
        let compiled = Command::new("cc")
            .args(["-O2", "-pthread", "-o", "crowd", "main.c", "crowd.s"])
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .output();
        let compiled = compiled
            .map_err(|error| BenchError::Skipped(format!("no C compiler (cc: {error})")))?;
        if !compiled.status.success() {
            let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
            let first = said.lines().find(|line| line.contains("rror"));
            let first = first.or(said.lines().next()).unwrap_or_default();
            return Err(BenchError::Skipped(format!("cc fails: {first}")));
        }
        let mut talk = Talk::start(Command::new(path("crowd")).arg(threads.to_string()))?;
        talk.answer()?;
        Ok(Crowd {
            talk,
            _scratch: scratch,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.talk.pid()
    }

    /// Starts or pauses the calling threads. On pause, returns the number of complete rounds of
    /// calls so far; otherwise 0.
    ///
    /// # Errors
    /// The program has ended.
    pub fn run(&mut self, on: bool) -> Result<u64, BenchError> {
        match on {
            true => self.talk.ask("go").map(|_| 0),
            false => numbers::<1>(&self.talk.ask("quiet")?).map(|[rounds]| rounds),
        }
    }

    /// Checks that all functions have always returned, and still return, the right values.
    ///
    /// # Errors
    /// The program has ended, or a sum of return values was wrong.
    pub fn check(&mut self) -> Result<(), BenchError> {
        self.talk.ask("check").map(drop)
    }

    /// Calls [`MEASURED`] `calls` times; returns the total time in nanoseconds.
    ///
    /// # Errors
    /// The program has ended.
    pub fn time(&mut self, calls: u64) -> Result<u64, BenchError> {
        numbers::<1>(&self.talk.ask(&format!("time {calls}"))?).map(|[ns]| ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_nested_and_have_events() {
        assert_eq!(event(1), ":crowd0_00000");
        assert_eq!(event(100), ":crowd[01]_*");
        assert_eq!(event(40_000), ":crowd[0123]_*");
        let in_set = |set: &str| (0..40_000).filter(|i| name(*i).starts_with(set)).count();
        assert_eq!(in_set("crowd1_"), 99);
        assert_eq!(in_set("crowd3_"), 35_000);
    }

    #[test]
    fn every_kind_comes_in_its_share() {
        assert_eq!(order().len(), 64);
        for kind in &KINDS {
            let found = order().iter().filter(|k| k.body == kind.body).count();
            assert_eq!(found, kind.share, "{}", kind.body);
        }
    }

    #[test]
    fn a_crowd_runs_and_checks_itself() {
        let mut crowd = match Crowd::start(100, 3) {
            Err(BenchError::Skipped(why)) => {
                println!("skipped: {why}");
                return;
            }
            crowd => crowd.expect("it starts"),
        };
        crowd.check().expect("sums are right");
        crowd.run(true).expect("it runs");
        assert!(crowd.time(1000).expect("it measures") > 0);
        let before = crowd.run(false).expect("it pauses");
        let after = crowd.run(false).expect("it is paused");
        assert_eq!(before, after);
        crowd.check().expect("sums are right");
    }
}
