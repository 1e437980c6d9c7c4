/*
 * A program that probes itself: what handlers may do, the states of probes, errors.
 */
#include "probes.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>

enum { LINE_OF_ADD = __LINE__ + 3 };
PROBED long add(long a, long b)
{
	return a + 2 * b;
}

/* An address inside its first instruction; the code must not have that anywhere, or the compiler
 * would seem to mean it as a target of jumps. */
static volatile long inside = 1;

PROBED long twice(long a)
{
	return add(a, a) + 1;
}

PROBED long factorial(long n)
{
	return n < 2 ? 1 : n * factorial(n - 1);
}

static int some_data = 7;

static long hits, posts;

static int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	return 0;
}

static void count_post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	posts++;
}

#define AT(function) .address = (void *)(function)

/* As a breakpoint and as a jump: runs `check` in both. */
static void in_both(struct capriole_probe *probe, void (*check)(void))
{
	probe->flags |= CAPRIOLE_NO_OPTIMIZE;
	OK(capriole_probe_register(probe));
	is_in_state(probe, CAPRIOLE_BREAKPOINT, "not to be optimized");
	check();
	OK(capriole_probe_unregister(probe));
	probe->flags &= ~(unsigned)CAPRIOLE_NO_OPTIMIZE;
	OK(capriole_probe_register(probe));
	optimize(probe);
	check();
	OK(capriole_probe_unregister(probe));
	is_in_state(probe, CAPRIOLE_UNREGISTERED, "");
	IS(add(1, 2), 5);
}

/* Handlers see arguments, and are called exactly once. */
static int see(struct capriole_probe *p, struct capriole_regs *regs)
{
	CHECK(p->data == &hits && (long)regs->di == 40 && regs->si == 1);
	/* endbr64 may stand before it */
	CHECK(regs->ip - (uint64_t)add <= 4 && regs->ip == (uint64_t)p->address);
	CHECK(regs->sp % 16 == 8);
	hits++;
	return 0;
}

static uint64_t next_ip;

static void see_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	CHECK(p->data == &hits);
	/* `lea (%rdi,%rsi,2), %rax`, or something as long, is the first instruction */
	CHECK(regs->ip > (uint64_t)p->address && regs->ip - (uint64_t)p->address <= 15);
	next_ip = regs->ip;
	IS(regs->ax, 42);
	posts++;
}

static void call_and_count(void)
{
	hits = posts = 0;
	for (int i = 0; i < 1000; i++)
		IS(add(40, 1), 42);
	IS(hits, 1000);
	IS(posts, 1000);
}

static void pre_and_post(void)
{
	struct capriole_probe p = { AT(add), .pre = see, .post = see_after, .data = &hits };
	in_both(&p, call_and_count);
	IS(hits, 1000);
	add(40, 1);
	IS(hits, 1000);
}

static int skip(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	hits++;
	regs->ax = 99;
	return 1;
}

static int other_entry(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	BAD("a handler behind one that skips is called");
}

static void after_skip(void)
{
	/* The one instruction that computes the result is not executed. */
	IS(add(1, 2), 99);
}

static void skipped_instruction(void)
{
	struct capriole_probe p = { AT(add), .pre = skip, .post = count_post };
	struct capriole_probe later = { AT(add), .pre = other_entry };
	in_both(&p, after_skip);
	IS(posts, 0);
	OK(capriole_probe_register(&p));
	OK(capriole_probe_register(&later));
	IS(add(1, 2), 99);
	IS(posts, 0);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_unregister(&later));
	IS(add(1, 2), 5);
}

/* Several instructions, which one jump covers. */
long neighbours(long a);
__asm__(".pushsection .text\n.balign 16\n"
	".globl neighbours\n.type neighbours, @function\nneighbours:\n"
	"	mov %rdi, %rax\n" /* 3 bytes */
	"	inc %rax\n"
	"	add %rax, %rax\n"
	"	ret\n"
	".size neighbours, . - neighbours\n.popsection\n");

static int skip_plainly(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	posts++;
	regs->ax = 50;
	return 1;
}

/* An instruction is skipped whose successor is in the same jump, with a probe of its own. */
static void skipped_where_a_neighbour_is_probed(void)
{
	/* Not on the stack: the address of `q` there would look like a return address inside the jump. */
	static struct capriole_probe p, q;
	struct capriole_probe *list[] = { &p, &q };
	for (int way = 0; way < 4; way++) {
		p = (struct capriole_probe){ .symbol = "neighbours", .pre = skip_plainly };
		q = (struct capriole_probe){ .symbol = "neighbours", .offset = 3, .pre = count };
		hits = posts = 0;
		if (way == 0) {
			OK(capriole_probes_register(list, 2));
		} else if (way == 1) {
			OK(capriole_probe_register(&q));
			OK(capriole_probe_register(&p));
		} else {
			OK(capriole_probe_register(&p));
			if (way == 3)
				IS(capriole_optimize(PATIENCE), 0);
			OK(capriole_probe_register(&q));
		}
		IS(neighbours(1), 102);
		optimize(&p);
		optimize(&q);
		IS(neighbours(1), 102);
		IS(posts, 2);
		IS(hits, 2);
		OK(capriole_probe_unregister(&q));
		IS(neighbours(1), 102);
		IS(posts, 3);
		OK(capriole_probe_unregister(&p));
		IS(neighbours(1), 4);
	}
}

/* Goes on at any instruction that the jump covers, not only the next. */
static int over_two(struct capriole_probe *p, struct capriole_regs *regs)
{
	regs->ax = 7;
	regs->ip = (uint64_t)p->address + 6;
	return 0;
}

