//! Compares values read with debug information against gdb's: the same expressions at the
//! same addresses of real programs, hit by hit.
//!
//! gdb chooses functions, lines and expressions at random (`CAPRIOLE_SEED=n` for others), so
//! that names unknown to Capriole are found too. Capriole records one run of the program. In
//! another run, without address randomisation and therefore identical down to the last
//! pointer, gdb stops at the same addresses and evaluates the same expressions. The n-th hit
//! of the one is compared with the n-th hit of the other. A different value is a failure
//! unless [`LISTED`] explains it.
//!
//! **At a function's entry** gdb is no reference for unoptimised code: it reads the slots of
//! the frame, which are not written yet. There the value is compared with gdb's after the
//! prologue of the same call. Values that gdb reads from dead stack are recognised: gdb's
//! script writes a pattern over it at each hit, and such values are not compared.
//!
//! `CAPRIOLE_LONG=1` uses all programs, compilers and levels, and more of each.
//! `CAPRIOLE_GDB_ONLY=text` uses the builds whose name contains the text.

mod subjects;
use crate::traces;

use crate::target::{is_long, rounds, told};
use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{Callers, Debug, Refusal, Returned, ReturnedText};
use capriole_event::{Element, EventSpec, Shown};
use capriole_object::Objects;
use capriole_planner::resolve::{Body, Site, resolve};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use subjects::{Build, Source};
use traces::{scratch, text};

/// A known difference that is not Capriole's fault.
struct Listed {
    /// Recognises the difference.
    is_it: fn(&Difference<'_>) -> bool,
    /// Why gdb's value is wrong there.
    #[allow(dead_code)]
    why: &'static str,
}

/// The byte that gdb's script writes over dead stack: `DEAD` in `values.py`.
const DEAD: u8 = 0xa5;

/// All known differences.
const LISTED: &[Listed] = &[
    Listed {
        is_it: |difference| {
            let statics = ["same", "twin", "only_here", "only_other"];
            let name = difference.expression;
            let lto = difference.build.flags.contains(&"-flto");
            lto && difference.build.compiler == "gcc" && statics.iter().any(|s| name.ends_with(s))
        },
        why: "GCC describes static variables in the unit that link-time optimisation made, and \
              refers to their own units from there, which gdb 13 does not follow",
    },
    Listed {
        is_it: |difference| difference.place.is_of_lambda(),
        why: "gdb 13 neither follows the `this` that a lambda of clang has captured nor looks \
              into the namespaces around the function that the lambda is in",
    },
    Listed {
        is_it: |difference| {
            let event = &difference.place.event;
            let other = ["names_other", "other_", "Client"];
            difference.expression == "limit" && other.iter().any(|name| event.contains(name))
        },
        why: "in the other unit gdb takes a static variable of the first unit, which no name \
              there can mean, because it is in the same namespace; Capriole the global one",
    },
    Listed {
        is_it: |difference| {
            let event = &difference.place.event;
            event.contains("_ZN3net4BaseC2Ev") || event.ends_with("names_other.cpp:12")
        },
        why: "both units describe the code of this constructor, which the linker took from the \
              first; gdb takes the static variables of the other",
    },
    Listed {
        is_it: |difference| {
            let event = &difference.place.event;
            let passed = match difference.expression {
                "f.a" => 1.0,
                "f.b" => 2.0,
                "f.c" => 3.0,
                _ => return false,
            };
            let entry = event.contains("7structsENS_") || event.ends_with("values.cpp:97");
            let optimised = difference.build.optimised() && difference.build.compiler == "gcc";
            entry && optimised && difference.capriole.as_f64() == Some(passed)
        },
        why: "GCC says that this parameter is in the red zone from the function's first instruction \
              on, and stores it there some instructions later; gdb reads what was there before, \
              Capriole what is passed, in every call the same",
    },
];

/// A value that differs.
struct Difference<'a> {
    build: &'a Build,
    place: &'a Place,
    expression: &'a str,
    /// The event and the field in the trace.
    field: &'a (String, String),
    hit: usize,
    capriole: Value,
    gdb: Value,
}

