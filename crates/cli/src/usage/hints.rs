//! Commands and options that users of other tracers try, and what has their place here.

use clap::CommandFactory;

/// Words that other tools have for a command, by its equivalent here.
const COMMANDS: [(&[&str], &str); 9] = [
    (
        &[
            "attach", "trace", "probe", "follow", "strace", "ltrace", "ftrace", "uprobe", "start",
            "run", "exec", "launch", "spawn", "capture", "profile", "sample",
        ],
        "`capriole record -p PID -e EVENT` records a running process, and `capriole record -e \
         EVENT -- PROGRAM` a program that it starts",
    ),
    (
        &[
            "top",
            "live",
            "count",
            "hist",
            "histogram",
            "latency",
            "funccount",
            "funclatency",
            "argdist",
            "watch",
            "monitor",
            "measure",
            "time",
        ],
        "`capriole stat -p PID -e EVENT` counts calls, and shows them while it runs",
    ),
    (
        &[
            "script", "dump", "replay", "show", "view", "print", "cat", "info", "read",
        ],
        "`capriole report DIR` shows a trace, each event a line",
    ),
    (
        &["graph", "tree", "calls"],
        "`capriole report --graph` shows nested calls, if they were recorded by `capriole record \
         --graph EVENT`",
    ),
    (
        &[
            "summary",
            "summarize",
            "callers",
            "flame",
            "flamegraph",
            "annotate",
            "analyze",
            "tui",
        ],
        "`capriole report` has --summary, --callers and --flame FILE",
    ),
    (
        &[
            "functions",
            "symbols",
            "markers",
            "probes",
            "tplist",
            "search",
            "find",
            "ls",
        ],
        "`capriole list -p PID` and `capriole list FILE` list functions and markers",
    ),
    (
        &[
            "disas",
            "disasm",
            "disassemble",
            "explain",
            "inspect",
            "dry-run",
            "test",
            "why",
        ],
        "`capriole check EVENT -p PID` shows how a site would be probed",
    ),
    (
        &[
            "stop", "clean", "cleanup", "remove", "delete", "del", "restore", "unprobe", "kill",
        ],
        "`capriole detach PID` takes the probes out of a process",
    ),
    (
        &["message", "note", "log", "write", "annotation"],
        "`capriole mark TEXT` writes a message into running recordings",
    ),
];

const STACK: &str = "call stacks are recorded by the field `stack`, as in -e 'libc:malloc stack'";
const DURATION: &str = "write --duration, as in --duration 2s";
const SAMPLING: &str = "this is no sampling profiler: it records each call of the functions that \
                        you name";
const FILTER: &str = "filters are a part of the event, as in -e 'libc:write if tid == 17 && comm \
                      ~ \"ngi*\"'";
const INTERVAL: &str = "`capriole stat` has --interval, as in --interval 1s";
const ONE_PROCESS: &str = "one process is recorded, with the children that it forks: -p PID";
const BUFFER: &str = "write --buffer-size, as in --buffer-size 256M";

