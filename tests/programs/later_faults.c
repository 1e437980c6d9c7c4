/*
 * A program that sets its actions of SIGSEGV while it is probed, as it is told by lines of its input:
 *
 *   one, two      a handler, by sigaction(2); which checks where the fault was
 *   raw           the first handler, by syscall(2)
 *   default, ignore  these actions
 *   once          a handler that the kernel removes as it calls it, and a fault that it gets
 *   faults        faults, which the handler that is set must see in load()
 *   stay          a handler, and a fault that it gets; there it says "inside", and steps over the
 *                 instruction after a further line
 *   check         the action must be the one that was set last
 *   fork          a child sets another handler and has faults, and so has a child that sets none
 *   vfork         children that share the memory set other actions, which must not count
 *   threads       threads set handlers at the same time; then "one"
 *   child         a child sets the second handler, and waits
 *   end           that child checks its action, has faults, and ends
 *
 * Each is answered by "done". All calls of sigaction(2) must report the action that was set before.
 */
#include "common.h"

#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

extern char **environ;

PROBED uint64_t load(const uint64_t *from)
{
	return *from;
}

typedef void handler(int signal, siginfo_t *info, void *context);

static sigjmp_buf back;
static volatile unsigned long seen[2], seen_once;
static handler *set = (handler *)SIG_DFL;

static void see(int which, int signal, siginfo_t *info, void *context)
{
	uint64_t at = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	if (signal != SIGSEGV || info->si_addr != (void *)8)
		BAD("signal %d at %p", signal, info->si_addr);
	if (at - (uint64_t)(uintptr_t)load >= 16)
		BAD("handler %d: a fault at %llx, not in load() at %p", which, (unsigned long long)at,
		    (void *)load);
	seen[which]++;
	siglongjmp(back, 1);
}

static void one(int signal, siginfo_t *info, void *context)
{
	see(0, signal, info, context);
}

static void two(int signal, siginfo_t *info, void *context)
{
	see(1, signal, info, context);
}

static void once(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	seen_once++;
	siglongjmp(back, 1);
}

static void stay(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	char line[64];
	(void)signal, (void)info;
	/* The program waits for nothing else, and its buffers are empty. */
	CHECK(write(1, "inside\n", 7) == 7 && read(0, line, sizeof line) > 0);
	registers[REG_RIP] += 3; /* mov (%rdi), %rax */
	registers[REG_RAX] = 77;
}

static struct sigaction action_of(handler *handler)
{
	struct sigaction action = { .sa_sigaction = handler };
	action.sa_flags = handler == two ? SA_SIGINFO | SA_NODEFER | SA_RESTART : SA_SIGINFO;
	if (handler == once)
		action.sa_flags |= (int)SA_RESETHAND;
	if (handler == (void *)SIG_DFL || handler == (void *)SIG_IGN)
		action.sa_flags = 0;
	sigaddset(&action.sa_mask, handler == two ? SIGUSR2 : SIGUSR1);
	return action;
}

static void is_action(const struct sigaction *action, handler *handler)
{
	struct sigaction wanted = action_of(handler);
	if (action->sa_sigaction != handler)
		BAD("handler %p, not %p", (void *)action->sa_sigaction, (void *)handler);
	/* the C library adds SA_RESTORER */
	if (handler != (void *)SIG_DFL && (action->sa_flags & ~0x04000000) != wanted.sa_flags)
		BAD("flags %#x, not %#x", action->sa_flags, wanted.sa_flags);
	if (handler != (void *)SIG_DFL && sigismember(&action->sa_mask, SIGUSR1) != (handler != two))
		BAD("another mask");
}

static void check(void)
{
	struct sigaction now;
	CHECK(!sigaction(SIGSEGV, NULL, &now));
	is_action(&now, set);
}

static void set_action(handler *handler)
{
	struct sigaction new = action_of(handler), old;
	CHECK(!sigaction(SIGSEGV, &new, &old));
	is_action(&old, set);
	set = handler;
	check();
}

static void set_raw(void)
{
	struct { handler *handler; unsigned long flags; void *restorer; unsigned long mask; } new = { 0 }, old;
	struct sigaction library;
	/* Only the C library knows its restorer. */
	CHECK(!sigaction(SIGSEGV, NULL, &library));
	set_action(one);
	CHECK(!syscall(SYS_rt_sigaction, SIGSEGV, NULL, &new, 8));
	set_action(two);
	CHECK(!syscall(SYS_rt_sigaction, SIGSEGV, &new, &old, 8));
	if (old.handler != two)
		BAD("handler %p by syscall()", (void *)old.handler);
	set = one;
	check();
}

