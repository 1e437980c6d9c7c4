//! Looks at the file descriptors of a program while it is traced: what each number was open for, and when.
//!
//! The program records numbers only. `/proc/PID/fd` says what they stand for, and
//! [`capriole_trace::OpenDescriptor`] what that proves about an event.

use crate::pace::Work;
use capriole_event::{Element, FieldType, Shown};
use capriole_proc::process::Process;
use capriole_trace::clock::tsc;
use capriole_trace::{Certainty, OpenDescriptor, ProcessDescriptors};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

/// Interval between looks.
const INTERVAL: Duration = Duration::from_millis(20);
/// Limits looks to one part in this many of a processor's time: a process may have many descriptors.
const SHARE: u32 = 10;
/// Limits looks at the tables of sockets in the same way: the kernel makes them from all buckets of
/// large hash tables.
const SHARE_OF_TABLES: u32 = 50;
/// Maximum number of names kept in all: the description of a trace is written again each second.
const MOST: usize = 20_000;
/// Maximum time until a socket without an address is looked up again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// True for the type of descriptors.
#[must_use]
pub fn is_descriptor(field_type: FieldType) -> bool {
    let shown = Shown::Descriptor;
    matches!(field_type.element, Element::Number { shown: own, .. } if own == shown)
}

/// Open files of the descriptors of a program and of its forked children.
#[derive(Debug)]
pub struct Descriptors {
    processes: BTreeMap<u32, Looked>,
    sockets: Sockets,
    next: Instant,
    /// Number of names.
    kept: usize,
}

/// The descriptors of a process.
#[derive(Debug, Default)]
struct Looked {
    threads: BTreeSet<u32>,
    /// Start of the last look; 0 before the first.
    last: u64,
    /// The process could not be looked at any more.
    over: bool,
    /// By number, the place in `all` of what it is open for.
    open: HashMap<i32, usize>,
    /// By what the kernel calls it.
    all: Vec<OpenDescriptor>,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors {
            processes: BTreeMap::new(),
            sockets: Sockets::default(),
            next: Instant::now(),
            kept: 0,
        }
    }
}

impl Descriptors {
    /// True if it is time for the next look.
    #[must_use]
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Looks at processes, each with its threads as in the records.
    pub fn look<'a>(&mut self, processes: impl IntoIterator<Item = (&'a Process, Vec<u32>)>) {
        let mut spent = Duration::ZERO;
        for (process, threads) in processes {
            let work = Work::begin();
            let before = tsc::read();
            let found = process.descriptors().ok();
            let found = found.filter(|found| !found.is_empty() && process.is_alive());
            let after = tsc::read();
            let looked = self.processes.entry(process.pid()).or_default();
            let Some(found) = found else {
                looked.over = true;
                continue;
            };
            spent += work.spent();
            looked.threads.extend(threads);
            // Without room, the addresses of new sockets would only take memory.
            if self.kept < MOST {
                self.sockets.look_up(process, &found);
            }
            self.kept += looked.add(found, (before, after), MOST.saturating_sub(self.kept));
        }
        self.next = Instant::now() + INTERVAL.max(spent * SHARE);
    }

    /// Returns the names for a trace.
    #[must_use]
    pub fn names(&self) -> Vec<ProcessDescriptors> {
        let one = |(pid, looked): (&u32, &Looked)| {
            let named = looked.all.iter().map(|one| OpenDescriptor {
                name: self.sockets.shown(&one.name),
                ..one.clone()
            });
            let mut open: Vec<OpenDescriptor> = named.collect();
            open.sort_by_key(|one| (one.fd, one.from));
            ProcessDescriptors {
                pid: *pid,
                threads: looked.threads.iter().copied().collect(),
                open,
            }
        };
        self.processes.iter().map(one).collect()
    }

    /// Returns the name that a descriptor had in all looks; `None` if it had none, or several. It is
    /// certain if all looks saw it, in one process, which was there at the last look.
    #[must_use]
    pub fn only_name(&self, fd: i32) -> Option<(String, Certainty)> {
        let all = self.processes.values();
        let own = all.flat_map(|looked| looked.all.iter().map(move |one| (looked, one)));
        let own: Vec<(&Looked, &OpenDescriptor)> = own.filter(|(_, one)| one.fd == fd).collect();
        let (looked, first) = own.first()?;
        if own.iter().any(|(_, one)| one.name != first.name) {
            return None;
        }
        let whole = first.after == 0 && first.until == looked.last && !looked.over;
        let alone = own.len() == 1 && self.processes.len() == 1;
        let certainty = match whole && alone {
            true => Certainty::Certain,
            false => Certainty::Possible,
        };
        Some((self.sockets.shown(&first.name), certainty))
    }

    /// Returns a warning if there were too many names.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.kept >= MOST).then(|| {
            format!(
                "only the first {MOST} names of file descriptors were kept; later ones are numbers"
            )
        })
    }
}

impl Looked {
    /// Adds a look, with its start and end. Returns the number of names that are new, at most `room`.
    fn add(&mut self, found: Vec<(i32, String)>, (start, end): (u64, u64), room: usize) -> usize {
        let mut closed: HashSet<i32> = self.open.keys().copied().collect();
        let mut new = 0;
        for (fd, name) in found {
            closed.remove(&fd);
            if let Some(at) = self.open.get(&fd) {
                if self.all[*at].name == name {
                    self.all[*at].until = start;
                    continue;
                }
                self.all[*at].gone = Some(end);
                self.open.remove(&fd);
            }
            if new < room {
                new += 1;
                self.open.insert(fd, self.all.len());
                self.all.push(OpenDescriptor {
                    fd,
                    name,
                    after: self.last,
                    from: end,
                    until: start,
                    gone: None,
                });
            }
        }
        for fd in closed {
            if let Some(at) = self.open.remove(&fd) {
                self.all[at].gone = Some(end);
            }
        }
        self.last = start;
        new
    }
}

