/*
 * A program that follows calls of its own functions to their ends: by probes at the exits, and by
 * return addresses.
 */
#include "probes.h"

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <ucontext.h>

#define AT(function) .probe = { .address = (void *)(function) }

PROBED long add(long a, long b)
{
	return a + 2 * b;
}

PROBED long sum_to(long n)
{
	if (n <= 0)
		return 0;
	long rest = sum_to(n - 1);
	__asm__ volatile("" : "+r"(rest)); /* no loop of it */
	return n + rest;
}

/* Several exits. */
PROBED long sign(long n)
{
	if (n < 0)
		return -add(n, 0) - 10;
	if (n == 0)
		return add(7, 7) + 1;
	long one = add(1, n & 1);
	__asm__ volatile("" : "+r"(one)); /* no jump to it */
	return one;
}

/* It leaves by a jump to another function. */
PROBED long leaves(long n)
{
	return add(n, n);
}

PROBED double half(double x)
{
	return x * 0.5;
}

static volatile long entries, returns;

struct data {
	uint64_t sp, argument, check;
};

static int on_entry(struct capriole_call *call, struct capriole_regs *regs)
{
	struct data *data = call->data;
	CHECK(call->sp == regs->sp && *(uint64_t *)regs->sp != 0);
	CHECK(call->return_address == *(uint64_t *)regs->sp);
	data->sp = regs->sp;
	data->argument = regs->di;
	data->check = mix(regs->di ^ regs->sp);
	__atomic_fetch_add(&entries, 1, __ATOMIC_RELAXED);
	return 0;
}

static void check_data(struct capriole_call *call, struct capriole_regs *regs)
{
	struct data *data = call->data;
	if (data->sp != call->sp || data->check != mix(data->argument ^ data->sp))
		BAD("the data of a call is that of another one");
	if (regs->ip != call->return_address || regs->sp != call->sp + 8)
		BAD("at a return, ip is %lx, not %lx; sp %lx, not %lx", regs->ip, call->return_address,
		    regs->sp, call->sp + 8);
	__atomic_fetch_add(&returns, 1, __ATOMIC_RELAXED);
}

static int on_sum(struct capriole_call *call, struct capriole_regs *regs)
{
	struct data *data = call->data;
	check_data(call, regs);
	long n = (long)data->argument;
	if ((long)regs->ax != (n <= 0 ? 0 : n * (n + 1) / 2))
		BAD("sum_to(%ld) returns %ld", n, (long)regs->ax);
	return 0;
}

static int on_return(struct capriole_call *call, struct capriole_regs *regs)
{
	check_data(call, regs);
	return 0;
}

static int changes_result(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call;
	regs->ax += 1000;
	return 0;
}

static int changes_argument(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call;
	regs->di = 20;
	return 0;
}

static int not_wanted(struct capriole_call *call, struct capriole_regs *regs)
{
	on_entry(call, regs);
	return regs->di % 2 == 0;
}

static unsigned by_address;

/* Each part runs in both ways. */
#define IN_BOTH(name) \
	static void name##_once(void); \
	static void name(void) \
	{ \
		for (by_address = 0; by_address < 2; by_address++) { \
			printf("%s\n", by_address ? "by address" : "by exits"); \
			fflush(stdout); \
			entries = returns = 0; \
			name##_once(); \
		} \
	} \
	static void name##_once(void)

#define FOLLOWS(function, on_entry_, on_return_) \
	{ \
		AT(function), .entry = on_entry_, .handler = on_return_, \
		.data_size = sizeof(struct data), .by_address = by_address \
	}

