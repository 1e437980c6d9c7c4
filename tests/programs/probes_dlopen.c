/* Probes in a library that is unloaded and loaded again. The second argument is its path. */
#include "probes.h"

#include <dlfcn.h>
#include <sys/mman.h>

static const char *path;
static void *library;
static long hits, others;

static int hit(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	hits++;
	return 0;
}

static int other_hit(struct capriole_probe *probe, struct capriole_regs *regs)
{
	(void)probe, (void)regs;
	others++;
	return 0;
}

static long call(long n)
{
	long (*function)(long) = (long (*)(long))dlsym(library, "plugged");
	CHECK(function);
	return function(n);
}

static void load(void)
{
	library = dlopen(path, RTLD_NOW);
	if (!library)
		BAD("%s", dlerror());
}

static void unload(void)
{
	CHECK(dlclose(library) == 0);
	CHECK(!dlopen(path, RTLD_NOW | RTLD_NOLOAD));
}

static struct capriole_probe probe = { .symbol = "plugged", .pre = hit };

/* It comes back when it is enabled again. */
static void come_back(void)
{
	for (int round = 0; round < 10; round++) {
		load();
		if (round == 0)
			OK(capriole_probe_register(&probe));
		else
			OK(capriole_probe_enable(&probe));
		CHECK(probe.address == dlsym(library, "plugged") ||
		      (char *)probe.address == (char *)dlsym(library, "plugged") + 4);
		if (round % 2)
			optimize(&probe);
		hits = 0;
		IS(call(2), 6);
		IS(hits, 1);
		void *before = probe.address;
		unload();
		is_in_state(&probe, CAPRIOLE_GONE, "");
		FAILS(capriole_probe_enable(&probe), ENOENT, "");
		is_in_state(&probe, CAPRIOLE_GONE, "");
		char text[512] = "";
		int memory = memfd_create("list", 0);
		OK(capriole_list(memory));
		CHECK(pread(memory, text, sizeof text - 1, 0) > 0 && !close(memory));
		if (!strstr(text, "  k  plugged    [GONE]\n"))
			BAD("%s", text);
		/* So that it comes to be elsewhere. */
		if (round % 3 == 2)
			CHECK(mmap((void *)((unsigned long)before & ~4095ul), 4096, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
	}
	OK(capriole_probe_unregister(&probe));
	load();
	IS(call(2), 6);
	IS(hits, 1);
}

/* One that was disabled meanwhile. */
static void disabled_meanwhile(void)
{
	load();
	OK(capriole_probe_register(&probe));
	OK(capriole_probe_disable(&probe));
	void *before = probe.address;
	unload();
	CHECK(mmap((void *)((unsigned long)before & ~4095ul), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		   0) != MAP_FAILED);
	load();
	IS(call(1), 3);
	IS(hits, 0);
	OK(capriole_probe_enable(&probe));
	IS(call(1), 3);
	IS(hits, 1);
	OK(capriole_probe_unregister(&probe));
}

/* A new one at the same place, where the old one is still registered. */
static void beside_the_old_one(void)
{
	struct capriole_probe other = { .object = probe.object, .symbol = "plugged", .pre = other_hit };
	for (int round = 0; round < 6; round++) {
		load();
		if (round == 0)
			OK(capriole_probe_register(&probe));
		OK(capriole_probe_register(&other));
		others = 0;
		IS(call(1), 3);
		IS(others, 1);
		OK(capriole_probe_unregister(&other));
		others = 0;
		IS(call(1), 3);
		IS(others, 0);
		unload();
	}
	OK(capriole_probe_unregister(&probe));
}

static long four_times(long n)
{
	return 4 * n;
}

/* At once, before anybody has noticed that the library was there a second time. */
static void changed_at_once(void)
{
	char event[200];
	int same = 0;
	snprintf(event, sizeof event, "%s:plugged n=$arg1:u64", probe.object);
	load();
	for (int round = 0; round < 40; round++) {
		int events[2];
		for (int i = 0; i < 2; i++) {
			events[i] = capriole_event_enable(event);
			if (events[i] < 0)
				BAD("round %d: %s", round, capriole_error());
		}
		OK(capriole_probe_register(&probe));
		if (round & 1)
			optimize(&probe);
		void *before = dlsym(library, "plugged");
		unload();
		load();
		same += before == dlsym(library, "plugged");
		if (round & 2)
			OK(capriole_event_disable(events[round & 1]));
		if (round & 4)
			OK(capriole_probe_disable(&probe));
		if (round & 8)
			OK(capriole_probe_enable(&probe));
		OK(capriole_probe_unregister(&probe));
		OK(capriole_probe_register(&probe));
		hits = 0;
		IS(call(1), 3);
		IS(hits, 1);
		OK(capriole_probe_unregister(&probe));
		IS(call(1), 3);
		IS(hits, 1);
		for (int i = 0; i < 2; i++)
			if (!(round & 2) || i != (round & 1))
				OK(capriole_event_disable(events[i]));
	}
	CHECK(same > 0);
}

/* A replacement stays one, and can be taken back and put in again. */
static void replaced(void)
{
	struct capriole_replacement r = {
		.probe = { .object = probe.object, .symbol = "plugged" },
		.replacement = (void (*)(void))four_times,
	};
	load();
	OK(capriole_replace(&r));
	IS(call(1), 4);
	unload();
	load();
	IS(call(1), 3);
	OK(capriole_replacement_enable(&r));
	OK(capriole_restore(&r));
	IS(call(1), 3);
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "come_back", come_back },
		{ "disabled_meanwhile", disabled_meanwhile },
		{ "beside_the_old_one", beside_the_old_one },
		{ "changed_at_once", changed_at_once },
		{ "replaced", replaced },
		{ NULL, NULL },
	};
	CHECK(argc > 2);
	path = argv[2];
	probe.object = strrchr(path, '/') + 1;
	return run_parts(parts, argc, argv);
}
