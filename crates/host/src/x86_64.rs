//! What depends on the processor: registers, signal frames, and the instructions by which a thread
//! makes calls for us. Another architecture has the same files.

pub(crate) mod frame;
pub(crate) mod gadgets;
pub(crate) mod registers;
