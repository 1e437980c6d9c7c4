//! Tests of everything that is installed: Debian packages, the benchmarks in them, and completions.

use crate::programs::{Compiler, build};
use crate::target::{capriole, is_root, told};
use crate::tools::{have, root, run};
use crate::traces::{scratch, text};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// The demo calls `capriole bench`, which is a program of its own: in a fresh clone it is there only if
/// the demo builds it.
#[test]
fn the_demo_builds_what_it_calls() {
    let demo = std::fs::read_to_string(root().join("scripts/demo.sh")).expect("a script");
    assert!(demo.contains("bench hit"));
    let mut make = Command::new("make");
    let output = make.args(["-n", "demo"]).current_dir(root()).output();
    let said = told(&output.expect("make is there"));
    let builds = said.lines().find(|line| line.contains("cargo build"));
    assert!(
        builds.is_some_and(|line| line.contains("-p capriole-bench")),
        "{said}"
    );
}

/// The benchmarks beside the command that is being tested. A build of the command alone has none.
fn benchmarks() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_capriole")).with_file_name("capriole-bench");
    if !path.exists() {
        println!("skipped: no benchmarks (cargo build -p capriole-bench)");
        return None;
    }
    Some(path)
}

/// Builds the packages of the command that is being tested, and returns their paths.
fn packages(out: &Path) -> Vec<String> {
    let mut script = Command::new(root().join("scripts/deb.sh"));
    if let Some(benchmarks) = benchmarks() {
        script.arg("--bench").arg(benchmarks);
    }
    script
        .args([
            "--binary",
            env!("CARGO_BIN_EXE_capriole"),
            "--out",
            text(out),
        ])
        .env("DEB_COMPRESSION", "none")
        .stdin(std::process::Stdio::null());
    for variable in [
        "CFLAGS",
        "LDFLAGS",
        "DEB_REVISION",
        "SOURCE_DATE_EPOCH",
        "DEBEMAIL",
    ] {
        script.env_remove(variable);
    }
    let output = script.output().expect("the script starts");
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("skipped: lintian") {
        println!("skipped: no lintian");
    }
    let paths = String::from_utf8(output.stdout).expect("UTF-8");
    paths.lines().map(str::to_owned).collect()
}

/// Everything below a directory, except dpkg's own files.
fn all_below(directory: &Path) -> BTreeSet<String> {
    let mut find = Command::new("find");
    find.current_dir(directory)
        .args([".", "-path", "./var/lib/dpkg", "-prune", "-o", "-print"]);
    run(&mut find).lines().map(str::to_owned).collect()
}

/// A root directory in which no package is installed but those that this system has of what the
/// packages depend on, in the words of its own dpkg.
fn empty_root(directory: &Path) {
    let database = directory.join("var/lib/dpkg");
    for part in ["info", "updates", "triggers"] {
        std::fs::create_dir_all(database.join(part)).expect("a directory");
    }
    let mut status = String::new();
    for package in ["libc6", "libgcc-s1"] {
        status += &run(Command::new("dpkg-query").args(["-s", package]));
        status += "\n";
        std::fs::write(database.join(format!("info/{package}:amd64.list")), "").expect("a list");
    }
    std::fs::write(database.join("status"), status).expect("a status");
    std::fs::write(database.join("available"), "").expect("a list");
}

fn dpkg(directory: &Path, arguments: &[&str]) {
    let mut dpkg = Command::new("dpkg");
    dpkg.arg(format!("--root={}", directory.display()))
        .args(["--force-script-chrootless", "--log=/dev/null"])
        .args(arguments)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("DEBIAN_FRONTEND", "noninteractive");
    run(&mut dpkg);
}

