/* capriole/marker.h: static markers
 *
 *   CAPRIOLE_MARK(provider, name)
 *   CAPRIOLE_MARK(provider, name, "format", arguments ...)
 *
 * A named probe point in a program, with up to twelve values and a format as printf's. While it is
 * disabled it is one nop of five bytes: no test, no call, no data read. The arguments are evaluated
 * and are in registers, or are constants. Capriole, perf, bpftrace, gdb and SystemTap find the
 * marker in the file's ELF notes, and enable and disable it while the program runs.
 *
 *   CAPRIOLE_MARK_GUARDED(provider, name, "format", arguments ...)
 *   if (CAPRIOLE_MARK_ENABLED(provider, name)) { prepare; CAPRIOLE_MARK(provider, name, ...); }
 *
 * For expensive arguments: they are not evaluated while the marker is disabled. The check costs a
 * load, a comparison and a branch.
 *
 *   CAPRIOLE_MARK_TEXT("what happened")      capriole_mark_text("what happened")
 *
 * Emits the marker capriole:message with a text; the second form is a function.
 *
 *   capriole_mark_text_to(fd, "what happened")
 *
 * As capriole_mark_text, and also writes the text to a file that you have opened, such as the
 * kernel's /sys/kernel/tracing/trace_marker (O_WRONLY), so that it is in both traces. Nothing is
 * written if fd is less than 0 or the text is NULL, nor where there are no markers (see below). The
 * result of the write is ignored, and errno does not change.
 *
 * provider and name are identifiers, without quotes. Arguments are integers, enumerations, bool,
 * float, double, pointers, and types that decay to pointers. The compiler checks the format.
 *
 * C99, C11, C++11 and later, GCC 11 or Clang 13 and later, x86-64. There is nothing to link. Where
 * there are no markers (other processors, or CAPRIOLE_MARK_NONE is defined), formats are checked
 * and arguments are evaluated, and no other code is generated. See docs/markers.md.
 *
 * Written for the Capriole project; MIT or Apache 2.0, as you like.
 */
#ifndef CAPRIOLE_MARKER_H
#define CAPRIOLE_MARKER_H

#if defined __x86_64__ && defined __LP64__ && defined __ELF__ && !defined CAPRIOLE_MARK_NONE
#define CAPRIOLE_MARK_HERE_ 1
#endif
#if defined __GNUC__ && !defined __clang__ && !defined __cplusplus && !defined __OPTIMIZE__
#define CAPRIOLE_MARK_TORN_ 1
#endif

/* Never called: lets the compiler check the format and its arguments. */
#ifdef __cplusplus
extern "C"
#endif
__attribute__((__format__(__printf__, 1, 2))) int capriole_mark_format_(const char *, ...);

/* ------------------------------------------------------------------------ public macros */

#define CAPRIOLE_MARK(...) \
  CAPRIOLE_MARK_PASTE_(CAPRIOLE_MARK_, CAPRIOLE_MARK_COUNT_(__VA_ARGS__))(__VA_ARGS__)

#define CAPRIOLE_MARK_GUARDED(...) \
  do { \
    if (CAPRIOLE_MARK_ENABLED_OF_(__VA_ARGS__, 0, 0)) \
      CAPRIOLE_MARK(__VA_ARGS__); \
  } while (0)

#ifdef CAPRIOLE_MARK_HERE_
/* The flags are an output of the statement, so that it is one comparison and one branch; being
 * volatile, it reads the counter again each time. */
#define CAPRIOLE_MARK_ENABLED(provider, name) CAPRIOLE_MARK_ENABLED_1_(provider, name)
#define CAPRIOLE_MARK_ENABLED_1_(provider, name) \
  (__extension__({ \
    int capriole_on_; \
    __asm__ __inline__ __volatile__( \
        CAPRIOLE_MARK_SEMAPHORE_(#provider "_" #name "_semaphore") \
        "cmpw $0, " #provider "_" #name "_semaphore(%%rip)" \
        : "=@ccne"(capriole_on_)); \
    __builtin_expect(capriole_on_, 0); \
  }))
#else
#define CAPRIOLE_MARK_ENABLED(provider, name) 0
#endif
#define CAPRIOLE_MARK_ENABLED_OF_(provider, name, ...) CAPRIOLE_MARK_ENABLED(provider, name)

#define CAPRIOLE_MARK_TEXT(text) CAPRIOLE_MARK(capriole, message, "%s", text)

/* Warnings about extensions may be enabled, but must not appear in here. In C++ Clang accepts no
 * parameter packs in a statement expression, not even with a lambda around it. */
#if defined __clang__ && defined __cplusplus
#define CAPRIOLE_MARK_OPEN_ \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wpedantic\"")
#define CAPRIOLE_MARK_CLOSE_ _Pragma("clang diagnostic pop")
#else
#define CAPRIOLE_MARK_OPEN_ __extension__({
#define CAPRIOLE_MARK_CLOSE_ (void)0; });
#endif

/* ------------------------------------------------------------------- counting arguments */

#define CAPRIOLE_MARK_PASTE_(a, b) CAPRIOLE_MARK_PASTED_(a, b)
#define CAPRIOLE_MARK_PASTED_(a, b) a##b
/* Selects a suffix by the number of arguments. */
#define CAPRIOLE_MARK_COUNT_(...) \
  CAPRIOLE_MARK_24TH_(__VA_ARGS__, MANY, MANY, MANY, MANY, MANY, MANY, MANY, MANY, 12, 11, 10, 9, \
                      8, 7, 6, 5, 4, 3, 2, 1, 0, BARE, ONE, )
#define CAPRIOLE_MARK_24TH_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, \
                            x, ...) x

