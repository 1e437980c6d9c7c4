/*
 * A program that filters its own system calls, and then makes none but those of its filter:
 * whoever makes another one in its threads is its end (SIGSYS, SIGKILL).
 *
 *   filtered HOW [wait]
 *
 * HOW it does so: prctl, syscall, inline, register (the number of the call is not in the
 * code), strict (seccomp's first mode), clock (no filter: it gives up the time stamp counter), thread (from
 * another thread, for all of them), held (so does it, after "working" and another line from standard input),
 * child (a forked child does, its parent does not), strict-child (so does one in strict mode), dispatch (system
 * calls are handed to the program itself while it works).
 *
 * Other ways, which say "ready PID" while system calls are redirected already, and work until SIGUSR1:
 * sleeps (allowed while it sleeps now and then), library (those of the C library are always allowed, and
 * others never), never (none is allowed).
 *
 * abandoned: its recorder has been killed, so it cannot give up the time stamp counter; it says "refused", waits
 * for a line, and can then, because the probes are out.
 *
 * With "wait" it says "ready PID" and waits for a line before it filters. It ends by saying
 * "ok calls=N": so often it has called work(), FILTERED times of that with the filter.
 */
#include "common.h"

#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FREE 2000
#define FILTERED 100000
#define WORKERS 2

static const char *volatile texts[2] = { "open", "filtered" };
static uint64_t calls;
static volatile int filtered, done, ended, started, created, installed;
static volatile long number = SYS_seccomp;

PROBED uint64_t work(const char *text, uint64_t n)
{
	return mix(n) + (uint64_t)text[0];
}

static void works(uint64_t times)
{
	for (uint64_t i = 0; i < times; i++) {
		const char *text = texts[filtered];
		if (work(text, i) != mix(i) + (uint64_t)text[0])
			BAD("work() gave something else");
	}
	__atomic_fetch_add(&calls, times, __ATOMIC_RELAXED);
}

#define ALLOW(call) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter filter[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	ALLOW(SYS_write),
	ALLOW(SYS_exit),
	ALLOW(SYS_exit_group),
	ALLOW(SYS_rt_sigreturn),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog program = { sizeof filter / sizeof *filter, filter };

