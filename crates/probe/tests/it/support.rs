//! Child processes, which a mistake of a probe's may end; compilers; the library.

use capriole_testkit::files;
use capriole_testkit::tools::{quiet, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Variable for a run that is to serve as a helper process.
pub const SERVES: &str = "CAPRIOLE_TEST_SERVES";
/// Variable for a run that is the child of a test.
const CHILD: &str = "CAPRIOLE_TEST_CHILD";
/// Time after which a child is taken to hang.
const LIMIT: Duration = Duration::from_secs(540);

/// Returns a program that is a helper process, as `capriole` is: this one, started by a script.
pub fn helper() -> &'static Path {
    static SCRIPT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = SCRIPT.get_or_init(|| {
        let directory = files::scratch();
        let path = directory.path().join("capriole");
        let own = std::env::current_exe().unwrap();
        let text = format!(
            "#!/bin/sh\n{SERVES}=1 exec '{}' --exact helper::serves --nocapture\n",
            own.display()
        );
        write_program(&path, &text);
        (directory, path)
    });
    path
}

/// Writes a script. It is not held open for writing when another thread forks, which would be
/// "text file busy" for whoever executes it.
fn write_program(path: &Path, text: &str) {
    let quoted = text.replace('\'', r"'\''");
    let script = format!(
        "printf %s '{quoted}' >'{0}' && chmod 755 '{0}'",
        path.display()
    );
    quiet(Command::new("sh").args(["-c", &script]));
}

/// Runs the rest of a test in a process of its own: `body` is executed there, and must not fail.
/// `name` is that of the test, `module::function`.
pub fn in_child(name: &str, body: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let output = child(name);
    assert!(
        output.status.success(),
        "{name}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "there is no test {name}");
}

/// Runs a test in a process of its own, where it calls `body`; the process may end as it likes.
pub fn may_end(name: &str, body: fn()) -> Option<Output> {
    if std::env::var_os(CHILD).is_some() {
        body();
        return None;
    }
    Some(child(name))
}

fn child(name: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    probing(&mut command)
}

/// Runs a program that probes itself.
pub fn probing(command: &mut Command) -> Output {
    let child = command
        .env("CAPRIOLE_HELPER", helper())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = child.id().to_string();
    let (done, ended) = std::sync::mpsc::channel();
    let watch = std::thread::spawn(move || {
        let started = Instant::now();
        if ended.recv_timeout(LIMIT).is_err() && started.elapsed() >= LIMIT {
            let _ = Command::new("kill").args(["-9", &pid]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    let _ = done.send(());
    watch.join().unwrap();
    output
}

/// Builds the libraries with a compiler, once, into a directory.
pub fn libraries(compiler: &str) -> TempDir {
    let directory = files::scratch();
    quiet(
        Command::new("sh")
            .arg(root().join("scripts/library.sh"))
            .arg(directory.path())
            .arg("/usr/local/bin/capriole")
            .env("CC", compiler)
            .env_remove("CFLAGS"),
    );
    directory
}