/* Arguments are evaluated once, in their order, before the marker. */
#define CAPRIOLE_MARK_BARE(p, n) CAPRIOLE_MARK_BLOCK_(p, n, "", 0, 28, )
#define CAPRIOLE_MARK_0(p, n, f) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 0, 28, CAPRIOLE_MARK_FORMAT_(f, (f)))
#define CAPRIOLE_MARK_1(p, n, f, x1) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 1, 27, \
    CAPRIOLE_MARK_VALUE_(1, x1) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1)))
#define CAPRIOLE_MARK_2(p, n, f, x1, x2) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 2, 26, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2)))
#define CAPRIOLE_MARK_3(p, n, f, x1, x2, x3) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 3, 25, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3)))
#define CAPRIOLE_MARK_4(p, n, f, x1, x2, x3, x4) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 4, 24, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4)))
#define CAPRIOLE_MARK_5(p, n, f, x1, x2, x3, x4, x5) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 5, 23, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5)))
#define CAPRIOLE_MARK_6(p, n, f, x1, x2, x3, x4, x5, x6) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 6, 22, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6)))
#define CAPRIOLE_MARK_7(p, n, f, x1, x2, x3, x4, x5, x6, x7) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 7, 21, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_VALUE_(7, x7) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6, x7)))
#define CAPRIOLE_MARK_8(p, n, f, x1, x2, x3, x4, x5, x6, x7, x8) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 8, 20, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_VALUE_(7, x7) CAPRIOLE_MARK_VALUE_(8, x8) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6, x7, x8)))
#define CAPRIOLE_MARK_9(p, n, f, x1, x2, x3, x4, x5, x6, x7, x8, x9) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 9, 19, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_VALUE_(7, x7) CAPRIOLE_MARK_VALUE_(8, x8) CAPRIOLE_MARK_VALUE_(9, x9) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6, x7, x8, x9)))
#define CAPRIOLE_MARK_10(p, n, f, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 10, 18, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_VALUE_(7, x7) CAPRIOLE_MARK_VALUE_(8, x8) CAPRIOLE_MARK_VALUE_(9, x9) \
    CAPRIOLE_MARK_VALUE_(10, x10) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10)))
#define CAPRIOLE_MARK_11(p, n, f, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 11, 17, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_VALUE_(7, x7) CAPRIOLE_MARK_VALUE_(8, x8) CAPRIOLE_MARK_VALUE_(9, x9) \
    CAPRIOLE_MARK_VALUE_(10, x10) CAPRIOLE_MARK_VALUE_(11, x11) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11)))
#define CAPRIOLE_MARK_12(p, n, f, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12) \
  CAPRIOLE_MARK_BLOCK_(p, n, f, 12, 16, \
    CAPRIOLE_MARK_VALUE_(1, x1) CAPRIOLE_MARK_VALUE_(2, x2) CAPRIOLE_MARK_VALUE_(3, x3) \
    CAPRIOLE_MARK_VALUE_(4, x4) CAPRIOLE_MARK_VALUE_(5, x5) CAPRIOLE_MARK_VALUE_(6, x6) \
    CAPRIOLE_MARK_VALUE_(7, x7) CAPRIOLE_MARK_VALUE_(8, x8) CAPRIOLE_MARK_VALUE_(9, x9) \
    CAPRIOLE_MARK_VALUE_(10, x10) CAPRIOLE_MARK_VALUE_(11, x11) CAPRIOLE_MARK_VALUE_(12, x12) \
    CAPRIOLE_MARK_FORMAT_(f, (f, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12)))
#define CAPRIOLE_MARK_ONE(...) \
  CAPRIOLE_MARK_ASSERT_(0, "CAPRIOLE_MARK: a provider and a name are needed")
#define CAPRIOLE_MARK_MANY(...) \
  CAPRIOLE_MARK_ASSERT_(0, "CAPRIOLE_MARK: there can be at most 12 arguments")

#ifdef CAPRIOLE_MARK_HERE_

/* The arguments in the note, "-4@%edi 8@%rsi": size and sign from their types, and the operand as
 * the compiler prints it. */
#define CAPRIOLE_MARK_SHOWN_(i, shift) \
  ".if (.Lcapriole_types >> " #shift ") & 4\n.ascii \"-\"\n.endif\n" \
  ".byte 48 + (1 << ((.Lcapriole_types >> " #shift ") & 3))\n.ascii \"@%[a" #i "]\"\n"
