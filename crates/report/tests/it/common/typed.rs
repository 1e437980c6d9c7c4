//! Events with fields of every type, and random records of them.
//!
//! The bytes are built here from the format's description, not by the crate.

use std::path::Path;

use capriole_event::{Element, FieldType, Shown};
use capriole_trace::{EventInfo, FieldInfo, PacketMeta, StackEnd, TraceWriter, Value};

use super::{Random, START};

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Owned {
    Unsigned(u64),
    Signed(i64),
    Hexadecimal(u64),
    /// The bits, because a NaN does not equal itself.
    Single(u32),
    Double(u64),
    Character(u8),
    Symbol(u64),
    Ipv4(u32),
    Ipv6([u8; 16]),
    Text(Vec<u8>),
    Array(Vec<Owned>),
    /// Addresses, and the reason for the end.
    CallStack(Vec<u64>, StackEnd),
    Fault,
}

pub fn owned(value: Value<'_>) -> Owned {
    match value {
        Value::Unsigned(value) => Owned::Unsigned(value),
        Value::Signed(value) => Owned::Signed(value),
        Value::Hexadecimal(value) => Owned::Hexadecimal(value),
        Value::Single(value) => Owned::Single(value.to_bits()),
        Value::Double(value) => Owned::Double(value.to_bits()),
        Value::Character(value) => Owned::Character(value),
        Value::Symbol(value) => Owned::Symbol(value),
        Value::Ipv4(value) => Owned::Ipv4(value.into()),
        Value::Ipv6(value) => Owned::Ipv6(value.octets()),
        Value::Enumerated(number) => match number.signed {
            true => Owned::Signed(number.value),
            false => Owned::Unsigned(number.value as u64),
        },
        Value::Descriptor(descriptor) => Owned::Signed(descriptor.number.into()),
        Value::Text(text) => Owned::Text(text.to_vec()),
        Value::Array(values) => Owned::Array(values.iter().map(owned).collect()),
        Value::CallStack(stack) => Owned::CallStack(stack.addresses().collect(), stack.end),
        Value::Fault => Owned::Fault,
    }
}

/// An event with fields `NAME:TYPE`.
pub fn event(id: u32, name: &str, fields: &[&str], faults: bool) -> EventInfo {
    let field = |text: &&str| {
        let (name, field_type) = text.split_once(':').unwrap();
        FieldInfo::new(name.to_string(), field_type.parse().unwrap())
    };
    EventInfo {
        fields: fields.iter().map(field).collect(),
        faults,
        ..super::event(id, name, &[])
    }
}

/// Every type; each kind also as the last field of its event, and after a field that does not
/// end at a multiple of 8 bytes.
pub fn events() -> Vec<EventInfo> {
    let numbers = [
        "a:u8", "b:u16", "c:u32", "d:u64", "e:s8", "f:s16", "g:s32", "h:s64", "i:x8", "j:x16",
        "k:x32", "l:x64", "m:symbol", "n:char", "o:f32", "p:f64", "q:be16", "r:be32", "s:be64",
        "t:ipv4", "u:fd",
    ];
    let bits = [
        "a:b3@5/32",
        "b:b1@0/8",
        "c:b64@0/64",
        "d:b1@63/64",
        "e:b4@7/16",
        "f:s3@5/32",
        "g:s64@0/64",
        "h:x7@9/16",
        "i:c8@8/64",
        "j:f32@32/64",
        "k:f32@0/64",
    ];
    let arrays = [
        "a:u8[3]",
        "b:u16[5]",
        "c:s32[2]",
        "d:x64[2]",
        "e:char[4]",
        "f:u8",
        "v:ipv6",
        "g:symbol[2]",
        "h:b3@5/16[3]",
        "i:b8@0/8[64]",
        "j:s8[1]",
        "k:f32[3]",
        "l:f64[2]",
    ];
    let strings = [
        "path:string",
        "size:u32",
        "name:ustring",
        "list:u16[3]",
        "peer:ipv6",
        "last:string",
    ];
    vec![
        event(0, "numbers", &numbers, false),
        event(1, "bits", &bits, false),
        event(2, "arrays", &arrays, false),
        event(3, "strings", &strings, false),
        event(4, "lists", &["names:string[2]", "last:ustring[3]"], false),
        event(
            5,
            "faults",
            &[
                "fd:s32",
                "path:string",
                "list:u16[3]",
                "names:string[2]",
                "flags:x32",
            ],
            true,
        ),
        event(6, "nothing", &[], true),
        event(70_000, "words", &["a:x64", "b:x64"], false),
    ]
}

/// A record: time, index of the event in the list, thread, CPU, fields.
pub type Expected = (u64, usize, u32, u32, Vec<Owned>);

/// Makes values and their bytes.
pub struct Maker {
    pub random: Random,
    /// Use only text that every reader shows in the same way, and set the bits around numbers to
    /// ones.
    pub plain: bool,
}

impl Maker {
    /// Returns the bytes of a record, and the values of its fields.
    pub fn record(&mut self, time: u64, event: &EventInfo, tid: u32) -> (Vec<u8>, Vec<Owned>) {
        let mut bytes = super::record(time, event.id, tid, &[]);
        let mask = match event.faults {
            true => self.random.below(1 << event.fields.len()),
            false => 0,
        };
        if event.faults {
            bytes.extend_from_slice(&mask.to_le_bytes());
        }
        let mut values = Vec::new();
        for (at, field) in event.fields.iter().enumerate() {
            match mask >> at & 1 {
                0 => values.push(self.field(field.field_type, &mut bytes)),
                _ => {
                    empty(field.field_type, &mut bytes);
                    values.push(Owned::Fault);
                }
            }
        }
        assert!(bytes.len().is_multiple_of(8));
        (bytes, values)
    }

