//! `info/names.jsonl.gz`: the functions at the addresses of code that occur in a trace.
//!
//! One JSON object a line, compressed by gzip (RFC 1952). Each addition is a gzip member of its own, so
//! that the file is complete after each, and `zcat` reads all of them. The recorder adds names soon after it has
//! written the packets with their addresses; what a killed one has not added, whoever saves its records adds.
//!
//! ```text
//! {"at":"0x7f12a3c4b5","object":"/usr/lib/libc.so.6","functions":[{"name":"malloc","offset":"0x15"}],"returned_to":true}
//! {"remark":"/opt/lib/gone.so cannot be read: its functions have no names"}
//! ```

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use capriole_proc::files;
use flate2::Compression;
use flate2::bufread::{GzDecoder, MultiGzDecoder};
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::directory::names_path;
use crate::document::{MAX_JSON, hex};

/// Maximum length of a line, bytes: names of functions may be long.
const MAX_LINE: u64 = 1 << 20;
/// Maximum number of remarks that are kept, and of functions of one code.
const MAX_REMARKS: usize = 100;
/// Maximum number of functions of one code that are listed.
const LISTED: usize = 8;

/// The functions at an instruction of a traced program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeName {
    /// Address in the program's memory of a byte of the instruction: for a return address the last of the
    /// call, else the instruction's first.
    pub at: u64,
    /// Path of the file that contains the code, as the program sees it; `None` if it is in no file.
    pub object: Option<Arc<str>>,
    /// The functions that are inlined there, innermost first, then the function itself. Empty if none is known: of
    /// code in no file only those are that its compiler has named.
    pub functions: Vec<FunctionName>,
    /// True if a call may return to the byte after [`at`](Self::at).
    pub returned_to: bool,
    /// True if a function begins at the byte after [`at`](Self::at): it may be a return address as well, the
    /// outermost one on a stack that `makecontext` has made.
    pub before_start: bool,
    /// True if signal handlers return there: its caller is the code that the signal has interrupted.
    pub signal: bool,
    /// True if other code was there at another time, or in a child: nothing is known.
    pub replaced: bool,
}

/// A function at an instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionName {
    /// Its name, demangled; `None` if it is not known.
    pub name: Option<Arc<str>>,
    /// Address in the file where the function without a name begins, as in `objdump`.
    pub start: Option<u64>,
    /// Bytes from the function's start to [`CodeName::at`]; `None` for inlined functions, and without a
    /// function.
    pub offset: Option<u64>,
    /// True if it is inlined into the next one.
    pub inlined: bool,
    /// Names of other functions that have the same code: it may be any of them.
    pub same_code: Vec<Arc<str>>,
}

/// The names in a trace.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// By [`CodeName::at`]; `None` if different code was there at different times.
    names: HashMap<u64, Option<CodeName>>,
    remarks: Vec<String>,
    /// Functions of one code, by the name that is used: all their names.
    shared: BTreeMap<Arc<str>, String>,
}

impl CodeName {
    /// Returns what this one and another one have in common, if both are of code in no file.
    fn without_function(&self, other: &CodeName) -> Option<CodeName> {
        let is_in_no_file =
            |name: &CodeName| name.object.is_none() && !name.replaced && !name.signal;
        let both = is_in_no_file(self) && is_in_no_file(other);
        both.then(|| CodeName {
            functions: Vec::new(),
            returned_to: self.returned_to && other.returned_to,
            before_start: false,
            ..other.clone()
        })
    }
}

