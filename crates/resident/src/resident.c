/* The resident: what a detour cannot do in straight code.
 *
 * It is placed, position-independent and read-only, at the head of every arena.
 * It runs on the program's own stack, in the program's own threads, at any
 * moment, also inside signal handlers. Therefore:
 *
 *   - general registers only (-mgeneral-regs-only), no thread-local storage of
 *     its own, no errno, no library;
 *   - no lock that is waited for: a lane that is taken is passed over;
 *   - the only system calls are futex wake, and, when a foreign SIGTRAP has to be
 *     given its default effect, rt_sigaction and tgkill;
 *   - little stack: below 256 bytes under the detour's own (the trap handler
 *     runs on a signal frame anyway).
 */
#include "resident.h"

extern const struct config capriole_config __attribute__((visibility("hidden")));

/* A plain access that the compiler neither splits, repeats nor moves across
 * another one; on x86-64 stores become visible in program order. */
#define READ(x) (*(volatile __typeof__(x) *)&(x))
#define WRITE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define barrier() __asm__ volatile("" ::: "memory")

static inline s64 syscall4(s64 number, u64 a, u64 b, u64 c, u64 d)
{
	register u64 r10 __asm__("r10") = d;
	s64 result;
	__asm__ volatile("syscall" : "=a"(result)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

static inline u32 thread_word(s32 offset)
{
	u32 value;
	__asm__ volatile("movl %%fs:(%1), %0" : "=r"(value) : "r"((s64)offset));
	return value;
}

static inline u64 read_tsc(void)
{
	u32 low, high;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high) :: "memory");
	return (u64)high << 32 | low;
}

/* Time and, from IA32_TSC_AUX as Linux sets it, the CPU at that very moment. */
static inline u64 read_tsc_cpu(u32 *cpu)
{
	u32 low, high, aux;
	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(aux) :: "memory");
	*cpu = aux & 0xfff;
	return (u64)high << 32 | low;
}

static inline struct stream *stream_of(u32 lane, u32 cpu)
{
	return (struct stream *)capriole_config.streams + ((u64)lane * capriole_config.cpus + cpu);
}

static inline u64 *head_of(u32 lane, u32 cpu)
{
	return (u64 *)capriole_config.heads + ((u64)lane * capriole_config.cpus + cpu);
}

