//! Walks from a variable along its path to the named object: its place and type.

use std::collections::BTreeSet;

use capriole_prologue::{Place, Start, Sum};

use super::class::Lookup;
use super::die::Die;
use super::error::{Refusal, VariableError};
use super::location::{Context, NoPlace};
use super::path::{Path, Step};
use super::relative::Held;
use super::scope::{Meaning, Site, Variable};
use super::setup::Setup;
use super::types::Shape;
use super::units::{Debug, DieKey};

/// Maximum number of references followed in a row.
const REFERENCES: usize = 8;
/// Maximum number of source lines named for an optimised-out variable.
const LINES: usize = 4;

/// An object of the program.
#[derive(Clone)]
pub(super) struct Thing {
    pub place: Place,
    pub kind: Option<DieKey>,
    /// Number of dimensions of its array type that are already indexed.
    pub indexed: usize,
    /// First bit and number of bits, if it is a bit field.
    pub bits: Option<(u64, u64)>,
    /// Its expression, for messages.
    pub text: String,
    /// Byte offset of the step that led to it, in the whole expression.
    pub at: usize,
}

impl<'a> Debug<'a> {
    /// Finds the object that `text` names at a site.
    pub(super) fn walk(&self, site: &Site, text: &str) -> Result<Thing, VariableError> {
        let path = Path::parse(text)?;
        let at = path.name_at;
        let failed = |refusal| VariableError { at, refusal };
        let mut own_steps = path.steps;
        let meaning = match (self.variable(site, &path.name), own_steps.first()) {
            // In Go, what looks like a member may be a variable of a package.
            (
                Err(refused @ Refusal::Unknown { .. }),
                Some((_, Step::Member { name, arrow: false })),
            ) => {
                let whole = format!("{}.{name}", path.name);
                let found = self.package_variable(site, &whole).map_err(&failed)?;
                own_steps.remove(0);
                found.map(Meaning::from).ok_or(refused)
            }
            (meaning, _) => meaning,
        };
        let meaning = meaning.map_err(&failed)?;
        let Meaning {
            variable,
            frame,
            steps,
        } = meaning;
        let mut thing = self.thing(site, &variable, frame).map_err(failed)?;
        thing.at = at;
        let implied_steps = steps.len();
        let implied = steps.into_iter().map(|step| (at, step));
        for (index, (at, step)) in implied.chain(own_steps).enumerate() {
            let next = self.step(site, thing, &step);
            let next = match index < implied_steps {
                true => next.map_err(without_object),
                false => next,
            };
            let next = next.and_then(|next| self.settle(next));
            thing = next.map_err(|refusal| VariableError { at, refusal })?;
            thing.at = at;
        }
        Ok(thing)
    }

    /// Returns a variable as a whole.
    fn thing(
        &self,
        site: &Site,
        variable: &Variable<'a>,
        frame: Option<DieKey>,
    ) -> Result<Thing, Refusal> {
        let place = self.place_of(site, variable, frame)?;
        self.thing_at(variable, place)
    }

    /// Returns a variable as a whole, of which the described object is at a place.
    pub(super) fn thing_at(&self, variable: &Variable<'a>, place: Place) -> Result<Thing, Refusal> {
        let thing = Thing {
            place,
            kind: self.type_of(&variable.die)?,
            indexed: 0,
            bits: None,
            text: variable.name.clone(),
            at: 0,
        };
        match variable.moved {
            true => self.settle(self.pointee(&thing, false)?),
            false => self.settle(thing),
        }
    }

