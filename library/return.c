/* Return probes, probes with a function's own parameters.
 *
 * A return probe has inside it a probe at the function's entry. A call that was entered is on its
 * thread's stack of open calls, until its end is seen, in one of two ways:
 *
 * - By a probe at each of the function's exits, which finds the call by the stack pointer: it is the
 *   same at both ends.
 * - By the return address, which is replaced by that of a stub. That has to lead back whatever happens
 *   to the stack.
 *
 * A call that is further down than one that is entered was left by longjmp or an exception; or it is on
 * another stack, of a coroutine or of signals, and goes on later. Addresses do not tell which. So a call
 * is kept until it returns, or another one is entered at the very place of the stack where its return
 * address is: then it was left. Calls that were left take no more room than there are such places; if
 * that is too much, those that are further down are given up, and counted as missed.
 */
#include "internal.h"

/* Distance in bytes within which two frames may be on the same stack. */
#define STACK_SIZE (8 << 20)

struct inside {
	struct capriole_return_probe *outer;
	/* What is called, NULL for an entry without a handler; if vector registers have to be saved
	 * for it, by way of call_saved(). */
	capriole_call_handler entry, handler;
	u64 size;		/* of an open call, with its data */
	u64 vector;
	u64 serial;		/* higher for those that were registered later */
	size_t exits;
	size_t active;		/* calls that are followed now, if their number is limited */
	struct capriole_probe probes[];	/* the entry, the exits */
};

/* An open call, at `open_calls` of its thread; the last one ends at `thread->open`. */
struct open {
	struct inside *inside;
	struct capriole_call call;
	struct open *before;	/* the one that was open already, or NULL */
	u32 stub;		/* its number and one; 0: none */
	u32 over;		/* it has returned, maybe in another thread */
};

/* Entries of the stubs. `next` is the next free one while the stub is free. */
struct returning {
	u64 address;
	union {
		struct open *open;
		u64 next;
	};
};
extern struct returning capriole_returning[RETURNS];
HIDDEN struct returning capriole_returning[RETURNS] __attribute__((aligned(16)));
static u64 stubs_taken;	/* of those that no thread has had yet */
#define STUBS_AT_ONCE 16

static char *bottom(struct thread *thread)
{
	return open_calls + thread->number * open_room;
}

static struct open *last(struct thread *thread)
{
	return thread->last;
}

UNPROBED static void give_stub(struct thread *thread, struct open *open)
{
	capriole_returning[open->stub - 1].next = thread->free_stubs;
	thread->free_stubs = open->stub;
	open->stub = 0;
}

static u64 take_stub(struct thread *thread)
{
	if (!thread->free_stubs) {
		u64 first = __atomic_load_n(&stubs_taken, __ATOMIC_RELAXED);
		do {
			if (first >= RETURNS)
				return 0;
		} while (!__atomic_compare_exchange_n(&stubs_taken, &first, first + STUBS_AT_ONCE, 0,
						      __ATOMIC_RELAXED, __ATOMIC_RELAXED));
		for (u64 i = first + STUBS_AT_ONCE; i > first; i--) {
			capriole_returning[i - 1].next = thread->free_stubs;
			thread->free_stubs = i;
		}
	}
	u64 stub = thread->free_stubs;
	thread->free_stubs = capriole_returning[stub - 1].next;
	return stub;
}

UNPROBED static void leave(struct open *open)
{
	if (open->inside->outer->max_active)
		__atomic_fetch_sub(&open->inside->active, 1, __ATOMIC_RELAXED);
}

UNPROBED static int missed(struct capriole_return_probe *probe)
{
	__atomic_fetch_add(&probe->missed, 1, __ATOMIC_RELAXED);
	return 0;
}

/* The handler of calls whose probe was unregistered before they returned. */
UNPROBED static int ignore(struct capriole_call *call, struct capriole_regs *regs)
{
	(void)call, (void)regs;
	return 0;
}

/* True if nobody waits for the end of the call. */
UNPROBED static int is_over(struct open *open)
{
	return __atomic_load_n(&open->over, __ATOMIC_ACQUIRE) ||
	       (!open->stub && open->inside->handler == ignore);
}

UNPROBED static void finish(struct thread *thread, struct open *open)
{
	if (open->over)
		return;
	leave(open);
	if (open->stub)
		give_stub(thread, open);
	open->over = 1;
}

/* Takes calls off the end of the list that are over. */
UNPROBED static void drop_over(struct thread *thread)
{
	struct open *open;
	while ((open = last(thread)) && is_over(open)) {
		finish(thread, open);
		thread->last = open->before;
		thread->free = (char *)open;
	}
}

