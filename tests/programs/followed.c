/*
 * Functions whose return addresses are replaced. `followed SCENARIO` does one of those below
 * and prints, for each call that has returned, "FUNCTION VALUE", at the end "ok".
 *
 * `followed stairs [--threads N] [--depth N]` says "ready PID" and takes commands: "down" has N
 * threads recurse, "up" has them return. It says "down" and "up" when all have done so, and
 * checks each result. Meanwhile two more threads call as fast as they can. Without more
 * commands it ends.
 */
#include "common.h"

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static void note(const char *name, long long value)
{
	printf("%s %lld\n", name, value);
}

/* Each is left for the next one by a jump; what the last returns all have returned. */
PROBED long third(long x)
{
	return (long)(mix((uint64_t)x) >> 8);
}

PROBED long second(long x)
{
	return third(x + 1);
}

PROBED long first(long x)
{
	return second(x * 2);
}

/* Left by a conditional jump, of which a probe cannot tell whether it is taken. */
__asm__(".text\n"
	".balign 16\n"
	".globl conditional\n.type conditional, @function\n"
	"conditional:\n\t.cfi_startproc\n\tnopl 0(%rax)\n\ttest %rdi, %rdi\n\tjns third\n"
	"\tmov $-1, %rax\n\tret\n\t.cfi_endproc\n"
	".size conditional, . - conditional\n"
	/* Keeps the carry flag, and what is where nobody expects it. */
	".globl special\n.type special, @function\n"
	"special:\n\t.cfi_startproc\n\tnopl 0(%rax)\n\tmov %rdi, %r10\n\tmov %rdi, %r11\n"
	"\tmov %rdi, %rax\n\tmovq %rdi, %xmm1\n\tfld1\n\tstc\n\tret\n\t.cfi_endproc\n"
	".size special, . - special\n");
extern long conditional(long x);
PROBED long second(long x);

static void specials(void)
{
	for (long x = 0; x < 50; x++) {
		long a, r10, r11, xmm;
		unsigned char carry;
		double one;
		__asm__ volatile("lea -128(%%rsp), %%rsp\n\tcall special\n\tsetc %4\n\t"
				 "movq %%xmm1, %3\n\tmov %%r10, %1\n\tmov %%r11, %2\n\t"
				 "lea 128(%%rsp), %%rsp\n\tfstpl %5"
				 : "=&a"(a), "=&r"(r10), "=&r"(r11), "=&r"(xmm), "=&b"(carry), "=m"(one)
				 : "D"(x)
				 : "r10", "r11", "xmm1", "memory", "cc");
		CHECK(a == x && r10 == x && r11 == x && xmm == x && carry == 1 && one == 1.0);
		note("special", a);
	}
}

/* Many threads, many calls. */
static long calls;

PROBED long hot(long x)
{
	return x ^ 0x5a;
}

static void *hot_thread(void *argument)
{
	long sum = 0, start = (long)(intptr_t)argument;
	for (long i = 0; i < calls; i++)
		sum += hot(start + i);
	return (void *)sum;
}

static void threads_of(int count)
{
	pthread_t ids[64];
	long sum = 0;
	for (long i = 0; i < count; i++)
		CHECK(pthread_create(&ids[i], NULL, hot_thread, (void *)(i * 1000)) == 0);
	for (int i = 0; i < count; i++) {
		void *result;
		CHECK(pthread_join(ids[i], &result) == 0);
		sum += (long)result;
	}
	note("hot", sum);
}

/* Left by pthread_exit. */
static volatile int cleaned;

PROBED long counting(long x)
{
	return x + 1;
}

static void clean(void *argument)
{
	cleaned += (int)counting((long)argument);
}

static volatile int may_return; /* never set: a way out that the compiler believes in */

PROBED long leaving(long depth)
{
	volatile long result = 0;
	pthread_cleanup_push(clean, (void *)0);
	if (depth)
		result = leaving(depth - 1) + 1;
	else if (!may_return)
		pthread_exit((void *)7);
	pthread_cleanup_pop(0);
	return result;
}

static void *exiting(void *unused)
{
	(void)unused;
	leaving(4);
	return NULL;
}

/* Children that share the memory. */
PROBED long in_child(long x)
{
	return x - 1;
}

