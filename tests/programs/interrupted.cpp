// Signals at each instruction of probed functions: the handler unwinds from there.
//
//   interrupted walk    it makes a backtrace, which must be that of the function
//   interrupted throw   it throws an exception, which the caller must catch, with destructors run
//   interrupted fault   a function faults in its first instruction; the handler throws
//   interrupted cancel  threads in a probed function are cancelled asynchronously
//   interrupted ... now     at once, without waiting for a line
//
// The trap flag makes the processor raise SIGTRAP after each instruction, also in code that is not of this
// program. Prints how many signals came from no file, and ends with a line "ok ...".

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ucontext.h>
#include <unistd.h>

#define KEPT extern "C" __attribute__((noinline, noclone, noipa))

static volatile int round_number;

/* Functions with different numbers of arguments, so that detours take different registers. */
KEPT long none(void)
{
	return round_number;
}

KEPT long six(long a, long b, long c, long d, long e, long f)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + round_number;
}

KEPT long text(const char *words, const long *numbers)
{
	return words[0] + numbers[0] + round_number;
}

/* Uses all registers that a function preserves, and the red zone. */
KEPT long many(long a, long b)
{
	long c = a * 3 + round_number, d = b * 5 + c, e = c * d, f = e - a, g = f * b, h = g + c;
	__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h));
	return none() + a + b + c + d + e + f + g + h;
}

KEPT long load(const volatile long *from)
{
	return *from;
}

/* Addresses of files; everything else that is executed here is Capriole's. */
struct code {
	uintptr_t start, end;
};
static struct code codes[64];
static int count;

static int find_code(struct dl_phdr_info *info, size_t, void *)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && count < 64) {
			codes[count].start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			codes[count].end = codes[count].start + info->dlpi_phdr[i].p_memsz;
			count++;
		}
	return 0;
}

static int is_in_file(uintptr_t at)
{
	for (int i = 0; i < count; i++)
		if (codes[i].start <= at && at < codes[i].end)
			return 1;
	return 0;
}

static volatile long outside, wrong, target;

KEPT long stepped(int which);

static void complain(uintptr_t at, void **frames, int n)
{
	wrong++;
	if (wrong > 3)
		return;
	printf("from %#lx:", (long)at);
	for (int i = 0; i < n; i++) {
		Dl_info info;
		if (dladdr(frames[i], &info) && info.dli_sname)
			printf(" %s+%#lx", info.dli_sname, (long)((char *)frames[i] - (char *)info.dli_saddr));
		else
			printf(" %p", frames[i]);
	}
	printf("\n");
}

static void walk(int, siginfo_t *, void *context)
{
	uintptr_t at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	if (is_in_file(at))
		return;
	outside++;
	void *frames[64];
	int n = backtrace(frames, 64);
	/* It leads to the function that steps, and from there to main and the start. */
	int steps = 0;
	Dl_info info;
	for (int i = 0; i < n; i++)
		steps += dladdr(frames[i], &info) && info.dli_saddr == (void *)stepped;
	int ends = n > 0 && dladdr(frames[n - 1], &info) && info.dli_sname && !strcmp(info.dli_sname, "_start");
	if (steps != 1 || !ends)
		complain(at, frames, n);
}

struct Stop {
	long number;
};

static void throwing(int, siginfo_t *, void *context)
{
	ucontext_t *interrupted = (ucontext_t *)context;
	uintptr_t at = interrupted->uc_mcontext.gregs[REG_RIP];
	if (is_in_file(at) || outside++ != target)
		return;
	throw Stop{target};
}

static void faulting(int, siginfo_t *, void *)
{
	throw Stop{-1};
}

static inline __attribute__((always_inline)) void step(int on)
{
	if (on)
		__asm__ volatile("sub $128, %%rsp; pushf; orl $0x100, (%%rsp); popf; add $128, %%rsp" ::: "memory", "cc");
	else
		__asm__ volatile("sub $128, %%rsp; pushf; andl $~0x100, (%%rsp); popf; add $128, %%rsp" ::: "memory", "cc");
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = handler;
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	sigaction(signal, &action, 0);
}

static long numbers[4] = { 10, 20, 30, 40 };
static volatile long destroyed;

struct Guard {
	~Guard() { destroyed++; }
};

