/* Programs that probe themselves while `capriole record` records them. The program starts and ends its
 * recorder itself, so each order of coming and going is a part of its own.
 *
 * With LATE the library is loaded when it is first used, from the path in LATE_LIBRARY: a recorder that is
 * there by then has no guards in it. */
#include "probes.h"

#ifdef LATE
#include <dlfcn.h>
static void *late(const char *name)
{
	void *library = dlopen(getenv("LATE_LIBRARY"), RTLD_NOW);
	void *found = library ? dlsym(library, name) : NULL;
	if (!found)
		BAD("%s", dlerror());
	return found;
}
static int late_register(struct capriole_probe *probe)
{
	return ((int (*)(struct capriole_probe *))late("capriole_probe_register"))(probe);
}
static int late_unregister(struct capriole_probe *probe)
{
	return ((int (*)(struct capriole_probe *))late("capriole_probe_unregister"))(probe);
}
static int late_finish(void)
{
	return ((int (*)(void))late("capriole_finish"))();
}
static const char *late_error(void)
{
	return ((const char *(*)(void))late("capriole_error"))();
}
/* Other functions of the library are not called then, and not there. */
#define capriole_probe_register late_register
#define capriole_probe_unregister late_unregister
#define capriole_finish late_finish
#define capriole_error late_error
#endif

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>

#define N 1000

PROBED long own(long a)
{
	return (long)mix((uint64_t)a + 1);
}

PROBED long recorded(long a)
{
	return (long)mix((uint64_t)a + 2);
}

PROBED long both(long a)
{
	return (long)mix((uint64_t)a + 3);
}

static long results(void)
{
	long sum = 0;
	for (long i = 0; i < N; i++)
		sum += own(i) ^ recorded(i) ^ both(i) ^ (long)getuid();
	return sum;
}

/* Runs the functions once: the results are right, and handlers are called so often. */
#define HITS(wanted) \
	do { \
		hits = 0; \
		IS(results(), sum); \
		IS(hits, wanted); \
	} while (0)

/* The bytes of the first jump are those of two instructions; the first one may fault. */
extern long load(const long *from);
__asm__(".text\n.globl load\n.type load, @function\n.p2align 4\nload:\n"
	"mov (%rdi), %rax\nlea 1(%rax), %rax\nxor %ecx, %ecx\nret\n.size load, .-load\n");
extern long load_plainly(const long *from);
__asm__(".text\n.globl load_plainly\n.type load_plainly, @function\n.p2align 4\nload_plainly:\n"
	"mov (%rdi), %rax\nlea 1(%rax), %rax\nret\n.size load_plainly, .-load_plainly\n");

static unsigned long hits;

static int count(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	__atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
	return 0;
}

/* A command capriole that was started, and what it has said. */
struct command {
	pid_t pid;
	int out;
	size_t size;
	char text[8192];
};

static char trace[300], remove_it[300];

static void clean_up(void)
{
	if (*remove_it && system(remove_it) != 0)
		fputs("the trace stays\n", stderr);
}

static void start(struct command *command, const char *const *words)
{
	const char *all[24] = { getenv("CAPRIOLE_HELPER") };
	int n = 1, ends[2];
	posix_spawn_file_actions_t actions;
	/* What is left there of frames of signals would be taken for one that is returned through. */
	memset(command, 0, sizeof *command);
	CHECK(all[0]);
	while (*words)
		all[n++] = *words++;
	all[n] = NULL;
	CHECK(!pipe2(ends, O_CLOEXEC));
	CHECK(!posix_spawn_file_actions_init(&actions));
	CHECK(!posix_spawn_file_actions_adddup2(&actions, ends[1], 1));
	CHECK(!posix_spawn_file_actions_adddup2(&actions, ends[1], 2));
	CHECK(!posix_spawn(&command->pid, all[0], &actions, NULL, (char **)(void *)all, environ));
	CHECK(!posix_spawn_file_actions_destroy(&actions));
	close(ends[1]);
	command->out = ends[0];
}

/* Reads what it says, up to a text; returns 0 at the end. */
static int said(struct command *command, const char *text)
{
	while (!text || !strstr(command->text, text)) {
		size_t left = sizeof command->text - 1 - command->size;
		ssize_t got = read(command->out, command->text + command->size, left);
		if (got < 0 && errno == EINTR)
			continue;
		CHECK(got >= 0);
		if (!got)
			return 0;
		command->size += (size_t)got;
		command->text[command->size] = 0;
	}
	return 1;
}