static void neighbours_twice(void)
{
	IS(neighbours(1), 14);
}

/* Other registers than the instruction pointer change where the program goes on: only sp. */
long lowered(void);
__asm__(".pushsection .text\n.balign 16\n"
	".globl lowered\n.type lowered, @function\nlowered:\n"
	"	mov %rsp, %rdx\n"
	"	lea 0x100(%rdx), %rcx\n" /* 7 bytes; the probed one */
	"	mov %rcx, %rax\n"
	"	sub %rsp, %rax\n"
	"	mov %rdx, %rsp\n"
	"	ret\n"
	".size lowered, . - lowered\n.popsection\n");

static int lower(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	hits++;
	regs->sp -= 48;
	return 0;
}

static void lower_after(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	lower(p, regs);
}

static void is_lowered(void)
{
	hits = 0;
	IS(lowered(), 0x100 + 48);
	IS(lowered(), 0x100 + 48);
	IS(hits, 2);
}

static void is_lowered_twice(void)
{
	hits = 0;
	IS(lowered(), 0x100 + 96);
	IS(hits, 2);
}

static void changed_sp(void)
{
	struct capriole_probe p = { .address = (char *)lowered + 3, .pre = lower };
	in_both(&p, is_lowered);
	struct capriole_probe q = { .address = (char *)lowered + 3, .post = lower_after };
	in_both(&q, is_lowered);
	struct capriole_probe both = { .address = (char *)lowered + 3, .pre = lower, .post = lower_after };
	in_both(&both, is_lowered_twice);
}

/* Returns for the function, whose stack pointer it raises. */
static int return_at_once(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	regs->ax = 7;
	regs->ip = *(uint64_t *)regs->sp;
	regs->sp += 8;
	hits++;
	return hits % 2; /* it does not matter */
}

static void returns_7(void)
{
	for (int i = 0; i < 100; i++) {
		IS(add(1, 2), 7);
		IS(twice(1), 8);
	}
}

static void changed_ip_and_sp(void)
{
	struct capriole_probe p = { AT(add), .pre = return_at_once };
	in_both(&p, returns_7);
}

PROBED long elsewhere(long a, long b)
{
	return 1000 * a + b;
}

static int go_elsewhere(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	regs->ip = (uint64_t)elsewhere;
	regs->si += 5;
	return 0;
}

static void is_elsewhere(void)
{
	IS(add(3, 4), 3009);
}

/* Goes on at an instruction that a jump covers. */
static void changed_ip_nearby(void)
{
	struct capriole_probe p = { .symbol = "neighbours", .pre = over_two };
	in_both(&p, neighbours_twice);
}

/* Calls another function instead, which returns to the caller. */
static void changed_ip(void)
{
	struct capriole_probe p = { AT(add), .pre = go_elsewhere };
	in_both(&p, is_elsewhere);
	changed_ip_nearby();
}

/* Calls another function before this one: pushes the address of this one. */
static long between_calls;
PROBED void between(void)
{
	between_calls++;
}

static int call_between(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	static __thread int is_back;
	is_back = !is_back;
	if (!is_back)
		return 0;
	regs->sp -= 8;
	*(uint64_t *)regs->sp = regs->ip;
	regs->ip = (uint64_t)between;
	return 0;
}

static void is_between(void)
{
	between_calls = 0;
	for (int i = 0; i < 10; i++)
		IS(twice(5), 16);
	IS(between_calls, 10);
}

static void lowered_sp(void)
{
	struct capriole_probe p = { AT(twice), .pre = call_between };
	in_both(&p, is_between);
}

static char order[64];

#define ORDERED(letter) \
	static int pre_##letter(struct capriole_probe *p, struct capriole_regs *regs) \
	{ \
		(void)p, (void)regs; \
		order[strlen(order)] = #letter[0]; \
		return 0; \
	} \
	__attribute__((unused)) static void post_##letter(struct capriole_probe *p, struct capriole_regs *regs, unsigned long f) \
	{ \
		(void)p, (void)regs, (void)f; \
		order[strlen(order)] = #letter[0] - 32; \
	}
ORDERED(a)
ORDERED(b)
ORDERED(c)

static void called(const char *wanted)
{
	memset(order, 0, sizeof order);
	IS(add(1, 2), 5);
	if (strcmp(order, wanted))
		BAD("the order is %s, not %s", order, wanted);
}

static void several_on_one_site(void)
{
	struct capriole_probe a = { AT(add), .pre = pre_a, .post = post_a };
	struct capriole_probe b = { AT(add), .pre = pre_b, .post = post_b };
	struct capriole_probe c = { AT(add), .pre = pre_c };
	OK(capriole_probe_register(&b));
	called("bB");
	OK(capriole_probe_register(&a));
	called("baBA");
	OK(capriole_probe_register(&c));
	called("bacBA");
	OK(capriole_probe_disable(&a));
	called("bcB");
	OK(capriole_probe_enable(&a));
	called("bacBA");
	optimize(&c);
	called("bacBA");
	OK(capriole_probe_unregister(&b));
	called("acA");
	OK(capriole_probe_register(&b));
	called("acbAB");
	OK(capriole_probe_unregister(&a));
	OK(capriole_probe_unregister(&b));
	called("c");
	OK(capriole_probe_unregister(&c));
	called("");
	/* One with a post-handler only, and one without any. */
	struct capriole_probe post = { AT(add), .post = post_a };
	struct capriole_probe none = { AT(add) };
	OK(capriole_probe_register(&post));
	OK(capriole_probe_register(&none));
	called("A");
	OK(capriole_probe_unregister(&post));
	called("");
	OK(capriole_probe_unregister(&none));
}

