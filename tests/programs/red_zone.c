// Functions in assembly that keep values below the stack pointer, in the red zone, while control
// comes by a symbol: one that it falls through to, or jumps to. Each function returns the sum of
// what it kept. Nothing may be lost, wherever a probe is.
//
// With -DFRAMES each outer function has call frame information.
#include <stdio.h>

#ifdef FRAMES
#define BEGIN ".cfi_startproc\n"
#define END ".cfi_endproc\n"
#else
#define BEGIN ""
#define END ""
#endif

#define FUNCTION(name) \
    ".p2align 4\n.globl " name "\n.type " name ", @function\n" name ":\n" BEGIN
#define END_OF(name) END ".size " name ", . - " name "\n"
#define FILL "fill\n"
#define SUM "sum\nret\n"
#define GLOBAL(name) ".globl " name "\n" name ":\n"
#define GLOBAL_FUNC(name) ".globl " name "\n.type " name ", @function\n" name ":\n"
#define LOCAL_FUNC(name) ".type " name ", @function\n" name ":\n"
#define SIZE(name) ".size " name ", . - " name "\n"
// An entry of its own kind needs room for a jump.
#define SOME "mov $0x12345, %ecx\n"

__asm__(
    ".text\n"
    ".macro fill\n"
    ".set at, 8\n.rept 16\n"
    "mov %rdi, -at(%rsp)\n"
    "inc %rdi\n"
    ".set at, at + 8\n.endr\n"
    ".endm\n"
    ".macro sum\n"
    "xor %eax, %eax\n"
    ".set at, 8\n.rept 16\n"
    "add -at(%rsp), %rax\n"
    ".set at, at + 8\n.endr\n"
    ".endm\n"

    // Fallen into.
    FUNCTION("z_fall_notype") FILL GLOBAL("in_fall_notype") SOME SUM END_OF("z_fall_notype")
    FUNCTION("z_fall_func") FILL GLOBAL_FUNC("in_fall_func") SOME SUM END_OF("z_fall_func")
    FUNCTION("z_fall_local") FILL LOCAL_FUNC("in_fall_local") SOME SUM END_OF("z_fall_local")
    FUNCTION("z_fall_sized") FILL GLOBAL_FUNC("in_fall_sized") SOME SIZE("in_fall_sized")
        SOME SUM END_OF("z_fall_sized")
    // The symbol is the next function, by all that is said about it.
    FUNCTION("z_fall_over") FILL END_OF("z_fall_over")
    GLOBAL_FUNC("in_fall_over") BEGIN SOME SUM END_OF("in_fall_over")
    FUNCTION("z_fall_nops") FILL END_OF("z_fall_nops")
    FUNCTION("in_fall_nops") SOME SUM END_OF("in_fall_nops")
    FUNCTION("z_fall_endbr") FILL END_OF("z_fall_endbr")
    GLOBAL_FUNC("in_fall_endbr") "endbr64\n" SOME SUM SIZE("in_fall_endbr")
    // Twice: nothing is kept between the two.
    FUNCTION("z_fall_twice") FILL GLOBAL("in_fall_once") SOME GLOBAL("in_fall_twice") SOME SUM
        END_OF("z_fall_twice")
    // The condition falls through as well.
    FUNCTION("z_fall_jcc") FILL "test %esp, %esp\njz 1f\n" END_OF("z_fall_jcc")
    GLOBAL_FUNC("in_fall_jcc") SOME SUM "1: ud2\n" SIZE("in_fall_jcc")

    // Jumped to.
    FUNCTION("z_jmp_notype") FILL "jmp in_jmp_notype\n" GLOBAL("in_jmp_notype") SOME SUM
        END_OF("z_jmp_notype")
    FUNCTION("z_jmp_away") FILL "jmp in_jmp_away\n" END_OF("z_jmp_away")
    FUNCTION("in_jmp_away") SOME SUM END_OF("in_jmp_away")
    FUNCTION("z_jcc_away") FILL "test %esp, %esp\njnz in_jcc_away\nud2\n" END_OF("z_jcc_away")
    FUNCTION("in_jcc_away") SOME SUM END_OF("in_jcc_away")
    FUNCTION("in_jmp_back") SOME SUM END_OF("in_jmp_back")
    FUNCTION("z_jmp_back") FILL "jmp in_jmp_back\n" END_OF("z_jmp_back")
    FUNCTION("z_jmp_sized") FILL "jmp 2f\n" GLOBAL_FUNC("in_jmp_sized") SOME SUM
        SIZE("in_jmp_sized") "2: jmp in_jmp_sized\n" END_OF("z_jmp_sized")
    // By way of a function that does nothing with what is kept.
    FUNCTION("z_jmp_by") FILL "jmp in_jmp_by\n" END_OF("z_jmp_by")
    FUNCTION("in_jmp_by") SOME "jmp in_jmp_on\n" END_OF("in_jmp_by")
    FUNCTION("in_jmp_on") SOME SUM END_OF("in_jmp_on")
    // From code without a name.
    FUNCTION("z_jmp_nameless") "jmp 3f\n" END_OF("z_jmp_nameless")
    "3:\n" FILL "jmp in_jmp_nameless\n"
    FUNCTION("in_jmp_nameless") SOME SUM END_OF("in_jmp_nameless")
    // It is called as well.
    FUNCTION("z_jmp_called") FILL "jmp in_jmp_called\n" END_OF("z_jmp_called")
    FUNCTION("in_jmp_called") SOME SUM END_OF("in_jmp_called")
    FUNCTION("calls_it") FILL "call in_jmp_called\nret\n" END_OF("calls_it")

    // Jumped to through registers and tables.
    FUNCTION("z_register") FILL "lea in_register(%rip), %rax\njmp *%rax\n"
        GLOBAL("in_register") SOME SUM END_OF("z_register")
    FUNCTION("z_table") FILL "lea table(%rip), %rax\nmov %edi, %ecx\nand $1, %ecx\n"
        "jmp *(%rax,%rcx,8)\n"
        GLOBAL("in_table_0") SOME SUM GLOBAL("in_table_1") SOME SUM END_OF("z_table")
    FUNCTION("z_offsets") FILL "lea offsets(%rip), %rax\nmov %edi, %ecx\nand $1, %ecx\n"
        "movslq (%rax,%rcx,4), %rcx\nadd %rcx, %rax\njmp *%rax\n"
        GLOBAL("in_offsets_0") SOME SUM GLOBAL("in_offsets_1") SOME SUM END_OF("z_offsets")

    // Kept by other registers than the stack pointer.
    FUNCTION("z_frame_pointer") "push %rbp\nmov %rsp, %rbp\n"
        ".set at, 8\n.rept 16\nmov %rdi, -at(%rbp)\ninc %rdi\n.set at, at + 8\n.endr\n"
        GLOBAL("in_frame_pointer") "xor %eax, %eax\n"
        ".set at, 8\n.rept 16\nadd -at(%rbp), %rax\n.set at, at + 8\n.endr\n"
        "pop %rbp\nret\n" END_OF("z_frame_pointer")
    FUNCTION("z_pointer") "lea -128(%rsp), %rdx\nmov $16, %ecx\n"
        "4: mov %rdi, -8(%rdx,%rcx,8)\ninc %rdi\ndec %ecx\njnz 4b\njmp in_pointer\n"
        END_OF("z_pointer")
    FUNCTION("in_pointer") SOME SUM END_OF("in_pointer")

    ".section .data.rel.ro, \"aw\"\n.p2align 3\n"
    "table: .quad in_table_0, in_table_1\n"
    ".section .rodata\n.p2align 2\n"
    "offsets: .long in_offsets_0 - offsets, in_offsets_1 - offsets\n"
    ".text\n");

#define CASES(_) \
    _(fall_notype) _(fall_func) _(fall_local) _(fall_sized) _(fall_over) _(fall_nops) \
    _(fall_endbr) _(fall_twice) _(fall_jcc) \
    _(jmp_notype) _(jmp_away) _(jcc_away) _(jmp_back) _(jmp_sized) _(jmp_by) _(jmp_nameless) \
    _(jmp_called) _(register) _(table) _(offsets) _(frame_pointer) _(pointer)

#define DECLARE(name) long z_##name(long);
CASES(DECLARE)

int main(void)
{
    static const struct {
        const char *name;
        long (*function)(long);
    } cases[] = {
#define ROW(name) { #name, z_##name },
        CASES(ROW)
    };
    int wrong = 0;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        long bad = 0;
        for (long x = 1; x <= 100; x++)
            bad += cases[i].function(x) != 16 * x + 120;
        if (bad)
            printf("%s: %ld of 100 sums are wrong\n", cases[i].name, bad);
        wrong += bad != 0;
    }
    if (!wrong)
        printf("ok red_zone\n");
    return wrong != 0;
}