    /// Returns where a variable is at a site; `frame` is `None` for a global variable.
    pub(super) fn place_of(
        &self,
        site: &Site,
        variable: &Variable<'a>,
        frame: Option<DieKey>,
    ) -> Result<Place, Refusal> {
        let name = &variable.name;
        // The stack frame belongs to the function that contains the code, even for an inlined copy.
        let function = site.frames[0].key;
        let setup = self.setup(function, site.address)?;
        let context = Context {
            address: site.address,
            function: frame.map(|_| function),
            at_entry: setup.at_entry,
            body: setup.body,
            entry: self.entered_at(site, setup, frame)?,
            name,
            entered: &site.frames[0].name,
            inlined: frame.is_some_and(|frame| frame != function),
        };
        if frame == Some(function)
            && let Some(place) = self.captured(setup, variable)?
        {
            return Ok(place);
        }
        let (place, listed) = match self.locate(&variable.die, context) {
            Ok(found) => found,
            Err(NoPlace::Refusal(refusal)) => return Err(refusal),
            Err(NoPlace::Elsewhere(ranges)) => {
                return Err(self.optimised_out(name, function, frame, &ranges));
            }
        };
        if let Place::Missing = place {
            return Err(self.optimised_out(name, function, None, &[]));
        }
        if frame == Some(function) && setup.at_entry && self.is_promoted(setup, variable, &place)? {
            return Err(self.not_yet(setup, name, setup.body));
        }
        if frame == Some(function) {
            self.check_copied(setup, variable, (&place, listed), site.address)?;
        }
        if listed || frame.is_none() {
            return Ok(place);
        }
        if frame == Some(function)
            && matches!(&place, Place::Memory(Sum { start: Start::Register(_), reads, .. }) if reads.is_empty())
            && let Some(from) = self.first_use(site, setup, variable)
        {
            // It may be declared without a value.
            let stored = match self.locate(&variable.die, context.at_body()) {
                Ok((place, _)) => self.behind_store(setup, &place, setup.body),
                Err(_) => None,
            };
            return Err(self.not_yet(setup, name, stored.map_or(from, |stored| stored.max(from))));
        }
        // Before the frame is set up, `early` finds where a parameter has come from.
        let has_come = frame == Some(function) && variable.parameter;
        let place = match has_come && setup.is_early(site.address) {
            true => place,
            false => self.by_address(&variable.die, place, context)?,
        };
        let own = match frame == Some(function) {
            true => Some(self.die(function)?),
            false => None,
        };
        let held = match has_come {
            true => self.held(setup, variable, context, &place)?,
            false => Held::Passed,
        };
        if setup.is_early(site.address) {
            return self.early(own.as_ref(), setup, variable, context, place, held);
        }
        if let Held::Loaded(body) = held {
            let setup = Setup { body, ..setup };
            return self.loaded(setup, variable, Context { body, ..context }, place);
        }
        let stored = match own.is_some() && variable.parameter {
            true => self.stored(setup, &place, site.address),
            false => self.written(setup, &place, site.address),
        };
        match stored {
            Some(from) => Err(self.not_yet(setup, name, from)),
            None => Ok(place),
        }
    }

    /// Returns the address of the entry of the frame that a variable belongs to, if the site is that
    /// entry and not a later line which begins there.
    fn entered_at(
        &self,
        site: &Site,
        setup: Setup,
        frame: Option<DieKey>,
    ) -> Result<Option<u64>, Refusal> {
        let start = match frame {
            Some(frame) if frame == setup.function => setup.at_entry.then_some(setup.start),
            Some(frame) => self.entry_address(&self.die(frame)?),
            None => None,
        };
        let start =
            start.filter(|&start| start <= site.address && self.does_nothing(start, site.address));
        // Behind the padding of an inlined copy, further rounds of a loop may begin.
        let start = match frame == Some(setup.function) {
            true => start,
            false => start.map(|_| site.address),
        };
        Ok(start.filter(|&start| {
            let first = || {
                self.statements(start, start.saturating_add(1))
                    .first()
                    .map(|row| row.1)
            };
            site.line.is_none_or(|line| first() == Some(line))
        }))
    }

    pub(super) fn optimised_out(
        &self,
        name: &str,
        function: DieKey,
        frame: Option<DieKey>,
        ranges: &[(u64, u64)],
    ) -> Refusal {
        let own = frame.unwrap_or(function);
        let mut lines = BTreeSet::new();
        let mut kept = Vec::new();
        if !ranges.is_empty()
            && let Ok(die) = self.die(own)
        {
            let entry = self.entry_address(&die);
            let file = entry.and_then(|entry| self.file_at(entry));
            for (start, end) in die.ranges(LINES) {
                // Lines of other functions that are inlined there are not the function's own.
                let rows = self.rows_within(start, end).into_iter().filter(|row| {
                    Some(row.file) == file
                        && ranges
                            .iter()
                            .any(|r| r.0 <= row.address && row.address < r.1)
                        && self.is_innermost(own, row.address)
                });
                lines.extend(rows.map(|row| row.line));
            }
            if let (Some(file), Some(entry)) = (file, entry) {
                kept = self.lines_with(name, (file, entry), &lines, LINES);
            }
        }
        Refusal::OptimisedOut {
            name: name.to_owned(),
            lines: kept,
            optimised: self.is_optimised(function),
        }
    }

    /// True if the function is known to be compiled with optimisation: GCC records its options;
    /// LLVM marks all calls of an optimised function as described.
    fn is_optimised(&self, function: DieKey) -> bool {
        self.die(function).is_ok_and(|die| self.has_marks(&die))
    }