/// Options of other tools, by commands that lack them.
const OPTIONS: [(&[&str], &[&str], &str); 20] = [
    (
        &["record", "stat"],
        &[
            "-g",
            "-k",
            "--call-graph",
            "--stack",
            "--stacks",
            "--backtrace",
            "--stack-trace",
        ],
        STACK,
    ),
    (
        &["record", "stat"],
        &["-d", "--time", "--timeout", "--seconds", "--delay"],
        DURATION,
    ),
    (
        &["record", "stat"],
        &["-F", "--freq", "--frequency", "--rate", "-c"],
        SAMPLING,
    ),
    (
        &["record", "stat"],
        &[
            "-t", "--tid", "-C", "--cpu", "--comm", "--filter", "--uid", "-u",
        ],
        FILTER,
    ),
    (
        &["record", "stat"],
        &["-a", "--all-cpus", "--all", "--system-wide"],
        ONE_PROCESS,
    ),
    (&["record"], &["-i", "-I", "--interval"], INTERVAL),
    (
        &["stat"],
        &["-i", "-I"],
        "write --interval, as in --interval 1s",
    ),
    (
        &["record"],
        &["-m", "-b", "--mmap-pages", "--buffer"],
        BUFFER,
    ),
    (
        &["stat"],
        &["-m", "-b", "--mmap-pages", "--buffer", "--buffer-size"],
        "calls are counted in the program, without a buffer of events: leave it out",
    ),
    (
        &["stat"],
        &["-o", "--output"],
        "no trace is written: redirect its output, or record with `capriole record -o DIR`",
    ),
    (
        &["record", "stat"],
        &["-n", "-T", "--args", "-A"],
        "arguments are a part of the event, as \
      in -e 'libc:write fd=$arg1:s32'; with debug information -e ':function $arg*'",
    ),
    (
        &["record", "stat"],
        &["-l", "--list"],
        "`capriole list -p PID` lists functions",
    ),
    (
        &["record", "stat"],
        &["-q", "--quiet"],
        "messages go to standard error: add 2>/dev/null",
    ),
    (
        &["report"],
        &[
            "-g",
            "-G",
            "--call-graph",
            "--stack",
            "--stacks",
            "--children",
        ],
        "call stacks are shown below their events if these were recorded with the field `stack`; \
         --callers and --flame FILE count them",
    ),
    (
        &["report"],
        &["-d", "--duration", "--time", "--timeout"],
        "a trace is as long as its recording: `capriole record --duration 2s`",
    ),
    (
        &["report"],
        &[
            "-p", "--pid", "-t", "--tid", "--tids", "--comm", "--comms", "-C", "--cpu", "-e",
            "--event", "--filter",
        ],
        "select lines by `capriole report | grep`, or by the fields of --json; to record only \
         some events, give the event a filter, as in -e 'libc:write if tid == 17'",
    ),
    (
        &["report"],
        &["-o", "--output"],
        "the report goes to standard output: redirect it; a picture goes into --flame FILE",
    ),
    (
        &["report"],
        &["-i", "--input"],
        "write the trace directory without an option, as in `capriole report DIR`",
    ),
    (
        &["report"],
        &["-s"],
        "write --summary --sort, as in --summary --sort calls",
    ),
    (
        &["list", "check"],
        &["-e", "--event", "-f", "--file"],
        "write the event or pattern without an option, as in `libc:mem*`",
    ),
];

/// Returns what has the place of another tool's command.
pub fn command(word: &str) -> Option<&'static str> {
    let mut all = COMMANDS.iter();
    let found = all.find(|(words, _)| words.contains(&word))?;
    Some(found.1)
}

/// Returns what has the place of another tool's option.
pub fn option(command: &str, option: &str) -> Option<&'static str> {
    let name = option.split('=').next().unwrap_or(option);
    let mut all = OPTIONS.iter();
    let found =
        all.find(|(commands, options, _)| commands.contains(&command) && options.contains(&name))?;
    Some(found.2)
}

/// Returns the command of which a word is a misspelling: one letter is missing, added, changed, or
/// changed places with the next one.
pub fn misspelt(word: &str) -> Option<String> {
    let cli = crate::Cli::command();
    let names = cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let mut names = names.map(|command| command.get_name().to_owned());
    names.find(|name| is_near(word.as_bytes(), name.as_bytes()))
}

/// True if two words differ by one letter, which is missing, changed, or changed places.
pub fn is_near(one: &[u8], other: &[u8]) -> bool {
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[common..], &other[common..]);
    match (one, other) {
        ([], []) => true,
        ([], rest) | (rest, []) => rest.len() == 1,
        ([a, behind @ ..], [b, behind_other @ ..]) => {
            let swapped = || match (behind, behind_other) {
                ([c, rest @ ..], [d, rest_other @ ..]) => (a, c) == (d, b) && rest == rest_other,
                _ => false,
            };
            behind == behind_other || behind == other || one == behind_other || swapped()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_only_for_words_that_are_not_ours() {
        let cli = crate::Cli::command();
        for (words, _) in COMMANDS {
            for word in words {
                assert!(cli.find_subcommand(word).is_none(), "{word}");
            }
        }
        for (commands, options, _) in OPTIONS {
            for command in commands {
                let command = cli.find_subcommand(command).expect("a command");
                let has = |option: &str| {
                    command.get_arguments().any(|argument| {
                        let long = argument.get_long().map(|long| format!("--{long}"));
                        let short = argument.get_short().map(|short| format!("-{short}"));
                        long.as_deref() == Some(option) || short.as_deref() == Some(option)
                    })
                };
                for option in options {
                    assert!(!has(option), "{} {option}", command.get_name());
                }
            }
        }
    }

    #[test]
    fn one_letter_is_misspelt() {
        let near = |a: &str, b: &str| is_near(a.as_bytes(), b.as_bytes());
        for word in ["recrod", "recor", "recordd", "recurd", "ecord", "rrecord"] {
            assert!(near(word, "record"), "{word}");
        }
        for word in ["attach", "", "rec", "drocer"] {
            assert!(!near(word, "record") && !near(word, "detach"), "{word}");
        }
    }
}
