/* The helper process, which changes the program's code from outside, and the messages to it.
 *
 *   program                              helper (capriole probe-helper)
 *     start_helper ── clone ── clone ─ exec ─▶ of nobody, in a process group of its own
 *     ask          ── request ───────────────▶ ptrace for moments, /proc/PID/mem
 *                  ◀─────────────── answer ───
 *
 * The helper is the program that also records other processes, so there is one proof of safety for
 * both. A tracer that shared the memory of the threads that it has stopped could not: it would wait
 * for a lock of the C library's that one of them holds.
 *
 * Messages, all numbers little-endian: { u32 size of what follows, u32 kind, words }. A text is its
 * size, and its bytes filled up to whole words. An answer has as its kind an error number or 0; with
 * an error, the words are a text. Before it, CALL may come, with the number and the six arguments of a
 * system call: the answer to that is CALL, with its result.
 *
 * With HELLO comes a descriptor of /proc/self/mem, which a process may always open, but its helper only
 * if it may trace it.
 */
#include "internal.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/auxv.h>
#include <time.h>

#define VERSION 7
#define STACK (64 << 10)
#define HELPER_FILES 20
/* Waits for the first answer of the helper, in nanoseconds, and their numbers: 0.1 s, then 30 s. */
#define SHORT_WAIT 200000
#define SHORT_WAITS 500
#define LONG_WAIT 20000000
#define LONG_WAITS 1500
/* Number of the descriptor that the helper finds its end of the connection at: standard input. */
#define CONNECTION 0
#ifndef CAPRIOLE_HELPER
#define CAPRIOLE_HELPER "/usr/local/bin/capriole"
#endif
#ifndef SYS_memfd_create
#define SYS_memfd_create 319
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

extern char **environ;

static int connection = -1;
static struct stat identity;	/* of the connection's socket */
static int has_answered;	/* the helper, once */
static long owner;	/* the process that has started the helper */
static long helper;
/* For names that the helper has the kernel read. */
static char scratch[64];

struct start {
	const char *path;
	int socket;
	long pid;
	int error;
	char *stack;
	char *variables[4];
};

/* True from the start of a helper until one has taken everything out: also after it was killed, and in a
 * child of the process that has started it. */
static int may_have_left;

HIDDEN int has_left(void)
{
	return may_have_left;
}

/* True in a process that was forked by the one that has started a helper, and has started none itself. */
HIDDEN int is_forked(void)
{
	return owner && owner != SYS0(SYS_getpid);
}

HIDDEN void forget_left(void)
{
	may_have_left = 0;
}

HIDDEN int has_helper(void)
{
	return connection >= 0 && owner == SYS0(SYS_getpid);
}

/* True if the number of the connection still is its own. The program may have closed it, with all
 * others that it does not know, and the number may be that of one of its files. */
static int is_connected(void)
{
	struct stat now;
	return connection >= 0 && SYS2(SYS_fstat, connection, &now) == 0 &&
	       now.st_ino == identity.st_ino && now.st_dev == identity.st_dev;
}

HIDDEN void check_helper(void)
{
	char byte;
	if (!is_connected() ||
	    SYS6(SYS_recvfrom, connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0) == 0)
		stop_helper();
}

static void exit_task(int code)
{
	for (;;)
		SYS1(SYS_exit, code);
}

/* Takes back what the program has chosen for itself, and the helper would inherit: ignored and blocked
 * signals, and limits, as far as that is allowed. */
static void make_usual(void)
{
	struct {
		u64 handler, flags, restorer, mask;
	} usual = { 0 };
	u64 none = 0;
	for (long signal = 1; signal < 65; signal++)
		SYS4(SYS_rt_sigaction, signal, &usual, NULL, 8);
	SYS4(SYS_rt_sigprocmask, 2, &none, NULL, 8);
	for (long kind = 0; kind < RLIM_NLIMITS; kind++) {
		struct rlimit limit;
		if (kind == RLIMIT_CORE || SYS4(SYS_prlimit64, 0, kind, NULL, &limit) < 0)
			continue;
		limit.rlim_cur = limit.rlim_max;
		SYS4(SYS_prlimit64, 0, kind, &limit, NULL);
	}
}

