/* What `hammer --dlopen` loads and unloads: build with -shared -fPIC. */
#include "common.h"

PROBED uint64_t library_step(uint64_t x);
PROBED uint64_t library_work(uint64_t thread, uint64_t seq, uint64_t check);

PROBED uint64_t library_step(uint64_t x)
{
	return mix(x);
}

PROBED uint64_t library_work(uint64_t thread, uint64_t seq, uint64_t check)
{
	return library_step(thread + library_step(seq)) + check;
}
