/* Handlers and replacements of other types than the function's; compiled with one of the names defined,
 * which does not compile unless it is RIGHT. */
#include <capriole/probe.h>

static int wanted(int a, const char *b) { return b ? a : 0; }
#ifdef WRONG_HANDLER
static int seen(long a, const char *b) { return b ? (int)a : 0; }
#else
static int seen(int a, const char *b) { return b ? a : 0; }
#endif
#ifdef WRONG_REPLACEMENT
static long other(int a, const char *b) { return b ? a : 0; }
#else
static int other(int a, const char *b) { return b ? a : 0; }
#endif
#ifdef WRONG_ORIGINAL
static int (*original)(int);
#else
static int (*original)(int, const char *);
#endif
static struct capriole_argument_probe argument;
static struct capriole_replacement replacement;

void use(void);
void use(void)
{
	CAPRIOLE_ARGUMENT_PROBE(&argument, wanted, seen);
	CAPRIOLE_REPLACE(&replacement, wanted, other, &original);
}
