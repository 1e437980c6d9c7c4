//! Call stacks that are keys: their names, and their forms in text, JSON and flame graphs.

use super::Arguments;
use super::columns::{Figure, Names, Statistic, computed};
use super::definition_names;
use super::lookup::keys;
use capriole::aggregate::model::{
    Chain, ChainEnd, ChainFunction, Group, Measure, Row, Snapshot, Value as Key,
};
use capriole::names::Namer;
use capriole_event::{Action, KeyKind};
use capriole_object::symbols::shown::{Form, ShownNames};
use capriole_patch::attach::Attached;
use capriole_proc::process::Process;
use capriole_report::Folded;
use capriole_report::callstack::{CallStacks, End, Frame};
use capriole_select::event::Event;
use capriole_select::select::Selected;
use capriole_text::printable;
use capriole_trace::write_file;
use serde_json::{Value, json};
use std::path::Path;

/// Names functions in call stacks, if keys are call stacks.
#[derive(Default)]
pub struct Functions(Option<Known>);

struct Known {
    stacks: CallStacks,
    namer: Namer,
}

impl Functions {
    /// Reads the mappings of the program, before the probes of these events are inserted.
    pub fn begin(&mut self, process: &Process, selected: &[Selected]) {
        let mut keys = keys(selected);
        self.0 = keys
            .any(|info| info.field_type.is_call_stack())
            .then(|| Known {
                stacks: CallStacks::default(),
                namer: Namer::new(process),
            });
    }

    /// Tells what belongs to the probes, once they are in the program.
    pub fn attached(&mut self, attached: &Attached) {
        if let Some(known) = &mut self.0 {
            known.namer.know_signal_returns(attached.signal_returns());
        }
    }

    /// Sets the other processes that are counted.
    pub fn set_children(&mut self, children: &[Process]) {
        if let Some(known) = &mut self.0 {
            known.namer.set_children(children.to_vec());
        }
    }

    /// Looks for code that was mapped since the last time, if it is time.
    pub fn keep_looking(&mut self) {
        if let Some(known) = &mut self.0 {
            known.namer.keep_looking();
        }
    }

    /// Names the functions in the keys of these groups.
    pub fn name(&mut self, groups: &mut [Group]) {
        let Some(known) = &mut self.0 else { return };
        known.namer.look();
        for group in groups {
            group.name_stacks(|chain| known.name(chain));
        }
    }

    /// Returns what is to be said of the functions' names, a line for each remark.
    pub fn remarks(&self) -> Vec<String> {
        self.0
            .as_ref()
            .map_or_else(Vec::new, |known| known.stacks.remarks())
    }
}

impl Known {
    fn name(&mut self, chain: &mut Chain) {
        let end = match chain.end {
            ChainEnd::Outermost => End::Outermost,
            ChainEnd::Truncated => End::Truncated,
            ChainEnd::Unknown => End::Unknown,
        };
        self.namer.chain(chain.addresses.iter().copied());
        let named = self.namer.take();
        for name in named.names {
            self.stacks.add_name(name);
        }
        for remark in named.remarks {
            self.stacks.remark(remark);
        }
        let found = self.stacks.chain(chain.addresses.iter().copied(), end);
        chain.end = match found.end {
            End::Outermost => ChainEnd::Outermost,
            End::Truncated => ChainEnd::Truncated,
            End::Unknown => ChainEnd::Unknown,
        };
        let calls = found.calls.iter().flat_map(|call| self.stacks.call(*call));
        chain.functions = calls.map(function).collect();
    }
}

fn function(frame: &Frame) -> ChainFunction {
    ChainFunction {
        address: frame.address,
        symbol: frame.symbol.clone(),
        name: frame.name(),
        offset: frame.offset,
        object: frame.object.clone(),
        inlined: frame.inlined,
        same_code: frame.same_code.clone(),
    }
}

/// Returns the reason for the end of a stack, as JSON has it.
pub fn end(end: ChainEnd) -> &'static str {
    match end {
        ChainEnd::Outermost => "outermost",
        ChainEnd::Truncated => "truncated",
        ChainEnd::Unknown => "unknown",
    }
}