/// Results of comparing one build.
#[derive(Debug, Default, Clone)]
struct Counts {
    compared: u64,
    equal: u64,
    listed: u64,
    differ: u64,
    /// gdb has a value, but Capriole refuses to record it; by reason.
    refused: BTreeMap<String, u64>,
    /// Neither gdb nor Capriole has a value.
    neither: u64,
    /// gdb reads memory that the program never wrote.
    unwritten: u64,
    /// gdb cannot find the scope or cannot tell which one it is, or there is nothing to compare
    /// with.
    unclear: u64,
    /// Expressions at places that the program did not reach.
    not_reached: u64,
}

/// The names of an event and of its field, or the reason for refusing it.
type Outcome = Result<(String, String), String>;

/// An address and the expressions to evaluate there.
#[derive(Debug)]
struct Place {
    /// `:function`, `file:line`.
    event: String,
    /// Link address.
    address: u64,
    /// Scope to look names up in, in the form that gdb's script takes.
    scope: Value,
    /// Expressions, each with its event and field in Capriole's trace or the refusal.
    expressions: Vec<(String, Outcome)>,
    /// For a result: the addresses of all exits, and whether Capriole has a value to compare.
    exits: Vec<u64>,
}

impl Place {
    /// True if it is in the lambda of `names.cpp`.
    fn is_of_lambda(&self) -> bool {
        let line = self.event[1..]
            .split_once(".cpp:")
            .and_then(|(file, line)| {
                let text = std::fs::read_to_string(format!("{file}.cpp")).ok()?;
                let line: usize = line.parse().ok()?;
                text.lines().nth(line - 1).map(str::to_owned)
            });
        match line {
            Some(text) => text.contains("[this"),
            None => self.event.contains("ENKUl"),
        }
    }

    /// Returns the address under which its hits are in [`Hits`].
    fn found_at(&self) -> u64 {
        match self.exits.is_empty() {
            true => self.address,
            false => 0,
        }
    }
}

const NOTHING: Value = Value::Null;

/// Number of hits of a place that are compared.
fn hits_of_each() -> usize {
    rounds(4, 4, 12)
}

