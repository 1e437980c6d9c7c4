/*
 * Handlers with a function's own parameters, and functions that are put in the place of others.
 */
#include "probes.h"

#include <pthread.h>

struct pair {
	long a, b;
};
struct large {
	long words[5];
};

PROBED long registers(long a, int b, const char *c, short d, unsigned long e, char f)
{
	return a + b + c[0] + d + (long)e + f;
}

PROBED long stack(long a, long b, long c, long d, long e, long f, long g, int h, struct large i)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + i.words[4];
}

PROBED double doubles(double a, int b, float c, double d)
{
	return a + b + c * d;
}

PROBED long pairs(struct pair a, struct pair *b)
{
	return a.a + a.b * b->a + b->b;
}

PROBED int variadic(int count, ...)
{
	va_list list;
	double sum = 0;
	va_start(list, count);
	for (int i = 0; i < count; i++)
		sum += va_arg(list, double);
	va_end(list);
	return (int)sum;
}

static long calls;

static long see_registers(long a, int b, const char *c, short d, unsigned long e, char f)
{
	CHECK(a == -5 && b == -6 && !strcmp(c, "text") && d == -7 && e == ~0ul && f == 'f');
	calls++;
	return 999;
}

static long see_stack(long a, long b, long c, long d, long e, long f, long g, int h, struct large i)
{
	CHECK(a == 1 && b == 2 && c == 3 && d == 4 && e == 5 && f == 6 && g == 7 && h == -8);
	for (int w = 0; w < 5; w++)
		CHECK(i.words[w] == 100 + w);
	calls++;
	/* They are copies: the function's stay. */
	i.words[4] = 0;
	g = 0;
	__asm__ volatile("" : : "r"(&i), "r"(g) : "memory");
	return 999;
}

static double see_doubles(double a, int b, float c, double d)
{
	CHECK(a == 1.5 && b == 2 && c == 2.5f && d == -4.0);
	calls++;
	return 999;
}

static long see_pairs(struct pair a, struct pair *b)
{
	CHECK(a.a == 1 && a.b == 2 && b->a == 3 && b->b == 4);
	calls++;
	return 999;
}

static int see_variadic(int count, ...)
{
	va_list list;
	va_start(list, count);
	CHECK(count == 3);
	CHECK(va_arg(list, double) == 1.0 && va_arg(list, double) == 2.5 && va_arg(list, double) == 3.0);
	va_end(list);
	calls++;
	return 0;
}

#define SEES(function, handler, words, call) \
	do { \
		struct capriole_argument_probe p = { .stack_words = words }; \
		CAPRIOLE_ARGUMENT_PROBE(&p, function, handler); \
		OK(capriole_argument_probe_register(&p)); \
		calls = 0; \
		for (int i = 0; i < 100; i++) { \
			call; \
			if (i == 50) \
				optimize(&p.probe); \
		} \
		IS(calls, 100); \
		OK(capriole_argument_probe_unregister(&p)); \
		call; \
		IS(calls, 100); \
	} while (0)

static void arguments(void)
{
	struct large large = { { 100, 101, 102, 103, 104 } };
	struct pair pair = { 1, 2 }, other = { 3, 4 };
	SEES(registers, see_registers, 0, IS(registers(-5, -6, "text", -7, ~0ul, 'f'), -19 + 't' + 'f'));
	SEES(stack, see_stack, 7, IS(stack(1, 2, 3, 4, 5, 6, 7, -8, large), 180));
	SEES(doubles, see_doubles, 0, CHECK(doubles(1.5, 2, 2.5f, -4.0) == -6.5));
	SEES(pairs, see_pairs, 0, IS(pairs(pair, &other), 11));
	SEES(variadic, see_variadic, 0, IS(variadic(3, 1.0, 2.5, 3.0), 6));
}

static void argument_errors(void)
{
	struct capriole_argument_probe p = { .stack_words = 33 };
	FAILS(capriole_argument_probe_register(NULL), EINVAL, "handler");
	FAILS(capriole_argument_probe_register(&p), EINVAL, "handler");
	FAILS(capriole_argument_probe_unregister(NULL), EINVAL, "not registered");
	CAPRIOLE_ARGUMENT_PROBE(&p, stack, see_stack);
	FAILS(capriole_argument_probe_register(&p), EINVAL, "32");
	p.stack_words = 32;
	OK(capriole_argument_probe_register(&p));
	FAILS(capriole_argument_probe_register(&p), EBUSY, "already");
	OK(capriole_argument_probe_unregister(&p));
	FAILS(capriole_argument_probe_unregister(&p), EINVAL, "not registered");
}

PROBED long add(long a, long b)
{
	return a + 2 * b;
}

PROBED long twice(long a)
{
	return add(a, a) + 1;
}

static long (*original)(long, long);
static long (*other_original)(long, long);

static long replacement(long a, long b)
{
	return original(a, b) + 1000;
}

static long other_replacement(long a, long b)
{
	return a * b;
}

