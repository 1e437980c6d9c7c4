//! Other tools list markers, and attach to them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Elf, compile, program, run, with_library};
use capriole_testkit::tools::{have, present, quiet};
use object::{Object, ObjectSegment};

/// Returns true if a tool is installed; prints the reason if not.
fn can(tool: &str) -> bool {
    if !have(tool) {
        println!("skipped: no {tool}");
        return false;
    }
    true
}

fn can_trace() -> bool {
    if !rustix_is_root() {
        println!("skipped: not root, who alone may put kernel probes");
        return false;
    }
    if !Path::new("/sys/kernel/tracing/uprobe_events").exists() {
        println!("skipped: no uprobe_events in /sys/kernel/tracing");
        return false;
    }
    true
}

fn rustix_is_root() -> bool {
    let id = run(Command::new("id").arg("-u"));
    id.stdout.trim_ascii() == b"0"
}

/// Builds C programs by GCC and by Clang, and C++ programs with templates by both.
fn programs(directory: &Path) -> Vec<PathBuf> {
    let kinds = [
        ("gcc", "kinds.c"),
        ("clang", "kinds.c"),
        ("g++", "kinds.cpp"),
        ("clang++", "kinds.cpp"),
    ];
    let kinds = kinds
        .into_iter()
        .filter(|(compiler, _)| !present(&[compiler]).is_empty());
    let built = kinds.map(|(compiler, source)| {
        let out = directory.join(format!("by-{}", compiler.replace('+', "x")));
        compile(compiler, &["-O2", "-g"], &program(source), &out);
        out
    });
    built.collect()
}

