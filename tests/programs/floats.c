/*
 * Functions that take and return floating point numbers. Prints, for each call, "FUNCTION
 * BITS", the bits of the result (or of what is asked of it) in hexadecimal, in order; at the
 * end "ok". `floats threads` does so in several threads at once, in no order.
 */
#include "common.h"

#include <complex.h>
#include <float.h>
#include <math.h>
#include <pthread.h>

struct pair {
	double x, y;
};
struct halves {
	float low, high;
};
struct mixed {
	long number;
	double x;
};
struct large {
	double x[4];
};

PROBED double doubled(double x)
{
	return x * 2;
}

PROBED float halved(float x)
{
	return x / 2;
}

PROBED double weighed(int count, double weight, const char *name, float scale, double *out)
{
	*out = weight * scale;
	return count * weight + name[0];
}

PROBED struct pair pair(double x)
{
	return (struct pair){ x, -x };
}

PROBED struct halves halves(float x)
{
	return (struct halves){ x, -x };
}

PROBED struct mixed mixed(long number)
{
	return (struct mixed){ number, (double)number };
}

PROBED struct large large(double x)
{
	return (struct large){ { x, x, x, x } };
}

PROBED __int128 wide_integer(int n)
{
	return (__int128)n << 64 | 7;
}

PROBED long double extended(long double x)
{
	return x / 3;
}

PROBED double complex turned(double complex x)
{
	return x * I;
}

/* A jump to another function, which returns in its stead. */
PROBED double passed_on(double x)
{
	return doubled(x);
}

static uint64_t bits(double x)
{
	uint64_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static uint32_t short_bits(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static void *in_thread(void *argument)
{
	uint64_t first = (uint64_t)(uintptr_t)argument * 100000;
	for (uint64_t i = first; i < first + 50000; i++)
		CHECK(doubled((double)i) == 2.0 * (double)i);
	return NULL;
}

int main(int count, char **arguments)
{
	(void)arguments;
	if (count > 1) {
		pthread_t threads[4];
		for (uintptr_t i = 0; i < 4; i++)
			CHECK(pthread_create(&threads[i], NULL, in_thread, (void *)i) == 0);
		for (int i = 0; i < 4; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		puts("ok floats");
		return 0;
	}
	const double values[] = { 0.0, -0.0, 1.0, 0.1, -1e300, DBL_MIN / 8, INFINITY, -INFINITY, NAN, 1e16, 123456789.125 };
	for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
		double x = values[i], out;
		printf("doubled %#lx\n", (unsigned long)bits(doubled(x)));
		printf("halved %#x\n", short_bits(halved((float)x)));
		printf("weighed %#lx\n", (unsigned long)bits(weighed((int)i, x, "name", 0.5f, &out)));
		printf("weight %#lx\n", (unsigned long)bits(x));
		printf("pair %#lx\n", (unsigned long)bits(pair(x).x));
		struct halves halved = halves((float)x);
		printf("halves %#lx\n", (unsigned long)short_bits(halved.high) << 32 | short_bits(halved.low));
		printf("mixed %#lx\n", (unsigned long)mixed((long)i * 7 + 1).number);
		CHECK(bits(large(x).x[3]) == bits(x));
		extended(x);
		turned(x);
		passed_on(x);
		printf("doubled %#lx\n", (unsigned long)bits(x * 2));
	}
	puts("ok floats");
	return 0;
}