fn variant(refusal: &Refusal) -> String {
    let name = |text: String| {
        text.split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    match refusal {
        Refusal::Debug(error) => format!("Debug {}", name(format!("{error:?}"))),
        other => name(format!("{other:?}")),
    }
}

/// Checks if the command would refuse a field that the library would fetch, and returns the
/// reason.
fn fetched(debug: &Debug<'_>, site: &Site, expression: &str) -> Result<(), String> {
    let scope = match &site.scope {
        Some(scope) => scope.clone(),
        None => debug
            .site(site.link_address, site.symbol.as_deref())
            .map_err(|error| format!("{error}"))?,
    };
    let event = EventSpec::parse(&format!(":f {expression}")).map_err(|_| "Syntax".to_owned())?;
    let found = debug.fetch(&scope, &event.arguments[0].fetch, None);
    let found = found.map_err(|error| variant(&error.refusal))?;
    match found.field_type.element {
        Element::Number {
            shown: Shown::Signed,
            bits: Some(_),
            ..
        } => Err("signed bit field".to_owned()),
        _ => Ok(()),
    }
}

/// The events of a build: the events to record with Capriole, and the addresses to give gdb.
struct Asked {
    events: Vec<String>,
    places: Vec<Place>,
    results: Vec<Place>,
    /// Expressions at places that Capriole does not find, by reason.
    nowhere: BTreeMap<String, u64>,
}

impl Asked {
    fn of(objects: &Objects, candidates: &Value) -> Asked {
        let object = objects
            .all()
            .find(|object| object.is_main())
            .expect("a program");
        let debug = object.file().debug().expect("debug information");
        let mut asked = Asked {
            events: Vec::new(),
            places: Vec::new(),
            results: Vec::new(),
            nowhere: BTreeMap::new(),
        };
        let list = |name: &str| candidates[name].as_array().cloned().unwrap_or_default();
        for entry in list("entries") {
            let event = format!(":{}", entry["function"].as_str().expect("a name"));
            asked.add(objects, &debug, &event, &entry);
            asked.add_result(objects, &debug, &event);
        }
        for copy in list("copies") {
            let event = format!(":{}", copy["function"].as_str().expect("a name"));
            asked.add(objects, &debug, &event, &copy);
        }
        for line in list("lines") {
            let file = line["file"].as_str().expect("a name");
            asked.add(objects, &debug, &format!(":{file}:{}", line["line"]), &line);
        }
        asked
    }

    fn add(&mut self, objects: &Objects, debug: &Debug<'_>, event: &str, from: &Value) {
        let expressions: Vec<&str> = from["expressions"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|text| text.as_str().expect("text"))
            .collect();
        if expressions.is_empty() || self.places.iter().any(|place| place.event == event) {
            return;
        }
        let sites = EventSpec::parse(event)
            .map_err(|_| "syntax".to_owned())
            .and_then(|spec| {
                resolve(objects, &spec.into()).map_err(|error| {
                    let name = format!("{error:?}");
                    name.split(|c: char| !c.is_alphanumeric())
                        .next()
                        .unwrap_or_default()
                        .to_owned()
                })
            });
        let sites = match sites {
            Ok(sites) => sites,
            Err(why) => {
                let count = self.nowhere.entry(format!("place: {why}")).or_default();
                *count += expressions.len() as u64;
                return;
            }
        };
        // Leave out the event for copies that lack a field: one event for each set of copies.
        let mut groups: BTreeMap<Vec<bool>, Vec<&str>> = BTreeMap::new();
        let mut outcomes: Vec<Vec<Result<(), String>>> = vec![Vec::new(); sites.len()];
        for expression in &expressions {
            let mut of_sites: Vec<_> = sites
                .iter()
                .map(|site| fetched(debug, site, expression))
                .collect();
            // For a function, copies without the field are left out, but not the function's own code;
            // a line is refused as a whole.
            let line = from.get("line").is_some();
            let lacks = |(site, outcome): (&Site, &Result<(), String>)| {
                outcome.is_err() && (line || site.body == Body::Own)
            };
            if sites.iter().zip(&of_sites).any(lacks) {
                for of_site in of_sites.iter_mut().filter(|of_site| of_site.is_ok()) {
                    *of_site = Err("not in every copy".to_owned());
                }
            }
            let set = of_sites.iter().map(Result::is_ok).collect();
            for (outcome, of_site) in outcomes.iter_mut().zip(of_sites) {
                outcome.push(of_site);
            }
            groups.entry(set).or_default().push(expression);
        }
        let mut fields: BTreeMap<&str, (String, String)> = BTreeMap::new();
        for (set, group) in &groups {
            if !set.contains(&true) {
                continue;
            }
            let name = format!("e{}", self.events.len());
            let mut text = format!("p:{name} {event}");
            for (index, expression) in group.iter().enumerate() {
                text += &format!(" f{index}={expression}");
                fields.insert(expression, (name.clone(), format!("f{index}")));
            }
            self.events.push(text);
        }
        for (site, outcome) in sites.iter().zip(outcomes) {
            let scope = match (&site.body, &site.scope) {
                (Body::Inlined { function }, _) => json!(function),
                // Names at a line are looked up in the innermost function.
                (_, Some(_)) if site.scope.as_ref().is_some_and(|s| s.chosen > 0) => json!(true),
                (_, Some(scope)) if scope.frames.len() == 1 => json!(true),
                _ => json!(false),
            };
            let expressions = expressions
                .iter()
                .zip(outcome)
                .map(|(text, outcome)| ((*text).to_owned(), outcome.map(|()| fields[text].clone())))
                .collect();
            self.places.push(Place {
                event: event.to_owned(),
                address: site.link_address,
                scope,
                expressions,
                exits: Vec::new(),
            });
        }
    }

    /// Adds the function's result, if Capriole can determine it.
    fn add_result(&mut self, objects: &Objects, debug: &Debug<'_>, event: &str) {
        let Ok(spec) = EventSpec::parse(&format!("r {event} $retval")) else {
            return;
        };
        let Ok(sites) = resolve(objects, &spec.into()) else {
            return;
        };
        let exits = sites.iter().filter(|site| {
            let way = site
                .leaving
                .as_ref()
                .map(|leaving| format!("{:?}", leaving.way));
            way.is_some_and(|way| way == "Ok(Return)")
        });
        let exits: Vec<u64> = exits.map(|site| site.link_address).collect();
        let Some(first) = sites.first().and_then(|site| site.leaving.as_ref()) else {
            return;
        };
        let entry = sites[0].object.link(first.function);
        let Ok(place) = debug.site(entry, None) else {
            return;
        };
        let returned = debug.returned(&place);
        // Of a result that is shown as a text, gdb gives the address.
        let text = debug.returned_text(&place, Callers::Any, false);
        let result = match text {
            Ok(ReturnedText::No) => "$retval",
            _ => "$retval:x64",
        };
        let name = format!("e{}", self.events.len());
        let outcome = match returned {
            Ok(Returned::Number(..) | Returned::Vector(_)) => Ok((name.clone(), "f0".to_owned())),
            Ok(
                Returned::Elsewhere(_)
                | Returned::Undescribed(_)
                | Returned::Pair(_)
                | Returned::Stack(_),
            ) => Err("result elsewhere".to_owned()),
            _ => return,
        };
        if exits.is_empty() {
            return;
        }
        if outcome.is_ok() {
            self.events.push(format!("r:{name} {event} f0={result}"));
        }
        self.results.push(Place {
            event: event.to_owned(),
            address: entry,
            scope: Value::Null,
            expressions: vec![("$retval".to_owned(), outcome)],
            exits,
        });
    }
}

/// The environment of the program in both runs. Memory that the C library would get from the
/// kernel outside the heap would be elsewhere, because Capriole has mappings in the program,
/// and the C library puts a random number into freed memory.
const ENVIRONMENT: [&str; 3] = [
    "MALLOC_MMAP_THRESHOLD_=1000000000",
    "MALLOC_TOP_PAD_=4000000",
    "GLIBC_TUNABLES=glibc.malloc.tcache_count=0",
];

/// Runs gdb with the script on a program. `None` if gdb itself crashes.
fn gdb(program: &Path, task: &Value) -> Option<Value> {
    let directory = scratch();
    let (question, answer) = (
        directory.path().join("task"),
        directory.path().join("answer"),
    );
    std::fs::write(&question, task.to_string()).expect("a file");
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/against_gdb/values.py"
    );
    let output = Command::new("gdb")
        .args(["-nx", "-batch", "-iex", "set auto-load off", "-ex"])
        .arg(format!("set exec-wrapper env -i {}", ENVIRONMENT.join(" ")))
        .args(["-x", script])
        .arg(program)
        .env("CAPRIOLE_TASK", &question)
        .env("CAPRIOLE_ANSWER", &answer)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("gdb starts");
    let Ok(said) = std::fs::read(&answer) else {
        let said = told(&output);
        assert!(said.contains("fatal error internal to GDB"), "{said}");
        return None;
    };
    Some(serde_json::from_slice(&said).expect("JSON"))
}

