/*
 * Calls that are followed, and handlers that are left, on several stacks: none is lost without being
 * counted.
 */
#include "probes.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#define AT(function) .address = (void *)(function)

PROBED long add(long a, long b)
{
	return a + 2 * b;
}

/* Goes up and down the stack. */
__asm__(".pushsection .text\n"
	".globl pops\n.type pops, @function\npops:\n"
	"	push %rbx\n"
	"	lea 1(%rdi), %rax\n"
	"popping:\n"
	"	pop %rbx\n"
	"	nop\n"
	"	ret\n"
	".size pops, . - pops\n.popsection\n");
extern long pops(long);
extern char popping[];

static volatile long hits, returns;
static volatile int leaves_now;
static sigjmp_buf out;

static void jump_out(int signal)
{
	(void)signal;
	siglongjmp(out, 1);
}

static void leave_once(void)
{
	hits++;
	if (leaves_now) {
		leaves_now = 0;
		raise(SIGUSR1);
	}
}

static int leave_at_entry(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	leave_once();
	return 0;
}

static int leave_at_return(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	returns++;
	leave_once();
	return 0;
}

static int leave_before(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	leave_once();
	return 0;
}

static void leave_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	leave_once();
}

/* Leaves a handler at the first hit, and returns the number of hits of five calls afterwards. */
static long hits_after_a_jump(long (*function)(long))
{
	leaves_now = 1;
	if (!sigsetjmp(out, 1)) {
		function(1);
		BAD("the handler was not left");
	}
	hits = 0;
	for (long i = 0; i < 5; i++)
		function(i);
	return hits;
}

static long call_add(long n)
{
	long result = add(n, n);
	__asm__ volatile("" : "+r"(result)); /* no jump to it */
	return result;
}

/* A thread that has left a handler by a jump is not in it, wherever that was. */
static void left_by_jumps(void)
{
	CHECK(signal(SIGUSR1, jump_out) != SIG_ERR);
	for (unsigned way = 0; way < 4; way++) {
		struct capriole_return_probe p = {
			.probe = { AT(add) },
			.entry = way < 2 ? leave_at_entry : NULL,
			.handler = leave_at_return,
			.by_address = way % 2,
		};
		OK(capriole_return_probe_register(&p));
		for (int i = 0; i < 3; i++) {
			IS(hits_after_a_jump(call_add), way < 2 ? 10 : 5);
			IS(capriole_optimize(PATIENCE), 0);
		}
		IS(p.missed, 0);
		OK(capriole_return_probe_unregister(&p));
	}
	struct capriole_probe before = { AT(add), .pre = leave_before };
	struct capriole_probe after = { AT(popping), .post = leave_after };
	OK(capriole_probe_register(&before));
	OK(capriole_probe_register(&after));
	for (int i = 0; i < 3; i++) {
		IS(hits_after_a_jump(call_add), 5);
		IS(hits_after_a_jump(pops), 5);
		IS(capriole_optimize(PATIENCE), 0);
	}
	IS(capriole_probe_missed(&before) + capriole_probe_missed(&after), 0);
	OK(capriole_probe_unregister(&before));
	OK(capriole_probe_unregister(&after));
}

/* A missed hit counts once for each probe, with a post-handler somewhere or without. */
static int calls_pops(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	for (int i = 0; i < 3; i++)
		IS(pops(i), i + 1);
	return 0;
}

static int counts_before(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)regs;
	++*(long *)p->data;
	return 0;
}

static void counts_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	counts_before(p, regs);
}

static void missed_once(void)
{
	long of_p = 0, of_q = 0, of_r = 0;
	struct capriole_probe calls = { AT(add), .pre = calls_pops };
	struct capriole_probe p = { AT(popping), .pre = counts_before, .data = &of_p };
	struct capriole_probe q = { AT(popping), .post = counts_after, .data = &of_q };
	struct capriole_probe r = { AT(popping), .pre = counts_before, .data = &of_r, .post = leave_after };
	struct capriole_probe *all[] = { &calls, &p, &q, &r };
	long made = 0;
	hits = 0;
	OK(capriole_probes_register(all, 4));
	for (int i = 0; i < 4; i++) {
		call_add(1);
		for (int j = 0; j < 5; j++)
			IS(pops(j), j + 1);
		made += 8;
		IS(of_p + capriole_probe_missed(&p), made);
		IS(of_q + capriole_probe_missed(&q), made);
		IS(of_r + capriole_probe_missed(&r), made);
		IS(capriole_probe_missed(&q), 3 * made / 8);
		IS(capriole_optimize(PATIENCE), 0);
	}
	OK(capriole_probes_unregister(all, 4));
}

static int counts_return(struct capriole_call *call, struct capriole_regs *regs)
{
	if (regs->sp != call->sp + 8 || *(uint64_t *)call->data != mix(call->sp))
		BAD("the data of a call is that of another one");
	returns++;
	return 0;
}

static int notes(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)regs;
	*(uint64_t *)call->data = mix(call->sp);
	hits++;
	return 0;
}

/* Coroutines in one piece of memory: of each, one call is open while the others run. */
#define COROUTINES 8
static ucontext_t here, there[COROUTINES];

PROBED long switches(long n)
{
	CHECK(!swapcontext(&there[n], &here));
	return n * 10;
}

static void coroutine(int number)
{
	for (long i = 0;; i++) {
		IS(switches(number), number * 10);
		IS(call_add(i), 3 * i);
	}
}

