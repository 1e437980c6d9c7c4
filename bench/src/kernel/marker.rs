//! `kernel.trace_marker`: ftrace's file for messages of programs.

use std::path::PathBuf;

use super::tracefs::Instance;
use crate::process::TargetInfo;

/// An instance whose marker file the target writes to.
#[derive(Debug, Default)]
pub struct TraceMarker {
    instance: Option<Instance>,
}

impl TraceMarker {
    /// Makes the instance; gives the path that the target is to open.
    pub(crate) fn arm(&mut self, _target: &TargetInfo) -> Result<PathBuf, String> {
        let instance = Instance::create()?;
        let path = instance.file("trace_marker");
        if !path.exists() {
            return Err("this kernel's ftrace has no trace_marker".to_owned());
        }
        self.instance = Some(instance);
        Ok(path)
    }

    /// Messages recorded in this round.
    pub(crate) fn hits(&mut self) -> Result<u64, String> {
        self.instance
            .as_ref()
            .ok_or("its instance is gone")?
            .recorded()
    }

    /// Removes the instance; the target has closed the file.
    pub(crate) fn disarm(&mut self) -> Result<(), String> {
        self.instance.take().map_or(Ok(()), Instance::remove)
    }
}
