//! Every instruction of real libraries and programs is probed, as many at once as do not
//! overlap, and the programs' answers stay the same.
//!
//! A program first answers a question without probes. Then one batch of its instructions after
//! another is probed, the question is repeated, and the probes are taken out, sometimes while
//! the program is working. In `make test` that is one batch, of some functions that the question makes
//! it execute; in the soak one of all that it executes; the long form (`CAPRIOLE_LONG=1`) takes all
//! batches of all functions. `CAPRIOLE_SEED=n` repeats a choice.
//! If an answer is wrong or the program ends, the test searches for the guilty site.

use capriole_codegen::work::Record;
use capriole_insn::Extent;
use capriole_object::{Object, Objects};
use capriole_patch::attach::Probe;
use capriole_planner::planner::Planner;
use capriole_planner::resolve::Site;
use capriole_proc::process::Process;
use capriole_testkit::conversation::{Conversation, difference};
use capriole_testkit::effort::{rounds, seed};
use capriole_testkit::instructions::{Plans, every_instruction, functions, objects_named};
use capriole_testkit::probed::{Hits, Wrong, lingers, probed};
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::{assert_no_session, assert_text_is_the_files, is_long};
use capriole_testkit::waiting::HANGS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A program and the code in it to probe.
struct Subject {
    name: &'static str,
    command: Box<dyn Fn() -> Command>,
    question: String,
    farewell: &'static str,
    /// Its exit status at the end.
    status: i32,
    /// Prefixes of the file names to probe; "" is the program.
    objects: &'static [&'static str],
    /// In the program and in these libraries, probe only functions whose names begin with one of
    /// these, executed or not. Empty: all functions.
    only: &'static [&'static str],
    /// True to probe all functions in the long form, not only those that the question executes.
    all: bool,
}

