/*
 * Threads go through a probed call, jump and return, with post-handlers, while each gets thousands of
 * signals a second whose handler does the same, and the probes come and go: at any instruction behind a
 * hit a signal may come, and overwrite what is below the stack pointer.
 */
#include "probes.h"

#include <pthread.h>
#include <sys/syscall.h>

/* rax, rcx, rdx, rbx, rbp, rsi, rdi, r8 to r15; flags; the stack pointer before and after. */
enum { REGISTERS = 15, FLAGS = 15, BEFORE, AFTER, WORDS };

/* Loads the registers and flags, calls a function that keeps three of them in the red zone while it
 * jumps, and stores all of them. */
__asm__(".pushsection .text\n.p2align 4\n.globl passes\n.type passes, @function\npasses:\n"
	"	push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"	sub $24, %rsp\n"
	"	mov %rsi, (%rsp)\n"
	"	mov %rsp, 128(%rsi)\n"
	"	pushq 120(%rdi)\n"
	"	popfq\n"
	"	mov (%rdi), %rax\n mov 8(%rdi), %rcx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rbx\n"
	"	mov 32(%rdi), %rbp\n mov 40(%rdi), %rsi\n"
	"	mov 56(%rdi), %r8\n mov 64(%rdi), %r9\n mov 72(%rdi), %r10\n mov 80(%rdi), %r11\n"
	"	mov 88(%rdi), %r12\n mov 96(%rdi), %r13\n mov 104(%rdi), %r14\n mov 112(%rdi), %r15\n"
	"	mov 48(%rdi), %rdi\n"
	".globl the_call\nthe_call:\n"
	"	call passed\n"
	"	pushfq\n"
	"	push %rax\n"
	"	mov 16(%rsp), %rax\n"
	"	mov %rcx, 8(%rax)\n mov %rdx, 16(%rax)\n mov %rbx, 24(%rax)\n mov %rbp, 32(%rax)\n"
	"	mov %rsi, 40(%rax)\n mov %rdi, 48(%rax)\n"
	"	mov %r8, 56(%rax)\n mov %r9, 64(%rax)\n mov %r10, 72(%rax)\n mov %r11, 80(%rax)\n"
	"	mov %r12, 88(%rax)\n mov %r13, 96(%rax)\n mov %r14, 104(%rax)\n mov %r15, 112(%rax)\n"
	"	pop (%rax)\n"
	"	pop 120(%rax)\n"
	"	mov %rsp, 136(%rax)\n"
	"	add $24, %rsp\n"
	"	pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"	ret\n"
	".size passes, . - passes\n"
	".p2align 4\n.type passed, @function\npassed:\n"
	"	mov %rax, -8(%rsp)\n"
	"	mov %rbx, -128(%rsp)\n"
	"	mov %rcx, -64(%rsp)\n"
	".globl the_jump\nthe_jump:\n"
	"	jmp 1f\n"
	"	nop\n nop\n nop\n nop\n nop\n"
	"1:	mov -8(%rsp), %rax\n"
	"	mov -128(%rsp), %rbx\n"
	"	mov -64(%rsp), %rcx\n"
	".globl the_return\nthe_return:\n"
	"	ret\n"
	"	nop\n nop\n nop\n nop\n nop\n"
	".size passed, . - passed\n.popsection\n");
void passes(const uint64_t *in, uint64_t *out);
extern char the_call[], the_jump[], the_return[];

static volatile int over;
static int round_count;
static unsigned long calls, signals, hits, posts;

static unsigned long now(unsigned long *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void pass(uint64_t seed)
{
	uint64_t in[WORDS], out[WORDS];
	for (uint64_t i = 0; i < REGISTERS; i++)
		in[i] = mix(16 * seed + i);
	in[FLAGS] = (mix(seed) & 0x8d5) | 0x202; /* OF SF ZF AF PF CF */
	passes(in, out);
	for (int i = 0; i <= FLAGS; i++)
		if (out[i] != in[i])
			BAD("word %d is %lx, not %lx", i, out[i], in[i]);
	IS(out[AFTER], out[BEFORE]);
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

static CAPRIOLE_HANDLER int pre(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p, (void)regs;
	__atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
	return 0;
}

static CAPRIOLE_HANDLER void post(struct capriole_probe *p, struct capriole_regs *regs, unsigned long flags)
{
	(void)p, (void)regs, (void)flags;
	__atomic_fetch_add(&posts, 1, __ATOMIC_RELAXED);
}

static void on_alarm(int signal)
{
	(void)signal;
	for (uint64_t i = 0; i < 3; i++)
		pass(~i);
	__atomic_fetch_add(&signals, 1, __ATOMIC_RELAXED);
}

static void *passes_always(void *nothing)
{
	timer_t timer;
	struct sigevent event;
	struct itimerspec often = { { 0, 300000 }, { 0, 300000 } };
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGALRM;
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECK(!timer_settime(timer, 0, &often, NULL));
	for (uint64_t i = 0; !over; i++)
		pass(i);
	CHECK(!timer_delete(timer));
	return nothing;
}

static void branches(void)
{
	enum { THREADS = 4 };
	struct capriole_probe probes[3];
	char *const places[] = { the_call, the_jump, the_return };
	pthread_t threads[THREADS];
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_alarm;
	action.sa_flags = SA_RESTART;
	CHECK(!sigaction(SIGALRM, &action, NULL));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, passes_always, NULL));
	for (int round = 0; round < round_count; round++) {
		for (int i = 0; i < 3; i++) {
			probes[i] = (struct capriole_probe){ .address = places[i], .pre = pre, .post = post };
			probes[i].flags = round % 4 == 3 ? CAPRIOLE_NO_OPTIMIZE : 0;
			OK(capriole_probe_register(&probes[i]));
		}
		OK(capriole_optimize(300));
		unsigned long hits_before = now(&hits), signals_before = now(&signals);
		UNTIL(now(&hits) > hits_before + 100 && now(&signals) > signals_before);
		for (int i = 0; i < 3; i++)
			OK(capriole_probe_unregister(&probes[i]));
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	printf("%lu calls, %lu signals, %lu hits, %lu posts\n", calls, signals, hits, posts);
	CHECK(signals && hits);
	IS(posts, hits);
}

int main(int argc, char **argv)
{
	round_count = argc > 2 ? atoi(argv[2]) : 12;
	static const struct part parts[] = {
		{ "branches", branches },
		{ NULL, NULL },
	};
	return run_parts(parts, argc, argv);
}
