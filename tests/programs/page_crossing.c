/*
 * Functions whose first five bytes lie in two pages, the boundary behind each of the
 * first four: `page_crossing` calls `cross_N(thread, seq)` as fast as it can in three
 * threads and verifies each result. Ends at a line on standard input or SIGTERM.
 */
#include "common.h"

#include <pthread.h>

/* One instruction of seven bytes, so that its jump displaces nothing else. */
#define CROSS(n) \
	__asm__(".section .text.cross" #n ",\"ax\",@progbits\n" \
		".p2align 12\n" \
		".fill 4096 - " #n ", 1, 0xcc\n" \
		".globl cross_" #n "\n" \
		".type cross_" #n ",@function\n" \
		"cross_" #n ":\n" \
		"	leaq 0x12345678(%rdi), %rax\n" \
		"	addq %rsi, %rax\n" \
		"	ret\n" \
		".size cross_" #n ", .-cross_" #n "\n" \
		".text\n"); \
	uint64_t cross_##n(uint64_t thread, uint64_t seq)

CROSS(1);
CROSS(2);
CROSS(3);
CROSS(4);

static volatile int stop;

static void *run(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument, seq = 0;
	while (!stop) {
		uint64_t expected = thread + seq + 0x12345678;
		if (cross_1(thread, seq) != expected || cross_2(thread, seq) != expected ||
		    cross_3(thread, seq) != expected || cross_4(thread, seq) != expected)
			BAD("thread %llu seq %llu", (unsigned long long)thread, (unsigned long long)seq);
		seq++;
	}
	return (void *)(uintptr_t)seq;
}

int main(void)
{
	pthread_t threads[3];
	uint64_t sum = 0;
	stop_on_sigterm();
	for (uintptr_t i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
	ready();
	wait_for_stop(0);
	stop = 1;
	for (int i = 0; i < 3; i++) {
		void *calls;
		CHECK(pthread_join(threads[i], &calls) == 0);
		sum += (uint64_t)(uintptr_t)calls;
	}
	printf("ok calls=%llu\n", (unsigned long long)sum);
	return 0;
}
