/* Memory of the library's own, system calls, text. */
#include "internal.h"
#include <sys/mman.h>
#include <sys/syscall.h>

UNPROBED_CALL HIDDEN long capriole_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

/* Returns NULL if there is no memory. Physical memory is used where it is touched. */
HIDDEN void *map_memory(size_t size)
{
	long at = SYS6(SYS_mmap, 0, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return at < 0 && at > -4096 ? NULL : (void *)at;
}

/* Memory by powers of two from 32 bytes on; what is released is used again for the same size. The
 * caller has the lock. */
#define LEAST 5
#define CLASSES 40
static void *released[CLASSES];
static char *chunk, *chunk_end;

static unsigned class_of(size_t size)
{
	unsigned class = LEAST;
	while (((size_t)1 << class) < size)
		class++;
	return class;
}

HIDDEN void *allocate(size_t size)
{
	unsigned class = class_of(size);
	size = (size_t)1 << class;
	void **old = released[class];
	if (old) {
		released[class] = *old;
		for (size_t i = 0; i < size / 8; i++)
			((volatile u64 *)old)[i] = 0;
		return old;
	}
	if (size >= 1 << 16)
		return map_memory(size);
	if ((size_t)(chunk_end - chunk) < size) {
		char *more = map_memory(1 << 18);
		if (!more)
			return NULL;
		chunk = more;
		chunk_end = more + (1 << 18);
	}
	void *memory = chunk;
	chunk += size;
	return memory;
}

HIDDEN void release(void *memory, size_t size)
{
	unsigned class = class_of(size);
	if (!memory)
		return;
	*(void **)memory = released[class];
	released[class] = memory;
}

HIDDEN size_t length(const char *text)
{
	size_t size = 0;
	while (((const volatile char *)text)[size])
		size++;
	return size;
}

HIDDEN void copy(void *to, const void *from, size_t size)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

HIDDEN __attribute__((noinline)) void wipe(void)
{
	u64 below[512];
	void *to = below;
	size_t count = sizeof below / 8;
	__asm__ volatile("rep stosq" : "+D"(to), "+c"(count) : "a"(0) : "memory");
}

HIDDEN int same(const char *a, const char *b)
{
	while (*(const volatile char *)a && *a == *b)
		a++, b++;
	return *a == *b;
}

HIDDEN void say(char *text, size_t size, size_t *at, const char *more)
{
	while (*more && *at + 1 < size)
		text[(*at)++] = *more++;
	if (size)
		text[*at < size ? *at : size - 1] = 0;
}

static void say_in(char *text, size_t size, size_t *at, u64 number, unsigned base, unsigned digits)
{
	char word[24];
	unsigned left = sizeof word - 1;
	word[left] = 0;
	do {
		word[--left] = "0123456789abcdef"[number % base];
		number /= base;
	} while (number || sizeof word - 1 - left < digits);
	say(text, size, at, word + left);
}

HIDDEN void say_hex(char *text, size_t size, size_t *at, u64 number, unsigned digits)
{
	say_in(text, size, at, number, 16, digits);
}

HIDDEN void say_number(char *text, size_t size, size_t *at, u64 number)
{
	say_in(text, size, at, number, 10, 1);
}
