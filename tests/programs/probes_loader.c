/*
 * A program that loads libraries which probe it, and unloads them. Its second argument is the library.
 * Built with OWN it uses libcapriole itself.
 */
#include "probes.h"

#include <dlfcn.h>
#include <unistd.h>

PROBED long add(long a, long b)
{
	return a + 2 * b;
}

static struct plugin {
	void *handle;
	int (*enter)(unsigned), (*optimize)(void), (*leave)(void), (*finish)(void);
	long (*hits)(void), (*thrice)(long);
	const char *(*error)(void);
} plugin;

static const char *path;

static void find(const char *name, void *pointer)
{
	*(void **)pointer = dlsym(plugin.handle, name);
	CHECK(*(void **)pointer);
}

static void load(void)
{
	plugin.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!plugin.handle)
		BAD("%s", dlerror());
	find("plugin_register", &plugin.enter);
	find("plugin_optimize", &plugin.optimize);
	find("plugin_unregister", &plugin.leave);
	find("plugin_finish", &plugin.finish);
	find("plugin_hits", &plugin.hits);
	find("plugin_error", &plugin.error);
	find("thrice", &plugin.thrice);
}

static void well(int result)
{
	if (result < 0)
		BAD("%d: %s", result, plugin.error());
}

static void is_hit(long times)
{
	long before = plugin.hits();
	IS(add(1, 2), 5);
	IS(plugin.hits() - before, times);
}

/* Loaded, used and unloaded several times. */
static void come_and_go(void)
{
	for (int round = 0; round < 3; round++) {
		load();
		well(plugin.enter(round & 1 ? CAPRIOLE_NO_OPTIMIZE : 0));
		is_hit(1);
		well(plugin.optimize());
		is_hit(1);
		well(plugin.leave());
		is_hit(0);
		IS(dlclose(plugin.handle), 0);
		IS(add(1, 2), 5);
	}
}

/* Unloaded, as far as that goes, with its probe in. It was linked with -z nodelete. */
static void unloaded_with_its_probe(void)
{
	load();
	well(plugin.enter(0));
	well(plugin.optimize());
	IS(dlclose(plugin.handle), 0);
	is_hit(1);
	load();
	is_hit(1);
	well(plugin.leave());
	is_hit(0);
}

#ifdef OWN
static long hits;

static CAPRIOLE_HANDLER int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	return 0;
}

static void both_hit(long own, long other)
{
	long before = hits;
	is_hit(other);
	IS(hits - before, own);
}

/* The program and the library share one libcapriole. */
static void shared(void)
{
	struct capriole_probe probe = { .symbol = "add", .pre = count };
	load();
	OK(capriole_probe_register(&probe));
	well(plugin.enter(0));
	both_hit(1, 1);
	optimize(&probe);
	both_hit(1, 1);
	OK(capriole_probe_unregister(&probe));
	both_hit(0, 1);
	FAILS(capriole_finish(), EBUSY, "are registered");
	well(plugin.leave());
	both_hit(0, 0);
	OK(capriole_finish());
}

/* The library has another libcapriole inside of it. One of both is refused, and works when the other one
 * has finished. */
static void two_copies(void)
{
	struct capriole_probe probe = { .symbol = "add", .pre = count };
	load();
	OK(capriole_probe_register(&probe));
	IS(plugin.enter(0), -EBUSY);
	printf("%s\n", plugin.error());
	CHECK(strstr(plugin.error(), "another libcapriole"));
	both_hit(1, 0);
	optimize(&probe);
	IS(plugin.enter(0), -EBUSY);
	both_hit(1, 0);
	OK(capriole_probe_unregister(&probe));
	OK(capriole_finish());
	well(plugin.enter(0));
	both_hit(0, 1);
	FAILS(capriole_probe_register(&probe), EBUSY, "another libcapriole");
	both_hit(0, 1);
	well(plugin.leave());
	well(plugin.finish());
	OK(capriole_probe_register(&probe));
	both_hit(1, 0);
	OK(capriole_probe_unregister(&probe));
}

/* A library with probes inside is unloaded, and loaded again. */
static void probed_library(void)
{
	char name[256];
	snprintf(name, sizeof name, "%s", path);
	for (int round = 0; round < 3; round++) {
		struct capriole_probe probe = { .object = name, .symbol = "thrice", .pre = count };
		load();
		OK(capriole_probe_register(&probe));
		hits = 0;
		IS(plugin.thrice(5), 15);
		IS(hits, 1);
		if (round & 1)
			IS(capriole_optimize(PATIENCE), 0);
		IS(dlclose(plugin.handle), 0);
		IS(add(1, 2), 5);
		CHECK(capriole_probe_status(&probe, NULL, 0) >= 0);
		load();
		IS(plugin.thrice(5), 15);
		int result = capriole_probe_disable(&probe);
		printf("disabled: %d: %s\n", result, result < 0 ? capriole_error() : "");
		result = capriole_probe_unregister(&probe);
		printf("unregistered: %d: %s\n", result, result < 0 ? capriole_error() : "");
		IS(plugin.thrice(5), 15);
		IS(dlclose(plugin.handle), 0);
	}
}
#endif

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "come_and_go", come_and_go },
		{ "unloaded_with_its_probe", unloaded_with_its_probe },
#ifdef OWN
		{ "shared", shared },
		{ "two_copies", two_copies },
		{ "probed_library", probed_library },
#endif
		{ NULL, NULL },
	};
	CHECK(argc > 2);
	path = argv[2];
	return run_parts(parts, argc, argv);
}
