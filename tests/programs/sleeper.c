/*
 * One thread in each of the system calls that wait, for an hour or for something that
 * never happens. None may come back: not with EINTR, not early, not with anything. Nor may
 * the first thread's wait for commands be interrupted.
 *
 *   sleeper
 *
 * "ready PID" comes when all of them sleep. Commands on standard input: "report"
 * prints a line for each call that came back, then "report done"; "wake" wakes the
 * wait for a pipe in earnest, to see that it still can be; "quit", the end of the
 * input or SIGTERM end it.
 */
#include "common.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#define HOUR 3600

static struct sockaddr_un full_name;
static socklen_t full_length = sizeof full_name;
static int pipes[2], wake_pipe[2], epoll, lock_file, inotify, listener, timed_listener, pair[2], full_pair[2],
	semaphores = -1, queue = -1, futex_word;
static char *lock_path;
static pid_t holder;
static aio_context_t aio;
static const struct timespec an_hour = { .tv_sec = HOUR };

static long wait_read(void) { char c; return read(pipes[0], &c, 1); }
/*
 * The socket is full before, so that nothing is written: a write that has got half its
 * way is told so, as a short write, by every stop, and nobody can undo that.
 */
static long wait_write(void) { char c = 0; return write(full_pair[1], &c, 1); }
static void fill_socket(int fd)
{
	static char full[1 << 20]; /* more than a socket holds */
	while (send(fd, full, sizeof full, MSG_DONTWAIT) > 0)
		;
	while (send(fd, full, 1, MSG_DONTWAIT) > 0)
		;
}
static long wait_futex(void) { return syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL, NULL, 0); }
static long wait_futex_timeout(void) { return syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, &an_hour, NULL, 0); }
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static long wait_condition(void)
{
	pthread_mutex_lock(&mutex);
	/* the only call here that may wake without cause; then it waits again */
	while (pthread_cond_wait(&condition, &mutex) == 0)
		;
	return -1;
}
static long wait_nanosleep(void) { return nanosleep(&an_hour, NULL); }
static long wait_clock_nanosleep(void)
{
	errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &an_hour, NULL);
	return errno ? -1 : 0;
}
static long wait_clock_nanosleep_absolute(void)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += HOUR;
	errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	return errno ? -1 : 0;
}
static long wait_poll(void) { struct pollfd p = { pipes[0], POLLIN, 0 }; return poll(&p, 1, HOUR * 1000); }
static long wait_ppoll(void) { struct pollfd p = { pipes[0], POLLIN, 0 }; return ppoll(&p, 1, &an_hour, NULL); }
static long wait_select(void)
{
	struct timeval timeout = { HOUR, 0 };
	fd_set set;
	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	return select(pipes[0] + 1, &set, NULL, NULL, &timeout);
}
static long wait_pselect(void)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	return pselect(pipes[0] + 1, &set, NULL, NULL, &an_hour, NULL);
}
static long wait_epoll(void) { struct epoll_event e; return epoll_wait(epoll, &e, 1, HOUR * 1000); }
static long wait_epoll_pwait(void)
{
	struct epoll_event e;
	sigset_t mask;
	sigfillset(&mask);
	return epoll_pwait(epoll, &e, 1, HOUR * 1000, &mask);
}
static sigset_t only(int signal)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	return set;
}
static long wait_sigtimedwait(void) { sigset_t set = only(SIGUSR1); return sigtimedwait(&set, NULL, &an_hour); }
static long wait_sigwaitinfo(void) { sigset_t set = only(SIGUSR2); return sigwaitinfo(&set, NULL); }
static long wait_semop(void) { struct sembuf op = { 0, -1, 0 }; return semop(semaphores, &op, 1); }
static long wait_semtimedop(void) { struct sembuf op = { 0, -1, 0 }; return semtimedop(semaphores, &op, 1, &an_hour); }
static long wait_msgrcv(void) { struct { long type; char text[8]; } m; return msgrcv(queue, &m, 8, 0, 0); }
static long wait_accept(void) { return accept(listener, NULL, NULL); }
static long wait_recv(void) { char c; return recv(pair[0], &c, 1, 0); }
static long wait_recv_timeout(void) { char c; return recv(pair[1], &c, 1, 0); }
/* Sockets with a time limit, where the kernel does not restart calls by itself. */
static long wait_accept_timeout(void) { return accept(timed_listener, NULL, NULL); }
static long wait_accept4_timeout(void) { return accept4(timed_listener, NULL, NULL, SOCK_CLOEXEC); }
static long wait_connect_timeout(void)
{
	/* The queue of the listener is full. */
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct timeval timeout = { HOUR, 0 };
	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0);
	return connect(fd, (struct sockaddr *)&full_name, full_length);
}
static long wait_read_timeout(void) { char c; return read(pair[1], &c, 1); }
static char byte; /* Nothing is received or sent: the threads can share it. */
static struct iovec piece = { &byte, 1 };
static struct mmsghdr message = { .msg_hdr = { .msg_iov = &piece, .msg_iovlen = 1 } };
static long wait_readv_timeout(void) { return readv(pair[1], &piece, 1); }
static long wait_recvmsg_timeout(void) { return recvmsg(pair[1], &message.msg_hdr, 0); }
static long wait_recvmmsg_timeout(void) { return recvmmsg(pair[1], &message, 1, 0, NULL); }
static long wait_write_timeout(void) { char c = 0; return write(full_pair[0], &c, 1); }
static long wait_writev_timeout(void) { return writev(full_pair[0], &piece, 1); }
static long wait_send_timeout(void) { char c = 0; return send(full_pair[0], &c, 1, 0); }
static long wait_sendmsg_timeout(void) { return sendmsg(full_pair[0], &message.msg_hdr, 0); }
static long wait_sendmmsg_timeout(void) { return sendmmsg(full_pair[0], &message, 1, 0); }
static long wait_epoll_pwait2(void)
{
	struct epoll_event e;
	return syscall(SYS_epoll_pwait2, epoll, &e, 1, &an_hour, NULL, 0);
}
static long wait_io_getevents(void)
{
	struct io_event event;
	return syscall(SYS_io_getevents, aio, 1, 1, &event, NULL);
}
static long wait_io_pgetevents(void)
{
	struct io_event event;
	return syscall(SYS_io_pgetevents, aio, 1, 1, &event, NULL, NULL);
}
static long wait_wait4(void) { int status; return waitpid(holder, &status, 0); }
static long wait_pause(void) { return pause(); }
static long wait_sigsuspend(void) { sigset_t all; sigfillset(&all); return sigsuspend(&all); }
static long wait_flock(void)
{
	int file = open(lock_path, O_RDWR);
	return flock(file, LOCK_EX);
}
static long wait_setlkw(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	return fcntl(lock_file, F_SETLKW, &lock);
}
static long wait_inotify(void) { char event[512]; return read(inotify, event, sizeof event); }
static long wait_wake_pipe(void) { char c; return read(wake_pipe[0], &c, 1); }

