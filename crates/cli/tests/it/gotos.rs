//! Functions that jump through tables of labels: such a jump is no exit, or the function is
//! refused. A call never ends more than once.

use crate::programs::{Compiler, build};
use crate::target::*;
use crate::traces::{record_program, scratch, text};

#[test]
fn a_jump_through_a_table_of_labels_is_no_exit() {
    // Tables of absolute addresses, relocated or not.
    for flags in [
        &["-O2"][..],
        &["-O2", "-no-pie"],
        &["-O1"],
        &["-O3", "-static"],
    ] {
        let Some(program) = build(Compiler::Gcc, "gotos.c", flags) else {
            return;
        };
        let directory = scratch();
        let trace = directory.path().join("t");
        let words = ["--json", "--graph", ":gotos_*"];
        let said = record_program(&trace, &words, &program, &["200"]);
        let said: serde_json::Value =
            serde_json::from_str(said.split_once('\n').expect("two lines").1).expect("JSON");
        assert_eq!(said["lost"], 0, "{said}");
        let output = capriole(&["report", "--summary", "--json", text(&trace)]);
        assert!(output.status.success(), "{}", told(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(summary["unpaired"], 0, "{flags:?}: {summary}");
        let functions = summary["by_function"].as_array().expect("functions");
        for function in functions {
            assert_eq!(function["calls"], 200, "{flags:?}: {summary}");
            assert_eq!(function["tail_calls"], 0, "{flags:?}: {summary}");
        }
        // Its jumps certainly stay inside, because they keep the data on the stack.
        let deep = functions.iter().any(|f| f["function"] == "gotos_deep");
        assert!(deep, "{flags:?}: {summary}");
    }
}
