//! Chapters of the documentation, as text for a terminal and as parts of manual pages.
//!
//! The pages in `docs` are the only source of what they describe: `capriole help TOPIC` and the manual
//! pages are made of their chapters.
//!
//! - [`page`]: reads a page of Markdown into blocks, and finds its chapters
//! - [`terminal`]: blocks as text of some width
//! - [`roff`]: blocks in the language of manual pages, man(7)
#![forbid(unsafe_code)]

pub mod page;
pub mod roff;
pub mod terminal;

pub use page::{Block, Page, Span, Style};
