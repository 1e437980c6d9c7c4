/*
 * A program that probes itself, and does with its descriptors, processes and signals what libraries
 * seldom expect.
 */
#include "probes_add.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;

/* Everything of the library, as it is before anything has happened. */
static void all_works(void)
{
	OK(capriole_probe_disable(&probe));
	is_hit(0);
	OK(capriole_probe_enable(&probe));
	is_hit(1);
	OK(capriole_probe_unregister(&probe));
	is_hit(0);
	OK(capriole_probe_register(&probe));
	is_hit(1);
	optimize(&probe);
	is_hit(1);
	OK(capriole_probe_unregister(&probe));
	is_hit(0);
}

/* The only descriptor that is a socket: of the connection to the helper. */
static int connection(void)
{
	struct stat is;
	for (int fd = 3; fd < 256; fd++)
		if (fstat(fd, &is) == 0 && S_ISSOCK(is.st_mode))
			return fd;
	BAD("there is no connection");
}

static int wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

/* The helper is nobody's child whom the program knows. */
static void waits(void)
{
	OK(capriole_probe_register(&probe));
	CHECK(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		_exit(7);
	int status;
	CHECK(wait(&status) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(wait(&status) == -1 && errno == ECHILD);
	optimize(&probe);
	all_works();
}

static volatile sig_atomic_t children;

static void on_child(int signal)
{
	(void)signal;
	children++;
}

static void no_sigchld(void)
{
	signal(SIGCHLD, on_child);
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	OK(capriole_probe_unregister(&probe));
	OK(capriole_finish());
	IS(children, 0);
}

static void sigchld_is_ignored(void)
{
	signal(SIGCHLD, SIG_IGN);
	OK(capriole_probe_register(&probe));
	is_hit(1);
	all_works();
}

/* All descriptors are closed, the connection as well. Probes stay; the next registration starts
 * another helper. */
static void closed_descriptors(void)
{
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	/* What the helper does when it notices, it has done soon. */
	usleep(100000);
	is_hit(1);
	FAILS(capriole_probe_status(&probe, NULL, 0), EPIPE, "the next registration starts another");
	is_hit(1);
	struct capriole_probe other = { .symbol = "add", .pre = count };
	OK(capriole_probe_register(&other));
	is_hit(2);
	OK(capriole_probe_unregister(&other));
	all_works();
}

/* The number of the connection becomes that of a file, and of a socket, of the program's own. */
static void reused_descriptor(void)
{
	char byte;
	int pair[2];
	struct stat is;
	for (int round = 0; round < 4; round++) {
		OK(capriole_probe_register(&probe));
		is_hit(1);
		int fd = connection(), own = -1, other = -1;
		close(fd);
		if (round & 1) {
			CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
			own = pair[0], other = pair[1];
		} else {
			char *name = temporary();
			own = mkstemp(name);
			CHECK(own >= 0 && unlink(name) == 0);
		}
		if (own != fd)
			CHECK(dup2(own, fd) == fd && close(own) == 0);
		if (round & 2) {
			is_hit(1);
			FAILS(capriole_probe_status(&probe, NULL, 0), EPIPE, "starts another");
			OK(capriole_probe_unregister(&probe));
			OK(capriole_probe_register(&probe));
		} else {
			struct capriole_probe p = { .symbol = "add", .pre = count };
			OK(capriole_probe_register(&p));
			is_hit(2);
			OK(capriole_probe_unregister(&p));
		}
		/* It is still open, and nothing was written to it. */
		CHECK(fstat(fd, &is) == 0);
		if (round & 1) {
			CHECK(S_ISSOCK(is.st_mode));
			CHECK(recv(other, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
			close(other);
		} else {
			CHECK(S_ISREG(is.st_mode) && is.st_size == 0);
		}
		close(fd);
		is_hit(1);
		all_works();
		OK(capriole_finish());
	}
}

/* A child does the same after a fork: the number is not its connection, but its parent's. */
static void reused_descriptor_in_a_child(void)
{
	struct stat is;
	OK(capriole_probe_register(&probe));
	int fd = connection();
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		close(fd);
		int null = open("/dev/null", O_RDWR);
		CHECK(null >= 0 && dup2(null, fd) == fd);
		all_works();
		CHECK(fstat(fd, &is) == 0 && S_ISCHR(is.st_mode));
		_exit(0);
	}
	IS(wait_for(child), 0);
	is_hit(1);
	all_works();
}

/* Standard streams that are closed: the numbers stay free. */
static void closed_streams(void)
{
	int out = dup(1);
	CHECK(out > 2);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	int registered = capriole_probe_register(&probe);
	long before = hits;
	long sum = add(1, 2);
	int open_ones = 0;
	for (int fd = 0; fd < 3; fd++)
		open_ones += fcntl(fd, F_GETFD) != -1;
	CHECK(open("/dev/null", O_RDWR) == 0);
	CHECK(dup2(out, 1) == 1 && dup2(out, 2) == 2);
	OK(registered);
	IS(open_ones, 0);
	IS(sum, 5);
	IS(hits - before, 1);
	all_works();
}

/* Becomes another process twice, without any connection. */
static void daemons(void)
{
	int ends[2];
	char word[64] = "";
	CHECK(pipe(ends) == 0);
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		setsid();
		if (fork())
			_exit(0);
		for (int fd = 3; fd < 64; fd++)
			if (fd != ends[1])
				close(fd);
		is_hit(1);
		all_works();
		CHECK(write(ends[1], "well", 4) == 4);
		_exit(0);
	}
	close(ends[1]);
	IS(wait_for(child), 0);
	CHECK(read(ends[0], word, sizeof word) == 4 && !strcmp(word, "well"));
	all_works();
}

/* Runs `run` in a child, which, or a process that it has become, says in the end that all is well. */
static void in_child(void (*run)(void))
{
	int ends[2];
	char word[64] = "";
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		run();
		CHECK(write(ends[1], "well", 4) == 4);
		_exit(0);
	}
	close(ends[1]);
	IS(wait_for(child), 0);
	CHECK(read(ends[0], word, sizeof word) == 4 && !strcmp(word, "well"));
}

static void become_daemon(void)
{
	OK(capriole_probe_register(&probe));
	CHECK(daemon(1, 1) == 0);
	is_hit(1);
	all_works();
}

/* daemon(3) ends the process that has the helper, while the child has its probes. */
static void daemonized(void)
{
	in_child(become_daemon);
}

static void outlive_parent(void)
{
	OK(capriole_probe_register(&probe));
	if (fork())
		_exit(0);
	struct pollfd end = { connection(), POLLIN, 0 };
	CHECK(poll(&end, 1, PATIENCE) == 1 && end.revents & POLLHUP);
}

/* The helper ends with the process that it is for, also if a child has the connection as well. */
static void helper_ends(void)
{
	in_child(outlive_parent);
}

static int inherited;

/* The new program has no probes, and nothing of the library. */
static void executed(void)
{
	OK(capriole_probe_register(&probe));
	optimize(&probe);
	printf("ok executes\n");
	fflush(stdout);
	execl("/proc/self/exe", "program", "clean", (char *)NULL);
	BAD("exec");
}

static void clean(void)
{
	char line[512];
	/* The old helper may take a moment to notice. */
	usleep(100000);
	is_hit(0);
	IS(inherited, 0);
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "memfd:"))
			BAD("%s", line);
	fclose(maps);
	OK(capriole_probe_register(&probe));
	all_works();
}

