//! Probes of single instructions, each of which is put in and taken out for itself: for programs
//! that probe themselves.
//!
//! A site that was added stays in the session for good, armed or not. So a handler can come and go
//! at a place as often as it likes without anything new in the program.

use super::inner::{Inner, Inserted};
use super::{Options, Place, Session};
use crate::error::{Result, err};
use capriole_event::{At, Place as ProbePlace, Probe};
use capriole_host::Host;
use capriole_insn::{ExitKind, Extent};
use capriole_ledger::Kind;
use capriole_patch::attach::{Running, SiteState};
use capriole_patch::other::Other;
use capriole_patch::recover::{detach_inherited, detach_left};
use capriole_planner::planner::excluded;
use capriole_planner::resolve::{Body, followed, resolve};
use capriole_proc::translator;
use capriole_select::event::Event;
use capriole_tactic::site::{Patch, Refusal, Tactic};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A patch of a session: that of one or, where they share a jump, of several instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(usize);

/// A place in the code of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spot {
    /// Address of the instruction.
    pub address: u64,
    /// The function, or part of a function, that has it.
    pub symbol: Option<String>,
    /// Its distance from the start of the function in bytes; an `endbr64` there does not count.
    pub offset: u64,
    /// For an exit: true if the function returns there, whatever the flags.
    pub plain: bool,
    /// For an exit: the reason why the exits of the function are not all known.
    pub unknown: Option<String>,
}

/// A function that the program has excluded from probes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Excluded {
    /// Its code.
    pub code: Range<u64>,
    /// Name of the program or library.
    pub object: String,
    /// Its name; `None` if the file has no symbol for it.
    pub symbol: Option<String>,
}

/// How a site is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reached {
    /// By a jump.
    Optimised,
    /// By a breakpoint, until the jump is written.
    Waiting,
    /// By a breakpoint: no jump is possible.
    Breakpoint,
    /// Not yet: a thread is inside the bytes that change, and no breakpoint may be used.
    Occupied,
    /// Not: it is disarmed.
    Disarmed,
    /// Not any more: another tool has changed the place, or its library is gone.
    Gone,
}

/// State of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteStatus {
    /// How it is patched.
    pub reached: Reached,
    /// The tactic that was planned.
    pub tactic: Tactic,
    /// Address of the first byte that changes.
    pub address: u64,
}

/// A site that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddedSite {
    /// Identifies it.
    pub id: SiteId,
    /// Address of the instruction: the one asked for, or the one after it if that is an `endbr64`.
    pub address: u64,
    /// Address of code that does what the program did at the instruction before, and goes on
    /// behind it. It stays valid as long as the session.
    pub original: u64,
    /// The reasons why it is not reached in a better way.
    pub refusals: Vec<(Tactic, Refusal)>,
    /// The reason why no breakpoint may be there, if there is one.
    pub no_breakpoint: Option<Refusal>,
    /// True if the patch can only be written while the program is stopped, so that no breakpoint comes
    /// first.
    pub in_stops: bool,
}

/// An instruction that a jump may cover, and the address at which a thread goes on there.
pub type Inside = (u64, u64);

/// The way to put probes in and take them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// In their final form, in a pause of the program.
    Paused,
    /// As breakpoints, without a pause, where the program's signals allow that; otherwise in a
    /// pause. This thread of the program is stopped for it, best one that waits for us.
    Running(i32),
    /// Not yet: everything is made ready for [`Session::arm_sites`]; disarming takes place in a pause.
    Later,
}

impl Session {
    /// Takes out of a process what it has inherited by fork from one with a session: its parent
    /// keeps that. A program that probes itself does so before it gets a session of its own.
    ///
    /// # Errors
    /// The process cannot be stopped, or is gone.
    pub fn part(host: &dyn Host) -> Result<()> {
        Ok(detach_inherited(host)?)
    }

