//! Open files of descriptors, as looks at a process saw it.
//!
//! A look lists the descriptors of a process. Between two looks nothing is known: a descriptor may be
//! closed and opened for something else there. So a name has a span in which it is taken for certain,
//! and a wider one in which it is possible:
//!
//! ```text
//!  looks       A      B      C      D      E
//!  fd 8        -      log    log    log    -
//!             after   from         until  gone
//!              |......|=============|......|      = certain   . possible
//! ```

use serde::{Deserialize, Serialize};

/// The descriptors of one process, as far as it was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDescriptors {
    /// Process id.
    pub pid: u32,
    /// Threads of the process at any look, as in the records, in ascending order.
    pub threads: Vec<u32>,
    /// The descriptors, by number and then by time.
    pub open: Vec<OpenDescriptor>,
}

/// A descriptor that was open for one thing, over successive looks. Times are ticks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenDescriptor {
    /// Its number.
    pub fd: i32,
    /// A path, the addresses of a socket, or the kernel's name, such as `pipe:[4711]`.
    pub name: String,
    /// Start of the last look before that did not see it; 0 if there is none.
    pub after: u64,
    /// End of the first look that saw it.
    pub from: u64,
    /// Start of the last look that saw it; before `from` if there was one look only.
    pub until: u64,
    /// End of the first look that did not see it any more, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<u64>,
}

/// How sure the name of a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Certainty {
    /// The looks before and after the event saw the same name.
    Certain,
    /// One of these looks saw the name, and the other saw none, or did not take place.
    Possible,
}

/// A file descriptor of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Its number.
    pub number: i32,
    /// File, socket or other object, if that is known.
    pub name: Option<(&'a str, Certainty)>,
}

impl std::fmt::Display for Descriptor<'_> {
    /// Writes `8</var/log/shop.log>`, or `8</var/log/shop.log>?` if the name is only possible.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.number)?;
        match self.name {
            Some((name, Certainty::Certain)) => write!(f, "<{name}>"),
            Some((name, Certainty::Possible)) => write!(f, "<{name}>?"),
            None => Ok(()),
        }
    }
}

/// The descriptors that were open for an event: those of its process at its time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Open<'a> {
    process: Option<&'a ProcessDescriptors>,
    time: u64,
    /// True if the thread was seen in this process.
    is_own: bool,
}

impl<'a> Open<'a> {
    /// Returns the descriptors for an event of thread `tid` at `time`, in ticks.
    #[must_use]
    pub fn at(all: &'a [ProcessDescriptors], tid: u32, time: u64) -> Open<'a> {
        let has = |process: &&ProcessDescriptors| process.threads.binary_search(&tid).is_ok();
        let mut own = all.iter().filter(has);
        let (process, is_own) = match (own.next(), own.next(), all) {
            (Some(one), None, _) => (Some(one), true),
            // A thread that no look saw belongs to the only process, or to a child that ended soon.
            (None, _, [only]) => (Some(only), false),
            // The number of the thread was used in two processes.
            _ => (None, false),
        };
        Open {
            process,
            time,
            is_own,
        }
    }

    /// Returns the name of a descriptor, if exactly one is certain or possible.
    #[must_use]
    pub fn find(&self, fd: i32) -> Option<(&'a str, Certainty)> {
        let open = &self.process?.open;
        let first = open.partition_point(|one| one.fd < fd);
        let own = open[first..].iter().take_while(|one| one.fd == fd);
        let mut possible = None;
        for one in own {
            if (one.from..=one.until).contains(&self.time) {
                let certainty = match self.is_own {
                    true => Certainty::Certain,
                    false => Certainty::Possible,
                };
                return Some((&one.name, certainty));
            }
            if one.after <= self.time && one.gone.is_none_or(|gone| self.time <= gone) {
                match possible {
                    Some(other) if other != one.name.as_str() => return None,
                    _ => possible = Some(one.name.as_str()),
                }
            }
        }
        Some((possible?, Certainty::Possible))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Certainty::{Certain, Possible};

    fn open(fd: i32, name: &str, times: [u64; 3], gone: Option<u64>) -> OpenDescriptor {
        let [after, from, until] = times;
        OpenDescriptor {
            fd,
            name: name.to_owned(),
            after,
            from,
            until,
            gone,
        }
    }

    fn process(pid: u32, threads: &[u32], open: Vec<OpenDescriptor>) -> ProcessDescriptors {
        ProcessDescriptors {
            pid,
            threads: threads.to_vec(),
            open,
        }
    }

    #[test]
    fn names_between_two_looks_that_agree_are_certain() {
        let all = [process(
            1,
            &[1, 2],
            vec![
                open(3, "/a", [0, 11, 50], Some(61)),
                open(3, "/b", [50, 61, 70], Some(81)),
                open(4, "/c", [10, 21, 20], Some(31)),
                open(4, "/d", [90, 101, 140], None),
            ],
        )];
        let find = |fd, time| Open::at(&all, 2, time).find(fd);
        assert_eq!(find(3, 5), Some(("/a", Possible)));
        assert_eq!(find(3, 11), Some(("/a", Certain)));
        assert_eq!(find(3, 50), Some(("/a", Certain)));
        // It was closed, and opened for something else, before or after this.
        assert_eq!(find(3, 55), None);
        assert_eq!(find(3, 65), Some(("/b", Certain)));
        assert_eq!(find(3, 80), Some(("/b", Possible)));
        assert_eq!(find(3, 82), None);
        assert_eq!(find(4, 9), None);
        assert_eq!(find(4, 25), Some(("/c", Possible)));
        assert_eq!(find(4, 60), None);
        assert_eq!(find(4, 1000), Some(("/d", Possible)));
        assert_eq!(find(5, 30), None);
    }

    #[test]
    fn descriptors_are_those_of_the_process() {
        let first = process(1, &[1, 2], vec![open(3, "/a", [0, 1, 90], None)]);
        let second = process(9, &[2, 9], vec![open(3, "/b", [0, 1, 90], None)]);
        let both = [first.clone(), second];
        let find = |tid| Open::at(&both, tid, 50).find(3);
        assert_eq!(find(1), Some(("/a", Certain)));
        assert_eq!(find(9), Some(("/b", Certain)));
        // In both, in none.
        assert_eq!(find(2), None);
        assert_eq!(find(7), None);
        assert_eq!(Open::at(&[first], 7, 50).find(3), Some(("/a", Possible)));
    }

    #[test]
    fn names_are_shown_in_angle_brackets() {
        let shown = |name| Descriptor { number: 8, name }.to_string();
        assert_eq!(shown(None), "8");
        assert_eq!(shown(Some(("/a b", Certain))), "8</a b>");
        assert_eq!(shown(Some(("/a", Possible))), "8</a>?");
        let peers = "127.0.0.1:80->127.0.0.1:4";
        assert_eq!(shown(Some((peers, Certain))), format!("8<{peers}>"));
    }
}