#define CAPRIOLE_MARK_NEXT_(i, shift) ".ascii \" \"\n" CAPRIOLE_MARK_SHOWN_(i, shift)
#define CAPRIOLE_MARK_SHOWN_0_ ""
#define CAPRIOLE_MARK_SHOWN_1_ CAPRIOLE_MARK_SHOWN_(1, 0)
#define CAPRIOLE_MARK_SHOWN_2_ CAPRIOLE_MARK_SHOWN_1_ CAPRIOLE_MARK_NEXT_(2, 4)
#define CAPRIOLE_MARK_SHOWN_3_ CAPRIOLE_MARK_SHOWN_2_ CAPRIOLE_MARK_NEXT_(3, 8)
#define CAPRIOLE_MARK_SHOWN_4_ CAPRIOLE_MARK_SHOWN_3_ CAPRIOLE_MARK_NEXT_(4, 12)
#define CAPRIOLE_MARK_SHOWN_5_ CAPRIOLE_MARK_SHOWN_4_ CAPRIOLE_MARK_NEXT_(5, 16)
#define CAPRIOLE_MARK_SHOWN_6_ CAPRIOLE_MARK_SHOWN_5_ CAPRIOLE_MARK_NEXT_(6, 20)
#define CAPRIOLE_MARK_SHOWN_7_ CAPRIOLE_MARK_SHOWN_6_ CAPRIOLE_MARK_NEXT_(7, 24)
#define CAPRIOLE_MARK_SHOWN_8_ CAPRIOLE_MARK_SHOWN_7_ CAPRIOLE_MARK_NEXT_(8, 28)
#define CAPRIOLE_MARK_SHOWN_9_ CAPRIOLE_MARK_SHOWN_8_ CAPRIOLE_MARK_NEXT_(9, 32)
#define CAPRIOLE_MARK_SHOWN_10_ CAPRIOLE_MARK_SHOWN_9_ CAPRIOLE_MARK_NEXT_(10, 36)
#define CAPRIOLE_MARK_SHOWN_11_ CAPRIOLE_MARK_SHOWN_10_ CAPRIOLE_MARK_NEXT_(11, 40)
#define CAPRIOLE_MARK_SHOWN_12_ CAPRIOLE_MARK_SHOWN_11_ CAPRIOLE_MARK_NEXT_(12, 44)

/* Registers and constants only: a tracer would have to read an operand in memory, at the risk of a
 * fault, and few tools understand `name(%rip)`. Floating point numbers are in general registers,
 * too, since only SystemTap can read vector registers. */
#define CAPRIOLE_MARK_OPERAND_(i) [a##i] "nr"(capriole_a##i##_)
#define CAPRIOLE_MARK_OPERANDS_0_
#define CAPRIOLE_MARK_OPERANDS_1_ , CAPRIOLE_MARK_OPERAND_(1)
#define CAPRIOLE_MARK_OPERANDS_2_ CAPRIOLE_MARK_OPERANDS_1_, CAPRIOLE_MARK_OPERAND_(2)
#define CAPRIOLE_MARK_OPERANDS_3_ CAPRIOLE_MARK_OPERANDS_2_, CAPRIOLE_MARK_OPERAND_(3)
#define CAPRIOLE_MARK_OPERANDS_4_ CAPRIOLE_MARK_OPERANDS_3_, CAPRIOLE_MARK_OPERAND_(4)
#define CAPRIOLE_MARK_OPERANDS_5_ CAPRIOLE_MARK_OPERANDS_4_, CAPRIOLE_MARK_OPERAND_(5)
#define CAPRIOLE_MARK_OPERANDS_6_ CAPRIOLE_MARK_OPERANDS_5_, CAPRIOLE_MARK_OPERAND_(6)
#define CAPRIOLE_MARK_OPERANDS_7_ CAPRIOLE_MARK_OPERANDS_6_, CAPRIOLE_MARK_OPERAND_(7)
#define CAPRIOLE_MARK_OPERANDS_8_ CAPRIOLE_MARK_OPERANDS_7_, CAPRIOLE_MARK_OPERAND_(8)
#define CAPRIOLE_MARK_OPERANDS_9_ CAPRIOLE_MARK_OPERANDS_8_, CAPRIOLE_MARK_OPERAND_(9)
#define CAPRIOLE_MARK_OPERANDS_10_ CAPRIOLE_MARK_OPERANDS_9_, CAPRIOLE_MARK_OPERAND_(10)
#define CAPRIOLE_MARK_OPERANDS_11_ CAPRIOLE_MARK_OPERANDS_10_, CAPRIOLE_MARK_OPERAND_(11)
#define CAPRIOLE_MARK_OPERANDS_12_ CAPRIOLE_MARK_OPERANDS_11_, CAPRIOLE_MARK_OPERAND_(12)

/* A tracer may read what arguments point to: it has to be in memory. */
#define CAPRIOLE_MARK_READS_0_
#define CAPRIOLE_MARK_READS_1_ "memory"
#define CAPRIOLE_MARK_READS_2_ "memory"
#define CAPRIOLE_MARK_READS_3_ "memory"
#define CAPRIOLE_MARK_READS_4_ "memory"
#define CAPRIOLE_MARK_READS_5_ "memory"
#define CAPRIOLE_MARK_READS_6_ "memory"
#define CAPRIOLE_MARK_READS_7_ "memory"
#define CAPRIOLE_MARK_READS_8_ "memory"
#define CAPRIOLE_MARK_READS_9_ "memory"
#define CAPRIOLE_MARK_READS_10_ "memory"
#define CAPRIOLE_MARK_READS_11_ "memory"
#define CAPRIOLE_MARK_READS_12_ "memory"

