//! Random texts: an event or an error, and never a panic.

use capriole_event::{
    At, Base, Definition, Deref, EventSpec, Fetch, FieldType, Filter, Gpr, ObjectRef, Place,
    definitions,
};
use proptest::prelude::*;

/// Checks what holds for every text.
fn check(text: &str) -> Result<(), TestCaseError> {
    // A text is a line of a file or an event; both must survive it.
    let _ = Definition::parse(text);
    match EventSpec::parse(text) {
        Ok(spec) => {
            prop_assert_eq!(&spec.text, text);
            prop_assert!(spec.arguments.len() <= 128);
            for (index, argument) in spec.arguments.iter().enumerate() {
                let same = |other: &capriole_event::FetchArg| other.name == argument.name;
                prop_assert!(!spec.arguments[..index].iter().any(same));
                prop_assert!(text.is_char_boundary(argument.at) && argument.at < text.len());
            }
            spec.is_glob();
            again(&spec)
        }
        Err(error) => {
            prop_assert!(text.is_char_boundary(error.column), "{:?}", error);
            prop_assert!(!error.message.is_empty());
            let shown = error.to_string();
            let caret = shown.lines().nth(2).unwrap();
            prop_assert_eq!(caret.trim(), "^");
            let before = text[..error.column].chars().count();
            prop_assert_eq!(caret.chars().count(), before + 3);
            Ok(())
        }
    }
}

/// Checks that an event, written again in one ordinary way, means the same.
fn again(spec: &EventSpec) -> Result<(), TestCaseError> {
    let name = match (&spec.group, &spec.name) {
        (None, None) => String::new(),
        (group, name) => {
            let group = group.as_ref().map(|group| format!("{group}/"));
            let (group, name) = (group.unwrap_or_default(), name.clone());
            format!(":{group}{}", name.unwrap_or_default())
        }
    };
    let object = match &spec.object {
        ObjectRef::Main => "",
        ObjectRef::Path(name) | ObjectRef::Name(name) => name,
    };
    let place = match &spec.place {
        Place::Symbol { pattern, offset } => {
            prop_assert!(!pattern.is_empty());
            prop_assert!(pattern.trim() == pattern || pattern.contains('\\'));
            // A symbol is always a name of itself.
            prop_assert!(spec.matches(pattern));
            match offset {
                0 => pattern.clone(),
                offset => format!("{pattern}+{offset:#x}"),
            }
        }
        Place::FileOffset(offset) => format!("{offset:#x}"),
        Place::Line { file, line } => format!("{file}:{line}"),
        Place::Static { .. } => return Ok(()),
    };
    let kind = if spec.at == At::Return { 'r' } else { 'p' };
    let mut text = format!("{kind}{name} {object}:{place}");
    if let Some(counter) = spec.reference_counter {
        text += &format!("({counter})");
    }
    for argument in &spec.arguments {
        text += &format!(" {argument}");
    }
    if let Some(filter) = &spec.filter {
        text += &format!(" if {filter}");
    }
    let second = EventSpec::parse(&text);
    prop_assert!(
        second.is_ok(),
        "{} became {}: {}",
        spec.text,
        text,
        second.unwrap_err()
    );
    let second = second.unwrap();
    prop_assert_eq!((&second.object, &second.place), (&spec.object, &spec.place));
    prop_assert_eq!(second.at, spec.at);
    prop_assert_eq!((&second.group, &second.name), (&spec.group, &spec.name));
    prop_assert_eq!(second.reference_counter, spec.reference_counter);
    let arguments = |spec: &EventSpec| -> Vec<_> {
        let arguments = spec.arguments.iter().cloned();
        arguments
            .map(|a| (a.name, a.named, a.fetch, a.field_type))
            .collect()
    };
    prop_assert_eq!(arguments(&second), arguments(spec));
    let filter = |spec: &EventSpec| spec.filter.as_ref().map(Filter::to_string);
    prop_assert_eq!(filter(&second), filter(spec));
    Ok(())
}

