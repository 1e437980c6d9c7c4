//! `kernel.uprobe`, `kernel.uprobe_4args`, `kernel.uretprobe` and `kernel.uprobe_nop5`: kernel uprobe events on a copy of
//! the function.

use std::fs;
use std::os::unix::fs::FileExt;

use super::tracefs::{self, Instance, append, remove_event};
use crate::function::Function;
use crate::process::TargetInfo;
use crate::runner::Probe;

/// `call rel32`.
const CALL: u8 = 0xe8;

/// Type of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On the entry of [`Function::Uprobe`], reached by a breakpoint, with `%di` and `%si`.
    Entry,
    /// On the return of [`Function::Uretprobe`], with its value.
    Return,
    /// On the entry of [`Function::UprobeNop5`], with `%di` and `%si`. Since Linux 6.18 the kernel
    /// replaces a five-byte nop, at the first hit, by a call to code that enters the kernel by a
    /// system call instead of a trap.
    Nop5,
    /// On the entry of [`Function::Uprobe4Args`], with the registers of four arguments.
    Entry4Args,
}

impl Kind {
    /// The copy that the event is placed on.
    pub fn function(self) -> Function {
        match self {
            Kind::Entry => Function::Uprobe,
            Kind::Return => Function::Uretprobe,
            Kind::Nop5 => Function::UprobeNop5,
            Kind::Entry4Args => Function::Uprobe4Args,
        }
    }
}

/// A uprobe event.
#[derive(Debug)]
pub struct Uprobe {
    kind: Kind,
    armed: Option<Armed>,
}

impl Uprobe {
    /// Creates an event that is not armed.
    pub fn new(kind: Kind) -> Uprobe {
        Uprobe { kind, armed: None }
    }
}

/// The event and the instance that it records into; both are removed on drop.
#[derive(Debug)]
struct Armed {
    /// `None` once it was removed.
    instance: Option<Instance>,
    event: String,
}

impl Armed {
    fn of(target: &TargetInfo, kind: Kind) -> Result<Armed, String> {
        let offset = target
            .file_offset(kind.function())
            .map_err(|error| error.to_string())?;
        match kind {
            Kind::Entry | Kind::Nop5 => Armed::new(target, 'p', offset, "arg1=%di arg2=%si"),
            Kind::Entry4Args => {
                Armed::new(target, 'p', offset, "arg1=%di arg2=%si arg3=%dx arg4=%cx")
            }
            Kind::Return => Armed::new(target, 'r', offset, "ret=$retval"),
        }
    }

    fn new(target: &TargetInfo, what: char, offset: u64, fetched: &str) -> Result<Armed, String> {
        let instance = Instance::create()?;
        let events = instance.tracefs().file("uprobe_events");
        if !events.exists() {
            return Err("this kernel has no uprobe events (CONFIG_UPROBE_EVENTS)".to_owned());
        }
        let event = format!("{}/hit", tracefs::unique_name());
        // This path needs no quoting, whatever the file's name is.
        let executable = format!("/proc/{}/exe", target.pid);
        let definition = format!("{what}:{event} {executable}:{offset:#x} {fetched}\n");
        append(&events, &definition)?;
        let armed = Armed {
            instance: Some(instance),
            event,
        };
        armed.enable(true)?;
        Ok(armed)
    }

    fn enable(&self, on: bool) -> Result<(), String> {
        let Some(instance) = &self.instance else {
            return Ok(());
        };
        append(
            &instance.file(&format!("events/{}/enable", self.event)),
            if on { "1" } else { "0" },
        )
    }

    /// Returns the number of events that the kernel has recorded.
    fn hits(&self) -> Result<u64, String> {
        self.instance
            .as_ref()
            .ok_or("its instance is gone")?
            .recorded()
    }

    fn remove(&mut self) -> Result<(), String> {
        let disabled = self.enable(false);
        let Some(instance) = self.instance.take() else {
            return Ok(());
        };
        let event = remove_event(instance.tracefs(), &self.event);
        disabled.and(event).and(instance.remove())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

impl Probe for Uprobe {
    fn arm(&mut self, target: &TargetInfo) -> Result<(), String> {
        self.armed = Some(Armed::of(target, self.kind)?);
        Ok(())
    }

    fn check(&mut self, target: &TargetInfo) -> Result<(), String> {
        if self.kind != Kind::Nop5 {
            return Ok(());
        }
        let mut byte = [0];
        let address = target.address(self.kind.function());
        fs::File::open(format!("/proc/{}/mem", target.pid))
            .and_then(|memory| memory.read_exact_at(&mut byte, address))
            .map_err(|error| format!("cannot read the target's memory: {error}"))?;
        match byte {
            [CALL] => Ok(()),
            [byte] => Err(format!(
                "the kernel has not made a call of the nop, which Linux 6.18 was the first to do \
                 (the byte there is {byte:#04x})"
            )),
        }
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        self.armed.as_ref().map(Armed::hits).transpose()
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.armed.take().map_or(Ok(()), |mut armed| armed.remove())
    }
}

/// A uprobe event at an offset in the program's file.
#[derive(Debug, Default)]
pub struct UprobeAt {
    armed: Option<Armed>,
}

impl UprobeAt {
    /// Arms the event at `offset`; `fetched` lists what it records, in the syntax of
    /// `uprobe_events`.
    ///
    /// # Errors
    /// One line: why it cannot be armed.
    pub fn arm(&mut self, target: &TargetInfo, offset: u64, fetched: &str) -> Result<(), String> {
        self.armed = Some(Armed::new(target, 'p', offset, fetched)?);
        Ok(())
    }

    /// Returns the number of events that the kernel has recorded.
    ///
    /// # Errors
    ///
    /// The count cannot be read.
    pub fn hits(&self) -> Result<Option<u64>, String> {
        self.armed.as_ref().map(Armed::hits).transpose()
    }

    /// Removes the event.
    ///
    /// # Errors
    ///
    /// One line: what was left behind.
    pub fn disarm(&mut self) -> Result<(), String> {
        self.armed.take().map_or(Ok(()), |mut armed| armed.remove())
    }
}
