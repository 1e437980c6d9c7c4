//! The symbols of a file as `nm` lists them: the reference for tests of symbol tables.

use std::path::Path;
use std::process::Command;

/// A line of `nm -f sysv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NmSymbol {
    pub name: String,
    pub address: u64,
    pub size: u64,
    pub class: char,
    /// `FUNC`, `NOTYPE`, `OBJECT`, ...
    pub kind: String,
    pub section: String,
}

/// All defined symbols as `nm` lists them.
pub fn nm(path: &Path, dynamic: bool) -> Option<Vec<NmSymbol>> {
    let mut command = Command::new("nm");
    command.args(["-f", "sysv", "--defined-only"]);
    if dynamic {
        command.arg("-D");
    }
    let output = match command.arg(path).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: nm: {error}");
            return None;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let hex = |field: &str| u64::from_str_radix(field, 16).unwrap_or(0);
    Some(
        text.lines()
            .filter_map(|line| {
                // Split from the right, in case a C++ name contains `|`.
                let fields: Vec<&str> = line.rsplitn(7, '|').map(str::trim).collect();
                let [section, _, size, kind, class, value, name] = fields[..] else {
                    return None;
                };
                let name = match name.find('@') {
                    Some(at) if at > 0 => &name[..at],
                    _ => name,
                };
                Some(NmSymbol {
                    name: name.to_owned(),
                    address: u64::from_str_radix(value, 16).ok()?,
                    size: hex(size),
                    class: class.chars().next()?,
                    kind: kind.to_owned(),
                    section: section.to_owned(),
                })
            })
            .collect(),
    )
}

/// The symbols of `nm` that name functions.
pub fn nm_functions(path: &Path, dynamic: bool) -> Option<Vec<NmSymbol>> {
    let mut symbols = nm(path, dynamic)?;
    symbols.retain(|symbol| {
        let in_text = "TtWwi".contains(symbol.class) && !symbol.section.starts_with(".plt");
        let is_function = match (symbol.class, symbol.kind.as_str()) {
            ('i', _) | (_, "FUNC") => true,
            ('t', "NOTYPE") => symbol.size > 0,
            (_, "NOTYPE") => symbol.section == ".text",
            _ => false,
        };
        in_text && is_function
    });
    Some(symbols)
}