enum state { STARTING, WAITING, RETURNED };
static struct sleeper {
	const char *name;
	long (*wait)(void);
	volatile enum state state;
	volatile pid_t tid;
	volatile long result;
	volatile int error;
	volatile int missing; /* what it waits with is not there */
} sleepers[] = {
#define SLEEPER(name) { #name, wait_##name, STARTING, 0, 0, 0, 0 }
	SLEEPER(wake_pipe), /* first: "wake" wakes this one */
	SLEEPER(read), SLEEPER(write), SLEEPER(futex), SLEEPER(futex_timeout), SLEEPER(condition),
	SLEEPER(nanosleep), SLEEPER(clock_nanosleep), SLEEPER(clock_nanosleep_absolute),
	SLEEPER(poll), SLEEPER(ppoll), SLEEPER(select), SLEEPER(pselect), SLEEPER(epoll),
	SLEEPER(epoll_pwait), SLEEPER(sigtimedwait), SLEEPER(sigwaitinfo), SLEEPER(semop),
	SLEEPER(semtimedop), SLEEPER(msgrcv), SLEEPER(accept), SLEEPER(recv), SLEEPER(recv_timeout),
	SLEEPER(accept_timeout), SLEEPER(accept4_timeout), SLEEPER(connect_timeout),
	SLEEPER(read_timeout), SLEEPER(readv_timeout), SLEEPER(recvmsg_timeout), SLEEPER(recvmmsg_timeout),
	SLEEPER(write_timeout), SLEEPER(writev_timeout), SLEEPER(send_timeout), SLEEPER(sendmsg_timeout),
	SLEEPER(sendmmsg_timeout), SLEEPER(epoll_pwait2),
	SLEEPER(io_getevents), SLEEPER(io_pgetevents), SLEEPER(wait4), SLEEPER(pause), SLEEPER(sigsuspend), SLEEPER(flock),
	SLEEPER(setlkw), SLEEPER(inotify),
};
#define SLEEPERS (int)(sizeof sleepers / sizeof *sleepers)