/* In a task that shares the memory with the suspended caller: becomes the helper. */
static void become_helper(void *argument)
{
	struct start *start = argument;
	char *words[] = { (char *)"capriole", (char *)"probe-helper", NULL };
	/* No signal of the terminal's, nor kill(0), is meant for it. Not a session of its own: that would be a
	 * scheduling group of its own as well (sched(7), "The autogroup feature"), and one thread of it would
	 * compete with all processes of any other session. */
	SYS2(SYS_setpgid, 0, 0);
	make_usual();
	/* Descriptors of its own: the connection first, for which none has to be free. */
	if (start->socket != CONNECTION)
		SYS3(SYS_dup3, start->socket, CONNECTION, 0);
	if (SYS3(SYS_close_range, 1, ~0u, 0) < 0)
		for (int fd = 1; fd < 4096; fd++)
			SYS1(SYS_close, fd);
	long null = SYS4(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0);
	if (null < 0)
		null = SYS2(SYS_memfd_create, "null", 0);
	SYS3(SYS_dup3, null, 2, 0);
	long result = SYS3(SYS_execve, start->path, words, start->variables);
	start->error = (int)-result;
	exit_task(127);
}

/* In between, so that the helper is nobody's child whom the program knows: it neither gets a
 * SIGCHLD, nor finds the helper by waitpid. */
static void start_and_end(void *argument)
{
	struct start *start = argument;
	start->pid = capriole_clone(CLONE_VM | CLONE_VFORK, start->stack + STACK, become_helper, start);
	exit_task(0);
}

static int is_there(const char *path)
{
	return SYS4(SYS_faccessat, AT_FDCWD, path, 1, 0) == 0;
}

static const char *variable(const char *name)
{
	size_t size = length(name);
	for (char **each = environ; each && *each; each++) {
		size_t i = 0;
		while (i < size && (*each)[i] == name[i])
			i++;
		if (i == size && (*each)[i] == '=')
			return *each + size + 1;
	}
	return NULL;
}

/* Finds the helper's program: `room` is for its path. A privileged program does not believe its
 * environment. */
static const char *find_helper(char *room, size_t size)
{
	const char *path = getauxval(AT_SECURE) ? NULL : variable("CAPRIOLE_HELPER");
	if (path && *path)
		return path;
	if (is_there(CAPRIOLE_HELPER))
		return CAPRIOLE_HELPER;
	path = getauxval(AT_SECURE) ? NULL : variable("PATH");
	while (path && *path) {
		size_t at = 0;
		while (*path && *path != ':' && at + 1 < size)
			room[at++] = *path++;
		room[at] = 0;
		if (at && room[0] == '/') {
			say(room, size, &at, "/capriole");
			if (is_there(room))
				return room;
		}
		while (*path && *path++ != ':')
			;
	}
	return CAPRIOLE_HELPER;
}

static int spawn(const char *path, int socket)
{
	char *stacks = map_memory(2 * STACK);
	if (!stacks)
		return fail(-ENOMEM, "there is no memory for starting the helper process", NULL);
	struct start start = { .path = path, .socket = socket, .stack = stacks };
	u64 all = ~(u64)0, before;
	/* No handler of the program's runs in a task that shares its memory. */
	SYS4(SYS_rt_sigprocmask, 0, &all, &before, 8);
	long child = capriole_clone(CLONE_VM | CLONE_VFORK, stacks + 2 * STACK, start_and_end, &start);
	int status;
	if (child > 0)
		SYS4(SYS_wait4, child, &status, 0x80000000 /* __WCLONE */, 0);
	SYS4(SYS_rt_sigprocmask, 2, &before, NULL, 8);
	SYS2(SYS_munmap, stacks, 2 * STACK);
	if (child < 0)
		start.pid = child;
	if (start.pid < 0)
		return fail((int)start.pid, "the helper process cannot be started",
			    start.pid == -EAGAIN ? ": there are as many processes and threads as allowed "
						   "(ulimit -u)" : NULL);
	if (start.error)
		return fail(-start.error,
			    "the helper program cannot be executed (set CAPRIOLE_HELPER to the path of "
			    "the command capriole; call capriole_start before chroot): ", path);
	helper = start.pid;
	return 0;
}