static int ended(struct command *command)
{
	int status;
	said(command, NULL);
	close(command->out);
	while (waitpid(command->pid, &status, 0) < 0)
		CHECK(errno == EINTR);
	return status;
}

static pid_t helper_pid(void)
{
	/* Only the helper has this program as its argument, in a sense: it is told its pid by a socket. So
	 * it is found by the session that it owns: its process id is in the ledger. */
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long start;
	unsigned owner = 0;
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "/memfd:capriole-library-ledger") && sscanf(line, "%lx-", &start) == 1)
			owner = ((unsigned *)start)[5];
	fclose(maps);
	CHECK(owner);
	return (pid_t)owner;
}

static void kill_helper(void)
{
	char path[64], threads[64], state = 0;
	pid_t pid = helper_pid();
	CHECK(!kill(pid, SIGKILL));
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	snprintf(threads, sizeof threads, "/proc/%d/task", (int)pid);
	for (;;) {
		FILE *stat = fopen(path, "r");
		if (!stat)
			return;
		int read = fscanf(stat, "%*d %*s %c", &state);
		fclose(stat);
		/* Its last thread closes the connection. A link of the directory is left for the first one. */
		struct stat tasks;
		if (read == 1 && (state == 'Z' || state == 'X') && (lstat(threads, &tasks) || tasks.st_nlink <= 3))
			return;
		usleep(1000);
	}
}

static const char *pid_text(void)
{
	static char text[16];
	snprintf(text, sizeof text, "%d", (int)getpid());
	return text;
}

static void start_recorder(struct command *command, const char *event, const char *option)
{
	if (!*trace) {
		const char *directory = mkdtemp(temporary());
		CHECK(directory);
		snprintf(trace, sizeof trace, "%s/trace", directory);
		snprintf(remove_it, sizeof remove_it, "rm -rf %s", directory);
		atexit(clean_up);
	}
	const char *words[] = { "record", "-p", pid_text(), "--buffer-size", "8M", "-o", trace, "-e", event,
				option, NULL };
	start(command, words);
}

static void record(struct command *command, const char *event, const char *option)
{
	start_recorder(command, event, option);
	if (!said(command, "recording"))
		BAD("%s is not recorded: %s", event, command->text);
}

/* Ends a recorder; returns how many events it has recorded. */
static long recorded_events(struct command *command)
{
	CHECK(!kill(command->pid, SIGINT));
	int status = ended(command);
	/* "capriole: 1,000 events in 0.10 s -> ..." */
	const char *at = strstr(command->text, " event");
	while (at && strncmp(at, " event in ", 10) && strncmp(at, " events in ", 11))
		at = strstr(at + 1, " event");
	if (status || !at)
		BAD("the recorder ends with %x: %s", (unsigned)status, command->text);
	while (at > command->text && at[-1] != ' ')
		at--;
	long number = 0;
	for (; *at != ' '; at++)
		if (*at != ',')
			number = number * 10 + *at - '0';
	return number;
}

static void kill_recorder(struct command *command)
{
	CHECK(!kill(command->pid, SIGKILL));
	ended(command);
}

static void is_refused(const char *event, const char *option, const char *reason)
{
	struct command command;
	start_recorder(&command, event, option);
	if (ended(&command) == 0 || !strstr(command.text, reason))
		BAD("not refused for \"%s\": %s", reason, command.text);
}

/* `capriole detach` of this process. */
static void detach(int fine, const char *text)
{
	struct command command;
	const char *words[] = { "detach", pid_text(), NULL };
	start(&command, words);
	int status = ended(&command);
	if ((status == 0) != fine || !strstr(command.text, text))
		BAD("detach: %x, without \"%s\": %s", (unsigned)status, text, command.text);
}

static struct capriole_probe probe_of(const char *name)
{
	return (struct capriole_probe){ .symbol = name, .pre = count };
}

