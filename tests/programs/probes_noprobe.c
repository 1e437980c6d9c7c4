/*
 * Functions that a program and its library have excluded from probes. With -DLIBRARY this is the library.
 */
#include "probes.h"

CAPRIOLE_NOPROBE __attribute__((visibility("default"))) long excluded_in_library(long a);

#ifdef LIBRARY
long excluded_in_library(long a)
{
	return a + 7;
}
#else
#include <dlfcn.h>
#include <sys/mman.h>

enum { LINE_OF_EXCLUDED = __LINE__ + 3 };
CAPRIOLE_NOPROBE PROBED long excluded(long a)
{
	return 3 * a + 1;
}

CAPRIOLE_NOPROBE static long excluded_too(long a)
{
	return 5 * a;
}

PROBED long ordinary(long a)
{
	return excluded(a) + excluded_too(a);
}

static long hits;

static int count(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	hits++;
	return 0;
}

static void count_post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	hits++;
}

static int count_call(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	hits++;
	return 0;
}

static long see(long a)
{
	hits++;
	return a;
}

static long (*original)(long);

static long instead(long a)
{
	return original(a) + 1000;
}

#define REFUSED(call) FAILS(call, EINVAL, "the program has excluded it (CAPRIOLE_NOPROBE)")

/* Nothing has changed, nor is hit. */
static void is_as_it_was(void)
{
	hits = 0;
	IS(ordinary(2), 17);
	IS(hits, 0);
}

static void all_kinds(void)
{
	struct capriole_probe p = { .symbol = "excluded", .pre = count };
	REFUSED(capriole_probe_register(&p));
	CHECK(strstr(capriole_error(), " is in excluded, "));
	CHECK(!p.address);
	p.flags = CAPRIOLE_DISABLED;
	REFUSED(capriole_probe_register(&p));
	p = (struct capriole_probe){ .address = (void *)excluded, .pre = count };
	REFUSED(capriole_probe_register(&p));
	p = (struct capriole_probe){ .address = (void *)excluded_too, .post = count_post };
	REFUSED(capriole_probe_register(&p));
	char line[64];
	snprintf(line, sizeof line, "probes_noprobe.c:%d", LINE_OF_EXCLUDED);
	p = (struct capriole_probe){ .line = line, .pre = count };
	REFUSED(capriole_probe_register(&p));
	/* Each instruction inside it; or none begins there. */
	for (unsigned long offset = 1; offset < 5; offset++) {
		p = (struct capriole_probe){ .symbol = "excluded", .offset = offset, .pre = count };
		REFUSED(capriole_probe_register(&p));
		p = (struct capriole_probe){ .address = (char *)excluded + offset, .post = count_post };
		REFUSED(capriole_probe_register(&p));
	}
	for (unsigned by_address = 0; by_address < 2; by_address++) {
		struct capriole_return_probe r = {
			.probe = { .symbol = "excluded" }, .handler = count_call, .by_address = by_address
		};
		REFUSED(capriole_return_probe_register(&r));
	}
	struct capriole_argument_probe a = { 0 };
	CAPRIOLE_ARGUMENT_PROBE(&a, excluded, see);
	REFUSED(capriole_argument_probe_register(&a));
	struct capriole_replacement c = { 0 };
	CAPRIOLE_REPLACE(&c, excluded, instead, &original);
	REFUSED(capriole_replace(&c));
	is_as_it_was();
	/* Of several, none. */
	struct capriole_probe good = { .symbol = "ordinary", .pre = count };
	p = (struct capriole_probe){ .symbol = "excluded", .pre = count };
	struct capriole_probe *list[] = { &good, &p };
	REFUSED(capriole_probes_register(list, 2));
	is_as_it_was();
	FAILS(capriole_event_enable(":excluded a=$arg1"), EOPNOTSUPP, "excluded this function from probes");
	/* What is beside it is not excluded, and it may take the place of another function. */
	OK(capriole_probe_register(&good));
	IS(ordinary(2), 17);
	IS(hits, 1);
	OK(capriole_probe_unregister(&good));
	c = (struct capriole_replacement){ 0 };
	CAPRIOLE_REPLACE(&c, ordinary, excluded, &original);
	OK(capriole_replace(&c));
	IS(ordinary(2), 7);
	OK(capriole_restore(&c));
	is_as_it_was();
}

/* Writes the list into `text`. */
static void list(char *text, size_t size)
{
	int memory = memfd_create("list", 0);
	OK(capriole_list_noprobe(memory));
	ssize_t length = pread(memory, text, size - 1, 0);
	CHECK(length >= 0 && !close(memory));
	text[length] = 0;
}

static void is_listed(const char *text, const char *name, const void *address)
{
	const char *found = strstr(text, name);
	if (!found)
		BAD("%s is not in:\n%s", name, text);
	while (found > text && found[-1] != '\n')
		found--;
	unsigned long start, end;
	CHECK(sscanf(found, "%lx-%lx", &start, &end) == 2);
	CHECK(start <= (unsigned long)address && (unsigned long)address < end);
}

static void listed(void)
{
	char text[4096];
	list(text, sizeof text);
	is_listed(text, ":excluded\n", (void *)excluded);
	is_listed(text, ":excluded_too\n", (void *)excluded_too);
	CHECK(!strstr(text, "ordinary") && !strstr(text, "in_library"));
}

/* A library that is loaded later, and is not linked with libcapriole. */
static void in_library(void)
{
	struct capriole_probe p = { .symbol = "ordinary", .pre = count };
	char text[4096];
	OK(capriole_probe_register(&p));
	void *library = dlopen(getenv("PLUGIN"), RTLD_NOW);
	CHECK(library);
	long (*function)(long) = (long (*)(long))dlsym(library, "excluded_in_library");
	CHECK(function);
	struct capriole_probe q = { .address = (void *)function, .pre = count };
	REFUSED(capriole_probe_register(&q));
	IS(function(1), 8);
	list(text, sizeof text);
	is_listed(text, ":excluded_in_library\n", (void *)function);
	CHECK(!dlclose(library));
	list(text, sizeof text);
	CHECK(!strstr(text, "in_library"));
	OK(capriole_probe_unregister(&p));
}

/* Without symbols it is known where they are, not what they are called. */
static void stripped(void)
{
	struct capriole_probe p = { .address = (void *)excluded, .pre = count };
	char text[4096];
	REFUSED(capriole_probe_register(&p));
	p.address = (void *)excluded_too;
	REFUSED(capriole_probe_register(&p));
	p.address = (void *)ordinary;
	OK(capriole_probe_register(&p));
	OK(capriole_probe_unregister(&p));
	list(text, sizeof text);
	is_listed(text, ":?\n", (void *)excluded);
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "all_kinds", all_kinds },
		{ "listed", listed },
		{ "in_library", in_library },
		{ "stripped", stripped },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
#endif
