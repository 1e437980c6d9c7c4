//! Real programs, built in all the ways whose debug information is compared.

use rustix::fs::FlockOperation;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A program and its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The Lua interpreter, from the crate `lua-src`.
    Lua,
    /// zlib, from the crate `libz-sys`.
    Zlib,
    /// `values.cpp`: C++20.
    Cxx,
    /// `names.cpp` and `names_other.cpp`: names that have another meaning elsewhere.
    Names,
    /// `values.rs`.
    Rust,
}

/// A way to build a program.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    pub source: Source,
    /// `gcc`, `clang`, or `rustc`.
    pub compiler: &'static str,
    /// `O0` to `O3`.
    pub level: &'static str,
    /// More flags: `-gdwarf-4`, `-gsplit-dwarf`, `-flto`, or those of rustc.
    pub flags: &'static [&'static str],
}

impl Build {
    pub fn name(&self) -> String {
        let words = [self.compiler(), self.level];
        let words: Vec<&str> = words.iter().chain(self.flags).copied().collect();
        format!("{:?} {}", self.source, words.join(" "))
    }

    pub fn compiler(&self) -> &'static str {
        match (self.source, self.compiler) {
            (Source::Cxx | Source::Names, "gcc") => "g++",
            (Source::Cxx | Source::Names, "clang") => "clang++",
            (_, compiler) => compiler,
        }
    }

    pub fn optimised(&self) -> bool {
        self.level != "O0"
    }

    /// Path prefixes of the program's own sources, as opposed to headers and libraries.
    pub fn own(&self) -> Vec<String> {
        let mut own = vec![programs().display().to_string()];
        own.extend(self.directory().map(|path| path.display().to_string()));
        own
    }

    /// Names other than a function's own variables; some of them are tried in each function.
    pub fn names(&self) -> &'static [&'static str] {
        match self.source {
            Source::Names => NAMES,
            _ => &[],
        }
    }

    fn directory(&self) -> Option<PathBuf> {
        match self.source {
            Source::Lua => vendored("lua-src", "lua-5.4"),
            Source::Zlib => vendored("libz-sys", "src/zlib"),
            Source::Cxx | Source::Names | Source::Rust => None,
        }
    }

    /// The program for gdb to read: gdb 13 does not find the location lists in the `.dwo` files
    /// that Clang writes for DWARF 5, so there it gets the same code with its debug information
    /// in the file.
    pub fn for_gdb(&self, program: &Path) -> Option<PathBuf> {
        if self.compiler != "clang" || self.flags != ["-gsplit-dwarf"] {
            return Some(program.to_owned());
        }
        let twin = Build {
            flags: &[],
            ..*self
        }
        .make()?;
        let text = |program: &Path| {
            let text = program.with_extension("text");
            let objcopy = Command::new("objcopy")
                .args(["-O", "binary", "--only-section=.text"])
                .args([program, &text])
                .status();
            assert!(objcopy.is_ok_and(|status| status.success()), "objcopy");
            fs::read(text).expect("it was just written")
        };
        assert_eq!(text(program), text(&twin), "code depends on -gsplit-dwarf");
        Some(twin)
    }

    /// Returns the compiler command without the output option.
    fn command(&self) -> Option<Command> {
        let level = format!("-{}", self.level);
        let mut command = Command::new(self.compiler());
        let main = |name: &str| programs().join(name);
        match self.source {
            Source::Rust => {
                command
                    .args(["--edition=2024", "-g"])
                    .arg(format!("-Copt-level={}", &self.level[1..]))
                    .args(self.flags)
                    .arg(main("values.rs"));
                return Some(command);
            }
            Source::Cxx => {
                command
                    .args(["-std=c++20", "-w", "-g", &level])
                    .args(self.flags);
                command.arg(main("values.cpp"));
            }
            Source::Names => {
                command
                    .args(["-std=c++20", "-w", "-g", &level])
                    .args(self.flags);
                command.args([main("names.cpp"), main("names_other.cpp")]);
            }
            Source::Lua | Source::Zlib => {
                let directory = self.directory()?;
                command.args(["-w", "-g", &level]).args(self.flags);
                command.arg("-I").arg(&directory);
                // Otherwise Lua takes its seed from the clock and an address.
                command.args(["-DLUA_USE_POSIX", "-Dluai_makeseed(L)=42u"]);
                command.arg("-DHAVE_UNISTD_H");
                let lua = self.source == Source::Lua;
                command.arg(main(if lua { "lua.c" } else { "zlib.c" }));
                command.args(c_files(&directory).into_iter().filter(|path| {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    !name.starts_with("gz") && !["luac.c", "lua.c"].contains(&&*name)
                }));
            }
        }
        if self.flags.contains(&"-flto") && self.compiler == "clang" {
            command.arg("-fuse-ld=lld");
        }
        command.args(["-lm", "-ldl"]);
        Some(command)
    }

    /// Builds the program, once. Prints "skipped: ..." if that is impossible here.
    pub fn make(&self) -> Option<PathBuf> {
        let Some(mut command) = self.command() else {
            println!("skipped: the sources of {:?} are not there", self.source);
            return None;
        };
        let mut hasher = DefaultHasher::new();
        format!("{command:?}").hash(&mut hasher);
        for file in FILES {
            fs::read(programs().join(file))
                .expect("a source")
                .hash(&mut hasher);
        }
        // Split debug information is found through the directory it was compiled in.
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("against_gdb")
            .join(format!("{:016x}", hasher.finish()));
        fs::create_dir_all(&directory).expect("a directory for test programs");
        let lock = File::create(directory.join("lock")).expect("a file");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("a lock");
        let (program, unfinished) = (directory.join("program"), directory.join("unfinished"));
        if program.exists() {
            return Some(program);
        }
        command.current_dir(&directory);
        match command.arg("-o").arg(&unfinished).output() {
            Err(error) => {
                println!("skipped: cannot run {}: {error}", self.compiler());
                return None;
            }
            Ok(output) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                // The compiler lacks a flag or a linker, and reports it at once.
                let why = said.lines().find(|line| line.contains("error"));
                println!("skipped: {} does not build: {why:?}", self.name());
                return None;
            }
            Ok(_) => {}
        }
        fs::rename(&unfinished, &program).expect("it was just made");
        let package = directory.join("unfinished.dwp");
        if package.exists() {
            fs::rename(package, directory.join("program.dwp")).expect("it was just made");
        }
        Some(program)
    }
}

