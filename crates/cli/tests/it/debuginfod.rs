//! Debug information from debuginfod servers: who is asked, when, and what becomes of the answers.

use crate::target::{command, told};
use crate::traces::{events, recorder, scratch, text};
use capriole_testkit::tools::{have, root};
use capriole_testkit::waiting::until;
use capriole_testkit::workshop::{Workshop, run};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

const SOURCE: &str = r#"
#include <stdio.h>
struct order { long id; int count; };
volatile long sum;
__attribute__((noinline)) long order_price(struct order *p, int size) { sum += size; return p->id * size; }
__attribute__((noinline)) void other(int size) { sum += size; }
int main(void)
{
	struct order order = { 7, 3 };

	for (int i = 0; i < 5; i++)
		sum += order_price(&order, 40 + i);
	other(2);
	printf("%ld\n", sum);
	return 0;
}
"#;

/// A program without debug information, and where that is.
struct Subject {
    shop: Workshop,
    program: PathBuf,
    debug: PathBuf,
}

impl Subject {
    fn new() -> Option<Subject> {
        let shop = Workshop::new();
        let options = ["-g", "-O1", "-Wl,--build-id=sha1"];
        let built = shop.compile("gcc", &options, SOURCE, "shop")?;
        let (program, debug) = (shop.path("order"), shop.path("order.debug"));
        let objcopy =
            |option, to: &Path| run(Command::new("objcopy").arg(option).arg(&built).arg(to));
        (objcopy("--strip-debug", &program) && objcopy("--only-keep-debug", &debug)).then_some(
            Subject {
                shop,
                program,
                debug,
            },
        )
    }

    /// Makes `debuginfod-find` this script, which finds the debug file in `$debug`, and the directory for
    /// its own files in `$here`. Returns the `PATH` that has it.
    fn client(&self, script: &str) -> String {
        let bin = self.shop.path("bin");
        std::fs::create_dir_all(&bin).expect("a directory");
        let here = self.shop.path("");
        let script = format!(
            "#!/bin/sh\ndebug='{}' here='{}'\necho \"$@\" >>\"$here/asked\"\n{script}\n",
            text(&self.debug),
            text(&here)
        );
        // Another process writes it: one that is forked meanwhile could have it open for writing.
        let write = "printf %s \"$2\" >\"$1\" && chmod +x \"$1\"";
        let mut writer = Command::new("sh");
        writer
            .args(["-c", write, "sh"])
            .arg(bin.join("debuginfod-find"));
        assert!(writer.arg(script).status().expect("a shell").success());
        format!("{}:/usr/bin:/bin", text(&bin))
    }

    /// Returns what clients were asked for since the last call.
    fn asked(&self) -> Vec<String> {
        let log = self.shop.path("asked");
        let asked = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(log);
        asked.lines().map(str::to_owned).collect()
    }

    fn build_id(&self) -> String {
        let mut readelf = Command::new("readelf");
        readelf.arg("-n").arg(&self.program);
        let notes = capriole_testkit::tools::run(&mut readelf);
        let id = notes
            .lines()
            .find_map(|line| line.trim().strip_prefix("Build ID: "));
        id.expect("a build id").to_owned()
    }

    /// Runs a command about the program with a client.
    fn asking(&self, words: &[&str], client: &str) -> Output {
        let mut command = command(words);
        command.arg(&self.program);
        asking(&mut command, client)
            .output()
            .expect("capriole starts")
    }
}

/// Makes a command ask servers by the client in this `PATH`.
fn asking<'a>(command: &'a mut Command, path: &str) -> &'a mut Command {
    command
        .env("PATH", path)
        .env("DEBUGINFOD_URLS", "https://me:secret@debug.example/")
}

#[test]
fn variables_are_read_by_fetched_debug_information() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let client = subject.client("echo \"$debug\"");
    let directory = scratch();
    let trace = directory.path().join("t");
    let program = text(&subject.program);
    let words = [
        "-e",
        "order_price p->id size",
        "-e",
        ":other size if size > 1",
        "--",
        program,
    ];
    let mut command = recorder(&trace, &words);
    let output = asking(&mut command, &client)
        .output()
        .expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let values: Vec<String> = events(&trace)
        .iter()
        .map(|event| {
            format!(
                "{} {}",
                event["arguments"]["p_id"], event["arguments"]["size"]
            )
        })
        .collect();
    let expected = ["7 40", "7 41", "7 42", "7 43", "7 44", "null 2"];
    assert_eq!(values, expected, "{:?}", events(&trace));
    // Once, for both events.
    let request = format!("debuginfo {}", subject.build_id());
    assert_eq!(subject.asked(), [request.as_str()]);

    for words in [
        &["check", ":order_price p->id"][..],
        &["list", "--args", ":order_price"],
        &["list", "--args", "--json", ":order_price"],
        &["check", "r :order_price $entry:size"],
    ] {
        let output = subject.asking(words, &client);
        let said = told(&output);
        assert!(
            output.status.success() && said.contains("order_price"),
            "{words:?}: {said}"
        );
        assert!(!said.contains("no debug information"), "{words:?}: {said}");
        assert_eq!(subject.asked(), [request.as_str()], "{words:?}");
    }
}

