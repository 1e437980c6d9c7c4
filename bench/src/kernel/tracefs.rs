//! tracefs: finds or mounts it, creates an instance in it, and restores its former state.

use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Conventional mount point, as in the kernel's documentation.
const USUAL: &str = "/sys/kernel/tracing";
/// Former mount point.
const FORMER: &str = "/sys/kernel/debug/tracing";
/// Prefix of this program's instances and event groups; the id of the process that made them
/// follows.
const PREFIX: &str = "capriole_bench_";

/// A mounted tracefs. Unmounted on drop, if it was mounted by [`Tracefs::open`].
#[derive(Debug)]
pub(super) struct Tracefs {
    root: PathBuf,
    mounted_here: bool,
    /// Its `instances`, held open: another process that mounted it cannot unmount it meanwhile.
    held: Option<OwnedFd>,
}

/// An ftrace instance owned by this process. Removed on drop.
#[derive(Debug)]
pub(super) struct Instance {
    directory: PathBuf,
    tracefs: Tracefs,
}

impl Tracefs {
    /// Finds tracefs, or mounts it at its conventional place.
    pub(super) fn open() -> Result<Tracefs, String> {
        let instances = |root: &str| {
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(Path::new(root).join("instances"), flags, Mode::empty()).ok()
        };
        for root in [USUAL, FORMER] {
            if let Some(held) = instances(root) {
                return Ok(Tracefs {
                    root: root.into(),
                    mounted_here: false,
                    held: Some(held),
                });
            }
        }
        if !rustix::process::geteuid().is_root() {
            return Err("needs tracefs, which only root may use".to_owned());
        }
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tracefs", USUAL, "tracefs", flags, None)
            .map_err(|error| format!("cannot mount tracefs at {USUAL}: {error}"))?;
        let tracefs = Tracefs {
            root: USUAL.into(),
            mounted_here: true,
            held: instances(USUAL),
        };
        match tracefs.held {
            Some(_) => Ok(tracefs),
            None => Err("this kernel's tracefs has no instances".to_owned()),
        }
    }

    /// Path of a top-level file, which all instances share.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        drop(self.held.take());
        if self.mounted_here {
            // Fails with EBUSY if another process uses it by now: then it stays mounted.
            let _ = rustix::mount::unmount(USUAL, rustix::mount::UnmountFlags::empty());
        }
    }
}

impl Instance {
    /// Creates an instance, after removing those left behind by processes that no longer exist.
    pub(super) fn create() -> Result<Instance, String> {
        let tracefs = Tracefs::open()?;
        remove_stale(&tracefs);
        let directory = tracefs.root.join("instances").join(unique_name());
        fs::create_dir(&directory).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => "only root may use tracefs".to_owned(),
            _ => format!("cannot make {}: {error}", directory.display()),
        })?;
        Ok(Instance { directory, tracefs })
    }

    /// Path of a file of the instance.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The tracefs of the instance.
    pub(super) fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// Returns the number of events recorded, including those overwritten since.
    pub(super) fn recorded(&self) -> Result<u64, String> {
        let per_cpu = self.file("per_cpu");
        let entries = fs::read_dir(&per_cpu)
            .map_err(|e| format!("cannot read {}: {e}", per_cpu.display()))?;
        let mut sum = 0;
        for entry in entries.flatten() {
            let path = entry.path().join("stats");
            let stats = fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            sum += recorded_in(&stats).ok_or_else(|| format!("no counts in {}", path.display()))?;
        }
        Ok(sum)
    }

    /// Removes the instance; the error says why it stays.
    pub(super) fn remove(self) -> Result<(), String> {
        remove_instance(&self.directory)
        // `drop` tries again, which does nothing if this worked.
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = remove_instance(&self.directory);
    }
}

/// Appends to a control file; its other lines stay.
pub(super) fn append(path: &Path, text: &str) -> Result<(), String> {
    OpenOptions::new()
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("cannot write {text:?} to {}: {error}", path.display()))
}

/// Returns a unique name for an instance or for a group of events.
pub(super) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}_{number}", std::process::id())
}

/// Returns the sum of `entries` and `overrun` in a `per_cpu/cpu*/stats` file.
fn recorded_in(stats: &str) -> Option<u64> {
    let count = |name: &str| -> Option<u64> {
        let line = stats
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        line.split(':').nth(1)?.trim().parse().ok()
    };
    Some(count("entries")? + count("overrun")?)
}

/// Removes an instance. The kernel refuses rmdir for a short while after the last user has gone, so
/// it is retried.
fn remove_instance(directory: &Path) -> Result<(), String> {
    for _ in 0..50 {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    let error = fs::remove_dir(directory)
        .err()
        .map_or(String::new(), |e| e.to_string());
    Err(format!("cannot remove {}: {error}", directory.display()))
}

/// Removes an event, with retries until the kernel has released it.
pub(super) fn remove_event(tracefs: &Tracefs, name: &str) -> Result<(), String> {
    let path = tracefs.file("uprobe_events");
    let mut result = Ok(());
    for _ in 0..50 {
        result = append(&path, &format!("-:{name}\n"));
        if result.is_ok() || !events(tracefs).iter().any(|event| event == name) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    result
}

/// The names, `group/event`, of all uprobe events.
fn events(tracefs: &Tracefs) -> Vec<String> {
    let text = fs::read_to_string(tracefs.file("uprobe_events")).unwrap_or_default();
    text.lines()
        .filter_map(event_name)
        .map(str::to_owned)
        .collect()
}

/// `group/event` of a line such as `p:group/event /path:0x10 arg1=%di`.
fn event_name(line: &str) -> Option<&str> {
    line.split_whitespace()
        .next()?
        .split_once(':')
        .map(|(_, name)| name)
}

/// Removes instances and events of processes that no longer exist. Failures are ignored.
fn remove_stale(tracefs: &Tracefs) {
    let of_the_dead = |name: &str| {
        let digits = name
            .strip_prefix(PREFIX)
            .map(|rest| rest.split(['_', '/']).next());
        matches!(digits, Some(Some(pid)) if !pid.is_empty() && !Path::new("/proc").join(pid).exists())
    };
    for entry in fs::read_dir(tracefs.root.join("instances"))
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.file_name().to_str().is_some_and(of_the_dead) {
            let _ = remove_instance(&entry.path());
        }
    }
    for event in events(tracefs).iter().filter(|event| of_the_dead(event)) {
        let _ = remove_event(tracefs, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_stats_file() {
        let stats = "entries: 21\noverrun: 300\ncommit overrun: 0\nbytes: 1000\n\
                     oldest event ts:  5.2\nnow ts:  6.2\ndropped events: 0\nread events: 0\n";
        assert_eq!(recorded_in(stats), Some(321));
        assert_eq!(recorded_in("nothing"), None);
    }

    #[test]
    fn names_of_events() {
        assert_eq!(
            event_name("p:capriole_bench_1_0/hit /proc/1/exe:0x10 a=%di"),
            Some("capriole_bench_1_0/hit")
        );
        assert_eq!(event_name(""), None);
    }
}