#[test]
fn debian_packages_can_be_installed_used_and_removed() {
    if !have("dpkg-deb") || !have("dpkg-query") {
        return println!("skipped: no dpkg");
    }
    if !is_root("install packages") {
        return;
    }
    let scratch = scratch();
    let packages = packages(&scratch.path().join("packages"));
    let has_benchmarks = benchmarks().is_some();
    let mut names = vec!["capriole", "libcapriole-dev", "libcapriole0"];
    if has_benchmarks {
        names.insert(1, "capriole-bench");
    }
    let field = |path: &str, field: &str| {
        let said = run(Command::new("dpkg-deb").args(["-f", path, field]));
        said.trim().to_owned()
    };
    let mut found: Vec<String> = packages.iter().map(|path| field(path, "Package")).collect();
    found.sort();
    assert_eq!(found, names);
    for path in &packages {
        let version = field(path, "Version");
        assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
        // Files belong to root, whoever has built them.
        let contents = run(Command::new("dpkg-deb").args(["-c", path]));
        assert!(
            contents.lines().all(|line| line.contains(" root/root ")),
            "{contents}"
        );
    }

    let place = scratch.path().join("root");
    empty_root(&place);
    let before = all_below(&place);
    let paths: Vec<&str> = packages.iter().map(String::as_str).collect();
    dpkg(&place, &[&["--install"], &paths[..]].concat());
    dpkg(&place, &[&["--verify"], &names[..]].concat());
    let installed = place.join("usr/bin/capriole");
    the_installed_command_works(&installed, scratch.path());
    if has_benchmarks {
        the_installed_benchmarks_measure(&installed);
    }
    the_installed_pages_are_found(&place.join("usr/share/man"));
    completes_in_bash(
        &installed,
        &place.join("usr/share/bash-completion/completions/capriole"),
    );
    the_installed_library_works(&place, scratch.path());

    dpkg(&place, &[&["--purge"], &names[..]].concat());
    let left: Vec<String> = all_below(&place).difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn the_installed_command_works(installed: &Path, directory: &Path) {
    let mode = installed
        .metadata()
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    let own = run(Command::new(installed).arg("--version"));
    assert_eq!(own, run(crate::target::own().arg("--version")));
    let sections = run(Command::new("objdump").arg("-h").arg(installed));
    assert!(
        sections.contains(".text")
            && !sections.contains(".debug_info")
            && !sections.contains(".debug_line"),
        "{sections}"
    );
    records(installed, directory);
}

/// Symbols are stripped from installed programs; the measured functions must be found all the same.
fn the_installed_benchmarks_measure(installed: &Path) {
    let rows = "capriole.count,capriole.record2,capriole.return.stack,kernel.uprobe";
    let mut command = Command::new(installed);
    command.args(["bench", "hit", "--json", "--rounds", "7", "--round-ms", "1"]);
    command.args(["--threads", "1", "--rows", rows]);
    let measured: serde_json::Value = serde_json::from_str(&run(&mut command)).expect("JSON");
    let rows = measured.as_array().expect("rows");
    let row = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no {name}: {measured}"))
    };
    for name in [
        "capriole.count",
        "capriole.record2",
        "capriole.return.stack",
    ] {
        assert!(
            row(name)["ns"].as_f64().is_some_and(|ns| ns > 0.0),
            "{measured}"
        );
    }
    let uprobe = row("kernel.uprobe");
    let why = uprobe["skipped"].as_str().unwrap_or_default();
    assert!(
        uprobe["ns"].is_number() || why.contains("tracefs"),
        "{uprobe}"
    );
}

/// Records and counts calls of a program, with this command, and reads the trace with it.
pub fn records(command: &Path, directory: &Path) {
    let Some(program) = build(Compiler::Gcc, "counted.c", &[]) else {
        return;
    };
    let trace = directory.join("t");
    let run_with = |words: &[&str]| {
        run(Command::new(command)
            .args(words)
            .stdin(std::process::Stdio::null()))
    };
    run_with(&[
        "record",
        "-o",
        text(&trace),
        "-e",
        ":counted_work",
        "--",
        text(&program),
    ]);
    let summary = run_with(&["report", "--summary", "--json", text(&trace)]);
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    let calls = &summary["by_event"][0]["calls"];
    assert!(calls.as_u64().is_some_and(|calls| calls > 0), "{summary}");
    assert_eq!(summary["lost_events"], 0, "{summary}");
    let counted = run_with(&[
        "stat",
        "--json",
        "-e",
        ":counted_work",
        "--",
        text(&program),
    ]);
    // The program's own output comes first.
    let counted = counted
        .lines()
        .find(|line| line.starts_with('{'))
        .expect("JSON");
    let counted: serde_json::Value = serde_json::from_str(counted).expect("JSON");
    assert_eq!(&counted["events"][0]["calls"], calls, "{counted}");
    std::fs::remove_dir_all(&trace).expect("a trace");
}

