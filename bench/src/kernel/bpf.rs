//! `kernel.uprobe_bpf` and `kernel.uretprobe_bpf`: uprobes with a handler in BPF that counts, as
//! tools on libbpf attach them. There is neither a daemon nor a compiler: the handler is six
//! instructions, loaded by bpf(2), and perf_event_open(2) makes the uprobes. Both end with their
//! descriptors, so that nothing stays of a killed benchmark.

use std::ffi::{CStr, CString, c_int, c_long};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::function::Function;
use crate::process::TargetInfo;
use crate::runner::Probe;

/// Directory of the kernel's uprobes among the sources of perf events.
const SOURCE: &str = "/sys/bus/event_source/devices/uprobe";
/// The handler uses no function that is reserved for the GPL.
const LICENSE: &CStr = c"Dual MIT/GPL";

// Commands, types and flags of <linux/bpf.h> and <linux/perf_event.h>.
const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_LOOKUP_ELEM: c_int = 1;
const BPF_PROG_LOAD: c_int = 5;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const PERF_EVENT_IOC_SET_BPF: u64 = 0x4004_2408;

/// The side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Its entry: a uprobe.
    Entry,
    /// Its return: a uretprobe, whose offset is the function's as well.
    Return,
}

/// An instruction of BPF.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// The destination in the lower four bits, the source in the upper ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    const fn new(code: u8, registers: u8, immediate: i32) -> Instruction {
        Instruction {
            code,
            registers,
            offset: 0,
            immediate,
        }
    }
}

/// Returns the handler: it increments the first value of the map, and tells the kernel to do
/// nothing more.
fn handler(map: &OwnedFd) -> [Instruction; 6] {
    [
        // r1 = address of the value: BPF_LD | BPF_IMM | BPF_DW with BPF_PSEUDO_MAP_VALUE.
        Instruction::new(0x18, 0x21, map.as_raw_fd()),
        Instruction::new(0, 0, 0),
        // r2 = 1: BPF_ALU64 | BPF_MOV | BPF_K.
        Instruction::new(0xb7, 0x02, 1),
        // lock *(u64 *)r1 += r2: BPF_STX | BPF_ATOMIC | BPF_DW with BPF_ADD.
        Instruction::new(0xdb, 0x21, 0),
        // r0 = 0, and BPF_JMP | BPF_EXIT.
        Instruction::new(0xb7, 0x00, 0),
        Instruction::new(0x95, 0, 0),
    ]
}

/// What BPF_MAP_CREATE reads. The kernel takes the fields after these as 0, here and below.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

/// What BPF_MAP_LOOKUP_ELEM reads.
#[repr(C)]
struct MapLookup {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// What BPF_PROG_LOAD reads.
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
}

/// `struct perf_event_attr`, as far as PERF_ATTR_SIZE_VER1.
#[repr(C)]
#[derive(Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    /// Address of the file's path.
    path: u64,
    /// Offset in the file.
    offset: u64,
}

/// A handler in BPF that counts, and the uprobes that call it. They end when it is dropped.
#[derive(Debug)]
pub struct BpfCounter {
    map: OwnedFd,
    program: OwnedFd,
    uprobes: Vec<OwnedFd>,
}

impl BpfCounter {
    /// Loads the handler.
    ///
    /// # Errors
    /// One line: the kernel has no BPF, or does not permit it to this user.
    pub fn new() -> Result<BpfCounter, String> {
        let map = MapCreate {
            kind: BPF_MAP_TYPE_ARRAY,
            key_bytes: 4,
            value_bytes: 8,
            entries: 1,
        };
        // SAFETY: it has no addresses.
        let map = unsafe { bpf(BPF_MAP_CREATE, &map) };
        let map = map.and_then(owned).map_err(|error| unable(&error))?;
        let code = handler(&map);
        let load = ProgramLoad {
            kind: BPF_PROG_TYPE_KPROBE,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
        };
        // SAFETY: both addresses are of values that outlive the call, which only reads them.
        let program = unsafe { bpf(BPF_PROG_LOAD, &load) };
        let program = program.and_then(owned).map_err(|error| unable(&error))?;
        Ok(BpfCounter {
            map,
            program,
            uprobes: Vec::new(),
        })
    }

