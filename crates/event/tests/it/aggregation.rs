//! Aggregates and keys: their meaning, syntax that must stay unaffected, and rejected input.

use capriole_event::{Aggregate, Aggregation, EventSpec, Function, KeyKind, Place};

fn parse(text: &str) -> EventSpec {
    EventSpec::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks the fields, the aggregation in its canonical spelling, and that there is a filter.
fn means(text: &str, arguments: &str, aggregation: &str) {
    let event = parse(text);
    let found: Vec<String> = event.arguments.iter().map(ToString::to_string).collect();
    assert_eq!(found.join(" "), arguments, "{text}");
    assert_eq!(event.aggregation.to_string(), aggregation, "{text}");
    assert_eq!(event.filter.is_some(), text.contains(" if "), "{text}");
    assert_eq!(event.aggregation.is_empty(), aggregation.is_empty());
}

#[test]
fn one_of_each() {
    let text = "libc:read sum(n=$arg3:u64) hist(n) by fd=$arg1:s32, comm if n > 0";
    let event = parse(text);
    let names: Vec<&str> = event.arguments.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["n", "fd"]);
    let expected = Aggregation {
        aggregates: vec![
            Aggregate::of(Function::Sum, "n"),
            Aggregate::of(Function::Histogram, "n"),
        ],
        keys: vec![KeyKind::Field("fd".to_string()), KeyKind::Comm],
    };
    assert_eq!(event.aggregation, expected);
    assert_eq!(event.aggregation_column(), Some(10));
    assert_eq!(parse(":f by x").aggregation_column(), Some(6));
    assert_eq!(parse(":f x").aggregation, Aggregation::default());
    let names: Vec<&str> = expected.keys.iter().map(KeyKind::name).collect();
    assert_eq!(names, ["fd", "comm"]);
    for function in Function::ALL {
        let argument = if function == Function::Count { "" } else { "x" };
        let event = parse(&format!(":f {function}({argument})"));
        assert_eq!(event.aggregation.aggregates[0].function, function);
    }
}

#[test]
fn fields_are_written_as_everywhere() {
    means(":f sum(x)", "x", "sum(x)");
    means(":f count() by tid", "", "count() by tid");
    means(":f by fd=%di:s32", "fd=%di:s32", "by fd");
    means(":f hist(len=+8(%di):u32)", "len=+8(%di):u32", "hist(len)");
    means(
        ":f hist(+8(+0(%di)):u32) by req->fd",
        "+8(+0(%di)):u32 req->fd",
        "hist(arg1) by req_fd",
    );
    means(
        ":f a=%si sum($arg3) $arg1 max(%di) b=%dx",
        "a=%si $arg3 $arg1 %di b=%dx",
        "sum(arg3) max(arg4)",
    );
    means(
        ":f min(req->list[2].len:u16) if req_list_2_len > 3",
        "req->list[2].len:u16",
        "min(req_list_2_len)",
    );
    means(
        r#":f count() by a=\"x, y)", b=\"if \"by\"",comm"#,
        r#"a=\"x, y)" b=\"if \"by\"""#,
        "count() by a, b, comm",
    );
    means(
        ":f sum( x )  avg(\tx\t) count( )",
        "x",
        "sum(x) avg(x) count()",
    );
    means(":f by cpu , tid,comm", "", "by cpu, tid, comm");
    means(":f by cpu tid comm", "", "by cpu, tid, comm");
    means(
        ":f by a=%di b:string if a == 3",
        "a=%di b:string",
        "by a, b",
    );
    means("r :f avg($retval:s64)", "$retval:s64", "avg(ret)");
    means("usdt:/bin/app:a:b sum($arg1)", "$arg1", "sum(arg1)");
    means(
        "/bin/app:0x10(16) sum(%di) by %si",
        "%di %si",
        "sum(arg1) by arg2",
    );
    means(
        "uprobe:/bin/sh:f hist($arg1) by cpu",
        "$arg1",
        "hist(arg1) by cpu",
    );
    means(":f $arg* sum(size)", "$arg* size", "sum(size)");
}

