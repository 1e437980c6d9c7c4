/*
 * A program that probes itself on stacks of its own: of signals, of threads, of coroutines.
 */
#include "probes_add.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

/* Runs a check with a breakpoint, and with a jump. */
static void in_both(void (*check)(void))
{
	for (int jump = 0; jump < 2; jump++) {
		probe.flags = jump ? 0 : CAPRIOLE_NO_OPTIMIZE;
		OK(capriole_probe_register(&probe));
		if (jump)
			optimize(&probe);
		hits = 0;
		check();
		OK(capriole_probe_unregister(&probe));
	}
}

/* The size of a signal's frame. */
static size_t frame(void)
{
	size_t size = getauxval(AT_MINSIGSTKSZ);
	return size ? size : 2048;
}

/* A stack with memory below it that must not be written to, and a page that cannot be. */
static char *map_stack(size_t size)
{
	size_t whole = (size + 8191) & ~(size_t)4095;
	char *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && mprotect(memory, 4096, PROT_NONE) == 0);
	return memory + whole - size;
}

static void set_signal_stack(size_t size)
{
	stack_t stack = { .ss_sp = map_stack(size), .ss_size = size };
	CHECK(sigaltstack(&stack, NULL) == 0);
}

/* A stack for signals that is too small for any signal, and that nobody uses. */
static void *hit_with_useless_stack(void *argument)
{
	set_signal_stack(2048);
	for (int i = 0; i < 10; i++)
		IS(add(i, 1), i + 2);
	return argument;
}

