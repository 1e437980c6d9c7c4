//! Static markers as events: the information in their notes is found, and the recorded values
//! are those that the program had there.

use crate::traces;

use crate::programs::{Compiler, build};
use crate::target::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use traces::{Background, calls, events, record, record_program, scratch, text};

/// Compiler flags for the program, so that its arguments are in different places.
const FLAGS: [&[&str]; 3] = [&["-O2"], &["-O0"], &["-O2", "-no-pie"]];

fn marked(flags: &[&str]) -> Option<PathBuf> {
    build(Compiler::Gcc, "marked.c", flags)
}

/// Runs `capriole` in the program's own directory, so that its output contains no path.
fn near(program: &Path, arguments: &[&str]) -> Output {
    let directory = program.parent().expect("a directory");
    let mut command = command(arguments);
    command.current_dir(directory).output().expect("it starts")
}

/// Returns its output, with the program's name replaced by a fixed one.
fn said(program: &Path, output: &Output) -> String {
    let name = program.file_name().expect("a name").to_string_lossy();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = text(&output.stdout) + &text(&output.stderr);
    let directory = program.parent().expect("a directory").display();
    all.replace(&format!("{directory}/"), "")
        .replace(&*name, "marked")
}

/// Returns a number as JSON: as a string if some readers cannot represent it.
fn number(value: u64) -> Value {
    match value < 1 << 53 {
        true => json!(value),
        false => json!(value.to_string()),
    }
}

/// Returns the fields of an event's hits, in time order.
fn fields(trace: &Path, name: &str) -> Vec<Value> {
    let events = events(trace).into_iter();
    let mut events: Vec<Value> = events.filter(|event| event["event"] == name).collect();
    events.sort_by_key(|event| event["time_ns"].as_u64());
    events
        .iter()
        .map(|event| event["arguments"].clone())
        .collect()
}

fn recorded(program: &Path, arguments: &[&str], name: &str) -> Vec<Value> {
    let directory = scratch();
    let trace = directory.path().join("trace");
    record_program(&trace, arguments, program, &["3"]);
    fields(&trace, name)
}