#[test]
fn a_name_means_the_field_before() {
    means(
        ":f n=$arg3:u64 sum(n) hist(n) by n",
        "n=$arg3:u64",
        "sum(n) hist(n) by n",
    );
    means(":f sum(n) hist(n)", "n", "sum(n) hist(n)");
    means(
        ":f sum(n=%di:u8) max(n=%di:u8)",
        "n=%di:u8",
        "sum(n) max(n)",
    );
    means(
        ":f $arg1 sum($arg1) max(arg1)",
        "$arg1",
        "sum(arg1) max(arg1)",
    );
    means(
        ":f %si sum(%di) max(%di) by %si",
        "%si %di",
        "sum(arg2) max(arg2) by arg1",
    );
    means(
        ":f sum(req->len) max(req->len) by req_len",
        "req->len",
        "sum(req_len) max(req_len) by req_len",
    );
    // The same value with a name and without.
    means(":f x=%di sum(%di)", "x=%di %di", "sum(arg2)");
    means(
        ":f sum(%di:u8) sum(%di:u16)",
        "%di:u8 %di:u16",
        "sum(arg1) sum(arg2)",
    );
    // A field takes precedence over the built-in key of the same name.
    means(":f cpu=%di by cpu, tid", "cpu=%di", "by cpu, tid");
    let event = parse(":f cpu=%di by cpu, tid");
    assert_eq!(event.aggregation.keys[0], KeyKind::Field("cpu".to_string()));
    means(":f sum(tid) by cpu", "tid", "sum(tid) by cpu");
}

/// Variables, names and functions that have the name of an aggregate but are not one.
#[test]
fn words_that_are_none() {
    for word in ["count", "sum", "min", "max", "avg", "hist"] {
        means(&format!(":f {word}"), word, "");
        means(&format!(":f {word}:u8 x"), &format!("{word}:u8 x"), "");
        means(
            &format!(":f {word}->by if {word}_by > 3"),
            &format!("{word}->by"),
            "",
        );
        means(
            &format!(":f {word}=%di by {word}"),
            &format!("{word}=%di"),
            &format!("by {word}"),
        );
        means(&format!(":f sum({word})"), word, &format!("sum({word})"));
        means(&format!(":f {word} if {word} > 3"), word, "");
    }
    means(
        ":f by->x by[2] by:u8 +0(by)",
        "by->x by[2] by:u8 +0(by)",
        "",
    );
    means(":f by=%di x=by if by > 3", "by=%di x=by", "");
    means(":f by=%di by by", "by=%di", "by by");
    means(":f sum(by) by x=by", "by x=by", "sum(by) by x");
    means(":f x if x > 3 && comm == \"by sum(x)\"", "x", "");
    let symbol = |text: &str| match parse(text).place {
        Place::Symbol { pattern, .. } => pattern,
        other => panic!("{other:?}"),
    };
    for name in [
        "sum(int)",
        "hist(std::vector<int> const&)",
        "ns::count()",
        "int sum<int>(int)",
        "sum min<sum>(sum)",
        "void f<int, sum (int)>(sum (int))",
        "A::operator sum()",
        "A::operator by const&() const",
        "transaction clone for max(int, int)",
        "f(sum, count)",
        "std::pair<int, hist (by)> g<int>(int)",
        "operator()(int)",
        "operator new(unsigned long)",
        "by",
        "by f<int>(by)",
        "ns::sum",
        "<by as std::iter::Sum>::sum",
    ] {
        assert_eq!(symbol(&format!(":{name}")), name);
        for rest in [
            "sum(x=$arg1)",
            "hist(x)",
            "x sum(x) by tid",
            "count() by x=+0(%di), +0(%si):u8",
            "x by cpu,y=+0(%di)",
            "by x",
            "by x=hist",
        ] {
            let text = format!("lib:{name}  {rest} if cpu == 1");
            let event = parse(&text);
            assert_eq!(symbol(&text), name, "{text}");
            assert!(
                !event.aggregation.is_empty() && event.filter.is_some(),
                "{text}"
            );
        }
    }
    // The suffix of `operator new` and the like is no aggregate.
    assert_eq!(symbol("libc:operator new hist($arg1)"), "operator new");
    assert_eq!(symbol("libc:operator new by comm"), "operator new");
    assert_eq!(symbol(":A::operator() sum(x)"), "A::operator()");
}

/// Every example on the documentation page must parse.
#[test]
fn examples_of_the_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
    let page = std::fs::read_to_string(page).unwrap();
    let chapter = page.split("## Aggregates and keys\n").nth(1).unwrap();
    let examples: Vec<&str> = chapter
        .split("```")
        .nth(1)
        .unwrap()
        .trim()
        .lines()
        .collect();
    assert_eq!(examples.len(), 6);
    for example in examples {
        // The example's description follows after several blanks.
        let text = example.split("  ").next().unwrap();
        assert!(!parse(text).aggregation.is_empty(), "{text}");
    }
}

