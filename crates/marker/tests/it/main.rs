//! Markers of C, C++ and Rust. All tests are in one program, because each program takes long to
//! link.

mod support;

mod corners;
mod header;
mod hot_path;
mod rust;
mod tools;