impl Names {
    /// Reads the names in a trace directory. Damage is a remark, and ends the names.
    pub(crate) fn read(directory: &Path) -> Names {
        let path = names_path(directory);
        let mut names = Names::default();
        let file = match files::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return names,
            Err(error) => {
                names.remark(format!("{}: {error}", path.display()));
                return names;
            }
        };
        if let Err(error) = names.add_all(file) {
            let path = path.display();
            names.remark(format!(
                "{path} is damaged: {error}; some functions have no names"
            ));
        }
        names
    }

    fn add_all(&mut self, file: File) -> io::Result<()> {
        if file.metadata()?.len() == 0 {
            // The recorder was killed before the first names.
            return Ok(());
        }
        let text = MultiGzDecoder::new(BufReader::new(file));
        let mut lines = BufReader::new(text.take(MAX_JSON));
        let mut paths: HashMap<String, Arc<str>> = HashMap::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let stored: Stored = serde_json::from_slice(&line)?;
            if let Some(remark) = stored.remark {
                self.remark(remark);
            }
            let Some(At(at)) = stored.at else { continue };
            let object = stored.object.map(|path| {
                let known = paths.entry(path);
                Arc::clone(known.or_insert_with_key(|path| Arc::from(path.as_str())))
            });
            self.add(CodeName {
                at,
                object,
                functions: stored
                    .functions
                    .into_iter()
                    .map(FunctionName::from)
                    .collect(),
                returned_to: stored.returned_to,
                before_start: stored.before_start,
                signal: stored.signal,
                replaced: stored.replaced,
            });
        }
    }

    /// Adds a name. Two different ones of an address are none; but if both are of code in no file, it is known that
    /// this is such code, without a function.
    pub fn add(&mut self, name: CodeName) {
        for function in name.functions.iter().filter(|f| !f.same_code.is_empty()) {
            if let Some(own) = &function.name
                && self.shared.len() < MAX_REMARKS
                && !self.shared.contains_key(own)
            {
                let all = [&[Arc::clone(own)], &function.same_code[..]].concat();
                self.shared.insert(Arc::clone(own), all.join(" = "));
            }
        }
        match self.names.entry(name.at) {
            Entry::Vacant(entry) => {
                let is_known = !name.replaced;
                entry.insert(is_known.then_some(name));
            }
            Entry::Occupied(mut entry) => {
                if let Some(known) = entry.get()
                    && *known != name
                {
                    let both = known.without_function(&name);
                    entry.insert(both);
                }
            }
        }
    }

    /// Adds a remark, unless it is known.
    pub fn remark(&mut self, remark: String) {
        if self.remarks.len() < MAX_REMARKS && !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    /// Returns the functions at an instruction, by the address of the byte of it that
    /// [`CodeName::at`] describes.
    #[must_use]
    pub fn get(&self, at: u64) -> Option<&CodeName> {
        self.names.get(&at)?.as_ref()
    }

    /// True if different code was at an address at different times.
    #[must_use]
    pub fn was_replaced(&self, at: u64) -> bool {
        self.names.get(&at).is_some_and(Option::is_none)
    }

    /// True if there are no names at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns why functions have no names, a line for each reason, and which have a name that is one of several.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.remarks.clone();
        if !self.shared.is_empty() {
            let mut listed: Vec<&str> = self
                .shared
                .values()
                .take(LISTED)
                .map(String::as_str)
                .collect();
            let more = format!("{} more", self.shared.len().saturating_sub(LISTED));
            listed.extend((self.shared.len() > LISTED).then_some(&*more));
            remarks.push(format!(
                "one code for several functions, which the compiler or the linker has folded, or with several names; \
                 the first name stands for all of them: {}",
                listed.join("; ")
            ));
        }
        remarks
    }
}

/// A line of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<At>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    functions: Vec<StoredFunction>,
    #[serde(default, skip_serializing_if = "is_false")]
    returned_to: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    before_start: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    signal: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    replaced: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredFunction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<At>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offset: Option<At>,
    #[serde(default, skip_serializing_if = "is_false")]
    inlined: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    same_code: Vec<String>,
}