HIDDEN void stop_helper(void)
{
	if (is_connected())
		SYS1(SYS_close, connection);
	connection = -1;
}

/* Sends a descriptor of this process's memory. */
static int send_memory(void)
{
	char byte = 1;
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {
		.head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS },
	};
	struct iovec part = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	long memory = SYS4(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDWR | O_CLOEXEC, 0);
	if (memory >= 0) {
		copy(CMSG_DATA(&control.head), &(int){ (int)memory }, sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
	}
	long sent = SYS3(SYS_sendmsg, connection, &message, MSG_NOSIGNAL);
	if (memory >= 0)
		SYS1(SYS_close, memory);
	return sent == 1 ? 0 : fail(-EPIPE, "the helper process has ended at once", NULL);
}

HIDDEN int start_helper(void)
{
	/* Not on the stack: there it would be full of what hits have left, and a new helper looks there for
	 * return addresses that lead to what an old one has made. */
	static char room[4096];
	int sockets[2];
	if (has_helper())
		return 0;
	if (connection >= 0)
		stop_helper();	/* of the process that we were forked from */
	/* An earlier one ends with its connection, but not at once: the new one waits for that. */
	long earlier = owner == SYS0(SYS_getpid) ? helper : 0;
	/* It inherits the limit, and raises its own one up to the hard limit. */
	struct rlimit limit;
	if (SYS4(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit) == 0 && limit.rlim_max < HELPER_FILES)
		return fail(-EMFILE, "the helper process needs 20 file descriptors, and the hard limit of this "
				     "program is lower (ulimit -Hn)", NULL);
	long result = SYS4(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets);
	if (result < 0)
		return fail((int)result, "no connection to a helper process can be made",
			    result == -EMFILE ? ": two descriptors have to be free for a moment, and then one "
						"(ulimit -n)" : NULL);
	if (sockets[0] < 3) {
		/* The program may have closed its standard streams; their numbers are not ours. */
		long moved = SYS3(SYS_fcntl, sockets[0], F_DUPFD_CLOEXEC, 64);
		if (moved < 0)
			moved = SYS3(SYS_fcntl, sockets[0], F_DUPFD_CLOEXEC, 3);
		if (moved >= 0) {
			SYS1(SYS_close, sockets[0]);
			sockets[0] = (int)moved;
		}
	}
	const char *path = find_helper(room, sizeof room);
	int failed = spawn(path, sockets[1]);
	SYS1(SYS_close, sockets[1]);
	if (failed) {
		SYS1(SYS_close, sockets[0]);
		return failed;
	}
	/* Where only parents may trace (Yama); an error means that it need not be said. */
	SYS2(SYS_prctl, PR_SET_PTRACER, helper);
	connection = sockets[0];
	may_have_left = 1;
	SYS2(SYS_fstat, connection, &identity);
	has_answered = 0;
	owner = SYS0(SYS_getpid);
	struct message hello;
	new_message(&hello, HELLO);
	put(&hello, VERSION);
	put(&hello, (u64)owner);
	put(&hello, (u64)earlier);
	put(&hello, (u64)capriole_hit);
	put(&hello, (u64)capriole_hit_flags);
	put(&hello, (u64)capriole_hit_after);
	put(&hello, (u64)__start_capriole_text);
	put(&hello, (u64)__stop_capriole_text);
	put(&hello, (u64)__start_capriole_calls);
	put(&hello, (u64)__stop_capriole_calls);
	put(&hello, (u64)scratch);
	put(&hello, (u64)threads);
	put(&hello, (u64)&threads[thread_room]);
	put(&hello, sizeof *threads);
	put_originals(&hello);
	int answer = send_memory();
	if (!answer)
		answer = ask(&hello);
	drop_message(&hello);
	if (answer == -EPIPE) {
		/* What does not know the connection does not end with it. It leads a process group in this
		 * session, as hardly anybody does who has got its number meanwhile by chance. */
		if (SYS1(SYS_getpgid, helper) == helper && SYS1(SYS_getsid, helper) == SYS1(SYS_getsid, 0))
			SYS2(SYS_kill, helper, SIGKILL);
		answer = fail(-EPIPE, "the helper process has ended, or does not answer, before it has begun: has it "
				      "enough memory, and is this the command capriole? ", path);
	}
	if (!answer)
		answer = adopt();
	if (answer < 0)
		stop_helper();
	return answer;
}

