/* capriole/probe.h: dynamic probes that a program puts into itself
 *
 *   static int opened(struct capriole_probe *p, struct capriole_regs *regs)
 *   {
 *           count++;
 *           return 0;
 *   }
 *   static struct capriole_probe probe = { .object = "libc", .symbol = "open64", .pre = opened };
 *
 *   if (capriole_probe_register(&probe) != 0)
 *           fprintf(stderr, "%s\n", capriole_error());
 *
 * A probe is at one instruction of the program or of a library: its handlers are called before and
 * after each execution of that instruction, with all general registers, which they may change. The
 * interface is that of the kernel's kprobes; what it does differently is said below and in
 * docs/probes.md.
 *
 * C99 and C++11 and later, GCC 8 or Clang 11 and later, x86-64 Linux. Link with
 * `pkg-config --libs capriole`. All functions may be called by any thread, but not by handlers,
 * unless the function says so; and not by a handler of a signal that has interrupted a call of the library
 * in its own thread (EDEADLK). They return 0 or more, or less than 0 for an error: an errno(3)
 * code with its sign reversed; capriole_error() says more.
 *
 * Written for the Capriole project; MIT or Apache 2.0, as you like.
 */
#ifndef CAPRIOLE_PROBE_H
#define CAPRIOLE_PROBE_H

#include <stddef.h>
#include <stdint.h>

#if !defined __x86_64__ || !defined __linux__ || !defined __LP64__
#error "capriole/probe.h is for x86-64 Linux"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The general registers at a probe, in the order and with the names of the kernel's struct pt_regs.
 * A handler may change each of them. A changed `sp` must leave 128 bytes below it unused, and may
 * be at most 64 bytes lower than it was. */
struct capriole_regs {
	uint64_t r15, r14, r13, r12, bp, bx;
	uint64_t r11, r10, r9, r8, ax, cx, dx, si, di;
	uint64_t ip;	/* of the probed instruction; in a post-handler of the one that comes next */
	uint64_t flags;
	uint64_t sp;
};

struct capriole_probe;

/* Called before the instruction. Returns 0 to have it executed, unless `regs->ip` was changed: then
 * the program goes on there. Returns another value to skip it: the program goes on at `regs->ip`
 * if that was changed, and otherwise behind the instruction; handlers of the same instruction that
 * were registered later, and post-handlers, are not called then. */
typedef int (*capriole_pre_handler)(struct capriole_probe *, struct capriole_regs *);

/* Called after the instruction, with the registers as it has left them: after a jump, call or return
 * `regs->ip` is where it leads. If `regs->ip` is changed, the program goes on there. Not called if the
 * instruction faults. `flags` is 0, as in the kernel; those of the program are `regs->flags`. */
typedef void (*capriole_post_handler)(struct capriole_probe *, struct capriole_regs *,
				      unsigned long flags);

/* Called when a handler of the probe runs into a fault (`signal`: SIGSEGV, SIGBUS, SIGFPE or
 * SIGILL). Returns 0 to leave the fault to the program, which it usually ends; another value to
 * abandon the handler: the program goes on as if it had returned 0. */
typedef int (*capriole_fault_handler)(struct capriole_probe *, struct capriole_regs *, int signal);

/* Flags of a probe. */
enum {
	CAPRIOLE_DISABLED = 1,		/* register it disabled */
	CAPRIOLE_NO_OPTIMIZE = 2,	/* keep the breakpoint: do not replace it by a jump; in the C library
					   none is possible */
	CAPRIOLE_NO_VECTOR = 4,		/* its handlers do not change vector or x87 registers */
	CAPRIOLE_SAVE_VECTOR = 8	/* save these registers, without a look at the handlers */
};

/* A probe. Initialise it with zeros for all that is not used, keep it in memory as long as it is
 * registered, and change nothing but `data` then. */
