use super::*;
use crate::commands::stat::fixtures::{group, names, plain, reads, row, snapshot, text};
use capriole::aggregate::model::{Snapshot, Value};
use capriole_object::symbols::shown::Form;

const ALL: Style = Style {
    rows: usize::MAX,
    plots: usize::MAX,
    keyed_plots: true,
    stacks: Stacks::Below,
    form: Form::Short,
    blocks: true,
    columns: usize::MAX,
};

fn shown(snapshot: &Snapshot, rows: usize, columns: usize) -> Vec<String> {
    let page = Page::whole(snapshot, &names());
    let size = Size { rows, columns };
    let lines = fitting(&page, size, ALL);
    assert!(lines.len() < rows.max(2), "{lines:?}");
    let width = |line: &String| line.chars().map(|c| c.width().unwrap_or(0)).sum::<usize>();
    assert!(lines.iter().all(|line| width(line) <= columns), "{lines:?}");
    lines
}

fn many() -> Snapshot {
    let rows = (0..50).map(|fd| row(0, [Value::Number(fd)], 1000 - fd as u64, []));
    let rows: Vec<_> = rows.collect();
    snapshot(1, [plain(1, &[4, 3, 2]), group([0], ["fd"], [], rows)])
}

#[test]
fn only_rows_that_fit_are_drawn() {
    insta::assert_snapshot!(shown(&many(), 16, 40).join("\n"), @r"
    calls  calls/s  event
        4      4.0  write
        3      3.0  malloc
        2      2.0  free

    read by fd
    calls  calls/s  fd
     1000     1000   0
      999      999   1
      998      998   2
      997      997   3
      996      996   4
      995      995   5
      994      994   6
    … and 43 more
    ");
    assert_eq!(shown(&many(), 100, 40).len(), 57);
    let page = Page::whole(&many(), &names()).lines(Style {
        rows: 2,
        plots: 1,
        ..ALL
    });
    let two = fitting(
        &Page::whole(&many(), &names()),
        Size {
            rows: 50,
            columns: 80,
        },
        Style { rows: 2, ..ALL },
    );
    assert_eq!(two, page);
}

#[test]
fn a_histogram_has_its_place_before_more_rows_and_more_histograms_after_them() {
    let all = snapshot(1, [reads()]);
    insta::assert_snapshot!(shown(&all, 13, 100).join("\n"), @r#"
    read by fd, comm
    calls  calls/s  unreadable  sum(n)  min(n)  max(n)  avg(n)  p50(n)  p90(n)  p99(n)  fd  comm
      200      200           0   22167      64     160   110.8     111     159     191  17  nginx: w
        6      6.0           0     722       0     700   120.3       1     767     767   3  cat
        2      2.0           2       0       -       -       -       -       -       -  -1  ""
    no room for p99.9(n)

    hist(n) of read, fd=17, comm="nginx: w"
     64 .. 127  128  ████████████████████████████████████████
    128 .. 255   72  ██████████████████████▌
    "#);
    let everything = Page::whole(&all, &names()).lines(Style {
        rows: 9,
        plots: 9,
        ..ALL
    });
    let roomy = shown(&all, everything.len() + 1, 200);
    assert_eq!(roomy, everything);
}

#[test]
fn what_does_not_fit_at_all_is_cut() {
    insta::assert_snapshot!(shown(&snapshot(1, [reads()]), 9, 30).join("\n"), @r#"
    read by fd, comm
    calls  unreadable  fd  comm
      200           0  17  nginx:
        6           0   3  cat
        2           2  -1  ""
    no room for calls/s, sum(n), m

    …
    "#);
    for rows in 0..4 {
        for columns in 0..4 {
            shown(&many(), rows, columns);
            shown(&snapshot(1, []), rows, columns);
        }
    }
}

#[test]
fn a_wide_character_is_not_cut_in_two() {
    let wide = group([0, 1], ["comm"], [], [row(0, [text("日本語")], 1, [])]);
    let all = snapshot(1, [wide]);
    let before = "    1  ".len();
    assert_eq!(shown(&all, 9, before + 3)[1], "    1  日");
    assert_eq!(shown(&all, 9, before + 4)[1], "    1  日本");
}

/// A terminal emulator, as far as this output needs one.
struct Terminal {
    lines: Vec<String>,
    row: usize,
    column: usize,
}

impl Terminal {
    fn put(&mut self, text: &str) {
        assert!(text.is_ascii(), "a byte is a column here");
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            let column = self.column;
            match first {
                '\r' => self.column = 0,
                // As terminals are usually set, a line feed also returns to the first column.
                '\n' => (self.row, self.column) = (self.row + 1, 0),
                '\x1b' => {
                    let sequence = rest.strip_prefix('[').expect("CSI");
                    let end = sequence.find(char::is_alphabetic).expect("an end");
                    let number: usize = sequence[..end].parse().unwrap_or(1);
                    match &sequence[end..=end] {
                        "A" => self.row = self.row.checked_sub(number).expect("a line"),
                        "K" => self.line().truncate(column),
                        "J" => {
                            self.line().truncate(column);
                            self.lines.truncate(self.row + 1);
                        }
                        other => panic!("{other}"),
                    }
                    rest = &sequence[end + 1..];
                }
                character => {
                    let line = self.line();
                    if column < line.len() {
                        line.remove(column);
                    }
                    line.insert(column, character);
                    self.column += 1;
                }
            }
        }
        self.line();
    }

    fn line(&mut self) -> &mut String {
        let needed = self.lines.len().max(self.row + 1);
        self.lines.resize(needed, String::new());
        &mut self.lines[self.row]
    }
}

fn on_terminal(screen: &mut Screen<Vec<u8>>, terminal: &mut Terminal) -> String {
    terminal.put(std::str::from_utf8(&screen.out).expect("UTF-8"));
    screen.out.clear();
    terminal.lines.join("\n")
}

#[test]
fn it_is_drawn_in_place_and_leaves_nothing() {
    let owned = |lines: &[&str]| lines.iter().map(|l| l.to_string()).collect::<Vec<_>>();
    let size = Size {
        rows: 10,
        columns: 40,
    };
    let mut terminal = Terminal {
        lines: Vec::new(),
        row: 0,
        column: 0,
    };
    terminal.put("$ capriole stat\n");
    let mut screen = Screen::new(Vec::new());
    let mut draw = |screen: &mut Screen<Vec<u8>>, lines: &[&str], size| {
        screen.draw(&owned(lines), size).expect("a vector");
        on_terminal(screen, &mut terminal)
    };
    assert_eq!(
        draw(&mut screen, &["a long line", "two"], size),
        "$ capriole stat\na long line\ntwo\n"
    );
    assert_eq!(
        draw(&mut screen, &["short", "2", "3"], size),
        "$ capriole stat\nshort\n2\n3\n"
    );
    assert_eq!(draw(&mut screen, &["one"], size), "$ capriole stat\none\n");
    assert_eq!(draw(&mut screen, &[], size), "$ capriole stat\n");
    assert_eq!(
        draw(&mut screen, &["again"], size),
        "$ capriole stat\nagain\n"
    );
    // Drawing starts again where the terminal may have moved the lines.
    let narrow = Size {
        columns: 20,
        ..size
    };
    assert_eq!(
        draw(&mut screen, &["new"], narrow),
        "$ capriole stat\nagain\nnew\n"
    );
    // The terminal echoes typed characters.
    terminal.put("^C");
    screen.clear(Some(narrow)).expect("a vector");
    assert_eq!(
        on_terminal(&mut screen, &mut terminal),
        "$ capriole stat\nagain\n"
    );
    screen.clear(Some(narrow)).expect("a vector");
    assert!(screen.out.is_empty());
}
