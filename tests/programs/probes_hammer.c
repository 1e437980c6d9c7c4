/*
 * Registers and unregisters probes at random instructions while threads run through them:
 * `probes_hammer SITES CYCLES SEED [beside]`. With the last word recorders may have probes at some of
 * these, and "ready" is printed. SITES is a file with the offset of an instruction in a line, from
 * the function `work_begin` on, which begins before all others of the section.
 *
 * Each of the threads gets a thousand signals a second, whose handler does the same as they do. All
 * results are checked, and one function is always probed: its hits and what was missed are as many as
 * its calls.
 */
#include "probes.h"

#include <pthread.h>
#include <sys/syscall.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define THREADS 8
#define PROBES 64
#define MAX_SITES 20000
#define WORK __attribute__((noipa, used, section("work_code")))

WORK uint64_t work_begin(uint64_t a, uint64_t b)
{
	return a * 3 + b;
}

static uint64_t table[256];

/* Shapes of functions, each for several numbers: branches, a loop, a jump table, calls, memory,
 * strings, vector registers. */
#define BRANCHES(n) \
	WORK static uint64_t branches_##n(uint64_t a, uint64_t b) \
	{ \
		uint64_t x = a; \
		if (x & (1 << (n % 7))) \
			x += b * n + 5; \
		if ((x ^ b) & (2 << (n % 5))) \
			x ^= 0x1234567 * n; \
		return x * (n + 3) - b; \
	}
#define LOOP(n) \
	WORK static uint64_t loop_##n(uint64_t a, uint64_t b) \
	{ \
		uint64_t x = a + n; \
		for (uint64_t i = 0; i < (b & 7) + 1; i++) \
			x = (x << 1 | x >> 63) ^ (i * n + 1); \
		return x; \
	}
#define CHOICE(n) \
	WORK static uint64_t choice_##n(uint64_t a, uint64_t b) \
	{ \
		switch ((a + b + n) % 7) { \
		case 0: return a * b + n; \
		case 1: return (a ^ b) - n; \
		case 2: return table[(a + n) & 255]; \
		case 3: return a << (n & 7); \
		case 4: return b >> 3 | a << 7; \
		case 5: return a - b * n; \
		default: return n * 77; \
		} \
	}
#define CALLS(n) \
	WORK static uint64_t calls_##n(uint64_t a, uint64_t b) \
	{ \
		uint64_t x = branches_##n(a, b + 1); \
		return loop_##n(x, b) + choice_##n(x ^ a, n); \
	}
#define TAIL(n) \
	WORK static uint64_t tail_##n(uint64_t a, uint64_t b) \
	{ \
		if (a & 1) \
			return choice_##n(b, a); \
		return branches_##n(b, a + n); \
	}
#define STRINGS(n) \
	WORK static uint64_t strings_##n(uint64_t a, uint64_t b) \
	{ \
		uint64_t from[6], to[6], x = n; \
		for (int i = 0; i < 6; i++) \
			from[i] = a * (i + n) + b; \
		void *d = to, *s = from; \
		size_t size = sizeof to; \
		__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(size) : : "memory"); \
		for (int i = 0; i < 6; i++) \
			x = x * 31 + to[i]; \
		return x; \
	}
#define VECTORS(n) \
	WORK static uint64_t vectors_##n(uint64_t a, uint64_t b) \
	{ \
		double x = (double)(a % 1000), y = (double)(b % 1000 + n); \
		for (int i = 0; i < 3; i++) \
			x = x * 0.5 + y; \
		return (uint64_t)(x * 1000) + (a > b); \
	}
#define ALL(n) BRANCHES(n) LOOP(n) CHOICE(n) CALLS(n) TAIL(n) STRINGS(n) VECTORS(n)
ALL(1) ALL(2) ALL(3) ALL(4) ALL(5) ALL(6) ALL(7) ALL(8) ALL(9) ALL(10) ALL(11) ALL(12)