/// Hits recorded by Capriole, in order, by event and link address.
type Hits = BTreeMap<(String, u64), Vec<Value>>;

fn recorded(program: &Path, events: &[String]) -> Hits {
    let directory = scratch();
    let (trace, list) = (
        directory.path().join("trace"),
        directory.path().join("events"),
    );
    std::fs::write(&list, events.join("\n")).expect("a file");
    let mut command = Command::new("env");
    command.arg("-i").args(ENVIRONMENT).args(["setarch", "-R"]);
    command.arg(env!("CARGO_BIN_EXE_capriole"));
    command.args([
        "record",
        "--breakpoints",
        "--trust-address",
        "--buffer-size=512M",
        "-o",
        text(&trace),
    ]);
    let output = command
        .args(["-f", text(&list), "--", text(program)])
        .output();
    let output = output.expect("capriole starts");
    let said = told(&output);
    assert!(
        output.status.success(),
        "{}: {said}\n{}",
        program.display(),
        events.join("\n")
    );
    assert!(said.contains("ok "), "{said}");
    traces::calls(&trace);
    let mut hits = Hits::new();
    for event in traces::events(&trace) {
        let offset = event["offset"].as_str().expect("an address");
        let address = u64::from_str_radix(&offset[2..], 16).expect("hexadecimal");
        let name = event["event"].as_str().expect("a name").to_owned();
        // Address 0 collects all hits, for results: a function may have several exits.
        for address in [0, address] {
            let hits = hits.entry((name.clone(), address)).or_default();
            hits.push(event["arguments"].clone());
        }
    }
    hits
}

