/*
 * Threads that call functions of many shapes as fast as they can and verify each
 * result.
 *
 *   hammer [--threads N] [--seconds S] [--calls N] [--signals] [--fork] [--segv]
 *          [--block-sigtrap] [--dlopen LIBRARY] [--pause N] [--sleep US]
 *
 * Each call passes (thread, seq) as arguments 1 and 2, seq counting up from 0 per
 * thread, so that a trace can be searched for gaps. Threads are numbered from 0; the
 * signal handler of thread T calls `work` as thread 10000 + T, the child of the Nth fork
 * as thread 20000 + N, the loader of libraries calls as thread 30000.
 *
 * With --pause each thread counts to N between two calls of all functions; with --sleep it sleeps for
 * so many microseconds.
 *
 * Ends after S seconds, after N calls of each function per thread, or at a line on
 * standard input or SIGTERM. Then prints one line a thread, "thread T calls N", and
 * "ok calls=N" with the sum over the threads: every one of the functions was called so
 * often. What handlers and children called is not in the sum.
 */
#include "common.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#define MAX_THREADS 200

/* ---- the functions --------------------------------------------------------- */

PROBED uint64_t step(uint64_t x);
PROBED uint64_t work(uint64_t thread, uint64_t seq, uint64_t check);
PROBED uint64_t work_nops(uint64_t thread, uint64_t seq, uint64_t check);
PROBED uint64_t work_many(uint64_t thread, uint64_t seq, uint64_t c, uint64_t d, uint64_t e,
			  uint64_t f, uint64_t g, uint64_t h);
PROBED double work_varargs(uint64_t thread, uint64_t seq, int count, ...);
PROBED double work_float(uint64_t thread, uint64_t seq, double x, float y);
PROBED uint64_t work_switch(uint64_t thread, uint64_t seq, uint64_t check);
uint64_t work_short(uint64_t thread, uint64_t seq, uint64_t check);
uint64_t work_loop(uint64_t thread, uint64_t seq, uint64_t check);
void work_ret(uint64_t thread, uint64_t seq);

PROBED uint64_t step(uint64_t x)
{
	return mix(x);
}

/* Calls, so it saves registers: the prologue of most functions. */
PROBED uint64_t work(uint64_t thread, uint64_t seq, uint64_t check)
{
	uint64_t a = step(thread + check);
	uint64_t b = step(seq ^ a);
	return a + b + thread * 3 + seq * 5 + check;
}

__attribute__((patchable_function_entry(5))) PROBED uint64_t
work_nops(uint64_t thread, uint64_t seq, uint64_t check)
{
	return mix(thread ^ check) + seq;
}

/* Two arguments on the stack. */
PROBED uint64_t work_many(uint64_t thread, uint64_t seq, uint64_t c, uint64_t d, uint64_t e,
			  uint64_t f, uint64_t g, uint64_t h)
{
	return thread + 2 * seq + 3 * c + 5 * d + 7 * e + 11 * f + 13 * g + 17 * h;
}

/* %al, the number of vector registers used, is read at the entry. */
PROBED double work_varargs(uint64_t thread, uint64_t seq, int count, ...)
{
	va_list arguments;
	double sum = (double)thread + (double)seq;
	va_start(arguments, count);
	for (int i = 0; i < count; i++)
		sum += va_arg(arguments, double) * va_arg(arguments, int);
	va_end(arguments);
	return sum;
}

PROBED double work_float(uint64_t thread, uint64_t seq, double x, float y)
{
	return x * (double)thread + (double)y * (double)seq + x;
}

/* A jump table; the cases do different things, lest it become a table of values. */
PROBED uint64_t work_switch(uint64_t thread, uint64_t seq, uint64_t check)
{
	switch (seq % 11) {
	case 0: return step(check);
	case 1: return thread + check;
	case 2: return step(thread) ^ check;
	case 3: return check * 3;
	case 4: return step(check + 4) + thread;
	case 5: return thread - check;
	case 6: return ~step(check);
	case 7: return check << 7 | check >> 57;
	case 8: return step(seq) + check;
	case 9: return thread * check;
	default: return step(seq ^ check) - 1;
	}
}

/*
 * work_short: instructions of 2 and 3 bytes; sums its arguments.
 * work_loop:  its loop begins at byte 2, inside any jump put at its start;
 *             check + 3 * (thread + seq).
 * work_ret:   one byte.
 */