#define CAPRIOLE_MARK_TYPES_0_ 0ULL
#define CAPRIOLE_MARK_TYPES_1_ CAPRIOLE_MARK_TYPE_(capriole_a1_)
#define CAPRIOLE_MARK_TYPES_2_ CAPRIOLE_MARK_TYPES_1_ | CAPRIOLE_MARK_TYPE_(capriole_a2_) << 4
#define CAPRIOLE_MARK_TYPES_3_ CAPRIOLE_MARK_TYPES_2_ | CAPRIOLE_MARK_TYPE_(capriole_a3_) << 8
#define CAPRIOLE_MARK_TYPES_4_ CAPRIOLE_MARK_TYPES_3_ | CAPRIOLE_MARK_TYPE_(capriole_a4_) << 12
#define CAPRIOLE_MARK_TYPES_5_ CAPRIOLE_MARK_TYPES_4_ | CAPRIOLE_MARK_TYPE_(capriole_a5_) << 16
#define CAPRIOLE_MARK_TYPES_6_ CAPRIOLE_MARK_TYPES_5_ | CAPRIOLE_MARK_TYPE_(capriole_a6_) << 20
#define CAPRIOLE_MARK_TYPES_7_ CAPRIOLE_MARK_TYPES_6_ | CAPRIOLE_MARK_TYPE_(capriole_a7_) << 24
#define CAPRIOLE_MARK_TYPES_8_ CAPRIOLE_MARK_TYPES_7_ | CAPRIOLE_MARK_TYPE_(capriole_a8_) << 28
#define CAPRIOLE_MARK_TYPES_9_ CAPRIOLE_MARK_TYPES_8_ | CAPRIOLE_MARK_TYPE_(capriole_a9_) << 32
#define CAPRIOLE_MARK_TYPES_10_ CAPRIOLE_MARK_TYPES_9_ | CAPRIOLE_MARK_TYPE_(capriole_a10_) << 36
#define CAPRIOLE_MARK_TYPES_11_ CAPRIOLE_MARK_TYPES_10_ | CAPRIOLE_MARK_TYPE_(capriole_a11_) << 40
#define CAPRIOLE_MARK_TYPES_12_ CAPRIOLE_MARK_TYPES_11_ | CAPRIOLE_MARK_TYPE_(capriole_a12_) << 44

/* The text, that is the format, a zero, the name of the source file and a zero, is passed to the
 * assembler as numbers of eight characters: in the text of an asm statement `%`, `{` and `|` have a
 * meaning, and a statement without operands, where they have none, could be separated from the one
 * that it belongs to. A statement has at most 30 operands, so n is what arguments leave; if there
 * is no room, the beginning of the file's name is cut off. */
#define CAPRIOLE_MARK_SIZES_(f, s, n) \
  enum { \
    capriole_format_ = CAPRIOLE_MARK_INT_(sizeof(f)), \
    capriole_size_ = CAPRIOLE_MARK_INT_(sizeof(s)), \
    capriole_lost_ = capriole_size_ > 8 * (n) ? capriole_size_ - 8 * (n) : 0 \
  };
#ifdef __cplusplus
#define CAPRIOLE_MARK_INT_ static_cast<int>
constexpr unsigned long long capriole_mark_char_(const char *text, int size, int at) {
  return at < size ? static_cast<unsigned char>(text[at]) : 0u;
}
/* Characters at to at + count - 1; those after the format are taken `lost` characters further on.
 * */
constexpr unsigned long long capriole_mark_word_(const char *text, int format, int size, int lost,
                                                 int at, int count) {
  return count == 0 ? 0
                    : capriole_mark_char_(text, size, at < format ? at : at + lost) |
                          capriole_mark_word_(text, format, size, lost, at + 1, count - 1) << 8;
}
#define CAPRIOLE_MARK_CONTENT_(s, n)
#define CAPRIOLE_MARK_WORD_(s, k) \
  [w##k] "n"(capriole_mark_code_<capriole_mark_word_(s, capriole_format_, capriole_size_, \
                                                     capriole_lost_, 8 * (k), 8)>::value)
#else
#define CAPRIOLE_MARK_INT_ (int)
#ifdef __clang__
/* Clang knows the characters of a literal; GCC, if it optimises, those of a constant array, which
 * it then removes, and which is less to read. The last character of a literal is 0. */
#define CAPRIOLE_MARK_CONTENT_(s, n)
#define CAPRIOLE_MARK_BYTE_(s, i) \
  (unsigned long long)(unsigned char)(s)[(i) < capriole_format_ ? (i) \
    : (i) + capriole_lost_ < capriole_size_ ? (i) + capriole_lost_ : capriole_size_ - 1]
#else
#define CAPRIOLE_MARK_CONTENT_(s, n) \
  static const char capriole_text_[capriole_lost_ ? capriole_size_ : 8 * (n)] = s;
#define CAPRIOLE_MARK_BYTE_(s, i) \
  (unsigned long long)(unsigned char) \
    capriole_text_[(i) < capriole_format_ ? (i) : (i) + capriole_lost_]
#endif
#define CAPRIOLE_MARK_WORD_(s, k) \
  [w##k] "n"(CAPRIOLE_MARK_BYTE_(s, 8 * (k)) | CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 1) << 8 | \
             CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 2) << 16 | \
             CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 3) << 24 | \
             CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 4) << 32 | \
             CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 5) << 40 | \
             CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 6) << 48 | \
             CAPRIOLE_MARK_BYTE_(s, 8 * (k) + 7) << 56)
#endif

#ifdef __cplusplus
#define CAPRIOLE_MARK_LENGTH_ static_cast<unsigned long long>(capriole_size_ - capriole_lost_)
#else
#define CAPRIOLE_MARK_LENGTH_ (unsigned long long)(capriole_size_ - capriole_lost_)
#endif

