//! A program with very many functions, made and compiled for the purpose: small ones
//! with the first instructions that compilers make, which several threads call in turn.
//!
//! Every function has two integer arguments and returns a number that depends on the
//! first one and on which function it is. The threads check the sum of all of them, so a
//! function that was patched wrongly is found out.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::process::BenchError;
use crate::scratch::Scratch;
use crate::talk::{Talk, numbers};

/// The function whose calls are timed; not one of the crowd.
pub const MEASURED: &str = "crowd_measured";

/// The event that means every function of the program but `main` and what it is made of.
pub const ALL: &str = ":crowd*";

/// How many functions each of the nested sets has: the first set is one function, the
/// second one has 100 with that, and so on.
pub const SETS: [usize; 4] = [1, 100, 5_000, 40_000];

const MAIN: &str = include_str!("crowd/main.c");

/// How a function begins, and goes on. `K` is a number of its own, `@` its name.
struct Kind {
    body: &'static str,
    /// How many of 64 functions are so.
    share: usize,
}

const KINDS: [Kind; 14] = [
    // What GCC and Clang make without, and with, a frame pointer.
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
    // A loop back to the second instruction: what the first jump would cover is entered
    // in the middle.
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

/// The kinds of 64 functions in a row, each as often as its share, well mixed.
fn order() -> Vec<&'static Kind> {
    let kinds = KINDS
        .iter()
        .flat_map(|kind| std::iter::repeat_n(kind, kind.share));
    let kinds: Vec<&Kind> = kinds.collect();
    (0..kinds.len())
        .map(|i| kinds[i * 37 % kinds.len()])
        .collect()
}

/// The name of a function: with its set, so that a pattern means the sets up to one.
fn name(index: usize) -> String {
    let set = SETS.partition_point(|size| *size <= index);
    format!("crowd{set}_{index:05}")
}

/// The event that means the first `functions` (one of [`SETS`]) functions.
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

/// The assembly of a crowd.
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
    // What GCC 12 gives at -O0 for an empty function: as in `capriole bench hit`.
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
    /// Its file, as long as it runs.
    _scratch: Scratch,
}

impl Crowd {
    /// Makes, compiles (with `cc`) and starts a program with so many functions, which
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

    /// Lets the threads call, or pauses them. Returns how often one has called all.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub fn run(&mut self, on: bool) -> Result<u64, BenchError> {
        match on {
            true => self.talk.ask("go").map(|_| 0),
            false => numbers::<1>(&self.talk.ask("quiet")?).map(|[rounds]| rounds),
        }
    }

    /// Whether all functions have returned, and return, what they should.
    ///
    /// # Errors
    ///
    /// The program is gone, or one has not.
    pub fn check(&mut self) -> Result<(), BenchError> {
        self.talk.ask("check").map(drop)
    }

    /// Calls [`MEASURED`]; nanoseconds of all calls together.
    ///
    /// # Errors
    ///
    /// The program is gone.
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