/* vfork, posix_spawn, system: while probes are in, also in what runs in the child. */
static void spawned(void)
{
	static struct capriole_probe exec_probe = { .object = "libc", .symbol = "execve", .pre = count };
	int breakpoints;
	for (breakpoints = 0; breakpoints < 2; breakpoints++) {
		probe.flags = exec_probe.flags = breakpoints ? CAPRIOLE_NO_OPTIMIZE : 0;
		OK(capriole_probe_register(&probe));
		OK(capriole_probe_register(&exec_probe));
		if (!breakpoints)
			optimize(&exec_probe);
		long before = hits;
		pid_t child = vfork();
		CHECK(child >= 0);
		if (!child) {
			static char *words[] = { (char *)"true", NULL };
			add(1, 2);
			execve("/bin/true", words, environ);
			_exit(1);
		}
		IS(wait_for(child), 0);
		IS(hits - before, 2);
		if (!breakpoints) {
			/* glibc calls another function than execve in its children, with signals blocked. */
			char *words[] = { (char *)"true", NULL };
			CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, words, environ) == 0);
			IS(wait_for(child), 0);
			IS(system("true"), 0);
		}
		is_hit(1);
		OK(capriole_probe_unregister(&exec_probe));
		exec_probe.address = NULL;
		OK(capriole_probe_unregister(&probe));
		probe.flags = 0;
		OK(capriole_probe_register(&probe));
		all_works();
	}
}

