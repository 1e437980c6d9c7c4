/*
 * A program that makes mistakes with its probes, events and records, or ends with some that are there:
 * it is told so in one line, and nothing changes.
 */
#include "probes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define AT(function) .address = (void *)(function)

PROBED long add(long a, long b)
{
	return a + 2 * b;
}

PROBED long subtract(long a, long b)
{
	return a - 2 * b;
}

/* A system call, which cannot be executed elsewhere. */
__asm__(".pushsection .text\n"
	".globl calls_kernel\n.type calls_kernel, @function\ncalls_kernel:\n"
	"	mov $39, %eax\n"
	"	syscall\n"
	"	ret\n"
	".size calls_kernel, . - calls_kernel\n.popsection\n");

static volatile long hits;

static int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	return 0;
}

static int count_return(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	hits++;
	return 0;
}

/* The last message, which is one line. */
static void has(const char *text)
{
	const char *message = capriole_error();
	if (!strstr(message, text))
		BAD("`%s` is not in: %s", text, message);
	if (strchr(message, '\n') || !*message || message[strlen(message) - 1] == ' ')
		BAD("not one line: %s", message);
}

#define REFUSED(call, code, text) \
	do { \
		FAILS(call, code, text); \
		has(text); \
	} while (0)

static void nothing_given(void)
{
	REFUSED(capriole_probes_register(NULL, 3), EINVAL, "NULL");
	REFUSED(capriole_probes_unregister(NULL, 3), EINVAL, "NULL");
	OK(capriole_probes_register(NULL, 0));
	IS(capriole_probe_missed(NULL), 0);
	REFUSED(capriole_probe_register(NULL), EINVAL, "NULL");
	REFUSED(capriole_probe_unregister(NULL), EINVAL, "not registered");
	REFUSED(capriole_probe_enable(NULL), EINVAL, "not registered");
	REFUSED(capriole_return_probe_register(NULL), EINVAL, "handler");
	REFUSED(capriole_argument_probe_register(NULL), EINVAL, "handler");
	REFUSED(capriole_argument_probe_unregister(NULL), EINVAL, "not registered");
	REFUSED(capriole_replace(NULL), EINVAL, "no replacement");
	REFUSED(capriole_restore(NULL), EINVAL, "not replaced");
	REFUSED(capriole_event_enable(NULL), EINVAL, "the event is empty");
	REFUSED(capriole_record_enable(NULL), EINVAL, "no name");
	REFUSED(capriole_record_disable(NULL), EINVAL, "not enabled");
	IS(capriole_probe_status(NULL, NULL, 0), CAPRIOLE_UNREGISTERED);
}

/* The place is set by each registration, and given once. */
static void places(void)
{
	struct capriole_probe p = { .symbol = "add", .pre = count };
	for (int i = 0; i < 3; i++) {
		OK(capriole_probe_register(&p));
		CHECK(p.address == (void *)add);
		OK(capriole_probe_unregister(&p));
		p.symbol = "subtract";
		OK(capriole_probe_register(&p));
		CHECK(p.address == (void *)subtract);
		OK(capriole_probe_unregister(&p));
		p.symbol = "add";
	}
	struct capriole_probe q = { AT(subtract), .symbol = "add", .pre = count };
	REFUSED(capriole_probe_register(&q), EINVAL, "one place");
	q = (struct capriole_probe){ .symbol = "add", .line = "probes_refused.c:1", .pre = count };
	REFUSED(capriole_probe_register(&q), EINVAL, "one place");
	q = (struct capriole_probe){ .line = ":12", .pre = count };
	REFUSED(capriole_probe_register(&q), EINVAL, "`:12` is not FILE:LINE");
	q = (struct capriole_probe){ .object = "li", .symbol = "malloc", .pre = count };
	REFUSED(capriole_probe_register(&q), ENOTUNIQ, "or a path: /");
	/* No name that events have. */
	q = (struct capriole_probe){ .symbol = "calls_kernel", .offset = 5, .pre = count };
	REFUSED(capriole_probe_register(&q), EOPNOTSUPP, "calls_kernel+0x5 cannot be probed");
	CHECK(!strstr(capriole_error(), "p_"));
}

