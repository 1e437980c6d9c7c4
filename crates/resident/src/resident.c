/* The resident: what a detour cannot do in straight-line code.
 *
 * It is placed, position-independent and read-only, at the head of every arena. It runs on the
 * program's own stack, in the program's own threads, at any moment, including inside signal
 * handlers. Therefore:
 *
 *   - general registers only (-mgeneral-regs-only), no thread-local storage of
 *     its own, no errno, no library;
 *   - it waits for no lock: a lane that is taken is skipped (but see
 *     capriole_filtering, which is not part of a probe);
 *   - system calls only between may_call and end_call, so none once the program may have
 *     installed a system call filter: process_vm_readv, and getpid for it, to read fields
 *     of an event that are in memory, in some processes move_pages or mincore before;
 *     prctl and gettid for the thread's name and id; rt_sigaction behind one of the program's.
 *     (capriole_filtering makes sched_yield while there is no filter yet.)
 *     (And rt_sigreturn, by which a signal handler ends; but see go_on.)
 *   - little stack: below 768 bytes under the detour's own (the trap handler
 *     runs on a signal frame anyway);
 *   - no value read from session memory is trusted, as other processes can write there: it
 *     is read once, and never used as an address, an index or a loop count before it was
 *     compared with a bound from the configuration. Pointers of the program are not followed
 *     from there either, but from the stack.
 */
#include "resident.h"