__asm__(".text\n"
	".p2align 4\n"
	".globl work_short\n"
	".type work_short,@function\n"
	"work_short:\n"
	"	xorl %eax, %eax\n"
	"	addq %rdi, %rax\n"
	"	addq %rsi, %rax\n"
	"	addq %rdx, %rax\n"
	"	ret\n"
	".size work_short, .-work_short\n"
	".p2align 4\n"
	".globl work_loop\n"
	".type work_loop,@function\n"
	"work_loop:\n"
	"	movb $3, %cl\n"
	"1:	addq %rdi, %rdx\n"
	"	addq %rsi, %rdx\n"
	"	decb %cl\n"
	"	jnz 1b\n"
	"	movq %rdx, %rax\n"
	"	ret\n"
	".size work_loop, .-work_loop\n"
	".p2align 4\n"
	".globl work_ret\n"
	".type work_ret,@function\n"
	"work_ret:\n"
	"	ret\n"
	".size work_ret, .-work_ret\n"
	".p2align 4\n");

/* ---- what they must give, computed without them --------------------------------- */

static inline uint64_t expect_work(uint64_t thread, uint64_t seq, uint64_t check)
{
	uint64_t a = mix(thread + check);
	return a + mix(seq ^ a) + thread * 3 + seq * 5 + check;
}

static uint64_t expect_switch(uint64_t thread, uint64_t seq, uint64_t check)
{
	uint64_t values[11] = { mix(check), thread + check, mix(thread) ^ check, check * 3,
		mix(check + 4) + thread, thread - check, ~mix(check), check << 7 | check >> 57,
		mix(seq) + check, thread * check, mix(seq ^ check) - 1 };
	return values[seq % 11];
}

#define SAME(what, got, expected) \
	do { \
		if ((got) != (expected)) \
			BAD("%s thread %llu seq %llu: got %llx, expected %llx", what, \
			    (unsigned long long)thread, (unsigned long long)seq, \
			    (unsigned long long)(got), (unsigned long long)(expected)); \
	} while (0)

static void call_work(uint64_t thread, uint64_t seq)
{
	uint64_t check = seq * 0x10001 + thread;
	uint64_t got = work(thread, seq, check);
	SAME("work", got, expect_work(thread, seq, check));
}

static void call_all(uint64_t thread, uint64_t seq)
{
	uint64_t check = mix(seq + 77) ^ thread;
	uint64_t got;
	call_work(thread, seq);
	got = work_short(thread, seq, check);
	SAME("work_short", got, thread + seq + check);
	got = work_nops(thread, seq, check);
	SAME("work_nops", got, mix(thread ^ check) + seq);
	got = work_loop(thread, seq, check);
	SAME("work_loop", got, check + 3 * (thread + seq));
	got = work_many(thread, seq, check, 4, 5, check + 6, 7, check ^ 8);
	SAME("work_many", got, thread + 2 * seq + 3 * check + 55 + 11 * (check + 6) + 91 + 17 * (check ^ 8));
	got = work_switch(thread, seq, check);
	SAME("work_switch", got, expect_switch(thread, seq, check));
	/* small enough that doubles hold the sums exactly */
	uint64_t small = seq % 100000;
	double real = work_varargs(thread, seq, 3, 0.5, 4, 0.25, 8, (double)small, 2);
	if (real != (double)thread + (double)seq + 4.0 + 2.0 * (double)small)
		BAD("work_varargs thread %llu seq %llu: got %f", (unsigned long long)thread,
		    (unsigned long long)seq, real);
	real = work_float(thread, seq, (double)small, 0.5f);
	if (real != (double)small * (double)thread + 0.5 * (double)seq + (double)small)
		BAD("work_float thread %llu seq %llu: got %f", (unsigned long long)thread,
		    (unsigned long long)seq, real);
	work_ret(thread, seq);
}

/* ---- threads ----------------------------------------------------------------- */

static int threads = 4;
static double seconds;
static uint64_t calls_limit, pause_count, sleep_us;
static int with_signals, with_fork, with_segv, with_rest, block_sigtrap;
static const char *library;
static volatile int stop;
static uint64_t calls_of[MAX_THREADS], signals_of[MAX_THREADS];
static __thread int self = -1;