impl Subject {
    fn of(name: &'static str, program: PathBuf, objects: &'static [&'static str]) -> Subject {
        Subject {
            name,
            command: Box::new(move || Command::new(&program)),
            question: "go\n".to_owned(),
            farewell: "",
            status: 0,
            objects,
            only: &[],
            all: true,
        }
    }

    /// Starts the program and sends the question twice. Returns it with its answer, or `None` if it
    /// lacks something.
    fn start(&self) -> Option<(Conversation, Vec<String>)> {
        let mut command = (self.command)();
        let mut program = match Conversation::start(&mut command).expect("it starts") {
            Ok(program) => program,
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        };
        let first = program.ask(&self.question).and_then(|()| program.answer());
        let second = program.ask(&self.question).and_then(|()| program.answer());
        let (first, second) = (first.expect("an answer"), second.expect("an answer"));
        assert_eq!(difference(&first, &second), None, "without any probe");
        assert!(!first.is_empty());
        Some((program, first))
    }

    fn objects(&self, process: &Process) -> Vec<Arc<Object>> {
        let objects = Objects::of_process(process).expect("objects");
        let named = |name: &&str| objects_named(&objects, name);
        self.objects.iter().flat_map(named).collect()
    }
}

/// Attaches a batch of probes, sends the question, compares the answer, and takes the probes
/// out. If `busy`, the program works on a question while the probes are inserted and removed.
fn round(
    subject: &Subject,
    program: &mut Conversation,
    expected: &[String],
    probes: &[Probe],
    busy: bool,
) -> Result<(Hits, BTreeMap<String, usize>), Wrong> {
    let compare = |answer: Vec<String>| match difference(expected, &answer) {
        Some(difference) => Err(format!("a wrong answer: {difference}")),
        None => Ok(()),
    };
    let process = program.process();
    if busy {
        program.ask(&subject.question)?;
    }
    let outcome = probed(&process, probes, || {
        if busy {
            compare(program.answer()?)?;
        }
        program.ask(&subject.question)?;
        compare(program.answer()?)?;
        if busy {
            program.ask(&subject.question)?;
            std::thread::sleep(Duration::from_millis(3));
        }
        Ok(())
    })
    // The program's own end explains best why detaching failed.
    .map_err(|wrong| match program.process_ended() {
        Some(how) => format!("{how} ({wrong})"),
        None => wrong,
    })?;
    if busy {
        compare(program.answer()?)?;
    }
    // Old addresses lie on the stacks of a program that waits for the next question, above all in Go,
    // whose runtime keeps stacks for later; they are overwritten while it works.
    let started = Instant::now();
    let mut is_there = outcome.0.lingering;
    while is_there {
        if started.elapsed() > HANGS {
            return Err("memory stays mapped".to_owned());
        }
        program.ask(&subject.question)?;
        compare(program.answer()?)?;
        is_there = lingers(&process)?;
    }
    assert_no_session(&process);
    assert_text_is_the_files(&process, false);
    Ok(outcome)
}

impl Subject {
    /// Returns the functions of an object to probe.
    fn functions(&self, object: &Object) -> Vec<Extent> {
        let symbols = object.symbols().expect("symbols");
        let named: Vec<Extent> = symbols
            .functions()
            .iter()
            .filter(|f| {
                let is = |name: &str| self.only.iter().any(|only| name.starts_with(only));
                symbols.names(f).any(|name| is(name.linkage))
            })
            .map(|f| object.run_time_extent(f.extent))
            .collect();
        match named.is_empty() {
            true => functions(object),
            false => named,
        }
    }
}

/// Returns the functions that the question makes the program execute.
fn executed(
    subject: &Subject,
    program: &mut Conversation,
    expected: &[String],
    objects: &[Arc<Object>],
) -> Vec<(Arc<Object>, Vec<Extent>)> {
    let process = program.process();
    let all: Vec<(Arc<Object>, Extent)> = objects
        .iter()
        .flat_map(|o| {
            subject
                .functions(o)
                .into_iter()
                .map(move |f| (o.clone(), f))
        })
        .collect();
    let start = |(object, function): &(Arc<Object>, Extent)| {
        Site::of_function(object, *function).expect("in the file")
    };
    let sites: Vec<Site> = all.iter().map(start).collect();
    // A breakpoint kills a program that hits it while it blocks SIGTRAP, as Go's runtime and
    // parts of libc briefly do.
    let planner = Planner::of_process(&process).with_breakpoints(false);
    let mut probes: Vec<Probe> = Vec::new();
    let wanted: Vec<&Site> = sites.iter().collect();
    let plans = planner.plan_all(&wanted);
    let mut order: Vec<usize> = (0..sites.len()).filter(|i| plans[*i].is_ok()).collect();
    order.sort_by_key(|i| sites[*i].address);
    for index in order {
        let plan = plans[index].as_ref().expect("it was kept");
        let last = probes.last().map_or(0, |p| p.shape.covered.end);
        if plan.shape.covered.start >= last {
            let record = Record::new(index as u32, Vec::new());
            let probe = Probe::new(plan.clone(), sites[index].object.range());
            probes.push(probe.with(vec![record.into()]));
        }
    }
    let (hits, _) = round(subject, program, expected, &probes, false)
        .unwrap_or_else(|wrong| panic!("{}: probes at all functions: {wrong}", subject.name));
    let hit = |object: &Arc<Object>| {
        let of_it = hits.records.keys().map(|event| &all[*event as usize]);
        let mut functions: Vec<Extent> = of_it
            .filter(|(o, _)| Arc::ptr_eq(o, object))
            .map(|(_, f)| *f)
            .collect();
        functions.sort_unstable();
        (object.clone(), functions)
    };
    println!(
        "{}: {} of {} functions are executed",
        subject.name,
        hits.records.len(),
        all.len()
    );
    objects.iter().map(hit).map(some).collect()
}

/// Takes a part of an object's functions in `make test`, at regular intervals.
fn some((object, functions): (Arc<Object>, Vec<Extent>)) -> (Arc<Object>, Vec<Extent>) {
    let most = rounds(SOME, usize::MAX, usize::MAX);
    let interval = functions.len().div_ceil(most).max(1);
    let first = seed() as usize % interval;
    let some = functions.into_iter().skip(first).step_by(interval);
    (object, some.collect())
}

/// Approximate limit on the number of sites planned together that need bytes of their
/// neighbours or fixed addresses: together they would leave no room for each other.
const PORTION: usize = 1500;
/// Most functions of an object in `make test`.
const SOME: usize = 80;

fn check(subject: &Subject) {
    let Some((mut program, expected)) = subject.start() else {
        return;
    };
    let objects = subject.objects(&program.process());
    let wanted = match !subject.only.is_empty() || is_long() && subject.all {
        true => objects
            .iter()
            .map(|o| (o.clone(), subject.functions(o)))
            .collect(),
        false => executed(subject, &mut program, &expected, &objects),
    };
    let sites: Vec<Site> = wanted
        .iter()
        .flat_map(|(object, functions)| every_instruction(object, functions))
        .collect();
    let planner = Planner::of_process(&program.process()).with_breakpoints(false);
    let plans = Plans::of(&planner, &sites);
    println!(
        "{}: {} instructions, probes at {} {:?}, refused {:?}",
        subject.name,
        plans.instructions,
        plans.planned.len(),
        plans.tactics(),
        plans.refused
    );
    assert!(plans.planned.len() > 20, "nothing can be probed");
    let batches: Vec<(&Plans, Vec<usize>)> =
        plans.batches().into_iter().map(|b| (&plans, b)).collect();
    let seed = seed();
    let portions = plans.rest.len() / PORTION + 12;
    let rest: Vec<Plans> = (0..portions)
        .filter(|n| is_long() || *n == seed as usize % portions)
        .map(|n| Plans::of_rest(&planner, &plans.rest, n, portions))
        .collect();
    let rest: Vec<(&Plans, Vec<usize>)> = rest
        .iter()
        .flat_map(|plans| plans.batches().into_iter().map(move |b| (plans, b)))
        .collect();
    let chosen: Vec<&(&Plans, Vec<usize>)> = match is_long() {
        true => batches.iter().chain(&rest).collect(),
        false => {
            println!("{}: CAPRIOLE_SEED={seed}", subject.name);
            let one =
                |of: &'_ [(_, Vec<usize>)]| (!of.is_empty()).then(|| seed as usize % of.len());
            let (first, second) = (one(&batches), one(&rest));
            first
                .map(|n| &batches[n])
                .into_iter()
                .chain(second.map(|n| &rest[n]))
                .collect()
        }
    };
    let (mut total, mut lost, mut hit) = (0, 0, BTreeSet::new());
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    for (number, (plans, batch)) in chosen.into_iter().enumerate() {
        let probes = plans.probes(batch);
        let started = Instant::now();
        for busy in [number % 2 == 0, number % 2 != 0] {
            match round(subject, &mut program, &expected, &probes, busy) {
                Ok((hits, without)) => {
                    total += hits.total();
                    lost += hits.lost;
                    hit.extend(
                        hits.records
                            .keys()
                            .map(|n| plans.planned[*n as usize].key.clone()),
                    );
                    for (why, count) in without {
                        *left_out.entry(why).or_default() += count;
                    }
                    assert!(
                        busy || hits.total() > 0 || batch.len() < 1000,
                        "{}: nothing was recorded of {} probes",
                        subject.name,
                        batch.len()
                    );
                }
                Err(wrong) => {
                    eprintln!("{}: batch {number}, busy {busy}: {wrong}", subject.name);
                    drop(program);
                    let keys: Vec<_> = batch
                        .iter()
                        .map(|i| plans.planned[*i].key.clone())
                        .collect();
                    panic!(
                        "{}: {wrong}; guilty: {:#?}",
                        subject.name,
                        narrow(subject, keys, busy)
                    );
                }
            }
        }
        if is_long() {
            println!(
                "{}: batch {number}, {} probes of {:?}, {:.1} s",
                subject.name,
                batch.len(),
                plans.tactics(),
                started.elapsed().as_secs_f64()
            );
        }
    }
    println!(
        "{}: {total} hits (of which {lost} found no room), {} sites seen hit, left out {left_out:?}",
        subject.name,
        hit.len()
    );
    assert!(hit.len() > 20, "only {} sites were hit", hit.len());
    let end = program.finish(subject.farewell, subject.status);
    end.expect("a good end");
}

/// Searches in new processes for the smallest set of sites that goes wrong.
fn narrow(subject: &Subject, mut keys: Vec<(String, u64)>, busy: bool) -> Vec<String> {
    let fails = |keys: &[(String, u64)]| -> Option<(Wrong, Vec<String>)> {
        let (mut program, expected) = subject.start()?;
        let wanted: BTreeSet<(String, u64)> = keys.iter().cloned().collect();
        let planner = Planner::of_process(&program.process()).with_breakpoints(false);
        let mut sites = Vec::new();
        for object in subject.objects(&program.process()) {
            let name = object.name();
            let holds = |f: &Extent| {
                let link = object.link(f.start)..object.link(f.end);
                wanted
                    .range((name.clone(), link.start)..(name.clone(), link.end))
                    .next()
                    .is_some()
            };
            let functions: Vec<Extent> = functions(&object).into_iter().filter(holds).collect();
            let all = every_instruction(&object, &functions);
            sites.extend(
                all.into_iter()
                    .filter(|s| wanted.contains(&(name.clone(), s.link_address))),
            );
        }
        // Plan all at once: they were one batch.
        let plans = Plans::of_rest(&planner, &sites, 0, 1);
        let all: Vec<usize> = (0..plans.planned.len()).collect();
        let names = plans.planned.iter().map(|p| {
            format!(
                "{} {:#x} {:x?}",
                p.name,
                p.key.1,
                (p.probe.shape.tactic, &p.probe.before, &p.probe.points)
            )
        });
        let wrong = round(subject, &mut program, &expected, &plans.probes(&all), busy).err()?;
        Some((wrong, names.collect()))
    };
    let mut told = Vec::new();
    let mut parts = 2;
    while let Some((wrong, names)) = (0..3).find_map(|_| fails(&keys)) {
        eprintln!("{} sites: {wrong}", keys.len());
        told = names;
        told.truncate(8);
        told.push(wrong);
        if keys.len() == 1 {
            break;
        }
        let size = keys.len().div_ceil(parts);
        let pieces: Vec<&[(String, u64)]> = keys.chunks(size).collect();
        let smaller = pieces
            .iter()
            .find(|piece| fails(piece).is_some())
            .map(|p| p.to_vec());
        match smaller {
            Some(smaller) => (keys, parts) = (smaller, 2),
            None if parts < 8 && parts < keys.len() => parts *= 2,
            None => break,
        }
    }
    told
}

#[test]
fn zlib() {
    let Some(program) = build(Compiler::Gcc, "zlib_answers.c", &[]) else {
        return;
    };
    check(&Subject::of("zlib", program, &["libz.so"]));
}

#[test]
fn digests_of_libcrypto() {
    let Some(program) = build(Compiler::Gcc, "digest_answers.c", &[]) else {
        return;
    };
    let mut subject = Subject::of("digests", program, &["libcrypto.so"]);
    subject.all = false;
    check(&subject);
}

#[test]
fn exceptions_of_cxx() {
    let Some(program) = build(Compiler::Gxx, "cxx_answers.cpp", &[]) else {
        return;
    };
    check(&Subject::of(
        "C++",
        program,
        &["", "libgcc_s.so", "libstdc++.so"],
    ));
}

#[test]
fn libc() {
    let Some(program) = build(
        Compiler::Gcc,
        "libc_answers.c",
        &["-Wl,--no-as-needed", "-lm"],
    ) else {
        return;
    };
    check(&Subject::of(
        "libc",
        program,
        &["", "libc.so", "libm.so", "ld-linux"],
    ));
}

#[test]
fn libc_inside() {
    let flags = [&["-static"][..], &["-static-pie"]];
    for (compiler, flags) in [
        (Compiler::Gcc, flags[0]),
        (Compiler::Gcc, flags[1]),
        (Compiler::MuslGcc, flags[0]),
    ] {
        let name = if compiler == Compiler::Gcc {
            "static glibc"
        } else {
            "static musl"
        };
        let flags: Vec<&str> = flags
            .iter()
            .copied()
            .chain(["-Wl,--start-group", "-lm"])
            .collect();
        if let Some(program) = build(compiler, "libc_answers.c", &flags) {
            check(&Subject::of(name, program, &[""]));
        }
    }
}

#[test]
fn sqlite() {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/sqlite_answers.sql");
    if Command::new("sqlite3").arg("-version").output().is_err() {
        println!("skipped: cannot run sqlite3");
        return;
    }
    let mut subject = Subject::of("sqlite", PathBuf::new(), &["libsqlite3.so"]);
    subject.command = Box::new(|| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo ready; exec sqlite3 -init /dev/null :memory: 2>&1",
        ]);
        command
    });
    subject.question = format!(".read '{}'\n.print done\n", source.display());
    subject.farewell = ".print ok\n";
    subject.status = 1; // there are errors in the question
    check(&subject);
}