fn text(command: &mut Command) -> String {
    let output = run(command.stdin(Stdio::null()));
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// Checks that the tool's output contains the name of every marker of the program.
fn lists_all(program: &Path, said: &str, line: impl Fn(&str) -> String) {
    for marker in Elf::read(program).markers() {
        let wanted = line(&format!("{}:{}", marker.provider, marker.name));
        assert!(said.contains(&wanted), "{wanted} is missing:\n{said}");
    }
}

#[test]
fn readelf_and_gdb_list_markers() {
    let directory = tempfile::tempdir().unwrap();
    for program in programs(directory.path()) {
        let said = text(Command::new("readelf").arg("-n").arg(&program));
        for marker in Elf::read(&program).markers() {
            let block = format!(
                "Provider: {}\n    Name: {}\n    Location: {:#018x},",
                marker.provider, marker.name, marker.address
            );
            assert!(said.contains(&block), "{block}\n{said}");
            assert!(said.contains(&format!("Arguments: {}\n", marker.arguments.join(" "))));
        }
        if can("gdb") {
            let said = text(
                Command::new("gdb")
                    .args(["-nx", "-batch", "-ex", "info probes stap"])
                    .arg(&program),
            );
            for marker in Elf::read(&program).markers() {
                let row = |row: &str| {
                    let words: Vec<&str> = row.split_whitespace().collect();
                    words.starts_with(&[
                        "stap",
                        &marker.provider,
                        &marker.name,
                        &format!("{:#018x}", marker.address),
                    ])
                };
                assert!(said.lines().any(row), "{marker:?} is missing:\n{said}");
            }
        }
    }
}

/// gdb stops at a marker, and reads the arguments; floating point numbers as raw bits.
#[test]
fn gdb_reads_arguments() {
    if !can("gdb") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for program in programs(directory.path()) {
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off"]);
        for command in [
            "break -probe-stap kinds:large",
            "break -probe-stap kinds:floating",
            "run",
            "printf \"%d arguments: %d %d\\n\", $_probe_argc, $_probe_arg0, $_probe_arg1",
            "continue",
            "printf \"floating %d %lx\\n\", $_probe_arg0, $_probe_arg2",
        ] {
            gdb.args(["-ex", command]);
        }
        let said = text(gdb.arg(&program));
        if said.contains("ptrace: Operation not permitted") {
            println!("skipped: gdb may not trace here");
            return;
        }
        assert!(said.contains("6 arguments: -10 6"), "{said}");
        let bits = format!("floating -10 {:x}", 12.5_f64.to_bits());
        assert!(said.contains(&bits), "{bits}\n{said}");
    }
}

#[test]
fn bpftrace_lists_markers() {
    if !can("bpftrace") || !can_trace() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for program in programs(directory.path()) {
        let said = text(
            Command::new("bpftrace")
                .arg("-l")
                .arg(format!("usdt:{}:*", program.display())),
        );
        lists_all(&program, &said, |marker| {
            format!("usdt:{}:{marker}\n", program.display())
        });
    }
}

#[test]
fn perf_lists_and_probes_markers() {
    if !can("perf") || !can_trace() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let perf = || {
        let mut perf = Command::new("perf");
        perf.arg("--buildid-dir").arg(&cache);
        perf
    };
    for program in programs(directory.path()) {
        quiet(perf().args(["buildid-cache", "--add"]).arg(&program));
        let said = text(perf().args(["list", "sdt"]));
        if said.contains("SDT events") || said.contains("sdt_") {
            lists_all(&program, &said, |marker| format!("sdt_{marker}"));
        } else {
            println!("skipped: this perf knows no SDT events: {said}");
            return;
        }
        // perf creates its own names for them in the kernel's list of probes; remove all again.
        let said = text(
            perf()
                .args(["probe", "-x"])
                .arg(&program)
                .arg("sdt_kinds:large"),
        );
        let found = said.contains("sdt_kinds:large");
        let events = std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap();
        let made = events.lines().any(|line| {
            line.contains("sdt_kinds/large") && line.contains(program.to_str().unwrap())
        });
        quiet_or_not(perf().args(["probe", "-d", "sdt_kinds:large*"]));
        assert!(found && made, "{said}\n{events}");
        quiet(perf().args(["buildid-cache", "--remove"]).arg(&program));
    }
}

fn quiet_or_not(command: &mut Command) {
    let _ = text(command);
}

/// A program that executes its markers until it is killed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// bpftrace attaches to both forms, increments the counter of the guarded one, and reads
/// numbers and strings.
#[test]
fn bpftrace_attaches_and_reads_arguments() {
    if !can("bpftrace") || !can_trace() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (compiler, source) in [
        ("gcc", "steps.c"),
        ("clang", "steps.c"),
        ("g++", "steps.cpp"),
        ("clang++", "steps.cpp"),
    ] {
        if present(&[compiler]).is_empty() {
            continue;
        }
        let out = directory.path().join(compiler.replace('+', "x"));
        let options = [&["-O2", "-Wall", "-Werror"], red_zone(compiler)].concat();
        compile(compiler, &options, &program(source), &out);
        let shown = out.display();
        let running = Running(Command::new(&out).stdout(Stdio::null()).spawn().unwrap());
        let script = format!(
            "usdt:{shown}:steps:step {{ @steps = count(); @wrong = sum(arg1 != arg0 * 3 ? 1 : 0); @text[str(arg2)] = count(); \
             @seen = @seen + 1; if (@seen > 20 && @paid > 20) {{ exit(); }} }} \
             usdt:{shown}:steps:costly {{ @costly = count(); @unlike = sum(arg0 % 5 != 0 ? 1 : 0); @paid = @paid + 1; }} \
             interval:s:300 {{ exit(); }}"
        );
        let mut bpftrace = Command::new("bpftrace");
        let said = text(
            bpftrace
                .arg("-p")
                .arg(running.0.id().to_string())
                .args(["-e", &script]),
        );
        let number = |name: &str| -> u64 {
            let line = said
                .lines()
                .find_map(|line| line.strip_prefix(&format!("@{name}: ")));
            line.unwrap_or_else(|| panic!("no {name}:\n{said}"))
                .trim()
                .parse()
                .unwrap()
        };
        assert!(number("steps") > 10 && number("costly") > 10, "{said}");
        assert_eq!((number("wrong"), number("unlike")), (0, 0), "{said}");
        assert!(said.contains("@text[on the stack]: "), "{said}");
        assert_eq!(said.matches("@text[").count(), 1, "{said}");
        drop(running);
    }
}

/// Places a kernel probe on markers of functions that keep variables below the stack pointer.
/// Linux 6.18 writes there, so the header has to keep the compiler from using that memory.
#[test]
fn kernel_probes_leave_variables_alone() {
    if !can_trace() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("leaf");
    for compiler in present(&["gcc", "g++", "clang", "clang-19"]) {
        for level in ["-O0", "-O2"] {
            let language = if compiler.ends_with('+') {
                "-xc++"
            } else {
                "-xc"
            };
            let options = [&[level, language], red_zone(compiler)].concat();
            compile(compiler, &options, &program("leaf.c"), &out);
            println!("{compiler} {level}");
            nothing_is_wrong(&out);
        }
    }
    for level in ["-Copt-level=0", "-Copt-level=3"] {
        let mut rustc = with_library(directory.path(), &[level, "-Cpanic=abort"]);
        quiet(rustc.arg(program("leaf.rs")).arg("-o").arg(&out));
        println!("rustc {level}");
        nothing_is_wrong(&out);
    }
}

fn nothing_is_wrong(program: &Path) {
    let elf = Elf::read(program);
    let markers = elf.markers();
    let leaves = markers
        .iter()
        .filter(|marker| marker.name == "leaf")
        .enumerate();
    let probes: Vec<Probe> = leaves
        .map(|(n, marker)| Probe::put(n, program, offset(&elf, marker.address)))
        .collect();
    let said = quiet(&mut Command::new(program));
    let hits: u64 = probes.iter().map(Probe::hits).sum();
    drop(probes);
    assert_eq!(said, "0 of 10000 wrong\n");
    assert_eq!(hits, 10_000);
}

/// Options for compilers that the header cannot tell about red zones: Clang before 18.
fn red_zone(compiler: &str) -> &'static [&'static str] {
    let ask = format!("echo __clang_major__ | {compiler} -E -xc -");
    let said = String::from_utf8(run(Command::new("sh").args(["-c", &ask])).stdout).unwrap();
    let clang = said
        .lines()
        .last()
        .and_then(|line| line.trim().parse::<u32>().ok());
    if clang.is_some_and(|version| version < 18) {
        &["-mno-red-zone"]
    } else {
        &[]
    }
}

