//! Arguments of a static marker as fields of an event.

use crate::content::content;
use crate::error::{Result, bail, err};
use capriole_codegen::fetch::{Field, Source};
use capriole_event::{
    Base, Bits, Element, Fetch as Asked, FetchArg, FieldType, Place as Asking, Probe, Shown,
};
use capriole_object::markers::format;
use capriole_object::markers::format::{Conversion, conversions};
use capriole_object::markers::operand::{Argument, Operand, Place};
use capriole_object::markers::{Marker, SymbolValue};
use capriole_planner::resolve::Site;
use capriole_text::printable;
use capriole_trace::TextFormat;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Returns the names of a marker's arguments: those in its format, or else `arg1` and so on.
pub fn names(marker: &Marker) -> Vec<String> {
    let mut taken = HashSet::new();
    (0..marker.arguments.len())
        .map(|index| {
            let given = marker.conversions.get(index).and_then(|c| c.name.clone());
            let given = given.filter(|name| taken.insert(name.clone()));
            given.unwrap_or_else(|| format!("arg{}", index + 1))
        })
        .collect()
}

/// Formats the types of a marker's arguments as recorded, such as `s32, u64`; `?` for an operand
/// that is not understood.
pub fn types(marker: &Marker) -> String {
    let shown = |(index, argument): (usize, &Result<Argument, _>)| match argument {
        Ok(argument) => field_type(argument, marker.conversions.get(index)).to_string(),
        Err(_) => "?".to_owned(),
    };
    let all: Vec<String> = marker.arguments.iter().enumerate().map(shown).collect();
    all.join(", ")
}

/// Describes a marker's arguments for display: its format, or their types.
pub fn list(marker: &Marker) -> String {
    match &marker.described {
        Some(described) => format!("{:?}", described.format),
        None => types(marker),
    }
}

/// Refuses a marker whose arguments differ from those the event expects.
pub fn expected(probe: &Probe, marker: &Marker) -> Result<()> {
    let Asking::Static {
        format: Some(expected),
        ..
    } = &probe.place
    else {
        return Ok(());
    };
    let asked = conversions(expected);
    let asked = asked.map_err(|error| err!(Marker, "in the format that is expected, {error}"))?;
    let agrees = match &marker.described {
        Some(described) => conversions(&described.format).is_ok_and(|has| {
            let both = || asked.iter().zip(&has);
            let same = |(a, b): (&Conversion, &Conversion)| {
                let named = a.name.is_none() || b.name.is_none() || a.name == b.name;
                named && a.shown == b.shown && a.bytes == b.bytes
            };
            asked.len() == has.len() && both().all(same)
        }),
        None => {
            let mut both = asked.iter().zip(&marker.arguments);
            asked.len() == marker.arguments.len()
                && both.all(|(asked, has)| has.as_ref().is_ok_and(|has| could_be(asked, has)))
        }
    };
    if agrees {
        return Ok(());
    }
    let has = match (&marker.described, marker.arguments.is_empty()) {
        (Some(described), _) => format!("{:?}", described.format),
        (None, true) => "no arguments".to_owned(),
        (None, false) => format!("{} (its note has no format)", types(marker)),
    };
    bail!(
        Marker,
        "marker {} has other arguments than expected:\n  expected  {expected:?}\n  has       {has}",
        marker.full_name()
    );
}

/// True if printf could take this argument for the conversion.
fn could_be(asked: &Conversion, has: &Argument) -> bool {
    // Types smaller than an int are passed as an int.
    let fits = match asked.bytes {
        Some(4) => has.bytes <= 4,
        Some(bytes) => has.bytes == bytes,
        None => true,
    };
    let whole = !has.float && fits;
    match asked.shown {
        format::Shown::Signed => whole && has.signed,
        format::Shown::Unsigned => whole && !has.signed,
        format::Shown::Hexadecimal => whole,
        format::Shown::Pointer | format::Shown::Text => whole && has.bytes == 8,
        format::Shown::Character => whole && has.bytes <= 4,
        format::Shown::Float => has.float,
    }
}

/// Returns all arguments that can be read, with their names. Unreadable arguments are left out:
/// the user has named none of them.
pub fn all(marker: &Marker, site: &Site) -> Vec<(String, Field, FieldType)> {
    let names = names(marker).into_iter().enumerate();
    names
        .filter_map(|(index, name)| {
            let (field, field_type) = field(marker, site, index, &[], None).ok()?;
            Some((name, field, field_type))
        })
        .collect()
}

