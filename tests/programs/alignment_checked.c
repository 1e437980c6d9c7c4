/* Calls probed functions with EFLAGS.AC, so that accesses to addresses that are no multiple of their size
 * fault, and with arguments that are at such addresses. Prints `ok calls=2000`. */
#include "common.h"

struct parts {
	char pad;
	int a;
	long b;
	char text[16];
} __attribute__((packed));

/* No jump fits: another function begins behind its one byte. */
__asm__(".pushsection .text\n .balign 64, 0xcc\n .globl one_byte\n .type one_byte, @function\n"
	"one_byte: ret\n .size one_byte, . - one_byte\n"
	".globl behind\n .type behind, @function\nbehind: ret\n .size behind, . - behind\n"
	".globl further\n .type further, @function\nfurther: ret\n .size further, . - further\n"
	".popsection\n");

extern void one_byte(void), behind(void), further(void);

__attribute__((noinline)) long work(long n, struct parts *p, const char *text, double d)
{
	__asm__ volatile("" : "+r"(n) : "r"(p), "r"(text), "x"(d) : "memory");
	one_byte();
	return n + 3;
}

__attribute__((noinline)) long outer(long n, struct parts *p, const char *text)
{
	long result = work(n, p, text, 1.5) + 1;
	__asm__ volatile("");
	return result;
}

static inline void check_alignment(int checks)
{
	if (checks)
		__asm__ volatile("sub $128, %%rsp; pushfq; orl $0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
	else
		__asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
}

int main(void)
{
	static struct parts global;
	struct parts own = { 0, 7, 1234567890123, "hello" };
	char text[40] = "xy stack text";
	global = own;
	behind();
	further();
	for (long n = 0; n < 2000; n++) {
		struct parts *p = n & 1 ? &own : &global;
		check_alignment(1);
		long result = outer(n, p, n & 2 ? text + 1 : "a literal" + 1);
		check_alignment(0);
		CHECK(result == n + 4);
	}
	printf("ok calls=2000\n");
	return 0;
}
