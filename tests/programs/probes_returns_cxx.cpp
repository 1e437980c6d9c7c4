/*
 * C++ exceptions through calls that are followed to their ends, and the interface in C++.
 */
#include "probes.h"

#include <execinfo.h>
#include <stdexcept>
#include <string>

struct Counted {
	static int living;
	Counted() { living++; }
	~Counted() { living--; }
};
int Counted::living;

PROBED long thrower(long n)
{
	Counted counted;
	if (n <= 0)
		throw std::runtime_error("it ends");
	long rest = thrower(n - 1);
	__asm__ volatile("" : "+r"(rest));
	return n + rest;
}

PROBED long catcher(long n)
{
	Counted counted;
	try {
		return thrower(n);
	} catch (const std::runtime_error &error) {
		return -1 - n;
	}
}

PROBED long rethrower(long n)
{
	try {
		return thrower(n);
	} catch (...) {
		throw;
	}
}

static long returns, entries;

static int on_entry(struct capriole_call *, struct capriole_regs *)
{
	entries++;
	return 0;
}

static int on_return(struct capriole_call *, struct capriole_regs *)
{
	returns++;
	return 0;
}

static void follow(struct capriole_return_probe &probe, long (*function)(long), unsigned by_address)
{
	memset(&probe, 0, sizeof probe);
	probe.probe.address = reinterpret_cast<void *>(function);
	probe.entry = on_entry;
	probe.handler = on_return;
	probe.by_address = by_address;
	OK(capriole_return_probe_register(&probe));
}

static void exceptions()
{
	for (unsigned by_address = 0; by_address < 2; by_address++) {
		capriole_return_probe a, b, c;
		/* One that only throws has no exits: it can be followed by its return address. */
		follow(a, thrower, by_address);
		follow(b, catcher, by_address);
		follow(c, rethrower, by_address);
		for (int i = 0; i < 500; i++) {
			entries = returns = 0;
			IS(catcher(i % 10), -1 - i % 10);
			IS(entries, i % 10 + 2);
			IS(returns, 1);
			int caught = 0;
			try {
				rethrower(i % 7);
			} catch (const std::exception &error) {
				caught = std::string("it ends") == error.what();
			}
			IS(caught, 1);
			IS(returns, 1);
			IS(Counted::living, 0);
			if (i == 250)
				IS(capriole_optimize(PATIENCE), 0);
		}
		IS(a.missed + b.missed + c.missed, 0);
		OK(capriole_return_probe_unregister(&a));
		OK(capriole_return_probe_unregister(&b));
		OK(capriole_return_probe_unregister(&c));
	}
}

/* Calls that are entered by jumps, each of which is followed by its return address. */
static int traced, frames_of_main;

int main(int argc, char **argv);
PROBED long at_the_end(long n)
{
	void *frames[64];
	if (n < 0)
		throw std::runtime_error("it ends");
	int count = backtrace(frames, 64);
	for (int i = 0; i < count; i++)
		frames_of_main += (uintptr_t)frames[i] - (uintptr_t)main < 4096;
	traced++;
	return 5;
}

PROBED long second_leg(long n);
PROBED long first_leg(long n)
{
	__asm__ volatile("" : : : "memory");
	return n <= 0 ? at_the_end(n) : second_leg(n - 1);
}

PROBED long second_leg(long n)
{
	__asm__ volatile("" : : : "memory");
	return n <= 0 ? at_the_end(-1) : first_leg(n - 1);
}

static void tail_calls()
{
	capriole_return_probe a, b;
	void *once[4];
	backtrace(once, 4); /* loads a library */
	follow(a, first_leg, 1);
	follow(b, second_leg, 1);
	entries = returns = 0;
	for (int i = 1; i < 300; i++) {
		IS(first_leg(4), 5);
		IS(returns, 5 * i);
		int caught = 0;
		try {
			first_leg(3);
		} catch (const std::runtime_error &) {
			caught = 1;
		}
		IS(caught, 1);
		IS(entries, 9 * i);
		IS(returns, 5 * i);
		if (i == 150)
			IS(capriole_optimize(PATIENCE), 0);
	}
	CHECK(traced == 299 && frames_of_main >= traced);
	IS(a.missed + b.missed, 0);
	OK(capriole_return_probe_unregister(&a));
	OK(capriole_return_probe_unregister(&b));
}

/* Exceptions through the frame of a probed function, thrown by a function that a handler has put in
 * its place. */
static long (*original)(long);
static long replaced(long n)
{
	if (n == 3)
		throw std::logic_error("replaced");
	return original(n);
}

static void replacements()
{
	capriole_replacement replacement = {};
	CAPRIOLE_REPLACE(&replacement, thrower, replaced, &original);
	OK(capriole_replace(&replacement));
	int caught = 0;
	try {
		rethrower(5);
	} catch (const std::logic_error &) {
		caught = 1;
	}
	IS(caught, 1);
	IS(catcher(2), -3);
	OK(capriole_restore(&replacement));
	IS(catcher(5), -6);
}

static long seen;
static long sees(long n)
{
	seen = n;
	return 0;
}

static void arguments()
{
	capriole_argument_probe probe = {};
	CAPRIOLE_ARGUMENT_PROBE(&probe, catcher, sees);
	OK(capriole_argument_probe_register(&probe));
	IS(catcher(5), -6);
	IS(seen, 5);
	OK(capriole_argument_probe_unregister(&probe));
}

/* Mangled and demangled names. */
static int count(struct capriole_probe *, struct capriole_regs *)
{
	entries++;
	return 0;
}

static void names()
{
	static const char *const all[] = { "thrower", "_Z7throwerl", "thrower(long)" };
	for (const char *name : all) {
		capriole_probe probe = {};
		probe.symbol = name;
		probe.pre = count;
		entries = 0;
		OK(capriole_probe_register(&probe));
		catcher(0);
		IS(entries, 1);
		OK(capriole_probe_unregister(&probe));
	}
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "exceptions", exceptions },
		{ "tail_calls", tail_calls },
		{ "replacements", replacements },
		{ "arguments", arguments },
		{ "names", names },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
