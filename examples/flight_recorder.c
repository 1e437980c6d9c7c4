/*
 * A flight recorder: each thread keeps its latest calls of two functions, in records of 64 bytes in
 * a ring of its own. The rings are written at the end, which SIGTERM brings, and on SIGUSR1.
 *
 *   cc -O2 -g -pthread -o flight_recorder flight_recorder.c $(pkg-config --cflags --libs capriole)
 *   ./flight_recorder 10 & sleep 1; kill -USR1 $!
 */
#include <capriole/probe.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define THREADS 2
#define RECORDS 1024 /* of a thread: a power of two */

struct record {
	uint64_t time; /* ticks of the time stamp counter */
	uint32_t thread, event;
	uint64_t arguments[6];
};
_Static_assert(sizeof(struct record) == 64, "a cache line");

static struct ring {
	uint64_t count;
	struct record records[RECORDS];
} rings[THREADS];
/* Set by each thread for itself. Threads without a ring are not recorded. */
static __thread struct ring *ring;
static __thread uint32_t thread;

static CAPRIOLE_HANDLER int record(struct capriole_probe *p, struct capriole_regs *regs)
{
	if (!ring)
		return 0;
	struct record *r = &ring->records[ring->count % RECORDS];
	r->time = __rdtsc();
	r->thread = thread;
	r->event = (uint32_t)(uintptr_t)p->data;
	r->arguments[0] = regs->di, r->arguments[1] = regs->si, r->arguments[2] = regs->dx;
	r->arguments[3] = regs->cx, r->arguments[4] = regs->r8, r->arguments[5] = regs->r9;
	ring->count++;
	return 0;
}

static const char *const names[] = { "order_take", "order_ship" };
static struct capriole_probe take = { .symbol = "order_take", .pre = record, .data = (void *)0 };
static struct capriole_probe ship = { .symbol = "order_ship", .pre = record, .data = (void *)1 };
static struct capriole_probe *probes[] = { &take, &ship };

/* While a probe is disabled none of its handlers runs, so the rings stand still. */
static void dump(const char *why, unsigned latest)
{
	for (int i = 0; i < 2; i++)
		capriole_probe_disable(probes[i]);
	printf("%s:\n", why);
	for (struct ring *of = rings; of < rings + THREADS; of++)
		for (uint64_t i = of->count < latest ? 0 : of->count - latest; i < of->count; i++) {
			const struct record *r = &of->records[i % RECORDS];
			printf("  %llu thread %u %s %llu %llu\n", (unsigned long long)r->time, r->thread,
			       names[r->event], (unsigned long long)r->arguments[0],
			       (unsigned long long)r->arguments[1]);
		}
	fflush(stdout);
	for (int i = 0; i < 2; i++)
		capriole_probe_enable(probes[i]);
}

/* The program: clerks who take orders and ship them. */
static volatile sig_atomic_t closing, asked, ended;
#define STEP __attribute__((noinline, noclone))
STEP void order_take(long id, long customer) { __asm__ volatile("" : : "r"(id), "r"(customer)); }
STEP void order_ship(long id, long cents) { __asm__ volatile("" : : "r"(id), "r"(cents)); }

static void *clerk(void *number)
{
	ring = &rings[(long)number];
	thread = (uint32_t)syscall(SYS_gettid);
	for (long id = (long)number; !closing; id += THREADS) {
		order_take(id, id * 31 % 500);
		usleep(1000);
		order_ship(id, 199 + id * 7919 % 10000);
	}
	return NULL;
}

static void ask(int signal)
{
	if (signal == SIGUSR1)
		asked = 1;
	else
		ended = 1;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	signal(SIGUSR1, ask);
	signal(SIGTERM, ask);
	if (capriole_probes_register(probes, 2) < 0) {
		fprintf(stderr, "%s\n", capriole_error());
		return 1;
	}
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, clerk, (void *)i) != 0)
			return 1;
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	for (struct timespec tick = { 0, 10000000 }; seconds > 0 && !ended; seconds -= 0.01) {
		nanosleep(&tick, NULL);
		if (asked) {
			asked = 0;
			dump("asked for", 3);
		}
	}
	closing = 1;
	for (long i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	dump("at the end", 3);
	return capriole_probes_unregister(probes, 2) < 0;
}
