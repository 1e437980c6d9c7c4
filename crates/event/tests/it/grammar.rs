//! The event grammar: objects, places, names, rejected input and its error messages.

use capriole_event::{At, EventSpec, ObjectRef, Place, automatic_name};

fn parse(text: &str) -> EventSpec {
    EventSpec::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Object, place and offset of an event.
fn site(text: &str) -> (String, String, u64) {
    let spec = parse(text);
    let object = match spec.object {
        ObjectRef::Any => "any".to_string(),
        ObjectRef::Main => "main".to_string(),
        ObjectRef::Path(path) => format!("path {path}"),
        ObjectRef::Name(name) => format!("name {name}"),
    };
    match spec.place {
        Place::Symbol { pattern, offset } => (object, pattern, offset),
        Place::FileOffset(offset) => (object, "file".to_string(), offset),
        Place::Line { file, line } => (object, format!("line of {file}"), u64::from(line)),
        Place::Static {
            provider,
            name,
            format,
        } => {
            let format = format.map(|format| format!(" {format:?}"));
            let marker = format!("marker {provider} {name}{}", format.unwrap_or_default());
            (object, marker, 0)
        }
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
    is("malloc", "any", "malloc", 0);
    is("malloc+8 size=$arg1:u64", "any", "malloc", 8);
    is("r malloc +0(%di):u32", "any", "malloc", 0);
    is("std::sort<int> $arg1", "any", "std::sort<int>", 0);
    is("::cost if cpu == 1", "any", "cost", 0);
    is("uprobe:readline", "any", "readline", 0);
    is("server.c:120 req->len:u32", "any", "line of server.c", 120);
    is("net/server.c:120", "any", "line of net/server.c", 120);
    is("/src/net/mod.rs:7 n", "any", "line of /src/net/mod.rs", 7);
    is("/usr/bin/gen.c:main", "path /usr/bin/gen.c", "main", 0);
    is("  :main\t", "main", "main", 0);
    is("/usr/bin/app:main+8", "path /usr/bin/app", "main", 8);
    is("./app:main+0x1F", "path ./app", "main", 31);
    is("./app:main+010", "path ./app", "main", 8);
    is("/opt/my app/bin:main", "path /opt/my app/bin", "main", 0);
    is(
        "/opt/my app/bin:main %di",
        "path /opt/my app/bin",
        "main",
        0,
    );
    is("/usr/bin/app:0x830", "path /usr/bin/app", "file", 0x830);
    is("/usr/bin/app:2096", "path /usr/bin/app", "file", 2096);
    is("/usr/bin/app:04060", "path /usr/bin/app", "file", 0x830);
    is("/usr/bin/a:b/c:0x830", "path /usr/bin/a:b/c", "file", 0x830);
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
    is(":f\\%return", "main", "f\\%return", 0);
    is("p2:f", "name p2", "f", 0);
    is("pool:f", "name pool", "f", 0);
    is(
        "/usr/bin/app:file.c:120",
        "path /usr/bin/app",
        "line of file.c",
        120,
    );
    is(":src/a-b.cc:7 x=%di", "main", "line of src/a-b.cc", 7);
}

#[test]
fn kinds_and_names() {
    let names = |text: &str| {
        let spec = parse(text);
        let at = if spec.at == At::Return { 'r' } else { 'p' };
        let part = |name: Option<String>| name.unwrap_or("-".to_string());
        format!("{at} {} {}", part(spec.group), part(spec.name))
    };
    for (text, expected) in [
        ("p /bin/ls:0x1000", "p - -"),
        ("r\t/bin/ls:0x1000", "r - -"),
        ("p:a /bin/ls:0x1000", "p - a"),
        (" p:net/req  /bin/ls:0x1000 %di", "p net req"),
        ("p:net.req /bin/ls:0x1000", "p net req"),
        ("r:net/ /bin/ls:0x1000", "r net -"),
        ("p:net-2/req /bin/ls:0x1000", "p net-2 req"),
        ("p:net/req libc:malloc", "p net req"),
        ("r:net/req :main ret=$retval", "r net req"),
        ("p:net/req :ns::f(int) const %di", "p net req"),
        ("/bin/ls:0x1000%return", "r - -"),
        ("p:a /bin/ls:0x1000%return ret=$retval", "r - a"),
        ("r:a /bin/ls:0x1000%return", "r - a"),
        ("libc:malloc%return $retval", "r - -"),
        ("libc:mall*%return", "r - -"),
        ("uprobe:/bin/bash:readline", "p - -"),
        ("uprobe:/bin/bash:readline+8 %di", "p - -"),
        ("uretprobe:libc:malloc $retval", "r - -"),
        ("usdt:/bin/app:net:request", "p - -"),
    ] {
        assert_eq!(names(text), expected, "{text}");
    }
    is("p:a /bin/ls:0x1000", "path /bin/ls", "file", 0x1000);
    is("r:net/req :main ret=$retval", "main", "main", 0);
    is("libc:malloc%return $retval", "name libc", "malloc", 0);
    is(
        "uprobe:/bin/bash:readline+8 %di",
        "path /bin/bash",
        "readline",
        8,
    );
    is(
        "uprobe:/bin/bash:file.c:120",
        "path /bin/bash",
        "line of file.c",
        120,
    );
    is(
        "usdt:/bin/app:net:req*  x=$arg1",
        "path /bin/app",
        "marker net req*",
        0,
    );
    is("usdt::net:request", "main", "marker net request", 0);
}

#[test]
fn markers() {
    let arguments = |text: &str| {
        let all = parse(text).arguments.into_iter();
        all.map(|a| a.to_string()).collect::<Vec<_>>().join(" ")
    };
    is("usdt:libc:*", "name libc", "marker * *", 0);
    is("usdt::*", "main", "marker * *", 0);
    is(
        r#"usdt:./app:net:request "%d \"%s\" %%" $arg1"#,
        "path ./app",
        r#"marker net request "%d \"%s\" %%""#,
        0,
    );
    // Without arguments, an event records all arguments of the marker.
    assert_eq!(arguments("usdt::net:request"), "$arg*");
    assert_eq!(arguments(r#"usdt::net:request "%d" if fd > 3"#), "$arg*");
    assert_eq!(arguments("usdt::net:request if path ~ \"/etc/*\""), "$arg*");
    assert_eq!(arguments("usdt::net:request fd stack"), "fd stack");
    // Only the marker knows the types of its arguments.
    for text in [
        "usdt::net:request $arg1:string if arg1 == \"x\"",
        "usdt::net:request $arg1:f64",
        "usdt::net:request $arg12 if arg12 == \"x\"",
        "usdt::net:request path=$arg1 if path ~ \"x*\"",
    ] {
        assert_eq!(EventSpec::parse(text).err(), None);
    }
    let matches = |text: &str, provider: &str, name: &str| {
        let spec = parse(text);
        assert!(!spec.place.matcher()(name));
        spec.place.matches_marker(provider, name)
    };
    assert!(matches("usdt::net:request", "net", "request"));
    assert!(!matches("usdt::net:request", "net", "requests"));
    assert!(!matches("usdt::net:request", "Net", "request"));
    assert!(matches("usdt::net:re*", "net", "requests"));
    assert!(matches("usdt::*:[rs]e*", "net", "sent"));
    assert!(!matches("usdt::*:[rs]e*", "net", "get"));
    assert!(matches("usdt::*", "any", "thing"));
    assert!(!parse(":net").place.matches_marker("net", "net"));
}

#[test]
fn reference_counters() {
    let counter = |text: &str| {
        let spec = parse(text);
        (spec.reference_counter, spec.at)
    };
    assert_eq!(counter("/bin/ls:0x1000(0x10)"), (Some(16), At::Entry));
    assert_eq!(counter("/bin/ls:0x1000(16) %di"), (Some(16), At::Entry));
    assert_eq!(counter("/bin/ls:0x1000%return(16)"), (Some(16), At::Return));
    assert_eq!(counter("/bin/ls:0x1000(16)%return"), (Some(16), At::Return));
    assert_eq!(counter("/bin/ls:0x1000"), (None, At::Entry));
}

#[test]
fn automatic_names() {
    let name = automatic_name;
    assert_eq!(name(At::Entry, "/bin/ls", 0x1000), "p_ls_0x1000");
    assert_eq!(name(At::Return, "/bin/ls", 0x1000), "r_ls_0x1000");
    assert_eq!(name(At::Entry, "/usr/lib/libc.so.6", 1), "p_libc_0x1");
    assert_eq!(
        name(At::Entry, "/bin/x86_64-linux-gnu-ld.bfd", 1),
        "p_x86_0x1"
    );
    assert_eq!(name(At::Entry, "/bin/[", 1), "p___0x1");
    let long = name(At::Entry, &"a".repeat(100), u64::MAX);
    assert_eq!((long.len(), &long[45..]), (63, "0xffffffffffffffff"));
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
        is(&format!(":{symbol}+0x10  $arg1"), "main", symbol, 16);
        is(&format!(":{symbol}%return $retval"), "main", symbol, 0);
        for arguments in [
            "$arg1 size=$arg2",
            "%di %si:u8",
            "+0(%di) -8(%si):string",
            "\\1 \\\"a b\"",
            "@0x10 size=%di",
            "size req->len",
        ] {
            let text = format!("lib:{symbol} {arguments} if cpu == 1");
            is(&text, "name lib", symbol, 0);
            assert_eq!(parse(&text).arguments.len(), 2, "{text}");
            assert!(parse(&text).filter.is_some(), "{text}");
        }
    }
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
        assert!(parse(text).place.is_glob(), "{text}");
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
        "usdt:/bin/app:*:*",
    ] {
        assert!(
            !EventSpec::parse(text).is_ok_and(|spec| spec.place.is_glob()),
            "{text}"
        );
    }
}

#[test]
fn specs_match_the_names_they_mean() {
    let matches = |text: &str, name: &str| parse(text).place.matcher()(name);
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

/// All messages, in turn, as a user sees them.
#[test]
fn errors_point_at_the_place_and_say_what_to_write() {
    let texts = [
        "",
        " \t ",
        "/usr/bin/app",
        "::",
        "0x830",
        "$arg1",
        "::libc:x",
        "lib*:malloc",
        "malloc libc:x",
        "/usr/bin/app $arg1:u64",
        "libc:",
        "libc: malloc",
        "libc:$arg1",
        "libc:size=$arg1",
        "libc:830k",
        "libc:0x",
        "libc:0x83g",
        "libc:08",
        "libc:0x10000000000000000",
        "libc:malloc+",
        "libc:malloc+0x",
        "libc:malloc+8k",
        "libc:malloc+99999999999999999999",
        "libc:malloc +8",
        "libc:+8",
        "libc:malloc:20k",
        "libc:file.c:0",
        "libc:a:b:20",
        "libc:file.c:99999999999",
        "größe:grö+ß $arg1",
        "libc:\tmalloc\n$arg9",
        "p: /bin/ls:0x1000",
        "p:/a /bin/ls:0x1000",
        "p:net/req",
        "p:malloc",
        "p:a.b/c /bin/ls:0x1000",
        "p:1net/req /bin/ls:0x1000",
        "p:net/a-b /bin/ls:0x1000",
        "p:net/a/b /bin/ls:0x1000",
        "p:net/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa /bin/ls:0x1000",
        "p2:net/req /bin/ls:0x1000",
        "p:net/req /bin/ls:0x1000%retur",
        "p:net/req /bin/ls:0x1000%return%return",
        "p:net/req :main%exit",
        "p:net/req /bin/ls:0x1000(0x10",
        "p:net/req /bin/ls:0x1000(0x10)x",
        "p:net/req /bin/ls:0x1000()",
        "p:net/req /bin/ls:0x1000(1)(1)",
        "r:net/req :main+8",
        "r :file.c:120",
        "-:net/req",
        "uprobe:/bin/bash:0x1000",
        "uretprobe:/bin/bash:readline+4",
        "usdt:/bin/app:request",
        "usdt:/bin/app::request",
        "usdt:/bin/app:net:",
        "usdt:/bin/app:net:request:x",
        "usdt:/bin/app:net:request \"%d",
        "usdt:/bin/app:net:request \"%d\"$arg1",
        "usdt:/bin/app:net:request $arg1:u8[4]",
    ];
    let refused = |text: &&str| match EventSpec::parse(text) {
        Ok(spec) => panic!("{text} was taken for {spec:?}"),
        Err(error) => error.to_string(),
    };
    let all: Vec<String> = texts.iter().map(refused).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn columns_count_bytes_and_carets_characters() {
    let error = EventSpec::parse("größe:größe %foo").unwrap_err();
    assert_eq!(error.column, 16);
    let shown = error.to_string();
    assert_eq!(shown.lines().nth(2).unwrap().find('^'), Some(2 + 12));
    let error = EventSpec::parse("/größe").unwrap_err();
    assert_eq!(error.column, 8);
}

#[test]
fn length_is_limited() {
    let long = format!(" :{} ", "a".repeat(EventSpec::MAX_LENGTH - 1));
    assert!(EventSpec::parse(&long).is_ok());
    let error = EventSpec::parse(&format!("{}b", long.trim_end())).unwrap_err();
    assert_eq!(error.column, 1 + EventSpec::MAX_LENGTH);
    // Any of these words may be the last one of the symbol.
    let words = format!(":operator {}", "a ".repeat(8000));
    assert!(EventSpec::parse(&words).is_ok());
}

/// Words of other tracers, with what to write instead.
#[test]
fn habits_from_other_tracers() {
    let texts = [
        "count(:f)",
        "lat(libc:malloc)",
        ":f quantize(r->size)",
        ":f str(r->path)",
        "r :f latency",
        "r :f hist(duration)",
        "r :f avg(duration) if duration > 10ms",
        ":f x=$arg1 where x > 90",
        "kprobe:vfs_read",
    ];
    let refused = |text: &&str| EventSpec::parse(text).expect_err(text).to_string();
    let all: Vec<String> = texts.iter().map(refused).collect();
    insta::assert_snapshot!(all.join("\n\n"));
    for text in [
        ":f where",
        ":f when where->x",
        "count(int)",
        ":f latency duration",
    ] {
        EventSpec::parse(text).expect(text);
    }
    let lambda = EventSpec::parse("main::{lambda(auto:1)#1}::operator()<int> %di").unwrap();
    assert_eq!(lambda.object, ObjectRef::Any);
    assert_eq!(lambda.arguments.len(), 1);
}
