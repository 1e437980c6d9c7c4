/*
 * A program that disarms all of its probes at once, and arms them again.
 */
#include "probes.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

PROBED long first(long a)
{
	return a + 1;
}

PROBED long second(long a)
{
	return 2 * a;
}

PROBED long third(long a)
{
	return 3 * a;
}

PROBED long fourth(long a)
{
	return 4 * a;
}

PROBED long fifth(long a)
{
	return 5 * a;
}

static long pres, posts, returns, arguments, entries;

static int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	pres++;
	return 0;
}

static void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	posts++;
}

static int entered(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	entries++;
	return 0;
}

static int returned(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	returns++;
	return 0;
}

static long argument(long a)
{
	arguments += a;
	return 0;
}

static long (*original)(long);

static long instead(long a)
{
	return original(a) + 1000;
}

static struct capriole_probe one = { .address = (void *)first, .pre = pre, .post = post };
static struct capriole_return_probe two = { .probe = { .address = (void *)second }, .entry = entered, .handler = returned };
static struct capriole_return_probe three = {
	.probe = { .address = (void *)third }, .handler = returned, .by_address = 1
};
static struct capriole_argument_probe four;
static struct capriole_replacement five;

static void register_all(void)
{
	CAPRIOLE_ARGUMENT_PROBE(&four, fourth, argument);
	CAPRIOLE_REPLACE(&five, fifth, instead, &original);
	OK(capriole_probe_register(&one));
	OK(capriole_return_probe_register(&two));
	OK(capriole_return_probe_register(&three));
	OK(capriole_argument_probe_register(&four));
	OK(capriole_replace(&five));
}

static void unregister_all(void)
{
	OK(capriole_probe_unregister(&one));
	OK(capriole_return_probe_unregister(&two));
	OK(capriole_return_probe_unregister(&three));
	OK(capriole_argument_probe_unregister(&four));
	OK(capriole_restore(&five));
}

/* Calls all functions, and checks whether their handlers are called. */
static void are_called(int wanted)
{
	pres = posts = returns = arguments = entries = 0;
	IS(first(1), 2);
	IS(second(2), 4);
	IS(third(3), 9);
	IS(fourth(4), 16);
	IS(fifth(5), 25 + (wanted ? 1000 : 0));
	IS(pres, wanted);
	IS(posts, wanted);
	IS(entries, wanted);
	IS(returns, 2 * wanted);
	IS(arguments, 4 * wanted);
}

static const void *const functions[] = { (void *)first, (void *)second, (void *)third, (void *)fourth,
					 (void *)fifth };
static char code[5][16];

static void look(char (*at)[16])
{
	for (int i = 0; i < 5; i++)
		memcpy(at[i], functions[i], 16);
}

static void is_unchanged(int wanted)
{
	char now[5][16];
	look(now);
	IS(!memcmp(code, now, sizeof now), wanted);
}

static void all_kinds(void)
{
	look(code);
	IS(capriole_all_disarmed(), 0);
	OK(capriole_arm_all()); /* there are none */
	OK(capriole_disarm_all());
	IS(capriole_all_disarmed(), 1);
	OK(capriole_arm_all());
	register_all();
	for (int i = 0; i < 6; i++) {
		are_called(1);
		if (i % 2)
			IS(capriole_optimize(PATIENCE), 0);
		is_unchanged(0);
		OK(capriole_disarm_all());
		IS(capriole_all_disarmed(), 1);
		are_called(0);
		is_unchanged(1);
		is_in_state(&one, CAPRIOLE_OFF, "all probes are disarmed");
		if (i == 3) {
			OK(capriole_disarm_all());
			are_called(0);
		}
		OK(capriole_arm_all());
		IS(capriole_all_disarmed(), 0);
		are_called(1);
	}
	OK(capriole_disarm_all());
	unregister_all();
	are_called(0);
	is_unchanged(1);
	/* The setting stays; it concerns what is registered next. */
	OK(capriole_finish());
	IS(capriole_all_disarmed(), 1);
	register_all();
	are_called(0);
	is_unchanged(1);
	OK(capriole_arm_all());
	are_called(1);
	unregister_all();
	is_unchanged(1);
}

