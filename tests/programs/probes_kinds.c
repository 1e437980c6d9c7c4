/*
 * A program that probes itself: all kinds of probes are enabled, disabled, registered in arrays, and
 * refused, alike.
 */
#include "probes.h"

#include <fcntl.h>

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

/* Calls a function in the middle. */
static void (*in_between)(void);
PROBED long between(long n)
{
	if (in_between)
		in_between();
	return n + 1;
}

static volatile long inside = 1; /* an address inside an instruction, as in probes_functions.c */
static long entries, returns, hits;

static int on_entry(struct capriole_call *call, struct capriole_regs *regs)
{
	if (call->probe->data_size)
		*(uint64_t *)call->data = regs->di;
	entries++;
	return 0;
}

static int on_return(struct capriole_call *call, struct capriole_regs *regs)
{
	if (regs->ip != call->return_address || regs->sp != call->sp + 8)
		BAD("a return at another place");
	returns++;
	return 0;
}

static int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	return 0;
}

static void counted(long wanted_entries, long wanted_returns)
{
	IS(entries, wanted_entries);
	IS(returns, wanted_returns);
	entries = returns = 0;
}

static void is(struct capriole_return_probe *p, int wanted)
{
	char why[512];
	int state = capriole_return_probe_status(p, why, sizeof why);
	if (state != wanted)
		BAD("state %d (%s), not %d", state, state < 0 ? capriole_error() : why, wanted);
}

static unsigned by_address;

static void returns_enabled_and_disabled(void)
{
	struct capriole_return_probe p = {
		AT(sum_to), .entry = on_entry, .handler = on_return, .by_address = by_address,
	};
	is(&p, CAPRIOLE_UNREGISTERED);
	FAILS(capriole_return_probe_enable(&p), EINVAL, "not registered");
	FAILS(capriole_return_probe_disable(NULL), EINVAL, "not registered");
	p.probe.flags = CAPRIOLE_DISABLED;
	OK(capriole_return_probe_register(&p));
	is(&p, CAPRIOLE_OFF);
	IS(sum_to(3), 6);
	counted(0, 0);
	for (int i = 0; i < 20; i++) {
		OK(capriole_return_probe_enable(&p));
		OK(capriole_return_probe_enable(&p));
		CHECK(capriole_return_probe_status(&p, NULL, 0) != CAPRIOLE_OFF);
		IS(sum_to(3), 6);
		counted(4, 4);
		if (i % 5 == 0) {
			IS(capriole_optimize(PATIENCE), 0);
			is(&p, CAPRIOLE_OPTIMIZED);
			IS(sum_to(3), 6);
			counted(4, 4);
		}
		OK(capriole_return_probe_disable(&p));
		OK(capriole_return_probe_disable(&p));
		is(&p, CAPRIOLE_OFF);
		IS(sum_to(3), 6);
		counted(0, 0);
	}
	OK(capriole_return_probe_unregister(&p));
	is(&p, CAPRIOLE_UNREGISTERED);
	IS(p.missed, 0);
}

static void enabled_and_disabled(void)
{
	for (by_address = 0; by_address < 2; by_address++)
		returns_enabled_and_disabled();
}

/* A call that goes on when its probe is disabled is not followed, also if that is enabled again before the
 * call returns; nor is it taken for another call at the same place of the stack. */
static struct capriole_return_probe around;

static void disable_it(void)
{
	OK(capriole_return_probe_disable(&around));
}

static void disable_and_enable(void)
{
	disable_it();
	OK(capriole_return_probe_enable(&around));
}

static void enable_it(void)
{
	OK(capriole_return_probe_enable(&around));
}

static void enabled_in_the_middle(void)
{
	for (int way = 0; way < 4; way++) {
		around = (struct capriole_return_probe){
			AT(between), .entry = on_entry, .handler = on_return, .data_size = 8,
			.by_address = way & 1, .max_active = way & 2 ? 1 : 0,
		};
		OK(capriole_return_probe_register(&around));
		for (int i = 0; i < 10; i++) {
			in_between = disable_and_enable;
			IS(between(1), 2);
			counted(1, 0);
			in_between = disable_it;
			IS(between(1), 2);
			counted(1, 0);
			in_between = enable_it;
			IS(between(1), 2);
			counted(0, 0);
			in_between = NULL;
			IS(between(1), 2);
			counted(1, 1);
		}
		/* The limit counts calls that are still followed only. */
		IS(around.missed, 0);
		OK(capriole_return_probe_unregister(&around));
		IS(between(1), 2);
		counted(0, 0);
	}
}

