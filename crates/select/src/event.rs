//! The user's events with everything that is probed for each of them.

use crate::entry;
use crate::names::DURATION;
use capriole_event::{Base, Comparison, EventSpec, Guard, Operand, Probe};
use std::sync::Arc;
use std::time::Duration;

/// One event of the user's: its probe, and those that serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// All that is probed, in the order in which it is numbered, and works where several are at one
    /// place; never empty.
    probes: Vec<Arc<Probe>>,
    /// Index of the one whose hits are recorded or counted: at the exits, for calls; the end, for
    /// intervals.
    main: usize,
}

impl From<Probe> for Event {
    /// Adds a probe at the entry that begins the calls, if the probe needs values from there.
    fn from(probe: Probe) -> Event {
        let probes = entry::keeping(&probe).into_iter().chain([probe]);
        let probes: Vec<Arc<Probe>> = probes.map(Arc::new).collect();
        Event {
            main: probes.len() - 1,
            probes,
        }
    }
}

impl From<EventSpec> for Event {
    fn from(spec: EventSpec) -> Event {
        Event::from(Probe::from(spec))
    }
}

impl Event {
    /// Creates an event with a probe by itself, whatever it needs from the entry.
    #[must_use]
    pub fn alone(probe: Probe) -> Event {
        Event {
            probes: vec![Arc::new(probe)],
            main: 0,
        }
    }

    /// Creates the event of calls that are recorded at both ends.
    #[must_use]
    pub fn of_calls(entry: Probe, exit: Probe) -> Event {
        let mut event = Event::from(exit);
        event.probes.insert(0, Arc::new(entry));
        event.main += 1;
        event
    }

    /// Creates the event of intervals between two probes. At a place of both, an interval ends before
    /// the next one starts.
    #[must_use]
    pub fn of_intervals(start: Probe, end: Probe) -> Event {
        let mut event = Event::from(end);
        event.probes.extend(Event::from(start).probes);
        event
    }

    /// Returns the probe whose hits are recorded or counted.
    #[must_use]
    pub fn probe(&self) -> &Arc<Probe> {
        &self.probes[self.main]
    }

    /// Returns all that is probed, in the order in which it is numbered.
    #[must_use]
    pub fn probes(&self) -> &[Arc<Probe>] {
        &self.probes
    }

    /// Returns its name in messages.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.probe().label
    }

    /// True if it was added without an event of the user's.
    #[must_use]
    pub fn is_implied(&self) -> bool {
        self.probe().implied
    }

    /// Returns the event with the times in its conditions converted by `ticks`, which rounds up.
    /// The clock is less exact than a tick, so `>` means the same as `>=`, and `<=` the same as `<`.
    ///
    /// # Errors
    /// The first error of `ticks`.
    pub fn in_ticks<E>(
        &self,
        mut ticks: impl FnMut(Duration) -> Result<u64, E>,
    ) -> Result<Event, E> {
        let mut convert = |guard: &Guard| match guard {
            Guard::Compare {
                field,
                comparison,
                operand: Operand::Duration(time),
            } => {
                let least = matches!(comparison, Comparison::Greater | Comparison::GreaterOrEqual);
                let comparison = match least {
                    true => Comparison::GreaterOrEqual,
                    false => Comparison::Less,
                };
                Ok(Guard::compare(field, comparison, ticks(*time)?))
            }
            other => Ok(other.clone()),
        };
        let mut converted = |probe: &Arc<Probe>| match &probe.guard {
            Some(guard) if entry::compares_duration(probe) => Ok(Arc::new(Probe {
                guard: Some(guard.try_map(&mut convert)?),
                ..(**probe).clone()
            })),
            _ => Ok(Arc::clone(probe)),
        };
        let probes = self.probes.iter().map(&mut converted);
        Ok(Event {
            probes: probes.collect::<Result<_, E>>()?,
            main: self.main,
        })
    }

    /// True if the duration of calls is aggregated or compared, which takes a clock.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        if self
            .probes
            .iter()
            .any(|probe| entry::compares_duration(probe))
        {
            return true;
        }
        let probe = self.probe();
        let aggregates = probe.aggregations().flat_map(|all| &all.aggregates);
        aggregates
            .filter_map(|aggregate| probe.find(aggregate.field.as_ref()?))
            .any(|value| matches!(value.fetch.base, Base::Latency | Base::Interval))
    }

    /// True if the exits record whole calls, with their duration, and the entry records nothing.
    pub fn records_whole(&self) -> bool {
        has_duration(self.probe())
    }
}

/// True if a probe at exits records how long calls took.
pub fn has_duration(exit: &Probe) -> bool {
    exit.find(DURATION).is_some()
}
