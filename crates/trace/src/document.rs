//! `info/capriole.json`: everything that does not fit into CTF.

use std::collections::{BTreeMap, BTreeSet};

use capriole_event::FieldType;
use serde::{Deserialize, Serialize};

use crate::clock::ClockModel;
use crate::descriptors::ProcessDescriptors;

/// Version of the JSON document and of the whole directory that this crate writes. The table of
/// versions is in the crate's documentation.
pub const FORMAT_VERSION: u32 = 4;

/// Maximum size of the description, bytes.
pub(crate) const MAX_JSON: u64 = 512 << 20;
/// The architecture whose programs this build records.
pub const ARCH: &str = std::env::consts::ARCH;

/// Architecture of traces from before there was another one.
fn x86_64() -> String {
    "x86_64".to_owned()
}

/// The contents of `info/capriole.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of the layout, [`FORMAT_VERSION`] when written by this crate.
    pub format_version: u32,
    /// The program that wrote the trace.
    pub tracer: Tracer,
    /// The trace's UUID in hexadecimal, as in `metadata` and in every packet.
    pub uuid: String,
    /// Architecture of the recorded machine code, [`ARCH`] when written by this crate. Traces
    /// without it are from x86-64.
    #[serde(default = "x86_64")]
    pub arch: String,
    /// The traced program.
    pub target: Target,
    /// Start and end of the recording.
    pub time: TimeSpan,
    /// The events, in order of id.
    pub events: Vec<EventInfo>,
    /// The name (`comm`) of each thread, by thread id.
    pub threads: BTreeMap<u32, String>,
    /// The program's code mappings, sorted by address; only if events have call stacks or symbols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<MappingInfo>,
    /// Open files of descriptors, by process; only if events have fields of the type `fd`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub descriptors: Vec<ProcessDescriptors>,
    /// Conversion of TSC values to time.
    pub clock: ClockModel,
    /// Warnings for readers of this trace, one line each.
    pub warnings: Vec<String>,
    /// Pauses of the target for patching.
    pub stops: Vec<Stop>,
    /// Hits that are not in the trace, over all streams.
    pub lost_events: u64,
    /// The times of losses in lanes from 1 on; losses in lane 0 are between the records of two
    /// packets. `None` if the times are not known: the events were then lost in the packet that
    /// counts them, or directly before or after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// The threads that existed when the recording ended, in ascending order; `None` if that was
    /// not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_threads: Option<BTreeSet<u32>>,
    /// Records whose time was changed so that time runs forward in each stream.
    pub adjusted_times: u64,
    /// Bytes that were not valid records and were left out.
    pub damaged_bytes: u64,
    /// Exit status of the program; `None` if it was still running when the recording ended.
    pub exit: Option<ExitStatus>,
    /// True if the recording ended normally. False while it runs, and after the recorder was
    /// killed.
    pub complete: bool,
}

impl Document {
    /// Returns the moment at which all probes were out, in ticks, or that of the clock's last sync point if
    /// the recorder has not noted it.
    #[must_use]
    pub fn end_ticks(&self) -> Option<u64> {
        let last = self.clock.sync_points.last()?;
        let Some(probed_ns) = self.time.probed_ns else {
            return Some(last.tsc);
        };
        let out = self.time.start_monotonic_ns.saturating_add(probed_ns);
        let later = u128::from(last.monotonic_ns.saturating_sub(out));
        let ticks = later * u128::from(self.clock.freq_hz) / 1_000_000_000;
        Some(
            last.tsc
                .saturating_sub(u64::try_from(ticks).unwrap_or(u64::MAX)),
        )
    }
}

/// Times at which events were lost, in ticks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Intervals in which events were lost, both ends included. They ascend and do not overlap.
    pub between: Vec<(u64, u64)>,
    /// Time up to which losses are known.
    pub known_until: u64,
}

/// Maximum number of intervals kept: 400 KB of JSON.
const MOST_TIMES: usize = 10_000;

