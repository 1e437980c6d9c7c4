/* A library that is loaded later: it calls back. Two builds of it differ by THROUGH. */
#ifdef THROUGH
__attribute__((noinline)) long THROUGH(long (*function)(long), long n)
{
	return function(n) + 1;
}
#else
#define THROUGH(function, n) (function)(n)
#endif

__attribute__((noinline)) long through(long (*function)(long), long n)
{
	return THROUGH(function, n) + 1;
}
