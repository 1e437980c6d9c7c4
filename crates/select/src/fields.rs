//! Translates the values, guard and actions of a probe into the fetches and condition of its work.

use crate::advice::Advice;
use crate::content::content;
use crate::error::{Context, Error, Result, bail, err};
use crate::kept_memory::KeptMemory;
use crate::results::Results;
use crate::slots::Area;
use crate::{entry, enumerators, kept_memory, marker, names, slots};
use capriole_codegen::condition::{Condition, Relation, Subject, Width};
use capriole_codegen::fetch::FetchError;
use capriole_codegen::fetch::{Content, Fetch, Field, Length, Source};
use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{
    Callers, Debug, Described, Enumerators, Returned, ReturnedText, Site as DebugSite, TypedFetch,
};
use capriole_event::{
    Action, Aggregation, At, Base, Comparison, Deref, Element, Fetch as Asked, FetchArg, FieldType,
    Function, Gpr, Guard, KeyKind, Operand, Probe, Side,
};
use capriole_insn::ExitKind;
use capriole_object::Convention;
use capriole_object::symbols::Binding;
use capriole_planner::resolve::{Body, Site};
use capriole_ring::numbers::chain;
use capriole_trace::{FieldInfo, TextFormat};
use iced_x86::Register;
use std::collections::HashMap;
use std::path::PathBuf;

/// Marks in the names of copies that GCC has made for some callers.
const COPIES: [&str; 2] = [".isra.", ".constprop."];
/// Refusal of an argument by number in such a copy.
const CHANGED: &str =
    "the compiler changed the arguments of this copy; write parameters by name, or $arg* for all";
/// Content of a thread id or a CPU number.
const WORD: Content = Content::Number(Width::WORD);

/// Fields of a probe's first action at a site: those that it records, or aggregates, or keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Fields {
    /// Names and types of the fields, for the trace.
    pub infos: Vec<FieldInfo>,
    /// Sources of the fields' contents, and the filter.
    pub fetch: Fetch,
    /// Number of leading fields that form the key by which hits are grouped. Only for counting;
    /// the aggregated fields follow them.
    pub keys: usize,
    /// printf format of the first fields: all arguments of a marker that has a format.
    pub format: Option<TextFormat>,
    /// Parameters that `$arg*` leaves out, because they have no known value there, or one of a type
    /// that cannot be shown: names, and reasons.
    pub unshown: Vec<(String, String)>,
    /// Fields of the probe's other actions, in their order.
    pub more: Vec<Fields>,
}

impl Fields {
    /// Creates an empty set of fields. At a conditional jump out of a function, the event counts
    /// only if the jump is taken.
    fn at(site: &Site) -> Fields {
        let leaving = site.leaving.as_ref();
        Fields {
            fetch: Fetch {
                flags: leaving.and_then(|leaving| leaving.condition),
                ..Fetch::default()
            },
            ..Fields::default()
        }
    }

    /// Returns the fields of each of the probe's actions, in their order.
    pub fn all(&self) -> impl Iterator<Item = &Fields> {
        std::iter::once(self).chain(&self.more)
    }

    /// Returns the names of the aggregated fields.
    pub fn value_names(&self) -> Vec<&str> {
        let values = &self.infos[self.keys..];
        values.iter().map(|info| info.name.as_str()).collect()
    }

    /// Returns the error for fields that do not fit together, with their names. Those that only the
    /// filter reads have been compared already.
    pub fn not_compiled(&self, error: &FetchError) -> Error {
        let name = |index: usize| self.infos.get(index).map_or("comm", |info| &info.name);
        err!(Field, "{}", error.with_names(name))
    }

    /// Returns the fields that are plain registers, by name.
    pub fn registers(&self) -> impl Iterator<Item = (&str, Register)> {
        let both = self.infos.iter().zip(&self.fetch.fields);
        both.filter_map(|(info, field)| match field.source {
            Source::Register(register) if field.pointers.is_empty() => {
                Some((info.name.as_str(), register))
            }
            _ => None,
        })
    }
}

/// Translates probes to fields. Debug information is opened once for each object.
#[derive(Default)]
pub struct Reader<'a> {
    debug: HashMap<PathBuf, Debug<'a>>,
    /// The uses of results, for each object; `None` if they cannot be found.
    results: HashMap<PathBuf, Option<Results<'a>>>,
    /// Values that the event's fields need from the entry, and the area of its call slots.
    kept: Vec<entry::Kept>,
    area: Area,
}

/// A field of a site.
struct Found {
    field: Field,
    field_type: FieldType,
    /// Names of its values, if the type is an enumeration's by itself.
    enumerators: Enumerators,
}

impl From<(Field, FieldType)> for Found {
    fn from((field, field_type): (Field, FieldType)) -> Found {
        Found {
            field,
            field_type,
            enumerators: Vec::new(),
        }
    }
}

impl<'a> Reader<'a> {
    /// Returns the fields and the guard of a probe at a site. Calls that the probe begins or ends
    /// have their slots in `area`.
    ///
    /// # Errors
    /// A part of the probe cannot be recorded there; the error has its label and the reason.
    pub fn fields(&mut self, probe: &Probe, site: &'a Site, area: Area) -> Result<Fields> {
        self.area = area;
        self.kept = entry::all_kept(probe).into_iter().map(|(_, k)| k).collect();
        self.read(probe, site)
            .with_context(|| format!("event `{}`", probe.label))
    }

    fn read(&mut self, probe: &Probe, site: &'a Site) -> Result<Fields> {
        if probe.at == At::Return {
            known_at_return(probe)?;
        }
        if let Some(marker) = &site.marker {
            marker::expected(probe, marker)?;
        }
        if let Some(argument) = needed_result(probe)
            && is_tail_jump(site)
        {
            bail!(
                Field,
                "a jump to another function has no result yet, which `{argument}` asks for"
            );
        }
        let mut all = Vec::new();
        for action in &probe.actions {
            all.push(match action {
                Action::Record => self.recorded(probe, site)?,
                Action::Update { aggregation, .. } => self.counted(probe, aggregation, site)?,
                Action::Keep(kept) => self.entered(probe, *kept, site)?,
                Action::Start => self.started(probe, site)?,
                Action::Call(_) | Action::Replace(_) => Fields::at(site),
            });
        }
        let mut all = all.into_iter();
        let first = all.next().unwrap_or_else(|| Fields::at(site));
        Ok(Fields {
            more: all.collect(),
            ..first
        })
    }

