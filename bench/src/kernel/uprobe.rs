//! `kernel.uprobe`: an event on the function's entry that fetches two registers.

use std::fs;

use super::tracefs::{self, Instance, append, remove_event};
use crate::function::Function;
use crate::process::TargetInfo;
use crate::runner::Probe;

/// A uprobe event on [`Function::Uprobe`], recording `%di` and `%si`.
#[derive(Debug, Default)]
pub struct Uprobe {
    armed: Option<Armed>,
}

/// The event and the instance that it records into; both go when it is dropped.
#[derive(Debug)]
struct Armed {
    /// `None` once it was removed.
    instance: Option<Instance>,
    event: String,
    executable: String,
}

impl Armed {
    fn new(target: &TargetInfo) -> Result<Armed, String> {
        let offset = target
            .file_offset(Function::Uprobe)
            .map_err(|error| error.to_string())?;
        let instance = Instance::create()?;
        let events = instance.tracefs().file("uprobe_events");
        if !events.exists() {
            return Err("this kernel has no uprobe events (CONFIG_UPROBE_EVENTS)".to_owned());
        }
        let event = format!("{}/hit", tracefs::unique_name());
        // The path that needs no quoting, whatever the file is called.
        let executable = format!("/proc/{}/exe", target.pid);
        append(
            &events,
            &format!("p:{event} {executable}:{offset:#x} arg1=%di arg2=%si\n"),
        )?;
        let armed = Armed {
            instance: Some(instance),
            event,
            executable,
        };
        armed.enable(true)?;
        Ok(armed)
    }

    fn enable(&self, on: bool) -> Result<(), String> {
        let Some(instance) = &self.instance else {
            return Ok(());
        };
        append(
            &instance.file(&format!("events/{}/enable", self.event)),
            if on { "1" } else { "0" },
        )
    }

    /// Times the kernel ran the probe.
    fn hits(&self) -> Result<u64, String> {
        let Some(instance) = &self.instance else {
            return Err("its instance is gone".to_owned());
        };
        let path = instance.tracefs().file("uprobe_profile");
        let profile = fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        hits_in(&profile, &self.executable)
            .ok_or_else(|| format!("no line of the probe in {}", path.display()))
    }

    fn remove(&mut self) -> Result<(), String> {
        let disabled = self.enable(false);
        let Some(instance) = self.instance.take() else {
            return Ok(());
        };
        let event = remove_event(instance.tracefs(), &self.event);
        disabled.and(event).and(instance.remove())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Hits of the probe on that file in `uprobe_profile`: file, event, hits.
fn hits_in(profile: &str, file: &str) -> Option<u64> {
    profile.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == file).then_some(())?;
        words.nth(1)?.parse().ok()
    })
}

impl Probe for Uprobe {
    fn arm(&mut self, target: &TargetInfo) -> Result<(), String> {
        self.armed = Some(Armed::new(target)?);
        Ok(())
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        self.armed.as_ref().map(Armed::hits).transpose()
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.armed.take().map_or(Ok(()), |mut armed| armed.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_one_file() {
        let profile = "  /usr/bin/app  hit      3\n  /proc/77/exe hit             1200\n";
        assert_eq!(hits_in(profile, "/proc/77/exe"), Some(1200));
        assert_eq!(hits_in(profile, "/proc/7/exe"), None);
    }
}
