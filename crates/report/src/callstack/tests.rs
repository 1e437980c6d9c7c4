use super::*;
use capriole_trace::FunctionName;

const LIBRARY: u64 = 0x1000_0000;

/// Names of code at these addresses, each in a function that begins 16 bytes before.
fn names(all: &[(u64, &str, bool, bool)]) -> Names {
    let mut names = Names::default();
    for (at, name, returned_to, signal) in all {
        names.add(CodeName {
            at: *at,
            object: Some(Arc::from("/lib/a.so")),
            functions: vec![FunctionName {
                name: Some(Arc::from(*name)),
                offset: Some(16),
                ..FunctionName::default()
            }],
            returned_to: *returned_to,
            before_start: at & 0xff == 0x4f,
            signal: *signal,
            replaced: false,
        });
    }
    names
}

fn chain(names: Names, addresses: &[u64]) -> (Vec<String>, End) {
    let mut stacks = CallStacks::with(names);
    let found = stacks.chain(addresses.iter().copied(), End::Outermost);
    let calls = found.calls.iter().flat_map(|call| stacks.call(*call));
    let shown = calls.map(|frame| match frame.offset {
        Some(offset) => format!("{}+{offset:#x}", frame.name()),
        None => frame.name(),
    });
    (shown.collect(), found.end)
}

/// The site has its own address, a return address has that of the call before it, and what a signal has
/// interrupted its own again.
#[test]
fn addresses_are_looked_up_where_their_instruction_is() {
    let known = names(&[
        (LIBRARY, "site", false, false),
        (LIBRARY + 0x1f, "caller", true, false),
        (LIBRARY + 0x2f, "restore", false, true),
        (LIBRARY + 0x30, "interrupted", false, false),
        (LIBRARY + 0x3f, "main", true, false),
    ]);
    let addresses = [0, 0x20, 0x30, 0x30, 0x40].map(|at| LIBRARY + at);
    let expected = [
        "site+0x10",
        "caller+0x11",
        "restore+0x11",
        "interrupted+0x10",
        "main+0x11",
    ];
    let expected: Vec<String> = expected.map(str::to_owned).to_vec();
    assert_eq!(chain(known, &addresses), (expected, End::Outermost));
}

/// An address that no call returns to ends the chain, except on top of the stack at a site, and in code that
/// is in no file.
#[test]
fn a_chain_ends_before_what_cannot_be_a_return_address() {
    let known = [
        (LIBRARY, "site", false, false),
        (LIBRARY + 0x1f, "odd", false, false),
        (LIBRARY + 0x2f, "caller", true, false),
    ];
    let follow = |offsets: &[u64]| {
        let addresses: Vec<u64> = offsets.iter().map(|at| LIBRARY + at).collect();
        let (found, end) = chain(names(&known), &addresses);
        (found.len(), end)
    };
    assert_eq!(follow(&[0, 0x30, 0x20, 0x30]), (2, End::Unknown));
    assert_eq!(follow(&[0, 0x20, 0x30]), (3, End::Outermost));
    assert_eq!(follow(&[0, 0x30, 0x999, 0x30]), (4, End::Outermost));
    assert_eq!(follow(&[]), (0, End::Outermost));
}

/// The outermost address on a stack of `makecontext` is the start of a function, at which nothing is called.
#[test]
fn a_function_may_begin_where_a_coroutine_returns_to() {
    let known = [
        (LIBRARY, "site", false, false),
        (LIBRARY + 0x1f, "caller", true, false),
        (LIBRARY + 0x4f, "padding", false, false),
        (LIBRARY + 0x50, "start", false, false),
    ];
    let follow = |offsets: &[u64]| {
        let addresses: Vec<u64> = offsets.iter().map(|at| LIBRARY + at).collect();
        chain(names(&known), &addresses)
    };
    let (found, end) = follow(&[0, 0x20, 0x50]);
    assert_eq!((found[2].as_str(), end), ("start+0x10", End::Outermost));
    // Elsewhere it is a pointer to a function.
    let (found, end) = follow(&[0, 0x20, 0x50, 0x20]);
    assert_eq!((found.len(), end), (2, End::Unknown));
}

/// The rules by which a program has found callers may be those of the file that was mapped before.
#[test]
fn a_chain_through_code_that_was_replaced_ends_there() {
    let mut known = names(&[
        (LIBRARY, "site", false, false),
        (LIBRARY + 0x1f, "old", true, false),
    ]);
    let other = names(&[(LIBRARY + 0x1f, "new", true, false)]);
    known.add(other.get(LIBRARY + 0x1f).expect("a name").clone());
    let (found, end) = chain(known, &[LIBRARY, LIBRARY + 0x20]);
    assert_eq!((found.len(), end), (1, End::Unknown));
}

/// A name that is added later counts from then on, also for a call that was found before.
#[test]
fn a_call_has_no_name_of_two_compiled_functions() {
    let compiled = |function: &str| {
        let names = names(&[(LIBRARY, function, true, false)]);
        CodeName {
            object: None,
            ..names.get(LIBRARY).expect("a name").clone()
        }
    };
    let mut stacks = CallStacks::with(Names::default());
    let mut shown = |name: CodeName| {
        stacks.add_name(name);
        let found = stacks.chain([LIBRARY], End::Outermost);
        stacks.call(found.calls[0])[0].name()
    };
    assert_eq!(shown(compiled("one")), "one");
    assert_eq!(shown(compiled("one")), "one");
    assert_eq!(shown(compiled("other")), "[unknown]");
}