    fn recorded(&mut self, probe: &Probe, site: &'a Site) -> Result<Fields> {
        let mut fields = Fields::at(site);
        let tail = is_tail_jump(site);
        let go = probe.of_calls && is_go(site);
        let there = |argument: &&FetchArg| match argument.name.as_str() {
            names::GOROUTINE if probe.of_calls => go,
            _ => !tail || !argument.starts_from(Base::is_result),
        };
        for argument in probe.values.iter().filter(there) {
            if let Base::CallStack(most) = argument.fetch.base {
                let stack = call_stack(most, site.address, probe, site);
                fields.push(&argument.name, stack, FieldType::call_stack(most));
                continue;
            }
            // Calls are recorded with their result, if they have one that can be read.
            let added = probe.of_calls && argument.name == names::RESULT;
            let is_left_out = added && is_untyped_result(argument) && self.has_no_result(site);
            if !is_left_out {
                self.push(argument, site, &mut fields)?;
            }
        }
        let first = probe.values.first();
        if let Some(marker) = &site.marker
            && first.is_some_and(|argument| argument.fetch.base == Base::AllArguments)
        {
            fields.format = marker::text_format(marker, site);
        }
        fields.fetch.recorded = fields.fetch.fields.len();
        self.push_guard_values(probe, site, &mut fields)?;
        fields.filter(probe)?;
        // Parts that do not fit together fail here, before anything else is prepared.
        let made = fields.fetch.work(0);
        made.map_err(|error| fields.not_compiled(&error))?;
        fields.infos.truncate(fields.fetch.recorded);
        Ok(fields)
    }

    /// Translates the values kept from the entry to the exit, and the fields that the filter needs.
    fn entered(&mut self, probe: &Probe, keeps: usize, site: &'a Site) -> Result<Fields> {
        let mut fields = Fields::default();
        let (kept, asked) = probe.values.split_at(keeps);
        for argument in kept {
            match argument.field_type {
                Some(wanted) if wanted.is_in_memory() => {
                    self.push_kept_memory(argument, site, &mut fields)?;
                }
                _ => {
                    self.push(argument, site, &mut fields)?;
                    self.is_kept(argument, site, &fields)
                        .with_context(|| format!("field `$entry:{}`", argument.fetch))?;
                }
            }
        }
        fields.fetch.recorded = fields.fetch.fields.len();
        let names = probe.guard.as_ref().map(|filter| filter.names());
        for argument in asked {
            let named = names.iter().flatten().any(|name| *name == argument.name);
            let everything = argument.fetch.base == Base::AllArguments;
            if named || everything && names.is_some() {
                self.push(argument, site, &mut fields)?;
            }
        }
        fields.filter(probe)?;
        let made = fields.fetch.enter(0);
        made.map_err(|error| fields.not_compiled(&error))?;
        fields.infos.truncate(fields.fetch.recorded);
        Ok(fields)
    }

    /// Adds the number that is kept of a text or an array, which its exit reads.
    fn push_kept_memory(
        &mut self,
        argument: &FetchArg,
        site: &'a Site,
        fields: &mut Fields,
    ) -> Result<()> {
        let (debug, place) = self.debug(site)?;
        let found = debug.fetch(&place, &argument.fetch, argument.field_type);
        let field = found
            .map_err(|error| err!(Field, "{error}"))
            .and_then(|found| Ok(typed(&KeptMemory::of(&found, &argument.fetch)?.word, site)?.0))
            .with_context(|| format!("field `{}`", argument.name))?;
        fields.push(&argument.name, field, FieldType::X64);
        Ok(())
    }

    /// Refuses a last field that is a text or an array by its type in the source, of which nothing is
    /// kept unless it is named as one.
    fn is_kept(&mut self, argument: &FetchArg, site: &'a Site, fields: &Fields) -> Result<()> {
        let last = fields.infos.last().map(|info| info.field_type);
        let Some(found) = last.filter(|found| found.is_in_memory()) else {
            return Ok(());
        };
        let what = match found.is_string() {
            true => "a text",
            false => "an array",
        };
        let name = &argument.fetch;
        let (debug, place) = self.debug(site)?;
        if let Base::Variable(_) = name.base
            && let Ok(whole) = debug.fetch(&place, name, None)
        {
            KeptMemory::of(&whole, name)?;
            bail!(
                Field,
                "it is {what}, and only numbers are kept from the entry; the return reads it by its address at \
                 the entry: write {name}:{found} for calls, $entry:{name}:{found} at a return"
            );
        }
        Ok(())
    }

    /// Translates the start of an interval: its words, and the fields that the filter needs. None is
    /// recorded.
    fn started(&mut self, probe: &Probe, site: &'a Site) -> Result<Fields> {
        let mut fields = Fields::at(site);
        self.push_words(probe, site, &mut fields)?;
        let names = probe.guard.as_ref().map(Guard::names);
        let asked = |argument: &&FetchArg| match argument.fetch.base {
            Base::AllArguments => names.is_some(),
            _ => names.iter().flatten().any(|name| *name == argument.name),
        };
        for argument in probe.values.iter().filter(asked) {
            self.push(argument, site, &mut fields)?;
        }
        self.push_guard_values(probe, site, &mut fields)?;
        fields.filter(probe)?;
        fields.infos.clear();
        Ok(fields)
    }

    /// Adds the words of an interval that starts or ends here.
    fn push_words(&mut self, probe: &Probe, site: &'a Site, fields: &mut Fields) -> Result<()> {
        let Some(pairing) = &probe.pairing else {
            return Ok(());
        };
        let first = fields.fetch.fields.len();
        if pairing.key.is_empty() {
            let thread = Field {
                source: Source::Thread,
                pointers: Vec::new(),
                length: None,
                content: WORD,
            };
            fields.push("", thread, FieldType::U32);
        }
        let kept: &[String] = match pairing.side {
            Side::Start => &pairing.kept,
            Side::End => &[],
        };
        for name in pairing.key.iter().chain(kept) {
            let argument = probe.find(name);
            let argument = argument.ok_or_else(|| err!(Field, "`{name}` is a field"))?;
            self.push(argument, site, fields)?;
            let info = &fields.infos[fields.infos.len() - 1];
            if info.field_type.is_float() {
                bail!(
                    Field,
                    "`{name}` is a floating point number, which neither pairs events nor is kept"
                );
            }
        }
        fields.fetch.words = (first..fields.fetch.fields.len()).collect();
        let widths = fields.fetch.word_widths();
        widths.map_err(|error| fields.not_compiled(&error))?;
        Ok(())
    }

    /// Rejects words that are neither an aggregate, nor a key, nor a field that could be recorded.
    fn refuse_unknown(&mut self, probe: &Probe, site: &'a Site) -> Result<()> {
        let used = aggregated(probe);
        let tail = is_tail_jump(site);
        for argument in &probe.values {
            let base = &argument.fetch.base;
            let of_result = argument.starts_from(Base::is_result);
            let elsewhere = *base == Base::AllArguments || tail && of_result;
            if elsewhere || used.contains(&argument.name.as_str()) {
                continue;
            }
            let read = self.push(argument, site, &mut Fields::at(site));
            let mut aggregates = Function::ALL.iter().map(|function| function.as_str());
            read.with_context(|| match aggregates.any(|name| name == argument.name) {
                true => format!(
                    "`{0}` is read as the name of a variable; the aggregate is written `{0}(...)`",
                    argument.name
                ),
                false => format!("`{argument}` is no aggregate"),
            })?;
        }
        Ok(())
    }

