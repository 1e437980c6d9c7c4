//! A program stopped at an instruction, and the values that fetches read there: evaluates a
//! `Fetch` independently of the code generated for probes.

use std::path::Path;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{Case, Debug, Length, Site, TypedFetch, VariableError};
use capriole_event::{Base, Element, Fetch, FieldType, Gpr, Shown};
use capriole_host::host::TargetMemory;
use capriole_host::ptrace::launch::{Launched, launch};
use capriole_host::ptrace::memory::RemoteMemory;
use capriole_host::ptrace::requests as ptrace;
use capriole_host::ptrace::requests::Event;
use capriole_object::{ObjectFile, Objects};

pub struct Stopped {
    launched: Launched,
    pub bias: u64,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.launched.child.kill();
    }
}

fn pid(launched: &Launched) -> i32 {
    launched.process.pid() as i32
}

impl Stopped {
    /// Runs a program until it reaches the instruction at a link address for the first
    /// time.
    pub fn at(program: &Path, address: u64) -> Stopped {
        let launched = launch(&program.into(), &[]).unwrap();
        let objects = Objects::of_process(&launched.process).unwrap();
        let bias = crate::objects::main_object(&objects).run_time(0);
        let tid = pid(&launched);
        ptrace::set_hardware_breakpoints(tid, &[address + bias]).unwrap();
        loop {
            ptrace::cont(tid, 0).unwrap();
            match ptrace::wait(tid, true).unwrap() {
                Some(Event::Signal(libc::SIGTRAP)) => break,
                Some(Event::Gone(status)) => panic!("ended without coming by: {status:#x}"),
                _ => {}
            }
        }
        assert_eq!(ptrace::registers(tid).unwrap().rip, address + bias);
        Stopped { launched, bias }
    }

    fn memory(&self, address: u64, len: usize) -> Vec<u8> {
        let memory = RemoteMemory::open(pid(&self.launched)).unwrap();
        let mut bytes = vec![0; len];
        memory.read(address, &mut bytes).unwrap();
        bytes
    }

    fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.memory(address, 8).try_into().unwrap())
    }

    fn register(&self, register: Gpr) -> u64 {
        let r = ptrace::registers(pid(&self.launched)).unwrap();
        let all = [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ];
        all[register as usize]
    }

    /// The lowest eight bytes of a vector register.
    fn vector(&self, number: u8) -> u64 {
        // Legacy region of the XSAVE area (Intel SDM, volume 1, 10.5.1).
        let state = ptrace::xstate(pid(&self.launched)).unwrap();
        let at = 160 + 16 * usize::from(number);
        u64::from_le_bytes(state[at..at + 8].try_into().unwrap())
    }

    /// Returns the value of a typed fetch, as the kernel would print it.
    pub fn shows(&self, typed: &TypedFetch) -> String {
        let bias = if typed.link_address { self.bias } else { 0 };
        let Fetch { base, derefs } = &typed.fetch;
        let mut offsets: Vec<i64> = derefs.iter().map(|deref| deref.offset).collect();
        // The last read has the field's own size.
        let (mut value, direct) = match base {
            Base::Register(register) => (self.register(*register), true),
            Base::Immediate(value) => (value.wrapping_add(bias), true),
            Base::Address(address) => {
                offsets.insert(0, 0);
                (address.wrapping_add(bias), true)
            }
            Base::Vector(number) => (self.vector(*number), true),
            base => panic!("{base:?}"),
        };
        assert!(direct);
        let Some(last) = offsets.pop() else {
            return shown(&value.to_le_bytes(), typed.field_type);
        };
        for offset in offsets {
            value = self.word(value.wrapping_add_signed(offset));
        }
        let address = value.wrapping_add_signed(last);
        match typed.field_type.element {
            Element::CallStack { .. } => panic!("debug information has no call stacks"),
            Element::Ipv6 => panic!("debug information has no addresses of IPv6"),
            Element::String { .. } if typed.length.is_some() => {
                let (of, less) = match typed.length.as_deref().unwrap() {
                    Length::Number { of, less, .. } => (of, *less),
                    Length::Cases(cases) => {
                        let tag = self.memory(address, 1)[0];
                        let holds = |case: &&Case| {
                            u16::from(tag >> case.bits.offset) % (1 << case.bits.width)
                                == case.equal.into()
                        };
                        let case = cases.iter().find(holds).and_then(|case| case.text.as_ref());
                        return case.map_or("fault".to_owned(), |text| self.shows(text));
                    }
                };
                let length: u64 = self.shows(of).parse().unwrap();
                let length = (length - less) as usize;
                format!(
                    "{:?}",
                    String::from_utf8(self.memory(address, length)).unwrap()
                )
            }
            Element::String { .. } => {
                let mut text = Vec::new();
                for at in address.. {
                    match self.memory(at, 1)[0] {
                        0 => break,
                        byte => text.push(byte),
                    }
                }
                format!("{:?}", String::from_utf8(text).unwrap())
            }
            Element::Number { bytes, .. } => {
                let count = typed.field_type.count.unwrap_or(1);
                let one = FieldType {
                    count: None,
                    ..typed.field_type
                };
                let values: Vec<String> = (0..u64::from(count))
                    .map(|i| {
                        let size = usize::from(bytes);
                        shown(&self.memory(address + i * size as u64, size), one)
                    })
                    .collect();
                match typed.field_type.count {
                    Some(_) => format!("{{{}}}", values.join(",")),
                    None => values.concat(),
                }
            }
        }
    }
}

