//! Call stacks: their form in a trace, and that no data in a stack, or of the names, is trusted.

use crate::common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use capriole_report::callstack::{CallStacks, End};
use capriole_trace::{
    CodeName, FunctionName, Names, PacketMeta, StackEnd, Trace, TraceError, TraceInfo, TraceWriter,
};
use common::typed::{Owned, event, owned};
use common::{START, babeltrace};
use proptest::prelude::*;

/// A call stack as a record has it: the reason for its end, and the addresses.
type Chain = (u32, Vec<u64>);

/// Returns the bytes of the field.
fn field((end, addresses): &Chain) -> Vec<u8> {
    let mut bytes = (addresses.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&end.to_le_bytes());
    bytes.extend(addresses.iter().flat_map(|address| address.to_le_bytes()));
    bytes
}

/// Writes a trace of one event with fields around its stack.
fn write(directory: &Path, chains: &[Chain], names: &[CodeName]) {
    let fields = ["fd:u32", "stack:stack(64)", "ports:u16[3]"];
    let info = TraceInfo {
        events: vec![event(3, "open", &fields, false)],
        ..common::info()
    };
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    writer.add_names(names, &[]).unwrap();
    let mut content = Vec::new();
    for (n, chain) in chains.iter().enumerate() {
        content.extend(common::record(START + n as u64, 3, 4242, &[n as u64]));
        content.extend(field(chain));
        content.extend([1, 0, 2, 0, 3, 0, 0, 0]);
    }
    let written = writer.write_packet(&PacketMeta::default(), &content);
    let written = written.unwrap();
    assert_eq!(
        (written.events, written.damaged_bytes),
        (chains.len() as u64, 0)
    );
    writer.finish(common::finish()).unwrap();
}

fn chains() -> Vec<Chain> {
    vec![
        (0, vec![0x7fff_0000, 0x10]),
        (1, vec![0x1000; 128]),
        (2, vec![u64::MAX, 0, 1]),
        (3, vec![]),
        (77, vec![8]),
    ]
}

#[test]
fn what_was_written_is_read_again() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write(&directory, &chains(), &[]);
    let trace = Trace::open(&directory).unwrap();
    let mut events = trace.events().unwrap();
    for (n, (end, addresses)) in chains().into_iter().enumerate() {
        let event = events.next().unwrap().unwrap();
        let ports = [1, 2, 3].map(Owned::Unsigned).to_vec();
        let expected = [
            Owned::Unsigned(n as u64),
            Owned::CallStack(addresses, StackEnd::from(end)),
            Owned::Array(ports),
        ];
        assert_eq!(event.fields().map(owned).collect::<Vec<_>>(), expected);
    }
    assert!(events.next().unwrap().is_none());
    let health = events.health();
    assert_eq!(
        (health.lost_events, health.lost_packets, health.damages),
        (0, 0, 0)
    );
}

#[test]
fn babeltrace_reads_the_same() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write(&directory, &chains(), &[]);
    let Some((lines, errors)) = babeltrace(&directory) else {
        return;
    };
    assert_eq!(errors, "");
    assert_eq!(lines.len(), chains().len(), "{lines:?}");
    for (n, (line, (end, addresses))) in lines.iter().zip(chains()).enumerate() {
        let element = |(at, address): (usize, &u64)| format!("[{at}] = 0x{address:X}");
        let elements: Vec<String> = addresses.iter().enumerate().map(element).collect();
        let elements = match elements.is_empty() {
            true => "[ ]".to_string(),
            false => format!("[ {} ]", elements.join(", ")),
        };
        let end = match end {
            0 => "\"outermost\"",
            1 => "\"full\"",
            2 => "\"unreadable\"",
            3 => "\"unknown\"",
            _ => "<unknown>",
        };
        let length = addresses.len();
        let before = format!("fd = {n}, _stack_length = {length}, _stack_end = ( {end} : ");
        assert!(line.contains(&before), "{line}\n{before}");
        assert!(
            line.contains(&format!(" ), stack = {elements}, ")),
            "{line}"
        );
        assert!(
            line.ends_with("ports = [ [0] = 1, [1] = 2, [2] = 3 ] }"),
            "{line}"
        );
    }
}