/// Returns the format for displaying [`all`] arguments, if the marker has one and no argument is
/// missing.
pub fn text_format(marker: &Marker, site: &Site) -> Option<TextFormat> {
    let described = marker.described.as_ref()?;
    let fits = marker.conversions.len() == marker.arguments.len();
    let all_there = all(marker, site).len() == marker.arguments.len();
    if described.format.is_empty() || !fits || !all_there {
        return None;
    }
    Some(TextFormat {
        text: described.format.clone(),
        arguments: marker.arguments.iter().flatten().map(natural).collect(),
    })
}

/// Returns the field for an event's argument at a marker; `None` if it does not refer to the
/// marker's own arguments.
///
/// # Errors
/// The marker has no such argument, or it cannot be read.
pub fn one(
    marker: &Marker,
    site: &Site,
    argument: &FetchArg,
) -> Result<Option<(Field, FieldType)>> {
    let Asked { base, derefs } = &argument.fetch;
    let index = match base {
        Base::Argument(number) => {
            let index = usize::from(*number) - 1;
            if index >= marker.arguments.len() {
                bail!(
                    Marker,
                    "marker {} has {}",
                    marker.full_name(),
                    capriole_text::units::counted(
                        marker.arguments.len() as u64,
                        "argument",
                        "arguments"
                    )
                );
            }
            Some(index)
        }
        Base::Variable(path) => names(marker).iter().position(|name| name == path),
        _ => None,
    };
    let derefs: Vec<i64> = derefs.iter().map(|deref| deref.offset).collect();
    let found = index.map(|index| field(marker, site, index, &derefs, argument.field_type));
    found.transpose()
}

/// Returns the field for an argument, or for the memory it points to, with this type or the default
/// one.
fn field(
    marker: &Marker,
    site: &Site,
    index: usize,
    derefs: &[i64],
    wanted: Option<FieldType>,
) -> Result<(Field, FieldType)> {
    let argument = marker.arguments[index].as_ref();
    let argument = argument.map_err(|error| err!(Marker, "{error}"))?;
    let own = field_type(argument, marker.conversions.get(index));
    let (source, mut pointers) = source(argument, site)?;
    let field_type = match (derefs, wanted) {
        ([], wanted) => wanted.unwrap_or(own),
        (_, wanted) => wanted.unwrap_or(FieldType::X64),
    };
    let behind = !derefs.is_empty() || field_type.is_string();
    if behind && (argument.bytes < 8 || argument.float) {
        bail!(
            Marker,
            "it is {}, which is no address",
            with_article(natural(argument))
        );
    }
    if !derefs.is_empty() {
        pointers.extend(derefs);
    } else if field_type.is_string() {
        pointers.push(0);
    } else {
        fits(argument, field_type)?;
    }
    let field = Field {
        source,
        pointers,
        length: None,
        content: content(field_type)?,
    };
    Ok((field, field_type))
}

/// Formats a type with its article.
fn with_article(field_type: FieldType) -> String {
    let text = field_type.to_string();
    match text.starts_with(['f', 's', 'x']) && !text.starts_with("sy") {
        true => format!("an {text}"),
        false => format!("a {text}"),
    }
}

/// Checks that an argument has all the bytes of a type.
fn fits(argument: &Argument, field_type: FieldType) -> Result<()> {
    if matches!(argument.operand, Operand::SecondByte(_)) {
        if field_type != natural(argument) {
            bail!(
                Marker,
                "it is the second byte of a register, and has the type that it has"
            );
        }
        if argument.signed {
            bail!(
                Marker,
                "it is a signed second byte of a register, which cannot be read"
            );
        }
        return Ok(());
    }
    match field_type.element {
        Element::Number { bytes, .. } if bytes <= argument.bytes => Ok(()),
        _ => bail!(
            Marker,
            "it is {}, which has not all the bytes of {}",
            with_article(natural(argument)),
            with_article(field_type)
        ),
    }
}

/// Returns the type that the note gives an argument.
fn natural(argument: &Argument) -> FieldType {
    if matches!(argument.operand, Operand::SecondByte(_)) {
        let bits = Bits {
            width: 8,
            offset: 8,
        };
        let element = Element::Number {
            shown: Shown::Unsigned,
            bytes: 2,
            bits: Some(bits),
        };
        return FieldType {
            element,
            count: None,
        };
    }
    let shown = match (argument.float, argument.signed) {
        (true, _) => Shown::Float,
        (false, true) => Shown::Signed,
        (false, false) => Shown::Unsigned,
    };
    FieldType::number(shown, argument.bytes)
}

