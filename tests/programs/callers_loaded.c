/* A library that is loaded later: it calls back. */
__attribute__((noinline)) long through(long (*function)(long), long n)
{
	return function(n) + 1;
}