    /// Translates an update: first the keys, then the aggregated fields, then those that only
    /// the filter needs.
    fn counted(
        &mut self,
        probe: &Probe,
        aggregation: &Aggregation,
        site: &'a Site,
    ) -> Result<Fields> {
        let is_stack = |argument: &&FetchArg| matches!(argument.fetch.base, Base::CallStack(_));
        let recorded = probe.actions.contains(&Action::Record);
        if let Some(stack) = probe.values.iter().find(is_stack)
            && !recorded
        {
            let error = err!(Field, "`{stack}` cannot be counted");
            return Err(error.advise(Advice::RecordAndReportStacks));
        }
        let mut fields = Fields::at(site);
        for key in &aggregation.keys {
            let (source, content, field_type) = match key {
                KeyKind::Field(name) => {
                    let argument = probe
                        .find(name)
                        .ok_or_else(|| err!(Field, "a key is a field"))?;
                    self.push(argument, site, &mut fields)?;
                    continue;
                }
                KeyKind::Comm => (Source::Comm, Content::Text, FieldType::STRING),
                KeyKind::Thread => (Source::Thread, WORD, FieldType::U32),
                KeyKind::Cpu => (Source::Cpu, WORD, FieldType::U32),
                KeyKind::Stack(most) => {
                    // Calls that end at different exits have the same callers.
                    let first = match is_left(probe, site) {
                        true => site.function(),
                        false => site.address,
                    };
                    let stack = call_stack(*most, first, probe, site);
                    fields.push(key.name(), stack, FieldType::call_stack(*most));
                    continue;
                }
            };
            let field = Field {
                source,
                pointers: Vec::new(),
                length: None,
                content,
            };
            fields.push(key.name(), field, field_type);
        }
        fields.keys = fields.infos.len();
        for aggregate in &aggregation.aggregates {
            let Some(name) = &aggregate.field else {
                continue;
            };
            if fields.value_names().contains(&name.as_str()) {
                continue;
            }
            match probe.find(name) {
                Some(argument) => self.push(argument, site, &mut fields)?,
                None => bail!(Field, "`{aggregate}` asks for a field that there is not"),
            }
        }
        if let Some(float) = fields.infos.iter().find(|info| info.field_type.is_float()) {
            let error = err!(
                Field,
                "`{}` is a floating point number, which is neither added up nor a key",
                float.name
            );
            return Err(error.advise(Advice::RecordShowsEach));
        }
        fields.fetch.recorded = fields.fetch.fields.len();
        if !recorded {
            self.refuse_unknown(probe, site)?;
        }
        let infos = fields.infos.len();
        self.push_words(probe, site, &mut fields)?;
        let Some(filter) = &probe.guard else {
            fields.infos.truncate(infos);
            return Ok(fields);
        };
        for argument in &probe.values {
            let everything = argument.fetch.base == Base::AllArguments;
            // A key string is cut; the filter needs more of it, so fetch it again.
            let mut infos = fields.infos.iter();
            let known = infos.any(|info| info.name == argument.name && !is_text(info));
            if everything || !known && filter.names().contains(&argument.name.as_str()) {
                self.push(argument, site, &mut fields)?;
            }
        }
        self.push_guard_values(probe, site, &mut fields)?;
        fields.filter(probe)?;
        fields.infos.truncate(infos);
        Ok(fields)
    }

    /// Adds the values that only the filter reads, with the duration of the call if it compares that.
    fn push_guard_values(
        &mut self,
        probe: &Probe,
        site: &'a Site,
        fields: &mut Fields,
    ) -> Result<()> {
        for value in &probe.guard_values {
            // One of those that `$arg*` has added may be of this name.
            if !fields.infos.iter().any(|info| info.name == value.name) {
                let found = self.with_length(value, site);
                let found =
                    found.with_context(|| format!("`{}` in the filter is no field", value.name))?;
                fields.push(&value.name, found.field, found.field_type);
                fields.name_values(found.enumerators);
            }
        }
        if entry::compares_duration(probe) {
            let duration = FetchArg {
                name: Guard::DURATION.to_owned(),
                ..capriole_event::Value::latency().into()
            };
            self.push(&duration, site, fields)?;
        }
        Ok(())
    }

    /// Adds the field, or fields, of an argument.
    fn push(&mut self, argument: &FetchArg, site: &'a Site, fields: &mut Fields) -> Result<()> {
        if argument.fetch.base == Base::AllArguments {
            return self.all_arguments(site, fields);
        }
        if let Base::Entry(entry) = &argument.fetch.base
            && entry.fetch.base == Base::AllArguments
        {
            let (call, mut word) = self.word(argument, site)?;
            let (debug, place) = self.debug_of_entry(site)?;
            for (name, found) in parameters(debug, &place)?.shown {
                let source = Source::Kept { call, word };
                fields.push(
                    &name,
                    kept_field(source, found.field_type)?,
                    found.field_type,
                );
                fields.name_values(found.enumerators);
                word += 1;
            }
            return Ok(());
        }
        let Found {
            field,
            field_type,
            enumerators,
        } = self
            .with_length(argument, site)
            .with_context(|| format!("field `{argument}`"))?;
        fields.push(&argument.name, field, field_type);
        fields.name_values(enumerators);
        Ok(())
    }

    /// Returns the field of an argument, with the length of its text if one was written.
    fn with_length(&mut self, argument: &FetchArg, site: &'a Site) -> Result<Found> {
        let mut found = self.field(argument, site)?;
        if let Some(length) = argument.length_argument() {
            let length = self.field(&length, site).context("its length")?;
            let (length, of) = (length.field, length.field_type);
            let number = matches!(length.content, Content::Number(_) | Content::Network { .. });
            if !number || of.is_float() {
                bail!(Field, "its length is a {of}, and not a number");
            }
            found.field.length = Some(Box::new(Length::Number {
                of: length,
                less: 0,
            }));
        }
        Ok(found)
    }

    fn field(&mut self, argument: &FetchArg, site: &'a Site) -> Result<Found> {
        if let Some(marker) = &site.marker
            && let Some(found) = marker::one(marker, site, argument)?
        {
            return Ok(found.into());
        }
        if matches!(argument.fetch.base, Base::Variable(_)) {
            let (debug, place) = self.debug(site)?;
            let found = debug
                .fetch(&place, &argument.fetch, argument.field_type)
                .map_err(|error| err!(Field, "{error}"))?;
            return Ok(Found {
                enumerators: found.enumerators.clone(),
                ..typed(&found, site)?.into()
            });
        }
        if argument.fetch.base == Base::Retval
            && let Some(found) = self.result_text(argument, site)?
        {
            return Ok(typed(&found, site)?.into());
        }
        if let Some((fetch, wanted)) = entry::kept(argument) {
            return self.kept_field(argument, &fetch, wanted, site);
        }
        if let Base::Argument(number) = argument.fetch.base {
            self.check_argument(number, site)?;
        }
        let (field_type, vector, enumerators) = match is_untyped_result(argument) {
            true => self.result_type(site)?,
            false => {
                let known = argument.known_type().unwrap_or(FieldType::X64);
                (known, known.is_float(), Vec::new())
            }
        };
        let result = argument.fetch.base.is_result() && argument.fetch.derefs.is_empty();
        if result && vector {
            let field = Field {
                source: Source::Vector(0),
                pointers: Vec::new(),
                length: None,
                content: content(field_type)?,
            };
            return Ok((field, field_type).into());
        }
        Ok(Found {
            field: known(&argument.fetch, field_type, site, 0, self.area)?,
            field_type,
            enumerators,
        })
    }

