//! Text tables.

use unicode_width::UnicodeWidthStr;

/// One column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub title: String,
    /// Alignment: right for numbers, left for text.
    pub align: Align,
    /// The cells, one per line.
    pub cells: Vec<String>,
    /// True if the column may be left out where there is no room for it.
    pub optional: bool,
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
            optional: false,
        }
    }

    /// Allows the column to be left out.
    #[must_use]
    pub fn optional(self) -> Column {
        Column {
            optional: true,
            ..self
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

/// Formats the columns that fit, leaving out optional ones, the last first: so the keys, which come
/// last, are not cut off.
pub fn within(mut columns: Vec<Column>, width: usize) -> Vec<String> {
    let needed = |columns: &[Column]| {
        let widths = columns.iter().map(Column::width);
        widths.sum::<usize>() + 2 * columns.len().saturating_sub(1)
    };
    while needed(&columns) > width
        && let Some(last) = columns.iter().rposition(|column| column.optional)
    {
        columns.remove(last);
    }
    lines(&columns)
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
                Column::numbers("calls/s", cells("1.0")).optional(),
                Column::numbers("sum(n)", cells("4")).optional(),
                Column::numbers("tid", cells("4711")),
            ]
        };
        let shown = |width| within(columns(), width).join("\n");
        assert_eq!(shown(26), "calls  calls/s   tid\n   17      1.0  4711");
        assert_eq!(shown(28), lines(&columns()).join("\n"));
        assert_eq!(shown(12), "calls   tid\n   17  4711");
        assert_eq!(shown(3), "calls   tid\n   17  4711");
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
