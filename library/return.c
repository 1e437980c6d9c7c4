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
 *
 * Disabling or unregistering a return probe ends a round, after its handlers at the entry were replaced: calls
 * of earlier rounds are not followed any more. Such calls still name their `struct inside`, so that is never
 * freed, but used again by return probes with as many exits, in later rounds.
 */
#include "internal.h"

/* Distance in bytes within which two frames may be on the same stack. */
#define STACK_SIZE (8 << 20)

struct inside {
	struct capriole_return_probe *outer;
	/* What is called, NULL for an entry without a handler; if vector registers have to be saved
	 * for it, by way of entry_saved() or handler_saved(). */
	capriole_call_handler entry, handler;
	u64 stamp;		/* size and round, as an open call has them */
	u64 size;		/* of an open call, with its data */
	u64 traits;
	u64 serial;		/* higher for those that were registered later */
	size_t exits;
	u64 limit;		/* `max_active` */
	/* The round, and below it the number of calls of this round that are followed now, if that is
	 * limited: changed together, as a thread may leave a call of an earlier round at any time. */
	u64 active;
	struct inside *free;	/* next one, while nobody uses it */
	struct inside *all;	/* next of all */
	struct capriole_probe probes[];	/* the entry, the exits */
};
#define ROUND ((u64)1 << 32)
_Static_assert(offsetof(struct inside, outer) == INSIDE_OUTER, "");
_Static_assert(offsetof(struct inside, entry) == INSIDE_ENTRY, "");
_Static_assert(offsetof(struct inside, handler) == INSIDE_HANDLER, "");
_Static_assert(offsetof(struct inside, stamp) == INSIDE_STAMP, "");

/* An open call, at `open_calls` of its thread; the last one ends at `thread->open`. */
struct open {
	struct inside *inside;
	struct capriole_call call;
	struct open *before;	/* the one that was open already, or NULL */
	u32 stub;		/* its number and one; 0: none */
	u32 over;		/* it has returned, maybe in another thread */
	u32 size;		/* with its data */
	u32 round;		/* of `inside` in which it was entered */
};

_Static_assert(offsetof(struct open, inside) == OPEN_INSIDE, "");
_Static_assert(offsetof(struct open, call.probe) == OPEN_PROBE, "");
_Static_assert(offsetof(struct open, call.return_address) == OPEN_RETURN, "");
_Static_assert(offsetof(struct open, call.sp) == OPEN_SP, "");
_Static_assert(offsetof(struct open, call.data) == OPEN_DATA, "");
_Static_assert(offsetof(struct open, before) == OPEN_BEFORE, "");
_Static_assert(offsetof(struct open, stub) == OPEN_STUB, "");
_Static_assert(offsetof(struct open, over) == OPEN_STUB + 4, "");
_Static_assert(offsetof(struct open, size) == OPEN_STAMP, "");
_Static_assert(offsetof(struct open, round) == OPEN_STAMP + 4, "");
_Static_assert(sizeof(struct open) == OPEN_SIZE, "");

/* Entries of the stubs. `next` is the next free one while the stub is free; `open` has LAST set if the
 * address is no stub's, for unwinders (hit.S). */
struct returning {
	u64 address;
	union {
		u64 open;
		u64 next;
	};
};
#define LAST ((u64)1)
extern struct returning capriole_returning[RETURNS];
HIDDEN struct returning capriole_returning[RETURNS] __attribute__((aligned(16)));
static u64 stubs_taken;	/* of those that no thread has had yet */
#define STUBS_AT_ONCE 16

/* In the section of its caller, which may be one that must not be probed. */
#define INLINE static inline __attribute__((always_inline))

static char *bottom(struct thread *thread)
{
	return open_calls + thread->number * open_room;
}

INLINE struct open *last(struct thread *thread)
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

INLINE u32 round_of(struct inside *inside)
{
	return (u32)(__atomic_load_n(&inside->active, __ATOMIC_RELAXED) >> 32);
}