impl Losses {
    /// Adds an interval that ends at the new `known_until`; `lost` is true if events were lost in
    /// it.
    pub fn add(&mut self, (begin, end): (u64, u64), lost: bool) {
        self.known_until = end;
        match self.between.last_mut() {
            Some(last) if lost && last.1 >= begin => last.1 = end,
            _ if lost => self.between.push((begin, end)),
            _ => {}
        }
        if self.between.len() > MOST_TIMES {
            // Merge every two neighbours into one.
            let both = |two: &[(u64, u64)]| (two[0].0, two[two.len() - 1].1);
            self.between = self.between.chunks(2).map(both).collect();
        }
    }

    /// True if events may have been lost between two times.
    pub(crate) fn may_overlap(&self, begin: u64, end: u64) -> bool {
        let next = self.between.partition_point(|(_, last)| *last < begin);
        end > self.known_until || self.between.get(next).is_some_and(|next| next.0 <= end)
    }
}

/// A part of a file that the program had mapped as code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MappingInfo {
    /// The first address.
    #[serde(with = "hex")]
    pub start: u64,
    /// The address after the last byte.
    #[serde(with = "hex")]
    pub end: u64,
    /// Offset of the first byte in the file.
    #[serde(with = "hex")]
    pub offset: u64,
    /// Path of the file, as the program sees it.
    pub path: String,
    /// The file's build id in hexadecimal, if it has one.
    pub build_id: Option<String>,
}

/// Trace data known when a recording starts.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceInfo {
    /// The traced program.
    pub target: Target,
    /// The events.
    pub events: Vec<EventInfo>,
    /// The clock as far as it is known at the start.
    pub clock: ClockModel,
    /// Warnings for readers, such as `clock::unstable_warning()`.
    pub warnings: Vec<String>,
}

/// Trace data known when a recording ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The clock with a sync point from the end of the recording.
    pub clock: ClockModel,
    /// The name of each thread, by thread id.
    pub threads: BTreeMap<u32, String>,
    /// Time from the start of the recording to the moment at which all probes were out or the program had
    /// ended, in ns, if it is known.
    pub probed_ns: Option<u64>,
    /// Pauses of the target for patching.
    pub stops: Vec<Stop>,
    /// Lost hits that are not in any packet's `discarded` count.
    pub lost_elsewhere: u64,
    /// Exit status of the program, if it ended.
    pub exit: Option<ExitStatus>,
    /// False if something could not be written.
    pub complete: bool,
    /// Further warnings for readers.
    pub warnings: Vec<String>,
}

/// The program that wrote the trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracer {
    /// `capriole`
    pub name: String,
    /// Its version, `major.minor.patch`.
    pub version: String,
}

/// The traced program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Process id.
    pub pid: u32,
    /// Path of the main program.
    pub executable: String,
    /// Its arguments, the program's name first.
    pub command_line: Vec<String>,
}

/// Start and end of the recording; while it runs, the end is the latest known time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpan {
    /// `CLOCK_REALTIME` at the start, ns since 1970-01-01 UTC.
    pub start_realtime_ns: u64,
    /// `CLOCK_MONOTONIC` at the start, in ns.
    pub start_monotonic_ns: u64,
    /// `CLOCK_MONOTONIC` at the end, in ns: that of the clock's last sync point, which is taken after the
    /// probes were removed.
    pub end_monotonic_ns: u64,
    /// Time from the start to the moment at which all probes were out or the program had ended, in ns;
    /// `None` while it runs, after the recorder was killed, and in older traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed_ns: Option<u64>,
}

impl TimeSpan {
    /// Returns the time during which hits were recorded, in ns. If the recorder has not noted it, that is
    /// the time up to the end, or up to the last event, at `last_event_ns`, if that is later.
    #[must_use]
    pub fn length_ns(&self, last_event_ns: u64) -> u64 {
        let known = self.end_monotonic_ns.max(last_event_ns);
        self.probed_ns
            .unwrap_or_else(|| known.saturating_sub(self.start_monotonic_ns))
    }
}