#ifndef CAPRIOLE_MARK_TORN_
#define CAPRIOLE_MARK_STREAM_(words, s) , CAPRIOLE_MARK_WORDS_##words##_(s)
#else
#undef CAPRIOLE_MARK_CONTENT_
#define CAPRIOLE_MARK_CONTENT_(s, n)
#define CAPRIOLE_MARK_STREAM_(words, s)
#endif
#define CAPRIOLE_MARK_WORDS_16_(s) \
  CAPRIOLE_MARK_WORD_(s, 0), CAPRIOLE_MARK_WORD_(s, 1), \
  CAPRIOLE_MARK_WORD_(s, 2), CAPRIOLE_MARK_WORD_(s, 3), \
  CAPRIOLE_MARK_WORD_(s, 4), CAPRIOLE_MARK_WORD_(s, 5), \
  CAPRIOLE_MARK_WORD_(s, 6), CAPRIOLE_MARK_WORD_(s, 7), \
  CAPRIOLE_MARK_WORD_(s, 8), CAPRIOLE_MARK_WORD_(s, 9), \
  CAPRIOLE_MARK_WORD_(s, 10), CAPRIOLE_MARK_WORD_(s, 11), \
  CAPRIOLE_MARK_WORD_(s, 12), CAPRIOLE_MARK_WORD_(s, 13), \
  CAPRIOLE_MARK_WORD_(s, 14), CAPRIOLE_MARK_WORD_(s, 15)
#define CAPRIOLE_MARK_WORDS_17_(s) CAPRIOLE_MARK_WORDS_16_(s), CAPRIOLE_MARK_WORD_(s, 16)
#define CAPRIOLE_MARK_WORDS_18_(s) CAPRIOLE_MARK_WORDS_17_(s), CAPRIOLE_MARK_WORD_(s, 17)
#define CAPRIOLE_MARK_WORDS_19_(s) CAPRIOLE_MARK_WORDS_18_(s), CAPRIOLE_MARK_WORD_(s, 18)
#define CAPRIOLE_MARK_WORDS_20_(s) CAPRIOLE_MARK_WORDS_19_(s), CAPRIOLE_MARK_WORD_(s, 19)
#define CAPRIOLE_MARK_WORDS_21_(s) CAPRIOLE_MARK_WORDS_20_(s), CAPRIOLE_MARK_WORD_(s, 20)
#define CAPRIOLE_MARK_WORDS_22_(s) CAPRIOLE_MARK_WORDS_21_(s), CAPRIOLE_MARK_WORD_(s, 21)
#define CAPRIOLE_MARK_WORDS_23_(s) CAPRIOLE_MARK_WORDS_22_(s), CAPRIOLE_MARK_WORD_(s, 22)
#define CAPRIOLE_MARK_WORDS_24_(s) CAPRIOLE_MARK_WORDS_23_(s), CAPRIOLE_MARK_WORD_(s, 23)
#define CAPRIOLE_MARK_WORDS_25_(s) CAPRIOLE_MARK_WORDS_24_(s), CAPRIOLE_MARK_WORD_(s, 24)
#define CAPRIOLE_MARK_WORDS_26_(s) CAPRIOLE_MARK_WORDS_25_(s), CAPRIOLE_MARK_WORD_(s, 25)
#define CAPRIOLE_MARK_WORDS_27_(s) CAPRIOLE_MARK_WORDS_26_(s), CAPRIOLE_MARK_WORD_(s, 26)
#define CAPRIOLE_MARK_WORDS_28_(s) CAPRIOLE_MARK_WORDS_27_(s), CAPRIOLE_MARK_WORD_(s, 27)

/* Writes a word that the text fills; of the word in which the text ends, only the first bytes are
 * written. */
#define CAPRIOLE_MARK_WRITE_(k) \
  ".if .Lcapriole_length >= 8 * " #k " + 8\n.8byte -(%n[w" #k "])\n" \
  ".elseif .Lcapriole_length > 8 * " #k "\n.set .Lcapriole_rest, -(%n[w" #k "])\n.endif\n"
#define CAPRIOLE_MARK_WRITE_16_ \
  CAPRIOLE_MARK_WRITE_(0) CAPRIOLE_MARK_WRITE_(1) \
  CAPRIOLE_MARK_WRITE_(2) CAPRIOLE_MARK_WRITE_(3) \
  CAPRIOLE_MARK_WRITE_(4) CAPRIOLE_MARK_WRITE_(5) \
  CAPRIOLE_MARK_WRITE_(6) CAPRIOLE_MARK_WRITE_(7) \
  CAPRIOLE_MARK_WRITE_(8) CAPRIOLE_MARK_WRITE_(9) \
  CAPRIOLE_MARK_WRITE_(10) CAPRIOLE_MARK_WRITE_(11) \
  CAPRIOLE_MARK_WRITE_(12) CAPRIOLE_MARK_WRITE_(13) \
  CAPRIOLE_MARK_WRITE_(14) CAPRIOLE_MARK_WRITE_(15)
