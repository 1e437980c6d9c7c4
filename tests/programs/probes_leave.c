/*
 * A program with probes of its own that does what no probe may be in it for.
 *
 *   probes_leave thread_pointer | clock
 *
 * It gives itself thread-local storage of its own for a while, or gives up the time stamp counter. Before that
 * all probes are taken out, and after capriole_finish() there can be some again.
 */
#include "own_storage.h"
#include "probes.h"

#include <sys/prctl.h>

#define SET_FS 0x1002
#define GET_FS 0x1003

#ifdef UNGUARDED
/* A call that nobody makes, and that no guard can be put before: it might set a thread pointer. So the recorder's code
 * reads nothing at thread pointers, but the library does. */
__attribute__((used, noipa)) static void never(long *number)
{
	__asm__ volatile("jmp 2f\n\tnop\n2:\tmov (%0), %%rax\n3:\tsyscall\n\tmov (%0), %%rax\n\tjmp 3b"
			 : : "r"(number) : "rax", "rcx", "r11", "memory");
}
#endif

static volatile long arch_prctl_number = SYS_arch_prctl;
static volatile uint64_t hits;

CAPRIOLE_HANDLER static int count(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	hits++;
	return 0;
}

static struct capriole_probe probe = { .symbol = "work", .pre = count };

__attribute__((optimize("no-stack-protector"))) static void moves(void)
{
	void *own;
	CHECK(!syscall(arch_prctl_number, GET_FS, &own));
	syscall(arch_prctl_number, SET_FS, storage);
	works();
	syscall(arch_prctl_number, SET_FS, own);
}

static void probed(void)
{
	uint64_t before = hits;
	OK(capriole_probe_register(&probe));
	OK(capriole_event_enable(":work n=$arg2"));
	works();
	IS(hits - before, CALLS);
}

int main(int argc, char **argv)
{
	char why[200];
	prepare();
	CHECK(argc > 1);
	probed();
	if (!strcmp(argv[1], "thread_pointer")) {
		moves();
		look();
	} else {
		CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
		works();
		CHECK(!prctl(PR_SET_TSC, PR_TSC_ENABLE));
	}
	IS(hits, CALLS);
	IS(capriole_probe_status(&probe, why, sizeof why), CAPRIOLE_GONE);
	if (!strstr(why, argv[1][0] == 't' ? "thread pointer" : "no clock"))
		BAD("%s", why);
	OK(capriole_probe_unregister(&probe));
	OK(capriole_finish());
	probed();
	OK(capriole_probe_unregister(&probe));
	OK(capriole_finish());
	puts("ok");
	return 0;
}