/* Calls the functions; values that it holds in registers must have survived. */
long stepped(int which)
{
	register long r12 __asm__("r12") = 12 + which, r13 __asm__("r13") = 13, r14 __asm__("r14") = 14, r15 __asm__("r15") = 15,
		 rbx __asm__("rbx") = 3;
	long result = 0;
	__asm__ volatile("" : "+r"(r12), "+r"(r13), "+r"(r14), "+r"(r15), "+r"(rbx));
	step(1);
	switch (which) {
	case 0: result = none(); break;
	case 1: result = six(1, 2, 3, 4, 5, 6); break;
	case 2: result = text("words", numbers); break;
	default: result = many(7, 9); break;
	}
	step(0);
	__asm__ volatile("" : "+r"(r12), "+r"(r13), "+r"(r14), "+r"(r15), "+r"(rbx));
	if (r12 != 12 + which || r13 != 13 || r14 != 14 || r15 != 15 || rbx != 3)
		wrong++;
	return result;
}

/* As `stepped`, with something to destroy, and a handler of the exception. Returns true if one came. */
KEPT bool caught(int which)
{
	register long r12 __asm__("r12") = 112 + which, r13 __asm__("r13") = 113, r14 __asm__("r14") = 114, r15 __asm__("r15") = 115,
		 rbx __asm__("rbx") = 103;
	__asm__ volatile("" : "+r"(r12), "+r"(r13), "+r"(r14), "+r"(r15), "+r"(rbx));
	bool came = false;
	long before = destroyed;
	try {
		Guard guard;
		stepped(which);
	} catch (const Stop &stop) {
		step(0);
		came = stop.number == target;
	}
	if (destroyed != before + 1)
		wrong++;
	__asm__ volatile("" : "+r"(r12), "+r"(r13), "+r"(r14), "+r"(r15), "+r"(rbx));
	if (r12 != 112 + which || r13 != 113 || r14 != 114 || r15 != 115 || rbx != 103)
		wrong++;
	return came;
}

static pthread_barrier_t barrier;
static volatile long cleaned;

struct Cleaned {
	~Cleaned() { __sync_fetch_and_add(&cleaned, 1); }
};

/* Has nothing to destroy: what is interrupted here may be any instruction. */
KEPT void for_ever(void)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
	pthread_barrier_wait(&barrier);
	for (;;)
		none();
}

static void *cancelled(void *)
{
	Cleaned guard;
	for_ever();
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "walk";
	dl_iterate_phdr(find_code, 0);
	void *frames[4];
	backtrace(frames, 4); /* loads libgcc */
	printf("ready %d\n", getpid());
	fflush(stdout);
	char line[64];
	if (argc < 3 && !fgets(line, sizeof line, stdin))
		return 1;
	if (!strcmp(what, "walk")) {
		handle(SIGTRAP, walk);
		for (int which = 0; which < 4; which++)
			stepped(which);
		printf("%ld signals outside\n", outside);
		printf("%s %ld\n", wrong ? "wrong" : "ok", wrong);
	} else if (!strcmp(what, "throw")) {
		handle(SIGTRAP, throwing);
		/* Each of the first 32, then ever fewer: each costs as many signals as come before it. */
		long all = 0;
		for (int which = 0; which < 4; which++)
			for (target = 0;; target += 1 + target / 32) {
				outside = 0;
				bool came = caught(which);
				if (outside <= target)
					break;
				all++;
				if (!came)
					wrong++;
			}
		printf("%ld exceptions\n", all);
		printf("%s %ld\n", wrong ? "wrong" : "ok", wrong);
	} else if (!strcmp(what, "fault")) {
		handle(SIGSEGV, faulting);
		for (int i = 0; i < 100; i++) {
			long before = destroyed;
			bool came = false;
			try {
				Guard guard;
				load((long *)8);
			} catch (const Stop &) {
				came = true;
			}
			if (!came || destroyed != before + 1)
				wrong++;
		}
		printf("100 faults\n%s %ld\n", wrong ? "wrong" : "ok", wrong);
	} else {
		const int threads = 400;
		for (int i = 0; i < threads; i++) {
			pthread_t thread;
			pthread_barrier_init(&barrier, 0, 2);
			pthread_create(&thread, 0, cancelled, 0);
			pthread_barrier_wait(&barrier);
			usleep(i % 7 * 20);
			pthread_cancel(thread);
			pthread_join(thread, 0);
		}
		printf("%d threads\n%s %ld\n", threads, cleaned == threads ? "ok" : "wrong", cleaned);
	}
	fflush(stdout);
	if (argc < 3 && fgets(line, sizeof line, stdin))
		return 1;
	return wrong != 0;
}
