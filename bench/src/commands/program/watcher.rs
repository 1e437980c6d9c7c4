//! Our own `stat` and `record`, started as a user starts them.

use super::Way;
use anyhow::{Context, bail, ensure};
use capriole_host::ptrace;
use capriole_patch::recover;
use capriole_proc::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Counts that a [`Watcher`] reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Functions that were meant to get a probe.
    pub functions: u64,
    /// Functions that had one.
    pub probed: u64,
    /// Calls counted or recorded.
    pub events: u64,
    /// Calls not counted or recorded, because there was no room.
    pub lost: u64,
    /// Bytes of the trace.
    pub bytes: u64,
}

/// An attached `capriole stat` or `capriole record`. Dropping it ends it and waits for it, so that
/// its probes are removed.
#[derive(Debug)]
pub struct Watcher(Option<Child>);

impl Watcher {
    /// Starts the command, and waits until its probes are inserted.
    ///
    /// # Errors
    /// The command ends before that; the error is its message.
    pub fn start(
        way: Way,
        pid: u32,
        event: &str,
        trace: &Path,
        buffer: u64,
    ) -> anyhow::Result<Watcher> {
        let mut command = Command::new(capriole_bench::command());
        command.arg(way.name()).arg("--json");
        command.args(["-p", &pid.to_string(), "-e", event]);
        if way == Way::Record {
            command.args(["--buffer-size", &buffer.to_string(), "-o"]);
            command.arg(trace);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut watcher = Watcher(Some(child));
        let process = Process::open(pid)?;
        while !is_probed(&process)? {
            if let Some(child) = &mut watcher.0
                && child.try_wait()?.is_some()
            {
                return Err(match watcher.end() {
                    Ok(_) => anyhow::anyhow!("it has ended by itself"),
                    Err(error) => error,
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(watcher)
    }

    /// Ends the command as Ctrl-C does, which removes its probes.
    ///
    /// # Errors
    /// The command fails; the error is its message.
    pub fn end(mut self) -> anyhow::Result<Seen> {
        let Some(child) = self.0.take() else {
            bail!("it has ended already");
        };
        ask_to_end(&child);
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim());
        let value: Value = serde_json::from_slice(&output.stdout).context("its JSON")?;
        seen(&value).context("its JSON is of another form")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(child) = self.0.take() {
            ask_to_end(&child);
            let _ = child.wait_with_output();
        }
    }
}

fn ask_to_end(child: &Child) {
    // A child that has ended is still a zombie, unless it was waited for; then this call fails.
    let _ = kill_process(Pid::from_child(child), Signal::INT);
}

/// True if all probes of a process are inserted: some are written, and the single stop that
/// writes them all is over.
fn is_probed(process: &Process) -> anyhow::Result<bool> {
    Ok(recover::is_probed(&*ptrace::host(process))? && process.status()?.tracer == 0)
}

/// Summarises the JSON of `stat` or `record`.
fn seen(value: &Value) -> Option<Seen> {
    // In `stat`, `events` is the list of events; in `record`, their number.
    let calls = |events: &Vec<Value>| events.iter().filter_map(|e| e["calls"].as_u64()).sum();
    let sites = value["sites"].as_array().or(value["events"].as_array())?;
    let probed = sites.iter().filter(|site| site["state"] != "not probed");
    Some(Seen {
        functions: sites.len() as u64,
        probed: probed.count() as u64,
        events: match &value["events"] {
            Value::Array(events) => calls(events),
            number => number.as_u64()?,
        },
        lost: value["lost"].as_u64().unwrap_or(0),
        bytes: value["bytes"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_forms_are_summed_up() {
        let stat = json!({"events": [{"calls": 3, "state": "optimised"}, {"state": "not probed"},
                                     {"calls": 4, "state": "breakpoint"}]});
        let record = json!({"events": 7, "lost": 2, "bytes": 128,
                            "sites": [{"state": "optimised"}, {"state": "not probed"}]});
        let expect = |functions, probed, lost, bytes| Seen {
            functions,
            probed,
            events: 7,
            lost,
            bytes,
        };
        assert_eq!(seen(&stat), Some(expect(3, 2, 0, 0)));
        assert_eq!(seen(&record), Some(expect(2, 1, 2, 128)));
        assert_eq!(seen(&json!({"pid": 1})), None);
    }
}
