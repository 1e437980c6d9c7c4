//! Detection of programs that run others by translating their code: Valgrind, QEMU's user mode,
//! Pin, DynamoRIO.
//!
//! Such a process does not run the code in its files, but a translation of it. A jump that is
//! written over that code is translated as well, and leads to code unknown to the translator,
//! in a process whose signals, threads and memory the translator controls; or the jump has no
//! effect, if that code was translated before. So such processes are refused before anything in
//! them is changed.
//!
//! A name alone proves nothing, as any program may have it; the evidence is in the program
//! itself, or is code that is mapped.

use crate::maps::Mapping;
use crate::process::{Process, ProcessError};
use memchr::memmem;
use std::path::Path;

/// A translator: its name in the message, and the suggested alternative.
struct Translator {
    name: &'static str,
    instead: &'static str,
}

const VALGRIND: Translator = Translator {
    name: "Valgrind",
    instead: "run the program without valgrind, or count its calls with callgrind",
};
const QEMU: Translator = Translator {
    name: "QEMU (user mode)",
    instead: "run the program on a processor of its own kind, or use QEMU's plugins (-plugin)",
};
const PIN: Translator = Translator {
    name: "Pin",
    instead: "run the program without it, or use a Pin tool",
};
const DYNAMORIO: Translator = Translator {
    name: "DynamoRIO",
    instead: "run the program without it, or use a DynamoRIO client",
};

/// Refuses a process whose code a translator runs, or that is about to become a translator.
///
/// # Errors
/// [`ProcessError::Translated`], or any error of examining the process.
pub fn refuse(process: &Process) -> Result<(), ProcessError> {
    match find(process)? {
        None => Ok(()),
        Some(Translator { name, instead }) => Err(ProcessError::Translated {
            pid: process.pid(),
            name: process.name().to_owned(),
            translator: name,
            instead,
        }),
    }
}

fn find(process: &Process) -> Result<Option<Translator>, ProcessError> {
    let exe = process.exe()?;
    let name = file_name(&exe);
    let contains = |text: &str| {
        let file = std::fs::read(process.proc_path("exe")).unwrap_or_default();
        memmem::find(&file, text.as_bytes()).is_some()
    };
    // Valgrind's tools are separate programs, which find the launcher through this variable.
    let of_valgrind = name.ends_with("-amd64-linux") || name.starts_with("valgrind");
    if of_valgrind && contains("VALGRIND_LAUNCHER") {
        return Ok(Some(VALGRIND));
    }
    // QEMU finds the libraries of the emulated processor through this variable. It does not occur
    // in `qemu-system-x86_64`, which is a program like any other.
    if name.starts_with("qemu-") && contains("QEMU_LD_PREFIX") {
        return Ok(Some(QEMU));
    }
    if name == "drrun" {
        return Ok(Some(DYNAMORIO));
    }
    let beside = |file: &str| {
        exe.parent()
            .is_some_and(|d| process.in_root(&d.join(file)).exists())
    };
    if matches!(name, "pin" | "sde" | "sde64")
        && (beside("intel64/bin/pinbin") || beside("intel64/pinbin"))
    {
        return Ok(Some(PIN));
    }
    if is_script_of_valgrind(process) {
        return Ok(Some(VALGRIND));
    }
    // A file mapped only as data executes nothing.
    let maps = process.maps()?;
    let mut code = maps.iter().filter(|m| m.perms.execute && m.is_file());
    Ok(code.find_map(|mapping: &Mapping| {
        match file_name(Path::new(&mapping.path)) {
            "pinbin" => Some(PIN),
            "libdynamorio.so" => Some(DYNAMORIO),
            name if name.starts_with("vgpreload_") && name.ends_with("-amd64-linux.so") => {
                // Only in Valgrind's own process: children that it does not trace are not translated.
                let tool = maps.iter().filter(|m| m.perms.execute);
                let mut tool = tool.map(|m| file_name(Path::new(&m.path)));
                tool.any(|name| name.ends_with("-amd64-linux"))
                    .then_some(VALGRIND)
            }
            _ => None,
        }
    }))
}

/// True for Debian's `valgrind`, a script that executes the `valgrind.bin` beside it.
fn is_script_of_valgrind(process: &Process) -> bool {
    let command_line = crate::files::read_pseudo(process.proc_path("cmdline")).unwrap_or_default();
    // After the shell: maybe an option, then the script.
    let words = command_line.split(|byte| *byte == 0).skip(1).take(2);
    let mut words = words.filter_map(|word| std::str::from_utf8(word).ok().map(Path::new));
    let script = words.find(|word| word.is_absolute() && file_name(word) == "valgrind");
    script.is_some_and(|script| {
        let read = |path: &Path| std::fs::read(process.in_root(path)).unwrap_or_default();
        let launcher = read(&script.with_file_name("valgrind.bin"));
        read(script).starts_with(b"#!") && memmem::find(&launcher, b"VALGRIND_LAUNCHER").is_some()
    })
}

fn file_name(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}