/* Where the code is mapped once more: probes are in the loaded file. */
static void mapped_again(void)
{
	uintptr_t start = (uintptr_t)add & -4096ul;
	char line[512];
	unsigned long from = 0, to = 0, offset = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps) && !(from <= start && start < to))
		CHECK(sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) == 3);
	fclose(maps);
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char *again = mmap(NULL, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, (off_t)(offset + start - from));
	CHECK(again != MAP_FAILED && close(file) == 0);
	struct capriole_probe p = { .symbol = "add", .pre = count };
	OK(capriole_probe_register(&p));
	CHECK(p.address == (void *)add);
	struct capriole_probe q = { AT(again + ((uintptr_t)add - start)), .pre = count };
	REFUSED(capriole_probe_register(&q), EOPNOTSUPP, "mapped once more");
	hits = 0;
	IS(add(1, 2), 5);
	IS(hits, 1);
	OK(capriole_probe_unregister(&p));
	p = (struct capriole_probe){ AT(add), .pre = count };
	OK(capriole_probe_register(&p));
	IS(add(1, 2), 5);
	IS(hits, 2);
	OK(capriole_probe_unregister(&p));
	munmap(again, 8192);
}

/* A copy of a registered probe is not registered. */
static void copies(void)
{
	struct capriole_probe p = { AT(add), .pre = count };
	struct capriole_return_probe r = { .probe = { AT(add) }, .handler = count_return };
	OK(capriole_probe_register(&p));
	OK(capriole_return_probe_register(&r));
	struct capriole_probe copy = p;
	struct capriole_return_probe copy_of_r = r;
	REFUSED(capriole_probe_unregister(&copy), EINVAL, "not registered");
	REFUSED(capriole_probe_disable(&copy), EINVAL, "not registered");
	REFUSED(capriole_probe_register(&copy), EBUSY, "copy");
	REFUSED(capriole_return_probe_unregister(&copy_of_r), EINVAL, "not registered");
	IS(capriole_probe_status(&copy, NULL, 0), CAPRIOLE_UNREGISTERED);
	hits = 0;
	IS(add(1, 2), 5);
	IS(hits, 2);
	OK(capriole_return_probe_unregister(&r));
	OK(capriole_probe_unregister(&p));
	IS(add(1, 2), 5);
	IS(hits, 2);
	OK(capriole_finish());
}

/* What was never initialised is not believed. */
static void garbage(void)
{
	struct capriole_probe p, registered = { AT(add), .pre = count };
	struct capriole_return_probe r;
	struct capriole_argument_probe a;
	struct capriole_replacement f;
	struct capriole_record record;
	static const unsigned char bytes[] = { 0xa5, 0xff, 0x01 };
	for (size_t i = 0; i < 2 * sizeof bytes; i++) {
		int byte = bytes[i / 2];
		if (i == 1)
			OK(capriole_probe_register(&registered));
		memset(&p, byte, sizeof p);
		memset(&r, byte, sizeof r);
		memset(&a, byte, sizeof a);
		memset(&f, byte, sizeof f);
		memset(&record, byte, sizeof record);
		REFUSED(capriole_probe_register(&p), EINVAL, "initialised");
		REFUSED(capriole_probe_unregister(&p), EINVAL, "not registered");
		REFUSED(capriole_probe_enable(&p), EINVAL, "not registered");
		REFUSED(capriole_probe_disable(&p), EINVAL, "not registered");
		IS(capriole_probe_status(&p, NULL, 0), CAPRIOLE_UNREGISTERED);
		REFUSED(capriole_return_probe_register(&r), EINVAL, "initialised");
		r.data_size = 0;
		REFUSED(capriole_return_probe_register(&r), EINVAL, "initialised");
		REFUSED(capriole_return_probe_unregister(&r), EINVAL, "not registered");
		REFUSED(capriole_return_probe_enable(&r), EINVAL, "not registered");
		REFUSED(capriole_return_probe_disable(&r), EINVAL, "not registered");
		IS(capriole_return_probe_status(&r, NULL, 0), CAPRIOLE_UNREGISTERED);
		a.stack_words = 0;
		REFUSED(capriole_argument_probe_register(&a), EINVAL, "initialised");
		REFUSED(capriole_argument_probe_unregister(&a), EINVAL, "not registered");
		REFUSED(capriole_argument_probe_disable(&a), EINVAL, "not registered");
		IS(capriole_argument_probe_status(&a, NULL, 0), CAPRIOLE_UNREGISTERED);
		REFUSED(capriole_replace(&f), EINVAL, "initialised");
		REFUSED(capriole_restore(&f), EINVAL, "not replaced");
		REFUSED(capriole_replacement_enable(&f), EINVAL, "not registered");
		IS(capriole_replacement_status(&f, NULL, 0), CAPRIOLE_UNREGISTERED);
		REFUSED(capriole_record_enable(&record), EINVAL, "already");
		CHECK(capriole_record_disable(&record) < 0);
	}
	IS(add(1, 2), 5);
	IS(hits, 1);
	OK(capriole_probe_unregister(&registered));
}