static inline void add_lost(struct stream *stream)
{
	__asm__ volatile("lock addq $1, %0" : "+m"(stream->lost));
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
		while (word) {
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

/* Prepares `index` as the successor of `old`. Nobody else sees it yet. */
static struct control *prepare(u32 index, struct control *old, u64 seq, u32 lane, u32 cpu,
			       struct stream *stream)
{
	struct control *new = (struct control *)capriole_config.controls + index;
	u64 packet = capriole_config.packets + ((u64)index << capriole_config.packet_shift);
	new->pos = packet + PACKET_HEADER;
	new->end = packet + (1ul << capriole_config.packet_shift);
	new->seq = seq;
	new->begin = read_tsc();
	new->lost = READ(stream->lost);
	new->prev = old->index;
	new->cpu = cpu;
	new->lane = lane;
	new->index = index;
	barrier();
	return new;
}

static __attribute__((noinline)) void wake_reader(void)
{
	volatile u32 *waiting = (volatile u32 *)(capriole_config.session + HEADER_READER_WAITING);
	/* The exchange is a full barrier: the reader sets the word, then looks at
	 * the streams; we changed the stream, then look at the word. */
	if (__sync_lock_test_and_set(waiting, 0) && !(capriole_config.flags & FLAG_NO_WAKE))
		syscall4(202 /* futex */, (u64)waiting, 1 /* FUTEX_WAKE */, 1, 0);
}

/* Replaces `old` by `new` as the packet being filled on `cpu`, as one restartable
 * sequence: only if this thread still runs on `cpu`, and `old`, in the same life
 * (seq), is still current there. Because the only writers of a lane 0 stream are
 * restartable sequences on that CPU, no record is half-way in `old` afterwards.
 * Returns 1 when the store was made. In resident.S. */
extern u32 capriole_install(u64 *head, struct control *old, u64 old_seq,
			    struct control *new, u32 cpu, s64 rseq_offset);

/* Called by a detour which found `old`, the packet of its CPU, full.
 * Returns 0: the event is lost, and counted; 1: try again; 2: this thread has no
 * restartable sequences, go the locked way. */
u32 capriole_switch_packet(struct control *old)
{
	u32 cpu = thread_word(capriole_config.rseq_offset + 4);
	if (cpu >= capriole_config.cpus)
		return 2;
	struct stream *stream = stream_of(0, cpu);
	u64 *head = head_of(0, cpu);
	if (READ(*head) != (u64)old)
		return 1; /* moved to another CPU, or somebody else was faster */
	u64 old_seq = READ(old->seq);
	u32 index = take_packet();
	if (index == NO_PACKET) {
		add_lost(stream);
		wake_reader();
		return 0;
	}
	struct control *new = prepare(index, old, old_seq + 1, 0, cpu, stream);
	if (!capriole_install(head, old, old_seq, new, cpu, capriole_config.rseq_offset)) {
		give_packet(index);
		return 1;
	}
	wake_reader();
	return 1;
}

/* Writes a record without restartable sequences: on the first lane of this CPU
 * that nobody is in. `event` is { u32 id, u32 bytes of fields }, then the fields.
 * The lane is held by an atomic exchange; one that is taken (its holder was
 * preempted, or is the very thread that this signal handler interrupted) is
 * passed over, never waited for. */
void capriole_locked_record(const u64 *event)
{
	u32 id = (u32)event[0];
	u64 size = RECORD_FIELDS + (event[0] >> 32);
	u32 tid = 0;
	if (capriole_config.flags & FLAG_TID)
		tid = thread_word(capriole_config.tid_offset);
	struct stream *stream = 0;
	for (u32 attempt = 0; attempt < 16; attempt++) {
		u32 cpu, cpu_now, lane;
		read_tsc_cpu(&cpu);
		if (cpu >= capriole_config.cpus)
			cpu = 0;
		for (lane = 1; lane < LANES; lane++) {
			stream = stream_of(lane, cpu);
			if (!READ(stream->lock) && !__sync_lock_test_and_set(&stream->lock, 1))
				break;
		}
		if (lane == LANES) {
			stream = stream_of(1, cpu);
			break;
		}
		u64 *head = head_of(lane, cpu);
		struct control *control = (struct control *)READ(*head);
		if (control->pos + size > control->end) {
			u32 index = take_packet();
			if (index == NO_PACKET) {
				__sync_lock_release(&stream->lock);
				wake_reader();
				break;
			}
			control = prepare(index, control, control->seq + 1, lane, cpu, stream);
			WRITE(*head, (u64)control);
			wake_reader();
		}
		struct record *record = (struct record *)control->pos;
		record->time = read_tsc_cpu(&cpu_now);
		if (cpu_now != cpu && cpu_now < capriole_config.cpus) {
			/* Moved since the lane was chosen: this would be told as an
			 * event of the wrong CPU. */
			__sync_lock_release(&stream->lock);
			continue;
		}
		record->id = id;
		record->tid = tid;
		for (u64 i = 0; i < (size - RECORD_FIELDS) / 8; i++)
			WRITE(record->field[i], event[1 + i]);
		barrier();
		WRITE(control->pos, control->pos + size); /* the commit */
		__sync_lock_release(&stream->lock);
		return;
	}
	add_lost(stream);
}

/* The parts of the kernel's signal frame that are looked at (x86-64 ABI of
 * rt_sigframe: siginfo.si_code at 8, ucontext.uc_mcontext.gregs[REG_RIP] at 168). */
#define SIGINFO_CODE(info) (*(s32 *)((u8 *)(info) + 8))
#define UCONTEXT_RIP(context) (*(u64 *)((u8 *)(context) + 168))
#define SIGINFO_ADDRESS(info) (*(u64 *)((u8 *)(info) + 16))
#define SI_KERNEL 0x80

/* SIGTRAP: a breakpoint probe, or somebody else's. */
void capriole_trap(int signal, void *info, void *context)
{
	if (SIGINFO_CODE(info) == SI_KERNEL) {
		/* Read once: another table may take its place meanwhile. */
		const struct traps *table = (const struct traps *)READ(*(u64 *)&capriole_config.traps);
		const struct trap *traps = table->trap;
		u64 site = UCONTEXT_RIP(context) - 1;
		u64 low = 0, high = table->count;
		while (low < high) {
			u64 middle = low + (high - low) / 2;
			if (traps[middle].site == site) {
				UCONTEXT_RIP(context) = traps[middle].detour;
				return;
			}
			if (traps[middle].site < site)
				low = middle + 1;
			else
				high = middle;
		}
	}
	u64 handler = capriole_config.old_handler;
	if (handler > 1) {
		((void (*)(int, void *, void *))handler)(signal, info, context);
		return;
	}
	if (handler == 1 && SIGINFO_CODE(info) <= 0)
		return; /* sent by a process, and ignored */
	/* The default: end the program as it would have ended. The signal is
	 * not blocked while we are here: it strikes at once. */
	u64 action[4] = { 0, 0, 0, 0 };
	syscall4(13 /* rt_sigaction */, (u64)signal, (u64)action, 0, 8);
	s64 pid = syscall4(39 /* getpid */, 0, 0, 0, 0);
	s64 tid = syscall4(186 /* gettid */, 0, 0, 0, 0);
	syscall4(234 /* tgkill */, (u64)pid, (u64)tid, (u64)signal, 0);
}

/* SIGILL, SIGBUS, SIGFPE or SIGSEGV: the program's own handler is to see the fault of a
 * displaced instruction where that instruction was. If it returns to there, which means
 * "try again", the copy is tried again: the original may be covered by a jump. */
void capriole_fault(int signal, void *info, void *context)
{
	const struct traps *table = (const struct traps *)READ(*(u64 *)&capriole_config.copies);
	u64 at = UCONTEXT_RIP(context);
	u64 original = 0;
	/* The last row of copies that starts at or before; an entry with 0 ends a row. */
	u64 low = 0, high = table->count;
	while (low < high) {
		u64 middle = low + (high - low) / 2;
		if (table->trap[middle].site <= at)
			low = middle + 1;
		else
			high = middle;
	}
	if (low > 0) {
		original = table->trap[low - 1].detour;
		if (original & COPY_EXACT)
			original &= ~COPY_EXACT;
		else if (original)
			original += at - table->trap[low - 1].site;
	}
	if (original) {
		UCONTEXT_RIP(context) = original;
		if ((signal == 4 || signal == 8) && SIGINFO_ADDRESS(info) == at)
			SIGINFO_ADDRESS(info) = original;
	}
	u64 index = signal == 4 ? 0 : signal == 7 ? 1 : signal == 8 ? 2 : 3;
	u64 handler = capriole_config.old_faults[index];
	((void (*)(int, void *, void *))handler)(signal, info, context);
	if (original && UCONTEXT_RIP(context) == original)
		UCONTEXT_RIP(context) = at;
}