static void fault(void)
{
	if (!sigsetjmp(back, 1)) {
		load((const uint64_t *)8);
		BAD("that could be read");
	}
}

static void faults(void)
{
	for (int i = 0; i < 3; i++) {
		unsigned long before[2] = { seen[0], seen[1] };
		fault();
		if (seen[0] != before[0] + (set == one) || seen[1] != before[1] + (set == two))
			BAD("another handler");
	}
}

static void well(pid_t child)
{
	int status;
	CHECK(child > 0);
	while (waitpid(child, &status, 0) < 0)
		CHECK(errno == EINTR);
	if (status)
		BAD("a child ends with %x", (unsigned)status);
}

static void forks(void)
{
	for (int which = 0; which < 2; which++) {
		pid_t child = fork();
		if (!child) {
			check();
			if (which)
				set_action(set == one ? two : one);
			faults();
			_exit(0);
		}
		well(child);
		check();
		faults();
	}
}

static void vforks(void)
{
	pid_t child = vfork();
	if (!child) {
		struct sigaction usual = { .sa_handler = SIG_DFL }, other = action_of(set == one ? two : one);
		sigaction(SIGSEGV, &other, NULL);
		sigaction(SIGSEGV, &usual, NULL);
		sigaction(SIGSEGV, &other, NULL);
		_exit(0);
	}
	well(child);
	check();
	faults();
	posix_spawnattr_t attributes;
	sigset_t all;
	char *arguments[] = { "true", NULL };
	CHECK(!posix_spawnattr_init(&attributes) && !sigfillset(&all));
	CHECK(!posix_spawnattr_setsigdefault(&attributes, &all));
	CHECK(!posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF));
	CHECK(!posix_spawnp(&child, "true", NULL, &attributes, arguments, environ));
	well(child);
	check();
	faults();
}

static void *change(void *which)
{
	for (int i = 0; i < 300; i++) {
		struct sigaction new = action_of((i + (which != NULL)) & 1 ? one : two), old;
		CHECK(!sigaction(SIGSEGV, &new, &old));
		if (old.sa_sigaction != one && old.sa_sigaction != two)
			BAD("handler %p", (void *)old.sa_sigaction);
		is_action(&old, old.sa_sigaction);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t all[4];
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&all[i], NULL, change, i & 1 ? all : NULL));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(all[i], NULL));
	struct sigaction now;
	CHECK(!sigaction(SIGSEGV, NULL, &now));
	set = now.sa_sigaction;
	check();
	faults();
}

static pid_t child;
static int to_child[2], from_child[2];

static void make_child(void)
{
	char byte = 0;
	CHECK(!pipe(to_child) && !pipe(from_child));
	child = fork();
	if (!child) {
		set_action(two);
		faults();
		CHECK(write(from_child[1], &byte, 1) == 1);
		CHECK(read(to_child[0], &byte, 1) == 1);
		check();
		faults();
		set_action(one);
		faults();
		_exit(0);
	}
	CHECK(child > 0 && read(from_child[0], &byte, 1) == 1);
}

static void end_child(void)
{
	CHECK(write(to_child[1], "", 1) == 1);
	well(child);
}

static void set_once(void)
{
	unsigned long before = seen_once;
	set_action(once);
	fault();
	CHECK(seen_once == before + 1);
	set = (handler *)SIG_DFL;
	check();
}

static void set_staying(void)
{
	set_action(stay);
	CHECK(load((const uint64_t *)8) == 77);
	check();
}

int main(void)
{
	char line[64];
	unsigned long lines = 0;
	ready();
	for (; fgets(line, sizeof line, stdin); lines++) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "one"))
			set_action(one);
		else if (!strcmp(line, "two"))
			set_action(two);
		else if (!strcmp(line, "raw"))
			set_raw();
		else if (!strcmp(line, "default"))
			set_action((handler *)SIG_DFL);
		else if (!strcmp(line, "ignore"))
			set_action((handler *)SIG_IGN);
		else if (!strcmp(line, "once"))
			set_once();
		else if (!strcmp(line, "stay"))
			set_staying();
		else if (!strcmp(line, "faults"))
			faults();
		else if (!strcmp(line, "check"))
			check();
		else if (!strcmp(line, "fork"))
			forks();
		else if (!strcmp(line, "vfork"))
			vforks();
		else if (!strcmp(line, "threads"))
			threads();
		else if (!strcmp(line, "child"))
			make_child();
		else if (!strcmp(line, "end"))
			end_child();
		else
			BAD("what is %s?", line);
		puts("done");
		fflush(stdout);
	}
	printf("ok %lu lines, %lu and %lu faults\n", lines, seen[0], seen[1]);
	return 0;
}
