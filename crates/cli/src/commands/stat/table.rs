//! Text tables.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// One column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub title: String,
    /// Alignment: right for numbers, left for text.
    pub align: Align,
    /// The cells, one per line.
    pub cells: Vec<String>,
    /// Importance of a column that may be left out where there is no room for it; `None` for others.
    pub optional: Option<u8>,
    /// True if its cells may be shortened where there is no room for them.
    pub flexible: bool,
}

/// Alignment of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Cells begin in the same column.
    Left,
    /// Cells end in the same column.
    Right,
}

impl Column {
    /// Creates a column of numbers.
    pub fn numbers(title: impl Into<String>, cells: impl Iterator<Item = String>) -> Column {
        Column {
            title: title.into(),
            align: Align::Right,
            cells: cells.collect(),
            optional: None,
            flexible: false,
        }
    }

    /// Allows the column to be left out, after those of less importance.
    #[must_use]
    pub fn optional(self, importance: u8) -> Column {
        Column {
            optional: Some(importance),
            ..self
        }
    }

    /// Allows the cells to be shortened.
    #[must_use]
    pub fn flexible(self) -> Column {
        Column {
            flexible: true,
            ..self
        }
    }

    /// Shortens the cells to this width.
    fn shorten(&mut self, width: usize, dots: &str) {
        for cell in &mut self.cells {
            if cell.width() > width {
                *cell = shortened(cell, width, dots);
            }
        }
    }

    fn width(&self) -> usize {
        let cells = std::iter::once(&self.title).chain(&self.cells);
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    }

    /// Creates a column of text.
    pub fn text(title: impl Into<String>, cells: impl Iterator<Item = String>) -> Column {
        Column {
            align: Align::Left,
            ..Column::numbers(title, cells)
        }
    }
}

/// Width to which cells are shortened at most.
const LEAST: usize = 16;

/// Formats the columns that fit, leaving out those of least importance, and shortening the others,
/// so that the keys, which come last, are not cut off. Returns the titles of the columns that were
/// left out, too. `dots` stand for what was taken from a cell.
pub fn within(mut columns: Vec<Column>, width: usize, dots: &str) -> (Vec<String>, Vec<String>) {
    let needed = |columns: &[Column]| {
        let widths = columns.iter().map(Column::width);
        widths.sum::<usize>() + 2 * columns.len().saturating_sub(1)
    };
    let mut left_out: Vec<(usize, String)> = Vec::new();
    let mut places: Vec<usize> = (0..columns.len()).collect();
    // The width with all flexible cells as short as possible.
    let least = |columns: &[Column]| {
        let flexible = columns.iter().filter(|column| column.flexible);
        let less = flexible.map(|column| column.width().saturating_sub(LEAST));
        needed(columns).saturating_sub(less.sum())
    };
    while least(&columns) > width
        && let Some((index, _)) = columns
            .iter()
            .enumerate()
            .rev()
            .filter_map(|(index, column)| Some((index, column.optional?)))
            .min_by_key(|(_, importance)| *importance)
    {
        left_out.push((places.remove(index), columns.remove(index).title));
    }
    while let Some(excess) = needed(&columns).checked_sub(width).filter(|more| *more > 0) {
        let flexible = columns.iter_mut().filter(|column| column.flexible);
        let Some(widest) = flexible.max_by_key(|column| column.width()) else {
            break;
        };
        let before = widest.width();
        widest.shorten(before.saturating_sub(excess).max(LEAST), dots);
        if widest.width() == before {
            break;
        }
    }
    left_out.sort_unstable();
    let titles = left_out.into_iter().map(|(_, title)| title);
    (lines(&columns), titles.collect())
}

/// Shortens a text to a width: its beginning and its end stay.
fn shortened(text: &str, width: usize, dots: &str) -> String {
    let room = width.saturating_sub(dots.width());
    let fitting = |characters: &mut dyn Iterator<Item = char>, room: usize| -> Vec<char> {
        let mut used = 0;
        let fits = |c: &char| {
            used += c.width().unwrap_or(0);
            used <= room
        };
        characters.take_while(fits).collect()
    };
    let head = fitting(&mut text.chars(), room.div_ceil(2));
    let tail = fitting(&mut text.chars().rev(), room / 2);
    let head: String = head.into_iter().collect();
    head + dots + &tail.into_iter().rev().collect::<String>()
}

