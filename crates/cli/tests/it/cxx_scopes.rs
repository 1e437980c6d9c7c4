//! C++ names as users write them in events: members without `this`, qualified names, parameter
//! packs.

use std::process::Command;

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{events, record, scratch, text};

const LEVELS: [&[&str]; 2] = [&["-O0"], &["-O2", "-gdwarf-4", "-no-pie"]];

#[test]
fn names_of_cpp_can_be_written() {
    for flags in LEVELS {
        let Some(program) = build(Compiler::Gxx, "scoped.cpp", flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("trace");
        let event = ":net::Server::member level state s=::state net::state:x32 total n \
                     'scoped.cpp'::net::state net::Server::total if level == 11";
        // The file's own name works as well as its whole path.
        let event = event.replace("'scoped.cpp'::net::state", "q='scoped.cpp'::net::state:u8");
        let output = record(&trace, &["-e", &event, "--", text(&program)]);
        assert!(output.status.success(), "{}", told(&output));
        let recorded = events(&trace);
        assert_eq!(recorded.len(), 1);
        let expected = serde_json::json!({
            "level": 11, "state": 22, "s": 2, "net_state": "0x16", "total": 33, "n": 1, "q": 22,
            "net_Server_total": 33,
        });
        assert_eq!(recorded[0]["arguments"], expected, "{flags:?}");
        // Its file offset, according to nm.
        let symbols = Command::new("nm").arg(&program).output().expect("nm");
        let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
        let symbol = "_ZN3net6Server6memberEi";
        let line = symbols.lines().find(|line| line.ends_with(symbol));
        let address = line
            .and_then(|line| line.split(' ').next())
            .expect("a symbol");
        let address = u64::from_str_radix(address, 16).expect("an address");
        assert_eq!(recorded[0]["offset"], format!("{address:#x}"), "{flags:?}");
    }
}

#[test]
fn all_arguments_have_those_of_a_parameter_pack() {
    for flags in LEVELS {
        let Some(program) = build(Compiler::Gxx, "scoped.cpp", flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("trace");
        let event = ":pack<int, long> $arg* second=args#1";
        let output = record(&trace, &["-e", event, "--", text(&program)]);
        assert!(output.status.success(), "{}", told(&output));
        let expected = serde_json::json!({"first": 1, "args_0": 5, "args_1": 6, "second": 6});
        assert_eq!(events(&trace)[0]["arguments"], expected, "{flags:?}");
        let output = capriole(&["list", "--args", ":pack<int, long>", text(&program)]);
        let listed = told(&output);
        for name in ["first ", "args#0 ", "args#1 "] {
            assert!(listed.contains(name), "{listed}");
        }
    }
}

#[test]
fn what_is_missing_in_names_is_said() {
    for (argument, message) in [
        ("net::", "the name is missing"),
        ("::", "the name is missing"),
        ("'a.c::x", "invalid fetch argument"),
        ("'a.c'::", "the name is missing"),
        ("args#", "the number of the parameter is missing"),
        ("p->Base::", "the member's name is missing"),
    ] {
        let output = capriole(&["list", &format!(":main x={argument}"), "/bin/true"]);
        let said = told(&output);
        assert!(said.contains(message), "{argument}: {said}");
    }
}

/// `unused` has no location in both copies.
#[test]
fn a_field_that_a_copy_lacks_is_refused_with_the_place() {
    let Some(program) = build(Compiler::Gcc, "lacking.c", &[]) else {
        return;
    };
    let output = capriole(&["list", ":dropped value unused", text(&program)]);
    let said = told(&output);
    assert!(said.contains("field `unused`: "), "{said}");
    assert!(said.contains("; that is so at :0x"), "{said}");
    assert!(
        said.contains(", one of 2 places: `capriole list --args`"),
        "{said}"
    );
    let output = capriole(&["list", ":dropped value", text(&program)]);
    assert!(output.status.success(), "{}", told(&output));
}