static void on_timer(int signal)
{
	(void)signal;
	int saved = errno;
	if (self >= 0)
		call_work(10000 + (uint64_t)self, signals_of[self]++);
	errno = saved;
}

/* Signals of its own for this thread; every other thread takes them on another stack. */
static timer_t start_timer(void)
{
	if (self % 2) {
		stack_t stack = { .ss_sp = malloc(65536), .ss_size = 65536 };
		CHECK(stack.ss_sp && sigaltstack(&stack, NULL) == 0);
	}
	struct sigevent event;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGRTMIN;
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
	event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	timer_t timer;
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	long every = 300000L * threads; /* ns: as many a second whatever the threads */
	struct itimerspec spec = { { every / 1000000000, every % 1000000000 },
				   { every / 1000000000, every % 1000000000 } };
	CHECK(timer_settime(timer, 0, &spec, NULL) == 0);
	return timer;
}

static void set_sigtrap(int how)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTRAP);
	CHECK(pthread_sigmask(how, &set, NULL) == 0);
}

static void check_sigtrap_is_blocked(void)
{
	sigset_t set;
	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0);
	if (!sigismember(&set, SIGTRAP))
		BAD("SIGTRAP is not blocked any more");
}

static void *hammer(void *argument)
{
	self = (int)(intptr_t)argument;
	timer_t timer = 0;
	if (block_sigtrap)
		set_sigtrap(SIG_BLOCK);
	if (with_signals)
		timer = start_timer();
	uint64_t seq = 0;
	while (!stop && (!calls_limit || seq < calls_limit)) {
		call_all((uint64_t)self, seq++);
		for (volatile uint64_t i = 0; i < pause_count; i++)
			;
		if (sleep_us)
			usleep(sleep_us);
		if (with_rest)
			rest(seq);
	}
	calls_of[self] = seq;
	if (with_signals)
		CHECK(timer_delete(timer) == 0);
	if (block_sigtrap)
		check_sigtrap_is_blocked();
	return NULL;
}

static uint64_t forks;

static void *fork_children(void *unused)
{
	(void)unused;
	while (!stop || forks == 0) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			for (uint64_t seq = 0; seq < 1000; seq++)
				call_all(20000 + forks, seq);
			_exit(0);
		}
		int status;
		while (waitpid(child, &status, 0) < 0)
			CHECK(errno == EINTR);
		if (status != 0)
			BAD("child %llu ended with status %#x", (unsigned long long)forks, status);
		forks++;
		usleep(2000);
	}
	return NULL;
}

/* ---- handlers of the program's own -------------------------------------------- */

static sigjmp_buf back;
static __thread int in_segv_thread;
static char *forbidden;
static volatile uint64_t faults, traps, raised;
extern char own_int3_end[];

static void on_segv(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (signal != SIGSEGV || !in_segv_thread || info->si_addr != forbidden)
		BAD("a SIGSEGV that this program did not cause, at %p", info->si_addr);
	faults++;
	siglongjmp(back, 1);
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	if (signal != SIGTRAP || !in_segv_thread)
		BAD("a SIGTRAP that this program did not cause");
	if (info->si_code == SI_TKILL)
		raised++;
	else if ((char *)user->uc_mcontext.gregs[REG_RIP] == own_int3_end)
		traps++;
	else
		BAD("a SIGTRAP at %#llx, code %d", (unsigned long long)user->uc_mcontext.gregs[REG_RIP],
		    info->si_code);
}

static void install_own_handlers(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_flags = SA_SIGINFO;
	action.sa_sigaction = on_segv;
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	action.sa_sigaction = on_trap;
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(forbidden != MAP_FAILED);
}

static void *fault_and_trap(void *unused)
{
	(void)unused;
	in_segv_thread = 1;
	set_sigtrap(SIG_UNBLOCK);
	volatile uint64_t rounds = 0;
	while (!stop || rounds == 0) {
		if (sigsetjmp(back, 1) == 0) {
			*(volatile char *)forbidden;
			BAD("the forbidden page could be read");
		}
		__asm__ volatile("int3\n.globl own_int3_end\nown_int3_end:" ::: "memory");
		raise(SIGTRAP);
		rounds++;
		if (faults != rounds || traps != rounds || raised != rounds)
			BAD("after %llu rounds %llu faults, %llu traps, %llu raised", (unsigned long long)rounds,
			    (unsigned long long)faults, (unsigned long long)traps, (unsigned long long)raised);
		usleep(200);
	}
	return NULL;
}

