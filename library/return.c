/* Return probes, probes with a function's own parameters, replacements.
 *
 * A return probe has inside it a probe at the function's entry and one at each of its exits. A call
 * that was entered is on its thread's stack of open calls until one of the exits finds it by the stack
 * pointer, which is the same at both ends. Calls that were left otherwise (longjmp, exceptions) are
 * found by their stack pointers as well: they are below that of a call that begins or ends on the same
 * stack later.
 */
#include "internal.h"

/* Distance in bytes within which two frames count as being on the same stack. */
#define STACK_SIZE (8 << 20)

struct inside {
	struct capriole_return_probe *outer;
	size_t exits;
	size_t active;		/* calls that are followed now, if their number is limited */
	struct capriole_probe probes[];	/* the entry, the exits */
};

/* An open call, at `open_calls` of its thread; the last one ends at `thread->open`. */
struct open {
	struct inside *inside;
	struct capriole_call call;
	u64 size;		/* of this, with its data */
};

static char *bottom(struct thread *thread)
{
	return open_calls + thread->number * open_room;
}

/* The sizes are kept at the ends, so that one can go back from the last to the one before. */
static struct open *last(struct thread *thread)
{
	char *end_ = bottom(thread) + thread->open;
	return thread->open ? (struct open *)(void *)(end_ - ((u64 *)(void *)end_)[-1]) : NULL;
}

static void drop(struct thread *thread, struct open *open)
{
	if (open->inside->outer->max_active)
		__atomic_fetch_sub(&open->inside->active, 1, __ATOMIC_RELAXED);
	thread->open -= open->size;
}

/* Drops calls that have ended in another way than by an exit. */
static void drop_left(struct thread *thread, u64 sp)
{
	struct open *open;
	while ((open = last(thread)) && open->call.sp < sp && sp - open->call.sp < STACK_SIZE)
		drop(thread, open);
}

static int missed(struct capriole_return_probe *probe)
{
	__atomic_fetch_add(&probe->missed, 1, __ATOMIC_RELAXED);
	return 0;
}

static int entered(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct capriole_return_probe *outer = inside->outer;
	struct thread *thread = capriole_thread;
	u64 size = (sizeof(struct open) + ((outer->data_size + 7) & ~(u64)7) + 8 + 15) & ~(u64)15;
	drop_left(thread, regs->sp + 1);
	if (thread->open + size > open_room)
		return missed(outer);
	if (outer->max_active &&
	    __atomic_add_fetch(&inside->active, 1, __ATOMIC_RELAXED) > outer->max_active) {
		__atomic_fetch_sub(&inside->active, 1, __ATOMIC_RELAXED);
		return missed(outer);
	}
	struct open *open = (struct open *)(void *)(bottom(thread) + thread->open);
	open->inside = inside;
	open->size = size;
	open->call.probe = outer;
	open->call.return_address = *(u64 *)regs->sp;
	open->call.sp = regs->sp;
	open->call.data = open + 1;
	*(u64 *)(void *)((char *)open + size - 8) = size;
	thread->open += size;
	if (outer->entry && outer->entry(&open->call, regs))
		drop(thread, open);
	return 0;
}

static int left(struct capriole_probe *p, struct capriole_regs *regs)
{
	struct inside *inside = (struct inside *)own(p)->inside;
	struct thread *thread = capriole_thread;
	drop_left(thread, regs->sp);
	struct open *open = last(thread);
	if (!open || open->call.sp != regs->sp || open->inside != inside)
		return 0;	/* entered before the probe was there, or not followed */
	u64 ip = regs->ip;
	regs->ip = open->call.return_address;
	inside->outer->handler(&open->call, regs);
	drop(thread, open);
	if (regs->ip == open->call.return_address) {
		regs->ip = ip;
		return 0;
	}
	regs->sp += 8;
	return 1;
}

static int check(const struct capriole_return_probe *probe)
{
	if (!probe || !probe->handler)
		return fail(-EINVAL, "a return probe needs a handler", NULL);
	if (own(&probe->probe)->site || probe->private_[0])
		return fail(-EBUSY, "the return probe is registered already", NULL);
	if (probe->data_size > 1024)
		return fail(-EINVAL, "a call has room for at most 1024 bytes of data", NULL);
	if (probe->by_address)
		return fail(-ENOTSUP, "return addresses cannot be replaced by this version", NULL);
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
	inside->outer = probe;
	inside->exits = exits;
	for (size_t i = 0; i <= exits; i++) {
		struct capriole_probe *each = &inside->probes[i];
		each->address = (void *)take(&message);
		each->pre = i ? left : entered;
		each->flags = probe->probe.flags | CAPRIOLE_NO_VECTOR;
		own(each)->inside = (u64)inside;
		all[i] = each;
	}
	int vector = (int)take(&message);
	(void)vector;
	drop_message(&message);
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
	/* Open calls of threads still name it; they are dropped later, without a look at `outer` if
	 * that is a probe without a limit. So it stays. */
	if (!failed)
		probe->private_[0] = NULL;
	return failed;
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
