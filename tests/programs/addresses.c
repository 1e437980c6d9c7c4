/* Calls of functions with addresses of IPv4 and IPv6. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

__attribute__((noinline)) int reach4(struct sockaddr_in *to, uint32_t address)
{
	__asm__ volatile("" ::: "memory");
	return to->sin_family + (int)address;
}

__attribute__((noinline)) int reach6(struct sockaddr_in6 *to, int number)
{
	__asm__ volatile("" ::: "memory");
	return to->sin6_family + number;
}

int main(void)
{
	static const char *four[] = { "127.0.0.1", "10.1.2.3", "192.168.0.255" };
	static const char *six[] = { "::1", "2001:db8::a:0:0:1", "::2" };
	int sum = 0;
	for (int i = 0; i < 3; i++) {
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(80 + i) };
		struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(443 + i) };
		if (inet_pton(AF_INET, four[i], &to.sin_addr) != 1 ||
		    inet_pton(AF_INET6, six[i], &to6.sin6_addr) != 1)
			return 1;
		sum += reach4(&to, to.sin_addr.s_addr);
		sum += reach6(&to6, i);
	}
	puts(sum ? "ok addresses" : "");
	return 0;
}
