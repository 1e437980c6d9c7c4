//! What else a function's name means: the copies that compilers make of it.
//!
//! They are known from debug information. Nobody reads that for a pattern: it takes a moment
//! for large programs.

use capriole_event::At;

use super::{Body, Finder, Site, at_file_offset};
use crate::debug::FunctionPlace;
use crate::symbols::{Found, display};

impl Finder<'_> {
    /// The places of the function `own`, or else of one with the name asked for, but that of
    /// its symbol. Nothing without debug information.
    pub(super) fn copies(&self, own: Option<&Found<'_>>) -> Vec<Site> {
        if self.offset != 0 || self.spec.at != At::Entry {
            return Vec::new();
        }
        let Ok(debug) = self.object.file().debug() else {
            return Vec::new();
        };
        let start = own.map(|own| own.function.extent.start);
        let places = match own {
            Some(own) => debug
                .functions(own.name.linkage)
                .or_else(|_| debug.functions_like(own.function.extent.start)),
            None => debug.functions(self.pattern),
        };
        let places = places.unwrap_or_default().into_iter();
        places
            .filter(|place| Some(place.address) != start)
            .filter_map(|place| self.copy(place))
            .collect()
    }

    fn copy(&self, place: FunctionPlace) -> Option<Site> {
        let object = self.object;
        let site = at_file_offset(object, object.file().file_offset(place.address)?).ok()?;
        let frame = place.site.frame();
        let linkage = frame.linkage_name.clone();
        let linkage = linkage.unwrap_or_else(|| frame.name.clone());
        let function = display(&linkage).into_owned();
        if frame.inlined {
            return Some(Site {
                symbol: site.symbol.or(place.inlined_into),
                body: Body::Inlined { function },
                scope: Some(place.site),
                ..site
            });
        }
        let symbols = object.symbols().ok()?;
        let starting = symbols.function_starting_at(place.address);
        let mut marks = starting
            .into_iter()
            .flat_map(|function| symbols.names(function))
            .filter_map(|name| name.linkage.strip_prefix(linkage.as_str()))
            .filter(|mark| mark.starts_with('.'))
            .peekable();
        // GCC: `name.constprop.0`, `name.isra.0`; `name.part.0` is called by the rest of it.
        if marks.peek().is_some() {
            return marks.all(|mark| !mark.contains(".part.")).then_some(Site {
                body: Body::Clone,
                scope: Some(place.site),
                ..site
            });
        }
        // Its own code, which has another name among the symbols, or none.
        Some(Site {
            symbol: Some(function),
            linkage_name: Some(linkage),
            offset: 0,
            scope: Some(place.site),
            ..site
        })
    }
}