/// Markers of `capriole/marker.h`, all at once: values are in registers that only the notes
/// mention, and no earlier detour may change them.
#[test]
fn markers_of_the_header_are_recorded_by_their_format() {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
    for level in ["-O0", "-O2", "-O3"] {
        let flags = [level, "-I", include];
        let Some(program) = build(Compiler::Gcc, "../../examples/markers.c", &flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("trace");
        traces::record_shop(&trace, &["-e", "usdt::shop:*"], &program, |trace| {
            events(trace).len() > 63
        });
        let requests = fields(&trace, "shop:request");
        let replies = fields(&trace, "shop:reply");
        assert!(requests.len() > 20, "{requests:?}");
        for (index, request) in requests.iter().enumerate() {
            let number = index as u64 + 1;
            let method = u64::from(number.is_multiple_of(3));
            let wanted = json!({"number": number, "method": method, "path": "/index.html"});
            assert_eq!(*request, wanted);
        }
        for (index, reply) in replies.iter().enumerate() {
            let number = index as u64 + 1;
            let status = if number.is_multiple_of(10) { 404 } else { 200 };
            assert_eq!(
                (&reply["number"], &reply["status"]),
                (&json!(number), &json!(status))
            );
            let cost = reply["cost"].as_f64().expect("a floating point number");
            assert_eq!(cost, number as f64 / 2.0, "{reply}");
        }
        assert!(requests.len() - replies.len() <= 1);
        // Guarded values are only computed while a tracer is attached.
        let hashes = fields(&trace, "shop:hashed");
        assert!(requests.len() - hashes.len() <= 1, "{}", hashes.len());
        assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    }
}

/// Every kind of operand, in three rounds; their locations depend on the compiler's flags.
#[test]
fn arguments_are_what_the_program_had() {
    for flags in FLAGS {
        let Some(program) = marked(flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("trace");
        record_program(&trace, &["-e", "usdt::*"], &program, &["3"]);
        let global = {
            let file = capriole_object::ObjectFile::open(&program).expect("an ELF file");
            let symbol = file.other_symbol("marked_global").expect("symbols");
            let Some(capriole_object::symbols::OtherSymbol::Data(address)) = symbol else {
                panic!("no marked_global, but {symbol:?}")
            };
            address
        };
        for round in 0..3_u64 {
            let one = |name: &str| fields(&trace, name)[round as usize].clone();
            let when = format!("{flags:?}, round {round}");
            let value = 0x1122_3344_1234_5680 + round;
            let small = round as i64 - 1000;
            let expected = json!({
                "arg1": number(value),
                "arg2": 0x1234_5680 + round,
                "arg3": 0x1234_5680 + round,
                "arg4": 0x5680 + round,
                "arg5": -128 + round as i64,
                "arg6": 0x56,
                "arg7": number(small as u64),
                "arg8": small,
                "arg9": small,
                "arg10": i64::from(small as i8),
            });
            assert_eq!(one("plain:registers"), expected, "{when}");
            let numbers = one("plain:numbers");
            // The last argument tells the load address.
            let loaded = numbers["arg8"].as_u64().expect("a number");
            assert_eq!(loaded.wrapping_sub(global + 4) % 4096, 0, "{when}");
            let expected = json!({
                "arg1": -5,
                "arg2": 4_294_967_291_u64,
                "arg3": number(u64::MAX),
                "arg4": -1,
                "arg5": 44,
                "arg6": 16,
                "arg7": 5,
                "arg8": loaded,
            });
            assert_eq!(numbers, expected, "{when}");
            let expected = json!({
                "arg1": round + 1,
                "arg2": round + 2,
                "arg3": 10 * (round % 4 + 1) + 1,
                "arg4": 11,
                "arg5": 13,
                "arg6": -7,
            });
            assert_eq!(one("plain:memory"), expected, "{when}");
            let expected = json!({
                "arg1": 0.5 * round as f64,
                "arg2": -0.25 * round as f64,
                "arg3": 1.0 / 1024.0,
            });
            assert_eq!(one("plain:floats"), expected, "{when}");
            // The other arguments cannot be read.
            assert_eq!(one("plain:strange"), json!({"arg1": round}), "{when}");
            let names = ["first", "second", "a longer third"];
            let order = one("shop:order");
            let expected = json!({
                "id": -(round as i64),
                "price": 3_000_000_000 + round,
                "at": format!("{:#x}", 4096 * round),
                "arg4": names[round as usize],
                "arg5": format!("{:#x}", 0xbeef_0000 + round),
                "arg6": char::from(b'a' + round as u8).to_string(),
                "end": -1 - round as i64,
            });
            assert_eq!(order, expected, "{when}");
            assert_eq!(one("shop:done"), json!({}), "{when}");
        }
        let each = |name: &str| -> Vec<i64> {
            let all = fields(&trace, name).into_iter();
            all.map(|fields| fields["arg1"].as_i64().expect("a number"))
                .collect()
        };
        // One marker at three places is one event.
        assert_eq!(
            each("plain:places"),
            [100, 200, 300, 101, 201, 301, 102, 202, 302],
            "{flags:?}"
        );
        assert_eq!(each("plain:guarded"), [0, 1, 2], "{flags:?}");
    }
}

#[test]
fn fields_are_taken_from_the_arguments() {
    let Some(program) = marked(&["-O2"]) else {
        return;
    };
    let texts = |event: &str| recorded(&program, &["-e", event], "plain:texts");
    let all = texts("usdt::plain:texts $arg1:string second=$arg2:string third=+1($arg2):string");
    assert_eq!(
        all[1],
        json!({"arg1": "first", "second": "second", "third": "econd"})
    );
    let all = texts("usdt::plain:texts +0($arg2):u8 b=+1($arg2):char $comm if b == 'e'");
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["arg1"], u64::from(b's'));
    let order = |event: &str| recorded(&program, &["-e", event], "shop:order");
    // By the names given in the format, and with filters on fields that are not recorded.
    assert_eq!(
        order(r#"usdt::shop:order id price:x32 last=end name=$arg4 if name == "second" && id < 0"#),
        [json!({"id": -1, "price": "0xb2d05e01", "last": -2, "name": "second"})]
    );
    assert_eq!(order("usdt::shop:order if price > 3000000001").len(), 1);
    assert_eq!(order("usdt::shop:order $arg1:u8").len(), 3);
    // A register that is no argument, and a call stack, as for other events.
    let all = order("usdt::shop:order %si:s32 stack");
    assert_eq!(all[2]["arg1"], -2, "{all:?}");
    // A call stack needs to know which place of a marker was hit.
    let places = recorded(
        &program,
        &["-e", "usdt::plain:places $arg1 stack"],
        "plain:places",
    );
    assert_eq!(places.len(), 9);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let Some(program) = marked(&["-O2"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let refusal = |event: &str| {
        let output = record(&trace, &["-e", event, "--", text(&program), "1"]);
        assert_eq!(output.status.code(), Some(1), "{event}: {}", told(&output));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("ok"));
        said(&program, &output)
    };
    let all: Vec<String> = [
        "usdt::shop:odrer",
        "usdt::none:*",
        "usdt:libc:shop:order",
        "usdt::shop:order $arg8",
        "usdt::shop:order $arg1:u64",
        "usdt::shop:order $arg1:string",
        "usdt::shop:order +0(price)",
        "usdt::shop:order prices",
        "usdt::plain:strange $arg2",
        "usdt::plain:strange $arg3",
        "usdt::plain:registers $arg6:s8",
        r#"usdt::shop:order "%d %u""#,
        r#"usdt::shop:order "id=%d price: %u at %p (%s) %x %c end %d""#,
        r#"usdt::shop:order "id=%d amount: %u at %p (%s) %x %c end %ld""#,
        r#"usdt::shop:order "%d %?""#,
        r#"usdt::shop:done "%d""#,
        r#"usdt::plain:texts "%d %s""#,
        r#"usdt::plain:* "%d %d %d %d %d %d %d %d %d %d %d %d %d""#,
    ]
    .map(refusal)
    .to_vec();
    insta::assert_snapshot!(all.join("\n"));
    // Formats that fit are accepted.
    for event in [
        r#"usdt::shop:order "%d %u %p %s %x %c %ld""#,
        r#"usdt::shop:order "id=%3d, %8u %p %20s %#x %c %li""#,
        r#"usdt::shop:done "no conversion at all""#,
        r#"usdt::plain:texts "%s %p""#,
        r#"usdt::plain:floats "%f %g %e""#,
        r#"usdt::plain:registers "%lu %u %d %hu %hhd %u %lx %d %hd %d""#,
    ] {
        let output = record(&trace, &["-e", event, "--", text(&program), "1"]);
        assert!(output.status.success(), "{event}: {}", told(&output));
    }
    // With a pattern, markers that do not fit are left out.
    let output = record(
        &trace,
        &["-e", r#"usdt::plain:* "%s %p""#, "--", text(&program), "1"],
    );
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(
        calls(&trace).into_keys().collect::<Vec<_>>(),
        ["plain:texts"]
    );
    let told = said(&program, &output);
    assert!(
        told.contains("left out: 9 of 10 places of markers"),
        "{told}"
    );
}

#[test]
fn markers_are_listed_and_checked() {
    let Some(program) = marked(&["-O0", "-no-pie"]) else {
        return;
    };
    let file = program
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let path = format!("usdt:./{file}:*");
    // The addresses depend on the compiler.
    let list = near(&program, &["list", &path]);
    assert!(list.status.success(), "{}", told(&list));
    let table = said(&program, &list);
    let column = |line: &str| line[30..].trim_start().to_owned();
    let rows: Vec<String> = table.lines().map(column).collect();
    let row = |name: &str| {
        let found = rows.iter().find(|row| row.contains(name));
        found.unwrap_or_else(|| panic!("no {name} in {table}"))
    };
    assert!(rows[0].ends_with("SOURCE"), "{table}");
    assert_eq!(table.matches("plain:places").count(), 3);
    assert!(row("plain:floats").contains("f64, f32, f64"), "{table}");
    assert!(row("plain:strange").contains("u32, ?, u32"), "{table}");
    let order = row("shop:order");
    assert!(
        order.contains(r#""id=%d price: %u at %p (%s) %x %c end %ld""#)
            && order.contains("marked.c:"),
        "{table}"
    );
    assert!(row("plain:guarded").starts_with("0x"), "{table}");
    // The same through a pattern and a file.
    let again = near(&program, &["list", "usdt::*", &file]);
    assert_eq!(said(&program, &again), table);
    let some = near(&program, &["list", "usdt::shop:*", &file]);
    assert_eq!(said(&program, &some).lines().count(), 3);
    let functions = near(&program, &["list", &file]);
    assert!(
        said(&program, &functions)
            .contains("it also has 12 static markers: capriole list 'usdt::*' "),
        "{}",
        said(&program, &functions)
    );
    let list = near(&program, &["list", "--json", &path]);
    let sites: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    let sites = sites.as_array().expect("a list");
    assert_eq!(sites.len(), 12);
    let json = |name: &str| {
        let mut all = sites.iter();
        let found = all.find(|site| site["event"] == name);
        found.expect("it is there")["marker"].clone()
    };
    let order = json("shop:order");
    assert_eq!(order["format"], "id=%d price: %u at %p (%s) %x %c end %ld");
    assert_eq!(order["arguments"][3]["type"], "string");
    assert_eq!(order["arguments"][0]["name"], "id");
    assert!(order["line"].as_u64().expect("a line") > 100);
    let strange = json("plain:strange");
    assert_eq!(strange["arguments"][0]["operand"], "4@%edi");
    assert_eq!(
        strange["arguments"][1]["refused"],
        "is relative to a segment, which cannot be read"
    );
    assert!(json("plain:guarded")["semaphore"].is_string());
    let check = near(
        &program,
        &["check", &format!("usdt:./{file}:plain:strange")],
    );
    let told = said(&program, &check);
    assert!(check.status.success(), "{told}");
    for line in [
        "  arguments arg1  4@%edi  as u32\n",
        "            arg2  cannot be read: `8@%fs:16` in the marker's note is relative to a segment, \
         which cannot be read\n",
        "            arg3  4@nowhere(%rip)  cannot be read: it is at `nowhere`, and it is in no \
         symbol table (a local name, or the file was stripped)\n",
        "  reserved  no: only 1 byte of nops at the site, 5 are needed\n",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
}

/// A stripped program still has the notes, but no names for addresses.
#[test]
fn a_stripped_program_has_its_markers() {
    let Some(program) = marked(&["-O2", "-s"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    record_program(&trace, &["-e", "usdt::*"], &program, &["3"]);
    let calls = calls(&trace);
    for name in [
        "plain:registers",
        "plain:memory",
        "plain:guarded",
        "shop:order",
    ] {
        assert_eq!(calls[name], 3, "{name}: {calls:?}");
    }
    assert_eq!(calls["plain:places"], 9, "{calls:?}");
    let memory = &fields(&trace, "plain:memory")[0];
    assert_eq!(memory["arg3"], 11);
    assert_eq!(memory["arg4"], Value::Null, "no symbol says where it is");
}

#[test]
fn hits_are_added_up_by_arguments() {
    let Some(program) = marked(&["-O2"]) else {
        return;
    };
    let output = capriole(&[
        "stat",
        "--json",
        "-e",
        "usdt::plain:places",
        "-e",
        "usdt::shop:order sum(id) max(price) by arg4",
        "-e",
        "usdt::plain:guarded count() if arg1 >= 40",
        "--",
        text(&program),
        "100",
    ]);
    assert!(output.status.success(), "{}", told(&output));
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    let line = shown.lines().find(|line| line.starts_with('{'));
    let stat: Value = serde_json::from_str(line.expect("JSON")).expect("JSON");
    let events = stat["events"].as_array().expect("a list");
    let calls = |name: &str| -> Vec<u64> {
        let named = events.iter().filter(|event| event["event"] == name);
        named.filter_map(|event| event["calls"].as_u64()).collect()
    };
    assert_eq!(calls("plain:places"), [300], "{stat:#}");
    assert_eq!(calls("shop:order"), [100], "{stat:#}");
    assert_eq!(calls("plain:guarded"), [60], "{stat:#}");
    let groups = stat["groups"].as_array().expect("a list");
    let second = groups
        .iter()
        .find(|group| group.to_string().contains("\"second\""));
    let second = second.unwrap_or_else(|| panic!("{stat:#}")).to_string();
    // 1, 4, ... 97
    assert!(
        second.contains("-1617") && second.contains("3000000097"),
        "{second}"
    );
}

fn asked(running: &mut Running) -> String {
    running.say("");
    running.line()
}

const UNWATCHED: &str = "guarded 0 semaphore 0";
const WATCHED: &str = "guarded 3 semaphore 1";

/// The semaphore is raised while the probe is there, however the recording ends.
#[test]
fn semaphores_go_up_and_down() {
    let Some(program) = marked(&["-O2"]) else {
        return;
    };
    let mut running = Running::start(&program, &[]);
    let directory = scratch();
    let trace = directory.path().join("trace");
    assert_eq!(asked(&mut running), UNWATCHED);
    let other = Background::attach(&trace, running.pid, &["usdt::plain:numbers"]);
    assert_eq!(asked(&mut running), UNWATCHED);
    other.end();
    let recorder = Background::attach(&trace, running.pid, &["usdt::plain:guarded"]);
    assert_eq!(asked(&mut running), WATCHED);
    recorder.end();
    assert_eq!(asked(&mut running), UNWATCHED);
    assert_eq!(calls(&trace)["plain:guarded"], 3);
    // A pattern and a name still raise it only once.
    let both = [
        "usdt::plain:*",
        "p:mine :guard",
        "usdt::plain:guarded $arg1:x64",
    ];
    let recorder = Background::attach(&trace, running.pid, &both);
    assert_eq!(asked(&mut running), WATCHED);
    recorder.end();
    assert_eq!(asked(&mut running), UNWATCHED);
    // The recorder is killed.
    let pid = running.pid.to_string();
    let mut killed = command(&["record", "-p", &pid, "-e", "usdt::plain:guarded", "-o"])
        .arg(&trace)
        .stderr(Stdio::null())
        .spawn()
        .expect("capriole starts");
    traces::until_recording(running.pid);
    assert_eq!(asked(&mut running), WATCHED);
    killed.kill().expect("a child");
    killed.wait().expect("a child");
    assert_eq!(asked(&mut running), WATCHED);
    let detached = capriole(&["detach", &pid]);
    assert!(detached.status.success(), "{}", told(&detached));
    assert_eq!(asked(&mut running), UNWATCHED);
    assert_no_session(&running.process());
    running.finish();
}

/// Compares with another tool's output for the same program, in a separate run.
#[test]
fn bpftrace_sees_the_same() {
    let Some(program) = marked(&["-O2"]) else {
        return;
    };
    let directory = scratch();
    let trace = directory.path().join("trace");
    let script = directory.path().join("script.bt");
    let path = program.display();
    // Skip operands that bpftrace does not understand (second bytes, vectors, sums).
    let markers: [(&str, &[usize]); 3] = [
        ("plain:places", &[1]),
        ("shop:order", &[1, 2, 3, 5]),
        ("plain:guarded", &[1]),
    ];
    let mut program_text = String::new();
    for (marker, arguments) in markers {
        let formats = vec!["%ld"; arguments.len()].join(" ");
        let values: Vec<String> = arguments.iter().map(|n| format!("arg{}", n - 1)).collect();
        let values = values.join(", ");
        program_text +=
            &format!("usdt:{path}:{marker} {{ printf(\"{marker} {formats}\\n\", {values}); }}\n");
    }
    std::fs::write(&script, program_text).expect("a file");
    let output = Command::new("timeout")
        .args(["300", "bpftrace", "-c"])
        .arg(format!("{path} 3"))
        .arg(&script)
        .output();
    let output = output.expect("timeout starts");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || !shown.contains("plain:places") {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        println!(
            "skipped: bpftrace does not work: {}",
            why.lines().last().unwrap_or_default()
        );
        return;
    }
    record_program(&trace, &["-e", "usdt::*"], &program, &["3"]);
    let mut theirs: Vec<&str> = shown.lines().filter(|line| line.contains(':')).collect();
    theirs.retain(|line| markers.iter().any(|(marker, _)| line.starts_with(marker)));
    theirs.sort_unstable();
    let mut ours: Vec<String> = Vec::new();
    for (marker, arguments) in markers {
        for hit in fields(&trace, marker) {
            let hit = hit.as_object().expect("fields");
            let values: Vec<&Value> = hit.values().collect();
            let value = |n: &usize| match values[n - 1] {
                Value::String(hexadecimal) => {
                    let digits = hexadecimal.trim_start_matches("0x");
                    u64::from_str_radix(digits, 16)
                        .expect("a number")
                        .to_string()
                }
                number => number.to_string(),
            };
            let shown: Vec<String> = arguments.iter().map(value).collect();
            ours.push(format!("{marker} {}", shown.join(" ")));
        }
    }
    ours.sort_unstable();
    assert_eq!(ours, theirs);
}

/// Every format is the program's own, and the program prints printf's result for it.
#[test]
fn reports_have_the_texts_that_the_authors_wrote() {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
    for level in ["-O0", "-O2"] {
        let Some(program) = build(Compiler::Gcc, "formats.c", &[level, "-w", "-I", include]) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("trace");
        let said = record_program(&trace, &["-e", "usdt::*"], &program, &["20"]);
        let said: Vec<&str> = said.lines().collect();
        assert_eq!(said.len(), 20 * 13);
        let mut all = events(&trace);
        all.sort_by_key(|event| event["time_ns"].as_u64());
        let texts = |name: &str| -> Vec<&str> {
            let named = all.iter().filter(|event| event["event"] == name);
            let texts = named.map(|event| event["text"].as_str());
            texts.map(|text| text.expect("a text")).collect()
        };
        // JSON cannot contain text that is not UTF-8.
        let found = texts("shop:said");
        assert_eq!(found.len(), said.len(), "{level}");
        for (found, said) in found.iter().zip(&said) {
            assert_eq!(found, said, "{level}");
        }
        assert_eq!(texts("shop:lost")[1], "tea of 1 at (fault)  |\n");
        assert_eq!(texts("capriole:message"), ["what happened"; 20]);

        let lines = |options: &[&str]| {
            let output = capriole(&[&["report", text(&trace)], options].concat());
            assert!(output.status.success(), "{}", told(&output));
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let report = lines(&[]);
        assert!(!report.contains(|c: char| c != '\n' && c.is_control()));
        let behind = |report: &str, name: &str| -> Vec<String> {
            let lines = report.lines().filter(|line| line.contains(name));
            let rest = lines.filter_map(|line| line.split_once("+0x")?.1.split_once(')'));
            rest.map(|(_, rest)| rest.trim_start().to_owned()).collect()
        };
        assert_eq!(behind(&report, ": shop:said: ")[1], "0 apples");
        assert_eq!(
            behind(&report, ": shop:lost: ")[1],
            "tea of 1 at (fault)  |"
        );
        assert_eq!(
            behind(&report, ": shop:hostile: ")[3],
            r"[\x1b[2J\n\x9b\u{202e}]\r3"
        );
        assert_eq!(behind(&report, ": capriole:message: ")[0], "what happened");
        let report = lines(&["--fields"]);
        assert_eq!(behind(&report, ": shop:said: ")[1], "arg1=0");
        assert_eq!(
            behind(&report, ": shop:lost: ")[1],
            r#"arg1="tea" of=1 at=(fault)"#
        );
        // Other readers see events of one name, and nothing unknown to them.
        match Command::new("babeltrace2").arg(&trace).output() {
            Ok(output) => {
                let told = told(&output);
                assert!(
                    output.status.success() && output.stderr.is_empty(),
                    "{told}"
                );
                assert_eq!(output.stdout.split(|b| *b == b'\n').count(), 20 * 16 + 1);
            }
            Err(_) => println!("skipped: babeltrace2 is not installed"),
        }
    }
}

#[test]
fn fields_that_were_chosen_are_shown_as_fields() {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
    let flags = ["-O2", "-w", "-I", include];
    let Some(program) = build(Compiler::Gcc, "formats.c", &flags) else {
        return;
    };
    let shown = |event: &str| {
        let directory = scratch();
        let trace = directory.path().join("trace");
        record_program(&trace, &["-e", event], &program, &["2"]);
        let output = capriole(&["report", text(&trace)]);
        let report = String::from_utf8(output.stdout).expect("UTF-8");
        let mut lines = report.lines().rev();
        let last = lines.find(|line| line.contains(": shop:lost: "));
        last.expect("a line")
            .split_once(") ")
            .expect("a site")
            .1
            .to_owned()
    };
    assert_eq!(
        shown("usdt::shop:lost $arg2 $arg1:string"),
        r#"arg2=1 arg1="tea""#
    );
    assert_eq!(shown("usdt::shop:lost of"), "of=1");
    assert_eq!(
        shown("usdt::shop:lost if of == 1"),
        "tea of 1 at (fault)  |"
    );
    // All of the arguments, and one more field.
    assert_eq!(
        shown("usdt::shop:lost $arg* more=$arg2:x32"),
        "more=0x1: tea of 1 at (fault)  |"
    );
}