/* A post-handler that comes to a site which had none, and goes. */
static void posts_come_and_go(void)
{
	struct capriole_probe a = { AT(add), .pre = pre_a };
	struct capriole_probe b = { AT(add), .pre = pre_b, .post = post_b };
	OK(capriole_probe_register(&a));
	optimize(&a);
	for (int i = 0; i < 5; i++) {
		called("a");
		OK(capriole_probe_register(&b));
		called("abB");
		if (i % 2)
			optimize(&a);
		called("abB");
		OK(capriole_probe_unregister(&b));
	}
	OK(capriole_probe_unregister(&a));
}

static void enabled_and_disabled(void)
{
	struct capriole_probe a = { AT(add), .pre = pre_a, .post = post_a, .flags = CAPRIOLE_DISABLED };
	OK(capriole_probe_register(&a));
	is_in_state(&a, CAPRIOLE_OFF, "the probe is disabled");
	called("");
	OK(capriole_probe_disable(&a));
	called("");
	OK(capriole_probe_enable(&a));
	called("aA");
	OK(capriole_probe_enable(&a));
	optimize(&a);
	called("aA");
	OK(capriole_probe_disable(&a));
	is_in_state(&a, CAPRIOLE_OFF, "");
	called("");
	for (int i = 0; i < 20; i++) {
		OK(capriole_probe_enable(&a));
		called("aA");
		OK(capriole_probe_disable(&a));
		called("");
	}
	OK(capriole_probe_unregister(&a));
	called("");
	FAILS(capriole_probe_enable(&a), EINVAL, "not registered");
	FAILS(capriole_probe_disable(&a), EINVAL, "not registered");
}

static void states(void)
{
	struct capriole_probe p = { AT(add), .pre = count };
	char why[512];
	is_in_state(&p, CAPRIOLE_UNREGISTERED, "");
	OK(capriole_probe_register(&p));
	int state = capriole_probe_status(&p, why, sizeof why);
	CHECK(state == CAPRIOLE_OPTIMIZED || (state == CAPRIOLE_WAITING && strstr(why, "until it is proved")));
	/* By itself, soon. */
	UNTIL(capriole_probe_status(&p, NULL, 0) == CAPRIOLE_OPTIMIZED);
	is_in_state(&p, CAPRIOLE_OPTIMIZED, "a jump (");
	/* As much as there is room for. */
	memset(why, 'x', sizeof why);
	IS(capriole_probe_status(&p, why, 4), CAPRIOLE_OPTIMIZED);
	CHECK(!memcmp(why, "a j\0x", 5));
	OK(capriole_probe_unregister(&p));
	is_in_state(&p, CAPRIOLE_UNREGISTERED, "");
	p.flags = CAPRIOLE_NO_OPTIMIZE;
	OK(capriole_probe_register(&p));
	is_in_state(&p, CAPRIOLE_BREAKPOINT, "a breakpoint; the probe is not to be optimized");
	IS(capriole_optimize(PATIENCE), 0);
	usleep(50000);
	is_in_state(&p, CAPRIOLE_BREAKPOINT, "a breakpoint; the probe is not to be optimized");
	/* One that allows it does not change what another one wants ... */
	struct capriole_probe other = { AT(add), .pre = count };
	OK(capriole_probe_register(&other));
	IS(capriole_optimize(PATIENCE), 0);
	usleep(50000);
	is_in_state(&other, CAPRIOLE_BREAKPOINT, "");
	hits = 0;
	IS(add(1, 1), 3);
	IS(hits, 2);
	OK(capriole_probe_unregister(&other));
	OK(capriole_probe_unregister(&p));
	/* ... and one that does not allow it takes the jump back. */
	OK(capriole_probe_register(&other));
	optimize(&other);
	OK(capriole_probe_register(&p));
	is_in_state(&other, CAPRIOLE_BREAKPOINT, "");
	is_in_state(&p, CAPRIOLE_BREAKPOINT, "");
	hits = 0;
	IS(add(1, 1), 3);
	IS(hits, 2);
	OK(capriole_probe_unregister(&p));
	IS(capriole_optimize(PATIENCE), 0);
	IS(add(1, 1), 3);
	IS(hits, 3);
	OK(capriole_probe_unregister(&other));
}

static void optimization(void)
{
	struct capriole_probe p = { AT(add), .pre = count }, q = { AT(twice), .pre = count };
	OK(capriole_probe_register(&p));
	optimize(&p);
	IS(capriole_optimization(0), 1);
	IS(capriole_optimization(0), 0);
	is_in_state(&p, CAPRIOLE_BREAKPOINT, "optimization is off");
	OK(capriole_probe_register(&q));
	is_in_state(&q, CAPRIOLE_BREAKPOINT, "optimization is off");
	usleep(50000);
	capriole_optimize(10);
	is_in_state(&p, CAPRIOLE_BREAKPOINT, "optimization is off");
	is_in_state(&q, CAPRIOLE_BREAKPOINT, "optimization is off");
	hits = 0;
	IS(twice(1), 4);
	IS(hits, 2);
	IS(capriole_optimization(1), 0);
	optimize(&p);
	optimize(&q);
	IS(twice(1), 4);
	IS(hits, 4);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_unregister(&q));
}