/// True if two numbers differ only in bytes that gdb's script has written over dead stack: the
/// program wrote a smaller member of a union than the one that is read.
fn is_partly_dead(capriole: &Value, gdb: &Value) -> bool {
    let by_gdb = gdb["number"]
        .as_str()
        .and_then(|number| number.parse().ok());
    let (Some(by_gdb), Some(own)) = (by_gdb, capriole.as_i64()) else {
        return false;
    };
    let (by_gdb, own): ([u8; 8], _) = (i64::to_le_bytes(by_gdb), own.to_le_bytes());
    let size = gdb["size"].as_u64().map_or(8, |size| size.min(8) as usize);
    let mut bytes = by_gdb.iter().zip(&own).take(size);
    bytes.all(|(by_gdb, own)| by_gdb == own || *by_gdb == DEAD)
}

/// Compares a value of the trace with gdb's; `None` if gdb has none.
fn equal(capriole: &Value, gdb: &Value) -> Option<bool> {
    let fault = capriole.is_null();
    if gdb.get("fault").is_some() {
        return Some(fault);
    }
    let number = |value: &Value, size: u64, by_gdb: &str| -> bool {
        let by_gdb: i128 = by_gdb.parse().expect("a number");
        let mask = (1i128 << (8 * size.min(8))) - 1;
        match value {
            Value::Number(number) => number.to_string().parse() == Ok(by_gdb),
            Value::String(text) => match text.strip_prefix("0x") {
                Some(hexadecimal) if !hexadecimal.is_empty() => {
                    i128::from_str_radix(hexadecimal, 16).is_ok_and(|n| n == by_gdb & mask)
                }
                _ => {
                    text.parse() == Ok(by_gdb)
                        || character(text).is_some_and(|n| n == by_gdb & 0xff)
                        // Any invalid character is shown as this one.
                        || text == "\u{fffd}" && by_gdb & 0x80 != 0
                }
            },
            _ => false,
        }
    };
    let size = gdb["size"].as_u64().unwrap_or(8);
    if let Some(by_gdb) = gdb["number"].as_str() {
        if let Some(by_gdb) = gdb.get("text")
            && !capriole.as_str().is_some_and(|text| text.starts_with("0x"))
        {
            return Some(match (by_gdb.as_str(), capriole.as_str()) {
                (Some(by_gdb), Some(own)) => {
                    same_text(own, by_gdb.chars().map(|c| c as u8).collect())
                }
                (by_gdb, own) => by_gdb.is_none() && own.is_none(),
            });
        }
        if let (Some(name), Some(own)) = (gdb["name"].as_str(), capriole.as_str()) {
            return Some(own == name);
        }
        return Some(number(capriole, size, by_gdb));
    }
    if let Some(bits) = gdb["float"].as_str() {
        let bits: u64 = bits.parse().expect("bits");
        let by_gdb = match size {
            4 => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(bits),
        };
        return Some(match capriole {
            Value::Number(n) if size == 4 => n
                .to_string()
                .parse::<f32>()
                .is_ok_and(|n| f64::from(n) == by_gdb),
            Value::Number(n) => n.as_f64() == Some(by_gdb),
            Value::String(text) => {
                by_gdb.is_nan() && text.eq_ignore_ascii_case("nan")
                    || by_gdb.is_infinite() && text.contains("inf")
            }
            _ => false,
        });
    }
    if let Some(items) = gdb["list"].as_array() {
        return Some(match capriole {
            Value::Array(own) => {
                own.len() == items.len()
                    && own
                        .iter()
                        .zip(items)
                        .all(|(own, item)| number(own, size, item.as_str().expect("text")))
            }
            Value::String(own) => {
                let bytes = items.iter().map(|item| {
                    item.as_str()
                        .expect("text")
                        .parse::<i64>()
                        .expect("a number") as u8
                });
                same_text(own, bytes.take_while(|byte| *byte != 0).collect())
            }
            _ => false,
        });
    }
    None
}