HIDDEN void new_message(struct message *message, enum request kind)
{
	*message = (struct message){ .room = 1024 };
	message->bytes = allocate(message->room);
	message->failed = !message->bytes;
	message->size = 8;
	if (!message->failed)
		((u32 *)(void *)message->bytes)[1] = kind;
	/* Which thread waits for the answer. */
	put(message, (u64)SYS0(SYS_gettid));
}

static int has_room(struct message *message, size_t more)
{
	if (message->failed)
		return 0;
	if (message->size + more <= message->room)
		return 1;
	size_t room = message->room;
	while (message->size + more > room)
		room *= 2;
	char *bytes = allocate(room);
	if (!bytes) {
		message->failed = 1;
		return 0;
	}
	copy(bytes, message->bytes, message->size);
	release(message->bytes, message->room);
	message->bytes = bytes;
	message->room = room;
	return 1;
}

HIDDEN void put(struct message *message, u64 number)
{
	if (has_room(message, 8)) {
		copy(message->bytes + message->size, &number, 8);
		message->size += 8;
	}
}

HIDDEN void put_text(struct message *message, const char *text)
{
	size_t size = text ? length(text) : 0, whole = (size + 7) / 8 * 8;
	put(message, size);
	if (has_room(message, whole)) {
		copy(message->bytes + message->size, text, size);
		for (size_t i = size; i < whole; i++)
			((volatile char *)message->bytes)[message->size + i] = 0;
		message->size += whole;
	}
}

HIDDEN u64 take(struct message *message)
{
	u64 number = 0;
	if (message->at + 8 <= message->size) {
		copy(&number, message->bytes + message->at, 8);
		message->at += 8;
	}
	return number;
}

HIDDEN const char *take_text(struct message *message, size_t *size)
{
	u64 long_ = take(message);
	const char *text = message->bytes + message->at;
	if (long_ > message->size - message->at)
		long_ = message->size - message->at;
	message->at += (long_ + 7) / 8 * 8;
	if (message->at > message->size)
		message->at = message->size;
	*size = long_;
	return text;
}

HIDDEN void drop_message(struct message *message)
{
	if (message->bytes)
		release(message->bytes, message->room);
	message->bytes = NULL;
}

/* A system call of this process that the helper asks for while it answers. */
struct call {
	long number, arguments[6];
	long result;
};