#[test]
fn functions_without_a_symbol_are_found_too() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let client = subject.client("echo \"$debug\"");
    let stripped = subject.shop.path("stripped");
    let mut strip = Command::new("strip");
    if !run(strip.arg("-o").arg(&stripped).arg(&subject.program)) {
        return;
    }
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = ["-e", ":order_price p->id size", "--", text(&stripped)];
    let mut command = recorder(&trace, &words);
    let output = asking(&mut command, &client)
        .output()
        .expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    let events = events(&trace);
    assert_eq!(events.len(), 5);
    assert_eq!(events[4]["arguments"]["size"], 44);
    assert_eq!(subject.asked().len(), 1);
}

#[test]
fn nobody_is_asked_without_need() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let client = subject.client("echo \"$debug\"");
    let program = text(&subject.program);
    // Events that need no names, and lists.
    for words in [
        &[
            "record",
            "-o",
            "TRACE",
            "-e",
            ":order_price n=$arg2 stack",
            "-e",
            "r :other $retval",
            "--",
            program,
        ][..],
        &["stat", "-e", ":order_price by stack", "--", program],
        &["list", ":*", program],
        &["check", ":order_price $arg2", program],
    ] {
        let directory = scratch();
        let trace = directory.path().join("t");
        let words: Vec<&str> = words
            .iter()
            .map(|word| if *word == "TRACE" { text(&trace) } else { word })
            .collect();
        let output = asking(&mut command(&words), &client)
            .output()
            .expect("capriole starts");
        assert!(output.status.success(), "{words:?}: {}", told(&output));
        assert_eq!(subject.asked(), [""; 0], "{words:?}");
    }
    // Without servers.
    for servers in [None, Some(""), Some(" ")] {
        let mut command = command(&["check", ":order_price size", program]);
        command.env("PATH", &client).env_remove("DEBUGINFOD_URLS");
        command.envs(servers.map(|servers| ("DEBUGINFOD_URLS", servers)));
        let output = command.output().expect("capriole starts");
        let said = told(&output);
        assert!(
            said.contains(", or set DEBUGINFOD_URLS to a server that has them"),
            "{said}"
        );
        assert_eq!(subject.asked(), [""; 0], "{servers:?}");
    }
    // A file that has its debug information.
    let mut command = command(&[
        "check",
        ":order_price size",
        text(&subject.shop.path("shop")),
    ]);
    let output = asking(&mut command, &client)
        .output()
        .expect("capriole starts");
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(subject.asked(), [""; 0]);
}

#[test]
fn arguments_of_markers_have_names_of_their_own() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let client = subject.client("exit 1");
    let source = r#"
#include <capriole/marker.h>
int main(int argc, char **argv) { (void)argv; CAPRIOLE_MARK(shop, request, "number=%d", argc); return 0; }
"#;
    let include = root().join("include");
    let options = ["-I", text(&include), "-O2", "-s"];
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &options, source, "marked") else {
        return;
    };
    for (event, asks) in [
        ("usdt::shop:request number", false),
        ("usdt::shop:request $arg*", false),
        ("usdt::shop:request argc", true),
    ] {
        let mut command = command(&["check", event, text(&program)]);
        let output = asking(&mut command, &client)
            .output()
            .expect("capriole starts");
        assert_eq!(output.status.success(), !asks, "{event}: {}", told(&output));
        assert_eq!(subject.asked().len(), usize::from(asks), "{event}");
    }
}

#[test]
fn answers_that_do_not_help_are_told() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let mut table = String::new();
    for (answer, script) in [
        (
            "not found",
            "echo 'Server query failed: No such file or directory' >&2; exit 1",
        ),
        (
            "timed out",
            "echo 'Server query failed: Timer expired' >&2; exit 1",
        ),
        (
            "refused",
            "echo 'Server query failed: Connection refused' >&2; exit 1",
        ),
        (
            "terminal",
            "printf 'a\\033[31m\\n\\033]0;b\\007\\n' >&2; exit 1",
        ),
        ("nothing", ""),
        ("other build", "echo /bin/sh"),
        (
            "garbage",
            "echo garbage >\"$here/garbage\"; echo \"$here/garbage\"",
        ),
        ("directory", "echo /"),
        ("missing", "echo /nowhere/at/all"),
    ] {
        let client = subject.client(script);
        let output = subject.asking(&["check", ":order_price size"], &client);
        assert_eq!(subject.asked().len(), 1, "{answer}");
        assert_ne!(output.status.code(), Some(0), "{answer}");
        let said = told(&output).replace(text(&subject.shop.path("")), "DIR/");
        let _ = writeln!(
            table,
            "{answer}:\n{}",
            without_id(&said, &subject.build_id())
        );
    }
    let empty = subject.shop.path("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let output = subject.asking(&["check", ":order_price size"], text(&empty));
    let said = told(&output).replace(text(&subject.shop.path("")), "DIR/");
    let _ = writeln!(
        table,
        "not installed:\n{}",
        without_id(&said, &subject.build_id())
    );
    insta::assert_snapshot!(table);
}