    /// Refuses an argument by number where debug information proves that its register has another one: the
    /// compiler has changed the parameters of a function that only its own file calls.
    fn check_argument(&mut self, number: u8, site: &'a Site) -> Result<()> {
        let linkage = site.linkage_name.as_deref().unwrap_or_default();
        if let Some(convention) = own_convention(linkage, site) {
            bail!(Field, "{convention}");
        }
        if COPIES.iter().any(|mark| linkage.contains(mark)) {
            bail!(Field, "{CHANGED}");
        }
        let symbols = site.object.symbols().ok();
        let entry = site.object.link(site.function());
        let function = symbols.and_then(|symbols| symbols.function_starting_at(entry));
        let names = || {
            let both = symbols.zip(function).into_iter();
            both.flat_map(|(s, f)| s.names(f))
        };
        // Zig's names are those of modules, `main.take`, and those of exported functions as in C.
        let mut qualified = names().map(|name| name.linkage.contains('.'));
        if function.is_some() && qualified.all(|is_qualified| is_qualified) && self.is_zig(site) {
            bail!(
                Field,
                "Zig passes arguments of functions that are not exported in a way of its own: write \
                 parameters by name, or a register (%di)"
            );
        }
        let is_local = names().all(|name| name.binding == Binding::Local);
        if !is_local || function.is_none() || !site.is_entry() || site.body != Body::Own {
            return Ok(());
        }
        let Ok((debug, place)) = self.debug(site) else {
            return Ok(());
        };
        match debug.changed_parameters(&place) {
            Ok(Some(changed)) if (changed.first..=changed.last).contains(&number) => bail!(
                Field,
                "the compiler has changed the parameters of this function, and $arg{number} is not what the \
                 source has there (`{}`): write parameters by name, or a register (%di)",
                changed.parameter
            ),
            _ => Ok(()),
        }
    }

    /// True if debug information says that Zig has compiled the function around a site.
    fn is_zig(&mut self, site: &'a Site) -> bool {
        let place = self.debug_of_entry(site);
        place.is_ok_and(|(debug, place)| debug.is_zig(&place).is_ok_and(|is_zig| is_zig))
    }

    /// Returns a field of an exit whose value is kept from the entry, or is read through an address
    /// that is kept from there.
    fn kept_field(
        &mut self,
        argument: &FetchArg,
        fetch: &Asked,
        wanted: Option<FieldType>,
        site: &'a Site,
    ) -> Result<Found> {
        let (call, word) = self.word(argument, site)?;
        if let Some(wanted) = wanted.filter(|wanted| wanted.is_in_memory())
            && matches!(fetch.base, Base::Variable(_))
        {
            let (debug, place) = self.debug_of_entry(site)?;
            let found = debug.fetch(&place, fetch, Some(wanted));
            let found = found.map_err(|error| err!(Field, "{error}"))?;
            let kept = KeptMemory::of(&found, fetch)?;
            let field = match kept.at_exit(&found, &Source::Kept { call, word })? {
                Some(field) => field,
                None => typed(&found, site)?.0,
            };
            return Ok((field, wanted).into());
        }
        let mut enumerators = Vec::new();
        let kept_type = match (&fetch.base, wanted.or(fetch.default_type())) {
            (Base::Variable(_), _) => {
                let (debug, place) = self.debug_of_entry(site)?;
                let found = debug.fetch(&place, fetch, wanted);
                let found = found.map_err(|error| err!(Field, "{error}"))?;
                enumerators = found.enumerators;
                found.field_type
            }
            (_, Some(known)) => known,
            (_, None) => bail!(Field, "its type is not known"),
        };
        let field = kept_field(Source::Kept { call, word }, kept_type)?;
        if argument.fetch.derefs.is_empty() {
            return Ok(Found {
                field,
                field_type: kept_type,
                enumerators,
            });
        }
        let field_type = argument.field_type.unwrap_or(FieldType::X64);
        let derefs = argument.fetch.derefs.iter();
        let field = Field {
            pointers: derefs.map(|deref| deref.offset).collect(),
            length: None,
            content: content(field_type)?,
            ..field
        };
        Ok((field, field_type).into())
    }

    /// Returns the number of the call that ends at an exit, and the index of the field's first word
    /// among those kept for it.
    fn word(&mut self, argument: &FetchArg, site: &'a Site) -> Result<(u32, u16)> {
        let leaving = site.leaving.as_ref();
        let leaving =
            leaving.ok_or_else(|| err!(Field, "what was at the entry is known at an exit only"))?;
        let call = slots::number(leaving.function, self.area);
        let mut word = 0;
        for kept in self.kept.clone() {
            if entry::kept(argument).is_some_and(|own| own == kept) {
                break;
            }
            word += match kept.0.base {
                Base::AllArguments => {
                    let (debug, place) = self.debug_of_entry(site)?;
                    parameters(debug, &place)?.shown.len() as u16
                }
                _ => 1,
            };
        }
        Ok((call, word))
    }

    /// Returns debug information for the entry of the function that ends at a site.
    fn debug_of_entry(&mut self, site: &'a Site) -> Result<(&Debug<'a>, DebugSite)> {
        let entry = site.object.link(site.function());
        let debug = self.debug_of(site)?;
        let place = debug.site(entry, None);
        Ok((debug, place.map_err(|error| err!(Field, "{error}"))?))
    }

    /// True if debug information declares that the function which ends at a site has no result, or one
    /// that cannot be read, or the compiler may have left it out.
    fn has_no_result(&mut self, site: &'a Site) -> bool {
        let returned = self.returned(site);
        if self.is_there(site, returned.as_ref()).is_err() {
            return true;
        }
        match returned {
            Some(Returned::Number(..) | Returned::Vector(_) | Returned::Other(_)) | None => false,
            Some(
                Returned::Nothing
                | Returned::Elsewhere(_)
                | Returned::Undescribed(_)
                | Returned::Pair(_)
                | Returned::Stack(_),
            ) => true,
        }
    }

    /// Returns the result of the function that ends at a site, if debug information describes it.
    fn returned(&mut self, site: &'a Site) -> Option<Returned> {
        let entry = site.object.link(site.leaving.as_ref()?.function);
        let debug = self.debug_of(site).ok()?;
        let place = debug.site(entry, None).ok()?;
        debug.returned(&place).ok()
    }