struct capriole_probe {
	/* The place, in one of three ways: an address, or a function, each with an offset in bytes; or
	 * a source line. */
	void *address;		/* of an instruction; set when the probe is registered otherwise */
	const char *object;	/* start of a library's file name, such as "libc", or a path; NULL:
				   the program */
	const char *symbol;	/* a function, by its plain, mangled or demangled name */
	unsigned long offset;	/* from the address, or from the start of the function, bytes */
	const char *line;	/* "FILE:LINE", where there is debug information */

	capriole_pre_handler pre;
	capriole_post_handler post;
	capriole_fault_handler fault;
	void *data;		/* for the handlers */
	unsigned flags;

	/* Number of hits since the registration at which no handler was called: the thread was in a handler
	 * already. Read it with capriole_probe_missed(). */
	unsigned long missed;

	/* Of the library. */
	void *private_[6];
};

/* Registers a probe: when the function returns, it is hit. */
int capriole_probe_register(struct capriole_probe *probe);

/* Takes a probe out: when the function returns, none of its handlers runs or will run, and its
 * memory is the caller's again. */
int capriole_probe_unregister(struct capriole_probe *probe);

/* The same for several probes, all of them or none. */
int capriole_probes_register(struct capriole_probe **probes, size_t count);
int capriole_probes_unregister(struct capriole_probe **probes, size_t count);

/* Stops and resumes the calls of a registered probe's handlers. A probe whose library was unloaded and
 * loaded again (CAPRIOLE_GONE) is put in again by capriole_probe_enable(), where its name or line is
 * now. */
int capriole_probe_disable(struct capriole_probe *probe);
int capriole_probe_enable(struct capriole_probe *probe);

/* Disarms all probes, return probes, argument probes and replacements of the program, in one pause, as 0 in
 * /sys/kernel/debug/kprobes/enabled does: when it returns, none of their handlers runs or will run, and the
 * code is as it was. Calls that are going on are not followed to their ends. Until capriole_arm_all(), also
 * over capriole_finish(), a registration checks the place of a probe and does not arm it, and enabling
 * or disabling a probe changes what will be armed. Events and records (capriole_event_enable()) go on. After
 * an error, calls of functions that are replaced may still come to the replacement: ENOMEM, before anything was
 * changed, or an error of capriole_restore(); call it again. */
int capriole_disarm_all(void);

/* Arms those that are enabled, all at once. Where some cannot be armed now, the others are: returns the first
 * error (as capriole_probe_enable()), and capriole_error() begins with the number of places that are not
 * armed; the next call tries these again. */
int capriole_arm_all(void);

/* Returns 1 between the two, else 0. Handlers may call it. */
int capriole_all_disarmed(void);

/* Number of hits that were missed. Handlers may call it. */
unsigned long capriole_probe_missed(const struct capriole_probe *probe);

/* State of a probe. */
enum capriole_state {
	CAPRIOLE_UNREGISTERED = 0,
	CAPRIOLE_BREAKPOINT = 1,	/* a breakpoint; the instruction is single-stepped by no one,
					   its copy runs: "boosted" */
	CAPRIOLE_WAITING = 2,		/* a breakpoint that is going to be replaced by a jump */
	CAPRIOLE_OPTIMIZED = 3,		/* a jump */
	CAPRIOLE_OFF = 4,		/* disabled, or all probes are disarmed */
	CAPRIOLE_GONE = 5,		/* its library is unmapped, or another tool has changed the place */
	CAPRIOLE_OCCUPIED = 6		/* registered, but not in yet: a thread is inside the bytes */
};

/* Returns the state of a probe, and writes into `why` (of `size` bytes, NULL if it is not wanted)
 * how it is reached, and why not by a jump. */
int capriole_probe_status(const struct capriole_probe *probe, char *why, size_t size);

/* Allows (1, the default) or forbids (0) jumps for all probes of the process. Returns the setting
 * before. */
int capriole_optimization(int allowed);

/* Waits until no probe waits for its jump, at most so many milliseconds. Returns the number of those
 * that still do. */
int capriole_optimize(unsigned milliseconds);

