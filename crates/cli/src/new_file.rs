//! Names of files and directories that a command makes.

use clap::builder::{OsStringValueParser, TypedValueParser};
use std::path::PathBuf;

/// Returns the parser of such a name. It refuses `-`, by which other commands mean standard output.
pub fn new_file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|name| match name == "-" {
        true => Err("it is not written to standard output; give a name"),
        false => Ok(PathBuf::from(name)),
    })
}
