//! Markers of C, C++ and Rust. One program, as each takes long to link.

mod support;

mod corners;
mod header;
mod hot_path;
mod rust;
mod tools;
