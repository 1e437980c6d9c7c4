//! Arguments at a function's entry, fetched at its return.

use capriole_event::{Base, EventSpec, Fetch, FieldType, Value};

fn entry(base: Base) -> Base {
    Base::Entry(Box::new(Value {
        fetch: Fetch {
            base,
            derefs: Vec::new(),
        },
        field_type: None,
    }))
}

#[test]
fn values_at_the_entry() {
    let text = "r libc:read fd=$entry:arg1:s32 $entry:req->len +0($entry:arg2):string \
                n=$retval if fd == 3";
    let spec = EventSpec::parse(text).expect("it is right");
    let fields: Vec<_> = spec
        .arguments
        .iter()
        .map(|field| (field.name.as_str(), field.to_string()))
        .collect();
    assert_eq!(
        fields,
        [
            ("fd", "fd=$entry:arg1:s32".to_owned()),
            ("req_len", "$entry:req->len".to_owned()),
            ("arg3", "+0($entry:arg2):string".to_owned()),
            ("n", "n=$retval".to_owned()),
        ]
    );
    assert_eq!(spec.arguments[0].fetch.base, entry(Base::Argument(1)));
    assert_eq!(
        spec.arguments[0].field_type,
        Some("s32".parse::<FieldType>().expect("a type"))
    );
    let req = Base::Variable("req->len".to_owned());
    assert_eq!(spec.arguments[1].fetch.base, entry(req));
    // Debug information gives the type.
    assert_eq!(spec.arguments[1].known_type(), None);
}

/// As in the kernel's function probes.
#[test]
fn an_argument_at_a_return_is_that_of_the_entry() {
    let of = |text: &str| {
        let spec = EventSpec::parse(text).expect("it is right");
        (
            spec.arguments[0].name.clone(),
            spec.arguments[0].fetch.clone(),
        )
    };
    assert_eq!(of("r libc:read $arg3"), of("r libc:read $entry:arg3"));
    assert_eq!(
        of("libc:read%return +8($arg3)"),
        of("r libc:read +8($entry:arg3)")
    );
    assert_eq!(of("libc:read $arg3").1.base, Base::Argument(3));
    assert_eq!(of("libc:read $arg255").1.base, Base::Argument(255));
}

#[test]
fn keys_and_aggregates() {
    let text = "r libc:read sum(n=$entry:arg3) by fd=$entry:arg1:s32, $entry:count";
    let spec = EventSpec::parse(text).expect("it is right");
    let names: Vec<_> = spec.arguments.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["n", "fd", "count"]);
    assert_eq!(spec.aggregation.keys.len(), 2);
}

#[test]
fn errors() {
    let error = |text: &str| EventSpec::parse(text).expect_err(text).to_string();
    let all = [
        "libc:read $entry:arg1",
        "r libc:read n=$entry",
        "r libc:read $entry:",
        "r libc:read $entry:arg0",
        "r libc:read $entry:$arg1",
        "r libc:read $entry:%di",
        "r libc:read $entry:req->",
        "r libc:read $entry:arg2:u7",
    ]
    .map(error)
    .join("\n\n");
    insta::assert_snapshot!(all, @r#"
    $entry is not available on probe
      libc:read $entry:arg1
                ^
      help: write r and a blank before the event, or the value without $entry:

    invalid $-variable `$entry`: what is meant is missing
      r libc:read n=$entry
                          ^
      help: write $entry:arg1, or $entry:NAME of a parameter

    invalid $-variable `$entry:`: what is meant is missing
      r libc:read $entry:
                         ^
      help: write $entry:arg1, or $entry:NAME of a parameter

    invalid argument number `$entry:arg0`
      r libc:read $entry:arg0
                         ^
      help: arguments are $entry:arg1 to $entry:arg255

    invalid value at the entry `$arg1`
      r libc:read $entry:$arg1
                         ^
      help: write $entry:arg1, without a second $

    invalid value at the entry `%di`
      r libc:read $entry:%di
                         ^
      help: write $entry:arg1, or $entry:NAME of a parameter

    invalid variable: the member's name is missing
      r libc:read $entry:req->
                              ^
      help: write VARIABLE, and behind it ->MEMBER, .MEMBER or [INDEX]

    unknown type `u7`
      r libc:read $entry:arg2:u7
                              ^
      help: the types are u8 to u64, s8 to s64, x8 to x64, f32, f64, be16, be32, be64, port, ipv4, ipv6, fd, char, string, ustring, symbol, bWIDTH@OFFSET/SIZE, and TYPE[COUNT]
    "#);
}
