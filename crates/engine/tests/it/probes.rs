//! Probes built in code: they do what the equal events do, and what no event can say.

use capriole::aggregate::model::{Measure, Value as Key};
use capriole::probe::{Aggregate, FieldType, Function, Guard, KeyKind, Map, Probe, Shown, Value};
use capriole::{Code, EventId, Group, Happened, Options, Record, Session};
use capriole_testkit::programs::{Compiler, build};
use capriole_testkit::target::{Running, assert_no_session, assert_text_is_the_files};
use std::collections::BTreeMap;

/// Number of calls of `taken`; `given` is called half as often.
const CALLS: u64 = 100;

fn start() -> Option<(Running, Session)> {
    let program = build(Compiler::Gcc, "maps.c", &[])?;
    let running = Running::start(&program, &[]);
    // Room for several tables with histograms.
    let mut options = Options::default();
    options.keys = 128;
    let session = Session::attach_with(running.pid, options).expect("a session");
    Some((running, session))
}

fn calls(running: &mut Running) {
    running.say(&CALLS.to_string());
    assert_eq!(running.line(), "done");
}

fn end(session: Session, running: Running) {
    drop(session);
    assert_text_is_the_files(&running.process(), false);
    assert_no_session(&running.process());
    running.finish();
}

fn u64_of(number: u8) -> Value {
    Value::argument(number).typed(FieldType::U64)
}

/// Probe at one of the functions, with both arguments.
fn at(function: &str) -> Probe {
    Probe::at_function("", function)
        .value("key", u64_of(1))
        .value("amount", u64_of(2))
}

/// Name, kind and values of the records of an event.
fn contents(records: &[Record], event: impl Into<EventId>) -> Vec<(String, Happened, String)> {
    let event = event.into();
    let own = records.iter().filter(|record| record.event == event);
    own.map(|r| (r.name.to_string(), r.happened, format!("{:?}", r.fields)))
        .collect()
}

/// The keys of a table, with the calls, and the sum that is its first measure.
fn sums(group: &Group) -> BTreeMap<i128, (u64, i128)> {
    let row = |row: &capriole::Row| {
        let ([Key::Number(key)], Measure::Sum(sum)) = (&row.keys[..], &row.measures[0]) else {
            panic!("{row:?}");
        };
        (*key, (row.calls, sum.value()))
    };
    let hit = group.rows.iter().filter(|row| row.is_hit());
    hit.map(row).collect()
}

/// Sums of the program by key, of its calls of `taken`, or of each second one as `given`.
fn known(each: u64) -> BTreeMap<i128, (u64, i128)> {
    let mut all = BTreeMap::new();
    for i in (0..CALLS).filter(|i| i % each == 0) {
        let (calls, sum) = all.entry(i128::from(i % 4)).or_default();
        *calls += 1;
        *sum += i128::from(i);
    }
    all
}

fn merged(
    one: BTreeMap<i128, (u64, i128)>,
    other: BTreeMap<i128, (u64, i128)>,
) -> BTreeMap<i128, (u64, i128)> {
    let mut all = one;
    for (key, (calls, sum)) in other {
        let own = all.entry(key).or_default();
        *own = (own.0 + calls, own.1 + sum);
    }
    all
}

#[test]
fn a_guarded_record_is_that_of_the_event() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let text = session
        .add(":taken key=$arg1:u64 amount=$arg2:u64 if amount < 10 && key != 3")
        .expect("the event");
    let guard = Guard::less("amount", 10).and(!Guard::equal("key", 3));
    let built = session
        .add_probe(at("taken").when(guard).record())
        .expect("the probe");
    assert_eq!((built.sites, &built.refused[..]), (1, &[][..]));
    calls(&mut running);
    let records = session.read().expect("records");
    let own = contents(&records, &built);
    assert_eq!(
        own.len() as u64,
        (0..10).filter(|i| i % 4 != 3).count() as u64
    );
    assert_eq!(own, contents(&records, &text));
    assert_eq!(own[0].0, "taken");
    end(session, running);
}