/// Names in `names.cpp`: members without `this`, plain and qualified names, names of the other
/// unit and of a function.
const NAMES: &[&str] = &[
    "level",
    "size",
    "based",
    "weight",
    "label",
    "state",
    "total",
    "depth",
    "count",
    "shared",
    "limit",
    "twin",
    "same",
    "only_here",
    "only_other",
    "only_global",
    "only_net",
    "twice",
    "::level",
    "::state",
    "net::state",
    "::net::state",
    "net::limit",
    "net::only_net",
    "net::hidden",
    "net::Server::total",
    "net::Base::shared",
    "net::Outer::depth",
    "net::deep::total",
    "deep::total",
    "Second::twice",
    "this->Third::twice",
    "this->level",
    "this->total",
    "other_unit::kept",
    "'names_other.cpp'::same",
    "'names.cpp'::same",
    "'names_other.cpp'::only_other",
];

/// The sources in the folder of the test programs.
const FILES: [&str; 6] = [
    "lua.c",
    "zlib.c",
    "values.cpp",
    "names.cpp",
    "names_other.cpp",
    "values.rs",
];

fn programs() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/differ");
    path.canonicalize().expect("the test programs")
}

fn c_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("sources");
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    files
}

/// Returns the folder of a crate's sources whose path begins like this; cargo has downloaded it
/// with all other dependencies.
fn vendored(package: &str, folder: &str) -> Option<PathBuf> {
    static PACKAGES: OnceLock<serde_json::Value> = OnceLock::new();
    let packages = PACKAGES.get_or_init(|| {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let output = Command::new(cargo)
            .args(["metadata", "--format-version=1", "--offline", "--locked"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .args(["--manifest-path", manifest])
            .output()
            .expect("cargo runs this test");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    });
    let found = packages["packages"].as_array()?;
    let found = found.iter().find(|found| found["name"] == package)?;
    let start = Path::new(found["manifest_path"].as_str()?).with_file_name(folder);
    let entries = fs::read_dir(start.parent()?).ok()?;
    let start = start.to_str()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let fits = |path: &PathBuf| path.to_str().is_some_and(|path| path.starts_with(start));
    paths.filter(fits).min()
}