#define CAPRIOLE_MARK_WRITE_17_ CAPRIOLE_MARK_WRITE_16_ CAPRIOLE_MARK_WRITE_(16)
#define CAPRIOLE_MARK_WRITE_18_ CAPRIOLE_MARK_WRITE_17_ CAPRIOLE_MARK_WRITE_(17)
#define CAPRIOLE_MARK_WRITE_19_ CAPRIOLE_MARK_WRITE_18_ CAPRIOLE_MARK_WRITE_(18)
#define CAPRIOLE_MARK_WRITE_20_ CAPRIOLE_MARK_WRITE_19_ CAPRIOLE_MARK_WRITE_(19)
#define CAPRIOLE_MARK_WRITE_21_ CAPRIOLE_MARK_WRITE_20_ CAPRIOLE_MARK_WRITE_(20)
#define CAPRIOLE_MARK_WRITE_22_ CAPRIOLE_MARK_WRITE_21_ CAPRIOLE_MARK_WRITE_(21)
#define CAPRIOLE_MARK_WRITE_23_ CAPRIOLE_MARK_WRITE_22_ CAPRIOLE_MARK_WRITE_(22)
#define CAPRIOLE_MARK_WRITE_24_ CAPRIOLE_MARK_WRITE_23_ CAPRIOLE_MARK_WRITE_(23)
#define CAPRIOLE_MARK_WRITE_25_ CAPRIOLE_MARK_WRITE_24_ CAPRIOLE_MARK_WRITE_(24)
#define CAPRIOLE_MARK_WRITE_26_ CAPRIOLE_MARK_WRITE_25_ CAPRIOLE_MARK_WRITE_(25)
#define CAPRIOLE_MARK_WRITE_27_ CAPRIOLE_MARK_WRITE_26_ CAPRIOLE_MARK_WRITE_(26)
#define CAPRIOLE_MARK_WRITE_28_ CAPRIOLE_MARK_WRITE_27_ CAPRIOLE_MARK_WRITE_(27)

/* Notes. The second one has a mask of the arguments that are floating point numbers: the lowest bit
 * for the first argument. */
#define CAPRIOLE_MARK_NOTE_(section, owner, type) \
  ".pushsection " section ",\"?\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, " type "\n" \
  "991: .asciz \"" owner "\"\n992: .balign 4\n993: .8byte 990b, _.stapsdt.base\n"
#define CAPRIOLE_MARK_NAMES_(p, n) ".asciz \"" #p "\"\n.asciz \"" #n "\"\n"
#define CAPRIOLE_MARK_END_ "994: .balign 4\n.popsection\n"

/* The counter (semaphore) of tracers that have enabled a guarded marker. It exists if it is checked
 * somewhere: notes have a weak reference, which is 0 otherwise. */
#define CAPRIOLE_MARK_SEMAPHORE_(symbol) \
  ".ifndef " symbol "\n.pushsection .probes,\"awG\",\"progbits\"," symbol ",comdat\n.balign 2\n" \
  ".weak " symbol "\n.hidden " symbol "\n.type " symbol ", @object\n.size " symbol ", 2\n" \
  symbol ": .zero 2\n.popsection\n.endif\n"

#define CAPRIOLE_MARK_SITE_(p, n, shown) \
  "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n" \
  ".set .Lcapriole_types, -(%n[types])\n.set .Lcapriole_length, .Lcapriole_types >> 48\n" \
  ".set .Lcapriole_floats, (.Lcapriole_types >> 3 & 1) | (.Lcapriole_types >> 6 & 2)" \
  " | (.Lcapriole_types >> 9 & 4) | (.Lcapriole_types >> 12 & 8)" \
  " | (.Lcapriole_types >> 15 & 16) | (.Lcapriole_types >> 18 & 32)" \
  " | (.Lcapriole_types >> 21 & 64) | (.Lcapriole_types >> 24 & 128)" \
  " | (.Lcapriole_types >> 27 & 256) | (.Lcapriole_types >> 30 & 512)" \
  " | (.Lcapriole_types >> 33 & 1024) | (.Lcapriole_types >> 36 & 2048)\n" \
  ".weak " #p "_" #n "_semaphore\n.hidden " #p "_" #n "_semaphore\n" \
  ".ifndef _.stapsdt.base\n" \
  ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
  ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n" \
  ".size _.stapsdt.base, 1\n.popsection\n.endif\n" \
  CAPRIOLE_MARK_NOTE_(".note.stapsdt", "stapsdt", "3") \
  ".8byte " #p "_" #n "_semaphore\n" CAPRIOLE_MARK_NAMES_(p, n) shown ".byte 0\n" CAPRIOLE_MARK_END_
#define CAPRIOLE_MARK_DESCRIBED_(p, n, line, text) \
  CAPRIOLE_MARK_NOTE_(".note.capriole", "capriole", "1") \
  ".4byte " #line ", .Lcapriole_floats\n" CAPRIOLE_MARK_NAMES_(p, n) text CAPRIOLE_MARK_END_
#define CAPRIOLE_MARK_REST_ \
  ".rept .Lcapriole_length & 7\n.byte .Lcapriole_rest & 255\n" \
  ".set .Lcapriole_rest, .Lcapriole_rest >> 8\n.endr\n"

/* One statement, so that nothing can come between a marker and its notes. */
#ifndef CAPRIOLE_MARK_TORN_
#define CAPRIOLE_MARK_ASM_(p, n, line, words, shown) \
  CAPRIOLE_MARK_SITE_(p, n, shown) \
  CAPRIOLE_MARK_DESCRIBED_(p, n, line, words CAPRIOLE_MARK_REST_)
