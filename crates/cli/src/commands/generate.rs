//! `capriole generate`: writes manual pages and completions, for the installation.

use crate::completion;
use crate::manual;
use anyhow::{Context as _, Result};
use clap::ValueHint;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write the manual pages of the commands, or the completions for shells
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The files
    #[arg(value_enum)]
    what: What,
    /// The directory, as a prefix: pages are written to share/man below it. It is made if necessary
    #[arg(value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    // share/man/man1 and man7
    Man,
    // share/bash-completion/completions, share/zsh/site-functions, share/fish/vendor_completions.d
    Completions,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let files: Vec<(String, Vec<u8>)> = match arguments.what {
        What::Man => manual::pages()
            .into_iter()
            .map(|page| (page.path(), page.text.into_bytes()))
            .collect(),
        What::Completions => completion::scripts()?
            .into_iter()
            .map(|(path, text)| (path.to_owned(), text))
            .collect(),
    };
    for (path, text) in files {
        write(&arguments.directory.join(path), &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}
