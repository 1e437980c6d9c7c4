//! Guards: Capriole's own probes, which an attach writes beside the requested ones.
//!
//! A guard stands behind the system calls that make threads, before those that may install a
//! filter of system calls, behind those that report the action of a signal, and where unwinders
//! look up return addresses. They are found and planned above this crate.
//!
//! Guards are written before all other sites and removed after them. When they are written, no
//! thread may be between a guard and its system call, and none may have installed a filter
//! since it was examined; otherwise the attach starts again. The guards behind `rt_sigaction`
//! are written in a stop of their own, before the first signal action is replaced, and removed
//! after the last is restored. If the bytes of a guard are occupied, the attach starts again,
//! up to eight times within half a second, and then drops kinds of guards one after the other.

use crate::other::Other;
use crate::probe::{Point, Probe};
use crate::returns::Region;
use capriole_codegen::work::Work;
use capriole_resident::Entries;
use capriole_tactic::site::{FAR_STUB, Shape};
use std::collections::HashMap;
use std::ops::Range;

/// The guards of a process.
#[derive(Debug, Clone, Default)]
pub struct Guards {
    /// Probes behind system calls that make threads.
    pub threads: Vec<Probe>,
    /// True if some call that makes threads cannot be guarded.
    pub missing: bool,
    /// Probes that answer unwinders.
    pub unwinders: Vec<Probe>,
    /// True if these answer for replaced return addresses as well, and must not be missing.
    pub unwinders_required: bool,
    /// Probes before system calls that may install a system call filter.
    pub filters: Vec<Probe>,
    /// True if such calls were searched for, and all of them can be guarded.
    pub filters_complete: bool,
    /// Probes behind system calls that report the action of a signal.
    pub actions: Vec<Probe>,
    /// True if such calls were searched for, and all of them can be guarded.
    pub actions_complete: bool,
    /// True if the program sets up thread pointers itself, or might do so by a call without a guard.
    pub own_storage: bool,
}

/// Guards among the probes of an attach.
#[derive(Debug, Default)]
pub(crate) struct Guarded {
    /// Number of probes before the guards were added.
    pub asked: usize,
    /// Indices of the probes that are guards: those from index `asked` on, and some requested ones.
    pub guards: Vec<usize>,
    /// The guards that answer unwinders.
    pub unwinders: Vec<usize>,
    /// True if they answer for replaced return addresses as well.
    returns: bool,
    /// The guards before system calls that may install a system call filter.
    pub filters: Vec<usize>,
    /// The guards behind system calls that report the action of a signal.
    pub actions: Vec<usize>,
    /// Point at which each guard does its work, by index of the probe.
    points: HashMap<usize, Point>,
    /// Requested probes that would use a guard's bytes.
    pub refused: Vec<usize>,
}

impl Guarded {
    /// Removes the guards from the probes that they were added to.
    pub fn part(&self, probes: &mut Vec<Probe>) {
        probes.truncate(self.asked);
        for index in self.guards.iter().filter(|i| **i < self.asked) {
            let work = &mut probes[*index].point(&self.points[index]).work;
            match self.unwinders.contains(index) {
                true => work.truncate(work.len().saturating_sub(self.answers())),
                false => drop(work.remove(0)),
            }
        }
    }

    /// Sets the addresses of the resident's routines in the guards at system calls.
    pub fn place(&self, probes: &mut [Probe], resident: &Entries) {
        let filters = self.filters.iter().map(|index| (index, resident.filtering));
        let actions = self.actions.iter().map(|index| (index, resident.action));
        for (index, routine) in filters.chain(actions) {
            let work = &mut probes[*index].point(&self.points[index]).work;
            // A guard's work is always first.
            if let Some(Work::Help { routine: to, .. }) = work.first_mut() {
                *to = routine;
            }
        }
        for index in &self.unwinders {
            let work = &mut probes[*index].point(&self.points[index]).work;
            // The answers come last there.
            let answers = work.len().saturating_sub(self.answers());
            if let Some(Work::Help { routine: to, .. }) = work.get_mut(answers) {
                *to = resident.frame;
            }
        }
    }

    /// Returns the number of routines that answer an unwinder.
    fn answers(&self) -> usize {
        1 + usize::from(self.returns)
    }

