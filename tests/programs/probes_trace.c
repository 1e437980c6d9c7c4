/*
 * A program that records itself into a trace.
 *
 *   probes_trace parts DIR DIR    two traces: what is recorded before, between and after them is in neither
 *   probes_trace finish DIR       one that capriole_finish() completes
 *   probes_trace die DIR HOW      it ends while it records: by a signal (a number), exit, _exit, or exec
 *   probes_trace errors DIR FILE
 *   probes_trace fork DIR DIR     a child records into the first one, and into one of its own once it has events
 *   probes_trace closes DIR       it closes the connection to its helper, as daemons do, and goes on
 *   probes_trace daemon DIR       a child goes on when it has ended
 */
#include "probes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 1000

static struct capriole_record done = CAPRIOLE_RECORD("done", "n=$arg1:u64");

PROBED uint64_t work(uint64_t a, uint64_t n)
{
	return mix(a) + n;
}

PROBED uint64_t other(uint64_t a)
{
	return mix(a) + 7;
}

static void works(uint64_t from)
{
	for (uint64_t i = from; i < from + CALLS; i++) {
		CHECK(work(i, 3) == mix(i) + 3);
		CHECK(other(i) == mix(i) + 7);
		CAPRIOLE_WRITE(&done, i);
	}
}

static long lines(void)
{
	static char text[1 << 20];
	int memory = memfd_create("records", 0);
	OK(capriole_event_read(memory));
	ssize_t size = pread(memory, text, sizeof text, 0);
	CHECK(size >= 0 && (size_t)size < sizeof text);
	close(memory);
	long count = 0;
	for (ssize_t i = 0; i < size; i++)
		count += text[i] == '\n';
	return count;
}

static int is_complete(const char *trace)
{
	static char path[4200], text[1 << 20];
	snprintf(path, sizeof path, "%s/info/capriole.json", trace);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	size_t size = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[size] = 0;
	return strstr(text, "\"complete\": true") != NULL;
}

static void parts(const char *first, const char *second)
{
	OK(capriole_event_enable(":work n=$arg1:u64"));
	OK(capriole_record_enable(&done));
	works(0);
	OK(capriole_record_start(first));
	FAILS(capriole_record_start(second), EBUSY, "already");
	works(10000);
	int late = capriole_event_enable(":other n=$arg1:u64");
	OK(late);
	works(20000);
	OK(capriole_record_stop());
	FAILS(capriole_record_stop(), ENOENT, "no trace");
	/* Those before and after the trace. */
	IS(lines(), 2 * CALLS);
	works(30000);
	IS(lines(), 3 * CALLS);
	OK(capriole_event_disable(late));
	OK(capriole_record_start(second));
	works(40000);
	OK(capriole_record_stop());
	IS(lines(), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	if (!strcmp(argv[1], "parts")) {
		parts(argv[2], argv[3]);
	} else if (!strcmp(argv[1], "finish")) {
		OK(capriole_record_start(argv[2]));
		OK(capriole_event_enable(":work n=$arg1:u64"));
		works(0);
		OK(capriole_finish());
	} else if (!strcmp(argv[1], "die")) {
		OK(capriole_event_enable(":work n=$arg1:u64"));
		OK(capriole_record_start(argv[2]));
		works(0);
		puts("ok");
		fflush(stdout);
		if (!strcmp(argv[3], "exec"))
			execl("/bin/true", "true", NULL);
		if (!strcmp(argv[3], "exit"))
			exit(0);
		if (!strcmp(argv[3], "_exit"))
			_exit(0);
		/* The signal of a service manager goes to all of its processes, and so to the helper as well. */
		CHECK(!kill(getpid(), atoi(argv[3])));
		pause();
	} else if (!strcmp(argv[1], "fork")) {
		OK(capriole_event_enable(":work n=$arg1:u64"));
		OK(capriole_record_start(argv[2]));
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			works(0);
			FAILS(capriole_record_stop(), ENOENT, "forked");
			FAILS(capriole_record_start(argv[3]), EPIPE, "forked");
			OK(capriole_event_enable(":other n=$arg1:u64"));
			OK(capriole_record_start(argv[3]));
			works(10000);
			OK(capriole_record_stop());
			_exit(7);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
		works(20000);
		OK(capriole_record_stop());
	} else if (!strcmp(argv[1], "closes")) {
		OK(capriole_event_enable(":work n=$arg1:u64"));
		OK(capriole_record_start(argv[2]));
		works(0);
		CHECK(!syscall(SYS_close_range, 3, ~0u, 0));
		works(10000);
		UNTIL(is_complete(argv[2]));
		FAILS(capriole_record_stop(), EPIPE, "has ended");
		FAILS(capriole_record_start(argv[2]), EPIPE, "enable them");
	} else if (!strcmp(argv[1], "daemon")) {
		OK(capriole_event_enable(":work n=$arg1:u64"));
		OK(capriole_record_start(argv[2]));
		works(0);
		if (!fork()) {
			works(10000);
			UNTIL(is_complete(argv[2]));
			_exit(0);
		}
	} else {
		FAILS(capriole_record_stop(), ENOENT, "no trace");
		FAILS(capriole_record_start(NULL), EINVAL, "no directory");
		FAILS(capriole_record_start(""), EINVAL, "no directory");
		OK(capriole_event_enable(":work n=$arg1:u64"));
		FAILS(capriole_record_start("/proc/no/such"), EIO, "/proc/no");
		FAILS(capriole_record_start(argv[3]), EIO, argv[3]);
		works(0);
		IS(lines(), CALLS);
		OK(capriole_record_start(argv[2]));
		OK(capriole_record_stop());
		FAILS(capriole_record_stop(), ENOENT, "no trace");
	}
	puts("ok");
	return 0;
}
