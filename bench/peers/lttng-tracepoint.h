/* The tracepoint: what the other rows record, an integer and a pointer. */

#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER capriole_bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./lttng-tracepoint.h"

#if !defined(CAPRIOLE_LTTNG_TRACEPOINT_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define CAPRIOLE_LTTNG_TRACEPOINT_H

#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(
    capriole_bench, hit,
    LTTNG_UST_TP_ARGS(int, number, void *, pointer),
    LTTNG_UST_TP_FIELDS(
        lttng_ust_field_integer(int, number, number)
        lttng_ust_field_integer_hex(unsigned long, pointer, (unsigned long)pointer)
    )
)

#endif

#include <lttng/tracepoint-event.h>