    /// Adds the routines that answer unwinders to the probes at their lookup function: for our own code, whose
    /// address is set when it is [placed](Self::place), and for replaced return addresses, if there are any.
    /// That comes second: the first may lead it to another address.
    pub fn answer(&mut self, probes: &mut [Probe], region: Option<Region>) {
        self.returns = region.is_some();
        let help = |routine| Work::Help {
            routine,
            argument: 0,
        };
        for index in &self.unwinders {
            let work = &mut probes[*index].point(&self.points[index]).work;
            work.push(help(0));
            work.extend(region.map(|region| help(region.entries().find_fde)));
        }
    }
}

impl Guards {
    /// True if the program sees its own signal actions in place of ours, whichever system call it
    /// uses. Otherwise no signal action may be replaced.
    #[must_use]
    pub fn have_actions(&self) -> bool {
        self.actions_complete
    }

    /// True if a probe would use bytes that a guard uses.
    #[must_use]
    pub fn overlaps(&self, probe: &Probe) -> bool {
        let guards = self
            .threads
            .iter()
            .chain(&self.filters)
            .chain(&self.actions);
        let guards = guards.flat_map(uses);
        let guards: Vec<Range<u64>> = guards.collect();
        uses_any(probe, &guards)
    }

    /// Returns the run-time addresses behind the system calls that create threads.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.threads.iter().map(|probe| probe.shape.site)
    }

    /// True if every call found is guarded. Otherwise no thread may use restartable sequences.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        !self.missing
    }

    /// True if every call that may install a filter is guarded. Otherwise the resident may make no
    /// system call at all.
    #[must_use]
    pub fn have_filters(&self) -> bool {
        self.filters_complete
    }

    /// Drops one kind of guard, for an attach that cannot write all of them; returns `None` if all
    /// remaining guards are required. In this order:
    ///
    /// 1. where unwinders look up addresses: then a backtrace or an exception in a signal handler does not get
    ///    past a detour;
    /// 2. behind system calls that create threads: then no probe uses restartable sequences;
    /// 3. before system calls that install filters: then the resident makes no system calls, and nothing is
    ///    read through thread pointers, which some of these calls may set;
    /// 4. behind `rt_sigaction`, unless the program handles `faults`: its handlers would see the
    ///    addresses of copies.
    ///
    /// Where return addresses are replaced, guards of unwinders stay: without them exceptions would not get past
    /// those.
    pub(crate) fn with_less(&self, faults: bool) -> Option<Guards> {
        if !self.unwinders.is_empty() && !self.unwinders_required {
            return Some(Guards {
                unwinders: Vec::new(),
                ..self.clone()
            });
        }
        if !self.threads.is_empty() {
            return Some(self.without_threads());
        }
        if !self.filters.is_empty() {
            return Some(Guards {
                filters: Vec::new(),
                filters_complete: false,
                own_storage: true,
                ..self.clone()
            });
        }
        (!self.actions.is_empty() && !faults).then(|| Guards {
            actions: Vec::new(),
            actions_complete: false,
            ..self.clone()
        })
    }

    /// True if a thread pointer of the program may point to data other than the C library's. Then
    /// nothing may be read relative to it.
    #[must_use]
    pub(crate) fn have_own_storage(&self) -> bool {
        self.own_storage
    }

    /// Adds the probes that answer unwinders; `required` if return addresses may be replaced.
    #[must_use]
    pub fn with_unwinders(self, unwinders: Vec<Probe>, required: bool) -> Guards {
        Guards {
            unwinders,
            unwinders_required: required,
            ..self
        }
    }

    /// Returns the guards without those for new threads.
    pub(crate) fn without_threads(&self) -> Guards {
        Guards {
            threads: Vec::new(),
            missing: true,
            ..self.clone()
        }
    }

    /// Returns the guards that are possible beside the other session of the process. Without the others
    /// each kind is incomplete, see [`with_less`](Self::with_less).
    pub(crate) fn beside(&self, other: &Other) -> Guards {
        let mut guards = self.clone();
        let is_free = |probe: &Probe| !bytes_of(&probe.shape).any(|bytes| other.claims_any(bytes));
        let keep = |probes: &mut Vec<Probe>| {
            let before = probes.len();
            probes.retain(is_free);
            probes.len() == before
        };
        if !guards.unwinders_required {
            keep(&mut guards.unwinders);
        }
        guards.missing |= !keep(&mut guards.threads);
        guards.filters_complete &= keep(&mut guards.filters);
        guards.actions_complete &= keep(&mut guards.actions);
        guards
    }

    /// Adds the guards to `probes`.
    pub(crate) fn join(&self, probes: &mut Vec<Probe>) -> Guarded {
        let asked = probes.len();
        let mut guarded = Guarded {
            asked,
            ..Guarded::default()
        };
        let threads = self.threads.iter().map(|guard| (guard, Kind::Thread));
        let filters = self.filters.iter().map(|guard| (guard, Kind::Filter));
        let unwinders = self.unwinders.iter().map(|guard| (guard, Kind::Unwinder));
        let actions = self.actions.iter().map(|guard| (guard, Kind::Action));
        for (guard, kind) in threads.chain(filters).chain(actions).chain(unwinders) {
            let same = |p: &Probe| {
                p.shape.covered == guard.shape.covered && p.shape.tactic == guard.shape.tactic
            };
            let own = Point::of(&guard.shape);
            let same = probes[..asked].iter().position(same);
            let needed: Vec<Range<u64>> = uses(guard).collect();
            let is_in_the_way = || probes[..asked].iter().any(|p| uses_any(p, &needed));
            if kind == Kind::Unwinder
                && !self.unwinders_required
                && same.is_none()
                && is_in_the_way()
            {
                continue;
            }
            let index = match same {
                Some(index) => {
                    let work = guard.points.iter().flat_map(|p| &p.work).cloned();
                    probes[index].point(&own).work.splice(0..0, work);
                    index
                }
                None => {
                    probes.push(guard.clone());
                    probes.len() - 1
                }
            };
            guarded.points.insert(index, own);
            guarded.guards.push(index);
            match kind {
                Kind::Thread => {}
                Kind::Filter => guarded.filters.push(index),
                Kind::Action => guarded.actions.push(index),
                Kind::Unwinder => guarded.unwinders.push(index),
            }
        }
        let own = guarded.guards.iter().flat_map(|i| uses(&probes[*i]));
        let own: Vec<Range<u64>> = own.collect();
        for (index, probe) in probes[..asked].iter().enumerate() {
            if !guarded.guards.contains(&index) && uses_any(probe, &own) {
                guarded.refused.push(index);
            }
        }
        guarded
    }

    /// Returns the number of guards.
    pub(crate) fn len(&self) -> usize {
        self.threads.len() + self.filters.len() + self.actions.len() + self.unwinders.len()
    }
}

