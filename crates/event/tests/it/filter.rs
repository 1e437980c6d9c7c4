//! Guards: their meaning, and rejected input.

use capriole_event::{Comparison, EventSpec, Guard, Operand};

const FIELDS: &str = ":f x=%di:s32 s=+0(%si):string a=+0(%si):u8[2] v size";

fn filter(text: &str) -> Guard {
    let event = EventSpec::parse(&format!("{FIELDS} if {text}"));
    let event = event.unwrap_or_else(|error| panic!("{error}"));
    event.filter.unwrap()
}

/// Checks the filter in its canonical spelling.
fn means(text: &str, expected: &str) {
    assert_eq!(filter(text).to_string(), expected, "{text}");
    let again = filter(expected).to_string();
    assert_eq!(again, expected);
}

#[test]
fn conditions_and_how_they_bind() {
    means("x > 3", "x > 3");
    means("x>=3", "x >= 3");
    means("x&0x10", "x & 16");
    means("x == 010", "x == 8");
    means("x != -1", "x != -1");
    means("x == 0", "x == 0");
    means("x == 'a'", "x == 97");
    means("s == \"a\"", "s == \"a\"");
    means("s != 'a'", "s != \"a\"");
    means("comm == 'bash'", "comm == \"bash\"");
    means("COMM ~ \"ngi*\"", "COMM ~ \"ngi*\"");
    means("tid == 1 && common_pid <= 2", "tid == 1 && common_pid <= 2");
    means("cpu < 2||CPU&1", "cpu < 2 || CPU & 1");
    means("x & 1&&x & 2", "x & 1 && x & 2");
    means("x==3||x==4&&s==\"a\"", "x == 3 || (x == 4 && s == \"a\")");
    means(
        "(x==3 || x==4) && !(s ~ \"a?\")",
        "(x == 3 || x == 4) && !(s ~ \"a?\")",
    );
    means("!x == 3 && x < 5", "!(x == 3) && x < 5");
    means("!!(x == 3)", "!(!(x == 3))");
    means("(((x == 3)))", "x == 3");
    means("s !~ \"a*\"", "!(s ~ \"a*\")");
    means(
        "v == 'a' || v == \"a\" || v > 3",
        "v == 97 || v == \"a\" || v > 3",
    );
    means(r#"s == "a\"b\\""#, r#"s == "a\"b\\""#);
    means(r#"s ~ "a\*\"b""#, r#"s ~ "a\*\"b""#);
    means("s ~ '\"'", r#"s ~ "\"""#);
}

#[test]
fn operands() {
    let operand = |text: &str| match filter(text) {
        Guard::Compare {
            operand,
            comparison,
            ..
        } => (comparison, operand),
        other => panic!("{other:?}"),
    };
    let number = |value, negative| Operand::Number { value, negative };
    let text = |text: &str| Operand::Text(text.to_string());
    use Comparison::*;
    assert_eq!(operand("x == -1"), (Equal, number(u64::MAX, true)));
    assert_eq!(operand("x == -0"), (Equal, number(0, false)));
    assert_eq!(
        operand("x < 0xffffffffffffffff"),
        (Less, number(u64::MAX, false))
    );
    assert_eq!(operand(r#"s == "a\"\\\n""#), (Equal, text(r#"a"\\n"#)));
    assert_eq!(operand(r#"s ~ "a\"\\*""#), (Matches, text(r#"a"\\*"#)));
    assert_eq!(operand("x & '\\''"), (Bits, number(39, false)));
}

#[test]
fn names_of_values() {
    means("v == READY", "v == READY");
    means(
        "v & READ | WRITE|0x40||x == 3",
        "v & READ|WRITE|0x40 || x == 3",
    );
    means("size!=Level::High&&v < a1", "size != Level::High && v < a1");
    let event = EventSpec::parse(":f v w->v if v == A || w->v == B | C").unwrap();
    assert_eq!(event.column_of_names("v", "A"), Some(18));
    assert_eq!(event.column_of_names("w_v", "B|C"), Some(31));
    assert_eq!(event.column_of_names("w_v", "A"), None);
}

#[test]
fn fields_as_they_are_written() {
    let means = |text: &str, expected: &str| {
        let event = EventSpec::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(event.filter.unwrap().to_string(), expected, "{text}");
    };
    means(":f r->state r->s if r->state == 3", "r_state == 3");
    means(
        ":f n=r->s r->s.a[2] if r->s.a[2]>3&&r->s < 1",
        "r_s_a_2 > 3 && n < 1",
    );
    means(
        ":f $arg1 n=$arg2 if $arg2 > 3 && $arg1 == 1",
        "n > 3 && arg1 == 1",
    );
    means("r :f n=$retval:s32 if $retval < 0", "n < 0");
}

/// A value that is no field of the event is read for the filter alone.
#[test]
fn values_that_are_no_fields() {
    let means = |text: &str, expected: &str, values: &[&str]| {
        let event = EventSpec::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(event.filter.unwrap().to_string(), expected, "{text}");
        let read: Vec<&str> = event.filter_values.iter().map(|v| &*v.name).collect();
        assert_eq!(read, values, "{text}");
        assert!(event.arguments.len() < 2, "{text}");
    };
    means(":f r->s if r->state == 3", "r->state == 3", &["r->state"]);
    means(":f r->s if r->s->t>3", "r->s->t > 3", &["r->s->t"]);
    means(":f $arg1 if $arg12 == 3", "$arg12 == 3", &["$arg12"]);
    means(":f if n > 3 && n < 9", "n > 3 && n < 9", &["n"]);
    means(
        ":f if %di:s32 < 0||-8(+0($arg2)):u8&1",
        "%di:s32 < 0 || -8(+0($arg2)):u8 & 1",
        &["%di:s32", "-8(+0($arg2)):u8"],
    );
    means(
        ":f if (r->list[2].name:string == \"a\") && 'f.c'::depth!=1",
        "r->list[2].name:string == \"a\" && 'f.c'::depth != 1",
        &["r->list[2].name:string", "'f.c'::depth"],
    );
    means(
        ":f $arg* if r->s == 3 && cpu == 1",
        "r->s == 3 && cpu == 1",
        &["r->s"],
    );
    means(
        "r :f $retval if $entry:n->s > 1 && duration > 1ms && $arg2 == 1",
        "$entry:n->s > 1 && duration > 1ms && $arg2 == 1",
        &["$entry:n->s", "$arg2"],
    );
    means("usdt::p:m if fd > 2", "fd > 2", &[]);
    let many = (0..129).map(|i| format!("a.m{i} == 1"));
    let many = many.collect::<Vec<_>>().join("||");
    EventSpec::parse(&format!(":f if {many}")).expect_err("too many");
    let error = EventSpec::parse("r :f if n->s > 1").unwrap_err();
    assert_eq!(error.help, "$entry:n->s is what it was at the entry");
    EventSpec::parse("r :f if n > 1").unwrap_err();
    EventSpec::parse(":f x=%di if x:s32 > 1").unwrap_err();
    EventSpec::parse(":f if count() > 1").unwrap_err();
    EventSpec::parse(":f if r->s[1 > 1").unwrap_err();
    EventSpec::parse(":f if %foo > 1").unwrap_err();
}

#[test]
fn a_field_comes_before_what_all_events_have() {
    let event = EventSpec::parse(":f comm=%di if comm > 3").unwrap();
    assert_eq!(event.filter.unwrap().to_string(), "comm > 3");
    let event = EventSpec::parse(":f $arg* if len > 3").unwrap();
    assert_eq!(event.filter.unwrap().to_string(), "len > 3");
    let event = EventSpec::parse("p:a/b libc:write if comm == \"x\"").unwrap();
    assert!(event.arguments.is_empty());
}

#[test]
fn durations() {
    let at_return = |filter: &str| EventSpec::parse(&format!("r :f n=$retval if {filter}"));
    let means = |text: &str, expected: &str| {
        let event = at_return(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(event.filter.unwrap().to_string(), expected, "{text}");
    };
    means("duration > 10ms", "duration > 10ms");
    means("duration>=1.5ms&&n > 3", "duration >= 1500us && n > 3");
    means("n < 0 || !(duration < 2m)", "n < 0 || !(duration < 120s)");
    means("(duration <= 1001ns)", "duration <= 1001ns");
    // A value of that name comes first.
    let event = EventSpec::parse("r :f duration=$retval if duration > 10").unwrap();
    assert_eq!(event.filter.unwrap().to_string(), "duration > 10");
    let event = EventSpec::parse(":f $arg* if duration > 10").unwrap();
    assert_eq!(event.filter.unwrap().to_string(), "duration > 10");

    let refused = |text: &str, message: &str, column: usize| {
        let error = EventSpec::parse(text).expect_err(text);
        assert_eq!((&*error.message, error.column), (message, column), "{text}");
    };
    let known = "the duration of a call is known at its return only";
    refused(":f if duration > 10ms", known, 6);
    refused("r :f if duration > 10", "the time has no unit", 19);
    let time = "expecting a time, such as 10ms";
    refused("r :f if duration > ms", time, 19);
    refused("r :f if duration >", time, 18);
    refused("r :f if duration > -1ms", time, 19);
    let unit = "unknown unit `x`; use ns, us, ms, s, m or h";
    refused("r :f if duration > 1x", unit, 19);
    let operation = "illegal operation for field type: duration is a time";
    refused("r :f if duration == 1ms", operation, 17);
    refused("r :f if duration & 1ms", operation, 17);
    refused("r :f if duration ~ \"1\"", operation, 17);
}

#[test]
fn depth_is_limited() {
    let nested = |depth: usize| format!(":f if {}cpu == 1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(EventSpec::parse(&nested(Guard::MAX_DEPTH)).is_ok());
    assert!(EventSpec::parse(&nested(Guard::MAX_DEPTH + 1)).is_err());
    assert!(EventSpec::parse(&nested(1_000_000)).is_err());
    assert!(EventSpec::parse(&format!(":f if {}cpu == 1", "!".repeat(1_000_000))).is_err());
}

/// All messages, in turn, as a user sees them.
#[test]
fn errors() {
    let texts = [
        "",
        "x",
        "x ==",
        "x = 3",
        "x => 3",
        "x <> 3",
        "x === 3",
        "3 == x",
        "== 3",
        "x > 3 &&",
        "x > 3 & x < 4",
        "x > 3 and x < 4",
        "x && 3",
        "x > 3 x",
        "(x > 3",
        "(x > 3 x",
        "x > 3)",
        "()",
        "x ~ \"a\"",
        "x == \"a\"",
        "x == 'ab'",
        "x == a",
        "x == 3k",
        "x == 08",
        "x == 1.5",
        "x < -10.5 && v > 1",
        "v == 10.0.0.0/8",
        "x == \"10.0.0.1\"",
        "+0(%si):ipv6 == \"::1\"",
        "x == - 1",
        "x == 99999999999999999999",
        "s < \"a\"",
        "s & 3",
        "s == 3",
        "s == a",
        "s == \"a",
        "comm < \"a\"",
        "comm == 3",
        "cpu ~ \"1\"",
        "v < \"a\"",
        "v ~ 3",
        "a == 1",
        "v == A|",
        "v ~ A",
        "x == A|B",
    ];
    let refused = |text: &&str| match EventSpec::parse(&format!(
        ":f x=%di s=+0(%si):string a=+0(%si):u8[2] v if {text}"
    )) {
        Ok(spec) => panic!("{text} was taken for {:?}", spec.filter),
        Err(error) => error.to_string(),
    };
    let all: Vec<String> = texts.iter().map(refused).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}