/// Role of an event in call pairing: entry, return, tail call, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// None: a point in the code was reached.
    #[default]
    Point,
    /// Entry: the call begins.
    Entry,
    /// Return: the call ends, and the function returns to its caller.
    Return,
    /// Tail call: the call ends by a jump to another function, which will return to the caller, so
    /// there is no return value.
    TailCall,
}

impl Role {
    fn is_point(&self) -> bool {
        *self == Role::Point
    }
}

/// One event: a probe site and its recorded fields. The event of a function's returns, or of
/// its tail jumps, may have several sites; this struct then describes the first one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "stored::EventInfo")]
pub struct EventInfo {
    /// Event id in each record; each event has a different id.
    pub id: u32,
    /// The event's name, usually the symbol's. Several sites may share one.
    pub name: String,
    /// The function that contains the site, demangled or not, if it is known.
    pub symbol: Option<String>,
    /// Bytes from the start of `symbol`.
    #[serde(with = "hex")]
    pub symbol_offset: u64,
    /// Path of the file that holds the code.
    pub object: String,
    /// Name that programs and other libraries know the file by, if it is a library that has one:
    /// `libz.so.1` of `libz.so.1.2.13`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soname: Option<String>,
    /// That file's build id in hexadecimal, if it has one.
    pub build_id: Option<String>,
    /// The site's link-time address, as `objdump` and `addr2line` show it: the address in memory
    /// minus the load bias.
    #[serde(with = "hex")]
    pub offset: u64,
    /// The address in memory.
    #[serde(with = "hex")]
    pub address: u64,
    /// The fields, in the order of the record; at most [`MAX_FIELDS`](crate::MAX_FIELDS).
    pub fields: Vec<FieldInfo>,
    /// True if a field may be unreadable when the event happens; each record then has a bit for
    /// each of the first 64 fields.
    pub faults: bool,
    /// The tactic in use: `reserved`, `jump`, `region`, `int3`; with several sites, all tactics in
    /// use, separated by commas.
    pub tactic: String,
    /// The reasons why better tactics were not used.
    pub refusals: Vec<RefusalInfo>,
    /// Role in call pairing; absent if it is none.
    #[serde(skip_serializing_if = "Role::is_point")]
    pub role: Role,
    /// Common id of the events of one function's entry and exits: the id of the entry event, or, if
    /// there is none, of the first exit event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
    /// The marker's printf-style format, if it has one and all its arguments are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
}

impl EventInfo {
    /// True if a field holds addresses of code: a call stack, or the address of a function.
    #[must_use]
    pub fn has_code(&self) -> bool {
        let mut fields = self.fields.iter();
        fields.any(|field| field.field_type.is_call_stack() || field.field_type.is_symbol())
    }

    /// True if the words of a record are its fields: all are of type `x64` and always readable.
    pub fn is_hexadecimal(&self) -> bool {
        let plain = |field: &FieldInfo| field.field_type == FieldType::X64;
        !self.faults && self.fields.iter().all(plain)
    }

    /// Returns the object and the offset in it; `None` for a message from outside the program,
    /// which has no site.
    pub fn place(&self) -> Option<(&str, u64)> {
        (!self.object.is_empty()).then_some((&self.object, self.offset))
    }
}

/// One field of an event.
#[derive(Debug, Clone, PartialEq, Hash, Eq, Serialize, Deserialize)]
pub struct FieldInfo {
    /// Its name. Several fields of an event may share one.
    pub name: String,
    /// Type of the value, which also selects how it is shown; the file stores its name, such as
    /// `u32`.
    #[serde(rename = "type", with = "spelled")]
    pub field_type: FieldType,
    /// Names of values of an enumeration, as in the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enumerators: Vec<(String, i64)>,
}

impl FieldInfo {
    /// Describes a field whose values have no names.
    #[must_use]
    pub fn new(name: String, field_type: FieldType) -> FieldInfo {
        FieldInfo {
            name,
            field_type,
            enumerators: Vec::new(),
        }
    }
}