static void arrays_of_returns(void)
{
	enum { N = 3 };
	struct capriole_return_probe probes[N], *list[N];
	void *good[N] = { (void *)add, (void *)sum_to, (void *)between };
	in_between = NULL;
	for (int wrong = -1; wrong < N; wrong++) {
		for (int i = 0; i < N; i++) {
			probes[i] = (struct capriole_return_probe){
				AT(good[i]), .entry = on_entry, .handler = on_return,
				.by_address = (unsigned)i & 1,
			};
			list[i] = &probes[i];
		}
		if (wrong >= 0) {
			probes[wrong].handler = NULL;
			FAILS(capriole_return_probes_register(list, N), EINVAL, "handler");
			probes[wrong].handler = on_return;
			probes[wrong].probe.address = (void *)&inside;
			FAILS(capriole_return_probes_register(list, N), EFAULT, "");
			probes[wrong].probe.address = (void *)capriole_error; /* known late */
			FAILS(capriole_return_probes_register(list, N), EPERM, "libcapriole itself");
			probes[wrong].probe.address = good[wrong];
			list[wrong] = list[(wrong + 1) % N];
			FAILS(capriole_return_probes_register(list, N), EBUSY, "twice");
			list[wrong] = NULL;
			FAILS(capriole_return_probes_register(list, N), EINVAL, "");
			list[wrong] = &probes[wrong];
			IS(add(1, 1) + sum_to(2) + between(0), 7);
			counted(0, 0);
			for (int i = 0; i < N; i++)
				is(&probes[i], CAPRIOLE_UNREGISTERED);
		}
		OK(capriole_return_probes_register(list, N));
		IS(add(1, 1) + sum_to(2) + between(0), 7);
		counted(5, 5);
		if (wrong >= 0) {
			list[wrong] = list[(wrong + 1) % N];
			FAILS(capriole_return_probes_unregister(list, N), EINVAL, "twice");
			list[wrong] = NULL;
			FAILS(capriole_return_probes_unregister(list, N), EINVAL, "not registered");
			list[wrong] = &probes[wrong];
			IS(add(1, 1) + sum_to(2) + between(0), 7);
			counted(5, 5);
		}
		OK(capriole_return_probes_unregister(list, N));
		IS(add(1, 1) + sum_to(2) + between(0), 7);
		counted(0, 0);
	}
	OK(capriole_return_probes_register(NULL, 0));
	OK(capriole_return_probes_unregister(NULL, 0));
}

static void on_add(long a, long b)
{
	CHECK(a == 20 && b == 11);
	hits++;
}

static void arguments(void)
{
	struct capriole_argument_probe p = { AT(add), .handler = (void (*)(void))on_add }, q = p;
	struct capriole_argument_probe *list[] = { &p, &q };
	p.probe.flags = CAPRIOLE_DISABLED;
	hits = 0;
	OK(capriole_argument_probes_register(list, 2));
	IS(add(20, 11), 42);
	IS(hits, 1);
	IS(capriole_argument_probe_status(&p, NULL, 0), CAPRIOLE_OFF);
	OK(capriole_argument_probe_enable(&p));
	IS(add(20, 11), 42);
	IS(hits, 3);
	OK(capriole_argument_probe_disable(&q));
	OK(capriole_argument_probe_disable(&p));
	IS(add(20, 11), 42);
	IS(hits, 3);
	OK(capriole_argument_probes_unregister(list, 2));
	IS(capriole_argument_probe_status(&p, NULL, 0), CAPRIOLE_UNREGISTERED);
	list[1] = NULL;
	FAILS(capriole_argument_probes_register(list, 2), EINVAL, "handler");
	FAILS(capriole_argument_probe_enable(NULL), EINVAL, "not registered");
}

static long (*original)(long, long);

static long subtract(long a, long b)
{
	return original(a, -b);
}

PROBED long plus_four(long a)
{
	return a + 4;
}

