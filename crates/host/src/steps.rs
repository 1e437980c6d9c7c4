//! Named steps of an attach or detach at which a test kills or stops the tracer.
//!
//! Between any two of them the tracer may be killed by SIGKILL and the program must run on. A test
//! first lets the tracer write down the steps that it takes, then kills it at some of them. Only builds
//! with debug assertions check the environment for
//!
//! | variable | |
//! | --- | --- |
//! | `CAPRIOLE_STEPS=FILE` | append the name of each step to the file, a line each |
//! | `CAPRIOLE_DIE_AT=NAME#N` | die of SIGKILL when the step of that name is reached for the N-th time |
//! | `CAPRIOLE_STOP_AT=NAME#N` | stop there, until SIGCONT |

#[cfg(debug_assertions)]
mod armed {
    use rustix::process::{Pid, Signal, getpid, kill_process};
    use std::fs::File;
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    /// A step at which the process dies or stops.
    struct Fatal {
        name: String,
        number: u64,
        /// Times the step was reached.
        reached: u64,
        /// Verb for the message.
        does: &'static str,
        signal: Signal,
    }

    /// The environment's requests, read when a process reaches its first step.
    struct Asked {
        /// The process that read them. A child that is forked later reads its own.
        by: Pid,
        list: Option<File>,
        fatal: Option<Fatal>,
    }

    static ASKED: Mutex<Option<Asked>> = Mutex::new(None);

    pub fn step(name: &str) {
        let own = getpid();
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = match &mut *asked {
            Some(asked) if asked.by == own => asked,
            other => other.insert(Asked {
                by: own,
                list: list(),
                fatal: fatal(),
            }),
        };
        if let Some(list) = &mut asked.list {
            // One write a line: processes do not mix theirs.
            let _ = list.write_all(format!("{name}\n").as_bytes());
        }
        if let Some(fatal) = asked.fatal.as_mut().filter(|fatal| fatal.name == name) {
            fatal.reached += 1;
            if fatal.reached == fatal.number {
                eprintln!("capriole: {} at step {name}#{}", fatal.does, fatal.number);
                let _ = kill_process(own, fatal.signal);
            }
        }
    }

    fn list() -> Option<File> {
        let path = std::env::var_os("CAPRIOLE_STEPS")?;
        let file = File::options().append(true).create(true).open(&path);
        Some(file.unwrap_or_else(|error| panic!("CAPRIOLE_STEPS={}: {error}", path.display())))
    }

    fn fatal() -> Option<Fatal> {
        let at = |variable, does, signal| {
            let step = std::env::var(variable).ok()?;
            let number = |number: &str| number.parse().ok().filter(|number| *number > 0);
            let parts = step.rsplit_once('#');
            let (name, number) = parts
                .and_then(|(name, text)| Some((name.to_owned(), number(text)?)))
                .unwrap_or_else(|| panic!("{variable}={step}: write NAME#N, from 1"));
            Some(Fatal {
                name,
                number,
                reached: 0,
                does,
                signal,
            })
        };
        at("CAPRIOLE_DIE_AT", "dies", Signal::KILL)
            .or_else(|| at("CAPRIOLE_STOP_AT", "stops", Signal::STOP))
    }
}

/// Marks the step called `name` as reached.
#[inline]
pub fn step(name: &str) {
    #[cfg(debug_assertions)]
    armed::step(name);
    let _ = name;
}