/* Many are known by their addresses, whatever is registered and unregistered in between. */
static void known(void)
{
	enum { MANY = 700 };
	static struct capriole_probe all[MANY];
	static char in[MANY];
	long registered = 0;
	uint64_t random = 1;
	for (int round = 0; round < 6000; round++) {
		unsigned i = (unsigned)((random = mix(random + 1)) % MANY);
		if (!in[i] == !(random >> 40 & 1))
			continue;
		if (in[i]) {
			OK(capriole_probe_unregister(&all[i]));
		} else {
			all[i] = (struct capriole_probe){ AT(add), .pre = count };
			OK(capriole_probe_register(&all[i]));
		}
		in[i] = !in[i];
		registered += in[i] ? 1 : -1;
		for (unsigned j = i; j < i + 20; j++)
			IS(capriole_probe_status(&all[j % MANY], NULL, 0) != CAPRIOLE_UNREGISTERED, in[j % MANY]);
	}
	hits = 0;
	IS(add(1, 2), 5);
	IS(hits, registered);
	for (int i = 0; i < MANY; i++)
		if (in[i])
			OK(capriole_probe_unregister(&all[i]));
		else
			REFUSED(capriole_probe_unregister(&all[i]), EINVAL, "not registered");
}

static void replacements(void)
{
	static long (*original)(long, long);
	static int data;
	struct capriole_replacement r;
#define TRIES(at, by, code, text) \
	do { \
		memset(&r, 0, sizeof r); \
		r.probe.address = (char *)(void *)at; \
		r.replacement = (void (*)(void))(by); \
		r.original = (void (**)(void))(void *)&original; \
		REFUSED(capriole_replace(&r), code, text); \
		IS(add(1, 2), 5); \
		IS(subtract(1, 2), -3); \
	} while (0)
	char *next = (char *)(void *)add;
	next += next[0] == (char)0xf3 ? 8 : 4; /* endbr64, lea */
	TRIES(next, subtract, EINVAL, "not the entry of a function");
	TRIES(add, add, EINVAL, "by itself");
	TRIES(add, &data, EFAULT, "not in executable memory");
	TRIES(add, 16, EFAULT, "not in executable memory");
	/* Code in memory that is not a file's may be the replacement. */
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(code != MAP_FAILED);
	memcpy(code, "\xb8\x07\x00\x00\x00\xc3", 6); /* mov $7, %eax; ret */
	memset(&r, 0, sizeof r);
	r.probe.address = (void *)add;
	r.replacement = (void (*)(void))(uintptr_t)code;
	OK(capriole_replace(&r));
	IS(add(1, 2), 7);
	OK(capriole_restore(&r));
	IS(add(1, 2), 5);
}

