//! Errors of the engine: a stable code, a message for people with advice as data, and the cause.

use crate::advice::{Advice, Message, Words};
use capriole_codegen::detour::CompileError;
use capriole_dwarf::{DebugError, VariableError};
use capriole_event::{Instead, ParseError, ProbeError};
use capriole_host::TargetError;
use capriole_object::ObjectError;
use capriole_planner::resolve::ResolveError;
use capriole_planner::unwinders::NoReturns;
use capriole_proc::process::ProcessError;
use capriole_trace::TraceError;
use rustix::io::Errno;
use std::fmt;

/// Result of the engine's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error. The codes ([`Code::as_str`]) are stable: a code is never given another meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The text of an event is not well-formed.
    Syntax,
    /// A file of event definitions cannot be used.
    Definitions,
    /// No function, marker, line, library or address is what an event names.
    NotFound,
    /// An event names several things of which one has to be chosen.
    Ambiguous,
    /// An event names something that is no code of a function.
    NotCode,
    /// Not all exits of a function can be found or probed.
    NoExits,
    /// A field or filter cannot be evaluated at a site.
    Field,
    /// A marker has other arguments than expected, or they cannot be read.
    Marker,
    /// A site cannot be probed, wherever the program is loaded.
    NotProbeable,
    /// No instruction begins at a site.
    NotABoundary,
    /// A site cannot be probed where the program is loaded now.
    Misplaced,
    /// Return addresses cannot be replaced.
    NoReturnStack,
    /// A limit of the engine was reached: events, keys, areas of calls, sites.
    Limit,
    /// The event is known, but asked for something that does not fit it.
    Unsuitable,
    /// There is no such process.
    NoProcess,
    /// The process is of a kind that cannot be probed.
    UnsupportedProcess,
    /// The process ended meanwhile.
    Vanished,
    /// The kernel does not permit it.
    NotPermitted,
    /// Another tool traces the process.
    AlreadyTraced,
    /// The process is being recorded already.
    AlreadyRecorded,
    /// The process has no probes.
    NothingAttached,
    /// A seccomp filter of the process forbids it.
    Sandboxed,
    /// The program has forbidden itself what every probe does, or checks it.
    ForbiddenByProgram,
    /// A thread is where it must not be, does not stop, or cannot be used; a later attempt may succeed.
    Busy,
    /// No memory, mapping or descriptor is left.
    NoResources,
    /// Session memory is inconsistent.
    Damaged,
    /// A system call failed.
    System,
    /// A program cannot be started.
    Launch,
    /// A file or its debug information cannot be used.
    Object,
    /// The clock cannot be used.
    Clock,
    /// A trace cannot be written or added to.
    Trace,
}

impl Code {
    /// Returns the code: a word in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Syntax => "syntax",
            Code::Definitions => "definitions",
            Code::NotFound => "not-found",
            Code::Ambiguous => "ambiguous",
            Code::NotCode => "not-code",
            Code::NoExits => "no-exits",
            Code::Field => "field",
            Code::Marker => "marker",
            Code::NotProbeable => "not-probeable",
            Code::NotABoundary => "not-a-boundary",
            Code::Misplaced => "misplaced",
            Code::NoReturnStack => "no-return-stack",
            Code::Limit => "limit",
            Code::Unsuitable => "unsuitable",
            Code::NoProcess => "no-process",
            Code::UnsupportedProcess => "unsupported-process",
            Code::Vanished => "vanished",
            Code::NotPermitted => "not-permitted",
            Code::AlreadyTraced => "already-traced",
            Code::AlreadyRecorded => "already-recorded",
            Code::NothingAttached => "nothing-attached",
            Code::Sandboxed => "sandboxed",
            Code::ForbiddenByProgram => "forbidden-by-program",
            Code::Busy => "busy",
            Code::NoResources => "no-resources",
            Code::Damaged => "damaged",
            Code::System => "system",
            Code::Launch => "launch",
            Code::Object => "object",
            Code::Clock => "clock",
            Code::Trace => "trace",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error: its code, its message, and the error that caused it, if any.
///
/// `Display` shows the outermost message only; [`Error::full`] shows all causes.
#[derive(Debug)]
pub struct Error {
    code: Code,
    message: Message,
    cause: Option<Cause>,
    recorder: Option<u32>,
}

impl Error {
    /// Makes an error without a cause.
    pub fn new(code: Code, message: impl Into<Message>) -> Error {
        Error {
            code,
            message: message.into(),
            cause: None,
            recorder: None,
        }
    }

