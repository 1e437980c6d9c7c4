//! Patterns, by example and against a matcher that is too simple to be wrong.

use capriole_event::glob_match;
use proptest::prelude::*;

#[test]
fn patterns_by_example() {
    for (pattern, yes, no) in [
        ("", &[""][..], &["a"][..]),
        ("*", &["", "a", "ä*?["], &[]),
        ("a*", &["a", "ab"], &["", "ba"]),
        ("*a*b", &["ab", "xaybzb"], &["aba", "b"]),
        ("a?c", &["abc", "aäc"], &["ac", "abbc"]),
        ("[abc]", &["a", "c"], &["d", "", "ab"]),
        ("[a-cx-z]1", &["b1", "y1"], &["d1", "-1"]),
        ("[!a-c]", &["d", "!"], &["a", ""]),
        ("[^a-c]", &["d", "^"], &["b"]),
        ("[]]", &["]"], &["["]),
        ("[!]]", &["["], &["]"]),
        ("[]-a]", &["]", "^", "a"], &["-"]),
        ("[a-]", &["a", "-"], &["b"]),
        ("[-a]", &["a", "-"], &["b"]),
        ("[z-a]", &[], &["a", "z", "-"]),
        ("[\\]]", &["]"], &["\\"]),
        ("[a\\-z]", &["a", "-", "z"], &["b", "\\"]),
        ("[", &["["], &["a"]),
        ("[a", &["[a"], &["a"]),
        ("a[]", &["a[]"], &["a"]),
        ("\\*", &["*"], &["a", "\\*"]),
        ("\\", &["\\"], &["", "a"]),
        ("a\\", &["a\\"], &["a"]),
        ("ä*ö", &["äö", "äüö"], &["aö"]),
        ("**a**", &["a", "bab"], &["b"]),
    ] {
        for name in yes {
            assert!(glob_match(pattern, name), "{pattern} {name}");
        }
        for name in no {
            assert!(!glob_match(pattern, name), "{pattern} {name}");
        }
    }
}

/// A pattern that takes years to match if each `*` is tried at each position.
#[test]
fn many_stars_take_no_time() {
    let pattern = "a*".repeat(200) + "b";
    assert!(!glob_match(&pattern, &"a".repeat(2000)));
    assert!(glob_match(&pattern, &("a".repeat(2000) + "b")));
}

/// Tries all possibilities.
fn simple(pattern: &[char], name: &[char]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        (['*', rest @ ..], _) => (0..=name.len()).any(|taken| simple(rest, &name[taken..])),
        (['?', rest @ ..], [_, after @ ..]) => simple(rest, after),
        (['[', '!', a, ']', rest @ ..], [b, after @ ..]) => a != b && simple(rest, after),
        (['[', a, '-', c, ']', rest @ ..], [b, after @ ..]) => {
            (a..=c).contains(&b) && simple(rest, after)
        }
        ([a, rest @ ..], [b, after @ ..]) => a == b && simple(rest, after),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_simple_matcher(
        parts in prop::collection::vec(prop::sample::select(vec!["*", "?", "a", "b", "ä", "[!a]", "[a-b]"]), 0..8),
        name in "[abä]{0,8}",
    ) {
        let pattern = parts.concat();
        let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
        prop_assert_eq!(glob_match(&pattern, &name), simple(&p, &n), "{} {}", pattern, name);
    }

    #[test]
    fn never_panics(pattern in "\\PC{0,20}", name in "\\PC{0,20}", odd in "[\\]\\[!^*?\\\\abc-]{0,12}") {
        glob_match(&pattern, &name);
        glob_match(&odd, &name);
        glob_match(&odd, &odd);
    }

    #[test]
    fn a_name_with_all_escaped_matches_itself(name in "\\PC{0,20}") {
        let pattern: String = name.chars().flat_map(|c| ['\\', c]).collect();
        prop_assert!(glob_match(&pattern, &name));
    }
}