    /// True if clang has compiled the function without optimisation. It marks others only from
    /// DWARF 4 on.
    pub(super) fn is_unoptimised(&self, function: &Die<'a>) -> bool {
        function.unit.unit.encoding().version >= 4 && !self.has_marks(function)
    }

    pub(super) fn has_marks(&self, function: &Die<'a>) -> bool {
        let dies = self.with_origins(function);
        let producer = self.producer(function);
        if producer.starts_with("GNU") {
            let option = |word: &str| word.starts_with("-O") && word != "-O0";
            return producer.split(' ').any(option);
        }
        let marks = [
            gimli::DW_AT_APPLE_optimized,
            gimli::DW_AT_call_all_calls,
            gimli::DW_AT_GNU_all_call_sites,
        ];
        dies.iter()
            .any(|die| marks.iter().any(|&mark| die.flag(mark)))
    }

    /// Returns the name of the compiler of a function, with options, as it says; empty if it says
    /// nothing.
    pub(super) fn producer(&self, function: &Die<'a>) -> String {
        let root = self.root(&function.unit).ok();
        let producer = root.and_then(|root| root.text(gimli::DW_AT_producer));
        producer.unwrap_or_default()
    }

    /// Replaces a C++ reference by the object it refers to.
    pub(super) fn settle(&self, mut thing: Thing) -> Result<Thing, Refusal> {
        for _ in 0..REFERENCES {
            let Shape::Reference { target } = self.shape(thing.kind)? else {
                break;
            };
            thing = Thing {
                place: follow(&thing.place, &thing.text)?,
                kind: target,
                bits: None,
                indexed: 0,
                ..thing
            };
        }
        Ok(thing)
    }

    fn step(&self, site: &Site, thing: Thing, step: &Step) -> Result<Thing, Refusal> {
        match step {
            Step::Follow => {
                let next = self.pointee(&thing, false)?;
                Ok(Thing {
                    text: format!("*{}", thing.text),
                    ..next
                })
            }
            Step::Index(index) => self.element(thing, *index),
            Step::Member { name, arrow } => self.member_of(site, thing, name, *arrow),
        }
    }

    /// Returns the object that a pointer points to, or the first element of an array.
    fn pointee(&self, thing: &Thing, brackets: bool) -> Result<Thing, Refusal> {
        match self.shape(thing.kind)? {
            Shape::Pointer { target, size: 8 } if thing.bits.is_none() => Ok(Thing {
                place: follow(&thing.place, &thing.text)?,
                kind: target,
                indexed: 0,
                ..thing.clone()
            }),
            Shape::Array { .. } if !brackets => {
                let array = self.bare(thing.kind)?;
                let bounds = array.map(|array| self.bounds(&array)).transpose()?;
                let own = bounds.and_then(|bounds| bounds.get(thing.indexed).copied());
                let first = own.and_then(|own| own.lower).unwrap_or(0);
                self.element(thing.clone(), first)
            }
            _ => Err(Refusal::NotAPointer {
                of: thing.text.clone(),
                c_type: self.c_type(thing.kind),
                brackets,
            }),
        }
    }

    fn element(&self, thing: Thing, index: i64) -> Result<Thing, Refusal> {
        let text = format!("{}[{index}]", thing.text);
        let incomplete = || Refusal::Incomplete {
            of: thing.text.clone(),
            c_type: self.c_type(thing.kind),
        };
        let too_far = super::DebugError::Damaged("an element lies outside the address space");
        let stride_of =
            |size: u64, index: i64| -> Option<i64> { i64::try_from(size).ok()?.checked_mul(index) };
        if let Shape::Array { element, .. } = self.shape(thing.kind)? {
            let array = self.bare(thing.kind)?.ok_or_else(incomplete)?;
            self.check_array(&thing, &array)?;
            let dimensions = self.bounds(&array)?;
            let own = dimensions.get(thing.indexed).copied();
            let lower = own.map_or(Some(0), |own| own.lower);
            let lower = lower.ok_or_else(|| self.described_at_run_time(&thing))?;
            let count = own.and_then(|own| own.count);
            let from_first = index.checked_sub(lower);
            let from_first = from_first.and_then(|index| u64::try_from(index).ok());
            // A zero-length array at the end of a struct has no upper bound.
            let count = count.filter(|&count| count > 0);
            let from_first = from_first.filter(|&index| count.is_none_or(|count| index < count));
            let from_first = from_first.and_then(|index| i64::try_from(index).ok());
            let from_first = from_first.ok_or(Refusal::OutOfBounds { lower, count })?;
            let is_last = dimensions.len() <= thing.indexed + 1;
            let inner = match self.is_column_major(&array) {
                true => dimensions.get(..thing.indexed),
                false => dimensions.get(thing.indexed + 1..),
            };
            let size = match array.unsigned(gimli::DW_AT_byte_stride) {
                Some(stride) if dimensions.len() < 2 => Some(stride),
                _ => self.size(element)?,
            };
            let mut size = size.ok_or_else(incomplete)?;
            for dimension in inner.unwrap_or_default() {
                let count = dimension.count.ok_or_else(incomplete)?;
                size = size.checked_mul(count).ok_or_else(|| too_far.clone())?;
            }
            let offset = stride_of(size, from_first).ok_or(too_far)?;
            let (kind, indexed) = match is_last {
                true => (element, 0),
                false => (thing.kind, thing.indexed + 1),
            };
            return Ok(Thing {
                place: thing.place.shift(offset),
                kind,
                indexed,
                text,
                ..thing
            });
        }
        if let Some(array) = self.array_behind(&thing)? {
            return self.element(array, index);
        }
        if let Some(member) = self.elements_of(&thing)? {
            return Err(Refusal::Slice {
                element: format!("{}.{member}[{index}]", thing.text),
                c_type: self.c_type(thing.kind),
                of: thing.text,
            });
        }
        let first = self.pointee(&thing, true)?;
        let size = self.size(first.kind)?.ok_or_else(incomplete)?;
        let offset = stride_of(size, index).ok_or(too_far)?;
        Ok(Thing {
            place: first.place.shift(offset),
            text,
            ..first
        })
    }

