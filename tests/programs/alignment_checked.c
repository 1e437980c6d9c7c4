/* alignment_checked CALLS [stepped]: calls probed functions with EFLAGS.AC, so that accesses to addresses that
 * are no multiple of their size fault, and with arguments that are at such addresses. Prints `ok calls=CALLS`.
 * Stepped, a signal arrives after each instruction of the calls, and aborts restartable sequences. */
#include "common.h"

#include <signal.h>

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

enum { STEP = 0x100, CHECK_ALIGNMENT = 0x40000 };

static inline void set_flags(unsigned long flags)
{
	__asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x40100, (%%rsp); or %0, (%%rsp); popfq; add $128, %%rsp"
			 :
			 : "r"(flags)
			 : "cc", "memory");
}

static volatile long steps;

static void on_step(int signal)
{
	(void)signal;
	steps++;
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	long calls = atol(argv[1]);
	int stepped = argc > 2;
	CHECK(signal(SIGTRAP, on_step) != SIG_ERR);
	static struct parts global;
	struct parts own = { 0, 7, 1234567890123, "hello" };
	char text[40] = "xy stack text";
	global = own;
	behind();
	further();
	for (long n = 0; n < calls; n++) {
		struct parts *p = n & 1 ? &own : &global;
		set_flags(CHECK_ALIGNMENT | (stepped ? STEP : 0));
		long result = outer(n, p, n & 2 ? text + 1 : "a literal" + 1);
		set_flags(0);
		CHECK(result == n + 4);
	}
	CHECK(stepped == (steps > 0));
	printf("ok calls=%ld\n", calls);
	return 0;
}
