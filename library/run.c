/* The handlers of a set, in a thread of the program. */
#include "internal.h"
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

/* How vector and x87 state is saved: by XSAVEC, XSAVE or FXSAVE, and which components. PKRU is not
 * among them: what memory a handler may touch is the program's affair. */
static enum { FX, X, XC } method;
static u32 components_low, components_high;
#define PKRU (1u << 9)

HIDDEN int run_nothing(void *nothing, struct capriole_regs *regs)
{
	(void)nothing, (void)regs;
	return 0;
}

HIDDEN void find_vector_state(void)
{
	u32 a, b, c, d;
	vector_room = 512;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return;
	__asm__("xgetbv" : "=a"(components_low), "=d"(components_high) : "c"(0));
	components_low &= ~PKRU;
	__cpuid_count(13, 0, a, b, c, d);
	method = X;
	vector_room = b;
	__cpuid_count(13, 1, a, b, c, d);
	if (a & 2) {
		method = XC;
		if (b > vector_room)
			vector_room = b;
	}
	vector_room = (vector_room + 63) & ~(u64)63;
}

/* Each thread has one place: handlers do not nest. */
static void *vector_state(void)
{
	return vector_states + capriole_thread->number * vector_room;
}

HIDDEN void save_vectors(void)
{
	void *at = vector_state();
	static const u32 usual = 0x1f80;
	/* The header of a state that was never written must be zero for XRSTOR. */
	switch (method) {
	case XC:
		__asm__ volatile("xsavec64 (%0)" : : "r"(at), "a"(components_low), "d"(components_high) : "memory");
		break;
	case X:
		__asm__ volatile("xsave64 (%0)" : : "r"(at), "a"(components_low), "d"(components_high) : "memory");
		break;
	case FX:
		__asm__ volatile("fxsave64 (%0)" : : "r"(at) : "memory");
		break;
	}
	/* What C expects at a function's entry. */
	__asm__ volatile("fninit; ldmxcsr %0" : : "m"(usual));
}

HIDDEN void load_vectors(void)
{
	void *at = vector_state();
	if (method == FX)
		__asm__ volatile("fxrstor64 (%0)" : : "r"(at) : "memory");
	else
		__asm__ volatile("xrstor64 (%0)" : : "r"(at), "a"(components_low), "d"(components_high) : "memory");
}

/* Calls a handler; a fault in it may be taken care of by the fault handler. */
static int guarded(capriole_pre_handler handler, struct capriole_probe *probe, struct capriole_regs *regs)
{
	struct thread *thread = capriole_thread;
	/* The flags of a post-handler are 0, as in the kernel; others do not look at them. */
	typedef int with_flags(struct capriole_probe *, struct capriole_regs *, unsigned long flags);
	if (!probe->fault)
		return ((with_flags *)(void (*)(void))handler)(probe, regs, 0);
	thread->running = probe;
	thread->regs = regs;
	int result = capriole_guarded(probe, regs, handler, &thread->guarded);
	thread->running = NULL;
	return result;
}

/* The personality routine (Itanium C++ ABI, Exception Handling) of frames that call handlers: a handler
 * is left by unwinding, usually because its thread ends. The thread's mark goes with the frame, or
 * whoever takes out the probe would wait for ever. */
UNPROBED HIDDEN int capriole_left_handler(int version, int actions, u64 class, void *exception, void *context)
{
	enum { CLEANUP = 2, CONTINUE = 8 };
	struct thread *thread = capriole_thread;
	(void)version, (void)class, (void)exception, (void)context;
	if (actions & CLEANUP && !is_stranger(thread)) {
		thread->running = NULL;
		__atomic_store_n(&thread->frame, 0, __ATOMIC_RELEASE);
	}
	return CONTINUE;
}

HIDDEN int call_all(struct set *set, struct capriole_regs *regs, int after)
{
	for (size_t i = 0; i < set->count; i++) {
		struct capriole_probe *probe = set->probes[i];
		if (after) {
			/* A post-handler returns nothing; what is in eax does not matter. */
			capriole_pre_handler post = (capriole_pre_handler)(void (*)(void))probe->post;
			if (post)
				guarded(post, probe, regs);
			continue;
		}
		if (probe->pre && guarded(probe->pre, probe, regs))
			return 1;
	}
	return 0;
}

static int call_saved(struct set *set, struct capriole_regs *regs, int after)
{
	if (!set->vector)
		return call_all(set, regs, after);
	save_vectors();
	int result = call_all(set, regs, after);
	load_vectors();
	return result;
}

HIDDEN int run_before(void *set, struct capriole_regs *regs)
{
	return call_saved(set, regs, 0);
}

HIDDEN int run_after(void *set, struct capriole_regs *regs)
{
	call_saved(set, regs, 1);
	return 0;
}

UNPROBED HIDDEN void capriole_redirect(struct site *site, struct capriole_regs *regs, u64 ip, u64 skip)
{
	if (regs->flags & EXECUTED) {
		regs->flags &= ~EXECUTED;
	} else if (regs->ip == ip && skip) {
		regs->ip = site->next;
	} else if (regs->ip == ip && ip == site->address) {
		/* Only the stack pointer is another one. */
		regs->ip = site->original;
		return;
	}
	const struct covered *covered = __atomic_load_n(&site->covered, __ATOMIC_ACQUIRE);
	for (size_t i = 0; covered && i < covered->count; i++) {
		if (covered->all[i].address == regs->ip) {
			regs->ip = covered->all[i].goes_on;
			return;
		}
	}
}