    /// Takes out all that earlier sessions have left in a program that has no probes of its own any more.
    ///
    /// # Errors
    /// The process cannot be stopped, or is gone.
    pub fn clear(host: &dyn Host) -> Result<()> {
        Ok(detach_left(host)?)
    }

    /// Makes a session for a process that is changed by this host. One that the host cannot stop
    /// gets breakpoints, and jumps where they take the place of one instruction.
    ///
    /// # Errors
    /// As [`Session::attach_with`].
    pub fn attach_by(host: Arc<dyn Host>, options: Options) -> Result<Session> {
        options.check()?;
        host.preflight()?;
        translator::refuse(host.process())?;
        let pid = host.process().pid();
        let inner = Inner::by(host, Kind::Library, None, options)?;
        Ok(Session {
            pid,
            place: Some(Place::Here(Box::new(inner))),
        })
    }

    /// Attaches to the program without any probe, unless that is done: then a recorder that comes later
    /// leaves to this session what only one of two can have.
    ///
    /// # Errors
    /// As [`Session::add`] for the first event.
    pub fn begin(&mut self) -> Result<()> {
        self.work(Inner::begin)
    }

    /// Adds probes that are each at one instruction: all of them, or none.
    ///
    /// # Errors
    /// As [`Session::add_probe`], or one of them has no site, or several.
    pub fn add_sites(&mut self, probes: &[Probe], pace: Pace) -> Result<Vec<AddedSite>> {
        let probes = probes.to_vec();
        self.work(move |inner| inner.add_sites(&probes, pace))
    }

    /// Checks that a probe can be planned. Nothing is added.
    ///
    /// # Errors
    /// As [`Session::add`].
    pub fn check_site(&mut self, probe: &Probe) -> Result<()> {
        let event = Event::from(probe.clone());
        self.work(move |inner| inner.plan(&[event], &BTreeSet::new()).map(drop))
    }

    /// Finds the places of a probe, without copies of functions that compilers have made.
    ///
    /// # Errors
    /// As [`Session::add`].
    pub fn spots(&mut self, probe: &Probe) -> Result<Vec<Spot>> {
        let probe = probe.clone();
        self.work(move |inner| inner.spots(&probe))
    }

    /// Returns the names of the indirect functions (IFUNC) for which the program has chosen the function around an
    /// address: files without a symbol table do not name such a function itself. The first is the plainest.
    ///
    /// # Errors
    /// The program has ended, or its files cannot be read.
    pub fn indirect_names(&mut self, address: u64) -> Result<Vec<String>> {
        self.work(move |inner| inner.indirect_names(address))
    }

    /// True if the program has excluded the function at an address from probes.
    ///
    /// # Errors
    /// The program has ended, or its files cannot be read.
    pub fn is_excluded(&mut self, address: u64) -> Result<bool> {
        self.work(move |inner| inner.is_excluded(address))
    }

    /// True if an address is in code of a loaded file that the program has mapped once more: probes with
    /// handlers are put into the loaded file alone.
    ///
    /// # Errors
    /// The program has ended, or its files cannot be read.
    pub fn is_mapped_again(&mut self, address: u64) -> Result<bool> {
        self.work(move |inner| {
            inner.check_running()?;
            let objects = inner.known.objects(&inner.process)?;
            let object = objects.containing(address);
            Ok(object.is_some_and(|object| object.is_part()))
        })
    }

    /// Returns the functions that the program and its libraries have excluded from probes, by address.
    ///
    /// # Errors
    /// The program has ended, or its files cannot be read.
    pub fn excluded(&mut self) -> Result<Vec<Excluded>> {
        self.work(Inner::excluded)
    }