/// Texts out of pieces that mean something.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        ":",
        "::",
        " ",
        " ",
        "  ",
        "$arg1",
        "$arg2",
        "$arg9",
        "$arg*",
        "$retval",
        "$stack",
        "$stack3",
        "$comm",
        "$",
        "=",
        "size=",
        "a",
        "malloc",
        "lib",
        "/",
        "+",
        "-",
        "+8",
        "+8(",
        "-u0x10(",
        "+0x1f",
        "0x",
        "0x10",
        "8",
        "010",
        "(",
        ")",
        "))",
        "<",
        ">",
        "->",
        "[",
        "]",
        "{",
        "}",
        "*",
        "?",
        "\\",
        "\\1",
        "\\-1",
        "\\\"",
        "\"",
        "\"a b\"",
        "'",
        "'a'",
        "@0x10",
        "@+8",
        "operator",
        "operator<",
        "operator()",
        "operator new",
        "const",
        "&",
        "&&",
        "||",
        "!",
        "==",
        "!=",
        "<=",
        "~",
        "!~",
        ",",
        ".",
        "ß",
        "[clone .cold]",
        "[abi:cxx11]",
        "\t",
        "%di",
        "%rdi",
        "%r8d",
        "%",
        "%return",
        "(0x10)",
        ":u8",
        ":s32",
        ":string",
        ":b3@5/32",
        ":u8[4]",
        "[2]",
        ":symbol",
        "p:",
        "r:",
        "p ",
        "r ",
        "g/e ",
        "uprobe:",
        "uretprobe:",
        "usdt:",
        "file.c:12",
        "req->len",
        "list[2].name",
        "if",
        " if ",
        "cpu",
        "comm",
        "tid",
        "-:",
        "#",
        "\n",
        "\u{0}",
        "void",
        "int",
        "\u{a0}",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

/// Definitions that are right.
const VALID: [&str; 9] = [
    "p:net/req /usr/bin/app:0x830 fd=%di:s32 path=+0(%si):string if fd >= 3 && comm ~ \"ngi*\"",
    "r:net/ret /usr/bin/app:0x830(0x10)%return ret=$retval:x32 $comm",
    ":ns::Foo::bar(int, char const*) const a=+0x10(-u8(+8(%rdi))):u16[4] \\\"a \\\"b\" @+0x10:b3@5/32",
    "libc:mall*%return $retval if !($retval == 0) || cpu & 1",
    "uprobe:/bin/bash:readline+8 size req->list[2].name:string if size < -010",
    "usdt:/bin/app:net:req* $arg1 $arg*",
    "/usr/bin/app:src/file.c:120 $stack $stack3 \\-1:s8",
    "-:net/req",
    "void std::sort<int*>(int*, int*):f # comment",
];

/// A right definition with something taken out, put in or doubled.
fn mutated() -> impl Strategy<Value = String> {
    let edit = (
        any::<prop::sample::Index>(),
        0..4_usize,
        "[ -~]|[\\PC]",
        0..3_u8,
    );
    let edits = prop::collection::vec(edit, 1..5);
    (prop::sample::select(VALID.to_vec()), edits).prop_map(|(text, edits)| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, length, new, kind) in edits {
            let at = at.index(chars.len() + 1);
            let end = (at + length).min(chars.len());
            match kind {
                0 => drop(chars.splice(at..end, [])),
                1 => drop(chars.splice(at..end, new.chars())),
                _ => {
                    let copy: Vec<char> = chars[at..end].to_vec();
                    chars.splice(at..at, copy);
                }
            }
        }
        chars.into_iter().collect()
    })
}