static void library_first(void)
{
	struct capriole_probe p = probe_of("own");
	struct command recorder;
	long sum = results();
	OK(capriole_probe_register(&p));
	for (int round = 0; round < 3; round++) {
		hits = 0;
		record(&recorder, round & 1 ? "libc:getuid" : ":recorded $arg1", NULL);
		IS(results(), sum);
		IS(recorded_events(&recorder), N);
		IS(hits, N);
		IS(results(), sum);
		IS(hits, 2 * N);
	}
	optimize(&p);
	record(&recorder, ":recorded $arg1", NULL);
	hits = 0;
	IS(results(), sum);
	OK(capriole_probe_unregister(&p));
	OK(capriole_finish());
	IS(is_mapped("capriole-library"), 0);
	IS(results(), sum);
	IS(hits, N);
	IS(recorded_events(&recorder), 2 * N);
	IS(is_mapped("memfd:capriole"), 0);
}

static void recorder_first(void)
{
	struct capriole_probe p = probe_of("own"), q = { .object = "libc", .symbol = "getuid", .pre = count };
	struct command recorder;
	long sum = results();
	record(&recorder, ":recorded $arg1", NULL);
	for (int round = 0; round < 3; round++) {
		hits = 0;
		OK(capriole_probe_register(&p));
		IS(results(), sum);
		IS(hits, N);
		OK(capriole_probe_register(&q));
		optimize(&p);
		optimize(&q);
		IS(results(), sum);
		IS(hits, 3 * N);
		OK(capriole_probe_unregister(&p));
		OK(capriole_probe_unregister(&q));
		IS(results(), sum);
		IS(hits, 3 * N);
		if (round & 1)
			OK(capriole_finish());
	}
	OK(capriole_probe_register(&p));
	IS(recorded_events(&recorder), 9 * N);
	IS(is_mapped("capriole-ledger"), 0);
	HITS(N);
	OK(capriole_probe_unregister(&p));
	OK(capriole_finish());
	IS(is_mapped("memfd:capriole"), 0);
}

static void same_function_recorded(void)
{
	struct capriole_probe p = probe_of("both"), q = probe_of("own");
	struct command recorder;
	char reason[64];
	long sum = results();
	record(&recorder, ":both $arg1", NULL);
	snprintf(reason, sizeof reason, "a recorder (capriole, process %d) has a probe", (int)recorder.pid);
	FAILS(capriole_probe_register(&p), EOPNOTSUPP, reason);
	IS(results(), sum);
	OK(capriole_probe_register(&q));
	IS(results(), sum);
	IS(hits, N);
	IS(recorded_events(&recorder), 2 * N);
	/* It is free then. */
	OK(capriole_probe_unregister(&q));
	OK(capriole_probe_register(&p));
	HITS(N);
	OK(capriole_probe_unregister(&p));
}

static void same_function_probed(void)
{
	struct capriole_probe p = probe_of("both");
	struct command recorder;
	long sum = results();
	OK(capriole_probe_register(&p));
	is_refused(":both", NULL, "the program itself has a probe at");
	optimize(&p);
	is_refused(":both", NULL, "the program itself has a probe at");
	is_refused(":both", "--breakpoints", "the program itself has a probe at");
	HITS(N);
	/* The address of the copy may still be in use. */
	OK(capriole_probe_disable(&p));
	is_refused(":both", NULL, "the program itself has a probe at");
	OK(capriole_probe_unregister(&p));
	OK(capriole_finish());
	record(&recorder, ":both", NULL);
	IS(results(), sum);
	IS(recorded_events(&recorder), N);
}

/* A function is recorded, and the instruction after its first ones is probed: a jump may share the bytes. */
static void neighbours(void)
{
	struct capriole_probe p = { .pre = count };
	struct command recorder;
	unsigned long probed = 0, refused = 0;
	long sum = results();
	for (int offset = 0; offset < 24; offset++) {
		p = (struct capriole_probe){ .symbol = "both", .offset = (unsigned long)offset, .pre = count };
		int failed = capriole_probe_register(&p);
		if (failed == -EILSEQ || failed == -EOPNOTSUPP)
			continue;
		OK(failed);
		hits = 0;
		start_recorder(&recorder, ":both", NULL);
		if (said(&recorder, "recording")) {
			IS(results(), sum);
			IS(recorded_events(&recorder), N);
			probed++;
		} else {
			ended(&recorder);
			if (!strstr(recorder.text, "the program itself has a probe") &&
			    !strstr(recorder.text, "another probe changes"))
				BAD("at %d: %s", offset, recorder.text);
			IS(results(), sum);
			refused++;
		}
		IS(hits, N);
		OK(capriole_probe_unregister(&p));
		OK(capriole_finish());
	}
	printf("%lu instructions probed, at %lu the function is not recorded\n", probed + refused, refused);
	CHECK(probed && refused);
}

