//! Probes on a marker: our own, or the kernel's.

use super::super::hit::KEYS;
use super::super::reading::Reading;
use anyhow::Context;
use capriole::aggregate::AggregateTable;
use capriole::fields::{Purpose, Reader};
use capriole::slots::Area;
use capriole::{machine, select};
use capriole_bench::{Probe as BenchProbe, TargetInfo, UprobeAt};
use capriole_codegen::runtime::ClockReading;
use capriole_codegen::work::Work;
use capriole_event::EventSpec;
use capriole_host::ptrace;
use capriole_object::Objects;
use capriole_object::markers::operand::Operand;
use capriole_patch::attach::{Attached, Probe, attach};
use capriole_planner::guards;
use capriole_planner::planner::Planner;
use capriole_planner::resolve::{Site, resolve};
use capriole_proc::process::Process;
use capriole_ring::layout::Geometry;
use capriole_ring::reader::record_size;
use capriole_ring::tables::{TableReader, Tables};

/// Work of one of our own probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: the program jumps away and back.
    Nothing,
    /// Counts.
    Count,
    /// Records this number of values.
    Record(usize),
}

/// Finds the only site of a marker in a program; returns it with the parsed event.
fn found(objects: &Objects, event: &str) -> anyhow::Result<(EventSpec, Site)> {
    let spec = EventSpec::parse(event).map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut sites = resolve(objects, &spec)?.into_iter();
    let site = sites.next().context("the program has no such marker")?;
    anyhow::ensure!(
        sites.next().is_none(),
        "the compiler has made several places of the marker"
    );
    Ok((spec, site))
}

/// A marker with one of our own probes.
pub struct Ours {
    event: String,
    kind: Kind,
    armed: Option<Armed>,
}

struct Armed {
    attached: Attached,
    /// If it records: a reader that takes the packets as `record` does, but only counts.
    reading: Option<Reading>,
    /// If it counts: the table of its count.
    kept: Option<AggregateTable>,
}

impl Ours {
    /// Creates a probe at `PROVIDER:NAME`; fields may follow the name.
    pub fn at(marker: &str, kind: Kind) -> Box<dyn BenchProbe> {
        Box::new(Ours {
            event: format!("usdt::{marker}"),
            kind,
            armed: None,
        })
    }

    fn attach(&mut self, info: &TargetInfo) -> anyhow::Result<()> {
        let process = Process::open(info.pid)?;
        let objects = Objects::of_process(&process)?;
        let planner = Planner::of_process(&process);
        let guards = guards::threads(&objects, &planner);
        let (spec, site) = found(&objects, &self.event)?;
        let mut tables = Tables::default();
        let mut kept = None;
        let work: Vec<Work> = match self.kind {
            Kind::Nothing => Vec::new(),
            Kind::Count => {
                let fields = Reader::new(Purpose::Count).fields(&spec, &site, Area::default())?;
                let made = AggregateTable::new(&spec, &[&fields], 1..2, KEYS, &mut tables)?;
                let work = made.work(1, &fields)?;
                kept = Some(made);
                work
            }
            Kind::Record(_) => {
                let fields = Reader::new(Purpose::Record).fields(&spec, &site, Area::default())?;
                vec![fields.fetch.work(1)?]
            }
        };
        let mut probe = Probe::new(planner.plan(&site)?, site.object.range()).with(work);
        probe.counters.extend(select::counter(&spec, &site)?);
        let cpus = machine::possible_cpus();
        let attached = attach(
            &ptrace::host(&process),
            vec![probe],
            &guards,
            ClockReading::default(),
            |journal| Geometry::for_buffer(64 << 20, cpus, journal).with_tables(&tables),
        )?;
        if let Some(error) = attached.outcomes.iter().find_map(|o| o.as_ref().err()) {
            let error = error.to_string();
            attached.detach()?;
            anyhow::bail!("{error}");
        }
        let reading = match self.kind {
            Kind::Record(values) => Some(Reading::start(&attached, record_size(values))),
            _ => None,
        };
        self.armed = Some(Armed {
            attached,
            reading,
            kept,
        });
        Ok(())
    }
}

impl BenchProbe for Ours {
    fn arm(&mut self, info: &TargetInfo) -> Result<(), String> {
        self.attach(info).map_err(|e| format!("{e:#}"))
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        let armed = self.armed.as_ref();
        Ok(armed.and_then(|armed| match (&armed.reading, &armed.kept) {
            (Some(reading), _) => Some(reading.hits()),
            (None, Some(kept)) => {
                let memory = &armed.attached.memory;
                Some(kept.hits(&TableReader::new(memory.memory.clone(), memory.geometry)))
            }
            (None, None) => None,
        }))
    }

    fn disarm(&mut self) -> Result<(), String> {
        let Some(armed) = self.armed.take() else {
            return Ok(());
        };
        let joined = armed.reading.map_or(Ok(()), Reading::end);
        armed.attached.detach().map_err(|e| e.to_string())?;
        joined
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.disarm();
    }
}

/// A marker with a uprobe of the kernel, which records the marker's arguments.
pub struct Kernel {
    event: String,
    uprobe: UprobeAt,
}

impl Kernel {
    /// Creates a uprobe at `PROVIDER:NAME`.
    pub fn at(marker: &str) -> Box<dyn BenchProbe> {
        Box::new(Kernel {
            event: format!("usdt::{marker}"),
            uprobe: UprobeAt::default(),
        })
    }
}

/// Formats the arguments in the syntax of `uprobe_events`.
fn fetched(site: &Site) -> anyhow::Result<String> {
    let marker = site.marker.as_ref().context("it is no marker")?;
    let mut words = Vec::new();
    for (number, argument) in (1..).zip(&marker.arguments) {
        let argument = argument.as_ref().map_err(Clone::clone)?;
        let Operand::Register(register) = &argument.operand else {
            anyhow::bail!("the compiler has put an argument elsewhere than in a register");
        };
        let name = format!("{register:?}").to_lowercase();
        // The kernel names registers `di` and `r12`.
        let short = name
            .strip_prefix('r')
            .filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
        words.push(format!("arg{number}=%{}", short.unwrap_or(&name)));
    }
    Ok(words.join(" "))
}

impl BenchProbe for Kernel {
    fn arm(&mut self, info: &TargetInfo) -> Result<(), String> {
        let site = || -> anyhow::Result<(u64, String)> {
            let process = Process::open(info.pid)?;
            let objects = Objects::of_process(&process)?;
            let (_, site) = found(&objects, &self.event)?;
            Ok((site.file_offset, fetched(&site)?))
        };
        let (offset, fetched) = site().map_err(|error| format!("{error:#}"))?;
        self.uprobe.arm(info, offset, &fetched)
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        self.uprobe.hits()
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.uprobe.disarm()
    }
}
