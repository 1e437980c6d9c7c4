/*
 * Functions of a few bytes with nothing between them, called by threads that block all signals
 * and verify each result: `tight [--threads N] [--calls N]`. So their entries and exits can be
 * probed only by jumps, and those have no room of their own. Arguments 1 and 2 are (thread, seq)
 * as those of hammer. With --calls each thread ends after so many rounds, and the program when
 * all have; else at a line on standard input or SIGTERM.
 */
#include "common.h"

#include <pthread.h>

#define BEGIN(name) ".globl " #name "\n.type " #name ", @function\n" #name ":\n"
#define END(name) ".size " #name ", . - " #name "\n"

__asm__(".pushsection .text\n.balign 32, 0xcc\n"
	/* 3 + 1 bytes: entry and exit share a jump, in which the next function's begins */
	BEGIN(tight_sum)
	"lea (%rdi,%rsi), %eax\n ret\n"
	END(tight_sum)
	/* the exit is reached from before it */
	BEGIN(tight_frame)
	"push %rbx\n mov %edi, %ebx\n lea 3(%rbx,%rsi), %eax\n nopl 0(%rax)\n pop %rbx\n ret\n"
	END(tight_frame)
	/* 2 + 1 */
	BEGIN(tight_copy)
	"mov %edi, %eax\n ret\n"
	END(tight_copy)
	/* somebody jumps to the exit, so it has one byte, and the next function's */
	BEGIN(tight_target)
	"mov %edi, %eax\n test %esi, %esi\n nopl 0(%rax)\n jle 1f\n add %esi, %eax\n 1: ret\n"
	END(tight_target)
	/* 4 + 1, in which the one byte before it ends */
	BEGIN(tight_more)
	"lea 3(%rdi,%rsi), %eax\n ret\n"
	END(tight_more)
	/* entry and exit are one instruction */
	BEGIN(tight_nothing)
	"ret\n"
	END(tight_nothing)
	/* entry and exit share a jump that would have room by itself */
	BEGIN(tight_wide)
	"mov $7, %eax\n add %edi, %eax\n ret\n"
	END(tight_wide)
	/* a tail call of two bytes */
	BEGIN(tight_tail)
	"jmp tight_last\n"
	END(tight_tail)
	/* somebody jumps to its exit, and two bytes of padding follow */
	BEGIN(tight_last)
	"lea 5(%rdi,%rsi), %eax\n test %esi, %esi\n js 1f\n inc %eax\n 1: ret\n"
	END(tight_last)
	"nop\n nop\n"
	/* and the last one */
	BEGIN(tight_end)
	"mov $7, %eax\n add %edi, %eax\n ret\n"
	END(tight_end)
	".balign 32, 0xcc\n.popsection\n");

typedef uint32_t function(uint64_t thread, uint64_t seq);
extern function tight_sum, tight_copy, tight_frame, tight_target, tight_more, tight_nothing,
	tight_wide, tight_tail, tight_end;

static uint32_t nothing(uint64_t thread, uint64_t seq)
{
	uint32_t result = (uint32_t)(thread ^ seq);
	__asm__ volatile("sub $128, %%rsp\n call tight_nothing\n add $128, %%rsp"
			 : "+a"(result), "+D"(thread), "+S"(seq)
			 :
			 : "memory", "cc");
	return result ^ (uint32_t)seq;
}

static const struct {
	function *function;
	uint32_t thread, seq, constant; /* the result: a sum with these factors */
} shapes[] = {
	{ tight_sum, 1, 1, 0 },	 { tight_copy, 1, 0, 0 }, { tight_frame, 1, 1, 3 },
	{ tight_target, 1, 1, 0 }, { tight_more, 1, 1, 3 }, { nothing, 1, 0, 0 },
	{ tight_wide, 1, 0, 7 }, { tight_tail, 1, 1, 6 },  { tight_end, 1, 0, 7 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, MAX_THREADS = 64 };

static volatile int stop;
static uint64_t most;

static void *run(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, seq = 0;
	sigset_t set;
	sigfillset(&set);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	for (; !stop && seq < most; seq++) {
		for (int i = 0; i < SHAPES; i++) {
			uint64_t small = seq & 0x7fffffff;
			uint32_t got = shapes[i].function(thread, small);
			uint32_t wanted = (uint32_t)thread * shapes[i].thread +
					  (uint32_t)small * shapes[i].seq + shapes[i].constant;
			if (got != wanted)
				BAD("shape %d, thread %d: %u instead of %u", i, (int)thread, got,
				    wanted);
		}
		if (most == UINT64_MAX)
			rest(seq);
	}
	return (void *)(uintptr_t)seq;
}

int main(int argc, char **argv)
{
	int threads = 2;
	most = UINT64_MAX;
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--calls"))
			most = strtoull(argv[i + 1], NULL, 10);
		else
			return 2;
	}
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	stop_on_sigterm();
	pthread_t pool[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&pool[i], NULL, run, (void *)(uintptr_t)i) == 0);
	ready();
	if (most == UINT64_MAX)
		wait_for_stop(0);
	uint64_t sum = 0;
	stop = most == UINT64_MAX;
	for (int i = 0; i < threads; i++) {
		void *calls;
		CHECK(pthread_join(pool[i], &calls) == 0);
		sum += (uint64_t)(uintptr_t)calls;
	}
	printf("ok calls=%llu\n", (unsigned long long)sum);
	return 0;
}
