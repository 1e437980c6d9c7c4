/* Probes in a program that its helper cannot stop: a filter of system calls forbids ptrace, or a debugger
 * is there. */
#include "probes.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Functions that begin with one instruction which has room for a jump, and with several. */
__attribute__((noinline, naked)) long one(long n)
{
	__asm__("movabs $1000, %rax; add %rdi, %rax; ret");
}

__attribute__((noinline, naked)) long several(long n)
{
	__asm__("push %rbx; mov %rdi, %rbx; lea 1(%rbx), %rax; pop %rbx; ret");
}

static long twice(long n)
{
	return 2 * n;
}

static volatile long hits_one, hits_several, returns, stop;

static int at_one(struct capriole_probe *probe, struct capriole_regs *regs)
{
	__atomic_fetch_add(&hits_one, 1, __ATOMIC_RELAXED);
	return 0;
}

static int at_several(struct capriole_probe *probe, struct capriole_regs *regs)
{
	__atomic_fetch_add(&hits_several, 1, __ATOMIC_RELAXED);
	return 0;
}

static int at_return(struct capriole_call *call, struct capriole_regs *regs)
{
	__atomic_fetch_add(&returns, 1, __ATOMIC_RELAXED);
	return 0;
}

static void *run(void *calls)
{
	while (!stop) {
		if (one(1) != 1001 || several(1) != 2)
			BAD("a wrong result");
		++*(long *)calls;
	}
	return NULL;
}

static void filter(unsigned action)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Forks a process that traces this one as a debugger does. */
static pid_t debugger(void)
{
	int ready[2];
	char byte;
	CHECK(pipe(ready) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		if (ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) == 0)
			byte = 'y';
		else
			byte = 'n';
		CHECK(write(ready[1], &byte, 1) == 1);
		for (;;) {
			int status;
			pid_t stopped = waitpid(-1, &status, __WALL);
			if (stopped < 0)
				_exit(0);
			if (WIFSTOPPED(status))
				ptrace(PTRACE_CONT, stopped, NULL, (void *)(long)WSTOPSIG(status));
		}
	}
	CHECK(read(ready[0], &byte, 1) == 1 && byte == 'y');
	return child;
}

#define THREADS 2

/* Uses probes of each kind while threads run through them. `why` is in the messages. */
static void use(const char *why)
{
	static long calls[THREADS];
	unsigned char before[2][16];
	pthread_t threads[THREADS];
	struct capriole_probe p = { .address = (void *)one, .pre = at_one };
	struct capriole_probe q = { .address = (void *)several, .pre = at_several };
	struct capriole_probe in_libc = { .object = "libc.so.6", .symbol = "getppid", .pre = at_one };
	struct capriole_probe *both[] = { &p, &q };
	memcpy(before[0], (void *)one, 16);
	memcpy(before[1], (void *)several, 16);
	OK(capriole_probes_register(both, 2));
	is_in_state(&p, CAPRIOLE_OPTIMIZED, "jump");
	is_in_state(&q, CAPRIOLE_WAITING, why);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, &calls[i]) == 0);
	/* Others come and go meanwhile. */
	struct capriole_probe other = { .address = (void *)one, .pre = at_several };
	struct capriole_return_probe r = { .probe = { .address = (void *)several }, .handler = at_return };
	struct capriole_return_probe by_address = r;
	by_address.by_address = 1;
	for (int i = 0; i < 20; i++) {
		OK(capriole_probe_register(&other));
		OK(capriole_return_probe_register(&r));
		OK(capriole_return_probe_register(&by_address));
		/* The threads may not run for a while. */
		for (long before = returns; i == 0 && returns < before + 10;)
			usleep(100);
		OK(capriole_probe_disable(&other));
		OK(capriole_return_probe_unregister(&r));
		OK(capriole_return_probe_unregister(&by_address));
		OK(capriole_probe_unregister(&other));
	}
	stop = 1;
	long all = 0;
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		all += calls[i];
	}
	IS(hits_one + p.missed, all);
	long more = hits_several;
	CHECK(more >= all);
	CHECK(returns > 0);
	IS(p.missed + q.missed, 0);
	/* The C library blocks SIGTRAP at times, so nothing but a stop is safe there. */
	int refused = capriole_probe_register(&in_libc);
	if (refused >= 0 || !strstr(capriole_error(), why))
		BAD("%d: %s", refused, capriole_error());
	OK(capriole_probe_disable(&q));
	several(1);
	IS(hits_several, more);
	OK(capriole_probe_enable(&q));
	several(1);
	IS(hits_several, more + 1);
	/* What leads to a function cannot be exchanged in one step then, so not both at a time. */
	OK(capriole_probe_unregister(&q));
	struct capriole_replacement replacement = {
		.probe = { .address = (void *)several }, .replacement = (void (*)(void))twice,
	};
	OK(capriole_replace(&replacement));
	IS(several(4), 8);
	OK(capriole_restore(&replacement));
	IS(several(4), 5);
	OK(capriole_probe_unregister(&p));
	hits_one = hits_several = 0;
	IS(one(2), 1002);
	IS(several(2), 3);
	IS(hits_one + hits_several, 0);
	CHECK(memcmp(before[0], (void *)one, 16) == 0);
	CHECK(memcmp(before[1], (void *)several, 16) == 0);
	/* Compiled events as well. */
	char text[4096] = { 0 };
	int event = capriole_event_enable(":one n=$arg1");
	OK(event);
	IS(one(77), 1077);
	int memory = memfd_create("records", 0);
	OK(capriole_event_read(memory));
	CHECK(pread(memory, text, sizeof text, 0) > 0 && strstr(text, "n=0x4d"));
	OK(capriole_event_disable(event));
	CHECK(memcmp(before[0], (void *)one, 16) == 0);
	FAILS(capriole_finish(), EPERM, why);
}

