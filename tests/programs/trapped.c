/*
 * Calls a function with all registers, flags and the red zone set at random, and finds them as
 * they were behind its first instruction; also the blocked signals and the alternate stack.
 *
 *   trapped [--threads N] [--seconds S] [--storm] [--stack | --disarmed] [--handler] [--key]
 *           [--filter]
 *
 * --storm     a few thousand signals a second, whose handler does the same
 * --stack     that handler runs on an alternate stack
 * --disarmed  which is disarmed meanwhile (SS_AUTODISARM)
 * --handler   handles SIGTRAP itself: on the alternate stack, with further signals blocked
 * --key       restricts the access by a protection key
 * --filter    after a line on standard input one thread installs a filter that forbids
 *             rt_sigreturn, goes on, and "filtered" is printed
 *
 * SIGUSR1 is handled like a signal of the storm. It ends by saying "ok calls=N".
 */
#include "common.h"

#include <cpuid.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

#define STATE 4096
#define STACK (64 << 10)
#define MAX_THREADS 64
#define FILTERED 20000
/* x87, SSE, AVX, and the three of AVX-512. */
#define FEATURES 0xe7ul
/* OF DF SF ZF AF PF CF. */
#define FLAGS 0xcd5ul

struct job {
	uint64_t registers[16]; /* by their numbers in machine code */
	uint64_t flags;
	uint64_t red_zone[16];
	void *state; /* an XSAVE area */
	uint64_t features;
};

void trapped_run(struct job *in, struct job *out);

__asm__(".text\n"
	".p2align 4\n"
	".type trapped_run, @function\n"
	"trapped_run:\n"
	"	push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"	sub $24, %rsp\n"
	"	mov %rsi, (%rsp)\n"
	"	mov 272(%rdi), %eax\n"
	"	mov 276(%rdi), %edx\n"
	"	mov 264(%rdi), %rcx\n"
	"	xrstor64 (%rcx)\n"
	"	mov %rsp, 32(%rdi)\n"
	"	pushq 128(%rdi)\n"
	"	popfq\n"
	".set at, 0\n.rept 16\n"
	"	mov 136 + at(%rdi), %rax\n"
	"	mov %rax, -8 - at(%rsp)\n"
	".set at, at + 8\n.endr\n"
	"	mov (%rdi), %rax\n mov 8(%rdi), %rcx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rbx\n"
	"	mov 40(%rdi), %rbp\n mov 48(%rdi), %rsi\n"
	"	mov 64(%rdi), %r8\n mov 72(%rdi), %r9\n mov 80(%rdi), %r10\n mov 88(%rdi), %r11\n"
	"	mov 96(%rdi), %r12\n mov 104(%rdi), %r13\n mov 112(%rdi), %r14\n mov 120(%rdi), %r15\n"
	"	mov 56(%rdi), %rdi\n"
	".globl trapped_work\n"
	".type trapped_work, @function\n"
	"trapped_work:\n"
	"	lea (%rax), %rax\n"
	"	mov %rax, 8(%rsp)\n"
	"	mov (%rsp), %rax\n"
	"	mov %rcx, 8(%rax)\n mov %rdx, 16(%rax)\n mov %rbx, 24(%rax)\n mov %rsp, 32(%rax)\n"
	"	mov %rbp, 40(%rax)\n mov %rsi, 48(%rax)\n mov %rdi, 56(%rax)\n"
	"	mov %r8, 64(%rax)\n mov %r9, 72(%rax)\n mov %r10, 80(%rax)\n mov %r11, 88(%rax)\n"
	"	mov %r12, 96(%rax)\n mov %r13, 104(%rax)\n mov %r14, 112(%rax)\n mov %r15, 120(%rax)\n"
	"	mov 8(%rsp), %rcx\n"
	"	mov %rcx, (%rax)\n"
	"	lea -128(%rsp), %rsp\n"
	"	pushfq\n"
	"	popq 128(%rax)\n"
	"	cld\n"
	".set at, 0\n.rept 16\n"
	"	mov 120 - at(%rsp), %rcx\n"
	"	mov %rcx, 136 + at(%rax)\n"
	".set at, at + 8\n.endr\n"
	"	lea 128(%rsp), %rsp\n"
	"	mov 264(%rax), %rdi\n"
	"	mov 276(%rax), %edx\n"
	"	mov 272(%rax), %eax\n"
	"	xsave64 (%rdi)\n"
	"	fninit\n"
	"	movl $0x1f80, 8(%rsp)\n"
	"	ldmxcsr 8(%rsp)\n"
	"	add $24, %rsp\n"
	"	pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
	"	ret\n"
	".size trapped_work, . - trapped_work\n");

static int threads = 2, storm, own_stack, disarmed, own_handler, with_key, with_filter;
static volatile int done, filter_asked, filtered;
static uint64_t calls, own_traps, features;
static size_t part_start[8], part_size[8];
static int key = -1;

