//! The commands of `docs/cookbook.md`, which are read from the page: all must be understood. In the soak
//! each is run on the server that it is written for, which the test starts, and the output must answer the
//! question.

use crate::target::{capriole, told};
use crate::tools::{have, run};
use crate::traces::{scratch, text, until_recording};
use capriole_testkit::waiting::found;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("../../../../docs/cookbook.md");

/// Returns the chapter of a question.
fn chapter(number: usize) -> &'static str {
    let begin = PAGE.find(&format!("\n## {number}. ")).expect("a chapter") + 1;
    let rest = &PAGE[begin..];
    let end = rest[1..].find("\n## ").map_or(rest.len(), |end| end + 1);
    &rest[..end]
}

/// Returns the commands of each block of a question: the lines behind `$`, with those that continue
/// them behind a backslash or in quotes.
fn blocks(number: usize) -> Vec<String> {
    let blocks = chapter(number).split("```").skip(1).step_by(2);
    let commands = |block: &str| {
        let mut script = String::new();
        let (mut goes_on, mut quoted) = (false, false);
        for line in block.lines() {
            let command = if goes_on {
                line
            } else {
                match line.strip_prefix("$ ") {
                    Some(command) => command,
                    None => continue,
                }
            };
            script += command;
            script.push('\n');
            quoted ^= command.matches('\'').count() % 2 == 1;
            goes_on = quoted || command.ends_with('\\');
        }
        script
    };
    blocks.map(commands).collect()
}

/// Returns commands with `pid` in place of each word behind `-p`, a name or `$(COMMAND)`.
fn on(script: &str, pid: u32) -> String {
    let mut parts = script.split(" -p ");
    let mut result = parts.next().expect("a first part").to_owned();
    for part in parts {
        let end = if part.starts_with("$(") {
            part.find(')').expect("a closing bracket") + 1
        } else {
            part.find(' ').expect("an event")
        };
        result += &format!(" -p {pid}{}", &part[end..]);
    }
    result
}

