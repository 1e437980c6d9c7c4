//! Probes on a marker: our own, or the kernel's.

use super::super::hit::{Armed, SharedKnown};
use anyhow::Context;
use capriole::probe::{KeyKind, Map, Probe as BuiltProbe};
use capriole::{ProbeOptions, Returns};
use capriole_bench::{Probe as BenchProbe, TargetInfo, UprobeAt};
use capriole_object::Objects;
use capriole_object::markers::operand::Operand;
use capriole_planner::resolve::{Site, resolve};
use capriole_proc::process::Process;
use capriole_ring::reader::record_size;

/// Error for a marker with more places than one.
const SEVERAL: &str = "the compiler has made several places of the marker";

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

/// Returns a probe without actions at a marker, `PROVIDER:NAME`, that reads all its arguments.
fn at(marker: &str) -> BuiltProbe {
    let (provider, name) = marker.split_once(':').unwrap_or((marker, "*"));
    BuiltProbe::at_marker("", provider, name).all_arguments()
}

/// A marker with one of our own probes.
pub struct Ours {
    probe: BuiltProbe,
    kind: Kind,
    armed: Option<Armed>,
    known: SharedKnown,
}

impl Ours {
    /// Creates a probe at `PROVIDER:NAME`.
    pub fn at(known: &SharedKnown, marker: &str, kind: Kind) -> Box<dyn BenchProbe> {
        let probe = match kind {
            Kind::Nothing => at(marker),
            Kind::Count => at(marker).update(Map::Own, Vec::<KeyKind>::new(), []),
            Kind::Record(_) => at(marker).record(),
        };
        Box::new(Ours {
            probe,
            kind,
            armed: None,
            known: known.clone(),
        })
    }

    fn attach(&mut self, info: &TargetInfo) -> anyhow::Result<()> {
        let process = Process::open(info.pid)?;
        let record_bytes = match self.kind {
            Kind::Record(values) => Some(record_size(values)),
            Kind::Nothing | Kind::Count => None,
        };
        let armed = Armed::new(
            &self.known,
            &process,
            &[self.probe.clone().into()],
            &ProbeOptions::default(),
            Returns::Exits,
            record_bytes,
        )?;
        let sites = armed.sites();
        self.armed = Some(armed);
        anyhow::ensure!(sites == 1, SEVERAL);
        Ok(())
    }
}

impl BenchProbe for Ours {
    fn arm(&mut self, info: &TargetInfo) -> Result<(), String> {
        self.attach(info).map_err(|e| format!("{e:#}"))
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        let counts = self.kind != Kind::Nothing;
        let armed = self.armed.as_ref().filter(|_| counts);
        Ok(armed.map(Armed::hits))
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.armed.take().map_or(Ok(()), Armed::disarm)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.disarm();
    }
}

/// A marker with a uprobe of the kernel, which records the marker's arguments.
pub struct Kernel {
    probe: BuiltProbe,
    uprobe: UprobeAt,
}

impl Kernel {
    /// Creates a uprobe at `PROVIDER:NAME`.
    pub fn at(marker: &str) -> Box<dyn BenchProbe> {
        Box::new(Kernel {
            probe: at(marker),
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
            let sites = resolve(&objects, &self.probe)?;
            let [site] = &sites[..] else {
                anyhow::bail!(SEVERAL);
            };
            Ok((site.file_offset, fetched(site)?))
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
