/*
 * Registers, unregisters, enables and disables probes at instructions of one function, which come to
 * share jumps, at random: `probes_random FIRST LAST STEPS`, with these seeds. After each step every
 * probe that is enabled is hit once, and others are not; at the end the function has its own bytes.
 */
#include "probes.h"

long function(long a, long b);
__asm__(".pushsection .text\n.balign 16\n.globl function\n.type function, @function\nfunction:\n"
	"push %rbp\n push %rbx\n mov %rdi, %rbx\n mov %rsi, %rbp\n call 2f\n xor %rbx, %rax\n"
	"mov $11, %esi\n mov %rbx, %rdi\n add %rbp, %rax\n test $1, %al\n jne 1f\n"
	"lea 1(%rax,%rbx), %rax\n 1: pop %rbx\n pop %rbp\n ret\n"
	".size function, . - function\n"
	".balign 16\n.type called, @function\ncalled:\n2: lea (%rdi,%rsi), %rax\n inc %rax\n ret\n"
	".size called, . - called\n.popsection\n");
static const int places[] = { 0, 1, 2, 5, 8, 13, 16, 21, 24, 27, 29, 31, 36, 37, 38 };
#define PLACES (sizeof places / sizeof *places)
#define CONDITIONAL 11 /* the `lea` */
#define SIZE 48
#define PROBES 6

static struct capriole_probe probes[PROBES];
static int in[PROBES], enabled[PROBES], place_of[PROBES];
static long hits[PROBES], posts[PROBES];

static int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	if (regs->ip != (uint64_t)p->address)
		BAD("ip is %lx at %p", regs->ip, p->address);
	hits[p - probes]++;
	return 0;
}

static void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)regs, (void)flags;
	posts[p - probes]++;
}

static uint64_t random_state;
static unsigned below(unsigned limit)
{
	return (unsigned)(mix(random_state += 0x9e3779b97f4a7c15u) >> 16) % limit;
}

static char told[1 << 16];
static size_t length;

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int more = vsnprintf(told + length, sizeof told - length, format, arguments);
	va_end(arguments);
	length += more > 0 && length + (size_t)more < sizeof told ? (size_t)more : 0;
}

static void wrong(long seed, const char *what)
{
	printf("seed %ld: %s (%s)\n%s", seed, what, capriole_error(), told);
	fflush(stdout);
	_exit(1);
}

static void step(long seed)
{
	unsigned i = below(PROBES), choice = below(16);
	struct capriole_probe *p = &probes[i];
	int result = 0;
	if (choice == 0) {
		tell("optimize ");
		result = capriole_optimize(1000) < 0 ? -1 : 0;
	} else if (choice == 1) {
		tell("allow and forbid ");
		result = capriole_optimization((int)below(2));
		result = result < 0 ? result : 0;
	} else if (in[i] && choice < 6) {
		tell("disable ");
		result = capriole_probe_disable(p);
		enabled[i] = 0;
	} else if (in[i] && choice < 10) {
		tell("enable ");
		result = capriole_probe_enable(p);
		enabled[i] = 1;
	} else if (in[i]) {
		tell("unregister ");
		result = capriole_probe_unregister(p);
		in[i] = 0;
	} else {
		tell("register ");
		place_of[i] = (int)below(PLACES);
		*p = (struct capriole_probe){ .pre = pre };
		p->address = (char *)function + places[place_of[i]];
		p->post = below(4) ? NULL : post;
		p->flags = (below(6) ? 0 : CAPRIOLE_NO_OPTIMIZE) | (below(6) ? 0 : CAPRIOLE_DISABLED);
		result = capriole_probe_register(p);
		in[i] = result == 0;
		enabled[i] = !(p->flags & CAPRIOLE_DISABLED);
		/* Behind jumps, and where it would be in others' bytes. */
		if (result == -EOPNOTSUPP)
			result = 0;
	}
	tell("%u (%d, post %d, flags %x): %s\n", i, places[place_of[i]], p->post != NULL, p->flags,
	     in[i] ? enabled[i] ? "enabled" : "in" : "out");
	if (result)
		wrong(seed, "an operation fails");
}

static void check(long seed, long x, long wanted)
{
	memset(hits, 0, sizeof hits);
	memset(posts, 0, sizeof posts);
	if (function(x, 6) != wanted)
		wrong(seed, "the function's result is another one");
	int jumps = ((x ^ (x + 7)) + 6) & 1;
	for (int i = 0; i < PROBES; i++) {
		long expected = in[i] && enabled[i] && !(place_of[i] == CONDITIONAL && jumps);
		if (hits[i] != expected || posts[i] != (probes[i].post ? expected : 0)) {
			tell("probe %d: %ld hits, %ld posts\n", i, hits[i], posts[i]);
			wrong(seed, "other hits than expected");
		}
	}
}

int main(int argc, char **argv)
{
	CHECK(argc > 3);
	long first = atol(argv[1]), last = atol(argv[2]), steps = atol(argv[3]);
	static unsigned char own[SIZE];
	memcpy(own, (void *)function, SIZE);
	long odd = function(5, 6), even = function(4, 6);
	for (long seed = first; seed <= last; seed++) {
		random_state = (uint64_t)seed;
		length = 0;
		told[0] = 0;
		for (long i = 0; i < steps; i++) {
			step(seed);
			check(seed, 5, odd);
			check(seed, 4, even);
		}
		for (int i = 0; i < PROBES; i++)
			if (in[i])
				OK(capriole_probe_unregister(&probes[i]));
		memset(in, 0, sizeof in);
		check(seed, 5, odd);
		if (memcmp(own, (void *)function, SIZE))
			wrong(seed, "bytes are left changed");
		OK(capriole_finish());
	}
	puts("ok");
	return 0;
}
