//! Call stacks: their form in a trace, and that no data in a stack, or in the files it names,
//! is trusted.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use capriole_report::callstack::{CallStacks, End};
use capriole_trace::{
    CallStack, EventInfo, MappingInfo, PacketMeta, Role, Trace, TraceInfo, TraceWriter,
};
use common::typed::{Owned, event, owned};
use common::{START, babeltrace};
use proptest::prelude::*;

/// Returns the bytes of the field.
fn field(stack_pointer: u64, frame_pointer: u64, copy: &[u8]) -> Vec<u8> {
    let mut bytes = stack_pointer.to_le_bytes().to_vec();
    bytes.extend_from_slice(&frame_pointer.to_le_bytes());
    bytes.extend_from_slice(&(copy.len() as u32).to_le_bytes());
    bytes.extend_from_slice(copy);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Writes a trace of one event with fields around its stack.
fn write(directory: &Path, records: &[(u64, u64, Vec<u8>)], mappings: &[MappingInfo]) {
    let fields = ["fd:u32", "stack:stack(64)", "ports:u16[3]"];
    let info = TraceInfo {
        events: vec![event(3, "open", &fields, false)],
        ..common::info()
    };
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    writer.add_mappings(mappings).unwrap();
    let mut content = Vec::new();
    for (n, (stack_pointer, frame_pointer, copy)) in records.iter().enumerate() {
        content.extend(common::record(START + n as u64, 3, 4242, &[n as u64]));
        content.extend(field(*stack_pointer, *frame_pointer, copy));
        content.extend([1, 0, 2, 0, 3, 0, 0, 0]);
    }
    let written = writer.write_packet(&PacketMeta::default(), &content);
    let written = written.unwrap();
    assert_eq!(
        (written.events, written.damaged_bytes),
        (records.len() as u64, 0)
    );
    writer.finish(common::finish()).unwrap();
}

fn records() -> Vec<(u64, u64, Vec<u8>)> {
    let copy = |length: u8| (0..length).collect();
    vec![
        (0x7fff_0000, 0x10, copy(16)),
        (0x7fff_0008, 0, copy(0)),
        (u64::MAX, u64::MAX, copy(3)),
        (8, 16, copy(64)),
    ]
}

#[test]
fn what_was_written_is_read_again() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write(&directory, &records(), &[]);
    let trace = Trace::open(&directory).unwrap();
    let mut events = trace.events().unwrap();
    for (n, (stack_pointer, frame_pointer, copy)) in records().into_iter().enumerate() {
        let event = events.next().unwrap().unwrap();
        let ports = [1, 2, 3].map(Owned::Unsigned).to_vec();
        let expected = [
            Owned::Unsigned(n as u64),
            Owned::CallStack(stack_pointer, frame_pointer, copy),
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
    write(&directory, &records(), &[]);
    let Some((lines, errors)) = babeltrace(&directory) else {
        return;
    };
    assert_eq!(errors, "");
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (n, (line, (sp, bp, copy))) in lines.iter().zip(records()).enumerate() {
        let element = |(at, byte): (usize, &u8)| format!("[{at}] = 0x{byte:X}");
        let bytes: Vec<String> = copy.iter().enumerate().map(element).collect();
        let bytes = match bytes.is_empty() {
            true => "[ ]".to_string(),
            false => format!("[ {} ]", bytes.join(", ")),
        };
        let shown = format!(
            "fd = {n}, _stack_pointer = 0x{sp:X}, _stack_frame_pointer = 0x{bp:X}, \
             _stack_length = {}, stack = {bytes}, ",
            copy.len()
        );
        assert!(line.contains(&shown), "{line}\n{shown}");
        assert!(
            line.ends_with("ports = [ [0] = 1, [1] = 2, [2] = 3 ] }"),
            "{line}"
        );
    }
}

/// Returns this test's executable file, and its text: (offset, size, link address).
fn own_text() -> (PathBuf, u64, u64) {
    let path = std::env::current_exe().unwrap();
    let file = capriole_object::ObjectFile::open(&path).unwrap();
    let segments = file.segments().iter();
    let text = segments.into_iter().find(|s| s.perms.execute).unwrap();
    (path, text.offset, text.file_size)
}

const BASE: u64 = 0x5555_0000_0000;

fn own_mapping(path: &Path) -> MappingInfo {
    let (own, offset, size) = own_text();
    let file = capriole_object::ObjectFile::open(&own).unwrap();
    let hexadecimal = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect();
    MappingInfo {
        start: BASE,
        end: BASE + size,
        offset,
        path: path.to_str().unwrap().to_string(),
        build_id: file.build_id().map(hexadecimal),
    }
}

/// Damaged copies of the same file: truncated ones, one of them to half its size, and one with
/// random bytes in it.
fn damaged() -> &'static [PathBuf] {
    static FILES: OnceLock<(tempfile::TempDir, Vec<PathBuf>)> = OnceLock::new();
    let (_, files) = FILES.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let bytes = fs::read(own_text().0).unwrap();
        let mut files = Vec::new();
        for (n, keep) in [0, 10, 64, 4096, bytes.len() / 2].into_iter().enumerate() {
            files.push(directory.path().join(format!("cut{n}")));
            fs::write(&files[n], &bytes[..keep]).unwrap();
        }
        // Random bytes in the call frame information: the build id, before it, is still right.
        let file = capriole_object::ObjectFile::open(&own_text().0).unwrap();
        let at = file.section(".eh_frame").unwrap();
        let from = file.file_offset(at.start).unwrap() as usize;
        let mut noisy = bytes;
        let mut random = common::Random(7);
        for byte in &mut noisy[from..from + (at.end - at.start) as usize] {
            if random.below(20) == 0 {
                *byte = random.below(256) as u8;
            }
        }
        files.push(directory.path().join("noisy"));
        fs::write(files.last().unwrap(), noisy).unwrap();
        (directory, files)
    });
    files
}

