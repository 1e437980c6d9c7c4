//! Suggestions of names similar to one that was not found.

use std::collections::HashSet;

use super::SymbolTable;

/// Maximum number of suggestions.
const SUGGESTIONS: usize = 5;
/// Names longer than this are compared by containment only.
const LONGEST_COMPARED: usize = 64;

impl SymbolTable {
    /// Returns up to five names of functions similar to `name`, the most similar first.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Vec<String> {
        let demangled = self.demangled();
        let names = self.functions.iter().flat_map(|function| {
            (function.first_name..function.first_name + function.names).map(
                |index| match &demangled[index as usize] {
                    Some(name) => name.short.as_str(),
                    None => self.raw.text(&self.raw.symbols[index as usize]),
                },
            )
        });
        nearest(name, names)
    }
}

/// Returns up to five of `names` similar to `wanted`, the most similar first.
pub fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    // Go has parentheses around receivers: `main.(*Order).Add`.
    let parameters = wanted
        .match_indices('(')
        .find(|(at, _)| !wanted[..*at].ends_with('.'));
    let wanted = parameters.map_or(wanted, |(at, _)| &wanted[..at]).trim();
    if wanted.is_empty() {
        return Vec::new();
    }
    let lower = wanted.to_lowercase();
    let mut seen = HashSet::new();
    let mut ranked: Vec<(usize, usize, &str)> = names
        .filter(|name| seen.insert(*name))
        .filter_map(|name| {
            // `cost` is `shop::cart::cost`, too.
            let last = name.rsplit("::").next().filter(|last| *last != name);
            let last = last.and_then(|last| Some(rank(&lower, last)? + 1));
            let best = rank(&lower, name).into_iter().chain(last);
            let best = best.chain(rank_in_go(&lower, name)).min()?;
            Some((best, name.len(), name))
        })
        .collect();
    ranked.sort_unstable();
    ranked.truncate(SUGGESTIONS);
    ranked
        .into_iter()
        .map(|(.., name)| name.to_owned())
        .collect()
}

/// Returns the measure for a name of Go that differs in the brackets of its receiver, in type arguments
/// or by its package: `Order.Add` is `main.(*Order).Add`.
fn rank_in_go(wanted: &str, name: &str) -> Option<usize> {
    if !name.contains('.') || name.contains("::") || !wanted.contains('.') {
        return None;
    }
    let plain = |name: &str| {
        let mut depth = 0_usize;
        let outside = name.chars().filter(|c| {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && !matches!(c, '(' | ')' | '*' | ']')
        });
        outside.collect::<String>()
    };
    let (wanted, name) = (plain(wanted), plain(&name.to_lowercase()));
    let package = name.strip_suffix(&wanted)?;
    match package {
        "" => Some(0),
        _ => package.ends_with(['.', '/']).then_some(1),
    }
}

/// Returns a measure of the difference between two names, smaller for more similar names;
/// `None` if they are not similar enough to suggest.
fn rank(wanted: &str, name: &str) -> Option<usize> {
    let name = name.to_lowercase();
    if name == wanted {
        return Some(0);
    }
    let allowed = (wanted.len() / 3).clamp(1, 8);
    if wanted.len() <= LONGEST_COMPARED
        && name.len() <= LONGEST_COMPARED
        && wanted.len().abs_diff(name.len()) <= allowed
        && let Some(distance) = edit_distance(wanted.as_bytes(), name.as_bytes(), allowed)
    {
        return Some(distance);
    }
    let last = |name: &str| name.rsplit("::").next().map(str::len);
    match name.find(wanted) {
        // Rank by kind of match: whole last part of a qualified name, prefix, contained elsewhere.
        Some(at) if name[at..].len() == wanted.len() && last(&name) == Some(wanted.len()) => {
            Some(1)
        }
        Some(0) => Some(allowed + 1),
        Some(_) if wanted.len() >= 3 => Some(allowed + 2),
        _ => None,
    }
}

/// Returns the optimal string alignment distance (Levenshtein distance with transpositions of
/// neighbouring characters), if it is at most `limit`.
fn edit_distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut cost = (last[j + 1] + 1)
                .min(row[j] + 1)
                .min(last[j] + usize::from(x != y));
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        if row.iter().all(|&cost| cost > limit) {
            return None;
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|&cost| cost <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_the_distance() {
        assert_eq!(edit_distance(b"malloc", b"malloc", 3), Some(0));
        assert_eq!(edit_distance(b"maloc", b"malloc", 3), Some(1));
        assert_eq!(edit_distance(b"mallco", b"malloc", 3), Some(1));
        assert_eq!(edit_distance(b"free", b"malloc", 3), None);
        assert_eq!(edit_distance(b"", b"abc", 3), Some(3));
    }

    #[test]
    fn suggests_the_most_alike_first() {
        let names = [
            "free",
            "malloc",
            "mallopt",
            "__libc_malloc",
            "ns::Malloc",
            "unrelated",
        ];
        assert_eq!(
            nearest("mallox", names.iter().copied()),
            ["malloc", "mallopt", "ns::Malloc"]
        );
        assert_eq!(
            nearest("malloc", names.iter().copied()),
            ["malloc", "ns::Malloc", "mallopt", "__libc_malloc"]
        );
        let go = [
            "main.main",
            "main.Max[go.shape.int]",
            "main.Order.Val",
            "main.(*Order).Add",
            "main.(*Value).Add",
        ];
        for (wanted, found) in [
            ("main.Max[int]", "main.Max[go.shape.int]"),
            ("main.(*Order).Val", "main.Order.Val"),
            ("main.Order.Add", "main.(*Order).Add"),
            ("Order.Add", "main.(*Order).Add"),
        ] {
            let first = nearest(wanted, go.iter().copied()).into_iter().next();
            assert_eq!(first.as_deref(), Some(found), "{wanted}");
        }
        assert!(nearest("", names.iter().copied()).is_empty());
        assert!(nearest("zzzzzz", names.iter().copied()).is_empty());
    }
}
