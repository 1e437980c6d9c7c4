//! Marker events formatted with their authors' formats, compared with the C library's output
//! for the same formats and values.

use crate::common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use capriole_report::{GraphOptions, TextOptions, write_graph, write_json_lines, write_text};
use capriole_trace::{EventInfo, PacketMeta, TextFormat, Trace, TraceInfo, TraceWriter};
use common::{babeltrace, typed};
use proptest::prelude::*;

/// A value, as it is in the program and in the record.
#[derive(Debug, Clone)]
enum Given {
    /// The bytes of a word.
    Word(u64),
    Text(Vec<u8>),
}

/// An event of a marker: its format, types in the program, fields and their values.
struct Marked {
    info: EventInfo,
    given: Vec<Given>,
    unreadable: u64,
}

fn marked(id: usize, format: &str, types: &[&str], fields: &[&str], given: &[Given]) -> Marked {
    let names: Vec<String> = (1..)
        .map(|n| format!("arg{n}"))
        .take(fields.len())
        .collect();
    let fields: Vec<String> = names
        .iter()
        .zip(fields)
        .map(|(n, f)| format!("{n}:{f}"))
        .collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let arguments = types.iter().map(|text| text.parse().unwrap());
    Marked {
        info: EventInfo {
            format: Some(TextFormat {
                text: format.to_owned(),
                arguments: arguments.collect(),
            }),
            ..typed::event(id as u32, "shop:request", &fields, true)
        },
        given: given.to_vec(),
        unreadable: 0,
    }
}

/// Writes a trace with one event of each.
fn trace(directory: &Path, all: &[Marked]) -> Trace {
    let info = TraceInfo {
        events: all.iter().map(|one| one.info.clone()).collect(),
        ..common::info()
    };
    let mut writer = TraceWriter::create(directory, &info).unwrap();
    let mut content = Vec::new();
    for (n, one) in all.iter().enumerate() {
        let time = common::START + 1000 * n as u64;
        content.extend(common::record(time, one.info.id, 4242, &[one.unreadable]));
        for given in &one.given {
            match given {
                Given::Word(word) => content.extend_from_slice(&word.to_le_bytes()),
                Given::Text(text) => {
                    content.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    content.extend_from_slice(text);
                    content.resize(content.len().next_multiple_of(8), 0);
                }
            }
        }
    }
    writer
        .write_packet(&PacketMeta::default(), &content)
        .unwrap();
    writer.finish(common::finish()).unwrap();
    Trace::open(directory).unwrap()
}

/// Returns the texts of all events, from `--json`.
fn texts(trace: &Trace) -> Vec<Option<String>> {
    let mut lines = Vec::new();
    write_json_lines(trace, &mut lines).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    let text = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event.get("text").map(|t| t.as_str().unwrap().to_owned())
    };
    lines.lines().map(text).collect()
}

/// Returns the rest of each line after the site.
fn lines(trace: &Trace, options: &TextOptions) -> Vec<String> {
    let mut text = Vec::new();
    write_text(trace, &mut text, options).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains(|c: char| c != '\n' && c.is_control()));
    let behind = |line: &str| {
        let (_, rest) = line.split_once("so.0.8.6+0x")?.1.split_once(')')?;
        // A dash if there is nothing.
        Some(rest.strip_prefix(' ').unwrap_or("-").to_owned())
    };
    text.lines().filter_map(behind).collect()
}

/// Reads lines with printf's arguments, and prints its output, in hexadecimal. A line has the
/// type, which of width and precision are arguments, their values, the value, and the format.
const PRINTER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t bytes(const char *digits, char *out) {
  size_t n = 0;
  for (unsigned byte; sscanf(digits, "%2x", &byte) == 1 && *digits != '-'; digits += 2)
    out[n++] = (char)byte;
  out[n] = 0;
  return n;
}

#define STARS(x) \
  switch (stars) { \
    case 0: n = snprintf(out, sizeof out, format, x); break; \
    case 1: n = snprintf(out, sizeof out, format, width, x); break; \
    case 2: n = snprintf(out, sizeof out, format, precision, x); break; \
    default: n = snprintf(out, sizeof out, format, width, precision, x); break; \
  }