fn the_installed_pages_are_found(directory: &Path) {
    if !have("man") {
        return println!("skipped: no man");
    }
    let man = |words: &[&str]| {
        let mut man = Command::new("man");
        man.arg("-M").arg(directory).args(words);
        man.env("MANPAGER", "cat")
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        run(&mut man)
    };
    for (words, wanted) in [
        (&["capriole"][..], "CAPRIOLE(1)"),
        (&["capriole-record"], "--buffer-size SIZE"),
        (&["capriole-events"], "Names of variables"),
        (&["7", "capriole"], "capriole/probe.h"),
        (&["capriole-probe"], "capriole_probe_register"),
    ] {
        let page = man(words);
        assert!(
            page.contains(wanted) || page.contains(&wanted.to_uppercase()),
            "{words:?}: {page}"
        );
    }
}

fn the_installed_library_works(place: &Path, directory: &Path) {
    if !have("pkg-config") {
        return println!("skipped: no pkg-config");
    }
    let libraries = place.join("usr/lib/x86_64-linux-gnu");
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "capriole"])
        .env("PKG_CONFIG_LIBDIR", libraries.join("pkgconfig"))
        .env("PKG_CONFIG_PATH", "")
        .env("PKG_CONFIG_SYSROOT_DIR", place));
    let program = directory.join("first");
    run(Command::new("cc")
        .arg(root().join("crates/probe/tests/it/programs/first.c"))
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&program));
    let said = run(Command::new(&program)
        .env("LD_LIBRARY_PATH", &libraries)
        .env("CAPRIOLE_HELPER", place.join("usr/bin/capriole")));
    assert!(said.contains("hits 145 words 7 sum 3454: "), "{said}");
}

/// A process to be completed; killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(
            Command::new("sleep")
                .arg("300")
                .spawn()
                .expect("sleep starts"),
        )
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// PATH with the directory of this command first.
fn path_with(command: &Path) -> String {
    let own = command.parent().expect("it is in a directory");
    format!(
        "{}:{}",
        own.display(),
        std::env::var("PATH").unwrap_or_default()
    )
}

/// Words of a command line, the last one to be completed; candidates that are wanted, and others that
/// must not be there.
type Case = (
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

/// In a directory with the trace `one.trace`, the file `two events`, and the file `three.events`.
const CASES: &[Case] = &[
    (&["re"], &["record", "report"], &["stat", "generate"]),
    (&[""], &["detach", "help"], &["generate", "probe-helper"]),
    (&["record", "--du"], &["--duration"], &["--depth"]),
    (&["record", "--return", ""], &["exits", "stack"], &[]),
    (
        &["record", "--return=st"],
        &["--return=stack"],
        &["--return=exits"],
    ),
    (&["report", "--sort", ""], &["self", "total", "calls"], &[]),
    (&["report", "on"], &["one.trace/"], &["three.events"]),
    (&["record", "-f", "th"], &["three.events"], &["one.trace/"]),
    (
        &["help", "fi"],
        &["files", "filters"],
        &["record", "returns"],
    ),
    (&["help", "rec"], &["record"], &["report"]),
    (
        &["record", "-e", ":x", "--", "dpkg-qu"],
        &["dpkg-query"],
        &["dpkg-deb"],
    ),
    (&["--"], &["--version", "--quiet"], &["--json"]),
];

/// A directory for [`CASES`].
fn with_files(directory: &Path) {
    std::fs::create_dir(directory.join("one.trace")).expect("a directory");
    for name in ["two events", "three.events"] {
        std::fs::write(directory.join(name), "").expect("a file");
    }
}

/// Checks candidates that a shell has shown, one per line, perhaps with a description behind a blank.
fn check(shell: &str, case: &Case, shown: &str) {
    let (words, wanted, others) = case;
    // The engine writes a directory with its slash, and shells may add it themselves.
    let shown: Vec<&str> = shown
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|word| word.trim_end_matches('/'))
        .collect();
    let has = |word: &&&str| shown.contains(&word.trim_end_matches('/'));
    let missing: Vec<_> = wanted.iter().filter(|word| !has(word)).collect();
    let surplus: Vec<_> = others.iter().filter(has).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "{shell}: {words:?}: {shown:?} lacks {missing:?}, has {surplus:?}"
    );
}

