//! A directory with small programs that a test writes and compiles itself.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory for the programs of one test.
pub struct Workshop {
    dir: tempfile::TempDir,
}

impl Default for Workshop {
    fn default() -> Workshop {
        let dir = tempfile::Builder::new()
            .prefix("capriole-")
            .tempdir()
            .unwrap();
        Workshop { dir }
    }
}

impl Workshop {
    pub fn new() -> Workshop {
        Workshop::default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles `source` with `compiler`; returns `None`, with a printed reason, if
    /// there is no such compiler or it does not support the options.
    pub fn compile(
        &self,
        compiler: &str,
        options: &[&str],
        source: &str,
        name: &str,
    ) -> Option<PathBuf> {
        let extension = match compiler {
            "gdc" => "d",
            _ if compiler.contains("++") => "cc",
            _ => "c",
        };
        let input = self.path(&format!("{name}.{extension}"));
        std::fs::write(&input, source).unwrap();
        let output = self.path(name);
        let mut command = Command::new(compiler);
        // clang writes split-off files here.
        command.current_dir(self.path(""));
        command.arg(&input).arg("-o").arg(&output).args(options);
        run(&mut command).then_some(output)
    }

    /// Compiles `NAME.rs` with debug information into `NAME-LEVEL`; returns `None`, with a printed
    /// reason, if that is not possible.
    pub fn compile_rust(
        &self,
        options: &[&str],
        source: &str,
        name: &str,
        level: &str,
    ) -> Option<PathBuf> {
        let input = self.path(&format!("{name}.rs"));
        std::fs::write(&input, source).unwrap();
        let output = self.path(&format!("{name}-{level}"));
        let mut command = Command::new("rustc");
        command.arg(&input).arg("-o").arg(&output).args(options);
        command.args(["-g", "-C", &format!("opt-level={level}")]);
        run(&mut command).then_some(output)
    }

    /// Makes a copy of `path` without symbols.
    pub fn strip(&self, path: &Path) -> Option<PathBuf> {
        let output = path.with_extension("stripped");
        run(Command::new("strip").arg(path).arg("-o").arg(&output)).then_some(output)
    }
}

/// Runs a tool; on failure prints why the test is skipped.
pub fn run(command: &mut Command) -> bool {
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            println!("skipped: {command:?} failed: {}", text.trim());
            false
        }
        Err(error) => {
            println!("skipped: {command:?}: {error}");
            false
        }
    }
}

/// A program that has printed `ready`; killed when the test ends.
pub struct Started {
    pub child: Child,
}

impl Started {
    pub fn start(command: &mut Command) -> Started {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Started { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
