//! `scripts/clean.sh`, which runs the tests.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs a script in bash by `scripts/clean.sh`, after the settings `before`.
fn cleaned(before: &str, script: &str) -> Output {
    let settings = format!("{before}\nexec \"$0\" bash -c \"$1\"");
    Command::new("bash")
        .current_dir(ROOT)
        .args(["-c", &settings, "scripts/clean.sh", script])
        .env_remove("CAPRIOLE_CLEAN")
        .output()
        .expect("bash runs")
}

/// Returns what it printed, line by line.
fn lines(output: &Output) -> Vec<&str> {
    let text = std::str::from_utf8(&output.stdout).expect("text");
    text.lines().collect()
}

#[test]
fn what_a_shell_has_set_does_not_reach_the_tests() {
    let before = "
        trap '' HUP INT XFSZ PIPE TERM CHLD
        umask 077
        ulimit -S -n 100; ulimit -S -f 10; ulimit -S -s 1024
        export LC_ALL=C LANG=de_DE.UTF-8 TERM=xterm COLUMNS=20 NO_COLOR=1 TZ=Asia/Tokyo
        export PYTHONPATH=/nowhere MALLOC_PERTURB_=1 CAPRIOLE_DIE_AT=begun#1";
    let script = "
        echo ignored $((0x$(grep SigIgn /proc/self/status | cut -f 2) & 0x7fffffff))
        umask
        ulimit -S -n; ulimit -S -f; ulimit -S -s
        echo $LC_ALL,$TERM
        env | grep -E '^(LANG|COLUMNS|NO_COLOR|TZ|PYTHONPATH|MALLOC_PERTURB_|CAPRIOLE_DIE_AT)='
        [ -t 0 ] || echo no terminal";
    let output = cleaned(before, script);
    assert_eq!(
        lines(&output),
        [
            "ignored 0",
            "0022",
            "4096",
            "unlimited",
            "8192",
            "C.UTF-8,dumb",
            "no terminal",
        ],
        "{output:?}"
    );
}

/// Also a pipeline, of which bash waits for the end.
#[test]
fn an_interrupt_ends_all() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut child = Command::new("bash")
            .current_dir(ROOT)
            .args(["scripts/clean.sh", "sh", "-c"])
            // It says so when all of it runs: bash 5.2 spins for ever if SIGINT comes while it starts a pipeline.
            .arg("{ echo started; sleep 1000; } | cat; echo went on")
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash runs");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut text = String::new();
        output.read_line(&mut text).expect("text");
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        output.read_to_string(&mut text).expect("text");
        let status = child.wait().expect("it ends");
        assert!(!status.success() && text == "started\n", "{status}: {text}");
    }
}

#[test]
fn nothing_is_left_of_a_run() {
    // A directory that others may use, and a process that would go on.
    let script = "
        stat -c %a $TMPDIR
        mktemp -d >/dev/null
        sleep 1000 &
        echo $TMPDIR
        echo $!
        exit 7";
    for place in
        ["", "/nowhere", "/var/tmp", "crates"].map(|place| format!("export TMPDIR={place}"))
    {
        let output = cleaned(&place, script);
        let [mode, directory, pid] = lines(&output)[..] else {
            panic!("{output:?}");
        };
        assert_eq!(
            (mode, output.status.code()),
            ("1777", Some(7)),
            "{output:?}"
        );
        let is_absolute = Path::new(directory).is_absolute();
        assert!(is_absolute && !Path::new(directory).exists(), "{output:?}");
        // Its parent may not have taken notice of its end yet.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        assert!(
            stat.is_err() || stat.is_ok_and(|s| s.contains(") Z ")),
            "{output:?}"
        );
    }
}