/// Runs commands in a directory, and meanwhile `load` again and again. Returns the standard output.
fn answer(directory: &Path, script: &str, load: &dyn Fn()) -> String {
    let command = Path::new(env!("CARGO_BIN_EXE_capriole"));
    let own = command.parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", script])
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", own.display()))
        .stdin(Stdio::null());
    let ended = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            let output = shell.output();
            ended.store(true, Ordering::Relaxed);
            output
        });
        while !ended.load(Ordering::Relaxed) {
            load();
            std::thread::sleep(Duration::from_millis(5));
        }
        runner.join().expect("it ends").expect("sh starts")
    });
    assert!(output.status.success(), "{script}{}", told(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{script}{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Asserts that one line contains all these texts.
fn line(said: &str, texts: &[&str]) {
    let found = said
        .lines()
        .any(|line| texts.iter().all(|text| line.contains(text)));
    assert!(found, "{texts:?}: {said}");
}

/// True if these programs are installed. Otherwise prints "skipped: ...".
fn need(programs: &[&str]) -> bool {
    for program in programs {
        if !have(program) {
            println!("skipped: no {program}");
            return false;
        }
    }
    true
}

/// True if a program of this version is installed, as it prints that itself: the offsets of members
/// in the commands are those of this version. Otherwise prints "skipped: ...".
fn need_version(program: &str, option: &str, version: &str) -> bool {
    if !need(&[program]) {
        return false;
    }
    let output = Command::new(program).arg(option).output();
    let said = told(&output.expect("it starts"));
    let same = said.contains(version);
    if !same {
        println!("skipped: {program} is another version than {version}: {said}");
    }
    same
}

/// A server, ended by this signal when dropped.
struct Server {
    child: Child,
    signal: i32,
}

impl Server {
    fn start(command: &mut Command, signal: i32) -> Server {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Server { child, signal }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: sends a signal to a child of this test that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, self.signal) };
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > Duration::from_secs(10) {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Compiles a program of this directory into `directory`, under the name `name`.
fn compiled(compiler: &str, source: &str, flags: &[&str], directory: &Path, name: &str) -> PathBuf {
    let program = directory.join(name);
    let source = sources().join(source);
    run(Command::new(compiler)
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(source)
        .args(flags));
    program
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cookbook")
}

/// A directory that other users can enter.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).expect("it is ours");
    directory
}

#[test]
fn every_question_has_an_answer_with_a_command() {
    for number in 1..=20 {
        let blocks = blocks(number);
        assert!(!blocks.is_empty(), "{number}");
        let named = |block: &String| block.contains("capriole ");
        assert!(blocks.iter().all(named), "{number}: {blocks:?}");
    }
    assert!(!PAGE.contains("\n## 21. "), "an answer without a test");
}

/// Runs all commands of the page on a process that does not exist: options and events are checked
/// first.
#[test]
fn every_command_is_understood() {
    let directory = open_directory();
    let path = directory.path().join("bin");
    std::fs::create_dir(&path).expect("a directory");
    let log = directory.path().join("log");
    let script = format!(
        "#!/bin/sh\nsaid=$('{}' \"$@\" 2>&1 </dev/null)\nprintf '%s %s: %s\\036' \"$?\" \"$*\" \"$said\" >>'{}'\n",
        env!("CARGO_BIN_EXE_capriole"),
        text(&log)
    );
    let wrapper = path.join("capriole");
    std::fs::write(&wrapper, script).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&wrapper, mode).expect("it is ours");
    // Above the largest number of a process that Linux gives.
    let nobody = 1 << 22;
    for block in (1..=20).flat_map(blocks) {
        let _ = std::fs::remove_file(&log);
        // Other commands of the block are not found.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &on(&block, nobody)]).env("PATH", &path);
        shell
            .current_dir(directory.path())
            .output()
            .expect("sh starts");
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let runs: Vec<&str> = said.split_terminator('\u{1e}').collect();
        assert!(!runs.is_empty(), "{block}");
        let understood = |run: &&str| {
            run.starts_with("0 ")
                || run.contains("no process has the number")
                || run.contains("there is no trace")
                || run.contains("the program has ended")
        };
        assert!(runs.iter().any(understood), "{block}{said}");
        let wrong = |run: &&str| run.starts_with("2 ") && !understood(run);
        assert!(!runs.iter().any(wrong), "{block}{said}");
    }
}

/// redis-server with a socket in its directory.
struct Redis {
    server: Server,
    socket: PathBuf,
    directory: tempfile::TempDir,
}

impl Redis {
    /// Starts a server with a key for each of the numbers up to `keys`.
    fn start(options: &[&str], keys: usize) -> Option<Redis> {
        if !need(&["redis-cli"]) || !need_version("redis-server", "--version", "v=7.0") {
            return None;
        }
        let directory = open_directory();
        let socket = directory.path().join("socket");
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--unixsocket", text(&socket)])
            .args(["--enable-debug-command", "yes", "--loglevel", "warning"])
            .args(options)
            .current_dir(directory.path());
        let server = Server::start(&mut command, libc::SIGKILL);
        let redis = Redis {
            server,
            socket,
            directory,
        };
        found("redis answers", || {
            (redis.says("PING\n").trim() == "PONG").then_some(())
        });
        redis.says(&format!("DEBUG POPULATE {keys}\n"));
        Some(redis)
    }

    /// Returns the answers to commands, a line each.
    fn says(&self, commands: &str) -> String {
        let mut client = Command::new("redis-cli");
        client.args(["-s", text(&self.socket)]);
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = client.stderr(Stdio::null()).spawn().expect("redis-cli");
        let mut input = client.stdin.take().expect("a pipe");
        let _ = input.write_all(commands.as_bytes());
        drop(input);
        let output = client.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs the first block of a question, and these commands meanwhile.
    fn answer(&self, number: usize, commands: &str) -> String {
        let script = on(&blocks(number)[0], self.server.pid());
        answer(self.directory.path(), &script, &|| {
            self.says(commands);
        })
    }
}

#[test]
#[ignore = "soak"]
fn hot_keys_of_redis() {
    let Some(redis) = Redis::start(&[], 0) else {
        return;
    };
    let said = redis.answer(6, &("GET user:1\n".repeat(8) + "GET cart:9\n"));
    // Sorted by calls, below the names of the columns.
    let rows = said.lines().filter(|line| !line.contains("key"));
    let keys: Vec<_> = rows
        .filter_map(|row| row.split_whitespace().nth(2))
        .collect();
    assert_eq!(keys, ["user:1", "cart:9"], "{said}");
}

#[test]
#[ignore = "soak"]
fn latency_by_descriptor() {
    let options = ["--appendonly", "yes", "--appendfsync", "no"];
    let Some(redis) = Redis::start(&options, 0) else {
        return;
    };
    let said = redis.answer(4, "SET user:1 x\nGET user:1\n");
    let (reads, writes) = said.split_once("write__return by fd").expect("a table");
    // The clients come and go. The file is open all the time.
    line(writes, &["<", ".aof>"]);
    line(reads, &["read__return by fd"]);
}

#[test]
#[ignore = "soak"]
fn slow_calls_with_arguments_and_stack() {
    let Some(redis) = Redis::start(&[], 100_000) else {
        return;
    };
    let said = redis.answer(8, "keys zz*\nget user:1\n");
    line(&said, &["call(command=\"keys\"", "key=\"zz*\""]);
    assert!(!said.contains("call(command=\"get\""), "{said}");
    line(&said, &["processCommand+0x"]);
}

#[test]
#[ignore = "soak"]
fn before_a_crash() {
    let Some(redis) = Redis::start(&["--crash-memcheck-enabled", "no"], 0) else {
        return;
    };
    let script = on(&blocks(11)[0], redis.server.pid());
    let once = AtomicBool::new(false);
    let said = answer(redis.directory.path(), &script, &|| {
        if !once.swap(true, Ordering::Relaxed) {
            until_recording(redis.server.pid());
            redis.says("SET user:1 x\nDEBUG SEGFAULT\n");
        }
    });
    // Its thread ended, or was still known a moment before the program ended.
    let open = said.lines().find(|line| line.contains("/* debugCommand: "));
    let open = open.unwrap_or_else(|| panic!("{said}"));
    assert!(open.contains("ended first") || open.contains("still open"));
    // The moment of its end is not known.
    assert!(
        open.contains(" | ") && open.contains(">= ") && !open.contains("begun"),
        "{open}"
    );
}

#[test]
#[ignore = "soak"]
fn two_traces() {
    let Some(redis) = Redis::start(&[], 50_000) else {
        return;
    };
    let said = redis.answer(13, "KEYS zz*\nGET user:1\n");
    let (head, table) = said.split_once("  function\n").expect("a table");
    line(head, &["before: before.trace: ", " calls in "]);
    line(head, &["after: after.trace: ", " calls in "]);
    line(table, &["keysCommand"]);
    line(table, &["getCommand"]);
}

#[test]
#[ignore = "soak"]
fn allocations_that_are_not_freed() {
    if !need(&["jq"]) {
        return;
    }
    let Some(redis) = Redis::start(&[], 0) else {
        return;
    };
    let number = std::sync::atomic::AtomicUsize::new(0);
    let script = on(&blocks(17)[0], redis.server.pid());
    let said = answer(redis.directory.path(), &script, &|| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        redis.says(&format!("SET session:{number} {}\n", "x".repeat(200)));
    });
    line(&said, &[" blocks, ", "zmalloc", "processMultibulkBuffer"]);
    // Again of the same trace, and as if events had been lost.
    let report = &script[script.find("capriole report").expect("a report")..];
    let lossy = report.replacen(
        "capriole report --json",
        "{ echo '{\"lost_events\":3,\"cpu\":1}'; capriole report --json; \
         echo '{\"lost_events_total\":3}'; }",
        1,
    );
    assert_ne!(lossy, report);
    let said = [report, &lossy].map(|script| answer(redis.directory.path(), script, &|| {}));
    assert!(said[0].contains(" blocks, "), "{said:?}");
    assert_eq!(said[0], said[1]);
}

#[test]
#[ignore = "soak"]
fn where_a_slow_request_spends_its_time() {
    let Some(redis) = Redis::start(&[], 100_000) else {
        return;
    };
    let said = redis.answer(20, "KEYS zz*\n");
    line(&said, &["processCommand() {"]);
    line(&said, &["keysCommand()"]);
    line(&said, &["epoll_wait()"]);
}

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// A server of PostgreSQL with a database in its directory.
struct Postgres {
    server: Server,
    directory: tempfile::TempDir,
}

impl Postgres {
    fn start() -> Option<Postgres> {
        let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter();
        let mut versions = installed.flatten().flatten();
        let programs = versions.find_map(|version| {
            let programs = version.path().join("bin");
            programs.join("initdb").exists().then_some(programs)
        });
        let Some(programs) = programs.filter(|_| have("psql")) else {
            println!("skipped: no PostgreSQL");
            return None;
        };
        let directory = open_directory();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("a directory");
        let as_its_user = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir(directory.path());
            // It refuses to be root.
            if rustix::process::geteuid().is_root() {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        if rustix::process::geteuid().is_root() {
            for path in [directory.path(), &data] {
                std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("we are root");
            }
        }
        run(as_its_user("initdb")
            .args(["-A", "trust", "-U", "postgres", "--locale=C", "-N", "-D"])
            .arg(&data));
        let mut command = as_its_user("postgres");
        command.arg("-D").arg(&data).arg("-k");
        command.arg(directory.path()).args(["-h", ""]);
        // Ends at once, with its children.
        let server = Server::start(&mut command, libc::SIGQUIT);
        let postgres = Postgres { server, directory };
        found("PostgreSQL answers", || postgres.executes(&["select 1"]));
        postgres.executes(&["create table orders(id serial, price int)"]);
        Some(postgres)
    }

    /// Executes statements in a new connection. Returns nothing if there is no connection.
    fn executes(&self, statements: &[&str]) -> Option<()> {
        let mut client = Command::new("psql");
        client.args(["-X", "-q", "-U", "postgres", "-h"]);
        client.arg(self.directory.path()).arg("postgres");
        for statement in statements {
            client.args(["-c", statement]);
        }
        let output = client.stdin(Stdio::null()).output().expect("psql");
        output.status.success().then_some(())
    }

    fn answer(&self, number: usize, statements: &[&str]) -> String {
        let script = on(&blocks(number)[0], self.server.pid());
        // Traces belong to the user of the recorder.
        let directory = scratch();
        answer(directory.path(), &script, &|| {
            self.executes(statements);
        })
    }
}

#[test]
#[ignore = "soak"]
fn slow_statements_of_postgresql() {
    let Some(postgres) = Postgres::start() else {
        return;
    };
    let statements = [
        "select pg_sleep(0.02)",
        "select count(*) from orders",
        "insert into orders(price) values (3)",
    ];
    let said = postgres.answer(1, &statements);
    line(&said, &["standard_ExecutorRun__return by sql"]);
    for statement in statements {
        line(&said, &[statement]);
    }
    let slow = said.lines().find(|line| line.contains("pg_sleep"));
    assert!(slow.expect("a row").contains(" ms "), "{said}");
}

#[test]
#[ignore = "soak"]
fn files_that_postgresql_syncs() {
    let Some(postgres) = Postgres::start() else {
        return;
    };
    let insert = "insert into orders(price) values (3)";
    let wait = "select pg_sleep(0.1)";
    // The descriptor stays open for a while.
    let said = postgres.answer(3, &[insert, wait, insert, wait]);
    line(&said, &["sync(fd="]);
    line(&said, &["fdatasync", "fd=", "</", "/pg_wal/"]);
    line(&said, &["XLogFlush+0x"]);
}

/// Not in the PATH of every user.
const NGINX: &str = "/usr/sbin/nginx";

/// nginx, with a server of HTTP behind it that takes 120 ms for some answers.
struct Nginx {
    #[allow(dead_code, reason = "ends it when dropped")]
    server: Server,
    worker: u32,
    port: u16,
    port_of_tls: u16,
    directory: tempfile::TempDir,
}

impl Nginx {
    fn start() -> Option<Nginx> {
        if !need(&["openssl", "curl"]) || !need_version(NGINX, "-v", "nginx/1.22") {
            return None;
        }
        let directory = open_directory();
        let (port, port_of_tls) = (free_port(), free_port());
        run(Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            ])
            .args(["-subj", "/CN=localhost", "-keyout", "key.pem", "-out"])
            .arg("cert.pem")
            .current_dir(directory.path()));
        let user = match rustix::process::geteuid().is_root() {
            true => "user root;",
            false => "",
        };
        let configuration = format!(
            "daemon off; worker_processes 1; pid pid; error_log error.log; {user}\n\
             events {{}}\n\
             http {{\n access_log off;\n client_body_temp_path t/b; proxy_temp_path t/p;\n \
             fastcgi_temp_path t/f; uwsgi_temp_path t/u; scgi_temp_path t/s;\n \
             server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{port_of_tls} ssl;\n \
             ssl_certificate cert.pem; ssl_certificate_key key.pem;\n \
             location / {{ return 200 hello; }}\n \
             location /api/ {{ proxy_pass http://127.0.0.1:{}; }} }} }}\n",
            slow_server()
        );
        std::fs::create_dir(directory.path().join("t")).expect("a directory");
        std::fs::write(directory.path().join("conf"), configuration).expect("a file");
        let mut command = Command::new(NGINX);
        command.args(["-c", "conf", "-e", "error.log", "-p"]);
        command.arg(directory.path());
        let server = Server::start(&mut command, libc::SIGTERM);
        let children = format!("/proc/{0}/task/{0}/children", server.pid());
        let worker = found("nginx has a worker", || {
            let children = std::fs::read_to_string(&children).unwrap_or_default();
            TcpStream::connect(("127.0.0.1", port)).ok()?;
            children.split_whitespace().next()?.parse().ok()
        });
        Some(Nginx {
            server,
            worker,
            port,
            port_of_tls,
            directory,
        })
    }

    fn get(&self, path: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.contains(" 200 "), "{answer}");
    }

    fn answer(&self, number: usize, load: &dyn Fn()) -> String {
        let script = on(&blocks(number)[0], self.worker);
        answer(self.directory.path(), &script, load)
    }
}