/* Writes a line for each probe to a file descriptor, as /sys/kernel/debug/kprobes/list has them; `k` is a
 * probe, `r` one of a return probe, `j` an argument probe, `f` a replaced function:
 *
 *   00007f3a1c0915e0  k  libc.so.6:malloc+0x4    [OPTIMIZED]
 */
int capriole_list(int fd);

/* Writes a line for each function of the process that CAPRIOLE_NOPROBE excludes from probes to a file descriptor,
 * by address, as /sys/kernel/debug/kprobes/blacklist has them:
 *
 *   00005581c0d9a2a0-00005581c0d9a2c8  server:locked_section
 */
int capriole_list_noprobe(int fd);

/* Returns the message of the calling thread's last error, in one line. It is valid until the thread
 * calls the library again. */
const char *capriole_error(void);

/* Starts the helper process. The first registration does so as well; a program that is going to give up
 * rights first (a seccomp filter, other users, a chroot) calls this before. */
int capriole_start(void);

/* Ends the helper process. All probes must be unregistered. The next registration starts another one. */
int capriole_finish(void);

/* Calls of a function: an entry handler and a handler at its return. */
struct capriole_return_probe;

/* A call that is going on. */
struct capriole_call {
	struct capriole_return_probe *probe;
	uint64_t return_address;
	uint64_t sp;			/* at the entry: address of the return address */
	void *data;			/* of `data_size` bytes, not initialised */
};

/* At the entry: returns 0 to have the return handler called. At the return: the value that the
 * function returns is `regs->ax`, `regs->ip` the address that it returns to. Both may change the
 * registers. */
typedef int (*capriole_call_handler)(struct capriole_call *, struct capriole_regs *);

/* A return probe. */
struct capriole_return_probe {
	struct capriole_probe probe;	/* the place: the entry of a function; its handlers are not used */
	capriole_call_handler entry;	/* may be NULL */
	capriole_call_handler handler;
	size_t data_size;		/* at most 1024 */
	unsigned max_active;		/* calls that are followed at a time; 0: as many as there is room for */
	unsigned by_address;		/* 1: replace the return address instead of probing all exits */
	unsigned long missed;		/* calls since the registration that could not be followed; read it with
					   capriole_return_probe_missed() */
	void *private_[4];
};

int capriole_return_probe_register(struct capriole_return_probe *probe);
int capriole_return_probe_unregister(struct capriole_return_probe *probe);

/* The same for several, all of them or none. */
int capriole_return_probes_register(struct capriole_return_probe **probes, size_t count);
int capriole_return_probes_unregister(struct capriole_return_probe **probes, size_t count);

/* Stops and resumes the calls of both handlers. Calls that go on when either function is called are not
 * followed to their ends. */
int capriole_return_probe_disable(struct capriole_return_probe *probe);
int capriole_return_probe_enable(struct capriole_return_probe *probe);

/* Number of calls that were missed. Handlers may call it. */
unsigned long capriole_return_probe_missed(const struct capriole_return_probe *probe);

/* State of its probe at the function's entry, as capriole_probe_status(). */
int capriole_return_probe_status(const struct capriole_return_probe *probe, char *why, size_t size);

/* A handler with the parameters of the probed function, called at its entry: it sees the arguments.
 * CAPRIOLE_ARGUMENT_PROBE checks that its type is that of the function. What the handler returns is
 * ignored. */
struct capriole_argument_probe {
	struct capriole_probe probe;	/* the place: the entry of a function; its handlers are not used */
	void (*handler)(void);
	unsigned stack_words;		/* number of 8-byte arguments on the stack, at most 32 */
};

int capriole_argument_probe_register(struct capriole_argument_probe *probe);
int capriole_argument_probe_unregister(struct capriole_argument_probe *probe);
int capriole_argument_probes_register(struct capriole_argument_probe **probes, size_t count);
int capriole_argument_probes_unregister(struct capriole_argument_probe **probes, size_t count);
int capriole_argument_probe_disable(struct capriole_argument_probe *probe);
int capriole_argument_probe_enable(struct capriole_argument_probe *probe);
int capriole_argument_probe_status(const struct capriole_argument_probe *probe, char *why, size_t size);

