//! From the words of an event to what its probe fetches.

use crate::calls;
use anyhow::{Context, anyhow, bail};
use capriole_event::{
    At, Base, Comparison, Element, EventSpec, Fetch as Asked, FetchArg, FieldType, Filter, Gpr,
    KeyKind, Operand, Shown,
};
use capriole_insn::ExitKind;
use capriole_plan::condition::{Condition, Relation, Subject, Width};
use capriole_plan::program::{Content, Fetch, Field, Source};
use capriole_target::debug::{Debug, Described, Returned, Site as DebugSite, TypedFetch};
use capriole_target::resolve::{Body, Site};
use capriole_trace::FieldInfo;
use iced_x86::Register;
use std::collections::HashMap;
use std::path::PathBuf;

/// A thread's id, a CPU's number.
const WORD: Content = Content::Number(Width::WORD);

/// What an event records at a site.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Fields {
    /// The fields' names and types, for the trace.
    pub infos: Vec<FieldInfo>,
    /// Where their contents come from, and when the event is wanted.
    pub fetch: Fetch,
    /// How many of them, from the first on, are the key by which hits are kept apart. Only if
    /// they are counted; then those that are aggregated follow.
    pub keys: usize,
}

/// What is to become of an event's hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// Each is recorded, with all fields.
    #[default]
    Record,
    /// They are counted, and what is aggregated is added up.
    Count,
}

impl Fields {
    /// No fields yet. At a conditional jump out of a function they are wanted if it is taken.
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

    /// Names of the fields that are aggregated.
    pub fn value_names(&self) -> Vec<&str> {
        let values = &self.infos[self.keys..];
        values.iter().map(|info| info.name.as_str()).collect()
    }

    /// Names of the fields that are nothing but a register.
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

/// Finds out what events record. Debug information is opened once for each object.
#[derive(Default)]
pub struct Reader<'a> {
    purpose: Purpose,
    debug: HashMap<PathBuf, Debug<'a>>,
}