#define NAMES(n) \
	branches_##n, loop_##n, choice_##n, calls_##n, tail_##n, strings_##n, vectors_##n,

typedef uint64_t function(uint64_t, uint64_t);
static function *const functions[] = {
	work_begin, NAMES(1) NAMES(2) NAMES(3) NAMES(4) NAMES(5) NAMES(6) NAMES(7) NAMES(8) NAMES(9)
	NAMES(10) NAMES(11) NAMES(12)
};
#define FUNCTIONS (sizeof functions / sizeof *functions)
static uint64_t expected[FUNCTIONS];

static struct counts {
	unsigned long calls, calls_in_signals, hits, signals;
	char apart[96];
} counts[THREADS + 1];
static __thread struct counts *own = &counts[THREADS];
static volatile int over;
static unsigned long others, posts;

static unsigned long now(unsigned long *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static int always(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	own->hits++;
	return 0;
}

static int some(struct capriole_probe *p, struct capriole_regs *regs)
{
	/* an endbr64 may stand at the address */
	if (regs->ip - (uint64_t)p->address > 4)
		BAD("ip is %lx at %p", regs->ip, p->address);
	__atomic_fetch_add(&others, 1, __ATOMIC_RELAXED);
	return 0;
}

static int some_vectors(struct capriole_probe *p, struct capriole_regs *regs)
{
	volatile double x = (double)regs->ip;
	x *= 2.5;
	return some(p, regs);
}

static void some_post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	__atomic_fetch_add(&posts, 1, __ATOMIC_RELAXED);
}

static uint64_t argument(size_t i)
{
	return i * 0x9e3779b97f4a7c15u >> 8;
}

static void check(size_t i)
{
	uint64_t result = functions[i](argument(i), i * 3 + 1);
	if (result != expected[i])
		BAD("function %zu returns %lx, not %lx", i, result, expected[i]);
}

static void on_signal(int signal)
{
	(void)signal;
	int error = errno;
	own->signals++;
	own->calls_in_signals++;
	check(0);
	check(1 + own->signals % (FUNCTIONS - 1));
	errno = error;
}

static void *run(void *argument)
{
	own = &counts[(size_t)argument];
	struct sigevent event;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGUSR1;
	event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
	struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } };
	timer_t timer;
	CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECK(!timer_settime(timer, 0, &often, NULL));
	while (!over) {
		for (size_t i = 0; i < FUNCTIONS; i++) {
			if (i == 0)
				own->calls++;
			check(i);
		}
	}
	CHECK(!timer_delete(timer));
	return NULL;
}

static unsigned sites[MAX_SITES];
static size_t site_count;

static void read_sites(const char *path)
{
	FILE *file = fopen(path, "r");
	CHECK(file);
	while (site_count < MAX_SITES && fscanf(file, "%u", &sites[site_count]) == 1)
		site_count++;
	fclose(file);
	CHECK(site_count > 500);
}

static uint64_t random_state;
static unsigned below(unsigned limit)
{
	return (unsigned)(mix(random_state += 0x9e3779b97f4a7c15u) >> 16) % limit;
}

/* True if a probe is refused because of a recorder that is there too. */
static int is_recorders(int result, int beside)
{
	return beside && (result == -EOPNOTSUPP || result == -EAGAIN) && strstr(capriole_error(), "a recorder");
}

