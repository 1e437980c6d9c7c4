/* Inside of the library.
 *
 * Everything here is compiled without vector registers, and calls no function of a C library: probes
 * may be in any of these, and a handler may be running in the middle of one. System calls are made
 * by their numbers, memory is mapped for the library alone (memory.c).
 *
 *   hit.S       what detours call; the marks of threads that run handlers
 *   probe.c     probes, sites, sets of handlers; registration
 *   run.c       the handlers of a set, in a thread of the program
 *   branch.c    post-handlers of jumps, calls and returns
 *   return.c    return probes
 *   events.c    events by text, records
 *   helper.c    the helper process, and the messages to it
 *   memory.c    memory, text
 */
#ifndef CAPRIOLE_INTERNAL_H
#define CAPRIOLE_INTERNAL_H

#include "../include/capriole/probe.h"
#include "numbers.h"
#include <errno.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define PUBLIC __attribute__((visibility("default")))
/* Code that runs while a thread is not marked as running handlers: it must never be probed. */
#define UNPROBED __attribute__((section("capriole_text"), noinline))
extern HIDDEN const char __start_capriole_text[], __stop_capriole_text[];
/* System calls, which only calls of the library make: a thread that waits in one is not in a hit. */
#define UNPROBED_CALL __attribute__((section("capriole_calls"), noinline))
extern HIDDEN const char __start_capriole_calls[], __stop_capriole_calls[];

typedef uint64_t u64;
typedef uint32_t u32;

struct set;
struct branch;
struct message;

/* Instructions that a site's jump covers, and where a thread goes on that is to execute one of them.
 * Neither changed nor freed: a thread may be looking at it. */
struct covered {
	struct covered *others;	/* of the same site, for what else its jump was made for */
	size_t count;
	struct {
		u64 address, goes_on;
	} all[];
};

/* A probed instruction. Never freed: a thread may be on its way from a detour. */
struct site {
	struct set *set;	/* what is called; replaced as a whole, and never NULL */
	u64 address;		/* of the instruction; 0 until the helper has said it */
	u64 next;		/* of the one behind it */
	u64 wanted;		/* the address that was asked for; an endbr64 may stand there */
	u64 id;			/* in the session; see helper.c */
	u64 after;		/* the same of what comes after the instruction; 0: nothing does */
	u64 original;		/* code that does what the instruction did, and goes on */
	struct covered *covered;	/* NULL: its jump covers no other instruction */
	struct covered *all_covered;	/* what it was at any time */
	struct capriole_probe *first;	/* of its probes, in the order of registration */
	struct site *all;	/* next of all sites */
	u64 armed;
	u64 held;		/* its breakpoint stays, as the helper knows it */
	u64 replacement;	/* where the program goes on instead; 0 for other sites */
	unsigned long missed;
	struct branch *branch;	/* NULL: the instruction is no jump, or has had no post-handler */
};

/* The handlers of a site. Not changed once it is in use; freed after settle(). */
struct set {
	int (*before)(void *, struct capriole_regs *);
	void *before_argument;
	int (*after)(void *, struct capriole_regs *);
	void *after_argument;
	u64 read_only;		/* READS, or more: `before` only reads registers, see hit.S */
	struct site *site;
	u32 vector, faults;
	size_t count;
	struct capriole_probe *probes[];
};

/* A thread that has hit a probe. Never freed: it belongs to a thread pointer, and to the next thread
 * that has the same one. Changed by its thread only. */
struct thread {
	u64 frame;		/* while handlers run; else 0 */
	u64 pointer;		/* its thread pointer; 0: free */
	struct capriole_probe *running;	/* whose handler runs, in a set with fault handlers */
	struct capriole_regs *regs;
	void *last;		/* of its open calls, see return.c */
	char *free, *most;	/* where the next one begins; up to where the largest one has room */
	u64 unordered;		/* one of them is above one that was entered before it */
	u64 number;
	u64 free_stubs;		/* list of stubs for return addresses; 0: empty */
	u64 guarded;		/* stack pointer for leaving a handler that has run into a fault */
};

/* Bits that the helper finds in the machine code of handlers. */
enum traits {
	CHANGES_VECTORS = 1,	/* vector or x87 registers have to be saved */
	ONLY_READS = 2,		/* a pre-handler, or one at a function's entry: see READ_ONLY in hit.S */
	RETURN_ONLY_READS = 4,	/* one at a function's return */
	SIMPLY = 8,		/* the same, and changes few registers */
	RETURN_SIMPLY = 16,
	IS_ENTRY = 32,		/* of a return probe's own probes: hit.S may do their work */
	IS_EXIT = 64
};

