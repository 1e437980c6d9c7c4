//! Libraries that come and go with probes in them.

use super::{program, run};
use crate::programs::{Compiler, build};
use capriole_testkit::files;

fn part(name: &str) {
    let flags = ["-shared", "-fPIC"];
    if let (Some(program), Some(library)) = (
        program("probes_dlopen.c"),
        build(Compiler::Gcc, "probes_plugin.c", &flags),
    ) {
        run(&program, &[name, files::text(&library)]);
    }
}

#[test]
fn come_back() {
    part("come_back");
}

#[test]
fn disabled_meanwhile() {
    part("disabled_meanwhile");
}

#[test]
fn beside_the_old_one() {
    part("beside_the_old_one");
}

#[test]
fn changed_at_once() {
    part("changed_at_once");
}

#[test]
fn replaced() {
    part("replaced");
}