fn fetches() -> impl Strategy<Value = Fetch> {
    let base = prop_oneof![
        prop::sample::select(Gpr::ALL.to_vec()).prop_map(Base::Register),
        (1..=255_u8).prop_map(Base::Argument),
        Just(Base::Retval),
        Just(Base::StackPointer),
        any::<u16>().prop_map(Base::StackWord),
        any::<u64>().prop_map(Base::Immediate),
        any::<u64>().prop_map(Base::Address),
        any::<u64>().prop_map(Base::FileOffset),
        "[a-zA-Z_][a-z0-9_]{0,8}(->[a-z_]{1,4}|\\.[a-z_]{1,4}|\\[[1-9]{1,2}\\]){0,3}"
            .prop_map(Base::Variable),
    ];
    let deref = (any::<i64>(), any::<bool>()).prop_map(|(offset, user)| Deref { offset, user });
    let number = (base, prop::collection::vec(deref, 0..=Fetch::MAX_DEREFS))
        .prop_map(|(base, derefs)| Fetch { base, derefs });
    let text = prop_oneof![
        Just(Base::Comm),
        Just(Base::AllArguments),
        any::<String>().prop_map(Base::Text),
    ]
    .prop_map(|base| Fetch {
        base,
        derefs: Vec::new(),
    });
    prop_oneof![4 => number, 1 => text]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn text_of_pieces(text in pieces()) {
        check(&text)?;
    }

    #[test]
    fn text_of_pieces_behind_a_place(text in pieces()) {
        check(&format!(":f{text}"))?;
        check(&format!(":f {text}"))?;
        check(&format!("lib:{text} $arg1"))?;
        check(&format!("p:g/e /bin/ls:0x1000 {text}"))?;
        check(&format!(":f x=%di s=+0(%si):string v $comm if {text}"))?;
    }

    #[test]
    fn mutated_definitions(text in mutated()) {
        check(&text)?;
    }

    #[test]
    fn files(lines in prop::collection::vec(prop_oneof![mutated(), pieces()], 0..8)) {
        let text = lines.join("\n");
        let count = text.lines().count();
        match definitions(&text) {
            Ok(events) => for (line, event) in events {
                prop_assert!((1..=count).contains(&line));
                prop_assert!(text.lines().nth(line - 1).unwrap().starts_with(&event.text));
            },
            Err(errors) => {
                prop_assert!(!errors.0.is_empty());
                for error in &errors.0 {
                    let line = text.lines().nth(error.line - 1).unwrap();
                    prop_assert!(line.starts_with(&error.error.text));
                    prop_assert!(error.error.text.is_char_boundary(error.error.column));
                }
                prop_assert!(errors.0.is_sorted_by(|a, b| a.line < b.line));
            }
        }
    }

    #[test]
    fn any_type(text in "\\PC{0,12}", odd in "[usxbc0-9@/\\[\\]a-z]{0,10}") {
        for text in [text, odd] {
            match text.parse::<FieldType>() {
                Ok(found) => prop_assert_eq!(found.to_string().parse(), Ok(found)),
                Err(error) => prop_assert!(text.is_char_boundary(error.column)),
            }
        }
    }

    #[test]
    fn types_are_read_as_they_are_written(
        letter in "[usx]", size in prop::sample::select(vec![8_u8, 16, 32, 64]),
        bits in any::<(u8, u8)>(), count in 0..=64_u8, kind in 0..5,
    ) {
        let width = 1 + bits.0 % size;
        let offset = bits.1 % (size - width + 1);
        let element = match kind {
            0 => format!("{letter}{size}"),
            1 => format!("b{width}@{offset}/{size}"),
            2 => "char".to_string(),
            3 => "symbol".to_string(),
            _ => if letter == "u" { "ustring" } else { "string" }.to_string(),
        };
        let text = match count {
            0 => element,
            count => format!("{element}[{count}]"),
        };
        let found: FieldType = text.parse().unwrap();
        prop_assert_eq!(found.to_string(), text);
    }

    #[test]
    fn fetches_are_read_as_they_are_written(fetch in fetches()) {
        let text = fetch.to_string();
        prop_assert_eq!(text.parse::<Fetch>(), Ok(fetch), "{}", text);
    }
}
