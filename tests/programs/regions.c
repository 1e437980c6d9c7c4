/*
 * Functions whose first five bytes hold two to five instructions, with every kind of end,
 * called by threads that verify each result: `regions [--threads N]`. Arguments 1 and 2
 * are (thread, seq) as those of hammer.
 *
 * A thread that gets SIGUSR1 stays in the handler until SIGUSR2 comes. The line "hold
 * ADDRESS" makes the main thread keep that word on its stack until "let go"; it answers
 * both by repeating the line. Ends when its input ends, like hammer.
 */
#include "common.h"

#include <pthread.h>

/* region_COUNT_END: COUNT instructions up to the fifth byte, the last being, or followed
 * by, END. All return an expression of edi and esi, see `shapes`. */
#define BEGIN(name) \
	".balign 32, 0xcc\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"
#define END(name) ".size " #name ", . - " #name "\n"

__asm__(".pushsection .text\n"
	/* 2 + 5 bytes */
	BEGIN(region_2_plain)
	"mov %edi, %eax\n lea 3(%rax,%rsi), %rax\n ret\n"
	END(region_2_plain)
	/* 3 + 4 bytes */
	BEGIN(region_2_other)
	"lea (%rdi,%rdi), %eax\n lea 3(%rax,%rsi), %eax\n ret\n"
	END(region_2_other)
	/* 2 + 2 + 3 */
	BEGIN(region_3_plain)
	"mov %edi, %eax\n add %esi, %eax\n add $3, %eax\n ret\n"
	END(region_3_plain)
	/* 1 + 2 + 1 + 2, the stack pointer changes inside */
	BEGIN(region_4_plain)
	"push %rbx\n mov %edi, %ebx\n push %rsi\n pop %rax\n add %ebx, %eax\n add $3, %eax\n"
	"pop %rbx\n ret\n"
	END(region_4_plain)
	/* 1 + 1 + 1 + 1 + 2 */
	BEGIN(region_5_plain)
	"push %rbx\n push %rbp\n push %rsi\n pop %rbp\n mov %edi, %eax\n add %ebp, %eax\n"
	"add $3, %eax\n pop %rbp\n pop %rbx\n ret\n"
	END(region_5_plain)
	/* 2 + 2 + 2: flags are alive in the middle, a branch at the end */
	BEGIN(region_3_branch)
	"mov %edi, %eax\n test %esi, %esi\n js 1f\n add %esi, %eax\n add $3, %eax\n ret\n"
	"1: sub $1, %eax\n ret\n"
	END(region_3_branch)
	/* 2 + 2 + 2 behind which the branch leads back, to the start */
	BEGIN(region_3_loop)
	"add %esi, %eax\n dec %ecx\n jnz region_3_loop\n ret\n"
	END(region_3_loop)
	/* 2 + 2 + 2: a jump at the end */
	BEGIN(region_3_jump)
	"mov %edi, %eax\n add %esi, %eax\n jmp 2f\n.skip 7, 0x90\n"
	"2: add $3, %eax\n ret\n"
	END(region_3_jump)
	/* 1 + 2 + 5: a call at the end, so that its return address lies just behind */
	BEGIN(region_3_call)
	"push %rbx\n mov %edi, %ebx\n call region_callee\n add %ebx, %eax\n pop %rbx\n ret\n"
	END(region_3_call)
	/* 2 + 3 bytes of a return and padding */
	BEGIN(region_2_return)
	"lea 3(%rsi), %eax\n ret\n"
	END(region_2_return)
	/* 2 + 1 + 1 + 1 */
	BEGIN(region_4_return)
	"xchg %edi, %eax\n push %rsi\n pop %rcx\n ret\n"
	END(region_4_return)
	BEGIN(region_callee)
	"lea 3(%rsi), %eax\n ret\n"
	END(region_callee)
	".popsection\n");

typedef uint32_t function(uint64_t thread, uint64_t seq);
extern function region_2_plain, region_2_other, region_3_plain, region_4_plain, region_5_plain,
	region_3_branch, region_3_jump, region_3_call, region_2_return, region_4_return,
	region_3_loop;

static uint32_t loop(uint64_t thread, uint64_t seq)
{
	uint32_t result = (uint32_t)thread, count = 3;
	__asm__ volatile("call region_3_loop"
			 : "+a"(result), "+c"(count), "+D"(thread), "+S"(seq)
			 :
			 : "memory", "cc");
	return result;
}

static const struct {
	function *function;
	uint32_t thread, seq, constant; /* the result: a sum with these factors */
} shapes[] = {
	{ region_2_plain, 1, 1, 3 },  { region_2_other, 2, 1, 3 }, { region_3_plain, 1, 1, 3 },
	{ region_4_plain, 1, 1, 3 },  { region_5_plain, 1, 1, 3 }, { region_3_branch, 1, 1, 3 },
	{ region_3_jump, 1, 1, 3 },   { region_3_call, 1, 1, 3 },  { region_2_return, 0, 1, 3 },
	{ region_4_return, 1, 0, 0 }, { loop, 1, 3, 0 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, MAX_THREADS = 64 };

static volatile int stop;
static uint64_t calls_of[MAX_THREADS];

static void *run(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, seq = 0;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (; !stop; seq++) {
		for (int i = 0; i < SHAPES; i++) {
			uint32_t got = shapes[i].function(thread, seq & 0x7fffffff);
			uint32_t wanted = (uint32_t)thread * shapes[i].thread +
					  (uint32_t)(seq & 0x7fffffff) * shapes[i].seq +
					  shapes[i].constant;
			if (got != wanted)
				BAD("shape %d, thread %d: %u instead of %u", i, (int)thread, got,
				    wanted);
		}
		rest(seq);
	}
	calls_of[thread] = seq;
	return NULL;
}

static volatile sig_atomic_t waiting, released;

static void stay(int signal)
{
	(void)signal;
	int number = ++waiting;
	while (released < number)
		nanosleep(&(struct timespec){ 0, 200000 }, NULL);
}

static void release(int signal)
{
	(void)signal;
	released++;
}

PROBED void hold(volatile uint64_t word)
{
	char line[100];
	volatile uint64_t words[4] = { word, word, word, word };
	CHECK(fgets(line, sizeof line, stdin) && words[2] == word);
	fputs(line, stdout);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int threads = argc > 2 && !strcmp(argv[1], "--threads") ? atoi(argv[2]) : 2;
	if (threads < 1 || threads > MAX_THREADS)
		return 2;
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_flags = SA_RESTART;
	action.sa_handler = stay;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	action.sa_handler = release;
	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	pthread_t pool[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&pool[i], NULL, run, (void *)(uintptr_t)i) == 0);
	ready();
	char line[100];
	while (fgets(line, sizeof line, stdin)) {
		unsigned long long word;
		if (sscanf(line, "hold %llx", &word) == 1) {
			fputs(line, stdout);
			fflush(stdout);
			hold(word);
		}
	}
	stop = 1;
	uint64_t sum = 0;
	for (int i = 0; i < threads; i++) {
		CHECK(pthread_join(pool[i], NULL) == 0);
		sum += calls_of[i];
	}
	printf("ok calls=%llu\n", (unsigned long long)sum);
	return 0;
}
