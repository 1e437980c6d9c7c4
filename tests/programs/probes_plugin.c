/* A library that comes and goes. */
#include "common.h"

PROBED long plugged(long n)
{
	return 3 * n;
}