int main(void) {
  static char line[8192], first[4096], second[4096], text[4096], format[4096], out[65536];
  while (fgets(line, sizeof line, stdin)) {
    char type;
    int stars, width, precision, n = 0;
    if (sscanf(line, "%c %d %d %d %4000s %4000s", &type, &stars, &width, &precision, first,
               second) != 6)
      return 1;
    bytes(second, format);
    unsigned long long word = strtoull(first, NULL, 16);
    double number;
    memcpy(&number, &word, sizeof number);
    switch (type) {
      case 'i': STARS((int)word) break;
      case 'l': STARS((long)word) break;
      case 'p': STARS((void *)word) break;
      case 'f': STARS(number) break;
      case 's': bytes(first, text); STARS(text) break;
    }
    for (int i = 0; i < n; i++)
      printf("%02x", (unsigned char)out[i]);
    puts("");
  }
}
"#;

/// Returns the program, if there is a C compiler.
fn printer() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let made = PROGRAM.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (
            directory.path().join("printer.c"),
            directory.path().join("printer"),
        );
        std::fs::write(&source, PRINTER).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-w", "-O1", "-o"]).arg(&program).arg(&source);
        let Ok(status) = gcc.status() else {
            println!("skipped: gcc is not installed");
            return None;
        };
        assert!(status.success());
        Some((directory, program))
    });
    made.as_ref().map(|(_, program)| program.as_path())
}

/// One conversion, and its arguments.
#[derive(Debug, Clone)]
struct Case {
    before: String,
    flags: String,
    width: Option<i32>,
    /// True if width and precision are arguments.
    stars: (bool, bool),
    precision: Option<i32>,
    length: &'static str,
    letter: char,
    /// Size of the type in the program.
    bytes: u8,
    signed: bool,
    word: u64,
    text: Vec<u8>,
    after: String,
}

impl Case {
    fn format(&self) -> String {
        let amount = |amount: Option<i32>, star: bool, point: &str| match (amount, star) {
            (None, _) => String::new(),
            (Some(_), true) => format!("{point}*"),
            // A number in the format has no sign.
            (Some(number), false) => format!("{point}{}", number.unsigned_abs()),
        };
        format!(
            "{}%{}{}{}{}{}{}",
            self.before,
            self.flags,
            amount(self.width, self.stars.0, ""),
            amount(self.precision, self.stars.1, "."),
            self.length,
            self.letter,
            self.after
        )
    }

    /// Width and precision, if they are arguments.
    fn arguments(&self) -> [Option<i32>; 2] {
        [
            self.width.filter(|_| self.stars.0),
            self.precision.filter(|_| self.stars.1),
        ]
    }

    fn is_float(&self) -> bool {
        "fFeEgGaA".contains(self.letter)
    }

    /// The value, as a variable of its type holds it.
    fn value(&self) -> i64 {
        let unused = 64 - 8 * u32::from(self.bytes);
        match self.signed {
            true => (self.word << unused) as i64 >> unused,
            false => (self.word << unused >> unused) as i64,
        }
    }

    /// Returns the line for the printer.
    fn line(&self) -> String {
        let hex = |bytes: &[u8]| -> String {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            // The field must not be empty.
            if digits.is_empty() {
                "-".to_owned()
            } else {
                digits
            }
        };
        let (kind, word) = match self.letter {
            's' => ('s', hex(&self.text)),
            'p' => ('p', format!("{:x}", self.word)),
            _ if self.is_float() && self.bytes == 4 => {
                let double = f64::from(f32::from_bits(self.word as u32));
                ('f', format!("{:x}", double.to_bits()))
            }
            _ if self.is_float() => ('f', format!("{:x}", self.word)),
            _ if self.bytes == 8 => ('l', format!("{:x}", self.word)),
            _ => ('i', format!("{:x}", self.value())),
        };
        let [width, precision] = self.arguments();
        let stars = i32::from(width.is_some()) + 2 * i32::from(precision.is_some());
        format!(
            "{kind} {stars} {} {} {word} {}\n",
            width.unwrap_or(0),
            precision.unwrap_or(0),
            hex(self.format().as_bytes())
        )
    }