fn hit(address: u64, role: Role) -> EventInfo {
    EventInfo {
        address,
        role,
        symbol_offset: address % 3 * 2,
        ..event(0, "hit", &["stack:stack(64)"], false)
    }
}

fn stacks_of(mappings: &[MappingInfo]) -> CallStacks {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write(&directory, &[], mappings);
    CallStacks::of(Trace::open(&directory).unwrap().document())
}

/// A word that may be on a stack: an address in the code, one in the stack, or any value.
fn word(stack_pointer: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..own_text().2).prop_map(|at| BASE + at),
        (0_u64..600).prop_map(move |at| stack_pointer.wrapping_add(at)),
        any::<u64>(),
        Just(0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With arbitrary words on the stack: unwinding ends, with no more calls than there is room
    /// for.
    #[test]
    fn noise_on_the_stack_makes_no_harm(
        stack_pointer in prop_oneof![Just(0x7ffc_0000_1000_u64), any::<u64>()],
        seed in any::<u64>(),
        words in prop::collection::vec(word(0x7ffc_0000_1000), 0..200),
        frame_pointer in word(0x7ffc_0000_1000),
        cut in 0_usize..9,
        which in 0_usize..7,
        role in prop::sample::select(vec![Role::Point, Role::Entry, Role::Return, Role::TailCall]),
    ) {
        let (own, _, size) = own_text();
        let path = damaged().get(which).unwrap_or(&own);
        let mut stacks = stacks_of(&[own_mapping(path)]);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        for n in 0..8 {
            let stack = CallStack { stack_pointer, frame_pointer, bytes: &bytes };
            let address = BASE + seed.rotate_left(n * 8) % size;
            let found = stacks.backtrace(&hit(address, role), &stack);
            // A call takes at least eight bytes, and an alternate stack counts once more.
            prop_assert!(found.calls.len() <= 2 * (words.len() + 2), "{}", found.calls.len());
            for call in &found.calls {
                prop_assert!(!stacks.call(*call).is_empty());
            }
            prop_assert_eq!(stacks.call(found.calls[0]).last().unwrap().address, address);
        }
        prop_assert!(stacks.remarks().len() <= 1, "{:?}", stacks.remarks());
    }

    /// With arbitrary mappings in the description.
    #[test]
    fn mappings_may_say_anything(
        mappings in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), 0_usize..8), 0..6),
        address in any::<u64>(),
    ) {
        let files = ["/", "", "/dev/null", "/nowhere", "/proc/self/mem", "\0", "relative"];
        let own = own_text().0;
        let info = |(start, size, offset, file): &(u64, u64, u64, usize)| MappingInfo {
            start: *start,
            end: start.wrapping_add(size >> 8),
            offset: offset >> (offset % 64),
            path: files.get(*file).map_or(own.to_str().unwrap(), |path| path).to_string(),
            build_id: own_mapping(&own).build_id.filter(|_| *file == 7),
        };
        let mappings: Vec<MappingInfo> = mappings.iter().map(info).collect();
        let mut stacks = stacks_of(&mappings);
        let addresses = mappings.iter().flat_map(|m| [m.start, m.end.wrapping_sub(1)]);
        for address in addresses.chain([address]) {
            let bytes: Vec<u8> = (0..40).flat_map(|n: u64| (address ^ n).to_le_bytes()).collect();
            let stack = CallStack { stack_pointer: 4096, frame_pointer: 4104, bytes: &bytes };
            let found = stacks.backtrace(&hit(address, Role::Point), &stack);
            prop_assert!(!found.calls.is_empty());
        }
    }

    /// With bytes of a stream changed anywhere: every report still ends.
    #[test]
    fn a_damaged_stream_is_still_reported(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        write(&directory, &records(), &[own_mapping(&own_text().0)]);
        let path = directory.join("cpu0");
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

#[test]
fn unknown_code_and_short_copies_are_told_apart() {
    let mut stacks = stacks_of(&[]);
    let bytes = 0x1234_5678_u64.to_le_bytes();
    let stack = CallStack {
        stack_pointer: 0x7000,
        frame_pointer: 0,
        bytes: &bytes,
    };
    let found = stacks.backtrace(&hit(0x9000, Role::Return), &stack);
    assert_eq!(found.end, End::Unknown);
    let addresses: Vec<u64> = found
        .calls
        .iter()
        .map(|c| stacks.call(*c)[0].address)
        .collect();
    assert_eq!(addresses, [0x9000, 0x1234_5678]);
    let empty = CallStack {
        bytes: &[],
        ..stack
    };
    let found = stacks.backtrace(&hit(0x9000, Role::Entry), &empty);
    assert_eq!((found.calls.len(), found.end), (1, End::Truncated));
}

#[test]
fn stacks_of_another_architecture_are_not_unwound() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write(&directory, &records(), &[]);
    let path = directory.join("info/capriole.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let own = format!("\"arch\": \"{}\"", capriole_trace::ARCH);
    assert!(text.contains(&own), "{text}");
    std::fs::write(&path, text.replace(&own, "\"arch\": \"riscv64\"")).unwrap();
    let trace = Trace::open(&directory).unwrap();
    assert_eq!(trace.document().arch, "riscv64");
    let stacks = CallStacks::of(trace.document());
    let [remark] = stacks.remarks() else {
        panic!("one remark")
    };
    assert!(remark.contains("riscv64"), "{remark}");
    // A trace that says nothing is from x86-64.
    std::fs::write(&path, text.replace(&format!("  {own},\n"), "")).unwrap();
    assert_eq!(Trace::open(&directory).unwrap().document().arch, "x86_64");
}

/// The rules by which a program has found callers are those of the first file that was mapped there.
#[test]
fn a_chain_through_a_file_that_was_replaced_ends_there() {
    let mapping = |path: &str| MappingInfo {
        start: 0x1000_0000,
        end: 0x1000_1000,
        offset: 0,
        path: path.to_owned(),
        build_id: None,
    };
    let chain = |mappings: &[MappingInfo]| {
        let mut stacks = CallStacks::in_mappings(&mappings[..1], 0);
        stacks.add_mappings(&mappings[1..], 0);
        let found = stacks.chain(&[0x2000_0000, 0x1000_0010], End::Outermost);
        (found.calls.len(), found.end)
    };
    let (one, other) = (mapping("/no/a.so"), mapping("/no/b.so"));
    assert_eq!(chain(std::slice::from_ref(&one)), (2, End::Outermost));
    assert_eq!(chain(&[one.clone(), one.clone()]), (2, End::Outermost));
    assert_eq!(chain(&[one, other]), (1, End::Unknown));
}
