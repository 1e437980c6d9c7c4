//! Probes without text: the intermediate form, as the crate `capriole-event` defines it.

pub use capriole_event::{
    Action, Aggregate, Aggregation, At, Base, Bits, Comparison, Deref, Element, Entry, Fetch,
    FetchArg, FieldType, Function, Gpr, Guard, KeyKind, Map, ObjectRef, Operand, Place, Probe,
    ProbeError, Shown, Value,
};
