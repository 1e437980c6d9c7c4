//! Random texts: an event or an error, and never a panic.

use capriole_event::{EventSpec, ObjectRef, Place};
use proptest::prelude::*;

/// Checks what holds for every text.
fn check(text: &str) -> Result<(), TestCaseError> {
    match EventSpec::parse(text) {
        Ok(spec) => {
            prop_assert_eq!(&spec.text, text);
            prop_assert!(spec.arguments.len() <= 6);
            let Place::Symbol { pattern, offset } = &spec.place else {
                return Ok(());
            };
            prop_assert!(!pattern.is_empty());
            prop_assert!(
                pattern.trim() == pattern || pattern.contains('\\'),
                "{:?}",
                pattern
            );
            spec.is_glob();
            // A symbol is always a name of itself.
            prop_assert!(spec.matches(pattern));
            // Written again in the one ordinary way, it means the same.
            let object = match &spec.object {
                ObjectRef::Main => "",
                ObjectRef::Path(name) | ObjectRef::Name(name) => name,
            };
            let mut again = format!("{object}:{pattern}");
            if *offset > 0 {
                again += &format!("+{offset:#x}");
            }
            for argument in &spec.arguments {
                again += &format!(" {argument}");
            }
            let second = EventSpec::parse(&again);
            prop_assert!(
                second.is_ok(),
                "{} became {}: {}",
                text,
                again,
                second.unwrap_err()
            );
            let second = second.unwrap();
            prop_assert_eq!((&second.object, &second.place), (&spec.object, &spec.place));
            prop_assert_eq!(&second.arguments, &spec.arguments);
        }
        Err(error) => {
            prop_assert!(error.column <= text.chars().count(), "{}", error);
            prop_assert!(!error.message.is_empty());
            let shown = error.to_string();
            let caret = shown.lines().nth(2).unwrap();
            prop_assert_eq!(caret.trim(), "^");
            prop_assert_eq!(caret.chars().count(), error.column + 3);
        }
    }
    Ok(())
}

/// Texts out of pieces that mean something.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        ":",
        "::",
        " ",
        "  ",
        "$arg1",
        "$arg2",
        "$arg9",
        "$",
        "=",
        "size=",
        "a",
        "malloc",
        "lib",
        "/",
        "+",
        "+8",
        "+0x1f",
        "0x",
        "8",
        "(",
        ")",
        "<",
        ">",
        "->",
        "[",
        "]",
        "{",
        "}",
        "*",
        "?",
        "\\",
        "operator",
        "operator<",
        "operator()",
        "operator new",
        "const",
        "&",
        ",",
        "ß",
        "[clone .cold]",
        "[abi:cxx11]",
        "\t",
        "%di",
        "\n",
        "\u{0}",
        "void",
        "int",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn text_of_pieces(text in pieces()) {
        check(&text)?;
    }

    #[test]
    fn text_of_pieces_behind_a_colon(text in pieces()) {
        check(&format!(":f{text}"))?;
        check(&format!("lib:{text} $arg1"))?;
    }
}
