use super::super::tests::{one, shown};
use super::*;
use std::fs;
use std::io::Write;

fn all(bytes: &[u8]) -> Vec<(u64, u64, String)> {
    let mut functions = Vec::new();
    Lines::default().add(bytes, &mut functions);
    shown(functions)
}

#[test]
fn names_go_to_the_end_of_the_line() {
    let map = b"7f00 10 JS:~f /a b/c.js:1:2\n0x8000 0xff [x] void A::b(int) \r\n9000 1 \xc3\xa4\n";
    let expected = [
        one(0x7f00, 0x7f10, "JS:~f /a b/c.js:1:2"),
        one(0x8000, 0x80ff, "[x] void A::b(int)"),
        one(0x9000, 0x9001, "\u{e4}"),
    ];
    assert_eq!(all(map), expected);
}

#[test]
fn damaged_lines_are_skipped() {
    let long = [b"1000 10 ".as_slice(), &vec![b'x'; MAX_LINE], b"\n"].concat();
    let huge = [b"1000 10 ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
    let damaged: [&[u8]; 16] = [
        b"\n",
        b" \n",
        b"1000\n",
        b"1000 10\n",
        b"1000 10 \n",
        b"1000 10  \n",
        b"xyz 10 name\n",
        b"1000 -1 name\n",
        b"+1000 10 name\n",
        b"1000 0 name\n",
        b"ffffffffffffffff 2 name\n",
        b"10000000000000000 1 name\n",
        b"1000 10 \xff\xfe\n",
        b"\0\0\0\0\n",
        &long,
        &huge,
    ];
    for line in damaged {
        let map = [line, b"2000 10 good\n"].concat();
        assert_eq!(all(&map), [one(0x2000, 0x2010, "good")]);
    }
}

#[test]
fn lines_may_be_read_in_any_pieces() {
    let map = b"1000 10 one\n2000 20 two words\n3000 30 three\nincomplete";
    let whole = all(map);
    assert_eq!(whole.len(), 3);
    for size in 1..map.len() {
        let (mut lines, mut functions) = (Lines::default(), Vec::new());
        for piece in map.chunks(size) {
            lines.add(piece, &mut functions);
        }
        assert_eq!(shown(functions), whole, "{size}");
    }
}

/// A file that is added to, truncated, and written anew.
#[test]
fn what_is_added_is_read_once_and_a_new_file_from_its_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("map");
    fs::write(&path, "1000 10 one\n20").expect("written");
    let mut open = Open::new(File::open(&path).expect("a file"), (0, 0));
    let mut read = |expected: &[(u64, u64, String)]| {
        let mut functions = Vec::new();
        open.read(&mut functions).expect("readable");
        assert_eq!(shown(functions), expected);
    };
    read(&[one(0x1000, 0x1010, "one")]);
    read(&[]);
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("a file");
    file.write_all(b"00 20 two\n").expect("written");
    read(&[one(0x2000, 0x2020, "two")]);
    // Shorter.
    fs::write(&path, "3000 10 three\n").expect("written");
    read(&[one(0x3000, 0x3010, "three")]);
    // Longer than before.
    fs::write(&path, "4000 10 four\n5000 10 five\n").expect("written");
    read(&[one(0x4000, 0x4010, "four"), one(0x5000, 0x5010, "five")]);
    fs::write(&path, "").expect("written");
    read(&[]);
    fs::write(&path, "6000 10 six\n").expect("written");
    read(&[one(0x6000, 0x6010, "six")]);
}

#[test]
fn a_file_that_is_too_large_is_an_error() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(MAX_SIZE + 1).expect("holes");
    let mut open = Open::new(file, (0, 0));
    let error = open.read(&mut Vec::new()).expect_err("too large");
    assert_eq!(error.to_string(), "it is larger than 256 MiB");
}
