//! Assembler code of markers.
//!
//! One `asm!` statement has the nop and both notes, so that they cannot be separated. Without the
//! option `nostack` the compiler keeps no data below the stack pointer there, where Linux 6.18
//! writes when such a nop is probed.
//!
//! The format and the file's name are constant operands of that statement, eight characters
//! each, and assembler directives cut the last one to its length: two statements would be
//! simpler, because `%` and `{` have a meaning in a statement with operands, but GCC with `-Os`
//! merges the ends of branches, and with them a second statement that is alike in both. (GCC's
//! C without optimisation, which cannot read a string there but merges nothing either, has
//! two.) Operands are registers and constants: an operand in memory would save an instruction
//! while the marker is disabled, but need a careful read, of memory that may be gone, while it
//! is enabled. The statement that checks a counter defines it (COMDAT, weak, hidden), and notes
//! refer to it weakly, so it is 0 if nothing checks it. Notes of Rust programs are tied to the
//! function's section (`SHF_LINK_ORDER`), because rustc lets the linker drop functions; those
//! of the C header are not, because GNU `ld -r` refuses files with both kinds.

/// Names the arguments of [`mark!`](crate::mark), and expands to the marker.
#[doc(hidden)]
#[macro_export]
macro_rules! __mark {
    ($provider:ident, $name:ident, $format:expr, [$($argument:expr,)*]) => {
        $crate::__mark!(@name $provider, $name, $format, [$($argument,)*], [], [
            (a0 A0 c0 "") (a1 A1 c1 " ") (a2 A2 c2 " ") (a3 A3 c3 " ") (a4 A4 c4 " ")
            (a5 A5 c5 " ") (a6 A6 c6 " ") (a7 A7 c7 " ") (a8 A8 c8 " ") (a9 A9 c9 " ")
            (a10 A10 c10 " ") (a11 A11 c11 " ")
        ])
    };
    (@name $provider:ident, $name:ident, $format:expr, [], [$($named:tt)*], [$($left:tt)*]) => {
        $crate::__mark_site!($provider, $name, $format, [$($named)*], [
            (w0 0) (w1 1) (w2 2) (w3 3) (w4 4) (w5 5) (w6 6) (w7 7) (w8 8) (w9 9) (w10 10)
            (w11 11) (w12 12) (w13 13) (w14 14) (w15 15) (w16 16) (w17 17) (w18 18) (w19 19)
            (w20 20) (w21 21) (w22 22) (w23 23) (w24 24) (w25 25) (w26 26) (w27 27) (w28 28)
            (w29 29) (w30 30) (w31 31)
        ])
    };
    (@name $provider:ident, $name:ident, $format:expr, [$first:expr, $($rest:tt)*],
     [$($named:tt)*], [($($free:tt)*) $($left:tt)*]) => {
        $crate::__mark!(@name $provider, $name, $format, [$($rest)*],
                        [$($named)* ($($free)* $first)], [$($left)*])
    };
    (@name $provider:ident, $name:ident, $format:expr, [$first:expr, $($rest:tt)*],
     [$($named:tt)*], []) => {
        compile_error!("mark!: there can be at most 12 arguments")
    };
}