impl<'a> Reader<'a> {
    /// One that reads what events are to be for this.
    pub fn new(purpose: Purpose) -> Reader<'a> {
        Reader {
            purpose,
            ..Reader::default()
        }
    }

    /// The fields and the filter of an event at a site.
    ///
    /// # Errors
    /// A part that cannot be recorded there, by its text, and why.
    pub fn fields(&mut self, spec: &EventSpec, site: &'a Site) -> anyhow::Result<Fields> {
        self.read(spec, site)
            .with_context(|| format!("event `{}`", spec.text))
    }

    fn read(&mut self, spec: &EventSpec, site: &'a Site) -> anyhow::Result<Fields> {
        if spec.at == At::Return {
            known_at_return(spec)?;
        }
        if let Some(argument) = needed_result(spec)
            && is_tail_jump(site)
        {
            bail!("a jump to another function has no result yet, which `{argument}` asks for");
        }
        match self.purpose {
            Purpose::Record => self.recorded(spec, site),
            Purpose::Count => self.counted(spec, site),
        }
    }

    fn recorded(&mut self, spec: &EventSpec, site: &'a Site) -> anyhow::Result<Fields> {
        let mut fields = Fields::at(site);
        let tail = is_tail_jump(site);
        let there = |argument: &&FetchArg| !tail || argument.fetch.base != Base::Retval;
        for argument in spec.arguments.iter().filter(there) {
            self.push(argument, site, &mut fields)?;
        }
        fields.fetch.recorded = fields.fetch.fields.len();
        fields.filter(spec)?;
        // What does not fit together shows here, not when all is prepared.
        fields.fetch.work(0).map_err(|error| {
            let name = |index: usize| fields.infos.get(index).map_or("comm", |i| &i.name);
            anyhow!("{}", error.with_names(name))
        })?;
        Ok(fields)
    }

    /// First the keys, then what is aggregated, and what the filter alone asks for.
    fn counted(&mut self, spec: &EventSpec, site: &'a Site) -> anyhow::Result<Fields> {
        let is_stack = |argument: &&FetchArg| matches!(argument.fetch.base, Base::CallStack(_));
        if let Some(stack) = spec.arguments.iter().find(is_stack) {
            bail!(
                "`{stack}` cannot be counted: record the event, and see \
                 `capriole report --callers`"
            );
        }
        let mut fields = Fields::at(site);
        let named = |name: &str| spec.arguments.iter().find(|a| a.name == name);
        for key in &spec.aggregation.keys {
            let (source, content, field_type) = match &key.kind {
                KeyKind::Field(name) => {
                    let argument = named(name).context("a key is a field")?;
                    self.push(argument, site, &mut fields)?;
                    continue;
                }
                KeyKind::Comm => (Source::Comm, Content::Text, FieldType::STRING),
                KeyKind::Thread => (Source::Thread, WORD, FieldType::U32),
                KeyKind::Cpu => (Source::Cpu, WORD, FieldType::U32),
            };
            let field = Field {
                source,
                pointers: Vec::new(),
                content,
            };
            fields.push(key.name(), field, field_type);
        }
        fields.keys = fields.infos.len();
        for aggregate in &spec.aggregation.aggregates {
            let Some(name) = &aggregate.field else {
                continue;
            };
            if fields.value_names().contains(&name.as_str()) {
                continue;
            }
            match named(name) {
                Some(argument) => self.push(argument, site, &mut fields)?,
                None => bail!("`{aggregate}` asks for a field that there is not"),
            }
        }
        if let Some(float) = fields.infos.iter().find(|info| info.field_type.is_float()) {
            bail!(
                "`{}` is a floating point number, which is neither added up nor a key; \
                 `capriole record` shows each",
                float.name
            );
        }
        fields.fetch.recorded = fields.fetch.fields.len();
        let Some(filter) = &spec.filter else {
            return Ok(fields);
        };
        let infos = fields.infos.len();
        for argument in &spec.arguments {
            let everything = argument.fetch.base == Base::AllArguments;
            // Of a text that is a key less is kept than the filter looks at.
            let mut infos = fields.infos.iter();
            let known = infos.any(|info| info.name == argument.name && !is_text(info));
            if everything || !known && filter.names().contains(&argument.name.as_str()) {
                self.push(argument, site, &mut fields)?;
            }
        }
        fields.filter(spec)?;
        fields.infos.truncate(infos);
        Ok(fields)
    }

    /// The field, or fields, of an argument.
    fn push(
        &mut self,
        argument: &FetchArg,
        site: &'a Site,
        fields: &mut Fields,
    ) -> anyhow::Result<()> {
        if argument.fetch.base == Base::AllArguments {
            return self.all_arguments(site, fields);
        }
        let (field, field_type) = self
            .field(argument, site)
            .with_context(|| format!("field `{argument}`"))?;
        fields.push(&argument.name, field, field_type);
        Ok(())
    }

    fn field(&mut self, argument: &FetchArg, site: &'a Site) -> anyhow::Result<(Field, FieldType)> {
        if matches!(argument.fetch.base, Base::Variable(_)) {
            let (debug, place) = self.debug(site)?;
            let found = debug
                .fetch(&place, &argument.fetch, argument.field_type)
                .map_err(|error| anyhow!("{error}"))?;
            return typed(&found, site);
        }
        let (field_type, vector) = match is_untyped_result(argument) {
            true => self.result_type(site)?,
            false => {
                let known = argument.known_type().unwrap_or(FieldType::X64);
                (known, known.is_float())
            }
        };
        let result = argument.fetch.base == Base::Retval && argument.fetch.derefs.is_empty();
        if result && vector {
            let field = Field {
                source: Source::Vector(0),
                pointers: Vec::new(),
                content: content(field_type)?,
            };
            return Ok((field, field_type));
        }
        let field = known(&argument.fetch, field_type, site, 0)?;
        Ok((field, field_type))
    }

    /// The type of what the function of an exit returns: that of the source, if debug
    /// information tells; and whether it is in a vector register.
    fn result_type(&mut self, site: &'a Site) -> anyhow::Result<(FieldType, bool)> {
        let Some(leaving) = &site.leaving else {
            return Ok((FieldType::X64, false));
        };
        let entry = site.object.link(leaving.function);
        let returned = self.debug_of(site).and_then(|debug| {
            let place = debug.site(entry, None)?;
            Ok(debug.returned(&place)?)
        });
        match returned {
            Ok(Returned::Number(field_type)) => Ok((field_type, false)),
            Ok(Returned::Vector(field_type)) => Ok((field_type, true)),
            Ok(Returned::Floating(c_type)) => bail!(
                "the function returns `{c_type}`; of floating point results only `float` and \
                 `double`, which are in xmm0, can be read; $retval:x64 is whatever rax holds"
            ),
            Ok(Returned::Nothing | Returned::Other(_)) | Err(_) => Ok((FieldType::X64, false)),
        }
    }

    /// `$arg*`: the parameters, as debug information names them.
    fn all_arguments(&mut self, site: &'a Site, fields: &mut Fields) -> anyhow::Result<()> {
        let (debug, place) = self.debug(site)?;
        let described = debug.describe(&place).map_err(|error| anyhow!("{error}"))?;
        for parameter in described.iter().filter(|d| d.parameter && !d.outer) {
            let name = &parameter.name;
            let found = parameter
                .fetch
                .as_ref()
                .map_err(|refusal| anyhow!("parameter `{name}`: {refusal}"))?;
            let (field, field_type) = typed(found, site)?;
            fields.push(name, field, field_type);
        }
        Ok(())
    }

    /// What debug information says of a site.
    fn debug(&mut self, site: &'a Site) -> anyhow::Result<(&Debug<'a>, DebugSite)> {
        let debug = self.debug_of(site)?;
        let place = match &site.scope {
            Some(place) => place.clone(),
            None => debug
                .site(site.link_address, site.symbol.as_deref())
                .map_err(|error| anyhow!("{error}"))?,
        };
        Ok((debug, place))
    }

    /// The debug information of a site's object.
    fn debug_of(&mut self, site: &'a Site) -> anyhow::Result<&Debug<'a>> {
        let path = site.object.path().to_owned();
        if !self.debug.contains_key(&path) {
            let debug = site
                .object
                .file()
                .debug()
                .map_err(|error| anyhow!("{error}"))?;
            self.debug.insert(path.clone(), debug);
        }
        self.debug.get(&path).context("it was opened")
    }

    /// The parameters and variables at a site.
    ///
    /// # Errors
    /// There is no debug information about it.
    pub fn describe(&mut self, site: &'a Site) -> anyhow::Result<Vec<Described>> {
        let (debug, place) = self.debug(site)?;
        debug.describe(&place).map_err(|error| anyhow!("{error}"))
    }
}

