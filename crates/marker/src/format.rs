//! Compile-time check of a format against the arguments.

use crate::argument::Kind;

/// Panics if the conversions of the format do not fit the arguments; in a constant, that is a
/// compile error.
pub const fn check(format: &str, arguments: &[Kind]) {
    let text = format.as_bytes();
    let (mut at, mut argument) = (0, 0);
    while at < text.len() {
        assert!(text[at] != 0, "mark!: there is a zero in the format");
        if text[at] != b'%' {
            at += 1;
            continue;
        }
        at = skip_modifiers(text, at + 1);
        assert!(
            at < text.len(),
            "mark!: the format ends within a conversion"
        );
        let conversion = text[at];
        at += 1;
        if conversion == b'%' {
            continue;
        }
        assert!(
            argument < arguments.len(),
            "mark!: the format has more conversions than there are arguments"
        );
        check_one(conversion, arguments[argument]);
        argument += 1;
    }
    assert!(
        argument == arguments.len(),
        "mark!: there are more arguments than the format has conversions"
    );
}

/// Skips flags, width, precision and length of a conversion. The types are known, so lengths are
/// ignored.
const fn skip_modifiers(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        match text[at] {
            b'-' | b'+' | b' ' | b'#' | b'0'..=b'9' | b'.' | b'h' | b'l' | b'j' | b'z' | b't' => {
                at += 1
            }
            b'*' => panic!("mark!: a width or precision that is an argument (`*`) is not possible"),
            _ => break,
        }
    }
    at
}

const fn check_one(conversion: u8, kind: Kind) {
    match conversion {
        b'd' | b'i' | b'u' | b'x' | b'X' | b'o' | b'c' => {
            assert!(
                matches!(kind, Kind::Integer),
                "mark!: %d %i %u %x %X %o and %c are for integers, bool and char"
            );
        }
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
            assert!(
                matches!(kind, Kind::Float),
                "mark!: %f %e %g and %a are for f32 and f64"
            );
        }
        b'p' => {
            assert!(
                matches!(kind, Kind::Pointer | Kind::Text),
                "mark!: %p is for pointers and references"
            );
        }
        b's' => {
            assert!(
                matches!(kind, Kind::Text),
                "mark!: %s is for &CStr and for pointers to bytes that end with a zero"
            );
        }
        _ => panic!(
            "mark!: a conversion is one of %d %i %u %x %X %o %c %f %F %e %E %g %G %a %A %p %s"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::argument::Kind;
    use crate::argument::Kind::{Float, Integer, Pointer, Text};

    extern crate std;

    fn fails(format: &'static str, arguments: &'static [Kind]) -> bool {
        std::panic::catch_unwind(|| check(format, arguments)).is_err()
    }

    #[test]
    fn formats_fit() {
        check("", &[]);
        check("100%% {done}", &[]);
        check("a=%d b=%-08.3lx", &[Integer, Integer]);
        check("%s at %p, %.3f s", &[Text, Pointer, Float]);
        check("%p", &[Text]);
    }

    #[test]
    fn formats_that_do_not_fit_are_refused() {
        assert!(fails("%d", &[]));
        assert!(fails("none", &[Integer]));
        assert!(fails("%d", &[Float]));
        assert!(fails("%f", &[Integer]));
        assert!(fails("%s", &[Pointer]));
        assert!(fails("%p", &[Integer]));
        assert!(fails("%*d", &[Integer, Integer]));
        assert!(fails("%", &[]));
        assert!(fails("%l", &[Integer]));
        assert!(fails("%n", &[Pointer]));
        assert!(fails("a\0b", &[]));
    }
}
