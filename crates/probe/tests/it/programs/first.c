/* A program that probes itself: a function of its own and one of the C library's. */
#include <capriole/probe.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long hits, words;

static CAPRIOLE_HANDLER int hit(struct capriole_probe *probe, struct capriole_regs *regs)
{
	*(unsigned long *)probe->data += regs->di;
	return 0;
}

__attribute__((noinline)) long work(long number)
{
	__asm__ volatile("" : "+r"(number) : : "memory");
	return 3 * number + 1;
}

static void must(int result)
{
	if (result >= 0)
		return;
	fprintf(stderr, "error %d: %s\n", -result, capriole_error());
	exit(1);
}

int main(void)
{
	static struct capriole_probe of_work = { .symbol = "work", .pre = hit, .data = &hits };
	static struct capriole_probe of_abs = { .pre = hit, .data = &words };
	char why[256];
	long (*volatile absolute)(long) = labs;
	long sum = 0;

	of_abs.address = (void *)labs;
	must(capriole_probe_register(&of_work));
	must(capriole_probe_register(&of_abs));
	for (long i = 0; i < 10; i++)
		sum += work(i);
	sum += absolute(7);
	must(capriole_optimize(20000));
	must(capriole_probe_status(&of_work, why, sizeof why));
	must(capriole_list(1));
	sum += work(100);
	must(capriole_probe_unregister(&of_work));
	must(capriole_probe_unregister(&of_abs));
	sum += work(1000);
	must(capriole_finish());
	printf("hits %lu words %lu sum %ld: %s\n", hits, words, sum, why);
	return 0;
}