    /// Returns the type of the function's result at an exit, as declared in the source if debug
    /// information has it, true if the result is in a vector register, and the names of its values.
    fn result_type(&mut self, site: &'a Site) -> Result<(FieldType, bool, Enumerators)> {
        let unknown = || (FieldType::X64, false, Vec::new());
        let returned = self.returned(site);
        self.is_there(site, returned.as_ref())?;
        match returned {
            Some(Returned::Number(field_type, enumerators)) => Ok((field_type, false, enumerators)),
            Some(Returned::Vector(field_type)) => Ok((field_type, true, Vec::new())),
            Some(Returned::Elsewhere(c_type)) => bail!(
                Field,
                "the function returns `{c_type}`; of floating point results only `float` and \
                 `double`, which are in xmm0, can be read, and vectors of up to 16 bytes; \
                 $retval:x64 is whatever rax holds"
            ),
            Some(Returned::Undescribed(c_type)) => bail!(
                Field,
                "the function returns `{c_type}`, which debug information only declares (clang describes \
                 it with -fstandalone-debug); $retval:x64 is rax, the address of an object that has a \
                 destructor or more than 16 bytes"
            ),
            Some(Returned::Pair(c_type)) => bail!(
                Field,
                "the function returns `{c_type}`, of 16 bytes in two registers; $retval:x64 is the low half, %dx \
                 the high one"
            ),
            Some(Returned::Stack(c_type)) => bail!(
                Field,
                "the function returns `{c_type}`, which Go leaves on the stack; $retval:x64 is \
                 whatever rax holds"
            ),
            Some(Returned::Nothing | Returned::Other(_)) | None => Ok(unknown()),
        }
    }

    /// Refuses a number as the result where the compiler knew all callers, and none uses it.
    fn is_there(&mut self, site: &'a Site, returned: Option<&Returned>) -> Result<()> {
        let register = match returned {
            Some(Returned::Number(..)) => Register::RAX,
            Some(Returned::Vector(_)) => Register::XMM0,
            _ => return Ok(()),
        };
        if !self.lacks_result(site, register) {
            return Ok(());
        }
        let (name, typed) = match register {
            Register::XMM0 => ("xmm0", "f64"),
            _ => ("rax", "x64"),
        };
        bail!(
            Field,
            "the compiler knew all callers of the function, and none of them uses its result, which it may \
             have left out; $retval:{typed} is whatever {name} holds"
        )
    }

    /// True if the function that ends at a site may lack its result, and no caller uses it.
    fn lacks_result(&mut self, site: &'a Site, register: Register) -> bool {
        let Some(leaving) = &site.leaving else {
            return false;
        };
        let entry = site.object.link(leaving.function);
        let callers = callers(site, entry);
        let Ok(debug) = self.debug_of(site) else {
            return false;
        };
        let place = debug.site(entry, None);
        let may_lack = place.is_ok_and(|place| debug.may_lack_result(&place, callers) == Ok(true));
        if !may_lack {
            return false;
        }
        let path = site.object.path().to_owned();
        let results = self.results.entry(path.clone());
        let results = results.or_insert_with(|| Results::of(site.object.file()));
        let (Some(results), Some(debug)) = (results, self.debug.get(&path)) else {
            return false;
        };
        results.is_unused(debug, entry, register)
    }

    /// Returns the fetch of the function's result at an exit, if debug information says that it is a
    /// text, and it is asked for without a type or as a string.
    fn result_text(&mut self, argument: &FetchArg, site: &'a Site) -> Result<Option<TypedFetch>> {
        // `$retval:string` is +0($retval):string.
        let at_it = matches!(argument.fetch.derefs[..], [Deref { offset: 0, .. }]);
        let as_string = at_it && argument.field_type == Some(FieldType::STRING);
        let is_asked = is_untyped_result(argument) || as_string && argument.length.is_none();
        let Some(leaving) = site.leaving.as_ref().filter(|_| is_asked) else {
            return Ok(None);
        };
        let entry = site.object.link(leaving.function);
        let Ok(debug) = self.debug_of(site) else {
            return Ok(None);
        };
        let Ok(place) = debug.site(entry, None) else {
            return Ok(None);
        };
        let text = debug.returned_text(&place, callers(site, entry), as_string);
        match text {
            Ok(ReturnedText::Text(text)) => Ok(Some(text)),
            Ok(ReturnedText::No) => Ok(None),
            // Without a type it is a number.
            Ok(ReturnedText::Unsure(_)) | Err(_) if !as_string => Ok(None),
            Err(refusal) => Err(err!(Field, "{refusal}")),
            Ok(ReturnedText::Unsure(c_type)) => bail!(
                Field,
                "the function returns `{c_type}`, but the compiler knew all its callers, and may have \
                 left out or moved what none of them uses; $retval:x64 is whatever rax holds"
            ),
        }
    }

    /// Adds the fields of `$arg*`: the parameters, as debug information names them, or the
    /// arguments of a marker.
    fn all_arguments(&mut self, site: &'a Site, fields: &mut Fields) -> Result<()> {
        if let Some(marker) = &site.marker {
            for (name, field, field_type) in marker::all(marker, site) {
                fields.push(&name, field, field_type);
            }
            return Ok(());
        }
        let (debug, place) = self.debug(site)?;
        let Parameters { shown, unshown } = parameters(debug, &place)?;
        fields.unshown.extend(unshown);
        for (name, found) in shown {
            let (field, field_type) = typed(&found, site)?;
            fields.push(&name, field, field_type);
            fields.name_values(found.enumerators);
        }
        Ok(())
    }

    /// Returns debug information for a site.
    fn debug(&mut self, site: &'a Site) -> Result<(&Debug<'a>, DebugSite)> {
        let debug = self.debug_of(site)?;
        let place = match &site.scope {
            Some(place) => place.clone(),
            // After the stack check, a function's arguments are where they are at its entry.
            None => debug
                .site(site.link_address - site.check, named(site))
                .map_err(|error| err!(Field, "{error}"))?,
        };
        Ok((debug, place))
    }

    /// Opens the debug information of a site's object, or returns it if it is open.
    fn debug_of(&mut self, site: &'a Site) -> Result<&Debug<'a>> {
        let path = site.object.path().to_owned();
        if !self.debug.contains_key(&path) {
            let debug = site
                .object
                .file()
                .debug()
                .map_err(|error| err!(Field, "{error}"))?;
            self.debug.insert(path.clone(), debug);
        }
        let opened = self.debug.get(&path);
        opened.ok_or_else(|| err!(Object, "it was opened"))
    }

    /// Returns the parameters and variables at a site.
    ///
    /// # Errors
    /// There is no debug information for the site.
    pub fn describe(&mut self, site: &'a Site) -> Result<Vec<Described>> {
        let (debug, place) = self.debug(site)?;
        debug
            .describe(&place)
            .map_err(|error| err!(Field, "{error}"))
    }
}

impl Fields {
    fn push(&mut self, name: &str, field: Field, field_type: FieldType) {
        self.infos.push(FieldInfo::new(name.to_owned(), field_type));
        self.fetch.fields.push(field);
    }

    /// Sets the names of the values of the last field.
    fn name_values(&mut self, enumerators: Enumerators) {
        if let Some(last) = self.infos.last_mut() {
            last.enumerators = enumerators;
        }
    }

    /// Sets the event's filter, a condition on these fields.
    fn filter(&mut self, probe: &Probe) -> Result<()> {
        if let Some(filter) = &probe.guard {
            self.fetch.condition = Some(self.condition(filter, probe)?);
        }
        Ok(())
    }