    /// Makes an error that another one caused.
    pub fn caused(code: Code, message: impl Into<Message>, cause: impl Into<Cause>) -> Error {
        Error {
            code,
            message: message.into(),
            cause: Some(cause.into()),
            recorder: None,
        }
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the process that has probes in the program already, if that is the error.
    #[must_use]
    pub fn recorder(&self) -> Option<u32> {
        self.recorder
    }

    /// Puts a message in front of this error, which becomes its cause. The code stays.
    #[must_use]
    pub fn context(self, message: impl Into<Message>) -> Error {
        Error {
            code: self.code,
            message: message.into(),
            recorder: self.recorder,
            cause: Some(Box::new(self)),
        }
    }

    /// Gives the error another code.
    #[must_use]
    pub fn recoded(self, code: Code) -> Error {
        Error { code, ..self }
    }

    /// Appends advice to the message.
    #[must_use]
    pub fn advise(self, advice: Advice) -> Error {
        Error {
            message: self.message.advise(advice),
            ..self
        }
    }

    /// Appends to the message.
    #[must_use]
    pub fn then(self, message: impl Into<Message>) -> Error {
        Error {
            message: self.message.then(message),
            ..self
        }
    }

    /// Replaces a part of the message: see [`Message::within`].
    #[must_use]
    pub fn within(self, text: &str, message: Message) -> Error {
        Error {
            message: self.message.within(text, message),
            ..self
        }
    }

    /// Returns the message, without the causes.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the messages of this error and its causes, outermost first.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        let first: &(dyn std::error::Error + 'static) = self;
        let all = std::iter::successors(Some(first), |error| error.source());
        all.map(message_of)
    }

    /// Returns the messages of the error and its causes in one, without causes that a message in
    /// front of them already contains.
    #[must_use]
    pub fn whole(&self) -> Message {
        Message::chain(self.messages())
    }

    /// Formats the error and its causes in one line, without advice.
    #[must_use]
    pub fn full(&self) -> String {
        self.whole().to_string()
    }

