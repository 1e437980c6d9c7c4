/*
 * Threads in calls with a time limit, each of which measures how long its call took: none
 * may end early, or much later than asked. It checks its own timing, however often it is
 * stopped meanwhile.
 *
 *   timed [--filter] [--milliseconds MOST]
 *
 * With --filter its system calls are filtered: those that it makes itself are allowed, and
 * all others, restart_syscall among them, kill it.
 *
 * "ready PID" comes when all threads run. The end of the input ends it: "ok N calls", with
 * "late" when a call was more than 200 ms longer than asked (on a busy machine that can be
 * the machine's doing: the caller says whether it counts).
 */
#include "common.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>

static volatile int ending, failed;
static int most = 1200;
static long calls, latest;
static int silent[2];
static int word;

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static struct timespec span(long long ns) { return (struct timespec){ ns / 1000000000, ns % 1000000000 }; }

static int by_nanosleep(long long ns) { struct timespec t = span(ns); return nanosleep(&t, NULL); }
static int by_clock(long long ns)
{
	struct timespec t = span(ns), left;
	int error = clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &left);
	return error ? errno = error, -1 : 0;
}
static int by_poll(long long ns)
{
	struct pollfd one = { .fd = silent[0], .events = POLLIN };
	return poll(&one, 1, (ns + 999999) / 1000000);
}
static int by_ppoll(long long ns)
{
	struct timespec t = span(ns);
	struct pollfd one = { .fd = silent[0], .events = POLLIN };
	return ppoll(&one, 1, &t, NULL);
}
static int by_select(long long ns)
{
	struct timeval t = { ns / 1000000000, ns % 1000000000 / 1000 + 1 };
	fd_set set;
	FD_ZERO(&set);
	FD_SET(silent[0], &set);
	return select(silent[0] + 1, &set, NULL, NULL, &t);
}
static int by_futex(long long ns)
{
	struct timespec t = span(ns);
	int result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
	return result < 0 && errno == ETIMEDOUT ? 0 : result;
}
static int by_condition(long long ns)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	long long end = t.tv_sec * 1000000000ll + t.tv_nsec + ns;
	t = span(end);
	pthread_mutex_lock(&mutex);
	int error = pthread_cond_timedwait(&condition, &mutex, &t);
	pthread_mutex_unlock(&mutex);
	return error == ETIMEDOUT ? 0 : error ? errno = error, -1 : 1;
}

static const struct {
	const char *name;
	int (*wait)(long long ns);
} kinds[] = {
	{ "nanosleep", by_nanosleep }, { "clock_nanosleep", by_clock }, { "poll", by_poll }, { "ppoll", by_ppoll },
	{ "select", by_select },       { "futex", by_futex },           { "condition", by_condition },
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static void *sleep_in(void *argument)
{
	size_t kind = (size_t)argument;
	unsigned seed = kind * 7919 + 1;
	while (!ending) {
		seed = seed * 1103515245 + 12345;
		long long asked = (seed >> 8) % most * 1000000ll + 300000; /* from 0.3 ms on */
		long long began = now();
		int result = kinds[kind].wait(asked);
		int error = errno;
		long long took = now() - began;
		/* The kernel rounds to its own grain, some of them downwards by one. */
		if (result || took < asked - 1000000) {
			printf("%s of %lld us returned %d (%s) after %lld us\n", kinds[kind].name, asked / 1000, result,
			       result < 0 ? strerror(error) : "early", took / 1000);
			failed = 1;
		}
		long late = took - asked;
		__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
		if (late > __atomic_load_n(&latest, __ATOMIC_RELAXED))
			__atomic_store_n(&latest, late, __ATOMIC_RELAXED);
		if (late > 200000000)
			printf("late: %s of %lld us took %lld us\n", kinds[kind].name, asked / 1000, took / 1000);
	}
	return NULL;
}

/* Waits without a limit for what comes at the end only. */
static void *wait_for_end(void *unused)
{
	(void)unused;
	struct pollfd one = { .fd = silent[0], .events = POLLIN };
	int result = poll(&one, 1, -1);
	if (result != 1 || !ending) {
		printf("poll without a limit returned %d\n", result);
		failed = 1;
	}
	return NULL;
}

static void filter(void)
{
	static const int allowed[] = { SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_nanosleep, SYS_clock_nanosleep,
				       SYS_poll, SYS_ppoll, SYS_pselect6, SYS_select, SYS_futex, SYS_rt_sigreturn,
				       SYS_clock_gettime, SYS_madvise, SYS_munmap, SYS_rt_sigprocmask, SYS_close,
				       SYS_newfstatat, SYS_brk, SYS_mmap, SYS_mprotect, SYS_rseq, SYS_set_robust_list };
	enum { N = sizeof allowed / sizeof allowed[0] };
	struct sock_filter code[N + 3];
	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < N; i++)
		code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], N - i, 0);
	code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { N + 3, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
		perror("seccomp");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int filtered = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--filter"))
			filtered = 1;
		else if (!strcmp(argv[i], "--milliseconds") && i + 1 < argc)
			most = atoi(argv[++i]);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	pthread_t thread[KINDS], end;
	if (pipe(silent))
		return 1;
	for (size_t i = 0; i < KINDS; i++)
		pthread_create(&thread[i], NULL, sleep_in, (void *)i);
	pthread_create(&end, NULL, wait_for_end, NULL);
	int pid = getpid();
	if (filtered)
		filter();
	printf("ready %d\n", pid);
	char c;
	while (read(0, &c, 1) > 0)
		;
	for (size_t i = 0; i < KINDS; i++) {
		ending = 1;
		pthread_join(thread[i], NULL);
	}
	if (write(silent[1], "", 1) != 1)
		return 1;
	pthread_join(end, NULL);
	if (failed)
		return 1;
	printf("latest by %ld us\n", latest / 1000);
	printf("ok %ld calls%s\n", calls, latest > 200000000 ? " late" : "");
	return 0;
}