/* True if a call whose return address is where that of the call is that is entered now is the same
 * one, followed by another return probe. Those are called in the order of registration, and the first
 * one finishes what was there before. */
static int is_same(struct open *open, struct inside *entered)
{
	return open->inside->probes[0].address == entered->probes[0].address &&
	       open->inside->serial < entered->serial;
}

/* Finds out whether each call is further down the stack than those that were entered before it. */
static int is_ordered(struct thread *thread)
{
	for (struct open *open = last(thread); open && open->before; open = open->before)
		if (open->before->call.sp < open->call.sp)
			return 0;
	return 1;
}

/* Finishes calls, left otherwise than by their return, whose return address was where that of a call
 * is that is entered now: nobody can return by it any more. Returns the place of one that the new call
 * can have, or NULL. */
static struct open *finish_overwritten(struct thread *thread, u64 sp, struct inside *inside)
{
	struct open *found = NULL;
	u64 everywhere = thread->unordered;
	for (struct open *open = last(thread); open && (everywhere || open->call.sp <= sp);
	     open = open->before) {
		if (open->call.sp != sp || (!is_over(open) && is_same(open, inside)))
			continue;
		finish(thread, open);
		if (open->inside->size == inside->size)
			found = open;
	}
	drop_over(thread);
	if (everywhere)
		thread->unordered = !is_ordered(thread);
	return (char *)found < thread->free ? found : NULL;
}

/* Gives up calls that are further down, all or those of one probe: they were left, unless they are on
 * another stack. */
static void give_up(struct thread *thread, u64 sp, struct inside *only)
{
	for (struct open *open = last(thread); open; open = open->before) {
		if ((only && open->inside != only) || open->stub || is_over(open) ||
		    open->call.sp >= sp || sp - open->call.sp >= STACK_SIZE)
			continue;
		missed(open->inside->outer);
		finish(thread, open);
	}
	drop_over(thread);
}

static int has_place(struct thread *thread, struct inside *inside)
{
	return thread->free + inside->size <= bottom(thread) + open_room;
}

/* Returns a place for a call that is entered, at the end of the list or of a call that is over; NULL if
 * there is none. */
static struct open *find_place(struct thread *thread, u64 sp, struct inside *inside)
{
	if (!has_place(thread, inside))
		give_up(thread, sp, NULL);
	struct open *open = (struct open *)(void *)thread->free;
	if (!has_place(thread, inside)) {
		for (open = last(thread); open; open = open->before)
			if (is_over(open) && open->inside->size >= inside->size)
				break;
		if (open)
			finish(thread, open);
	}
	return open;
}

UNPROBED HIDDEN void miss_call(struct capriole_probe *probe)
{
	struct inside *inside = (struct inside *)own(probe)->inside;
	/* One that ends without having been followed is counted at its entry. */
	if (probe == &inside->probes[0])
		missed(inside->outer);
}

static int entry_saved(struct capriole_call *call, struct capriole_regs *regs)
{
	save_vectors();
	int result = call->probe->entry(call, regs);
	load_vectors();
	return result;
}

static int handler_saved(struct capriole_call *call, struct capriole_regs *regs)
{
	save_vectors();
	int result = call->probe->handler(call, regs);
	load_vectors();
	return result;
}

static void note(struct open *open, struct inside *inside, struct capriole_regs *regs)
{
	open->inside = inside;
	open->over = 0;
	open->call.probe = inside->outer;
	open->call.return_address = *(u64 *)regs->sp;
	open->call.sp = regs->sp;
	open->call.data = open + 1;
}

/* Puts a call into the list, unless it has the place of one that is over. */
static void push(struct thread *thread, struct open *open, struct inside *inside)
{
	if ((char *)open != thread->free)
		return;
	open->before = last(thread);
	if (open->before && open->before->call.sp < open->call.sp)
		thread->unordered = 1;
	thread->last = open;
	thread->free = (char *)open + inside->size;
}

/* The entry of a function whose exits are probed, without a limit. */
static int entered(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct thread *thread = capriole_thread;
	struct open *top = last(thread);
	struct open *open = (struct open *)(void *)thread->free;
	if (__builtin_expect(!top || top->call.sp <= regs->sp || thread->unordered ||
			     !has_place(thread, inside), 0)) {
		open = finish_overwritten(thread, regs->sp, inside);
		if (!open && !(open = find_place(thread, regs->sp, inside)))
			return missed(inside->outer);
	}
	open->stub = 0;
	note(open, inside, regs);
	push(thread, open, inside);
	if (inside->entry && inside->entry(&open->call, regs)) {
		open->over = 1;
		drop_over(thread);
	}
	return 0;
}