static void coroutines(void)
{
	for (volatile unsigned by_address = 0; by_address < 2; by_address++) {
		struct capriole_return_probe p = {
			.probe = { AT(switches) }, .entry = notes, .handler = counts_return,
			.data_size = 8, .by_address = by_address,
		};
		struct capriole_return_probe q = p;
		q.probe.address = (void *)add;
		char *stacks = malloc(COROUTINES * 32768);
		CHECK(stacks);
		hits = returns = 0;
		OK(capriole_return_probe_register(&p));
		OK(capriole_return_probe_register(&q));
		for (volatile int i = 0; i < COROUTINES; i++) {
			CHECK(!getcontext(&there[i]));
			there[i].uc_stack.ss_sp = stacks + 32768 * i;
			there[i].uc_stack.ss_size = 32768;
			makecontext(&there[i], (void (*)(void))coroutine, 1, i);
		}
		/* In turn, and in an order that changes. */
		long made = 0;
		for (int round = 0; round < 500; round++) {
			for (int i = 0; i < COROUTINES; i++) {
				int next = round < 3 ? i : (int)(mix((uint64_t)(round * 8 + i)) % COROUTINES);
				CHECK(!swapcontext(&here, &there[next]));
				made++;
			}
			if (round == 100)
				IS(capriole_optimize(PATIENCE), 0);
		}
		/* The last one of each is open. */
		IS(hits, made + made - COROUTINES);
		IS(returns, hits - COROUTINES);
		IS(p.missed + q.missed, 0);
		OK(capriole_return_probe_unregister(&p));
		OK(capriole_return_probe_unregister(&q));
		free(stacks);
	}
}

/* A signal stack above the interrupted calls, and near. */
static void calls_add(int signal)
{
	(void)signal;
	for (long i = 0; i < 3; i++)
		IS(call_add(i), 3 * i);
}

PROBED long interrupted(long n)
{
	CHECK(!raise(SIGUSR2));
	long result = n ? interrupted(n - 1) : 0;
	__asm__ volatile("" : "+r"(result));
	return result + n;
}

static long sum;
static void interrupted_low(void)
{
	sum = interrupted(9);
	sum += interrupted(9);
}

static void signal_stack_above(void)
{
	char *low = mmap(NULL, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(low != MAP_FAILED);
	stack_t high = { .ss_sp = low + (1 << 17), .ss_size = 1 << 17 };
	struct sigaction action = { .sa_handler = calls_add, .sa_flags = SA_ONSTACK | SA_NODEFER };
	CHECK(!sigaltstack(&high, NULL) && !sigaction(SIGUSR2, &action, NULL));
	for (volatile unsigned by_address = 0; by_address < 2; by_address++) {
		struct capriole_return_probe p = {
			.probe = { AT(interrupted) }, .entry = notes, .handler = counts_return,
			.data_size = 8, .by_address = by_address,
		};
		struct capriole_return_probe q = p;
		q.probe.address = (void *)add;
		hits = returns = 0;
		OK(capriole_return_probe_register(&p));
		OK(capriole_return_probe_register(&q));
		for (int i = 0; i < 3; i++) {
			CHECK(!getcontext(&there[0]));
			there[0].uc_stack.ss_sp = low;
			there[0].uc_stack.ss_size = 1 << 17;
			there[0].uc_link = &here;
			makecontext(&there[0], interrupted_low, 0);
			CHECK(!swapcontext(&here, &there[0]));
			IS(sum, 90);
			OK(capriole_optimize(200));
		}
		IS(hits, 3 * 80);
		IS(returns, hits);
		IS(p.missed + q.missed, 0);
		OK(capriole_return_probe_unregister(&p));
		OK(capriole_return_probe_unregister(&q));
	}
}

/* Calls that are left take no room for ever, and do not use up a limit. */
static jmp_buf back;

PROBED long falls(long n)
{
	volatile char room[64];
	room[0] = (char)n;
	if (n <= 0)
		longjmp(back, 1);
	long rest = n == 1000 ? 1 : falls(n - 1);
	__asm__ volatile("" : "+r"(rest) : "r"(room) : "memory");
	return n + rest;
}

static long from_below(long n, long depth)
{
	volatile char room[48];
	room[0] = (char)n;
	long result = depth ? from_below(n, depth - 1) : falls(n);
	__asm__ volatile("" : "+r"(result) : "r"(room) : "memory");
	return result;
}

static void left_calls(void)
{
	for (volatile unsigned by_address = 0; by_address < 2; by_address++) {
		struct capriole_return_probe p = {
			.probe = { AT(falls) }, .entry = notes, .handler = counts_return,
			.data_size = 8, .by_address = by_address,
		};
		OK(capriole_return_probe_register(&p));
		for (volatile int i = 0; i < 3000; i++)
			if (!setjmp(back))
				from_below(i % 7, i % 50);
		/* At new places. */
		returns = 0;
		for (volatile int i = 0; i < 100; i++)
			IS(from_below(1000, i % 60), 1001);
		IS(returns, 100);
		printf("%lu missed\n", p.missed);
		OK(capriole_return_probe_unregister(&p));
	}
	struct capriole_return_probe p = {
		.probe = { AT(falls) }, .entry = notes, .handler = counts_return,
		.data_size = 8, .max_active = 5,
	};
	OK(capriole_return_probe_register(&p));
	if (!setjmp(back))
		from_below(4, 60);
	returns = 0;
	for (volatile int i = 0; i < 10; i++)
		IS(falls(1000), 1001);
	IS(returns, 10);
	OK(capriole_return_probe_unregister(&p));
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "left_by_jumps", left_by_jumps },
		{ "missed_once", missed_once },
		{ "coroutines", coroutines },
		{ "signal_stack_above", signal_stack_above },
		{ "left_calls", left_calls },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
