/* Intervals between two functions, which this program counts and measures itself.
 *
 * intervals script STEP...   one step after the other:
 *   b3 f3      begin, or finish, request 3; b3@2 does it in thread 2
 *   n          a request without a key: the pointer cannot be followed
 *   W          waits for a byte on standard input, or its end
 *   F STEP     forks; the child makes this step and ends
 * intervals queue THREADS REQUESTS   threads begin requests, other threads finish them; prints for each
 *   kind of request: KIND COUNT INSIDE AROUND, the times in ns from behind `begin` to before `finish`, and
 *   from before `begin` to behind `finish`
 * intervals killed CHILDREN REQUESTS   begins and finishes requests of kind 5, while children do the same
 *   with requests of kind 1, and are killed one after the other
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <capriole/marker.h>

struct request {
	long kind;
	unsigned int id;
	char name[8];
	unsigned long before, behind; /* the call of begin */
};

__attribute__((noinline)) void begin(struct request *request, long kind, unsigned int id)
{
	CAPRIOLE_MARK(intervals, begin, "request=%p kind=%ld", request, kind);
	__asm__ volatile("" :: "r"(request), "r"(kind), "r"(id) : "memory");
}

__attribute__((noinline)) int finish(struct request *request, unsigned int id)
{
	CAPRIOLE_MARK(intervals, finish, "request=%p", request);
	__asm__ volatile("" :: "r"(request) : "memory");
	return (int)id + 1;
}

/* Returns the request: intervals may start at its return. */
__attribute__((noinline)) struct request *create(struct request *request)
{
	__asm__ volatile("" : "+r"(request));
	return request;
}

__attribute__((noinline)) void tick(long n)
{
	__asm__ volatile("" :: "r"(n) : "memory");
}

static unsigned long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC_RAW, &time);
	return time.tv_sec * 1000000000ul + time.tv_nsec;
}

/* Scripts. */

static struct request requests[100];

static void step(const char *word)
{
	unsigned int id = (unsigned int)atoi(word + 1);
	struct request *request = &requests[id % 100];
	request->id = id;
	switch (*word) {
	case 'b':
		create(request);
		begin(request, id % 4, id);
		break;
	case 'f': finish(request, id); break;
	case 't': tick(id); break;
	case 'n': begin((struct request *)8, 0, 0); break;
	case 'N': finish((struct request *)8, 0); break;
	case 'W': getchar(); break;
	}
}

static struct worker {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	const char *word;
} workers[10];

static void *work(void *argument)
{
	struct worker *own = argument;
	pthread_mutex_lock(&own->lock);
	for (;;) {
		while (!own->word)
			pthread_cond_wait(&own->changed, &own->lock);
		step(own->word);
		own->word = 0;
		pthread_cond_broadcast(&own->changed);
	}
	return 0;
}

static void step_in(int number, const char *word)
{
	struct worker *worker = &workers[number % 10];
	if (!worker->thread) {
		pthread_mutex_init(&worker->lock, 0);
		pthread_cond_init(&worker->changed, 0);
		pthread_create(&worker->thread, 0, work, worker);
	}
	pthread_mutex_lock(&worker->lock);
	worker->word = word;
	pthread_cond_broadcast(&worker->changed);
	while (worker->word)
		pthread_cond_wait(&worker->changed, &worker->lock);
	pthread_mutex_unlock(&worker->lock);
}

static void script(char **words)
{
	for (; *words; words++) {
		const char *at = strchr(*words, '@');
		if (**words == 'F') {
			pid_t child = fork();
			words++;
			if (!child) {
				step(*words);
				_exit(0);
			}
			waitpid(child, 0, 0);
		} else if (at) {
			step_in(atoi(at + 1), *words);
		} else {
			step(*words);
		}
	}
}

/* Queues: each has a thread that begins, and one that finishes. */

#define ROOM 16
struct queue {
	pthread_t ends[2];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct request *waiting[ROOM];
	long count, taken, requests;
};

static pthread_mutex_t sums = PTHREAD_MUTEX_INITIALIZER;
static unsigned long counts[4], inside[4], around[4];

static void *begins(void *argument)
{
	struct queue *queue = argument;
	for (long n = 0; n < queue->requests; n++) {
		struct request *request = calloc(1, sizeof *request);
		request->kind = n % 4;
		request->id = (unsigned int)n;
		request->before = now();
		begin(request, request->kind, request->id);
		request->behind = now();
		pthread_mutex_lock(&queue->lock);
		while (queue->count - queue->taken == ROOM)
			pthread_cond_wait(&queue->changed, &queue->lock);
		queue->waiting[queue->count++ % ROOM] = request;
		pthread_cond_broadcast(&queue->changed);
		pthread_mutex_unlock(&queue->lock);
	}
	return 0;
}

static void *finishes(void *argument)
{
	struct queue *queue = argument;
	for (long n = 0; n < queue->requests; n++) {
		pthread_mutex_lock(&queue->lock);
		while (queue->count == queue->taken)
			pthread_cond_wait(&queue->changed, &queue->lock);
		struct request *request = queue->waiting[queue->taken++ % ROOM];
		pthread_cond_broadcast(&queue->changed);
		pthread_mutex_unlock(&queue->lock);
		unsigned long from = now();
		finish(request, request->id);
		unsigned long to = now();
		pthread_mutex_lock(&sums);
		counts[request->kind]++;
		inside[request->kind] += from - request->behind;
		around[request->kind] += to - request->before;
		pthread_mutex_unlock(&sums);
		free(request);
	}
	return 0;
}

static void queues(long threads, long number)
{
	struct queue *all = calloc((size_t)threads, sizeof *all);
	for (long t = 0; t < threads; t++) {
		struct queue *queue = &all[t];
		pthread_mutex_init(&queue->lock, 0);
		pthread_cond_init(&queue->changed, 0);
		queue->requests = number;
		pthread_create(&queue->ends[0], 0, begins, queue);
		pthread_create(&queue->ends[1], 0, finishes, queue);
	}
	for (long t = 0; t < threads; t++)
		for (int end = 0; end < 2; end++)
			pthread_join(all[t].ends[end], 0);
	for (long kind = 0; kind < 4; kind++)
		printf("%ld %lu %lu %lu\n", kind, counts[kind], inside[kind], around[kind]);
}

/* Children. */

static void killed(long children, long number)
{
	for (long c = 0; c < children; c++) {
		pid_t child = fork();
		if (!child) {
			for (unsigned int n = 0;; n++) {
				begin(&requests[n % 8], 1, n);
				if (n >= 4)
					finish(&requests[(n - 4) % 8], n);
			}
		}
		for (long n = 0; n < number; n++) {
			begin(&requests[n % 8], 5, (unsigned int)n);
			finish(&requests[n % 8], (unsigned int)n);
		}
		usleep((useconds_t)(c * 37 % 500));
		kill(child, SIGKILL);
		waitpid(child, 0, 0);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "script"))
		script(argv + 2);
	else if (argc == 4 && !strcmp(argv[1], "queue"))
		queues(atol(argv[2]), atol(argv[3]));
	else if (argc == 4 && !strcmp(argv[1], "killed"))
		killed(atol(argv[2]), atol(argv[3]));
	else
		return 2;
	return 0;
}