IN_BOTH(values)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, on_entry, on_sum);
	struct capriole_return_probe q = FOLLOWS(sign, NULL, changes_result);
	struct capriole_return_probe r = FOLLOWS(add, changes_argument, changes_result);
	OK(capriole_return_probe_register(&p));
	FAILS(capriole_return_probe_register(&p), EBUSY, "already");
	for (long n = 0; n < 50; n++)
		IS(sum_to(n), n * (n + 1) / 2);
	IS(capriole_optimize(PATIENCE), 0);
	for (long n = 0; n < 50; n++)
		IS(sum_to(n), n * (n + 1) / 2);
	IS(entries, 2 * 50 * 51 / 2);
	IS(returns, entries);
	IS(p.missed, 0);
	OK(capriole_return_probe_unregister(&p));
	FAILS(capriole_return_probe_unregister(&p), EINVAL, "not registered");
	IS(sum_to(9), 45);
	IS(returns, entries);
	/* All exits. */
	OK(capriole_return_probe_register(&q));
	IS(sign(-5), 995);
	IS(sign(5), 1003);
	IS(sign(4), 1001);
	IS(sign(0), 1022);
	OK(capriole_return_probe_register(&r));
	IS(add(1, 2), 1024);
	IS(sign(5), 1000 + 1000 + 20 + 2);
	OK(capriole_return_probe_unregister(&q));
	IS(sign(5), 1000 + 20 + 2);
	OK(capriole_return_probe_unregister(&r));
	IS(sign(5), 3);
}

/* Vector registers hold results. */
static int uses_vectors(struct capriole_call *call, struct capriole_regs *regs)
{
	volatile double x = (double)regs->ax;
	x *= 3;
	*(double *)call->data = x;
	returns++;
	return 0;
}

IN_BOTH(doubles)
{
	struct capriole_return_probe p = FOLLOWS(half, uses_vectors, uses_vectors);
	OK(capriole_return_probe_register(&p));
	for (int i = 0; i < 100; i++)
		CHECK(half(i) == i / 2.0);
	IS(returns, 200);
	OK(capriole_return_probe_unregister(&p));
}

IN_BOTH(not_followed)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, not_wanted, on_sum);
	OK(capriole_return_probe_register(&p));
	IS(sum_to(20), 210);
	IS(entries, 21);
	IS(returns, 10);
	IS(p.missed, 0);
	OK(capriole_return_probe_unregister(&p));
}

IN_BOTH(several)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, on_entry, on_sum);
	struct capriole_return_probe q = FOLLOWS(sum_to, on_entry, on_return);
	struct capriole_return_probe other = FOLLOWS(sum_to, on_entry, on_return);
	other.by_address = !by_address;
	OK(capriole_return_probe_register(&p));
	OK(capriole_return_probe_register(&q));
	for (int i = 1; i < 20; i++) {
		IS(sum_to(20), 210);
		IS(returns, 42 * i);
	}
	entries = returns = 0;
	OK(capriole_return_probe_register(&other));
	for (int i = 1; i < 20; i++) {
		IS(sum_to(20), 210);
		IS(returns, 63 * i);
	}
	OK(capriole_return_probe_unregister(&p));
	entries = returns = 0;
	IS(sum_to(20), 210);
	IS(returns, 42);
	IS(p.missed + q.missed + other.missed, 0);
	OK(capriole_return_probe_unregister(&other));
	OK(capriole_return_probe_unregister(&q));
}

/* Only the return address can be replaced. */
IN_BOTH(tail_call)
{
	struct capriole_return_probe p = FOLLOWS(leaves, on_entry, changes_result);
	if (!by_address) {
		FAILS(capriole_return_probe_register(&p), EOPNOTSUPP, "set by_address");
		return;
	}
	OK(capriole_return_probe_register(&p));
	IS(leaves(3), 1009);
	OK(capriole_return_probe_unregister(&p));
	IS(leaves(3), 9);
}

/* Functions that end by a call of the other one, which is a jump. */
PROBED long odd_steps(long n);
PROBED long even_steps(long n)
{
	__asm__ volatile("" : : : "memory");
	return n <= 0 ? add(n, 7) : odd_steps(n - 1);
}

PROBED long odd_steps(long n)
{
	__asm__ volatile("" : : : "memory");
	return n <= 0 ? add(n, 8) : even_steps(n - 1);
}

PROBED long steps_to_itself(long n);
static long (*volatile itself_not_as_a_loop)(long) = steps_to_itself;
PROBED long steps_to_itself(long n)
{
	__asm__ volatile("" : : : "memory");
	return n <= 0 ? add(n, 9) : itself_not_as_a_loop(n - 1);
}