fn completes_in_bash(command: &Path, script: &Path) {
    if !have("bash") {
        return println!("skipped: no bash");
    }
    let scratch = scratch();
    with_files(scratch.path());
    let sleeper = Sleeper::start();
    let complete = |words: &[&str]| {
        // As bash calls the function that is registered for the command.
        let text = r#"
            source "$1"; shift
            function=$(complete -p capriole | sed 's/.* -F \([^ ]*\) .*/\1/')
            COMP_WORDS=(capriole "$@") COMP_CWORD=$# COMP_TYPE=9 COMPREPLY=()
            $function capriole "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", text, "bash"])
            .arg(script)
            .args(words);
        bash.current_dir(scratch.path())
            .env("PATH", path_with(command));
        run(&mut bash)
    };
    for case in CASES {
        check("bash", case, &complete(case.0));
    }
    let pids = complete(&["stat", "-p", ""]);
    let own = sleeper.0.id().to_string();
    assert!(pids.lines().any(|line| line == own), "{own}: {pids}");
    assert!(complete(&["detach", ""]).lines().any(|line| line == own));
}

/// Generates the completions, and returns the path of one of them.
fn generated(directory: &Path, path: &str) -> PathBuf {
    let output = capriole(&["generate", "completions", text(directory)]);
    assert!(output.status.success(), "{}", told(&output));
    directory.join(path)
}

#[test]
fn bash_completes() {
    let scratch = scratch();
    let script = generated(scratch.path(), "share/bash-completion/completions/capriole");
    completes_in_bash(Path::new(env!("CARGO_BIN_EXE_capriole")), &script);
}

#[test]
fn fish_completes() {
    if !have("fish") {
        return println!("skipped: no fish");
    }
    let scratch = scratch();
    let script = generated(
        scratch.path(),
        "share/fish/vendor_completions.d/capriole.fish",
    );
    let place = scratch.path().join("files");
    std::fs::create_dir(&place).expect("a directory");
    with_files(&place);
    for case in CASES {
        let line = format!("capriole {}", case.0.join(" "));
        let mut fish = Command::new("fish");
        fish.args(["-c", "source $argv[1]; complete -C $argv[2]"])
            .arg(&script)
            .arg(line);
        fish.current_dir(&place)
            .env("HOME", scratch.path())
            .env("PATH", path_with(Path::new(env!("CARGO_BIN_EXE_capriole"))));
        check("fish", case, &run(&mut fish));
    }
}

#[test]
fn zsh_completes() {
    if !have("zsh") {
        return println!("skipped: no zsh");
    }
    let scratch = scratch();
    let script = generated(scratch.path(), "share/zsh/site-functions/_capriole");
    let place = scratch.path().join("files");
    std::fs::create_dir(&place).expect("a directory");
    with_files(&place);
    // zsh completes in its line editor only, so it gets a terminal. Ctrl-X completes the word and
    // prints the line. The first line is completed by the file that zsh loads then.
    let text = r#"
        zmodload zsh/zpty
        TERM=dumb zpty shell zsh -f -i
        zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -d $2"
        zpty -w shell 'show() { zle complete-word; BUFFER="print -r -- \"<<$BUFFER>>\""; zle accept-line }'
        zpty -w shell 'zle -N show; bindkey "^X" show; print re""ady'
        zpty -r -m shell line '*ready*'
        for typed in "${@[3,-1]}"; do
            zpty -w -n shell "$typed"$'\x18'
            zpty -r -m shell line $'*\n<<*>>*'
            print -r -- "$line"
        done
        zpty -d shell
    "#;
    let lines = [
        ("capriole rec", "<<capriole record >>"),
        ("capriole record --dur", "<<capriole record --duration >>"),
        (
            "capriole record --return st",
            "<<capriole record --return stack >>",
        ),
        ("capriole help filt", "<<capriole help filters >>"),
        ("capriole report one", "<<capriole report one.trace/>>"),
        (
            "capriole record -f thr",
            "<<capriole record -f three.events >>",
        ),
    ];
    let mut zsh = Command::new("timeout");
    zsh.args(["120", "zsh", "-f", "-c", text, "zsh"])
        .arg(script.parent().expect("its directory"))
        .arg(scratch.path().join("dump"))
        .args(lines.map(|(typed, _)| typed))
        .current_dir(&place)
        .env("HOME", scratch.path())
        .env("PATH", path_with(Path::new(env!("CARGO_BIN_EXE_capriole"))));
    let shown = run(&mut zsh);
    for (typed, wanted) in lines {
        assert!(
            shown.contains(wanted),
            "{typed}: {wanted} is not in {shown:?}"
        );
    }
}
