/*
 * samples/kprobes/kretprobe_example.c of the Linux kernel, in user space: what a function returns,
 * and how long it takes. The entry handler leaves the time in the call's own data.
 *
 *   cc -O2 -g -o kretprobe_example kretprobe_example.c $(pkg-config --cflags --libs capriole)
 */
#include <capriole/probe.h>
#include <stdio.h>
#include <time.h>

/* Per-call private data. */
struct my_data {
	struct timespec entry_stamp;
};

/* The program's own function: calls itself, so that several calls are open at a time. */
__attribute__((noinline, noclone)) long fibonacci(long n)
{
	long (*volatile self)(long) = fibonacci;
	return n < 2 ? n : self(n - 1) + self(n - 2);
}

static int entry_handler(struct capriole_call *ri, struct capriole_regs *regs)
{
	struct my_data *data = ri->data;
	if (regs->di < 3)
		return 1; /* Skip small ones. */
	clock_gettime(CLOCK_MONOTONIC, &data->entry_stamp);
	return 0;
}

/* Called when a call returns whose entry handler has returned 0. */
static int ret_handler(struct capriole_call *ri, struct capriole_regs *regs)
{
	struct my_data *data = ri->data;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	long delta = (now.tv_sec - data->entry_stamp.tv_sec) * 1000000000L +
		     now.tv_nsec - data->entry_stamp.tv_nsec;
	printf("%s returned %lu and took %ld ns to execute\n", ri->probe->probe.symbol,
	       (unsigned long)regs->ax, delta);
	return 0;
}

static struct capriole_return_probe my_kretprobe = {
	.probe.symbol = "fibonacci",
	.handler = ret_handler,
	.entry = entry_handler,
	.data_size = sizeof(struct my_data),
	/* Up to 20 calls are followed at a time. */
	.max_active = 20,
};

int main(void)
{
	if (capriole_return_probe_register(&my_kretprobe) < 0) {
		fprintf(stderr, "register_kretprobe failed: %s\n", capriole_error());
		return 1;
	}
	printf("Planted return probe at %s: %p\n", my_kretprobe.probe.symbol, my_kretprobe.probe.address);
	fibonacci(5);
	capriole_return_probe_unregister(&my_kretprobe);
	printf("kretprobe at %p unregistered\n", my_kretprobe.probe.address);
	/* Nonzero missed suggests that max_active was set too low. */
	printf("Missed probing %lu instances of %s\n", my_kretprobe.missed, my_kretprobe.probe.symbol);
	return 0;
}
