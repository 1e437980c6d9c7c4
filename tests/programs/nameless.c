// Functions of known bytes, to be built without symbols and call frame information. The program
// prints the offset of each in the file, calls each 100 times and checks what it returns.
#include <stdio.h>

extern const char __executable_start[];

int called(int x);
int pointed(int x);
int inner_call(int x);
extern const char inner[], data[];

__asm__(
    ".text\n.p2align 4\n"
    // Its immediate holds instructions: `inc %ebx; nop; nop`.
    ".type called, @function\n"
    "called: add $0x9090c3ff, %edi\n"
    "lea (%rdi,%rdi,2), %eax\nret\n"
    ".size called, . - called\n"
    ".p2align 4\n"
    // Only its address is used.
    ".type pointed, @function\n"
    "pointed: mov $0x9090c3ff, %eax\nadd %edi, %eax\nret\n"
    ".size pointed, . - pointed\n"
    ".p2align 4\n"
    ".globl inner_call\n.type inner_call, @function\n"
    "inner_call: call inner\nadd $5, %eax\nret\n"
    "data: .long 0x12345678, 0x12345678\n"
    "inner: mov $7, %eax\nadd %edi, %eax\nret\n"
    ".size inner_call, . - inner_call\n");

int (*volatile pointer)(int) = pointed;

static long offset(const void *at)
{
    return (const char *)at - __executable_start;
}

int main(void)
{
    printf("main %ld\n", offset(main));
    printf("called %ld\n", offset(called));
    printf("pointed %ld\n", offset(pointed));
    printf("inner %ld\n", offset(inner));
    printf("data %ld\n", offset(data));
    int wrong = 0;
    for (int x = 1; x <= 100; x++) {
        wrong += called(x) != (int)(3 * (x + 0x9090c3ffu));
        wrong += pointer(x) != (int)(x + 0x9090c3ffu);
        wrong += inner_call(x) != x + 12;
    }
    printf(wrong ? "%d results are wrong\n" : "ok nameless\n", wrong);
    return wrong != 0;
}