/* struct capriole_probe, `private_`. */
struct own {
	struct site *site;
	struct capriole_probe *next;	/* at the same site */
	u64 enabled;
	u64 traits;		/* of its handlers, see `enum traits` */
	u64 inside;		/* of a return probe and the like: its `struct internal` */
	u64 place;		/* its address, while it is registered; then what the library has set, or 0 */
};
static inline struct own *own(const struct capriole_probe *probe)
{
	return (struct own *)(void *)probe->private_;
}

extern HIDDEN __thread struct thread *capriole_thread
	__attribute__((tls_model("initial-exec")));

/* memory.c */
HIDDEN long capriole_syscall(long number, long a, long b, long c, long d, long e, long f);
#define SYS0(n) capriole_syscall(n, 0, 0, 0, 0, 0, 0)
#define SYS1(n, a) capriole_syscall(n, (long)(a), 0, 0, 0, 0, 0)
#define SYS2(n, a, b) capriole_syscall(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define SYS3(n, a, b, c) capriole_syscall(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define SYS4(n, a, b, c, d)                                                                        \
	capriole_syscall(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define SYS6(n, a, b, c, d, e, f)                                                                  \
	capriole_syscall(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
HIDDEN void *map_memory(size_t size);
HIDDEN void *allocate(size_t size);
HIDDEN void release(void *memory, size_t size);
HIDDEN size_t length(const char *text);
HIDDEN void copy(void *to, const void *from, size_t size);
/* Clears what functions that have returned have left on the stack. An address there looks like the
 * return address of a thread that is inside the bytes which a jump replaces, so that it is not written. */
HIDDEN void wipe(void);
HIDDEN int same(const char *a, const char *b);
/* Appends text or a number to a text of `size` bytes at *at, as far as there is room. */
HIDDEN void say(char *text, size_t size, size_t *at, const char *more);
HIDDEN void say_hex(char *text, size_t size, size_t *at, u64 number, unsigned digits);
HIDDEN void say_number(char *text, size_t size, size_t *at, u64 number);

/* probe.c */
HIDDEN int fail(int code, const char *message, const char *about);
HIDDEN int begin(void);		/* a call of the library: takes the lock; less than 0: an error */
HIDDEN int end(int result);
/* Registered structures, by their addresses. What is in others is not believed: it may never have been
 * initialised, or be a copy. note_known() returns less than 0 if there is no memory. */
HIDDEN int is_known(const void *structure);
HIDDEN int note_known(const void *structure);
HIDDEN void forget_known(const void *structure);
HIDDEN void settle(void);
HIDDEN struct thread *capriole_active(struct thread *thread, u64 sp);
HIDDEN int is_in_handler(void);
HIDDEN int is_stranger(struct thread *thread);
/* Counts a call that was not followed, for a probe inside a return probe. */
HIDDEN void miss_call(struct capriole_probe *probe);
/* Finds the traits of a return probe's handlers, and of the library's own code that calls them. */
HIDDEN int analyze_return(const struct capriole_return_probe *probe, void *entered, void *left, u64 *traits);
HIDDEN void capriole_miss(struct site *site);
HIDDEN int register_locked(struct capriole_probe **probes, size_t count);
HIDDEN int unregister_locked(struct capriole_probe **probes, size_t count);
/* Enables or disables them. */
HIDDEN int switch_locked(struct capriole_probe **probes, size_t count, u64 enabled);
/* Checks a list; the fields of a probe, before it is registered; and of one at a function's entry. */
HIDDEN int check_list(void *probes, size_t count);
HIDDEN int check_probe(const struct capriole_probe *p);
HIDDEN int check_entry(const struct capriole_probe *p);
HIDDEN int write_all(int fd, const char *text, size_t size);
/* Puts another function in the place of one. Returns 0, and *original. */
HIDDEN int replace_locked(struct capriole_replacement *replacement);
HIDDEN int restore_locked(struct capriole_replacement *replacement);
extern HIDDEN struct thread *threads;
/* Size of the largest open call, with its data. */
#define MOST_OPEN (OPEN_SIZE + 1024)
extern HIDDEN u64 thread_room, open_room, vector_room;
extern HIDDEN char *open_calls, *vector_states;
#define ERROR_SIZE 512
extern HIDDEN __thread char error_text[ERROR_SIZE] __attribute__((tls_model("initial-exec")));

/* run.c */
HIDDEN int run_before(void *set, struct capriole_regs *regs);
HIDDEN int run_after(void *set, struct capriole_regs *regs);
HIDDEN int run_nothing(void *nothing, struct capriole_regs *regs);
/* For a hit after which the program does not just go on: `skip` is true if the instruction is skipped.
 * `ip` is what handlers found in `regs`. Sets where the program goes on. */
HIDDEN void capriole_redirect(struct site *site, struct capriole_regs *regs, u64 ip, u64 skip);
HIDDEN void find_vector_state(void);
/* Calls the pre-handlers, or post-handlers, of a set. Returns true if the instruction is skipped. */
HIDDEN int call_all(struct set *set, struct capriole_regs *regs, int after);
HIDDEN void save_vectors(void);
HIDDEN void load_vectors(void);

HIDDEN int capriole_left_handler(int version, int actions, u64 class, void *exception, void *context);
/* Installs handlers of the signals of faults, before those of the program. The helper must have been
 * started. */
HIDDEN int watch_faults(void);
/* Puts the program's actions back, where it has not set others meanwhile. */
HIDDEN void unwatch_faults(void);
/* The memory of the session, with its handlers, is going to be unmapped. */
HIDDEN void forget_handlers(void);
/* Calls the handler; capriole_abandoned, with the stack pointer that is in *leave, returns 0 instead. */
HIDDEN int capriole_guarded(struct capriole_probe *probe, struct capriole_regs *regs,
			    capriole_pre_handler handler, u64 *leave);
HIDDEN void capriole_abandoned(void);
HIDDEN int capriole_call_arguments(void *probe, struct capriole_regs *regs);

/* branch.c */
HIDDEN int run_branch(void *set, struct capriole_regs *regs);
extern HIDDEN const size_t branch_size;
/* Takes the description of a site's instruction from a message. */
HIDDEN int take_branch(struct message *message, struct site *site);
/* In `flags` of a hit: the instruction was carried out, and the program goes on at `ip`. Not a flag of
 * the processor's. */
#define EXECUTED (1ull << 63)

/* return.c */
/* For a thread that has the record of one that has ended: takes what calls that are open there used. */
HIDDEN void forget_calls(struct thread *thread);
/* Calls of all return probes that are open are not followed any more. Returns 0 if there are no return probes;
 * else handlers may run until settle(). */
HIDDEN int end_rounds(void);
HIDDEN int is_argument_probe(const struct capriole_probe *probe);

/* hit.S */
HIDDEN void capriole_hit(void);
HIDDEN void capriole_hit_flags(void);
HIDDEN void capriole_hit_after(void);
/* Reads a word, relative to a segment (1: fs, 2: gs). Returns 0 if it cannot be read, and faults are
 * watched: capriole_unreadable is where such a read goes on. */
HIDDEN int capriole_read(u64 address, u64 *word, u64 segment);
extern HIDDEN const char capriole_reads[], capriole_reads_end[], capriole_unreadable[];
extern HIDDEN const char capriole_stubs[];
/* Called when a call returns whose return address was replaced. */
HIDDEN void capriole_returned(u64 number, struct capriole_regs *regs);

/* helper.c */
struct message {
	char *bytes;
	size_t size, room, at;
	int failed;
};
enum request {
	HELLO = 1, RESOLVE, ADD, ARM, DISARM, OPTIMIZE, STATUS, EXITS, ANALYZE, EVENT_ADD,
	EVENT_REMOVE, ROWS, READ, ALLOW, GOODBYE, PLACE, SETTLED, FAULTS, EXCLUDED, RECORD_START,
	RECORD_STOP, CALL = 1000
};
HIDDEN int has_left(void);
HIDDEN int is_forked(void);
HIDDEN void forget_left(void);
HIDDEN void forget_records(void);
HIDDEN void put_originals(struct message *message);
HIDDEN void new_message(struct message *message, enum request kind);
HIDDEN void put(struct message *message, u64 number);
HIDDEN void put_text(struct message *message, const char *text);
HIDDEN u64 take(struct message *message);
HIDDEN const char *take_text(struct message *message, size_t *size);
/* Sends a message, and receives the answer in its place. Returns 0, or less for an error, which is in
 * error_text. */
HIDDEN int ask(struct message *message);
HIDDEN void drop_message(struct message *message);
HIDDEN int start_helper(void);
/* Called when another helper has begun: for what is in the program already. */
HIDDEN int adopt(void);
HIDDEN void stop_helper(void);
HIDDEN int has_helper(void);
/* Notices that the helper has ended, so that another one is started. */
HIDDEN void check_helper(void);
HIDDEN long capriole_clone(unsigned long flags, void *stack, void (*function)(void *), void *argument);

#endif