/// Formats the functions of a stack, innermost first.
pub fn json(chain: &Chain) -> Value {
    let functions = chain.functions.iter();
    functions
        .map(|function| {
            let offset = function.offset.filter(|_| function.symbol.is_some());
            let mut value = json!({
                "address": format!("{:#x}", function.address),
                "symbol": function.symbol,
                "offset": offset.map(|offset| format!("{offset:#x}")),
                "object": function.object.as_deref(),
            });
            if function.inlined {
                value["inlined"] = json!(true);
            }
            if !function.same_code.is_empty() {
                value["same_code"] = json!(
                    function
                        .same_code
                        .iter()
                        .map(|name| &**name)
                        .collect::<Vec<_>>()
                );
            }
            value
        })
        .collect()
}

/// Line for a stack that does not end with the outermost function; `None` if it does.
fn ending(end: ChainEnd) -> Option<&'static str> {
    match end {
        ChainEnd::Outermost => None,
        ChainEnd::Truncated => Some("[truncated]"),
        ChainEnd::Unknown => Some("[unknown caller]"),
    }
}

/// Indentation of the lines of a stack.
const INDENT: &str = "        ";

/// Formats the stack of a row: a line for each function, innermost first, and one for an end that is
/// not the program's or the thread's begin.
pub fn below(row: &Row, form: Form) -> Vec<String> {
    let mut lines = Vec::new();
    for key in &row.keys {
        let Key::Stack(chain) = key else { continue };
        let symbols = chain.functions.iter();
        let symbols = symbols.filter_map(|function| function.symbol.as_deref());
        let names = ShownNames::of(symbols, form);
        let functions = chain.functions.iter();
        lines.extend(functions.map(|function| line(function, &names)));
        lines.extend(ending(chain.end).map(|end| format!("{INDENT}{end}")));
    }
    lines
}

fn line(function: &ChainFunction, names: &ShownNames) -> String {
    let name = match (&function.symbol, function.offset) {
        (Some(symbol), _) => names.get(symbol),
        (None, Some(_)) => format!("[{}]", function.name),
        (None, None) => function.name.clone(),
    };
    let mut text = format!("{INDENT}{}", printable(&name));
    if let Some(offset) = function.offset {
        text += &format!("+{offset:#x}");
    }
    if function.inlined {
        text += " (inlined)";
    }
    // JSON has the whole path.
    let file = function.object.as_deref().map(Path::new);
    match file.and_then(Path::file_name) {
        Some(file) => text += &format!(" ({})", printable(&file.to_string_lossy())),
        None => text += &format!(" ({:#x})", function.address),
    }
    text
}

/// Formats a stack in a column: the functions, innermost first.
pub fn inline(chain: &Chain) -> String {
    let symbols = chain.functions.iter();
    let symbols = symbols.filter_map(|function| function.symbol.as_deref());
    let names = ShownNames::of(symbols, Form::Frame);
    let functions = chain.functions.iter().map(|function| {
        let name = match &function.symbol {
            Some(symbol) => names.get(symbol),
            None => function.name.clone(),
        };
        printable(&name)
    });
    let end = ending(chain.end).map(ToOwned::to_owned);
    functions.chain(end).collect::<Vec<_>>().join(" < ")
}

/// How stacks are folded.
pub struct Folding {
    /// Title of the column that is added up.
    weight: String,
}

