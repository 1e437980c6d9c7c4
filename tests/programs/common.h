/*
 * What the test programs share. Each verifies itself: it prints "ready PID" when it
 * can be probed, then works; at the end "ok ..." and exit status 0, or "BAD ..." and 1.
 */
#ifndef CAPRIOLE_TEST_COMMON_H
#define CAPRIOLE_TEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A function that is called as it is written: neither inlined, cloned nor guessed at. */
#ifdef __clang__
#define PROBED __attribute__((noinline, visibility("default")))
#else
#define PROBED __attribute__((noipa, visibility("default")))
#endif

#define BAD(...) bad(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition) \
	do { \
		if (!(condition)) \
			BAD("%s (errno %d: %s)", #condition, errno, strerror(errno)); \
	} while (0)

__attribute__((format(printf, 3, 4), noreturn, unused)) static void
bad(const char *file, int line, const char *format, ...)
{
	char text[512];
	int length = snprintf(text, sizeof text, "BAD %s:%d: ", file, line);
	va_list arguments;
	va_start(arguments, format);
	int more = vsnprintf(text + length, sizeof text - (size_t)length - 1, format, arguments);
	va_end(arguments);
	length += more > 0 ? more : 0;
	if (length > (int)sizeof text - 2)
		length = (int)sizeof text - 2;
	text[length++] = '\n';
	/* one write, so that two threads do not mix; whole even if the pipe is gone */
	if (write(1, text, (size_t)length) < 0)
		_exit(3);
	_exit(1);
}

/* The template of a name for mkstemp or mkdtemp, in the directory for temporary files. */
__attribute__((unused)) static char *temporary(void)
{
	static char name[256];
	const char *directory = getenv("TMPDIR");
	snprintf(name, sizeof name, "%s/capriole-test-XXXXXX", directory ? directory : "/tmp");
	return name;
}

/* Mixes a word well enough that a wrong register shows in the result. */
static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	return x;
}

__attribute__((unused)) static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((unused)) static void ready(void)
{
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
}

static volatile sig_atomic_t stop_asked;

__attribute__((unused)) static void ask_to_stop(int signal)
{
	(void)signal;
	stop_asked = 1;
}

/* SIGTERM ends wait_for_stop, in whatever thread it arrives. */
__attribute__((unused)) static void stop_on_sigterm(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = ask_to_stop;
	action.sa_flags = SA_RESTART;
	sigaction(SIGTERM, &action, NULL);
}

/*
 * Returns when a line came on standard input, on SIGTERM, or after `seconds` (0: no
 * limit). The end of the input is a line only if there is no limit.
 */
__attribute__((unused)) static void wait_for_stop(double seconds)
{
	uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
	int watch_input = 1;
	while (!stop_asked && (seconds <= 0 || now_ns() < end)) {
		struct pollfd input = { watch_input ? 0 : -1, POLLIN, 0 };
		if (poll(&input, 1, 10) <= 0 || !input.revents)
			continue;
		char text[256];
		ssize_t length = read(0, text, sizeof text);
		if (length > 0 || (length == 0 && seconds <= 0))
			return;
		if (length == 0)
			watch_input = 0;
	}
}

/*
 * For threads that call without end where it does not matter how often: works in bursts of 128 rounds,
 * so that two such threads take a third of a processor and not two.
 */
__attribute__((unused)) static void rest(uint64_t round)
{
	if (round % 128 == 127)
		usleep(500);
}

/*
 * For a loop that lasts until standard input ends, before each of its turns: true while it has not
 * ended. The line "turns N" is answered by "turned" when N turns more are done.
 */
__attribute__((unused)) static int has_turn(void)
{
	static unsigned long left;
	struct pollfd input = { 0, POLLIN, 0 };
	char line[64];
	if (left && !--left) {
		puts("turned");
		fflush(stdout);
	}
	if (poll(&input, 1, 0) == 0)
		return 1;
	ssize_t length = read(0, line, sizeof line - 1);
	if (length <= 0)
		return 0;
	line[length] = 0;
	if (sscanf(line, "turns %lu", &left) != 1)
		BAD("what is %s?", line);
	return 1;
}

/*
 * Answers, for each line on standard input, with what `answer` prints and the line
 * "done"; the answers to all lines are to be the same. Ends well when the input ends.
 */
__attribute__((unused)) static void serve(void (*answer)(void))
{
	char line[256];
	unsigned long count = 0;
	ready();
	for (; fgets(line, sizeof line, stdin); count++) {
		answer();
		puts("done");
		fflush(stdout);
	}
	printf("ok answers=%lu\n", count);
}

#endif