static long raw(long call, long a, long b, const void *c)
{
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(call), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

static long constant(long a, long b, const void *c)
{
	long result;
	__asm__ volatile("mov $317, %%eax\n\tsyscall"
			 : "=a"(result)
			 : "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

static void *for_all(void *unused)
{
	(void)unused;
	while (!created)
		; /* whoever made it still makes system calls */
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
	installed = 1;
	for (;;)
		;
	return 0;
}

static void *worker(void *unused)
{
	(void)unused;
	__atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
	while (!done)
		works(1);
	__atomic_fetch_add(&ended, 1, __ATOMIC_RELAXED);
	for (;;)
		; /* it may not even exit: the C library would unmap its stack */
	return 0;
}

/* Its calls are handed to the program: a byte says when. */
static char selector;
static volatile int handed;

static void on_sigsys(int signal)
{
	(void)signal;
	handed++;
	selector = 0;
}

static void dispatch(void)
{
	CHECK(signal(SIGSYS, on_sigsys) != SIG_ERR);
	if (prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector)) {
		puts("skip");
		exit(0);
	}
	filtered = 1;
	for (int i = 0; i < FILTERED; i++) {
		selector = 1;
		works(1);
		selector = 0;
	}
	if (handed)
		BAD("%d system calls were not its own", handed);
}

static void on_usr1(int signal)
{
	(void)signal;
	selector = 0; /* the way back is a system call */
	done = 1;
}

static int text_of_libc(struct dl_phdr_info *info, size_t size, void *range)
{
	(void)size;
	if (!strstr(info->dlpi_name, "libc.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
			((uint64_t *)range)[0] = info->dlpi_addr + part->p_vaddr;
			((uint64_t *)range)[1] = part->p_memsz;
		}
	}
	return 1;
}

/* Says "ready" for this process, which may not, once its calls are redirected. */
static void says_ready(void)
{
	volatile char *is_on = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(is_on != MAP_FAILED);
	pid_t parent = getpid(), child = fork();
	CHECK(child >= 0);
	if (!child) {
		while (!*is_on)
			sched_yield();
		printf("ready %d\n", parent);
		fflush(stdout);
		_exit(0);
	}
	selector = 1;
	*is_on = 1;
}

static void redirected(const char *how)
{
	uint64_t range[2] = { 0, 0 };
	CHECK(signal(SIGSYS, on_sigsys) != SIG_ERR);
	CHECK(signal(SIGUSR1, on_usr1) != SIG_ERR);
	if (!strcmp(how, "library"))
		CHECK(dl_iterate_phdr(text_of_libc, range) && range[1]);
	CHECK(!prctl(59, 1, range[0], range[1], &selector));
	filtered = 1;
	says_ready();
	while (!done) {
		works(1000);
		if (!strcmp(how, "sleeps")) {
			selector = 0;
			usleep(200);
			selector = !done;
		}
	}
	selector = 0;
	if (handed)
		BAD("%d system calls were not its own", handed);
}

static void filter_by(const char *how)
{
	if (!strcmp(how, "prctl"))
		CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	else if (!strcmp(how, "syscall"))
		CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
	else if (!strcmp(how, "inline"))
		CHECK(!constant(SECCOMP_SET_MODE_FILTER, 0, &program));
	else if (!strcmp(how, "register"))
		CHECK(!raw(number, SECCOMP_SET_MODE_FILTER, 0, &program));
	else if (!strcmp(how, "clock"))
		CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
	else if (!strcmp(how, "strict"))
		CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
	else
		CHECK(!strcmp(how, "abandoned"));
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "prctl";
	char line[64];
	if (!strcmp(how, "sleeps") || !strcmp(how, "library") || !strcmp(how, "never")) {
		redirected(how);
		printf("ok calls=%llu\n", (unsigned long long)calls);
		return 0;
	}
	if (argc > 2) {
		printf("ready %d\n", getpid());
		fflush(stdout);
		CHECK(fgets(line, sizeof line, stdin));
	}
	if (!strcmp(how, "abandoned")) {
		/* the recorder was killed: the clock cannot be given up, and the program goes on */
		CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == -1 && errno == EINVAL);
		works(FREE);
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == -1 && errno == EINVAL);
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL) == -1 && errno == EINVAL);
		works(FREE);
		puts("refused");
		fflush(stdout);
		CHECK(fgets(line, sizeof line, stdin));
		/* its probes are out */
		CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
	}
	works(FREE);
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (!strcmp(how, "dispatch")) {
		dispatch();
	} else if (!strcmp(how, "thread") || !strcmp(how, "held")) {
		pthread_t thread;
		for (int i = 0; i < WORKERS; i++)
			CHECK(!pthread_create(&thread, 0, worker, 0));
		while (started < WORKERS)
			works(1);
		if (how[0] == 'h') {
			puts("working");
			fflush(stdout);
			CHECK(fgets(line, sizeof line, stdin));
		}
		CHECK(!pthread_create(&thread, 0, for_all, 0));
		created = 1;
		while (how[0] == 't' && !installed)
			works(1);
		works(FILTERED);
		done = 1;
		while (how[0] == 'h' && ended < WORKERS)
			; /* a worker may be held for a while */
		for (volatile int i = 0; i < 10000000; i++)
			;
	} else if (!strcmp(how, "child") || !strcmp(how, "strict-child")) {
		int strict = how[0] == 's';
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			filter_by(strict ? "strict" : "prctl");
			filtered = 1;
			works(FILTERED);
			if (strict)
				syscall(SYS_exit, 7); /* exit_group is not among its calls */
			_exit(7);
		}
		int status;
		works(FREE);
		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
			BAD("the child ended with %#x", status);
		works(FREE);
		calls += FILTERED;
	} else {
		filter_by(how);
		filtered = 1;
		works(FILTERED);
	}
	int length = snprintf(line, sizeof line, "ok calls=%llu\n", (unsigned long long)calls);
	if (write(1, line, (size_t)length) != length)
		return 1;
	if (!strcmp(how, "strict"))
		syscall(SYS_exit, 0); /* exit_group is not among its calls */
	_exit(0);
}
