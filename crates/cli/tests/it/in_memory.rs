//! Libraries that have no file: their names, as messages tell them, can be written.

use crate::programs::{Compiler, build};
use crate::target::{Running, capriole, told};
use crate::traces::{Background, calls, scratch, text};

#[test]
fn they_are_named_as_messages_name_them() {
    let flags = ["-shared", "-fPIC"];
    let (Some(program), Some(library)) = (
        build(Compiler::Gcc, "in_memory.c", &[]),
        build(Compiler::Gcc, "probes_plugin.c", &flags),
    ) else {
        return;
    };
    for name in ["orders-plugin", "the plugin"] {
        let mut running = Running::start(&program, &[text(&library), name]);
        let pid = running.pid.to_string();
        let said = told(&capriole(&["check", "nothing:plugged", "-p", &pid]));
        let suggested = format!("memfd:{name}");
        assert!(said.contains(&format!("`{suggested}`")), "{said}");
        for (event, field) in [
            (format!("{suggested}:plugged n=$arg1:s64"), "plugged"),
            (
                format!("r {suggested}:plugged ret=$retval:s64"),
                "plugged__return",
            ),
        ] {
            let directory = scratch();
            let trace = directory.path().join("t");
            let recorder = Background::attach(&trace, running.pid, &[&event]);
            running.say("call");
            assert_eq!(running.line(), "called");
            recorder.end();
            assert_eq!(calls(&trace)[field], 10, "{event}");
        }
        running.finish();
    }
}