/* It has an exit, which may be followed by a probe there. */
PROBED long steps_in_a_loop(long n)
{
	long all = 0;
	for (long i = 0; i <= n; i++) {
		__asm__ volatile("" : "+r"(all));
		all++;
	}
	return all;
}

PROBED long jumps_to_loop(long n)
{
	__asm__ volatile("" : : : "memory");
	return steps_in_a_loop(n + 1);
}

static int on_steps(struct capriole_call *call, struct capriole_regs *regs)
{
	check_data(call, regs);
	IS(regs->ax, 14); /* all calls have the result of the last one */
	return 0;
}

/* Each call that is entered by a jump is followed to the end that all of them have. */
static void tail_calls(void)
{
	by_address = 1;
	struct capriole_return_probe even = FOLLOWS(even_steps, on_entry, on_steps);
	struct capriole_return_probe odd = FOLLOWS(odd_steps, on_entry, on_steps);
	struct capriole_return_probe again = FOLLOWS(even_steps, on_entry, on_steps);
	struct capriole_return_probe itself = FOLLOWS(steps_to_itself, on_entry, on_return);
	struct capriole_return_probe jumps_on = FOLLOWS(jumps_to_loop, on_entry, on_return);
	struct capriole_return_probe loop = FOLLOWS(steps_in_a_loop, on_entry, on_return);
	OK(capriole_return_probe_register(&even));
	OK(capriole_return_probe_register(&odd));
	for (int i = 0; i < 2; i++) {
		entries = returns = 0;
		for (long n = 0; n < 40; n += 2) {
			IS(even_steps(n), 14);
			IS(entries, (n + 2) * (n + 2) / 4);
			IS(returns, entries);
		}
		IS(capriole_optimize(PATIENCE), 0);
	}
	/* One of two, and both at one function. */
	OK(capriole_return_probe_register(&again));
	entries = returns = 0;
	IS(even_steps(4), 14);
	IS(entries, 8);
	IS(returns, 8);
	OK(capriole_return_probe_unregister(&odd));
	IS(even_steps(4), 14);
	IS(returns, 14);
	OK(capriole_return_probe_unregister(&again));
	/* More than there is room for: each of these is entered, or missed. */
	entries = returns = 0;
	even.missed = 0;
	OK(capriole_return_probe_register(&odd));
	IS(even_steps(2000000), 14);
	IS(entries + (long)even.missed + (long)odd.missed, 2000001);
	IS(returns, entries);
	CHECK(even.missed && entries);
	printf("%ld followed, %lu and %lu missed\n", entries, even.missed, odd.missed);
	IS(even_steps(4), 14);
	OK(capriole_return_probe_unregister(&even));
	OK(capriole_return_probe_unregister(&odd));
	/* Itself. */
	entries = returns = 0;
	OK(capriole_return_probe_register(&itself));
	IS(steps_to_itself(9), 18);
	IS(entries, 10);
	IS(returns, 10);
	OK(capriole_return_probe_unregister(&itself));
	/* The last one by its exits. */
	loop.by_address = 0;
	for (int i = 0; i < 2; i++) {
		entries = returns = 0;
		OK(capriole_return_probe_register(i ? &jumps_on : &loop));
		OK(capriole_return_probe_register(i ? &loop : &jumps_on));
		for (long n = 1; n < 20; n++) {
			IS(jumps_to_loop(n), n + 2);
			IS(entries, 2 * n);
			IS(returns, 2 * n);
		}
		IS(loop.missed + jumps_on.missed, 0);
		OK(capriole_return_probe_unregister(&loop));
		OK(capriole_return_probe_unregister(&jumps_on));
	}
}

IN_BOTH(limited)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, on_entry, on_sum);
	p.max_active = 5;
	OK(capriole_return_probe_register(&p));
	IS(sum_to(19), 190); /* twenty calls, one inside the other */
	IS(entries, 5);
	IS(returns, 5);
	IS(p.missed, 15);
	IS(sum_to(19), 190);
	IS(returns, 10);
	IS(p.missed, 30);
	OK(capriole_return_probe_unregister(&p));
}