fn offset(elf: &Elf, address: u64) -> u64 {
    let file = elf.file();
    let segment = file
        .segments()
        .find(|s| (s.address()..s.address() + s.size()).contains(&address))
        .unwrap();
    address - segment.address() + segment.file_range().0
}

/// A kernel probe, removed on drop.
struct Probe {
    name: String,
}

impl Probe {
    fn put(number: usize, program: &Path, offset: u64) -> Probe {
        let name = format!("capriole_leaf_{}_{number}", std::process::id());
        Probe::write(&format!(
            "p:capriole_test/{name} {}:{offset:#x}",
            program.display()
        ));
        let probe = Probe { name };
        probe.enable("1");
        probe
    }

    fn write(line: &str) {
        use std::io::Write;
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open("/sys/kernel/tracing/uprobe_events");
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn enable(&self, value: &str) {
        let path = format!(
            "/sys/kernel/tracing/events/capriole_test/{}/enable",
            self.name
        );
        std::fs::write(path, value).unwrap();
    }

    fn hits(&self) -> u64 {
        // The kernel's list may change while it is read, and then it skips rows.
        let row = || {
            let profile = std::fs::read_to_string("/sys/kernel/tracing/uprobe_profile").unwrap();
            let mut rows = profile.lines().map(str::split_whitespace);
            let mut row = rows.find(|row| row.clone().any(|word| word == self.name))?;
            row.nth(2)?.parse().ok()
        };
        let found = (0..1000).find_map(|_| row());
        found.expect("the probe has a row")
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.enable("0");
        // Another process may still have the event open for a moment.
        let end = Instant::now() + Duration::from_secs(300);
        let line = format!("-:capriole_test/{}", self.name);
        while std::fs::OpenOptions::new()
            .append(true)
            .open("/sys/kernel/tracing/uprobe_events")
            .and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()))
            .is_err()
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
