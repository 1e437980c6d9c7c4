//! From places in a program to planned probes.
//!
//! - [`resolve`]: the sites that an event's place means
//! - [`planner`]: the plan of a site: the inputs of the pure tactics, gathered from the object and
//!   the process
//! - [`guards`], [`unwinders`]: finding and planning Capriole's own probes
#![forbid(unsafe_code)]

pub mod guards;
pub mod planner;
pub mod resolve;
pub mod unwinders;
