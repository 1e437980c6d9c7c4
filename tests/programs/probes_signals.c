/* Probes in a program that sets actions of its own, of SIGTRAP and for faults. */
#include "probes.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

PROBED long work(long n)
{
	return n + 1;
}

static volatile long hits, own_traps, stop;

static int at_work(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	__atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
	return 0;
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)info, (void)context;
	CHECK(signal == SIGTRAP);
	own_traps++;
}

static void other_handler(int signal)
{
	CHECK(signal == SIGTRAP);
	own_traps += 1000;
}

static void *run(void *calls)
{
	while (!stop) {
		CHECK(work(1) == 2);
		++*(long *)calls;
	}
	return NULL;
}

static struct capriole_probe probe = { .address = (void *)work, .pre = at_work, .flags = CAPRIOLE_NO_OPTIMIZE };

static void is_hit(void)
{
	long before = hits;
	IS(work(5), 6);
	IS(hits, before + 1);
}

/* All actions that a program may set, each after the breakpoint. */
static void actions(void)
{
	struct sigaction own = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_ONSTACK }, old;
	char room[64 << 10];
	stack_t stack = { .ss_sp = room, .ss_size = sizeof room };
	CHECK(sigaltstack(&stack, NULL) == 0);
	sigaddset(&own.sa_mask, SIGUSR2);
	OK(capriole_probe_register(&probe));
	is_in_state(&probe, CAPRIOLE_BREAKPOINT, "");
	is_hit();
	CHECK(sigaction(SIGTRAP, &own, &old) == 0);
	CHECK(old.sa_handler == SIG_DFL);
	is_hit();
	IS(own_traps, 0);
	CHECK(raise(SIGTRAP) == 0);
	IS(own_traps, 1);
	__asm__ volatile("int3");
	IS(own_traps, 2);
	is_hit();
	CHECK(sigaction(SIGTRAP, NULL, &old) == 0);
	CHECK(old.sa_sigaction == on_trap && old.sa_flags & SA_ONSTACK && sigismember(&old.sa_mask, SIGUSR2));
	/* Another one. */
	CHECK(signal(SIGTRAP, other_handler) == (void (*)(int))on_trap);
	is_hit();
	CHECK(raise(SIGTRAP) == 0);
	IS(own_traps, 1002);
	CHECK(signal(SIGTRAP, SIG_IGN) == other_handler);
	is_hit();
	CHECK(raise(SIGTRAP) == 0);
	is_hit();
	/* Who starts programs resets actions in a child that has the same memory. */
	extern char **environ;
	char *words[] = { "true", NULL };
	posix_spawnattr_t attributes;
	sigset_t all;
	sigfillset(&all);
	CHECK(posix_spawnattr_init(&attributes) == 0);
	CHECK(posix_spawnattr_setsigdefault(&attributes, &all) == 0);
	CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF) == 0);
	pid_t child;
	int status;
	CHECK(posix_spawnp(&child, "true", NULL, &attributes, words, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	is_hit();
	CHECK(raise(SIGTRAP) == 0);
	CHECK(signal(SIGTRAP, SIG_DFL) == SIG_IGN);
	is_hit();
	child = fork();
	if (child == 0) {
		raise(SIGTRAP);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP);
	is_hit();
	CHECK(sigaction(SIGTRAP, &own, NULL) == 0);
	is_hit();
	OK(capriole_probe_unregister(&probe));
	OK(capriole_finish());
	/* Its last one is there. */
	long before = own_traps;
	CHECK(raise(SIGTRAP) == 0);
	IS(own_traps, before + 1);
	CHECK(sigaction(SIGTRAP, NULL, &old) == 0);
	CHECK(old.sa_sigaction == on_trap && old.sa_flags & SA_ONSTACK && sigismember(&old.sa_mask, SIGUSR2));
}

/* A handler is set once while threads hit the breakpoint: a hit in the middle would come to it. */
static void meanwhile(void)
{
	pthread_t threads[2];
	long calls[2] = { 0 };
	OK(capriole_probe_register(&probe));
	CHECK(sigaction(SIGTRAP, &(struct sigaction){ .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO }, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, run, &calls[i]) == 0);
	for (int i = 0; i < 2000; i++)
		CHECK(sigaction(SIGTRAP, NULL, &(struct sigaction){ 0 }) == 0);
	stop = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	IS(hits + (long)probe.missed, calls[0] + calls[1]);
	IS(own_traps, 0);
	OK(capriole_probe_unregister(&probe));
}

/* Functions that fault at their first instruction, of 3 bytes. */
#define FAULTING 40
#define FAULTING_BYTES 16
extern const char faulting[];
__asm__(".pushsection .text\n.macro faulting_one\n.balign 16\n.type faulting_\\@, @function\nfaulting_\\@:\n"
	"	mov (%rdi), %rax\n	nop\n	nop\n	ret\n"
	".size faulting_\\@, . - faulting_\\@\n.endm\n"
	".balign 16\n.globl faulting\nfaulting:\n.rept 40\nfaulting_one\n.endr\n.popsection\n");

static volatile uint64_t fault;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	(void)info;
	CHECK(signal == SIGSEGV);
	fault = (uint64_t)registers[REG_RIP];
	registers[REG_RIP] += 3;
	registers[REG_RAX] = 77;
}