static __thread uint64_t number, seq, in_handler_seq, random_state;
static __thread stack_t stack_set;
static __thread sigset_t mask_set;

static uint64_t next(void)
{
	return mix(random_state += 0x9e3779b97f4a7c15u);
}

static unsigned access_rights(void)
{
	unsigned rights = 0;
	if (key >= 0)
		__asm__ volatile("rdpkru" : "=a"(rights) : "c"(0) : "rdx");
	return rights;
}

static void restrict_access(unsigned rights)
{
	__asm__ volatile("wrpkru" : : "a"(rights), "c"(0), "d"(0) : "memory");
}

static void find_features(void)
{
	unsigned a, b, c, d, low, high;
	CHECK(__get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE);
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	features = low & FEATURES;
	for (int i = 2; i < 8; i++) {
		if (!(features >> i & 1))
			continue;
		__cpuid_count(0xd, i, a, b, c, d);
		part_start[i] = b;
		part_size[i] = a;
		CHECK(b + a <= STATE);
	}
}

static void set_state(uint8_t *state)
{
	for (size_t i = 0; i < STATE; i += 8) {
		uint64_t word = next();
		memcpy(state + i, &word, 8);
	}
	/* Header. */
	memset(state + 512, 0, 64);
	memcpy(state + 512, &features, 8);
	/* Rounding and precision as they are seldom, nothing unmasked; some registers in use. */
	uint16_t control = 0x7f | (next() & 0xf00), status = (next() & 7) << 11 | (next() & 0x4700);
	memset(state, 0, 32);
	memcpy(state, &control, 2);
	memcpy(state + 2, &status, 2);
	state[4] = (uint8_t)next();
	uint32_t mxcsr = 0x1f80 | (next() & 0x6000) | (next() & 0x803f);
	memcpy(state + 24, &mxcsr, 4);
	for (int i = 0; i < 8; i++) {
		memset(state + 32 + 16 * i + 10, 0, 6);
		state[32 + 16 * i + 7] |= 0x80;
		state[32 + 16 * i + 9] &= 0x3f;
	}
	for (int i = 0; i < 8; i++) /* mask registers of 64 bits; not all of them zero */
		if (features >> 5 & 1)
			state[part_start[5] + 8 * i] |= 1;
}

static void same(const char *what, const void *a, const void *b, size_t size)
{
	const uint8_t *in = a, *out = b;
	for (size_t i = 0; i < size; i++)
		if (in[i] != out[i])
			BAD("%s: byte %zu is %02x, was %02x", what, i, out[i], in[i]);
}

/* Calls it once; `who` and `n` are arguments 1 and 2. */
static void run_once(uint64_t who, uint64_t n)
{
	static const char *const parts[8] = { "", "", "ymm", "", "", "k", "zmm", "zmm16" };
	uint8_t in_state[STATE] __attribute__((aligned(64)));
	uint8_t out_state[STATE] __attribute__((aligned(64)));
	struct job in = { .state = in_state, .features = features };
	struct job out = { .state = out_state, .features = features };
	for (int i = 0; i < 16; i++) {
		in.registers[i] = next();
		in.red_zone[i] = next();
	}
	in.registers[7] = who;
	in.registers[6] = n;
	in.flags = (next() & FLAGS) | 0x202;
	set_state(in_state);
	memset(out_state, 0, sizeof out_state);
	unsigned rights = access_rights();
	trapped_run(&in, &out);
	if (access_rights() != rights)
		BAD("access rights are %#x, were %#x", access_rights(), rights);
	same("registers", in.registers, out.registers, sizeof in.registers);
	same("red zone", in.red_zone, out.red_zone, sizeof in.red_zone);
	if (in.flags != (out.flags & ~0x200000ul))
		BAD("flags are %#lx, were %#lx", (long)out.flags, (long)in.flags);
	same("x87 control, status and tags", in_state, out_state, 5);
	same("mxcsr", in_state + 24, out_state + 24, 4);
	/* Registers of x87 are saved by their place on its stack, bytes 10 to 15 are nobody's. */
	for (int i = 0; i < 8; i++)
		same("st", in_state + 32 + 16 * i, out_state + 32 + 16 * i, 10);
	same("xmm", in_state + 160, out_state + 160, 256);
	for (int i = 2; i < 8; i++)
		same(parts[i], in_state + part_start[i], out_state + part_start[i], part_size[i]);
}

