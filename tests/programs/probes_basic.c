/*
 * All kinds of probes, once, with nothing but standard C and POSIX: for programs that are linked in
 * other ways than usual, compiled by other standards, or run under tools that watch them.
 */
#include <capriole/probe.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
long add(long a, long b);
long sum(long n);
#ifdef __cplusplus
}
#endif

/* Called as it is written. */
#ifdef __clang__
#define CALLED __attribute__((noinline))
#else
#define CALLED __attribute__((noipa))
#endif

CALLED long add(long a, long b)
{
	return a + 2 * b;
}

CALLED long sum(long n)
{
	long all = 0, i;
	for (i = 0; i < n; i++)
		all += add(i, 0);
	return all;
}

static long hits, posts, entries, returns, sums;

static void check(int is_right, const char *what, int line)
{
	if (is_right)
		return;
	printf("BAD %d: %s: %s\n", line, what, capriole_error());
	exit(1);
}
#define CHECK(condition) check(condition, #condition, __LINE__)
#define OK(call) CHECK((call) >= 0)

static void more(long *number)
{
	__atomic_fetch_add(number, 1, __ATOMIC_RELAXED);
}

static long now(long *number)
{
	return __atomic_load_n(number, __ATOMIC_RELAXED);
}

static int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	(void)regs;
	more(&hits);
	return 0;
}

static void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p;
	(void)regs;
	(void)flags;
	more(&posts);
}

static int enter(struct capriole_call *call, struct capriole_regs *regs)
{
	memcpy(call->data, &regs->di, sizeof regs->di);
	more(&entries);
	return 0;
}

static int leave(struct capriole_call *call, struct capriole_regs *regs)
{
	uint64_t n;
	memcpy(&n, call->data, sizeof n);
	if (regs->ax == n * (n - 1) / 2)
		more(&returns);
	return 0;
}

static long (*original)(long);

static long other_sum(long n)
{
	more(&sums);
	return original(n) + 1;
}

static struct capriole_probe probe;
static struct capriole_return_probe calls;
static struct capriole_replacement replacement;
static struct capriole_record half = CAPRIOLE_RECORD("half", "done=$arg1:u64");

static void *work(void *argument)
{
	int i;
	for (i = 0; i < 100; i++)
		add(i, i);
	return argument;
}

/* Several threads call the library. */
static void *control(void *argument)
{
	struct capriole_probe own;
	int i;
	memset(&own, 0, sizeof own);
	own.symbol = "add";
	own.pre = pre;
	for (i = 0; i < 5; i++) {
		OK(capriole_probe_register(&own));
		add(1, 1);
		OK(capriole_probe_disable(&own));
		OK(capriole_probe_enable(&own));
		OK(capriole_probe_status(&own, NULL, 0));
		OK(capriole_probe_unregister(&own));
	}
	return argument;
}

static void in_threads(void *(*what)(void *))
{
	pthread_t threads[3];
	int i;
	for (i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, what, NULL) == 0);
	for (i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	char why[512];
	int i, event;

	(void)argv;
	if (argc > 1) {
		/* Only an error. */
		probe.symbol = "add";
		probe.pre = pre;
		i = capriole_probe_register(&probe);
		CHECK(add(1, 2) == 5 && now(&hits) == 0);
		printf("%d: %s\n", i, capriole_error());
		return i == 0;
	}
	for (i = 0; i < 4; i++) {
		memset(&probe, 0, sizeof probe);
		probe.symbol = "add";
		probe.pre = pre;
		probe.post = post;
		probe.flags = i & 1 ? CAPRIOLE_NO_OPTIMIZE : 0;
		OK(capriole_probe_register(&probe));
		if (i == 2) {
			CHECK(capriole_optimize(20000) == 0);
			CHECK(capriole_probe_status(&probe, why, sizeof why) == CAPRIOLE_OPTIMIZED);
		}
		hits = posts = 0;
		CHECK(add(1, 2) == 5);
		CHECK(now(&hits) == 1 && now(&posts) == 1);
		in_threads(work);
		CHECK(now(&hits) == 301 && now(&posts) == 301);
		OK(capriole_list(1));
		OK(capriole_probe_unregister(&probe));
		CHECK(add(1, 2) == 5 && now(&hits) == 301);
	}
	for (i = 0; i < 2; i++) {
		memset(&calls, 0, sizeof calls);
		calls.probe.symbol = "sum";
		calls.entry = enter;
		calls.handler = leave;
		calls.data_size = 8;
		calls.by_address = (unsigned)i;
		entries = returns = 0;
		OK(capriole_return_probe_register(&calls));
		CHECK(sum(10) == 45);
		CHECK(now(&entries) == 1 && now(&returns) == 1);
		OK(capriole_return_probe_unregister(&calls));
	}
	CAPRIOLE_REPLACE(&replacement, sum, other_sum, &original);
	OK(capriole_replace(&replacement));
	CHECK(sum(10) == 46 && now(&sums) == 1);
	OK(capriole_restore(&replacement));
	CHECK(sum(10) == 45 && now(&sums) == 1);

	event = capriole_event_enable(":add count() by a=$arg1:s64");
	OK(event);
	OK(capriole_record_enable(&half));
	CHECK(add(7, 1) == 9);
	CAPRIOLE_WRITE(&half, 5);
	OK(capriole_event_rows(event, 1));
	OK(capriole_event_read(1));
	OK(capriole_record_disable(&half));
	OK(capriole_event_disable(event));
	in_threads(control);
	OK(capriole_finish());
	CHECK(add(1, 2) == 5);
	printf("ok\n");
	return 0;
}
