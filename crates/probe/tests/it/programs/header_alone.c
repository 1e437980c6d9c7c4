/* The header alone. */
#include <capriole/probe.h>

extern int nothing;