PROBED __attribute__((noinline)) long spawning(long x)
{
	int status;
	pid_t child = vfork();
	if (child == 0)
		_exit((int)in_child(x + 1));
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WEXITSTATUS(status) == x);
	char *words[] = { "true", NULL };
	CHECK(posix_spawnp(&child, "true", NULL, NULL, words, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return x * 3;
}

/* Looks who called it. */
static int frames_seen;

PROBED long looking(long x)
{
	void *frames[64];
	frames_seen = backtrace(frames, 64);
	return x;
}

PROBED long asking(long depth)
{
	long result = depth ? asking(depth - 1) : looking(5);
	__asm__ volatile("" : "+r"(result)); /* no loop */
	return result + 1;
}

/* Stairs. */
static int wanted, depth = 1000;
static pthread_barrier_t stairs;
static volatile int stop;

PROBED long stair(long levels)
{
	long below;
	if (levels) {
		below = stair(levels - 1);
	} else {
		pthread_barrier_wait(&stairs);
		pthread_barrier_wait(&stairs);
		below = 3;
	}
	return (long)(mix((uint64_t)below) >> 16) + levels;
}

static long expected(long levels)
{
	long below = 3;
	for (long level = 0; level <= levels; level++)
		below = (long)(mix((uint64_t)below) >> 16) + level;
	return below;
}

static void *climb(void *unused)
{
	(void)unused;
	long right = expected(depth);
	for (;;) {
		pthread_barrier_wait(&stairs);
		if (stop)
			return NULL;
		if (stair(depth) != right)
			BAD("a wrong result");
		pthread_barrier_wait(&stairs);
	}
}

static void *hammer(void *unused)
{
	(void)unused;
	for (long i = 0; !stop; i++) {
		if (first(i) != third(i * 2 + 1))
			BAD("first %ld", i);
		if (hot(i) != (i ^ 0x5a))
			BAD("hot %ld", i);
	}
	return NULL;
}

static void stairs_of(int count)
{
	char line[16];
	pthread_t ids[64], hammers[2];
	pthread_attr_t attributes;
	wanted = count;
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, 64 << 20) == 0);
	CHECK(pthread_barrier_init(&stairs, NULL, (unsigned)count + 1) == 0);
	for (int i = 0; i < count; i++)
		CHECK(pthread_create(&ids[i], &attributes, climb, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&hammers[i], NULL, hammer, NULL) == 0);
	ready();
	while (fgets(line, sizeof line, stdin)) {
		CHECK(!strcmp(line, "down\n"));
		pthread_barrier_wait(&stairs); /* begin */
		pthread_barrier_wait(&stairs); /* all are down */
		puts("down");
		fflush(stdout);
		CHECK(fgets(line, sizeof line, stdin) && !strcmp(line, "up\n"));
		pthread_barrier_wait(&stairs); /* go back */
		pthread_barrier_wait(&stairs); /* all are back */
		puts("up");
		fflush(stdout);
	}
	stop = 1;
	pthread_barrier_wait(&stairs);
	for (int i = 0; i < count; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(hammers[i], NULL) == 0);
}

/* The child of a fork in the middle goes on by itself, and both return. */
PROBED long dividing(long depth)
{
	long result;
	if (depth) {
		result = dividing(depth - 1);
	} else {
		pid_t child = fork();
		CHECK(child >= 0);
		result = child ? 100 : 200;
	}
	__asm__ volatile("" : "+r"(result)); /* no loop */
	return result + 1;
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "";
	long count = argc > 2 ? atol(argv[2]) : 0;
	if (argc > 3)
		depth = atoi(argv[3]);
	if (!strcmp(scenario, "tail")) {
		for (long x = 0; x < 100; x++) {
			long result = first(x);
			note("first", result);
			note("second", result);
			note("third", result);
		}
	} else if (!strcmp(scenario, "conditional")) {
		for (long x = -5; x < 20; x++)
			note("conditional", conditional(x));
	} else if (!strcmp(scenario, "special")) {
		specials();
	} else if (!strcmp(scenario, "threads")) {
		calls = count;
		threads_of(8);
	} else if (!strcmp(scenario, "exit")) {
		for (int i = 0; i < 20; i++) {
			pthread_t id;
			void *result;
			CHECK(pthread_create(&id, NULL, exiting, NULL) == 0);
			CHECK(pthread_join(id, &result) == 0);
			CHECK(result == (void *)7);
		}
		note("cleaned", cleaned);
	} else if (!strcmp(scenario, "spawn")) {
		for (long x = 0; x < 10; x++)
			note("spawning", spawning(x));
	} else if (!strcmp(scenario, "backtrace")) {
		note("asking", asking(10));
		note("frames", frames_seen);
	} else if (!strcmp(scenario, "dividing")) {
		long result = dividing(20);
		if (result == 221)
			_exit(0);
		CHECK(wait(NULL) > 0);
		note("dividing", result);
	} else if (!strcmp(scenario, "stairs")) {
		stairs_of(count ? (int)count : 3);
	} else {
		BAD("there is no scenario `%s`", scenario);
	}
	puts("ok followed");
	return 0;
}
