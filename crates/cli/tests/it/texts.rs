//! Texts of C++, Rust and Go by their names, compared with gdb, which reads their pointers and
//! lengths at the same calls.

use crate::programs::{Compiler, build, build_go};
use crate::target::{capriole, told};
use crate::traces::{events, record, record_program, scratch, text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Values of one call: of each expression in turn, the first 1,024 bytes.
type Call = Vec<Vec<u8>>;

/// An expression, with the pointer and the length of its text as gdb has to read them.
type Expression = (&'static str, &'static str, &'static str);

/// Reads the expressions at each call of a function with gdb; `None` if there is no gdb.
fn by_gdb(
    program: &Path,
    (language, function): (&str, &str),
    expressions: &[Expression],
) -> Option<Vec<Call>> {
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: no gdb");
        return None;
    }
    let pairs: Vec<String> = expressions
        .iter()
        .map(|(_, pointer, length)| format!("({pointer:?}, {length:?})"))
        .collect();
    let script = format!(
        "import gdb\n\
         class Stop(gdb.Breakpoint):\n\
         \x20   def stop(self):\n\
         \x20       frame = gdb.newest_frame()\n\
         \x20       while 'take' not in (frame.name() or ''):\n\
         \x20           frame = frame.older()\n\
         \x20       frame.select()\n\
         \x20       gdb.execute('set language ' + {language:?})\n\
         \x20       for pointer, length in [{}]:\n\
         \x20           at = int(gdb.parse_and_eval(pointer))\n\
         \x20           size = min(int(gdb.parse_and_eval(length)), 1024)\n\
         \x20           data = bytes(gdb.selected_inferior().read_memory(at, size)) if size else b''\n\
         \x20           print('VALUE ' + data.hex())\n\
         \x20       return False\n\
         gdb.execute('set confirm off')\n\
         gdb.execute('set pagination off')\n\
         Stop('{function}')\n\
         gdb.execute('run')\n",
        pairs.join(", "),
    );
    let directory = scratch();
    let path = directory.path().join("values.py");
    std::fs::write(&path, script).expect("it is written");
    let output = Command::new("gdb")
        .args(["-nx", "-batch", "-x", text(&path), text(program)])
        .output()
        .expect("gdb runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(digits, 16).expect("digits")
    };
    let values: Vec<Vec<u8>> = said
        .lines()
        .filter_map(|line| line.strip_prefix("VALUE"))
        .map(|hex| hex.trim().as_bytes().chunks(2).map(byte).collect())
        .collect();
    assert!(!values.is_empty(), "{}", told(&output));
    // A function of Go starts again when its stack has grown; no two calls in a row are equal.
    let calls = values.chunks(expressions.len()).map(<[_]>::to_vec);
    let mut calls: Vec<Call> = calls.collect();
    calls.dedup();
    Some(calls)
}

/// Records the expressions at each call, without types and as strings, and compares both with gdb.
fn compare(
    program: &Path,
    (language, function): (&str, &str),
    expressions: &[Expression],
    calls: usize,
) {
    let Some(expected) = by_gdb(program, (language, function), expressions) else {
        return;
    };
    assert_eq!(expected.len(), calls, "gdb stops at each call");
    for suffix in ["", ":string"] {
        let fields: Vec<String> = expressions
            .iter()
            .enumerate()
            .map(|(index, (name, ..))| format!("f{index}={name}{suffix}"))
            .collect();
        let event = format!("p:take :{function} {}", fields.join(" "));
        let directory = scratch();
        let trace = directory.path().join("t");
        assert_eq!(
            record_program(&trace, &["-e", &event], program, &[]),
            "ok texts\n"
        );
        let all = events(&trace);
        let own: Vec<_> = all.iter().filter(|e| e["event"] == "take").collect();
        assert_eq!(own.len(), calls);
        for (event, expected) in own.iter().zip(&expected) {
            for (index, (name, ..)) in expressions.iter().enumerate() {
                let found = event["arguments"][format!("f{index}")].as_str();
                let expected = String::from_utf8_lossy(&expected[index]).into_owned();
                assert_eq!(found, Some(expected.as_str()), "{name}{suffix}: {event}");
            }
        }
    }
}

#[test]
fn texts_of_cxx_are_those_that_gdb_reads() {
    const ALL: [Expression; 5] = [
        ("text", "text._M_dataplus._M_p", "text._M_string_length"),
        ("view", "view._M_str", "view._M_len"),
        (
            "order->name",
            "order->name._M_dataplus._M_p",
            "order->name._M_string_length",
        ),
        ("order->note", "order->note._M_str", "order->note._M_len"),
        ("own", "own._M_dataplus._M_p", "own._M_string_length"),
    ];
    for flags in [&["-g", "-O0", "-std=c++20"], &["-g", "-O2", "-std=c++20"]] {
        if let Some(program) = build(Compiler::Gxx, "texts.cpp", flags) {
            compare(&program, ("c++", "take"), &ALL, 10);
        }
        if let Some(program) = build(Compiler::Clangxx, "texts.cpp", flags) {
            compare(&program, ("c++", "take"), &ALL, 10);
        }
    }
}

/// The pointer is all there is; the length is three words before the text.
#[test]
fn texts_of_the_old_abi_of_cxx_are_those_that_gdb_reads() {
    const OLD: &str = "-D_GLIBCXX_USE_CXX11_ABI=0";
    const ALL: [Expression; 3] = [
        (
            "text",
            "text._M_dataplus._M_p",
            "((long *)text._M_dataplus._M_p)[-3]",
        ),
        (
            "order->name",
            "order->name._M_dataplus._M_p",
            "((long *)order->name._M_dataplus._M_p)[-3]",
        ),
        (
            "own",
            "own._M_dataplus._M_p",
            "((long *)own._M_dataplus._M_p)[-3]",
        ),
    ];
    for flags in [
        ["-g", "-O0", "-std=c++20", OLD],
        ["-g", "-O2", "-std=c++20", OLD],
    ] {
        if let Some(program) = build(Compiler::Gxx, "texts.cpp", &flags) {
            compare(&program, ("c++", "take"), &ALL, 10);
        }
    }
}

/// A bit of the string tells where the text is: that of the first byte, or of the last.
#[test]
fn texts_of_libcxx_are_those_that_gdb_reads() {
    const FIRST: [Expression; 4] = [
        (
            "text",
            "*(char *)&text & 1 ? *(char **)((char *)&text + 16) : (char *)&text + 1",
            "*(char *)&text & 1 ? *(long *)((char *)&text + 8) : *(unsigned char *)&text / 2",
        ),
        (
            "order->note",
            "*(char **)&order->note",
            "*(long *)((char *)&order->note + 8)",
        ),
        (
            "order->name",
            "*(char *)&order->name & 1 ? *(char **)((char *)&order->name + 16) \
             : (char *)&order->name + 1",
            "*(char *)&order->name & 1 ? *(long *)((char *)&order->name + 8) \
             : *(unsigned char *)&order->name / 2",
        ),
        (
            "own",
            "*(char *)&own & 1 ? *(char **)((char *)&own + 16) : (char *)&own + 1",
            "*(char *)&own & 1 ? *(long *)((char *)&own + 8) : *(unsigned char *)&own / 2",
        ),
    ];
    const LAST: [Expression; 2] = [
        (
            "text",
            "*((char *)&text + 23) & 128 ? *(char **)&text : (char *)&text",
            "*((char *)&text + 23) & 128 ? *(long *)((char *)&text + 8) : *((char *)&text + 23)",
        ),
        (
            "order->name",
            "*((char *)&order->name + 23) & 128 ? *(char **)&order->name : (char *)&order->name",
            "*((char *)&order->name + 23) & 128 ? *(long *)((char *)&order->name + 8) \
             : *((char *)&order->name + 23)",
        ),
    ];
    const FLAGS: [&str; 3] = ["-g", "-std=c++20", "-stdlib=libc++"];
    for level in ["-O0", "-O2"] {
        let flags = [&FLAGS[..], &[level]].concat();
        if let Some(program) = build(Compiler::Clangxx, "texts.cpp", &flags) {
            compare(&program, ("c++", "take"), &FIRST, 10);
        }
        let other = [
            "-D_LIBCPP_ABI_ALTERNATE_STRING_LAYOUT",
            "-D_LIBCPP_DISABLE_EXTERN_TEMPLATE",
        ];
        let flags = [&flags[..], &other].concat();
        if let Some(program) = build(Compiler::Clangxx, "texts.cpp", &flags) {
            compare(&program, ("c++", "take"), &LAST, 10);
        }
    }
}

#[test]
fn texts_of_rust_are_those_that_gdb_reads() {
    const ALL: [Expression; 6] = [
        ("text", "text.data_ptr", "text.length"),
        (
            "owned",
            "owned.vec.buf.inner.ptr.pointer.pointer",
            "owned.vec.len",
        ),
        ("bytes", "bytes.data_ptr", "bytes.length"),
        (
            "order.name",
            "order.name.vec.buf.inner.ptr.pointer.pointer",
            "order.name.vec.len",
        ),
        ("order.note", "order.note.data_ptr", "order.note.length"),
        (
            "order.data",
            "order.data.buf.inner.ptr.pointer.pointer",
            "order.data.len",
        ),
    ];
    for flags in [&["-g", "-Copt-level=0"], &["-g", "-Copt-level=2"]] {
        if let Some(program) = build(Compiler::Rustc, "texts.rs", flags) {
            compare(&program, ("rust", "take"), &ALL, 5);
        }
    }
}

#[test]
fn texts_of_go_are_those_that_gdb_reads() {
    const ALL: [Expression; 4] = [
        ("text", "text.str", "text.len"),
        ("data", "data.array", "data.len"),
        ("o.name", "o->name.str", "o->name.len"),
        ("o.data", "o->data.array", "o->data.len"),
    ];
    if let Some(program) = build_go("texts.go", "texts_go") {
        compare(&program, ("c", "main.take"), &ALL, 5);
    }
}

#[test]
fn texts_of_servers_are_those_that_gdb_reads() {
    const ALL: [Expression; 12] = [
        ("uri", "uri->data", "uri->len"),
        ("value", "value.data", "value.len"),
        ("r->uri", "r->uri.data", "r->uri.len"),
        ("r->main->uri", "r->main->uri.data", "r->main->uri.len"),
        ("info", "info->data", "info->len"),
        ("name", "&name->data", "$_strlen((char *)name->data)"),
        ("string", "string->str", "string->len"),
        ("ist", "ist.ptr", "ist.len"),
        ("body", "body.base", "body.len"),
        ("own", "own", "$_strlen(own)"),
        ("sql", "(char *)sql + 4", "*(unsigned int *)sql / 4 - 4"),
        (
            "small",
            "(char *)small + 1",
            "*(unsigned char *)small / 2 - 1",
        ),
    ];
    for flags in [&["-g", "-O0"], &["-g", "-O2"]] {
        if let Some(program) = build(Compiler::Gcc, "texts_known.c", flags) {
            compare(&program, ("c", "take"), &ALL, 5);
        }
    }
}

/// A result that is a text is one without a type: where the caller provided memory for it, in two
/// registers, by reference. The calls of a graph have only its address.
#[test]
fn results_are_the_texts_that_were_passed() {
    let functions = |prefix: &str, names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("{prefix}{name}")).collect()
    };
    let cxx = ["-g", "-O2", "-std=c++20"];
    let libcxx = [&cxx[..], &["-stdlib=libc++"]].concat();
    let old = [&cxx[..], &["-D_GLIBCXX_USE_CXX11_ABI=0"]].concat();
    let all = ["made", "seen", "same"];
    let cases = [
        (
            build(Compiler::Gxx, "texts.cpp", &cxx),
            "take text",
            functions("", &all),
        ),
        (
            build(Compiler::Gxx, "texts.cpp", &old),
            "take text",
            functions("", &all),
        ),
        (
            build(Compiler::Clangxx, "texts.cpp", &libcxx),
            "take text",
            functions("", &all),
        ),
        (
            build(Compiler::Gcc, "texts_known.c", &["-g", "-O2"]),
            "take uri",
            functions("", &["seen", "same"]),
        ),
        (
            build(Compiler::Rustc, "texts.rs", &["-g", "-Copt-level=2"]),
            "take text",
            functions("", &["made", "same"]),
        ),
        (
            build_go("texts.go", "texts_go"),
            "main.take text",
            functions("main.", &["made", "seen"]),
        ),
    ];
    for (program, taken, made) in cases {
        let Some(program) = program else { continue };
        let directory = scratch();
        let trace = directory.path().join("t");
        let mut words = vec!["-e".to_owned(), format!("p:take :{taken}")];
        for name in &made {
            words.extend(["-e".to_owned(), format!("r:result :{name} $retval")]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        record_program(&trace, &words, &program, &[]);
        let all = events(&trace);
        let of = |event: &str, field: &str| -> Vec<String> {
            let own = all.iter().filter(|e| e["event"] == event);
            own.map(|e| e["arguments"][field].as_str().expect("a text").to_owned())
                .collect()
        };
        let taken = of(
            "take",
            if taken.ends_with("uri") {
                "uri"
            } else {
                "text"
            },
        );
        assert!(taken.len() >= 5, "{taken:?}");
        let expected: Vec<String> = taken
            .iter()
            .flat_map(|text| std::iter::repeat_n(text.clone(), made.len()))
            .collect();
        assert_eq!(of("result", "ret"), expected, "{}", program.display());
    }

    let Some(program) = build(Compiler::Gxx, "texts.cpp", &cxx) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = "r:seen :seen $retval if ret == \"short\"";
    record_program(&trace, &["-e", event], &program, &[]);
    assert_eq!(events(&trace).len(), 1);
    record_program(&trace, &["--graph", ":made"], &program, &[]);
    for event in events(&trace) {
        if let Some(result) = event["arguments"].get("ret") {
            let address = result.as_str().expect("an address");
            assert!(address.starts_with("0x7f"), "{event}");
        }
    }
}

/// `$entry:NAME:string` is the text by its type, whatever is kept of it, and not bytes of an object.
/// So it is with `--min-duration`. Other pointers are no strings.
#[test]
fn texts_of_the_entry_are_read_by_their_types() {
    for (compiler, flags) in [
        (Compiler::Gxx, &["-O0"][..]),
        (Compiler::Gxx, &["-O2"]),
        (Compiler::Clangxx, &["-O0"]),
        (Compiler::Clangxx, &["-O2", "-stdlib=libc++"]),
    ] {
        let flags = [&["-g", "-std=c++17"], flags].concat();
        let Some(program) = build(compiler, "texts_kept.cpp", &flags) else {
            continue;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let at_return = "r :handle text=$entry:text:string uri=$entry:uri:string \
                         request_name=$entry:request->name:string \
                         request_uri=$entry:request->uri:string \
                         request_path=$entry:request->path:string \
                         request_method=$entry:request->method:string own=$entry:own:string";
        let call = ":handle text:string uri:string request->name:string request->uri:string \
                    request->path:string request->method:string own:string";
        for words in [
            &["-e", at_return][..],
            &["--return=stack", "-e", at_return],
            &["--graph", call, "--min-duration", "1ns"],
        ] {
            // The unwinder of libc++ does not follow replaced return addresses.
            if words[0] == "--return=stack" && flags.contains(&"-stdlib=libc++") {
                continue;
            }
            record_program(&trace, words, &program, &[]);
            let all = events(&trace);
            assert_eq!(all.len(), 5, "{words:?}");
            for (i, event) in all.iter().enumerate() {
                let name = format!("{}\0z", "n".repeat(20 + i));
                for (field, expected) in [
                    ("text", format!("text{i}")),
                    ("uri", "abcdefgh"[..=i].to_owned()),
                    ("request_name", name.clone()),
                    ("request_uri", "abcdefgh"[..=i].to_owned()),
                    ("request_path", "/the/path".to_owned()),
                    ("request_method", "GET".to_owned()),
                    ("own", name),
                ] {
                    assert_eq!(event["arguments"][field], expected, "{field}: {event}");
                }
            }
        }
        record_program(
            &trace,
            &["-e", "r :give text=$retval:string"],
            &program,
            &[],
        );
        for (i, event) in events(&trace).iter().enumerate() {
            assert_eq!(event["arguments"]["text"], format!("text{i}"), "{event}");
        }
        for (event, named) in [
            (":take pointer:string", "pointer"),
            (":take request:string", "request"),
        ] {
            let words = ["record", "-o", text(&trace), "-e", event, "--"];
            let output = capriole(&[&words[..], &[text(&program)]].concat());
            let said = told(&output);
            assert!(!output.status.success(), "{said}");
            let because = format!("`{named}` is ");
            assert!(said.contains(&because), "{said}");
            assert!(said.contains("cannot be recorded as a string"), "{said}");
        }
    }
}

/// A text in two registers is refused with what to write, and that shows it.
#[test]
fn a_text_in_two_registers_is_kept_by_its_parts() {
    let cases = [
        (
            build(Compiler::Gxx, "texts.cpp", &["-g", "-O2", "-std=c++20"]),
            ":take",
            "view",
            ["_M_str", "_M_len"],
        ),
        (
            build(Compiler::Rustc, "texts.rs", &["-g", "-Copt-level=2"]),
            ":take",
            "text",
            ["data_ptr", "length"],
        ),
        (
            build_go("texts.go", "texts_go"),
            ":main.take",
            "text",
            ["str", "len"],
        ),
    ];
    for (program, function, name, [pointer, length]) in cases {
        let Some(program) = program else { continue };
        let directory = scratch();
        let trace = directory.path().join("t");
        let event = format!("r {function} x=$entry:{name}:string");
        let words = [
            "record",
            "-o",
            text(&trace),
            "-e",
            &event,
            "--",
            text(&program),
        ];
        let said = told(&capriole(&words));
        let parts = format!("+0($entry:{name}.{pointer}):string[$entry:{name}.{length}]");
        assert!(said.contains(&parts), "{said}");
        let at_return = format!("r:end {function} x={parts}");
        let at_entry = format!("p:begin {function} {name}");
        let words = ["-e", at_return.as_str(), "-e", at_entry.as_str()];
        record_program(&trace, &words, &program, &[]);
        let all = events(&trace);
        let of = |event: &str, field: &str| -> Vec<Value> {
            let own = all.iter().filter(|e| e["event"] == event);
            own.map(|e| e["arguments"][field].clone()).collect()
        };
        assert!(of("begin", name).len() >= 5);
        assert_eq!(of("end", "x"), of("begin", name), "{}", program.display());
    }
}

/// clang only declares `std::string` and some classes: their functions are in the graph as those of g++.
#[test]
fn calls_that_return_undescribed_classes_are_in_the_graph() {
    for compiler in [Compiler::Clangxx, Compiler::Gxx] {
        let flags = ["-g", "-std=c++17", "-O0"];
        let Some(program) = build(compiler, "texts_undescribed.cpp", &flags) else {
            continue;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let words = ["--graph", ":doubled", "--graph", ":opened"];
        record_program(&trace, &words, &program, &[]);
        let all = events(&trace);
        let returned = |function: &str| {
            let own = all.iter().filter(|event| {
                let name = event["event"].as_str().expect("a name");
                name.starts_with(function) && name.ends_with("__return")
            });
            let results = own.map(|event| event["arguments"].get("ret").cloned());
            results.collect::<Vec<_>>()
        };
        let addresses = returned("doubled");
        let is_address = |result: &Option<Value>| {
            let address = result.as_ref().and_then(Value::as_str);
            address.is_some_and(|address| address.starts_with("0x7ff"))
        };
        assert_eq!(addresses.len(), 3, "{compiler:?}");
        assert!(addresses.iter().all(is_address), "{addresses:?}");
        assert_eq!(returned("opened").len(), 1, "{compiler:?}");
    }
}

/// clang describes `std::string` only where its constructors are: often it is just declared. A function
/// that is local may have been changed for its callers, as this one is, by GCC and by clang.
#[test]
fn texts_without_description_are_known() {
    let text = "a text that is longer than fifteen";
    for (compiler, level, is_whole) in [
        (Compiler::Clangxx, "-O0", true),
        (Compiler::Clangxx, "-O2", false),
        (Compiler::Gxx, "-O0", true),
        (Compiler::Gxx, "-O2", false),
    ] {
        let flags = ["-g", "-std=c++17", level];
        let Some(program) = build(compiler, "texts_undescribed.cpp", &flags) else {
            continue;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let others = [
            "-e",
            ":put text",
            "-e",
            "r:put :put $retval",
            "-e",
            "r:put :doubled $retval",
        ];
        let local = ["-e", "r:local :local $retval"];
        if is_whole {
            record_program(&trace, &[&others[..], &local].concat(), &program, &[]);
        } else {
            // No caller uses the result.
            let path = program.to_str().expect("UTF-8");
            let words = [&local[..], &["--", path]].concat();
            let said = told(&record(&trace, &words));
            assert!(said.contains("none of them uses its result"), "{said}");
            record_program(&trace, &others, &program, &[]);
        }
        let (mut puts, mut results, mut locals) = (0, 0, 0);
        for event in events(&trace) {
            let arguments = &event["arguments"];
            let found = arguments["ret"].as_str().unwrap_or_default();
            if event["event"] == "local" {
                locals += 1;
                assert!(!found.starts_with("0x"), "{event}");
            } else if let Some(found) = arguments["text"].as_str() {
                puts += 1;
                assert_eq!(found, text, "{event}");
            } else {
                results += 1;
                assert_eq!(found, format!("{text}{text}"), "{event}");
            }
        }
        let expected = (3, 6, if is_whole { 4 } else { 0 });
        assert_eq!((puts, results, locals), expected, "{}", program.display());
    }
}

/// Half of such a result may be missing, and the other half elsewhere: it is no text.
#[test]
fn a_result_in_registers_that_llvm_may_have_changed_is_no_text() {
    let flags = ["-g", "-Copt-level=2"];
    let Some(program) = build(Compiler::Rustc, "texts.rs", &flags) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    record_program(&trace, &["-e", "r:half :*::half $retval"], &program, &[]);
    let all = events(&trace);
    assert_eq!(all.len(), 5, "{all:?}");
    for event in all {
        let result = event["arguments"]["ret"].as_str().expect("a number");
        assert!(result.starts_with("0x"), "{event}");
    }
}

/// PostgreSQL compresses texts, and moves them elsewhere: those cannot be read. Filters and keys are
/// texts like others.
#[test]
fn a_text_that_is_compressed_or_elsewhere_cannot_be_read() {
    let Some(program) = build(Compiler::Gcc, "texts_known.c", &["-g", "-O2"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let record = |event: &str| {
        record_program(&trace, &["-e", event], &program, &[]);
        let all = events(&trace);
        all.iter()
            .map(|e| e["arguments"]["sql"].clone())
            .collect::<Vec<_>>()
    };
    let null = serde_json::Value::Null;
    assert_eq!(
        record(":kind sql"),
        ["whole".into(), null.clone(), null.clone()]
    );
    let shown = capriole(&["report", text(&trace)]);
    assert_eq!(
        told(&shown).matches("sql=(fault)").count(),
        2,
        "{}",
        told(&shown)
    );
    assert_eq!(record(":kind sql if sql == \"whole\""), ["whole"]);
    assert_eq!(
        record(":kind sql if sql ~ \"w*\" || sql ~ \"x*\""),
        ["whole"]
    );
    let words = ["stat", "--json", "-e", ":kind by sql", "--", text(&program)];
    let output = capriole(&words);
    assert!(output.status.success(), "{}", told(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    let json = said.strip_prefix("ok texts\n").expect("what it prints");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let rows = json["groups"][0]["rows"].as_array().expect("rows");
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (&row["keys"]["sql"], &row["calls"]))
        .collect();
    assert_eq!(
        rows,
        [(&null, &2.into()), (&"whole".into(), &1.into())],
        "{json}"
    );
}

#[test]
fn a_type_with_a_known_name_and_other_members_is_no_text() {
    let Some(program) = build(Compiler::Gcc, "texts_known.c", &["-g", "-DOTHER"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let event = ":take uri uri->len uri->data";
    record_program(&trace, &["-e", event], &program, &[]);
    let all = events(&trace);
    let arguments = &all[0]["arguments"];
    let pointer = arguments["uri"].as_str().expect("a pointer");
    assert!(pointer.starts_with("0x7f"), "{arguments}");
    assert_eq!([&arguments["uri_len"], &arguments["uri_data"]], [7, 8]);
}

#[test]
fn all_arguments_are_those_that_can_be_shown() {
    let Some(program) = build(Compiler::Gxx, "texts.cpp", &["-g", "-O2", "-std=c++20"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let record = |event: &str| {
        let words = ["record", "-o", text(&trace), "-e", event, "--"];
        capriole(&[&words[..], &[text(&program)]].concat())
    };
    let output = record("p:price :price $arg*");
    assert!(output.status.success(), "{}", told(&output));
    let message = "left out of `p:price :price $arg*`: parameter `order`: `order` is ";
    assert_eq!(
        told(&output).matches(message).count(),
        1,
        "{}",
        told(&output)
    );
    let expected = serde_json::json!({"count": 3, "unit": "kg"});
    let all = events(&trace);
    let own: Vec<_> = all.iter().filter(|e| e["event"] == "price").collect();
    assert_eq!(own.len(), 10);
    assert!(own.iter().all(|e| e["arguments"] == expected), "{own:?}");
    // Hits are recorded also if no argument is left.
    let output = record("p:only :only $arg*");
    assert!(output.status.success(), "{}", told(&output));
    let message = "left out of `p:only :only $arg*`: parameter `order`: `order` is ";
    assert!(told(&output).contains(message), "{}", told(&output));
    let all = events(&trace);
    let own = all.iter().filter(|e| e["event"] == "only");
    let own: Vec<_> = own.map(|e| &e["arguments"]).collect();
    assert!(!own.is_empty(), "{all:?}");
    assert!(own.iter().all(|a| **a == serde_json::json!({})), "{own:?}");
}

/// A parameter that is optimised out does not take the others with it.
#[test]
fn all_arguments_are_those_that_are_known() {
    let Some(program) = build(Compiler::Rustc, "parts.rs", &[]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("t");
    let words = [
        "record",
        "-o",
        text(&trace),
        "-e",
        ":parts::part $arg*",
        "--",
    ];
    let output = capriole(&[&words[..], &[text(&program)]].concat());
    assert!(output.status.success(), "{}", told(&output));
    let message =
        "left out of `:parts::part $arg*`: parameter `_unused`: `_unused` is optimised out";
    assert!(told(&output).contains(message), "{}", told(&output));
    let all = events(&trace);
    let numbers: Vec<_> = all.iter().map(|e| &e["arguments"]["n"]).collect();
    assert_eq!(numbers, [0, 1, 2], "{all:?}");
}