    /// Returns the member that points to the elements of a slice of Go, Rust, D or Zig.
    fn elements_of(&self, thing: &Thing) -> Result<Option<&'static str>, Refusal> {
        const MEMBERS: [(&str, &str); 4] = [
            ("array", "len"),
            ("data_ptr", "length"),
            ("ptr", "length"),
            ("ptr", "len"),
        ];
        let Shape::Record { key, .. } = self.shape(thing.kind)? else {
            return Ok(None);
        };
        let names = self.member_names(key)?;
        let has = |name: &str| names.iter().any(|own| own == name);
        for (pointer, length) in MEMBERS {
            if has(pointer)
                && has(length)
                && let Lookup::Found(member) = self.member(key, pointer)?
                && matches!(self.shape(member.kind)?, Shape::Pointer { .. })
            {
                return Ok(Some(pointer));
            }
        }
        Ok(None)
    }

    /// Refuses an array whose elements are where only the program knows.
    fn check_array(&self, thing: &Thing, array: &Die<'a>) -> Result<(), Refusal> {
        match self.is_described_at_run_time(array)? {
            true => Err(self.described_at_run_time(thing)),
            false => Ok(()),
        }
    }

    fn described_at_run_time(&self, thing: &Thing) -> Refusal {
        Refusal::DescribedAtRunTime {
            of: thing.text.clone(),
            c_type: self.c_type(thing.kind),
        }
    }

    /// Refuses an array as a whole whose elements are not one after the other in memory.
    pub(super) fn check_whole(&self, thing: &Thing) -> Result<(), Refusal> {
        let Some(array) = self.bare(thing.kind)? else {
            return Ok(());
        };
        if array.tag() != gimli::DW_TAG_array_type {
            return Ok(());
        }
        self.check_array(thing, &array)?;
        match thing.indexed > 0 && self.is_column_major(&array) {
            true => Err(Refusal::Array {
                of: thing.text.clone(),
                c_type: self.c_type(thing.kind),
            }),
            false => Ok(()),
        }
    }

    /// Returns the array that a pointer leads to, if brackets behind the pointer are the array's: in Go, Rust
    /// and Zig, where pointers to arrays have no elements of their own.
    fn array_behind(&self, thing: &Thing) -> Result<Option<Thing>, Refusal> {
        let mut behind = thing.clone();
        for _ in 0..REFERENCES {
            match self.shape(behind.kind)? {
                Shape::Array { .. } => return Ok(Some(behind)),
                Shape::Pointer { size: 8, .. } if behind.bits.is_none() => {}
                _ => return Ok(None),
            }
            let Some(pointer) = self.bare(behind.kind)? else {
                return Ok(None);
            };
            let of_array = |name: String| name.starts_with("*[") || name.starts_with('&');
            let language = pointer.language();
            let goes_on = match language {
                // In Go, only a pointer to an array can be indexed, no pointer to such a one.
                Some(gimli::DW_LANG_Go) => behind.kind == thing.kind,
                _ => self.name_of(&pointer).is_some_and(of_array),
            };
            if !goes_on {
                return Ok(None);
            }
            behind = self.pointee(&behind, true)?;
        }
        Ok(None)
    }

    fn member_of(
        &self,
        site: &Site,
        thing: Thing,
        name: &str,
        arrow: bool,
    ) -> Result<Thing, Refusal> {
        let sign = if arrow { "->" } else { "." };
        let text = format!("{}{sign}{name}", thing.text);
        // A `.` works for a pointer too, as in Rust and gdb.
        let shape = self.shape(thing.kind)?;
        let through = match shape {
            Shape::Pointer { .. } => true,
            Shape::Array { .. } => arrow,
            _ => false,
        };
        let thing = if through {
            let of = thing.text.clone();
            let next = self.pointee(&thing, false)?;
            self.settle(Thing { text: of, ..next })?
        } else if arrow {
            return Err(Refusal::NotAPointer {
                c_type: self.c_type(thing.kind),
                of: thing.text,
                brackets: false,
            });
        } else {
            thing
        };
        let Shape::Record { key, size } = self.shape(thing.kind)? else {
            return Err(Refusal::NoMembers {
                c_type: self.c_type(thing.kind),
                of: thing.text,
            });
        };
        let member = match self.member(key, name)? {
            Lookup::Found(member) => member,
            Lookup::Static(class) => {
                let variable = self.static_member(site, class, name)?;
                let at = thing.at;
                return Ok(Thing {
                    at,
                    ..self.thing(site, &variable, None)?
                });
            }
            Lookup::Virtual(base) => {
                return Err(Refusal::VirtualBase {
                    name: name.to_owned(),
                    base,
                    c_type: self.c_type(thing.kind),
                });
            }
            Lookup::Ambiguous(candidates) => {
                let whole = |member: String| format!("{}{sign}{member}", thing.text);
                return Err(Refusal::AmbiguousMember {
                    c_type: self.c_type(thing.kind),
                    name: name.to_owned(),
                    candidates: candidates.into_iter().map(whole).collect(),
                });
            }
            Lookup::Missing(_) if self.has_variants(key)? => {
                return Err(Refusal::Variants {
                    c_type: self.c_type(thing.kind),
                    of: thing.text,
                });
            }
            Lookup::Missing(there) if there.is_empty() && size.is_none() => {
                return Err(Refusal::Incomplete {
                    c_type: self.c_type(thing.kind),
                    of: thing.text,
                });
            }
            Lookup::Missing(there) => {
                return Err(Refusal::NoMember {
                    c_type: self.c_type(thing.kind),
                    name: name.to_owned(),
                    there,
                });
            }
        };
        // Bits are counted from the start of the struct.
        let offset = if member.bits.is_some() {
            0
        } else {
            member.offset
        };
        let offset = i64::try_from(offset)
            .map_err(|_| super::DebugError::Damaged("a member lies outside the address space"))?;
        Ok(Thing {
            place: thing.place.shift(offset),
            kind: member.kind,
            indexed: 0,
            bits: member.bits,
            text,
            at: thing.at,
        })
    }
}