#[test]
fn two_functions_update_one_map() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let events = [":taken", ":given"].map(|place| {
        let event = format!("{place} key=$arg1:u64 amount=$arg2:u64 sum(amount) by key");
        session.add(&event).expect("the event")
    });
    let update = |function: &str| {
        at(function).update(Map::shared("all"), ["key"], [Aggregate::sum("amount")])
    };
    assert_eq!(session.map("all"), None);
    let both = session
        .add_probes(&[update("taken"), update("given")])
        .expect("the probes");
    assert_eq!(both.sites, 2);
    calls(&mut running);
    let map = session.map("all").expect("the map");
    assert_eq!(map.key_names, ["key"]);
    assert_eq!(map.measure_names, ["sum(amount)"]);
    assert_eq!(map.rows.iter().filter(|row| row.is_hit()).count(), 4);
    let all = merged(known(1), known(2));
    assert_eq!(sums(&map), all);
    // The events count the same, each by itself; the probes have no table but the map.
    let [taken, given] = &events;
    let own = |event: &capriole::Added| sums(&session.rows(event)[0]);
    assert_eq!((own(taken), own(given)), (known(1), known(2)));
    assert!(session.rows(&both).is_empty());

    // Probes that come later update it too, but only with the same columns.
    let later = session.add_probe(update("taken").when(Guard::equal("key", 1)));
    let later = later.expect("the probe");
    calls(&mut running);
    let twice = merged(all.clone(), all.clone());
    let key_1: BTreeMap<_, _> = known(1).into_iter().filter(|(key, _)| *key == 1).collect();
    let expected = merged(twice, key_1);
    assert_eq!(sums(&session.map("all").expect("the map")), expected);
    for other in [
        at("given").update(
            Map::shared("all"),
            ["key"],
            [Aggregate::histogram("amount")],
        ),
        at("given").update(
            Map::shared("all"),
            [KeyKind::Cpu],
            [Aggregate::sum("amount")],
        ),
        Probe::at_function("", "given")
            .value("key", Value::argument(1).typed(FieldType::U32))
            .value("amount", u64_of(2))
            .update(Map::shared("all"), ["key"], [Aggregate::sum("amount")]),
    ] {
        let error = session.add_probe(other).expect_err("other columns");
        assert_eq!(error.code(), Code::Unsuitable, "{}", error.full());
    }

    // It stays as long as one of them is there.
    session.remove(&both).expect("out");
    session.add(":main").expect("the event");
    assert_eq!(sums(&session.map("all").expect("the map")), expected);
    session.remove(&later).expect("out");
    session.add(":main").expect("the event");
    assert_eq!(session.map("all"), None);
    end(session, running);
}

#[test]
fn a_map_without_keys_has_one_row() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let none: [KeyKind; 0] = [];
    let update = |function: &str| {
        let aggregates = [
            Aggregate::of(Function::Maximum, "amount"),
            Aggregate::of(Function::Average, "amount"),
        ];
        at(function).update(Map::shared("one"), none.clone(), aggregates)
    };
    session
        .add_probes(&[update("taken"), update("given")])
        .expect("the probes");
    calls(&mut running);
    let map = session.map("one").expect("the map");
    let [row] = &map.rows[..] else {
        panic!("{map:?}");
    };
    assert_eq!(row.calls, CALLS + CALLS / 2);
    assert_eq!(
        row.measures[0],
        Measure::Maximum(Some(i128::from(CALLS) - 1))
    );
    let sum: i128 = merged(known(1), known(2))
        .values()
        .map(|(_, sum)| sum)
        .sum();
    let mean = sum as f64 / (CALLS + CALLS / 2) as f64;
    assert_eq!(row.measures[1].mean(), Some(mean));
    end(session, running);
}