fn shown(bytes: &[u8], field: FieldType) -> String {
    let Element::Number {
        shown,
        bytes: size,
        bits,
    } = field.element
    else {
        panic!("a string in a register");
    };
    let mut word = [0; 8];
    word[..usize::from(size)].copy_from_slice(&bytes[..usize::from(size)]);
    let mut value = u64::from_le_bytes(word);
    let mut width = u32::from(size) * 8;
    if let Some(bits) = bits {
        assert!(bits.offset + bits.width <= size * 8);
        value >>= bits.offset;
        width = u32::from(bits.width);
    }
    let value = value << (64 - width) >> (64 - width);
    match shown {
        Shown::Signed | Shown::Descriptor => {
            ((value << (64 - width)) as i64 >> (64 - width)).to_string()
        }
        Shown::Unsigned | Shown::Network | Shown::Ipv4 => value.to_string(),
        Shown::Hexadecimal | Shown::Symbol => format!("{value:#x}"),
        Shown::Character => format!("'{}'", char::from(value as u8)),
        Shown::Float if size == 4 => f32::from_bits(value as u32).to_string(),
        Shown::Float => f64::from_bits(value).to_string(),
    }
}

/// A variable, without dereferences around it.
pub fn variable(text: &str) -> Fetch {
    Fetch {
        base: Base::Variable(text.to_owned()),
        derefs: Vec::new(),
    }
}

pub fn ask(
    debug: &Debug<'_>,
    site: &Site,
    text: &str,
    wanted: Option<FieldType>,
) -> Result<TypedFetch, VariableError> {
    debug.fetch(site, &variable(text), wanted)
}

/// Checks the values of variables at the first instruction of a site that the program executes.
pub fn check(program: &Path, address: u64, function: Option<&str>, expected: &[(&str, &str)]) {
    let object = ObjectFile::open(program).unwrap();
    let debug = object.debug().unwrap();
    let site = debug.site(address, function).unwrap();
    let stopped = Stopped::at(program, address);
    for (text, value) in expected {
        let found = match ask(&debug, &site, text, None) {
            Ok(typed) => stopped.shows(&typed),
            Err(error) => format!("error {}: {error}", error.at),
        };
        assert_eq!(
            &found,
            value,
            "{text} at {address:#x} of {}",
            program.display()
        );
    }
}
