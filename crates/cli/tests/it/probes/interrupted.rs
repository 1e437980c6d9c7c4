//! Signals at any instruction of a hit change nothing.

use super::parts;

parts!("probes_interrupted.c": branches);
