//! The event grammar: what is accepted, what is refused and how that reads.

use capriole_event::{ArgRegister, EventSpec, ObjectRef, Place};

fn parse(text: &str) -> EventSpec {
    EventSpec::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Object and place, in short.
fn site(text: &str) -> (String, String, u64) {
    let spec = parse(text);
    let object = match spec.object {
        ObjectRef::Main => "main".to_string(),
        ObjectRef::Path(path) => format!("path {path}"),
        ObjectRef::Name(name) => format!("name {name}"),
    };
    match spec.place {
        Place::Symbol { pattern, offset } => (object, pattern, offset),
        Place::FileOffset(offset) => (object, "file".to_string(), offset),
    }
}

fn is(text: &str, object: &str, place: &str, offset: u64) {
    assert_eq!(
        site(text),
        (object.to_string(), place.to_string(), offset),
        "{text}"
    );
}

#[test]
fn objects_and_places() {
    is("libc:malloc", "name libc", "malloc", 0);
    is(":main", "main", "main", 0);
    is("  :main\t", "main", "main", 0);
    is("/usr/bin/app:main+8", "path /usr/bin/app", "main", 8);
    is("./app:main+0x1F", "path ./app", "main", 31);
    is("/opt/my app/bin:main", "path /opt/my app/bin", "main", 0);
    is("/usr/bin/app:0x830", "path /usr/bin/app", "file", 0x830);
    is(
        "/usr/bin/app:0x830 $arg1",
        "path /usr/bin/app",
        "file",
        0x830,
    );
    is(
        "libstdc++:0xffffffffffffffff",
        "name libstdc++",
        "file",
        u64::MAX,
    );
    is(
        "libpython3.11:PyObject_*",
        "name libpython3.11",
        "PyObject_*",
        0,
    );
    is(":*", "main", "*", 0);
    is("libm:sin@@GLIBC_2.2.5", "name libm", "sin@@GLIBC_2.2.5", 0);
}

#[test]
fn symbols_as_demanglers_print_them() {
    for symbol in [
        "ns::Foo::bar(int, char const*)",
        "ns::Foo::bar(int) const",
        "foo<a, b>::bar",
        "operator new(unsigned long)",
        "operator new[](unsigned long, std::align_val_t)",
        "ns::Foo::operator()(int) const",
        "ns::operator<(A const&, A const&)",
        "std::operator<< <char>(std::ostream&, char const*)",
        "ns::Foo::operator->() const",
        "ns::operator+(A, A)",
        "ns::Foo::operator++(int)",
        "ns::Foo::operator unsigned long() const",
        "ns::Foo::operator char const*() const &",
        "ns::operator<=>(A, A)",
        "void std::sort<int*>(int*, int*)",
        "std::enable_if<(1)+(2), int>::type f<int>(int)",
        "void f<&(A::g(int))>(void (*)(int, char))",
        "foo[abi:cxx11](int)",
        "foo(int) [clone .cold]",
        "f()::{lambda(int)#1}::operator()(int) const",
        "f(int, {default arg#1})",
        "<alloc::vec::Vec<T, A> as core::ops::drop::Drop>::drop",
        "core::ptr::drop_in_place<dyn core::ops::Fn() -> i32>",
        "<[u8; 4] as Trait>::f",
        "app::main::{{closure}}",
        "<impl core::fmt::Debug for &T>::fmt",
        "_ZN3foo3barEv.llvm.123",
        "größe",
    ] {
        is(&format!(":{symbol}"), "main", symbol, 0);
        is(
            &format!("lib:{symbol} $arg1 size=$arg2"),
            "name lib",
            symbol,
            0,
        );
        is(&format!(":{symbol}+0x10  $arg1"), "main", symbol, 16);
        assert_eq!(
            parse(&format!(":{symbol} $arg1 size=$arg2"))
                .arguments
                .len(),
            2
        );
    }
}

#[test]
fn arguments() {
    let spec = parse("libc:write fd=$arg1 $arg3 buf=$arg2 again=$arg1");
    let found: Vec<(&str, ArgRegister)> = spec
        .arguments
        .iter()
        .map(|a| (a.name.as_str(), a.source))
        .collect();
    assert_eq!(
        found,
        [
            ("fd", ArgRegister::Arg1),
            ("arg3", ArgRegister::Arg3),
            ("buf", ArgRegister::Arg2),
            ("again", ArgRegister::Arg1),
        ]
    );
    let again: Vec<String> = spec.arguments.iter().map(ToString::to_string).collect();
    assert_eq!(again.join(" "), "fd=$arg1 $arg3 buf=$arg2 again=$arg1");
    let registers: Vec<_> = ArgRegister::ALL
        .iter()
        .map(|r| {
            (
                r.number(),
                r.register_name(),
                r.encoding(),
                r.default_name(),
            )
        })
        .collect();
    assert_eq!(
        registers,
        [
            (1, "rdi", 7, "arg1"),
            (2, "rsi", 6, "arg2"),
            (3, "rdx", 2, "arg3"),
            (4, "rcx", 1, "arg4"),
            (5, "r8", 8, "arg5"),
            (6, "r9", 9, "arg6"),
        ]
    );
}

#[test]
fn wildcards_and_their_look_alikes() {
    for text in [
        ":f*",
        ":*",
        ":f?o",
        ":[ab]*",
        ":f[!_]",
        "libc:*alloc",
        ":ns::*::f(int)",
        ":f(*)",
        ":f(*, int)",
        ":vector<*>::push_back",
        ":map<int, *>::find",
        ":*operator*",
        ":f* $arg1",
    ] {
        assert!(parse(text).is_glob(), "{text}");
    }
    for text in [
        ":f",
        ":f(char*)",
        ":f(char const*, int**)",
        ":f(void (*)(int))",
        ":operator*(A, A)",
        ":operator[](int)",
        ":operator new[](unsigned long)",
        ":f[abi:cxx11]()",
        ":f() [clone .cold]",
        ":<[u8] as T>::f",
        ":f<*const u8>",
        ":f\\*",
        ":f[",
        ":app:0x10",
        ":char* f<int>(int)",
    ] {
        assert!(
            !EventSpec::parse(text).is_ok_and(|spec| spec.is_glob()),
            "{text}"
        );
    }
}

#[test]
fn specs_match_the_names_they_mean() {
    let matches = |text: &str, name: &str| parse(text).matches(name);
    assert!(matches(":f(char const*)", "f(char const*)"));
    assert!(!matches(":f(char const*)", "f(char const**)"));
    assert!(matches(":f*", "foo") && matches(":f*", "f*") && !matches(":f*", "of"));
    assert!(matches(":f\\*", "f*") && !matches(":f\\*", "fo"));
    assert!(
        matches(":f[abi:cxx11]*", "f[abi:cxx11]*")
            && matches(":operator[](int)", "operator[](int)")
    );
    assert!(matches(":ns::*(int)", "ns::a::b(int)"));
    assert!(!matches(":0x10", "0x10"));
}

/// The message for a text that is refused.
fn refused(text: &str) -> String {
    match EventSpec::parse(text) {
        Ok(spec) => panic!("{text} was taken for {spec:?}"),
        Err(error) => error.to_string(),
    }
}

/// All messages, one after the other: what a user sees.
#[test]
fn errors_point_at_the_place_and_say_what_to_write() {
    let texts = [
        "",
        " \t ",
        "malloc",
        "malloc size=$arg1",
        "/usr/bin/app",
        "std::sort",
        "std::sort<int> $arg1",
        "::main",
        "::",
        "lib*:malloc",
        "malloc libc:x",
        "/usr/bin/app $arg1:u64",
        "libc:",
        "libc: malloc",
        "libc:$arg1",
        "libc:size=$arg1",
        "libc:830",
        "libc:0x",
        "libc:0x83g",
        "libc:0x10000000000000000",
        "libc:malloc+",
        "libc:malloc+0x",
        "libc:malloc+8k",
        "libc:malloc+99999999999999999999",
        "libc:malloc +8",
        "libc:+8",
        "libc:malloc arg1",
        "libc:malloc size=arg1",
        "libc:malloc $arg0",
        "libc:malloc $arg7",
        "libc:malloc $argx",
        "libc:malloc $",
        "libc:malloc $retval",
        "libc:malloc $arg1:u64",
        "libc:malloc %di",
        "libc:malloc $arg1 fd=%di:s32",
        "libc:malloc $arg1 +0(%si)",
        "libc:malloc $arg1 size=",
        "libc:malloc $arg1 2nd=$arg2",
        "libc:malloc $arg1 a-b=$arg2",
        "libc:malloc $arg1 =$arg2",
        "libc:malloc $arg1 $arg1",
        "libc:malloc arg2=$arg1 $arg2",
        "libc:malloc a=$arg1 b=$arg1 c=$arg1 d=$arg1 e=$arg1 f=$arg1 g=$arg1",
        "p:net/req /usr/bin/app:0x830 fd=%di:s32",
        "r:net/ret /usr/bin/app:0x830 ret=$retval",
        "uprobe:/bin/bash:readline",
        "uretprobe:/bin/bash:readline",
        "usdt:/bin/app:net:request",
        "libc:malloc:20",
        "größe:grö+ß $arg1",
        "libc:\tmalloc\n$arg9",
    ];
    let all: Vec<String> = texts.iter().map(|text| refused(text)).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn columns_count_characters() {
    let error = EventSpec::parse("größe:größe $arg9").unwrap_err();
    assert_eq!(error.column, 12);
    let error = EventSpec::parse("größe").unwrap_err();
    assert_eq!(error.column, 5);
}
