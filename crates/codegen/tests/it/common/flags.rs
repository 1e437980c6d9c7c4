//! Work that depends on the flags, evaluated as the processor's manual defines it.

use capriole_codegen::fetch::Fetch;
use capriole_codegen::work::{Filter, Work};
use iced_x86::ConditionCode;

use crate::support::random::Random;

/// Returns a random condition of a conditional jump.
pub fn random(random: &mut Random) -> Option<ConditionCode> {
    let all = ConditionCode::values().filter(|code| *code != ConditionCode::None);
    let all: Vec<ConditionCode> = all.collect();
    Some(random.pick(&all))
}

/// Returns the filter of an event that asks for nothing but this condition.
pub fn filter(condition: ConditionCode) -> Filter {
    let fetch = Fetch {
        flags: Some(condition),
        ..Fetch::default()
    };
    match fetch.work(0) {
        Ok(Work::Record(record)) => record.filter.expect("it tests the flags"),
        other => panic!("a record without fields is straight code: {other:?}"),
    }
}

/// Returns true if the flags fulfil a condition (Intel SDM, volume 1, appendix B).
pub fn hold(condition: ConditionCode, flags: u64) -> bool {
    use ConditionCode as C;
    let flag = |bit: u32| flags >> bit & 1 == 1;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    match condition {
        C::None => true,
        C::o => overflow,
        C::no => !overflow,
        C::b => carry,
        C::ae => !carry,
        C::e => zero,
        C::ne => !zero,
        C::be => carry || zero,
        C::a => !carry && !zero,
        C::s => sign,
        C::ns => !sign,
        C::p => parity,
        C::np => !parity,
        C::l => sign != overflow,
        C::ge => sign == overflow,
        C::le => zero || sign != overflow,
        C::g => !zero && sign == overflow,
    }
}

/// The condition on the flags that the work's filter tests, if any.
pub fn asked(work: &Work) -> Option<ConditionCode> {
    let filter = match work {
        Work::Record(record) => record.filter.as_ref(),
        Work::Count { filter, .. } => filter.as_ref(),
        Work::Run { .. } | Work::Tally(_) | Work::Long(_) | Work::Enter { .. } => None,
        Work::Unregister | Work::Help { .. } | Work::Handler(_) | Work::Replace(_) => None,
    };
    filter.and_then(Filter::flags)
}

/// Returns true if the work does not depend on the flags, or is done with these flags.
pub fn wanted(work: &Work, flags: u64) -> bool {
    asked(work).is_none_or(|condition| hold(condition, flags))
}
