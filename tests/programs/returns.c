/*
 * Functions that return, or are left, in many ways. `returns SCENARIO` does one of those
 * below and prints, for each call that has returned, "FUNCTION VALUE" (and "FUNCTION tail" for
 * each that was left by a jump to another function), in order; at the end "ok". For the
 * scenario "active" it says "ready PID" in the middle of a call, and goes on after a line of
 * input.
 */
#include "common.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <ucontext.h>

/* What was returned, until it is printed: probed functions are not to call stdio. */
static struct {
	const char *name;
	long long value;
	int tail;
} notes[400000];
static volatile unsigned noted;

static void note_as(const char *name, long long value, int tail)
{
	unsigned i = __atomic_fetch_add(&noted, 1, __ATOMIC_SEQ_CST);
	CHECK(i < sizeof notes / sizeof *notes);
	notes[i].name = name;
	notes[i].value = value;
	notes[i].tail = tail;
}

static void note(const char *name, long long value)
{
	note_as(name, value, 0);
}

static void tell(void)
{
	for (unsigned i = 0; i < noted; i++)
		if (notes[i].tail)
			printf("%s tail\n", notes[i].name);
		else
			printf("%s %lld\n", notes[i].name, notes[i].value);
	fflush(stdout);
	noted = 0;
}

/* Recursion, and a result of each level. */
PROBED long deep(long levels)
{
	long below = levels ? deep(levels - 1) : 7;
	long result = (long)(mix((uint64_t)below) >> 20);
	note("deep", result);
	return result;
}

/* Many ways out, and every size of result. */
enum mood { SAD = -3, GLAD = 4 };
struct large {
	long words[8];
};

PROBED signed char small(int x)
{
	switch (x) {
	case 0: return -128;
	case 1: return 5;
	case 2: return (signed char)(getppid() ? 77 : 1);
	case 3: return -1;
	default: break;
	}
	if (x % 2)
		return (signed char)x;
	for (int i = 0; i < x; i++)
		if ((i * 7 ^ x) == 20)
			return 20;
	return -2;
}

PROBED unsigned short middle(int x)
{
	return (unsigned short)(x * 9001);
}

PROBED int whole(int x)
{
	return -x * 100000;
}

PROBED unsigned long wide(unsigned long x)
{
	return x * 0x123456789abcdefull;
}

PROBED _Bool truth(int x)
{
	return x > 2;
}

PROBED enum mood feeling(int x)
{
	return x % 2 ? SAD : GLAD;
}

PROBED const char *text(int x)
{
	return x % 2 ? "odd" : "even";
}

PROBED struct large structure(int x)
{
	struct large large = { { x, 1, 2, 3, 4, 5, 6, 7 } };
	return large;
}

PROBED double floating(int x)
{
	return x * 0.5;
}

PROBED void nothing(void)
{
	__asm__ volatile("" ::: "memory");
}

PROBED __attribute__((noreturn)) void never(int status)
{
	for (;;)
		_exit(status);
}

/* Left for one another, which return in their stead. */
PROBED long odd(long n);

PROBED long even(long n)
{
	if (n == 0) {
		note("even", 1);
		return 1;
	}
	note_as("even", 0, 1);
	return odd(n - 1);
}

PROBED long odd(long n)
{
	if (n == 0) {
		note("odd", 0);
		return 0;
	}
	note_as("odd", 0, 1);
	return even(n - 1);
}

/* By hand: `ret $16` takes two arguments from the stack; `rep ret`; one return that two
   functions share. */
__asm__(".text\n"
	".balign 16\n"
	".globl taking\n.type taking, @function\n"
	"taking:\n\tmov 8(%rsp), %rax\n\tadd 16(%rsp), %rax\n\tret $16\n"
	".size taking, . - taking\n"
	".balign 16\n"
	".globl repeated\n.type repeated, @function\n"
	"repeated:\n\tlea 3(%rdi), %rax\n\trep ret\n"
	".size repeated, . - repeated\n"
	".balign 16\n"
	".globl sharing\n.type sharing, @function\n"
	"sharing:\n\ttest %rdi, %rdi\n\tje 1f\n\tlea 1(%rdi), %rax\n\tjmp 2f\n"
	"1:\tmov $-1, %rax\n\tjmp 2f\n\tnop\n"
	".globl shared\n.type shared, @function\n"
	"shared:\n\tlea 100(%rdi), %rax\n"
	"2:\tnopl 0(%rax)\n\tret\n"
	".size shared, . - shared\n"
	".size sharing, . - sharing\n");
extern long repeated(long x), sharing(long x), shared(long x);

static long take(long a, long b)
{
	long result;
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpush %1\n\tpush %2\n\tcall taking\n\t"
			 "lea 128(%%rsp), %%rsp"
			 : "=&a"(result)
			 : "r"(a), "r"(b)
			 : "memory", "cc");
	return result;
}

/* Left by longjmp. */
static jmp_buf out;
static volatile int may_return; /* never set: a way out that the compiler believes in */

PROBED long jumper(long n)
{
	if (n == 0)
		longjmp(out, 1);
	long result = n % 3 == 0 ? n : jumper(n - 1) + 1;
	note("jumper", result);
	return result;
}