static void events(void)
{
	REFUSED(capriole_event_enable("libc:mallok"), ENOENT, "no function `mallok` in");
	REFUSED(capriole_event_enable("nolib:x"), ENOENT, "no program or library `nolib` is loaded");
	REFUSED(capriole_event_enable(":add n=%foo"), EINVAL, "at column 8 of `:add n=%foo`");
	REFUSED(capriole_event_enable(":add n=$arg1 bogus"), EINVAL, "bogus");
	REFUSED(capriole_event_enable(":add count() bogus("), EINVAL, "column");
	REFUSED(capriole_event_disable(-5), ENOENT, "no event -5");
	REFUSED(capriole_event_rows(0, 1), ENOENT, "no event 0");
	REFUSED(capriole_event_read(-1), EBADF, "cannot be written");
	REFUSED(capriole_event_rows(1, -1), EBADF, "cannot be written");
	/* Bytes that are no text. */
	struct capriole_probe p = { .symbol = "ad\xff", .pre = count }, l = { .line = "\xfe.c:1", .pre = count };
	REFUSED(capriole_event_enable(":add n=\xff"), EINVAL, "is not UTF-8");
	REFUSED(capriole_probe_register(&p), EINVAL, "is not UTF-8");
	REFUSED(capriole_probe_register(&l), EINVAL, "is not UTF-8");
	static struct capriole_record seven = CAPRIOLE_RECORD("seven", "a=$arg1 b=$arg7");
	static struct capriole_record named = CAPRIOLE_RECORD("a b", "a=$arg1");
	static struct capriole_record wrong = CAPRIOLE_RECORD("wrong", "a=$arg1:u65");
	REFUSED(capriole_record_enable(&seven), EINVAL, "`$arg7`, at column 11");
	REFUSED(capriole_record_enable(&named), EINVAL, "identifier");
	REFUSED(capriole_record_enable(&wrong), EINVAL, "u65");
	/* The next ones are well. */
	int event = capriole_event_enable(":add n=$arg1");
	OK(event);
	/* No probe is registered, so that is the end. */
	OK(capriole_finish());
	REFUSED(capriole_event_disable(event), ENOENT, "nothing was enabled");
	IS(add(1, 2), 5);
}

/* Reads what the library writes into a descriptor. */
static const char *written(int (*write_it)(int))
{
	static char text[4096];
	FILE *file = tmpfile();
	CHECK(file);
	OK(write_it(fileno(file)));
	rewind(file);
	text[fread(text, 1, sizeof text - 1, file)] = 0;
	fclose(file);
	return text;
}

static struct capriole_record done = CAPRIOLE_RECORD("done", "bytes=$arg1:u64 fd=$arg6:s32");
static struct capriole_record other = CAPRIOLE_RECORD("other", "x=$arg2:s64");

static void records(void)
{
	CAPRIOLE_WRITE(&done, 1, 2);
	for (int i = 0; i < 3; i++) {
		OK(capriole_record_enable(&done));
		OK(capriole_record_enable(&other));
		REFUSED(capriole_record_enable(&done), EINVAL, "already");
		CAPRIOLE_WRITE(&done, 17, 0, 0, 0, 0, -4);
		CAPRIOLE_WRITE(&other, 0, -9);
		const char *text = written(capriole_event_read);
		if (!strstr(text, "done bytes=17 fd=-4\n") || !strstr(text, "other x=-9\n"))
			BAD("records: %s", text);
		OK(capriole_record_disable(&done));
		CAPRIOLE_WRITE(&done, 18, 0, 0, 0, 0, -5);
		IS(*written(capriole_event_read), 0);
		OK(capriole_record_disable(&other));
	}
}

static int copied(const char *from, const char *to)
{
	char command[700];
	snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
	return system(command);
}

