/*
 * A program that probes itself where something is scarce, or forbidden: each registration either works,
 * or is an error that says what to do, and the program goes on.
 */
#include "probes_add.h"

#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void all_works(void)
{
	OK(capriole_probe_register(&probe));
	is_hit(1);
	optimize(&probe);
	is_hit(1);
	OK(capriole_probe_disable(&probe));
	is_hit(0);
	OK(capriole_probe_enable(&probe));
	is_hit(1);
	OK(capriole_probe_unregister(&probe));
	is_hit(0);
}

static void set_limit(int kind, rlim_t now, int hard)
{
	struct rlimit limit;
	CHECK(getrlimit(kind, &limit) == 0);
	limit.rlim_cur = now;
	if (hard)
		limit.rlim_max = now;
	CHECK(setrlimit(kind, &limit) == 0);
}

/* All descriptors are in use: an error; with two that are free, it works. */
static void descriptors(void)
{
	int last = -1;
	set_limit(RLIMIT_NOFILE, 40, 0);
	for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;)
		last = fd;
	CHECK(errno == EMFILE && last == 39);
	FAILS(capriole_probe_register(&probe), EMFILE, "(ulimit -n)");
	is_hit(0);
	close(39);
	FAILS(capriole_probe_register(&probe), EMFILE, "(ulimit -n)");
	is_hit(0);
	close(38);
	all_works();
	CHECK(open("/dev/null", O_RDONLY) >= 0);
	all_works();
}

/* The limit is lower than numbers that are in use, and hard. The helper has as few. */
static void lowered_descriptors(void)
{
	for (int fd = 0; fd < 100; fd++)
		dup(1);
	set_limit(RLIMIT_NOFILE, 20, 1);
	FAILS(capriole_probe_register(&probe), EMFILE, "(ulimit -n)");
	is_hit(0);
	close(15);
	close(16);
	all_works();
	/* A helper that is there goes on with what it has. */
	set_limit(RLIMIT_NOFILE, 19, 1);
	all_works();
	capriole_finish();
	for (rlim_t few = 19; few > 2; few--) {
		set_limit(RLIMIT_NOFILE, few, 1);
		FAILS(capriole_probe_register(&probe), EMFILE, "(ulimit -Hn)");
		is_hit(0);
	}
}

static size_t used(void)
{
	unsigned long pages;
	FILE *statm = fopen("/proc/self/statm", "r");
	CHECK(statm && fscanf(statm, "%lu", &pages) == 1);
	fclose(statm);
	return pages * 4096;
}

/* The address space is limited, so that the library gets no memory for threads; or just enough, and the
 * detours have none. The helper is not limited by a soft limit. */
static void address_space(void)
{
	size_t now = used();
	static const size_t more[] = { 0, 8 << 20, 64 << 20, 1200 << 20 };
	int works = 0;
	for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child) {
			int status;
			CHECK(waitpid(child, &status, 0) == child);
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) < 2);
			works += WEXITSTATUS(status) == 0;
			continue;
		}
		set_limit(RLIMIT_AS, now + more[i], 0);
		int registered = capriole_probe_register(&probe);
		printf("%zu: %d: %s\n", more[i], registered, registered < 0 ? capriole_error() : "");
		fflush(stdout);
		is_hit(registered < 0 ? 0 : 1);
		if (registered < 0) {
			CHECK(registered == -ENOMEM || strstr(capriole_error(), "ulimit -v"));
			/* Later there is more. */
			set_limit(RLIMIT_AS, RLIM_INFINITY, 0);
			all_works();
			_exit(1);
		}
		IS(capriole_optimize(PATIENCE), 0);
		is_hit(1);
		OK(capriole_probe_unregister(&probe));
		all_works();
		_exit(0);
	}
	CHECK(works);
}

/* A hard limit is the helper's, too. */
static void hard_address_space(void)
{
	static const size_t most[] = { 16 << 20, 60 << 20, 400 << 20 };
	for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child) {
			int status;
			CHECK(waitpid(child, &status, 0) == child);
			IS(status, 0);
			continue;
		}
		set_limit(RLIMIT_AS, most[i], 1);
		int registered = capriole_probe_register(&probe);
		printf("%zu: %d: %s\n", most[i], registered, registered < 0 ? capriole_error() : "");
		fflush(stdout);
		is_hit(registered < 0 ? 0 : 1);
		if (registered < 0)
			CHECK(strstr(capriole_error(), "memory"));
		_exit(0);
	}
}

static void become_nobody(void)
{
	CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
}

static int is_root(void)
{
	if (geteuid() == 0)
		return 1;
	printf("ok skipped: only root can become somebody else\n");
	return 0;
}

