/*
 * samples/kprobes/kprobe_example.c of the Linux kernel, in user space: a line before and after each
 * execution of an instruction, here the first one of a function of the C library.
 *
 *   cc -O2 -g -o kprobe_example kprobe_example.c $(pkg-config --cflags --libs capriole)
 *   ./kprobe_example getppid
 */
#include <capriole/probe.h>
#include <stdio.h>
#include <unistd.h>

static struct capriole_probe kp = { .object = "libc", .symbol = "getppid" };

/* Called just before the probed instruction is executed. */
static int handler_pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	printf("<%s> p->address = %p, ip = %lx, flags = 0x%lx\n", p->symbol, p->address,
	       (unsigned long)regs->ip, (unsigned long)regs->flags);
	return 0;
}

/* Called after the probed instruction is executed. */
static void handler_post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	printf("<%s> p->address = %p, ip = %lx, flags = 0x%lx\n", p->symbol, p->address,
	       (unsigned long)regs->ip, (unsigned long)regs->flags);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		kp.symbol = argv[1];
	kp.pre = handler_pre;
	kp.post = handler_post;
	if (capriole_probe_register(&kp) < 0) {
		fprintf(stderr, "register_kprobe failed: %s\n", capriole_error());
		return 1;
	}
	printf("Planted kprobe at %p\n", kp.address);
	for (int i = 0; i < 2; i++)
		getppid();
	if (capriole_probe_unregister(&kp) < 0)
		return 1;
	printf("kprobe at %p unregistered\n", kp.address);
	getppid();
	return 0;
}