/* What changes while all are off is what is armed later. */
static void changes_meanwhile(void)
{
	struct capriole_probe disabled = { .address = (void *)second, .pre = pre, .flags = CAPRIOLE_DISABLED };
	struct capriole_probe later = { .address = (void *)third, .pre = pre, .post = post };
	struct capriole_probe wrong = { .address = &later, .pre = pre };
	struct capriole_probe gone = { .address = (void *)fourth, .pre = pre };
	struct capriole_probe held = { .address = (void *)fifth, .pre = pre, .flags = CAPRIOLE_NO_OPTIMIZE };
	look(code);
	OK(capriole_probe_register(&one));
	OK(capriole_probe_register(&disabled));
	OK(capriole_probe_register(&gone));
	OK(capriole_disarm_all());
	OK(capriole_probe_register(&later));
	OK(capriole_probe_register(&held));
	FAILS(capriole_probe_register(&wrong), EFAULT, "not executable");
	is_in_state(&later, CAPRIOLE_OFF, "all probes are disarmed");
	is_in_state(&disabled, CAPRIOLE_OFF, "the probe is disabled");
	OK(capriole_probe_unregister(&gone));
	are_called(0);
	is_unchanged(1);
	OK(capriole_arm_all());
	pres = posts = 0;
	first(1), second(1), third(1), fourth(1), fifth(1);
	IS(pres, 3);
	IS(posts, 2);
	is_in_state(&disabled, CAPRIOLE_OFF, "the probe is disabled");
	IS(capriole_optimize(PATIENCE), 0);
	is_in_state(&held, CAPRIOLE_BREAKPOINT, "not to be optimized");
	is_in_state(&later, CAPRIOLE_OPTIMIZED, "");
	OK(capriole_disarm_all());
	OK(capriole_probe_enable(&disabled));
	OK(capriole_probe_disable(&later));
	is_in_state(&later, CAPRIOLE_OFF, "the probe is disabled");
	are_called(0);
	is_unchanged(1);
	OK(capriole_arm_all());
	pres = posts = 0;
	first(1), second(1), third(1), fourth(1), fifth(1);
	IS(pres, 3);
	IS(posts, 1);
	OK(capriole_probe_unregister(&one));
	OK(capriole_probe_unregister(&disabled));
	OK(capriole_probe_unregister(&later));
	OK(capriole_probe_unregister(&held));
	are_called(0);
	is_unchanged(1);
}

/* Calls that are open when all are disarmed are not followed to their ends, neither before they are armed again
 * nor after that. */
static int switches;

PROBED long switching(int by_address)
{
	if (switches > 0)
		OK(capriole_disarm_all());
	if (switches > 1)
		OK(capriole_arm_all());
	return by_address;
}

static void open_calls(void)
{
	for (unsigned by_address = 0; by_address < 2; by_address++) {
		struct capriole_return_probe probe = {
			.probe = { .address = (void *)switching },
			.entry = entered, .handler = returned, .by_address = by_address
		};
		OK(capriole_return_probe_register(&probe));
		for (switches = 0; switches < 3; switches++) {
			entries = returns = 0;
			IS(switching((int)by_address), by_address);
			IS(entries, 1);
			IS(returns, switches == 0);
			OK(capriole_arm_all());
		}
		OK(capriole_return_probe_unregister(&probe));
	}
}

/* Many probes are one request, not one for each of them: this thread waits for the answer. */
enum { MANY = 300 };
__asm__(".pushsection .text\n.altmacro\n"
	".macro one_of_many n\n"
	".balign 16\n.type many_\\n, @function\nmany_\\n:\n"
	"	lea 1(%rdi,%rdi), %rax\n"
	"	ret\n"
	".size many_\\n, . - many_\\n\n.endm\n"
	".balign 16\nmany:\n.set number, 0\n"
	".rept 300\n one_of_many %number\n .set number, number + 1\n.endr\n"
	".noaltmacro\n.popsection\n");
extern char many[];

/* Number of times that this thread has waited. */
static long waits(void)
{
	struct rusage usage;
	CHECK(!getrusage(RUSAGE_THREAD, &usage));
	return usage.ru_nvcsw;
}

static void call_many(long wanted)
{
	pres = 0;
	for (int i = 0; i < MANY; i++)
		IS(((long (*)(long))(void *)(many + 16 * i))(i), 2 * i + 1);
	IS(pres, wanted);
}

static void many_at_once(void)
{
	static struct capriole_probe probes[MANY];
	struct capriole_probe *list[MANY];
	for (int i = 0; i < MANY; i++) {
		probes[i] = (struct capriole_probe){ .address = many + 16 * i, .pre = pre };
		list[i] = &probes[i];
	}
	OK(capriole_probes_register(list, MANY));
	IS(capriole_optimize(PATIENCE), 0);
	call_many(MANY);
	long before = waits();
	OK(capriole_disarm_all());
	call_many(0);
	OK(capriole_arm_all());
	call_many(MANY);
	long after = waits();
	if (after - before >= MANY / 3)
		BAD("it has waited %ld times", after - before);
	OK(capriole_probes_unregister(list, MANY));
	call_many(0);
}

/* Threads that are inside handlers: when it returns, none is. */
static int over, disarmed, stays;

static int sees(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	if (__atomic_load_n(&disarmed, __ATOMIC_SEQ_CST))
		BAD("a handler runs while all probes are disarmed");
	/* One of each round stays until all are on their way out, and a while longer. */
	if (__atomic_exchange_n(&stays, 0, __ATOMIC_SEQ_CST)) {
		while (!capriole_all_disarmed())
			usleep(100);
		usleep(20000);
	}
	if (__atomic_load_n(&disarmed, __ATOMIC_SEQ_CST))
		BAD("a handler still runs when all probes are disarmed");
	return 0;
}