static void *sleep_in(void *argument)
{
	struct sleeper *s = argument;
	s->tid = (pid_t)syscall(SYS_gettid);
	s->state = WAITING;
	long result = s->wait();
	s->error = result < 0 ? errno : 0;
	s->result = result;
	s->state = RETURNED;
	return NULL;
}

/* What a waiting thread is waiting in, as the kernel says: 'S' is asleep. */
static int asleep(pid_t tid)
{
	char path[64], text[256];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
	int file = open(path, O_RDONLY);
	ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
	if (file >= 0)
		close(file);
	if (length <= 0)
		return 0;
	text[length] = 0;
	char *after = strrchr(text, ')');
	return after && after[2] == 'S';
}

static void mark_missing(const char *name)
{
	for (int i = 0; i < SLEEPERS; i++)
		if (!strcmp(sleepers[i].name, name)) {
			sleepers[i].missing = 1;
			printf("skipped: no %s here (%s)\n", name, strerror(errno));
		}
}

static void remove_what_outlives_us(void)
{
	if (semaphores >= 0)
		semctl(semaphores, 0, IPC_RMID);
	if (queue >= 0)
		msgctl(queue, IPC_RMID, NULL);
	unlink(lock_path);
	kill(holder, SIGKILL);
}

/* A child that holds the locks and is waited for. */
static void start_holder(void)
{
	int locked[2];
	pid_t parent = getpid();
	lock_path = temporary();
	lock_file = mkstemp(lock_path);
	CHECK(lock_file >= 0 && pipe(locked) == 0);
	holder = fork();
	CHECK(holder >= 0);
	if (holder == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int file = open(lock_path, O_RDWR);
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		CHECK(file >= 0 && flock(file, LOCK_EX) == 0 && fcntl(lock_file, F_SETLK, &lock) == 0);
		CHECK(write(locked[1], "l", 1) == 1);
		close(0);
		while (getppid() == parent)
			sleep(HOUR);
		_exit(0);
	}
	char c;
	CHECK(read(locked[0], &c, 1) == 1);
}

static int new_listener(int backlog)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX }; /* the kernel chooses one */
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name.sun_family) == 0 && listen(fd, backlog) == 0);
	return fd;
}