/// Replaces the build id, which depends on the compiler.
fn without_id(said: &str, id: &str) -> String {
    let (first, rest) = id.split_at(2);
    said.replace(&format!("{first}/{rest}"), "ID")
}

#[test]
fn who_waits_knows_for_what() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let client = subject.client("read line <\"$here/go\"; echo \"$debug\"");
    let go = subject.shop.path("go");
    if !run(Command::new("mkfifo").arg(&go)) {
        return;
    }
    let mut command = command(&["check", ":order_price size"]);
    command
        .arg(&subject.program)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = asking(&mut command, &client)
        .spawn()
        .expect("capriole starts");
    let mut line = String::new();
    let mut messages = BufReader::new(child.stderr.take().expect("a pipe"));
    messages.read_line(&mut line).expect("text");
    let expected = "capriole: debug information of order is fetched from https://debug.example/\n";
    assert_eq!(line, expected);
    std::fs::write(&go, "go\n").expect("it waits");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", told(&output));
    let mut rest = String::new();
    messages.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
}

#[test]
fn an_interrupt_ends_the_wait_and_the_client() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let client =
        subject.client("echo $$ >\"$here/new\"; mv \"$here/new\" \"$here/pid\"; exec sleep 1000");
    for words in [
        &["check", ":order_price size"][..],
        &["stat", "-e", ":order_price size", "--"],
    ] {
        let mut command = command(words);
        command
            .arg(&subject.program)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = asking(&mut command, &client)
            .spawn()
            .expect("capriole starts");
        let file = subject.shop.path("pid");
        until("the client runs", || file.exists());
        let pid = std::fs::read_to_string(&file).expect("a number");
        std::fs::remove_file(&file).expect("it is there");
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGINT),
            "{}",
            told(&output)
        );
        let status = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
        // Who reaps it may take its time.
        until("the client ends", || {
            let stat = std::fs::read_to_string(&status);
            stat.map_or(true, |stat| stat.contains(") Z "))
        });
    }
}

/// A server of one file. Returns its address, and the requests that it has got.
fn serve(path: String, file: Option<Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&requests);
    // It ends with the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            let asked = answer(stream, &path, file.as_deref()).expect("a request");
            log.lock().expect("no panic").push(asked);
        }
    });
    (format!("http://{address}"), requests)
}

fn answer(stream: TcpStream, path: &str, file: Option<&[u8]>) -> std::io::Result<String> {
    let mut lines = BufReader::new(&stream);
    let (mut first, mut line) = (String::new(), String::new());
    lines.read_line(&mut first)?;
    while line != "\r\n" {
        line.clear();
        lines.read_line(&mut line)?;
    }
    let asked = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, content) = match file.filter(|_| asked == path) {
        Some(file) => ("200 OK", file),
        None => ("404 Not Found", &b""[..]),
    };
    let length = content.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&stream).write_all(head.as_bytes())?;
    (&stream).write_all(content)?;
    Ok(asked)
}

#[test]
fn a_real_server_is_asked_by_the_real_client() {
    if !have("debuginfod-find") {
        println!("skipped: no debuginfod-find");
        return;
    }
    let Some(subject) = Subject::new() else {
        return;
    };
    let path = format!("/buildid/{}/debuginfo", subject.build_id());
    let debug = std::fs::read(&subject.debug).expect("the debug file");
    let other = std::fs::read("/bin/sh").expect("a program");
    for (name, file, expected) in [
        ("whole", Some(debug), None),
        (
            "none",
            None,
            Some("the servers in DEBUGINFOD_URLS do not have them"),
        ),
        (
            "other",
            Some(other),
            Some("cannot be used (of another build)"),
        ),
    ] {
        let (url, requests) = serve(path.clone(), file);
        let ask = |words: &[&str]| {
            let mut command = command(words);
            command
                .arg(&subject.program)
                .env("DEBUGINFOD_URLS", &url)
                .env("NO_PROXY", "*");
            command.env("DEBUGINFOD_CACHE_PATH", subject.shop.path(name));
            command.output().expect("capriole starts")
        };
        let output = ask(&["check", ":order_price p->id"]);
        let said = told(&output);
        assert_eq!(
            output.status.success(),
            expected.is_none(),
            "{name}: {said}"
        );
        assert!(
            said.contains(expected.unwrap_or("order_price")),
            "{name}: {said}"
        );
        assert_eq!(
            *requests.lock().expect("no panic"),
            [path.as_str()],
            "{name}"
        );
        // The client keeps what it got.
        let output = ask(&["stat", "-e", ":order_price sum(size)", "--"]);
        let said = told(&output);
        match expected {
            Some(expected) => assert!(said.contains(expected), "{name}: {said}"),
            None => assert!(said.contains(" 210"), "{name}: {said}"),
        }
        assert_eq!(
            *requests.lock().expect("no panic"),
            [path.as_str()],
            "{name}"
        );
    }
}
