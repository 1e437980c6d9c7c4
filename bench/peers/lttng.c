/* The function with a static tracepoint of LTTng-UST in it. */

#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng-tracepoint.h"

__attribute__((noinline)) void capriole_peer(long a, long b)
{
    lttng_ust_tracepoint(capriole_bench, hit, (int)a, (void *)b);
}