static pid_t forked = -1;
static int error_in_handler;

static int fork_once(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	if (forked < 0) {
		forked = fork();
		if (!forked)
			error_in_handler = capriole_probe_unregister(&probe);
	}
	return 0;
}

/* The child leaves the handler, too, and goes on as its parent does. */
static void fork_in_a_handler(void)
{
	for (int breakpoints = 0; breakpoints < 2; breakpoints++) {
		probe.pre = fork_once;
		probe.flags = breakpoints ? CAPRIOLE_NO_OPTIMIZE : 0;
		forked = -1;
		OK(capriole_probe_register(&probe));
		if (!breakpoints)
			optimize(&probe);
		is_hit(1);
		is_hit(1);
		if (!forked) {
			IS(error_in_handler, -EDEADLK);
			probe.flags = 0;
			all_works();
			_exit(0);
		}
		IS(wait_for(forked), 0);
		probe.flags = 0;
		all_works();
	}
}

/* Threads that end in a handler: nobody waits for them for ever. */
static volatile int arrived, let_go, exits;

static void *endless(void *argument)
{
	(void)argument;
	add(1, 2);
	BAD("the thread goes on");
}

static int wait_in_handler(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	if (exits)
		pthread_exit((void *)7);
	arrived = 1;
	for (;;)
		pause();
	return 0;
}

static void thread_ends_in_a_handler(void)
{
	for (int round = 0; round < 4; round++) {
		void *result;
		pthread_t thread;
		arrived = 0;
		exits = round & 1;
		probe.pre = wait_in_handler;
		probe.flags = round & 2 ? CAPRIOLE_NO_OPTIMIZE : 0;
		OK(capriole_probe_register(&probe));
		if (!(round & 2))
			optimize(&probe);
		CHECK(pthread_create(&thread, NULL, endless, NULL) == 0);
		while (!exits && !arrived)
			usleep(1000);
		if (!exits)
			CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0);
		CHECK(result == (exits ? (void *)7 : PTHREAD_CANCELED));
		OK(capriole_probe_unregister(&probe));
		probe.pre = count;
		probe.flags = 0;
		OK(capriole_probe_register(&probe));
		all_works();
	}
}

/* Signal handlers that the program has set before. */
static volatile sig_atomic_t traps, faults;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)info, (void)context;
	traps++;
	CHECK(signal == SIGTRAP);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)info;
	faults++;
	CHECK(signal == SIGSEGV);
	/* over `mov (%rax), %eax`, of two bytes */
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static void fault(void)
{
	__asm__ volatile("xor %%eax, %%eax\n mov (%%rax), %%eax" : : : "rax", "memory");
}

static int faulting(struct capriole_probe *p, struct capriole_regs *regs)
{
	count(p, regs);
	__asm__ volatile("xor %%eax, %%eax\n mov (%%rax), %%eax" : : : "rax", "memory");
	return 0;
}

static int give_up(struct capriole_probe *p, struct capriole_regs *regs, int signal)
{
	(void)p, (void)regs;
	return signal == SIGSEGV;
}

static void own_signal_handlers(void)
{
	struct sigaction trap = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO },
			 segv = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, now;
	CHECK(sigaction(SIGTRAP, &trap, NULL) == 0 && sigaction(SIGSEGV, &segv, NULL) == 0);
	probe.flags = CAPRIOLE_NO_OPTIMIZE;
	OK(capriole_probe_register(&probe));
	is_hit(1);
	IS(traps, 0);
	/* Those that are not the library's. */
	__asm__ volatile("int3");
	IS(traps, 1);
	raise(SIGTRAP);
	IS(traps, 2);
	fault();
	IS(faults, 1);
	raise(SIGTRAP);
	is_hit(1);
	CHECK(sigaction(SIGTRAP, NULL, &now) == 0 && now.sa_sigaction == on_trap);
	CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == on_fault);
	/* A fault in a handler is the program's, without a fault handler of the probe. */
	OK(capriole_probe_unregister(&probe));
	probe.pre = faulting;
	OK(capriole_probe_register(&probe));
	is_hit(1);
	IS(faults, 2);
	OK(capriole_probe_unregister(&probe));
	probe.fault = give_up;
	OK(capriole_probe_register(&probe));
	is_hit(1);
	IS(faults, 2);
	fault();
	IS(faults, 3);
	OK(capriole_probe_unregister(&probe));
	probe = (struct capriole_probe){ .symbol = "add", .pre = count };
	OK(capriole_probe_register(&probe));
	all_works();
	__asm__ volatile("int3");
	IS(traps, 4);
}