int main(int argc, char **argv)
{
	static struct capriole_probe first = { .pre = always }, probes[PROBES];
	static struct capriole_probe second = { .pre = some };
	unsigned in[PROBES] = { 0 };
	unsigned long refused = 0, made = 0, switched = 0;
	CHECK(argc > 3);
	int beside = argc > 4;
	unsigned long recorders = 0;
	read_sites(argv[1]);
	long cycles = atol(argv[2]);
	random_state = strtoull(argv[3], NULL, 10);
	for (size_t i = 0; i < 256; i++)
		table[i] = argument(i + 1000);
	for (size_t i = 0; i < FUNCTIONS; i++)
		expected[i] = functions[i](argument(i), i * 3 + 1);
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	action.sa_flags = SA_RESTART;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	first.address = second.address = (void *)functions[0];
	OK(capriole_probe_register(&first));
	pthread_t threads[THREADS];
	for (size_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, run, (void *)i));
	if (beside)
		ready();
	uint64_t start = now_ns();
	for (long cycle = 0; cycle < cycles; cycle++) {
		unsigned i = below(PROBES);
		struct capriole_probe *p = &probes[i];
		if (in[i] && below(4) == 0) {
			if (below(2))
				OK(capriole_probe_disable(p));
			else if (is_recorders(capriole_probe_enable(p), beside))
				recorders++;
			else
				OK(capriole_probe_enable(p));
			switched++;
		} else if (in[i]) {
			OK(capriole_probe_unregister(p));
			in[i] = 0;
		} else {
			*p = (struct capriole_probe){ .pre = below(4) ? some : some_vectors };
			p->address = (char *)work_begin + sites[below((unsigned)site_count)];
			p->post = below(4) ? NULL : some_post;
			p->flags = (below(8) ? 0 : CAPRIOLE_NO_OPTIMIZE) | (below(16) ? 0 : CAPRIOLE_DISABLED);
			int result = capriole_probe_register(p);
			if (is_recorders(result, beside)) {
				recorders++;
			} else if (result == -EOPNOTSUPP) {
				if (refused++ < 3)
					printf("refused: %s\n", capriole_error());
			} else {
				OK(result);
				in[i] = 1;
				made++;
			}
		}
		if (below(16) == 0) {
			OK(capriole_probe_register(&second));
			OK(capriole_probe_unregister(&second));
		}
		if (below(64) == 0)
			OK(capriole_optimize(below(20)));
		if (below(256) == 0) {
			OK(capriole_optimization(0));
			OK(capriole_optimization(1));
		}
		if (below(512) == 0)
			usleep(below(100000));
	}
	/* This thread may have had the processor all the time: now the others get it. */
	struct capriole_probe last = { .address = (void *)functions[0], .pre = some, .post = some_post };
	int result = capriole_probe_register(&last);
	if (is_recorders(result, beside)) {
		recorders++;
	} else {
		OK(result);
		unsigned long others_before = now(&others), posts_before = now(&posts);
		UNTIL(now(&others) > others_before && now(&posts) > posts_before);
		OK(capriole_probe_unregister(&last));
	}
	for (size_t i = 0; i < THREADS; i++)
		UNTIL(now(&counts[i].signals));
	double seconds = (double)(now_ns() - start) / 1e9;
	over = 1;
	for (size_t i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	unsigned long calls = 0, hits = 0, signals = 0;
	for (size_t i = 0; i <= THREADS; i++) {
		calls += counts[i].calls + counts[i].calls_in_signals;
		hits += counts[i].hits;
		signals += counts[i].signals;
	}
	unsigned long missed = capriole_probe_missed(&first);
	if (beside)
		printf("%lu refused because of a recorder\n", recorders);
	printf("%ld cycles in %.1f s: %lu registered, %lu refused, %lu switched; %lu calls, %lu hits, "
	       "%lu missed; %lu other hits, %lu posts, %lu signals\n",
	       cycles, seconds, made, refused, switched, calls, hits, missed, others, posts, signals);
	if (hits + missed != calls)
		BAD("%lu hits and %lu missed are not %lu calls", hits, missed, calls);
	CHECK(refused * 20 < made + 20 && others && posts && signals);
	for (unsigned i = 0; i < PROBES; i++)
		if (in[i])
			OK(capriole_probe_unregister(&probes[i]));
	OK(capriole_probe_unregister(&first));
	OK(capriole_finish());
	for (size_t i = 0; i < FUNCTIONS; i++)
		check(i);
	puts("ok");
	return 0;
}