static long pres;
static int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	pres++;
	return 0;
}

static void replacements(void)
{
	struct capriole_replacement r = { .replacement = NULL }, other = r;
	FAILS(capriole_replace(NULL), EINVAL, "no replacement");
	FAILS(capriole_replace(&r), EINVAL, "no replacement");
	FAILS(capriole_restore(NULL), EINVAL, "not replaced");
	FAILS(capriole_restore(&r), EINVAL, "not replaced");
	CAPRIOLE_REPLACE(&r, add, replacement, &original);
	CAPRIOLE_REPLACE(&other, add, other_replacement, &other_original);
	for (int i = 0; i < 5; i++) {
		OK(capriole_replace(&r));
		IS(add(1, 2), 1005);
		IS(original(1, 2), 5);
		IS(twice(2), 1007);
		if (i % 2)
			IS(capriole_optimize(PATIENCE), 0);
		IS(add(1, 2), 1005);
		FAILS(capriole_replace(&r), EBUSY, "");
		FAILS(capriole_replace(&other), EBUSY, "replaced already");
		FAILS(capriole_finish(), EBUSY, "replaced");
		OK(capriole_restore(&r));
		IS(add(1, 2), 5);
		IS(original(1, 2), 5);
		FAILS(capriole_restore(&r), EINVAL, "not replaced");
		OK(capriole_replace(&other));
		IS(add(3, 4), 12);
		IS(other_original(3, 4), 11);
		OK(capriole_restore(&other));
		IS(add(3, 4), 11);
	}
	/* Without a wish for the original, and by name. */
	struct capriole_replacement named = { .replacement = (void (*)(void))other_replacement };
	named.probe.symbol = "add";
	OK(capriole_replace(&named));
	IS(add(3, 4), 12);
	OK(capriole_restore(&named));
	IS(add(3, 4), 11);
	named.probe.address = NULL;
	named.probe.symbol = "no_such";
	FAILS(capriole_replace(&named), ENOENT, "no_such");
}

/* A function that is probed as well. */
static void replaced_and_probed(void)
{
	struct capriole_replacement r = { .replacement = NULL };
	struct capriole_probe p = { .address = (void *)add, .pre = count };
	CAPRIOLE_REPLACE(&r, add, replacement, &original);
	for (int order = 0; order < 2; order++) {
		pres = 0;
		if (order)
			OK(capriole_probe_register(&p));
		OK(capriole_replace(&r));
		if (!order)
			OK(capriole_probe_register(&p));
		long direct = add(1, 2);
		printf("order %d: %ld, %ld hits\n", order, direct, pres);
		IS(direct, 1005);
		CHECK(pres == 1);
		IS(capriole_optimize(PATIENCE), 0);
		IS(add(1, 2), 1005);
		IS(pres, 2);
		OK(capriole_restore(&r));
		IS(add(1, 2), 5);
		IS(pres, 3);
		OK(capriole_probe_unregister(&p));
		IS(add(1, 2), 5);
		IS(pres, 3);
	}
}

/* On and off while threads call it. */
static volatile int over;
static long replaced_calls, plain_calls;

static void *work(void *argument)
{
	long n = (long)argument, replaced = 0, plain = 0;
	while (!over) {
		long result = add(n, 7);
		if (result == n + 14 + 1000)
			replaced++;
		else if (result == n + 14)
			plain++;
		else
			BAD("add returns %ld", result);
		double d = doubles(n, 1, 2, 3);
		if (d != n + 7)
			BAD("doubles returns %f", d);
		rest_unless_soak();
	}
	__atomic_fetch_add(&replaced_calls, replaced, __ATOMIC_RELAXED);
	__atomic_fetch_add(&plain_calls, plain, __ATOMIC_RELAXED);
	return NULL;
}

static double (*original_doubles)(double, int, float, double);
static double same_doubles(double a, int b, float c, double d)
{
	return original_doubles(a, b, c, d);
}

static void under_load(void)
{
	struct capriole_replacement r = { .replacement = NULL }, s = r;
	CAPRIOLE_REPLACE(&r, add, replacement, &original);
	CAPRIOLE_REPLACE(&s, doubles, same_doubles, &original_doubles);
	pthread_t threads[4];
	for (long i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
	for (int i = 0; i < 100; i++) {
		OK(capriole_replace(&r));
		OK(capriole_replace(&s));
		if (i % 10 == 0)
			OK(capriole_optimize(30));
		IS(add(1, 2), 1005);
		OK(capriole_restore(&s));
		OK(capriole_restore(&r));
		IS(add(1, 2), 5);
	}
	over = 1;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	printf("%ld calls replaced, %ld not\n", replaced_calls, plain_calls);
	CHECK(replaced_calls && plain_calls);
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "arguments", arguments },
		{ "argument_errors", argument_errors },
		{ "replacements", replacements },
		{ "replaced_and_probed", replaced_and_probed },
		{ "under_load", under_load },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