    /// Returns the reason why the return addresses of a function must not be replaced, if there is
    /// one; `probe` is at its return.
    ///
    /// # Errors
    /// As [`Session::add`].
    pub fn not_followed(&mut self, probe: &Probe) -> Result<Option<String>> {
        let probe = probe.clone();
        self.work(move |inner| {
            inner.check_running()?;
            if let Some(reason) = inner.followed_by_another() {
                return Ok(Some(reason));
            }
            let objects = inner.known.objects(&inner.process)?;
            let mut sites = followed(objects, &probe)?.into_iter();
            Ok(sites.find_map(|(_, reason)| reason.map(|reason| reason.to_string())))
        })
    }

    /// Arms sites. Returns those for which that is not possible now, with the reasons.
    ///
    /// # Errors
    /// As [`Session::enable`].
    pub fn arm_sites(&mut self, sites: &[SiteId], pace: Pace) -> Result<Vec<(SiteId, String)>> {
        let sites = numbers(sites);
        self.work(move |inner| {
            inner.check_running()?;
            let Some(active) = &mut inner.active else {
                return Ok(Vec::new());
            };
            let refused = match pace {
                Pace::Running(tid) => active.attached.arm_running(&sites, &Running { tid })?,
                Pace::Paused => active.attached.arm(&sites)?,
                Pace::Later => Vec::new(),
            };
            let refused = refused.into_iter();
            Ok(refused
                .map(|(site, error)| (SiteId(site), error.to_string()))
                .collect())
        })
    }

    /// Disarms sites.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn disarm_sites(&mut self, sites: &[SiteId], pace: Pace) -> Result<()> {
        let sites = numbers(sites);
        self.work(move |inner| {
            inner.check_running()?;
            let Some(active) = &mut inner.active else {
                return Ok(());
            };
            match pace {
                Pace::Running(tid) => active.attached.disarm_running(&sites, &Running { tid })?,
                Pace::Paused | Pace::Later => active.attached.disarm(&sites)?,
            };
            Ok(())
        })
    }

    /// Replaces the breakpoints of sites by jumps, in one pause; where threads are inside, later,
    /// by [`Session::read`].
    ///
    /// # Errors
    /// The program cannot be stopped.
    pub fn optimise_sites(&mut self, sites: &[SiteId]) -> Result<()> {
        let sites = numbers(sites);
        self.work(move |inner| {
            inner.check_running()?;
            if let Some(active) = &mut inner.active {
                active.attached.optimise_probes(&sites)?;
            }
            Ok(())
        })
    }

    /// Replaces the jumps of sites by breakpoints where that is possible, until they are
    /// [optimised](Session::optimise_sites) again. No hit is missed meanwhile.
    ///
    /// # Errors
    /// As [`Session::enable`].
    pub fn hold_sites(&mut self, sites: &[SiteId], tid: i32) -> Result<()> {
        let sites = numbers(sites);
        self.work(move |inner| {
            inner.check_running()?;
            if let Some(active) = &mut inner.active {
                active.attached.hold_running(&sites, &Running { tid })?;
            }
            Ok(())
        })
    }

    /// Returns the instructions behind the first that a site's jump covers, or would cover. Who wants
    /// a thread to go on at one of them has to let it go on elsewhere.
    #[must_use]
    pub fn inside(&self, site: SiteId) -> Vec<Inside> {
        self.look(move |inner| {
            let attached = inner.active.as_ref().map(|active| &active.attached);
            attached.map_or_else(Vec::new, |attached| attached.inside_of(site.0))
        })
    }

    /// Returns the address of code that does what the program did at a site's instruction before, and
    /// goes on behind it, with what other work comes after the instruction. It stays valid as long as
    /// the session, but others that join the site are not in it.
    #[must_use]
    pub fn original(&self, site: SiteId, instruction: u64) -> Option<u64> {
        self.look(move |inner| {
            let attached = &inner.active.as_ref()?.attached;
            attached.copy_of(site.0, instruction)
        })
    }

    /// Returns the handler of faults in displaced instructions that stands before the program's own
    /// handler of a signal, and the latter. Who installs another handler in front of both has to call
    /// the first of them for faults that are not his.
    #[must_use]
    pub fn fault_handler(&self, signal: i32) -> Option<(u64, u64)> {
        self.look(move |inner| inner.active.as_ref()?.attached.fault_handler(signal))
    }

    /// Returns the handler of a signal that a recorder has put before the program's own, and the action
    /// that it has replaced. It may go at any time, so nobody but the kernel may have its address.
    #[must_use]
    pub fn other_fault_handler(&self, signal: i32) -> Option<(u64, [u64; 4])> {
        self.look(move |inner| {
            let remote = inner.host.memory().ok()?;
            let other = Other::find(&inner.process, &remote, inner.kind).ok()??;
            let action = other.action(signal)?;
            Some((action.handler, action.old))
        })
    }

    /// Returns the state of a site; `None` for one of another session.
    #[must_use]
    pub fn site(&self, site: SiteId) -> Option<SiteStatus> {
        self.look(move |inner| inner.site(site))
    }
}