/* True if the probe of a call was disabled or unregistered meanwhile. */
INLINE int is_stale(struct open *open)
{
	return open->round != round_of(open->inside);
}

/* Counts one call less that is followed, if the number is limited. */
UNPROBED static void leave(struct inside *inside, u32 round)
{
	u64 active = __atomic_load_n(&inside->active, __ATOMIC_RELAXED);
	while (active >> 32 == round && (u32)active &&
	       !__atomic_compare_exchange_n(&inside->active, &active, active - 1, 0, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED))
		;
}

/* Counts one call more. Returns 0 if there are too many. */
static int enter(struct inside *inside)
{
	u64 active = __atomic_load_n(&inside->active, __ATOMIC_RELAXED);
	do {
		if ((u32)active >= inside->limit)
			return 0;
	} while (!__atomic_compare_exchange_n(&inside->active, &active, active + 1, 0, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	return 1;
}

/* Sets what calls are noted with from now on. */
static void stamp(struct inside *inside)
{
	__atomic_store_n(&inside->stamp, (u64)round_of(inside) << 32 | inside->size, __ATOMIC_RELEASE);
}

/* Ends a round. */
static void end_round(struct inside *inside)
{
	u64 active = __atomic_load_n(&inside->active, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&inside->active, &active, (active | (ROUND - 1)) + 1, 0,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	stamp(inside);
}

UNPROBED static int missed(struct capriole_return_probe *probe)
{
	__atomic_fetch_add(&probe->missed, 1, __ATOMIC_RELAXED);
	return 0;
}

/* True if nobody waits for the end of the call. */
UNPROBED static int is_over(struct open *open)
{
	return __atomic_load_n(&open->over, __ATOMIC_ACQUIRE) ||
	       (!open->stub && is_stale(open));
}

UNPROBED static void finish(struct thread *thread, struct open *open)
{
	if (open->over)
		return;
	leave(open->inside, open->round);
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
	return !is_stale(open) && open->inside->probes[0].address == entered->probes[0].address &&
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

static u64 stub_address(const struct open *open)
{
	return (u64)capriole_stubs + 16 * (u64)(open->stub - 1);
}

/* A call with a stub is kept: its stack may be that of a coroutine, which another thread continues. If it is
 * not, the thread that has the same record has the same stack, as a rule, and enters calls at that place. */
UNPROBED HIDDEN void forget_calls(struct thread *thread)
{
	for (struct open *open = last(thread); open; open = open->before)
		if (!open->stub)
			finish(thread, open);
	drop_over(thread);
	thread->unordered = last(thread) != NULL;
}

/* A bit of `stub`, set only while finish_overwritten() runs: the call returns after the one that is
 * entered. */
#define RETURNS_LATER (1u << 31)

/* Marks this thread's calls that return after one that is entered at `sp`: it has the stub of the first
 * of them as its return address, that one the stub of the next, and so on. Where they are in the list
 * does not tell: a call may have the place of an earlier one. */
static void mark_later(struct thread *thread, u64 sp)
{
	u64 address = *(u64 *)sp;
	for (u64 number; (number = (address - (u64)capriole_stubs) / 16) < RETURNS;) {
		struct open *open = (struct open *)(capriole_returning[number].open & ~LAST);
		if ((char *)open < bottom(thread) || (char *)open >= bottom(thread) + open_room ||
		    open->stub != number + 1 || open->call.sp != sp)
			return;
		open->stub |= RETURNS_LATER;
		address = open->call.return_address;
	}
}

/* Finishes calls, left otherwise than by their return, whose return address was where that of a call
 * is that is entered now: nobody can return by it any more. Returns the place of one that the new call
 * can have, or NULL.
 *
 * A call that is entered by a tail call has the return address of the one before it. If that is still
 * its stub, the one before returns as well, after the new one; and so does the one before that. */
static struct open *finish_overwritten(struct thread *thread, u64 sp, struct inside *inside)
{
	struct open *found = NULL;
	u64 everywhere = thread->unordered;
	mark_later(thread, sp);
	for (struct open *open = last(thread); open && (everywhere || open->call.sp <= sp);
	     open = open->before) {
		if (open->stub & RETURNS_LATER) {
			open->stub &= ~RETURNS_LATER;
			continue;
		}
		if (open->call.sp != sp || (!is_over(open) && is_same(open, inside)))
			continue;
		finish(thread, open);
		if (open->size == inside->size)
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
			if (is_over(open) && open->size >= inside->size)
				break;
		if (open) {
			finish(thread, open);
			thread->unordered = 1;
		}
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
	open->size = (u32)inside->size;
	open->round = round_of(inside);
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

/* Calls the handler at the entry, which may say that the call is not to be followed. */
__attribute__((noinline)) static int call_entry(struct thread *thread, struct open *open,
						struct capriole_regs *regs)
{
	if (open->inside->entry(&open->call, regs)) {
		open->over = 1;
		drop_over(thread);
	}
	return 0;
}

/* As entered(), where other calls are in the way. */
__attribute__((noinline)) static int entered_over(struct thread *thread, struct inside *inside,
						  struct capriole_regs *regs)
{
	struct open *open = finish_overwritten(thread, regs->sp, inside);
	if (!open && !(open = find_place(thread, regs->sp, inside)))
		return missed(inside->outer);
	open->stub = 0;
	note(open, inside, regs);
	push(thread, open, inside);
	return inside->entry ? call_entry(thread, open, regs) : 0;
}

/* The entry of a function whose exits are probed, without a limit. It calls nothing itself, so that it has
 * no registers to save. */
static int entered(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct thread *thread = capriole_thread;
	struct open *top = last(thread);
	struct open *open = (struct open *)(void *)thread->free;
	if (__builtin_expect((top && top->call.sp <= regs->sp) || thread->unordered ||
			     thread->free > thread->most, 0))
		return entered_over(thread, inside, regs);
	open->stub = 0;
	note(open, inside, regs);
	open->before = top;
	thread->last = open;
	thread->free = (char *)open + inside->size;
	return inside->entry ? call_entry(thread, open, regs) : 0;
}

/* The entry of any other function. */
static int entered_with_care(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct capriole_return_probe *outer = inside->outer;
	struct thread *thread = capriole_thread;
	struct open *open = finish_overwritten(thread, regs->sp, inside);
	if (inside->limit && !enter(inside)) {
		give_up(thread, regs->sp, inside);
		/* Its place may be at the end now. */
		open = (char *)open < thread->free ? open : NULL;
		if (!enter(inside))
			return missed(outer);
	}
	u64 stub = 0;
	if ((!open && !(open = find_place(thread, regs->sp, inside))) ||
	    (outer->by_address && !(stub = take_stub(thread)))) {
		leave(inside, round_of(inside));
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
		int leads_to_stub = open->call.return_address - (u64)capriole_stubs < 16 * RETURNS;
		capriole_returning[stub - 1].open = (u64)open | (leads_to_stub ? 0 : LAST);
		*(u64 *)regs->sp = stub_address(open);
	}
	return 0;
}

/* Calls the handler of a call that returns. Returns true if the program is not to go on as it would. */
INLINE int call_handler(struct inside *inside, struct open *open, struct capriole_regs *regs)
{
	u64 ip = regs->ip, sp = regs->sp, to = open->call.return_address;
	regs->ip = to;
	regs->sp = sp + 8;
	inside->handler(&open->call, regs);
	if (__builtin_expect(regs->ip != to || regs->sp != sp + 8, 0))
		return 1;
	regs->ip = ip;
	regs->sp = sp;
	return 0;
}

/* As left(), where the call is not the last one that was entered, or calls are counted. */
__attribute__((noinline)) static int left_below(struct thread *thread, struct inside *inside,
						struct capriole_regs *regs)
{
	struct open *open = last(thread);
	while (open && (open->call.sp != regs->sp || open->inside != inside || open->over || is_stale(open)))
		open = open->before;
	if (!open)
		return 0;	/* entered before the probe was there, or not followed */
	int changed = call_handler(inside, open, regs);
	if (inside->limit)
		leave(inside, open->round);
	open->over = 1;
	drop_over(thread);
	return changed;
}

/* An exit of a function. */
static int left(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct thread *thread = capriole_thread;
	struct open *open = last(thread);
	if (__builtin_expect(!open || open->call.sp != regs->sp || open->inside != inside || open->over ||
			     is_stale(open) || thread->unordered || inside->limit, 0))
		return left_below(thread, inside, regs);
	int changed = call_handler(inside, open, regs);
	thread->last = open->before;
	thread->free = (char *)open;
	return changed;
}

UNPROBED HIDDEN void capriole_returned(u64 number, struct capriole_regs *regs)
{
	struct thread *thread = capriole_thread, *usable = thread;
	struct open *open = (struct open *)(capriole_returning[number].open & ~LAST);
	struct inside *inside = open->inside;
	/* A thread without a record has been given the call's stack by another one. */
	if (is_stranger(thread) || thread->frame)
		usable = capriole_active(thread, regs->sp);
	if (usable) {
		thread = usable;
		thread->frame = (u64)regs - 8;
		/* Whoever ends a round waits until no thread has the mark that had it before. */
		__atomic_thread_fence(__ATOMIC_ACQ_REL);
		if (!is_stale(open))
			inside->handler(&open->call, regs);
		thread->frame = 0;
	} else if (!is_stale(open)) {
		missed(inside->outer);
	}
	leave(open->inside, open->round);
	if (!is_stranger(thread))
		give_stub(thread, open);
	__atomic_store_n(&open->over, 1, __ATOMIC_RELEASE);
	if (usable)
		drop_over(thread);
}

/* For threads that still look at a `struct inside` that nobody uses. */
static struct capriole_return_probe nobody;
static struct inside *insides;

static int is_in_use(const void *inside)
{
	for (struct inside *each = insides; each; each = each->all)
		if (each == inside)
			return each->outer != &nobody;
	return 0;
}

static int check(const struct capriole_return_probe *probe)
{
	if (!probe || !probe->handler)
		return fail(-EINVAL, "a return probe needs a handler", NULL);
	if (is_known(probe) || is_in_use(probe->private_[0]))
		return fail(-EBUSY, "the return probe is registered already, or a copy of one that is", NULL);
	if (probe->private_[0])
		return fail(-EINVAL, "the return probe is not initialised: all that is not used must be 0", NULL);
	if (probe->data_size > 1024)
		return fail(-EINVAL, "a call has room for at most 1024 bytes of data", NULL);
	return check_entry(&probe->probe);
}

static size_t inside_size(size_t exits)
{
	return sizeof(struct inside) + (1 + exits) * sizeof(struct capriole_probe);
}

static struct inside *unused;	/* by no return probe, but maybe named by open calls */

static struct inside *new_inside(size_t exits)
{
	for (struct inside **at = &unused; *at; at = &(*at)->free) {
		struct inside *inside = *at;
		if (inside->exits == exits) {
			*at = inside->free;
			inside->free = NULL;
			return inside;
		}
	}
	struct inside *inside = allocate(inside_size(exits));
	if (inside) {
		inside->exits = exits;
		inside->outer = &nobody;
		inside->all = insides;
		insides = inside;
	}
	return inside;
}

static void give_inside(struct inside *inside)
{
	__atomic_store_n(&inside->outer, &nobody, __ATOMIC_RELEASE);
	inside->free = unused;
	unused = inside;
}

/* Prepares a return probe for register_locked(): finds the exits of its function. */
__attribute__((noinline)) static int prepare(struct capriole_return_probe *probe, struct inside **made)
{
	struct message message;
	new_message(&message, EXITS);
	put(&message, probe->by_address != 0);
	put(&message, probe->probe.symbol ? 0 : (u64)probe->probe.address + probe->probe.offset);
	put_text(&message, probe->probe.object);
	put_text(&message, probe->probe.symbol);
	int failed = ask(&message);
	if (failed) {
		drop_message(&message);
		return failed;
	}
	size_t exits = take(&message);
	struct inside *inside = new_inside(exits);
	if (!inside) {
		drop_message(&message);
		return fail(-ENOMEM, "there is no memory for the probes of a function's exits", NULL);
	}
	static u64 serial;
	inside->serial = ++serial;
	inside->limit = probe->max_active;
	inside->size = (sizeof(struct open) + probe->data_size + 15) & ~(u64)15;
	stamp(inside);
	for (size_t i = 0; i <= exits; i++) {
		struct capriole_probe *each = &inside->probes[i];
		each->address = (void *)take(&message);
		each->pre = i ? left
			: probe->by_address || probe->max_active ? entered_with_care : entered;
		each->flags = (probe->probe.flags & ~(unsigned)CAPRIOLE_SAVE_VECTOR) | CAPRIOLE_NO_VECTOR;
		own(each)->inside = (u64)inside;
	}
	drop_message(&message);
	failed = analyze_return(probe, (void *)inside->probes[0].pre, (void *)left, &inside->traits);
	if (failed) {
		give_inside(inside);
		return failed;
	}
	int vectors = (inside->traits & CHANGES_VECTORS) != 0;
	inside->entry = probe->entry && vectors ? entry_saved : probe->entry;
	inside->handler = vectors ? handler_saved : probe->handler;
	for (size_t i = 0; i <= exits; i++) {
		u64 reads = inside->traits & (i ? RETURN_ONLY_READS : ONLY_READS);
		u64 simply = inside->traits & (i ? RETURN_SIMPLY : SIMPLY);
		u64 own_code = simply && !probe->by_address && !probe->max_active ? (i ? IS_EXIT : IS_ENTRY) : 0;
		own(&inside->probes[i])->traits = reads && !vectors ? ONLY_READS | own_code : 0;
	}
	inside->outer = probe;
	*made = inside;
	return 0;
}

/* Makes a list of the probes inside of return probes. */
static struct capriole_probe **probes_of(struct inside **some, size_t count, size_t *number)
{
	size_t total = 0, n = 0;
	for (size_t i = 0; i < count; i++)
		total += 1 + some[i]->exits;
	struct capriole_probe **all = allocate((total ? total : 1) * sizeof *all);
	for (size_t i = 0; i < count && all; i++)
		for (size_t j = 0; j <= some[i]->exits; j++)
			all[n++] = &some[i]->probes[j];
	*number = total;
	return all;
}

HIDDEN int end_rounds(void)
{
	int ended = 0;
	for (struct inside *inside = insides; inside; inside = inside->all) {
		if (inside->outer == &nobody)
			continue;
		end_round(inside);
		ended = 1;
	}
	return ended;
}

static int register_returns(struct capriole_return_probe **probes, size_t count)
{
	int failed = check_list(probes, count);
	for (size_t i = 0; i < count && !failed; i++)
		failed = check(probes[i]);
	if (failed || !count || (failed = start_helper()))
		return failed;
	size_t made = 0, number, room = count * sizeof(struct inside *);
	struct inside **some = allocate(room);
	if (!some)
		return fail(-ENOMEM, "there is no memory for the probes", NULL);
	while (made < count && !failed) {
		failed = probes[made]->private_[0]
				 ? fail(-EBUSY, "a return probe is twice in the list", NULL)
				 : prepare(probes[made], &some[made]);
		if (!failed) {
			failed = note_known(probes[made]);
			probes[made]->private_[0] = some[made];
			probes[made]->missed = 0;
			made++;
		}
	}
	if (!failed) {
		struct capriole_probe **all = probes_of(some, made, &number);
		failed = all ? register_locked(all, number)
			     : fail(-ENOMEM, "there is no memory for the probes", NULL);
		release(all, number * sizeof *all);
	}
	for (size_t i = 0; i < made; i++) {
		if (failed) {
			probes[i]->private_[0] = NULL;
			forget_known(probes[i]);
			end_round(some[i]);
		} else {
			struct capriole_probe *p = &probes[i]->probe;
			if (p->symbol || !p->offset)
				own(p)->place = (u64)(p->address = some[i]->probes[0].address);
		}
	}
	if (failed) {
		/* A thread may have hit one before another one failed. */
		settle();
		for (size_t i = 0; i < made; i++)
			give_inside(some[i]);
	}
	release(some, room);
	return failed;
}

/* Makes a list of what is inside of return probes, all of which are registered. */
static int insides_of(struct capriole_return_probe **probes, size_t count, struct inside ***made)
{
	int failed = check_list(probes, count);
	if (failed)
		return failed;
	for (size_t i = 0; i < count; i++)
		if (!is_known(probes[i]))
			return fail(-EINVAL, "the return probe is not registered", NULL);
	struct inside **some = allocate((count ? count : 1) * sizeof *some);
	if (!some)
		return fail(-ENOMEM, "there is no memory for a list of probes", NULL);
	for (size_t i = 0; i < count; i++)
		some[i] = probes[i]->private_[0];
	*made = some;
	return 0;
}

static int unregister_returns(struct capriole_return_probe **probes, size_t count)
{
	struct inside **some = NULL;
	size_t number;
	int failed = insides_of(probes, count, &some);
	if (failed)
		return failed;
	struct capriole_probe **all = probes_of(some, count, &number);
	if (!all)
		failed = fail(-ENOMEM, "there is no memory for taking the probes out", NULL);
	for (size_t i = 0; i < count && !failed; i++) {
		if (some[i]->free)
			failed = fail(-EINVAL, "a return probe is twice in the list", NULL);
		some[i]->free = some[i];
	}
	for (size_t i = 0; i < count; i++)
		some[i]->free = NULL;
	if (failed) {
		release(all, number * sizeof *all);
		release(some, (count ? count : 1) * sizeof *some);
		return failed;
	}
	failed = unregister_locked(all, number);
	release(all, number * sizeof *all);
	/* Now that no call can be entered: those that are open are not followed any more, also by stubs. */
	for (size_t i = 0; i < count && !failed; i++)
		end_round(some[i]);
	if (!failed && count)
		settle();
	for (size_t i = 0; i < count && !own(&some[i]->probes[0])->site; i++) {
		probes[i]->private_[0] = NULL;
		forget_known(probes[i]);
		give_inside(some[i]);
	}
	release(some, (count ? count : 1) * sizeof *some);
	return failed;
}

static int switch_return(struct capriole_return_probe *probe, u64 enabled)
{
	struct inside **some = NULL;
	size_t number;
	int failed = insides_of(&probe, 1, &some);
	if (failed)
		return failed;
	struct inside *inside = some[0];
	struct capriole_probe **all = probes_of(some, 1, &number);
	release(some, sizeof *some);
	if (!all)
		return fail(-ENOMEM, "there is no memory for a list of probes", NULL);
	/* Those that are open when it is enabled may have returned unseen. When it is disabled, those that have
	 * come to the probe before are entered until it returns. */
	int changes = own(all[0])->enabled != enabled;
	if (changes && enabled)
		end_round(inside);
	failed = switch_locked(all, number, enabled);
	if (changes && !enabled && !failed) {
		end_round(inside);
		settle();
	}
	release(all, number * sizeof *all);
	return failed;
}

PUBLIC int capriole_return_probes_register(struct capriole_return_probe **probes, size_t count)
{
	int failed = begin();
	return failed ? failed : end(register_returns(probes, count));
}

PUBLIC int capriole_return_probes_unregister(struct capriole_return_probe **probes, size_t count)
{
	int failed = begin();
	return failed ? failed : end(unregister_returns(probes, count));
}

PUBLIC int capriole_return_probe_register(struct capriole_return_probe *probe)
{
	return capriole_return_probes_register(&probe, 1);
}

PUBLIC int capriole_return_probe_unregister(struct capriole_return_probe *probe)
{
	return capriole_return_probes_unregister(&probe, 1);
}

PUBLIC int capriole_return_probe_disable(struct capriole_return_probe *probe)
{
	int failed = begin();
	return failed ? failed : end(switch_return(probe, 0));
}

PUBLIC int capriole_return_probe_enable(struct capriole_return_probe *probe)
{
	int failed = begin();
	return failed ? failed : end(switch_return(probe, 1));
}

PUBLIC int capriole_return_probe_status(const struct capriole_return_probe *probe, char *why, size_t size)
{
	int failed = begin();
	if (failed)
		return failed;
	const struct inside *inside = is_known(probe) ? probe->private_[0] : NULL;
	end(0);
	return capriole_probe_status(inside ? &inside->probes[0] : NULL, why, size);
}

PUBLIC unsigned long capriole_return_probe_missed(const struct capriole_return_probe *probe)
{
	return probe ? __atomic_load_n(&probe->missed, __ATOMIC_RELAXED) : 0;
}

/* Probes with a function's own parameters */

static int call_arguments(struct capriole_probe *p, struct capriole_regs *regs)
{
	return capriole_call_arguments(p, regs);
}

HIDDEN int is_argument_probe(const struct capriole_probe *probe)
{
	return probe->pre == call_arguments;
}

static int register_arguments(struct capriole_argument_probe **probes, size_t count)
{
	int failed = check_list(probes, count);
	for (size_t i = 0; i < count && !failed; i++) {
		if (!probes[i] || !probes[i]->handler)
			failed = fail(-EINVAL, "an argument probe needs a handler", NULL);
		else if (probes[i]->stack_words > 32)
			failed = fail(-EINVAL, "at most 32 arguments on the stack can be passed on", NULL);
		else
			failed = check_entry(&probes[i]->probe);
	}
	if (failed)
		return failed;
	for (size_t i = 0; i < count; i++) {
		probes[i]->probe.pre = call_arguments;
		probes[i]->probe.post = NULL;
	}
	/* A pointer to one is a pointer to the probe in it, which is the first field. */
	return register_locked((struct capriole_probe **)(void *)probes, count);
}

PUBLIC int capriole_argument_probes_register(struct capriole_argument_probe **probes, size_t count)
{
	int failed = begin();
	return failed ? failed : end(register_arguments(probes, count));
}

PUBLIC int capriole_argument_probes_unregister(struct capriole_argument_probe **probes, size_t count)
{
	return capriole_probes_unregister((struct capriole_probe **)(void *)probes, count);
}

PUBLIC int capriole_argument_probe_register(struct capriole_argument_probe *probe)
{
	return capriole_argument_probes_register(&probe, 1);
}

PUBLIC int capriole_argument_probe_unregister(struct capriole_argument_probe *probe)
{
	return capriole_argument_probes_unregister(&probe, 1);
}

PUBLIC int capriole_argument_probe_disable(struct capriole_argument_probe *probe)
{
	return capriole_probe_disable(probe ? &probe->probe : NULL);
}

PUBLIC int capriole_argument_probe_enable(struct capriole_argument_probe *probe)
{
	return capriole_probe_enable(probe ? &probe->probe : NULL);
}

PUBLIC int capriole_argument_probe_status(const struct capriole_argument_probe *probe, char *why, size_t size)
{
	return capriole_probe_status(probe ? &probe->probe : NULL, why, size);
}

/* Replacements */

PUBLIC int capriole_replacement_disable(struct capriole_replacement *replacement)
{
	return capriole_probe_disable(replacement ? &replacement->probe : NULL);
}

PUBLIC int capriole_replacement_enable(struct capriole_replacement *replacement)
{
	return capriole_probe_enable(replacement ? &replacement->probe : NULL);
}

PUBLIC int capriole_replacement_status(const struct capriole_replacement *replacement, char *why, size_t size)
{
	return capriole_probe_status(replacement ? &replacement->probe : NULL, why, size);
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
