/* Functions whose calls are as close to each other on the stack as calls can be: outer() has nothing there
 * but the return address of inner(), and GCC does not align the stack for a function that needs no
 * alignment.
 *
 *   close_frames CALLS    calls outer() so many times, and inner() ten times as often
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline, noclone)) uint64_t inner(uint64_t a, uint64_t b)
{
	a ^= b * 0x9E3779B97F4A7C15ull;
	a ^= a >> 29;
	__asm__ volatile("" : "+r"(a));
	return a * 0xBF58476D1CE4E5B9ull;
}

__attribute__((noinline, noclone)) uint64_t outer(uint64_t x, int n)
{
	for (int i = 0; i < n; i++)
		x = inner(x, i);
	__asm__ volatile("" : "+r"(x));
	return x;
}

int main(int argc, char **argv)
{
	long calls = argc > 1 ? atol(argv[1]) : 1000;
	uint64_t x = 1;
	for (long i = 0; i < calls; i++)
		x = outer(x, 10);
	printf("%lx\n", (unsigned long)x);
	return 0;
}