static void library_code(void)
{
	struct capriole_probe p = probe_of("own");
	is_refused("libcapriole:capriole_probe_register", NULL, "this is code of libcapriole");
	is_refused("libcapriole:capriole_*", NULL, "this is code of libcapriole");
	OK(capriole_probe_register(&p));
	is_refused("libcapriole:capriole_hit", NULL, "libcapriole");
	OK(capriole_probe_unregister(&p));
}

static void breakpoints(void)
{
	struct capriole_probe p = probe_of("own"), q = probe_of("recorded");
	struct command recorder;
	char why[1024];
	long sum = results();
	/* Beside a recorder, whose guards hide signal actions, there are jumps from the start. */
	record(&recorder, ":both", NULL);
	OK(capriole_probe_register(&p));
	is_in_state(&p, CAPRIOLE_OPTIMIZED, "a jump");
	p.flags |= CAPRIOLE_NO_OPTIMIZE;
	struct sigaction action;
	CHECK(!sigaction(SIGTRAP, NULL, &action));
	CHECK(action.sa_handler == SIG_DFL);
	IS(results(), sum);
	IS(recorded_events(&recorder), N);
	IS(hits, N);
	OK(capriole_probe_unregister(&p));
	OK(capriole_finish());
	/* With breakpoints of the library's, the recorder uses none, and leaves these alone. */
	p.flags = 0;
	OK(capriole_optimization(0));
	OK(capriole_probe_register(&q));
	CHECK(capriole_probe_status(&q, why, sizeof why) == CAPRIOLE_BREAKPOINT);
	record(&recorder, ":both", "--breakpoints");
	hits = 0;
	IS(results(), sum);
	IS(recorded_events(&recorder), N);
	IS(hits, N);
	IS(results(), sum);
	IS(hits, 2 * N);
	OK(capriole_probe_unregister(&q));
	OK(capriole_optimization(1));
}

static int on_return(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	__atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
	return 0;
}

static void return_addresses(void)
{
	struct capriole_return_probe p = {
		.probe = { .symbol = "own" }, .handler = on_return, .by_address = 1,
	};
	struct command recorder;
	long sum = results();
	OK(capriole_return_probe_register(&p));
	is_refused(":both%return", "--return=stack", "probes itself");
	IS(results(), sum);
	IS(hits, N);
	record(&recorder, ":both%return", NULL);
	IS(results(), sum);
	IS(recorded_events(&recorder), N);
	IS(hits, 2 * N);
	OK(capriole_return_probe_unregister(&p));
	OK(capriole_finish());
	start_recorder(&recorder, ":both%return", "--return=stack");
	if (!said(&recorder, "recording")) {
		ended(&recorder);
		printf("skipped: return addresses cannot be replaced: %s\n", recorder.text);
		return;
	}
	FAILS(capriole_return_probe_register(&p), EOPNOTSUPP, "replaces return addresses");
	p.by_address = 0;
	OK(capriole_return_probe_register(&p));
	IS(results(), sum);
	IS(recorded_events(&recorder), N);
	IS(hits, 3 * N);
	OK(capriole_return_probe_unregister(&p));
}

static void helper_killed(void)
{
	struct capriole_probe p = probe_of("own"), q = probe_of("both");
	struct command recorder;
	long sum = results();
	OK(capriole_probe_register(&p));
	optimize(&p);
	record(&recorder, ":recorded $arg1", NULL);
	for (int round = 0; round < 3; round++) {
		hits = 0;
		kill_helper();
		IS(results(), sum);
		IS(hits, N);
		OK(capriole_probe_register(&q));
		IS(results(), sum);
		IS(hits, 3 * N);
		OK(capriole_probe_unregister(&q));
	}
	IS(recorded_events(&recorder), 6 * N);
	/* What a dead helper has left is not the recorder's affair. */
	kill_helper();
	record(&recorder, ":recorded $arg1", NULL);
	is_refused(":own", NULL, "the program itself has a probe at");
	HITS(N);
	IS(recorded_events(&recorder), N);
	IS(results(), sum);
	IS(hits, 2 * N);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_register(&q));
	OK(capriole_probe_unregister(&q));
	OK(capriole_finish());
	IS(is_mapped("memfd:capriole"), 0);
}

