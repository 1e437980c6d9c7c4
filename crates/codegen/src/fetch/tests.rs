//! Tests of the choice between straight code and programs.

use super::*;
use crate::condition::Condition;
use capriole_ring::tables::{Shape, Table};

fn width(bytes: u8, signed: bool) -> Width {
    Width {
        bytes,
        signed,
        bits: None,
    }
}

fn field(source: Source) -> Field {
    Field {
        source,
        pointers: Vec::new(),
        length: None,
        content: Content::Number(width(4, true)),
    }
}

fn minus_five() -> Field {
    // Bits above the number do not belong to it.
    field(Source::Immediate(0x1_ffff_fffb))
}

fn all_of(fields: Vec<Field>) -> Fetch {
    Fetch {
        recorded: fields.len(),
        fields,
        ..Fetch::default()
    }
}

fn compare(relation: Relation, with: i128) -> Condition {
    Condition::Number {
        subject: Subject::Field(0),
        relation,
        with,
    }
}

#[test]
fn numbers_that_are_constants_are_recorded_by_straight_code() {
    let fields = vec![
        minus_five(),
        field(Source::Register(Register::RDI)),
        field(Source::Vector(3)),
        field(Source::Immediate(u64::MAX >> 1)),
    ];
    let wanted = Record {
        event: 7,
        fields: vec![
            Word::Constant(0x1_ffff_fffb),
            Word::Register(Register::RDI),
            Word::Register(Register::XMM3),
            Word::Constant(u64::MAX >> 1),
        ],
        filter: None,
    };
    assert_eq!(all_of(fields).work(7), Ok(Work::Record(wanted)));
    // Data that a constant points to is in memory.
    let mut pointer = minus_five();
    pointer.pointers.push(0);
    let text = Field {
        content: Content::Text,
        ..pointer.clone()
    };
    for memory in [pointer, text] {
        let work = all_of(vec![minus_five(), memory]).work(7);
        assert!(matches!(work, Ok(Work::Run { .. })), "{work:?}");
    }
    // Constants need no registers, whose number is limited.
    let fields = (0..40).map(|_| minus_five());
    let work = all_of(fields.collect()).work(7);
    assert!(matches!(work, Ok(Work::Record(_))), "{work:?}");
}

#[test]
fn what_a_filter_asks_of_a_constant_is_decided() {
    let with = |condition: Condition| Fetch {
        condition: Some(condition),
        ..all_of(vec![minus_five(), field(Source::Register(Register::RDI))])
    };
    let filter = |condition: Condition| match with(condition).work(7) {
        Ok(Work::Record(record)) => record.filter.map(|filter| filter.tree),
        other => panic!("{other:?}"),
    };
    for (relation, number, holds) in [
        (Relation::Equal, -5, true),
        (Relation::Equal, 0xffff_fffb, false),
        (Relation::NotEqual, -5, false),
        (Relation::Less, 0, true),
        (Relation::Less, -5, false),
        (Relation::LessOrEqual, -5, true),
        (Relation::Greater, -6, true),
        (Relation::GreaterOrEqual, 1 << 40, false),
        (Relation::Bits, 4, false),
        (Relation::Bits, 8, true),
    ] {
        let wanted = (!holds).then_some(Tree::Constant(false));
        let condition = compare(relation, number);
        assert_eq!(filter(condition.clone()), wanted, "{relation:?} {number}");
        let wanted = holds.then_some(Tree::Constant(false));
        assert_eq!(filter(Condition::Not(Box::new(condition))), wanted);
    }
    // Combined with another condition, only the other one is tested, or none.
    let register = Condition::Number {
        subject: Subject::Field(1),
        relation: Relation::Equal,
        with: 3,
    };
    let both = |of: fn(Vec<Condition>) -> Condition, number| {
        filter(of(vec![compare(Relation::Equal, number), register.clone()]))
    };
    assert!(matches!(both(Condition::All, -5), Some(tree) if !matches!(tree, Tree::Constant(_))));
    assert_eq!(both(Condition::All, 5), Some(Tree::Constant(false)));
    assert_eq!(both(Condition::Any, -5), None);
    // Programs do not test constants either.
    let mut memory = field(Source::Register(Register::RSI));
    memory.pointers.push(0);
    let program = |condition: Option<Condition>| {
        let fetch = Fetch {
            condition,
            ..all_of(vec![minus_five(), memory.clone()])
        };
        match fetch.work(7) {
            Ok(Work::Run {
                program, filter, ..
            }) => (program, filter),
            other => panic!("{other:?}"),
        }
    };
    let in_memory = Condition::Number {
        subject: Subject::Field(1),
        relation: Relation::Equal,
        with: 3,
    };
    let either = Condition::Any(vec![compare(Relation::Equal, 5), in_memory.clone()]);
    assert_eq!(program(Some(either)), program(Some(in_memory)));
}

#[test]
fn constants_are_added_up_and_kept_by_straight_code() {
    let fetch = all_of(vec![
        minus_five(),
        field(Source::Register(Register::RDI)),
        field(Source::Immediate(3)),
    ]);
    let shape = Shape {
        events: 0..1,
        key: 8,
        keys: 64,
        cells: 600,
        maxima: Vec::new(),
        summary: 0,
    };
    let table = Table {
        shape,
        directory: 0,
        rows: 128,
        first_cell: 0,
        summaries: None,
    };
    let tally = Tally {
        table,
        keys: 1,
        cells: vec![
            (0, Amount::One),
            (1, Amount::Sum(1)),
            (2, Amount::Sum(2)),
            (3, Amount::Bucket(2)),
            (599, Amount::Readable(2)),
        ],
        unreadable: None,
        ends: None,
    };
    let works = fetch.tally(0, &tally).expect("they are numbers");
    assert_eq!(works.len(), tally.cells.len());
    assert!(works.iter().all(|work| matches!(work, Work::Tally(_))));
    let kept: Vec<Word> = vec![
        Word::Constant(0x1_ffff_fffb),
        Register::RDI.into(),
        Word::Constant(3),
    ];
    let wanted = Work::Enter {
        call: 1,
        kept,
        filter: None,
    };
    assert_eq!(fetch.enter(1), Ok(wanted));
}

#[test]
fn a_call_stack_needs_the_frame_pointer() {
    let stack = Field {
        content: Content::Callers {
            most: 64,
            site: 0x1000,
            on_top: true,
        },
        ..field(Source::Register(Register::RBP))
    };
    for (field, is_read) in [
        (stack, true),
        (field(Source::Register(Register::RSP)), false),
    ] {
        let text = Field {
            pointers: vec![0],
            content: Content::Text,
            ..self::field(Source::Register(Register::RDI))
        };
        let work = all_of(vec![field, text]).work(1).expect("they fit");
        assert_eq!(work.reads().contains(Register::RBP), is_read);
    }
}
