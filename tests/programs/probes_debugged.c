/*
 * A program that probes itself and is debugged then: `probes_debugged jumps | breakpoints`. It goes on until
 * a debugger, or SIGTERM, sets `stop_asked`; then it checks its results. `probes_debugged left` is `jumps`, and
 * prints what left_by_debugger needs: `places PROBED INNER START END`.
 */
#include "probes.h"

PROBED long probed(long number, const char *text)
{
	long result = number + text[0];
	__asm__ volatile("nopw 0x0(%%rax,%%rax,1)" : "+r"(result));
	return result;
}

PROBED long inner(long number)
{
	long result = probed(number, "text");
	return 2 * result;
}

PROBED long outer(long number)
{
	long first = inner(number);
	long second = inner(number + 1);
	long result = first + second;
	return result;
}

extern char __executable_start[], etext[];

static volatile long hits, entries, returns, wrong;

PROBED int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	hits++;
	wrong += regs->si == 0;
	return 0;
}

/* Calls other code: the probe saves all registers, and the flags. */
PROBED int pre_calls(struct capriole_probe *p, struct capriole_regs *regs)
{
	CHECK(getppid() > 0);
	return pre(p, regs);
}

PROBED int entered(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	entries++;
	return 0;
}

PROBED int returned(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	returns++;
	return 0;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int jumps = strcmp(argv[1], "breakpoints");
	static struct capriole_probe probe = { .address = (void *)probed, .pre = pre };
	static struct capriole_return_probe call = { .entry = entered, .handler = returned };
	int left = !strcmp(argv[1], "left");
	if (left)
		probe.pre = pre_calls;
	call.probe.address = (void *)inner;
	probe.flags = jumps ? 0 : CAPRIOLE_NO_OPTIMIZE;
	OK(capriole_probe_register(&probe));
	OK(capriole_return_probe_register(&call));
	IS(capriole_optimize(PATIENCE), 0);
	stop_on_sigterm();
	ready();
	if (left) {
		printf("places %lx %lx %lx %lx\n", (unsigned long)probed, (unsigned long)inner,
		       (unsigned long)__executable_start, (unsigned long)etext);
		fflush(stdout);
	}
	long calls = 0;
	for (; !stop_asked; calls++) {
		IS(outer(calls), 4 * (calls + 't') + 2);
		usleep(1000);
	}
	IS(hits, 2 * calls);
	IS(entries, 2 * calls);
	IS(returns, 2 * calls);
	IS(wrong, 0);
	CHECK(calls);
	OK(capriole_probe_unregister(&probe));
	OK(capriole_return_probe_unregister(&call));
	IS(outer(1), 4 * (1 + 't') + 2);
	puts("ok");
	return 0;
}
