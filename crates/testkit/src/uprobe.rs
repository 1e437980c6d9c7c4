//! A kernel uprobe with its own hit counter, through tracefs (uprobetracer.rst).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// An enabled probe. Removed when dropped.
pub struct Uprobe {
    tracefs: PathBuf,
    name: String,
}

/// Returns the path of tracefs. Mounts it if nobody has and the test runs as root.
fn tracefs() -> Result<PathBuf, String> {
    let usual = Path::new("/sys/kernel/tracing");
    let is_there = |path: &Path| path.join("uprobe_events").exists();
    if !is_there(usual) && rustix::process::geteuid().is_root() {
        let mount = ["-t", "tracefs", "nodev", "/sys/kernel/tracing"];
        let _ = Command::new("mount").args(mount).output();
    }
    [usual, Path::new("/sys/kernel/debug/tracing")]
        .into_iter()
        .find(|path| is_there(path))
        .map(Path::to_owned)
        .ok_or("there is no tracefs with uprobe_events, or only root sees it".to_owned())
}

fn append(path: &Path, text: &str) -> Result<(), String> {
    let said = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(path)
        .map_err(said)?;
    file.write_all(text.as_bytes()).map_err(said)
}

impl Uprobe {
    /// Sets a probe at an offset of a file, for all processes. `None`, with the reason on standard
    /// output, if the kernel does not offer uprobes here.
    pub fn at(file: &Path, offset: u64) -> Option<Uprobe> {
        Uprobe::of(&format!("{}:{offset:#x}", file.display()))
    }

    /// Sets a probe with a reference counter.
    pub fn counted(file: &Path, offset: u64, counter: u64) -> Option<Uprobe> {
        Uprobe::of(&format!("{}:{offset:#x}({counter:#x})", file.display()))
    }

    fn of(place: &str) -> Option<Uprobe> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("p{}_{number}", std::process::id());
        let made = tracefs().and_then(|tracefs| {
            let probe = format!("p:capriole/{name} {place}\n");
            append(&tracefs.join("uprobe_events"), &probe)?;
            let uprobe = Uprobe { tracefs, name };
            append(&uprobe.switch(), "1")?;
            Ok(uprobe)
        });
        made.map_err(|why| println!("skipped: {why}")).ok()
    }

    fn switch(&self) -> PathBuf {
        self.tracefs
            .join("events/capriole")
            .join(&self.name)
            .join("enable")
    }

    /// Returns the number of hits.
    pub fn hits(&self) -> u64 {
        // The kernel's list may change while it is read, and then it skips rows.
        let found = (0..1000).find_map(|_| {
            let profile = fs::read_to_string(self.tracefs.join("uprobe_profile"));
            hits_of(&profile.expect("a profile"), &self.name)
        });
        found.expect("the probe has a row")
    }
}

/// Returns the hits of a probe, from rows of "FILE NAME HITS" (and, from Linux 6.12, missed hits).
fn hits_of(profile: &str, name: &str) -> Option<u64> {
    let mut rows = profile.lines().map(str::split_whitespace);
    let mut row = rows.find(|row| row.clone().any(|word| word == name))?;
    row.find(|word| *word == name);
    row.next()?.parse().ok()
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        let _ = append(&self.switch(), "0");
        let _ = append(
            &self.tracefs.join("uprobe_events"),
            &format!("-:capriole/{}\n", self.name),
        );
    }
}