impl Fields {
    fn push(&mut self, name: &str, field: Field, field_type: FieldType) {
        self.infos.push(FieldInfo {
            name: name.to_owned(),
            field_type,
        });
        self.fetch.fields.push(field);
    }

    /// Takes the event's filter, which is over these fields.
    fn filter(&mut self, spec: &EventSpec) -> anyhow::Result<()> {
        if let Some(filter) = &spec.filter {
            self.fetch.condition = Some(self.condition(filter)?);
        }
        Ok(())
    }

    /// A filter over these fields. The name of the thread becomes a field that is fetched
    /// and not recorded.
    fn condition(&mut self, filter: &Filter) -> anyhow::Result<Condition> {
        let all = |fields: &mut Fields, of: &[Filter]| -> anyhow::Result<Vec<Condition>> {
            of.iter().map(|part| fields.condition(part)).collect()
        };
        Ok(match filter {
            Filter::Not(inner) => Condition::Not(Box::new(self.condition(inner)?)),
            Filter::And(of) => Condition::All(all(self, of)?),
            Filter::Or(of) => Condition::Any(all(self, of)?),
            Filter::Compare {
                field,
                comparison,
                operand,
                ..
            } => self.comparison(field, *comparison, operand)?,
        })
    }

    fn comparison(
        &mut self,
        name: &str,
        comparison: Comparison,
        operand: &Operand,
    ) -> anyhow::Result<Condition> {
        let own = self.infos.iter().rposition(|info| info.name == name);
        let float = own.is_some_and(|index| self.infos[index].field_type.is_float());
        if float {
            bail!("the filter asks for `{name}`, a floating point number, which is not compared");
        }
        let subject = match (own, name) {
            (Some(index), _) => Subject::Field(index),
            (None, "tid" | "common_pid") => Subject::Thread,
            (None, "cpu" | "CPU") => Subject::Cpu,
            (None, "comm" | "COMM") => Subject::Field(self.comm()),
            (None, _) => bail!("the filter asks for `{name}`, which is no field of the event"),
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
            Operand::Number { value, negative } => Ok(Condition::Number {
                subject,
                relation,
                with: match negative {
                    true => i128::from(*value as i64),
                    false => i128::from(*value),
                },
            }),
            Operand::Text(text) => {
                let Subject::Field(field) = subject else {
                    bail!("`{name}` is a number, and cannot be compared with a text");
                };
                let pattern = match comparison {
                    Comparison::Matches => text.clone().into_bytes(),
                    // No character of it is a wildcard.
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

    /// The field with the name of the thread, behind those that are recorded.
    fn comm(&mut self) -> usize {
        let comm = Field {
            source: Source::Comm,
            pointers: Vec::new(),
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

/// Whether a site is a jump by which a function is left for another one.
fn is_tail_jump(site: &Site) -> bool {
    let leaving = site.leaving.as_ref();
    leaving.is_some_and(|leaving| leaving.way == Ok(ExitKind::TailCall))
}

/// `$retval`, whose type is to be that of the source.
pub fn is_untyped_result(argument: &FetchArg) -> bool {
    argument.fetch.base == Base::Retval
        && argument.fetch.derefs.is_empty()
        && argument.field_type.is_none()
}

/// Refuses what is known at a function's entry only.
fn known_at_return(spec: &EventSpec) -> anyhow::Result<()> {
    for argument in &spec.arguments {
        match &argument.fetch.base {
            Base::Argument(_) | Base::AllArguments => bail!(
                "field `{argument}`: the arguments of a function are not known at its return; \
                 record its entry as well: `p:` or without a letter"
            ),
            Base::Variable(_) => bail!(
                "field `{argument}`: variables are not known at a return, only $retval, \
                 registers, the stack and memory"
            ),
            _ => {}
        }
    }
    Ok(())
}

/// An argument with the function's result without which the event means nothing: its filter,
/// a key or an aggregate asks for it.
fn needed_result(spec: &EventSpec) -> Option<&FetchArg> {
    let filtered = spec.filter.as_ref().map(|filter| filter.names());
    let filtered = filtered.unwrap_or_default();
    let aggregation = &spec.aggregation;
    let keys = aggregation.keys.iter().filter_map(|key| match &key.kind {
        KeyKind::Field(name) => Some(name.as_str()),
        _ => None,
    });
    let aggregated = aggregation.aggregates.iter();
    let aggregated = aggregated.filter_map(|aggregate| aggregate.field.as_deref());
    let asked: Vec<&str> = filtered.into_iter().chain(keys).chain(aggregated).collect();
    spec.arguments
        .iter()
        .find(|a| a.fetch.base == Base::Retval && asked.contains(&a.name.as_str()))
}

/// The 64-bit register that the machine encodes so.
fn register(gpr: Gpr) -> Register {
    Register::RAX + u32::from(gpr.encoding())
}

/// What debug information tells to fetch, at a site.
fn typed(found: &TypedFetch, site: &Site) -> anyhow::Result<(Field, FieldType)> {
    let bias = match found.link_address {
        true => site.address.wrapping_sub(site.link_address),
        false => 0,
    };
    let field = known(&found.fetch, found.field_type, site, bias)?;
    Ok((field, found.field_type))
}

/// A fetch from a known place, at a site. `bias` is added to an address.
fn known(asked: &Asked, field_type: FieldType, site: &Site, bias: u64) -> anyhow::Result<Field> {
    match (&asked.base, &site.body) {
        (Base::Argument(_) | Base::StackWord(_), Body::Inlined { .. }) => bail!(
            "an inlined copy has no arguments in registers, and no return address on the stack; \
             write parameters by name, or $arg* for all"
        ),
        (Base::Argument(_), Body::Clone) => bail!(
            "the compiler changed the arguments of this copy; write parameters by name, or \
             $arg* for all"
        ),
        _ => {}
    }
    let stack = Source::Register(Register::RSP);
    let mut pointers = Vec::new();
    let source = match &asked.base {
        Base::Register(gpr) => Source::Register(register(*gpr)),
        Base::Vector(number) => Source::Vector(*number),
        Base::Argument(number) => match Gpr::of_argument(*number) {
            Some(gpr) => Source::Register(register(gpr)),
            None if site.offset == 0 => {
                // Behind the return address, from the seventh on.
                pointers.push(8 * (i64::from(*number) - 6));
                stack
            }
            None => bail!("arguments on the stack are known at a function's entry only"),
        },
        Base::StackPointer => stack,
        Base::StackWord(word) => {
            pointers.push(8 * i64::from(*word));
            stack
        }
        Base::Latency => match &site.leaving {
            Some(leaving) => Source::Latency(calls::number(leaving.function)),
            None => bail!("how long a call took is known at its end only"),
        },
        Base::Comm => Source::Comm,
        Base::Immediate(value) => Source::Immediate(value.wrapping_add(bias)),
        Base::Text(text) => Source::Text(text.clone().into_bytes()),
        Base::Address(address) => {
            pointers.push(0);
            Source::Immediate(address.wrapping_add(bias))
        }
        Base::FileOffset(offset) => {
            pointers.push(0);
            let link = site.object.file().link_address(*offset).with_context(|| {
                let path = site.object.path().display();
                format!("nothing of {path} is mapped from offset {offset:#x}")
            })?;
            Source::Immediate(site.object.run_time(link))
        }
        Base::Retval => Source::Register(Register::RAX),
        // How it is copied, its content says.
        Base::CallStack(_) => stack,
        Base::AllArguments | Base::Variable(_) => bail!("it has no place of its own"),
    };
    pointers.extend(asked.derefs.iter().map(|deref| deref.offset));
    Ok(Field {
        source,
        pointers,
        content: content(field_type)?,
    })
}

fn is_text(info: &FieldInfo) -> bool {
    matches!(info.field_type.element, Element::String { .. })
}

/// What a type takes in memory.
fn content(field_type: FieldType) -> anyhow::Result<Content> {
    Ok(match (field_type.element, field_type.count) {
        (Element::String { .. }, None) => Content::Text,
        (Element::String { .. }, Some(count)) => Content::Texts { count },
        (Element::CallStack { bytes }, _) => Content::CallStack { bytes },
        (Element::Number { bytes, .. }, Some(count)) => Content::Numbers { bytes, count },
        (Element::Number { shown, bytes, bits }, None) => {
            if bits.is_some() && shown == Shown::Signed {
                bail!("a signed bit field has no type; give one, such as b3@0/32");
            }
            Content::Number(Width {
                bytes,
                signed: shown == Shown::Signed,
                bits: bits.map(|bits| (bits.offset, bits.width)),
            })
        }
    })
}
