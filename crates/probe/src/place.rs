//! Places of probes.

use crate::Error;
use crate::ffi;
use std::ffi::CString;
use std::ptr;

/// A place in the code of the program.
///
/// Everything that is placed can be made from one, and has the same functions itself.
#[derive(Debug, Clone)]
pub struct Place {
    kind: Kind,
    object: Option<String>,
    offset: usize,
}

#[derive(Debug, Clone)]
enum Kind {
    Address(usize),
    Symbol(String),
    Line(String),
}

impl Place {
    /// An instruction, by its address. Function pointers are converted by `as usize`.
    #[must_use]
    pub fn at(address: usize) -> Place {
        Place::new(Kind::Address(address), None)
    }

    /// A function, by its plain, mangled or demangled name, of a library, by the start of its file's name
    /// or by its path; `None` is the program.
    #[must_use]
    pub fn symbol<'a>(object: impl Into<Option<&'a str>>, name: &str) -> Place {
        Place::new(Kind::Symbol(name.to_owned()), object.into())
    }

    /// A source line, `FILE:LINE`, of the program; see [`Place::object`] for those of libraries. There
    /// must be debug information.
    #[must_use]
    pub fn line(line: &str) -> Place {
        Place::new(Kind::Line(line.to_owned()), None)
    }

    fn new(kind: Kind, object: Option<&str>) -> Place {
        let object = object.map(str::to_owned);
        Place {
            kind,
            object,
            offset: 0,
        }
    }

    /// The same line or function of a library, by the start of its file's name or by its path.
    #[must_use]
    pub fn object(mut self, object: &str) -> Place {
        self.object = Some(object.to_owned());
        self
    }

    /// The instruction that many bytes behind the start of the function, or behind the address.
    #[must_use]
    pub fn offset(mut self, bytes: usize) -> Place {
        self.offset = bytes;
        self
    }
}

/// A place in the library's form, and the memory that it points to.
#[derive(Debug)]
pub(crate) struct Placed {
    _object: Option<CString>,
    _name: Option<CString>,
}

impl Placed {
    /// Makes a probe of the library's at a place. What is returned beside it must live as long.
    pub(crate) fn new(place: &Place) -> Result<(Placed, ffi::capriole_probe), Error> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| {
                Error::invalid(format!("there is a zero byte in `{}`", text.escape_debug()))
            })
        };
        let object = place.object.as_deref().map(text).transpose()?;
        let mut probe = empty();
        probe.object = object
            .as_ref()
            .map_or(ptr::null(), |object| object.as_ptr());
        let name = match &place.kind {
            Kind::Address(address) => {
                let address = address.wrapping_add(place.offset);
                probe.address = ptr::without_provenance_mut(address);
                None
            }
            Kind::Symbol(name) => {
                let name = text(name)?;
                probe.symbol = name.as_ptr();
                probe.offset = place.offset as u64;
                Some(name)
            }
            Kind::Line(_) if place.offset != 0 => {
                return Err(Error::invalid("a source line has no offset"));
            }
            Kind::Line(line) => {
                let line = text(line)?;
                probe.line = line.as_ptr();
                Some(line)
            }
        };
        Ok((
            Placed {
                _object: object,
                _name: name,
            },
            probe,
        ))
    }
}

fn empty() -> ffi::capriole_probe {
    ffi::capriole_probe {
        address: ptr::null_mut(),
        object: ptr::null(),
        symbol: ptr::null(),
        offset: 0,
        line: ptr::null(),
        pre: None,
        post: None,
        fault: None,
        data: ptr::null_mut(),
        flags: 0,
        missed: 0,
        private_: [ptr::null_mut(); 6],
    }
}

/// Gives a builder that has a field `place` the functions of [`Place`].
macro_rules! placed {
    ($builder:ident) => {
        impl $builder {
            /// At the instruction, or the function, at an address.
            pub fn at(address: usize) -> $builder {
                $builder::new($crate::Place::at(address))
            }

            /// At a function, see [`Place::symbol`](crate::Place::symbol).
            pub fn symbol<'a>(object: impl Into<Option<&'a str>>, name: &str) -> $builder {
                $builder::new($crate::Place::symbol(object, name))
            }
        }
    };
}
pub(crate) use placed;