/* Puts `replacement` in the place of a function: who calls the function calls the replacement. It may
 * call the function itself by `*original`, which is set to the address of the function when the replacement is
 * taken off. Whoever has read it before may call that until capriole_finish().
 * CAPRIOLE_REPLACE checks that all three have the same type. */
struct capriole_replacement {
	struct capriole_probe probe;	/* the place: the entry of a function; its handlers are not used */
	void (*replacement)(void);
	void (**original)(void);	/* may be NULL */
};

int capriole_replace(struct capriole_replacement *replacement);
int capriole_restore(struct capriole_replacement *replacement);

/* Has the function itself called for a time, and the replacement again. */
int capriole_replacement_disable(struct capriole_replacement *replacement);
int capriole_replacement_enable(struct capriole_replacement *replacement);
int capriole_replacement_status(const struct capriole_replacement *replacement, char *why, size_t size);

/* Events of the language of docs/events.md, which the program records without handlers. */
int capriole_event_enable(const char *event);	/* returns its number */
int capriole_event_disable(int event);

/* Writes the table of an aggregated event (count(), sum(), hist(), keys ...) to a file descriptor,
 * one row a line. */
int capriole_event_rows(int event, int fd);

/* Writes the records that were made since the last call to a file descriptor, one a line, in the order of
 * time but for those that threads were just writing, which come with the next call. */
int capriole_event_read(int fd);

/* Writes the records into a trace directory from now on, instead of keeping them for capriole_event_read(),
 * until capriole_record_stop(), capriole_finish() or the end of the program, however it ends. `capriole report`
 * reads it, at any time. A trace that is there is moved aside, to DIR.old. Events and records may be enabled and
 * disabled meanwhile. */
int capriole_record_start(const char *directory);

/* Completes the trace. An error: it could not be written, all of it, and ends where that was so. */
int capriole_record_stop(void);

/* Records an event with up to six values from anywhere, also from handlers, at the price of a
 * compiled probe: into the same memory as events that were enabled by text.
 *
 *   static struct capriole_record done = CAPRIOLE_RECORD("done", "bytes=$arg1:u64 fd=$arg2:s32");
 *   capriole_record_enable(&done);
 *   CAPRIOLE_WRITE(&done, bytes, fd);
 */
struct capriole_record {
	const char *name;
	const char *fields;	/* as in an event: NAME=$argN:TYPE ... */
	void (*write)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	int number;		/* of its event, for capriole_event_disable(); 0 before */
};

int capriole_record_enable(struct capriole_record *record);
int capriole_record_disable(struct capriole_record *record);