/* The helper: the only child of a program that takes in orphans. An earlier one may still be ending: it
 * is waited for. */
static pid_t helper(void)
{
	char name[64], text[64];
	int first, second;
	snprintf(name, sizeof name, "/proc/self/task/%d/children", getpid());
	for (;;) {
		while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
			;
		FILE *file = fopen(name, "r");
		CHECK(file && fgets(text, sizeof text, file));
		fclose(file);
		int count = sscanf(text, "%d %d", &first, &second);
		CHECK(count > 0 && first > 1);
		if (count == 1)
			return first;
		usleep(500);
	}
}

/* Reads the scheduling group of a process; the text stays empty where the kernel makes no such groups. */
static void scheduling_group(pid_t process, char *text, int size)
{
	char name[64];
	snprintf(name, sizeof name, "/proc/%d/autogroup", (int)process);
	FILE *file = fopen(name, "r");
	*text = 0;
	if (file) {
		if (!fgets(text, size, file))
			*text = 0;
		fclose(file);
	}
}

/* A helper with a scheduling group of its own would get a processor as seldom as any other session that is
 * full of work, whatever the program's share is. */
static void shares_the_scheduling_group(void)
{
	char own[64], its[64];
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	OK(capriole_start());
	pid_t process = helper();
	scheduling_group(getpid(), own, sizeof own);
	scheduling_group(process, its, sizeof its);
	if (strcmp(own, its))
		BAD("the program has %s, its helper %s", own, its);
	IS(getsid(process), getsid(0));
	/* Signals of the terminal, and those to the program's own group, are not for the helper. */
	IS(getpgid(process), process);
}

/* Set by the main thread when it calls the library next. */
static volatile int calls_the_library;

/* Waits until the main thread waits in the library for its helper: until it sleeps in a system call. */
static void until_main_waits(void)
{
	char name[64], text[512], state = 0;
	UNTIL(calls_the_library);
	snprintf(name, sizeof name, "/proc/self/task/%d/stat", (int)getpid());
	while (state != 'S') {
		usleep(1000);
		FILE *file = fopen(name, "r");
		CHECK(file && fgets(text, sizeof text, file));
		fclose(file);
		state = strrchr(text, ')')[2];
	}
}

static void *kills(void *nothing)
{
	until_main_waits();
	CHECK(!kill(helper(), SIGKILL));
	return nothing;
}

static int ends(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	return 0;
}

/* A registration that fails changes nothing: the next one goes well. */
static void helper_killed_in_a_registration(void)
{
	static struct capriole_probe named = { .symbol = "add", .pre = count };
	static struct capriole_return_probe returns = { .probe = { .symbol = "add" }, .handler = ends };
	static struct capriole_replacement replaced = { .probe = { .symbol = "add" } };
	replaced.replacement = (void (*)(void))add;
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	/* The first time nothing was registered before, the second time the address is of a registration. */
	for (int i = 0; i < 6; i++) {
		pthread_t thread;
		OK(capriole_start());
		CHECK(!kill(helper(), SIGSTOP));
		calls_the_library = 0;
		CHECK(!pthread_create(&thread, NULL, kills, NULL));
		calls_the_library = 1;
		int failed = i % 3 == 0 ? capriole_probe_register(&named)
			: i % 3 == 1 ? capriole_return_probe_register(&returns) : capriole_replace(&replaced);
		if (failed != -EPIPE || !strstr(capriole_error(), "has ended"))
			BAD("%d: %s", failed, failed < 0 ? capriole_error() : "no error");
		CHECK(!pthread_join(thread, NULL));
		while (waitpid(-1, NULL, __WALL) > 0)
			;
		for (int round = 0; round < 2; round++) {
			OK(capriole_probe_register(&named));
			CHECK(named.address == (void *)add);
			is_hit(1);
			OK(capriole_return_probe_register(&returns));
			OK(capriole_return_probe_unregister(&returns));
			OK(capriole_probe_unregister(&named));
			FAILS(capriole_replace(&replaced), EINVAL, "by itself");
		}
	}
}

