//! Members of structs and classes, and name lookup in member functions.

use capriole_object::symbols::demangle::without_blanks;
use gimli::constants as dw;

use super::error::{DebugError, Refusal};
use super::origin::is_cpp;
use super::path::{Path, Step};
use super::scope::{Meaning, Site};
use super::types::{DEPTH, Member, Shape};
use super::units::{Debug, DieKey};

/// Result of a member lookup.
pub(super) enum Lookup {
    Found(Member),
    /// A static member of this class.
    Static(DieKey),
    /// A member of this virtual base class.
    Virtual(String),
    /// Several base classes have the member: one qualified name for each.
    Ambiguous(Vec<String>),
    /// No such member: the names of the existing ones.
    Missing(Vec<String>),
}

/// A member with the requested name, and the class it belongs to.
struct Hit {
    class: DieKey,
    kind: Kind,
    /// The base classes on the way to the member, outermost first; the last one is `class`.
    bases: Vec<DieKey>,
}

impl Hit {
    /// True if both are the same member of the same object.
    fn is(&self, other: &Hit) -> bool {
        let offset = |hit: &Hit| match hit.kind {
            Kind::Data(member) => Some((member.offset, member.bits)),
            Kind::Static | Kind::Virtual => None,
        };
        self.class == other.class && offset(self) == offset(other)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Data(Member),
    Static,
    /// In a virtual base class.
    Virtual,
}

const OUTSIDE: DebugError = DebugError::Damaged("a member lies outside its struct");

/// Returns the number of a member of a tuple or tuple struct of Rust, which debug information calls
/// `__0`, and the source `0`.
fn positional(name: &str) -> Option<&str> {
    let number = name.strip_prefix("__")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

impl<'a> Debug<'a> {
    /// Looks for a member by name (`size`, `Base::size`, `0` of a tuple of Rust): in the struct itself, in
    /// anonymous structs and unions in it, then in base classes.
    pub(super) fn member(&self, record: DieKey, name: &str) -> Result<Lookup, DebugError> {
        let mut names = Vec::new();
        let (class, last) = match name.rsplit_once("::") {
            Some((class, last)) => (Some(class), last),
            None => (None, name),
        };
        let hits = self.hits(record, class, last, 0, &mut names)?;
        Ok(match hits.as_slice() {
            [] => Lookup::Missing(self.distinguished(record, names)?),
            [one] => match one.kind {
                Kind::Data(member) => Lookup::Found(member),
                Kind::Static => Lookup::Static(one.class),
                Kind::Virtual => Lookup::Virtual(self.path_of(one.class)?),
            },
            several => Lookup::Ambiguous(self.qualified(record, several, last)?),
        })
    }

    fn hits(
        &self,
        record: DieKey,
        class: Option<&str>,
        name: &str,
        depth: usize,
        names: &mut Vec<String>,
    ) -> Result<Vec<Hit>, DebugError> {
        if depth > DEPTH {
            return Err(DebugError::Damaged("structs contain each other"));
        }
        let is_it = |class: &str| -> Result<bool, DebugError> {
            let path = without_blanks(&self.path_of(record)?);
            let rest = path.strip_suffix(&without_blanks(class));
            Ok(rest.is_some_and(|rest| rest.is_empty() || rest.ends_with("::")))
        };
        let class = match class {
            Some(class) if is_it(class)? => None,
            class => class,
        };
        let hit = |kind| {
            Ok(vec![Hit {
                class: record,
                kind,
                bases: Vec::new(),
            }])
        };
        let (mut anonymous, mut bases) = (Vec::new(), Vec::new());
        let record_die = self.die(record)?;
        let is_rust = record_die.language() == Some(dw::DW_LANG_Rust);
        for die in self.children(&record_die)? {
            let tag = die.tag();
            if tag == dw::DW_TAG_inheritance {
                bases.push(die);
                continue;
            }
            if class.is_some() || !matches!(tag, dw::DW_TAG_member | dw::DW_TAG_variable) {
                continue;
            }
            let is_static = tag == dw::DW_TAG_variable
                || die.flag(dw::DW_AT_external)
                || die.flag(dw::DW_AT_declaration);
            let is_it = |own: &str| own == name || is_rust && positional(own) == Some(name);
            match die.text(dw::DW_AT_name) {
                Some(own) if own == name && is_static => return hit(Kind::Static),
                _ if is_static => {}
                Some(own) if is_it(&own) => {
                    return hit(self.layout(&die)?.map_or(Kind::Virtual, Kind::Data));
                }
                Some(own) => names.push(match positional(&own) {
                    Some(number) if is_rust => number.to_owned(),
                    _ => own,
                }),
                None => anonymous.push(die),
            }
        }
        let mut found: Vec<Hit> = Vec::new();
        for (die, base) in anonymous
            .iter()
            .map(|die| (die, false))
            .chain(bases.iter().map(|die| (die, true)))
        {
            let outer = self.layout(die)?;
            let kind = self.reference(die, dw::DW_AT_type)?;
            let Shape::Record { key, .. } = self.shape(kind)? else {
                continue;
            };
            for inner in self.hits(key, class, name, depth + 1, names)? {
                let kind = match (inner.kind, &outer) {
                    (Kind::Static, _) => Kind::Static,
                    (Kind::Data(member), Some(outer)) => Kind::Data(moved(member, outer.offset)?),
                    _ => Kind::Virtual,
                };
                let class = if base { inner.class } else { record };
                let mut bases = inner.bases;
                if base {
                    bases.insert(0, key);
                }
                // A static member or virtual base class exists once, however often it is inherited.
                let one = !matches!(kind, Kind::Data(_));
                let known = |hit: &Hit| hit.class == class && !matches!(hit.kind, Kind::Data(_));
                if !(one && found.iter().any(known)) {
                    found.push(Hit { class, kind, bases });
                }
            }
            if !base && !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(found)
    }

    /// Replaces names that several base classes have by qualified ones.
    fn distinguished(&self, record: DieKey, names: Vec<String>) -> Result<Vec<String>, DebugError> {
        let mut all: Vec<String> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                continue;
            }
            match names[index + 1..].contains(name) {
                false => all.push(name.clone()),
                true => {
                    let hits = self.hits(record, None, name, 0, &mut Vec::new())?;
                    match &hits[..] {
                        [_] => all.push(name.clone()),
                        several => all.extend(self.qualified(record, several, name)?),
                    }
                }
            }
        }
        Ok(all)
    }

    /// Returns names of members that have the same name in several base classes, each qualified
    /// with a base class through which it is the only one. Leaves out members that no name can
    /// select: their base class is inherited more than once through the same classes.
    fn qualified(
        &self,
        record: DieKey,
        hits: &[Hit],
        last: &str,
    ) -> Result<Vec<String>, DebugError> {
        let mut names = Vec::new();
        for hit in hits {
            'bases: for &base in hit.bases.iter().rev() {
                for class in scopes(&self.path_of(base)?) {
                    let found = self.hits(record, Some(class), last, 0, &mut Vec::new())?;
                    let is_it = matches!(&found[..], [one] if one.is(hit));
                    let name = format!("{class}::{last}");
                    if is_it && Path::parse(&name).is_ok() {
                        names.push(name);
                        break 'bases;
                    }
                }
            }
        }
        Ok(names)
    }

