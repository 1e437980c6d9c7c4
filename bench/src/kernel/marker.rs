//! `kernel.trace_marker`: ftrace's file for messages from programs.

use std::path::PathBuf;

use super::tracefs::Instance;
use crate::process::TargetInfo;

/// An ftrace instance; the target writes to its marker file.
#[derive(Debug, Default)]
pub struct TraceMarker {
    instance: Option<Instance>,
}

impl TraceMarker {
    /// Creates the instance; returns the path for the target to open.
    pub(crate) fn arm(&mut self, _target: &TargetInfo) -> Result<PathBuf, String> {
        let instance = Instance::create()?;
        let path = instance.file("trace_marker");
        if !path.exists() {
            return Err("this kernel's ftrace has no trace_marker".to_owned());
        }
        self.instance = Some(instance);
        Ok(path)
    }

    /// Returns the number of messages recorded in this round.
    pub(crate) fn hits(&mut self) -> Result<u64, String> {
        self.instance
            .as_ref()
            .ok_or("its instance is gone")?
            .recorded()
    }

    /// Removes the instance; the target must have closed the file before.
    pub(crate) fn disarm(&mut self) -> Result<(), String> {
        self.instance.take().map_or(Ok(()), Instance::remove)
    }
}