    /// Translates a filter on these fields. The thread's name becomes a field that is fetched and
    /// not recorded.
    fn condition(&mut self, filter: &Guard, probe: &Probe) -> Result<Condition> {
        let all = |fields: &mut Fields, of: &[Guard]| -> Result<Vec<Condition>> {
            of.iter()
                .map(|part| fields.condition(part, probe))
                .collect()
        };
        Ok(match filter {
            Guard::Not(inner) => Condition::Not(Box::new(self.condition(inner, probe)?)),
            Guard::And(of) => Condition::All(all(self, of)?),
            Guard::Or(of) => Condition::Any(all(self, of)?),
            Guard::Compare {
                field,
                comparison,
                operand,
                ..
            } => self.comparison(probe, field, *comparison, operand)?,
        })
    }

    fn comparison(
        &mut self,
        probe: &Probe,
        name: &str,
        comparison: Comparison,
        operand: &Operand,
    ) -> Result<Condition> {
        let own = self.infos.iter().rposition(|info| info.name == name);
        let float = own.is_some_and(|index| self.infos[index].field_type.is_float());
        if float {
            bail!(
                Field,
                "the filter asks for `{name}`, a floating point number, which is not compared"
            );
        }
        let subject = match (own, name) {
            (Some(index), _) => Subject::Field(index),
            (None, "tid" | "common_pid") => Subject::Thread,
            (None, "cpu" | "CPU") => Subject::Cpu,
            (None, "comm" | "COMM") => Subject::Field(self.comm()),
            (None, _) => bail!(
                Field,
                "the filter asks for `{name}`, which is no field of the event"
            ),
        };
        let relation = match comparison {
            Comparison::Equal | Comparison::Matches => Relation::Equal,
            Comparison::NotEqual => Relation::NotEqual,
            Comparison::Less => Relation::Less,
            Comparison::LessOrEqual => Relation::LessOrEqual,
            Comparison::Greater => Relation::Greater,
            Comparison::GreaterOrEqual => Relation::GreaterOrEqual,
            Comparison::Bits => Relation::Bits,
        };
        match operand {
            Operand::Number { .. }
                if own.is_some_and(|i| self.infos[i].field_type.element == Element::Ipv6) =>
            {
                bail!(
                    Field,
                    "`{name}` is an ipv6 address, and cannot be compared with a number"
                )
            }
            Operand::Named(names) => Ok(Condition::Number {
                subject,
                relation,
                with: enumerators::value(probe, name, own.map(|i| &self.infos[i]), names)?,
            }),
            Operand::Number { .. } if own.is_some_and(|i| is_text(&self.infos[i])) => bail!(
                Field,
                "`{name}` is a text, and cannot be compared with a number; texts are compared with \
                 ==, != and ~ and a text in quotes"
            ),
            // Where nothing is recorded, times are not converted to ticks.
            Operand::Duration(time) => Ok(Condition::Number {
                subject,
                relation,
                with: i128::from(time.as_nanos() as u64),
            }),
            Operand::Number { value, negative } => Ok(Condition::Number {
                subject,
                relation,
                with: match negative {
                    true => i128::from(*value as i64),
                    false => i128::from(*value),
                },
            }),
            Operand::Address(address) => {
                let Some(index) =
                    own.filter(|i| self.infos[*i].field_type.element == Element::Ipv6)
                else {
                    bail!(
                        Field,
                        "`{name}` is not an ipv6 address, and is not compared with one"
                    );
                };
                let halves = self.halves(index);
                let same = Condition::All(
                    [
                        u128::from(*address) >> 64,
                        u128::from(*address) & u128::from(u64::MAX),
                    ]
                    .into_iter()
                    .zip(halves)
                    .map(|(half, field)| Condition::Number {
                        subject: Subject::Field(field),
                        relation: Relation::Equal,
                        with: half as i128,
                    })
                    .collect(),
                );
                Ok(match relation {
                    Relation::NotEqual => Condition::Not(Box::new(same)),
                    _ => same,
                })
            }
            Operand::Text(text) => {
                let compared = own.map(|index| &self.infos[index]);
                if let Some(info) = compared.filter(|info| !is_text(info)) {
                    bail!(
                        Field,
                        "`{name}` is of type {}, and cannot be compared with the text \"{text}\"",
                        info.field_type
                    );
                }
                let Subject::Field(field) = subject else {
                    bail!(
                        Field,
                        "`{name}` is a number, and cannot be compared with a text"
                    );
                };
                let pattern = match comparison {
                    Comparison::Matches => text.clone().into_bytes(),
                    // Escape the wildcards: all characters are literal.
                    _ => text
                        .bytes()
                        .flat_map(|byte| match byte {
                            b'*' | b'?' | b'[' | b'\\' => vec![b'\\', byte],
                            _ => vec![byte],
                        })
                        .collect(),
                };
                let matches = Condition::Text { field, pattern };
                Ok(match relation {
                    Relation::NotEqual => Condition::Not(Box::new(matches)),
                    _ => matches,
                })
            }
        }
    }

    /// Adds the two halves of an IPv6 address as fields that are not recorded, and returns their
    /// indices: filters compare numbers of up to 8 bytes.
    fn halves(&mut self, index: usize) -> [usize; 2] {
        [0, 8].map(|offset| {
            let mut half = Field {
                content: Content::Network { bytes: 8 },
                ..self.fetch.fields[index].clone()
            };
            if let Some(last) = half.pointers.last_mut() {
                *last += offset;
            }
            self.fetch.fields.push(half);
            self.fetch.fields.len() - 1
        })
    }