/* Arrays: all or nothing. */
static void arrays(void)
{
	enum { N = 4 };
	long on_the_stack = 0;
	struct capriole_probe probes[N];
	struct capriole_probe *list[N];
	void *good[N] = { (void *)add, (void *)twice, (void *)factorial, (void *)elsewhere };
	struct capriole_probe first = { AT(add), .pre = pre_a };
	OK(capriole_probe_register(&first));
	for (int wrong = -1; wrong < N; wrong++) {
		for (int i = 0; i < N; i++) {
			probes[i] = (struct capriole_probe){ .address = good[i], .pre = pre_b };
			list[i] = &probes[i];
		}
		if (wrong < 0) {
			OK(capriole_probes_register(list, N));
			called("ab");
			FAILS(capriole_probes_register(list, N), EBUSY, "already");
			called("ab");
			OK(capriole_probes_unregister(list, N));
			called("a");
			FAILS(capriole_probes_unregister(list, N), EINVAL, "not registered");
			continue;
		}
		char name[32];
		probes[wrong].address = &on_the_stack;
		snprintf(name, sizeof name, "%lx", (unsigned long)&on_the_stack);
		FAILS(capriole_probes_register(list, N), EFAULT, name);
		called("a");
		for (int i = 0; i < N; i++)
			is_in_state(&probes[i], CAPRIOLE_UNREGISTERED, "");
		probes[wrong] = (struct capriole_probe){ .symbol = "no_such_function", .pre = pre_b };
		FAILS(capriole_probes_register(list, N), ENOENT, "no_such_function");
		called("a");
		list[wrong] = NULL;
		FAILS(capriole_probes_register(list, N), EINVAL, "NULL");
		called("a");
		list[wrong] = wrong ? &probes[0] : &probes[1];
		probes[wrong].symbol = NULL;
		FAILS(capriole_probes_register(list, N), EBUSY, "twice");
		called("a");
		/* In the middle of an instruction: known late. */
		list[wrong] = &probes[wrong];
		probes[wrong].address = (char *)first.address + inside;
		FAILS(capriole_probes_register(list, N), EILSEQ, "middle of the one at add");
		called("a");
		/* The good ones can be registered afterwards. */
		probes[wrong].address = good[wrong];
		OK(capriole_probes_register(list, N));
		called("ab");
		/* One that is not registered among those to be unregistered: all stay. */
		struct capriole_probe stranger = { AT(add) };
		list[wrong] = &stranger;
		FAILS(capriole_probes_unregister(list, N), EINVAL, "not registered");
		called("ab");
		list[wrong] = &probes[wrong];
		OK(capriole_probes_unregister(list, N));
		called("a");
	}
	OK(capriole_probes_register(NULL, 0));
	OK(capriole_probes_unregister(NULL, 0));
	OK(capriole_probe_unregister(&first));
}

/* Hits in a handler are missed, and counted. */
static int calls_add(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)regs;
	hits++;
	IS(add(2, 3), 8);
	IS(capriole_probe_missed(p), hits);
	return 0;
}

static void misses(void)
{
	struct capriole_probe p = { AT(add), .pre = calls_add }, q = { AT(add), .pre = count };
	hits = 0;
	OK(capriole_probe_register(&p));
	IS(add(1, 1), 3);
	IS(add(1, 1), 3);
	IS(hits, 2);
	IS(capriole_probe_missed(&p), 2);
	optimize(&p);
	IS(add(1, 1), 3);
	IS(hits, 3);
	IS(capriole_probe_missed(&p), 3);
	/* Each probe at the site misses it. */
	OK(capriole_probe_unregister(&p));
	p.missed = 0;
	hits = 0;
	p.pre = calls_add;
	OK(capriole_probe_register(&p));
	OK(capriole_probe_register(&q));
	IS(add(1, 1), 3);
	IS(capriole_probe_missed(&p), 1);
	IS(capriole_probe_missed(&q), 1);
	IS(hits, 2);
	OK(capriole_probe_unregister(&q));
	OK(capriole_probe_unregister(&p));
	/* A function that calls itself is none of these. */
	struct capriole_probe f = { AT(factorial), .pre = count };
	hits = 0;
	OK(capriole_probe_register(&f));
	IS(factorial(10), 3628800);
	CHECK(hits >= 1); /* a compiler makes a loop of it */
	IS(capriole_probe_missed(&f), 0);
	OK(capriole_probe_unregister(&f));
}

static volatile long allocations; /* the compiler knows that malloc does not change others */

static int allocates(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	void *volatile memory = malloc(100);
	CHECK(memory);
	free(memory);
	allocations++;
	return 0;
}

static void misses_of_malloc(void)
{
	struct capriole_probe p = { .object = "libc", .symbol = "malloc", .pre = allocates };
	OK(capriole_probe_register(&p));
	for (int round = 0; round < 2; round++) {
		allocations = 0;
		p.missed = 0;
		for (int i = 0; i < 1000; i++) {
			void *volatile memory = malloc(10 + i);
			free(memory);
		}
		IS(allocations, 1000);
		IS(capriole_probe_missed(&p), 1000);
		optimize(&p);
	}
	OK(capriole_probe_unregister(&p));
}

/* Signals that arrive in a handler, and whose handlers hit a probe. */
static volatile sig_atomic_t signals_in, signals_out;
static volatile int in_handler;

static void on_signal(int signal)
{
	(void)signal;
	if (in_handler)
		signals_in++;
	else
		signals_out++;
	add(1, 1);
}

static int raises(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	in_handler = 1;
	raise(SIGUSR1);
	in_handler = 0;
	return 0;
}

static void misses_by_signals(void)
{
	struct capriole_probe p = { AT(add), .pre = count }, q = { AT(twice), .pre = raises };
	CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
	hits = 0;
	OK(capriole_probe_register(&p));
	OK(capriole_probe_register(&q));
	for (int i = 0; i < 100; i++) {
		IS(twice(1), 4);
		raise(SIGUSR1);
	}
	IS(hits, 300);
	IS(signals_in, 100);
	IS(signals_out, 100);
	IS(capriole_probe_missed(&p), 100);
	IS(capriole_probe_missed(&q), 0);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_unregister(&q));
}