static void recorder_killed(void)
{
	struct capriole_probe p = probe_of("own"), q = probe_of("both");
	struct command recorder;
	long sum = results();
	detach(0, "has no probes of capriole");
	OK(capriole_probe_register(&p));
	detach(0, "no probes but those that it has put into itself");
	for (int round = 0; round < 2; round++) {
		record(&recorder, ":recorded", NULL);
		kill_recorder(&recorder);
		HITS(N);
		OK(capriole_probe_register(&q));
		FAILS(capriole_probe_register(&(struct capriole_probe){ .symbol = "recorded", .pre = count }),
		      EOPNOTSUPP, "a recorder has ended without taking its probe");
		IS(results(), sum);
		IS(hits, 3 * N);
		OK(capriole_probe_unregister(&q));
		if (round)
			detach(1, "");
	}
	IS(is_mapped("capriole-ledger"), 0);
	record(&recorder, ":recorded", NULL);
	HITS(N);
	IS(recorded_events(&recorder), N);
	OK(capriole_probe_unregister(&p));
	OK(capriole_finish());
	IS(is_mapped("memfd:capriole"), 0);
}

/* Everybody is killed, and everything is taken out from outside. */
static void all_killed(void)
{
	struct capriole_probe p = probe_of("own");
	struct command recorder;
	long sum = results();
	OK(capriole_probe_register(&p));
	record(&recorder, ":recorded", NULL);
	kill_helper();
	kill_recorder(&recorder);
	IS(results(), sum);
	IS(hits, N);
	detach(1, "");
	IS(is_mapped("capriole-ledger"), 0);
	HITS(0);
	/* The library finds out, and puts its probe in again. */
	struct capriole_probe q = probe_of("both");
	OK(capriole_probe_register(&q));
	IS(results(), sum);
	IS(hits, 2 * N);
	OK(capriole_probe_unregister(&p));
	OK(capriole_probe_unregister(&q));
	OK(capriole_finish());
	IS(is_mapped("memfd:capriole"), 0);
}

static void forks(void)
{
	struct capriole_probe p = probe_of("own"), q = probe_of("both");
	struct command recorder;
	long sum = results();
	OK(capriole_probe_register(&p));
	record(&recorder, ":recorded", NULL);
	for (int child = 0; child < 4; child++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			HITS(N);
			if (child & 1) {
				/* A helper of its own takes out what is inherited, but for the recorder's. */
				OK(capriole_probe_register(&q));
				IS(results(), sum);
				IS(hits, 3 * N);
				OK(capriole_probe_unregister(&p));
				OK(capriole_probe_unregister(&q));
				OK(capriole_finish());
				IS(is_mapped("capriole-library"), 0);
				IS(is_mapped("capriole-ledger"), 1);
			}
			IS(results(), sum);
			_exit(0);
		}
		int status;
		while (waitpid(pid, &status, 0) < 0)
			CHECK(errno == EINTR);
		IS(status, 0);
	}
	HITS(N);
	/* 2 and 3 rounds in children, and one here */
	IS(recorded_events(&recorder), 11 * N);
	OK(capriole_probe_unregister(&p));
}

/* A child that the recorder has left, because it has ended, goes on with its own. */
static void recorder_leaves_a_child(void)
{
	struct capriole_probe p = probe_of("own");
	struct command recorder;
	int to_child[2], to_parent[2];
	char byte = 0;
	long sum = results();
	CHECK(!pipe(to_child) && !pipe(to_parent));
	record(&recorder, ":recorded", NULL);
	OK(capriole_probe_register(&p));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct capriole_probe q = probe_of("both");
		OK(capriole_probe_register(&q));
		CHECK(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
		HITS(2 * N);
		IS(is_mapped("capriole-ledger"), 0);
		OK(capriole_probe_unregister(&p));
		OK(capriole_probe_unregister(&q));
		OK(capriole_finish());
		IS(is_mapped("memfd:capriole"), 0);
		_exit(0);
	}
	CHECK(read(to_parent[0], &byte, 1) == 1);
	IS(recorded_events(&recorder), 0);
	CHECK(write(to_child[1], &byte, 1) == 1);
	int status;
	while (waitpid(pid, &status, 0) < 0)
		CHECK(errno == EINTR);
	IS(status, 0);
	HITS(N);
	OK(capriole_probe_unregister(&p));
}