#[test]
fn limits() {
    let fields: Vec<String> = (0..16).map(|n| format!("max(a{n}=%di)")).collect();
    let keys: Vec<String> = (0..8).map(|n| format!("k{n}=%si")).collect();
    let full = |more: &str, other: &str| {
        let text = format!(":f {}{more} by {}{other}", fields.join(" "), keys.join(","));
        EventSpec::parse(&text)
    };
    let event = full("", "").unwrap();
    let aggregation = event.aggregation;
    assert_eq!(aggregation.aggregates.len(), Aggregation::MAX_AGGREGATES);
    assert_eq!(aggregation.keys.len(), Aggregation::MAX_KEYS);
    let error = full(" count()", "").unwrap_err();
    assert!(error.text[error.column..].starts_with("count()"));
    insta::assert_snapshot!(error.message, @"too many aggregates are specified");
    let error = full("", ", tid").unwrap_err();
    assert!(error.text[error.column..].starts_with("tid"));
    insta::assert_snapshot!(error.message, @"too many keys are specified");
    // All fields count towards the limit, wherever they are written.
    let many: Vec<String> = (0..128).map(|n| format!("a{n}=%di")).collect();
    let many = format!(":f {}", many.join(" "));
    assert_eq!(parse(&format!("{many} sum(a3) by a4")).arguments.len(), 128);
    for rest in ["sum(x)", "by x"] {
        let error = EventSpec::parse(&format!("{many} {rest}")).unwrap_err();
        assert!(error.text[error.column..].starts_with('x'));
        assert_eq!(error.message, "too many arguments are specified");
    }
}

/// All messages, in turn, as a user sees them.
#[test]
fn errors() {
    let texts = [
        "sum()",
        "sum( ) x",
        "count(n)",
        "count(n m)",
        "hist (n)",
        "n hist  (n) m",
        "hist(n",
        "hist( ",
        "hist(+8(n) by tid",
        "sum(n max(n)",
        "count( if cpu == 1",
        "sum(n m)",
        "sum(n, m)",
        "sum(n)) m",
        "sum(n):u64",
        "sum(n),max(n)",
        "sum(n)by tid",
        "sum(n)max(n)",
        "total=sum(n)",
        "x=count()",
        "sum(max(n))",
        "lhist(n)",
        "mean(n) by tid",
        "sum(%zz)",
        "sum(%di:u33)",
        "sum(n=)",
        "sum(1)",
        "sum(x+y)",
        "sum($retval)",
        "sum($arg*)",
        "$arg* sum($arg*)",
        "sum(+0(%di):string)",
        "s=+0(%di):string sum(s)",
        "sum(s=+0(%di):string)",
        "hist($comm)",
        "avg(+0(%di):u8[4])",
        "max(c=%di:char)",
        "min($stack0:symbol)",
        "sum(n) sum(n)",
        "count() count()",
        "sum(%di) sum(%di)",
        "sum(n=%di) max(n=%si)",
        "sum(n) n=%di",
        "n=%di sum(n:u8)",
        "n=%di by n=%si",
        "by",
        "n by",
        "by if cpu == 1",
        "by tid,",
        "by tid, if cpu == 1",
        "by ,tid",
        "by tid,,cpu",
        "by tid by cpu",
        "by tid, tid",
        "by fd fd",
        "by n sum(n)",
        "by n, count() if n > 3",
        "by $arg*",
        "by a=+0(%di):u8[4]",
        "by %zz,cpu",
        "by fd=,cpu",
        "by tid, tid=%di",
        "sum(n) if 4 > 3",
    ];
    let refused = |text: &&str| match EventSpec::parse(&format!("/bin/sh:0x10 {text}")) {
        Ok(spec) => panic!("{text} was taken for {spec:?}"),
        Err(error) => error.to_string(),
    };
    let all: Vec<String> = texts.iter().map(refused).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}

/// Errors after a symbol, which might have continued there.
#[test]
fn errors_behind_a_symbol() {
    let refused = |text: &str| match EventSpec::parse(text) {
        Ok(spec) => panic!("{text} was taken for {spec:?}"),
        Err(error) => error.to_string(),
    };
    insta::assert_snapshot!(refused(":f hist (n)"), @r"
    there is a blank before the brace of hist
      :f hist (n)
             ^
      help: write hist(NAME=VALUE:TYPE), or hist(NAME) of a field before it
    ");
    insta::assert_snapshot!(refused(":f by hist(n)"), @r"
    an aggregate cannot be a key
      :f by hist(n)
            ^
      help: aggregates stand before the word by
    ");
    insta::assert_snapshot!(refused(":f(int) const sum()"), @r"
    sum needs a field
      :f(int) const sum()
                        ^
      help: write sum(NAME=VALUE:TYPE), or sum(NAME) of a field before it
    ");
    insta::assert_snapshot!(refused(":int sum(int, int)"), @r"
    sum takes one field
      :int sum(int, int)
                  ^
      help: write sum(A) sum(B) for two
    ");
    insta::assert_snapshot!(refused("größe:größe x=\\\"ß\" sum(y=%zz)"), @r#"
    invalid register name `%zz`
      größe:größe x=\"ß" sum(y=%zz)
                               ^
      help: the registers are %ax, %bx, %cx, %dx, %si, %di, %bp, %sp and %r8 to %r15, all of 64 bits
    "#);
}