    /// Lists member names, including members of anonymous structs and of base classes.
    pub(super) fn member_names(&self, record: DieKey) -> Result<Vec<String>, DebugError> {
        // No member has an empty name, so this lookup fails and lists all names.
        match self.member(record, "")? {
            Lookup::Missing(names) => Ok(names),
            _ => Ok(Vec::new()),
        }
    }

    /// True if the class or a base class has a member function of that name.
    fn has_function(&self, record: DieKey, name: &str, depth: usize) -> Result<bool, DebugError> {
        if depth > DEPTH {
            return Err(DebugError::Damaged("structs contain each other"));
        }
        for die in self.children(&self.die(record)?)? {
            let found = match die.tag() {
                dw::DW_TAG_subprogram => die.text(dw::DW_AT_name).as_deref() == Some(name),
                dw::DW_TAG_inheritance => {
                    let kind = self.reference(&die, dw::DW_AT_type)?;
                    match self.shape(kind)? {
                        Shape::Record { key, .. } => self.has_function(key, name, depth + 1)?,
                        _ => false,
                    }
                }
                _ => false,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Resolves a name in a C++ member function to a member of the object it is called on, or to
    /// a static member of an enclosing class. `None` if the name is not a member.
    pub(super) fn of_class(&self, site: &Site, name: &str) -> Result<Option<Meaning<'a>>, Refusal> {
        if name.starts_with(['\'', ':']) || !is_cpp(&self.die(site.frame().key)?) {
            return Ok(None);
        }
        if let Some(meaning) = self.through_this(site, name)? {
            return Ok(Some(meaning));
        }
        let parts = self.enclosing(site.frame().key)?;
        for class in parts.0.iter().filter_map(|part| part.class) {
            let Shape::Record { key, .. } = self.shape(Some(class))? else {
                continue;
            };
            let of = || self.path_of(key);
            match self.member(key, name)? {
                Lookup::Static(class) => {
                    return Ok(Some(self.static_member(site, class, name)?.into()));
                }
                Lookup::Missing(_) if self.has_function(key, name, 0)? => {
                    return Err(Refusal::MemberFunction {
                        name: name.to_owned(),
                        class: of()?,
                    });
                }
                Lookup::Missing(_) => {}
                _ => {
                    return Err(Refusal::NoObject {
                        name: name.to_owned(),
                        class: of()?,
                    });
                }
            }
        }
        Ok(None)
    }

    /// Finds a member of the object that `this`, or the `this` captured by a lambda, points to.
    fn through_this(&self, site: &Site, name: &str) -> Result<Option<Meaning<'a>>, Refusal> {
        let mut variables = self.variables(site)?.visible;
        // In GCC's lambdas the captured `this` is a variable.
        let called = |name: &str| variables.iter().rposition(|v| v.name == name);
        let Some(this) = called("this").or_else(|| called("__closure")) else {
            return Ok(None);
        };
        let this = variables.swap_remove(this);
        let mut kind = self.type_of(&this.die)?;
        let mut steps = Vec::new();
        let arrow = |name: &str| Step::Member {
            name: name.to_owned(),
            arrow: true,
        };
        for _ in 0..DEPTH {
            let Shape::Pointer {
                target: Some(target),
                ..
            } = self.shape(kind)?
            else {
                break;
            };
            let Shape::Record { key, .. } = self.shape(Some(target))? else {
                break;
            };
            if !matches!(self.member(key, name)?, Lookup::Missing(_)) {
                steps.push(arrow(name));
                return Ok(Some(Meaning {
                    variable: this,
                    frame: Some(site.frame().key),
                    steps,
                }));
            }
            if self.has_function(key, name, 0)? {
                return Err(Refusal::MemberFunction {
                    name: name.to_owned(),
                    class: self.path_of(key)?,
                });
            }
            let captured = ["this", "__this"].into_iter().find_map(|name| {
                let member = self.member(key, name).ok()?;
                let Lookup::Found(member) = member else {
                    return None;
                };
                Some((name, member.kind))
            });
            let Some((captured, next)) = captured else {
                break;
            };
            steps.push(arrow(captured));
            kind = next;
        }
        Ok(None)
    }
}

/// Returns the names of a class, the longest first: `a::b::C`, `b::C`, `C`.
fn scopes(path: &str) -> Vec<&str> {
    let is_outside = |at: &usize| {
        let before = &path[..*at];
        before.matches('<').count() == before.matches('>').count()
    };
    let colons = path.match_indices("::").map(|(at, _)| at);
    let inner = colons.filter(is_outside).map(|at| &path[at + 2..]);
    std::iter::once(path).chain(inner).collect()
}

/// Returns `member` shifted by `by` bytes, the offset of the base class or anonymous struct
/// that contains it.
fn moved(member: Member, by: u64) -> Result<Member, DebugError> {
    let bits = match member.bits {
        Some((first, width)) => {
            let by = by.checked_mul(8).and_then(|bits| bits.checked_add(first));
            Some((by.ok_or(OUTSIDE)?, width))
        }
        None => None,
    };
    Ok(Member {
        offset: member.offset.checked_add(by).ok_or(OUTSIDE)?,
        bits,
        ..member
    })
}