fn code_name(at: u64, returned_to: bool, signal: bool) -> CodeName {
    CodeName {
        at,
        object: (!at.is_multiple_of(5)).then(|| Arc::from("/lib/a.so")),
        functions: (0..at % 3)
            .map(|n| FunctionName {
                name: (n != 1).then(|| Arc::from(format!("f{at}\u{1b}"))),
                start: Some(at),
                offset: (!at.is_multiple_of(7)).then_some(u64::MAX),
                inlined: n == 0,
                same_code: Vec::new(),
            })
            .collect(),
        returned_to,
        before_start: at.is_multiple_of(4),
        signal,
        replaced: at.is_multiple_of(11),
    }
}

/// An address near others, or any.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..40, any::<u64>(), Just(0), Just(u64::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With arbitrary addresses and names, a backtrace has no more calls than the chain has addresses.
    #[test]
    fn any_chain_and_any_names_have_a_backtrace(
        chain in prop::collection::vec(address(), 0..130),
        names in prop::collection::vec((address(), any::<bool>(), any::<bool>()), 0..60),
        end in prop::sample::select(vec![End::Outermost, End::Truncated, End::Unknown]),
    ) {
        let mut known = Names::default();
        for (at, returned_to, signal) in names {
            known.add(code_name(at, returned_to, signal));
        }
        let mut stacks = CallStacks::with(known);
        let found = stacks.chain(chain.iter().copied(), end);
        prop_assert!(found.calls.len() <= chain.len());
        prop_assert!(found.calls.len() == chain.len() || found.end == End::Unknown);
        for (call, address) in found.calls.iter().zip(&chain) {
            let frames = stacks.call(*call);
            prop_assert!(!frames.is_empty());
            prop_assert!(frames.iter().all(|frame| frame.address == *address));
        }
        let again = stacks.chain(chain.iter().copied(), end);
        prop_assert_eq!(again, found);
    }

    /// With bytes of a stream or of the names changed anywhere: every report still ends.
    #[test]
    fn a_damaged_trace_is_still_reported(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        of_names in any::<bool>(),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        let names: Vec<CodeName> = (0..40).map(|at| code_name(at, true, false)).collect();
        write(&directory, &chains(), &names);
        let path = directory.join(if of_names { "info/names.jsonl.gz" } else { "cpu0" });
        let mut bytes = fs::read(&path).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fs::write(&path, bytes).unwrap();
        let trace = Trace::open(&directory).unwrap();
        capriole_report::write_text(&trace, &mut Vec::new(), &capriole_report::TextOptions::default()).unwrap();
        capriole_report::write_json_lines(&trace, &mut Vec::new()).unwrap();
        capriole_report::StackCallers::of(&trace).unwrap();
        capriole_report::StackFlame::of(&trace).unwrap();
    }
}

/// Traces of versions whose records have copies of the stack are refused by number.
#[test]
fn copies_of_stacks_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write(&directory, &chains(), &[]);
    let path = directory.join("info/capriole.json");
    let text = fs::read_to_string(&path).unwrap();
    let current = format!("\"format_version\": {}", capriole_trace::FORMAT_VERSION);
    assert!(text.contains(&current), "{text}");
    let older = text.replace(&current, "\"format_version\": 3");
    fs::write(&path, older.replace("stack(64)", "stack(4096)")).unwrap();
    let error = Trace::open(&directory).unwrap_err();
    assert!(
        matches!(error, TraceError::StackCopies { found: 3, .. }),
        "{error}"
    );
    // Without call stacks they are read.
    fs::write(&path, older.replace("stack(64)", "x64")).unwrap();
    assert_eq!(
        Trace::open(&directory).unwrap().document().format_version,
        3
    );
}
