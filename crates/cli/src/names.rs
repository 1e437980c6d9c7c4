//! `--names`: the form of functions' names in what people read.

use capriole_object::symbols::shown::Form;

/// The option `--names`.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct NamesFlag {
    /// Names of functions as in the source, or complete: with parameters and all arguments of
    /// templates
    #[arg(long, value_name = "FORM", value_enum, default_value_t)]
    names: Names,
}

/// Values of `--names`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Names {
    // As in the source
    #[default]
    Short,
    // Complete
    Full,
}

impl NamesFlag {
    /// Returns the form.
    pub fn form(self) -> Form {
        match self.names {
            Names::Short => Form::Short,
            Names::Full => Form::Full,
        }
    }
}