    /// Formats the error and its causes in one line, with advice in these words.
    #[must_use]
    pub fn full_with(&self, words: Words) -> String {
        self.whole().with(words)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let cause = self.cause.as_deref()?;
        Some(cause)
    }
}

/// Returns the message of an error without its causes, with advice if it is an error of the engine
/// or of a crate on which the engine is built.
#[must_use]
pub fn message_of(error: &(dyn std::error::Error + 'static)) -> Message {
    if let Some(own) = error.downcast_ref::<Error>() {
        return own.message.clone();
    }
    let advice = None
        .or_else(|| error.downcast_ref().and_then(advice_of_parse))
        .or_else(|| error.downcast_ref().and_then(advice_of_process))
        .or_else(|| error.downcast_ref().and_then(advice_of_target))
        .or_else(|| error.downcast_ref().and_then(advice_of_resolve))
        .or_else(|| error.downcast_ref().and_then(advice_of_trace));
    with_advice(error, advice)
}

fn with_advice(error: impl fmt::Display, advice: Option<Advice>) -> Message {
    let message = Message::from(error.to_string());
    match advice {
        Some(advice) => message.advise(advice),
        None => message,
    }
}

pub(crate) fn advice_of_parse(error: &ParseError) -> Option<Advice> {
    error.instead.map(|instead| match instead {
        Instead::CountCallers => Advice::ReportCountsCallers,
        Instead::SeeEach => Advice::RecordShowsEach,
    })
}

fn advice_of_process(error: &ProcessError) -> Option<Advice> {
    match *error {
        ProcessError::IsThread { pid, .. } => Some(Advice::NameProcess { pid }),
        _ => None,
    }
}

fn advice_of_target(error: &TargetError) -> Option<Advice> {
    match *error {
        TargetError::Process(ref error) => advice_of_process(error),
        TargetError::Vanished { .. } => Some(Advice::LaunchInstead),
        TargetError::Occupied { .. } => Some(Advice::LeaveOutReturnStackIfUsed),
        TargetError::ReturnsBeside { .. } => Some(Advice::LeaveOutReturnStack),
        TargetError::AlreadyRecorded { pid, .. } => Some(Advice::DetachOther { pid }),
        TargetError::Refused { errno, .. } | TargetError::Share { errno, .. }
            if errno == Errno::FBIG =>
        {
            Some(Advice::SmallerBuffer)
        }
        _ => None,
    }
}

fn advice_of_resolve(error: &ResolveError) -> Option<Advice> {
    match error {
        ResolveError::NoMarker {
            markers, nearest, ..
        } if *markers > 0 && nearest.is_empty() => Some(Advice::ListShowsMarkers),
        ResolveError::OtherFile { .. } => Some(Advice::GiveProcess),
        ResolveError::NoMatch { functions, .. } if *functions > 0 => {
            Some(Advice::ListShowsFunctions)
        }
        ResolveError::NoSuchSymbol {
            nearest,
            defined_in: None,
            stripped: false,
            ..
        } if nearest.is_empty() => Some(Advice::ListShowsAll),
        ResolveError::Indirect { running, .. } => Some(match running {
            true => Advice::ImplementationIsChosenLater,
            false => Advice::GiveProcess,
        }),
        ResolveError::Nowhere {
            nearest,
            stripped: false,
            ..
        } if nearest.is_empty() => Some(Advice::ListShowsAll),
        ResolveError::NoCalls { .. } => Some(Advice::EntryInsteadOfCalls),
        _ => None,
    }
}

fn advice_of_trace(error: &TraceError) -> Option<Advice> {
    match error {
        TraceError::NotFound(_) => Some(Advice::RecordMakesTrace),
        _ => None,
    }
}

/// Puts messages in front of errors.
pub trait Context<T> {
    /// Puts this message in front of the error.
    fn context(self, message: impl Into<Message>) -> Result<T>;
    /// Puts the message that `message` returns in front of the error.
    fn with_context(self, message: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl Into<Message>) -> Result<T> {
        self.map_err(|error| error.into().context(message))
    }

    fn with_context(self, message: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.into().context(message()))
    }
}

/// Makes an [`Error`] from a code and a format.
#[macro_export]
macro_rules! err {
    ($code:ident, $($words:tt)*) => {
        $crate::error::Error::new($crate::error::Code::$code, format!($($words)*))
    };
}

/// Returns an [`Error`] made from a code and a format.
#[macro_export]
macro_rules! bail {
    ($code:ident, $($words:tt)*) => {
        return Err($crate::err!($code, $($words)*).into())
    };
}

pub use {bail, err};

/// Implements `From` for errors whose code does not depend on their content.
macro_rules! from {
    ($($type:ty => $code:ident),* $(,)?) => {$(
        impl From<$type> for Error {
            fn from(error: $type) -> Error {
                Error {
                    code: Code::$code,
                    message: message_of(&error),
                    cause: std::error::Error::source(&error).map(|cause| cause.to_string().into()),
                    recorder: None,
                }
            }
        }
    )*};
}

from! {
    ParseError => Syntax,
    ProbeError => Unsuitable,
    ObjectError => Object,
    DebugError => Object,
    VariableError => Field,
    CompileError => Field,
    NoReturns => NoReturnStack,
    capriole_trace::WriteError => Trace,
    capriole_trace::DirectoryError => Trace,
    capriole_trace::clock::ClockError => Clock,
    capriole_ledger::counter::ReferenceError => NotFound,
    capriole_ring::tables::TooLarge => Limit,
    std::io::Error => System,
    rustix::io::Errno => System,
}

impl From<ProcessError> for Error {
    fn from(error: ProcessError) -> Error {
        Error {
            code: code_of_process(&error),
            message: with_advice(&error, advice_of_process(&error)),
            cause: None,
            recorder: None,
        }
    }
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Error {
        Error {
            code: code_of_target(&error),
            message: with_advice(&error, advice_of_target(&error)),
            cause: None,
            recorder: match error {
                TargetError::AlreadyRecorded { owner, .. } => u32::try_from(owner).ok(),
                _ => None,
            },
        }
    }
}

impl From<ResolveError> for Error {
    fn from(error: ResolveError) -> Error {
        Error {
            code: code_of_resolve(&error),
            message: with_advice(&error, advice_of_resolve(&error)),
            cause: None,
            recorder: None,
        }
    }
}

fn code_of_process(error: &ProcessError) -> Code {
    match error {
        ProcessError::NoSuchProcess { .. } | ProcessError::IsThread { .. } => Code::NoProcess,
        ProcessError::KernelThread { .. }
        | ProcessError::ThirtyTwoBit { .. }
        | ProcessError::ForeignArchitecture { .. }
        | ProcessError::Translated { .. } => Code::UnsupportedProcess,
        ProcessError::Zombie { .. } => Code::Vanished,
        ProcessError::NotPermitted { .. } | ProcessError::FileNotReadable { .. } => {
            Code::NotPermitted
        }
        ProcessError::AlreadyTraced { .. } => Code::AlreadyTraced,
        ProcessError::Frozen { .. } => Code::Busy,
        ProcessError::Maps { .. } | ProcessError::Unreadable { .. } => Code::System,
    }
}

fn code_of_target(error: &TargetError) -> Code {
    match error {
        TargetError::Process(error) => code_of_process(error),
        TargetError::Vanished { .. } | TargetError::Killed { .. } => Code::Vanished,
        TargetError::NotPermitted { .. } => Code::NotPermitted,
        TargetError::AlreadyTraced { .. } => Code::AlreadyTraced,
        TargetError::ForbiddenClock { .. } => Code::ForbiddenByProgram,
        TargetError::Occupied { .. }
        | TargetError::Filtering { .. }
        | TargetError::Unstoppable { .. }
        | TargetError::HeldUp { .. }
        | TargetError::InUse { .. }
        | TargetError::ThreadResumed { .. }
        | TargetError::NoThread { .. }
        | TargetError::NoStack { .. }
        | TargetError::NoSyscall { .. } => Code::Busy,
        TargetError::AlreadyRecorded { .. } => Code::AlreadyRecorded,
        TargetError::Filtered { .. }
        | TargetError::Sandboxed { .. }
        | TargetError::Redirected { .. }
        | TargetError::ServesItsCode { .. }
        | TargetError::TraceFiltered { .. } => Code::Sandboxed,
        TargetError::Refused { errno, .. } | TargetError::Share { errno, .. }
            if *errno == Errno::NOMEM =>
        {
            Code::NoResources
        }
        TargetError::Ptrace { .. }
        | TargetError::Refused { .. }
        | TargetError::Memory { .. }
        | TargetError::Share { .. } => Code::System,
        TargetError::NoSpace { .. } => Code::NoResources,
        TargetError::TooMany { .. } => Code::Limit,
        TargetError::Damaged { .. } => Code::Damaged,
        TargetError::Launch { .. } => Code::Launch,
        TargetError::NothingAttached { .. } | TargetError::ProbesItself { .. } => {
            Code::NothingAttached
        }
        TargetError::ReturnsBeside { .. } => Code::NoReturnStack,
    }
}

fn code_of_resolve(error: &ResolveError) -> Code {
    match error {
        ResolveError::Debug(_) | ResolveError::Object(_) => Code::Object,
        ResolveError::Line(_)
        | ResolveError::NoMarker { .. }
        | ResolveError::NoSuchObject { .. }
        | ResolveError::OtherFile { .. }
        | ResolveError::NoSuchSymbol { .. }
        | ResolveError::Nowhere { .. }
        | ResolveError::IsObject { .. }
        | ResolveError::NoMatch { .. }
        | ResolveError::Imported { .. }
        | ResolveError::OffsetOutside { .. }
        | ResolveError::NotInText { .. } => Code::NotFound,
        ResolveError::AmbiguousObject { .. }
        | ResolveError::SeveralObjects { .. }
        | ResolveError::AmbiguousSymbol { .. }
        | ResolveError::AmbiguousCopies { .. } => Code::Ambiguous,
        ResolveError::Indirect { .. }
        | ResolveError::Data { .. }
        | ResolveError::Label { .. }
        | ResolveError::NotAnEntry { .. } => Code::NotCode,
        ResolveError::NoExits { .. }
        | ResolveError::NoCalls { .. }
        | ResolveError::OnlyInlined { .. } => Code::NoExits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_records_a_program_already_is_known_behind_a_message_in_front() {
        let recorded = TargetError::AlreadyRecorded { pid: 7, owner: 9 };
        let error = Error::from(recorded).context("it cannot be recorded");
        assert_eq!(error.recorder(), Some(9));
        let gone = TargetError::Vanished { pid: 7 };
        assert_eq!(Error::from(gone).recorder(), None);
    }

    #[test]
    fn a_cause_is_shown_once() {
        let full = || std::io::Error::from_raw_os_error(libc::ENOSPC);
        let plain = Err::<(), _>(full()).context("cannot write cpu0");
        let doubled = Err::<(), _>(full()).context(format!("cannot write cpu0: {}", full()));
        for error in [plain.unwrap_err(), doubled.unwrap_err()] {
            assert_eq!(error.code(), Code::System);
            assert_eq!(
                error.full(),
                "cannot write cpu0: No space left on device (os error 28)"
            );
        }
    }
}