/* No more processes, for a user that has no others. */
static void processes(void)
{
	uid_t user = 1000000 + (uid_t)getpid();
	if (!is_root())
		return;
	CHECK(setgroups(0, NULL) == 0);
	set_limit(RLIMIT_NPROC, 1, 0);
	CHECK(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
	FAILS(capriole_probe_register(&probe), EAGAIN, "(ulimit -u)");
	is_hit(0);
	/* The one in between can be started, but not the helper. */
	set_limit(RLIMIT_NPROC, 2, 0);
	FAILS(capriole_probe_register(&probe), EAGAIN, "(ulimit -u)");
	is_hit(0);
	/* The helper's threads are not limited by a soft limit. */
	set_limit(RLIMIT_NPROC, 3, 0);
	all_works();
	OK(capriole_finish());
	/* Its own threads, or itself as long as the one before has not ended. */
	set_limit(RLIMIT_NPROC, 3, 1);
	FAILS(capriole_probe_register(&probe), EAGAIN, "(ulimit -u)");
	is_hit(0);
}

/* Gives up root: what was started before goes on. */
static void started_before_nobody(void)
{
	if (!is_root())
		return;
	OK(capriole_start());
	become_nobody();
	all_works();
}

/* Gives up root before: the process is not dumpable. */
static void nobody(void)
{
	if (!is_root())
		return;
	become_nobody();
	int registered = capriole_probe_register(&probe);
	printf("%d: %s\n", registered, registered < 0 ? capriole_error() : "");
	IS(prctl(PR_GET_DUMPABLE), 0);
	IS(registered, -EPERM);
	CHECK(strstr(capriole_error(), "PR_SET_DUMPABLE") && strstr(capriole_error(), "capriole_start"));
	is_hit(0);
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
	all_works();
}

static void not_dumpable(void)
{
	int is_root = geteuid() == 0;
	CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
	int registered = capriole_probe_register(&probe);
	printf("%d: %s\n", registered, registered < 0 ? capriole_error() : "");
	is_hit(registered < 0 ? 0 : 1);
	CHECK(registered < 0 ? !is_root && strstr(capriole_error(), "prctl(PR_SET_DUMPABLE, 1)") : is_root);
	IS(prctl(PR_GET_DUMPABLE), 0);
}

static void may_fail(int result)
{
	if (result < 0 && !strstr(capriole_error(), "prctl(PR_SET_DUMPABLE, 1)"))
		BAD("%d: %s", result, capriole_error());
}

/* Becomes not dumpable, while probes are in, as a user that is not root. */
static void not_dumpable_any_more(void)
{
	if (is_root()) {
		become_nobody();
		CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
	}
	OK(capriole_probe_register(&probe));
	is_hit(1);
	CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
	is_hit(1);
	struct capriole_probe other = { .symbol = "used", .pre = count };
	int registered = capriole_probe_register(&other);
	may_fail(registered);
	is_hit(1);
	if (registered >= 0)
		OK(capriole_probe_unregister(&other));
	/* The code cannot be changed, but handlers are not called. */
	may_fail(capriole_probe_disable(&probe));
	is_hit(0);
	may_fail(capriole_probe_unregister(&probe));
	is_hit(0);
	CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
	all_works();
}

static void no_new_privileges(void)
{
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	all_works();
}

/* Files may not be as large as the memory that probes share, of which the kernel asks the helper's limit. */
static void file_size(void)
{
	set_limit(RLIMIT_FSIZE, 100 << 10, 1);
	FAILS(capriole_probe_register(&probe), EIO, "ulimit -f");
	is_hit(0);
}

/* An empty root directory. */
static void chrooted(void)
{
	if (!is_root())
		return;
	const char *directory = mkdtemp(temporary());
	CHECK(directory);
	CHECK(chroot(directory) == 0 && chdir("/") == 0);
	FAILS(capriole_probe_register(&probe), ENOENT, "call capriole_start before chroot");
	is_hit(0);
}

static struct capriole_probe of_library = { .object = "libc", .symbol = "getppid", .pre = count };

static void started_before_chroot(void)
{
	if (!is_root())
		return;
	const char *directory = mkdtemp(temporary());
	CHECK(directory);
	OK(capriole_start());
	CHECK(chroot(directory) == 0 && chdir("/") == 0);
	all_works();
	OK(capriole_probe_register(&of_library));
	long before = hits;
	getppid();
	IS(hits - before, 1);
	OK(capriole_probe_unregister(&of_library));
}

/* Without a /proc that shows this process. */
static void is_refused(const char *text)
{
	FAILS(capriole_start(), EOPNOTSUPP, text);
	FAILS(capriole_probe_register(&probe), EOPNOTSUPP, text);
	IS(add(1, 2), 5);
}

static void other_proc(void)
{
	is_refused("/proc is that of another PID namespace");
}

static void no_proc(void)
{
	is_refused("/proc is not mounted");
}

static void own_proc(void)
{
	OK(capriole_probe_register(&probe));
	is_hit(1);
	optimize(&probe);
	is_hit(1);
	OK(capriole_probe_unregister(&probe));
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "descriptors", descriptors },
		{ "lowered_descriptors", lowered_descriptors },
		{ "address_space", address_space },
		{ "hard_address_space", hard_address_space },
		{ "processes", processes },
		{ "started_before_nobody", started_before_nobody },
		{ "nobody", nobody },
		{ "not_dumpable", not_dumpable },
		{ "not_dumpable_any_more", not_dumpable_any_more },
		{ "no_new_privileges", no_new_privileges },
		{ "file_size", file_size },
		{ "chrooted", chrooted },
		{ "started_before_chroot", started_before_chroot },
		{ "other_proc", other_proc },
		{ "no_proc", no_proc },
		{ "own_proc", own_proc },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