/* ---- libraries that come and go -------------------------------------------------- */

static uint64_t loads;

static void *load_and_unload(void *unused)
{
	(void)unused;
	uint64_t thread = 30000, seq = 0;
	while (!stop || loads == 0) {
		void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
		if (!handle)
			BAD("%s", dlerror());
		uint64_t (*library_work)(uint64_t, uint64_t, uint64_t);
		*(void **)&library_work = dlsym(handle, "library_work");
		if (!library_work)
			BAD("no library_work in %s", library);
		for (int i = 0; i < 1000; i++, seq++) {
			uint64_t got = library_work(thread, seq, 5);
			SAME("library_work", got, mix(thread + mix(seq)) + 5);
		}
		CHECK(dlclose(handle) == 0);
		loads++;
	}
	return NULL;
}

/* ---- */

static void usage(const char *word)
{
	fprintf(stderr, "hammer: what is %s?\n", word);
	exit(2);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		if (!strcmp(argv[i], "--threads"))
			threads = atoi(value), i++;
		else if (!strcmp(argv[i], "--seconds"))
			seconds = atof(value), i++;
		else if (!strcmp(argv[i], "--calls"))
			calls_limit = strtoull(value, NULL, 0), i++;
		else if (!strcmp(argv[i], "--pause"))
			pause_count = strtoull(value, NULL, 0), i++;
		else if (!strcmp(argv[i], "--sleep"))
			sleep_us = strtoull(value, NULL, 0), i++;
		else if (!strcmp(argv[i], "--dlopen"))
			library = value, i++;
		else if (!strcmp(argv[i], "--rest"))
			with_rest = 1;
		else if (!strcmp(argv[i], "--signals"))
			with_signals = 1;
		else if (!strcmp(argv[i], "--fork"))
			with_fork = 1;
		else if (!strcmp(argv[i], "--segv"))
			with_segv = 1;
		else if (!strcmp(argv[i], "--block-sigtrap"))
			block_sigtrap = 1;
		else
			usage(argv[i]);
	}
	if (threads < 1 || threads > MAX_THREADS)
		usage("that number of threads");
	stop_on_sigterm();
	if (block_sigtrap)
		set_sigtrap(SIG_BLOCK);
	if (with_segv)
		install_own_handlers();
	if (with_signals) {
		struct sigaction action;
		memset(&action, 0, sizeof action);
		action.sa_handler = on_timer;
		action.sa_flags = SA_RESTART | SA_ONSTACK;
		CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
	}
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 * 1024);
	pthread_t hammers[MAX_THREADS], others[3];
	int n = 0;
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&hammers[i], &attributes, hammer, (void *)(intptr_t)i) == 0);
	if (with_fork)
		CHECK(pthread_create(&others[n++], &attributes, fork_children, NULL) == 0);
	if (with_segv)
		CHECK(pthread_create(&others[n++], &attributes, fault_and_trap, NULL) == 0);
	if (library)
		CHECK(pthread_create(&others[n++], &attributes, load_and_unload, NULL) == 0);
	ready();
	if (!calls_limit)
		wait_for_stop(seconds);
	if (!calls_limit)
		stop = 1;
	uint64_t sum = 0, signals = 0;
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(hammers[i], NULL) == 0);
	stop = 1;
	for (int i = 0; i < n; i++)
		CHECK(pthread_join(others[i], NULL) == 0);
	if (block_sigtrap)
		check_sigtrap_is_blocked();
	for (int i = 0; i < threads; i++) {
		printf("thread %d calls %llu\n", i, (unsigned long long)calls_of[i]);
		if (with_signals)
			printf("thread %d calls %llu\n", 10000 + i, (unsigned long long)signals_of[i]);
		sum += calls_of[i];
		signals += signals_of[i];
	}
	if (with_fork)
		printf("forks %llu\n", (unsigned long long)forks);
	if (library)
		printf("loads %llu\n", (unsigned long long)loads);
	if (with_segv)
		printf("faults %llu\n", (unsigned long long)faults);
	if (with_signals)
		printf("signals %llu\n", (unsigned long long)signals);
	printf("ok calls=%llu\n", (unsigned long long)sum);
	return 0;
}
