//! Completion of command lines in shells. The scripts that shells load ([`scripts`]) call the command
//! itself, with a variable that names the shell.

use capriole_proc::process::{Process, deputy};
use capriole_text::printable;
use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt as _;

/// Variable with the name of the shell that completes.
const VARIABLE: &str = "_CAPRIOLE_COMPLETE";
/// Name of the command.
const NAME: &str = "capriole";
/// The shells, in the order of [`scripts`].
const SHELLS: [&dyn EnvCompleter; 3] = [&Bash, &Zsh, &Fish];

/// End of the script for zsh.
const ZSH_AUTOLOADED: &str = r#"
if [[ $funcstack[1] == _capriole ]]; then
    _clap_dynamic_completer_capriole "$@"
fi
"#;

/// Prints completions if a shell wants them; returns true if so.
///
/// # Errors
/// The shell is not known, or it has closed the pipe.
pub fn answer(command: impl Fn() -> Command) -> Result<bool, clap::Error> {
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .bin(NAME)
        .completer(NAME)
        .shells(Shells(&SHELLS))
        .try_complete(std::env::args_os(), here.as_deref())
}

/// Returns the scripts for the shells, each with the path below a prefix where its shell looks for
/// it.
///
/// # Errors
/// Those of writing to memory: none.
pub fn scripts() -> io::Result<Vec<(&'static str, Vec<u8>)>> {
    let places = [
        "share/bash-completion/completions/capriole",
        "share/zsh/site-functions/_capriole",
        "share/fish/vendor_completions.d/capriole.fish",
    ];
    let script = |(place, shell): (&'static str, &dyn EnvCompleter)| {
        let mut text = Vec::new();
        shell.write_registration(VARIABLE, NAME, NAME, NAME, &mut text)?;
        if shell.is("zsh") {
            // zsh takes the file for the function `_capriole`, and calls it for the first completion.
            text.extend_from_slice(ZSH_AUTOLOADED.as_bytes());
        }
        Ok((place, text))
    };
    places.into_iter().zip(SHELLS).map(script).collect()
}

/// Candidates for `-p`: the processes whose program this user may look at, with their names.
pub fn processes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let mut found: Vec<u32> = Process::numbers()
            // Kernel threads have no program.
            .filter(|pid| std::fs::read_link(format!("/proc/{}/exe", deputy(*pid))).is_ok())
            .filter(|pid| *pid != std::process::id())
            .collect();
        found.sort_unstable();
        let candidate = |(order, pid): (usize, u32)| {
            let process = Process::open(pid).ok()?;
            let name = printable(process.name());
            let candidate = CompletionCandidate::new(pid.to_string());
            Some(candidate.help(Some(name.into())).display_order(Some(order)))
        };
        found
            .into_iter()
            .enumerate()
            .filter_map(candidate)
            .collect()
    })
}

/// Candidates for the program to be started: programs in PATH, or by their path; then files, for its
/// arguments.
pub fn program() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut candidates = PathCompleter::any().complete(current);
        let Some(start) = current
            .to_str()
            .filter(|text| !text.is_empty() && !text.contains('/'))
        else {
            return candidates;
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut names: Vec<String> = std::env::split_paths(&path)
            .filter_map(|directory| std::fs::read_dir(directory).ok())
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let wanted = name.starts_with(start) && printable(&name) == name;
                let mode = wanted.then(|| std::fs::metadata(entry.path()).ok())??;
                (mode.is_file() && mode.permissions().mode() & 0o111 != 0).then_some(name)
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        candidates.extend(names.into_iter().map(CompletionCandidate::new));
        candidates
    })
}
