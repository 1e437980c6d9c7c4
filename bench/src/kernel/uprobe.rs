//! `kernel.uprobe`, `kernel.uretprobe` and `kernel.uprobe_nop5`: events of the kernel on
//! a copy of the function.

use std::fs;
use std::os::unix::fs::FileExt;

use super::tracefs::{self, Instance, append, remove_event};
use crate::function::Function;
use crate::process::TargetInfo;
use crate::runner::Probe;

/// `call rel32`.
const CALL: u8 = 0xe8;

/// What the event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On the entry of [`Function::Uprobe`], reached by a breakpoint, with `%di` and `%si`.
    Entry,
    /// On the return of [`Function::Uretprobe`], with its value.
    Return,
    /// On the entry of [`Function::UprobeNop5`], with `%di` and `%si`. Since Linux 6.18 the
    /// kernel makes of a nop of five bytes, at the first hit, a call to code that enters it
    /// by a system call instead of a trap.
    Nop5,
}

impl Kind {
    /// The copy that it is put on.
    pub fn function(self) -> Function {
        match self {
            Kind::Entry => Function::Uprobe,
            Kind::Return => Function::Uretprobe,
            Kind::Nop5 => Function::UprobeNop5,
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
    /// One that is not armed.
    pub fn new(kind: Kind) -> Uprobe {
        Uprobe { kind, armed: None }
    }
}

/// The event and the instance that it records into; both go when it is dropped.
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
        // The path that needs no quoting, whatever the file is called.
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

    /// Events that the kernel has recorded.
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

/// A uprobe event at a place of the program's file.
#[derive(Debug, Default)]
pub struct UprobeAt {
    armed: Option<Armed>,
}

impl UprobeAt {
    /// Puts it there; `fetched` is what it records, as `uprobe_events` wants it.
    ///
    /// # Errors
    ///
    /// One line: what hinders it.
    pub fn arm(&mut self, target: &TargetInfo, offset: u64, fetched: &str) -> Result<(), String> {
        self.armed = Some(Armed::new(target, 'p', offset, fetched)?);
        Ok(())
    }

    /// Events that the kernel has recorded.
    ///
    /// # Errors
    ///
    /// The count cannot be read.
    pub fn hits(&self) -> Result<Option<u64>, String> {
        self.armed.as_ref().map(Armed::hits).transpose()
    }

    /// Takes it out.
    ///
    /// # Errors
    ///
    /// One line: what was left behind.
    pub fn disarm(&mut self) -> Result<(), String> {
        self.armed.take().map_or(Ok(()), |mut armed| armed.remove())
    }
}