/// Returns the type with which an argument is recorded: the note gives its size, and the format, if
/// there is one, its display.
fn field_type(argument: &Argument, conversion: Option<&Conversion>) -> FieldType {
    let natural = natural(argument);
    let (Some(conversion), false) = (conversion, argument.float) else {
        return natural;
    };
    if matches!(argument.operand, Operand::SecondByte(_)) {
        return natural;
    }
    match conversion.shown {
        format::Shown::Signed => FieldType::number(Shown::Signed, argument.bytes),
        format::Shown::Unsigned => FieldType::number(Shown::Unsigned, argument.bytes),
        format::Shown::Hexadecimal | format::Shown::Pointer => {
            FieldType::number(Shown::Hexadecimal, argument.bytes)
        }
        format::Shown::Character => FieldType::number(Shown::Character, 1),
        format::Shown::Text if argument.bytes == 8 => FieldType::STRING,
        format::Shown::Text | format::Shown::Float => natural,
    }
}

/// Returns the location of an argument: the start, and the pointers to follow from there.
fn source(argument: &Argument, site: &Site) -> Result<(Source, Vec<i64>)> {
    Ok(match &argument.operand {
        Operand::Register(register) | Operand::SecondByte(register) => {
            (Source::Register(*register), Vec::new())
        }
        Operand::Vector(number) => (Source::Vector(*number), Vec::new()),
        Operand::Immediate(place) => {
            let value = value(place, site)?;
            let unused = 64 - 8 * u32::from(argument.bytes);
            let value = match argument.signed {
                true => ((value << unused) as i64 >> unused) as u64,
                false => value << unused >> unused,
            };
            (Source::Immediate(value), Vec::new())
        }
        Operand::Memory { place, base, index } => match (base, index, &place.symbol) {
            (Some(base), None, None) => (Source::Register(*base), vec![place.offset]),
            (base, Some((index, shift)), _) => {
                let source = Source::Indexed {
                    base: *base,
                    index: *index,
                    shift: *shift,
                    offset: value(place, site)?,
                };
                (source, vec![0])
            }
            (Some(base), None, Some(_)) => {
                let source = Source::Indexed {
                    base: None,
                    index: *base,
                    shift: 0,
                    offset: value(place, site)?,
                };
                (source, vec![0])
            }
            (None, None, _) => (Source::Immediate(value(place, site)?), vec![0]),
        },
    })
}

/// Returns a number, or a symbol's run-time address plus a number.
fn value(place: &Place, site: &Site) -> Result<u64> {
    let Some(symbol) = &place.symbol else {
        return Ok(place.offset as u64);
    };
    let found = site.object.file().markers()?.symbol(symbol);
    let found = found.map_err(|error| err!(Marker, "it is at `{symbol}`, and {error}"))?;
    let start = match found {
        SymbolValue::Address(link) => site.object.run_time(link),
        SymbolValue::Number(number) => number,
    };
    Ok(start.wrapping_add_signed(place.offset))
}

/// Formats a marker for `--json`.
pub fn json(marker: &Marker) -> Value {
    let arguments = marker.arguments.iter().zip(names(marker));
    let arguments = arguments
        .enumerate()
        .map(|(index, (argument, name))| match argument {
            Ok(argument) => json!({
                "name": name,
                "type": field_type(argument, marker.conversions.get(index)).to_string(),
                "operand": argument.to_string(),
            }),
            Err(error) => json!({
                "name": name,
                "operand": error.text,
                "refused": error.reason,
            }),
        });
    let mut value = json!({
        "provider": marker.provider,
        "name": marker.name,
        "arguments": arguments.collect::<Vec<_>>(),
    });
    if let Some(described) = &marker.described {
        value["format"] = json!(described.format);
        value["file"] = json!(described.file);
        value["line"] = json!(described.line);
    }
    if let Some(semaphore) = marker.semaphore {
        value["semaphore"] = json!(format!("{semaphore:#x}"));
    }
    value
}

/// Appends a marker's arguments, one per line, for `check`.
pub fn describe(marker: &Marker, site: &Site, text: &mut String) {
    if let Some(described) = &marker.described {
        let _ = writeln!(text, "  format    {:?}", described.format);
        let _ = writeln!(
            text,
            "  source    {}:{}",
            printable(&described.file),
            described.line
        );
    }
    let arguments = marker.arguments.iter().zip(names(marker));
    for (index, (argument, name)) in arguments.enumerate() {
        let label = if index == 0 { "arguments" } else { "" };
        let what = match argument {
            Ok(argument) => match field(marker, site, index, &[], None) {
                Ok((_, field_type)) => format!("{name}  {argument}  as {field_type}"),
                Err(error) => format!("{name}  {argument}  cannot be read: {error}"),
            },
            Err(error) => format!("{name}  cannot be read: {error}"),
        };
        let _ = writeln!(text, "  {label:<9} {}", printable(&what));
    }
}