/// Expands to a function, because that knows the types of its arguments; it is always inlined.
#[doc(hidden)]
#[macro_export]
macro_rules! __mark_site {
    ($provider:ident, $name:ident, $format:expr,
     [$(($value:ident $type:ident $code:ident $blank:literal $argument:expr))*],
     [$(($word:ident $index:literal))*]) => {{
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        fn marker<$($type: $crate::Argument),*>($($value: $type),*) {
            const TEXT: $crate::private::Text = $crate::private::Text::new($format, file!());
            const { $crate::private::check($format, &[$($type::KIND),*]) };
            $(let $value = $type::word($value);)*
            $crate::__mark_asm! {
                // The linker drops notes together with their function. This needs a label that is
                // unique in the file, however often the function is inlined.
                ".ifndef .Lcapriole_count",
                ".set .Lcapriole_count, 0",
                ".endif",
                ".set .Lcapriole_count, .Lcapriole_count + 1",
                ".altmacro",
                ".macro capriole_site n",
                ".Lcapriole_site\\n: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                ".endm",
                ".macro capriole_note section, n",
                ".pushsection \\section,\"?o\",\"note\",.Lcapriole_site\\n",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f",
                ".endm",
                ".macro capriole_place n",
                ".8byte .Lcapriole_site\\n, _.stapsdt.base",
                ".endm",
                "capriole_site %.Lcapriole_count",
                concat!(
                    ".weak ", $crate::__semaphore!($provider, $name), "\n",
                    ".hidden ", $crate::__semaphore!($provider, $name), "\n"),
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                // The note that perf, gdb, bpftrace and SystemTap know.
                "capriole_note .note.stapsdt, %.Lcapriole_count",
                ".4byte 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: capriole_place %.Lcapriole_count",
                concat!(".8byte ", $crate::__semaphore!($provider, $name), "\n",
                    ".asciz \"", stringify!($provider), "\"\n",
                    ".asciz \"", stringify!($name), "\""),
                $(concat!(".ascii \"", $blank, "\"\n",
                    ".if {", stringify!($code), "} & 4\n.ascii \"-\"\n.endif\n",
                    ".byte 48 + (1 << ({", stringify!($code), "} & 3))\n",
                    ".ascii \"@%{", stringify!($value), ":r}\""),)*
                ".byte 0",
                "994: .balign 4",
                ".popsection",
                // The source line, the format and the source file.
                "capriole_note .note.capriole, %.Lcapriole_count",
                ".4byte 1",
                "991: .asciz \"capriole\"",
                "992: .balign 4",
                "993: capriole_place %.Lcapriole_count",
                ".4byte {line}, {floats}",
                concat!(".asciz \"", stringify!($provider), "\"\n",
                    ".asciz \"", stringify!($name), "\""),
                $(concat!(".if {length} >= 8 * ", $index, " + 8\n",
                    ".8byte {", stringify!($word), "}\n",
                    ".elseif {length} > 8 * ", $index, "\n",
                    ".set .Lcapriole_rest, {", stringify!($word), "}\n.endif"),)*
                ".rept {length} & 7",
                ".byte .Lcapriole_rest & 255",
                ".set .Lcapriole_rest, .Lcapriole_rest >> 8",
                ".endr",
                "994: .balign 4",
                ".popsection",
                ".purgem capriole_site",
                ".purgem capriole_note",
                ".purgem capriole_place",
                ".noaltmacro",
                $($value = in(reg) $value,)*
                $($code = const <$type as $crate::Argument>::CODE,)*
                $($word = const TEXT.words[$index],)*
                length = const TEXT.length,
                line = const line!(),
                floats = const $crate::private::floats(&[$(<$type as $crate::Argument>::KIND),*]),
                options(preserves_flags),
            }
        }
        marker($($argument),*)
    }};
}

#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux"
))]
#[doc(hidden)]
#[macro_export]
macro_rules! __mark_asm {
    ($($inside:tt)*) => {
        // SAFETY: the only instruction is a nop; the rest is in other sections.
        unsafe { $crate::private::asm!($($inside)*) }
    };
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux"
)))]
#[doc(hidden)]
#[macro_export]
macro_rules! __mark_asm {
    ($($inside:tt)*) => {{
        let _ = TEXT.length;
    }};
}

/// The symbol of the counter.
#[doc(hidden)]
#[macro_export]
macro_rules! __semaphore {
    ($provider:ident, $name:ident) => {
        concat!(stringify!($provider), "_", stringify!($name), "_semaphore")
    };
}

#[cfg(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux"
))]
#[doc(hidden)]
#[macro_export]
macro_rules! __enabled {
    ($provider:ident, $name:ident) => {
        'on: {
            // SAFETY: reads two bytes that the statement itself defines, and changes the flags;
            // the only other way out of it is the label.
            unsafe {
                $crate::private::asm!(
                    concat!(".ifndef ", $crate::__semaphore!($provider, $name), "\n",
                        ".pushsection .probes,\"awG\",\"progbits\",",
                        $crate::__semaphore!($provider, $name), ",comdat\n",
                        ".balign 2\n",
                        ".weak ", $crate::__semaphore!($provider, $name), "\n",
                        ".hidden ", $crate::__semaphore!($provider, $name), "\n",
                        ".type ", $crate::__semaphore!($provider, $name), ", @object\n",
                        ".size ", $crate::__semaphore!($provider, $name), ", 2\n",
                        $crate::__semaphore!($provider, $name), ": .zero 2\n",
                        ".popsection\n",
                        ".endif\n",
                        "cmp word ptr [rip + ", $crate::__semaphore!($provider, $name), "], 0\n",
                        "jne {on}"),
                    on = label { break 'on true },
                    options(nostack),
                )
            };
            false
        }
    };
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_pointer_width = "64",
    target_os = "linux"
)))]
#[doc(hidden)]
#[macro_export]
macro_rules! __enabled {
    ($provider:ident, $name:ident) => {
        false
    };
}