/* Prints the list: the test has a snapshot of it. */
/* An instruction in the middle is at a known distance. */
__asm__(".pushsection .text\n.balign 16\n.globl stepped\n.type stepped, @function\nstepped:\n"
	"	mov %rdi, %rax\n"
	"	lea 1(%rax), %rax\n"
	"	nop\n"
	"	ret\n"
	"	nop\n nop\n nop\n nop\n"
	".size stepped, . - stepped\n.popsection\n");

static void list(void)
{
	struct capriole_probe middle = { .symbol = "stepped", .offset = 3, .pre = count };
	struct capriole_probe first = { AT(add), .pre = count };
	struct capriole_probe second = { AT(add), .pre = count, .flags = CAPRIOLE_DISABLED };
	struct capriole_probe held = { AT(twice), .pre = count, .flags = CAPRIOLE_NO_OPTIMIZE };
	struct capriole_probe other = { .object = "libc", .symbol = "getppid", .pre = count };
	OK(capriole_list(1)); /* nothing yet */
	OK(capriole_probe_register(&first));
	OK(capriole_probe_register(&second));
	OK(capriole_probe_register(&held));
	OK(capriole_probe_register(&other));
	OK(capriole_probe_register(&middle));
	struct capriole_probe gone = { AT(factorial), .pre = count };
	OK(capriole_probe_register(&gone));
	OK(capriole_probe_unregister(&gone));
	optimize(&first);
	OK(capriole_list(1));
}

/* Functions of which there are several, one for each kind of processor: a C library without a symbol table does
 * not name the one that is in use. */
static void names_of_indirect_functions(void)
{
	struct capriole_probe by_name = { .object = "libc", .symbol = "memmove", .pre = count };
	struct capriole_probe by_address = { .address = (void *)strlen, .pre = count };
	char text[1024] = "", room[64] = "text";
	/* For the program to choose one. */
	memmove(room, room + (size_t)inside, 4);
	IS(strlen(room), 3);
	OK(capriole_probe_register(&by_name));
	OK(capriole_probe_register(&by_address));
	int memory = memfd_create("list", 0);
	OK(capriole_list(memory));
	CHECK(pread(memory, text, sizeof text - 1, 0) > 0 && !close(memory));
	if (!strstr(text, "memmove") || !strstr(text, "strlen"))
		BAD("%s", text);
	OK(capriole_probe_unregister(&by_name));
	OK(capriole_probe_unregister(&by_address));
}

static void names(void)
{
	struct capriole_probe at = { AT(add), .pre = pre_a };
	struct capriole_probe symbol = { .symbol = "add", .pre = pre_b };
	struct capriole_probe path = { .object = "/proc/self/exe", .symbol = "add", .pre = pre_c };
	OK(capriole_probe_register(&at));
	OK(capriole_probe_register(&symbol));
	CHECK(at.address && symbol.address);
	IS((long)symbol.address - (long)add <= 4, 1);
	called("ab");
	/* A path that is another name of the program's file, or a clear error. */
	int other = capriole_probe_register(&path);
	if (other < 0)
		CHECK(other == -ENOENT && strstr(capriole_error(), "/proc/self/exe"));
	else
		OK(capriole_probe_unregister(&path));
	/* With an offset, at another instruction. */
	struct capriole_probe second = { .symbol = "add", .offset = 0, .pre = pre_c };
	char line[64];
	snprintf(line, sizeof line, "probes_functions.c:%d", LINE_OF_ADD);
	struct capriole_probe by_line = { .line = line, .pre = pre_c };
	OK(capriole_probe_register(&second));
	called("abc");
	OK(capriole_probe_unregister(&second));
	OK(capriole_probe_register(&by_line));
	called("abc");
	CHECK((uint64_t)by_line.address - (uint64_t)add < 16);
	OK(capriole_probe_unregister(&by_line));
	OK(capriole_probe_unregister(&at));
	OK(capriole_probe_unregister(&symbol));
	called("");
}