/* Processes that a program which is no helper has become. */
static int others_left(const char *path)
{
	int found = 0;
	DIR *all = opendir("/proc");
	for (struct dirent *each; all && (each = readdir(all));) {
		char name[300], exe[300];
		snprintf(name, sizeof name, "/proc/%s/exe", each->d_name);
		ssize_t size = readlink(name, exe, sizeof exe - 1);
		if (size > 0) {
			exe[size] = 0;
			found += !strcmp(exe, path);
		}
	}
	closedir(all);
	return found;
}

static void other_helper(void)
{
	/* One that never ends and answers nothing. */
	char path[300], *name = realpath("/proc/self/exe", NULL);
	snprintf(path, sizeof path, "%s/probes-silent-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", getpid());
	CHECK(name && !copied(name, path));
	CHECK(!setenv("CAPRIOLE_HELPER", path, 1));
	FAILS(capriole_start(), EPIPE, "does not answer");
	UNTIL(!others_left(path));
	unlink(path);
	free(name);
	CHECK(!setenv("CAPRIOLE_HELPER", "/bin/true", 1));
	FAILS(capriole_start(), EPIPE, "is this the command capriole? /bin/true");
	CHECK(!setenv("CAPRIOLE_HELPER", "/no/such/program", 1));
	REFUSED(capriole_start(), ENOENT, "/no/such/program");
	struct capriole_probe p = { AT(add), .pre = count };
	REFUSED(capriole_probe_register(&p), ENOENT, "/no/such/program");
	IS(add(1, 2), 5);
}

static void address_space(void)
{
	struct rlimit limit = { 48 << 20, RLIM_INFINITY }, before;
	struct capriole_probe p = { AT(add), .pre = count };
	CHECK(!getrlimit(RLIMIT_AS, &before));
	limit.rlim_max = before.rlim_max;
	CHECK(!setrlimit(RLIMIT_AS, &limit));
	int failed = capriole_probe_register(&p);
	if (failed != -ENOMEM)
		BAD("%d: %s", failed, failed < 0 ? capriole_error() : "no error");
	has("memory");
	IS(add(1, 2), 5);
	CHECK(!setrlimit(RLIMIT_AS, &before));
	printf("with %s\n", capriole_error());
	OK(capriole_probe_register(&p));
	hits = 0;
	IS(add(1, 2), 5);
	IS(hits, 1);
	OK(capriole_probe_unregister(&p));
}

/* No breakpoint is possible in the C library: the state says so. */
static void held_in_the_c_library(void)
{
	struct capriole_probe p = { .object = "libc", .symbol = "getppid", .pre = count,
				    .flags = CAPRIOLE_NO_OPTIMIZE };
	OK(capriole_probe_register(&p));
	is_in_state(&p, CAPRIOLE_OPTIMIZED, "the probe is not to be optimized: breakpoints cannot be used");
	OK(capriole_probe_unregister(&p));
	p.flags = 0;
	OK(capriole_probe_register(&p));
	OK(capriole_optimization(0));
	is_in_state(&p, CAPRIOLE_OPTIMIZED, "optimization is off: breakpoints cannot be used");
	is_in_state(&p, CAPRIOLE_OPTIMIZED, "signals blocked");
	OK(capriole_optimization(1));
	OK(capriole_probe_unregister(&p));
	p = (struct capriole_probe){ AT(add), .pre = count, .flags = CAPRIOLE_NO_OPTIMIZE };
	OK(capriole_probe_register(&p));
	is_in_state(&p, CAPRIOLE_BREAKPOINT, "a breakpoint");
	OK(capriole_probe_unregister(&p));
}

/* The program's own actions come back with capriole_finish(). */
static int writes_nowhere(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	*(volatile int *)8 = 1;
	return 0;
}

static volatile long abandoned;

static int abandon(struct capriole_probe *p, struct capriole_regs *regs, int signal)
{
	(void)p, (void)regs;
	IS(signal, SIGSEGV);
	abandoned++;
	return 1;
}

static void one(int signal)
{
	(void)signal;
}

static void another(int signal)
{
	(void)signal;
}