/// True if a string in the trace consists of these bytes, up to the recorded length.
fn same_text(own: &str, bytes: Vec<u8>) -> bool {
    let whole = String::from_utf8_lossy(&bytes);
    whole == own || bytes.len() > 1000 && own.len() > 900 && whole.starts_with(own)
}

/// Returns the code of a character as the trace shows it.
fn character(text: &str) -> Option<i128> {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(c), None) => Some(i128::from(c as u32)),
        _ => None,
    }
}

/// Compares one build and prints the differences.
fn compare(build: &Build, seed: u64) -> Option<Counts> {
    let program = build.make()?;
    let mut task = json!({
        "task": "candidates",
        "seed": seed,
        "functions": rounds(28, 40, 80),
        "lines": rounds(2, 2, 4),
        "names": 5,
        "copies": rounds(12, 12, 40),
        "own": build.own(),
        "free": build.names(),
        "others": 0.8,
        "optimised": build.optimised(),
    });
    let for_gdb = build.for_gdb(&program)?;
    let Some(candidates) = gdb(&for_gdb, &task) else {
        println!("skipped: gdb crashes at {}", build.name());
        return None;
    };
    let objects = Objects::offline(&program).expect("a program");
    let asked = Asked::of(&objects, &candidates);
    let places = asked.places.iter().map(|place| {
        let expressions: Vec<&str> = place.expressions.iter().map(|e| e.0.as_str()).collect();
        json!({
            "address": place.address,
            "scope": place.scope,
            "expressions": expressions,
        })
    });
    let pie = std::fs::read(&program).expect("a program")[16] == 3;
    task = json!({
        "task": "values",
        "program": for_gdb,
        "pie": pie,
        "optimised": build.optimised(),
        "hits": hits_of_each(),
        "places": places.collect::<Vec<_>>(),
        "results": asked.results.iter().map(|result| json!({
            "entry": result.address,
            "exits": result.exits,
        })).collect::<Vec<_>>(),
    });
    let (by_gdb, hits) = std::thread::scope(|scope| {
        let by_gdb = scope.spawn(|| gdb(&for_gdb, &task));
        let hits = recorded(&program, &asked.events);
        (by_gdb.join().expect("gdb"), hits)
    });
    let by_gdb = by_gdb.expect("it did not crash before");
    let mut comparison = Comparison {
        build,
        hits,
        counts: Counts {
            refused: asked.nowhere.clone(),
            ..Counts::default()
        },
        differences: Vec::new(),
    };
    let lists = [(&asked.places, "places"), (&asked.results, "results")];
    for (places, name) in lists {
        let said = by_gdb[name].as_array().expect("a list");
        for (place, said) in places.iter().zip(said) {
            comparison.place(place, said);
        }
    }
    comparison.look_again(&program, &asked.events);
    Some(comparison.counts)
}

/// State of comparing Capriole's recording of a build with gdb's values.
struct Comparison<'a> {
    build: &'a Build,
    hits: Hits,
    counts: Counts,
    differences: Vec<Difference<'a>>,
}

