//! Files of definitions.

use capriole_event::{Definition, definitions};

/// Line numbers and texts of the events that remain.
fn left(text: &str) -> Vec<(usize, String)> {
    let events = definitions(text).unwrap_or_else(|errors| panic!("{errors}"));
    let texts = events.into_iter();
    texts
        .map(|(line, event)| (line, event.text.trim().to_string()))
        .collect()
}

#[test]
fn one_event_a_line() {
    let text = "# what the server does\n\
         \n\
         p:net/req /usr/bin/app:0x830 fd=%di:s32\r\n\
         \t r:net/ret /usr/bin/app:0x830 ret=$retval # done\n\
         :f()::{lambda(int)#1}::operator()(int) const\n\
         libc:write s=\\\"a # b\" if comm == \"c # d\"   #x";
    assert_eq!(
        left(text),
        [
            (3, "p:net/req /usr/bin/app:0x830 fd=%di:s32".to_string()),
            (4, "r:net/ret /usr/bin/app:0x830 ret=$retval".to_string()),
            (
                5,
                ":f()::{lambda(int)#1}::operator()(int) const".to_string()
            ),
            (
                6,
                "libc:write s=\\\"a # b\" if comm == \"c # d\"".to_string()
            ),
        ]
    );
    assert_eq!(left(""), []);
    assert_eq!(left("\n # \n#"), []);
}

#[test]
fn removal() {
    let three = "p:a/x :f\np:a/y :f\np:b/x :f\n";
    let lines = |removal: &str| -> Vec<usize> {
        let left = left(&format!("{three}{removal}\n"));
        left.into_iter().map(|(line, _)| line).collect()
    };
    assert_eq!(lines("-:a/x"), [2, 3]);
    assert_eq!(lines("-:x"), [2]);
    assert_eq!(lines("-:a/"), [3]);
    assert_eq!(lines("-:a/x\n-:b/x\n-:y"), []);
    assert_eq!(lines("-:a/x\np:a/x :g"), [2, 3, 5]);
    let automatic = "p /bin/ls:0x1000\nr /bin/ls:0x1000\nr:g/ /bin/ls:4096\n";
    let after = |removal: &str| left(&format!("{automatic}{removal}")).len();
    assert_eq!(after("-:uprobes/p_ls_0x1000"), 2);
    assert_eq!(after("-:r_ls_0x1000"), 1);
    assert_eq!(after("-:g/r_ls_0x1000"), 2);
    assert_eq!(after("-:uprobes/"), 1);
}

#[test]
fn one_event_in_several_places() {
    let text = "p:a/x :f fd=%di:s32\np:a/x :g fd=%si:s32\np:a/x :f fd=%si:s32";
    assert_eq!(left(text).len(), 3);
    assert_eq!(left("p:a/x :f $arg1\np:a/y :f $arg1\np:b/x :f").len(), 3);
    assert_eq!(left(":f\n:f").len(), 2); // without names
}

/// Events of the same name are displayed together, so they must have the same format.
#[test]
fn aggregates_in_a_file() {
    let first = "p:a/x :f sum(n=%di:s32) count() by tid, fd=%si # totals\n";
    assert_eq!(
        left(first)[0].1,
        "p:a/x :f sum(n=%di:s32) count() by tid, fd=%si"
    );
    let both = |second: &str| left(&format!("{first}{second}")).len();
    assert_eq!(
        both("p:a/x :g n=%dx:s32 sum(n) count() by tid fd=%si if fd > 3"),
        2
    );
    assert_eq!(both("p:a/y :g max(n=%di:s32)"), 2);
    let text = format!(
        "{first}\
p:a/x :g max(n=%di:s32) count() by tid, fd=%si
p:a/x :g sum(n=%di:s32) by tid, fd=%si
p:a/x :g sum(n=%di:s32) count() hist(n) by tid, fd=%si
p:a/x :g sum(n=%di:s32) count() by cpu, fd=%si
p:a/x :g n=%di:s32 fd=%si sum(n) count() by tid
p:a/x :g n=%di:s32 fd=%si
p:a/x :f sum(n=%di:s32) count() by tid, fd=%si
p:a/x :g sum(n=%di:s32
"
    );
    let errors = definitions(&text).unwrap_err();
    insta::assert_snapshot!(errors.to_string(), @r"
    line 2: aggregates or keys are different from existing probe
      p:a/x :g max(n=%di:s32) count() by tid, fd=%si
               ^
      help: line 1 has an event of this name
    line 3: aggregates or keys are different from existing probe
      p:a/x :g sum(n=%di:s32) by tid, fd=%si
                                 ^
      help: line 1 has an event of this name
    line 4: aggregates or keys are different from existing probe
      p:a/x :g sum(n=%di:s32) count() hist(n) by tid, fd=%si
                                      ^
      help: line 1 has an event of this name
    line 5: aggregates or keys are different from existing probe
      p:a/x :g sum(n=%di:s32) count() by cpu, fd=%si
                                         ^
      help: line 1 has an event of this name
    line 6: aggregates or keys are different from existing probe
      p:a/x :g n=%di:s32 fd=%si sum(n) count() by tid
                                                     ^
      help: line 1 has an event of this name
    line 7: aggregates or keys are different from existing probe
      p:a/x :g n=%di:s32 fd=%si
                               ^
      help: line 1 has an event of this name
    line 8: there is already the exact same probe event
      p:a/x :f sum(n=%di:s32) count() by tid, fd=%si
      ^
      help: line 1 has an event of this name
    line 9: the brace of sum is not closed
      p:a/x :g sum(n=%di:s32
                            ^
      help: write sum(NAME=VALUE:TYPE), or sum(NAME) of a field before it
    ");
}

#[test]
fn single_lines() {
    let remove = |group: Option<&str>, name: &str| {
        Ok(Definition::Remove {
            group: group.map(str::to_string),
            name: name.to_string(),
        })
    };
    assert_eq!(Definition::parse(" -:a/x "), remove(Some("a"), "x"));
    assert_eq!(Definition::parse("-:x"), remove(None, "x"));
    assert_eq!(Definition::parse("-:a/"), remove(Some("a"), ""));
    assert!(matches!(
        Definition::parse("p :f"),
        Ok(Definition::Probe(_))
    ));
}

/// All errors are reported at once.
#[test]
fn errors_of_all_lines() {
    let text = "p:a/x /bin/ls:0x1000 fd=%di
p:a/x /bin/ls:0x1000 fd=%di
p:a/x /bin/ls:0x1010 fd=%di:u8
p:a/x /bin/ls:0x1010 size=%di
p:a/x /bin/ls:0x1010
p:a/x /bin/ls:0x1010 fd=%di  more=%si # too much
r:a/x /bin/ls:0x1010 fd=%di

p:a/y /bin/ls:0x1010 %zz
\t-:a/z
-
-:
-:a/x /bin/ls:0x1000
-:a-b
p:a/y /bin/ls:0x1010 \\
";
    let errors = definitions(text).unwrap_err();
    let lines: Vec<usize> = errors.0.iter().map(|error| error.line).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15]);
    insta::assert_snapshot!(errors.to_string());
}
