//! Sites and plans of running programs and files. All tests are in one program, because each program
//! takes long to link.

mod fixtures;

mod attach;
mod damaged;
mod inlined;
mod namesakes;
mod resolve;
mod running;
mod symbols_elsewhere;