static long subtract_one(long a)
{
	return a - 1;
}

static void replacements(void)
{
	struct capriole_replacement r = { .replacement = NULL };
	char why[512];
	CAPRIOLE_REPLACE(&r, add, subtract, &original);
	for (int i = 0; i < 3; i++) {
		r.probe.flags = CAPRIOLE_DISABLED;
		OK(capriole_replace(&r));
		IS(capriole_replacement_status(&r, NULL, 0), CAPRIOLE_OFF);
		CHECK(original);
		IS(add(1, 2), 5);
		OK(capriole_replacement_enable(&r));
		IS(add(1, 2), -3);
		OK(capriole_replacement_disable(&r));
		IS(add(1, 2), 5);
		OK(capriole_replacement_enable(&r));
		IS(add(1, 2), -3);
		OK(capriole_restore(&r));
		IS(capriole_replacement_status(&r, NULL, 0), CAPRIOLE_UNREGISTERED);
		IS(add(1, 2), 5);
		/* It keeps a breakpoint if that is wanted, also the first time. */
		r.probe.flags = CAPRIOLE_NO_OPTIMIZE;
		OK(capriole_replace(&r));
		IS(capriole_optimize(PATIENCE), 0);
		usleep(20000);
		IS(capriole_replacement_status(&r, why, sizeof why), CAPRIOLE_BREAKPOINT);
		IS(add(1, 2), -3);
		OK(capriole_restore(&r));
		IS(add(1, 2), 5);
	}
	FAILS(capriole_replacement_disable(&r), EINVAL, "not registered");
}

/* Where a probe is, and where it cannot be. */
long four(long a);
__asm__(".pushsection .text\n.balign 16\n"
	".globl four\n.type four, @function\nfour:\n"
	"	mov %rdi, %rax\n" /* 3 bytes */
	"	inc %rax\n"
	"	inc %rax\n"
	"	ret\n"
	".size four, . - four\n.popsection\n");

static int add_100(struct capriole_probe *p, struct capriole_regs *regs)
{
	CHECK(regs->ip == (uint64_t)p->address + (p->symbol ? 0 : p->offset));
	regs->ax += 100;
	return 0;
}

static void places(void)
{
	/* An offset counts from an address as well. */
	struct capriole_probe p = { .address = (void *)four, .offset = 3, .pre = add_100 };
	for (int i = 0; i < 2; i++) {
		OK(capriole_probe_register(&p));
		CHECK(p.address == (void *)four);
		IS(four(1), 103);
		OK(capriole_probe_unregister(&p));
	}
	p.offset = 1;
	CHECK(capriole_probe_register(&p) < 0 && strstr(capriole_error(), "no instruction starts at"));
	/* One place only; but the address that a registration has set does not count. */
	struct capriole_probe named = { .symbol = "four", .offset = 3, .pre = add_100 };
	for (int i = 0; i < 2; i++) {
		OK(capriole_probe_register(&named));
		CHECK(named.address == (char *)four + 3);
		IS(four(1), 103);
		OK(capriole_probe_unregister(&named));
	}
	named.address = (void *)add;
	FAILS(capriole_probe_register(&named), EINVAL, "one place");
	named.address = NULL;
	named.line = "probes_kinds.c:1";
	FAILS(capriole_probe_register(&named), EINVAL, "one place");
	named.symbol = NULL;
	FAILS(capriole_probe_register(&named), EINVAL, "no offset");
	/* At the entries of functions. */
	struct capriole_return_probe r = { .handler = on_return };
	struct capriole_argument_probe a = { .handler = (void (*)(void))on_add };
	struct capriole_replacement f = { .replacement = (void (*)(void))subtract };
	static const struct {
		struct capriole_probe place;
		const char *text;
	} refused[] = {
		{ { .offset = 0 }, "address, a symbol or a line" },
		{ { .symbol = "four", .offset = 3 }, "offset from the start of four" },
		{ { .line = "probes_kinds.c:12" }, "source line: probes_kinds.c:12" },
		{ { .symbol = "four", .line = "probes_kinds.c:12" }, "one place" },
		{ { .symbol = "four", .address = &hits }, "one place" },
		{ { .symbol = "four", .flags = 64 }, "flags" },
	};
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		r.probe = a.probe = f.probe = refused[i].place;
		FAILS(capriole_return_probe_register(&r), EINVAL, refused[i].text);
		FAILS(capriole_argument_probe_register(&a), EINVAL, refused[i].text);
		FAILS(capriole_replace(&f), EINVAL, refused[i].text);
	}
	/* An offset that leads to an entry is no mistake. */
	char *volatile start = (char *)four; /* the compiler does not look before it */
	r.probe = (struct capriole_probe){ .address = start - 16, .offset = 16 };
	for (int i = 0; i < 2; i++) {
		OK(capriole_return_probe_register(&r));
		entries = returns = 0;
		IS(four(1), 3);
		IS(returns, 1);
		OK(capriole_return_probe_unregister(&r));
	}
	r.probe.offset = 19;
	CHECK(capriole_return_probe_register(&r) < 0);
	r.probe = (struct capriole_probe){ .symbol = "four" };
	for (int i = 0; i < 2; i++) {
		OK(capriole_return_probe_register(&r));
		CHECK(r.probe.address == (void *)four);
		OK(capriole_return_probe_unregister(&r));
	}
	IS(four(1), 3);
}

