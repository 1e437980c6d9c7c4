//! Folded stacks: call paths with a number each, the input of flame graphs.

use super::flame::{FrameNames, draw};
use capriole_object::symbols::shown::Form;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Call paths, each with a number. The same functions are one path, whatever the addresses were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folded(BTreeMap<Vec<String>, u64>);

impl Folded {
    /// Adds to the number of a path: complete names of functions, outermost first. 0 adds nothing.
    pub fn add(&mut self, functions: Vec<String>, number: u64) {
        if number > 0 {
            let sum = self.0.entry(functions).or_default();
            *sum = sum.saturating_add(number);
        }
    }

    /// True without a path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a line for each path, sorted by names: `main;parse;read 123`. Tools that draw flame
    /// graphs read it.
    #[must_use]
    pub fn lines(&self, form: Form) -> Vec<String> {
        self.lines_with(&FrameNames::in_form(self.0.keys().flatten(), form))
    }

    fn lines_with(&self, names: &FrameNames) -> Vec<String> {
        let all = self.0.iter();
        all.map(|(functions, number)| names.line(functions, *number))
            .collect()
    }

    /// Draws a flame graph as SVG; `unit` is that of the numbers.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or if there is nothing to draw.
    pub fn draw(&self, form: Form, title: &str, unit: &str, out: impl Write) -> io::Result<()> {
        if self.is_empty() {
            return Err(io::Error::other("there are no call stacks"));
        }
        let names = FrameNames::of(self.0.keys().flatten(), form);
        draw(&self.lines_with(&names), title, unit, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn paths_of_the_same_functions_are_added_up() {
        let mut folded = Folded::default();
        folded.add(path(&["main", "b<int>(int)"]), 2);
        folded.add(path(&["main", "a;b"]), 7);
        folded.add(path(&["main", "b<int>(int)"]), 40);
        folded.add(path(&["main", "never"]), 0);
        assert_eq!(folded.lines(Form::Short), ["main;a,b 7", "main;b<int> 42"]);
        assert_eq!(
            folded.lines(Form::Full),
            ["main;a,b 7", "main;b<int>(int) 42"]
        );
        let mut picture = Vec::new();
        folded
            .draw(Form::Short, "t", "calls", &mut picture)
            .unwrap();
        assert!(String::from_utf8(picture).unwrap().contains("42 calls"));
        assert!(
            Folded::default()
                .draw(Form::Short, "t", "calls", Vec::new())
                .is_err()
        );
    }
}