/// Starts a server of HTTP for the rest of the tests. Returns its port.
fn slow_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let n = stream.read(&mut request).unwrap_or(0);
            if String::from_utf8_lossy(&request[..n]).contains("slow") {
                std::thread::sleep(Duration::from_millis(120));
            }
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        }
    });
    port
}

#[test]
#[ignore = "soak"]
fn connections_by_peer() {
    let Some(nginx) = Nginx::start() else {
        return;
    };
    let said = nginx.answer(5, &|| nginx.get("/"));
    line(&said, &["by peer"]);
    line(&said, &["127.0.0.1"]);
}

#[test]
#[ignore = "soak"]
fn handshakes_and_failures() {
    let Some(nginx) = Nginx::start() else {
        return;
    };
    let url = format!("https://localhost:{}/", nginx.port_of_tls);
    let said = nginx.answer(7, &|| {
        // The second one does not trust the certificate.
        for words in [&["-sk", &url][..], &["-s", &url]] {
            let _ = Command::new("curl").args(words).output();
        }
    });
    let (handshakes, reasons) = said.split_once("ERR_vset_error").expect("two tables");
    for result in ["0", "-1"] {
        let known = handshakes
            .lines()
            .any(|line| line.split_whitespace().last() == Some(result));
        assert!(known, "{result}: {said}");
    }
    // The alert "unknown ca" of the other side.
    line(reasons, &["1048"]);
}

