//! Fetch arguments and types: accepted input and its meaning, and rejected input.

use capriole_event::{
    At, Base, Bits, Deref, Element, EventSpec, Fetch, FetchArg, FieldType, Gpr, Shown,
};

/// The arguments of an event at a return, where all kinds of values are available.
fn arguments(text: &str) -> Vec<FetchArg> {
    let event = EventSpec::parse(&format!("r :f {text}")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(event.at, At::Return);
    event.arguments
}

fn one(text: &str) -> FetchArg {
    let mut found = arguments(text);
    assert_eq!(found.len(), 1, "{text}");
    found.remove(0)
}

fn fetch(base: Base, derefs: &[i64]) -> Fetch {
    let deref = |offset: &i64| Deref {
        offset: *offset,
        user: false,
    };
    let derefs = derefs.iter().map(deref).collect();
    Fetch { base, derefs }
}

#[test]
fn registers_by_both_names() {
    for (index, register) in Gpr::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(register.encoding()), index);
        for name in [register.name(), register.kernel_name()] {
            let base = one(&format!("%{name}")).fetch.base;
            assert_eq!(base, Base::Register(register), "{name}");
        }
    }
    let names: Vec<_> = Gpr::ALL
        .iter()
        .map(|r| (r.name(), r.kernel_name()))
        .collect();
    assert_eq!(
        names[..9],
        [
            ("rax", "ax"),
            ("rcx", "cx"),
            ("rdx", "dx"),
            ("rbx", "bx"),
            ("rsp", "sp"),
            ("rbp", "bp"),
            ("rsi", "si"),
            ("rdi", "di"),
            ("r8", "r8")
        ]
    );
    let carried: Vec<_> = (1..=6)
        .filter_map(Gpr::of_argument)
        .map(Gpr::name)
        .collect();
    assert_eq!(carried, ["rdi", "rsi", "rdx", "rcx", "r8", "r9"]);
    assert_eq!((Gpr::of_argument(0), Gpr::of_argument(7)), (None, None));
}