static pid_t late;

static void *goes_on_late(void *nothing)
{
	until_main_waits();
	CHECK(!kill(late, SIGCONT));
	return nothing;
}

/* The helper whose connection was closed has not noticed that yet when the next one comes. */
static void earlier_helper_leaves_late(void)
{
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int round = 0; round < 2; round++) {
		pthread_t thread;
		struct capriole_probe other = { .symbol = "add", .pre = count };
		OK(capriole_probe_register(&probe));
		optimize(&probe);
		late = helper();
		CHECK(!kill(late, SIGSTOP));
		CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
		calls_the_library = 0;
		CHECK(!pthread_create(&thread, NULL, goes_on_late, NULL));
		calls_the_library = 1;
		OK(capriole_probe_register(&other));
		CHECK(!pthread_join(thread, NULL));
		is_hit(2);
		OK(capriole_probe_unregister(&other));
		OK(capriole_probe_unregister(&probe));
		OK(capriole_finish());
		while (waitpid(-1, NULL, __WALL) > 0)
			;
	}
}

/* A handler that returns into a detour of a helper that was killed. */
static volatile int is_held, goes_on, may_return;

static int holds(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	is_held = 1;
	while (!may_return)
		usleep(1000);
	return 0;
}

static void *is_in_a_handler(void *nothing)
{
	IS(add(20, 11), 42);
	goes_on = 1;
	return nothing;
}

static void *lets_return(void *nothing)
{
	until_main_waits();
	may_return = 1;
	return nothing;
}

static void kill_helper(void)
{
	CHECK(!kill(helper(), SIGKILL));
	while (waitpid(-1, NULL, __WALL) > 0)
		;
}

static void helper_killed_while_a_handler_runs(void)
{
	struct capriole_probe held = { .symbol = "add", .pre = holds };
	struct capriole_probe page = { .symbol = "getpgrp", .object = "libc", .pre = count };
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int round = 0; round < 4; round++) {
		pthread_t thread, lets;
		is_held = goes_on = may_return = 0;
		OK(capriole_probe_register(&held));
		if (round & 1)
			optimize(&held);
		CHECK(!pthread_create(&thread, NULL, is_in_a_handler, NULL));
		while (!is_held)
			usleep(1000);
		kill_helper();
		if (round == 3) {
			/* It does not return: what it would return to must stay. */
			FAILS(capriole_probe_register(&page), EAGAIN, "still runs a handler");
			IS(goes_on, 0);
		}
		calls_the_library = 0;
		CHECK(!pthread_create(&lets, NULL, lets_return, NULL));
		calls_the_library = 1;
		if (round == 3)
			CHECK(!pthread_join(thread, NULL));
		/* On a busy machine the handler may take longer to return than the library waits. */
		int registered;
		do
			registered = capriole_probe_register(&page);
		while (registered == -EAGAIN);
		OK(registered);
		if (round < 3)
			CHECK(!pthread_join(thread, NULL));
		CHECK(!pthread_join(lets, NULL));
		IS(goes_on, 1);
		IS(add(1, 2), 5);
		OK(capriole_probe_unregister(&page));
		OK(capriole_probe_unregister(&held));
		OK(capriole_finish());
	}
}

/* Threads call a function by what stood in `original` when they read it. */
static long (*original_add)(long, long);
static volatile int calls_end;

static long adds(long a, long b)
{
	long (*function)(long, long) = __atomic_load_n(&original_add, __ATOMIC_ACQUIRE);
	sched_yield();
	return function(a, b) + 1000;
}

static void *calls_replaced(void *nothing)
{
	for (unsigned i = 0; !calls_end; i++) {
		long sum = add(i & 0xff, 2) - (i & 0xff);
		if (sum != 4 && sum != 1004)
			BAD("%ld", sum);
		rest_unless_soak();
	}
	return nothing;
}

