//! The field `stack`.

use capriole_event::{Base, EventSpec, FieldType, KeyKind};

fn frames(field: &str) -> u16 {
    let event = EventSpec::parse(&format!("libc:malloc size=$arg1 {field} if size > 3"));
    let event = event.unwrap_or_else(|error| panic!("{error}"));
    let argument = &event.arguments[1];
    assert_eq!((argument.name.as_str(), argument.named), ("stack", false));
    let Base::CallStack(frames) = argument.fetch.base else {
        panic!("{argument:?}");
    };
    assert_eq!(argument.known_type(), Some(FieldType::call_stack(frames)));
    // The type's name in a trace file, and the field as it is written in an event.
    let name = FieldType::call_stack(frames).to_string();
    assert_eq!(name.parse(), Ok(FieldType::call_stack(frames)));
    assert_eq!(
        EventSpec::parse(&format!(":f {argument}"))
            .unwrap()
            .arguments[0]
            .fetch,
        argument.fetch
    );
    frames
}

#[test]
fn the_number_of_functions_may_be_given() {
    assert_eq!(frames("stack"), 64);
    for (field, expected) in [
        ("stack(1)", 1),
        ("stack(64)", 64),
        ("stack(0x7f)", 127),
        ("stack(128)", 128),
    ] {
        assert_eq!(frames(field), expected, "{field}");
    }
}

#[test]
fn it_ends_the_function_that_stands_before_it() {
    for (place, symbol) in [
        ("libc:malloc", "malloc"),
        (":shop::add(long, int)", "shop::add(long, int)"),
    ] {
        let event = EventSpec::parse(&format!("{place} stack(64) if cpu == 1")).unwrap();
        assert_eq!(event.arguments[0].fetch.base, Base::CallStack(64));
        assert!(format!("{:?}", event.place).contains(symbol), "{event:?}");
    }
    let operator = EventSpec::parse(":operator stack()").unwrap();
    assert_eq!(operator.arguments, []);
}

#[test]
fn a_variable_may_be_called_stack() {
    for (field, name) in [
        ("stack=stack", "stack"),
        ("stack:u64", "stack"),
        ("s=stack", "s"),
    ] {
        let event = EventSpec::parse(&format!(":f {field}")).unwrap();
        let argument = &event.arguments[0];
        assert_eq!(argument.fetch.base, Base::Variable("stack".to_string()));
        assert_eq!(argument.name, name);
    }
}

#[test]
fn what_is_wrong_has_a_column() {
    for (event, column, message) in [
        (":f stack(0)", 9, "a call stack cannot have 0 functions"),
        (":f stack(129)", 9, "a call stack cannot have 129 functions"),
        (":f stack(16k)", 9, ""),
        (":f stack(99999999999999999999)", 9, ""),
        (":f stack(-8)", 9, ""),
        (":f stack()", 9, ""),
        (":f stack(64", 11, "the brace of stack is not closed"),
        (":f stack(64):u8", 12, "a call stack has no type"),
        (":f s=stack(64)", 3, "a call stack has no name"),
        (
            ":f stack stack(64)",
            9,
            "the argument name stack is already used",
        ),
        (":f +0(%di):stack", 11, "unknown type `stack`"),
        (":f +0(%di):stack(64)", 11, "unknown type `stack(64)`"),
        (":f stack if stack == 3", 12, "stack is a call stack"),
        (":f by stack(0)", 12, "a call stack cannot have 0 functions"),
        (
            ":f by tid, stack(129)",
            17,
            "a call stack cannot have 129 functions",
        ),
        (":f by stack(8k)", 12, ""),
        (":f by stack(3", 13, "the brace of stack is not closed"),
        (":f by stack(3):u64", 14, "a call stack has no type"),
        (":f by stack, stack(3)", 13, "the key stack(3) stands twice"),
        (":f sum(stack)", 7, "stack is a call stack"),
    ] {
        let error = EventSpec::parse(event).unwrap_err();
        assert!(error.message.contains(message), "{event}: {error}");
        assert_eq!(error.column, column, "{event}: {error}");
    }
}

#[test]
fn a_key_is_the_chain_of_callers_unless_a_value_has_its_name() {
    let keys = |text: &str| EventSpec::parse(text).unwrap().aggregation.keys;
    assert_eq!(keys(":f by stack"), [KeyKind::Stack(64)]);
    assert_eq!(
        keys(":f count() by stack(1) if cpu == 1"),
        [KeyKind::Stack(1)]
    );
    assert_eq!(
        keys(":f by tid stack(0x80)"),
        [KeyKind::Thread, KeyKind::Stack(128)]
    );
    let value = [KeyKind::from("stack")];
    assert_eq!(keys(":f stack=$arg1 by stack"), value);
    assert_eq!(keys(":f by stack=$arg1"), value);
    assert_eq!(keys(":f by stack:u64"), value);
    // The field of records does not change what the key is.
    assert_eq!(keys(":f stack by stack"), [KeyKind::Stack(64)]);
}
