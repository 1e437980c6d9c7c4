/* Another function `namesake` than that of probes_functions.c. */
__attribute__((noipa)) static long namesake(long a)
{
	return a - 5;
}

long (*const other_namesake)(long) = namesake;