/* More calls than there is room for. */
IN_BOTH(deep)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, on_entry, on_sum);
	OK(capriole_return_probe_register(&p));
	for (int i = 0; i < 3; i++) {
		IS(sum_to(20000), 20000l * 20001 / 2);
		IS(returns + (long)p.missed, 20001 * (i + 1));
		IS(entries, returns);
		CHECK(p.missed);
	}
	printf("%ld followed, %lu missed\n", returns, p.missed);
	OK(capriole_return_probe_unregister(&p));
}

/* Calls that are left by longjmp. */
static jmp_buf to;

PROBED long jumps(long n)
{
	if (n <= 0)
		longjmp(to, 1);
	long rest = n == 1000 ? 1 : jumps(n - 1);
	__asm__ volatile("" : "+r"(rest));
	return n + rest;
}

PROBED void goes_deep(long n)
{
	volatile char room[200];
	room[0] = (char)n;
	if (n > 0)
		goes_deep(n - 1);
	__asm__ volatile("" : : "r"(room) : "memory");
	sum_to(room[0] ? 3 : 2);
}

IN_BOTH(longjmps)
{
	struct capriole_return_probe p = FOLLOWS(jumps, on_entry, on_return);
	struct capriole_return_probe q = FOLLOWS(sum_to, on_entry, on_sum);
	OK(capriole_return_probe_register(&p));
	OK(capriole_return_probe_register(&q));
	/* Many more calls than there is room for. */
	for (volatile int i = 0; i < 3000; i++) {
		if (!setjmp(to))
			jumps(i % 20);
	}
	IS(returns, 0);
	IS(p.missed, 0);
	/* The same with two of them. */
	struct capriole_return_probe second = FOLLOWS(jumps, on_entry, on_return);
	OK(capriole_return_probe_register(&second));
	for (volatile int i = 0; i < 3000; i++) {
		if (!setjmp(to))
			jumps(i % 20);
	}
	OK(capriole_return_probe_unregister(&second));
	IS(returns, 0);
	IS(p.missed + second.missed, 0);
	/* Others are followed afterwards, at all depths. */
	long before = returns;
	IS(sum_to(30), 465);
	goes_deep(20);
	IS(jumps(1000), 1001);
	IS(returns, before + 31 + 20 * 4 + 3 + 1);
	IS(q.missed, 0);
	OK(capriole_return_probe_unregister(&p));
	OK(capriole_return_probe_unregister(&q));
}

/* Backtraces in handlers, and in functions that are called by one that is followed. */
static int traced, seen_main, seen_caller;

/* Never set: functions that do not return have no exits. */
static volatile int stays;

/* Leaves `depth` calls of itself at once. */
static jmp_buf chain_start;
PROBED long leaves_deep(long depth)
{
	volatile long here = depth;
	if (!depth) {
		if (!stays)
			longjmp(chain_start, 1);
		return 1;
	}
	return leaves_deep(depth - 1) + here;
}

__attribute__((noinline)) static void leave(long depth)
{
	if (!setjmp(chain_start))
		leaves_deep(depth);
}

/* The places of calls that were left are used again, in any order, by calls which return one after the
 * other to the same place of the stack. */
static void chains_after_left_calls(void)
{
	for (int address = 0; address < 2; address++)
		for (int left = 1; left <= 300; left += 299)
			for (size_t size = sizeof(struct data); size < 80; size += 16) {
				by_address = address;
				struct capriole_return_probe first = FOLLOWS(leaves_deep, on_entry, on_return);
				OK(capriole_return_probe_register(&first));
				leave(left);
				by_address = 1;
				struct capriole_return_probe odd = FOLLOWS(odd_steps, on_entry, on_steps);
				odd.data_size = size;
				OK(capriole_return_probe_register(&odd));
				for (long n = 9; n <= 2001; n += 498) {
					entries = returns = 0;
					odd.missed = 0;
					odd_steps(n);
					IS(entries, returns);
					IS(entries + (long)odd.missed, (n + 1) / 2);
				}
				OK(capriole_return_probe_unregister(&odd));
				OK(capriole_return_probe_unregister(&first));
			}
}

PROBED long ends_thread(long number)
{
	if (!stays)
		pthread_exit(NULL);
	return number + 1;
}