/// Formats the heading and the lines, with two spaces between columns and none at the end.
pub fn lines(columns: &[Column]) -> Vec<String> {
    let height = columns.iter().map(|c| c.cells.len()).max().unwrap_or(0);
    let mut lines = vec![String::new(); 1 + height];
    for (number, column) in columns.iter().enumerate() {
        let cells = || std::iter::once(&column.title).chain(&column.cells);
        let width = column.width();
        let is_last = number + 1 == columns.len();
        for (line, cell) in lines.iter_mut().zip(cells()) {
            if number > 0 {
                line.push_str("  ");
            }
            let gap = " ".repeat(width - cell.width());
            match (column.align, is_last) {
                (Align::Right, _) => line.extend([&gap, cell.as_str()]),
                (Align::Left, true) => line.push_str(cell),
                (Align::Left, false) => line.extend([cell.as_str(), &gap]),
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_where_room_is_short() {
        let cells = |cell: &str| std::iter::once(cell.to_owned());
        let columns = || {
            vec![
                Column::numbers("calls", cells("17")),
                Column::numbers("calls/s", cells("1.0")).optional(2),
                Column::numbers("sum(n)", cells("4")).optional(1),
                Column::numbers("tid", cells("4711")),
            ]
        };
        let shown = |width| {
            let (lines, left_out) = within(columns(), width, "..");
            (lines.join("\n"), left_out.join(", "))
        };
        let pair = |lines: &str, left_out: &str| (lines.to_owned(), left_out.to_owned());
        let both = "calls  calls/s   tid\n   17      1.0  4711";
        assert_eq!(shown(26), pair(both, "sum(n)"));
        assert_eq!(shown(28), pair(&lines(&columns()).join("\n"), ""));
        let neither = "calls   tid\n   17  4711";
        assert_eq!(shown(12), pair(neither, "calls/s, sum(n)"));
        assert_eq!(shown(3), pair(neither, "calls/s, sum(n)"));
    }

    #[test]
    fn long_keys_are_shortened_before_they_are_cut() {
        let columns = || {
            let path = "/var/lib/shop/orders/2026/11/26/orders.db";
            let name = "shop::cart::Order::price";
            let cells = |cell: &str| std::iter::once(cell.to_owned());
            vec![
                Column::numbers("calls", cells("17")),
                Column::numbers("p99", cells("1.28 us")).optional(9),
                Column::text("path", cells(path)).flexible(),
                Column::text("function", cells(name)).flexible(),
            ]
        };
        let shown = |width| {
            let (lines, left_out) = within(columns(), width, "..");
            assert!(lines.iter().all(|line| line.width() <= width), "{lines:?}");
            (lines[1].clone(), left_out.len())
        };
        let whole =
            "   17  1.28 us  /var/lib/shop/orders/2026/11/26/orders.db  shop::cart::Order::price";
        assert_eq!(shown(83), (whole.to_owned(), 0));
        assert_eq!(
            shown(60).0,
            "   17  1.28 us  /var/lib..rders.db  shop::cart::Order::price"
        );
        assert_eq!(
            shown(50).0,
            "   17  1.28 us  /var/li..ders.db  shop::c..::price"
        );
        assert_eq!(
            shown(43),
            ("   17  /var/li..ders.db  shop::ca..r::price".to_owned(), 1)
        );
        assert_eq!(shortened("日本語日本語", 7, ".."), "日..語");
    }

    #[test]
    fn numbers_end_and_texts_begin_in_one_place_also_those_of_wide_characters() {
        let cells = |cells: [&'static str; 3]| cells.into_iter().map(String::from);
        let columns = [
            Column::numbers("calls", cells(["1", "1234567", "12"])),
            Column::text("comm", cells(["日本", "a", "größe"])),
            Column::numbers("fd", cells(["-1", "(fault)", "7"])),
            Column::text("event", cells(["read", "a_long_name", "f"])),
        ];
        insta::assert_snapshot!(lines(&columns).join("\n"), @r"
          calls  comm        fd  event
              1  日本        -1  read
        1234567  a      (fault)  a_long_name
             12  größe        7  f
        ");
        assert!(lines(&columns).iter().all(|line| line.trim_end() == line));
    }
}
