//! `metadata`: the description of the streams in CTF's own language, TSDL 1.8.

mod fields;

use std::fmt::Write;

use crate::document::{Document, EventInfo};

/// The reserved words of TSDL (CTF 1.8, section 7.3, including the C keywords that it adopts).
const KEYWORDS: [&str; 30] = [
    "align",
    "callsite",
    "const",
    "char",
    "clock",
    "double",
    "enum",
    "env",
    "event",
    "floating_point",
    "float",
    "integer",
    "int",
    "long",
    "short",
    "signed",
    "stream",
    "string",
    "struct",
    "trace",
    "typealias",
    "typedef",
    "unsigned",
    "variant",
    "void",
    "_Bool",
    "_Complex",
    "_Imaginary",
    "true",
    "false",
];

/// The metadata without clock, environment and events.
const STREAM: &str = "\
stream {
	id = 0;
	packet.context := struct {
		tsc_t timestamp_begin;
		tsc_t timestamp_end;
		uint64_t content_size;
		uint64_t packet_size;
		uint64_t packet_seq_num;
		uint64_t events_discarded;
		uint32_t cpu_id;
		uint32_t lane;
	};
	event.header := struct {
		tsc_t timestamp;
		uint32_t id;
	};
	event.context := struct {
		uint32_t tid;
	};
};
";

/// The types used in the streams; `tsc_t` needs the clock, and its alignment places each record
/// after the padding of the previous one.
const TYPES: &str = "\
typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
";

/// Returns the contents of the metadata file.
pub(crate) fn metadata(document: &Document, uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(2048 + 160 * document.events.len());
    let clock = &document.clock;
    let (major, minor) = version(&document.tracer.version);
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "/* CTF 1.8 */\n\n{TYPES}{fields}\n\
         trace {{\n\tmajor = 1;\n\tminor = 8;\n\tuuid = \"{uuid}\";\n\tbyte_order = le;\n\
         \tpacket.header := struct {{\n\t\tuint32_t magic;\n\t\tuint8_t uuid[16];\n\
         \t\tuint32_t stream_id;\n\t}};\n}};\n\n\
         env {{\n\ttracer_name = {tracer};\n\ttracer_major = {major};\n\ttracer_minor = {minor};\n\
         \tpid = {pid};\n\texecutable = {executable};\n}};\n\n\
         clock {{\n\tname = \"tsc\";\n\tdescription = \"time stamp counter\";\n\
         \tfreq = {freq};\n\toffset_s = {offset_s};\n\toffset = {offset};\n\tabsolute = TRUE;\n}};\n\n\
         typealias integer {{ size = 64; align = 64; signed = false; map = clock.tsc.value; }} := tsc_t;\n\n\
         {STREAM}",
        fields = fields::TYPES,
        uuid = uuid_text(uuid),
        tracer = quoted(&document.tracer.name),
        pid = document.target.pid,
        executable = quoted(&document.target.executable),
        freq = clock.freq_hz,
        offset_s = clock.offset_s,
        offset = clock.offset_cycles,
    );
    for event in &document.events {
        write_event(&mut text, event);
    }
    text
}

/// Writes one event declaration.
fn write_event(text: &mut String, event: &EventInfo) {
    let _ = write!(
        text,
        "\nevent {{\n\tname = {};\n\tid = {};\n\tstream_id = 0;\n\tfields := struct {{\n",
        quoted(&event.name),
        event.id
    );
    fields::write_fields(text, event);
    text.push_str("\t};\n};\n");
}

/// Returns a TSDL string literal. Control characters, for which readers disagree about escapes,
/// become `?`.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if capriole_text::is_hidden(c) => quoted.push('?'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// `01234567-89ab-cdef-0123-456789abcdef`
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Parses the format of [`uuid_text`].
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut uuid = [0; 16];
    for (at, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(uuid)
}

/// Returns the major and minor numbers of `major.minor.patch`.
fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(quoted("a\"b\\c\nd é"), r#""a\"b\\c?d é""#);
    }

    #[test]
    fn a_uuid_survives_the_round_trip() {
        let uuid = *b"\x00\x01\xff3456789abcdef";
        assert_eq!(parse_uuid(&uuid_text(&uuid)), Some(uuid));
        assert_eq!(parse_uuid("zz"), None);
        assert_eq!(parse_uuid("+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1"), None);
    }
}