/// A number in hexadecimal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
struct At(#[serde(with = "hex")] u64);

fn is_false(value: &bool) -> bool {
    !value
}

impl From<StoredFunction> for FunctionName {
    fn from(stored: StoredFunction) -> FunctionName {
        FunctionName {
            name: stored.name.map(Arc::from),
            start: stored.start.map(|At(start)| start),
            offset: stored.offset.map(|At(offset)| offset),
            inlined: stored.inlined,
            same_code: stored.same_code.into_iter().map(Arc::from).collect(),
        }
    }
}

impl From<&FunctionName> for StoredFunction {
    fn from(function: &FunctionName) -> StoredFunction {
        StoredFunction {
            name: function.name.as_deref().map(str::to_owned),
            start: function.start.map(At),
            offset: function.offset.map(At),
            inlined: function.inlined,
            same_code: function
                .same_code
                .iter()
                .map(|name| name.to_string())
                .collect(),
        }
    }
}

/// Returns a gzip member with these names and remarks.
pub(crate) fn member(names: &[CodeName], remarks: &[String]) -> io::Result<Vec<u8>> {
    let mut member = GzEncoder::new(Vec::new(), Compression::default());
    let named = names.iter().map(|name| Stored {
        at: Some(At(name.at)),
        object: name.object.as_deref().map(str::to_owned),
        functions: name.functions.iter().map(StoredFunction::from).collect(),
        returned_to: name.returned_to,
        before_start: name.before_start,
        signal: name.signal,
        replaced: name.replaced,
        remark: None,
    });
    let remarked = remarks.iter().map(|remark| Stored {
        remark: Some(remark.clone()),
        ..Stored::default()
    });
    for line in named.chain(remarked) {
        serde_json::to_writer(&mut member, &line)?;
        member.write_all(b"\n")?;
    }
    member.finish()
}

/// Returns the length of the complete gzip members at the start of a file, bytes.
pub(crate) fn complete_length(file: &mut File) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.take(MAX_JSON).read_to_end(&mut bytes)?;
    let mut rest = &bytes[..];
    let mut complete = 0;
    while !rest.is_empty() {
        let mut member = GzDecoder::new(rest);
        if io::copy(&mut member.by_ref().take(MAX_JSON), &mut io::sink()).is_err() {
            break;
        }
        rest = member.into_inner();
        complete = (bytes.len() - rest.len()) as u64;
    }
    Ok(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(at: u64, name: &str) -> CodeName {
        CodeName {
            at,
            object: Some(Arc::from("/lib/a.so")),
            functions: vec![FunctionName {
                name: Some(Arc::from(name)),
                offset: Some(at & 0xff),
                ..FunctionName::default()
            }],
            returned_to: at & 1 == 1,
            before_start: false,
            signal: false,
            replaced: false,
        }
    }

    fn written(directory: &Path, bytes: &[u8]) -> Names {
        let path = names_path(directory);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        Names::read(directory)
    }

    #[test]
    fn what_was_written_is_read_up_to_the_last_complete_member() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(Names::read(scratch.path()).is_empty());
        let first = member(&[name(0x1001, "one"), name(u64::MAX, "two")], &[]).unwrap();
        let nowhere = CodeName {
            object: None,
            functions: Vec::new(),
            ..name(0x2000, "")
        };
        let second = member(std::slice::from_ref(&nowhere), &["gone".to_owned()]).unwrap();
        let both = [&first[..], &second].concat();
        let names = written(scratch.path(), &both);
        assert_eq!(names.get(0x1001), Some(&name(0x1001, "one")));
        assert_eq!(names.get(u64::MAX), Some(&name(u64::MAX, "two")));
        assert_eq!(names.get(0x2000), Some(&nowhere));
        assert_eq!(names.get(0x3000), None);
        assert_eq!(names.remarks(), ["gone"]);
        for cut in 0..both.len() {
            let names = written(scratch.path(), &both[..cut]);
            let path = names_path(scratch.path());
            let length = complete_length(&mut File::open(path).unwrap()).unwrap();
            let expected = if cut < first.len() { 0 } else { first.len() };
            assert_eq!(length, expected as u64, "{cut}");
            if cut >= first.len() {
                assert_eq!(names.get(0x1001), Some(&name(0x1001, "one")));
            }
            let damaged = cut != 0 && cut != first.len();
            assert_eq!(!names.remarks().is_empty(), damaged, "{cut}");
        }
    }

    #[test]
    fn two_names_of_an_address_are_none() {
        let mut names = Names::default();
        names.add(name(1, "one"));
        names.add(name(1, "one"));
        assert!(names.get(1).is_some() && !names.was_replaced(1));
        names.add(name(1, "other"));
        names.add(name(1, "one"));
        assert!(names.get(1).is_none() && names.was_replaced(1));
        assert!(!names.was_replaced(2));
        let replaced = CodeName {
            replaced: true,
            ..name(2, "any")
        };
        names.add(replaced);
        names.add(name(2, "one"));
        assert!(names.get(2).is_none() && names.was_replaced(2));
    }

    /// Different functions that were compiled at one address become compiled code without a function, whose callers
    /// are known.
    #[test]
    fn two_compiled_functions_of_an_address_have_no_name() {
        let compiled = |function: &str| CodeName {
            object: None,
            ..name(1, function)
        };
        let mut names = Names::default();
        names.add(compiled("one"));
        names.add(compiled("other"));
        names.add(compiled("one"));
        let found = names.get(1).expect("code");
        assert!(found.functions.is_empty() && found.returned_to);
        assert!(!names.was_replaced(1));
        // No call returns to one of them.
        names.add(CodeName {
            returned_to: false,
            ..compiled("one")
        });
        assert!(!names.get(1).expect("code").returned_to);
        // A file came there.
        names.add(name(1, "one"));
        assert!(names.was_replaced(1));
    }
}
