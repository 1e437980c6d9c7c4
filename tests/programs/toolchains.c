// What tool chains put at the entries of functions and between them, as they put it: hashes and
// words that callers read, data, nops that are kept, thunks. The program compares all of it with
// what it should be, while it runs.
#include <stdio.h>
#include <string.h>

__asm__(
    ".text\n"
    // Tiny functions with next to no room want what is behind them.
    ".macro tiny name\n.globl \\name\n.type \\name, @function\n\\name:\n"
    "mov %edi, %eax\nret\n.size \\name, . - \\name\n.endm\n"
    ".macro function name\n.globl \\name\n.type \\name, @function\n\\name:\n.endm\n"

    // -fsanitize=kcfi
    ".p2align 4\ntiny tiny_kcfi\n"
    ".type __cfi_kcfi, @function\n__cfi_kcfi:\n.rept 11\nnop\n.endr\nmov $0x12345678, %eax\n"
    ".size __cfi_kcfi, . - __cfi_kcfi\n"
    "function kcfi\nlea 1(%rdi), %eax\nret\n.size kcfi, . - kcfi\n"
    // The same for a function with nops for patching between, and a hash like nops.
    "tiny tiny_kcfi_nops\n"
    ".type __cfi_kcfi_nops, @function\n__cfi_kcfi_nops:\nmov $0x90909090, %eax\n"
    ".size __cfi_kcfi_nops, . - __cfi_kcfi_nops\n"
    "nops: .rept 5\nnop\n.endr\n"
    "function kcfi_nops\nlea 1(%rdi), %eax\nret\n.size kcfi_nops, . - kcfi_nops\n"
    ".section __patchable_function_entries, \"aw\"\n.p2align 3\n.quad nops\n.text\n"
    // -fsanitize=function of clang 17: the second word looks like int3.
    "tiny tiny_words\n"
    ".long 0xc105cafe, 0xcccccccc\n"
    "function words\nlea 1(%rdi), %eax\nret\n.size words, . - words\n"
    // That of clang 14: read as code, it swallows the first byte behind.
    ".p2align 4\ntiny tiny_jump\n"
    "function jump\n.byte 0xeb, 0x06, 'v', '2'\n.long 0x48000000\n"
    "lea 1(%rdi), %rax\nadd $0x12345, %eax\nsub $0x12345, %eax\nret\n.size jump, . - jump\n"

    // Data with symbols: between functions, like padding, and within a function.
    ".p2align 4\ntiny tiny_data\n"
    ".type like_nops, @object\nlike_nops: .byte 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90\n"
    ".size like_nops, 8\n"
    "tiny tiny_more\n"
    ".type like_traps, @object\nlike_traps: .quad 0xcccccccccccccccc\n"
    "function pool\njmp 1f\n"
    ".type constant, @object\nconstant: .byte 0x48, 0xb8, 1, 0\n.size constant, 4\n"
    "1: mov constant(%rip), %eax\nsub $0x1b847, %eax\nadd %edi, %eax\nret\n.size pool, . - pool\n"

    // Thunks for indirect jumps, landing pads and nops of all lengths.
    "function thunk\ncall 3f\n2: pause\nlfence\njmp 2b\n.p2align 4\n"
    "3: mov %rax, (%rsp)\nret\n.size thunk, . - thunk\n"
    "function by_thunk\nendbr64\nlea kcfi(%rip), %rax\njmp thunk\n.size by_thunk, . - by_thunk\n"
    ".p2align 5\n"
    "function by_notrack\nendbr64\nlea 4f(%rip), %rax\nnotrack jmp *%rax\nint3\nint3\n"
    "4: lea 1(%rdi), %eax\nret\n.size by_notrack, . - by_notrack\n"
    // -fpatchable-function-entry=5
    ".p2align 4\nfunction patchable\nendbr64\n5: nop\nnop\nnop\nnop\nnop\nlea 1(%rdi), %eax\nret\n"
    ".size patchable, . - patchable\n"
    ".section __patchable_function_entries, \"aw\"\n.quad 5b\n.text\n"
    // No hash: the first instruction of a function, before a label inside it.
    ".p2align 4\nnop\nfunction labelled\nmov $0x12345, %eax\n"
    ".globl labelled_inside\nlabelled_inside: lea -0x12344(%rax, %rdi), %eax\nret\n"
    ".size labelled, . - labelled\n"
    // hot patching as Wine has it
    ".rept 32\nint3\n.endr\n"
    "function hook\n.byte 0x48, 0x8d, 0xa4, 0x24, 0, 0, 0, 0\nlea 1(%rdi), %eax\nret\n"
    ".size hook, . - hook\n");

#define FUNCTIONS(_) \
    _(kcfi) _(kcfi_nops) _(words) _(jump) _(pool) _(by_thunk) _(by_notrack) _(patchable) _(hook) \
    _(labelled)
#define TINY(_) \
    _(tiny_kcfi) _(tiny_kcfi_nops) _(tiny_words) _(tiny_jump) _(tiny_data) _(tiny_more)
#define DECLARE(name) int name(int);
FUNCTIONS(DECLARE)
TINY(DECLARE)
extern const char like_nops[], like_traps[], constant[];

static int differs(const void *at, int from, const char *bytes, int size)
{
    const char *volatile entry = at; // the compiler takes it for an object of known size
    return memcmp(entry + from, bytes, size) != 0;
}

static const char *wrong(int x)
{
#define CHECK(name) \
    if (name(x) != x + 1) \
        return #name;
#define CHECK_TINY(name) \
    if (name(x) != x) \
        return #name;
    FUNCTIONS(CHECK)
    TINY(CHECK_TINY)
    if (differs(kcfi, -5, "\xb8\x78\x56\x34\x12", 5))
        return "the hash of kcfi";
    if (differs(kcfi_nops, -10, "\xb8\x90\x90\x90\x90\x90\x90\x90\x90\x90", 10))
        return "the hash of kcfi_nops";
    if (differs(words, -8, "\xfe\xca\x05\xc1\xcc\xcc\xcc\xcc", 8))
        return "the words before words";
    if (differs(jump, 0, "\xeb\x06v2\0\0\0\x48", 8))
        return "the signature of jump";
    if (differs(like_nops, 0, "\x90\x90\x90\x90\x90\x90\x90\x90", 8))
        return "like_nops";
    if (differs(like_traps, 0, "\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc", 8))
        return "like_traps";
    if (differs(constant, 0, "\x48\xb8\1", 4))
        return "constant";
    for (int before = -32; before < 0; before++)
        if (differs(hook, before, "\xcc", 1))
            return "the room before hook";
    return NULL;
}

int main(void)
{
    for (int x = 0; x < 100; x++) {
        const char *what = wrong(x);
        if (what) {
            printf("wrong: %s\n", what);
            return 1;
        }
    }
    printf("ok toolchains\n");
    return 0;
}
