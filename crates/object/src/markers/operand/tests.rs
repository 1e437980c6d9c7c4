use super::*;
use proptest::prelude::*;

fn one(text: &str) -> Result<Argument, String> {
    let mut all = arguments(text);
    assert_eq!(all.len(), 1, "{text}: {all:?}");
    all.remove(0).map_err(|error| error.to_string())
}

/// Each argument string with its form when written back, or with a part of the error.
#[test]
fn operands_of_every_kind() {
    for (text, means) in [
        ("-4@%edi", "-4@%edi"),
        ("8@%rax", "8@%rax"),
        ("1@%al", "1@%al"),
        ("1@%ah", "1@%ah"),
        ("-1@%sil", "-1@%sil"),
        ("2@%r13w", "2@%r13w"),
        ("1@%r15b", "1@%r15b"),
        ("4@%r8d", "4@%r8d"),
        ("8@%r15", "8@%r15"),
        // The lower half of a register, for which a compiler wrote the full name.
        ("4@%rax", "4@%eax"),
        ("1@%eax", "1@%al"),
        // Limited to the size of the register.
        ("8@%edi", "4@%edi"),
        ("-8@%edi", "-4@%edi"),
        ("8f@%xmm0", "8f@%xmm0"),
        ("-8f@%xmm15", "-8f@%xmm15"),
        ("4f@%ymm3", "4f@%xmm3"),
        ("8@%xmm2", "8f@%xmm2"),
        ("-4@$5", "-4@$5"),
        ("-4@$-5", "-4@$-5"),
        ("8@$0x10", "8@$16"),
        ("8@$010", "8@$8"),
        ("8@$18446744073709551615", "8@$-1"),
        ("8@$table+8", "8@$table+8"),
        ("-8@$4+1", "-8@$5"),
        ("8@(%rax)", "8@(%rax)"),
        ("-4@-20(%rbp)", "-4@-20(%rbp)"),
        ("-4@-8+4-8(%rbp)", "-4@-12(%rbp)"),
        ("8@8(%rbx,%rcx,4)", "8@8(%rbx,%rcx,4)"),
        ("8@(%rbx,%rcx)", "8@(%rbx,%rcx,1)"),
        ("1@-96(%rbp,%rax,8)", "1@-96(%rbp,%rax,8)"),
        ("8@table(,%rdx,8)", "8@table(,%rdx,8)"),
        ("8@( %rbx , %rcx , 2 )", "8@(%rbx,%rcx,2)"),
        ("4@limit(%rip)", "4@limit(%rip)"),
        ("8@24+mp_(%rip)", "8@mp_+24(%rip)"),
        ("8@mp_+24(%rip)", "8@mp_+24(%rip)"),
        ("8@mp_-8(%rip)", "8@mp_-8(%rip)"),
        ("4@limit", "4@limit(%rip)"),
        ("4@limit+4", "4@limit+4(%rip)"),
        ("4@state.0(%rip)", "4@state.0(%rip)"),
        // No size given: the operand's size is used.
        ("%rdi", "8@%rdi"),
        ("%edi", "4@%edi"),
        ("$1", "8@$1"),
        ("8(%rsp)", "8@8(%rsp)"),
        ("limit(%rip)", "8@limit(%rip)"),
    ] {
        match one(text) {
            Ok(argument) => assert_eq!(argument.to_string(), means, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }
    for (text, why) in [
        ("16@%xmm0", "other than 1, 2, 4 or 8"),
        ("3@%eax", "other than 1, 2, 4 or 8"),
        ("0@%eax", "other than 1, 2, 4 or 8"),
        ("10f@%st", "other than 4 or 8 bytes"),
        ("2f@%ax", "other than 4 or 8 bytes"),
        ("2@%xmm0", "less than 4 bytes"),
        ("8@%xmm16", "names no register"),
        ("8@%r16", "names no register"),
        ("8@%r08", "names no register"),
        ("8@%mm0", "names no register"),
        ("8@%k1", "names no register"),
        ("8@%rip", "names no register"),
        ("8@%", "names no register"),
        ("8@%fs:16", "relative to a segment"),
        ("8@%fs:(%rax)", "relative to a segment"),
        ("8@(%eax)", "no 64-bit register"),
        ("8@(%rax,%xmm0,8)", "no 64-bit register"),
        ("8@(%rax,%rsp,8)", "stack pointer as index"),
        ("8@(%rax,%rcx,3)", "a scale of `3`"),
        ("8@(%rax,%rcx,4,5)", "too many registers"),
        ("8@()", "no register between"),
        ("8@(,,)", "no register between"),
        ("8@(%rax", "not closed"),
        ("8@(%rax)x", "not closed"),
        ("8@16(%rip)", "unknown instruction"),
        ("8@a@GOTPCREL(%rip)", "by a table"),
        ("8@a+b(%rip)", "adds two symbols"),
        ("8@b-a(%rip)", "takes the address of `a` away"),
        ("8@4096", "is no address"),
        ("8@", "lacks a number"),
        ("8@$", "lacks a number"),
        ("8@$4+", "lacks a number"),
        ("8@$1x", "no number"),
        ("8@$99999999999999999999", "no number"),
        ("8@$!", "neither a number nor a symbol"),
        ("4@eax", "Intel's syntax"),
        ("4@DWORD PTR [rbp-4]", "Intel's syntax"),
        ("8@[rax+8]", "Intel's syntax"),
    ] {
        let error = one(text).expect_err(text);
        assert!(error.contains(why), "{text}: {error}");
        assert!(error.starts_with(&format!("`{text}` in the marker's note ")));
    }
}

#[test]
fn arguments_are_parted_at_blanks() {
    let shown = |text: &str| -> Vec<String> {
        let all = arguments(text).into_iter();
        all.map(|a| a.map_or_else(|e| format!("? {}", e.text), |a| a.to_string()))
            .collect()
    };
    assert_eq!(shown(""), [""; 0]);
    assert_eq!(shown("  "), [""; 0]);
    assert_eq!(
        shown("-4@%edi 8@-8(%rbp)  1@$0 "),
        ["-4@%edi", "8@-8(%rbp)", "1@$0"]
    );
    assert_eq!(
        shown("8@8(%rbx, %rcx, 4) %rdi"),
        ["8@8(%rbx,%rcx,4)", "8@%rdi"]
    );
    assert_eq!(
        shown("4@DWORD PTR [rbp-4] 8@rax 8@QWORD PTR limit[rip] 8@%rax"),
        [
            "? 4@DWORD PTR [rbp-4]",
            "? 8@rax",
            "? 8@QWORD PTR limit[rip]",
            "8@%rax"
        ]
    );
}

fn register() -> impl Strategy<Value = Register> {
    (0..16_u32).prop_map(general)
}

fn some_place() -> impl Strategy<Value = Place> {
    let symbol = proptest::option::of("[a-z_][a-z0-9_.]{0,6}");
    let symbol = symbol.prop_filter("a register", |s| {
        s.as_ref().is_none_or(|s| named(s).is_none())
    });
    (symbol, any::<i32>()).prop_map(|(symbol, offset)| Place {
        symbol,
        offset: offset.into(),
    })
}

fn some_operand() -> impl Strategy<Value = Operand> {
    let index = proptest::option::of((register(), 0..4_u8));
    let index = index.prop_filter("rsp", |i| i.is_none_or(|(r, _)| r != Register::RSP));
    prop_oneof![
        register().prop_map(Operand::Register),
        (0..16_u8).prop_map(Operand::Vector),
        some_place().prop_map(Operand::Immediate),
        (some_place(), proptest::option::of(register()), index).prop_filter_map(
            "an address",
            |(place, base, index)| {
                let somewhere = base.is_some() || index.is_some() || place.symbol.is_some();
                somewhere.then(|| memory(place, base, index))
            }
        ),
    ]
}

fn some_argument() -> impl Strategy<Value = Argument> {
    let size = prop_oneof![Just(1_u8), Just(2), Just(4), Just(8)];
    (size, any::<bool>(), any::<bool>(), some_operand()).prop_map(
        |(bytes, signed, float, operand)| {
            let vector = matches!(operand, Operand::Vector(_));
            Argument {
                bytes: if vector { bytes.max(4) } else { bytes },
                signed,
                float: (float && bytes >= 4) || vector,
                operand,
            }
        },
    )
}

proptest! {
    /// Formatting an argument and parsing the result gives the same argument.
    #[test]
    fn written_and_read(all in proptest::collection::vec(some_argument(), 0..12)) {
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        let read: Result<Vec<Argument>, _> = arguments(&texts.join(" ")).into_iter().collect();
        prop_assert_eq!(read.expect("they were written by us"), all);
    }

    /// Any string is either parsed or refused, without a crash, and no word yields two arguments.
    #[test]
    fn anything(text in "[-+0-9a-z@%$(),.\\[\\] f]{0,60}|\\PC{0,40}") {
        let all = arguments(&text);
        let words = text.split_ascii_whitespace().count();
        prop_assert!(all.len() <= words);
        for argument in all.into_iter().flatten() {
            prop_assert!(matches!(argument.bytes, 1 | 2 | 4 | 8));
            prop_assert!(!argument.float || argument.bytes >= 4);
        }
    }
}
