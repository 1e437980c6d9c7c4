//! Parser of `/proc/PID/maps`. The kernel writes the lines, but it does not choose the paths in
//! them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::{Device, Mapping, Perms};

/// A line of `maps` that is not in the documented format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct MapsError {
    /// Line number, from 1.
    pub line: usize,
    /// The defect.
    pub what: &'static str,
}

/// Parses the whole file. The mappings keep the kernel's order, which is checked: ascending and
/// not overlapping.
///
/// # Errors
///
/// [`MapsError`] with the first malformed line.
pub fn parse_maps(bytes: &[u8]) -> Result<Vec<Mapping>, MapsError> {
    let mut maps: Vec<Mapping> = Vec::new();
    for (index, line) in bytes.split(|&b| b == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let error = |what| MapsError {
            line: index + 1,
            what,
        };
        let mapping = parse_line(line).map_err(error)?;
        if maps.last().is_some_and(|last| last.end > mapping.start) {
            return Err(error("overlaps the line before"));
        }
        maps.push(mapping);
    }
    Ok(maps)
}

/// Parses `start-end perms offset major:minor inode   path`: one space between the
/// first five fields, any number of spaces before the path, which may itself contain spaces.
fn parse_line(line: &[u8]) -> Result<Mapping, &'static str> {
    let mut rest = line;
    let mut field = || -> &[u8] {
        let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (field, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        field
    };
    let (start, end) = split(field(), b'-').ok_or("no address range")?;
    let start = hex(start).ok_or("bad start address")?;
    let end = hex(end).ok_or("bad end address")?;
    if start >= end {
        return Err("empty address range");
    }
    let perms = parse_perms(field()).ok_or("bad permissions")?;
    let offset = hex(field()).ok_or("bad offset")?;
    let (major, minor) = split(field(), b':').ok_or("no device")?;
    let device = |bytes| hex(bytes).and_then(|n| u32::try_from(n).ok());
    let dev = Device {
        major: device(major).ok_or("bad device")?,
        minor: device(minor).ok_or("bad device")?,
    };
    let inode = decimal(field()).ok_or("bad inode")?;

    let blanks = rest.iter().take_while(|&&b| b == b' ').count();
    let path = rest.get(blanks..).unwrap_or_default();
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) if inode != 0 => (path, true),
        _ => (path, false),
    };
    Ok(Mapping {
        start,
        end,
        perms,
        offset,
        dev,
        inode,
        path: unescape(path),
        deleted,
    })
}

fn split(field: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = field.iter().position(|&b| b == at)?;
    Some((&field[..position], &field[position + 1..]))
}

fn hex(field: &[u8]) -> Option<u64> {
    digits(field, 16)
}

fn decimal(field: &[u8]) -> Option<u64> {
    digits(field, 10)
}

/// Parses a field that consists of digits only: `from_str_radix` would accept a sign.
fn digits(field: &[u8], radix: u32) -> Option<u64> {
    if field.first()? == &b'+' {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(field).ok()?, radix).ok()
}

fn parse_perms(field: &[u8]) -> Option<Perms> {
    let &[r, w, x, s] = field else { return None };
    let flag = |byte: u8, letter: u8| match byte {
        b'-' => Some(false),
        b if b == letter => Some(true),
        _ => None,
    };
    Some(Perms {
        read: flag(r, b'r')?,
        write: flag(w, b'w')?,
        execute: flag(x, b'x')?,
        shared: match s {
            b's' => true,
            b'p' => false,
            _ => return None,
        },
    })
}

/// Undoes the only escape that the kernel uses in paths, `\012` for a newline (seq_path). A
/// path that really contains these four characters is misread; the comparison of inodes detects
/// that.
fn unescape(path: &[u8]) -> OsString {
    const NEWLINE: &[u8] = b"\\012";
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(NEWLINE) {
            out.push(b'\n');
            rest = tail;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &[u8] = b"\
00400000-00401000 r--p 00000000 fe:01 12345                              /opt/my app/prog v2
00401000-00402000 r-xp 00001000 fe:01 12345                              /opt/my app/prog v2
7f1000000000-7f1000021000 rw-p 00000000 00:00 0 
7f1000021000-7f1000022000 r-xs 00003000 08:10 99                         /tmp/lib.so (deleted)
7f1000022000-7f1000023000 r--p 00000000 00:01 7                          /memfd:a\\012b (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn reads_paths_with_blanks_deleted_files_and_special_names() {
        let maps = parse_maps(SAMPLE).unwrap();
        assert_eq!(maps.len(), 7);
        assert_eq!(maps[0].path, "/opt/my app/prog v2");
        assert_eq!(
            maps[0].dev,
            Device {
                major: 0xfe,
                minor: 1
            }
        );
        assert_eq!(maps[0].inode, 12345);
        assert!(maps[1].perms.execute && !maps[1].perms.write && !maps[1].perms.shared);
        assert_eq!(maps[1].offset, 0x1000);
        assert!(maps[2].path.is_empty() && !maps[2].is_file());
        assert_eq!(maps[3].path, "/tmp/lib.so");
        assert!(maps[3].deleted && maps[3].perms.shared);
        assert_eq!(maps[4].path, "/memfd:a\nb");
        assert!(maps[5].is_named("[stack]"));
        assert_eq!(maps[6].end, 0xffff_ffff_ff60_1000);
    }

    #[test]
    fn reads_the_map_of_this_process() {
        let bytes = std::fs::read("/proc/self/maps").unwrap();
        let maps = parse_maps(&bytes).unwrap();
        let here = reads_the_map_of_this_process as *const () as u64;
        let text = maps.iter().find(|m| m.contains(here)).unwrap();
        assert!(text.perms.execute && text.is_file());
        assert_eq!(text.path, std::env::current_exe().unwrap().as_os_str());
    }

    #[test]
    fn says_which_line_is_wrong() {
        let cases: [(&[u8], &str); 7] = [
            (b"x", "no address range"),
            (b"2000-1000 r--p 0 0:0 0", "empty address range"),
            (b"+1000-2000 r--p 0 0:0 0", "bad start address"),
            (b"1000-2000 r-- 0 0:0 0", "bad permissions"),
            (b"1000-2000 r--p z 0:0 0", "bad offset"),
            (b"1000-2000 r--p 0 00 0", "no device"),
            (b"1000-2000 r--p 0 0:0 -1", "bad inode"),
        ];
        for (line, what) in cases {
            let text = [b"0-1000 r--p 0 0:0 0\n", line].concat();
            assert_eq!(parse_maps(&text), Err(MapsError { line: 2, what }));
        }
        let overlap = b"1000-3000 r--p 0 0:0 0\n2000-4000 r--p 0 0:0 0\n";
        assert_eq!(
            parse_maps(overlap).unwrap_err().to_string(),
            "line 2: overlaps the line before"
        );
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_maps(&bytes);
        }

        #[test]
        fn never_panics_on_damaged_samples(at in 0..SAMPLE.len(), byte: u8, cut in 0..SAMPLE.len()) {
            let mut bytes = SAMPLE.to_vec();
            bytes[at] = byte;
            bytes.truncate(cut);
            if let Ok(maps) = parse_maps(&bytes) {
                prop_assert!(maps.windows(2).all(|w| w[0].end <= w[1].start));
            }
        }
    }
}
