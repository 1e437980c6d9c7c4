/* Calls of functions with texts that have a length, and no NUL at their end. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct message {
	const char *text;
	uint32_t length;
	uint16_t wire; /* the length in network byte order */
};

__attribute__((noinline)) int put(struct message *message, const char *text, int length)
{
	__asm__ volatile("" ::: "memory");
	return message->text == text ? length : 0;
}

__attribute__((noinline)) int fill(char *buffer, int size)
{
	__asm__ volatile("" ::: "memory");
	if (size < 0)
		return -1;
	memset(buffer, 'f', (size_t)size);
	return size;
}

int main(void)
{
	static char many[3000], buffer[64];
	int sum = 0;
	memset(many, 'm', sizeof(many));
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || mprotect(pages + 4096, 4096, PROT_NONE))
		return 1;
	memcpy(pages + 4093, "end", 3);
	struct { const char *text; int length; } all[] = {
		{ "GET /index", 3 },
		{ "a\0b\n\"c", 6 },
		{ (const char *)8, 0 },
		{ (const char *)8, 5 },
		{ many, sizeof(many) },
		{ pages + 4093, 100 },
		{ "negative", -1 },
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct message message = { all[i].text, (uint32_t)all[i].length,
		                           htons((uint16_t)(all[i].length < 0 ? 0 : all[i].length)) };
		sum += put(&message, all[i].text, all[i].length);
	}
	for (int size = -1; size < 4; size++)
		sum += fill(buffer, size);
	puts(sum ? "ok sized" : "");
	return 0;
}
