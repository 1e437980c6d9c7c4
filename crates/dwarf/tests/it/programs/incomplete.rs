//! Messages for incomplete debug information: missing variables, a missing common file, a
//! missing split-off part, an unknown variant of an enum.

use std::process::Command;

use capriole_dwarf::DebugError;
use capriole_dwarf::DebugInfo as _;
use capriole_testkit::objects::open;
use capriole_testkit::stopped::ask;
use capriole_testkit::workshop::{Workshop, run};

const SOURCE: &str = r#"
int counter = 3;
__attribute__((noinline)) int handle(int size, int more)
{
	if (0) { int never = 4; counter = never; }
	return counter += size * more;  /* LINE handle */
}
int main(int argc, char **argv) { return handle(argc, 5); }
"#;

#[test]
fn functions_without_variables_are_told_from_those_that_have_none() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g1", "-O0"], SOURCE, "g1") else {
        return;
    };
    let object = open(&program);
    let debug = object.debug().unwrap();
    let site = debug.functions("handle").unwrap().remove(0).site;
    let expected = "the debug information about `handle` is without variables and types: compile \
                    its source file with -g (-g1 is not enough)";
    for name in ["size", "counter"] {
        let error = ask(&debug, &site, name, None).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(debug.describe(&site).unwrap_err().to_string(), expected);
    // A function that really has no variables.
    let nothing = "int x; void handle(void) { x = 1; } int main(void) { handle(); return 0; }\n";
    let program = shop
        .compile("gcc", &["-g", "-O0"], nothing, "none")
        .unwrap();
    let object = open(&program);
    let debug = object.debug().unwrap();
    let site = debug.functions("handle").unwrap().remove(0).site;
    assert_eq!(debug.describe(&site), Ok(Vec::new()));
    assert!(ask(&debug, &site, "x", None).is_ok());
}

#[test]
fn a_common_file_that_is_missing_is_named() {
    let shop = Workshop::new();
    let Some(program) = shop.compile("gcc", &["-g", "-O0"], SOURCE, "plain") else {
        return;
    };
    // The section that dwz(1) makes: a file name, and a build id of 20 bytes.
    let link = shop.path("link");
    std::fs::write(&link, [b"common.dwz\0".as_slice(), &[7; 20]].concat()).unwrap();
    let linked = shop.path("linked");
    let add = format!(".gnu_debugaltlink={}", link.display());
    let mut objcopy = Command::new("objcopy");
    objcopy
        .args(["--add-section", &add])
        .args([&program, &linked]);
    assert!(run(&mut objcopy));
    let object = open(&linked).with_debug_directories(Vec::new());
    let debug = object.debug().unwrap();
    let place = debug.functions("handle").unwrap().remove(0);
    let missing = DebugError::SupplementMissing("common.dwz".into());
    // The missing file may contain names and types of these variables.
    assert_eq!(debug.describe(&place.site).unwrap_err(), missing);
    let error = ask(&debug, &place.site, "nothing", None).unwrap_err();
    assert_eq!(error.to_string(), missing.to_string());
    assert_eq!(debug.functions("nothing").unwrap_err(), missing);
    // The line table is in the file itself.
    assert!(debug.line("plain.c", 6).is_ok());
}

#[test]
fn a_part_that_was_cut_off_is_called_damaged() {
    let shop = Workshop::new();
    let options = ["-g", "-gsplit-dwarf", "-O0"];
    let Some(program) = shop.compile("gcc", &options, SOURCE, "split") else {
        return;
    };
    let files = std::fs::read_dir(shop.path("")).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    let part = files.find(|path| path.extension().is_some_and(|end| end == "dwo"));
    let part = part.unwrap();
    let whole = std::fs::read(&part).unwrap();
    for len in [0, 10, 64, whole.len() / 2] {
        std::fs::write(&part, &whole[..len]).unwrap();
        let object = open(&program);
        let debug = object.debug().unwrap();
        let error = debug.functions("handle").unwrap_err().to_string();
        let named = error.contains(&part.display().to_string());
        assert!(
            named && error.contains("not usable (damaged: "),
            "{len}: {error}"
        );
    }
}

#[test]
fn nobody_is_told_to_compile_without_optimisation_who_does() {
    let shop = Workshop::new();
    for (compiler, level, advised) in [("gcc", "-O0", false), ("gcc", "-O2", true)] {
        let name = format!("{compiler}{level}");
        let source = match advised {
            // Nothing uses its value.
            true => {
                "int x; int handle(int n) { int gone = n * 3; int y = gone + x; (void)y; return n; }\nint main(void) { return handle(3); }\n"
            }
            false => SOURCE,
        };
        let Some(program) = shop.compile(compiler, &["-g", level], source, &name) else {
            continue;
        };
        let object = open(&program);
        let debug = object.debug().unwrap();
        let site = debug.functions("handle").unwrap().remove(0).site;
        let wanted = if advised { "gone" } else { "never" };
        let error = ask(&debug, &site, wanted, None).unwrap_err().to_string();
        let helps = error.contains("compile with") || error.contains("it is kept at");
        assert_eq!(helps, advised, "{name}: {error}");
    }
}

const RUST: &str = r#"
pub enum Shape { Circle(i32), Rect { w: i64, h: i64 }, Empty }
#[inline(never)]
pub fn area(shape: &Shape, maybe: Option<u32>) -> i64 {
    std::hint::black_box(&maybe);
    match shape { Shape::Circle(r) => i64::from(*r), Shape::Rect { w, h } => w * h, Shape::Empty => 0 }
}
fn main() {
    println!("{}", area(&Shape::Circle(3), Some(4)) + area(&Shape::Rect { w: 1, h: 2 }, None));
    println!("{}", area(&Shape::Empty, None));
}
"#;

#[test]
fn variants_of_an_enum_are_not_guessed() {
    let shop = Workshop::new();
    let source = shop.path("variants.rs");
    std::fs::write(&source, RUST).unwrap();
    let program = shop.path("variants");
    if !run(Command::new("rustc")
        .arg("-g")
        .arg(&source)
        .arg("-o")
        .arg(&program))
    {
        return;
    }
    let object = open(&program);
    let debug = object.debug().unwrap();
    let lines = debug.line("variants.rs", 6).unwrap();
    let site = lines.iter().find_map(|place| place.site.clone()).unwrap();
    for (text, of, kind) in [
        ("maybe", "maybe", "Option<u32>"),
        ("maybe.Some", "maybe", "Option<u32>"),
        ("maybe.__0", "maybe", "Option<u32>"),
        ("shape.Circle.__0", "shape", "Shape"),
        ("*shape", "*shape", "Shape"),
    ] {
        let error = ask(&debug, &site, text, None).unwrap_err().to_string();
        assert!(error.contains("an enum with data"), "{text}: {error}");
        let named = error.starts_with(&format!("`{of}` is "));
        assert!(named && error.contains(kind), "{text}: {error}");
    }
    assert!(ask(&debug, &site, "shape", None).is_ok());
}
