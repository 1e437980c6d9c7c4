//! The table on a terminal while counting goes on, redrawn in place.
//!
//! The terminal's state is not changed: the cursor moves up to where the table began, each line
//! overwrites the old one, and the rest of the old line is cleared. A process killed midway leaves
//! the last table, and the cursor below it.

use super::terminal::Size;
use super::text::{Page, Stacks, Style};
use capriole_text::printable;
use std::fmt::Write as _;
use std::io::{self, Write};
use unicode_width::UnicodeWidthChar;

/// Rows of a table that are shown even if no histogram fits below them.
const ROWS: usize = 3;

/// Returns the lines of a page that fit a terminal: rows of tables, below them one histogram, then
/// more histograms. The terminal's last line stays free for the cursor. Shows no more than `limits`
/// allow.
pub fn fitting(page: &Page<'_>, size: Size, limits: Style) -> Vec<String> {
    let room = size.rows.saturating_sub(1).max(1);
    let most = limits.rows.min(page.longest());
    let lines = |rows, plots| {
        page.lines(Style {
            rows,
            plots,
            columns: size.columns,
            stacks: Stacks::Inline,
            ..limits
        })
    };
    let fits = |rows, plots| lines(rows, plots).len() <= room;
    let least = most.min(ROWS);
    // Each row takes at least one line, in one of the tables.
    let mut rows = (least..=most.min(room)).rev();
    let rows = rows.find(|rows| fits(*rows, 1)).unwrap_or(least);
    // A histogram takes at least two lines.
    let plots = (2..=rows.min(room)).take_while(|plots| fits(rows, *plots));
    let mut shown = lines(rows, plots.last().unwrap_or(1));
    if shown.len() > room {
        shown.truncate(room);
        shown[room - 1] = if limits.blocks { "…" } else { "..." }.to_owned();
    }
    shown.iter().map(|line| cut(line, size.columns)).collect()
}

/// Cuts a line to at most `columns` columns.
fn cut(line: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |character: &char| {
        used += character.width().unwrap_or(0);
        used <= columns
    };
    let text: String = printable(line).chars().take_while(fits).collect();
    text.trim_end().to_owned()
}

/// Lines on a terminal that are redrawn in place.
#[derive(Debug)]
pub struct Screen<W> {
    out: W,
    /// Number of our lines above the cursor, and the terminal size that they were drawn for.
    drawn: Option<(usize, Size)>,
}

impl<W: Write> Screen<W> {
    /// Starts on the line in which the terminal's cursor is.
    pub fn new(out: W) -> Screen<W> {
        Screen { out, drawn: None }
    }

    /// Draws lines that fit `size` over those before. If the size has changed, the terminal may
    /// have wrapped or cut the old lines in its own way, so they stay where they are.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn draw(&mut self, lines: &[String], size: Size) -> io::Result<()> {
        let mut text = self.back(Some(size));
        for line in lines {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}\x1b[K");
        }
        text.push_str("\x1b[J");
        self.drawn = Some((lines.len(), size));
        self.put(&text)
    }

    /// Clears the drawn lines and moves the cursor back to where it was at the beginning.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn clear(&mut self, size: Option<Size>) -> io::Result<()> {
        if self.drawn.is_none() {
            return Ok(());
        }
        let text = self.back(size) + "\x1b[J";
        self.drawn = None;
        self.put(&text)
    }

    /// Returns the control sequence that moves the cursor to the beginning of the drawn lines.
    fn back(&self, size: Option<Size>) -> String {
        match self.drawn {
            Some((lines, before)) if lines > 0 && size == Some(before) => {
                format!("\r\x1b[{lines}A")
            }
            _ => "\r".to_owned(),
        }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