static void *ends_inside(void *how)
{
	if (how)
		leave(3);
	if (!how)
		ends_thread(1);
	return NULL;
}

/* Calls in which a thread ends, or which it has left, take room of the next thread at most. */
static void threads_that_end(void)
{
	for (int way = 0; way < 4; way++) {
		by_address = way & 1;
		struct capriole_return_probe ends = FOLLOWS(ends_thread, on_entry, on_return);
		struct capriole_return_probe leaves = FOLLOWS(leaves_deep, on_entry, on_return);
		struct capriole_return_probe *probe = way & 2 ? &leaves : &ends;
		if (!(way & 1))
			probe->max_active = 8;
		OK(capriole_return_probe_register(probe));
		entries = returns = 0;
		for (int i = 0; i < 3 * 4096; i++) {
			pthread_t thread;
			IS(pthread_create(&thread, NULL, ends_inside, way & 2 ? probe : NULL), 0);
			IS(pthread_join(thread, NULL), 0);
		}
		IS(probe->missed, 0);
		IS(entries, way & 2 ? 4 * 3 * 4096 : 3 * 4096);
		IS(returns, 0);
		OK(capriole_return_probe_unregister(probe));
	}
}

int main(int argc, char **argv);
PROBED long caller(long n)
{
	return sum_to(n) + 1;
}

static int is_in(void *address, void *function, size_t size)
{
	return (uint64_t)address - (uint64_t)function < size;
}

static void trace(void)
{
	void *frames[64];
	int count = backtrace(frames, 64), in_caller = 0, in_main = 0;
	for (int i = 0; i < count; i++) {
		in_caller += is_in(frames[i], (void *)caller, 64);
		in_main += is_in(frames[i], (void *)main, 4096);
	}
	traced++;
	seen_caller += in_caller != 0;
	seen_main += in_main != 0;
	if (!in_caller || !in_main) {
		backtrace_symbols_fd(frames, count, 1);
		BAD("a backtrace of %d frames ends too early", count);
	}
}

static int traces(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	trace();
	return 0;
}

static int traces_simply(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	trace();
	return 0;
}

static void traces_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	traces_simply(p, regs);
}

IN_BOTH(backtraces)
{
	void *once[4];
	backtrace(once, 4); /* loads a library */
	traced = 0;
	struct capriole_return_probe p = FOLLOWS(sum_to, traces, traces);
	struct capriole_return_probe r = FOLLOWS(caller, on_entry, on_return);
	struct capriole_probe inside = { .address = (void *)sum_to, .pre = traces_simply, .post = traces_after };
	OK(capriole_return_probe_register(&p));
	for (int i = 0; i < 2; i++) {
		IS(caller(3), 7);
		IS(capriole_optimize(PATIENCE), 0);
	}
	IS(traced, 16);
	OK(capriole_return_probe_unregister(&p));
	/* Through the frames of calls whose return addresses are replaced. */
	traced = 0;
	OK(capriole_return_probe_register(&r));
	struct capriole_return_probe s = FOLLOWS(sum_to, on_entry, on_return);
	OK(capriole_return_probe_register(&s));
	OK(capriole_probe_register(&inside));
	for (int i = 0; i < 2; i++) {
		IS(caller(3), 7);
		IS(capriole_optimize(PATIENCE), 0);
	}
	IS(traced, 16);
	OK(capriole_probe_unregister(&inside));
	OK(capriole_return_probe_unregister(&r));
	OK(capriole_return_probe_unregister(&s));
}

/* A probe that is taken out while calls are open. */
static volatile int may_return, is_inside;

PROBED long waits(long n)
{
	__atomic_fetch_add(&is_inside, 1, __ATOMIC_SEQ_CST);
	while (!may_return)
		usleep(100);
	return n + 1;
}

static void *calls_waits(void *argument)
{
	(void)argument;
	IS(waits(41), 42);
	IS(waits(1), 2);
	return NULL;
}