static void is_action(int signal, void (*wanted)(int))
{
	struct sigaction now;
	CHECK(!sigaction(signal, NULL, &now));
	if (now.sa_handler != wanted)
		BAD("the handler of signal %d is %p", signal, (void *)(uintptr_t)now.sa_handler);
}

static void actions(void)
{
	struct capriole_probe p = { AT(add), .pre = writes_nowhere, .fault = abandon };
	CHECK(signal(SIGFPE, one) != SIG_ERR);
	for (int i = 1; i < 5; i++) {
		OK(capriole_probe_register(&p));
		IS(add(1, 2), 5);
		IS(abandoned, i);
		OK(capriole_probe_unregister(&p));
		if (i == 3)
			CHECK(signal(SIGBUS, another) != SIG_ERR);
		OK(capriole_finish());
		is_action(SIGSEGV, SIG_DFL);
		is_action(SIGILL, SIG_DFL);
		is_action(SIGFPE, one);
		is_action(SIGBUS, i < 3 ? SIG_DFL : another);
	}
}

static void return_is_refused(const char *symbol, unsigned by_address, const char *text)
{
	struct capriole_return_probe q = {
		.probe = { .object = "libc.so", .symbol = symbol }, .handler = count_return, .by_address = by_address
	};
	REFUSED(capriole_return_probe_register(&q), EOPNOTSUPP, text);
}

/* The table of docs/probes.md, as far as it is the same in all versions of glibc. */
static void functions_of_the_c_library(void)
{
	static const char *const own[] = { "syscall", "prctl" };
	static const char *const again[] = { "setjmp", "vfork", "getcontext" };
	static const char *const ends[] = { "exit", "abort", "pthread_exit" };
	for (int i = 0; i < 2; i++) {
		struct capriole_probe p = { .object = "libc.so", .symbol = own[i], .pre = count };
		REFUSED(capriole_probe_register(&p), EOPNOTSUPP, "here Capriole itself has a probe");
	}
	return_is_refused("vfork", 0, "here Capriole itself has a probe");
	for (int i = 0; i < 3; i++) {
		return_is_refused(again[i], 1, "it returns more than once to the same place");
		return_is_refused(ends[i], 0, "it never returns");
		/* The entry can be probed. */
		struct capriole_probe p = { .object = "libc.so", .symbol = ends[i], .pre = count };
		OK(capriole_probe_register(&p));
		OK(capriole_probe_unregister(&p));
	}
	return_is_refused("dlopen", 1, "it finds its caller by its return address");
	struct capriole_probe v = { .object = "linux-vdso.so.1", .symbol = "__vdso_time", .pre = count };
	REFUSED(capriole_probe_register(&v), ENOENT, "no program or library");
	/* One that ends by a jump in some versions only. */
	static const char *const allocate[] = { "malloc", "calloc", "realloc" };
	for (int i = 0; i < 3; i++) {
		struct capriole_return_probe q = {
			.probe = { .object = "libc.so", .symbol = allocate[i] }, .handler = count_return
		};
		int failed = capriole_return_probe_register(&q);
		if (failed) {
			IS(failed, -EOPNOTSUPP);
			has("leaves by a jump to another function");
			q.by_address = 1;
			OK(capriole_return_probe_register(&q));
		}
		OK(capriole_return_probe_unregister(&q));
	}
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "nothing_given", nothing_given },
		{ "places", places },
		{ "mapped_again", mapped_again },
		{ "copies", copies },
		{ "garbage", garbage },
		{ "known", known },
		{ "replacements", replacements },
		{ "events", events },
		{ "records", records },
		{ "other_helper", other_helper },
		{ "address_space", address_space },
		{ "held_in_the_c_library", held_in_the_c_library },
		{ "functions_of_the_c_library", functions_of_the_c_library },
		{ "actions", actions },
		{ NULL, NULL },
	};
	/* Started as the helper that answers nothing. */
	while (argc > 1 && !strcmp(argv[1], "probe-helper"))
		pause();
	return run_parts(parts, argc, argv);
}