static void helper_killed_while_a_replacement_runs(void)
{
	struct capriole_probe page = { .symbol = "getpgrp", .object = "libc", .pre = count };
	struct capriole_replacement replaced = {
		.probe = { .symbol = "add" },
		.replacement = (void (*)(void))adds,
		.original = (void (**)(void))&original_add,
	};
	pthread_t threads[3];
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	OK(capriole_replace(&replaced));
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, calls_replaced, NULL));
	for (int round = 0; round < 20; round++) {
		kill_helper();
		OK(capriole_probe_register(&page));
		IS(add(1, 2), 1005);
		OK(capriole_probe_unregister(&page));
	}
	calls_end = 1;
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	OK(capriole_restore(&replaced));
	IS(add(1, 2), 5);
	OK(capriole_finish());
}

PROBED long thrice(long a)
{
	return 3 * a;
}

/* What takes no helper for probes takes one for a replacement: its jump has to go. */
static void helper_killed_with_a_replacement(void)
{
	struct capriole_replacement replaced = {
		.probe = { .symbol = "add" },
		.replacement = (void (*)(void))adds,
		.original = (void (**)(void))&original_add,
	};
	struct capriole_probe page = { .symbol = "getpgrp", .object = "libc", .pre = count };
	struct capriole_return_probe returns = { .probe = { .symbol = "thrice" }, .handler = ends };
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	OK(capriole_return_probe_register(&returns));
	for (int round = 0; round < 3; round++) {
		OK(capriole_replace(&replaced));
		IS(add(1, 2), 1005);
		kill_helper();
		OK(capriole_replacement_disable(&replaced));
		IS(add(1, 2), 5);
		IS(thrice(2), 6);
		kill_helper();
		OK(capriole_replacement_enable(&replaced));
		IS(add(1, 2), 1005);
		kill_helper();
		OK(capriole_probe_register(&page));
		OK(capriole_probe_unregister(&page));
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			OK(capriole_restore(&replaced));
			IS(add(1, 2), 5);
			IS(original_add(1, 2), 5);
			_exit(0);
		}
		int status;
		while (waitpid(pid, &status, 0) < 0)
			CHECK(errno == EINTR);
		IS(status, 0);
		IS(add(1, 2), 1005);
		kill_helper();
		OK(capriole_restore(&replaced));
		IS(add(1, 2), 5);
		IS(original_add(1, 2), 5);
	}
	OK(capriole_return_probe_unregister(&returns));
	kill_helper();
	OK(capriole_finish());
	IS(is_mapped("memfd:capriole"), 0);
	OK(capriole_finish());
}

/* The next helper knows nothing of the events of the one before. */
static void helper_killed_with_records(void)
{
	static struct capriole_record done = CAPRIOLE_RECORD("done", "value=$arg1:u64");
	static struct capriole_record other = CAPRIOLE_RECORD("other", "value=$arg1:u64");
	int nothing = open("/dev/null", O_WRONLY);
	CHECK(nothing >= 0);
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int round = 0; round < 3; round++) {
		OK(capriole_record_enable(&done));
		FAILS(capriole_record_enable(&done), EINVAL, "enabled already");
		OK(capriole_event_read(nothing));
		kill_helper();
		FAILS(capriole_event_read(nothing), EPIPE, "all events with it");
		FAILS(capriole_event_rows(1, nothing), EPIPE, "all events with it");
		if (round == 1)
			OK(capriole_record_disable(&done));
		if (round == 2) {
			OK(capriole_record_enable(&done));
			FAILS(capriole_record_enable(&done), EINVAL, "enabled already");
			kill_helper();
		}
		OK(capriole_record_enable(&other));
		OK(capriole_record_enable(&done));
		CHECK(done.write != other.write);
		OK(capriole_record_disable(&other));
		OK(capriole_record_disable(&done));
		OK(capriole_record_enable(&done));
		OK(capriole_finish());
		OK(capriole_event_read(nothing));
		OK(capriole_record_enable(&done));
		OK(capriole_record_disable(&done));
		OK(capriole_finish());
	}
	close(nothing);
}

/* A child's actions are its own; its breakpoints are its parent's. */
static void own_trap(int signal)
{
	(void)signal;
	traps++;
}