IN_BOTH(taken_out_while_open)
{
	for (int round = 0; round < 3; round++) {
		struct capriole_return_probe p = FOLLOWS(waits, on_entry, on_return);
		p.max_active = round == 2 ? 3 : 0;
		pthread_t threads[3];
		may_return = is_inside = 0;
		entries = returns = 0;
		OK(capriole_return_probe_register(&p));
		for (int i = 0; i < 3; i++)
			CHECK(!pthread_create(&threads[i], NULL, calls_waits, NULL));
		while (__atomic_load_n(&is_inside, __ATOMIC_SEQ_CST) < 3)
			usleep(100);
		IS(entries, 3);
		OK(capriole_return_probe_unregister(&p));
		memset(&p, 0x5a, sizeof p); /* it is ours again */
		may_return = 1;
		for (int i = 0; i < 3; i++)
			CHECK(!pthread_join(threads[i], NULL));
		IS(returns, 0);
	}
}

/* Threads that come and go, and calls in signal handlers. */
static volatile int threads_over;
static volatile long calls_made;

static void on_signal(int signal)
{
	(void)signal;
	int error = errno;
	IS(sum_to(4), 10);
	__atomic_fetch_add(&calls_made, 5, __ATOMIC_RELAXED);
	errno = error;
}

static void *calls_often(void *argument)
{
	long n = (long)argument;
	for (int i = 0; i < 2000; i++) {
		IS(sum_to(n), n * (n + 1) / 2);
		__atomic_fetch_add(&calls_made, n + 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

IN_BOTH(threads)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, on_entry, on_sum);
	CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
	OK(capriole_return_probe_register(&p));
	calls_made = 0;
	for (int round = 0; round < 4; round++) {
		pthread_t threads[6];
		for (long i = 0; i < 6; i++)
			CHECK(!pthread_create(&threads[i], NULL, calls_often, (void *)(i + 1)));
		for (int i = 0; i < 500; i++) {
			pthread_kill(threads[i % 6], SIGUSR1);
			usleep(20);
		}
		for (int i = 0; i < 6; i++)
			CHECK(!pthread_join(threads[i], NULL));
	}
	printf("%ld calls, %ld entries, %ld returns, %lu missed\n", calls_made, entries, returns, p.missed);
	unsigned long missed = p.missed + capriole_probe_missed(&p.probe);
	IS(entries, returns);
	CHECK(returns + (long)missed <= calls_made && returns > calls_made / 2);
	OK(capriole_return_probe_unregister(&p));
}

/* Coroutines that change the stack, and the thread, in the middle of a call. */
static ucontext_t here, there[2];
static char stacks[2][64 << 10];

PROBED long switches(long n)
{
	/* Leaves in the middle, and goes on later. */
	CHECK(!swapcontext(&there[n & 1], &here));
	return n * 10;
}

static void coroutine(int number)
{
	for (long i = 0; i < 5; i++) {
		long n = number + 2 * i;
		IS(switches(n), n * 10);
		IS(sum_to(n), n * (n + 1) / 2);
	}
}

IN_BOTH(coroutines)
{
	struct capriole_return_probe p = FOLLOWS(switches, on_entry, on_return);
	struct capriole_return_probe q = FOLLOWS(sum_to, on_entry, on_sum);
	OK(capriole_return_probe_register(&p));
	OK(capriole_return_probe_register(&q));
	for (int i = 0; i < 2; i++) {
		CHECK(!getcontext(&there[i]));
		there[i].uc_stack.ss_sp = stacks[i];
		there[i].uc_stack.ss_size = sizeof stacks[i];
		there[i].uc_link = &here;
		makecontext(&there[i], (void (*)(void))coroutine, 1, i);
	}
	for (int round = 0; round < 6; round++)
		for (int i = 0; i < 2; i++)
			CHECK(!swapcontext(&here, &there[i]));
	printf("%ld entries, %ld returns, %lu and %lu missed\n", entries, returns, p.missed, q.missed);
	IS(p.missed + q.missed, 0);
	if (by_address)
		IS(returns, entries);
	OK(capriole_return_probe_unregister(&p));
	OK(capriole_return_probe_unregister(&q));
}

/* A call that is entered in one thread, and returns in another one that never hit a probe. */
static int finished;

static void moves(void)
{
	IS(switches(21), 210);
	finished++;
}

static void *goes_on(void *nothing)
{
	CHECK(!swapcontext(&here, &there[1]));
	return nothing;
}

static void moved(void)
{
	by_address = 1;
	struct capriole_return_probe p = FOLLOWS(switches, on_entry, on_return);
	OK(capriole_return_probe_register(&p));
	for (int i = 0; i < 5; i++) {
		pthread_t thread;
		CHECK(!getcontext(&there[1]));
		there[1].uc_stack.ss_sp = stacks[1];
		there[1].uc_stack.ss_size = sizeof stacks[1];
		there[1].uc_link = &here;
		makecontext(&there[1], moves, 0);
		CHECK(!swapcontext(&here, &there[1]));
		IS(finished, i);
		CHECK(!pthread_create(&thread, NULL, goes_on, NULL));
		CHECK(!pthread_join(thread, NULL));
		IS(finished, i + 1);
		IS(entries, i + 1);
		IS(returns, i + 1);
	}
	IS(p.missed, 0);
	OK(capriole_return_probe_unregister(&p));
}

IN_BOTH(errors)
{
	struct capriole_return_probe p = FOLLOWS(add, NULL, NULL);
	FAILS(capriole_return_probe_register(NULL), EINVAL, "handler");
	FAILS(capriole_return_probe_register(&p), EINVAL, "handler");
	FAILS(capriole_return_probe_unregister(NULL), EINVAL, "not registered");
	p.handler = on_return;
	p.data_size = 1025;
	FAILS(capriole_return_probe_register(&p), EINVAL, "1024");
	p.data_size = 1024;
	OK(capriole_return_probe_register(&p));
	OK(capriole_return_probe_unregister(&p));
	p.probe = (struct capriole_probe){ .symbol = "no_such" };
	FAILS(capriole_return_probe_register(&p), ENOENT, "no_such");
	p.probe = (struct capriole_probe){ .symbol = "ad*" };
	FAILS(capriole_return_probe_register(&p), EINVAL, "pattern");
	p.probe = (struct capriole_probe){ .address = &p };
	FAILS(capriole_return_probe_register(&p), EFAULT, "");
	p.probe = (struct capriole_probe){ 0 };
	CHECK(capriole_return_probe_register(&p) < 0);
	/* By symbols, and of libraries. */
	p.probe = (struct capriole_probe){ .symbol = "sum_to" };
	p.entry = on_entry;
	p.handler = on_sum;
	entries = returns = 0;
	OK(capriole_return_probe_register(&p));
	IS(sum_to(5), 15);
	IS(returns, 6);
	OK(capriole_return_probe_unregister(&p));
	p.probe = (struct capriole_probe){ .object = "libc", .symbol = "malloc" };
	p.handler = on_return;
	entries = returns = 0;
	OK(capriole_return_probe_register(&p));
	void *volatile memory = malloc(5);
	free(memory);
	long once = returns;
	OK(capriole_return_probe_unregister(&p));
	IS(once, 1);
}

/* The library counts hits in handlers as missed, and leaves such calls alone. */
static int calls_sum(struct capriole_call *call, struct capriole_regs *regs)
{
	on_entry(call, regs);
	IS(sum_to(3), 6);
	return 0;
}

IN_BOTH(misses)
{
	struct capriole_return_probe p = FOLLOWS(sum_to, calls_sum, on_sum);
	OK(capriole_return_probe_register(&p));
	IS(sum_to(0), 0);
	IS(entries, 1);
	IS(returns, 1);
	IS(capriole_return_probe_missed(&p), 4);
	OK(capriole_return_probe_unregister(&p));
	/* A registration counts anew, as in the kernel. */
	IS(capriole_return_probe_missed(&p), 4);
	OK(capriole_return_probe_register(&p));
	IS(capriole_return_probe_missed(&p), 0);
	OK(capriole_return_probe_unregister(&p));
	IS(capriole_return_probe_missed(NULL), 0);
}

/* On and off under load. */
static void *calls_without_end(void *argument)
{
	(void)argument;
	while (!threads_over) {
		IS(sum_to(10), 55);
		IS(sign(-3), -add(-3, 0) - 10);
		rest_unless_soak();
	}
	return NULL;
}

IN_BOTH(come_and_go)
{
	pthread_t threads[4];
	threads_over = 0;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, calls_without_end, NULL));
	for (int i = 0; i < 40; i++) {
		struct capriole_return_probe p = FOLLOWS(sum_to, on_entry, on_sum);
		struct capriole_return_probe q = FOLLOWS(sign, on_entry, on_return);
		OK(capriole_return_probe_register(&p));
		OK(capriole_return_probe_register(&q));
		if (i % 4 == 0)
			OK(capriole_optimize(20));
		OK(capriole_return_probe_unregister(&q));
		OK(capriole_return_probe_unregister(&p));
	}
	threads_over = 1;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	printf("%ld entries, %ld returns\n", entries, returns);
	CHECK(returns > 0);
}