static void errors(void)
{
	struct capriole_probe p = { 0 };
	FAILS(capriole_probe_register(NULL), EINVAL, "NULL");
	FAILS(capriole_probe_unregister(NULL), EINVAL, "not registered");
	FAILS(capriole_probe_disable(NULL), EINVAL, "not registered");
	FAILS(capriole_probe_enable(NULL), EINVAL, "not registered");
	IS(capriole_probe_status(NULL, NULL, 0), CAPRIOLE_UNREGISTERED);
	FAILS(capriole_probe_unregister(&p), EINVAL, "not registered");
	FAILS(capriole_probe_disable(&p), EINVAL, "not registered");
	FAILS(capriole_probe_register(&p), EINVAL, "address, a symbol or a line");
	p.address = (void *)add;
	p.flags = 16;
	FAILS(capriole_probe_register(&p), EINVAL, "flags");
	p.flags = 0;
	OK(capriole_probe_register(&p));
	FAILS(capriole_probe_register(&p), EBUSY, "already");
	OK(capriole_probe_unregister(&p));
	FAILS(capriole_probe_unregister(&p), EINVAL, "not registered");
	/* Symbols. */
	struct capriole_probe s = { .symbol = "no_such", .pre = count };
	FAILS(capriole_probe_register(&s), ENOENT, "no_such");
	s.object = "libnosuch";
	FAILS(capriole_probe_register(&s), ENOENT, "libnosuch");
	s.object = "libc";
	FAILS(capriole_probe_register(&s), ENOENT, "no_such");
	s.object = NULL;
	s.symbol = "";
	FAILS(capriole_probe_register(&s), ENOENT, "``");
	s.symbol = "add";
	s.offset = (unsigned long)inside; /* in the middle of its first instruction */
	FAILS(capriole_probe_register(&s), EILSEQ, "add");
	s.offset = 1 << 20;
	CHECK(capriole_probe_register(&s) < 0);
	s.offset = 0;
	/* A pattern, even of one function. */
	s.symbol = "fac*";
	FAILS(capriole_probe_register(&s), EINVAL, "fac*");
	s.symbol = "?dd";
	FAILS(capriole_probe_register(&s), EINVAL, "?dd");
	s.symbol = NULL;
	/* Lines. */
	s.line = "nosuch.c:3";
	FAILS(capriole_probe_register(&s), ENOENT, "nosuch.c");
	s.line = "probes_functions.c:99999";
	FAILS(capriole_probe_register(&s), ENOENT, "99999");
	s.line = "probes_functions.c";
	FAILS(capriole_probe_register(&s), EINVAL, "FILE:LINE");
	s.line = "probes_functions.c:";
	FAILS(capriole_probe_register(&s), EINVAL, "FILE:LINE");
	IS(add(1, 2), 5);
	/* What was refused can be used. */
	s.line = NULL;
	s.symbol = "add";
	OK(capriole_probe_register(&s));
	OK(capriole_probe_unregister(&s));
}

/* probes_namesake.c has another one. */
__attribute__((noipa)) static long namesake(long a)
{
	return a + 5;
}

static void ambiguous(void)
{
	struct capriole_probe p = { .symbol = "namesake", .pre = count };
	FAILS(capriole_probe_register(&p), ENOTUNIQ, "names 2 functions");
	p.symbol = NULL;
	p.address = (void *)namesake;
	OK(capriole_probe_register(&p));
	IS(namesake(3), 8);
	OK(capriole_probe_unregister(&p));
}

static void refused(void *address, int code, const char *text)
{
	struct capriole_probe p = { .address = address, .pre = count };
	FAILS(capriole_probe_register(&p), code, text);
	is_in_state(&p, CAPRIOLE_UNREGISTERED, "");
}

/* Immediate operands that are a return, and one with 16 bits. */
extern char in_the_middle[];
__asm__(".pushsection .text\n.balign 16\n.globl in_the_middle\n.type in_the_middle, @function\nin_the_middle:\n"
	"	movl $0xc3c3c3c3, %eax\n	movl $0x9090c366, %eax\n	ret\n"
	".size in_the_middle, . - in_the_middle\n.popsection\n");

static void bad_addresses(void)
{
	for (int i = 0; i < 2; i++) {
		char *at = in_the_middle + 5 * i + 1;
		refused(at, EILSEQ, "no instruction starts at");
		struct capriole_probe after = { .address = at, .post = count_post };
		FAILS(capriole_probe_register(&after), EILSEQ, "no instruction starts at");
		struct capriole_probe both = { .address = at, .pre = count, .post = count_post };
		FAILS(capriole_probe_register(&both), EILSEQ, "no instruction starts at");
	}
	refused(&some_data, EFAULT, "not executable");
	refused((char *)"text", EFAULT, "not executable");
	void *heap = malloc(100);
	refused(heap, EFAULT, "not executable");
	refused(&heap, EFAULT, "not executable");
	free(heap);
	char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(code != MAP_FAILED);
	memcpy(code, "\x8d\x04\x37\xc3", 4);
	refused(code, EOPNOTSUPP, "generates");
	CHECK(!munmap(code, 4096));
	refused(code, EFAULT, "nothing is mapped");
	refused((void *)8, EFAULT, "nothing is mapped");
	refused((void *)-8, EFAULT, "nothing is mapped");
	refused((void *)0xffffffffff600000, EOPNOTSUPP, "");
	refused((char *)add + inside, EILSEQ, "no instruction starts at");
	/* The library itself. */
	refused((void *)capriole_probe_register, EPERM, "libcapriole itself");
	refused((void *)capriole_list, EPERM, "libcapriole itself");
	struct capriole_probe own = { .object = "libcapriole", .symbol = "capriole_error", .pre = count };
	FAILS(capriole_probe_register(&own), EPERM, "libcapriole itself");
	refused((void *)getauxval(AT_SYSINFO_EHDR), EOPNOTSUPP, "");
	refused((char *)getauxval(AT_SYSINFO_EHDR) + 0x700, EOPNOTSUPP, "");
	IS(add(1, 2), 5);
}

/* The dynamic linker may be what calls a handler's functions. */
static void dynamic_linker(void)
{
	static const char *const names[] = { "_dl_debug_state", "__tls_get_addr" };
	for (int i = 0; i < 2; i++) {
		struct capriole_probe p = { .object = "ld-linux", .symbol = names[i], .pre = count };
		FAILS(capriole_probe_register(&p), EPERM, "dynamic loader");
	}
	IS(add(1, 2), 5);
}

/* Calls of the library from handlers. */
static struct capriole_probe inner = { AT(elsewhere), .pre = count };
static struct capriole_return_probe inner_return = { .probe = { AT(elsewhere) } };

