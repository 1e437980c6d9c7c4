/* What a marker adds to a function: the same function with one (plain, or guarded) and without
   (CAPRIOLE_MARK_NONE). The arguments are where callers put them, so that nothing is done for
   them alone. */

#include <capriole/marker.h>

extern volatile long capriole_bench_sink;

void capriole_bench_size(long a, long b)
{
#ifdef GUARDED
    CAPRIOLE_MARK_GUARDED(bench, size, "a=%ld b=%ld", a, b);
#else
    CAPRIOLE_MARK(bench, size, "a=%ld b=%ld", a, b);
#endif
    capriole_bench_sink = a ^ b;
}