/* A thread has come to a probe, and enters the call only when all later hits miss it: the handlers are
 * replaced, and whoever has replaced them waits for this thread. The call is not followed to its end. */
static __thread int is_late;
static int is_held, may_enter, is_taken_out;
static long late_entries, late_returns;

PROBED long late(long a)
{
	if (is_late)
		UNTIL(__atomic_load_n(&is_taken_out, __ATOMIC_ACQUIRE));
	return a + 1;
}

static int holds_late(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	if (is_late) {
		__atomic_store_n(&is_held, 1, __ATOMIC_RELEASE);
		UNTIL(__atomic_load_n(&may_enter, __ATOMIC_ACQUIRE));
	}
	return 0;
}

static int enters_late(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	late_entries += !is_late;
	return 0;
}

static int returns_late(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	if (is_late)
		BAD("the handler is called when its probe is out");
	late_returns++;
	return 0;
}

static void *calls_late(void *nothing)
{
	is_late = 1;
	IS(late(1), 2);
	return nothing;
}

static void *lets_enter(void *nothing)
{
	long before;
	do {
		before = late_entries;
		IS(late(1), 2);
	} while (late_entries != before);
	__atomic_store_n(&may_enter, 1, __ATOMIC_RELEASE);
	return nothing;
}

static void entered_while_taken_out(void)
{
	/* The handlers of one place are called in the order of registration. */
	static struct capriole_probe first = { .address = (void *)late, .pre = holds_late };
	static struct capriole_return_probe probe = {
		.probe = { .address = (void *)late }, .entry = enters_late, .handler = returns_late, .by_address = 1
	};
	for (int way = 0; way < 3; way++) {
		pthread_t thread, other;
		is_held = may_enter = is_taken_out = 0;
		OK(capriole_probe_register(&first));
		OK(capriole_return_probe_register(&probe));
		late_entries = late_returns = 0;
		IS(late(1), 2);
		IS(late_entries, 1);
		IS(late_returns, 1);
		CHECK(!pthread_create(&thread, NULL, calls_late, NULL));
		UNTIL(__atomic_load_n(&is_held, __ATOMIC_ACQUIRE));
		CHECK(!pthread_create(&other, NULL, lets_enter, NULL));
		OK(way == 0 ? capriole_return_probe_disable(&probe)
			    : way == 1 ? capriole_return_probe_unregister(&probe) : capriole_disarm_all());
		__atomic_store_n(&is_taken_out, 1, __ATOMIC_RELEASE);
		CHECK(!pthread_join(thread, NULL));
		CHECK(!pthread_join(other, NULL));
		if (way != 1)
			OK(capriole_return_probe_unregister(&probe));
		OK(capriole_probe_unregister(&first));
	}
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "values", values },
		{ "doubles", doubles },
		{ "not_followed", not_followed },
		{ "several", several },
		{ "tail_call", tail_call },
		{ "tail_calls", tail_calls },
		{ "chains_after_left_calls", chains_after_left_calls },
		{ "threads_that_end", threads_that_end },
		{ "limited", limited },
		{ "deep", deep },
		{ "longjmps", longjmps },
		{ "backtraces", backtraces },
		{ "taken_out_while_open", taken_out_while_open },
		{ "threads", threads },
		{ "coroutines", coroutines },
		{ "moved", moved },
		{ "errors", errors },
		{ "misses", misses },
		{ "come_and_go", come_and_go },
		{ "entered_while_taken_out", entered_while_taken_out },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