static void check_signals(int in_handler)
{
	stack_t now;
	sigset_t mask;
	CHECK(!sigaltstack(NULL, &now));
	if (in_handler && disarmed)
		CHECK(now.ss_flags == SS_DISABLE);
	else if (in_handler && own_stack)
		CHECK(now.ss_flags == SS_ONSTACK && now.ss_sp == stack_set.ss_sp);
	else
		CHECK(now.ss_flags == stack_set.ss_flags && now.ss_sp == stack_set.ss_sp &&
		      now.ss_size == stack_set.ss_size);
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &mask));
	for (int signal = 1; signal < 32; signal++) {
		int is_own = in_handler && (signal == SIGALRM || signal == SIGUSR1);
		if (sigismember(&mask, signal) != (sigismember(&mask_set, signal) || is_own))
			BAD("signal %d %s blocked", signal,
			    sigismember(&mask, signal) ? "is" : "is not");
	}
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	int error = errno;
	/* Whatever was there before the signal is gone. */
	memset(info, 0xa5, sizeof *info);
	run_once(1000 + number, in_handler_seq++);
	check_signals(1);
	run_once(1000 + number, in_handler_seq++);
	__atomic_fetch_add(&calls, 2, __ATOMIC_RELAXED);
	errno = error;
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	CHECK(info->si_code == SI_KERNEL);
	__atomic_fetch_add(&own_traps, 1, __ATOMIC_RELAXED);
}

static void install_filter(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void *work(void *argument)
{
	number = (uint64_t)argument;
	random_state = number << 32;
	if (own_stack || disarmed) {
		stack_set.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(stack_set.ss_sp != MAP_FAILED);
		stack_set.ss_size = STACK;
		stack_set.ss_flags = disarmed ? (int)SS_AUTODISARM : 0;
		CHECK(!sigaltstack(&stack_set, NULL));
	}
	CHECK(!sigaltstack(NULL, &stack_set));
	if (with_key)
		restrict_access(access_rights() ^ 1u << 2 * key);
	sigset_t unblocked;
	sigemptyset(&unblocked);
	sigaddset(&unblocked, SIGALRM);
	sigaddset(&unblocked, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &mask_set));
	sigdelset(&mask_set, SIGALRM);
	sigdelset(&mask_set, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_UNBLOCK, &unblocked, NULL));
	while (!done) {
		run_once(number, seq++);
		if (seq % 16 == 0)
			check_signals(0);
		if (own_handler && seq % 64 == 0)
			__asm__ volatile("int3");
		if (filter_asked && !filtered && number == 1) {
			CHECK(!pthread_sigmask(SIG_BLOCK, &unblocked, &mask_set));
			CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &mask_set));
			install_filter();
			for (int i = 0; i < FILTERED; i++)
				run_once(number, seq++);
			filtered = 1;
		}
	}
	__atomic_fetch_add(&calls, seq, __ATOMIC_RELAXED);
	return NULL;
}

int main(int argc, char **argv)
{
	double seconds = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--threads") && i + 1 < argc)
			threads = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
			seconds = atof(argv[++i]);
		else if (!strcmp(argv[i], "--storm"))
			storm = 1;
		else if (!strcmp(argv[i], "--stack"))
			own_stack = 1;
		else if (!strcmp(argv[i], "--disarmed"))
			disarmed = 1;
		else if (!strcmp(argv[i], "--handler"))
			own_handler = 1;
		else if (!strcmp(argv[i], "--key"))
			with_key = 1;
		else if (!strcmp(argv[i], "--filter"))
			with_filter = 1;
		else
			BAD("unknown argument %s", argv[i]);
	}
	CHECK(threads > 0 && threads <= MAX_THREADS);
	stop_on_sigterm();
	find_features();
	if (with_key && (key = (int)syscall(SYS_pkey_alloc, 0, 0)) < 0) {
		printf("skipped: there are no protection keys here\nok calls=0\n");
		return 0;
	}
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_signal;
	action.sa_flags = SA_SIGINFO | SA_RESTART | (own_stack || disarmed ? SA_ONSTACK : 0);
	sigaddset(&action.sa_mask, SIGALRM);
	sigaddset(&action.sa_mask, SIGUSR1);
	CHECK(!sigaction(SIGALRM, &action, NULL) && !sigaction(SIGUSR1, &action, NULL));
	if (own_handler) {
		action.sa_sigaction = on_trap;
		action.sa_flags |= SA_NODEFER;
		sigaddset(&action.sa_mask, SIGUSR2);
		CHECK(!sigaction(SIGTRAP, &action, NULL));
	}
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGALRM);
	sigaddset(&blocked, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_BLOCK, &blocked, NULL));
	pthread_t workers[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_create(&workers[i], NULL, work, (void *)(uintptr_t)(i + 1)));
	if (storm) {
		struct itimerval often = { { 0, 300 }, { 0, 300 } };
		CHECK(!setitimer(ITIMER_REAL, &often, NULL));
	}
	ready();
	wait_for_stop(seconds);
	if (with_filter) {
		filter_asked = 1;
		while (!filtered)
			usleep(1000);
		puts("filtered");
		fflush(stdout);
		wait_for_stop(seconds);
	}
	done = 1;
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_join(workers[i], NULL));
	CHECK(!own_handler || own_traps || calls < 64);
	printf("ok calls=%lu\n", (unsigned long)calls);
	return 0;
}