/* Counts one more call that is followed. Returns 0 if there are as many as there may be. */
static int enter(struct inside *inside)
{
	u32 most = inside->outer->max_active;
	if (!most || __atomic_add_fetch(&inside->active, 1, __ATOMIC_RELAXED) <= most)
		return 1;
	__atomic_fetch_sub(&inside->active, 1, __ATOMIC_RELAXED);
	return 0;
}

/* The entry of any other function. */
static int entered_with_care(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct capriole_return_probe *outer = inside->outer;
	struct thread *thread = capriole_thread;
	struct open *open = finish_overwritten(thread, regs->sp, inside);
	if (!enter(inside)) {
		give_up(thread, regs->sp, inside);
		/* Its place may be at the end now. */
		open = (char *)open < thread->free ? open : NULL;
		if (!enter(inside))
			return missed(outer);
	}
	u64 stub = 0;
	if ((!open && !(open = find_place(thread, regs->sp, inside))) ||
	    (outer->by_address && !(stub = take_stub(thread)))) {
		if (outer->max_active)
			__atomic_fetch_sub(&inside->active, 1, __ATOMIC_RELAXED);
		return missed(outer);
	}
	open->stub = (u32)stub;
	note(open, inside, regs);
	push(thread, open, inside);
	if (inside->entry && inside->entry(&open->call, regs)) {
		finish(thread, open);
		drop_over(thread);
		return 0;
	}
	if (stub) {
		capriole_returning[stub - 1].address = open->call.return_address;
		capriole_returning[stub - 1].open = open;
		*(u64 *)regs->sp = (u64)capriole_stubs + 16 * (stub - 1);
	}
	return 0;
}

static int left(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct thread *thread = capriole_thread;
	struct open *open = last(thread);
	u64 ip = regs->ip, sp = regs->sp;
	while (open && (open->call.sp != sp || open->inside != inside || open->over))
		open = open->before;
	if (!open)
		return 0;	/* entered before the probe was there, or not followed */
	u64 to = open->call.return_address;
	regs->ip = to;
	regs->sp = sp + 8;
	inside->handler(&open->call, regs);
	if (__builtin_expect(inside->active != 0, 0))
		leave(open);
	if (__builtin_expect(open != last(thread) || thread->unordered, 0)) {
		open->over = 1;
		drop_over(thread);
	} else {
		thread->last = open->before;
		thread->free = (char *)open;
	}
	if (__builtin_expect(regs->ip != to || regs->sp != sp + 8, 0))
		return 1;
	regs->ip = ip;
	regs->sp = sp;
	return 0;
}

UNPROBED HIDDEN void capriole_returned(u64 number, struct capriole_regs *regs)
{
	struct thread *thread = capriole_thread, *usable = thread;
	struct open *open = capriole_returning[number].open;
	struct inside *inside = open->inside;
	/* A thread without a record has been given the call's stack by another one. */
	if (is_stranger(thread) || thread->frame)
		usable = is_stranger(thread) ? NULL : capriole_active(thread, regs->sp);
	if (usable) {
		thread->frame = (u64)regs - 8;
		__atomic_load_n(&inside->handler, __ATOMIC_ACQUIRE)(&open->call, regs);
		thread->frame = 0;
	} else {
		missed(inside->outer);
	}
	leave(open);
	if (!is_stranger(thread))
		give_stub(thread, open);
	__atomic_store_n(&open->over, 1, __ATOMIC_RELEASE);
	if (usable)
		drop_over(thread);
}

static int check(const struct capriole_return_probe *probe)
{
	if (!probe || !probe->handler)
		return fail(-EINVAL, "a return probe needs a handler", NULL);
	if (own(&probe->probe)->site || probe->private_[0])
		return fail(-EBUSY, "the return probe is registered already", NULL);
	if (probe->data_size > 1024)
		return fail(-EINVAL, "a call has room for at most 1024 bytes of data", NULL);
	return 0;
}

static size_t inside_size(size_t exits)
{
	return sizeof(struct inside) + (1 + exits) * sizeof(struct capriole_probe);
}