    /// Returns the index of the field with the thread's name, after the recorded fields; adds it
    /// if needed.
    fn comm(&mut self) -> usize {
        let comm = Field {
            source: Source::Comm,
            pointers: Vec::new(),
            length: None,
            content: Content::Text,
        };
        let known = self.fetch.fields[self.fetch.recorded..]
            .iter()
            .position(|f| *f == comm);
        if let Some(index) = known {
            return self.fetch.recorded + index;
        }
        self.fetch.fields.push(comm);
        self.fetch.fields.len() - 1
    }
}

/// Returns the function whose variables an event at this site means: the one the user named. A
/// site without a function name belongs to the innermost function that is inlined there, unless
/// it is the entry of the outermost function.
fn named(site: &Site) -> Option<&str> {
    match site.by_name {
        // An old version of a function has that behind its name (`f@V1`).
        true => site
            .symbol
            .as_deref()
            .map(|name| name.split_once('@').map_or(name, |(plain, _)| plain)),
        false => (!site.is_entry() || site.marker.is_some()).then_some(""),
    }
}

/// Returns the possible callers of the function that begins at a link address.
fn callers(site: &Site, entry: u64) -> Callers {
    let mut callers = Callers::Own;
    let Ok(symbols) = site.object.symbols() else {
        return callers;
    };
    let function = symbols.function_starting_at(entry);
    for name in function.into_iter().flat_map(|found| symbols.names(found)) {
        let is_copy = COPIES.iter().any(|mark| name.linkage.contains(mark));
        callers = match (callers, name.binding) {
            (Callers::Changed, _) => Callers::Changed,
            _ if is_copy => Callers::Changed,
            (Callers::Own, Binding::Local) => Callers::Own,
            _ => Callers::Any,
        };
    }
    callers
}

/// Parameters of a function, by name.
struct Parameters {
    shown: Vec<(String, TypedFetch)>,
    /// Those without a known value at the place, or of a type of which no value can be shown, with
    /// the reason.
    unshown: Vec<(String, String)>,
}

/// Returns where a function has its arguments if its language passes them in a way of its own.
fn own_convention(linkage: &str, site: &Site) -> Option<&'static str> {
    // OCaml's names are `camlModule__name_12`, from 5.1 on `camlModule.name_12`; its runtime in C has `caml_name`.
    let ocaml = linkage.strip_prefix("caml").is_some_and(|rest| {
        let numbered = rest.rsplit_once('_');
        let is_numbered = numbered.is_some_and(|(_, number)| number.parse::<u64>().is_ok());
        let is_module = rest.starts_with(|first: char| first.is_ascii_uppercase());
        is_module && is_numbered && (rest.contains("__") || rest.contains('.'))
    });
    if ocaml {
        return Some(
            "OCaml passes arguments in registers of its own, in this order: %ax, %bx, %di, %si, %dx, %cx, %r8, %r9, \
             %r12, %r13; an integer n is there as 2n+1",
        );
    }
    let is_haskell = || {
        let symbols = site.object.symbols();
        symbols.is_ok_and(|symbols| symbols.has_linkage_name("stg_upd_frame_info"))
    };
    (linkage.ends_with("_info") && is_haskell()).then_some(
        "Haskell's code has arguments in registers of its own and on a stack of its own: write registers (%bx, %r14, \
         %si)",
    )
}

/// Returns the parameters that exist at a place.
///
/// # Errors
/// There is no debug information for the place.
fn parameters(debug: &Debug<'_>, place: &DebugSite) -> Result<Parameters> {
    let described = debug
        .describe(place)
        .map_err(|error| err!(Field, "{error}"))?;
    let (mut shown, mut unshown) = (Vec::new(), Vec::new());
    for Described { name, fetch, .. } in described.into_iter().filter(|d| d.parameter) {
        match fetch {
            // `args#0`, from a parameter pack, is not a valid field name.
            Ok(found) => shown.push((name.replace('#', "_"), found)),
            Err(refusal) => unshown.push((name, refusal.to_string())),
        }
    }
    Ok(Parameters { shown, unshown })
}

/// True if a hit at the site is the end of a call: the return address is on top of the stack.
fn is_left(probe: &Probe, site: &Site) -> bool {
    probe.at == At::Return || site.leaving.is_some()
}

/// Returns the field and the key `stack` at a site, whose first address is `first`.
fn call_stack(most: u16, first: u64, probe: &Probe, site: &Site) -> Field {
    const _: () = assert!(FieldType::MOST_FRAMES as u32 == chain::MOST);
    const ENDBR64: &[u8] = b"\xf3\x0f\x1e\xfa";
    let file = site.object.file();
    let is_entry = || {
        let start = site.link_address.wrapping_sub(site.offset);
        let is_own = !matches!(site.body, Body::Inlined { .. }) && site.symbol.is_some();
        is_own
            && (site.is_entry()
                || site.offset == 4 && file.read(start, 4).as_deref() == Some(ENDBR64))
    };
    let described = || file.is_called(site.link_address).is_some();
    // Call frame information of functions that align their stacks is wrong there: rbp was popped.
    let returns = || {
        let is = |code: &[u8]| {
            let there = file.read(site.link_address, code.len() as u64);
            there.as_deref() == Some(code)
        };
        is(&[0xc3]) || is(&[0xf3, 0xc3]) || is(&[0xc2])
    };
    Field {
        source: Source::Register(Register::RBP),
        pointers: Vec::new(),
        length: None,
        content: Content::Callers {
            most,
            site: first,
            on_top: is_left(probe, site) || returns() || is_entry() && !described(),
        },
    }
}

/// Creates a field that is kept from the entry.
fn kept_field(source: Source, field_type: FieldType) -> Result<Field> {
    let content = content(field_type)?;
    if !matches!(content, Content::Number(_) | Content::Network { .. }) {
        bail!(
            Field,
            "it is a {field_type}, and only numbers are kept from the entry to the exit; at the \
             exit +0($entry:ARGUMENT):{field_type} reads memory by a pointer that was kept"
        );
    }
    Ok(Field {
        source,
        pointers: Vec::new(),
        length: None,
        content,
    })
}

/// Returns the content of a value that the start of an interval has kept: the start has already
/// extracted its bits, and put its bytes in order.
fn started_content(field_type: FieldType) -> Result<Content> {
    Ok(match content(field_type)? {
        Content::Number(width) => Content::Number(Width {
            bits: width.bits.map(|(_, bits)| (0, bits)),
            ..width
        }),
        Content::Network { bytes } => Content::Number(Width::unsigned(bytes)),
        _ => bail!(Field, "only numbers are kept from the start to the end"),
    })
}

/// True if a site is a tail call: a jump that leaves its function for another one.
fn is_tail_jump(site: &Site) -> bool {
    let leaving = site.leaving.as_ref();
    leaving.is_some_and(|leaving| leaving.way == Ok(ExitKind::TailCall))
}

/// True for a plain `$retval` without a type, which takes the type from the source.
pub fn is_untyped_result(argument: &FetchArg) -> bool {
    argument.fetch.base.is_result()
        && argument.fetch.derefs.is_empty()
        && argument.field_type.is_none()
}

/// Refuses fields that are known at a function's entry only.
fn known_at_return(probe: &Probe) -> Result<()> {
    for argument in probe.all_values() {
        let length = argument.length.as_deref();
        let bases = length.map(|length| &length.fetch.base);
        for base in [&argument.fetch.base].into_iter().chain(bases) {
            known_base_at_return(argument, base)?;
        }
    }
    Ok(())
}

fn known_base_at_return(argument: &FetchArg, base: &Base) -> Result<()> {
    match base {
        Base::Argument(_) | Base::AllArguments => bail!(
            Field,
            "field `{argument}`: a function's arguments are kept for its return one by one: \
                 write $entry:NAME or $entry:arg1 for each"
        ),
        Base::Variable(name) => bail!(
            Field,
            "field `{argument}`: variables are not known at a return, only $retval, \
                 registers, the stack and memory; $entry:{name} is what it was at the entry"
        ),
        Base::Register(_)
        | Base::Vector(_)
        | Base::Retval
        | Base::RetvalWord
        | Base::Entry(_)
        | Base::StackPointer
        | Base::StackWord(_)
        | Base::Latency
        | Base::Interval
        | Base::Started(_)
        | Base::CallStack(_)
        | Base::Comm
        | Base::Immediate(_)
        | Base::Text(_)
        | Base::Address(_)
        | Base::FileOffset(_) => {}
    }
    Ok(())
}

