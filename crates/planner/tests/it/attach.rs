//! Attaching to a small program, recording from it, and leaving it as it was.

use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::Record;
use capriole_host::ptrace;
use capriole_insn::{Code, Extent, FunctionFlow, Targets};
use capriole_object::Objects;
use capriole_patch::attach::{Attached, Probe, attach};
use capriole_planner::guards;
use capriole_planner::planner::Plan;
use capriole_proc::process::Process;
use capriole_ring::Reader;
use capriole_ring::layout::Geometry;
use capriole_tactic::site::{Refusal, Shape, SiteInput, choose};
use iced_x86::Register;
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int stop;
/* So often each thread may call by now, so that all calls fit into the buffer of a recorder that stands
 * still. Each line "+" allows more. */
static unsigned long allowed;
__attribute__((noinline)) unsigned long work(unsigned long thread, unsigned long seq)
{
	unsigned long x = thread * 31 + seq;
	for (int i = 0; i < 3; i++)
		x = x * 6364136223846793005ul + 1442695040888963407ul;
	asm volatile("" : "+r"(x) :: "memory");
	return x;
}
static unsigned long check(unsigned long thread, unsigned long seq)
{
	unsigned long x = thread * 31 + seq;
	for (int i = 0; i < 3; i++)
		x = x * 6364136223846793005ul + 1442695040888963407ul;
	return x;
}
static void *run(void *arg)
{
	unsigned long thread = (unsigned long)arg, seq = 0;
	while (!stop) {
		if (seq == __atomic_load_n(&allowed, __ATOMIC_RELAXED)) {
			usleep(100);
			continue;
		}
		if (work(thread, seq) != check(thread, seq)) { puts("BAD"); exit(1); }
		seq++;
	}
	return 0;
}
int main(int argc, char **argv)
{
	int n = atoi(argv[1]);
	pthread_t t[64];
	for (long i = 0; i < n; i++) pthread_create(&t[i], 0, run, (void *)i);
	puts("ready"); fflush(stdout);
	while (getchar() == '+') {
		getchar();
		__atomic_fetch_add(&allowed, 200000, __ATOMIC_RELAXED);
	}
	stop = 1;
	for (int i = 0; i < n; i++) pthread_join(t[i], 0);
	puts("ok");
	return 0;
}
"#;

struct Target {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Target {
    fn start(flags: &[&str], threads: u32) -> Target {
        let directory = tempfile::tempdir().expect("a directory");
        let source = directory.path().join("target.c");
        std::fs::write(&source, SOURCE).expect("write");
        let path = directory.path().join("target");
        let status = Command::new("gcc")
            .args(["-O2", "-pthread"])
            .args(flags)
            .arg(&source)
            .arg("-o")
            .arg(&path)
            .status()
            .expect("gcc");
        assert!(status.success());
        let mut child = Command::new(&path)
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        let mut output = BufReader::new(child.stdout.take().expect("stdout"));
        let mut line = String::new();
        output.read_line(&mut line).expect("ready");
        assert_eq!(line, "ready\n");
        Target {
            child,
            output,
            path,
            _directory: directory,
        }
    }

    fn process(&self) -> Process {
        Process::open(self.child.id()).expect("process")
    }

    /// Returns the probe of `work`, planned from the file and the memory map.
    fn probe(&self) -> Probe {
        let bytes = std::fs::read(&self.path).expect("read");
        let file = object::File::parse(&*bytes).expect("ELF");
        let symbol = file
            .symbols()
            .find(|s| s.name() == Ok("work"))
            .expect("work");
        let text = file.section_by_name(".text").expect(".text");
        let maps = self.process().maps().expect("maps");
        let first = maps.iter().find(|m| m.is_file()).expect("a mapping");
        let bias = if file.kind() == object::ObjectKind::Dynamic {
            first.start
        } else {
            0
        };
        let last = maps
            .iter()
            .rfind(|m| m.inode == first.inode)
            .expect("a mapping")
            .end;
        let code = Code::new(text.data().expect("data"), bias + text.address());
        let start = bias + symbol.address();
        let extent = Extent::new(start, start + symbol.size());
        let flow = FunctionFlow::analyse(&code, &extent).expect("flow");
        let targets = Targets::of(&code, &[extent], &|_, _| None);
        let shape: Shape = choose(&SiteInput {
            code: &code,
            flow: &flow,
            site: start,
            targets: &targets,
            padding_end: extent.end,
            next: None,
            forbidden: &[],
            shadow_stack: false,
            int3: Ok(()),
            go: false,
            split_part: false,
        })
        .expect("a plan");
        let before = code.get(shape.covered).expect("bytes").to_vec();
        let plan = Plan {
            shape,
            before,
            breakpoint: Err(Refusal::BreakpointsOff),
            called: false,
        };
        let record = Record::new(7, vec![Register::RDI, Register::RSI]);
        Probe::new(plan, first.start..last).with(vec![record.into()])
    }