static void filtered(void)
{
	filter(SECCOMP_RET_ERRNO | EPERM);
	use("seccomp filter");
}

static void filtered_by_death(void)
{
	filter(SECCOMP_RET_KILL_PROCESS);
	use("seccomp filter");
}

static void filtered_by_signal(void)
{
	filter(SECCOMP_RET_TRAP);
	use("seccomp filter");
}

static void debugged(void)
{
	pid_t child = debugger();
	use("traced by");
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	/* Now it can be stopped. */
	struct capriole_probe q = { .address = (void *)several, .pre = at_several };
	OK(capriole_probe_register(&q));
	several(1);
	IS(hits_several, 1);
	OK(capriole_probe_unregister(&q));
	OK(capriole_finish());
}

/* A debugger that comes later. */
static void debugged_later(void)
{
	struct capriole_probe p = { .address = (void *)several, .pre = at_several };
	struct capriole_probe q = { .address = (void *)one, .pre = at_one };
	OK(capriole_probe_register(&p));
	optimize(&p);
	pid_t child = debugger();
	OK(capriole_probe_register(&q));
	OK(capriole_probe_disable(&p));
	IS(several(one(1)), 1002);
	IS(hits_one, 1);
	IS(hits_several, 0);
	OK(capriole_probe_enable(&p));
	IS(several(one(1)), 1002);
	IS(hits_several, 1);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	optimize(&p);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_unregister(&q));
	OK(capriole_finish());
}

/* A helper that has started before the filter does not have it. */
static void started_before(void)
{
	struct capriole_probe q = { .address = (void *)several, .pre = at_several };
	struct capriole_probe in_libc = { .object = "libc.so.6", .symbol = "getppid", .pre = at_one };
	OK(capriole_start());
	filter(SECCOMP_RET_KILL_PROCESS);
	OK(capriole_probe_register(&q));
	OK(capriole_probe_register(&in_libc));
	optimize(&q);
	several(1);
	getppid();
	IS(hits_several, 1);
	IS(hits_one, 1);
	OK(capriole_probe_unregister(&q));
	OK(capriole_probe_unregister(&in_libc));
	OK(capriole_finish());
}

/* A child has the probes of its parent, and no helper can take them out. */
static void forked(void)
{
	struct capriole_probe q = { .address = (void *)several, .pre = at_several };
	filter(SECCOMP_RET_ERRNO | EPERM);
	OK(capriole_probe_register(&q));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct capriole_probe p = { .address = (void *)one, .pre = at_one };
		several(1);
		IS(hits_several, 1);
		CHECK(capriole_probe_register(&p) < 0 && strstr(capriole_error(), "seccomp filter"));
		several(1);
		IS(hits_several, 2);
		_exit(42);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	several(1);
	IS(hits_several, 1);
	OK(capriole_probe_unregister(&q));
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "filtered", filtered },
		{ "filtered_by_death", filtered_by_death },
		{ "filtered_by_signal", filtered_by_signal },
		{ "debugged", debugged },
		{ "debugged_later", debugged_later },
		{ "started_before", started_before },
		{ "forked", forked },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