static int calls_library(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)regs;
	struct capriole_probe *list[] = { &inner };
	char why[64];
	FAILS(capriole_probe_register(&inner), EDEADLK, "handler");
	FAILS(capriole_probe_unregister(p), EDEADLK, "handler");
	FAILS(capriole_probe_enable(p), EDEADLK, "handler");
	FAILS(capriole_probe_disable(p), EDEADLK, "handler");
	FAILS(capriole_probes_register(list, 1), EDEADLK, "handler");
	FAILS(capriole_probes_unregister(list, 1), EDEADLK, "handler");
	FAILS(capriole_probe_status(p, why, sizeof why), EDEADLK, "handler");
	FAILS(capriole_disarm_all(), EDEADLK, "handler");
	FAILS(capriole_arm_all(), EDEADLK, "handler");
	IS(capriole_all_disarmed(), 0);
	FAILS(capriole_optimization(0), EDEADLK, "handler");
	FAILS(capriole_optimize(1), EDEADLK, "handler");
	FAILS(capriole_list(1), EDEADLK, "handler");
	FAILS(capriole_finish(), EDEADLK, "handler");
	FAILS(capriole_return_probe_register(&inner_return), EDEADLK, "handler");
	FAILS(capriole_return_probe_unregister(&inner_return), EDEADLK, "handler");
	FAILS(capriole_event_enable(":add count()"), EDEADLK, "handler");
	FAILS(capriole_event_disable(1), EDEADLK, "handler");
	FAILS(capriole_event_read(1), EDEADLK, "handler");
	IS(capriole_probe_missed(p), 0);
	hits++;
	return 0;
}

static void post_calls_library(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	calls_library(p, regs);
}

static void calls_from_handlers(void)
{
	struct capriole_probe p = { AT(add), .pre = calls_library, .post = post_calls_library };
	hits = 0;
	OK(capriole_probe_register(&p));
	IS(add(1, 2), 5);
	IS(hits, 2);
	optimize(&p);
	IS(add(1, 2), 5);
	IS(hits, 4);
	OK(capriole_probe_unregister(&p));
}

/* Faults in handlers. */
static volatile int *volatile nowhere = (volatile int *)8;
static volatile int fault_signal;
static int faults_answer;

static int writes_nowhere(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	hits++;
	regs->si = 20;
	*nowhere = 1;
	BAD("it goes on behind a fault");
}

static int divides(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	__asm__ volatile("ud2");
	BAD("it goes on behind a fault");
}

static int on_fault(struct capriole_probe *p, struct capriole_regs *regs, int signal)
{
	(void)p;
	CHECK(regs->di == 1);
	fault_signal = signal;
	return faults_answer;
}

static void faults(void)
{
	struct capriole_probe p = { AT(add), .pre = writes_nowhere, .fault = on_fault };
	struct capriole_probe q = { AT(add), .pre = divides, .fault = on_fault };
	struct capriole_probe r = { AT(add), .pre = pre_a };
	faults_answer = 1;
	OK(capriole_probe_register(&p));
	OK(capriole_probe_register(&q));
	OK(capriole_probe_register(&r));
	for (int i = 0; i < 10; i++) {
		hits = 0;
		memset(order, 0, sizeof order);
		IS(add(1, 2), 41);
		IS(hits, 2);
		IS(fault_signal, SIGILL);
		CHECK(!strcmp(order, "a"));
		if (i == 5)
			optimize(&p);
	}
	OK(capriole_probe_unregister(&q));
	IS(add(1, 2), 41);
	IS(fault_signal, SIGSEGV);
	IS(capriole_probe_missed(&p), 0);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_unregister(&r));
}

static void own_fault(int signal)
{
	printf("fault %d\nok fault_of_the_program\n", signal);
	fflush(stdout);
	_exit(0);
}

/* A fault that the fault handler leaves to the program, which has a handler. */
static void fault_of_the_program(void)
{
	struct capriole_probe p = { AT(add), .pre = writes_nowhere, .fault = on_fault };
	CHECK(signal(SIGSEGV, own_fault) != SIG_ERR);
	OK(capriole_probe_register(&p));
	add(1, 2);
	BAD("it goes on behind a fault");
}

/* The same without one: the program ends by it. */
static void fault_ends_the_program(void)
{
	struct capriole_probe p = { AT(add), .pre = writes_nowhere, .fault = on_fault };
	OK(capriole_probe_register(&p));
	add(1, 2);
	BAD("it goes on behind a fault");
}

static void finish_and_begin_anew(void)
{
	struct capriole_probe p = { AT(add), .pre = count, .post = count_post };
	OK(capriole_finish());
	for (int i = 0; i < 5; i++) {
		hits = posts = 0;
		OK(capriole_probe_register(&p));
		FAILS(capriole_finish(), EBUSY, "registered");
		IS(add(1, 2), 5);
		if (i % 2)
			optimize(&p);
		IS(add(1, 2), 5);
		IS(hits, 2);
		IS(posts, 2);
		OK(capriole_probe_unregister(&p));
		OK(capriole_finish());
		IS(add(1, 2), 5);
		IS(hits, 2);
	}
}

/* A site is hit by other threads before its registration is over. */
#define FRESH 200
__asm__(".pushsection .text\n.altmacro\n"
	".macro fresh_one n\n"
	".balign 16\n.type fresh_\\n, @function\nfresh_\\n:\n"
	"	mov %rdi, %rax\n" /* 3 bytes, which are skipped */
	"	inc %rax\n"
	"	ret\n"
	".size fresh_\\n, . - fresh_\\n\n.endm\n"
	".balign 16\nfresh:\n.set number, 0\n"
	".rept 200\n fresh_one %number\n .set number, number + 1\n.endr\n"
	".noaltmacro\n.popsection\n");
extern char fresh[];
static volatile int fresh_over;

static int skip_fresh(struct capriole_probe *p, struct capriole_regs *regs)
{
	if (regs->ip != (uint64_t)p->address)
		BAD("ip is %lx, not %p", regs->ip, p->address);
	regs->ax = 50;
	return 1;
}