    /// Allows the program further calls.
    fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().expect("stdin");
        input.write_all(b"+\n").expect("write");
    }

    fn finish(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_line(&mut rest).expect("read");
        assert_eq!(rest, "ok\n");
        assert!(self.child.wait().expect("wait").success());
    }
}

/// Returns, for each thread, the sequence numbers of its recorded calls.
fn record(attached: &Attached) -> BTreeMap<u64, Vec<u64>> {
    let memory = &attached.memory;
    let mut reader = Reader::new(memory.memory.clone(), memory.geometry);
    let mut calls: Vec<(u64, u64, u64)> = Vec::new();
    let take = |calls: &mut Vec<_>, p: capriole_ring::Packet<'_>| -> Result<(), ()> {
        let mut last = 0;
        for record in p.content.chunks(32) {
            let word = |i: usize| u64::from_le_bytes(record[i..i + 8].try_into().expect("8"));
            assert_eq!(word(8) as u32, 7);
            assert!(word(0) >= last, "time goes backwards");
            last = word(0);
            calls.push((word(0), word(16), word(24)));
        }
        Ok(())
    };
    while calls.len() < 1000 {
        let collected = reader.collect_committed(|p| take(&mut calls, p));
        collected.expect("collect");
        reader.wait(Duration::from_millis(5));
    }
    let report = attached.detach().expect("detach");
    assert_eq!(
        (report.restored, report.foreign, report.lingering),
        (1, 0, false),
        "{report:?}"
    );
    let rest = reader.collect(true, |p| take(&mut calls, p));
    rest.expect("collect");
    assert_eq!((reader.lost(), reader.damaged()), (0, 0));
    calls.sort_unstable();
    let mut by_thread: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (_, thread, seq) in calls {
        by_thread.entry(thread).or_default().push(seq);
    }
    by_thread
}

fn attach_and_check(flags: &[&str], threads: u32) {
    let mut target = Target::start(flags, threads);
    for _ in 0..3 {
        // So that it calls while the probe comes, and again.
        target.go_on();
        let probe = target.probe();
        let process = target.process();
        let guards = guards::of_process(&process).expect("guards");
        let attached = attach(
            &ptrace::host(&process),
            vec![probe],
            &guards,
            ClockReading::default(),
            |journal| Geometry::for_buffer(64 << 20, 2, journal),
        )
        .expect("attach");
        assert!(attached.outcome(0).is_ok(), "{:?}", attached.outcomes());
        target.go_on();
        let calls = record(&attached);
        assert!(!calls.is_empty());
        for (thread, seqs) in calls {
            let gap = seqs.windows(2).find(|w| w[1] != w[0] + 1);
            assert_eq!(gap, None, "thread {thread} lost calls");
        }
        let maps = process.maps().expect("maps");
        assert!(
            !maps.iter().any(capriole_patch::session::is_session),
            "session left behind"
        );
    }
    target.finish();
}

#[test]
fn every_call_between_attach_and_detach_is_recorded() {
    attach_and_check(&[], 3);
}

#[test]
fn a_static_program_at_a_fixed_address() {
    attach_and_check(&["-static", "-no-pie"], 2);
}

/// Guards are placed after the C library's system calls that create threads, but not after
/// fork's.
#[test]
fn guards_stand_behind_the_calls_that_make_threads() {
    // The static program does not contain vfork.
    for (flags, wanted) in [
        (&[][..], &["clone", "vfork"][..]),
        (&["-static"], &["clone"]),
    ] {
        let target = Target::start(flags, 1);
        let process = target.process();
        let objects = Objects::of_process(&process).expect("objects");
        let guards = guards::of_process(&process).expect("guards");
        assert!(guards.are_complete(), "{flags:?}");
        let mut names = Vec::new();
        for address in guards.addresses() {
            let object = objects.containing(address).expect("an object");
            let symbols = object.symbols().expect("symbols");
            // The function with clone3's call has no symbol in a library.
            let function = symbols.function_at(object.link(address)).into_iter();
            names.extend(
                function
                    .flat_map(|f| symbols.names(f))
                    .map(|n| n.linkage.to_owned()),
            );
        }
        for wanted in wanted {
            assert!(names.iter().any(|n| n == *wanted), "{flags:?}: {names:?}");
        }
        // _Fork gives its child a separate address space.
        assert!(
            !names.iter().any(|n| n.to_lowercase().ends_with("_fork")),
            "{names:?}"
        );
        target.finish();
    }
}