static int sees_return(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call;
	return sees(NULL, regs);
}

static void *calls(void *argument)
{
	(void)argument;
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		IS(first(1), 2);
		IS(second(2), 4);
		IS(third(3), 9);
		rest_unless_soak();
	}
	return NULL;
}

static void threads_in_handlers(void)
{
	struct capriole_probe p = { .address = (void *)first, .pre = sees };
	struct capriole_return_probe q = { .probe = { .address = (void *)second }, .handler = sees_return };
	struct capriole_return_probe r = {
		.probe = { .address = (void *)third }, .handler = sees_return, .by_address = 1
	};
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, calls, NULL));
	OK(capriole_probe_register(&p));
	OK(capriole_return_probe_register(&q));
	OK(capriole_return_probe_register(&r));
	for (int i = 0; i < rounds(20, 200, 2000); i++) {
		__atomic_store_n(&stays, 1, __ATOMIC_SEQ_CST);
		UNTIL(!__atomic_load_n(&stays, __ATOMIC_SEQ_CST));
		OK(capriole_disarm_all());
		__atomic_store_n(&disarmed, 1, __ATOMIC_SEQ_CST);
		usleep(200);
		__atomic_store_n(&disarmed, 0, __ATOMIC_SEQ_CST);
		OK(capriole_arm_all());
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	OK(capriole_probe_unregister(&p));
	OK(capriole_return_probe_unregister(&q));
	OK(capriole_return_probe_unregister(&r));
}

/* A child has the setting of its parent, and changes its own. */
static void forked(void)
{
	register_all();
	OK(capriole_disarm_all());
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		IS(capriole_all_disarmed(), 1);
		are_called(0);
		OK(capriole_arm_all());
		are_called(1);
		OK(capriole_disarm_all());
		are_called(0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	IS(capriole_all_disarmed(), 1);
	are_called(0);
	OK(capriole_arm_all());
	are_called(1);
	/* The same for one that is forked while all are armed. */
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		are_called(1);
		OK(capriole_disarm_all());
		are_called(0);
		OK(capriole_arm_all());
		are_called(1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	are_called(1);
	unregister_all();
}

/* Ends the helper, the only child of a program that takes in orphans. */
static void kill_helper(void)
{
	char name[64], text[64];
	int process = 0;
	snprintf(name, sizeof name, "/proc/self/task/%d/children", getpid());
	FILE *file = fopen(name, "r");
	CHECK(file && fgets(text, sizeof text, file) && sscanf(text, "%d", &process) == 1 && process > 1);
	fclose(file);
	CHECK(!kill(process, SIGKILL));
	while (waitpid(-1, NULL, __WALL) > 0)
		;
}

/* Without a helper, and with one that knows nothing of what is there. */
static void helper_killed(void)
{
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int round = 0; round < 2; round++) {
		register_all();
		/* In the second round nothing is replaced. */
		if (round)
			OK(capriole_restore(&five));
		kill_helper();
		OK(capriole_disarm_all());
		pres = 0;
		IS(first(1), 2);
		IS(fifth(1), 5);
		IS(pres, 0);
		if (!round)
			kill_helper();
		OK(capriole_arm_all());
		if (round)
			OK(capriole_replace(&five));
		are_called(1);
		OK(capriole_disarm_all());
		kill_helper();
		are_called(0);
		OK(capriole_arm_all());
		are_called(1);
		unregister_all();
	}
}

/* A place that is not there any more does not keep the others from being armed. */
static void gone_library(void)
{
	void *library = dlopen(getenv("PLUGIN"), RTLD_NOW);
	CHECK(library);
	struct capriole_probe inside = { .object = getenv("PLUGIN"), .symbol = "plugged", .pre = pre };
	OK(capriole_probe_register(&inside));
	register_all();
	OK(capriole_disarm_all());
	CHECK(!dlclose(library) && !dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_NOLOAD));
	int result = capriole_arm_all();
	if (result >= 0 || strncmp(capriole_error(), "1 of the places", 15))
		BAD("%d: %s", result, result < 0 ? capriole_error() : "no error");
	IS(capriole_all_disarmed(), 0);
	are_called(1);
	unregister_all();
	OK(capriole_probe_unregister(&inside));
}

int main(int argc, char **argv)
{
	static const struct part parts[] = {
		{ "all_kinds", all_kinds },
		{ "changes_meanwhile", changes_meanwhile },
		{ "open_calls", open_calls },
		{ "many_at_once", many_at_once },
		{ "threads_in_handlers", threads_in_handlers },
		{ "forked", forked },
		{ "helper_killed", helper_killed },
		{ "gone_library", gone_library },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
