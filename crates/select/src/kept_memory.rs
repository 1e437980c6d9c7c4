//! Texts and arrays of the entry, `$entry:NAME:string`: which number is kept of them, and how the exit
//! reads the rest.

use crate::content::content;
use crate::error::{Result, bail};
use capriole_codegen::condition::Width;
use capriole_codegen::fetch::{Case, Field, Length, Source};
use capriole_dwarf::TypedFetch;
use capriole_event::{Base, Fetch, FieldType};

/// The number that is kept at the entry for a text or an array, which the exit reads.
pub struct KeptMemory {
    /// The number: a pointer, or the register that all reads start from.
    pub word: TypedFetch,
    /// Number of reads that have been done for it at the entry. `None`: the value is at a fixed address,
    /// and nothing of the entry is needed.
    reads: Option<usize>,
}

impl KeptMemory {
    /// Returns what to keep of the variable `name` so that the exit can read it. A pointer on the way to
    /// the whole value is followed at the entry, its own parts are read at the exit.
    ///
    /// # Errors
    /// It is not in memory, or more than one number would have to be kept.
    pub fn of(found: &TypedFetch, name: &Fetch) -> Result<KeptMemory> {
        let mut parts = Vec::new();
        collect(found, &mut parts);
        let first = parts[0];
        let is_fixed = |part: &&TypedFetch| matches!(part.fetch.base, Base::Address(_));
        let same = parts.iter().all(|part| part.fetch.base == first.fetch.base);
        let word = |base, derefs: &[_]| TypedFetch {
            fetch: Fetch {
                base,
                derefs: derefs.to_vec(),
            },
            field_type: FieldType::X64,
            enumerators: Vec::new(),
            length: None,
            ..first.clone()
        };
        if !same && parts.iter().all(is_fixed) {
            return Ok(KeptMemory {
                word: word(Base::Immediate(0), &[]),
                reads: None,
            });
        }
        if !same || parts.iter().any(|part| part.fetch.derefs.is_empty()) {
            bail!(
                Field,
                "it is in several registers at the entry, of which one would be kept{}",
                parts_of(found, name)
            );
        }
        let mut reads = first.fetch.derefs.len() - 1;
        for part in &parts {
            let own = part
                .fetch
                .derefs
                .split_last()
                .map_or(&[][..], |(_, own)| own);
            let both = first.fetch.derefs.iter().zip(own);
            let common = both.take_while(|(one, other)| one == other).count();
            reads = reads.min(common);
        }
        Ok(KeptMemory {
            word: word(first.fetch.base.clone(), &first.fetch.derefs[..reads]),
            reads: Some(reads),
        })
    }

    /// Returns the field of the exit; `None` if it needs nothing of the entry. `source` is the word that
    /// was kept.
    ///
    /// # Errors
    /// The type cannot be recorded.
    pub fn at_exit(&self, found: &TypedFetch, source: &Source) -> Result<Option<Field>> {
        match self.reads {
            Some(reads) => Ok(Some(left(found, reads, source)?)),
            None => Ok(None),
        }
    }
}

/// Returns advice to name the parts of the text `name`, if they have names.
fn parts_of(found: &TypedFetch, name: &Fetch) -> String {
    let Some(capriole_dwarf::Length::Number {
        members: Some([text, length]),
        ..
    }) = found.length.as_deref()
    else {
        return String::new();
    };
    format!(": write +0($entry:{name}.{text}):string[$entry:{name}.{length}]")
}

/// Adds the fetch and all that it is fetched by.
fn collect<'a>(found: &'a TypedFetch, parts: &mut Vec<&'a TypedFetch>) {
    parts.push(found);
    match found.length.as_deref() {
        None => {}
        Some(capriole_dwarf::Length::Number { of, .. }) => collect(of, parts),
        Some(capriole_dwarf::Length::Cases(cases)) => {
            for text in cases.iter().filter_map(|case| case.text.as_ref()) {
                collect(text, parts);
            }
        }
    }
}

/// Builds a field of which so many reads have been done.
fn left(found: &TypedFetch, reads: usize, source: &Source) -> Result<Field> {
    let derefs = found.fetch.derefs[reads..].iter();
    Ok(Field {
        source: source.clone(),
        pointers: derefs.map(|deref| deref.offset).collect(),
        length: length(found, &|part| left(part, reads, source))?,
        content: content(found.field_type)?,
    })
}

/// Translates the length of a text; `field` builds the fields that it consists of.
pub fn length(
    found: &TypedFetch,
    field: &dyn Fn(&TypedFetch) -> Result<Field>,
) -> Result<Option<Box<Length>>> {
    Ok(match found.length.as_deref() {
        None => None,
        Some(capriole_dwarf::Length::Number { of, less, .. }) => Some(Box::new(Length::Number {
            of: field(of)?,
            less: *less,
        })),
        Some(capriole_dwarf::Length::Cases(cases)) => {
            let case = |case: &capriole_dwarf::Case| -> Result<Case> {
                Ok(Case {
                    bits: Width {
                        bits: Some((case.bits.offset, case.bits.width)),
                        ..Width::unsigned(1)
                    },
                    equal: case.equal.into(),
                    text: case.text.as_ref().map(field).transpose()?,
                })
            };
            let cases = cases.iter().map(case).collect::<Result<_>>()?;
            Some(Box::new(Length::Cases(cases)))
        }
    })
}
