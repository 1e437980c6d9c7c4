//! Parameters and variables that can be recorded at a site, for `list --args`.

use capriole_event::{Element, FieldType, Gpr, Shown};
use capriole_prologue::{Place, Start, Sum};

use super::error::{DebugError, Refusal};
use super::fetch::TypedFetch;
use super::scope::Site;
use super::types::Shape;
use super::units::Debug;

/// A parameter or local variable at a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// True for a parameter of the function, false for a variable in it.
    pub parameter: bool,
    /// The function that it belongs to: the chosen one.
    pub function: String,
    /// Its type in C notation.
    pub c_type: String,
    /// Its place, written as a fetch argument (`%di`, `-20(%bp)`, `@0x4010`, a link address), or
    /// the reason why it is not known.
    pub place: Result<String, Refusal>,
    /// The fetch that records it without an explicit type, or the reason why there is none (a whole
    /// struct, for example, although its members can be recorded).
    pub fetch: Result<TypedFetch, Refusal>,
}

impl Debug<'_> {
    /// Returns the parameters and visible variables of the chosen function at a site. All
    /// parameters are included, in the order of the source, even if a variable hides one.
    ///
    /// # Errors
    ///
    /// The debug information is damaged.
    pub fn describe(&self, site: &Site) -> Result<Vec<Described>, DebugError> {
        self.begin();
        let frame = site.frame();
        let mut found: Vec<Described> = Vec::new();
        for variable in self.variables(site)?.visible {
            self.begin();
            let hidden = |known: &Described| !known.parameter && known.name == variable.name;
            if let Some(at) = found.iter().position(hidden) {
                found.remove(at);
            }
            let kind = self.type_of(&variable.die).ok().flatten();
            let kind = match (variable.moved, self.shape(kind)) {
                (true, Ok(Shape::Pointer { target, .. })) => target,
                _ => kind,
            };
            let place = self.place_of(site, &variable, Some(frame.key));
            let thing = |place| self.thing_at(&variable, place);
            let fetch: Result<TypedFetch, Refusal> = place
                .clone()
                .and_then(|place| self.typed(thing(place)?, None));
            let place = match variable.moved {
                true => place.and_then(|place| Ok(thing(place)?.place)),
                false => place,
            };
            found.push(Described {
                name: variable.name,
                parameter: variable.parameter,
                function: frame.name.clone(),
                c_type: self.c_type(kind),
                place: place.map(|place| {
                    let as_type = fetch.as_ref().ok().map(|fetch| fetch.field_type);
                    constant(&place, as_type).unwrap_or_else(|| shown(&place))
                }),
                fetch,
            });
        }
        // At an entry, `variables` lists the variables of blocks before the parameters.
        found.sort_by_key(|described| !described.parameter);
        Ok(found)
    }
}

/// Formats the place of a constant as the number that its type makes of it: constants are kept as
/// words of 64 bits, with the sign extended. `None` for other places and types.
fn constant(place: &Place, as_type: Option<FieldType>) -> Option<String> {
    let Place::Value { value, bits, .. } = place else {
        return None;
    };
    let word = value.constant().filter(|_| bits.is_whole())?;
    let FieldType {
        element:
            Element::Number {
                shown,
                bytes,
                bits: None,
            },
        count: None,
    } = as_type?
    else {
        return None;
    };
    let unused = 64_u32.checked_sub(8 * u32::from(bytes))?;
    let number = match shown {
        Shown::Signed | Shown::Descriptor => ((word << unused) as i64 >> unused).to_string(),
        Shown::Unsigned => (word << unused >> unused).to_string(),
        Shown::Hexadecimal | Shown::Symbol => format!("{:#x}", word << unused >> unused),
        Shown::Character | Shown::Float | Shown::Network | Shown::Ipv4 => return None,
    };
    Some(format!("constant {number}"))
}

/// Formats a place as in a fetch argument.
fn shown(place: &Place) -> String {
    match place {
        Place::Register { register, .. } => format!("%{}", name(*register)),
        Place::Memory(sum) => address(sum),
        Place::Value { value, bits, .. } => match value.constant().filter(|_| bits.is_whole()) {
            Some(number) => format!("constant {number}"),
            None if !bits.is_whole() => {
                format!(
                    "{} bits of {} from bit {} on",
                    bits.width,
                    start(value),
                    bits.shift
                )
            }
            None => match (value.start, value.reads.is_empty()) {
                (Start::Register(register), true) if value.plus == 0 => {
                    format!("%{}", name(register))
                }
                _ => format!("calculated from {}", start(value)),
            },
        },
        Place::Pieces { pieces, .. } if pieces.is_empty() => "not in one place".to_owned(),
        Place::Pieces { pieces, .. } => {
            let pieces: Vec<String> = pieces
                .iter()
                .map(|(size, place)| format!("{size} bytes {}", shown(place)))
                .collect();
            pieces.join(", ")
        }
        Place::Vector(Some(number)) => format!("%xmm{number}"),
        Place::Vector(None) => "vector register".to_owned(),
        Place::VectorPart { register, at } => format!("%xmm{register} from byte {at} on"),
        Place::Lost => "in a register that is not saved".to_owned(),
        Place::Missing => "optimised out".to_owned(),
    }
}

fn start(sum: &Sum) -> String {
    match sum.start {
        Start::Register(register) => format!("%{}", name(register)),
        Start::Link(address) => format!("@{address:#x}"),
        Start::Constant(value) => format!("\\{value}"),
    }
}

fn address(sum: &Sum) -> String {
    if let (Start::Link(address), true) = (sum.start, sum.reads.is_empty()) {
        return format!("@{:#x}", address.wrapping_add_signed(sum.plus));
    }
    let mut text = start(sum);
    for offset in sum.reads.iter().chain([&sum.plus]) {
        text = format!("{offset:+}({text})");
    }
    text
}

fn name(register: Gpr) -> &'static str {
    const NAMES: [&str; 16] = [
        "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    NAMES[register as usize]
}