/// Returns the Python to test: one that includes its own tests, if there is one.
fn python() -> Option<(&'static str, bool)> {
    let runs = |python: &str, code: &str| {
        let output = Command::new(python).args(["-c", code]).output();
        output.is_ok_and(|o| o.status.success())
    };
    let all = ["python3", "/usr/bin/python3"];
    let with_tests = all
        .into_iter()
        .find(|p| runs(p, "import test.test_re, test.test_json, _json"));
    let any = all
        .into_iter()
        .find(|p| runs(p, "import re, json, unittest, _json"));
    with_tests.map(|p| (p, true)).or(any.map(|p| (p, false)))
}

#[test]
fn regular_expressions_and_json_of_cpython() {
    let Some((python, has_tests)) = python() else {
        println!("skipped: cannot run python3");
        return;
    };
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/cpython_answers.py");
    let mut subject = Subject::of(
        "CPython",
        PathBuf::new(),
        &["python3", "libpython3", "_json"],
    );
    subject.command = Box::new(move || {
        let mut command = Command::new(python);
        command.arg(&script).env("PYTHONHASHSEED", "0");
        command
    });
    subject.only = &[
        "sre_", "_sre", "pattern_", "match_", "scanner_", "state_", "getslice", "expand_",
    ];
    if is_long() && has_tests {
        subject.question = "tests\n".to_owned();
    } else if is_long() {
        println!("skipped: CPython's own tests are not installed");
    }
    check(&subject);
}

fn go_program() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/go_answers.go");
    let unique = format!("go_answers-{:?}", std::thread::current().id());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique.replace(['(', ')'], ""));
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(source)
        .env("CGO_ENABLED", "0")
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: cannot run go: {error}");
            None
        }
    }
}

fn go_subject(program: PathBuf) -> Subject {
    Subject::of("Go", program, &[""])
}

#[test]
fn go() {
    let Some(program) = go_program() else { return };
    check(&go_subject(program));
}

/// A displaced instruction faults, the runtime turns the fault into a panic at the original
/// place, and the program recovers.
#[test]
fn faults_of_go() {
    let Some(program) = go_program() else { return };
    let mut subject = go_subject(program);
    subject.question = "faults\n".to_owned();
    subject.only = &["main."];
    check(&subject);
}