#[test]
#[ignore = "soak"]
fn longest_requests_of_nginx() {
    let Some(nginx) = Nginx::start() else {
        return;
    };
    let said = nginx.answer(12, &|| {
        nginx.get("/api/slow");
        nginx.get("/api/fast");
        nginx.get("/hello");
    });
    let rows: Vec<_> = said.lines().filter(|line| line.contains(" /")).collect();
    let first: Vec<_> = rows
        .first()
        .expect("a request")
        .split_whitespace()
        .collect();
    let [uri, upstream] = first[first.len() - 2..] else {
        panic!("{said}")
    };
    assert_eq!(uri, "/api/slow", "{said}");
    assert!(upstream.parse::<u64>().expect("ms") >= 120, "{said}");
    // The largest of its times, in ms.
    let slowest = first[first.len() - 6].parse::<f64>().expect("a number");
    assert!(slowest >= 120.0 && first[first.len() - 5] == "ms", "{said}");
    line(&said, &["/api/fast"]);
    line(&said, &["/hello", "(fault)"]);
}

#[test]
#[ignore = "soak"]
fn exceptions_with_their_texts() {
    if !need(&["g++"]) {
        return;
    }
    let directory = scratch();
    compiled("g++", "throws.cpp", &[], directory.path(), "shop");
    let said = answer(directory.path(), &blocks(9)[0], &|| {});
    line(
        &said,
        &[
            "type=\"St13runtime_error\"",
            "what=\"cannot open shop.conf\"",
        ],
    );
    line(&said, &["type=\"St16invalid_argument\"", "what=\"stoi\""]);
    line(&said, &["open_shop+0x"]);
}

