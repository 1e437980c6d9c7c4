/*
 * Threads that run through static markers as fast as they can.
 *
 *   marked_hammer [--threads N]
 *
 * Each marker has (thread, seq) in rdi and rsi, seq counting up from 0 per thread, so that a
 * trace can be searched for gaps; thread and seq are arguments of the marker as well. What is
 * calculated around a marker, with the flags alive across it, is verified. Ends at a line on
 * standard input or its end, with "ok calls=N".
 */
#include "common.h"
#include "notes.h"

#include <pthread.h>

#define MAX_THREADS 64
#define OPERANDS "8@%%rdi 8@%%rsi"

volatile uint16_t hammer_guarded_semaphore __attribute__((section(".probes"), used)) = 0;

/* The reserved bytes of a marker of ours, in the middle of a calculation. */
PROBED uint64_t mark_five(uint64_t thread, uint64_t seq, uint64_t check)
{
	uint64_t a = mix(check);
	MARK("hammer", "five", "thread=%%lu seq=%%lu", OPERANDS, "D"(thread), "S"(seq));
	return a + mix(a ^ seq);
}

/* One byte. */
PROBED uint64_t mark_one(uint64_t thread, uint64_t seq, uint64_t check)
{
	uint64_t a = mix(check ^ thread);
	SITE("hammer", "one", NOTES_NOP1, "0", OPERANDS, "D"(thread), "S"(seq));
	return a * 3 + mix(seq);
}

/* One byte, with flags that were set before and are asked for behind it. */
PROBED uint64_t mark_flags(uint64_t thread, uint64_t seq, uint64_t check)
{
	uint64_t result = check;
	__asm__ __volatile__("	cmpq %%rsi, %[limit]\n" NOTES_NOP1 NOTES_SDT("hammer", "flags", "0", OPERANDS)
	                     NOTES_BASE "	jbe 1f\n"
	                     "	addq $7, %[result]\n"
	                     "1:	adcq $5, %[result]\n"
	                     : [result] "+r"(result)
	                     : [limit] "r"(check & 0xffff), "D"(thread), "S"(seq)
	                     : "cc");
	return result;
}

static uint64_t flags_expected(uint64_t seq, uint64_t check)
{
	uint64_t limit = check & 0xffff;
	if (limit <= seq) /* below or equal: the carry is that of the comparison */
		return check + 5 + (limit < seq);
	uint64_t result = check + 7;
	return result + 5 + (result < check);
}

/* Only if somebody watches, and then in a loop whose head the marker is. */
PROBED uint64_t mark_guarded(uint64_t thread, uint64_t seq, uint64_t check)
{
	if (__builtin_expect(hammer_guarded_semaphore, 0))
		SITE("hammer", "guarded", NOTES_NOP1, "hammer_guarded_semaphore", OPERANDS, "D"(thread),
		     "S"(seq));
	return mix(seq) - check;
}

static volatile int stop;

static void *hammer(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, seq = 0;
	for (; !stop; seq++) {
		uint64_t check = mix(seq + thread);
		CHECK(mark_five(thread, seq, check) == mix(check) + mix(mix(check) ^ seq));
		CHECK(mark_one(thread, seq, check) == mix(check ^ thread) * 3 + mix(seq));
		CHECK(mark_flags(thread, seq, check) == flags_expected(seq, check));
		CHECK(mark_guarded(thread, seq, check) == mix(seq) - check);
	}
	return (void *)(uintptr_t)seq;
}

int main(int argc, char **argv)
{
	int threads = 2;
	if (argc == 3 && !strcmp(argv[1], "--threads"))
		threads = atoi(argv[2]);
	CHECK(threads > 0 && threads <= MAX_THREADS);
	pthread_t all[MAX_THREADS];
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&all[i], NULL, hammer, (void *)(uintptr_t)i) == 0);
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) == 1 && byte != '\n')
		;
	stop = 1;
	uint64_t calls = 0;
	for (int i = 0; i < threads; i++) {
		void *seq;
		CHECK(pthread_join(all[i], &seq) == 0);
		calls += (uint64_t)(uintptr_t)seq;
	}
	printf("ok calls=%llu semaphore=%u\n", (unsigned long long)calls, hammer_guarded_semaphore);
	return 0;
}
