//! Probes built in code: equal to those of events, and refused where no event could be parsed.

use capriole_event::{
    Action, Aggregate, Base, Comparison, EventSpec, FieldType, Function, Gpr, Guard, KeyKind, Map,
    Pairing, Probe, Side, Value,
};
use std::time::Duration;

/// Checks that the text and the code give the same probe, but for the label.
fn same(text: &str, built: Probe) {
    let parsed = Probe::from(EventSpec::parse(text).expect("an event"));
    assert_eq!(built.check(), Ok(()), "{text}");
    assert_eq!(parsed, built.labelled(text));
}

#[test]
fn texts_and_code_lower_to_equal_probes() {
    let s32 = FieldType::number(capriole_event::Shown::Signed, 4);
    same(
        "libc:malloc size=$arg1 if size > 4096",
        Probe::at_function("libc", "malloc")
            .value("size", Value::argument(1))
            .when(Guard::greater("size", 4096))
            .record(),
    );
    same(
        ":f path=+8(+0(%di)):string list=req->list[2] if path ~ \"/etc/*\" && !(tid == 17) || cpu < 2",
        Probe::at_function("", "f")
            .value(
                "path",
                Value::from(Base::Register(Gpr::Rdi))
                    .deref(0)
                    .deref(8)
                    .typed(FieldType::STRING),
            )
            .value("list", Value::variable("req->list[2]"))
            .when(
                Guard::compare("path", Comparison::Matches, "/etc/*")
                    .and(!Guard::equal("tid", 17))
                    .or(Guard::less("cpu", 2)),
            )
            .record(),
    );
    same(
        "r libc:read fd=$arg1 n=$retval:s32 name=$entry:name",
        Probe::at_return("libc", "read")
            .value("fd", Value::argument(1))
            .value("n", Value::result().typed(s32))
            .value("name", Value::variable("name").at_entry())
            .record(),
    );
    same(
        "p:read libc:read n=$arg3 fd=$arg1:s32 hist(n) max(n) by fd, comm",
        Probe::at_function("libc", "read")
            .named("read")
            .value("n", Value::argument(3))
            .value("fd", Value::argument(1).typed(s32))
            .update(
                Map::Own,
                ["fd".into(), KeyKind::Comm],
                [
                    Aggregate::histogram("n"),
                    Aggregate::of(Function::Maximum, "n"),
                ],
            ),
    );
    same(
        "r :f if duration >= 1500us",
        Probe::at_return("", "f")
            .when(Guard::at_least("duration", Duration::from_micros(1500)))
            .record(),
    );
    same(
        "usdt:/bin/sh:shell:begin",
        Probe::at_marker("/bin/sh", "shell", "begin")
            .all_arguments()
            .record(),
    );
}

#[test]
fn labels_say_where() {
    let label = |probe: Probe| probe.label;
    assert_eq!(label(Probe::at_function("libc", "f*")), "libc:f*");
    assert_eq!(label(Probe::at_return("", "f")), ":f%return");
    assert_eq!(label(Probe::at_marker("/x", "a", "b")), "/x:a:b");
}

#[test]
fn what_no_event_can_say_is_refused() {
    let f = || Probe::at_function("", "f");
    let none: [KeyKind; 0] = [];
    let n = || f().value("n", Value::argument(1));
    let updated = |aggregate| n().update(Map::Own, none.clone(), [aggregate]);
    let bytes = |bytes| FieldType::number(capriole_event::Shown::Unsigned, bytes);
    let derefs = (0..15).fold(Value::argument(1), |value, _| value.deref(0));
    let deep = (0..100).fold(Guard::equal("n", 1), |guard, _| !guard);
    let refused = [
        f().value("n", Value::argument(0)),
        f().value("n", Base::Vector(16)),
        f().value("n", Value::result()),
        f().value("n", Value::argument(1).at_entry()),
        f().value("n", Value::latency()),
        f().value("n", Value::interval()),
        f().value("n", Base::Started(0)),
        f().value("n", Value::variable("%di")),
        f().value("n", Value::argument(1).typed(bytes(3))),
        f().value("n", Value::argument(1).typed(FieldType::STRING)),
        f().value("n", derefs),
        f().value("", Value::argument(1)),
        f().value("a b", Value::argument(1)),
        n().value("n", Value::argument(2)),
        n().when(deep),
        n().when(Guard::greater("duration", Duration::from_millis(10))),
        f().value("n", Value::result())
            .when(Guard::equal("n", Duration::ZERO)),
        Probe::at_return("", "f").when(Guard::greater("duration", 10)),
        Probe::at_return("", "f").when(Guard::equal("duration", Duration::ZERO)),
        n().entry_when(Guard::equal("tid", 1)),
        f().named("a b"),
        n().record().record(),
        Probe {
            actions: vec![Action::Keep(1)],
            ..n()
        },
        Probe {
            actions: vec![Action::Start],
            ..n()
        },
        Probe {
            pairing: Some(Pairing {
                side: Side::End,
                key: vec!["n".to_owned()],
                kept: Vec::new(),
            }),
            ..n()
        },
        Probe {
            actions: updated(Aggregate::count())
                .actions
                .into_iter()
                .chain([Action::Record])
                .collect(),
            ..n()
        },
        updated(Aggregate::sum("m")),
        updated(Aggregate::of(Function::Count, "n")),
        n().update(Map::Own, ["m"], []),
        n().update(Map::Own, ["n", "n"], []),
        f().value("text", Base::Comm)
            .update(Map::Own, none.clone(), [Aggregate::sum("text")]),
        Probe::at_return("", "f")
            .value("ns", Value::latency())
            .update(Map::Own, none.clone(), [Aggregate::sum("ns")]),
        Probe::at_return("", "f").value("n", Value::argument(1).at_entry().at_entry()),
        Probe::at_return("", "f").value("n", Value::result().at_entry()),
        n().when(Guard::equal("m", 1)),
        n().when(Guard::And(Vec::new())),
        n().when(!Guard::Or(vec![Guard::equal("n", 1)])),
    ];
    for probe in refused {
        let error = probe.check().expect_err(&format!("{probe:?}"));
        assert!(!error.message.is_empty());
    }
    assert_eq!(updated(Aggregate::sum("n")).check(), Ok(()));
    let error = updated(Aggregate::sum("m")).check().expect_err("no value");
    assert_eq!(
        error.to_string(),
        "probe `:f`: sum(m) is of no value of the probe"
    );
}
