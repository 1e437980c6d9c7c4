//! Struct members in registers and bit fields: recorded, filtered and added up.

use crate::programs::{Compiler, build};
use crate::target::{capriole, told};
use crate::traces::{record, scratch, text};

/// Returns the fields of all recorded events.
fn recorded(event: &str, flags: &[&str]) -> Option<Vec<String>> {
    let program = build(Compiler::Gcc, "members.c", flags)?;
    let directory = scratch();
    let trace = directory.path().join("trace");
    let output = record(&trace, &["-e", event, "--", text(&program)]);
    assert!(output.status.success(), "{event}: {}", told(&output));
    let output = capriole(&["report", text(&trace)]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = shown.lines().filter(|line| !line.starts_with('#'));
    let fields = |line: &str| line.rsplit_once(") ").map(|(_, fields)| fields.to_owned());
    Some(lines.filter_map(fields).collect())
}

const LEVELS: [&[&str]; 4] = [&["-O0"], &["-O1"], &["-O2", "-gdwarf-4"], &["-O3"]];

#[test]
fn members_in_registers_are_recorded() {
    for flags in LEVELS {
        let event = ":take s.x s.y s.z m.id m.c m.yes m.u b.a b.b b.c b.d b.e";
        let Some(found) = recorded(event, flags) else {
            return;
        };
        let expected = [
            ("-2", 800000 - (1 << 20)),
            ("-1", 400000),
            ("0", 0),
            ("1", -400000),
        ];
        let expected = expected.map(|(a, e)| {
            format!(
                "s_x=-3 s_y=-4 s_z=250 m_id=-77 m_c='q' m_yes=1 m_u=60000 b_a={a} b_b=-50 b_c=21 \
                 b_d=-30000 b_e={e}"
            )
        });
        assert_eq!(found, expected, "{flags:?}");
        // The second number in a vector register.
        let found = recorded(":real f.a f.b d", flags).unwrap();
        assert_eq!(found, ["f_a=1.5 f_b=-2.5 d=4.5"; 4], "{flags:?}");
    }
}

#[test]
fn signed_bit_fields_are_compared_and_added_up_as_such() {
    for flags in LEVELS {
        for (condition, expected) in [
            ("b_a < 0", ["b_a=-2", "b_a=-1"].as_slice()),
            ("b_a == -1 && s_x < 0", &["b_a=-1"]),
            ("b_a >= 0", &["b_a=0", "b_a=1"]),
            ("b_a > -2 && b_a != 1", &["b_a=-1", "b_a=0"]),
        ] {
            let event = format!(":take b.a s.x if {condition}");
            let Some(found) = recorded(&event, flags) else {
                return;
            };
            let expected: Vec<String> = expected.iter().map(|a| format!("{a} s_x=-3")).collect();
            assert_eq!(found, expected, "{event} {flags:?}");
        }
        let found = recorded(":in_memory p->a p->e if p_e < 0", flags).unwrap();
        assert_eq!(
            found,
            ["p_a=-2 p_e=-248576", "p_a=1 p_e=-400000"],
            "{flags:?}"
        );
        let program = build(Compiler::Gcc, "members.c", flags).unwrap();
        let event = ":take sum(b.a) min(b.a) max(b.a) by b.b";
        let output = capriole(&["stat", "-e", event, "--json", "--", text(&program)]);
        let said = told(&output);
        assert!(output.status.success(), "{said}");
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = &shown["groups"][0]["rows"][0];
        assert_eq!(row["keys"]["b_b"], -50, "{said}");
        let values = row["measures"].as_array().unwrap().iter();
        let values: Vec<&serde_json::Value> = values.map(|measure| &measure["value"]).collect();
        assert_eq!(values, [-2, -2, 1], "{said}");
    }
}