/// Leaves out the implied object (`this->`) of names that a message advises to write.
fn without_object(refusal: Refusal) -> Refusal {
    let member = |text: String| match text.rsplit_once("->") {
        Some((_, member)) => member.to_owned(),
        None => text,
    };
    match refusal {
        Refusal::AmbiguousMember {
            c_type,
            name,
            candidates,
        } => Refusal::AmbiguousMember {
            c_type,
            name,
            candidates: candidates.into_iter().map(member).collect(),
        },
        other => other,
    }
}

/// Returns the place that the pointer at `place` points to.
pub(super) fn follow(place: &Place, text: &str) -> Result<Place, Refusal> {
    let address = word(place.clone(), text)?;
    Ok(Place::Memory(address))
}

/// Returns the eight bytes at a place, as a number for further steps.
pub(super) fn word(place: Place, text: &str) -> Result<Sum, Refusal> {
    let computed = || Refusal::Computed(text.to_owned());
    match place.narrow(8) {
        Place::Memory(sum) => sum.read().ok_or_else(computed),
        Place::Register { register, at: 0 } => Ok(Sum::of(Start::Register(register))),
        Place::Value { value, bits, at: 0 } if bits.is_whole() => Ok(value),
        Place::Register { .. } | Place::Value { .. } => Err(computed()),
        Place::Pieces { .. } => Err(Refusal::Pieces(text.to_owned())),
        Place::Vector(_) | Place::VectorPart { .. } => {
            Err(Refusal::VectorRegister(text.to_owned()))
        }
        Place::Lost => Err(Refusal::NotSaved(text.to_owned())),
        Place::Missing => Err(Refusal::OptimisedOut {
            name: text.to_owned(),
            lines: Vec::new(),
            optimised: false,
        }),
    }
}
