/*
 * Interpreters whose jumps go through tables of labels (`goto *`), which the compiler puts
 * into the data of the program: gotos [CALLS].
 *
 * Each is called CALLS times (100 unless told), and jumps several times in each call. Prints
 * "ok calls=N".
 */
#include "common.h"

/* For a frame: who calls nothing needs none. */
PROBED uint64_t called(uint64_t value)
{
	return mix(value);
}

/* Its jumps keep what is on the stack: they cannot leave the function. */
PROBED uint64_t gotos_deep(const unsigned char *code, uint64_t seed)
{
	static const void *const table[] = { &&end, &&add, &&twice, &&call, &&swap };
	volatile uint64_t kept[6] = { seed, 1, 2, 3, 4, 5 };
	uint64_t value = seed;
	goto *table[*code++];
add:
	value += kept[*code % 6];
	goto *table[*code++];
twice:
	value *= 2;
	goto *table[*code++];
call:
	value = called(value);
	kept[1] = value;
	goto *table[*code++];
swap:
	value = (value >> 32) | (value << 32);
	goto *table[*code++];
end:
	return value ^ kept[0];
}

/* The same without a frame. */
PROBED uint64_t gotos_flat(const unsigned char *code, uint64_t value)
{
	static const void *const table[] = { &&end, &&add, &&twice };
	goto *table[*code++];
add:
	value += 3;
	goto *table[*code++];
twice:
	value *= 2;
	goto *table[*code++];
end:
	return value;
}

int main(int count, char **words)
{
	static const unsigned char code[] = { 1, 2, 3, 4, 1, 3, 2, 0 };
	static const unsigned char flat[] = { 1, 2, 2, 1, 0 };
	long calls = count > 1 ? strtol(words[1], NULL, 10) : 100;
	uint64_t sum = 0;
	for (long i = 0; i < calls; i++) {
		sum += gotos_deep(code, (uint64_t)i);
		CHECK(gotos_flat(flat, (uint64_t)i) == ((uint64_t)i + 3) * 4 + 3);
	}
	printf("ok calls=%ld sum=%lx\n", calls, (unsigned long)sum);
	return 0;
}