static void after_fresh(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)flags;
	if (regs->ip != (uint64_t)p->address + 3)
		BAD("ip is %lx, not behind %p", regs->ip, p->address);
}

static int look_fresh(struct capriole_probe *p, struct capriole_regs *regs)
{
	if (regs->ip != (uint64_t)p->address)
		BAD("ip is %lx, not %p", regs->ip, p->address);
	return 0;
}

static void *call_fresh(void *argument)
{
	(void)argument;
	while (!fresh_over) {
		for (int i = 0; i < FRESH; i++) {
			long result = ((long (*)(long))(void *)(fresh + 16 * i))(7);
			if (result != 8 && (result != 51 || i % 2))
				BAD("the result of %d is %ld", i, result);
		}
	}
	return NULL;
}

static void seen_by_others_from_the_first_hit_on(void)
{
	static struct capriole_probe probes[FRESH];
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, call_fresh, NULL));
	for (int i = 0; i < FRESH; i++) {
		probes[i].address = fresh + 16 * i;
		probes[i].pre = i % 2 ? look_fresh : skip_fresh;
		probes[i].post = i % 2 ? after_fresh : NULL;
		OK(capriole_probe_register(&probes[i]));
	}
	fresh_over = 1;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	for (int i = 0; i < FRESH; i++)
		OK(capriole_probe_unregister(&probes[i]));
}

/* Functions that threads do nothing but call. A jump covers two or three instructions; the first is one
 * byte long in the second function, so that a thread may also come to the second one by itself. */
__asm__(".pushsection .text\n"
	".balign 16\n.type hot_long, @function\nhot_long:\n"
	"	lea (%rdi,%rdi), %rax\n"
	"	add %rdi, %rax\n"
	"	ret\n.size hot_long, . - hot_long\n"
	".balign 16\n.type hot_short, @function\nhot_short:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	lea (%rdi,%rdi,2), %rax\n"
	"	pop %rbp\n"
	"	ret\n.size hot_short, . - hot_short\n"
	".popsection\n");
long hot_long(long), hot_short(long);
static int hot_over;
static long hot_begun, hot_hits, hot_seen;

static int see_hot(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	__atomic_fetch_add(&hot_hits, 1, __ATOMIC_RELAXED);
	regs->di = 2;
	return 0;
}

static void *call_hot(void *function)
{
	long seen = 0;
	__atomic_fetch_add(&hot_begun, 1, __ATOMIC_RELAXED);
	while (!__atomic_load_n(&hot_over, __ATOMIC_RELAXED)) {
		long result = ((long (*)(long))function)(1);
		if (result != 3 && result != 6)
			BAD("the result is %ld", result);
		seen += result == 6;
	}
	__atomic_fetch_add(&hot_seen, seen, __ATOMIC_RELAXED);
	return NULL;
}

static void wait_until(const long *number, long least)
{
	while (__atomic_load_n(number, __ATOMIC_RELAXED) < least)
		sched_yield();
}

/* Most of the time each thread is in a hit of the breakpoint. */
static void optimized_while_all_threads_hit_it(void)
{
	void *const functions[] = { (void *)hot_long, (void *)hot_short };
	for (int i = 0; i < 20; i++) {
		struct capriole_probe probe = { .address = functions[i % 2], .pre = see_hot };
		pthread_t threads[8];
		hot_over = 0, hot_begun = 0, hot_hits = 0, hot_seen = 0;
		for (int t = 0; t < 8; t++)
			CHECK(!pthread_create(&threads[t], NULL, call_hot, functions[i % 2]));
		wait_until(&hot_begun, 8);
		OK(capriole_probe_register(&probe));
		wait_until(&hot_hits, 8);
		optimize(&probe);
		OK(capriole_probe_unregister(&probe));
		__atomic_store_n(&hot_over, 1, __ATOMIC_RELAXED);
		for (int t = 0; t < 8; t++)
			CHECK(!pthread_join(threads[t], NULL));
		IS(hot_seen, hot_hits);
	}
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "pre_and_post", pre_and_post },
		{ "skipped_instruction", skipped_instruction },
		{ "skipped_where_a_neighbour_is_probed", skipped_where_a_neighbour_is_probed },
		{ "changed_sp", changed_sp },
		{ "ambiguous", ambiguous },
		{ "seen_by_others_from_the_first_hit_on", seen_by_others_from_the_first_hit_on },
		{ "changed_ip_and_sp", changed_ip_and_sp },
		{ "changed_ip", changed_ip },
		{ "lowered_sp", lowered_sp },
		{ "several_on_one_site", several_on_one_site },
		{ "posts_come_and_go", posts_come_and_go },
		{ "enabled_and_disabled", enabled_and_disabled },
		{ "states", states },
		{ "optimization", optimization },
		{ "arrays", arrays },
		{ "misses", misses },
		{ "misses_of_malloc", misses_of_malloc },
		{ "misses_by_signals", misses_by_signals },
		{ "list", list },
		{ "names", names },
		{ "names_of_indirect_functions", names_of_indirect_functions },
		{ "errors", errors },
		{ "bad_addresses", bad_addresses },
		{ "dynamic_linker", dynamic_linker },
		{ "calls_from_handlers", calls_from_handlers },
		{ "faults", faults },
		{ "fault_of_the_program", fault_of_the_program },
		{ "fault_ends_the_program", fault_ends_the_program },
		{ "finish_and_begin_anew", finish_and_begin_anew },
		{ "optimized_while_all_threads_hit_it", optimized_while_all_threads_hit_it },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