static inline s64 syscall4(s64 number, u64 a, u64 b, u64 c, u64 d)
{
	register u64 r10 __asm__("r10") = d;
	s64 result;
	__asm__ volatile("syscall" : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

static inline s64 syscall6(s64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	s64 result;
	__asm__ volatile("syscall" : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static inline u32 thread_word(s32 offset)
{
	u32 value;
	__asm__ volatile("movl %%fs:(%1), %0" : "=r"(value) : "r"((s64)offset));
	return value;
}

/* Reads the time and, from IA32_TSC_AUX as Linux sets it, the CPU at that very moment. */
static inline u64 read_tsc_cpu(u32 *cpu)
{
	u32 low, high, aux;
	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(aux) :: "memory");
	*cpu = aux & 0xfff;
	return in_steps((u64)high << 32 | low);
}

static inline struct stream *stream_of(u32 lane, u32 cpu)
{
	return (struct stream *)capriole_config.streams + ((u64)lane * capriole_config.cpus + cpu);
}

static inline void add_one(u64 *word)
{
	__asm__ volatile("lock addq $1, %0" : "+m"(*word));
}

static inline void add_lost(struct stream *stream)
{
	add_one(&stream->lost);
}

/* Takes the free packet with the lowest number, so that as few pages as possible
 * are ever touched. Atomic: any thread of any process that shares the session may
 * be here. Returns NO_PACKET when there is none. */
static u32 take_packet(void)
{
	volatile u64 *words = (volatile u64 *)(capriole_config.session + HEADER_FREE);
	u32 count = (capriole_config.packet_count + 63) / 64;
	for (u32 i = 0; i < count; i++) {
		u64 word = words[i];
		/* Each time that it fails, another thread has taken one. */
		for (u32 attempt = 0; word && attempt < 1000; attempt++) {
			u64 bit = word & -word;
			if (__sync_bool_compare_and_swap(&words[i], word, word & ~bit)) {
				u32 index = i * 64 + (u32)__builtin_ctzl(bit);
				return index < capriole_config.packet_count ? index : NO_PACKET;
			}
			word = words[i];
		}
	}
	return NO_PACKET;
}

static void give_packet(u32 index)
{
	volatile u64 *words = (volatile u64 *)(capriole_config.session + HEADER_FREE);
	__sync_fetch_and_or(&words[index / 64], 1ul << (index % 64));
}

/* Position of an address, in units from `stream`. */
static inline u64 units_to(const struct stream *stream, u64 address)
{
	return (address - (u64)stream) / UNIT;
}

/* Reports whether a record of so many units has room where the head says, and ends in session
 * memory. Then it starts there as well: streams count from themselves. */
static inline u32 has_room(u64 head, u64 units)
{
	u64 next = (u32)head + units;
	return next <= head >> 32 && next <= capriole_config.limit;
}

static inline struct control *control_of(u32 index)
{
	return (struct control *)capriole_config.controls + index;
}

/* Returns the packet that the head says is being filled; the number of packets, which is the index
 * of the null control, if it says none. */
static u32 filled(const struct stream *stream, u64 head)
{
	u64 end = (u64)stream + (head >> 32) * UNIT - capriole_config.packets;
	u64 index = (end >> capriole_config.packet_shift) - 1;
	return index < capriole_config.packet_count ? (u32)index : capriole_config.packet_count;
}

/* Prepares packet `index` as the successor of what `head` says. No other thread sees it yet.
 * Returns the head that it is to have. */
static u64 prepare(u32 index, const struct stream *stream, u64 head, u64 seq, u32 lane, u32 cpu)
{
	struct control *new = control_of(index);
	u32 size = 1u << capriole_config.packet_shift, old = filled(stream, head);
	u64 begin = capriole_config.packets + ((u64)index << capriole_config.packet_shift);
	WRITE(new->seq, seq);
	WRITE(new->begin, read_tsc());
	WRITE(new->lost, READ(stream->lost));
	WRITE(new->prev, old < capriole_config.packet_count ? old : NO_PACKET);
	WRITE(new->prev_len, size - ((u32)(head >> 32) - (u32)head) * UNIT);
	WRITE(new->cpu, cpu);
	WRITE(new->lane, lane);
	barrier();
	return units_to(stream, begin + size) << 32 | units_to(stream, begin + PACKET_HEADER);
}

/* Called before a system call. Returns 0 if none may be made.
 *
 * First this thread is counted, then the word is read; a thread that installs a filter sets the
 * word, then waits until no thread is counted (capriole_filtering). Both are full barriers. So no
 * thread is in between when a filter comes that holds for all threads. */
static __attribute__((noinline)) u32 may_call(void)
{
	__sync_fetch_and_add(&OWN->calling, 1);
	if (!READ(OWN->no_calls))
		return 1;
	__sync_fetch_and_sub(&OWN->calling, 1);
	return 0;
}

/* Counts a call that must not be made. */
static void count_barred(void)
{
	__sync_fetch_and_add((u64 *)(capriole_config.session + HEADER_NOT_CALLED), 1);
}

/* As may_call, for something that is recorded: a call that must not be made is counted. */
static u32 begin_call(void)
{
	if (may_call())
		return 1;
	count_barred();
	return 0;
}

/* True for addresses at which no program has memory: those near a null pointer, and those that no
 * page table of a program reaches. Reading there fails with and without a filter. */
static u32 is_nobodys(u64 address)
{
	return address < 4096 || address >> 56;
}

static void end_call(void)
{
	__sync_fetch_and_sub(&OWN->calling, 1);
}

/* How long to wait for other threads' system calls, in time stamps: one to two seconds. They take
 * less than a microsecond, but on a busy machine a thread may be counted and wait for a processor
 * for tens of milliseconds; the filter would end the program if it came in between. One may be
 * counted that never ends: that of a thread that a fork has left behind, or the one that this
 * signal handler has interrupted. */
#define CALL_PATIENCE (1ul << 32)

/* How long to wait until the probes are out, in time stamps: some seconds, once. The recorder takes them
 * out within a hundred milliseconds, unless it is dead. */
#define LEAVE_PATIENCE (1ul << 34)

#define SCHED_YIELD 24
#define CLONE 56
#define ARCH_PRCTL 158
#define USERFAULTFD 323
#define CLONE3 435
#define ARCH_SET_FS 0x1002
#define CLONE_SETTLS 0x80000
#define SECCOMP 317
#define PRCTL 157
#define PR_SET_SECCOMP 22
#define PR_SET_TSC 26
#define PR_SET_SYSCALL_USER_DISPATCH 59

/* Waits until no byte of the process leads to a detour any more, for a reason (LEAVE_...). Returns 0 if the
 * probes are still there. */
static __attribute__((noinline, cold)) u32 leave(u32 reason)
{
	u64 begin = read_tsc();
	/* The word that other processes can write is a hint to check the one that they cannot. */
	__sync_lock_test_and_set(&OWN->leave, reason);
	__sync_lock_test_and_set((u32 *)(capriole_config.session + HEADER_LEAVE), 1);
	while (!READ(OWN->left) && !READ(OWN->abandoned)) {
		if (read_tsc() - begin >= LEAVE_PATIENCE)
			WRITE(OWN->abandoned, 1);
	}
	return READ(OWN->left);
}

u64 capriole_read_memory(u64 to, u64 from, u64 size);

/* True for a call by which the program sets a thread pointer; `any_first`: its first argument is not
 * known. */
static inline u32 sets_thread_pointer(u32 number, u64 first, u32 any_first)
{
	if (!(capriole_config.flags & (FLAG_RSEQ | FLAG_TID | FLAG_ROUTINES)))
		return 0;
	if (number == ARCH_PRCTL)
		return any_first || (u32)first == ARCH_SET_FS;
	if (number == CLONE3) {
		u64 flags;
		if (any_first || capriole_read_memory((u64)&flags, first, 8) != 8)
			return 1;
		first = flags;
	}
	return (number == CLONE || number == CLONE3) && (any_first || first & CLONE_SETTLS);
}

/* Called before a system call of the program by which it may
 *
 *   - install a system call filter, or have its own calls handed to itself: seccomp(2),
 *     prctl(PR_SET_SECCOMP), prctl(PR_SET_SYSCALL_USER_DISPATCH). No system calls from then on;
 *   - give up the time stamp counter, after which reading it is a fault: seccomp's strict mode,
 *     prctl(PR_SET_TSC, PR_TSC_SIGSEGV). Detours read it. So the probes have to be taken out
 *     before, and this function waits for that. If nobody takes them out, because the recorder was
 *     killed, the call fails (EINVAL, as where there is no such call): the next hit would end the program;
 *   - set a thread pointer: arch_prctl(ARCH_SET_FS), clone(CLONE_SETTLS). Detours find the C library's
 *     data there, as long as a C library sets it, whose calls do not come here. The same is done;
 *   - provide its own pages: userfaultfd(2). No page is read from then on that is not in memory: the
 *     thread that reads may be the one that provides it.
 *
 * `known` says where the call's number and its first two arguments are (FILTER_...), as the program
 * will find them there a moment later. */
__attribute__((cold)) void capriole_filtering(u64 *registers, u64 known)
{
	u64 base = registers[known >> FILTER_NUMBER_SHIFT & 15];
	u32 number = (u32)known;
	if (known & FILTER_NUMBER_REGISTER)
		number = (u32)base;
	else if (known & FILTER_NUMBER_MEMORY)
		number = READ(*(u32 *)(base + (u64)(s64)(s32)known));
	number &= ~X32_SYSCALL_BIT;
	if (number == USERFAULTFD)
		WRITE(OWN->slow_memory, 1);
	u64 first = registers[known >> FILTER_OPTION_SHIFT & 15];
	u64 mode = registers[known >> FILTER_MODE_SHIFT & 15];
	u32 any_option = !(known & FILTER_OPTION_REGISTER), any_mode = !(known & FILTER_MODE_REGISTER);
	if (sets_thread_pointer(number, first, any_option))
		leave(LEAVE_THREAD_POINTER);
	if (number != SECCOMP && number != PRCTL)
		return;
	u32 option = (u32)first;
	u32 filters = number == SECCOMP || option == PR_SET_SECCOMP
		      || option == PR_SET_SYSCALL_USER_DISPATCH || any_option;
	u32 leaves = number == SECCOMP ? option == 0 || any_option
		     : any_option ? 0
		     : option == PR_SET_SECCOMP ? mode == 1 || any_mode
		     : option == PR_SET_TSC && (mode == 2 || any_mode);
	if (filters) {
		u64 begin = read_tsc();
		/* 0: no filter was installed before, so that this thread may make a system call. */
		u32 before = __sync_lock_test_and_set(&OWN->no_calls, 1);
		__sync_lock_test_and_set((u32 *)(capriole_config.session + HEADER_NO_CALLS), 1);
		while (READ(OWN->calling) && read_tsc() - begin < CALL_PATIENCE) {
			if (!before)
				syscall4(SCHED_YIELD, 0, 0, 0, 0);
		}
	}
	if (!leaves || leave(LEAVE_CLOCK))
		return;
	u32 is_known = number == SECCOMP || !any_mode;
	if (!any_option && is_known)
		registers[known >> FILTER_OPTION_SHIFT & 15] = ~0ul;
}

/* Replaces the head `old` by `new` on `cpu`, as one restartable sequence: only if this thread still
 * runs on `cpu`, and `old`, with its packet in the same life (*seq), is still the head there.
 * Because the only writers of a lane 0 stream are restartable sequences on that CPU, no record is
 * half-written in the old packet afterwards. Returns 1 if the store was made. In entry.S. */
extern u32 capriole_install(struct stream *stream, u64 old, u64 new, u32 cpu, s64 rseq_offset,
			    const u64 *seq, u64 old_seq);

/* Called by a detour which found no room for a record of `units` in the packet of its CPU. Returns
 * 0: the event is lost, and counted; 1: there is another packet, try again; 2: use the locked path.
 * A caller that comes again has used up a packet: no thread is kept in a loop. */
u32 capriole_switch_packet(u64 units)
{
	u32 cpu = thread_word(capriole_config.rseq_offset + 4);
	if (cpu >= capriole_config.cpus)
		return 2; /* no restartable sequences */
	struct stream *stream = stream_of(0, cpu);
	u64 head = READ(stream->head);
	if (has_room(head, units))
		return 2; /* moved to another CPU, or another thread was faster */
	const u64 *seq = &control_of(filled(stream, head))->seq;
	u64 old_seq = READ(*seq);
	u32 index = take_packet();
	if (index == NO_PACKET) {
		add_lost(stream);
		return 0;
	}
	u64 new = prepare(index, stream, head, old_seq + 1, 0, cpu);
	if (!capriole_install(stream, head, new, cpu, capriole_config.rseq_offset, seq, old_seq)) {
		give_packet(index);
		return 2;
	}
	return 1;
}

static inline u32 thread_id(void)
{
	return capriole_config.flags & FLAG_TID ? thread_word(capriole_config.tid_offset) : 0;
}

/* A lane that is held, and the record that is written there. */
struct place {
	struct stream *stream;
	struct record *record;
	u64 lock; /* the lane's lock word while it is held */
	u64 time; /* of the record */
	u32 pos;  /* of the record */
	u32 cpu;
	u32 lane;
} __attribute__((aligned(1 << LOCK_FRAME_SHIFT)));

/* Asks the kernel for the thread's id, which is `id` according to the C library; returns 0 if it
 * must not. A fork leaves only one thread, the main thread of the new process: once its library
 * says the same as the kernel, no thread has to ask any more. */
static __attribute__((noinline, cold)) u32 asked_id(u32 id)
{
	if (!may_call())
		return 0;
	u32 real = (u32)syscall4(186 /* gettid */, 0, 0, 0, 0);
	if (!READ(OWN->process))
		WRITE(OWN->process, (u32)syscall4(39 /* getpid */, 0, 0, 0, 0));
	if (real == id && real == READ(OWN->process))
		WRITE(OWN->known, 1);
	end_call();
	return real;
}

/* The thread's id as the kernel knows it; 0: not known. The C library's id cannot be used in a
 * forked child: it is the parent's for some instructions after the system call (musl), or for good
 * (a bare system call). Parent and child have stacks at the same addresses, so that each would take
 * a lane held by the other for one that it has itself left for good, and both would write there;
 * and the child would have the kernel read its parent's memory. */
static inline u32 real_id(void)
{
	u32 id = thread_id();
	return READ(OWN->known) || !id ? id : asked_id(id);
}

/* The thread's id, as well as it is known. */
static __attribute__((noinline)) u32 told_id(void)
{
	u32 id = real_id();
	return id ? id : thread_id();
}

/* Reports whether a lane is held by this very thread, and for good: a signal handler that had
 * interrupted it there was left by siglongjmp. That is certain if the holder's struct place was
 * where the stack of this event is now, from `place` to `above`: two that are both in use never
 * share memory. Uncertain cases are left to the tracer (lanes.rs). */
static inline u32 is_abandoned(u64 lock, const struct place *place, u64 above)
{
	u64 frame = (lock & ((1ul << LOCK_TID_SHIFT) - 1)) << LOCK_FRAME_SHIFT;
	u64 own = place->lock;
	return own >> LOCK_TID_SHIFT && lock >> LOCK_TID_SHIFT == own >> LOCK_TID_SHIFT
		&& frame >= (u64)place && frame < above;
}

/* Leaves a lane, unless it has been taken away. */
static inline void unlock(const struct place *place)
{
	__sync_bool_compare_and_swap(&place->stream->lock, place->lock, 0);
}

#define ATTEMPTS 16

/* Takes the first free lane of this CPU, and room for `size` bytes there, and begins the record.
 * The lane is held by an atomic exchange; one that is taken (its holder was preempted, or is the
 * very thread that this signal handler interrupted) is skipped, never waited for. `above` is where
 * the stack ends that this event uses. Returns 0 if the event is lost, which is counted. */
static u32 take_place(struct place *place, u32 id, u64 size, u64 above)
{
	struct stream *stream = 0;
	u32 real = real_id(), tid = real ? real : thread_id();
	place->lock = (u64)real << LOCK_TID_SHIFT | (u64)place >> LOCK_FRAME_SHIFT;
	for (u32 attempt = 0; attempt < ATTEMPTS; attempt++) {
		u32 cpu, cpu_now, lane;
		u64 begin = read_tsc_cpu(&cpu);
		if (cpu >= capriole_config.cpus)
			cpu = 0;
		for (lane = 1; lane < LANES; lane++) {
			stream = stream_of(lane, cpu);
			u64 lock = READ(stream->lock);
			if ((!lock || is_abandoned(lock, place, above))
			    && __sync_bool_compare_and_swap(&stream->lock, lock, place->lock))
				break;
		}
		if (lane == LANES) {
			stream = stream_of(1, cpu);
			add_one(&stream->busy);
			break;
		}
		place->stream = stream;
		WRITE(stream->turns, READ(stream->turns) + 1);
		u64 head = READ(stream->head);
		if (!has_room(head, size / UNIT)) {
			u32 index = take_packet();
			if (index != NO_PACKET) {
				u64 seq = READ(control_of(filled(stream, head))->seq) + 1;
				head = prepare(index, stream, head, seq, lane, cpu);
				WRITE(stream->head, head);
			}
			if (index == NO_PACKET || !has_room(head, size / UNIT)) {
				unlock(place);
				break;
			}
		}
		u32 pos = (u32)head;
		struct record *record = (struct record *)((u64)stream + (u64)pos * UNIT);
		/* Records of one thread in several streams are ordered by their times: this one's
		 * is later than that of any before, and leave_place ensures that it is earlier than
		 * that of any after. */
		u64 time = read_tsc_cpu(&cpu_now);
		while (time == begin && capriole_config.flags & FLAG_COARSE)
			time = read_tsc_cpu(&cpu_now);
		if (cpu_now != cpu && cpu_now < capriole_config.cpus && attempt < ATTEMPTS - 1) {
			/* Moved since the lane was chosen: this would be recorded as an event of
			 * the wrong CPU, which is still better than none. */
			unlock(place);
			continue;
		}
		WRITE(record->time, time);
		WRITE(record->id, id);
		WRITE(record->tid, tid);
		place->record = record;
		place->time = time;
		place->pos = pos;
		place->cpu = cpu;
		place->lane = lane;
		return 1;
	}
	add_lost(stream);
	return 0;
}

/* Commits `size` bytes of the record, 0: none of it, and leaves the lane. */
static void leave_place(struct place *place, u64 size)
{
	barrier();
	if (READ(place->stream->lock) != place->lock) {
		/* Taken away: another thread may write there. */
		add_one(&place->stream->busy);
		add_lost(place->stream);
		return;
	}
	WRITE(*(u32 *)&place->stream->head, place->pos + (u32)(size / UNIT)); /* the commit */
	barrier();
	WRITE(place->stream->lock, 0);
	while (capriole_config.flags & FLAG_COARSE && read_tsc() == place->time)
		;
}

/* Writes a record without restartable sequences. `event` is { u32 id, u32 bytes of
 * fields }, then the fields. */
void capriole_locked_record(const u64 *event)
{
	u64 size = RECORD_FIELDS + (event[0] >> 32);
	struct place place;
	if (!take_place(&place, (u32)event[0], size, (u64)event))
		return;
	for (u64 i = 0; i < (size - RECORD_FIELDS) / UNIT; i++)
		WRITE(place.record->field[i], event[1 + i]);
	leave_place(&place, size);
}

#define MOVE_PAGES 279
#define MINCORE 27
#define ENOENT_RESULT -2

/* Returns whether a page is in memory, or not mapped at all: reading it waits for nobody. */
static u32 waits_for_nobody(u64 page)
{
	s32 status = 0;
	/* Without a node to move it to, the call only says where the page is. */
	s64 result = syscall6(MOVE_PAGES, 0, 1, (u64)&page, 0, (u64)&status, 0);
	if (result >= 0)
		return status != ENOENT_RESULT;
	u8 resident = 1;
	/* It fails if nothing is mapped there. */
	result = syscall4(MINCORE, page, 4096, (u64)&resident, 0);
	return result < 0 || resident & 1;
}

/* Returns how many of `size` bytes at `from` can be read without waiting for anybody. A page that is
 * taken away just behind the question is waited for. */
static __attribute__((noinline)) u64 ready(u64 from, u64 size)
{
	u64 end = from + size;
	for (u64 page = from & ~4095ul; page < end; page += 4096) {
		if (!waits_for_nobody(page))
			return page > from ? page - from : 0;
	}
	return size;
}

__attribute__((noinline)) u64 capriole_read_memory(u64 to, u64 from, u64 size)
{
	if (!may_call()) {
		if (!is_nobodys(from))
			count_barred();
		return 0;
	}
	u64 pid = real_id();
	if (!pid)
		pid = (u64)syscall4(39 /* getpid */, 0, 0, 0, 0);
	if (READ(OWN->slow_memory))
		size = ready(from, size);
	u64 local[2] = { to, size }, remote[2] = { from, size };
	s64 result = syscall6(310 /* process_vm_readv */, pid, (u64)local, 1, (u64)remote, 1, 0);
	end_call();
	return result < 0 ? 0 : (u64)result;
}

/* Returns the low half of a vector register, which still has its value at the site: the resident is
 * compiled for general registers only, and the kernel preserves them. */
static u64 vector(u32 number)
{
	u64 value;
#define XMM(n) \
	case n: __asm__ volatile("movq %%xmm" #n ", %0" : "=r"(value)); return value;
	switch (number & 15) {
	XMM(0) XMM(1) XMM(2) XMM(3) XMM(4) XMM(5) XMM(6) XMM(7)
	XMM(8) XMM(9) XMM(10) XMM(11) XMM(12) XMM(13) XMM(14) XMM(15)
	}
#undef XMM
	return 0;
}

/* Maximum number of words that a call keeps. */
#define MOST_WORDS 7
_Static_assert(MOST_WORDS <= INTERVAL_MOST_WORDS, "words");

/* State while a program (struct program) runs. Packets are shared with other processes, which may
 * not be trusted: values are read back from there only to be recorded, counted or compared. An
 * address in particular is followed from here, or a child that has given up its rights could have
 * its parent read what it likes. */
struct state {
	const u64 *registers;
	u64 stack;    /* the stack pointer at the site */
	u64 value;    /* of the field that is being fetched */
	u64 at;       /* where its content goes */
	u64 begin;    /* where the content of the last field begins */
	u64 faults;   /* a bit for each field that could not be read */
	u64 truth;    /* a bit for each comparison that holds */
	u64 fields;   /* where the first one is */
	u64 key;      /* where the key ends, and numbers begin */
	union {
		u64 ticks; /* of the interval that ends; until the row is found */
		u64 row;   /* number of the first counter of the row */
	};
	u64 *summary; /* the row's cells if it is in a summary; else 0 */
	u64 time;     /* of the record */
	struct words *words;
	u32 keeps;    /* how many of the first numbers that are fetched become words */
	u32 bad;      /* this field could not be read */
	u32 cpu;
	u32 lane;     /* that is held */
	u32 event;
	u32 length;   /* of the next text; NO_LENGTH if it could not be read */
};
#define NO_LENGTH ~0u

/* Reads `size` bytes at `from`, or those before the first page that is missing; returns how many.
 * What lies above the stack pointer in its page is mapped: that needs no system call. At the very
 * start of a page the stack may be empty, and end there. */
static u64 read_some(struct state *state, u64 to, u64 from, u64 size)
{
	u64 page_end = ((state->stack - 1) | 4095) + 1;
	if (from >= state->stack && from < page_end && size <= page_end - from) {
		for (u64 i = 0; i < size; i++)
			WRITE(((u8 *)to)[i], READ(((u8 *)from)[i]));
		return size;
	}
	return capriole_read_memory(to, from, size);
}

/* Reads all of `size` bytes at `from`, or clears `to`. */
static u32 read_all(struct state *state, u64 to, u64 from, u64 size)
{
	if (read_some(state, to, from, size) == size)
		return 1;
	for (u64 i = 0; i < size; i++)
		WRITE(((u8 *)to)[i], 0);
	return 0;
}

/* Appends a number as the next field. */
static void put(struct state *state, u64 value)
{
	u64 index = (state->at - state->fields) / 8;
	if (index < state->keeps)
		WRITE(state->words->word[index], value);
	state->begin = state->at;
	state->value = value;
	WRITE(*(u64 *)state->at, value);
	state->at += 8;
}

/* Clears the bytes from `end` to the next multiple of 8, where the next field goes. */
static void pad(struct state *state, u64 end)
{
	while (end & 7)
		WRITE(*(u8 *)end++, 0);
	state->at = end;
}

/* Copies a string of at most `limit` bytes, up to its NUL, which is left out, to where the next
 * field goes, after its length. Most strings are short: the first read is small; and no read
 * crosses a page boundary, since the next page may be missing. If the first byte, or one before the
 * end, cannot be read, there is no string: returns 0. */
static u32 copy_string(struct state *state, u64 from, u64 limit)
{
	u64 begin = state->at, length = 0, most = 64;
	u32 good = 1;
	while (good && length < limit) {
		u64 size = 4096 - ((from + length) & 4095);
		if (size > most)
			size = most;
		if (size > limit - length)
			size = limit - length;
		u64 to = begin + 4 + length;
		good = read_all(state, to, from + length, size);
		u64 i = 0;
		while (good && i < size && READ(*(u8 *)(to + i)))
			i++;
		length += i;
		if (i < size)
			break;
		most = 4096;
	}
	if (!good)
		length = 0;
	WRITE(*(u32 *)begin, (u32)length);
	pad(state, begin + 4 + length);
	return good;
}

/* Reports whether a byte is in the set after a `[`; *next becomes what follows the `]`. */
static u32 in_set(const u8 *set, const u8 *end, u8 byte, const u8 **next)
{
	u32 negated = set < end && (*set == '!' || *set == '^'), found = 0;
	set += negated;
	for (const u8 *first = set; set < end && (*set != ']' || set == first); set++) {
		if (set + 2 < end && set[1] == '-' && set[2] != ']') {
			found |= byte >= set[0] && byte <= set[2];
			set += 2;
		} else {
			found |= byte == *set;
		}
	}
	*next = set < end ? set + 1 : end;
	return found != negated;
}

/* Reports whether a string matches a pattern of `*`, `?` and `[...]`; a backslash makes the next
 * character literal. */
static u32 matches(const u8 *text, const u8 *text_end, const u8 *pattern, const u8 *end)
{
	const u8 *star = 0, *from = 0;
	for (;;) {
		if (pattern < end && *pattern == '*') {
			star = ++pattern;
			from = text;
			continue;
		}
		if (text == text_end && pattern == end)
			return 1;
		if (text < text_end && pattern < end) {
			const u8 *next = pattern + 1;
			u32 same;
			if (*pattern == '?') {
				same = 1;
			} else if (*pattern == '[') {
				same = in_set(pattern + 1, end, *text, &next);
			} else {
				if (*pattern == '\\' && next < end)
					pattern = next++;
				same = *pattern == *text;
			}
			if (same) {
				pattern = next;
				text++;
				continue;
			}
		}
		if (!star || from == text_end)
			return 0;
		text = ++from;
		pattern = star;
	}
}

/* Narrows a number: `how` gives its width and sign; `bits`, if not 0, the bits of it to use. */
static inline u64 number(u64 value, u32 how, u32 bits)
{
	u32 shift = 64 - 8 * (how & TEST_BYTES);
	if (bits) {
		shift = 64 - (bits & 0xff);
		value >>= bits >> 8;
	}
	if (how & TEST_SIGNED)
		return (u64)((s64)(value << shift) >> shift);
	return value << shift >> shift;
}

/* Compares a number with another: `how` gives its width and sign, and the comparison. */
static u32 compares(u64 value, u32 how, u32 bits, u64 with)
{
	value = number(value, how, bits);
	u32 less = how & TEST_SIGNED ? (s64)value < (s64)with : value < with;
	switch (how & TEST_MASK) {
	case TEST_EQUAL: return value == with;
	case TEST_LESS: return less;
	case TEST_LESS_OR_EQUAL: return less || value == with;
	default: return (value & with) != 0;
	}
}

/* Marks a field as one that could not be read. */
static inline void fault(struct state *state, const struct step *step)
{
	state->bad = 1;
	if (step->field < 64)
		state->faults |= 1ul << step->field;
}

/* Returns the histogram bucket that a number belongs to. */
static u32 bucket_of(u64 value, u32 is_signed)
{
	u32 first = 0;
	if (is_signed && (s64)value < 0) {
		value = -value;
		first = BUCKETS;
	}
	if (value < 1 << BUCKET_BITS)
		return first + (u32)value;
	u32 shift = 63 - (u32)__builtin_clzl(value) - BUCKET_BITS;
	return first + (shift << BUCKET_BITS) + (u32)(value >> shift);
}

/* Adds to a counter of this CPU, or makes it the larger of the two, as one restartable sequence:
 * only if this thread still runs on `cpu`. Returns 1 if that was done. In entry.S. */
extern u32 capriole_add(u64 *cell, u64 amount, u32 cpu, s64 rseq_offset, u32 maximum);

static void add_to(u64 counter, u64 amount, u32 maximum)
{
	u64 *own = (u64 *)capriole_config.counters + counter;
	if (capriole_config.flags & FLAG_RSEQ) {
		for (u32 attempt = 0; attempt < 4; attempt++) {
			u32 cpu = thread_word(capriole_config.rseq_offset + 4);
			if (cpu >= capriole_config.cpus)
				break;
			u64 *cell = own + (u64)cpu * capriole_config.counter_stride / 8;
			if (capriole_add(cell, amount, cpu, capriole_config.rseq_offset, maximum))
				return;
		}
	}
	u64 *shared = own + (u64)capriole_config.cpus * capriole_config.counter_stride / 8;
	if (!maximum) {
		__sync_fetch_and_add(shared, amount);
		return;
	}
	u64 old = READ(*shared);
	/* It only grows, unless it is overwritten. */
	for (u32 attempt = 0; old < amount && attempt < 1000; attempt++) {
		u64 seen = __sync_val_compare_and_swap(shared, old, amount);
		if (seen == old)
			break;
		old = seen;
	}
}

void capriole_count(u64 counter)
{
	add_to(counter, 1, 0);
}

u32 capriole_hash(u32 tag, const u64 *key, u32 length)
{
	u32 hash = tag;
	for (u32 i = 0; i < length / 8; i++) {
		if (i)
			hash = hash << DIRECTORY_HASH_ROTATE | hash >> (32 - DIRECTORY_HASH_ROTATE);
		u32 high = (u32)(key[i] >> 32);
		high = high << DIRECTORY_HASH_ROTATE | high >> (32 - DIRECTORY_HASH_ROTATE);
		hash = (hash ^ (u32)key[i] ^ high) * DIRECTORY_HASH_FACTOR;
	}
	return hash;
}

static inline struct row *row_at(const struct table *table, u32 index)
{
	u64 directory = capriole_config.directories + table->directory;
	return (struct row *)(directory + DIRECTORY_HEAD + (u64)index * (DIRECTORY_KEY + table->key_size));
}

/* Reports whether a row that has the tag `found` is that of a key. */
static u32 is_row_of(struct row *row, u32 found, u32 tag, const u64 *key, u32 length)
{
	u32 same = found == tag && (READ(row->length) & ~DIRECTORY_DOUBTFUL) == length;
	for (u32 k = 0; same && k < length / 8; k++)
		same = READ(row->key[k]) == key[k];
	return same;
}

/* Returns the row of a key of `length` bytes, a multiple of 8, and assigns one if there is none and
 * room for it. Rows are never taken back: one whose key is just being written by another thread is
 * skipped, and at worst the key gets two rows. Returns ~0 if there is no room.
 *
 * The key of a skipped row may be this one, which then has hits both in the row and in a summary.
 * If there is no room, all skipped rows are marked as doubtful, and looked at once more: so a key
 * with hits in a summary either has no row, or one that is marked. (A further program of the same
 * hit, for another cell, may find that row, and add to it what the summary has already. That takes
 * a thread that is interrupted while it writes this very key into the last free row.) */
static u32 find_row(const struct table *table, u32 event, const u64 *key, u32 length)
{
	if (!table->key_size)
		return event - table->first_event;
	if (length > table->key_size)
		return ~0u; /* no key is so long; but what follows is not this row's */
	u32 tag = event + DIRECTORY_FIRST_TAG;
	u32 first = (capriole_hash(tag, key, length) >> table->shift) * DIRECTORY_WAYS;
	u32 probes = DIRECTORY_PROBED_SETS * DIRECTORY_WAYS;
	_Static_assert(DIRECTORY_PROBED_SETS * DIRECTORY_WAYS <= 64, "a bit for each");
	u64 skipped = 0;
	for (u32 i = 0; i < probes && i < table->rows; i++) {
		u32 index = (first + i) & (table->rows - 1);
		struct row *row = row_at(table, index);
		u32 found = READ(row->tag);
		if (found == DIRECTORY_FREE) {
			found = __sync_val_compare_and_swap(&row->tag, DIRECTORY_FREE, DIRECTORY_CLAIMED);
			if (found == DIRECTORY_FREE) {
				for (u32 k = 0; k < length / 8; k++)
					WRITE(row->key[k], key[k]);
				/* It was 0, or another thread has marked the row already. */
				__sync_fetch_and_or(&row->length, length);
				barrier();
				WRITE(row->tag, tag);
				return index;
			}
		}
		if (found == DIRECTORY_CLAIMED)
			skipped |= 1ul << i;
		if (is_row_of(row, found, tag, key, length))
			return index;
	}
	for (; skipped; skipped &= skipped - 1) {
		u32 index = (first + (u32)__builtin_ctzl(skipped)) & (table->rows - 1);
		struct row *row = row_at(table, index);
		__sync_fetch_and_or(&row->length, DIRECTORY_DOUBTFUL);
		if (is_row_of(row, READ(row->tag), tag, key, length))
			return index;
	}
	return ~0u;
}

/* Changes a cell of the row. In a summary only the holder of the lane does that. */
static void change(const struct state *state, u64 cell, u64 amount, u32 maximum)
{
	if (!state->summary) {
		add_to(state->row + cell, amount, maximum);
		return;
	}
	u64 old = READ(state->summary[cell]);
	if (!maximum)
		WRITE(state->summary[cell], old + amount);
	else if (old < amount)
		WRITE(state->summary[cell], amount);
}

/* Adds to the cell of a row as a step says. */
static void tally(const struct step *step, const struct state *state)
{
	u64 value = 1, cell = step->limit;
	u32 op = step->a & TALLY_MASK;
	if (step->field < 64 && state->faults >> step->field & 1)
		return; /* not read */
	if (op != TALLY_ONE)
		value = number(READ(((u64 *)state->key)[step->bit]), step->a, step->count);
	if (op == TALLY_BUCKET) {
		cell += bucket_of(value, step->a & TEST_SIGNED && !step->count);
		value = 1;
	}
	if (op == TALLY_MAXIMUM)
		value ^= step->value;
	change(state, cell, value, op == TALLY_MAXIMUM);
}

/* Returns the slot of a call. `call` is its function's number, and above it the area that its slot
 * is in. See crates/codegen/src/x86_64/detour/timing.rs. */
static struct frame *frame_of(u64 stack, u32 call)
{
	u32 index = (u32)(stack >> FRAME_GRAIN_SHIFT) + (u32)(stack >> FRAME_TAG_SHIFT) * FRAME_SPREAD;
	u64 area = call >> FRAME_CALL_BITS;
	u64 slot = area * (capriole_config.frame_mask + 1ul) + (index & capriole_config.frame_mask);
	return (struct frame *)(capriole_config.frames + (slot << capriole_config.frame_shift));
}

/* The owner word of a slot that belongs to the call whose return address is at `stack`. */
static inline u64 owner_of(u64 stack, u32 call)
{
	return stack | (u64)call << (64 - FRAME_CALL_BITS);
}

/* The owner word of such a slot if the filter has rejected the call at its entry. */
static inline u64 rejected(u64 stack, u32 call)
{
	return owner_of(stack, call) | FRAME_REJECTED;
}

/* Adds to a time the tag of the stack that it is for. */
static inline u64 moved_by(u64 stack, u64 time)
{
	return time + (stack >> FRAME_TAG_SHIFT << FRAME_TIME_SHIFT);
}

/* Computes how many time stamps before `time` the call began. Another call may have taken its slot,
 * or be taking it: then returns 0. */
static u32 latency(u64 stack, u32 call, u64 time, u64 *value)
{
	if (!capriole_config.frames)
		return 0;
	struct frame *frame = frame_of(stack, call);
	if (READ(frame->owner) != owner_of(stack, call))
		return 0;
	*value = moved_by(stack, time) - READ(frame->begin);
	return *value >> FRAME_TIME_SHIFT == 0;
}

/* Reads a word that the call has kept. Each half tells whose it is. */
static u32 kept(u64 stack, u32 call, u32 word, u64 *value)
{
	if (!capriole_config.frames)
		return 0;
	struct frame *frame = frame_of(stack, call);
	if (READ(frame->owner) != owner_of(stack, call))
		return 0;
	u64 low = READ(frame->kept[word][0]), high = READ(frame->kept[word][1]);
	u32 tag = (u32)(stack >> FRAME_TAG_SHIFT);
	if ((u32)(low >> 32) != tag || (u32)(high >> 32) != tag)
		return 0;
	*value = (u32)low | high << 32;
	return 1;
}

/* Begins a call that keeps `count` words, of which some could not be read. */
static void enter(u64 stack, u32 call, const u64 *words, u32 count, u64 faults)
{
	if (!capriole_config.frames)
		return;
	struct frame *frame = frame_of(stack, call);
	u64 tag = stack >> FRAME_TAG_SHIFT << 32;
	for (u32 i = 0; i < count; i++) {
		u64 value = READ(words[i]), own = faults >> i & 1 ? ~tag >> 32 << 32 : tag;
		WRITE(frame->kept[i][0], (u32)value | own);
		WRITE(frame->kept[i][1], value >> 32 | own);
	}
	WRITE(frame->owner, owner_of(stack, call));
	/* Last, so that the call is not charged for fetching its words. */
	WRITE(frame->begin, moved_by(stack, read_tsc()));
}

/* Notes that a filter has rejected the call: words that an earlier one left there are not its own, and
 * its end does not count. */
static void reject(u64 stack, u32 call)
{
	if (capriole_config.frames)
		WRITE(frame_of(stack, call)->owner, rejected(stack, call));
}

/* Returns 1 if a filter has rejected the call at its entry. */
static u32 is_rejected(u64 stack, u32 call)
{
	return capriole_config.frames && READ(frame_of(stack, call)->owner) == rejected(stack, call);
}

/* Fetches, formats, filters and adds up as a program says. Returns 1 if the event is to be
 * recorded. */
static u32 run(const struct program *program, struct state *state)
{
	u64 word;
	for (u32 i = 0; i < program->steps; i++) {
		const struct step *step = &program->step[i];
		u64 address = state->value + step->value, bit = 1ul << (step->bit & 63);
		const u8 *text = (const u8 *)program + step->value;
		switch (step->op) {
		case STEP_REGISTER:
			state->bad = 0;
			state->value = step->a == 4 ? state->stack : state->registers[step->a];
			break;
		case STEP_INDEX:
			state->value += (step->a == 4 ? state->stack : state->registers[step->a])
			                << (step->bit & 63);
			break;
		case STEP_IMMEDIATE:
			state->bad = 0;
			state->value = step->value;
			break;
		case STEP_POINTER:
			word = 0;
			if (!state->bad && !read_all(state, (u64)&word, address, 8))
				fault(state, step);
			state->value = READ(word);
			break;
		case STEP_KEEP:
			put(state, state->value);
			break;
		case STEP_READ: {
			u64 size = (u64)step->a * step->count;
			if (size <= 8) {
				word = 0;
				if (state->bad || !read_all(state, (u64)&word, address, size))
					fault(state, step);
				put(state, READ(word));
				break;
			}
			state->begin = state->at;
			if (state->bad || !read_all(state, state->at, address, size)) {
				fault(state, step);
				for (u64 k = 0; k < size; k++)
					WRITE(((u8 *)state->at)[k], 0);
			}
			pad(state, state->at + size);
			state->value = READ(*(u64 *)state->begin);
			break;
		}
		case STEP_STRING:
			state->begin = state->at;
			if (state->bad || !copy_string(state, address, step->limit)) {
				fault(state, step);
				state->at = state->begin;
				WRITE(*(u64 *)state->at, 0);
				state->at += 8;
			}
			break;
		case STEP_LOAD:
			word = 0;
			if (!state->bad && (step->a > 8 || !read_all(state, (u64)&word, address, step->a)))
				fault(state, step);
			state->value = READ(word);
			break;
		case STEP_LENGTH:
			if (state->bad || !step->a) {
				state->length = NO_LENGTH;
				break;
			}
			word = state->value;
			if (step->bit)
				word = __builtin_bswap64(word) >> (64 - 8 * (step->a & TEST_BYTES));
			word = number(word, step->a, step->count) - step->value;
			if ((s64)word < 0) /* the result of a call that failed: there is nothing */
				word = 0;
			state->length = word < 0xffff ? (u32)word : 0xffff;
			break;
		case STEP_BYTES: {
			u64 length = 0, most = state->length < step->limit ? state->length : step->limit;
			state->begin = state->at;
			if (state->length == NO_LENGTH)
				fault(state, step);
			if (!state->bad && most) {
				length = read_some(state, state->at + 4, address, most);
				if (!length)
					fault(state, step);
			}
			WRITE(*(u32 *)state->begin, (u32)length);
			pad(state, state->begin + 4 + length);
			break;
		}
		case STEP_STRINGS:
			state->begin = state->at;
			for (u32 k = 0; k < step->count; k++) {
				u64 begin = state->at;
				word = 0;
				if (!state->bad && !read_all(state, (u64)&word, address + 8 * k, 8))
					fault(state, step);
				if (state->bad || !copy_string(state, READ(word), step->limit)) {
					fault(state, step);
					WRITE(*(u64 *)begin, 0);
					state->at = begin + 8;
				}
			}
			break;
		case STEP_CHAIN: {
			u64 window = (u64)state->lane * capriole_config.cpus + state->cpu;
			window = capriole_config.windows ? capriole_config.windows + CHAIN_WINDOW * window : 0;
			state->begin = state->at;
			state->at += 8 * (1 + capriole_chain((u64 *)state->at, step, state->stack, state->value,
							     window));
			break;
		}
		case STEP_COMM: {
			u64 length = 0;
			state->bad = 0;
			state->begin = state->at;
			for (u64 k = 0; k < 3; k++)
				WRITE(((u64 *)state->at)[k], 0);
			if (begin_call()) {
				syscall4(157 /* prctl */, 16 /* PR_GET_NAME */, state->at + 4, 0, 0);
				end_call();
			}
			while (length < 16 && READ(((u8 *)state->at)[4 + length]))
				length++;
			WRITE(*(u32 *)state->at, (u32)length);
			pad(state, state->at + 4 + length);
			break;
		}
		case STEP_TEXT:
			state->bad = 0;
			state->begin = state->at;
			WRITE(*(u32 *)state->at, step->count);
			for (u32 k = 0; k < step->count; k++)
				WRITE(((u8 *)state->at)[4 + k], text[k]);
			pad(state, state->at + 4 + step->count);
			break;
		case STEP_TEST:
			if (!state->bad && compares(state->value, step->a, step->count, step->value))
				state->truth |= bit;
			break;
		case STEP_TEST_THREAD:
			if (compares(told_id(), step->a, 0, step->value))
				state->truth |= bit;
			break;
		case STEP_TEST_CPU:
			if (compares(state->cpu, step->a, 0, step->value))
				state->truth |= bit;
			break;
		case STEP_TEST_TEXT: {
			const u8 *from = (const u8 *)state->begin + 4;
			u64 length = READ(*(u32 *)state->begin), room = state->at - (u64)from;
			if (length > room)
				length = room;
			if (!state->bad && matches(from, from + length, text, text + step->count))
				state->truth |= bit;
			break;
		}
		case STEP_UNLESS:
			if (!(state->truth & bit))
				i += step->count;
			break;
		case STEP_WHEN:
			if (state->truth & bit)
				i += step->count;
			break;
		case STEP_CASE:
			if (state->bad || !compares(state->value, step->a, step->count, step->value))
				i += step->limit;
			break;
		case STEP_SKIP:
			i += step->limit;
			break;
		case STEP_THREAD:
		case STEP_CPU:
			state->bad = 0;
			state->value = step->op == STEP_CPU ? state->cpu : told_id();
			if (!state->value && step->op == STEP_THREAD && begin_call()) {
				state->value = (u64)syscall4(186 /* gettid */, 0, 0, 0, 0);
				end_call();
			}
			break;
		case STEP_NARROW:
			if (!state->bad) {
				u64 *content = (u64 *)state->begin;
				WRITE(*content, number(READ(*content), step->a, step->count));
			}
			break;
		case STEP_SWAP: /* not in `words`: a word that is kept is reversed at the exit */
			state->value = __builtin_bswap64(state->value) >> (64 - 8 * step->a);
			WRITE(*(u64 *)state->begin, state->value);
			break;
		case STEP_LATENCY:
			state->bad = 0;
			if (!latency(state->stack, (u32)step->value, state->time, &state->value)) {
				if (is_rejected(state->stack, (u32)step->value))
					return 0;
				state->value = 0;
				fault(state, step);
			}
			break;
		case STEP_VECTOR:
			state->bad = 0;
			state->value = vector(step->a);
			break;
		case STEP_KEPT:
			state->bad = 0;
			if (!kept(state->stack, (u32)step->value, step->count, &state->value)) {
				if (is_rejected(state->stack, (u32)step->value))
					return 0;
				state->value = 0;
				fault(state, step);
			}
			break;
		case STEP_REJECTED:
			reject(state->stack, (u32)step->value);
			break;
		case STEP_ENTER:
			enter(state->stack, (u32)step->value, state->words->word, step->count, state->faults);
			break;
		case STEP_KEY:
			state->key = state->at;
			if (program->flags & PROGRAM_FAULTS)
				WRITE(*(u64 *)state->fields, state->faults);
			break;
		case STEP_ROW: {
			const struct table *table = (const struct table *)text;
			u32 length = (u32)(state->key - state->fields);
			const u64 *key = (const u64 *)state->fields;
			u32 row = find_row(table, state->event, key, length);
			state->summary = 0;
			if (row != ~0u) {
				state->row = table->first_cell + (u64)row * table->cells;
				break;
			}
			if (!step->a)
				return 0; /* the first program of this hit has counted it in a summary */
			u32 hash = capriole_hash(state->event + DIRECTORY_FIRST_TAG, key, length);
			state->summary = capriole_summarise(table, state->event, key, length, hash,
							    state->cpu, state->lane);
			if (!state->summary) {
				u64 directory = capriole_config.directories + table->directory;
				__sync_fetch_and_add((u64 *)(directory + DIRECTORY_DROPPED), 1);
				return 0;
			}
			break;
		}
		case STEP_SUMMARY:
			if (!state->summary)
				i += step->count;
			break;
		case STEP_TALLY:
			tally(step, state);
			break;
		case STEP_UNREADABLE:
			if (state->faults & step->value)
				change(state, step->limit, 1, 0);
			break;
		case STEP_WORD:
			if (state->bad)
				state->words->unread |= 1u << (step->limit & 31);
			if (step->limit < INTERVAL_MOST_WORDS)
				WRITE(state->words->word[step->limit],
				      number(state->value, step->a, step->count));
			break;
		case STEP_START:
			capriole_start((const struct intervals *)text, state->words);
			break;
		case STEP_END:
			if (!capriole_end((const struct intervals *)text, state->words, state->time,
					  &state->ticks))
				return 0;
			break;
		case STEP_INTERVAL:
			state->bad = 0;
			state->value = state->ticks;
			break;
		case STEP_STARTED:
			state->bad = 0;
			state->value = 0;
			if (state->words->unread >> (step->count & 31) & 1)
				fault(state, step);
			else if (step->count < INTERVAL_MOST_WORDS)
				state->value = READ(state->words->word[step->count]);
			break;
		case STEP_DROP_CONTENT: /* fetched for the filter only */
			state->at = state->begin;
			break;
		default: /* STEP_REJECT */
			return 0;
		}
	}
	return 1;
}

/* Records an event whose fields are more than registers, or that has a filter on such fields; or
 * adds it to a table. `registers` are those of the site, in the order of their numbers; the stack
 * pointer is passed separately. The lane is held meanwhile, so that the fields can be read right
 * into the packet, and take no stack. */
void capriole_run(const u64 *registers, const struct program *program, u32 event, u64 stack)
{
	struct place place;
	struct words words;
	struct state state = { .registers = registers, .stack = stack, .words = &words, .event = event };
	if (!take_place(&place, event, program->size, stack))
		return;
	state.cpu = place.cpu;
	state.lane = place.lane;
	state.time = place.time;
	state.fields = (u64)place.record->field;
	state.at = state.fields;
	if (program->flags & PROGRAM_FAULTS)
		state.at += 8;
	words.unread = 0;
	state.keeps = program->flags & PROGRAM_INTERVAL ? 0 : MOST_WORDS;
	u32 wanted = run(program, &state);
	if (program->flags & PROGRAM_TALLY)
		wanted = 0;
	else if (program->flags & PROGRAM_FAULTS)
		WRITE(*(u64 *)state.fields, state.faults);
	leave_place(&place, wanted ? state.at - (u64)place.record : 0);
}

/* The parts of the kernel's signal frame that are used (x86-64 ABI of rt_sigframe: siginfo.si_code
 * at 8, ucontext.uc_mcontext.gregs[REG_RIP] at 168). */
#define SIGINFO_CODE(info) (*(s32 *)((u8 *)(info) + 8))
#define SIGINFO_ADDRESS(info) (*(u64 *)((u8 *)(info) + 16))
#define UCONTEXT_WORD(context, at) (*(u64 *)((u8 *)(context) + (at)))
#define UCONTEXT_FLAGS(context) UCONTEXT_WORD(context, 0)
#define UCONTEXT_STACK_FLAGS(context) (*(u32 *)((u8 *)(context) + 24))
#define UCONTEXT_RSP(context) UCONTEXT_WORD(context, TRAP_REGISTERS + 8 * 15)
#define UCONTEXT_RIP(context) UCONTEXT_WORD(context, TRAP_REGISTERS + 8 * 16)
#define UCONTEXT_EFLAGS(context) UCONTEXT_WORD(context, TRAP_REGISTERS + 8 * 17)
#define UCONTEXT_SEGMENTS(context) UCONTEXT_WORD(context, TRAP_REGISTERS + 8 * 18)
#define UCONTEXT_FPSTATE(context) UCONTEXT_WORD(context, TRAP_REGISTERS + 8 * 23)
#define UCONTEXT_SIGMASK(context) UCONTEXT_WORD(context, 296)
#define SI_KERNEL 0x80

/* Of SIGTRAP, in `config.actions`. */
#define TRAP_INDEX (OWN_SIGNALS - 1)

/* What the kernel writes into uc_flags in a 64-bit program: UC_FP_XSTATE, UC_SIGCONTEXT_SS,
 * UC_STRICT_RESTORE_SS. */
#define USUAL_UC_FLAGS 7
/* SS_ONSTACK, SS_DISABLE. */
#define USUAL_STACK_FLAGS 3u
/* CF, PF, AF, ZF, SF, IF, DF, OF, ID and the bit that is always set. */
#define USUAL_EFLAGS 0x200ed7ul
/* Selectors of a 64-bit program. */
#define USER_CS 0x33
#define USER_SS 0x2b

/* The notes of the kernel in the part of an XSAVE area that the processor does not use (struct
 * _fpx_sw_bytes), and the processor's note of the components that are not in their initial state. */
#define FPSTATE_MAGIC(state) (*(const u32 *)((state) + 464))
#define FPSTATE_SIZE(state) (*(const u32 *)((state) + 468))
#define FPSTATE_FEATURES(state) (*(const u64 *)((state) + 472))
#define FPSTATE_USED(state) (*(const u64 *)((state) + 512))
#define FP_XSTATE_MAGIC1 0x46505853
#define FEATURE_PKRU (1ul << 9)
/* The rights of a program that does not use protection keys: key 0 only. */
#define USUAL_PKRU 0x55555554u

/* An int3, in entry.S. */
extern const u8 capriole_breakpoint[] __attribute__((visibility("hidden")));

/* In entry.S. */
__attribute__((noreturn)) void capriole_go_on(u64 *registers);

/* Returns the number of a signal in `config.actions`; OWN_SIGNALS for any other. */
static inline u32 index_of(u32 signal)
{
	switch (signal) {
	case 4: return 0;
	case 7: return 1;
	case 8: return 2;
	case 11: return 3;
	case 5: return TRAP_INDEX;
	default: return OWN_SIGNALS;
	}
}

/* Returns the action that was set as number `number`; 0: the one that the tracer has replaced. */
static inline const u64 *action_of(u32 index, u32 number)
{
	return number ? OWN->kept[index][number % OWN_KEPT_ACTIONS] : capriole_config.actions[index];
}

/* Returns the program's own action, which our handler stands before. */
static __attribute__((noinline, cold)) const u64 *own_action(u32 index)
{
	return action_of(index, READ(OWN->newest[index]));
}

/* Leads a thread back from the handler of SIGTRAP without rt_sigreturn(2), which takes a fifth of
 * the time of a hit, if that does the same; else returns. All registers are restored: the vector
 * registers and the like, which the kernel has reset for the handler, by the instruction and the
 * mask with which it would load them, from the same bytes. Of what rt_sigreturn does apart from
 * that, nothing may be needed here:
 *
 * - The mask of blocked signals: ours was installed with SA_NODEFER, so the kernel has added those
 *   of the program's own action, without SIGTRAP. All of them must have been blocked before.
 * - The alternate stack: the kernel has changed it if it is SS_AUTODISARM, and only then.
 * - The shadow stack: the kernel has pushed a token if there is one.
 * - Access rights by protection keys: once they are loaded, the stack is read, which unusual rights
 *   could forbid.
 * - Segments and flags: none that `popf` and `ret` do not restore. With the trap flag there would
 *   be one trap more than after rt_sigreturn, before the detour; with the alignment check the
 *   words on the program's stack could fault.
 * - `restart_block`: it stays as the program's last call has left it, as without a breakpoint.
 * - Whatever a later kernel keeps in the frame: it would be told by `uc_flags`, or be among the
 *   components of the vector registers' mask.
 *
 * The frame must be right below the red zone of the interrupted stack: not on an alternate stack,
 * while a thread is on which nothing protects the words that are written to the interrupted one.
 * The frame ends with the vector registers, at most 64 bytes apart, since they begin at a multiple
 * of 64. The words lie in their last bytes, and below that gap: the kernel has just written there,
 * so this cannot fault. */
static inline void go_on(void *context)
{
	const u8 *state = (const u8 *)UCONTEXT_FPSTATE(context);
	u64 segments = UCONTEXT_SEGMENTS(context), shadow_stack = 0;
	u64 added = READ(own_action(TRAP_INDEX)[3]) & ~(1ul << (5 - 1));
	if (UCONTEXT_FLAGS(context) != USUAL_UC_FLAGS ||
	    UCONTEXT_STACK_FLAGS(context) & ~USUAL_STACK_FLAGS ||
	    UCONTEXT_EFLAGS(context) & ~USUAL_EFLAGS ||
	    (u16)segments != USER_CS || segments >> 48 != USER_SS ||
	    added & ~UCONTEXT_SIGMASK(context))
		return;
	if (!state || FPSTATE_MAGIC(state) != FP_XSTATE_MAGIC1)
		return;
	u64 features = FPSTATE_FEATURES(state);
	u64 stack = UCONTEXT_RSP(context);
	if (stack - 128 - ((u64)state + FPSTATE_SIZE(state)) >= TRAP_ABOVE - 128)
		return;
	if (features & FPSTATE_USED(state) & FEATURE_PKRU &&
	    *(const u32 *)(state + capriole_config.pkru) != USUAL_PKRU)
		return;
	/* A nop where there are no shadow stacks. */
	__asm__ volatile("rdsspq %0" : "+r"(shadow_stack));
	if (shadow_stack)
		return;
	__asm__ volatile("xrstor64 (%0)" :: "r"(state), "a"(features), "d"(features >> 32) : "memory");
	u64 *words = (u64 *)(stack - TRAP_ABOVE) - 2;
	WRITE(words[0], UCONTEXT_EFLAGS(context));
	WRITE(words[1], UCONTEXT_RIP(context));
	WRITE(UCONTEXT_RSP(context), (u64)words);
	capriole_go_on(&UCONTEXT_WORD(context, TRAP_REGISTERS));
}

/* Handles SIGTRAP: from a breakpoint probe, or from elsewhere. */
void capriole_trap(int signal, void *info, void *context)
{
	if (SIGINFO_CODE(info) == SI_KERNEL) {
		/* Read once: another table may replace it meanwhile. */
		const struct traps *table = (const struct traps *)READ(*(u64 *)&capriole_config.traps);
		u64 site = UCONTEXT_RIP(context) - 1;
		for (; table; table = (const struct traps *)table->older) {
			const struct trap *traps = table->trap;
			u64 low = 0, high = table->count;
			while (low < high) {
				u64 middle = low + (high - low) / 2;
				if (traps[middle].site == site) {
					/* Also if the frame is not used any more: nothing that points
					 * to the site may stay on a stack. */
					UCONTEXT_RIP(context) = READ(traps[middle].detour);
					go_on(context);
					return;
				}
				if (traps[middle].site < site)
					low = middle + 1;
				else
					high = middle;
			}
		}
	}
	u64 handler = READ(own_action(TRAP_INDEX)[0]);
	if (handler > 1) {
		((void (*)(int, void *, void *))handler)(signal, info, context);
		return;
	}
	if (handler == 1 && SIGINFO_CODE(info) <= 0)
		return; /* sent by a process, and ignored */
	/* The default: end the program as it would have ended. The kernel does that when the thread
	 * runs into a breakpoint with SIGTRAP blocked, whatever the handler; and that needs no
	 * system call except the return from here. */
	UCONTEXT_SIGMASK(context) |= 1ul << (signal - 1);
	UCONTEXT_RIP(context) = (u64)capriole_breakpoint;
}

/* Returns where a handler that steps over an instruction, to an original nearby, continues: at its
 * copy, if it may be covered by the jump of a probe. Not if that jump begins there, which leads to
 * the probe. */
static u64 copy_of(const struct traps *table, u64 original)
{
	for (; table; table = (const struct traps *)table->older) {
		for (u64 row = 0; row + 1 < table->count; row++) {
			u64 flags = table->trap[row].detour & (COPY_EXACT | COPY_CHANGED);
			u64 first = table->trap[row].detour ^ flags, start = table->trap[row].site;
			u64 length = flags & COPY_EXACT ? 1 : table->trap[row + 1].site - start;
			if (!first || first & COPY_CODE || original - first >= length)
				continue;
			return original == first && flags & COPY_CHANGED ? original : start + (original - first);
		}
	}
	return original;
}

/* True if a handler that steps over the instruction at `at`, to an original nearby, may come to one
 * that has a copy. */
static int is_near_copies(const struct traps *table, u64 at)
{
	for (; table; table = (const struct traps *)table->older) {
		for (u64 row = 0; row + 1 < table->count; row++) {
			u64 first = table->trap[row].detour & ~(COPY_EXACT | COPY_CHANGED);
			u64 length = table->trap[row + 1].site - table->trap[row].site;
			if (first && !(first & COPY_CODE) && at - first + MAX_STEP < length + 2 * MAX_STEP)
				return 1;
		}
	}
	return 0;
}

/* Returns the original of the instruction at `at`, if that is a copy; else 0. */
static u64 original_of(const struct traps *table, u64 at)
{
	for (; table; table = (const struct traps *)table->older) {
		/* An entry with 0 ends a row. */
		const struct trap *row = last_row(table, at);
		if (!row)
			continue;
		u64 original = row->detour & ~COPY_CHANGED;
		if (original & COPY_EXACT)
			return original & ~COPY_EXACT;
		if (original && !(original & COPY_CODE))
			return original + (at - row->site);
	}
	return 0;
}

/* Handles SIGILL, SIGBUS, SIGFPE or SIGSEGV: the program's own handler is to see the fault of a
 * displaced instruction where that instruction was. If it returns to there, which means "try
 * again", the copy is tried again: the original may be covered by a jump; the same holds for an
 * instruction that it steps to, also if the jump was written only now. */
__attribute__((cold)) void capriole_fault(int signal, void *info, void *context)
{
	const struct traps *table = (const struct traps *)READ(*(u64 *)&capriole_config.copies);
	u64 at = UCONTEXT_RIP(context);
	u64 original = original_of(table, at);
	if (original) {
		UCONTEXT_RIP(context) = original;
		if ((signal == 4 || signal == 8) && SIGINFO_ADDRESS(info) == at)
			SIGINFO_ADDRESS(info) = original;
	}
	u64 from = UCONTEXT_RIP(context);
	u64 handler = READ(own_action(index_of((u32)signal))[0]);
	if (!original && !is_near_copies(table, from)) {
		/* A jump, as nothing has to be done behind it: unwinders that start in the handler,
		 * for a backtrace or an exception, find the kernel's frame there and none of ours. */
		((void (*)(int, void *, void *))handler)(signal, info, context);
		return;
	}
	((void (*)(int, void *, void *))handler)(signal, info, context);
	u64 to = UCONTEXT_RIP(context);
	if (original && to == original)
		UCONTEXT_RIP(context) = at;
	else if (to != from && to - from + MAX_STEP < 2 * MAX_STEP)
		UCONTEXT_RIP(context) = copy_of(table, to);
}

/* Flags of an action (asm/signal.h). */
#define SA_SIGINFO 4ul
#define SA_RESTORER 0x04000000ul
#define SA_ONSTACK 0x08000000ul
#define SA_RESTART 0x10000000ul
#define SA_NODEFER 0x40000000ul
#define SA_RESETHAND 0x80000000ul

#define SIGACTION 13

/* In entry.S. */
extern const u8 capriole_restorer[] __attribute__((visibility("hidden")));

/* Returns our handler of a signal. */
static inline u64 handler_of(u32 index)
{
	return index == TRAP_INDEX ? (u64)capriole_trap : (u64)capriole_fault;
}

static inline void copy_action(u64 *to, const u64 *from)
{
	for (u32 i = 0; i < 4; i++)
		WRITE(to[i], READ(from[i]));
}

static int is_same(const u64 *one, const u64 *other)
{
	for (u32 i = 0; i < 4; i++)
		if (one[i] != other[i])
			return 0;
	return 1;
}

/* Copies the program's own action. One that is set meanwhile is copied instead of it. */
static void copy_own_action(u64 *to, u32 index)
{
	u32 number;
	do {
		number = READ(OWN->newest[index]);
		copy_action(to, action_of(index, number));
		barrier();
	} while (READ(OWN->newest[index]) != number);
}

/* After a system call that may have been rt_sigaction(2): the program never gets to see a handler of
 * ours, which it could call or put back after detach, but its own action, which ours stands in for. The
 * kernel has just written there, so it can be written; if the number is not known, the kernel reads it
 * first. */
static inline void show_action(const u64 *registers, u64 number, u32 index)
{
	u64 *old = (u64 *)registers[2];
	u64 seen = 0;
	if (!old)
		return;
	if (number == SIGACTION)
		seen = READ(*old);
	else if (capriole_read_memory((u64)&seen, (u64)old, 8) != 8)
		return;
	if (seen == handler_of(index))
		copy_own_action(old, index);
}

/* True in a process that was forked, which has memory and actions of its own, as its parent had them. In a
 * child of vfork(2), which has the memory of its parent, the C library's thread id is the parent's; such a
 * child may have noted itself as the process (asked_id), but that is not known to be right then. */
static int is_forked(u32 process)
{
	if (!READ(OWN->known) && thread_id() == process &&
	    (u32)syscall4(186 /* gettid */, 0, 0, 0, 0) == process) {
		WRITE(OWN->process, process);
		WRITE(OWN->known, 1);
	}
	return READ(OWN->known) && READ(OWN->process) == process;
}

static inline s64 sigaction(u32 signal, const u64 *new, u64 *old)
{
	return syscall4(SIGACTION, signal, (u64)new, (u64)old, 8);
}

/* True if ours is to stand before an action of the program: before all of SIGTRAP, and before handlers of
 * faults, but not before one that the kernel removes as it calls it. */
static int is_preceded(u32 index, const u64 *action)
{
	return index == TRAP_INDEX || (action[0] > 1 && !(action[1] & SA_RESETHAND));
}

/* Makes the action that stands before `own`, as the tracer installs it. */
static void make_ours(u64 *ours, u32 index, const u64 *own)
{
	ours[0] = handler_of(index);
	ours[1] = own[1] | SA_SIGINFO | SA_RESTORER;
	ours[2] = (u64)capriole_restorer;
	ours[3] = own[3];
	if (index == TRAP_INDEX) {
		ours[1] = (own[1] & (SA_ONSTACK | SA_RESTART)) | SA_SIGINFO | SA_NODEFER | SA_RESTORER;
		ours[3] &= ~(1ul << (5 - 1));
	}
}

/* Sets the program's own action again in place of ours. If the program has set another one meanwhile,
 * that one stays. */
static void put_back(u32 signal, u32 index, const u64 *own)
{
	u64 put[4], last[4] = { 0 }, was[4];
	copy_action(put, own);
	for (u32 tries = 0; tries < ATTEMPTS; tries++) {
		if (sigaction(signal, put, was) || was[0] == handler_of(index) || is_same(was, last))
			return;
		copy_action(last, put);
		copy_action(put, was);
	}
}

/* Puts our handler before the one that the program has set. Several threads may be here at once, also
 * one in a handler of a signal that has interrupted another one here, so nobody waits: the kernel
 * knows which action was set last, and who sees that something else happened meanwhile looks again.
 *
 * An action is first kept, then ours is put in its place. So whenever ours is there, it finds the
 * program's. */
static void follow(u32 signal, u32 index)
{
	for (u32 tries = 0; tries < ATTEMPTS && READ(OWN->followed) >> index & 1; tries++) {
		u32 newest = READ(OWN->newest[index]);
		u64 now[4], own[4], ours[4], was[4];
		if (sigaction(signal, 0, now))
			return;
		int is_ours = now[0] == handler_of(index);
		if (is_ours) {
			copy_own_action(own, index);
		} else if (!is_preceded(index, now)) {
			return;
		} else {
			u32 number = __sync_add_and_fetch(&OWN->numbered[index], 1);
			copy_action(own, now);
			copy_action(OWN->kept[index][number % OWN_KEPT_ACTIONS], own);
			/* If another thread was here, maybe with a newer one: look again. */
			if (!__sync_bool_compare_and_swap(&OWN->newest[index], newest, number))
				continue;
		}
		make_ours(ours, index, own);
		if (is_ours && is_same(now, ours))
			return; /* another thread has seen to it */
		if (sigaction(signal, ours, was))
			return;
		if (!(READ(OWN->followed) >> index & 1)) {
			/* The tracer takes our handlers away, and may have looked before. */
			put_back(signal, index, was[0] == ours[0] ? own : was);
			return;
		}
		if (was[0] != ours[0] && !is_same(was, now))
			put_back(signal, index, was); /* set in between: again, with that one */
		else if (!is_ours && is_same(was, now))
			return;
	}
}

/* Called after a system call that may have been rt_sigaction(2), number 13: shows the program its own
 * action, and puts our handler back if the program has set another one: that one gets what is not ours, as
 * the one before did. A breakpoint or fault that a thread runs into between the call and here is the
 * program's affair.
 *
 * A child of vfork(2) or posix_spawn(3), which sets actions of its own before it executes another
 * program, has the same memory: it is told apart by its process id. */
__attribute__((cold)) void capriole_action(const u64 *registers, u64 number)
{
	u32 signal = (u32)registers[7], index = index_of(signal);
	if (registers[0] || index == OWN_SIGNALS || (number != SIGACTION && registers[10] != 8))
		return;
	show_action(registers, number, index);
	if (!registers[6] || !(READ(OWN->followed) >> index & 1) || !may_call())
		return;
	u32 process = (u32)syscall4(39 /* getpid */, 0, 0, 0, 0);
	if (process != READ(OWN->followed_process) && is_forked(process))
		WRITE(OWN->followed_process, process);
	if (process == READ(OWN->followed_process))
		follow(signal, index);
	end_call();
}