/// Addresses of sockets, by inode. A socket keeps its inode, and gets an address when it is bound or
/// connected.
#[derive(Debug, Default)]
struct Sockets {
    names: HashMap<u64, String>,
    /// Sockets whose name may change: when they are looked up again, and the wait after
    /// that.
    open: HashMap<u64, (Instant, Duration)>,
}

impl Sockets {
    /// Looks up those of these descriptors that are sockets and whose addresses are not known.
    fn look_up(&mut self, process: &Process, found: &[(i32, String)]) {
        let (now, work) = (Instant::now(), Work::begin());
        let all = found.iter().filter_map(|(_, name)| inode(name));
        let due: Vec<u64> = all
            .filter(|inode| match self.open.get(inode) {
                Some((next, _)) => now >= *next,
                None => !self.names.contains_key(inode),
            })
            .collect();
        if due.is_empty() {
            return;
        }
        let mut tables = process.sockets();
        // Reading the tables takes long on a machine with many connections.
        let least = INTERVAL.max(work.spent() * SHARE_OF_TABLES);
        for inode in due {
            let found = tables.remove(&inode);
            match found.as_ref().is_some_and(|socket| socket.is_final) {
                true => _ = self.open.remove(&inode),
                false => {
                    let (_, wait) = self.open.get(&inode).copied().unwrap_or((now, least));
                    let wait = wait.max(least);
                    let longer = (wait * 2).min(LONGEST_WAIT.max(least));
                    self.open.insert(inode, (now + wait, longer));
                }
            }
            if let Some(socket) = found {
                self.names.insert(inode, socket.name);
            }
        }
    }

    /// Returns the name to show for what the kernel calls `name`.
    fn shown(&self, name: &str) -> String {
        let address = inode(name).and_then(|inode| self.names.get(&inode));
        address.map_or(name, |address| address).to_owned()
    }
}

/// Returns the inode of `socket:[INODE]`.
fn inode(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("socket:[")?.strip_suffix(']')?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(looked: &mut Looked, time: u64, found: &[(i32, &str)]) {
        let found = found.iter().map(|(fd, name)| (*fd, (*name).to_owned()));
        looked.add(found.collect(), (time, time + 1), MOST);
    }

    #[test]
    fn a_name_lasts_as_long_as_looks_agree() {
        let mut looked = Looked::default();
        look(&mut looked, 10, &[(3, "/a"), (4, "/b")]);
        look(&mut looked, 20, &[(3, "/a"), (4, "/c")]);
        look(&mut looked, 30, &[(3, "/a")]);
        look(&mut looked, 40, &[(3, "/a"), (4, "/c")]);
        let mut all = looked.all.clone();
        all.sort_by_key(|one| (one.fd, one.from));
        let spans = all.iter().map(|one| {
            let OpenDescriptor {
                fd,
                name,
                after,
                from,
                until,
                gone,
            } = one;
            (*fd, name.as_str(), [*after, *from, *until], *gone)
        });
        assert_eq!(
            spans.collect::<Vec<_>>(),
            [
                (3, "/a", [0, 11, 40], None),
                (4, "/b", [0, 11, 10], Some(21)),
                (4, "/c", [10, 21, 20], Some(31)),
                (4, "/c", [30, 41, 40], None),
            ]
        );
        let mut descriptors = Descriptors::default();
        descriptors.processes.insert(1, looked);
        let name = |descriptors: &Descriptors, fd| descriptors.only_name(fd);
        let a = "/a".to_owned();
        assert_eq!(name(&descriptors, 3), Some((a.clone(), Certainty::Certain)));
        assert_eq!(name(&descriptors, 4), None);
        assert_eq!(name(&descriptors, 5), None);
        // A forked child may have closed it, and the program may have ended.
        descriptors.processes.insert(2, Looked::default());
        assert_eq!(name(&descriptors, 3), Some((a, Certainty::Possible)));
    }

    #[test]
    fn without_room_no_socket_is_looked_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let own = Process::open(std::process::id()).expect("it runs");
        let address = listener.local_addr().expect("bound").to_string();
        for (kept, found) in [(0, true), (MOST, false)] {
            let mut descriptors = Descriptors {
                kept,
                ..Descriptors::default()
            };
            descriptors.look([(&own, vec![1])]);
            let names = descriptors.names();
            let mut open = names.iter().flat_map(|process| &process.open);
            assert_eq!(open.any(|one| one.name == address), found);
            assert_eq!(descriptors.sockets.names.is_empty(), !found);
            assert_eq!(descriptors.warning().is_some(), !found);
        }
    }

    #[test]
    fn the_number_of_names_is_limited() {
        let mut looked = Looked::default();
        let found = |names: &[&str]| -> Vec<(i32, String)> {
            let numbered = (3..).zip(names);
            numbered
                .map(|(fd, name)| (fd, (*name).to_owned()))
                .collect()
        };
        assert_eq!(looked.add(found(&["/a", "/b"]), (10, 11), 1), 1);
        assert_eq!(looked.add(found(&["/c"]), (20, 21), 0), 0);
        // What is not known any more ends.
        assert_eq!(looked.all.len(), 1);
        assert_eq!(looked.all[0].gone, Some(21));
    }
}
