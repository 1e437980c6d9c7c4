/* Records have the ids of the threads that have made them. */
#include "probes.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct capriole_record done = CAPRIOLE_RECORD("done", "n=$arg1:u64");

static void *run(void *id)
{
	*(long *)id = syscall(SYS_gettid);
	CAPRIOLE_WRITE(&done, 5);
	close(open("/dev/null", O_RDONLY));
	return NULL;
}

int main(void)
{
	pthread_t thread;
	long ids[2];
	char text[4096] = { 0 }, wanted[2][64];
	OK(capriole_event_enable("libc.so.6:open path=+0($arg1):string"));
	OK(capriole_record_enable(&done));
	run(&ids[0]);
	CHECK(pthread_create(&thread, NULL, run, &ids[1]) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	int memory = memfd_create("records", 0);
	OK(capriole_event_read(memory));
	CHECK(pread(memory, text, sizeof text - 1, 0) > 0);
	for (int i = 0; i < 2; i++) {
		snprintf(wanted[i], sizeof wanted[i], " %ld [", ids[i]);
		if (!strstr(text, wanted[i]))
			BAD("there is no record of thread %ld:\n%s", ids[i], text);
	}
	if (!strstr(text, "path=\"/dev/null\"") || !strstr(text, "done n=5"))
		BAD("%s", text);
	puts("ok");
	return 0;
}