static void make_call(void *argument)
{
	struct call *call = argument;
	const long *a = call->arguments;
	call->result = SYS6(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void make_call_and_end(void *argument)
{
	make_call(argument);
	exit_task(0);
}

/* The helper asks for calls where it may not trace this process: then this thread, which waits for
 * the answer, makes them. A filter of system calls may kill who makes one that it does not expect: so
 * a task tries first that has the same memory and descriptors, but is a process of its own. A
 * signal of the filter's ends it as well, because it has a copy of the handlers, and blocks all. What
 * concerns the memory or the descriptors is done then; the actions of signals are the process's. */
static long call_for_helper(struct call *call)
{
	u64 all = ~(u64)0, before;
	int status;
	if (SYS1(SYS_prctl, PR_GET_SECCOMP) == 0) {
		make_call(call);
		return call->result;
	}
	char *stack = map_memory(STACK);
	if (!stack)
		return -ENOMEM;
	call->result = -EPERM;
	SYS4(SYS_rt_sigprocmask, 0, &all, &before, 8);
	long child = capriole_clone(CLONE_VM | CLONE_FILES | CLONE_VFORK, stack + STACK,
				    make_call_and_end, call);
	if (child > 0)
		SYS4(SYS_wait4, child, &status, 0x80000000 /* __WCLONE */, 0);
	SYS4(SYS_rt_sigprocmask, 2, &before, NULL, 8);
	SYS2(SYS_munmap, stack, STACK);
	if (child < 0)
		return child;
	if (call->number == SYS_rt_sigaction && call->result == 0)
		make_call(call);
	return call->result;
}

static int transfer(int receive, char *bytes, size_t size)
{
	while (size) {
		long done = receive ? SYS6(SYS_recvfrom, connection, bytes, size, 0, 0, 0)
				    : SYS6(SYS_sendto, connection, bytes, size, MSG_NOSIGNAL, 0, 0);
		if (done == -EINTR)
			continue;
		if (done <= 0)
			return -1;
		bytes += done;
		size -= (size_t)done;
	}
	return 0;
}

/* Waits for the first answer, for half a minute: any program may have been started as the helper. Time
 * is counted in waits, because a filter may forbid to read a clock; so where processors are busy it
 * takes longer, but with long waits hardly. */
static int answers(void)
{
	struct timespec moment = { 0, SHORT_WAIT };
	char byte;
	for (int round = 0; !has_answered && round < SHORT_WAITS + LONG_WAITS; round++) {
		if (round == SHORT_WAITS)
			moment.tv_nsec = LONG_WAIT;
		long result = SYS6(SYS_recvfrom, connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
		has_answered = result != -EAGAIN && result != -EINTR;
		if (!has_answered)
			SYS2(SYS_nanosleep, &moment, NULL);
	}
	return has_answered;
}

__attribute__((noinline)) static int ask_it(struct message *message)
{
	static const char *const gone = "the helper process has ended; the probes that are there stay "
					"and are called; the next registration starts another helper";
	u32 head[2];
	if (message->failed)
		return fail(-ENOMEM, "there is no memory for a message to the helper process", NULL);
	((u32 *)(void *)message->bytes)[0] = (u32)(message->size - 8);
	if (transfer(0, message->bytes, message->size) || !answers() ||
	    transfer(1, (char *)head, sizeof head)) {
		stop_helper();
		return fail(-EPIPE, gone, NULL);
	}
	while (head[1] == CALL) {
		struct call call;
		struct {
			u32 size, kind;
			long result;
		} made = { .size = 8, .kind = CALL };
		int broken = head[0] != 7 * 8 || transfer(1, (char *)&call, 7 * 8);
		if (!broken) {
			made.result = call_for_helper(&call);
			broken = transfer(0, (char *)&made, sizeof made) || transfer(1, (char *)head, sizeof head);
		}
		if (broken) {
			stop_helper();
			return fail(-EPIPE, gone, NULL);
		}
	}
	message->size = 0;
	message->at = 0;
	if (!has_room(message, head[0]) || transfer(1, message->bytes, head[0])) {
		stop_helper();
		return fail(-EPIPE, gone, NULL);
	}
	message->size = head[0];
	if (!head[1])
		return 0;
	size_t size, at = 0;
	const char *text = take_text(message, &size);
	while (at < size && at + 1 < ERROR_SIZE) {
		error_text[at] = text[at];
		at++;
	}
	error_text[at] = 0;
	return -(int)head[1];
}

HIDDEN int ask(struct message *message)
{
	wipe();
	return ask_it(message);
}