#define CAPRIOLE_MARK_SECOND_(p, n, s, line)
#else
#define CAPRIOLE_MARK_ASM_(p, n, line, words, shown) CAPRIOLE_MARK_SITE_(p, n, shown)
#define CAPRIOLE_MARK_SECOND_(p, n, s, line) \
  __asm__ __volatile__(CAPRIOLE_MARK_DESCRIBED_(p, n, line, ".asciz " #s "\n"));
#endif

/* Linux 6.18 turns a five-byte nop that is probed into a call, which writes below the stack
 * pointer: there a function that calls no other may keep variables (its red zone). So the compiler
 * is told that there is a path from the marker to a call. That path is never taken, and costs a
 * call that is never made, away from the hot path. Clang before 18 treats such a statement as a
 * jump into every other one's scope, and rejects it next to destructors. */
#if !defined __clang__ || __clang_major__ >= 18
#define CAPRIOLE_MARK_STATEMENT_ goto
#define CAPRIOLE_MARK_LABEL_ : capriole_never_
#define CAPRIOLE_MARK_DECLARE_ __label__ capriole_never_;
#define CAPRIOLE_MARK_CALL_ \
  if (0) { \
  capriole_never_: \
    capriole_mark_never_(); \
  }
#ifdef __cplusplus
inline __attribute__((__visibility__("hidden")))
#else
static
#endif
__attribute__((__noinline__, __noreturn__, __nothrow__, __cold__, __unused__)) void
capriole_mark_never_(void) {
  __builtin_trap();
}
#else
#define CAPRIOLE_MARK_STATEMENT_ __volatile__
#define CAPRIOLE_MARK_LABEL_
#define CAPRIOLE_MARK_DECLARE_
#define CAPRIOLE_MARK_CALL_
#endif

/* In a coroutine, Clang rejects a statement that may jump anywhere. It accepts one in a lambda of
 * its own, which becomes part of the coroutine when it is inlined. */
#if defined __clang__ && __clang_major__ >= 18 && defined __cpp_impl_coroutine
#define CAPRIOLE_MARK_ENTER_ [&]() __attribute__((__always_inline__)) { CAPRIOLE_MARK_DECLARE_
#define CAPRIOLE_MARK_LEAVE_ }();
#else
#define CAPRIOLE_MARK_ENTER_ { CAPRIOLE_MARK_DECLARE_
#define CAPRIOLE_MARK_LEAVE_ }
#endif

#define CAPRIOLE_MARK_BLOCK_(p, n, f, count, words, values) \
  CAPRIOLE_MARK_BLOCK_1_(p, n, f, f "\0" __FILE__, __LINE__, count, words, values)
#define CAPRIOLE_MARK_BLOCK_1_(p, n, f, s, line, count, words, values) \
  do { \
    CAPRIOLE_MARK_OPEN_ \
      CAPRIOLE_MARK_ASSERT_(__builtin_constant_p(f), \
                            "CAPRIOLE_MARK: the format has to be a string literal"); \
      CAPRIOLE_MARK_ASSERT_(sizeof(f) < 8 * (words), \
                            "CAPRIOLE_MARK: the format is longer than 222 characters less 8 for " \
                            "each argument"); \
      CAPRIOLE_MARK_SIZES_(f, s, words) \
      CAPRIOLE_MARK_CONTENT_(s, words) \
      values \
      CAPRIOLE_MARK_ENTER_ \
      __asm__ __inline__ CAPRIOLE_MARK_STATEMENT_( \
          CAPRIOLE_MARK_ASM_(p, n, line, CAPRIOLE_MARK_WRITE_##words##_, \
                             CAPRIOLE_MARK_SHOWN_##count##_) \
          : \
          : [types] "n"((CAPRIOLE_MARK_TYPES_##count##_) | \
                        CAPRIOLE_MARK_LENGTH_ << 48) \
            CAPRIOLE_MARK_STREAM_(words, s) CAPRIOLE_MARK_OPERANDS_##count##_ \
          : CAPRIOLE_MARK_READS_##count##_ CAPRIOLE_MARK_LABEL_); \
      CAPRIOLE_MARK_SECOND_(p, n, s, line) \
      CAPRIOLE_MARK_CALL_ \
      CAPRIOLE_MARK_LEAVE_ \
    CAPRIOLE_MARK_CLOSE_ \
  } while (0)

#else /* no markers here */
#define CAPRIOLE_MARK_BLOCK_(p, n, f, count, words, values) \
  do { \
    CAPRIOLE_MARK_OPEN_ \
      values \
    CAPRIOLE_MARK_CLOSE_ \
  } while (0)
#endif

/* A wrong format is an error, whatever warnings are enabled. GCC before 12 treats a pragma in a
 * macro as a separate statement, before the macro's; there a wrong format is a warning of -Wall.
 * */
#if defined __clang__ || __GNUC__ >= 12
#define CAPRIOLE_MARK_STRICT_ \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic error \"-Wformat\"")
#define CAPRIOLE_MARK_LENIENT_ _Pragma("GCC diagnostic pop")
#else
#define CAPRIOLE_MARK_STRICT_
#define CAPRIOLE_MARK_LENIENT_
#endif
#define CAPRIOLE_MARK_FORMAT_(f, call) \
  CAPRIOLE_MARK_STRICT_ \
  if (0) \
    (void)capriole_mark_format_ call; \
  CAPRIOLE_MARK_LENIENT_

#ifdef __cplusplus
#define CAPRIOLE_MARK_ASSERT_(what, message) static_assert(what, message)
#define CAPRIOLE_MARK_AUTO_ auto
#else
#define CAPRIOLE_MARK_ASSERT_(what, message) _Static_assert(what, message)
#define CAPRIOLE_MARK_AUTO_ __auto_type
#endif
#define CAPRIOLE_MARK_VALUE_(i, x) \
  CAPRIOLE_MARK_AUTO_ capriole_a##i##_ __attribute__((__unused__)) = (x); \
  CAPRIOLE_MARK_ASSERT_(CAPRIOLE_MARK_TYPE_(capriole_a##i##_) != 15, \
                        "CAPRIOLE_MARK: argument " #i " is no integer, bool, enumeration, float, " \
                        "double or pointer");

/* The type of an argument: the logarithm of its size, plus 4 if it is signed, plus 8 if it is a
 * floating point number; 15 if it is of no supported type. */
#ifdef __cplusplus
template <unsigned long long number>
struct capriole_mark_code_ {
  enum : unsigned long long { value = number };
};
template <typename T>
struct capriole_mark_integer_
    : capriole_mark_code_<(sizeof(T) == 8 ? 3 : sizeof(T) / 2) |
                          (static_cast<T>(-1) < static_cast<T>(1) ? 4 : 0)> {};
template <typename T, bool is_enumeration>
struct capriole_mark_other_ : capriole_mark_code_<15> {};
template <typename T>
struct capriole_mark_other_<T, true> : capriole_mark_integer_<__underlying_type(T)> {};
template <typename T>
struct capriole_mark_type_ : capriole_mark_other_<T, __is_enum(T)> {};
template <typename T>
struct capriole_mark_type_<T *> : capriole_mark_code_<3> {};
template <>
struct capriole_mark_type_<decltype(nullptr)> : capriole_mark_code_<3> {};
template <>
struct capriole_mark_type_<float> : capriole_mark_code_<10> {};
template <>
struct capriole_mark_type_<double> : capriole_mark_code_<11> {};
#define CAPRIOLE_MARK_INTEGER_(T) \
  template <> \
  struct capriole_mark_type_<T> : capriole_mark_integer_<T> {};
CAPRIOLE_MARK_INTEGER_(bool)
CAPRIOLE_MARK_INTEGER_(char)
CAPRIOLE_MARK_INTEGER_(signed char)
CAPRIOLE_MARK_INTEGER_(unsigned char)
CAPRIOLE_MARK_INTEGER_(wchar_t)
#ifdef __cpp_char8_t
CAPRIOLE_MARK_INTEGER_(char8_t)
#endif
CAPRIOLE_MARK_INTEGER_(char16_t)
CAPRIOLE_MARK_INTEGER_(char32_t)
CAPRIOLE_MARK_INTEGER_(short)
CAPRIOLE_MARK_INTEGER_(unsigned short)
CAPRIOLE_MARK_INTEGER_(int)
CAPRIOLE_MARK_INTEGER_(unsigned)
CAPRIOLE_MARK_INTEGER_(long)
CAPRIOLE_MARK_INTEGER_(unsigned long)
CAPRIOLE_MARK_INTEGER_(long long)
CAPRIOLE_MARK_INTEGER_(unsigned long long)
#undef CAPRIOLE_MARK_INTEGER_
#define CAPRIOLE_MARK_TYPE_(a) \
  static_cast<unsigned long long>(capriole_mark_type_<decltype(a)>::value)
#else
#ifdef __CHAR_UNSIGNED__
#define CAPRIOLE_MARK_CHAR_TYPE_ 0ULL
#else
#define CAPRIOLE_MARK_CHAR_TYPE_ 4ULL
#endif
/* Classes 1 and 5: an integer that is not in the list, such as an enumeration, and a pointer. */
#define CAPRIOLE_MARK_TYPE_(a) \
  _Generic((a), _Bool: 0ULL, char: CAPRIOLE_MARK_CHAR_TYPE_, signed char: 4ULL, \
      unsigned char: 0ULL, short: 5ULL, unsigned short: 1ULL, int: 6ULL, unsigned: 2ULL, \
      long: 7ULL, unsigned long: 3ULL, long long: 7ULL, unsigned long long: 3ULL, \
      float: 10ULL, double: 11ULL, \
      default: sizeof(a) == sizeof(void *) && (__builtin_classify_type(a) == 5 || \
                                               __builtin_classify_type(a) == 1) ? 3ULL : 15ULL)
#endif

#ifdef __cplusplus
inline
#else
static __inline__
#endif
__attribute__((__unused__)) void capriole_mark_text(const char *text) {
  CAPRIOLE_MARK_TEXT(text);
}

#ifdef __cplusplus
inline
#else
static __inline__
#endif
__attribute__((__unused__)) void capriole_mark_text_to(int fd, const char *text) {
  CAPRIOLE_MARK_TEXT(text);
#ifdef CAPRIOLE_MARK_HERE_
  if (fd >= 0 && text) {
    long result = 1; /* write */
    long to = fd;
    __asm__ __volatile__("syscall"
                         : "+a"(result)
                         : "D"(to), "S"(text), "d"(__builtin_strlen(text))
                         : "rcx", "r11", "memory");
    (void)result;
  }
#else
  (void)fd;
#endif
}

#endif