#[test]
#[ignore = "soak"]
fn contended_mutexes() {
    if !need(&["cc"]) {
        return;
    }
    let directory = scratch();
    let flags = ["-pthread", "-rdynamic"];
    let program = compiled("cc", "locks.c", &flags, directory.path(), "shop");
    let server = Server::start(Command::new(program).arg("60"), libc::SIGKILL);
    let script = on(&blocks(10)[0], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    let (waits, stacks) = said.split_once("TIMESTAMP").expect("two reports");
    // The other thread owns it.
    let waiting = waits.lines().find(|line| line.contains("owner="));
    let waiting = waiting.unwrap_or_else(|| panic!("{said}"));
    let (_, owner) = waiting.split_once("owner=").expect("it is there");
    let (owner, _) = owner.split_once(')').expect("a bracket");
    line(stacks, &[&format!("-{owner} "), "pthread_mutex_lock:"]);
    line(stacks, &["rebuild+0x"]);
    line(stacks, &["lookup+0x"]);

    let script = on(&blocks(10)[1], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    let (first, second) = said.split_once("[truncated]").expect("two stacks");
    // Whoever looks up waits for the one that rebuilds.
    line(first, &["lookup+0x", "(shop)"]);
    line(second, &["rebuild+0x", "(shop)"]);
}

#[test]
#[ignore = "soak"]
fn files_that_a_compiler_opens() {
    if !need(&["gcc"]) {
        return;
    }
    let directory = scratch();
    let source = "#include <stdio.h>\n#include \"shop.h\"\n";
    std::fs::write(directory.path().join("shop.c"), source).expect("a file");
    std::fs::write(directory.path().join("shop.h"), "int shop;\n").expect("a file");
    let said = answer(directory.path(), &blocks(14)[0], &|| {});
    line(&said, &["cc1", "path=\"shop.c\""]);
    line(&said, &["cc1", "path=\"/usr/include/stdio.h\""]);
    line(&said, &["cc1", "path=\"shop.h\""]);
}

/// Starts Java with two pools of threads, in a directory of its own.
fn pools() -> Option<(Server, tempfile::TempDir)> {
    if !need(&["java", "javac"]) {
        return None;
    }
    let directory = scratch();
    run(Command::new("javac")
        .arg("-d")
        .arg(directory.path())
        .arg(sources().join("Pools.java")));
    let mut command = Command::new("java");
    command
        .args(["-XX:+UseG1GC", "-Xmx64m", "-cp", text(directory.path())])
        .args(["Pools", "120"]);
    let server = Server::start(&mut command, libc::SIGKILL);
    let tasks = format!("/proc/{}/task", server.pid());
    found("both pools have threads", || {
        let tasks = std::fs::read_dir(&tasks).ok()?.flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
        let names: Vec<_> = names.flatten().collect();
        let has = |name: &str| names.iter().any(|other| other.trim() == name);
        (has("busy") && has("idle")).then_some(())
    });
    Some((server, directory))
}

#[test]
#[ignore = "soak"]
fn sizes_of_allocations_by_thread() {
    let Some((server, directory)) = pools() else {
        return;
    };
    let script = on(&blocks(2)[0], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    line(&said, &["p99(size)", "tid"]);
    // Each has bytes and the name of a thread.
    line(&said, &["VM Thread"]);
}

#[test]
#[ignore = "soak"]
fn pauses_of_java() {
    let Some((server, directory)) = pools() else {
        return;
    };
    let script = on(&blocks(15)[0], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    line(&said, &["VMThread::inner_execute__return by comm"]);
    line(&said, &["VM_G1CollectForAllocation::doit__tail"]);
    let script = on(&blocks(15)[1], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    line(&said, &["hotspot:vmops__begin -> hotspot:vmops__end by op"]);
    line(&said, &["ms", "G1CollectForAllocation"]);
}

#[test]
#[ignore = "soak"]
fn pauses_of_go() {
    let directory = scratch();
    let program = directory.path().join("shop");
    let go = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|go| have(go));
    let Some(go) = go else {
        return println!("skipped: no go");
    };
    run(Command::new(go)
        .args(["build", "-o"])
        .arg(&program)
        .arg(sources().join("gc.go"))
        .env("CGO_ENABLED", "0"));
    let server = Server::start(Command::new(program).arg("60"), libc::SIGKILL);
    let script = on(&blocks(15)[2], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    line(
        &said,
        &[
            "us",
            "runtime.stopTheWorldWithSema -> runtime.startTheWorldWithSema",
        ],
    );
}

#[test]
#[ignore = "soak"]
fn pools_that_wait_for_work_and_pools_that_do_not() {
    let Some((server, directory)) = pools() else {
        return;
    };
    let script = on(&blocks(16)[0], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    line(&said, &["pthread_cond_wait__return by comm"]);
    line(&said, &["busy"]);
    line(&said, &["idle"]);
}

#[test]
#[ignore = "soak"]
fn threads_of_memcached() {
    if !need(&["memcached"]) {
        return;
    }
    let directory = open_directory();
    let socket = directory.path().join("socket");
    let mut command = Command::new("memcached");
    command.args(["-t", "2", "-s", text(&socket)]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    let server = Server::start(&mut command, libc::SIGKILL);
    let script = on(&blocks(16)[1], server.pid());
    let connect = || std::os::unix::net::UnixStream::connect(&socket).ok();
    found("memcached listens", connect);
    let said = answer(directory.path(), &script, &|| {
        let mut stream = connect().expect("it listens");
        stream.write_all(b"set a 0 0 1\r\nx\r\n").expect("it reads");
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).expect("it answers");
    });
    line(&said, &["epoll_wait__return by comm, tid"]);
    line(&said, &["mc-worker"]);
}

#[test]
#[ignore = "soak"]
fn names_that_are_looked_up() {
    if !need(&["/usr/bin/python3"]) {
        return;
    }
    let directory = scratch();
    let script = directory.path().join("resolve.py");
    std::fs::copy(sources().join("resolve.py"), script).expect("a file");
    let said = answer(directory.path(), &blocks(18)[0], &|| {});
    line(&said, &["getaddrinfo__return by name"]);
    line(&said, &["localhost"]);
    line(&said, &["nosuch.invalid"]);
}

#[test]
#[ignore = "soak"]
fn functions_of_a_running_python() {
    let python = Path::new("/usr/bin/python3");
    let markers = ["list", "usdt::python:function__return", text(python)];
    if !need(&[text(python)]) {
        return;
    }
    if !capriole(&markers).status.success() {
        return println!("skipped: {} has no markers", python.display());
    }
    let directory = scratch();
    let job = sources().join("job.py");
    let server = Server::start(Command::new(python).arg(job).arg("60"), libc::SIGKILL);
    let script = on(&blocks(19)[0], server.pid());
    std::thread::sleep(Duration::from_millis(300));
    let said = answer(directory.path(), &script, &|| {});
    line(&said, &["price", "job.py"]);
    line(&said, &["order", "job.py"]);
    let script = on(&blocks(19)[1], server.pid());
    let said = answer(directory.path(), &script, &|| {});
    line(
        &said,
        &["python:gc__start -> python:gc__done by generation"],
    );
    line(&said, &["us", " 0"]);
}