static void lists(void)
{
	struct capriole_probe p = { .address = (void *)add, .pre = count };
	struct capriole_probe *twice[] = { &p, &p };
	FAILS(capriole_probes_register(NULL, 1), EINVAL, "NULL");
	FAILS(capriole_probes_unregister(NULL, 1), EINVAL, "NULL");
	FAILS(capriole_return_probes_register(NULL, 1), EINVAL, "NULL");
	FAILS(capriole_return_probes_unregister(NULL, 1), EINVAL, "NULL");
	FAILS(capriole_argument_probes_register(NULL, 1), EINVAL, "NULL");
	FAILS(capriole_argument_probes_unregister(NULL, 1), EINVAL, "NULL");
	for (int i = 0; i < 2; i++) {
		size_t many = i ? SIZE_MAX : SIZE_MAX / 8 + 2;
		FAILS(capriole_probes_register(twice, many), E2BIG, "in the list");
		FAILS(capriole_probes_unregister(twice, many), E2BIG, "in the list");
		FAILS(capriole_return_probes_register((void *)twice, many), E2BIG, "in the list");
		FAILS(capriole_argument_probes_register((void *)twice, many), E2BIG, "in the list");
	}
	FAILS(capriole_probes_register(twice, 2), EBUSY, "twice");
	OK(capriole_probe_register(&p));
	FAILS(capriole_probes_unregister(twice, 2), EINVAL, "twice");
	hits = 0;
	IS(add(1, 2), 5);
	IS(hits, 1);
	OK(capriole_probe_unregister(&p));
}

/* What cannot be written is an error. */
static void list_errors(void)
{
	struct capriole_probe p = { .address = (void *)add, .pre = count };
	struct capriole_argument_probe a = { AT(add), .handler = (void (*)(void))on_add };
	struct capriole_replacement r = { .replacement = NULL };
	OK(capriole_list(-1)); /* there is nothing to be written */
	OK(capriole_probe_register(&p));
	FAILS(capriole_list(-1), EBADF, "cannot be written");
	int full = open("/dev/full", O_WRONLY);
	FAILS(capriole_list(full), ENOSPC, "cannot be written");
	/* All kinds are in it. */
	CAPRIOLE_REPLACE(&r, plus_four, subtract_one, (long (**)(long))NULL);
	OK(capriole_argument_probe_register(&a));
	OK(capriole_replace(&r));
	char text[4096] = "";
	int ends[2];
	CHECK(!pipe(ends));
	OK(capriole_list(ends[1]));
	CHECK(read(ends[0], text, sizeof text - 1) > 0);
	if (!strstr(text, "  k  ") || !strstr(text, "  j  ") || !strstr(text, "  f  "))
		BAD("the list is %s", text);
	OK(capriole_probe_unregister(&p));
	OK(capriole_argument_probe_unregister(&a));
	OK(capriole_restore(&r));
}