    fn marked(&self, id: usize) -> Marked {
        let bits = 8 * self.bytes;
        let sign = if self.signed { 's' } else { 'u' };
        let (argument, field) = match self.letter {
            _ if self.is_float() => (format!("f{bits}"), format!("f{bits}")),
            's' => ("u64".to_owned(), "string".to_owned()),
            'd' | 'i' => (format!("{sign}{bits}"), format!("s{bits}")),
            'u' | 'o' => (format!("{sign}{bits}"), format!("u{bits}")),
            'c' => (format!("{sign}{bits}"), "char".to_owned()),
            _ => (format!("{sign}{bits}"), format!("x{bits}")),
        };
        let stars = self.arguments().into_iter().flatten();
        // The bits above the number are ignored.
        let star = |star: i32| Given::Word(0xbad << 32 | u64::from(star as u32));
        let mut given: Vec<Given> = stars.map(star).collect();
        let mut types = vec!["s32"; given.len()];
        let mut fields = types.clone();
        types.push(&argument);
        fields.push(&field);
        given.push(match self.letter {
            's' => Given::Text(self.text.clone()),
            _ => Given::Word(self.word),
        });
        marked(id, &self.format(), &types, &fields, &given)
    }
}

/// Cases whose result C defines.
fn case() -> impl Strategy<Value = Case> {
    let letter = prop::sample::select("diuoxXcspfFeEgGaA".chars().collect::<Vec<_>>());
    let float = prop_oneof![
        any::<u64>(),
        any::<i32>().prop_map(|n| (f64::from(n) / 1000.0).to_bits()),
        (0..1000).prop_map(|n| (f64::from(n) / 8.0).to_bits()),
        (-20..20).prop_map(|n| (10f64.powi(n)).to_bits()),
        // Subnormal numbers, with fewer digits.
        0..1_u64 << 52,
        prop::sample::select(vec![
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            -f64::NAN,
            0.0,
            -0.0,
            0.1 + 0.2,
            9.9999995,
            999_999.5,
            f64::MAX,
            f64::MIN_POSITIVE,
        ])
        .prop_map(f64::to_bits),
    ];
    let whole = prop_oneof![
        Just(0),
        0..300_u64,
        any::<u64>(),
        (-500..500_i64).prop_map(|n| n as u64),
    ];
    let amount = |most: i32| prop::option::of(prop_oneof![0..most, 0..10]);
    let literal = || prop::sample::select(vec!["", "number=", "100%% ", "\n", "größe: "]);
    let style = ("[-+ #0]{0,5}", amount(60), amount(40), any::<[bool; 4]>());
    let length = prop::sample::select(vec!["hh", "h", "", "l", "ll", "z", "j", "t"]);
    let text = prop_oneof![
        prop::collection::vec(1_u8.., 0..50),
        "\\PC{0,20}".prop_map(String::into_bytes)
    ];
    let small = prop::sample::select(vec![1, 2, 4]);
    let value = (whole, float, text, small, any::<bool>());
    (letter, style, length, literal(), literal(), value).prop_map(
        |(letter, (flags, width, precision, more), length, before, after, value)| {
            let (whole, float, text, small, signed) = value;
            let is_float = "fFeEgGaA".contains(letter);
            // C does not define the effect of other flags here. The whole format of a pointer is
            // glibc's.
            let meant = |flag: &char| match letter {
                'c' | 's' => *flag == '-',
                // glibc before 2.38 omits digits if a number is rounded to a power of 10.
                'g' | 'G' => *flag != '#',
                _ => true,
            };
            let (length, bytes) = match letter {
                's' | 'p' => ("", 8),
                'c' => ("", small),
                _ if is_float => ("", if more[0] { 4 } else { 8 }),
                _ if ["", "h", "hh"].contains(&length) => (length, small),
                _ => (length, 8),
            };
            let word = match (is_float, bytes) {
                (true, 4) => u64::from((f64::from_bits(float) as f32).to_bits()),
                (true, _) => float,
                (false, _) => whole,
            };
            // Passing a signalling NaN changes one of its bits.
            let word = match is_float && f64::from_bits(word).is_nan() && bytes == 8 {
                true => f64::NAN.to_bits(),
                false => word,
            };
            let minus = |amount: i32| if more[1] { -amount } else { amount };
            let stars = (more[2], more[3]);
            Case {
                before: before.to_owned(),
                flags: flags.chars().filter(meant).collect(),
                width: width
                    // A zero in this place is a flag.
                    .filter(|width| *width > 0 || stars.0)
                    .map(|width| if stars.0 { minus(width) } else { width }),
                stars,
                precision: precision
                    .filter(|_| letter != 'c')
                    .map(|precision| if stars.1 { minus(precision) } else { precision }),
                length,
                letter,
                bytes,
                signed: signed && !matches!(letter, 's' | 'p'),
                word,
                text,
                after: after.to_owned(),
            }
        },
    )
}

