//! Lookup of debug information, of functions and their inlined copies, source lines, and lists
//! of variables.

use std::path::{Path, PathBuf};
use std::process::Command;

use capriole_dwarf::DebugInfo as _;
use capriole_dwarf::{DebugError, LineError, LinePlace, NotFetched, NotUsed, Tried};
use capriole_object::ObjectFile;
use capriole_testkit::objects::open;
use capriole_testkit::workshop::{Workshop, run};

const SOURCE: &str = r#"
struct point { int x, y; };
volatile int sink;
static inline int twice(int what) { int result = what * 2; sink = result; return result + sink; }
__attribute__((noinline)) int caller(struct point *p, int b, double d)
{
	int first = twice(p->x + 1);

	return first + twice(b + 2) + (int)d;
}
int main(int argc, char **argv) { struct point p = { argc, 2 }; return caller(&p, argc, 2.0); }
"#;

/// Queries that must work with each form of debug information.
fn asks(object: &ObjectFile) {
    let debug = object.debug().unwrap();
    let caller = debug.functions("caller").unwrap();
    assert_eq!(caller.len(), 1);
    assert_eq!(caller[0].inlined_into, None);
    let listed: Vec<(String, String)> = debug
        .describe(&caller[0].site)
        .unwrap()
        .into_iter()
        .filter(|described| described.parameter)
        .map(|described| (described.name, described.c_type))
        .collect();
    let expected = [("p", "struct point *"), ("b", "int"), ("d", "double")];
    let expected = expected.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
    assert_eq!(listed, expected);
    let copies = debug.functions("twice").unwrap();
    assert_eq!(copies.len(), 2, "{copies:?}");
    for copy in &copies {
        assert_eq!(copy.inlined_into.as_deref(), Some("caller"));
        assert_eq!(copy.site.frames[0].name, "caller");
        assert_eq!(copy.site.frame().name, "twice");
        assert!(copy.site.frame().inlined);
        let names = debug.describe(&copy.site).unwrap();
        let what = names.iter().find(|described| described.name == "what");
        assert_eq!(what.unwrap().function, "twice");
        assert!(names.iter().all(|described| described.function == "twice"));
    }
    let (file, line) = caller[0].origin.declared.clone().unwrap();
    assert!(file.ends_with(".c"), "{file}");
    assert_eq!(line, 5);
    let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
    let lines = debug.line(name, 4).unwrap();
    // Instructions of the line that were moved out of the copies may be in `caller`.
    let of = |place: &&LinePlace| place.site.as_ref().unwrap().frame().name == "twice";
    let first = lines.iter().filter(|place| place.first).filter(of);
    assert_eq!(first.count(), 2, "{lines:?}");
}

fn objcopy(arguments: &[&str], files: &[&Path]) -> bool {
    run(Command::new("objcopy").args(arguments).args(files))
}

#[test]
fn debug_information_of_every_form_is_found() {
    let shop = Workshop::new();
    let forms: [&[&str]; 9] = [
        &["-gdwarf-5"],
        &["-gdwarf-4"],
        &["-gdwarf-3", "-gstrict-dwarf"],
        &["-gdwarf-5", "-gz=zlib"],
        &["-gdwarf-5", "-gz=zlib-gnu"],
        &["-gdwarf-4", "-fdebug-types-section"],
        &["-gdwarf-5", "-gdwarf64"],
        &["-gdwarf-5", "-gsplit-dwarf"],
        &["-gdwarf-4", "-gsplit-dwarf", "-fdebug-types-section"],
    ];
    for compiler in ["gcc", "clang"] {
        for (index, form) in forms.iter().enumerate() {
            let options = [form, ["-O2"].as_slice()].concat();
            let name = format!("{compiler}-form-{index}");
            let Some(program) = shop.compile(compiler, &options, SOURCE, &name) else {
                continue;
            };
            asks(&open(&program));
        }
    }
}

#[test]
fn zstd_is_understood() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O2"], SOURCE, "plain") else {
        return;
    };
    let packed = shop.path("packed");
    // Older tools do not support it; `run` prints that.
    if objcopy(&["--compress-debug-sections=zstd"], &[&program, &packed])
        || run(Command::new("llvm-objcopy")
            .arg("--compress-debug-sections=zstd")
            .args([&program, &packed]))
    {
        asks(&open(&packed));
    }
}

/// A program with its debug information in another file: (program, debug file).
fn separated(shop: &Workshop, name: &str) -> Option<(PathBuf, PathBuf)> {
    let options = ["-g", "-O2", "-Wl,--build-id=sha1"];
    let program = shop.compile("gcc", &options, SOURCE, name)?;
    let debug = shop.path(&format!("{name}.debug"));
    let stripped = shop.path(&format!("{name}.stripped"));
    (objcopy(&["--only-keep-debug"], &[&program, &debug])
        && objcopy(&["--strip-debug"], &[&program, &stripped]))
    .then_some((stripped, debug))
}