/* Who calls the original after it was restored, and after the end of the helper, calls the function. */
static void original_after_the_end(void)
{
	struct capriole_replacement r = { .replacement = NULL };
	CAPRIOLE_REPLACE(&r, add, subtract, &original);
	for (int i = 0; i < 3; i++) {
		OK(capriole_replace(&r));
		CHECK(original != add);
		IS(add(1, 2), -3);
		OK(capriole_restore(&r));
		CHECK(original == add);
		IS(original(1, 2), 5);
		OK(capriole_finish());
		IS(original(1, 2), 5);
	}
}

/* The name of an indirect function is that of the implementation in use. */
static void indirect(void)
{
	static char from[100], to[100];
	void *(*volatile copies)(void *, const void *, size_t) = memcpy;
	struct capriole_probe p = { .object = "libc", .symbol = "memcpy", .pre = count };
	hits = 0;
	copies(to, from, 100);
	OK(capriole_probe_register(&p));
	copies(to, from, 100);
	CHECK(hits >= 1);
	OK(capriole_probe_unregister(&p));
	struct capriole_return_probe r = {
		.probe = { .object = "libc", .symbol = "memcpy" }, .handler = on_return,
	};
	r.by_address = capriole_return_probe_register(&r) < 0;
	if (!r.by_address)
		OK(capriole_return_probe_unregister(&r));
}

/* A breakpoint is kept as long as a probe wants it, and no longer. */
static void held_no_longer(void)
{
	struct capriole_probe p = { .address = (void *)add, .pre = count }, held = p;
	held.flags = CAPRIOLE_NO_OPTIMIZE;
	OK(capriole_probe_register(&p));
	for (int i = 0; i < 3; i++) {
		OK(capriole_probe_register(&held));
		is_in_state(&p, CAPRIOLE_BREAKPOINT, "");
		OK(capriole_probe_disable(&held));
		optimize(&p);
		OK(capriole_probe_enable(&held));
		is_in_state(&p, CAPRIOLE_BREAKPOINT, "");
		OK(capriole_probe_unregister(&held));
		optimize(&p);
	}
	OK(capriole_probe_unregister(&p));
}

/* Number of anonymous bytes that are in memory, in KiB. */
static long resident(void)
{
	char line[256];
	long size = -1;
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status);
	while (fgets(line, sizeof line, status))
		sscanf(line, "RssAnon: %ld", &size);
	fclose(status);
	CHECK(size > 0);
	return size;
}

/* Return probes that come and go take no more memory than the first ones. */
static void come_and_go(void)
{
	struct capriole_return_probe r = { AT(sum_to), .entry = on_entry, .handler = on_return };
	long before = 0;
	for (int i = 0; i < 400; i++) {
		OK(capriole_return_probe_register(&r));
		IS(sum_to(3), 6);
		counted(4, 4);
		OK(capriole_return_probe_unregister(&r));
		if (i == 20)
			before = resident();
	}
	long more = resident() - before;
	if (more > 128)
		BAD("380 return probes have left %ld KiB", more);
}

#define SHARED 200
#define SHARED_BYTES 7
void shared(void);
__asm__(".pushsection .text\n.balign 16\n.type shared, @function\nshared:\n"
	".rept 200\n push %rbp\n mov %rsp, %rbp\n nop\n nop\n pop %rbp\n.endr\n ret\n"
	".size shared, . - shared\n.popsection\n");

/* Nor do probes that share a jump, and are there alone and together in turns. */
static void come_and_go_in_turns(void)
{
	static struct capriole_probe first[SHARED], second[SHARED], *lists[2][SHARED];
	long before = 0;
	for (int i = 0; i < SHARED; i++) {
		first[i].address = (char *)shared + SHARED_BYTES * i;
		second[i].address = (char *)first[i].address + 1;
		first[i].pre = second[i].pre = count;
		lists[0][i] = &first[i];
		lists[1][i] = &second[i];
	}
	for (int i = 0; i < 50; i++) {
		hits = 0;
		OK(capriole_probes_register(lists[0], SHARED));
		shared();
		IS(hits, SHARED);
		OK(capriole_probes_register(lists[1], SHARED));
		shared();
		IS(hits, 3 * SHARED);
		OK(capriole_probes_unregister(lists[0], SHARED));
		shared();
		IS(hits, 4 * SHARED);
		OK(capriole_probes_register(lists[0], SHARED));
		shared();
		IS(hits, 6 * SHARED);
		OK(capriole_probes_unregister(lists[1], SHARED));
		OK(capriole_probes_unregister(lists[0], SHARED));
		if (i == 10)
			before = resident();
	}
	long more = resident() - before;
	if (more > 128)
		BAD("39 times two lists have left %ld KiB", more);
}