/* Faults in handlers. The library's signal actions stand before those that the program has when the
 * first probe with a fault handler is registered. */
static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
struct action {
	void *handler;
	unsigned long flags;
	void *restorer;
	u64 mask;
};
static struct action before[4];
/* Handlers of the session that stand before those, and give them the addresses of displaced
 * instructions. The kernel's answer is as if they did not exist: see capriole_action() in
 * crates/resident. They are called from here only if the session may make no system calls, because of
 * a filter: otherwise it puts them before the library's. */
static u64 session_handlers[4];
static int watching[4];	/* for each signal: ours is there, or another one that may call it */

__attribute__((naked)) static void restore(void)
{
	__asm__("mov $15, %eax\n\tsyscall");
}

static void faulted(int signal, siginfo_t *info, void *context)
{
	struct thread *thread = capriole_thread;
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	if (thread && thread->running) {
		struct capriole_probe *probe = thread->running;
		thread->running = NULL;
		if (info->si_code > 0 && probe->fault(probe, thread->regs, signal)) {
			regs[REG_RIP] = (greg_t)(u64)capriole_abandoned;
			regs[REG_RSP] = (greg_t)thread->guarded;
			return;
		}
		thread->running = probe;
	}
	u64 ip = (u64)regs[REG_RIP];
	if (info->si_code > 0 && ip >= (u64)capriole_reads && ip < (u64)capriole_reads_end) {
		regs[REG_RIP] = (greg_t)(u64)capriole_unreadable;
		return;
	}
	const struct action *old = before;
	u64 first = 0;
	for (unsigned i = 0; i < 4; i++) {
		if (signals[i] == signal) {
			old = &before[i];
			first = __atomic_load_n(&session_handlers[i], __ATOMIC_RELAXED);
		}
	}
	if (first) {
		((void (*)(int, siginfo_t *, void *))first)(signal, info, context);
		return;
	}
	if (old->handler == (void *)SIG_IGN && info->si_code <= 0)
		return;
	if (old->handler != (void *)SIG_DFL && old->handler != (void *)SIG_IGN) {
		((void (*)(int, siginfo_t *, void *))(u64)old->handler)(signal, info, context);
		return;
	}
	/* As without us: the instruction faults again, and the kernel ends the program; a signal that
	 * was sent is sent again. */
	struct action usual = { 0 };
	SYS4(SYS_rt_sigaction, signal, &usual, NULL, 8);
	if (info->si_code <= 0)
		SYS3(SYS_tgkill, SYS0(SYS_getpid), SYS0(SYS_gettid), signal);
}

HIDDEN void unwatch_faults(void)
{
	for (unsigned i = 0; i < 4; i++) {
		struct action now;
		if (!watching[i] || SYS4(SYS_rt_sigaction, signals[i], NULL, &now, 8) < 0 ||
		    now.handler != (void *)(u64)faulted)
			continue;
		SYS4(SYS_rt_sigaction, signals[i], &before[i], &now, 8);
		if (now.handler == (void *)(u64)faulted)
			watching[i] = 0;
		else	/* The program has set one in between. */
			SYS4(SYS_rt_sigaction, signals[i], &now, NULL, 8);
	}
}

HIDDEN void forget_handlers(void)
{
	for (unsigned i = 0; i < 4; i++)
		__atomic_store_n(&session_handlers[i], 0, __ATOMIC_RELAXED);
}

HIDDEN int watch_faults(void)
{
	if (watching[0] && watching[1] && watching[2] && watching[3])
		return 0;
	struct message message;
	new_message(&message, FAULTS);
	int failed = ask(&message);
	if (failed) {
		drop_message(&message);
		return failed;
	}
	for (unsigned i = 0; i < 4; i++) {
		u64 first = take(&message), program = take(&message), recorder = take(&message);
		struct action replaced, was, own = { (void *)(u64)faulted, SA_SIGINFO | SA_ONSTACK | SA_NODEFER | 0x04000000,
				      (void *)(u64)restore, 0 };
		replaced.handler = (void *)take(&message);
		replaced.flags = take(&message);
		replaced.restorer = (void *)take(&message);
		replaced.mask = take(&message);
		if (watching[i])
			continue;
		SYS4(SYS_rt_sigaction, signals[i], NULL, &was, 8);
		/* A recorder goes whenever it likes, and its handler with it: never call that. */
		before[i] = recorder && was.handler == (void *)recorder ? replaced : was;
		own.mask = before[i].mask;
		long result = SYS4(SYS_rt_sigaction, signals[i], &own, &was, 8);
		if (result < 0) {
			drop_message(&message);
			return fail((int)result, "the handlers of faults cannot be installed", NULL);
		}
		watching[i] = 1;
		if (!(recorder && was.handler == (void *)recorder) && was.handler != before[i].handler)
			before[i] = was;	/* set in between */
		if (first && program == (u64)before[i].handler)
			__atomic_store_n(&session_handlers[i], first, __ATOMIC_RELAXED);
	}
	drop_message(&message);
	return 0;
}