/* The program ends, or executes another one, while both are there. */
static void ends(void)
{
	for (int way = 0; way < 3; way++) {
		int ready[2];
		char byte = 0;
		CHECK(!pipe2(ready, O_CLOEXEC));
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			struct capriole_probe p = probe_of("own");
			struct command recorder;
			OK(capriole_probe_register(&p));
			record(&recorder, ":recorded", NULL);
			results();
			IS(hits, N);
			CHECK(write(ready[1], &byte, 1) == 1);
			if (way == 0)
				exit(0);
			if (way == 1)
				execl("/bin/true", "true", (char *)NULL);
			for (;;)
				pause();
		}
		CHECK(read(ready[0], &byte, 1) == 1);
		if (way == 2)
			CHECK(!kill(pid, SIGKILL));
		int status;
		while (waitpid(pid, &status, 0) < 0)
			CHECK(errno == EINTR);
		IS(status, way == 2 ? SIGKILL : 0);
		close(ready[0]);
		close(ready[1]);
	}
}

/* Faults: the program's handler steps over the instruction; a probe's handler faults and is abandoned. */
static volatile unsigned long faults, abandoned;
static volatile uint64_t fault_at;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	(void)info;
	if (signal != SIGSEGV)
		_exit(7);
	faults++;
	fault_at = (uint64_t)regs[REG_RIP];
	regs[REG_RAX] = 41;
	regs[REG_RIP] += 3;
}

static int faulty(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	static volatile long *volatile nowhere = (volatile long *)16;
	*nowhere = 1;
	return 0;
}

static int on_faulty(struct capriole_probe *probe, struct capriole_regs *regs, int signal)
{
	(void)probe, (void)regs;
	abandoned += signal == SIGSEGV;
	return 1;
}

static void check_faults(const char *when, int watched)
{
	unsigned long before = faults, before_abandoned = abandoned;
	fault_at = 0;
	if (load_plainly((long *)16) != 42 || fault_at != (uint64_t)load_plainly)
		BAD("%s: fault at %lx, not %p", when, (unsigned long)fault_at, (void *)load_plainly);
	if (load((long *)16) != 42)
		BAD("%s: the handler has not stepped over a displaced instruction", when);
	IS(faults, before + 2);
	long word = 7;
	IS(load(&word), 8);
	own(1);
	if (abandoned != before_abandoned + (watched != 0))
		BAD("%s: %lu handlers abandoned", when, abandoned - before_abandoned);
	struct sigaction action;
	CHECK(!sigaction(SIGSEGV, NULL, &action));
	if (!watched && action.sa_sigaction != on_fault)
		BAD("%s: the program sees another handler than its own", when);
}

/* Steps: R and L come, r and l go, k: the recorder is killed, K: the helper. */
static const char *const fault_order_list[] = {
	"RLrl", "RLlr", "RrLl", "LRlr", "LRrl", "LlRr", "RLkl", "RLlk", "RkLl", "LRlk", "LRkl", "LlRk",
	"RLrRlr", "LRlLrl", "RLKLrl", "LRKrLl", "RLKkL", "RkLRlr", NULL
};

static void fault_order(const char *order)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	CHECK(!sigaction(SIGSEGV, &action, NULL));
	check_faults("at first", 0);
	struct capriole_probe p = { .symbol = "own", .pre = faulty, .fault = on_faulty };
	struct capriole_probe q = probe_of("both");
	struct command recorder = { 0 };
	int watched = 0, recording = 0, remains = 0;
	char when[64];
	for (const char *step = order; *step; step++) {
		switch (*step) {
		case 'R':
			record(&recorder, ":load", NULL);
			recording = 1;
			remains = 0;
			break;
		case 'r':
			recorded_events(&recorder);
			recording = 0;
			break;
		case 'k':
			kill_recorder(&recorder);
			recording = 0;
			remains = 1;
			break;
		case 'L':
			if (watched) {
				OK(capriole_probe_register(&q));
				OK(capriole_probe_unregister(&q));
			} else {
				OK(capriole_probe_register(&p));
			}
			watched = 1;
			break;
		case 'K':
			kill_helper();
			break;
		case 'l':
			OK(capriole_probe_unregister(&p));
			OK(capriole_finish());
			watched = 0;
			break;
		}
		snprintf(when, sizeof when, "%s after %.*s", order, (int)(step - order + 1), order);
		check_faults(when, watched);
	}
	if (recording)
		recorded_events(&recorder);
	if (watched) {
		OK(capriole_probe_unregister(&p));
		OK(capriole_finish());
	}
	if (remains)
		detach(1, "");
	snprintf(when, sizeof when, "%s at the end", order);
	check_faults(when, 0);
	if (is_mapped("memfd:capriole"))
		BAD("%s: memory stays: %s", when, is_mapped("capriole-ledger") ? "a recorder's" : "the library's");
}