#[test]
fn bases() {
    let text = |text: &str| Base::Text(text.to_string());
    let variable = |path: &str| Base::Variable(path.to_string());
    for (written, base) in [
        ("$arg*", Base::AllArguments),
        ("$retval", Base::Retval),
        ("$stack", Base::StackPointer),
        ("$stack0", Base::StackWord(0)),
        ("$stack010", Base::StackWord(10)),
        ("$stack65535", Base::StackWord(65535)),
        ("$comm", Base::Comm),
        ("$COMM", Base::Comm),
        ("@0x1f", Base::Address(31)),
        ("@010", Base::Address(8)),
        ("@+0x10", Base::FileOffset(16)),
        ("@+-4", Base::FileOffset(4_u64.wrapping_neg())),
        ("@++4", Base::FileOffset(4)),
        ("\\1", Base::Immediate(1)),
        ("\\+-1", Base::Immediate(u64::MAX)),
        ("\\+1", Base::Immediate(1)),
        ("\\-1", Base::Immediate(u64::MAX)),
        ("\\0xffffffffffffffff", Base::Immediate(u64::MAX)),
        ("\\-0x8000000000000000", Base::Immediate(1 << 63)),
        ("\\\"abc\"", text("abc")),
        ("\\\"\"", text("")),
        ("\\\"a b: c=d\"", text("a b: c=d")),
        (r#"\"a\"b\\c\nd""#, text(r#"a"b\c\nd"#)),
        ("size", variable("size")),
        ("req->len", variable("req->len")),
        ("list[2].name", variable("list[2].name")),
        ("x.0", variable("x.0")),
        ("größe", variable("größe")),
    ] {
        assert_eq!(one(written).fetch, fetch(base, &[]), "{written}");
    }
}

#[test]
fn dereferences_nest_with_the_innermost_first() {
    let rdi = || Base::Register(Gpr::Rdi);
    for (written, expected) in [
        ("+0(%di)", fetch(rdi(), &[0])),
        ("-8(%rdi)", fetch(rdi(), &[-8])),
        ("+-8(%di)", fetch(rdi(), &[-8])),
        ("++8(%di)", fetch(rdi(), &[8])),
        ("+0x10(-0x8(+8(%di)))", fetch(rdi(), &[8, -8, 16])),
        ("+010(%di)", fetch(rdi(), &[8])),
        ("+0x7fffffffffffffff(%di)", fetch(rdi(), &[i64::MAX])),
        ("-0x8000000000000000(%di)", fetch(rdi(), &[i64::MIN])),
        (
            "+8(req->next)",
            fetch(Base::Variable("req->next".to_string()), &[8]),
        ),
        ("+0(\\16)", fetch(Base::Immediate(16), &[0])),
        ("+0(@+16)", fetch(Base::FileOffset(16), &[0])),
    ] {
        assert_eq!(one(written).fetch, expected, "{written}");
    }
    let user = one("+u8(-u4(+0(%di)))").fetch.derefs;
    assert_eq!(
        user.iter().map(|d| d.user).collect::<Vec<_>>(),
        [false, true, true]
    );
    let nested = |depth: usize| format!("{}%di{}", "+0(".repeat(depth), ")".repeat(depth));
    assert_eq!(one(&nested(14)).fetch.derefs.len(), Fetch::MAX_DEREFS);
    assert!(EventSpec::parse(&format!(":f {}", nested(15))).is_err());
    assert!(EventSpec::parse(&format!(":f {}", nested(100_000))).is_err());
}

#[test]
fn names_given_and_automatic() {
    let names =
        |text: &str| -> Vec<String> { arguments(text).into_iter().map(|a| a.name).collect() };
    assert_eq!(names("%di x=%si %dx"), ["arg1", "x", "arg3"]);
    assert_eq!(names("$arg3 $arg1"), ["arg3", "arg1"]);
    assert_eq!(names("+0($arg3) $retval $comm"), ["arg1", "ret", "arg3"]);
    // A name is given once: the second result has one by its position.
    assert_eq!(names("$retval:u8 $retval:s8"), ["ret", "arg2"]);
    assert_eq!(
        names("size req->len list[2].name x.0 +0(p)"),
        ["size", "req_len", "list_2_name", "x_0", "arg5"]
    );
    assert_eq!(names("größe ß if=%di"), ["gr_e", "arg2", "if"]);
    assert_eq!(names("$arg* x=%di"), ["arg*", "x"]);
    assert_eq!(names(&"a".repeat(40)), ["a".repeat(32)]);
    assert_eq!(names(&format!("{}=%di", "a".repeat(32))), ["a".repeat(32)]);
    let argument = one("fd=%di:s32");
    assert!(argument.named);
    assert_eq!(argument.to_string(), "fd=%di:s32");
    let many: Vec<String> = (0..128).map(|n| format!("a{n}=%di")).collect();
    assert_eq!(arguments(&many.join(" ")).len(), 128);
}

#[test]
fn a_text_in_a_register_is_behind_it() {
    for (short, long) in [
        ("%di:string", "+0(%di):string"),
        ("path=$arg1:ustring", "path=+0($arg1):ustring"),
        ("$arg2:x8[16]", "arg2=+0($arg2):x8[16]"),
        ("$stack1:string", "+0($stack1):string"),
    ] {
        let (one, other) = (one(short), one(long));
        assert_eq!(
            (&one.fetch, one.field_type),
            (&other.fetch, other.field_type),
            "{short}"
        );
    }
    assert_eq!(one("$arg2:string").name, "arg2");
    let spec =
        EventSpec::parse("r libc:read $retval:string $entry:arg2:string").expect("it is right");
    let fetched: Vec<String> = spec.arguments.iter().map(|a| a.fetch.to_string()).collect();
    assert_eq!(fetched, ["+0($retval)", "+0($entry:arg2)"]);
}

#[test]
fn types() {
    let number = |shown, bytes| Element::Number {
        shown,
        bytes,
        bits: None,
    };
    let shown_as = |shown, width, offset, bytes| Element::Number {
        shown,
        bytes,
        bits: Some(Bits { width, offset }),
    };
    let field = |width, offset, bytes| shown_as(Shown::Unsigned, width, offset, bytes);
    let string = |user| Element::String { user };
    for (written, element, count) in [
        ("u8", number(Shown::Unsigned, 1), None),
        ("u64", number(Shown::Unsigned, 8), None),
        ("s16", number(Shown::Signed, 2), None),
        ("x32", number(Shown::Hexadecimal, 4), None),
        ("char", number(Shown::Character, 1), None),
        ("symbol", number(Shown::Symbol, 8), None),
        ("be16", number(Shown::Network, 2), None),
        ("be32", number(Shown::Network, 4), None),
        ("be64", number(Shown::Network, 8), None),
        ("ipv4", number(Shown::Ipv4, 4), None),
        ("fd", number(Shown::Descriptor, 4), None),
        ("ipv6", Element::Ipv6, None),
        ("string", string(false), None),
        ("ustring", string(true), None),
        ("b3@5/32", field(3, 5, 4), None),
        ("b8@0/8", field(8, 0, 1), None),
        ("b64@0/64", field(64, 0, 8), None),
        ("b1@63/64", field(1, 63, 8), None),
        ("s3@5/32", shown_as(Shown::Signed, 3, 5, 4), None),
        ("x8@8/64", shown_as(Shown::Hexadecimal, 8, 8, 8), None),
        ("c8@56/64", shown_as(Shown::Character, 8, 56, 8), None),
        ("f32@32/64", shown_as(Shown::Float, 32, 32, 8), None),
        ("u16[4]", number(Shown::Unsigned, 2), Some(4)),
        ("char[64]", number(Shown::Character, 1), Some(64)),
        ("string[2]", string(false), Some(2)),
        ("b3@5/32[1]", field(3, 5, 4), Some(1)),
    ] {
        let expected = FieldType { element, count };
        assert_eq!(written.parse(), Ok(expected), "{written}");
        assert_eq!(expected.to_string(), written);
        assert_eq!(
            one(&format!("+0(%di):{written}")).field_type,
            Some(expected)
        );
    }
    let odd: FieldType = "b0x3@0x5/0x20[0x4]".parse().unwrap();
    assert_eq!(odd.to_string(), "b3@5/32[4]");
    assert_eq!(one("$comm").known_type(), Some(FieldType::STRING));
    assert_eq!(one("\\\"a\"").known_type(), Some(FieldType::STRING));
    assert_eq!(one("%di").known_type(), Some(FieldType::X64));
    assert_eq!(one("+0(p)").known_type(), Some(FieldType::X64));
    assert_eq!(one("size").known_type(), None);
    for text in [
        "@16:string",
        "@+16:u8[4]",
        "req->name:string",
        "list:u32[4]",
        "$comm:string",
    ] {
        assert!(one(text).field_type.is_some(), "{text}");
    }
}

#[test]
fn display_is_what_the_kernel_reads() {
    for text in [
        "%di",
        "+8(+0(%di))",
        "-u8(%r15)",
        "$arg7",
        "$arg*",
        "$retval",
        "$stack",
        "$stack3",
        "$comm",
        "@0x10",
        "@+0x10",
        "\\18446744073709551615",
        r#"\"a\"b\\""#,
        "req->list[2].name",
    ] {
        assert_eq!(text.parse::<Fetch>().unwrap().to_string(), text);
    }
}

/// All messages, in turn, as a user sees them.
#[test]
fn errors() {
    let texts = [
        "%rdx %",
        "%zz",
        "%DI",
        "%edi",
        "%al",
        "%r8d",
        "%sil",
        "%ip",
        "%flags",
        "%xmm16",
        "%di,%si",
        "%di)",
        "@main",
        "@-4",
        "@0zz",
        "@+zz",
        "@+--4",
        "$stackx",
        "$stack-1",
        "$stack65536",
        "$argx",
        "$arg0",
        "$arg256",
        "$foo",
        "$",
        "$retval",
        "$retvalx",
        "+0($retval)",
        "$comm:u8",
        "$comm:ustring",
        "$comm:string[2]",
        "+0($comm)",
        "$arg*:u8",
        "x=$arg*",
        "+0($arg*)",
        "$arg* $arg*",
        "+0(%di",
        "+0(%di))",
        "+0(+8(%di)",
        "+0(%di)x",
        "+0)",
        "+8",
        "+0()",
        "+(%di)",
        "+zz(%di)",
        "+++8(%di)",
        "-+8(%di)",
        "+0x8000000000000000(%di)",
        "+0(%di:u8)",
        "+0( %di )",
        "0(%di)",
        "+0(\\\"abc\")",
        "\\",
        "\\zz",
        "\\--1",
        "\\18446744073709551616",
        "\\-9223372036854775809",
        "\\\"abc",
        "\\\"a b",
        "\\\"abc\"x",
        "\\\"abc\":u8",
        "\"abc\"",
        "&req",
        "*req",
        "req->",
        "req.",
        "req[",
        "req[x]",
        "req-len",
        "%di:",
        "%di:u33",
        "%di:int",
        "%di:symstr",
        "%di:u8:u8",
        "\\1:string",
        "%di:b0@1/8",
        "%di:b8@1/8",
        "%di:b1@0/24",
        "%di:b1@0",
        "%di:bx@0/8",
        "+0(%di):u8[",
        "+0(%di):u8[4",
        "+0(%di):u8[]",
        "+0(%di):u8[0]",
        "+0(%di):u8[65]",
        "+0(%di):u8[4]x",
        "+0(%di):u8[4][4]",
        "a=%di x=",
        "a=%di =%di",
        "x= %di",
        "1x=%di",
        "a-b=%di",
        "common_pid=%di",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=%di",
        "x=%di x=%si",
        "%di arg1=%si",
        "$arg2 %si",
        "x=y=%di",
    ];
    let refused = |text: &&str| match EventSpec::parse(&format!(":f {text}")) {
        Ok(spec) => panic!("{text} was taken for {spec:?}"),
        Err(error) => error.to_string(),
    };
    let mut all: Vec<String> = texts.iter().map(refused).collect();
    let many: Vec<String> = (0..129).map(|n| format!("a{n}=%di")).collect();
    let error = EventSpec::parse(&format!(":f {}", many.join(" "))).unwrap_err();
    assert!(error.text[error.column..].starts_with("a128="));
    all.push(error.message);
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn a_port_is_a_number_of_two_bytes() {
    assert_eq!("port".parse::<FieldType>(), "be16".parse());
    assert_eq!("port".parse::<FieldType>().unwrap().to_string(), "be16");
}

#[test]
fn texts_have_lengths() {
    let of = |argument: &FetchArg| {
        let length = argument.length.as_deref();
        let length = length.map(|length| (length.fetch.to_string(), length.field_type));
        (argument.fetch.to_string(), argument.field_type, length)
    };
    let text = Some(FieldType::STRING);
    let u32 = Some(FieldType::U32);
    for (written, value, value_of_length, type_of_length) in [
        ("%si:string[%dx]", "+0(%si)", "%dx", None),
        ("%si:string[%dx:u32]", "+0(%si)", "%dx", u32),
        (
            "text=+0(%si):string[+8(%di):u32]",
            "+0(%si)",
            "+8(%di)",
            u32,
        ),
        ("req->text:string[req->len]", "req->text", "req->len", None),
        (
            "list[2].text:string[list[2].len:u32]",
            "list[2].text",
            "list[2].len",
            u32,
        ),
        ("a::b:string[a::c:u32]", "a::b", "a::c", u32),
        (
            "$arg2:string[$arg3:u32]",
            "+0($entry:arg2)",
            "$entry:arg3",
            u32,
        ),
        (
            "$entry:text:string[$entry:len:u32]",
            "+0($entry:text)",
            "$entry:len",
            u32,
        ),
        ("+0(%si):string[$entry:len]", "+0(%si)", "$entry:len", None),
        ("+0(%si):string[$retval]", "+0(%si)", "$retval", None),
        ("+0(%si):string[\\16]", "+0(%si)", "\\16", None),
    ] {
        let found = one(written);
        let length = Some((value_of_length.to_owned(), type_of_length));
        assert_eq!(of(&found), (value.to_owned(), text, length), "{written}");
        let again = one(&found.to_string());
        assert_eq!(of(&again), of(&found), "{found}");
    }
    // Another field, by its name; and a number is the size of an array.
    let all = arguments("n=%dx:u32 text=%si:string[n] two=%si:string[2]");
    assert_eq!(of(&all[1]).2, Some(("%dx".to_owned(), u32)));
    assert_eq!(
        (of(&all[2]).2, all[2].field_type.and_then(|t| t.count)),
        (None, Some(2))
    );
}
