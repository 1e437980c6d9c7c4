//! Functions of C++ are found by the names that people write, in every command.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{calls, record, scratch, text};
use serde_json::Value;

const STRING: &str =
    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

/// Complete names, each with ways to write it.
fn table() -> Vec<(String, Vec<&'static str>)> {
    let vector = format!("std::vector<{STRING}, std::allocator<{STRING} > >");
    let name = |name: &str, spellings: &[&'static str]| (name.to_owned(), spellings.to_vec());
    let mut table = vec![
        name(
            "shop::foo(int)",
            &[
                "shop::foo(int)",
                "shop::foo(int )",
                "shop::foo( int)",
                "foo(int)",
            ],
        ),
        name("shop::foo(int*)", &["shop::foo(int*)", "shop::foo(int *)"]),
        name("shop::foo()", &["shop::foo()", "shop::foo(void)"]),
        name(
            "shop::foo(char const* const*)",
            &[
                "shop::foo(const char* const*)",
                "foo(const char *const *)",
                "shop::foo(char const*const*)",
            ],
        ),
        name(
            "shop::take(unsigned long, char const*)",
            &[
                "shop::take(unsigned long, const char*)",
                "shop::take(size_t, const char *)",
                "take(std::size_t,char const*)",
                "shop::take(long unsigned int, const char *)",
            ],
        ),
        name(
            "shop::take(std::vector<int, std::allocator<int> >)",
            &[
                "shop::take(std::vector<int>)",
                "shop::take( std::vector<int> )",
                "shop::take(std::vector<int, std::allocator<int>>)",
            ],
        ),
        name(
            "shop::tagged[abi:cxx11](int)",
            &[
                "shop::tagged",
                "shop::tagged(int)",
                "shop::tagged[abi:cxx11]",
                "shop::tagged[abi:cxx11](int)",
            ],
        ),
        name(
            "shop::(anonymous namespace)::hidden(int)",
            &[
                "shop::hidden",
                "shop::hidden(int)",
                "shop::(anonymous namespace)::hidden",
                "shop::{anonymous}::hidden(int)",
            ],
        ),
        name(
            "shop::(anonymous namespace)::Inner::method(int)",
            &[
                "shop::Inner::method",
                "Inner::method(int)",
                "shop::(anonymous namespace)::Inner::method",
            ],
        ),
        name(
            "shop::Box<int>::get() const",
            &[
                "shop::Box<int>::get",
                "shop::Box<int>::get()",
                "Box<int>::get() const",
            ],
        ),
        name(
            "shop::two<char, unsigned int>(char, unsigned int)",
            &[
                "shop::two<char, unsigned int>",
                "shop::two<char,unsigned>",
                "two(char, unsigned)",
            ],
        ),
        name(
            "shop::Op::operator==(shop::Op const&) const",
            &[
                "shop::Op::operator==",
                "shop::Op::operator==(const shop::Op&)",
            ],
        ),
        name(
            "shop::Op::operator()(int)",
            &["shop::Op::operator()", "shop::Op::operator()(int)"],
        ),
        name(
            "operator new(unsigned long)",
            &[
                "operator new",
                "operator new(unsigned long)",
                "operator new(size_t)",
                "operator new(std::size_t)",
            ],
        ),
        name(
            "operator delete(void*)",
            &["operator delete(void*)", "operator delete(void *)"],
        ),
        name(
            "operator delete(void*, unsigned long)",
            &["operator delete(void*, size_t)"],
        ),
    ];
    table.push((
        format!("shop::take({STRING})"),
        vec!["shop::take(std::string)"],
    ));
    table.push((
        format!("shop::take({STRING} const&, int)"),
        vec![
            "shop::take(const std::string&, int)",
            "shop::take(const std::string &, int)",
            "shop::take(std::string const&, int)",
        ],
    ));
    table.push((
        format!("shop::take({vector} const&)"),
        vec![
            "shop::take(const std::vector<std::string>&)",
            "take(std::vector<std::string> const &)",
        ],
    ));
    table.push((
        format!("shop::Box<{STRING} >::put({STRING})"),
        vec![
            "shop::Box<std::string>::put",
            "shop::Box<std::string>::put(std::string)",
        ],
    ));
    table
}

#[test]
fn every_spelling_is_found() {
    let Some(program) = build(Compiler::Gxx, "spellings.cpp", &[]) else {
        return;
    };
    for (name, spellings) in table() {
        for spelling in spellings {
            let output = capriole(&["list", "--json", spelling, text(&program)]);
            assert!(output.status.success(), "{spelling}: {}", told(&output));
            let sites: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let sites = sites.as_array().expect("a list");
            let symbols: Vec<_> = sites.iter().map(|site| site["symbol"].as_str()).collect();
            assert_eq!(symbols, [Some(name.as_str())], "{spelling}");
        }
    }
    // What no function has stays unknown.
    for other in [
        "shop::foo(long)",
        "shop::hidden(long)",
        "shop::Box<long>::get()",
        "operator new[]",
    ] {
        let output = capriole(&["list", other, text(&program)]);
        assert!(!output.status.success(), "{other}: {}", told(&output));
    }
}

#[test]
fn every_command_finds_them() {
    let Some(program) = build(Compiler::Gxx, "spellings.cpp", &[]) else {
        return;
    };
    let directory = scratch();
    for spelling in [
        "shop::take(const std::string &, int)",
        "shop::tagged[abi:cxx11](int)",
        "shop::Inner::method",
        "shop::foo(void)",
        "shop::Box<int>::get()",
    ] {
        let output = capriole(&["check", spelling, text(&program)]);
        assert!(output.status.success(), "{spelling}: {}", told(&output));
        let event = format!(":{spelling}");
        let words = ["stat", "--json", "-e", &event, "--", text(&program)];
        let output = capriole(&words);
        assert!(output.status.success(), "{spelling}: {}", told(&output));
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        let said: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
        assert_eq!(said["events"][0]["calls"], 1, "{spelling}: {said}");
        let trace = directory.path().join("trace");
        let output = record(&trace, &["-e", &event, "--", text(&program)]);
        assert!(output.status.success(), "{spelling}: {}", told(&output));
        assert_eq!(calls(&trace).values().sum::<u64>(), 1, "{spelling}");
    }
}