static void fault_orders(void)
{
	for (int i = 0; fault_order_list[i]; i++)
		fault_order(fault_order_list[i]);
}

/* Each in a process of its own, which has not loaded the library before. */
__attribute__((unused)) static void fault_orders_apart(void)
{
	for (int i = 0; fault_order_list[i]; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			fault_order(fault_order_list[i]);
			exit(0);
		}
		while (waitpid(pid, &status, 0) < 0)
			CHECK(errno == EINTR);
		if (status)
			BAD("%s ends with %x", fault_order_list[i], (unsigned)status);
	}
}

/* Recorders come and go while threads run and probes come and go. */
static volatile int over;
static unsigned long calls;

static void *work(void *nothing)
{
	unsigned long made = 0;
	long sum = (long)(uintptr_t)nothing;
	while (!over) {
		if (results() != sum)
			BAD("wrong results");
		made += N;
		rest_unless_soak();
	}
	__atomic_fetch_add(&calls, made, __ATOMIC_RELAXED);
	return NULL;
}

static void under_load(void)
{
	enum { THREADS = 4 };
	struct capriole_probe p = probe_of("own"), q = probe_of("both");
	struct command recorder;
	pthread_t threads[THREADS];
	long sum = results();
	int count_of = rounds(8, 40, 200);
	OK(capriole_probe_register(&p));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)sum));
	unsigned long events = 0;
	for (int round = 0; round < count_of; round++) {
		start_recorder(&recorder, round % 3 ? ":recorded $arg1" : "libc:getuid", NULL);
		for (int i = 0; i < 10; i++) {
			struct capriole_probe s = { .object = "libc", .symbol = "getpgrp", .pre = count };
			unsigned long before = hits;
			OK(capriole_probe_register(&q));
			while (__atomic_load_n(&hits, __ATOMIC_RELAXED) == before)
				usleep(1000);
			OK(capriole_probe_register(&s));
			if (i % 3 == 0)
				OK(capriole_optimize(10));
			OK(capriole_probe_unregister(&s));
			OK(capriole_probe_unregister(&q));
		}
		if (round % 4 == 3) {
			kill_helper();
			OK(capriole_probe_register(&q));
			OK(capriole_probe_unregister(&q));
		}
		if (!said(&recorder, "recording"))
			BAD("not recorded: %s", recorder.text);
		/* So many calls that one thread at least has called all functions. */
		unsigned long before = hits;
		UNTIL(__atomic_load_n(&hits, __ATOMIC_RELAXED) > before + 2 * N * THREADS);
		if (round % 4 == 1)
			kill_recorder(&recorder);
		else
			events += (unsigned long)recorded_events(&recorder);
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	HITS(N);
	CHECK(events && calls);
	OK(capriole_probe_unregister(&p));
	OK(capriole_finish());
	printf("%d recorders, %lu events, %lu calls\n", count_of, events, calls);
	if (is_mapped("capriole-ledger"))
		detach(1, "");
	IS(is_mapped("memfd:capriole"), 0);
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
#ifdef LATE
		{ "fault_orders", fault_orders_apart },
#else
		{ "library_first", library_first },
		{ "recorder_first", recorder_first },
		{ "same_function_recorded", same_function_recorded },
		{ "same_function_probed", same_function_probed },
		{ "neighbours", neighbours },
		{ "library_code", library_code },
		{ "breakpoints", breakpoints },
		{ "return_addresses", return_addresses },
		{ "helper_killed", helper_killed },
		{ "recorder_killed", recorder_killed },
		{ "all_killed", all_killed },
		{ "forks", forks },
		{ "recorder_leaves_a_child", recorder_leaves_a_child },
		{ "ends", ends },
		{ "fault_orders", fault_orders },
		{ "under_load", under_load },
#endif
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