/* What may be a return address into the bytes of a jump keeps it out, in a function where no breakpoint
 * may be used. */
static volatile char *saved;
__attribute__((noinline)) static void occupy(volatile uint64_t *word)
{
	*word = (uint64_t)saved + 3; /* known here and there only */
}

static void occupied(void)
{
	static struct capriole_probe p = { .object = "libc", .symbol = "labs", .pre = count };
	long (*volatile function)(long) = labs;
	volatile uint64_t word = 0;
	OK(capriole_probe_register(&p));
	OK(capriole_probe_unregister(&p));
	saved = p.address;
	occupy(&word);
	OK(capriole_probe_register(&p));
	is_in_state(&p, CAPRIOLE_OCCUPIED, "the C library runs parts of itself with all signals blocked");
	IS(function(-7), 7);
	IS(hits, 0);
	IS(capriole_optimize(10), 1);
	word = 0;
	optimize(&p);
	IS(function(-7), 7);
	IS(hits, 1);
	OK(capriole_probe_unregister(&p));
}

/* The third parameter of a post-handler is 0, as in the kernel. */
static long posts;

static void checks_flags(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p;
	IS(flags, 0);
	CHECK(regs->flags & 2); /* it is always set */
	posts++;
}

static int abandons(struct capriole_probe *p, struct capriole_regs *regs, int signal)
{
	(void)p, (void)regs, (void)signal;
	return 1;
}

static void flags_of_posts(void)
{
	struct capriole_probe probes[3];
	for (int i = 0; i < 8; i++) {
		int many = i & 1 ? 3 : 1;
		for (int j = 0; j < many; j++) {
			probes[j] = (struct capriole_probe){ .address = (void *)add, .post = checks_flags };
			probes[j].pre = j == 2 ? NULL : count;
			probes[j].fault = i & 2 ? abandons : NULL;
			probes[j].flags = (i & 4 ? CAPRIOLE_NO_OPTIMIZE : 0) | (j == 1 ? CAPRIOLE_SAVE_VECTOR : 0);
			OK(capriole_probe_register(&probes[j]));
		}
		for (int round = 0; round < 2; round++) {
			posts = 0;
			IS(add(1, 2), 5);
			IS(posts, many);
			if (!(i & 4))
				optimize(&probes[0]);
		}
		for (int j = 0; j < many; j++)
			OK(capriole_probe_unregister(&probes[j]));
	}
}

/* A jump over one instruction of three bytes, with bytes of the next one in its distance. */
extern long spin(long n);
__asm__(".text\n.globl spin\n.type spin, @function\n.p2align 4\nspin:\n"
	"\tmov %rdi, %rax\n1:\tdec %rdi\n\tjnz 1b\n\tret\n.size spin, . - spin\n.fill 64, 1, 0x90\n");

static void written_at_once(void)
{
	struct capriole_probe p = { .symbol = "spin", .pre = count, .flags = CAPRIOLE_NO_OPTIMIZE };
	OK(capriole_probe_register(&p));
	is_in_state(&p, CAPRIOLE_OPTIMIZED,
		    "(pun), although the probe is not to be optimized: a jump of this kind is written at once");
	long before = hits;
	IS(spin(10), 10);
	IS(hits, before + 1);
	OK(capriole_probe_unregister(&p));
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "enabled_and_disabled", enabled_and_disabled },
		{ "enabled_in_the_middle", enabled_in_the_middle },
		{ "arrays_of_returns", arrays_of_returns },
		{ "arguments", arguments },
		{ "replacements", replacements },
		{ "places", places },
		{ "lists", lists },
		{ "list_errors", list_errors },
		{ "original_after_the_end", original_after_the_end },
		{ "indirect", indirect },
		{ "held_no_longer", held_no_longer },
		{ "come_and_go", come_and_go },
		{ "come_and_go_in_turns", come_and_go_in_turns },
		{ "occupied", occupied },
		{ "flags_of_posts", flags_of_posts },
		{ "written_at_once", written_at_once },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