static void in_thread(void *(*what)(void *), size_t size)
{
	pthread_attr_t attributes;
	pthread_t thread;
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, size) == 0);
	CHECK(pthread_create(&thread, &attributes, what, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void useless_stack(void)
{
	in_thread(hit_with_useless_stack, 1 << 20);
	IS(hits, 10);
}

static void useless_signal_stack(void)
{
	in_both(useless_stack);
}

/* The same, where the program has an action for SIGTRAP on that stack. */
static void on_trap(int signal)
{
	(void)signal;
	BAD("a breakpoint of the library's is the program's");
}

static void useless_signal_stack_for_traps(void)
{
	struct sigaction trap = { .sa_handler = on_trap, .sa_flags = SA_ONSTACK };
	CHECK(sigaction(SIGTRAP, &trap, NULL) == 0);
	/* A breakpoint needs a stack then that is large enough for a signal. */
	probe.flags = 0;
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	useless_stack();
	OK(capriole_probe_unregister(&probe));
}

static void on_signal(int signal)
{
	(void)signal;
	IS(add(5, 1), 7);
}

/* A handler of a signal, on a stack with room for that: a jump needs little more, a breakpoint another
 * frame. */
static void small_signal_stack(void)
{
	struct sigaction usr1 = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	CHECK(sigaction(SIGUSR1, &usr1, NULL) == 0);
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	set_signal_stack(frame() + 1024);
	for (int i = 0; i < 10; i++)
		raise(SIGUSR1);
	IS(hits, 10);
	OK(capriole_probe_unregister(&probe));
	probe.flags = CAPRIOLE_NO_OPTIMIZE;
	set_signal_stack(2 * frame() + 1536);
	OK(capriole_probe_register(&probe));
	for (int i = 0; i < 10; i++)
		raise(SIGUSR1);
	IS(hits, 20);
	OK(capriole_probe_unregister(&probe));
}

static void *hit(void *argument)
{
	for (int i = 0; i < 10; i++)
		IS(add(i, 1), i + 2);
	return argument;
}

static void least(void)
{
	/* With large vector registers it is more than PTHREAD_STACK_MIN. */
	for (int i = 0; i < 5; i++)
		in_thread(hit, (size_t)sysconf(_SC_THREAD_STACK_MIN));
	IS(hits, 50);
}

static void small_thread_stacks(void)
{
	in_both(least);
}

/* Vector registers are not saved on the stack. */
static void small_thread_stacks_and_vectors(void)
{
	probe.flags = CAPRIOLE_SAVE_VECTOR;
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	least();
	OK(capriole_probe_unregister(&probe));
}

/* Coroutines: calls on several stacks of a thread are open at a time, and end in any order. */
#define COROUTINES 6
static ucontext_t whole, parts[COROUTINES];
static int turn;

PROBED long nested(long number)
{
	/* Each is suspended in the middle of a call. */
	CHECK(swapcontext(&parts[number], &whole) == 0);
	long result = add(number, 10);
	__asm__ volatile("" : "+r"(result));
	return result;
}

static void run(void)
{
	long number = turn;
	IS(nested(number), number + 20);
}

static long entries, returns;

static int enter(struct capriole_call *call, struct capriole_regs *regs)
{
	*(long *)call->data = (long)regs->di;
	entries++;
	return 0;
}

static int leave(struct capriole_call *call, struct capriole_regs *regs)
{
	IS(regs->ax, *(long *)call->data + 20);
	returns++;
	return 0;
}

static void run_all(void)
{
	static const int order[COROUTINES] = { 3, 0, 5, 1, 4, 2 };
	static char *stacks[COROUTINES];
	for (volatile int i = 0; i < COROUTINES; i++) {
		if (!stacks[i])
			stacks[i] = map_stack(32 << 10);
		CHECK(getcontext(&parts[i]) == 0);
		parts[i].uc_stack.ss_sp = stacks[i];
		parts[i].uc_stack.ss_size = 32 << 10;
		parts[i].uc_link = &whole;
		makecontext(&parts[i], run, 0);
		turn = i;
		CHECK(swapcontext(&whole, &parts[i]) == 0);
	}
	for (int i = 0; i < COROUTINES; i++)
		CHECK(swapcontext(&whole, &parts[order[i]]) == 0);
}

static void check_coroutines(void)
{
	run_all();
	IS(hits, COROUTINES);
}

static void coroutines(void)
{
	in_both(check_coroutines);
}

static void returns_of_coroutines(void)
{
	static struct capriole_return_probe calls = {
		.probe = { .symbol = "nested" }, .entry = enter, .handler = leave, .data_size = 8, .by_address = 1,
	};
	for (int jump = 0; jump < 2; jump++) {
		calls.probe.flags = jump ? 0 : CAPRIOLE_NO_OPTIMIZE;
		calls.probe.address = NULL;
		OK(capriole_return_probe_register(&calls));
		if (jump)
			IS(capriole_optimize(PATIENCE), 0);
		entries = returns = 0;
		for (int round = 0; round < 20; round++)
			run_all();
		IS(entries, 20 * COROUTINES);
		IS(returns, 20 * COROUTINES);
		IS(calls.missed, 0);
		OK(capriole_return_probe_unregister(&calls));
		run_all();
		IS(returns, 20 * COROUTINES);
	}
}

/* By exits, calls are told apart by where they are on the stack; those of coroutines whose stacks are
 * close to each other may be lost, but none is taken for another one. */
static void exits_of_coroutines(void)
{
	static struct capriole_return_probe calls = {
		.probe = { .symbol = "nested" }, .entry = enter, .handler = leave, .data_size = 8,
	};
	OK(capriole_return_probe_register(&calls));
	for (int round = 0; round < 20; round++)
		run_all();
	IS(entries, 20 * COROUTINES);
	IS(returns, entries);
	IS(calls.missed, 0);
	OK(capriole_return_probe_unregister(&calls));
}

int main(int argc, char **argv)
{
	static const struct part list[] = {
		{ "useless_signal_stack", useless_signal_stack },
		{ "useless_signal_stack_for_traps", useless_signal_stack_for_traps },
		{ "small_signal_stack", small_signal_stack },
		{ "small_thread_stacks", small_thread_stacks },
		{ "small_thread_stacks_and_vectors", small_thread_stacks_and_vectors },
		{ "coroutines", coroutines },
		{ "returns_of_coroutines", returns_of_coroutines },
		{ "exits_of_coroutines", exits_of_coroutines },
		{ NULL, NULL },
	};
	return run_parts(list, argc, argv);
}
