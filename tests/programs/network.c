/* Calls of a function with numbers in network byte order, in registers and in memory. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>

struct endpoint {
	uint16_t family, port;
	uint32_t host;
	uint64_t cookie;
	unsigned kind : 4, weight : 16;
};

__attribute__((noinline)) int connect_to(struct endpoint *to, uint16_t port)
{
	__asm__ volatile("" ::: "memory");
	return to->family + port;
}

int main(void)
{
	int sum = 0;
	for (int i = 0; i < 3; i++) {
		struct endpoint to = { 2, htons(442 + i), htonl(0x0a000001 + i),
		                       __builtin_bswap64(0x123456789abcull + i), 1, 2 };
		sum += connect_to(&to, to.port);
	}
	puts(sum ? "ok network" : "");
	return 0;
}
