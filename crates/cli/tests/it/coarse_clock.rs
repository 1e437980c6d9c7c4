//! Calls and their order by a clock that advances in steps, as that of some processors does:
//! `CAPRIOLE_CLOCK_STEP=26` simulates one. Other tests run once more with it, each in a process of its
//! own.

use crate::target::told;
use std::process::Command;

fn by_a_coarse_clock(test: &str) {
    let own = std::env::current_exe().expect("this test");
    let mut command = Command::new(own);
    command.arg(test).env("CAPRIOLE_CLOCK_STEP", "26");
    if !test.ends_with("::") {
        command.arg("--exact");
    }
    let output = command.output().expect("it starts");
    let said = told(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        !said.contains(" 0 passed"),
        "no test is called {test}: {said}"
    );
}

#[test]
fn no_call_is_lost() {
    for test in [
        "saved_values::a_chain_of_tail_calls_is_nested",
        "saved_values::calls_that_return_together_keep_their_own_values",
        "calls::deep_recursion_is_seen_level_by_level",
        "calls::latencies_are_those_of_the_calls_that_return",
    ] {
        by_a_coarse_clock(test);
    }
}

#[test]
fn no_order_is_lost() {
    for test in [
        "entry_is_exit::it_is_entered_before_it_is_left",
        "calls_left_by_exceptions::what_was_thrown_out_of_has_no_exit",
    ] {
        by_a_coarse_clock(test);
    }
}

#[test]
#[ignore = "soak"]
fn all_tests_of_times() {
    for module in [
        "saved_values::",
        "calls::",
        "entry_is_exit::",
        "calls_left_by_exceptions::",
    ] {
        by_a_coarse_clock(module);
    }
}
