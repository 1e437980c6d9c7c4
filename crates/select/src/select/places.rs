//! Fields of an event at each of its sites: where they are alike, and where they may be missing.

use crate::advice::{Advice, Message};
use crate::entry::compares_duration;
use crate::err;
use crate::error::Error;
use crate::fields::is_untyped_result;
use crate::names;
use capriole_event::{Base, FetchArg, Gpr, Probe};
use capriole_insn::ExitKind;
use capriole_planner::resolve::{Body, Site};
use iced_x86::ConditionCode;
use std::sync::Arc;

/// True if an event's fields at a site are those of the site before: they depend on the site only
/// if they need debug information or addresses.
pub(super) fn has_same_fields(probe: &Probe, before: &Site, site: &Site) -> bool {
    Arc::ptr_eq(&before.object, &site.object)
        && site.marker.is_none()
        && leaves(before) == leaves(site)
        && condition(before) == condition(site)
        && before.body == Body::Own
        && site.body == Body::Own
        && is_alike(probe, site)
}

/// True if a field may be missing at a site. That is an error only in code that the user named
/// exactly: not in a copy that the compiler made, not in another function that a glob matches, whose
/// return type may not fit, and not at a marker, which may be another one or have other arguments at
/// each place.
pub(super) fn may_lack_fields(probe: &Probe, site: &Site) -> bool {
    match leaves(site) {
        // For assembly in a Go program, the registers of the arguments are unknown.
        None => site.marker.is_some() || probe.place.is_glob() && site.object.file().is_go(),
        Some(kind) => kind == ExitKind::TailCall || probe.place.is_glob(),
    }
}

/// Returns the error for a site that is not executed as often as the calls that are asked for.
pub(super) fn unseen(probe: &Probe, site: &Site) -> Option<Error> {
    let Body::Inlined { function } = &site.body else {
        return None;
    };
    if !site.scope.as_ref()?.empty {
        return None;
    }
    let error = err!(
        NotProbeable,
        "the compiler has left nothing of `{function}` where it is inlined, so its calls cannot be seen there; \
         make it noinline to record them"
    );
    Some(error.context(format!("event `{}`", probe.label)))
}

/// Formats an error of [`Reader::fields`](crate::fields::Reader::fields) without the event's text.
pub(super) fn without_event(error: &Error) -> Message {
    let mut parts = error.messages().skip(1);
    let first = parts.next().unwrap_or_default();
    parts.fold(first, |all, part| all.then(": ").then(part))
}

/// Adds to an error that it concerns only one of the event's places: an inlined copy may lack a
/// variable that another copy has.
pub(super) fn at_one_place(error: Error, probe: &Probe, site: &Site, places: usize) -> Error {
    let by_name =
        |argument: &FetchArg| matches!(argument.fetch.base, Base::Variable(_) | Base::AllArguments);
    // An error about a marker already names the marker and its arguments.
    if places < 2 || site.marker.is_some() || !probe.all_values().any(by_name) {
        return error;
    }
    let place = format!(
        "; that is so at :{:#x}, one of {places} places",
        site.file_offset
    );
    let message = error.whole().then(place);
    Error::new(error.code(), message.advise(Advice::ListShowsVariables))
}

/// True if an event's fields are the same at every function of a site's object.
fn is_alike(probe: &Probe, site: &Site) -> bool {
    // Functions of a Go program differ in the registers of their arguments.
    let go = site.object.file().is_go();
    let depends = |argument: &FetchArg| match argument.fetch.base {
        Base::Variable(_) | Base::AllArguments => true,
        // Depends on the function whose call it is.
        Base::Entry(_) | Base::Latency => true,
        Base::Retval | Base::RetvalWord => go || is_untyped_result(argument), // its type
        Base::Register(_) => go && argument.name == names::GOROUTINE,
        // Arguments on the stack depend on the place in the function.
        Base::Argument(number) => go || Gpr::of_argument(number).is_none(),
        Base::Vector(_)
        | Base::Interval
        | Base::Started(_)
        | Base::StackPointer
        | Base::StackWord(_)
        | Base::CallStack(_)
        | Base::Comm
        | Base::Immediate(_)
        | Base::Text(_)
        | Base::Address(_)
        | Base::FileOffset(_) => false,
    };
    // So does the duration of a call.
    !compares_duration(probe) && !probe.all_values().any(depends)
}

/// Returns how control leaves the function at a site, if it does.
pub(super) fn leaves(site: &Site) -> Option<ExitKind> {
    site.leaving.as_ref()?.way.clone().ok()
}

/// Returns the condition on the flags under which control leaves there, if there is one.
pub(super) fn condition(site: &Site) -> Option<ConditionCode> {
    site.leaving.as_ref()?.condition
}