/* Does nothing: a record that is not enabled. */
void capriole_record_nothing(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

#define CAPRIOLE_RECORD(name, fields) { name, fields, capriole_record_nothing, 0 }

#define CAPRIOLE_WRITE(...) CAPRIOLE_WRITE_(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define CAPRIOLE_WRITE_(record, a, b, c, d, e, f, ...)                                             \
	((record)->write((uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), (uint64_t)(e), \
			 (uint64_t)(f)))

/* For handlers: compiles a function so that it touches no vector or x87 register, and nothing has
 * to be saved for it. The functions that it calls must be compiled so, too. */
#define CAPRIOLE_HANDLER __attribute__((target("general-regs-only")))

/* Excludes a function from probes, as NOKPROBE_SYMBOL does: at any address in it, each kind of probe and its
 * replacement are refused (EINVAL), and a recorder skips it. Written before its definition, in the program
 * or a library, which need not be linked with libcapriole. The function comes into the section `capriole_noprobe`,
 * and is not inlined; functions that it calls are not excluded. Not for inline functions and templates of C++,
 * which need sections of their own. Files without section headers (sstrip) exclude nothing.
 *
 *   CAPRIOLE_NOPROBE static void with_all_signals_blocked(void)
 */
#define CAPRIOLE_NOPROBE __attribute__((noinline, section("capriole_noprobe")))

#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
/* Makes `handler` the argument probe's handler, if it has the type of `function`. From C++17 on `noexcept`
 * is a part of a function's type, and C libraries declare most functions so: it may differ. */
template <typename R, typename... A>
inline void capriole_set_argument_handler(capriole_argument_probe &probe, R (*function)(A...),
					  R (*handler)(A...))
{
	probe.probe.address = reinterpret_cast<void *>(function);
	probe.handler = reinterpret_cast<void (*)()>(handler);
}
template <typename R, typename... A>
inline void capriole_set_argument_handler(capriole_argument_probe &probe, R (*function)(A..., ...),
					  R (*handler)(A..., ...))
{
	probe.probe.address = reinterpret_cast<void *>(function);
	probe.handler = reinterpret_cast<void (*)()>(handler);
}
template <typename R, typename... A, typename O>
inline void capriole_set_replacement(capriole_replacement &probe, R (*function)(A...),
				     R (*replacement)(A...), O **original)
{
	(void)static_cast<R (*)(A...)>(static_cast<O *>(0));
	probe.probe.address = reinterpret_cast<void *>(function);
	probe.replacement = reinterpret_cast<void (*)()>(replacement);
	probe.original = reinterpret_cast<void (**)()>(original);
}
template <typename R, typename... A, typename O>
inline void capriole_set_replacement(capriole_replacement &probe, R (*function)(A..., ...),
				     R (*replacement)(A..., ...), O **original)
{
	(void)static_cast<R (*)(A..., ...)>(static_cast<O *>(0));
	probe.probe.address = reinterpret_cast<void *>(function);
	probe.replacement = reinterpret_cast<void (*)()>(replacement);
	probe.original = reinterpret_cast<void (**)()>(original);
}
#define CAPRIOLE_ARGUMENT_PROBE(probe, function, handler)                                          \
	capriole_set_argument_handler(*(probe), function, handler)
#define CAPRIOLE_REPLACE(probe, function, replacement, original)                                   \
	capriole_set_replacement(*(probe), function, replacement, original)
#else
/* To GCC, functions with the attributes `const` and `noreturn` have types of their own, by the qualifiers
 * const and volatile: abs() and exit(), which no other function could be compared with. */
#ifdef __clang__
#define CAPRIOLE_TYPE_(a) __typeof__(&*(a))
#else
#define CAPRIOLE_TYPE_(a) const volatile __typeof__(*(a)) *
#endif
#define CAPRIOLE_SAME_TYPE_(a, b)                                                                  \
	(sizeof(char[1 - 2 * !__extension__ __builtin_types_compatible_p(CAPRIOLE_TYPE_(a),        \
									 CAPRIOLE_TYPE_(b))]))
/* Makes `handler` the argument probe's handler, if it has the type of `function`. */
#define CAPRIOLE_ARGUMENT_PROBE(probe_, function_, handler_)                                       \
	((void)CAPRIOLE_SAME_TYPE_(function_, handler_),                                   \
	 (probe_)->probe.address = (void *)(uintptr_t)(function_),                                            \
	 (probe_)->handler = (void (*)(void))(handler_))
/* Prepares a replacement of `function_`, if all have its type; `original_` is the address of a
 * pointer to such a function. */
#define CAPRIOLE_REPLACE(probe_, function_, replacement_, original_)                               \
	((void)CAPRIOLE_SAME_TYPE_(function_, replacement_),                               \
	 (void)CAPRIOLE_SAME_TYPE_(function_, *(original_)),                                   \
	 (probe_)->probe.address = (void *)(uintptr_t)(function_),                                            \
	 (probe_)->replacement = (void (*)(void))(replacement_),                                   \
	 (probe_)->original = (void (**)(void))(original_))
#endif

#endif
