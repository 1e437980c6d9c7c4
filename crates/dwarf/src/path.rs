//! Parser for a variable with its path: `req->list[2].name`, `*counter`, `(*list).next`,
//! `net::count`, `'server.c'::count`, `args#0`, `this->Base::size`, `pair.0`.

use capriole_event::template_width;

use super::error::{Refusal, VariableError};

/// Maximum nesting of parentheses, and maximum number of steps in one path.
const MOST: usize = 64;

/// One step from an object to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// `*`
    Follow,
    /// `.name`, or with an arrow `->name`.
    Member { name: String, arrow: bool },
    /// `[number]`
    Index(i64),
}

/// A variable, then the steps from it in order, each with its byte offset in the expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    pub name: String,
    pub name_at: usize,
    pub steps: Vec<(usize, Step)>,
}

impl Path {
    pub(super) fn parse(text: &str) -> Result<Path, VariableError> {
        let mut parser = Parser { text, at: 0 };
        let path = parser.starred(0)?;
        parser.blanks();
        if parser.at < text.len() {
            return Err(parser.expected("`->`, `.`, `[` or the end of the name"));
        }
        Ok(path)
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expected(&self, what: &'static str) -> VariableError {
        VariableError::new(self.at, Refusal::Syntax(what))
    }

    fn starred(&mut self, depth: usize) -> Result<Path, VariableError> {
        let mut stars = Vec::new();
        self.blanks();
        let mut at = self.at;
        while self.eat("*") {
            stars.push((at, Step::Follow));
            self.blanks();
            at = self.at;
        }
        let mut path = self.postfix(depth)?;
        path.steps.extend(stars.into_iter().rev());
        if path.steps.len() > MOST {
            return Err(self.expected("fewer steps"));
        }
        Ok(path)
    }

    fn postfix(&mut self, depth: usize) -> Result<Path, VariableError> {
        let mut path = if self.eat("(") {
            if depth == MOST {
                return Err(self.expected("fewer parentheses"));
            }
            let path = self.starred(depth + 1)?;
            if !self.eat(")") {
                return Err(self.expected("`)`"));
            }
            path
        } else {
            self.blanks();
            let name_at = self.at;
            let name = self.name()?;
            if name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(VariableError::new(
                    name_at,
                    Refusal::Syntax("the name of a variable"),
                ));
            }
            Path {
                name,
                name_at,
                steps: Vec::new(),
            }
        };
        loop {
            self.blanks();
            let at = self.at;
            let step = if self.eat("->") {
                Step::Member {
                    name: self.qualified()?,
                    arrow: true,
                }
            } else if self.eat(".") {
                Step::Member {
                    name: self.qualified()?,
                    arrow: false,
                }
            } else if self.eat("[") {
                let index = self.number()?;
                if !self.eat("]") {
                    return Err(self.expected("`]`"));
                }
                Step::Index(index)
            } else {
                return Ok(path);
            };
            if path.steps.len() == MOST {
                return Err(self.expected("fewer steps"));
            }
            path.steps.push((at, step));
        }
    }

    /// Parses the name of a variable.
    fn name(&mut self) -> Result<String, VariableError> {
        let mut name = String::new();
        if self.eat("'") {
            let Some(length) = self.rest().find('\'') else {
                return Err(self.expected("`'` behind the name of the file"));
            };
            name = format!("'{}'", &self.rest()[..length]);
            self.at += length + 1;
            if !self.rest().starts_with("::") {
                return Err(self.expected("`::` and a name"));
            }
        }
        if self.eat("::") {
            name += "::";
        }
        name += &self.qualified()?;
        if self.rest().starts_with('#') {
            self.at += 1;
            name += &format!("#{}", self.word()?);
        }
        Ok(name)
    }

    /// Parses words with `::` between them. All but the last may have template arguments.
    fn qualified(&mut self) -> Result<String, VariableError> {
        let mut name = self.part()?;
        while self.eat("::") {
            name += "::";
            name += &self.part()?;
        }
        Ok(name)
    }

    /// Parses a word, and the template arguments after it.
    fn part(&mut self) -> Result<String, VariableError> {
        let mut part = self.word()?;
        let width = template_width(self.rest()).unwrap_or(0);
        part += &self.rest()[..width];
        self.at += width;
        Ok(part)
    }

    /// Parses a word of letters, digits and `_`.
    fn word(&mut self) -> Result<String, VariableError> {
        self.blanks();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a name"));
        }
        let word = rest[..end].to_owned();
        self.at += end;
        Ok(word)
    }

    fn number(&mut self) -> Result<i64, VariableError> {
        let negative = self.eat("-");
        self.blanks();
        let at = self.at;
        let bad = VariableError::new(at, Refusal::Syntax("a number"));
        let word = self.word().map_err(|_| bad.clone())?;
        let number = match word.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let number = number.map_err(|_| bad)?;
        Ok(if negative { -number } else { number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match Path::parse(text) {
            Ok(path) => {
                let steps = path.steps.iter().map(|(at, step)| match step {
                    Step::Follow => format!(" {at}*"),
                    Step::Member { name, arrow } => {
                        format!(" {at}{}{name}", if *arrow { "->" } else { "." })
                    }
                    Step::Index(index) => format!(" {at}[{index}]"),
                });
                format!("{}{}", path.name, steps.collect::<String>())
            }
            Err(error) => format!("{}: {error}", error.at),
        }
    }

    #[test]
    fn steps_are_taken_in_the_order_of_c() {
        assert_eq!(shown("a"), "a");
        assert_eq!(shown("req->list[2].name"), "req 3->list 9[2] 12.name");
        assert_eq!(shown("**a->b"), "a 3->b 1* 0*");
        assert_eq!(shown("(*a).b[0x10]"), "a 1* 4.b 6[16]");
        assert_eq!(shown("net::count"), "net::count");
        assert_eq!(shown("::net::count.a"), "::net::count 12.a");
        assert_eq!(shown("'a b.c'::count[1]"), "'a b.c'::count 14[1]");
        assert_eq!(shown("args#1->b"), "args#1 6->b");
        assert_eq!(shown("p->Base::size"), "p 1->Base::size");
        assert_eq!(shown("pair.0"), "pair 4.0");
        assert_eq!(
            shown("t.std::Head<0, long int>::x[1]"),
            "t 1.std::Head<0, long int>::x 27[1]"
        );
        assert_eq!(shown("Box<A<B::c>>::count"), "Box<A<B::c>>::count");
        assert_eq!(shown("a[-1]"), "a 1[-1]");
    }

    #[test]
    fn mistakes_have_a_column() {
        assert_eq!(shown(""), "0: expected a name");
        assert_eq!(shown("a->"), "3: expected a name");
        assert_eq!(shown("a[x]"), "2: expected a number");
        assert_eq!(shown("'a.c"), "1: expected `'` behind the name of the file");
        assert_eq!(shown("'a.c'.b"), "5: expected `::` and a name");
        assert_eq!(shown("a#"), "2: expected a name");
        assert_eq!(shown("a[1"), "3: expected `]`");
        assert_eq!(shown("(a"), "2: expected `)`");
        assert_eq!(
            shown("a+1"),
            "1: expected `->`, `.`, `[` or the end of the name"
        );
        assert_eq!(shown("1a"), "0: expected the name of a variable");
        assert!(Path::parse(&"(".repeat(5000)).is_err());
        assert!(Path::parse(&format!("{}a", "*".repeat(5000))).is_err());
        assert!(Path::parse(&format!("a{}", ".b".repeat(5000))).is_err());
    }
}