static void trap_actions_in_a_child(void)
{
	struct capriole_probe held = { .symbol = "add", .pre = count, .flags = CAPRIOLE_NO_OPTIMIZE };
	OK(capriole_probe_register(&held));
	for (int round = 0; round < 6; round++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			if (round & 1)
				CHECK(signal(SIGTRAP, SIG_DFL) == SIG_DFL);
			if (round & 2)
				CHECK(signal(SIGTRAP, own_trap) == SIG_DFL);
			if (round & 4 && !(pid = fork()))
				CHECK(signal(SIGTRAP, SIG_DFL) == SIG_DFL);
			is_hit(1);
			if (round & 2 && !(round & 4)) {
				traps = 0;
				__asm__ volatile("int3");
				IS(traps, 1);
				is_hit(1);
			}
			if (round & 4 && pid) {
				int status;
				CHECK(waitpid(pid, &status, 0) == pid);
				IS(status, 0);
			}
			_exit(0);
		}
		int status;
		while (waitpid(pid, &status, 0) < 0)
			CHECK(errno == EINTR);
		IS(status, 0);
	}
	is_hit(1);
	OK(capriole_probe_unregister(&held));
	OK(capriole_finish());
}

/* A signal handler may call the library, unless it interrupts a call of it in its own thread. */
static volatile sig_atomic_t refused, done;

static void calls_library(int signal)
{
	static struct capriole_probe other = { .address = (void *)add, .pre = count };
	(void)signal;
	int failed = capriole_probe_register(&other);
	if (failed == -EDEADLK) {
		CHECK(strstr(capriole_error(), "signal handler"));
		refused++;
		return;
	}
	IS(failed, 0);
	OK(capriole_probe_unregister(&other));
	done++;
}

static void called_in_signal_handlers(void)
{
	CHECK(signal(SIGALRM, calls_library) != SIG_ERR);
	OK(capriole_start());
	raise(SIGALRM);
	IS(done, 1);
	/* One signal a round: a timer that goes off again while the handler registers its probe would leave this
	 * loop no time. */
	for (int i = 0; refused < 20 || i < 50; i++) {
		struct itimerval once = { { 0, 0 }, { 0, 100 + i % 30 * 100 } };
		CHECK(!setitimer(ITIMER_REAL, &once, NULL));
		OK(capriole_probe_register(&probe));
		OK(capriole_probe_unregister(&probe));
	}
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	printf("%d refused, %d done\n", (int)refused, (int)done);
	CHECK(refused);
	raise(SIGALRM);
	CHECK(done > 1);
	OK(capriole_finish());
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "waits", waits },
		{ "no_sigchld", no_sigchld },
		{ "sigchld_is_ignored", sigchld_is_ignored },
		{ "closed_descriptors", closed_descriptors },
		{ "reused_descriptor", reused_descriptor },
		{ "reused_descriptor_in_a_child", reused_descriptor_in_a_child },
		{ "closed_streams", closed_streams },
		{ "daemons", daemons },
		{ "daemonized", daemonized },
		{ "shares_the_scheduling_group", shares_the_scheduling_group },
		{ "helper_ends", helper_ends },
		{ "helper_killed_in_a_registration", helper_killed_in_a_registration },
		{ "earlier_helper_leaves_late", earlier_helper_leaves_late },
		{ "helper_killed_while_a_handler_runs", helper_killed_while_a_handler_runs },
		{ "helper_killed_while_a_replacement_runs", helper_killed_while_a_replacement_runs },
		{ "helper_killed_with_a_replacement", helper_killed_with_a_replacement },
		{ "helper_killed_with_records", helper_killed_with_records },
		{ "trap_actions_in_a_child", trap_actions_in_a_child },
		{ "called_in_signal_handlers", called_in_signal_handlers },
		{ "executed", executed },
		{ "clean", clean },
		{ "spawned", spawned },
		{ "fork_in_a_handler", fork_in_a_handler },
		{ "thread_ends_in_a_handler", thread_ends_in_a_handler },
		{ "own_signal_handlers", own_signal_handlers },
		{ NULL, NULL },
	};
	/* What the program was started with is none of its business, but after exec it is. */
	inherited = syscall(SYS_dup, 0) > 3;
	syscall(SYS_close_range, 3, ~0u, 0);
	return run_parts(parts, argc, argv);
}