/// Returns C's output for each case.
fn printed(printer: &Path, cases: &[Case]) -> Vec<Vec<u8>> {
    let mut program = Command::new(printer)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input: String = cases.iter().map(Case::line).collect();
    let mut to = program.stdin.take().unwrap();
    let writer = std::thread::spawn(move || to.write_all(input.as_bytes()));
    let output = program.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let byte = |line: &str, at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    text.lines()
        .map(|line| {
            (0..line.len())
                .step_by(2)
                .map(|at| byte(line, at))
                .collect()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20,
        max_shrink_iters: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn texts_are_those_of_printf(cases in prop::collection::vec(case(), 1..1000)) {
        let Some(printer) = printer() else {
            return Ok(());
        };
        let marked: Vec<Marked> = cases.iter().enumerate().map(|(n, c)| c.marked(n)).collect();
        let scratch = tempfile::tempdir().unwrap();
        let texts = texts(&trace(scratch.path(), &marked));
        let printed = printed(printer, &cases);
        prop_assert_eq!((texts.len(), printed.len()), (cases.len(), cases.len()));
        for ((case, text), printed) in cases.iter().zip(texts).zip(printed) {
            let printed = String::from_utf8_lossy(&printed).into_owned();
            prop_assert_eq!(text, Some(printed), "{:?} of {:?}", case.format(), case);
        }
    }

    /// With any format in the JSON file, and any fields.
    #[test]
    fn any_format_is_taken_or_left(
        formats in prop::collection::vec("[%a-zA-Z0-9 .*=:lhz\n-]{0,40}|\\PC{0,30}|%.*[dsfmS]", 1..50),
        types in prop::collection::vec(prop::sample::select(vec!["u8", "s32", "x64", "f32", "f64", "string", "u16[3]", "b3@4/8", "char"]), 0..4),
        missing in 0..4_usize,
        words in prop::collection::vec(any::<u64>(), 4),
        unreadable in 0..16_u64,
    ) {
        let given: Vec<Given> = types.iter().zip(&words).map(|(t, word)| match *t {
            "string" => Given::Text(word.to_le_bytes().to_vec()),
            _ => Given::Word(*word),
        }).collect();
        let arguments: Vec<&str> = types.iter().map(|t| match *t {
            "string" => "u64",
            other => other,
        }).skip(missing / 2).collect();
        let one = |(n, format): (usize, &String)| Marked {
            unreadable,
            ..marked(n, format, &arguments, &types, &given)
        };
        let all: Vec<Marked> = formats.iter().enumerate().map(one).collect();
        let scratch = tempfile::tempdir().unwrap();
        let trace = trace(scratch.path(), &all);
        prop_assert_eq!(texts(&trace).len(), formats.len());
        prop_assert_eq!(lines(&trace, &TextOptions::default()).len(), formats.len());
    }
}

fn word(word: u64) -> Given {
    Given::Word(word)
}

fn text(text: &str) -> Given {
    Given::Text(text.as_bytes().to_vec())
}

/// Events with known texts.
fn known() -> Vec<Marked> {
    let format = "number=%u path=%s took %.2f ms";
    let types = ["u32", "u64", "f64"];
    let fields = ["u32", "string", "f64"];
    let took = [word(4), text("tea"), word(3.1428_f64.to_bits())];
    let hostile = "\u{1b}[2J\n\u{202e}\\x";
    vec![
        marked(0, format, &types, &fields, &took),
        marked(1, "%s", &["u64"], &["string"], &[text("what happened")]),
        marked(2, "queue is full, 100%%\n", &[], &[], &[]),
        // An unreadable string, padded like any other.
        Marked {
            unreadable: 0b110,
            ..marked(
                3,
                "n=%d %-9s|%9.2s|",
                &["s32", "u64", "u64"],
                &["s32", "string", "string"],
                &[word(7), text(""), text("")],
            )
        },
        // A width that could not be read is ignored.
        Marked {
            unreadable: 1,
            ..marked(
                4,
                "<%*d>",
                &["s32", "s32"],
                &["s32", "s32"],
                &[word(0), word(5)],
            )
        },
        marked(5, "[%s]", &["u64"], &["string"], &[text(hostile)]),
        marked(
            6,
            "bits %#b, wide %lc %5lc",
            &["u8", "u32", "s32"],
            &["x8", "u32", "u32"],
            &[word(0b101), word(0x20ac), word(0x11_0000)],
        ),
        // glibc before 2.38 shows fewer digits.
        marked(
            7,
            "%#g %#.1e %#.0f",
            &["f64"; 3],
            &["f64"; 3],
            &[
                word(999_999.5_f64.to_bits()),
                word(0.25_f64.to_bits()),
                word(2.5_f64.to_bits()),
            ],
        ),
        // The second byte of a register.
        marked(
            8,
            "%d %x",
            &["s8", "b8@8/16"],
            &["s8", "b8@8/16"],
            &[word(0xff), word(0x1234)],
        ),
        // A field that is not an argument of the format.
        marked(9, "id %d", &["s32"], &["s32", "u64"], &[word(3), word(11)]),
        // Nothing was recorded for these conversions, or nothing that they can format.
        marked(10, "why: %m", &[], &[], &[]),
        marked(11, "%ls", &["u64"], &["x64"], &[word(16)]),
        marked(12, "%d %d", &["s32"], &["s32"], &[word(1)]),
        marked(
            13,
            "%d",
            &["s32", "s32"],
            &["s32", "s32"],
            &[word(1), word(2)],
        ),
        marked(14, "%s", &["u64"], &["x64"], &[word(4096)]),
        marked(15, "%d", &["u64"], &["string"], &[text("a")]),
        marked(16, "%f", &["u64"], &["u64"], &[word(1)]),
        marked(17, "%d", &["s16"], &["s16[2]"], &[word(1)]),
        marked(18, "%y", &["s32"], &["s32"], &[word(1)]),
        marked(19, "", &[], &[], &[]),
    ]
}

#[test]
fn events_read_as_their_authors_wrote_them() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = trace(&scratch.path().join("trace"), &known());
    let shown = |options: &TextOptions| lines(&trace, options).join("\n");
    insta::assert_snapshot!(shown(&TextOptions::default()), @r#"
    number=4 path=tea took 3.14 ms
    what happened
    queue is full, 100%
    n=7 (fault)  |  (fault)|
    <5>
    [\x1b[2J\n\u{202e}\\x]
    bits 0b101, wide €   �
    1.00000e+06 2.5e-01 2.
    -1 12
    arg2=11: id 3
    -
    arg1=0x10
    arg1=1
    arg1=1 arg2=2
    arg1=0x1000
    arg1="a"
    arg1=1
    arg1={1,0}
    arg1=1
    -
    "#);
    insta::assert_snapshot!(shown(&TextOptions { fields: true, ..TextOptions::default() }), @r#"
    arg1=4 arg2="tea" arg3=3.1428
    arg1="what happened"
    -
    arg1=7 arg2=(fault) arg3=(fault)
    arg1=(fault) arg2=5
    arg1="\x1b[2J\n\u{202e}\\x"
    arg1=0x5 arg2=8364 arg3=1114112
    arg1=999999.5 arg2=0.25 arg3=2.5
    arg1=-1 arg2=18
    arg1=3 arg2=11
    -
    arg1=0x10
    arg1=1
    arg1=1 arg2=2
    arg1=0x1000
    arg1="a"
    arg1=1
    arg1={1,0}
    arg1=1
    -
    "#);
    let texts: Vec<String> = texts(&trace)
        .into_iter()
        .map(|t| format!("{t:?}"))
        .collect();
    insta::assert_snapshot!(texts.join("\n"), @r#"
    Some("number=4 path=tea took 3.14 ms")
    Some("what happened")
    Some("queue is full, 100%\n")
    Some("n=7 (fault)  |  (fault)|")
    Some("<5>")
    Some("[\u{1b}[2J\n\u{202e}\\x]")
    Some("bits 0b101, wide €   �")
    Some("1.00000e+06 2.5e-01 2.")
    Some("-1 12")
    Some("id 3")
    None
    None
    None
    None
    None
    None
    None
    None
    None
    None
    "#);
    // babeltrace2 reads it like any other trace.
    let Some((lines, errors)) = babeltrace(&scratch.path().join("trace")) else {
        return;
    };
    assert_eq!((lines.len(), errors.as_str()), (known().len(), ""));
    assert!(lines.iter().all(|line| line.contains("shop:request: {")));
}

#[test]
fn a_graph_shows_texts_between_calls() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = trace(scratch.path(), &known());
    let graph = |fields: bool| -> String {
        let options = GraphOptions {
            fields,
            ..GraphOptions::default()
        };
        let mut text = Vec::new();
        write_graph(&trace, &mut text, &options).unwrap();
        let text = String::from_utf8(text).unwrap();
        let remarks = text
            .lines()
            .filter_map(|line| Some(line.split_once("/* ")?.1));
        remarks.take(10).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(graph(false), @r#"
    shop:request: number=4 path=tea took 3.14 ms */
    shop:request: what happened */
    shop:request: queue is full, 100% */
    shop:request: n=7 (fault)  |  (fault)| */
    shop:request: <5> */
    shop:request: [\x1b[2J\n\u{202e}\\x] */
    shop:request: bits 0b101, wide €   � */
    shop:request: 1.00000e+06 2.5e-01 2. */
    shop:request: -1 12 */
    shop:request: arg2=11: id 3 */
    "#);
    insta::assert_snapshot!(graph(true), @r#"
    shop:request: arg1=4, arg2="tea", arg3=3.1428 */
    shop:request: arg1="what happened" */
    shop:request */
    shop:request: arg1=7, arg2=(fault), arg3=(fault) */
    shop:request: arg1=(fault), arg2=5 */
    shop:request: arg1="\x1b[2J\n\u{202e}\\x" */
    shop:request: arg1=0x5, arg2=8364, arg3=1114112 */
    shop:request: arg1=999999.5, arg2=0.25, arg3=2.5 */
    shop:request: arg1=-1, arg2=18 */
    shop:request: arg1=3, arg2=11 */
    "#);
}

/// Fields recorded in addition are separated from the program's text, even if that is empty.
#[test]
fn no_text_forges_a_field() {
    let one = |id, said: &str| {
        let fields = ["string", "string", "x64"];
        let given = [text(said), text("sh: \"op\""), word(7)];
        marked(id, "%s", &["u64"], &fields, &given)
    };
    let plain = marked(3, "%s", &["u64"], &["string"], &[text("")]);
    let hidden = {
        let mut one = one(4, "tea");
        one.info.fields[1].name = "_a".to_owned();
        one.info.fields[2].name = "_b".to_owned();
        one
    };
    let all = [
        one(0, "tea"),
        one(1, r#"tea arg2="root" arg3=0x0: tea"#),
        one(2, ""),
        plain,
        hidden,
    ];
    let scratch = tempfile::tempdir().unwrap();
    let trace = trace(scratch.path(), &all);
    insta::assert_snapshot!(lines(&trace, &TextOptions::default()).join("\n"), @r#"
    arg2="sh: \"op\"" arg3=0x7: tea
    arg2="sh: \"op\"" arg3=0x7: tea arg2="root" arg3=0x0: tea
    arg2="sh: \"op\"" arg3=0x7
    -
    tea
    "#);
}

/// A program's text may contain anything, but stays inside its own remark.
#[test]
fn no_text_ends_a_remark() {
    let forged = "done */ exit(0); /* x";
    let all = [
        marked(0, "%s", &["u64"], &["string"], &[text(forged)]),
        marked(1, "*%c */", &["char"], &["char"], &[word(u64::from(b'/'))]),
        marked(
            2,
            "%s",
            &["u64"],
            &["string", "char[2]"],
            &[text("*"), word(u64::from_le_bytes(*b"*/\0\0\0\0\0\0"))],
        ),
        marked(3, "", &[], &["string"], &[text(forged)]),
    ];
    let scratch = tempfile::tempdir().unwrap();
    let trace = trace(scratch.path(), &all);
    let mut graph = Vec::new();
    write_graph(&trace, &mut graph, &GraphOptions::default()).unwrap();
    let graph = String::from_utf8(graph).unwrap();
    let remarks: Vec<&str> = graph
        .lines()
        .filter_map(|line| Some(&line[line.find("/* ")?..]))
        .collect();
    insta::assert_snapshot!(remarks.join("\n"), @r#"
    /* shop:request: done *\/ exit(0); /* x */
    /* shop:request: *\/ *\/ */
    /* shop:request: arg2={'*','/'}: * */
    /* shop:request: arg1="done *\/ exit(0); /* x" */
    "#);
}

/// A huge width from a program must not produce a gigabyte of output.
#[test]
fn lines_have_an_end() {
    let all = [
        marked(
            0,
            "%*d",
            &["s32", "s32"],
            &["s32", "s32"],
            &[word(0x7fff_ffff), word(1)],
        ),
        marked(
            1,
            "%*d",
            &["s32", "s32"],
            &["s32", "s32"],
            &[word(0x8000_0000), word(1)],
        ),
        marked(
            2,
            "%99999999999.99999999999x",
            &["u32"],
            &["x32"],
            &[word(1)],
        ),
        marked(
            3,
            "%.*f",
            &["s32", "f64"],
            &["s32", "f64"],
            &[word(0x7fff_ffff), word(f64::MAX.to_bits())],
        ),
        marked(
            4,
            "%.*a",
            &["s32", "f64"],
            &["s32", "f64"],
            &[word(0x7fff_ffff), word(1_f64.to_bits())],
        ),
        marked(
            5,
            "%.2147483647g",
            &["f64"],
            &["f64"],
            &[word(0.1_f64.to_bits())],
        ),
        marked(
            6,
            "%-2147483647.2147483647s|",
            &["u64"],
            &["string"],
            &[text("tea")],
        ),
    ];
    let scratch = tempfile::tempdir().unwrap();
    let texts = texts(&trace(scratch.path(), &all));
    let lengths: Vec<usize> = texts.iter().flatten().map(String::len).collect();
    assert_eq!(lengths[..3], [4000; 3]);
    assert_eq!(lengths[3..5], [309 + 1 + 4000, 4 + 4000 + 3]);
    // All of the number's digits.
    assert_eq!(lengths[5..], [57, 4001]);
}

/// The stored document, as it is written and read.
#[test]
fn the_format_stands_in_the_json_file() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = trace(scratch.path(), &known());
    let path = scratch.path().join("info/capriole.json");
    let text = std::fs::read_to_string(path).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json["events"][0]["format"],
        serde_json::json!({
            "text": "number=%u path=%s took %.2f ms",
            "arguments": ["u32", "u64", "f64"],
        })
    );
    assert_eq!(trace.document().events[0], known()[0].info);
}