/// Returns an argument that reads the function's result and that the event needs: its filter, a
/// key or an aggregate uses it.
fn needed_result(probe: &Probe) -> Option<&FetchArg> {
    let filtered = probe.guard.as_ref().map(|filter| filter.names());
    let filtered = filtered.unwrap_or_default();
    let words = probe.pairing.iter().flat_map(|pairing| match pairing.side {
        Side::Start => [&pairing.key[..], &pairing.kept],
        Side::End => [&pairing.key[..], &[]],
    });
    let words = words.flatten().map(String::as_str);
    let asked = filtered.into_iter().chain(aggregated(probe)).chain(words);
    let asked: Vec<&str> = asked.collect();
    probe
        .all_values()
        .find(|a| a.starts_from(Base::is_result) && asked.contains(&a.name.as_str()))
}

/// Returns the names of the values that are keys or aggregated.
fn aggregated(probe: &Probe) -> Vec<&str> {
    fn names(of: &Aggregation) -> Vec<&str> {
        let keys = of.keys.iter().filter_map(|key| match key {
            KeyKind::Field(name) => Some(name.as_str()),
            KeyKind::Comm | KeyKind::Thread | KeyKind::Cpu | KeyKind::Stack(_) => None,
        });
        let values = of.aggregates.iter();
        keys.chain(values.filter_map(|aggregate| aggregate.field.as_deref()))
            .collect()
    }
    probe.aggregations().flat_map(names).collect()
}

/// Convention by which a function gets its arguments in registers.
enum Passed {
    SystemV,
    Go,
}

/// Returns the convention of the function around a site, or of the one that ends there.
fn in_registers(site: &Site) -> Result<Passed> {
    let object = &site.object;
    match object.file().convention(object.link(site.function())) {
        Convention::SystemV => Ok(Passed::SystemV),
        Convention::Go => Ok(Passed::Go),
        Convention::NotRegisters(why) => bail!(
            Field,
            "it is not known which registers have the arguments or the result of this function: \
             {why}; write a register (%ax), or what is on the stack (at the entry: $stack1, \
             +8($stack):s32)"
        ),
    }
}

/// True if the function around a site uses the calling convention of Go's compiler.
fn is_go(site: &Site) -> bool {
    matches!(in_registers(site), Ok(Passed::Go))
}

/// True if a Go function does not restore a register for arguments after its stack has grown.
fn is_lost(gpr: Gpr, site: &Site) -> bool {
    let link = |address| site.object.link(address);
    let (start, end) = (link(site.extent.start), link(site.extent.end));
    let restored = site.object.file().restored(start, end);
    restored.is_some_and(|restored| !restored.has_general(usize::from(gpr.encoding())))
}

/// Returns the 64-bit register with this encoding.
fn register(gpr: Gpr) -> Register {
    Register::RAX + u32::from(gpr.encoding())
}

/// Builds a field from a fetch that debug information describes, at a site.
fn typed(found: &TypedFetch, site: &Site) -> Result<(Field, FieldType)> {
    let bias = match found.link_address {
        true => site.object.data_bias(),
        false => 0,
    };
    let mut field = known(&found.fetch, found.field_type, site, bias, Area::default())?;
    field.length = kept_memory::length(found, &|part| Ok(typed(part, site)?.0))?;
    Ok((field, found.field_type))
}

/// Builds a field from a fetch with a known base, at a site. `bias` is added to addresses; call
/// slots are in `area`.
fn known(
    asked: &Asked,
    field_type: FieldType,
    site: &Site,
    bias: u64,
    area: Area,
) -> Result<Field> {
    let was_called = || match &site.body {
        Body::Inlined { .. } => bail!(
            Field,
            "an inlined copy has no arguments in registers, and no return address on the stack; \
             write parameters by name, or $arg* for all"
        ),
        Body::Clone | Body::Own => Ok(()),
    };
    let has_own_arguments = || match &site.body {
        Body::Clone => bail!(Field, "{CHANGED}"),
        Body::Inlined { .. } | Body::Own => was_called(),
    };
    let stack = Source::Register(Register::RSP);
    let mut pointers = Vec::new();
    let source = match &asked.base {
        Base::Register(gpr) => Source::Register(register(*gpr)),
        Base::Vector(number) => Source::Vector(*number),
        Base::Argument(number) => match (
            has_own_arguments().and_then(|()| in_registers(site))?,
            Gpr::of_argument(*number),
        ) {
            (Passed::Go, _) => match Gpr::of_go_argument(*number) {
                Some(gpr) if is_lost(gpr, site) => bail!(
                    Field,
                    "the function does not use this argument, so its register is not saved when the \
                     stack grows, and may hold something else"
                ),
                Some(gpr) => Source::Register(register(gpr)),
                None => bail!(
                    Field,
                    "Go passes at most nine words in registers, others on the stack; write \
                     parameters by name, or +OFFSET($stack)"
                ),
            },
            (Passed::SystemV, Some(gpr)) => Source::Register(register(gpr)),
            (Passed::SystemV, None) if site.is_entry() => {
                // From the seventh on, arguments are on the stack, above the return address.
                pointers.push(8 * (i64::from(*number) - 6));
                stack
            }
            (Passed::SystemV, None) => {
                bail!(
                    Field,
                    "arguments on the stack are known at a function's entry only"
                )
            }
        },
        Base::StackPointer => stack,
        Base::StackWord(word) => {
            was_called()?;
            pointers.push(8 * i64::from(*word));
            stack
        }
        Base::Latency => match &site.leaving {
            Some(leaving) => Source::Latency(slots::number(leaving.function, area)),
            None => bail!(Field, "how long a call took is known at its end only"),
        },
        Base::Interval => Source::Interval,
        Base::Started(word) => {
            return Ok(Field {
                source: Source::Started {
                    word: u16::from(*word),
                },
                pointers: Vec::new(),
                length: None,
                content: started_content(field_type)?,
            });
        }
        Base::Comm => Source::Comm,
        Base::Immediate(value) => Source::Immediate(value.wrapping_add(bias)),
        Base::Text(text) => Source::Text(text.clone().into_bytes()),
        Base::Address(address) => {
            pointers.push(0);
            Source::Immediate(address.wrapping_add(bias))
        }
        Base::FileOffset(offset) => {
            pointers.push(0);
            // Relative to the address that file offset 0 would have, as in the kernel.
            let start = site.address.wrapping_sub(site.file_offset);
            Source::Immediate(start.wrapping_add(*offset))
        }
        Base::Retval | Base::RetvalWord => {
            // Go returns the first word of its result in rax as well.
            in_registers(site)?;
            Source::Register(Register::RAX)
        }
        Base::AllArguments | Base::Variable(_) | Base::Entry(_) | Base::CallStack(_) => {
            bail!(Field, "it has no place of its own")
        }
    };
    pointers.extend(asked.derefs.iter().map(|deref| deref.offset));
    Ok(Field {
        source,
        pointers,
        length: None,
        content: content(field_type)?,
    })
}

fn is_text(info: &FieldInfo) -> bool {
    matches!(info.field_type.element, Element::String { .. })
}
