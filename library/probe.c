/* Probes, sites, sets of handlers.
 *
 * A site has a set: the handlers of its enabled probes. A set is never changed; another one takes its
 * place by one store. Threads read it between two marks (hit.S), and whoever has replaced it waits in
 * settle() until every thread that could have read the old one is past its second mark. Then the old
 * set, and the probes that are not in the new one, are nobody's any more.
 */
#include "internal.h"
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

_Static_assert(offsetof(struct site, set) == SITE_SET, "");
_Static_assert(offsetof(struct site, address) == SITE_ADDRESS, "");
_Static_assert(offsetof(struct site, next) == SITE_NEXT, "");
_Static_assert(offsetof(struct set, before) == SET_BEFORE, "");
_Static_assert(offsetof(struct set, before_argument) == SET_BEFORE_ARGUMENT, "");
_Static_assert(offsetof(struct set, after) == SET_AFTER, "");
_Static_assert(offsetof(struct set, after_argument) == SET_AFTER_ARGUMENT, "");
_Static_assert(offsetof(struct set, read_only) == SET_READ_ONLY, "");
_Static_assert(offsetof(struct thread, frame) == THREAD_FRAME, "");
_Static_assert(offsetof(struct thread, last) == THREAD_LAST, "");
_Static_assert(offsetof(struct thread, free) == THREAD_FREE, "");
_Static_assert(offsetof(struct thread, most) == THREAD_MOST, "");
_Static_assert(offsetof(struct thread, unordered) == THREAD_UNORDERED, "");
_Static_assert(offsetof(struct capriole_probe, private_) + offsetof(struct own, inside) == PROBE_INSIDE, "");
_Static_assert(offsetof(struct capriole_argument_probe, handler) == ARGUMENT_HANDLER, "");
_Static_assert(offsetof(struct capriole_argument_probe, stack_words) == ARGUMENT_STACK, "");
_Static_assert(sizeof(struct own) <= sizeof ((struct capriole_probe *)0)->private_, "");

HIDDEN __thread char error_text[ERROR_SIZE] __attribute__((tls_model("initial-exec")));

HIDDEN struct thread *threads;
HIDDEN u64 thread_room, open_room, vector_room;
HIDDEN char *open_calls, *vector_states;

static struct site *sites;
/* Replacements, each a site of its own, for a place and a target. */
static struct site *replacements;
/* Sites by the address of the instruction, and by the address that was asked for: open addressing. */
struct place {
	u64 address;
	struct site *site;
};
static struct place *places;
static size_t place_room, place_count;

/* Errors */

HIDDEN int fail(int code, const char *message, const char *about)
{
	size_t at = 0;
	say(error_text, ERROR_SIZE, &at, message);
	if (about)
		say(error_text, ERROR_SIZE, &at, about);
	return code;
}

PUBLIC const char *capriole_error(void)
{
	return error_text;
}

/* The lock: one call of the library at a time. */
static u32 locked;

/* True while the thread is in a call of the library. A signal handler that interrupts it would wait for
 * its own thread. */
static __thread volatile int is_inside __attribute__((tls_model("initial-exec")));

static void lock(void)
{
	u32 state = 0;
	if (__atomic_compare_exchange_n(&locked, &state, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	while (__atomic_exchange_n(&locked, 2, __ATOMIC_ACQUIRE))
		SYS4(SYS_futex, &locked, FUTEX_WAIT_PRIVATE, 2, NULL);
}

static void unlock(void)
{
	if (__atomic_exchange_n(&locked, 0, __ATOMIC_RELEASE) == 2)
		SYS3(SYS_futex, &locked, FUTEX_WAKE_PRIVATE, 1);
}

/* Threads */

/* The record of a thread that has not hit a probe yet. It always runs handlers, so that a hit comes to
 * capriole_active(). */
static struct thread stranger = { .frame = 1 };
HIDDEN __thread struct thread *capriole_thread __attribute__((tls_model("initial-exec"))) = &stranger;

/* Finds or makes the record of this thread, without a system call: threads are told apart by their
 * thread pointers, which no two have at a time. Returns NULL if there is no room. */
UNPROBED static struct thread *new_thread(void)
{
	u64 pointer;
	__asm__("mov %%fs:0, %0" : "=r"(pointer));
	u64 hash = (pointer >> 6) * 0x9e3779b97f4a7c15;
	struct thread *all = __atomic_load_n(&threads, __ATOMIC_ACQUIRE);
	if (!all)
		return NULL;
	for (u64 i = 0; i < thread_room; i++) {
		struct thread *thread = &all[((hash >> 32) + i) & (thread_room - 1)];
		u64 free = 0;
		if (__atomic_load_n(&thread->pointer, __ATOMIC_RELAXED) != pointer &&
		    !__atomic_compare_exchange_n(&thread->pointer, &free, pointer, 0, __ATOMIC_RELAXED,
						 __ATOMIC_RELAXED) &&
		    free != pointer)
			continue;
		/* A thread that had it before has ended, maybe in a handler. */
		thread->frame = 0;
		thread->running = NULL;
		thread->number = (u64)(thread - all);
		if (thread->free) {
			forget_calls(thread);
		} else {
			thread->free = open_calls + (u64)(thread - all) * open_room;
			thread->most = thread->free + open_room - MOST_OPEN;
		}
		capriole_thread = thread;
		return thread;
	}
	return NULL;
}

/* For a hit in a thread that has noted a frame. Returns its record, if it is not in a handler: it is
 * a new thread; or it has left the handler by a jump (siglongjmp in a handler of a signal, usually).
 * Returns NULL if the hit is missed. `sp` is the program's stack pointer at the hit: below the noted
 * frame it is inside; above, the stack is used for other things than that frame, except on a signal
 * stack, which may be above the thread's own. The frames of two hits are no measure: they are a little
 * higher or lower at the entry, the return and the end of an instruction that changes the pointer. */
UNPROBED HIDDEN struct thread *capriole_active(struct thread *thread, u64 sp)
{
	struct {
		void *sp;
		int flags;
		size_t size;
	} stack = { 0 };
	if (thread == &stranger)
		return new_thread();
	if (sp < thread->frame)
		return NULL;
	/* Inline: see UNPROBED_CALL. */
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_sigaltstack), "D"(NULL), "S"(&stack)
			 : "rcx", "r11", "memory");
	if (stack.flags & 1) /* SS_ONSTACK */
		return NULL;
	thread->running = NULL;
	thread->frame = 0;
	return thread;
}

UNPROBED HIDDEN int is_stranger(struct thread *thread)
{
	return thread == &stranger;
}

/* True if the calling thread runs a handler. One that it has left by a jump is forgotten. */
HIDDEN int is_in_handler(void)
{
	struct thread *thread = capriole_thread;
	return thread != &stranger && thread->frame && !capriole_active(thread, (u64)__builtin_frame_address(0));
}

UNPROBED HIDDEN void capriole_miss(struct site *site)
{
	struct set *set = __atomic_load_n(&site->set, __ATOMIC_ACQUIRE);
	for (size_t i = 0; i < set->count; i++) {
		struct capriole_probe *probe = set->probes[i];
		__atomic_fetch_add(&probe->missed, 1, __ATOMIC_RELAXED);
		if (own(probe)->inside)
			miss_call(probe);
	}
}