/* The program's handler sees the faults of displaced instructions where these were, and goes on behind
 * them, whether their probes were added with others or one by one. */
static void faults(void)
{
	static struct capriole_probe probes[FAULTING], *list[FAULTING];
	struct sigaction own = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	CHECK(sigaction(SIGSEGV, &own, NULL) == 0);
	for (int i = 0; i < FAULTING; i++) {
		probes[i].address = (void *)(uintptr_t)(faulting + FAULTING_BYTES * i);
		probes[i].pre = at_work;
		list[i] = &probes[i];
	}
	OK(capriole_probes_register(list, FAULTING / 2));
	for (int i = FAULTING / 2; i < FAULTING; i++)
		OK(capriole_probe_register(list[i]));
	for (int jump = 0; jump < 2; jump++) {
		for (int i = 0; i < FAULTING; i++) {
			long (*function)(long *) = (long (*)(long *))(uintptr_t)probes[i].address;
			fault = 0;
			IS(function(NULL), 77);
			IS(fault, probes[i].address);
			IS(hits, FAULTING * jump + i + 1);
		}
		for (int i = 0; i < FAULTING; i++)
			optimize(&probes[i]);
	}
	OK(capriole_probes_unregister(list, FAULTING));
}

static struct sigaction chained;
static volatile long chains;

/* Calls the handler that was there before. */
static void chain(int signal, siginfo_t *info, void *context)
{
	chains++;
	chained.sa_sigaction(signal, info, context);
}

static int at_fault(struct capriole_probe *probe, struct capriole_regs *regs, int signal)
{
	(void)probe, (void)regs, (void)signal;
	return 0;
}

static void faults_at(struct capriole_probe *probe)
{
	long (*function)(long *) = (long (*)(long *))(uintptr_t)probe->address;
	long before = hits;
	fault = 0;
	IS(function(NULL), 77);
	IS(fault, probe->address);
	IS(hits, before + 1);
}

/* So do handlers that it sets after the registration: its first one, the next ones, one that stands before
 * or behind the library's own, and calls the one before. */