/// printf-style format of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TextFormat {
    /// The format string, as for printf.
    pub text: String,
    /// The types of its arguments in the program, which are the event's first fields; for a string,
    /// the type of the pointer. A field may be shown as another type of the same size, and printf
    /// promotes smaller types to `int`.
    #[serde(with = "all_spelled")]
    pub arguments: Vec<FieldType>,
}

/// Reason why a tactic was not used at a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalInfo {
    /// The tactic that was refused.
    pub tactic: String,
    /// The reason, one line.
    pub reason: String,
}

/// A pause of all threads of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The operation during the pause: `attach`, `detach`.
    pub what: String,
    /// From the first thread's stop to the last one's resumption, in ns.
    pub duration_ns: u64,
    /// Threads that were stopped.
    pub threads: u32,
}

/// Exit status of the traced program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this status, 0 to 255.
    Exited(i32),
    /// A signal of this number killed it.
    Signaled(i32),
}

/// (De)serialises a type by its name, such as `"u16[4]"`.
mod spelled {
    use capriole_event::{FieldType, ParseError};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &FieldType, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FieldType, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error: ParseError| {
            D::Error::custom(format!("`{text}` is not a type: {}", error.message))
        })
    }
}

/// (De)serialises a list of types by their names.
mod all_spelled {
    use capriole_event::FieldType;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct One(#[serde(with = "super::spelled")] FieldType);

    pub(super) fn serialize<S: Serializer>(all: &[FieldType], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(|one| One(*one)))
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Vec<FieldType>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let all = Vec::<One>::deserialize(from)?;
        Ok(all.into_iter().map(|One(one)| one).collect())
    }
}

/// Events as stored by any version.
mod stored {
    use capriole_event::FieldType;
    use serde::Deserialize;

    use super::{FieldInfo, RefusalInfo, Role, TextFormat, hex};

    #[derive(Deserialize)]
    pub(super) struct EventInfo {
        id: u32,
        name: String,
        symbol: Option<String>,
        #[serde(with = "hex")]
        symbol_offset: u64,
        object: String,
        #[serde(default)]
        soname: Option<String>,
        build_id: Option<String>,
        #[serde(with = "hex")]
        offset: u64,
        #[serde(with = "hex")]
        address: u64,
        fields: Option<Vec<FieldInfo>>,
        faults: Option<bool>,
        /// Field names, all of type `x64`. Version 1 has only this.
        arguments: Option<Vec<String>>,
        tactic: String,
        refusals: Vec<RefusalInfo>,
        #[serde(default)]
        role: Role,
        call: Option<u32>,
        format: Option<TextFormat>,
    }

    impl TryFrom<EventInfo> for super::EventInfo {
        type Error = &'static str;

        fn try_from(stored: EventInfo) -> Result<Self, Self::Error> {
            let (fields, faults) = match (stored.fields, stored.faults, stored.arguments) {
                (Some(fields), Some(faults), _) => (fields, faults),
                (None, None, Some(names)) => {
                    let hexadecimal = |name| FieldInfo::new(name, FieldType::X64);
                    (names.into_iter().map(hexadecimal).collect(), false)
                }
                (Some(_), None, _) => return Err("missing field `faults`"),
                (None, ..) => return Err("missing field `fields`"),
            };
            Ok(super::EventInfo {
                id: stored.id,
                name: stored.name,
                symbol: stored.symbol,
                symbol_offset: stored.symbol_offset,
                object: stored.object,
                soname: stored.soname,
                build_id: stored.build_id,
                offset: stored.offset,
                address: stored.address,
                fields,
                faults,
                tactic: stored.tactic,
                refusals: stored.refusals,
                role: stored.role,
                call: stored.call,
                format: stored.format,
            })
        }
    }
}

/// (De)serialises numbers as `"0x1f"`: JSON numbers above 2^53 do not survive most tools.
pub(crate) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:#x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        text.strip_prefix("0x")
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a number like 0x1f")))
    }
}