#[test]
fn separate_files_are_found_by_build_id() {
    let shop = Workshop::new();
    let Some((program, debug)) = separated(&shop, "ided") else {
        return;
    };
    let central = shop.path("central");
    let object = open(&program).with_debug_directories(vec![central.clone()]);
    let error = object.debug().unwrap_err();
    let DebugError::None { tried, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(tried.len(), 1);
    assert_eq!(tried[0].why, NotUsed::Absent);
    let text = error.to_string();
    assert!(
        text.contains("-dbgsym") && text.contains("-g,") && text.contains(".build-id/"),
        "{text}"
    );

    std::fs::create_dir_all(tried[0].path.parent().unwrap()).unwrap();
    std::fs::copy(&debug, &tried[0].path).unwrap();
    let object = open(&program).with_debug_directories(vec![central.clone()]);
    asks(&object);
    let found_in = format!("{:?}", tried[0].path);
    assert!(format!("{:?}", object.debug().unwrap()).contains(&found_in));

    // A file of another build at that path is rejected.
    let other = shop
        .compile("gcc", &["-g", "-O1"], SOURCE, "other")
        .unwrap();
    std::fs::copy(&other, &tried[0].path).unwrap();
    let object = open(&program).with_debug_directories(vec![central]);
    let text = object.debug().unwrap_err().to_string();
    assert!(text.contains("of another build"), "{text}");
}

#[test]
fn separate_files_are_found_by_link_if_the_sum_is_right() {
    let shop = Workshop::new();
    let Some((program, debug)) = separated(&shop, "linked") else {
        return;
    };
    let linked = shop.path("linked.final");
    let option = format!("--add-gnu-debuglink={}", debug.display());
    if !objcopy(
        &[&option, "--remove-section=.note.gnu.build-id"],
        &[&program, &linked],
    ) {
        return;
    }
    let nowhere = || vec![shop.path("nowhere")];
    asks(&open(&linked).with_debug_directories(nowhere()));
    // In `.debug` beside the program.
    std::fs::create_dir(shop.path(".debug")).unwrap();
    std::fs::rename(&debug, shop.path(".debug/linked.debug")).unwrap();
    asks(&open(&linked).with_debug_directories(nowhere()));
    // In the central directory, under the program's own path.
    let central = shop.path("central");
    let below = central.join(shop.path("").strip_prefix("/").unwrap());
    std::fs::create_dir_all(&below).unwrap();
    std::fs::rename(shop.path(".debug/linked.debug"), below.join("linked.debug")).unwrap();
    asks(&open(&linked).with_debug_directories(vec![central.clone()]));
    // A changed file counts as another file.
    let mut bytes = std::fs::read(below.join("linked.debug")).unwrap();
    bytes.push(0);
    std::fs::write(below.join("linked.debug"), bytes).unwrap();
    let object = open(&linked).with_debug_directories(vec![central]);
    let text = object.debug().unwrap_err().to_string();
    assert!(text.contains("check sum differs"), "{text}");
}

#[test]
fn what_no_file_has_is_fetched_once_and_checked() {
    let shop = Workshop::new();
    let Some((program, debug)) = separated(&shop, "fetched") else {
        return;
    };
    let other = shop.compile("gcc", &["-g", "-O1"], SOURCE, "another");
    let garbage = shop.path("garbage");
    std::fs::write(&garbage, [b'x'; 5000]).unwrap();
    let nowhere = || open(&program).with_debug_directories(vec![shop.path("nowhere")]);

    let object = nowhere();
    object.fetch_debug(&mut |build_id| {
        assert_eq!(Some(build_id), object.build_id());
        Ok(debug.clone())
    });
    object.fetch_debug(&mut |_| panic!("it is there"));
    asks(&object);

    let unusable = |path: &Path, why| {
        let path = path.to_owned();
        NotFetched::Unusable(Tried { path, why })
    };
    let not_elf = NotUsed::Damaged("not an ELF file");
    for (answer, expected) in [
        (Err(NotFetched::NotFound), NotFetched::NotFound),
        (
            Ok(&other.unwrap()),
            unusable(&shop.path("another"), NotUsed::OtherBuild),
        ),
        (Ok(&garbage), unusable(&garbage, not_elf)),
        (Ok(&program), unusable(&program, NotUsed::Empty)),
        (
            Ok(&shop.path("")),
            unusable(&shop.path(""), NotUsed::Absent),
        ),
    ] {
        let object = nowhere();
        object.fetch_debug(&mut |_| answer.clone().cloned());
        object.fetch_debug(&mut |_| panic!("it has failed before"));
        let error = object.debug().unwrap_err();
        let DebugError::None {
            tried, not_fetched, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(not_fetched.as_ref(), Some(&expected));
        assert_eq!(tried.len(), 1);
        assert!(error.to_string().contains(&expected.to_string()), "{error}");
    }
    // A file with debug information needs none.
    let whole = open(&shop.path("fetched"));
    whole.fetch_debug(&mut |_| panic!("it is there"));
    asks(&whole);
}

#[test]
fn common_files_of_dwz_are_fetched_too() {
    let shop = Workshop::new();
    let options = ["-gdwarf-4", "-O2", "-Wl,--build-id=sha1"];
    let Some(one) = shop.compile("gcc", &options, SOURCE, "one") else {
        return;
    };
    let (two, common) = (shop.path("two"), shop.path("common.dwz"));
    std::fs::copy(&one, &two).unwrap();
    let mut dwz = Command::new("dwz");
    dwz.arg("-m").arg(&common).args([&one, &two]);
    let (debug, stripped) = (shop.path("one.debug"), shop.path("one.stripped"));
    if !run(&mut dwz)
        || !common.exists()
        || !objcopy(&["--only-keep-debug"], &[&one, &debug])
        || !objcopy(&["--strip-debug"], &[&one, &stripped])
    {
        return;
    }
    let moved = shop.path("cached");
    std::fs::rename(&common, &moved).unwrap();
    let nowhere = || open(&stripped).with_debug_directories(vec![shop.path("nowhere")]);
    let object = nowhere();
    let mut asked = Vec::new();
    object.fetch_debug(&mut |build_id| {
        asked.push(build_id.to_vec());
        Ok([debug.clone(), moved.clone()][asked.len() - 1].clone())
    });
    asks(&object);
    assert_eq!(asked[0], object.build_id().unwrap());
    assert_ne!(asked[0], asked[1]);

    let object = nowhere();
    object.fetch_debug(&mut |build_id| match Some(build_id) == object.build_id() {
        true => Ok(debug.clone()),
        false => Err(NotFetched::NotFound),
    });
    let error = object.debug().unwrap_err().to_string();
    let expected = "common.dwz: the servers in DEBUGINFOD_URLS do not have them";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn common_files_of_dwz_are_found() {
    let shop = Workshop::new();
    let Some(one) = shop.compile("gcc", &["-gdwarf-4", "-O2"], SOURCE, "one") else {
        return;
    };
    let two = shop.path("two");
    std::fs::copy(&one, &two).unwrap();
    let common = shop.path("common.dwz");
    let mut dwz = Command::new("dwz");
    dwz.arg("-m").arg(&common).args([&one, &two]);
    if !run(&mut dwz) || !common.exists() {
        return;
    }
    asks(&open(&one));
    std::fs::remove_file(&common).unwrap();
    let object = open(&one).with_debug_directories(Vec::new());
    let debug = object.debug().unwrap();
    if let Ok(places) = debug.functions("caller") {
        for place in places {
            let _ = debug.describe(&place.site);
        }
    }
}

#[test]
fn split_files_are_found_and_missed() {
    let shop = Workshop::new();
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let name = format!("split{version}");
        let options = [version, "-O2", "-gsplit-dwarf"];
        let Some(program) = shop.compile("gcc", &options, SOURCE, &name) else {
            return;
        };
        asks(&open(&program));
        let package = shop.path(&format!("{name}.dwp"));
        let mut dwp = Command::new("dwp");
        dwp.arg("-e").arg(&program).arg("-o").arg(&package);
        // binutils' dwp fails on DWARF 5.
        let mut llvm = Command::new("llvm-dwp");
        llvm.arg("-e").arg(&program).arg("-o").arg(&package);
        let packed = run(&mut dwp) || run(&mut llvm);
        // Remove the split-off files.
        for entry in std::fs::read_dir(shop.path("")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "dwo") {
                std::fs::remove_file(path).unwrap();
            }
        }
        if packed {
            asks(&open(&program));
            std::fs::remove_file(&package).unwrap();
        }
        let object = open(&program);
        let debug = object.debug().unwrap();
        let error = debug.functions("caller").unwrap_err();
        assert!(matches!(error, DebugError::SplitMissing(_)), "{error}");
    }
}

#[test]
fn lines_without_code_name_their_neighbours() {
    let shop = Workshop::new();
    std::fs::create_dir_all(shop.path("a")).unwrap();
    std::fs::create_dir_all(shop.path("b")).unwrap();
    std::fs::write(
        shop.path("a/same.h"),
        "static int here(int x) { return x + 1; }\n",
    )
    .unwrap();
    std::fs::write(
        shop.path("b/same.h"),
        "static int there(int x) { return x + 2; }\n",
    )
    .unwrap();
    let source = format!(
        "#include \"a/same.h\"\n#include \"b/same.h\"\n{SOURCE}int more(int x) {{ return here(x) + there(x); }}\n"
    );
    let Some(program) = shop.compile("gcc", &["-g", "-O0"], &source, "lines") else {
        return;
    };
    let object = open(&program);
    let debug = object.debug().unwrap();
    let said = |file: &str, line| debug.line(file, line).unwrap_err().to_string();
    assert_eq!(
        said("lines.c", 10),
        "no code at line 10 of lines.c; the nearest with code: 8, 9, 11, 12"
    );
    assert_eq!(
        said("lines.c", 9999),
        "no code at line 9999 of lines.c; the nearest with code: 13, 14"
    );
    assert!(said("lines.cc", 3).starts_with("no source file `lines.cc`"));
    let error = debug.line("same.h", 1).unwrap_err();
    let LineError::Ambiguous { of, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(of.len(), 2, "{error}");
    let places = debug.line("b/same.h", 1).unwrap();
    assert_eq!(places[0].site.as_ref().unwrap().frame().name, "there");
    // A part of a name does not match.
    assert!(debug.line("ame.h", 1).is_err());
    assert!(said("elsewhere/same.h", 1).contains("a/same.h"));
}

#[test]
fn functions_have_the_addresses_of_their_symbols() {
    let shop = Workshop::new();
    for compiler in ["gcc", "clang", "g++"] {
        let Some(program) = shop.compile(compiler, &["-g", "-O2"], SOURCE, compiler) else {
            continue;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        let symbols = object.symbols().unwrap();
        for name in ["caller", "main"] {
            let found = debug.functions(name).unwrap();
            let symbol = symbols.exact(name)[0];
            assert_eq!(found[0].address, symbol.function.extent.start);
        }
        let error = debug.functions("nothing").unwrap_err();
        assert_eq!(error, DebugError::UnknownFunction("nothing".to_owned()));
    }
}

const RUST: &str = r#"
pub struct Point { pub x: i32, pub name: &'static str, pub list: Vec<u8> }
#[inline(never)]
pub fn handle(point: &Point, text: &str, count: u16) -> usize {
    let local = point.x as usize + count as usize;
    std::hint::black_box(local);
    text.len() + local + point.name.len() + point.list.len()
}
fn main() {
    let point = Point { x: 3, name: "name", list: vec![1, 2] };
    println!("{}", handle(std::hint::black_box(&point), "text", 9));
}
"#;

#[test]
fn rust_is_read_as_far_as_it_goes() {
    let shop = Workshop::new();
    for level in ["0", "2"] {
        let Some(program) = shop.compile_rust(&[], RUST, "point", level) else {
            return;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        let places = debug.functions("point::handle").unwrap();
        let place = places
            .iter()
            .find(|place| place.inlined_into.is_none())
            .unwrap();
        let line = debug.line("point.rs", 7).unwrap();
        let site = line.iter().find_map(|place| place.site.clone()).unwrap();
        let listed = debug.describe(&site).unwrap();
        let kind = |name: &str| {
            let found = listed.iter().find(|described| described.name == name);
            found.map(|described| described.c_type.as_str())
        };
        assert_eq!(kind("count"), Some("u16"), "{listed:?}");
        assert_eq!(kind("text"), Some("&str"));
        let ask = |text: &str| {
            let fetch = capriole_event::Fetch {
                base: capriole_event::Base::Variable(text.to_owned()),
                derefs: Vec::new(),
            };
            debug.fetch(&site, &fetch, None)
        };
        if level == "0" {
            let text = ask("text").unwrap();
            assert_eq!(text.field_type, capriole_event::FieldType::STRING);
            let length = text.length.expect("a length");
            let capriole_dwarf::Length::Number { of, less: 0, .. } = *length else {
                panic!("{length:?}");
            };
            assert_eq!(of.field_type, capriole_event::FieldType::U64);
            for path in [
                "text.length",
                "point.x",
                "point.name.length",
                "count",
                "local",
            ] {
                ask(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
            // The first instructions show where the parameter is, whatever Rust's calling
            // convention is.
            let entry = debug.describe(&place.site).unwrap();
            let count = entry.iter().find(|described| described.name == "count");
            assert!(count.unwrap().place.is_ok());
        }
    }
}
