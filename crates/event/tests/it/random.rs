//! Random texts: each gives an event or an error, and never a panic.

use capriole_event::{
    Aggregate, Aggregation, At, Base, Definition, Deref, EventSpec, Fetch, FieldType, Function,
    Gpr, Guard, KeyKind, ObjectRef, Place, Probe, Value, definitions,
};
use proptest::prelude::*;

/// Checks the properties that hold for every text.
fn check(text: &str) -> Result<(), TestCaseError> {
    // A text may be a line of a definitions file or an event; neither parser may panic.
    let _ = Definition::parse(text);
    match EventSpec::parse(text) {
        Ok(spec) => {
            prop_assert_eq!(&spec.text, text);
            prop_assert!(spec.arguments.len() <= 128);
            for (index, argument) in spec.arguments.iter().enumerate() {
                let same = |other: &capriole_event::FetchArg| other.name == argument.name;
                prop_assert!(!spec.arguments[..index].iter().any(same));
            }
            spec.place.is_glob();
            // What the parser makes is a well-formed probe, and so is what it counts.
            prop_assert_eq!(Probe::from(spec.clone()).check(), Ok(()));
            prop_assert_eq!(spec.clone().counted().check(), Ok(()));
            check_aggregation(&spec)?;
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

/// Checks the properties of the aggregates and keys of every event.
fn check_aggregation(spec: &EventSpec) -> Result<(), TestCaseError> {
    let Aggregation { aggregates, keys } = &spec.aggregation;
    prop_assert!(aggregates.len() <= Aggregation::MAX_AGGREGATES);
    prop_assert!(keys.len() <= Aggregation::MAX_KEYS);
    let field = |name: &str| spec.arguments.iter().find(|a| a.name == name);
    for (index, aggregate) in aggregates.iter().enumerate() {
        let same = |other: &Aggregate| other.to_string() == aggregate.to_string();
        prop_assert!(!aggregates[..index].iter().any(same));
        let is_count = aggregate.function == Function::Count;
        prop_assert_eq!(aggregate.field.is_none(), is_count);
        if let Some(name) = &aggregate.field {
            let found = field(name).map(|field| (&field.fetch.base, field.known_type()));
            let (base, known) = found.unwrap();
            prop_assert!(*base != Base::AllArguments);
            prop_assert!(known.is_none_or(|known| known.count.is_none() && !known.is_string()));
        }
    }
    for (index, key) in keys.iter().enumerate() {
        let same = |other: &KeyKind| other.name() == key.name();
        prop_assert!(!keys[..index].iter().any(same));
        if let KeyKind::Field(name) = key {
            let known = field(name).unwrap().known_type();
            prop_assert!(known.is_none_or(|known| known.count.is_none()));
        }
    }
    let column = spec.aggregation_column();
    prop_assert_eq!(column.is_none(), spec.aggregation.is_empty());
    if let Some(aggregate) = aggregates.first() {
        let at = column.unwrap_or_default();
        prop_assert!(spec.text[at..].starts_with(aggregate.function.as_str()));
    }
    Ok(())
}

/// Checks that an event, written again in its canonical spelling, has the same meaning.
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
        ObjectRef::Any | ObjectRef::Main => "",
        // A name with leading blanks, which only `uprobe:` can express.
        ObjectRef::Path(name) if name.trim_start() != name => return Ok(()),
        ObjectRef::Path(name) | ObjectRef::Name(name) => name,
    };
    let place = match &spec.place {
        Place::Symbol { pattern, offset } => {
            prop_assert!(!pattern.is_empty());
            prop_assert!(pattern.trim() == pattern || pattern.contains('\\'));
            // A symbol always matches its own pattern.
            prop_assert!(spec.place.matcher()(pattern));
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
    let mut site = match spec.object {
        ObjectRef::Any => place,
        _ => format!("{object}:{place}"),
    };
    if let Some(counter) = spec.reference_counter {
        site += &format!("({counter})");
    }
    let read = |text: String| {
        let second = EventSpec::parse(&text);
        second.map_err(|error| TestCaseError::fail(format!("{} became {error}", spec.text)))
    };
    let has_place = |second: &EventSpec| -> Result<(), TestCaseError> {
        prop_assert_eq!((&second.object, &second.place), (&spec.object, &spec.place));
        prop_assert_eq!(second.reference_counter, spec.reference_counter);
        Ok(())
    };
    if !spec.aggregation.is_empty() {
        // An aggregate ends a symbol; a variable that is now written first might not. So check the
        // place with another field.
        has_place(&read(format!("{kind}{name} {site} $stack"))?)?;
        site = "/x:16".to_string();
    }
    let mut text = format!("{kind}{name} {site}");
    for argument in &spec.arguments {
        text += &format!(" {argument}");
    }
    // Variables with these names, which exist in no language, are allowed in an aggregate, but not
    // alone.
    let is_word = |text: &str| matches!(text, "by" | "if");
    if spec.arguments.iter().any(|a| is_word(&a.to_string()))
        || spec.aggregation.keys.iter().any(|key| key.name() == "if")
    {
        return Ok(());
    }
    if !spec.aggregation.is_empty() {
        text += &format!(" {}", spec.aggregation);
    }
    if let Some(filter) = &spec.filter {
        text += &format!(" if {filter}");
    }
    let second = read(text)?;
    if spec.aggregation.is_empty() {
        has_place(&second)?;
    }
    prop_assert_eq!(second.at, spec.at);
    prop_assert_eq!((&second.group, &second.name), (&spec.group, &spec.name));
    let arguments = |spec: &EventSpec| -> Vec<_> {
        let arguments = spec.arguments.iter().cloned();
        arguments
            .map(|a| (a.name, a.named, a.fetch, a.field_type))
            .collect()
    };
    prop_assert_eq!(arguments(&second), arguments(spec));
    let aggregation =
        |spec: &EventSpec| (spec.aggregation.to_string(), spec.aggregation.keys.clone());
    prop_assert_eq!(aggregation(&second), aggregation(spec));
    let filter = |spec: &EventSpec| spec.filter.as_ref().map(Guard::to_string);
    prop_assert_eq!(filter(&second), filter(spec));
    Ok(())
}

/// Texts made of meaningful pieces.
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
        "$entry:arg1",
        "$entry:req->len",
        "$entry:",
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
        "count()",
        "sum(",
        "hist(",
        " avg(a) ",
        "max(x=",
        "min",
        "by",
        " by ",
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

/// Valid definitions.
const VALID: [&str; 12] = [
    "p:net/req /usr/bin/app:0x830 fd=%di:s32 path=+0(%si):string if fd >= 3 && comm ~ \"ngi*\"",
    "r:net/ret /usr/bin/app:0x830(0x10)%return ret=$retval:x32 $comm",
    ":ns::Foo::bar(int, char const*) const a=+0x10(-u8(+8(%rdi))):u16[4] \\\"a \\\"b\" @+0x10:b3@5/32",
    "libc:mall*%return $retval if !($retval == 0) || cpu & 1",
    "uprobe:/bin/bash:readline+8 size req->list[2].name:string if size < -010",
    "usdt:/bin/app:net:req* $arg1 $arg*",
    "/usr/bin/app:src/file.c:120 $stack $stack3 \\-1:s8",
    "-:net/req",
    "libc:read sum(n=$arg3:u64) hist(n) count() by fd=$arg1:s32, comm if n > 0",
    "p:a/b :f(int) const avg(+8(+0(%di)):u32) max( req->len ) by \\\"a, b\" cpu,tid",
    "/bin/app:0x10 by by=%di hist=%si, req->name:string if by == 3",
    "void std::sort<int*>(int*, int*):f # comment",
];

/// A valid definition with parts removed, replaced or duplicated.
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

/// A field to be written, and its type.
type Drawn = (Fetch, Option<FieldType>, bool);

/// Different fields, most of which can be summed.
fn drawn_fields() -> impl Strategy<Value = Vec<Drawn>> {
    let field = (fetches(), 0..8_usize, any::<bool>()).prop_map(|(fetch, pick, named)| {
        let of_memory = ["u8", "s32", "x64", "b3@5/32", "string", "u16[4]", "char"];
        let of_others = ["u64", "s8", "x16", "b1@0/8", "symbol", "u32", "char"];
        let types = match (&fetch.base, fetch.is_memory()) {
            (Base::Comm | Base::Text(_) | Base::AllArguments, _) => ["string"; 7],
            (_, true) => of_memory,
            (_, false) => of_others,
        };
        let field_type = types.get(pick).map(|name| name.parse().unwrap());
        // The names of these depend on their position among the fields.
        let numbered = matches!(fetch.base, Base::Register(_));
        (fetch, field_type, named || !numbered)
    });
    prop::collection::vec(field, 1..6).prop_map(|mut fields| {
        fields.retain(|(fetch, ..)| fetch.base != Base::AllArguments);
        let mut all: Vec<Drawn> = Vec::new();
        for field in fields {
            if field.2 || !all.contains(&field) {
                all.push(field);
            }
        }
        all
    })
}

/// Writes an event, and records the expected result of parsing it.
struct Writer {
    text: String,
    fields: Vec<Drawn>,
    /// The name of each field written so far.
    names: Vec<Option<String>>,
    arguments: Vec<(String, Fetch, Option<FieldType>)>,
    aggregation: Aggregation,
}

impl Writer {
    /// Writes a field: in full the first time, and again in full if `full` is set.
    fn field(&mut self, index: usize, full: bool) -> String {
        let (fetch, field_type, named) = self.fields[index].clone();
        let name = match &self.names[index] {
            Some(name) => name.clone(),
            None => {
                let name = match named {
                    true => format!("f{index}"),
                    false => format!("arg{}", self.arguments.len() + 1),
                };
                self.names[index] = Some(name.clone());
                self.arguments
                    .push((name.clone(), fetch.clone(), field_type));
                return self.field(index, true);
            }
        };
        if !full {
            self.text += &name;
            return name;
        }
        if named {
            self.text += &format!("{name}=");
        }
        self.text += &fetch.to_string();
        if let Some(field_type) = field_type {
            self.text += &format!(":{field_type}");
        }
        name
    }

    fn item(&mut self, index: usize, function: Option<Function>, full: bool, blank: &str) {
        let Some(function) = function else {
            if self.names[index].is_none() {
                self.text += " ";
                self.field(index, true);
            }
            return;
        };
        let (fetch, field_type, _) = &self.fields[index];
        let known = field_type.or(fetch.default_type());
        let is_number = known.is_none_or(|known| {
            let name = known.to_string();
            !name.ends_with(']') && !["string", "char", "symbol"].contains(&name.as_str())
        });
        let same = |other: &Aggregate| {
            other.function == function
                && (function == Function::Count || other.field == self.names[index])
        };
        if !is_number || self.aggregation.aggregates.iter().any(same) {
            return;
        }
        self.text += &format!(" {function}({blank}");
        let field = (function != Function::Count).then(|| self.field(index, full));
        self.text += &format!("{blank})");
        let aggregate = Aggregate { function, field };
        self.aggregation.aggregates.push(aggregate);
    }

    fn key(&mut self, index: usize, common: Option<KeyKind>, full: bool, separator: &str) {
        let (_, field_type, _) = self.fields[index];
        let name = match &common {
            Some(kind) => Some(kind.name()),
            None => self.names[index].as_deref(),
        };
        let known = |key: &KeyKind| Some(key.name()) == name;
        if self.aggregation.keys.iter().any(known)
            || common.is_none() && field_type.is_some_and(|found| found.count.is_some())
        {
            return;
        }
        self.text += match self.aggregation.keys.is_empty() {
            true => "\tby ",
            false => separator,
        };
        let kind = match common {
            Some(kind) => {
                self.text += &kind.to_string();
                kind
            }
            None => KeyKind::Field(self.field(index, full)),
        };
        self.aggregation.keys.push(kind);
    }
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
        check(&format!(":f x=%di sum({text}) by {text}"))?;
        check(&format!("/bin/ls:16 x by {text} if cpu == 1"))?;
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
        bits in any::<(u8, u8)>(), count in 0..=64_u8, kind in 0..6,
    ) {
        let width = 1 + bits.0 % size;
        let offset = bits.1 % (size - width + 1);
        let element = match kind {
            0 => format!("{letter}{size}"),
            1 => format!("b{width}@{offset}/{size}"),
            2 => "char".to_string(),
            3 => "symbol".to_string(),
            4 => format!("be{}", size.max(16)),
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

    #[test]
    fn aggregates_and_keys_are_read_as_they_are_written(
        place in prop::sample::select(vec!["r :f", "r /bin/ls:16", "r :int f<a>(a) const"]),
        fields in drawn_fields().prop_filter("no fields", |fields| !fields.is_empty()),
        items in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..9_usize, any::<bool>(), 0..3_usize), 0..12,
        ),
        keys in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..9_usize, any::<bool>(), 0..4_usize), 0..8,
        ),
        filter in any::<bool>(),
    ) {
        let count = fields.len();
        let mut writer = Writer {
            text: place.to_string(),
            fields,
            names: vec![None; count],
            arguments: Vec::new(),
            aggregation: Aggregation::default(),
        };
        for (index, function, full, blank) in items {
            let function = Function::ALL.get(function).copied();
            writer.item(index.index(count), function, full, ["", " ", "\t "][blank]);
        }
        for (index, common_key, full, separator) in keys {
            let common = [KeyKind::Thread, KeyKind::Comm, KeyKind::Cpu, KeyKind::stack(), KeyKind::Stack(7)];
            let common = common.get(common_key).cloned();
            let separator = [",", ", ", " ", " ,\t"][separator];
            writer.key(index.index(count), common, full, separator);
        }
        if filter {
            writer.text += " if cpu == 1";
        }
        let read = EventSpec::parse(&writer.text);
        prop_assert!(read.is_ok(), "{}", read.unwrap_err());
        let read = read.unwrap();
        let arguments = read.arguments.iter();
        let arguments: Vec<_> = arguments
            .map(|a| (a.name.clone(), a.fetch.clone(), a.field_type))
            .collect();
        // At a return, an argument means its value at the entry.
        let meant = writer.arguments.iter().cloned().map(|(name, fetch, field_type)| {
            let entered = Value { fetch: Fetch { base: fetch.base.clone(), derefs: Vec::new() }, field_type: None };
            let base = match fetch.base {
                Base::Argument(_) => Base::Entry(Box::new(entered)),
                base => base,
            };
            (name, Fetch { base, ..fetch }, field_type)
        });
        prop_assert_eq!(arguments, meant.collect::<Vec<_>>(), "{}", &writer.text);
        prop_assert_eq!(&read.aggregation, &writer.aggregation, "{}", &writer.text);
        prop_assert_eq!(read.filter.is_some(), filter);
        check(&writer.text)?;
    }
}