#[test]
fn one_probe_records_and_updates_two_maps() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let text = session
        .add(":taken key=$arg1:u64 amount=$arg2:u64")
        .expect("the event");
    let none: [KeyKind; 0] = [];
    let probe = at("taken")
        .update(Map::Own, ["key"], [Aggregate::sum("amount")])
        .update(Map::Own, none, [Aggregate::histogram("amount")])
        .record();
    let built = session.add_probe(probe).expect("the probe");
    assert_eq!(built.sites, 1);
    calls(&mut running);
    let records = session.read().expect("records");
    let own = contents(&records, &built);
    assert_eq!(own.len() as u64, CALLS);
    assert_eq!(own, contents(&records, &text));
    let [by_key, histogram] = &session.rows(&built)[..] else {
        panic!("two tables");
    };
    assert_eq!(sums(by_key), known(1));
    let [row] = &histogram.rows[..] else {
        panic!("one row");
    };
    let Measure::Histogram(values) = &row.measures[0] else {
        panic!("{row:?}");
    };
    assert_eq!((row.calls, values.total()), (CALLS, u128::from(CALLS)));
    assert_eq!(session.name(row).as_deref(), Some("taken"));
    end(session, running);
}

#[test]
fn values_are_kept_from_the_entry() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let text = session
        .add("r :taken key=$arg1 amount=$entry:arg2:u64 result=$retval:u64 if amount >= 90")
        .expect("the event");
    let built = Probe::at_return("", "taken")
        .value("key", Value::argument(1))
        .value("amount", u64_of(2).at_entry())
        .value("result", Value::result().typed(FieldType::U64))
        .when(Guard::at_least("amount", 90))
        .record()
        .update(Map::Own, ["amount"], []);
    let built = session.add_probe(built).expect("the probe");
    calls(&mut running);
    let records = session.read().expect("records");
    let own = contents(&records, &built);
    assert_eq!(own.len(), 10);
    assert_eq!(own, contents(&records, &text));
    let rows: u64 = session.rows(&built)[0].rows.iter().map(|r| r.calls).sum();
    assert_eq!(rows, 10);
    end(session, running);
}

#[test]
fn calls_are_timed_that_pass_at_the_entry() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let text = session
        .add("latency(:taken key=$arg1:u64 if key == 2) by amount=$entry:arg2:u64")
        .expect("the event");
    let built = Probe::at_return("", "taken")
        .value(
            "amount",
            Value::argument(2).at_entry().typed(FieldType::U64),
        )
        .value("ns", Value::latency())
        .entry_value("key", u64_of(1))
        .entry_when(Guard::equal("key", 2))
        .update(
            Map::shared("times"),
            ["amount"],
            [Aggregate::histogram("ns")],
        );
    session.add_probe(built).expect("the probe");
    calls(&mut running);
    let timed = |group: &Group| -> BTreeMap<String, u64> {
        let rows = group.rows.iter();
        let timed = rows.filter(|row| row.calls > row.unreadable);
        timed
            .map(|row| (format!("{:?}", row.keys), row.calls - row.unreadable))
            .collect()
    };
    let map = session.map("times").expect("the map");
    assert_eq!(timed(&map).len() as u64, CALLS / 4);
    assert_eq!(timed(&map), timed(&session.rows(&text)[0]));
    end(session, running);
}

#[test]
fn what_is_not_well_formed_is_refused_and_leaves_the_session_as_it_was() {
    let Some((mut running, mut session)) = start() else {
        return;
    };
    let bad = [
        at("taken").value("key", u64_of(3)).record(),
        at("taken").update(Map::Own, ["nobody"], []),
        at("taken")
            .value(
                "x",
                Value::argument(1).typed(FieldType::number(Shown::Unsigned, 3)),
            )
            .record(),
    ];
    for probe in bad {
        let error = session.add_probe(probe).expect_err("it is wrong");
        assert_eq!(error.code(), Code::Unsuitable, "{}", error.full());
    }
    assert_eq!(
        session.add_probes(&[]).expect_err("nothing").code(),
        Code::Unsuitable
    );
    // One that is not found leaves out the others of its transaction.
    let both = [at("taken").record(), at("nothing_there").record()];
    let error = session.add_probes(&both).expect_err("it is not there");
    assert_eq!(error.code(), Code::NotFound);
    assert!(
        error.full().contains("`:nothing_there`"),
        "{}",
        error.full()
    );
    calls(&mut running);
    assert_eq!(session.read().expect("nothing"), []);
    end(session, running);
}