impl<'a> Comparison<'a> {
    fn place(&mut self, place: &'a Place, said: &Value) {
        let list = |name: &str| said[name].as_array().cloned().unwrap_or_default();
        let (here, after) = (list("hits"), list("after_hits"));
        let most = hits_of_each();
        for (index, (expression, outcome)) in place.expressions.iter().enumerate() {
            if said["no_scope"] == true {
                self.counts.unclear += 1;
                continue;
            }
            let own = match outcome {
                Err(_) => &[],
                Ok((event, _)) => self
                    .hits
                    .get(&(event.clone(), place.found_at()))
                    .map_or(&[][..], Vec::as_slice),
            };
            let all = here.len() == most;
            if outcome.is_ok() && (own.len() < here.len() || !all && own.len() > here.len()) {
                self.counts.differ += 1;
                let (name, event) = (self.build.name(), &place.event);
                let more = if all { " or more" } else { "" };
                let (address, own, by_gdb) = (place.address, own.len(), here.len());
                println!(
                    "DIFFERS {name}: {event} at {address:#x}: {own} hits, by gdb {by_gdb}{more}"
                );
                continue;
            }
            if here.is_empty() {
                self.counts.not_reached += 1;
            }
            for hit in 0..here.len() {
                let (here, after) = (
                    &here[hit][index],
                    &after.get(hit).unwrap_or(&NOTHING)[index],
                );
                // While the frame is being set up, its description in the debug information is wrong.
                let in_frame = !self.build.optimised() || said["in_frame"][index] == true;
                let gdb = match said["entry"] == true && (in_frame || here["dead"] == true) {
                    true => after,
                    false => here,
                };
                let none = gdb["none"].as_str();
                match outcome {
                    _ if gdb.is_null() => self.counts.unclear += 1,
                    _ if gdb["dead"] == true => self.counts.unwritten += 1,
                    Err(_) if none.is_some() => self.counts.neither += 1,
                    Err(why) => *self.counts.refused.entry(why.clone()).or_default() += 1,
                    // The second message concerns conversions to DWARF 5 types.
                    Ok(_)
                        if none.is_some_and(|none| {
                            none.contains("no such symbol")
                                || none.contains("Incompatible types on DWARF stack")
                        }) =>
                    {
                        self.counts.unclear += 1;
                    }
                    Ok(field) => {
                        self.counts.compared += 1;
                        if equal(&own[hit][&field.1], gdb) == Some(true) {
                            self.counts.equal += 1;
                            continue;
                        }
                        if is_partly_dead(&own[hit][&field.1], gdb) {
                            self.counts.compared -= 1;
                            self.counts.unwritten += 1;
                            continue;
                        }
                        self.differences.push(Difference {
                            build: self.build,
                            place,
                            expression,
                            field,
                            hit,
                            capriole: own[hit][&field.1].clone(),
                            gdb: gdb.clone(),
                        });
                    }
                }
            }
        }
    }

    /// Records each event that has a difference again, on its own. A value that the program never
    /// wrote is whatever was on the stack before, and other probes leave traces there: recorded
    /// alone, the value changes, or equals gdb's.
    fn look_again(&mut self, program: &Path, events: &[String]) {
        let mut again: BTreeMap<String, Hits> = BTreeMap::new();
        for difference in std::mem::take(&mut self.differences) {
            let (event, field) = difference.field;
            let hits = again.entry(event.clone()).or_insert_with(|| {
                let number: usize = event[1..].parse().expect("a number");
                recorded(program, std::slice::from_ref(&events[number]))
            });
            let place = difference.place;
            let hit = &hits[&(event.clone(), place.found_at())][difference.hit];
            let capriole = &hit[field];
            if *capriole != difference.capriole || equal(capriole, &difference.gdb) == Some(true) {
                self.counts.compared -= 1;
                self.counts.unwritten += 1;
                continue;
            }
            if LISTED.iter().any(|listed| (listed.is_it)(&difference)) {
                self.counts.listed += 1;
                continue;
            }
            self.counts.differ += 1;
            println!(
                "DIFFERS {}: {} {} at {:#x} ({}), hit {}: {capriole}, by gdb {}",
                difference.build.name(),
                place.event,
                difference.expression,
                place.address,
                place.scope,
                difference.hit,
                difference.gdb,
            );
        }
    }
}

/// Number of the builds in `make test`: one of each source.
const TESTED: usize = 5;

