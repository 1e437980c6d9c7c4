//! A real program with a marker: zlib's minigzip, whose source Debian ships among the examples of
//! zlib1g-dev. A marker is added to the loop of its `gz_compress`, and a `main` that compresses a
//! text of a given length, block by block.
//! Its blocks are reduced from 16,384 bytes to 128: with one marker per large block, the cost of
//! the marker would be too small to measure.

use std::path::{Path, PathBuf};

use crate::peers::build::{compile_one, link_program};

/// Default path of the source; the environment variable `CAPRIOLE_MINIGZIP` overrides it.
const PLACE: &str = "/usr/share/doc/zlib1g-dev/examples/minigzip.c";
const MAIN: &str = include_str!("../../marker/minigzip-main.c");

/// Changes to the source: text that must occur exactly once, and its replacement.
const CHANGES: [(&str, &str); 3] = [
    (
        "#include \"zlib.h\"",
        "#include \"zlib.h\"\n#include <capriole/marker.h>",
    ),
    ("#define BUFLEN      16384", "#define BUFLEN      128"),
    (
        "        if (gzwrite(out, buf, (unsigned)len) != len)",
        "        CAPRIOLE_MARK(minigzip, block, \"buffer=%p length=%d\", (void *)buf, len);\n        \
         if (gzwrite(out, buf, (unsigned)len) != len)",
    ),
];

/// Builds the program with these compiler options.
pub(super) fn build(files: &Path, options: &[&str]) -> Result<(), String> {
    let place = std::env::var_os("CAPRIOLE_MINIGZIP").map_or(PLACE.into(), PathBuf::from);
    let source = std::fs::read_to_string(&place).map_err(|_| {
        format!(
            "{} is not there (Debian's zlib1g-dev has it; CAPRIOLE_MINIGZIP can name another)",
            place.display()
        )
    })?;
    let source = marked(&source)?;
    let options = [&["-O2", "-Dmain=minigzip_main"][..], options].concat();
    let program = compile_one(files, "cc", ("minigzip.c", &source), &options)?;
    let main = compile_one(files, "cc", ("minigzip-main.c", MAIN), &["-O2"])?;
    link_program(files, "cc", &[program, main], &["-lz"]).map(drop)
}

/// Returns the source with a marker added.
fn marked(source: &str) -> Result<String, String> {
    let mut text = source.to_owned();
    for (before, after) in CHANGES {
        if text.matches(before).count() != 1 {
            return Err(format!(
                "this minigzip.c is unknown: it has no {:?}",
                before.trim()
            ));
        }
        text = text.replace(before, after);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_another_is_refused() {
        let parts: Vec<&str> = CHANGES.iter().map(|(before, _)| *before).collect();
        let text = marked(&parts.join("\n")).expect("it has all");
        assert!(text.contains("CAPRIOLE_MARK(minigzip, block") && !text.contains("16384"));
        let why = marked(parts[0]).expect_err("it has not all");
        assert!(why.contains("BUFLEN"), "{why}");
    }
}
