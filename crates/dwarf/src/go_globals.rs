//! Package variables of Go. Debug information has the package's path in their names: `main.counter`,
//! `net/http.DefaultClient`.

use gimli::constants as dw;

use super::error::Refusal;
use super::globals::Global;
use super::scope::{Site, Variable};
use super::units::Debug;

impl<'a> Debug<'a> {
    /// Resolves a name at a site in a function of Go to a package variable: `counter` of the function's own
    /// package, `http.DefaultClient` of another by the last element of its path, `'net/http'::DefaultClient` by
    /// the whole path.
    pub(super) fn package_variable(
        &self,
        site: &Site,
        name: &str,
    ) -> Result<Option<Variable<'a>>, Refusal> {
        if self.die(site.frame().key)?.language() != Some(dw::DW_LANG_Go) {
            return Ok(None);
        }
        let names = self.names()?;
        let whole = match name.strip_prefix('\'').and_then(|n| n.split_once("'::")) {
            Some((path, last)) => format!("{path}.{last}"),
            None if name.contains('.') => name.to_owned(),
            None => format!("{}.{name}", package(&site.frame().name)),
        };
        let mut found: Vec<(&str, &Global)> = Vec::new();
        if let Some(own) = names.globals.get(&whole) {
            found.extend(own.first().map(|global| (whole.as_str(), global)));
        } else if name.contains('.') && !name.starts_with('\'') {
            let end = format!("/{name}");
            let all = names
                .globals
                .iter()
                .filter(|(path, _)| path.ends_with(&end));
            found.extend(all.filter_map(|(path, all)| Some((path.as_str(), all.first()?))));
        }
        match found.as_slice() {
            [] => Ok(None),
            [(_, global)] => Ok(Some(self.global_at(site, name, global.key)?)),
            several => {
                let mut candidates: Vec<String> = several
                    .iter()
                    .filter_map(|(path, _)| path.rsplit_once('.'))
                    .map(|(path, last)| format!("'{path}'::{last}"))
                    .collect();
                candidates.sort();
                Err(Refusal::Ambiguous {
                    name: name.to_owned(),
                    candidates,
                })
            }
        }
    }
}

/// Returns the path of the package in a function's name: `net/http` of `net/http.(*Client).Do`.
fn package(function: &str) -> &str {
    let plain = function.split('[').next().unwrap_or(function);
    let last = plain.rfind('/').map_or(0, |slash| slash + 1);
    let end = plain[last..]
        .find('.')
        .map_or(plain.len(), |dot| last + dot);
    &function[..end]
}

#[cfg(test)]
mod tests {
    use super::package;

    #[test]
    fn packages_are_told_from_functions() {
        for (function, expected) in [
            ("main.work", "main"),
            ("main.work.func1", "main"),
            ("net/http.(*Client).Do", "net/http"),
            ("a.b/c/d.Map[go.shape.int,x/y.T]", "a.b/c/d"),
            ("none", "none"),
        ] {
            assert_eq!(package(function), expected);
        }
    }
}
