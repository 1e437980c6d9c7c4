//! Divides demangled names into their parts.

/// Kind of a part of a demangled name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Scopes, identifiers and operators; everything in names of Go, and types in brackets that
    /// begin a part of Rust's names: `<A as B>::f`.
    Text,
    /// Template arguments, with their brackets: `<int>`, in D `!(int)`.
    Arguments,
    /// Parameters, with their parentheses and the qualifiers behind: `(int) const`.
    Parameters,
    /// An ABI tag: `[abi:cxx11]`.
    Tag,
    /// The mark of a copy or part of a function that the compiler made: ` [clone .isra.0]`,
    /// `.constprop.0`, or of a calling convention: `.abi0`. Always last.
    Copy,
}

/// Start of an ABI tag; a closing bracket ends the tag.
pub(super) const TAG: &str = "[abi:";

/// The operators of C++ that are no words, long ones first.
const OPERATORS: [&str; 41] = [
    "<=>", "<<=", ">>=", "->*", "()", "[]", "<<", ">>", "<=", ">=", "->", "==", "!=", "+=", "-=",
    "*=", "/=", "%=", "^=", "&=", "|=", "&&", "||", "++", "--", "<", ">", "=", "!", "+", "-", "*",
    "/", "%", "^", "&", "|", "~", ",", "\"\"", "?",
];
/// Texts that may follow the parameters of a function.
const QUALIFIERS: [&str; 9] = [
    " const",
    " volatile",
    " &&",
    " &",
    "&&",
    "&",
    " immutable",
    " shared",
    " inout",
];
/// Names of the copies and parts of functions that compilers make, which a number follows.
const COPIES: [&str; 5] = [".isra.", ".constprop.", ".part.", ".lto_priv.", ".llvm."];
const COLD: &str = ".cold";
/// Behind the names of Go's functions in assembly, which have their arguments on the stack.
const ABI0: &str = ".abi0";

/// A name and the parts that it consists of.
pub(super) struct Parts<'a> {
    name: &'a str,
    /// The kind and the end of each part.
    ends: Vec<(Kind, usize)>,
}

impl<'a> Parts<'a> {
    /// Divides a name. One whose brackets do not match is all text.
    pub(super) fn of(name: &'a str) -> Parts<'a> {
        let mut parts = Parts {
            name,
            ends: Vec::new(),
        };
        if parts.divide().is_none() {
            parts.ends = vec![(Kind::Text, name.len())];
        }
        parts
    }

    /// Returns the parts in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Kind, &'a str)> {
        let name = self.name;
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        let parts: Vec<_> = starts.zip(&self.ends).collect();
        parts
            .into_iter()
            .map(move |(start, (kind, end))| (*kind, &name[start..*end]))
    }

    /// Returns the name without the parts of one kind.
    pub(super) fn without(&self, left_out: Kind) -> String {
        let kept = self.iter().filter(|(kind, _)| *kind != left_out);
        kept.map(|(_, text)| text).collect()
    }

    fn divide(&mut self) -> Option<()> {
        let name = self.name;
        let mut at = 0;
        // Set behind the word `operator` and what it has for an operator, up to its parameters.
        let mut is_operator = false;
        while at < name.len() {
            let rest = &name[at..];
            let before = &name[..at];
            let (kind, length) = if let Some(length) = operator(before, rest) {
                is_operator = true;
                (Kind::Text, length)
            } else if rest.starts_with(" [clone ") || is_copy(before, rest) {
                (Kind::Copy, rest.len())
            } else if rest.starts_with(TAG) {
                (Kind::Tag, rest.find(']')? + 1)
            } else if rest.starts_with("{lambda(") {
                (Kind::Text, "{lambda".len())
            } else {
                let first = rest.chars().next()?;
                let begins = before.is_empty() || before.ends_with("::");
                match first {
                    '<' if begins => (Kind::Text, group(rest)?),
                    '<' => (Kind::Arguments, group(rest)?),
                    '!' if rest.starts_with("!(") => (Kind::Arguments, 1 + group(&rest[1..])?),
                    '(' if !begins && (is_operator || follows_name(before)) => {
                        is_operator = false;
                        let length = group(rest)?;
                        (Kind::Parameters, length + qualifiers(&rest[length..]))
                    }
                    '(' | '[' => (Kind::Text, group(rest)?),
                    // Go has braces in names of types, not all of them in pairs.
                    first => (Kind::Text, first.len_utf8()),
                }
            };
            at += length;
            match self.ends.last_mut() {
                Some((last, end)) if *last == kind => *end = at,
                _ => self.ends.push((kind, at)),
            }
        }
        Some(())
    }
}

/// True if a parameter list may follow this.
fn follows_name(before: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '>' | ')' | '}' | ']');
    before.ends_with(is_name)
}

/// Returns the length of the word `operator` with the operator, if `rest` begins with one.
fn operator(before: &str, rest: &str) -> Option<usize> {
    const WORD: &str = "operator";
    let behind = rest.strip_prefix(WORD)?;
    if before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '.')) {
        return None;
    }
    // A conversion, `operator new`, or a literal operator.
    if behind.starts_with(' ') {
        return Some(WORD.len() + 1);
    }
    let symbol = OPERATORS
        .iter()
        .find(|symbol| behind.starts_with(**symbol))?;
    Some(WORD.len() + symbol.len())
}

/// True if `rest` consists of marks of copies, such as `.part.0.isra.0`, maybe with `.cold` behind, or
/// is the mark of a function of Go with arguments on the stack.
fn is_copy(before: &str, rest: &str) -> bool {
    if rest == ABI0 && !before.is_empty() {
        return true;
    }
    let Some(behind) = COPIES.iter().find_map(|copy| rest.strip_prefix(copy)) else {
        return false;
    };
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    let behind = &behind[digits..];
    let is_last = behind.is_empty() || behind == COLD;
    !before.is_empty() && digits > 0 && (is_last || is_copy(before, behind))
}

/// Returns the length of the qualifiers that `behind`, the text behind parameters, begins with.
fn qualifiers(behind: &str) -> usize {
    let mut rest = behind;
    while let Some(less) = QUALIFIERS.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = less;
    }
    behind.len() - rest.len()
}

/// Returns the length of the bracketed group that `text` begins with. `None` if its brackets do not
/// match.
pub(super) fn group(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if let Some(length) = operator(&text[..at], &text[at..]) {
            at += length;
            continue;
        }
        match c {
            '<' | '(' | '[' | '{' => open.push(c),
            // In parentheses it compares.
            '>' if open.last() == Some(&'<') && !text[..at].ends_with('-') => {
                open.pop();
            }
            ')' | ']' | '}' => {
                let opening = match c {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                // An opening bracket inside that was none: `(a<b)`.
                while open.pop()? != opening {}
            }
            _ => {}
        }
        at += c.len_utf8();
        if open.is_empty() {
            return Some(at);
        }
    }
    None
}
