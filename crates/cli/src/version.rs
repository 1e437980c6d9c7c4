//! The version of the command, with the commit that it was built from.

use std::fmt::Write as _;
use std::sync::OnceLock;

/// The version of the package.
pub const PACKAGE: &str = env!("CARGO_PKG_VERSION");
/// Commit and date of the source; `None` if it was built from a source without git.
const COMMIT: Option<&str> = option_env!("CAPRIOLE_COMMIT");

/// Returns the date of the commit; empty if it is not known.
pub fn date() -> &'static str {
    COMMIT
        .and_then(|commit| commit.split(' ').nth(1))
        .unwrap_or_default()
}

/// Returns the version and, in parentheses, commit and date: one line, for `-V`.
pub fn short() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| match COMMIT {
        Some(commit) => format!("{PACKAGE} ({commit})"),
        None => PACKAGE.to_owned(),
    })
}

/// Returns the same and details of the build, one per line, for `--version`.
pub fn long() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let details = [
            ("commit", option_env!("CAPRIOLE_COMMIT_ID")),
            ("described", option_env!("CAPRIOLE_DESCRIBED")),
            ("target", option_env!("CAPRIOLE_TARGET")),
            ("profile", option_env!("CAPRIOLE_PROFILE")),
        ];
        let mut text = short().to_owned();
        for (name, value) in details {
            if let Some(value) = value {
                let _ = write!(text, "\n{name}: {value}");
            }
        }
        text
    })
}