static void open_everything(void)
{
	CHECK(pipe(pipes) == 0 && pipe(wake_pipe) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, full_pair) == 0);
	struct timeval timeout = { HOUR, 0 };
	CHECK(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
	CHECK(setsockopt(full_pair[0], SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0);
	fill_socket(full_pair[0]);
	fill_socket(full_pair[1]);
	CHECK((epoll = epoll_create1(0)) >= 0);
	struct epoll_event event = { .events = EPOLLIN };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event) == 0);
	listener = new_listener(1);
	timed_listener = new_listener(1);
	CHECK(setsockopt(timed_listener, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
	int full_listener = new_listener(0);
	CHECK(getsockname(full_listener, (struct sockaddr *)&full_name, &full_length) == 0);
	for (int fd = 0; fd >= 0;) {
		int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		fd = connect(client, (struct sockaddr *)&full_name, full_length);
	}
	CHECK((inotify = inotify_init1(0)) >= 0);
	if ((semaphores = semget(IPC_PRIVATE, 1, 0600)) < 0) {
		mark_missing("semop");
		mark_missing("semtimedop");
	}
	if ((queue = msgget(IPC_PRIVATE, 0600)) < 0)
		mark_missing("msgrcv");
	if (syscall(SYS_io_setup, 1, &aio) < 0) {
		mark_missing("io_getevents");
		mark_missing("io_pgetevents");
	}
	struct epoll_event none;
	const struct timespec at_once = { 0, 0 };
	if (syscall(SYS_epoll_pwait2, epoll, &none, 1, &at_once, NULL, 0) < 0)
		mark_missing("epoll_pwait2"); /* Linux 5.11 */
}

/* How often the first thread's wait for its next command was interrupted by nothing it knows of. */
static int interrupted;

static int report(int waking)
{
	int returned = interrupted;
	if (interrupted)
		printf("returned main: %d times EINTR\n", interrupted);
	for (int i = waking; i < SLEEPERS; i++) {
		struct sleeper *s = &sleepers[i];
		if (s->missing || s->state != RETURNED)
			continue;
		returned++;
		printf("returned %s: result %ld, %s\n", s->name, s->result,
		       s->error == EINTR ? "EINTR" : s->error ? strerror(s->error) : "no error");
	}
	return returned;
}

int main(void)
{
	start_holder();
	open_everything();
	atexit(remove_what_outlives_us);
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGUSR2);
	sigaddset(&blocked, SIGTERM); /* the sleepers', too: main takes it back */
	CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
	int waiting = 0;
	for (int i = 0; i < SLEEPERS; i++) {
		pthread_t thread;
		if (sleepers[i].missing)
			continue;
		CHECK(pthread_create(&thread, NULL, sleep_in, &sleepers[i]) == 0);
		waiting++;
	}
	for (int i = 0; i < SLEEPERS; i++)
		while (!sleepers[i].missing && sleepers[i].state != RETURNED &&
		       (sleepers[i].state == STARTING || !asleep(sleepers[i].tid)))
			usleep(1000);
	if (report(0)) {
		printf("BAD: came back before anything happened\n");
		return 1;
	}
	stop_on_sigterm();
	sigset_t term = only(SIGTERM);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &term, NULL) == 0);
	ready();
	int woken = 0;
	char line[64];
	size_t length = 0;
	while (!stop_asked) {
		struct pollfd input = { 0, POLLIN, 0 };
		int answer = poll(&input, 1, HOUR * 1000);
		interrupted += answer < 0 && errno == EINTR && !stop_asked;
		if (answer <= 0)
			continue;
		if (read(0, line + length, 1) != 1)
			break;
		if (line[length] != '\n') {
			length += length < sizeof line - 2;
			continue;
		}
		line[length] = 0;
		length = 0;
		if (!strcmp(line, "report")) {
			report(woken);
			printf("report done\n");
		} else if (!strcmp(line, "wake") && !woken) {
			CHECK(write(wake_pipe[1], "w", 1) == 1);
			for (int i = 0; i < 5000 && sleepers[0].state != RETURNED; i++)
				usleep(1000);
			woken = 1;
			if (sleepers[0].state != RETURNED || sleepers[0].result != 1)
				printf("returned wake_pipe: never\n");
			else
				printf("woken\n");
		} else if (!strcmp(line, "quit")) {
			break;
		}
		fflush(stdout);
	}
	int returned = report(woken);
	if (woken && (sleepers[0].state != RETURNED || sleepers[0].result != 1))
		returned++;
	if (returned)
		printf("BAD: %d of %d calls came back\n", returned, waiting);
	else
		printf("ok asleep=%d\n", waiting - woken);
	return returned != 0;
}