static void faults_later(void)
{
	static struct capriole_probe probes[2];
	struct sigaction own = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, old;
	struct sigaction chaining = { .sa_sigaction = chain, .sa_flags = SA_SIGINFO | SA_NODEFER };
	for (int i = 0; i < 2; i++) {
		probes[i].address = (void *)(uintptr_t)(faulting + FAULTING_BYTES * i);
		probes[i].pre = at_work;
		OK(capriole_probe_register(&probes[i]));
		if (i)
			optimize(&probes[i]);
	}
	for (int round = 0; round < 3; round++) {
		CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
		CHECK(sigaction(SIGSEGV, &own, &old) == 0);
		CHECK(old.sa_handler == SIG_DFL);
		for (int i = 0; i < 2; i++)
			faults_at(&probes[i]);
		CHECK(sigaction(SIGSEGV, &chaining, &chained) == 0);
		CHECK(chained.sa_sigaction == on_fault && chained.sa_flags & SA_SIGINFO);
		for (int i = 0; i < 2; i++)
			faults_at(&probes[i]);
		IS(chains, 2 * round + 2);
		CHECK(sigaction(SIGSEGV, &own, &old) == 0);
		CHECK(old.sa_sigaction == chain && old.sa_flags & SA_NODEFER);
	}
	/* The library puts one of its own before the program's. */
	struct capriole_probe watched = { .address = (void *)work, .pre = at_work, .fault = at_fault };
	OK(capriole_probe_register(&watched));
	IS(work(5), 6);
	for (int i = 0; i < 2; i++)
		faults_at(&probes[i]);
	CHECK(sigaction(SIGSEGV, &chaining, &chained) == 0);
	CHECK(chained.sa_sigaction != on_fault);
	long before = chains;
	for (int i = 0; i < 2; i++)
		faults_at(&probes[i]);
	IS(chains, before + 2);
	CHECK(sigaction(SIGSEGV, &chained, NULL) == 0);
	pid_t child = fork();
	if (!child) {
		CHECK(sigaction(SIGSEGV, &own, NULL) == 0);
		for (int i = 0; i < 2; i++)
			faults_at(&probes[i]);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && !status);
	for (int i = 0; i < 2; i++) {
		faults_at(&probes[i]);
		OK(capriole_probe_unregister(&probes[i]));
	}
	OK(capriole_probe_unregister(&watched));
	OK(capriole_finish());
	CHECK(sigaction(SIGSEGV, NULL, &old) == 0);
	CHECK(old.sa_sigaction == on_fault);
	fault = 0;
	IS(((long (*)(long *))(uintptr_t)probes[0].address)(NULL), 77);
	IS(fault, probes[0].address);
}

static inline void check_alignment(int checks)
{
	if (checks)
		__asm__ volatile("sub $128, %%rsp; pushfq; orl $0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
	else
		__asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x40000, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
}

/* At an address that is no multiple of 8. */
static char words[32] __attribute__((aligned(8)));
static volatile long read_words;

static void reads(void)
{
	read_words += *(volatile long *)(words + 1);
}

static int reads_before(struct capriole_probe *p, struct capriole_regs *regs)
{
	CHECK(regs->flags & 0x40000);
	reads();
	return at_work(p, regs);
}

static void reads_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	reads();
}

static int reads_at_return(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call;
	CHECK(regs->flags & 0x40000);
	reads();
	return 0;
}

/* A thread has its accesses checked for alignment; handlers have not, but for those that only read registers. */
static void alignment(void)
{
	for (int kind = 0; kind < 6; kind++) {
		struct capriole_probe p = {
			.address = (void *)work, .pre = reads_before,
			.flags = kind & 1 ? CAPRIOLE_NO_OPTIMIZE : 0, .post = kind & 2 ? reads_after : NULL,
		};
		struct capriole_return_probe r = {
			.probe.address = (void *)work, .handler = reads_at_return, .by_address = kind == 5,
		};
		long before = hits, read;
		words[1] = 1;
		OK(capriole_probe_register(&p));
		if (kind >= 4)
			OK(capriole_return_probe_register(&r));
		read = read_words;
		for (int n = 0; n < 100; n++) {
			check_alignment(1);
			long result = work(n);
			check_alignment(0);
			IS(result, n + 1);
		}
		IS(hits, before + 100);
		IS(read_words - read, 100 * (1 + !!(kind & 2) + (kind >= 4)));
		if (kind >= 4)
			OK(capriole_return_probe_unregister(&r));
		OK(capriole_probe_unregister(&p));
	}
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "alignment", alignment },
		{ "actions", actions },
		{ "meanwhile", meanwhile },
		{ "faults", faults },
		{ "faults_later", faults_later },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