/// Purpose of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thread,
    Filter,
    Action,
    Unwinder,
}

fn covered(shape: &Shape) -> Range<u64> {
    let covered = shape.covered;
    covered.start..covered.end.max(covered.start + 1)
}

/// True if a probe changes, displaces or relies on a byte of one of `ranges`.
#[must_use]
pub fn uses_any(probe: &Probe, ranges: &[Range<u64>]) -> bool {
    uses(probe).any(|own| {
        let meets = |range: &Range<u64>| range.start < own.end && own.start < range.end;
        ranges.iter().any(meets)
    })
}

/// Returns the bytes that a probe changes, displaces or relies on.
pub(crate) fn uses(probe: &Probe) -> impl Iterator<Item = Range<u64>> {
    uses_of(&probe.shape)
}

/// Returns the bytes that a probe of this shape changes, displaces or relies on, with its stubs.
pub(crate) fn uses_of(shape: &Shape) -> impl Iterator<Item = Range<u64>> {
    let stubs = shape.placed.iter().flat_map(|placed| &placed.stubs);
    bytes_of(shape).chain(stubs.map(|stub| stub.address..stub.address + FAR_STUB))
}

/// Returns the bytes of the program that a probe of this shape changes, evicts or relies on.
pub(crate) fn bytes_of(shape: &Shape) -> impl Iterator<Item = Range<u64>> {
    let range = |at: u64, bytes: &[u8]| at..at + bytes.len() as u64;
    let placed = shape.placed.iter().flat_map(move |placed| {
        let writes = placed
            .writes
            .iter()
            .map(move |w| range(w.address, &w.after));
        let relied = placed
            .relies_on
            .iter()
            .map(move |(at, bytes)| range(*at, bytes));
        let evicted = placed.evicted.iter().map(|i| i.ip()..i.next_ip());
        writes.chain(relied).chain(evicted)
    });
    std::iter::once(covered(shape)).chain(placed)
}
