/* Uses each part of the header, as C and as C++. It is compiled, not run. */
#include <capriole/probe.h>
#include <capriole/probe.h>

static int wanted(int a, const char *b) { (void)b; return a; }
static int seen(int a, const char *b) { (void)b; return a; }
static int (*original)(int, const char *);
static CAPRIOLE_HANDLER int hit(struct capriole_probe *p, struct capriole_regs *r) { (void)p; r->ax = 1; return 0; }
static CAPRIOLE_HANDLER void after(struct capriole_probe *p, struct capriole_regs *r, unsigned long f) { (void)p; (void)r; (void)f; }
static CAPRIOLE_HANDLER int fault(struct capriole_probe *p, struct capriole_regs *r, int s) { (void)p; (void)r; return s; }
static CAPRIOLE_HANDLER int call(struct capriole_call *c, struct capriole_regs *r) { (void)c; (void)r; return 0; }
static struct capriole_record done = CAPRIOLE_RECORD("done", "a=$arg1:u64");
int use(void);
int use(void)
{
	struct capriole_probe *list[1];
	static struct capriole_probe probe;
	static struct capriole_return_probe ret;
	static struct capriole_argument_probe argument;
	static struct capriole_replacement replacement;
	probe.pre = hit;
	probe.post = after;
	probe.fault = fault;
	ret.entry = call;
	ret.handler = call;
	CAPRIOLE_ARGUMENT_PROBE(&argument, wanted, seen);
	CAPRIOLE_REPLACE(&replacement, wanted, seen, &original);
	CAPRIOLE_WRITE(&done);
	CAPRIOLE_WRITE(&done, 1, 2, 3, 4, 5, 6);
	list[0] = &probe;
	probe.flags = CAPRIOLE_DISABLED | CAPRIOLE_NO_OPTIMIZE | CAPRIOLE_NO_VECTOR;
	return capriole_probes_register(list, 1) + capriole_return_probe_register(&ret) +
	       capriole_argument_probe_register(&argument) + CAPRIOLE_OCCUPIED;
}