    /// Attaches the handler to the function at this offset in a file, in the process only.
    ///
    /// # Errors
    /// One line: the kernel has no such uprobes, or does not permit them to this user.
    pub fn attach(
        &mut self,
        pid: u32,
        file: &Path,
        offset: u64,
        moment: Moment,
    ) -> Result<(), String> {
        let path = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let attributes = EventAttributes {
            kind: described("type", |text| text.parse().ok())?,
            size: size_of::<EventAttributes>() as u32,
            config: match moment {
                Moment::Entry => 0,
                Moment::Return => 1 << described("format/retprobe", bit)?,
            },
            path: path.as_ptr() as u64,
            offset,
            ..EventAttributes::default()
        };
        let (any_cpu, no_group): (c_int, c_int) = (-1, -1);
        // SAFETY: the attributes and the path in them outlive the call, which only reads them.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                pid as c_int,
                any_cpu,
                no_group,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let event = returned(event).and_then(owned).map_err(|error| {
            let permitted = !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
            match permitted {
                true => format!("perf_event_open(2) makes no uprobe: {error}"),
                false => {
                    "perf_event_open(2) makes uprobes only for root (CAP_SYS_ADMIN)".to_owned()
                }
            }
        })?;
        let program = self.program.as_raw_fd();
        // SAFETY: this request takes a number.
        let set = unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program) };
        returned(set.into())
            .map_err(|error| format!("the kernel attaches no BPF to a uprobe: {error}"))?;
        self.uprobes.push(event);
        Ok(())
    }

    /// Returns the number of calls of the handler.
    ///
    /// # Errors
    /// One line: it cannot be read.
    pub fn hits(&self) -> Result<u64, String> {
        let (key, mut value) = (0_u32, 0_u64);
        let lookup = MapLookup {
            map: self.map.as_raw_fd() as u32,
            padding: 0,
            key: &raw const key as u64,
            value: &raw mut value as u64,
            flags: 0,
        };
        // SAFETY: both addresses are of values of the map's sizes that outlive the call, which
        // writes the second one.
        let found = unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &lookup) };
        found.map_err(|error| format!("cannot read the map of the handler in BPF: {error}"))?;
        Ok(value)
    }
}

/// Calls bpf(2).
///
/// # Safety
///
/// Addresses in the attributes are valid for what the command does with them.
unsafe fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_long> {
    // SAFETY: the attributes outlive the call; the caller answers for what they refer to.
    returned(unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) })
}

/// Converts the result of a system call.
fn returned(result: c_long) -> io::Result<c_long> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a descriptor that a system call has returned.
fn owned(descriptor: c_long) -> io::Result<OwnedFd> {
    let descriptor = c_int::try_from(descriptor).map_err(io::Error::other)?;
    // SAFETY: it was opened for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Returns the message for bpf(2) that does not work.
fn unable(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "only root (CAP_SYS_ADMIN) may load BPF".to_owned(),
        Some(libc::ENOSYS) => "this kernel has no bpf(2) (CONFIG_BPF_SYSCALL)".to_owned(),
        _ => format!("the kernel does not load the handler in BPF: {error}"),
    }
}

/// Reads a file of [`SOURCE`].
fn described(name: &str, parse: impl Fn(&str) -> Option<u32>) -> Result<u32, String> {
    let path = Path::new(SOURCE).join(name);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "this kernel makes no uprobes for perf_event_open(2) (CONFIG_UPROBE_EVENTS): there is \
             no {}",
            path.display()
        ),
        _ => format!("cannot read {}: {error}", path.display()),
    })?;
    let value = parse(text.trim());
    value.ok_or_else(|| format!("{} is {text:?}", path.display()))
}

/// Parses `config:BIT`.
fn bit(text: &str) -> Option<u32> {
    let bit = text.strip_prefix("config:")?.parse().ok();
    bit.filter(|bit| *bit < u64::BITS)
}

/// A uprobe with a handler in BPF on a copy of the function.
#[derive(Debug)]
pub struct UprobeBpf {
    moment: Moment,
    armed: Option<BpfCounter>,
}

impl UprobeBpf {
    /// Creates a uprobe that is not armed.
    pub fn new(moment: Moment) -> UprobeBpf {
        UprobeBpf {
            moment,
            armed: None,
        }
    }

    /// The copy that the uprobe is placed on.
    pub fn function(&self) -> Function {
        match self.moment {
            Moment::Entry => Function::UprobeBpf,
            Moment::Return => Function::UretprobeBpf,
        }
    }
}

impl Probe for UprobeBpf {
    fn arm(&mut self, target: &TargetInfo) -> Result<(), String> {
        let offset = target.file_offset(self.function());
        let offset = offset.map_err(|error| error.to_string())?;
        let file = PathBuf::from(format!("/proc/{}/exe", target.pid));
        let mut counter = BpfCounter::new()?;
        counter.attach(target.pid, &file, offset, self.moment)?;
        self.armed = Some(counter);
        Ok(())
    }

    fn hits(&mut self) -> Result<Option<u64>, String> {
        self.armed.as_ref().map(BpfCounter::hits).transpose()
    }

    fn disarm(&mut self) -> Result<(), String> {
        self.armed = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!(size_of::<MapCreate>(), 16);
        assert_eq!(size_of::<MapLookup>(), 32);
        assert_eq!(size_of::<ProgramLoad>(), 24);
        // PERF_ATTR_SIZE_VER1.
        assert_eq!(size_of::<EventAttributes>(), 72);
    }

    #[test]
    fn the_bit_of_a_return_is_read() {
        assert_eq!(bit("config:0"), Some(0));
        assert_eq!(bit("config:64"), None);
        assert_eq!(bit("config1:0"), None);
        assert_eq!(bit("config:0-3"), None);
    }
}