/// The builds of a soak; `make test` has the first ones.
const SHORT: &[Build] = &[
    Build {
        source: Source::Cxx,
        compiler: "clang",
        level: "O2",
        flags: &["-gdwarf-4"],
    },
    Build {
        source: Source::Names,
        compiler: "gcc",
        level: "O2",
        flags: &[],
    },
    Build {
        source: Source::Zlib,
        compiler: "gcc",
        level: "O2",
        flags: &["-gsplit-dwarf"],
    },
    Build {
        source: Source::Lua,
        compiler: "gcc",
        level: "O1",
        flags: &["-gdwarf-4"],
    },
    Build {
        source: Source::Rust,
        compiler: "rustc",
        level: "O1",
        flags: &[],
    },
    Build {
        source: Source::Cxx,
        compiler: "gcc",
        level: "O0",
        flags: &[],
    },
    Build {
        source: Source::Names,
        compiler: "clang",
        level: "O0",
        flags: &["-gdwarf-4"],
    },
    Build {
        source: Source::Zlib,
        compiler: "clang",
        level: "O0",
        flags: &[],
    },
];

/// The builds of the long form: every level with every compiler, and every form of debug
/// information with some of them.
fn all() -> Vec<Build> {
    const C: &[(&str, &[&str])] = &[
        ("O0", &[]),
        ("O1", &[]),
        ("O2", &[]),
        ("O3", &[]),
        ("O0", &["-gdwarf-4"]),
        ("O2", &["-gdwarf-4"]),
        ("O0", &["-gsplit-dwarf"]),
        ("O2", &["-gsplit-dwarf"]),
        ("O3", &["-gsplit-dwarf", "-gdwarf-4"]),
        ("O2", &["-flto"]),
    ];
    const RUST: &[(&str, &[&str])] = &[
        ("O0", &[]),
        ("O1", &[]),
        ("O2", &[]),
        ("O3", &[]),
        ("O0", &["-Cdwarf-version=5"]),
        ("O2", &["-Cdwarf-version=5"]),
        ("O2", &["-Csplit-debuginfo=packed"]),
        ("O2", &["-Csplit-debuginfo=unpacked"]),
        ("O3", &["-Clto=fat", "-Ccodegen-units=1"]),
    ];
    let mut all = Vec::new();
    for source in [Source::Cxx, Source::Names, Source::Zlib, Source::Lua] {
        for compiler in ["gcc", "clang"] {
            all.extend(C.iter().map(|&(level, flags)| Build {
                source,
                compiler,
                level,
                flags,
            }));
        }
    }
    let rust = |&(level, flags): &(&'static str, _)| Build {
        source: Source::Rust,
        compiler: "rustc",
        level,
        flags,
    };
    all.extend(RUST.iter().map(rust));
    all
}

#[test]
fn values_are_those_that_gdb_reads() {
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: there is no gdb to compare values with");
        return;
    }
    let seed = capriole_testkit::effort::seed();
    println!("CAPRIOLE_SEED={seed}");
    let short = &SHORT[..rounds(TESTED, SHORT.len(), SHORT.len())];
    let mut builds = if is_long() { all() } else { short.to_vec() };
    if let Ok(only) = std::env::var("CAPRIOLE_GDB_ONLY") {
        builds.retain(|build| build.name().contains(&only));
    }
    let next = Mutex::new(builds.iter());
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(build) = next.lock().expect("a lock").next() else {
                        return;
                    };
                    if let Some(counts) = compare(build, seed) {
                        results.lock().expect("a lock").insert(build.name(), counts);
                    }
                }
            });
        }
    });
    let results = results.into_inner().expect("a lock");
    println!(
        "{:48} compared    equal   listed  DIFFERS  refused  neither unwritten unclear unreached",
        ""
    );
    let (mut differ, mut reasons) = (0, BTreeMap::<&str, u64>::new());
    for (name, counts) in &results {
        let refused: u64 = counts.refused.values().sum();
        println!(
            "{name:48} {:8} {:8} {:8} {:8} {refused:8} {:8} {:9} {:7} {:9}",
            counts.compared,
            counts.equal,
            counts.listed,
            counts.differ,
            counts.neither,
            counts.unwritten,
            counts.unclear,
            counts.not_reached
        );
        differ += counts.differ;
        for (reason, count) in &counts.refused {
            *reasons.entry(reason).or_default() += count;
        }
        assert!(counts.compared > 50, "{name}: nothing was compared");
    }
    println!("refused where gdb has a value, by reason: {reasons:?}");
    assert_eq!(differ, 0, "values differ from gdb's; CAPRIOLE_SEED={seed}");
}