static int registered_barrier;

/* Waits until no thread uses a set that was replaced, or calls a handler that was in it. */
HIDDEN void settle(void)
{
	struct timespec moment = { 0, 20000 };
	if (!registered_barrier)
		registered_barrier = SYS3(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
			? 1 : 2;
	/* After this, a thread that is not marked reads the new set; and all marks are seen. */
	if (registered_barrier != 1 || SYS3(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) < 0)
		SYS3(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	u64 self;
	__asm__("mov %%fs:0, %0" : "=r"(self));
	for (u64 i = 0; i < thread_room; i++) {
		struct thread *thread = &threads[i];
		u64 pointer = __atomic_load_n(&thread->pointer, __ATOMIC_ACQUIRE);
		if (!pointer || pointer == self)
			continue;
		/* The same frame may be that of a later hit: then this waits longer than it has to. */
		u64 frame = __atomic_load_n(&thread->frame, __ATOMIC_ACQUIRE);
		for (unsigned round = 0;
		     frame && __atomic_load_n(&thread->frame, __ATOMIC_ACQUIRE) == frame; round++) {
			if (round < 100)
				__builtin_ia32_pause();
			else
				SYS2(SYS_nanosleep, &moment, NULL);
		}
	}
}

/* Memory for threads: their records, open calls, vector state. Used where it is touched only. */
static int make_room(void)
{
	if (threads)
		return 0;
	find_vector_state();
	open_room = 16 << 10;
	for (u64 room = 8192; room >= 64; room /= 4) {
		size_t size = room * (sizeof(struct thread) + open_room + vector_room);
		char *memory = map_memory(size);
		if (!memory)
			continue;
		open_calls = memory + room * sizeof(struct thread);
		vector_states = open_calls + room * open_room;
		thread_room = room;
		__atomic_store_n(&threads, (struct thread *)(void *)memory, __ATOMIC_RELEASE);
		return 0;
	}
	return fail(-ENOMEM, "there is no memory for the records of threads", NULL);
}

/* In a process that was forked: the threads of the other process are not here, whatever they were
 * doing, and so is its helper. */
static void check_process(void)
{
	static long process;
	long now = SYS0(SYS_getpid);
	if (process == now) {
		if (has_helper())
			check_helper();
		return;
	}
	if (process) {
		u64 self;
		__asm__("mov %%fs:0, %0" : "=r"(self));
		for (u64 i = 0; i < thread_room; i++)
			if (threads[i].pointer != self)
				threads[i].frame = 0;
		__atomic_store_n(&locked, 0, __ATOMIC_RELEASE);
		registered_barrier = 0;
		stop_helper();
	}
	process = now;
}

HIDDEN int begin(void)
{
	if (is_in_handler())
		return fail(-EDEADLK, "a handler cannot call this: it would wait for its own end", NULL);
	if (is_inside)
		return fail(-EDEADLK, "a signal handler cannot call this while its thread is in a call of the "
				      "library", NULL);
	is_inside = 1;
	check_process();
	lock();
	int failed = make_room();
	if (failed)
		end(failed);
	wipe();
	return failed;
}

HIDDEN int end(int result)
{
	unlock();
	is_inside = 0;
	return result;
}

/* Registered structures: open addressing, without gaps. */
static const void **known;
static size_t known_room, known_count;

static size_t known_at(const void *structure)
{
	return (size_t)((u64)structure * 0x9e3779b97f4a7c15 >> 32) & (known_room - 1);
}

static size_t find_known(const void *structure)
{
	size_t at = known_at(structure);
	while (known[at] && known[at] != structure)
		at = (at + 1) & (known_room - 1);
	return at;
}

HIDDEN int is_known(const void *structure)
{
	return structure && known_room && known[find_known(structure)];
}

HIDDEN int note_known(const void *structure)
{
	if ((known_count + 1) * 2 > known_room) {
		size_t before = known_room;
		const void **old = known, **more = allocate((before ? 2 * before : 256) * sizeof *more);
		if (!more)
			return fail(-ENOMEM, "there is no memory for more probes", NULL);
		known = more;
		known_room = before ? 2 * before : 256;
		for (size_t i = 0; i < before; i++)
			if (old[i])
				known[find_known(old[i])] = old[i];
		release(old, before * sizeof *old);
	}
	known[find_known(structure)] = structure;
	known_count++;
	return 0;
}

HIDDEN void forget_known(const void *structure)
{
	if (!is_known(structure))
		return;
	size_t gap = find_known(structure);
	known[gap] = NULL;
	known_count--;
	/* Moves up what is found by way of the gap only. */
	for (size_t at = (gap + 1) & (known_room - 1); known[at]; at = (at + 1) & (known_room - 1)) {
		if (((at - known_at(known[at])) & (known_room - 1)) < ((at - gap) & (known_room - 1)))
			continue;
		known[gap] = known[at];
		known[at] = NULL;
		gap = at;
	}
}

/* Sites */

static struct place *slot(u64 address)
{
	u64 hash = address * 0x9e3779b97f4a7c15;
	for (size_t i = 0;; i++) {
		struct place *place = &places[((hash >> 32) + i) & (place_room - 1)];
		if (!place->address || place->address == address)
			return place;
	}
}

static struct site *site_at(u64 address)
{
	return place_room ? slot(address)->site : NULL;
}

static int note_site(u64 address, struct site *site)
{
	if ((place_count + 1) * 2 > place_room) {
		size_t before = place_room;
		struct place *old = places;
		struct place *more = allocate((before ? 2 * before : 1024) * sizeof(struct place));
		if (!more)
			return fail(-ENOMEM, "there is no memory for more probes", NULL);
		places = more;
		place_room = before ? 2 * before : 1024;
		for (size_t i = 0; i < before; i++)
			if (old[i].address)
				*slot(old[i].address) = old[i];
		if (old)
			release(old, before * sizeof(struct place));
	}
	struct place *place = slot(address);
	if (!place->address)
		place_count++;
	place->address = address;
	place->site = site;
	return 0;
}

/* Sets */

static size_t set_size(size_t count)
{
	return sizeof(struct set) + count * sizeof(struct capriole_probe *);
}

/* True while all probes are disarmed: a site calls nothing then, and is not armed, whichever of its probes
 * are enabled. Written under the lock. */
static int all_disarmed;

static int is_called(const struct capriole_probe *probe)
{
	return !all_disarmed && own(probe)->enabled;
}

/* The set of sites without enabled probes. */
static struct set nothing = { .before = run_nothing, .after = run_nothing, .read_only = READS };

/* Makes the set of a site's enabled probes. */
static int make_set(struct site *site, struct set **made)
{
	size_t count = 0, pre = 0, post = 0;
	*made = &nothing;
	for (struct capriole_probe *p = site->first; p; p = own(p)->next)
		count += is_called(p) != 0;
	if (!count)
		return 0;
	struct set *set = allocate(set_size(count));
	if (!set)
		return fail(-ENOMEM, "there is no memory for the handlers of a probe", NULL);
	set->site = site;
	for (struct capriole_probe *p = site->first; p; p = own(p)->next) {
		if (!own(p)->enabled)
			continue;
		set->probes[set->count++] = p;
		set->vector |= (own(p)->traits & CHANGES_VECTORS) != 0;
		set->faults |= p->fault != NULL;
		pre += p->pre != NULL;
		post += p->post != NULL;
	}
	int carries_out = post && site->branch;
	set->before = carries_out ? run_branch : pre ? run_before : run_nothing;
	set->after = post && !carries_out ? run_after : run_nothing;
	set->before_argument = set->after_argument = set;
	if (pre == 1 && count == 1 && !set->vector && !set->faults && !carries_out) {
		struct capriole_probe *only = set->probes[0];
		/* The handler itself is called by the routine. */
		set->before = (int (*)(void *, struct capriole_regs *))(void (*)(void))only->pre;
		set->before_argument = only;
		u64 traits = own(only)->traits;
		set->read_only = !(traits & ONLY_READS) ? 0
			: traits & IS_ENTRY ? READS_ENTRY
			: traits & IS_EXIT ? READS_EXIT
			: traits & SIMPLY ? READS_SIMPLY : READS;
	}
	*made = set;
	return 0;
}

/* Has a site call its enabled probes. Returns the set before in *old: for release_set, after
 * settle(). */
static int publish(struct site *site, struct set **old)
{
	struct set *set;
	int failed = make_set(site, &set);
	*old = NULL;
	if (failed)
		return failed;
	*old = site->set == &nothing ? NULL : site->set;
	__atomic_store_n(&site->set, set, __ATOMIC_RELEASE);
	return 0;
}

static void release_set(struct set *set)
{
	if (set && set != &nothing)
		release(set, set_size(set->count));
}

static int link_probe(struct site *site, struct capriole_probe *probe)
{
	struct capriole_probe **last = &site->first;
	int failed = note_known(probe);
	if (failed)
		return failed;
	while (*last)
		last = &own(*last)->next;
	*last = probe;
	own(probe)->next = NULL;
	own(probe)->site = site;
	return 0;
}

static void unlink_probe(struct capriole_probe *probe)
{
	struct capriole_probe **at = &own(probe)->site->first;
	while (*at && *at != probe)
		at = &own(*at)->next;
	if (*at)
		*at = own(probe)->next;
	forget_known(probe);
}

static int is_site(const struct site *site)
{
	for (struct site *each = sites; each; each = each->all)
		if (each == site)
			return 1;
	for (struct site *each = replacements; each; each = each->all)
		if (each == site)
			return 1;
	return 0;
}

static int is_used(const struct site *site)
{
	for (struct capriole_probe *p = site->first; p; p = own(p)->next)
		if (is_called(p))
			return 1;
	return 0;
}

/* Registration */

static u64 has_post(struct site *site)
{
	for (struct capriole_probe *p = site->first; p; p = own(p)->next)
		if (p->post)
			return 1;
	return 0;
}

static u64 is_held(struct site *site)
{
	for (struct capriole_probe *p = site->first; p; p = own(p)->next)
		if (own(p)->enabled && p->flags & CAPRIOLE_NO_OPTIMIZE)
			return 1;
	return 0;
}

/* Resolves the places of probes to addresses, in `own->place`. */
static int resolve(struct capriole_probe **probes, size_t count)
{
	struct message message;
	size_t asked = 0;
	new_message(&message, RESOLVE);
	for (size_t i = 0; i < count; i++) {
		struct capriole_probe *p = probes[i];
		own(p)->place = 0;
		if (!p->symbol && !p->line) {
			own(p)->place = (u64)p->address + p->offset;
			continue;
		}
		asked++;
		put(&message, p->symbol ? 1 : 2);
		put(&message, p->offset);
		put_text(&message, p->object);
		put_text(&message, p->symbol ? p->symbol : p->line);
	}
	int failed = asked ? ask(&message) : 0;
	for (size_t i = 0; i < count && !failed; i++)
		if (!own(probes[i])->place)
			own(probes[i])->place = take(&message);
	drop_message(&message);
	return failed;
}

/* Kinds of handlers in a message; as in crates/helper. */
enum { HANDLERS, ARGUMENTS, RETURNS_OF };

/* Finds the traits of the probes' handlers. */
static int analyze(struct capriole_probe **probes, size_t count)
{
	struct message message;
	size_t asked = 0;
	new_message(&message, ANALYZE);
	for (size_t i = 0; i < count; i++) {
		struct capriole_probe *p = probes[i];
		if (own(p)->inside)
			continue;
		own(p)->traits = p->flags & CAPRIOLE_SAVE_VECTOR ? CHANGES_VECTORS : 0;
		if (own(p)->traits)
			continue;
		asked++;
		/* The search does not follow the pointer by which the handler of an argument probe is called. */
		int arguments = is_argument_probe(p);
		put(&message, arguments ? ARGUMENTS : HANDLERS);
		put(&message, arguments ? (u64)((struct capriole_argument_probe *)p)->handler : (u64)p->pre);
		put(&message, arguments ? (u64)p->pre : (u64)p->post);
		put(&message, arguments ? 0 : (u64)p->fault);
	}
	int failed = asked ? ask(&message) : 0;
	for (size_t i = 0; i < count && !failed; i++) {
		struct capriole_probe *p = probes[i];
		if (own(p)->inside || p->flags & CAPRIOLE_SAVE_VECTOR)
			continue;
		own(p)->traits = take(&message);
		if (p->flags & CAPRIOLE_NO_VECTOR)
			own(p)->traits &= ~(u64)CHANGES_VECTORS;
	}
	drop_message(&message);
	return failed;
}

HIDDEN int analyze_return(const struct capriole_return_probe *probe, void *entered, void *left, u64 *traits)
{
	struct message message;
	*traits = CHANGES_VECTORS;
	if (probe->probe.flags & CAPRIOLE_SAVE_VECTOR)
		return 0;
	new_message(&message, ANALYZE);
	put(&message, RETURNS_OF);
	put(&message, (u64)probe->entry);
	put(&message, (u64)probe->handler);
	put(&message, (u64)entered);
	put(&message, (u64)left);
	int failed = ask(&message);
	if (!failed)
		*traits = take(&message);
	if (probe->probe.flags & CAPRIOLE_NO_VECTOR)
		*traits &= ~(u64)CHANGES_VECTORS;
	drop_message(&message);
	return failed;
}

/* What a patch does; as in crates/helper. */
enum { BEFORE, AFTER, REPLACE };

static void put_site(struct message *message, struct site *site, u64 kind)
{
	put(message, site->wanted);
	put(message, (u64)site);
	put(message, kind);
	put(message, is_held(site));
	put(message, site->replacement);
}

static u64 patches(struct site **some, size_t count)
{
	u64 number = 0;
	for (size_t i = 0; i < count; i++)
		number += 1 + (some[i]->after != 0);
	return number;
}

static int disarm(struct site **idle, size_t count)
{
	struct message message;
	if (!count || !has_helper())
		return 0;
	new_message(&message, DISARM);
	put(&message, patches(idle, count));
	for (size_t i = 0; i < count; i++) {
		put(&message, idle[i]->id);
		if (idle[i]->after)
			put(&message, idle[i]->after);
	}
	int failed = ask(&message);
	drop_message(&message);
	for (size_t i = 0; i < count && !failed; i++)
		idle[i]->armed = 0;
	return failed;
}

static int lacks_after(struct site *site)
{
	return !site->after && !site->branch && has_post(site);
}

static int are_same(const struct covered *one, const struct covered *other)
{
	if (one->count != other->count)
		return 0;
	for (size_t i = 0; i < one->count; i++)
		if (one->all[i].address != other->all[i].address || one->all[i].goes_on != other->all[i].goes_on)
			return 0;
	return 1;
}

/* Takes note of what a site's jump covers. The same was noted before, usually: each set of probes that
 * share a jump has a detour of its own, which stays for when they share it again. */
static void note_covered(struct site *site, struct covered *covered, size_t size)
{
	struct covered *known = site->all_covered;
	while (known && !are_same(known, covered))
		known = known->others;
	if (known) {
		release(covered, size);
	} else {
		known = covered;
		known->others = site->all_covered;
		site->all_covered = known;
	}
	__atomic_store_n(&site->covered, known, __ATOMIC_RELEASE);
}

/* Takes note of where the originals of sites are, and of the instructions that jumps cover. */
static void take_ways(struct message *message)
{
	struct site *site;
	while ((site = (struct site *)take(message))) {
		__atomic_store_n(&site->original, take(message), __ATOMIC_RELAXED);
		size_t count = take(message), size = sizeof(struct covered) + count * 16;
		struct covered *covered = NULL;
		if (!site->covered && !count)
			continue;
		if (count < message->size)
			covered = allocate(size);
		if (!covered)
			return;
		for (size_t i = 0; i < count; i++) {
			covered->all[i].address = take(message);
			covered->all[i].goes_on = take(message);
		}
		covered->count = count;
		note_covered(site, covered, size);
	}
}

/* True if a new site is armed with its addition. A replacement is not: the program needs to know the
 * original first. */
static u64 arrives(const struct site *site)
{
	return !site->replacement && is_used(site);
}

static u64 arrives_again(const struct site *site)
{
	return is_used(site);
}

static void put_armed(struct message *message, struct site *site)
{
	put(message, site->id);
	put(message, is_held(site));
	if (site->after) {
		put(message, site->after);
		put(message, is_held(site));
	}
}

/* Has post-handlers of a jump, call or return called, of which that was not known when its set was made. */
static int carry_out(struct site *site)
{
	struct set *old;
	if (!site->branch || !has_post(site) || site->set == &nothing || site->set->before == run_branch)
		return 0;
	int failed = publish(site, &old);
	if (old) {
		settle();
		release_set(old);
	}
	return failed;
}

/* Forgets what is known of the instruction of a site without probes: another library may come to be
 * there. */
static void forget_branch(struct site *site)
{
	if (site->branch && !site->first) {
		release(site->branch, branch_size);
		site->branch = NULL;
	}
}

/* Makes sites known to the helper, `new` ones, and those of `known` ones that lack a part. */
__attribute__((noinline)) static int make_known(struct site **new, size_t added, struct site **known,
						size_t again)
{
	struct message message;
	size_t more = 0;
	for (size_t i = 0; i < added; i++)
		more += 1 + lacks_after(new[i]);
	for (size_t i = 0; i < again; i++)
		more += lacks_after(known[i]);
	if (!more)
		return 0;
	new_message(&message, ADD);
	put(&message, more);
	for (size_t i = 0; i < added; i++) {
		put_site(&message, new[i], new[i]->replacement ? REPLACE : BEFORE);
		if (lacks_after(new[i]))
			put_site(&message, new[i], AFTER);
	}
	for (size_t i = 0; i < again; i++)
		if (lacks_after(known[i]))
			put_site(&message, known[i], AFTER);
	int failed = ask(&message);
	for (size_t i = 0; i < added + again && !failed; i++) {
		struct site *site = i < added ? new[i] : known[i - added];
		for (int after = i >= added; after < 2; after++) {
			if (after && !lacks_after(site))
				break;
			u64 id = take(&message);
			*(after ? &site->after : &site->id) = id;
			site->next = take(&message);
			u64 address = take(&message);
			__atomic_store_n(&site->address, address, __ATOMIC_RELEASE);
			if (after && !id)
				failed = take_branch(&message, site);
		}
	}
	if (!failed)
		take_ways(&message);
	drop_message(&message);
	return failed;
}

/* Puts sites into the program, `new` ones and `known` ones, and takes note of what the helper says
 * about them. */
__attribute__((noinline)) static int arm(struct site **new, size_t added, struct site **known, size_t again)
{
	struct message message;
	int failed = make_known(new, added, known, again);
	for (size_t i = 0; i < added + again && !failed; i++)
		failed = carry_out(i < added ? new[i] : known[i - added]);
	if (failed)
		return failed;
	/* Now that all is known that a hit needs. */
	size_t arrive = 0;
	for (size_t i = 0; i < added; i++) {
		new[i]->armed = 0;
		if (arrives(new[i]))
			arrive += patches(&new[i], 1);
	}
	for (size_t i = 0; i < again; i++) {
		known[i]->armed &= 1;
		if (arrives_again(known[i]))
			arrive += patches(&known[i], 1);
	}
	if (!arrive)
		return 0;
	new_message(&message, ARM);
	put(&message, arrive);
	for (size_t i = 0; i < added; i++)
		if (arrives(new[i]))
			put_armed(&message, new[i]);
	for (size_t i = 0; i < again; i++)
		if (arrives_again(known[i]))
			put_armed(&message, known[i]);
	failed = ask(&message);
	if (!failed)
		take_ways(&message);
	drop_message(&message);
	for (size_t i = 0; i < added && !failed; i++)
		new[i]->armed = arrives(new[i]);
	for (size_t i = 0; i < again && !failed; i++)
		known[i]->armed = arrives_again(known[i]);
	for (size_t i = 0; i < added && !failed; i++)
		new[i]->held = is_held(new[i]);
	for (size_t i = 0; i < again && !failed; i++)
		known[i]->held = is_held(known[i]);
	return failed;
}

/* Adds the addresses of functions that the program may call by what was in `original` since the last
 * capriole_finish(). */
HIDDEN void put_originals(struct message *message)
{
	for (struct site *site = replacements; site; site = site->all)
		if (site->original)
			put(message, site->address);
}

/* Adds a replacement if it is not known, not armed at first: it may be called as soon as it is, and
 * then needs *original. */
static int add_replacement(struct site *site, struct capriole_replacement *replacement)
{
	int failed = site->id ? 0 : arm(&site, 1, NULL, 0);
	if (failed)
		return failed;
	if (replacement->original)
		__atomic_store_n((u64 *)(void *)replacement->original, site->original, __ATOMIC_RELEASE);
	return is_used(site) ? arm(NULL, 0, &site, 1) : 0;
}

static void forget(struct capriole_probe **probes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct capriole_probe *p = probes[i];
		if (own(p)->site)
			unlink_probe(p);
		own(p)->site = NULL;
		own(p)->enabled = 0;
	}
}

/* The most probes that may be in one list. A message has room for them. */
#define MOST ((size_t)1 << 19)

HIDDEN int check_list(void *probes, size_t count)
{
	if (!probes && count)
		return fail(-EINVAL, "there is no list of probes: the pointer is NULL", NULL);
	if (count > MOST)
		return fail(-E2BIG, "there are more than 524288 probes in the list", NULL);
	return 0;
}

HIDDEN int check_probe(const struct capriole_probe *p)
{
	if (!p)
		return fail(-EINVAL, "there is no probe: the pointer is NULL", NULL);
	if (is_known(p) || (own(p)->site && is_site(own(p)->site)))
		return fail(-EBUSY, "the probe is registered already, or a copy of one that is", NULL);
	if (own(p)->site)
		return fail(-EINVAL, "the probe is not initialised: all that is not used must be 0", NULL);
	if (p->flags & ~15u)
		return fail(-EINVAL, "the probe has flags that do not exist; is it initialised?", NULL);
	if (!p->address && !p->symbol && !p->line)
		return fail(-EINVAL, "a probe needs an address, a symbol or a line", NULL);
	/* The address that an earlier registration has set does not count. */
	int by_address = p->address && !((p->symbol || p->line) && (u64)p->address == own(p)->place);
	if (by_address + !!p->symbol + !!p->line > 1)
		return fail(-EINVAL, "a probe has one place: an address, a symbol or a line, not several",
			    NULL);
	if (p->line && p->offset)
		return fail(-EINVAL, "a source line has no offset: ", p->line);
	return 0;
}

HIDDEN int check_entry(const struct capriole_probe *p)
{
	int failed = check_probe(p);
	if (failed)
		return failed;
	if (p->line)
		return fail(-EINVAL, "the place must be the entry of a function, by its address or its "
				     "name, not a source line: ", p->line);
	if (p->symbol && p->offset)
		return fail(-EINVAL, "the place must be the entry of a function: there is no offset from "
				     "the start of ", p->symbol);
	return 0;
}

static struct site *new_site(u64 wanted)
{
	struct site *site = allocate(sizeof *site);
	if (!site || note_site(wanted, site))
		return NULL;
	site->set = &nothing;
	site->wanted = wanted;
	site->all = sites;
	sites = site;
	return site;
}

/* Has the sites of some probes in the program as these want it. A site is asked for once, by the first
 * of its probes here. Disabled probes have their places checked as well. */
__attribute__((noinline)) static int put_in(struct capriole_probe **probes, size_t count)
{
	size_t added = 0, again = 0, room = (count ? count : 1) * sizeof(struct site *);
	struct site **new = allocate(room), **known = allocate(room);
	if (!new || !known) {
		release(new, room);
		release(known, room);
		return fail(-ENOMEM, "there is no memory for the probes", NULL);
	}
	for (size_t i = 0; i < count; i++) {
		struct site *site = own(probes[i])->site;
		if (site->armed & 2)
			continue;
		if (!site->id) {
			site->armed |= 2;	/* going to be */
			new[added++] = site;
		} else if (lacks_after(site) || is_used(site)) {
			/* Also if it is in: its library may have been unmapped and mapped again since. */
			site->armed |= 2;
			known[again++] = site;
		}
	}
	wipe();
	int failed = arm(new, added, known, again);
	/* If it has failed, what was armed before still is. */
	for (size_t i = 0; i < added; i++)
		new[i]->armed &= 1;
	for (size_t i = 0; i < again; i++)
		known[i]->armed &= 1;
	/* Two addresses may be one instruction, behind an endbr64. */
	for (size_t i = 0; i < added && !failed; i++)
		note_site(new[i]->address, new[i]);
	release(new, room);
	release(known, room);
	return failed;
}

/* Takes those sites out that no probe uses any more, and allows jumps where the last probe is gone that
 * did not. What cannot be done now makes no difference to the program: nothing is called. */
static void take_out(struct site **some, size_t count)
{
	size_t idle = 0, free = 0, room = (count ? count : 1) * sizeof(struct site *);
	struct site **free_ones = allocate(room);
	char before[ERROR_SIZE];
	copy(before, error_text, ERROR_SIZE);
	for (size_t i = 0; i < count; i++) {
		struct site *site = some[i];
		if (site->armed != 1)
			continue;
		if (!is_used(site)) {
			site->armed = 3;
			some[idle++] = site;
		} else if (free_ones && site->held && !is_held(site)) {
			site->armed = 3;
			free_ones[free++] = site;
		}
	}
	for (size_t i = 0; i < idle; i++)
		some[i]->armed = 1;
	for (size_t i = 0; i < free; i++)
		free_ones[i]->armed = 1;
	disarm(some, idle);
	if (free && has_helper())
		arm(NULL, 0, free_ones, free);
	release(free_ones, room);
	copy(error_text, before, ERROR_SIZE);
}

/* Has the sites of probes call those that are enabled now, and returns when no thread is in a handler
 * of others. */
static int publish_all(struct capriole_probe **probes, size_t count)
{
	size_t room = (count ? count : 1) * sizeof(struct set *), n = 0;
	struct set **old = allocate(room);
	if (!old)
		return fail(-ENOMEM, "there is no memory for the handlers of probes", NULL);
	int failed = 0;
	while (n < count && !failed)
		failed = publish(own(probes[n])->site, &old[n]), n++;
	int wait = 0;
	for (size_t i = 0; i < n; i++)
		wait |= old[i] != NULL;
	if (wait)
		settle();
	for (size_t i = 0; i < n; i++)
		release_set(old[i]);
	release(old, room);
	return failed;
}

/* Finds or makes the site of a probe. Not a part of its caller, for the sake of wipe(). */
__attribute__((noinline)) static int link_to_site(struct capriole_probe *p)
{
	if (own(p)->site)
		return fail(-EBUSY, "a probe is twice in the list", NULL);
	struct site *site = site_at(own(p)->place);
	if (!site && !(site = new_site(own(p)->place)))
		return fail(-ENOMEM, "there is no memory for the probes", NULL);
	int failed = link_probe(site, p);
	own(p)->enabled = !failed && !(p->flags & CAPRIOLE_DISABLED);
	return failed;
}

/* Has a probe that could not be registered as it was before it ever was: without an address that a
 * registration has set. */
static void forget_place(struct capriole_probe *p)
{
	if (p->symbol || p->line)
		p->address = NULL;
	own(p)->place = 0;
}

static int register_checked(struct capriole_probe **probes, size_t count)
{
	int failed = start_helper();
	if (!failed)
		failed = resolve(probes, count);
	if (!failed)
		failed = analyze(probes, count);
	if (failed)
		return failed;
	size_t room = count * sizeof(struct site *), linked = 0;
	struct site **touched = allocate(room);
	if (!touched)
		return fail(-ENOMEM, "there is no memory for the probes", NULL);
	for (; linked < count && !failed; linked++) {
		failed = link_to_site(probes[linked]);
		if (failed)
			break;
		touched[linked] = own(probes[linked])->site;
		if (probes[linked]->fault)
			failed = watch_faults();
	}
	/* The handlers first: they are called from the first hit on. */
	if (!failed)
		failed = publish_all(probes, linked);
	wipe();
	if (!failed)
		failed = put_in(probes, linked);
	if (failed) {
		forget(probes, linked);
		for (size_t i = 0; i < linked; i++) {
			struct set *old;
			if (!publish(touched[i], &old) && old) {
				settle();
				release_set(old);
			}
		}
		/* Of those that were in, some may be. */
		take_out(touched, linked);
	}
	for (size_t i = 0; i < count && !failed; i++) {
		struct capriole_probe *p = probes[i];
		if (p->symbol || p->line)
			own(p)->place = (u64)(p->address = (void *)own(p)->site->address);
	}
	release(touched, room);
	return failed;
}

/* Registers probes; none of them, if one cannot be. */
HIDDEN int register_locked(struct capriole_probe **probes, size_t count)
{
	int failed = check_list(probes, count);
	for (size_t i = 0; i < count && !failed; i++)
		failed = check_probe(probes[i]);
	if (failed || !count)
		return failed;
	for (size_t i = 0; i < count; i++)
		__atomic_store_n(&probes[i]->missed, 0, __ATOMIC_RELAXED);
	failed = register_checked(probes, count);
	for (size_t i = 0; i < count && failed; i++)
		forget_place(probes[i]);
	return failed;
}

HIDDEN int unregister_locked(struct capriole_probe **probes, size_t count)
{
	size_t room = (count ? count : 1) * sizeof(struct site *), marked = 0;
	int failed = check_list(probes, count);
	for (size_t i = 0; i < count && !failed; i++)
		if (!is_known(probes[i]))
			failed = fail(-EINVAL, "the probe is not registered", NULL);
	for (; marked < count && !failed; marked++) {
		if (own(probes[marked])->enabled & 2)
			failed = fail(-EINVAL, "a probe is twice in the list", NULL);
		own(probes[marked])->enabled |= 2;
	}
	for (size_t i = 0; i < marked; i++)
		own(probes[i])->enabled &= 1;
	if (failed)
		return failed;
	struct site **sites_of = allocate(room);
	struct set **old = allocate(room);
	if (!sites_of || !old) {
		release(sites_of, room);
		release(old, room);
		return fail(-ENOMEM, "there is no memory for taking the probes out", NULL);
	}
	for (size_t i = 0; i < count; i++) {
		sites_of[i] = own(probes[i])->site;
		unlink_probe(probes[i]);
		if (publish(sites_of[i], &old[i])) {
			/* Nothing is called that was taken out: without handlers rather than with old ones. */
			old[i] = sites_of[i]->set;
			__atomic_store_n(&sites_of[i]->set, &nothing, __ATOMIC_RELEASE);
		}
	}
	settle();
	for (size_t i = 0; i < count; i++) {
		release_set(old[i]);
		own(probes[i])->site = NULL;
		own(probes[i])->enabled = 0;
	}
	take_out(sites_of, count);
	release(sites_of, room);
	release(old, room);
	return 0;
}

PUBLIC int capriole_probes_register(struct capriole_probe **probes, size_t count)
{
	int failed = begin();
	return failed ? failed : end(register_locked(probes, count));
}

PUBLIC int capriole_probes_unregister(struct capriole_probe **probes, size_t count)
{
	int failed = begin();
	return failed ? failed : end(unregister_locked(probes, count));
}

PUBLIC int capriole_probe_register(struct capriole_probe *probe)
{
	return capriole_probes_register(&probe, 1);
}

PUBLIC int capriole_probe_unregister(struct capriole_probe *probe)
{
	return capriole_probes_unregister(&probe, 1);
}

/* Replacements */

static int replace_checked(struct capriole_replacement *replacement)
{
	struct capriole_probe *p = &replacement->probe;
	int failed = start_helper();
	if (failed || (failed = resolve(&p, 1)))
		return failed;
	u64 wanted = own(p)->place, target = (u64)replacement->replacement;
	struct site *site = NULL;
	for (struct site *each = replacements; each; each = each->all) {
		if (each->wanted != wanted)
			continue;
		if (each->first)
			return fail(-EBUSY, "the function is replaced already", NULL);
		if (each->replacement == target)
			site = each;
	}
	if (!site) {
		site = allocate(sizeof *site);
		if (!site)
			return fail(-ENOMEM, "there is no memory for the replacement", NULL);
		site->set = &nothing;
		site->wanted = wanted;
		site->replacement = target;
		site->all = replacements;
		replacements = site;
	}
	failed = link_probe(site, p);
	if (failed)
		return failed;
	own(p)->enabled = !(p->flags & CAPRIOLE_DISABLED);
	failed = add_replacement(site, replacement);
	if (failed) {
		unlink_probe(p);
		own(p)->site = NULL;
		own(p)->enabled = 0;
		return failed;
	}
	if (p->symbol || !p->offset)
		p->address = (void *)site->address;
	own(p)->place = (u64)p->address;
	return 0;
}

HIDDEN int replace_locked(struct capriole_replacement *replacement)
{
	if (!replacement || !replacement->replacement)
		return fail(-EINVAL, "there is no replacement", NULL);
	struct capriole_probe *p = &replacement->probe;
	int failed = check_entry(p);
	if (failed)
		return failed;
	failed = replace_checked(replacement);
	if (failed)
		forget_place(p);
	return failed;
}

HIDDEN int restore_locked(struct capriole_replacement *replacement)
{
	struct site *site =
		replacement && is_known(&replacement->probe) ? own(&replacement->probe)->site : NULL;
	if (!site || !site->replacement)
		return fail(-EINVAL, "it is not replaced", NULL);
	/* Unlike a probe, which calls nothing any more without a change of code, it takes a helper. */
	int failed = start_helper();
	if (!failed)
		failed = disarm(&site, 1);
	if (failed)
		return failed;
	/* The code there goes with the helper; the function itself stays. */
	if (replacement->original)
		__atomic_store_n((u64 *)(void *)replacement->original, site->wanted, __ATOMIC_RELEASE);
	unlink_probe(&replacement->probe);
	own(&replacement->probe)->site = NULL;
	own(&replacement->probe)->enabled = 0;
	return 0;
}

HIDDEN int switch_locked(struct capriole_probe **probes, size_t count, u64 enabled)
{
	for (size_t i = 0; i < count; i++)
		if (!is_known(probes[i]))
			return fail(-EINVAL, "the probe is not registered", NULL);
	int needs_helper = enabled != 0;
	for (size_t i = 0; i < count; i++)
		needs_helper |= own(probes[i])->site && own(probes[i])->site->replacement;
	int failed = needs_helper ? start_helper() : 0;
	if (failed)
		return failed;
	size_t room = (count ? count : 1) * sizeof(struct capriole_probe *), n = 0;
	struct capriole_probe **changed = allocate(room);
	struct site **sites_of = allocate(room);
	if (!changed || !sites_of) {
		release(changed, room);
		release(sites_of, room);
		return fail(-ENOMEM, "there is no memory for a list of probes", NULL);
	}
	for (size_t i = 0; i < count; i++) {
		if (own(probes[i])->enabled == enabled)
			continue;
		own(probes[i])->enabled = enabled;
		sites_of[n] = own(probes[i])->site;
		changed[n++] = probes[i];
	}
	if (n)
		failed = publish_all(changed, n);
	wipe();
	if (!failed && enabled && n)
		failed = put_in(changed, n);
	if (failed) {
		for (size_t i = 0; i < n; i++)
			own(changed[i])->enabled = !enabled;
		publish_all(changed, n);
	}
	if (n && (failed || !enabled))
		take_out(sites_of, n);
	release(changed, room);
	release(sites_of, room);
	return failed;
}

/* All probes at once */

/* Makes a list of one probe for each site that has some: of probes, then of replacements. Returns how many
 * there are, in *made with room for one more; or less than 0. */
static long one_of_each(struct capriole_probe ***made)
{
	struct site *const lists[] = { sites, replacements };
	size_t count = 0, n = 0;
	for (int i = 0; i < 2; i++)
		for (struct site *site = lists[i]; site; site = site->all)
			count += site->first != NULL;
	*made = allocate((count + 1) * sizeof **made);
	if (!*made)
		return fail(-ENOMEM, "there is no memory for a list of probes", NULL);
	for (int i = 0; i < 2; i++)
		for (struct site *site = lists[i]; site; site = site->all)
			if (site->first)
				(*made)[n++] = site->first;
	return (long)n;
}

static int are_replaced(void)
{
	for (struct site *site = replacements; site; site = site->all)
		if (site->first && (is_used(site) || site->armed))
			return 1;
	return 0;
}

static int disarm_all(void)
{
	struct capriole_probe **probes;
	/* Probes call nothing any more without a change of code; a replaced function takes a helper. */
	int failed = are_replaced() ? start_helper() : 0;
	if (failed)
		return failed;
	long listed = one_of_each(&probes);
	if (listed < 0)
		return (int)listed;
	size_t count = (size_t)listed, armed = 0, room = (count + 1) * sizeof *probes;
	struct site **some = allocate(room);
	if (!some) {
		release(probes, room);
		return fail(-ENOMEM, "there is no memory for a list of probes", NULL);
	}
	int before = all_disarmed;
	__atomic_store_n(&all_disarmed, 1, __ATOMIC_RELEASE);
	/* It may fail for want of memory, before anything is changed. */
	failed = publish_all(probes, count);
	if (failed)
		__atomic_store_n(&all_disarmed, before, __ATOMIC_RELEASE);
	/* Now that no call can be entered: those that are open return unseen, by stubs as well. */
	if (!failed && end_rounds())
		settle();
	wipe();
	for (size_t i = 0; i < count && !failed; i++)
		if (own(probes[i])->site->armed)
			some[armed++] = own(probes[i])->site;
	if (!failed) {
		failed = disarm(some, armed);
		/* Jumps that lead to nothing make no difference to the program. */
		failed = are_replaced() ? failed : 0;
	}
	release(some, room);
	release(probes, room);
	return failed;
}

/* Arms the sites of some probes: all of them by one request; of those that cannot be armed together, as many
 * as possible. Returns the number of those that are not; *error is the first error. */
static size_t arm_most(struct capriole_probe **probes, size_t count, int *error)
{
	if (!count)
		return 0;
	int failed = put_in(probes, count);
	if (!failed)
		return 0;
	if (!*error)
		*error = failed;
	if (count == 1 || !has_helper())
		return count;
	char first[ERROR_SIZE];
	copy(first, error_text, ERROR_SIZE);
	size_t half = count / 2, not_armed = arm_most(probes, half, error);
	not_armed += arm_most(probes + half, count - half, error);
	copy(error_text, first, ERROR_SIZE);
	return not_armed;
}

static int arm_all(void)
{
	struct capriole_probe **probes;
	long listed = one_of_each(&probes);
	if (listed < 0)
		return (int)listed;
	size_t count = (size_t)listed, wanted = 0, room = (count + 1) * sizeof *probes, not_armed = 0;
	int error = count ? start_helper() : 0;
	if (error) {
		release(probes, room);
		return error;
	}
	int before = all_disarmed;
	__atomic_store_n(&all_disarmed, 0, __ATOMIC_RELEASE);
	error = publish_all(probes, count);
	if (error) {
		__atomic_store_n(&all_disarmed, before, __ATOMIC_RELEASE);
		if (before)
			publish_all(probes, count);
		release(probes, room);
		return error;
	}
	wipe();
	for (size_t i = 0; i < count; i++) {
		struct site *site = own(probes[i])->site;
		if (!is_used(site) || site->armed)
			continue;
		/* One that the helper does not know: the program needs the original before it is armed. */
		int failed = site->replacement && !site->id
			? add_replacement(site, (struct capriole_replacement *)(void *)probes[i]) : 0;
		if (failed) {
			error = error ? error : failed;
			not_armed++;
		} else if (!site->armed) {
			probes[wanted++] = probes[i];
		}
	}
	not_armed += arm_most(probes, wanted, &error);
	release(probes, room);
	if (not_armed) {
		char text[ERROR_SIZE], why[ERROR_SIZE];
		size_t at = 0;
		copy(why, error_text, ERROR_SIZE);
		say_number(text, sizeof text, &at, not_armed);
		say(text, sizeof text, &at, " of the places of probes cannot be armed; the first: ");
		fail(error, text, why);
	}
	return error;
}

PUBLIC int capriole_disarm_all(void)
{
	int failed = begin();
	return failed ? failed : end(disarm_all());
}

PUBLIC int capriole_arm_all(void)
{
	int failed = begin();
	return failed ? failed : end(arm_all());
}

PUBLIC int capriole_all_disarmed(void)
{
	return __atomic_load_n(&all_disarmed, __ATOMIC_ACQUIRE);
}

PUBLIC int capriole_probe_disable(struct capriole_probe *probe)
{
	int failed = begin();
	return failed ? failed : end(switch_locked(&probe, 1, 0));
}

PUBLIC unsigned long capriole_probe_missed(const struct capriole_probe *probe)
{
	return probe ? __atomic_load_n(&probe->missed, __ATOMIC_RELAXED) : 0;
}

/* States */

static int status(const struct capriole_probe *probe, char *why, size_t size)
{
	struct message message;
	size_t at = 0, long_;
	if (!is_known(probe))
		return CAPRIOLE_UNREGISTERED;
	if (!own(probe)->enabled) {
		say(why, size, &at, "the probe is disabled");
		return CAPRIOLE_OFF;
	}
	if (all_disarmed) {
		say(why, size, &at, "all probes are disarmed (capriole_disarm_all)");
		return CAPRIOLE_OFF;
	}
	new_message(&message, STATUS);
	put(&message, own(probe)->site->id);
	int state = ask(&message);
	if (!state) {
		state = (int)take(&message);
		const char *text = take_text(&message, &long_);
		for (; at < long_ && at + 1 < size; at++)
			why[at] = text[at];
		if (size)
			why[at] = 0;
	}
	drop_message(&message);
	return state;
}

/* True if the place of a registered probe is not there any more. */
static int is_gone(const struct capriole_probe *probe)
{
	struct message message;
	int gone = 0;
	if (!has_helper() || !own(probe)->site->id)
		return 0;
	new_message(&message, STATUS);
	put(&message, own(probe)->site->id);
	if (!ask(&message))
		gone = take(&message) == CAPRIOLE_GONE;
	drop_message(&message);
	return gone;
}

/* Looks for the place of a probe again: its library may have been loaded again, also at other
 * addresses. If it is not there, the probe stays as it is. */
static int come_back(struct capriole_probe *probe)
{
	struct site *before = own(probe)->site;
	unsigned flags = probe->flags;
	unsigned long missed = probe->missed;
	void *address = probe->address;
	u64 place = own(probe)->place;
	int failed = resolve(&probe, 1);
	own(probe)->place = place;
	if (failed)
		return failed;
	failed = unregister_locked(&probe, 1);
	if (failed)
		return failed;
	probe->flags &= ~CAPRIOLE_DISABLED;
	failed = register_locked(&probe, 1);
	probe->flags = flags;
	__atomic_fetch_add(&probe->missed, missed, __ATOMIC_RELAXED);
	if (failed) {
		struct set *old;
		probe->address = address;
		own(probe)->place = place;
		link_probe(before, probe);	/* there is room: it was there just now */
		own(probe)->enabled = 1;
		if (!publish(before, &old) && old) {
			settle();
			release_set(old);
		}
	}
	return failed;
}

PUBLIC int capriole_probe_enable(struct capriole_probe *probe)
{
	int failed = begin();
	if (failed)
		return failed;
	/* A replacement is not a probe that handlers are called for, and comes back by capriole_replace(). */
	if (is_known(probe) && !own(probe)->site->replacement && is_gone(probe))
		return end(come_back(probe));
	return end(switch_locked(&probe, 1, 1));
}

PUBLIC int capriole_probe_status(const struct capriole_probe *probe, char *why, size_t size)
{
	int failed = begin();
	if (failed)
		return failed;
	if (!why)
		size = 0;
	if (size)
		why[0] = 0;
	return end(status(probe, why, size));
}

static int simple(enum request kind, u64 argument)
{
	struct message message;
	new_message(&message, kind);
	put(&message, argument);
	int result = ask(&message);
	if (!result)
		result = (int)take(&message);
	drop_message(&message);
	return result;
}

PUBLIC int capriole_optimization(int allowed)
{
	int failed = begin();
	if (!failed && (failed = start_helper()))
		end(0);
	return failed ? failed : end(simple(ALLOW, allowed != 0));
}

PUBLIC int capriole_optimize(unsigned milliseconds)
{
	int failed = begin();
	if (!failed && !has_helper())
		return end(0);
	return failed ? failed : end(simple(OPTIMIZE, milliseconds));
}

/* Another helper has begun: the one before was killed, or is that of the process that we were forked
 * from. What it has put into this process is taken out by the new one's session, so all that is
 * wanted is added anew. */
HIDDEN int adopt(void)
{
	size_t count = 0, n = 0;
	int failed = 0;
	forget_handlers();
	forget_records();
	for (struct site *site = sites; site; site = site->all)
		count++;
	for (struct site *site = replacements; site; site = site->all)
		count++;
	if (!count)
		return 0;
	struct site **wanted = allocate(count * sizeof *wanted);
	if (!wanted)
		return fail(-ENOMEM, "there is no memory for the probes that are there", NULL);
	for (struct site *site = sites; site; site = site->all) {
		site->id = site->after = site->armed = site->held = 0;
		forget_branch(site);
		if (is_used(site))
			wanted[n++] = site;
	}
	if (n)
		failed = arm(wanted, n, NULL, 0);
	for (struct site *site = replacements; site && !failed; site = site->all) {
		site->id = site->armed = site->held = 0;
		if (site->first) {
			failed = add_replacement(site, (struct capriole_replacement *)(void *)site->first);
		}
	}
	release(wanted, count * sizeof *wanted);
	return failed;
}

PUBLIC int capriole_start(void)
{
	int failed = begin();
	return failed ? failed : end(start_helper());
}

PUBLIC int capriole_finish(void)
{
	int failed = begin();
	if (failed)
		return failed;
	if (!has_helper() && !has_left())
		return end(0);
	for (struct site *site = sites; site; site = site->all)
		if (site->first)
			return end(fail(-EBUSY, "there are probes that are registered", NULL));
	for (struct site *site = replacements; site; site = site->all)
		if (site->first)
			return end(fail(-EBUSY, "there are functions that are replaced", NULL));
	forget_handlers();
	/* Another one takes out what one has left that was killed. */
	failed = start_helper();
	if (!failed)
		failed = simple(GOODBYE, 0);
	if (!failed) {
		stop_helper();
		forget_left();
		forget_records();
		unwatch_faults();
		for (struct site *site = sites; site; site = site->all) {
			site->id = site->after = site->armed = site->held = 0;
			forget_branch(site);
		}
		for (struct site *site = replacements; site; site = site->all)
			site->id = site->armed = site->held = site->original = 0;
	}
	return end(failed);
}

HIDDEN int write_all(int fd, const char *text, size_t size)
{
	while (size) {
		long done = SYS3(SYS_write, fd, text, size);
		if (done == -EINTR)
			continue;
		if (done <= 0)
			return fail(done ? (int)done : -EIO, "the text cannot be written to the descriptor", NULL);
		text += done;
		size -= (size_t)done;
	}
	return 0;
}

/* Writes the lines of the probes at a site. */
static int list_site(struct site *site, int fd)
{
	static const char *const names[] = { "", "BREAKPOINT", "WAITING", "OPTIMIZED", "DISABLED", "GONE",
					     "OCCUPIED" };
	struct message message;
	size_t name_size = 0;
	const char *name = "";
	int failed = 0;
	if (!site->first)
		return 0;
	const char *given = NULL;
	for (struct capriole_probe *p = site->first; p && !given; p = own(p)->next)
		given = p->symbol;
	new_message(&message, PLACE);
	put(&message, site->address);
	put_text(&message, given);
	if (!ask(&message))
		name = take_text(&message, &name_size);
	for (struct capriole_probe *p = site->first; p && !failed; p = own(p)->next) {
		char line[512];
		const char *place = p->line ? p->line : p->symbol ? p->symbol : "";
		size_t at = 0;
		int state = status(p, NULL, 0);
		if (state < 0) {
			failed = state;
			break;
		}
		say_hex(line, sizeof line, &at, site->address, 16);
		say(line, sizeof line, &at,
		    site->replacement ? "  f  " : own(p)->inside ? "  r  " : is_argument_probe(p) ? "  j  " : "  k  ");
		for (size_t i = 0; i < name_size && at + 64 < sizeof line; i++)
			line[at++] = name[i];
		/* Nothing is there any more: as it was named. */
		if (!name_size)
			say(line, sizeof line - 64, &at, place);
		if (!name_size && *place && p->offset) {
			say(line, sizeof line, &at, "+0x");
			say_hex(line, sizeof line, &at, p->offset, 1);
		}
		say(line, sizeof line, &at, "    [");
		say(line, sizeof line, &at, state <= 6 ? names[state] : "?");
		say(line, sizeof line, &at, "]\n");
		failed = write_all(fd, line, at);
	}
	drop_message(&message);
	return failed;
}

PUBLIC int capriole_list_noprobe(int fd)
{
	struct message message;
	size_t size;
	int failed = begin();
	if (failed)
		return failed;
	failed = start_helper();
	if (failed)
		return end(failed);
	new_message(&message, EXCLUDED);
	failed = ask(&message);
	if (!failed) {
		const char *text = take_text(&message, &size);
		failed = write_all(fd, text, size);
	}
	drop_message(&message);
	return end(failed);
}

PUBLIC int capriole_list(int fd)
{
	int failed = begin();
	if (failed)
		return failed;
	for (struct site *site = sites; site && !failed; site = site->all)
		failed = list_site(site, fd);
	for (struct site *site = replacements; site && !failed; site = site->all)
		failed = list_site(site, fd);
	return end(failed);
}
