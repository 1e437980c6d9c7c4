/*
 * A function with values that only a probe asks for: it fills the registers that are not kept
 * in calls with its arguments, and overwrites them before anything uses them. It is called 1,000
 * times with n = 0 to 999: "ok calls=1000". Its places, bytes from its start:
 *
 *   0x20   all are there
 *   0x30   they still are
 *   0x40   they are overwritten
 */
#include "common.h"

uint64_t read_later(uint64_t n);

#define ALL(instruction) \
	instruction "ax\n" instruction "cx\n" instruction "dx\n" instruction "si\n" \
	instruction "8\n" instruction "9\n" instruction "10\n" instruction "11\n"

__asm__(
	".text\n"
	".p2align 6\n"
	".globl read_later\n.type read_later, @function\nread_later:\n"
	ALL("	mov %rdi, %r")
	".org read_later + 0x20, 0x90\n"
	"	movl $0x1234567, -8(%rsp)\n"
	".org read_later + 0x30, 0x90\n"
	"	movl $0x1234567, -8(%rsp)\n"
	".org read_later + 0x40, 0x90\n"
	ALL("	mov $7, %r")
	"	ret\n"
	".size read_later, . - read_later\n");

int main(void)
{
	for (uint64_t n = 0; n < 1000; n++)
		CHECK(read_later(n) == 7);
	printf("ok calls=1000\n");
	return 0;
}