fn numbers(sites: &[SiteId]) -> Vec<usize> {
    sites.iter().map(|site| site.0).collect()
}

impl Inner {
    /// Inserts events; those whose patches get in the way of others in the session, or take a stop
    /// where none is possible, by breakpoints, which change one byte.
    pub(super) fn insert_somehow(&mut self, events: &[Event], pace: Pace) -> Result<Inserted> {
        let mut breakpoints = BTreeSet::new();
        loop {
            self.left_out.clear();
            let inserted = self.plan_and_insert(events, pace, &breakpoints);
            let known = breakpoints.len();
            breakpoints.extend(&self.left_out);
            if inserted.is_ok() || breakpoints.len() == known || !self.options.probes.breakpoints {
                return inserted;
            }
        }
    }

    /// Returns the reason why no return address must be replaced, if another session does that.
    fn followed_by_another(&self) -> Option<String> {
        let remote = self.host.memory().ok()?;
        let other = Other::find(&self.process, &remote, self.kind).ok()??;
        let reason = || format!("{} replaces return addresses", other.owner);
        other.follows.then(reason)
    }

    fn add_sites(&mut self, probes: &[Probe], pace: Pace) -> Result<Vec<AddedSite>> {
        probes.iter().try_for_each(Probe::check)?;
        let events: Vec<Event> = probes.iter().cloned().map(Event::from).collect();
        // An attach writes its probes in their final form.
        self.begin()?;
        let inserted = self.insert_somehow(&events, pace)?;
        let mut sites = vec![None; events.len()];
        for placed in inserted.placed {
            let label = &probes[placed.definition].label;
            let (Some(probe), Some(instruction)) = (placed.probe, placed.instruction) else {
                let reason = placed.reason.unwrap_or_default();
                return Err(err!(NotProbeable, "{label} cannot be probed: {reason}"));
            };
            let attached = self.active.as_ref().map(|active| &active.attached);
            let original = attached.and_then(|attached| attached.copy_of(probe, instruction));
            let site = AddedSite {
                id: SiteId(probe),
                address: instruction,
                original: original.unwrap_or_default(),
                refusals: placed.refusals,
                no_breakpoint: placed.no_breakpoint,
                in_stops: placed.in_stops,
            };
            if sites[placed.definition].replace(site).is_some() {
                return Err(err!(Unsuitable, "`{label}` is at more than one place"));
            }
        }
        let sites = sites.into_iter().zip(probes);
        let site = |(site, probe): (Option<AddedSite>, &Probe)| {
            site.ok_or_else(|| err!(NotFound, "`{}` matches nothing", probe.label))
        };
        sites.map(site).collect()
    }

