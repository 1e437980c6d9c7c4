/*
 * Calls a probed function again and again, for debuggers: `probes_unwound HOW`, which is one of
 * jump, breakpoint, post, call, return, exits, address. Handlers that are called are pre, post, entered, returned.
 */
#include "probes.h"

PROBED long probed(long number, const char *text)
{
	long result = number + text[0];
	__asm__ volatile("nopw 0x0(%%rax,%%rax,1)" : "+r"(result));
	return result;
}

PROBED long middle(long number)
{
	return probed(number + 1, "text") + 1;
}

PROBED long outer(long number)
{
	return middle(number + 1) + 1;
}

/* Calls `probed`. */
long through(long number, const char *text);
extern const char through_call[], through_return[];
__asm__(".text\n.balign 16\n.globl through\n.type through, @function\nthrough:\n.cfi_startproc\n"
	"	sub $8, %rsp\n"
	".cfi_def_cfa_offset 16\n"
	"through_call:\n	call probed\n"
	"	add $8, %rsp\n"
	".cfi_def_cfa_offset 8\n"
	"through_return:\n	ret\n"
	".cfi_endproc\n.size through, . - through\n");

static volatile long calls;

PROBED int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	calls++;
	return 0;
}

PROBED void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	calls++;
}

PROBED int entered(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	calls++;
	return 0;
}

PROBED int returned(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	calls++;
	return 0;
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	static struct capriole_probe probe = { .address = (void *)probed, .pre = pre };
	static struct capriole_return_probe call = { .entry = entered, .handler = returned };
	call.probe.address = (void *)middle;
	call.by_address = !strcmp(argv[1], "address");
	if (!strcmp(argv[1], "breakpoint"))
		probe.flags = CAPRIOLE_NO_OPTIMIZE;
	if (!strcmp(argv[1], "post")) {
		probe.pre = NULL;
		probe.post = post;
	}
	/* A call and a return, which have post-handlers. */
	int calls_through = !strcmp(argv[1], "call") || !strcmp(argv[1], "return");
	if (calls_through) {
		const char *at = strcmp(argv[1], "call") ? through_return : through_call;
		probe = (struct capriole_probe){ .address = (void *)(uintptr_t)at, .post = post };
	}
	/* `middle` is not left by a jump, so both ways are possible. */
	if (call.by_address || !strcmp(argv[1], "exits"))
		OK(capriole_return_probe_register(&call));
	OK(capriole_probe_register(&probe));
	IS(capriole_optimize(PATIENCE), 0);
	stop_on_sigterm();
	ready();
	/* After the signal, which comes when the debugger has gone, some more. */
	for (int left = 20; left > 0; left -= stop_asked) {
		if (calls_through)
			IS(through(5, "text"), 5 + 't');
		else
			IS(outer(1), 3 + 't' + 2);
		usleep(1000);
	}
	CHECK(calls);
	puts("ok");
	return 0;
}