static void jumps(void)
{
	for (volatile long n = 0; n < 300; n++)
		if (setjmp(out) == 0)
			jumper(n % 5);
}

/* Left in the middle, and gone on with on another stack. */
static ucontext_t home, away[3];
static long turns;

PROBED long yielding(long self)
{
	CHECK(swapcontext(&away[self], &home) == 0);
	long result = self * 1000 + turns;
	note("yielding", result);
	return result;
}

PROBED long worker(long self, long depth)
{
	long result = depth ? worker(self, depth - 1) + 1 : yielding(self) + yielding(self);
	note("worker", result);
	return result;
}

static void coroutine(int self)
{
	worker(self, self + 2);
}

static void coroutines(void)
{
	static char stacks[3][64 << 10];
	for (volatile int i = 0; i < 3; i++) {
		CHECK(getcontext(&away[i]) == 0);
		away[i].uc_stack.ss_sp = stacks[i];
		away[i].uc_stack.ss_size = sizeof stacks[i];
		away[i].uc_link = &home;
		makecontext(&away[i], (void (*)(void))coroutine, 1, (int)i);
	}
	/* each starts, and goes on twice, in turn */
	for (turns = 0; turns < 3; turns++)
		for (int i = 0; i < 3; i++)
			CHECK(swapcontext(&home, &away[i]) == 0);
}

/* A handler that calls probed functions, in the middle of one. */
static void handler(int number)
{
	note("whole", whole(number));
}

PROBED long raising(int number)
{
	CHECK(raise(number) == 0);
	long result = whole(3);
	note("whole", result);
	note("raising", result + 1);
	return result + 1;
}

/* Two processes return from it. */
PROBED long forking(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		return -5;
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 6;
}

/* Cancelled in the middle; what cleans up is called. */
PROBED long cleaning(long x)
{
	note("cleaning", x * 2);
	return x * 2;
}

static void clean(void *x)
{
	cleaning((long)x);
}

PROBED long cancelled(long depth)
{
	long result;
	if (depth) {
		result = cancelled(depth - 1) + 1;
	} else {
		while (!may_return)
			pause();
		result = 0;
	}
	note("cancelled", result);
	return result;
}

static void *thread(void *argument)
{
	pthread_cleanup_push(clean, argument);
	cancelled(3);
	pthread_cleanup_pop(0);
	return NULL;
}

/* Probes are put in while it runs. */
PROBED long active(long depth)
{
	long result;
	if (depth) {
		result = active(depth - 1) + 10;
	} else {
		char line[16];
		ready();
		CHECK(fgets(line, sizeof line, stdin));
		result = 1;
	}
	note("active", result);
	return result;
}

static void sizes(void)
{
	for (int x = 0; x < 24; x++) {
		note("small", small(x));
		note("middle", middle(x));
		note("whole", whole(x));
		note("wide", (long long)wide((unsigned long)x));
		note("truth", truth(x));
		note("feeling", feeling(x));
		note("text", (long long)(uintptr_t)text(x));
		struct large large = structure(x);
		CHECK(large.words[0] == x);
		note("structure", x);
		CHECK(floating(x) == x / 2.0);
		nothing();
		note("nothing", 0);
	}
}

int main(int argc, char **argv)
{
	const char *scenario = argc > 1 ? argv[1] : "";
	if (!strcmp(scenario, "deep")) {
		deep(100000);
	} else if (!strcmp(scenario, "sizes")) {
		sizes();
	} else if (!strcmp(scenario, "tail")) {
		for (long n = 0; n < 50; n++)
			CHECK(even(n) == (n % 2 == 0));
	} else if (!strcmp(scenario, "assembler")) {
		for (long x = 0; x < 20; x++) {
			note("taking", take(x, -7));
			note("repeated", repeated(x));
			note("sharing", sharing(x));
			note("shared", shared(x));
		}
	} else if (!strcmp(scenario, "jumps")) {
		jumps();
	} else if (!strcmp(scenario, "coroutines")) {
		coroutines();
	} else if (!strcmp(scenario, "signals")) {
		signal(SIGUSR1, handler);
		signal(SIGUSR2, handler);
		for (int i = 0; i < 20; i++)
			raising(i % 2 ? SIGUSR1 : SIGUSR2);
	} else if (!strcmp(scenario, "fork")) {
		for (int i = 0; i < 5; i++) {
			long result = forking();
			if (result < 0)
				_exit(0);
			note("forking", -5);
			note("forking", result);
		}
	} else if (!strcmp(scenario, "cancel")) {
		for (long i = 0; i < 10; i++) {
			pthread_t id;
			CHECK(pthread_create(&id, NULL, thread, (void *)i) == 0);
			usleep(1000);
			CHECK(pthread_cancel(id) == 0);
			CHECK(pthread_join(id, NULL) == 0);
		}
	} else if (!strcmp(scenario, "active")) {
		active(5);
	} else if (!strcmp(scenario, "never")) {
		never(0);
	} else {
		BAD("there is no scenario `%s`", scenario);
	}
	tell();
	puts("ok returns");
	return 0;
}