    fn field(&mut self, field_type: FieldType, bytes: &mut Vec<u8>) -> Owned {
        let value = match (field_type.element, field_type.count) {
            (Element::String { .. }, None) => self.string(bytes),
            (Element::String { .. }, Some(count)) => {
                Owned::Array((0..count).map(|_| self.string(bytes)).collect())
            }
            (Element::CallStack { .. }, _) => unreachable!("tests/it/call_stacks.rs makes them"),
            (Element::Ipv6, None) => {
                let address: [u8; 16] = std::array::from_fn(|_| self.random.below(256) as u8);
                bytes.extend_from_slice(&address);
                Owned::Ipv6(address)
            }
            (Element::Ipv6, Some(_)) => unreachable!("there are no arrays of addresses"),
            (element, None) => {
                let (value, raw) = self.number(element);
                bytes.extend_from_slice(&raw.to_le_bytes());
                value
            }
            (element @ Element::Number { bytes: size, .. }, Some(count)) => {
                let mut values = Vec::new();
                for _ in 0..count {
                    let (value, raw) = self.number(element);
                    bytes.extend_from_slice(&raw.to_le_bytes()[..usize::from(size)]);
                    values.push(value);
                }
                Owned::Array(values)
            }
        };
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        value
    }

    fn string(&mut self, bytes: &mut Vec<u8>) -> Owned {
        let length = self.random.below(24) as usize;
        let text: Vec<u8> = match self.plain {
            true => "größer als ein Wort von 8 Bytes 日本"
                .chars()
                .skip(self.random.below(30) as usize)
                .take(length)
                .collect::<String>()
                .into_bytes(),
            false => (0..length).map(|_| self.random.below(256) as u8).collect(),
        };
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&text);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        Owned::Text(text)
    }

    /// Returns a number, and the eight bytes that contain it.
    fn number(&mut self, element: Element) -> (Owned, u64) {
        let Element::Number { shown, bytes, bits } = element else {
            unreachable!("a number");
        };
        let (width, offset) = match bits {
            Some(bits) => (u32::from(bits.width), u32::from(bits.offset)),
            None => (u32::from(bytes) * 8, 0),
        };
        let mask = u64::MAX >> (64 - width);
        let mut value = self.random.below(u64::MAX) & mask;
        if self.plain && shown == Shown::Character {
            value = u64::from(b'a') + value % 26;
        }
        if self.plain && shown == Shown::Float {
            // Few digits, so that all readers show them.
            let quarters = (value % 4_000) as f64 / 4.0 - 500.0;
            value = match width {
                32 => u64::from((quarters as f32).to_bits()),
                _ => quarters.to_bits(),
            };
        }
        let around = match self.plain {
            true => u64::MAX,
            false => self.random.below(u64::MAX),
        };
        let raw = around & !(mask << offset) | value << offset;
        let signed = match value >> (width - 1) & 1 {
            0 => i128::from(value),
            _ => i128::from(value) - (1 << width),
        };
        let value = match shown {
            Shown::Unsigned | Shown::Network => Owned::Unsigned(value),
            Shown::Signed | Shown::Descriptor => Owned::Signed(signed as i64),
            Shown::Hexadecimal => Owned::Hexadecimal(value),
            Shown::Character => Owned::Character(value as u8),
            Shown::Symbol => Owned::Symbol(value),
            Shown::Ipv4 => Owned::Ipv4(value as u32),
            Shown::Float if width == 32 => Owned::Single(value as u32),
            Shown::Float => Owned::Double(value),
        };
        (value, raw)
    }
}

/// Returns the value that replaces a field that could not be read.
fn empty(field_type: FieldType, bytes: &mut Vec<u8>) {
    let count = usize::from(field_type.count.unwrap_or(1));
    let length = match field_type.element {
        Element::String { .. } => 8 * count,
        Element::CallStack { .. } => 8,
        Element::Ipv6 => 16,
        Element::Number { .. } if field_type.count.is_none() => 8,
        Element::Number { bytes, .. } => (usize::from(bytes) * count).next_multiple_of(8),
    };
    bytes.resize(bytes.len() + length, 0);
}

/// Writes `count` records to two streams, in many packets; returns them in time order.
pub fn generate(directory: &Path, count: usize, seed: u64, plain: bool) -> Vec<Expected> {
    let info = capriole_trace::TraceInfo {
        events: events(),
        ..super::info()
    };
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    let mut maker = Maker {
        random: Random(seed),
        plain,
    };
    let mut expected = Vec::new();
    let mut contents = [Vec::new(), Vec::new()];
    let mut packets = [0, 0];
    let mut time = START;
    for n in 0..count {
        time += 1 + maker.random.below(2_000_000);
        let cpu = maker.random.below(2) as usize;
        let index = maker.random.below(info.events.len() as u64) as usize;
        let tid = 4242 + maker.random.below(4) as u32;
        let (bytes, values) = maker.record(time, &info.events[index], tid);
        contents[cpu].extend_from_slice(&bytes);
        expected.push((time, index, tid, cpu as u32, values));
        for (cpu, content) in contents.iter_mut().enumerate() {
            if content.len() > 2000 || n + 1 == count {
                let meta = PacketMeta {
                    cpu: cpu as u32,
                    seq: packets[cpu],
                    ..PacketMeta::default()
                };
                let written = writer.write_packet(&meta, content).unwrap();
                assert_eq!((written.adjusted, written.damaged_bytes), (0, 0));
                packets[cpu] += 1;
                content.clear();
            }
        }
    }
    writer.finish(super::finish()).unwrap();
    expected
}