    fn spots(&mut self, probe: &Probe) -> Result<Vec<Spot>> {
        self.check_running()?;
        let objects = self.known.objects(&self.process)?;
        let sites = resolve(objects, probe)?.into_iter();
        let sites = sites.filter(|site| site.body == Body::Own && !site.object.is_part());
        let spot = |site: capriole_planner::resolve::Site| {
            let leaving = site.leaving.as_ref();
            let way = leaving.map(|leaving| &leaving.way);
            let condition = leaving.and_then(|leaving| leaving.condition);
            Spot {
                address: site.address,
                symbol: site.symbol.clone(),
                offset: site.offset.saturating_sub(site.check),
                plain: way == Some(&Ok(ExitKind::Return)) && condition.is_none(),
                unknown: way
                    .and_then(|way| way.as_ref().err())
                    .map(ToString::to_string),
            }
        };
        Ok(sites.map(spot).collect())
    }

    fn indirect_names(&mut self, address: u64) -> Result<Vec<String>> {
        self.check_running()?;
        let objects = self.known.objects(&self.process)?;
        let Some(object) = objects.containing(address) else {
            return Ok(Vec::new());
        };
        let Ok(symbols) = object.symbols() else {
            return Ok(Vec::new());
        };
        let resolvers = symbols.functions().iter().filter(|each| each.is_resolver);
        let names = resolvers.flat_map(|resolver| symbols.names(resolver));
        let mut names: Vec<String> = names.map(|name| name.linkage.to_owned()).collect();
        names.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        names.dedup();
        let path = object.path().to_string_lossy();
        names.retain(|name| {
            let probe = Probe::new(&*path, ProbePlace::function(name), At::Entry);
            let sites = resolve(objects, &probe).unwrap_or_default();
            sites.iter().any(|site| site.extent.contains(address))
        });
        Ok(names)
    }

    fn is_excluded(&mut self, address: u64) -> Result<bool> {
        self.check_running()?;
        let objects = self.known.objects(&self.process)?;
        let code = objects
            .containing(address)
            .and_then(|object| excluded(object));
        Ok(code.is_some_and(|code| code.contains(&address)))
    }

    fn excluded(&mut self) -> Result<Vec<Excluded>> {
        self.check_running()?;
        let mut all = Vec::new();
        for object in self.known.objects(&self.process)?.all() {
            let Some(section) = excluded(object) else {
                continue;
            };
            let symbols = object.symbols().ok();
            let functions = symbols.map_or(&[][..], |symbols| symbols.functions());
            let functions = functions.iter().map(|function| {
                let name = symbols.and_then(|symbols| symbols.display_name(function));
                (
                    object.run_time_extent(function.extent),
                    name.map(Cow::into_owned),
                )
            });
            let functions: Vec<_> = functions
                .filter(|(code, _)| section.contains(&code.start))
                .collect();
            // Of a file without symbols, all in one piece.
            let whole = (Extent::new(section.start, section.end), None);
            let pieces = match functions.is_empty() {
                true => vec![whole],
                false => functions,
            };
            all.extend(pieces.into_iter().map(|(code, symbol)| Excluded {
                code: code.start..code.end,
                object: object.name(),
                symbol,
            }));
        }
        all.sort_unstable_by_key(|excluded| excluded.code.start);
        Ok(all)
    }

    fn site(&self, site: SiteId) -> Option<SiteStatus> {
        let attached = &self.active.as_ref()?.attached;
        if site.0 >= attached.probes() {
            return None;
        }
        let outcome = attached.outcome(site.0).ok()?;
        let reached = match (outcome.state, outcome.tactic.patch()) {
            _ if attached.is_gone(site.0) => Reached::Gone,
            (SiteState::Final, Patch::Jump) => Reached::Optimised,
            (SiteState::Final, Patch::Breakpoint) => Reached::Breakpoint,
            (SiteState::StandIn, _) => Reached::Waiting,
            (SiteState::Waiting, _) => Reached::Occupied,
            (SiteState::TakenOut, _) => Reached::Gone,
            (SiteState::Disarmed, _) => Reached::Disarmed,
        };
        Some(SiteStatus {
            reached,
            tactic: outcome.tactic,
            address: outcome.address,
        })
    }
}