static int register_return(struct capriole_return_probe *probe)
{
	struct message message;
	int failed = check(probe);
	if (failed || (failed = start_helper()))
		return failed;
	new_message(&message, EXITS);
	put(&message, probe->by_address != 0);
	put(&message, (u64)(probe->probe.symbol || probe->probe.line ? 0 : probe->probe.address));
	put_text(&message, probe->probe.object);
	put_text(&message, probe->probe.symbol);
	failed = ask(&message);
	if (failed) {
		drop_message(&message);
		return failed;
	}
	size_t exits = take(&message);
	struct inside *inside = allocate(inside_size(exits));
	struct capriole_probe **all = allocate((1 + exits) * sizeof *all);
	if (!inside || !all) {
		drop_message(&message);
		return fail(-ENOMEM, "there is no memory for the probes of a function's exits", NULL);
	}
	static u64 serial;
	inside->serial = ++serial;
	inside->outer = probe;
	inside->exits = exits;
	inside->size = (sizeof(struct open) + probe->data_size + 15) & ~(u64)15;
	for (size_t i = 0; i <= exits; i++) {
		struct capriole_probe *each = &inside->probes[i];
		each->address = (void *)take(&message);
		each->pre = i ? left
			: probe->by_address || probe->max_active ? entered_with_care : entered;
		each->flags = (probe->probe.flags & ~(unsigned)CAPRIOLE_SAVE_VECTOR) | CAPRIOLE_NO_VECTOR;
		own(each)->inside = (u64)inside;
		all[i] = each;
	}
	drop_message(&message);
	failed = needs_vectors((void *)probe->entry, (void *)probe->handler, probe->probe.flags,
			       &inside->vector);
	inside->entry = probe->entry && inside->vector ? entry_saved : probe->entry;
	inside->handler = inside->vector ? handler_saved : probe->handler;
	if (!failed)
		failed = register_locked(all, 1 + exits);
	release(all, (1 + exits) * sizeof *all);
	if (failed) {
		release(inside, inside_size(exits));
		return failed;
	}
	probe->probe.address = inside->probes[0].address;
	probe->private_[0] = inside;
	return 0;
}

static int unregister_return(struct capriole_return_probe *probe)
{
	struct inside *inside = probe ? probe->private_[0] : NULL;
	if (!inside)
		return fail(-EINVAL, "the return probe is not registered", NULL);
	struct capriole_probe **all = allocate((1 + inside->exits) * sizeof *all);
	if (!all)
		return fail(-ENOMEM, "there is no memory for taking the probes out", NULL);
	for (size_t i = 0; i <= inside->exits; i++)
		all[i] = &inside->probes[i];
	int failed = unregister_locked(all, 1 + inside->exits);
	release(all, (1 + inside->exits) * sizeof *all);
	if (failed)
		return failed;
	/* Open calls of threads still name it: `inside` stays, with a probe that does nothing. */
	struct capriole_return_probe *nobody = allocate(sizeof *nobody);
	if (nobody) {
		nobody->max_active = probe->max_active;
		__atomic_store_n(&inside->handler, ignore, __ATOMIC_RELEASE);
		__atomic_store_n(&inside->outer, nobody, __ATOMIC_RELEASE);
		settle();
	}
	probe->private_[0] = NULL;
	return 0;
}

PUBLIC int capriole_return_probe_register(struct capriole_return_probe *probe)
{
	int failed = begin();
	return failed ? failed : end(register_return(probe));
}

PUBLIC int capriole_return_probe_unregister(struct capriole_return_probe *probe)
{
	int failed = begin();
	return failed ? failed : end(unregister_return(probe));
}

/* Probes with a function's own parameters */

static int call_arguments(struct capriole_probe *p, struct capriole_regs *regs)
{
	return capriole_call_arguments(p, regs);
}

PUBLIC int capriole_argument_probe_register(struct capriole_argument_probe *probe)
{
	int failed = begin();
	if (failed)
		return failed;
	if (!probe || !probe->handler)
		return end(fail(-EINVAL, "an argument probe needs a handler", NULL));
	if (probe->stack_words > 32)
		return end(fail(-EINVAL, "at most 32 arguments on the stack can be passed on", NULL));
	probe->probe.pre = call_arguments;
	probe->probe.post = NULL;
	struct capriole_probe *p = &probe->probe;
	return end(register_locked(&p, 1));
}

PUBLIC int capriole_argument_probe_unregister(struct capriole_argument_probe *probe)
{
	return capriole_probe_unregister(probe ? &probe->probe : NULL);
}

PUBLIC int capriole_replace(struct capriole_replacement *replacement)
{
	int failed = begin();
	return failed ? failed : end(replace_locked(replacement));
}

PUBLIC int capriole_restore(struct capriole_replacement *replacement)
{
	int failed = begin();
	return failed ? failed : end(restore_locked(replacement));
}