impl Folding {
    /// Returns `None` if stacks are not folded.
    ///
    /// # Errors
    /// No event has call stacks as keys, or no table of one has a column that can be added up with
    /// that title.
    pub fn of(arguments: &Arguments, events: &[Event]) -> anyhow::Result<Option<Folding>> {
        if !arguments.folded && arguments.flame.is_none() {
            if arguments.weight.is_some() {
                anyhow::bail!("--weight needs --folded or --flame FILE");
            }
            return Ok(None);
        }
        // Before the program is counted, not after it.
        if let Some(file) = &arguments.flame
            && let Some(directory) = file.parent()
            && !directory.as_os_str().is_empty()
            && !directory.is_dir()
        {
            anyhow::bail!(
                "--flame {}: there is no directory {}",
                printable(&file.to_string_lossy()),
                printable(&directory.to_string_lossy())
            );
        }
        let weight = arguments.weight.clone();
        let folding = Folding {
            weight: weight.unwrap_or_else(|| "calls".to_owned()),
        };
        let mut columns: Vec<String> = Vec::new();
        let mut found = false;
        for probe in events.iter().map(Event::probe) {
            for action in &probe.actions {
                let Action::Update { aggregation, .. } = action else {
                    continue;
                };
                let is_stack = |key: &KeyKind| matches!(key, KeyKind::Stack(_));
                if !aggregation.keys.iter().any(is_stack) {
                    continue;
                }
                let names = definition_names(probe, aggregation);
                found |= weight_of(&names.names(), &folding.weight).is_some();
                for (title, _) in names.names().columns() {
                    if weight_of(&names.names(), &title).is_some() && !columns.contains(&title) {
                        columns.push(title);
                    }
                }
            }
        }
        if columns.is_empty() {
            anyhow::bail!("no event has call stacks as keys: write `by stack` behind one");
        }
        if !found {
            anyhow::bail!(
                "no table has a column `{}` that can be added up; there are {}",
                folding.weight,
                columns.join(", ")
            );
        }
        Ok(Some(folding))
    }

    /// Unit of the numbers, for pictures.
    fn unit(&self) -> &str {
        match self.weight.as_str() {
            "total" => "ns",
            weight => weight,
        }
    }

    /// Folds the rows that have call stacks. Other keys are outermost frames, as is the reason why a
    /// stack is not whole. Calls without a row are a path of their own, so all numbers are there.
    pub fn fold(&self, snapshot: &Snapshot) -> Folded {
        let mut folded = Folded::default();
        for group in &snapshot.groups {
            let rows = group.rows.iter();
            let is_stack = |key: &Key| matches!(key, Key::Stack(_));
            if !rows.clone().flat_map(|row| &row.keys).any(is_stack) {
                continue;
            }
            let Some(figure) = weight_of(&Names::from(group), &self.weight) else {
                continue;
            };
            for row in rows {
                let mut path: Vec<String> = Vec::new();
                let others = group.key_names.iter().zip(&row.keys);
                for (name, key) in others.filter(|(_, key)| !is_stack(key)) {
                    path.push(format!("{name}={}", super::text::key_cell(key)));
                }
                for key in &row.keys {
                    let Key::Stack(chain) = key else { continue };
                    path.extend(ending(chain.end).map(ToOwned::to_owned));
                    let functions = chain.functions.iter().rev();
                    path.extend(functions.map(|function| function.name.clone()));
                }
                folded.add(path, number(row, figure));
            }
            for row in &group.others {
                folded.add(vec!["(other keys)".to_owned()], number(row, figure));
            }
        }
        folded
    }
}

/// Returns the column with this title if it can be added up.
fn weight_of(names: &Names<'_>, title: &str) -> Option<Figure> {
    names.find(title).filter(|figure| match figure {
        Figure::Calls => true,
        Figure::Measure(number) => names.measures[*number].starts_with("sum("),
        Figure::Of(number, Statistic::Sum) => names.is_time(*number),
        _ => false,
    })
}

/// Returns the number of a row in a column; 0 for a negative sum.
fn number(row: &Row, figure: Figure) -> u64 {
    let sum = |measure: &Measure| match measure {
        Measure::Sum(sum) => sum.value(),
        Measure::Histogram(histogram) => match histogram.exact {
            Some(exact) => exact.sum,
            None => computed(histogram, Statistic::Sum).map_or(0, |(sum, _)| sum as i128),
        },
        _ => 0,
    };
    match figure {
        Figure::Calls => row.calls,
        Figure::Measure(number) | Figure::Of(number, _) => {
            let sum = row.measures.get(number).map_or(0, sum);
            u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}

/// Draws folded stacks into a file.
///
/// # Errors
/// There are none, or the file cannot be written.
pub fn draw(
    folded: &Folded,
    folding: &Folding,
    form: Form,
    title: &str,
    file: &Path,
) -> anyhow::Result<()> {
    let mut picture = Vec::new();
    folded
        .draw(form, title, folding.unit(), &mut picture)
        .map_err(|error| anyhow::anyhow!("cannot draw {}: {error}", file.display()))?;
    write_file(file, &picture)
        .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", file.display()))
}
