/*
 * A function whose arguments and memory are known: fetch_values calls it COUNT times, with
 * numbers of every width and sign, texts, pointers to pointers, and pointers that lead
 * nowhere. fetch_values [count]
 */
#include "common.h"

struct inner {
	long a, b;
	const char *names[3];
};

struct request {
	int fd;
	unsigned short port;
	signed char level;
	unsigned char bits;
	const char *path;
	struct inner *inner;
	unsigned int words[4];
	char text[16];
	uint64_t big;
};

/* For @ADDR and @+OFFSET. */
const uint64_t fetch_constant = 0x1122334455667788u;

/* Everything that is asked for comes from its arguments. Returns a sum. */
PROBED long fetch_target(struct request *request, long number, const char *text, unsigned int word,
			 struct request *absent, long last, long seventh, long eighth);
long fetch_target(struct request *request, long number, const char *text, unsigned int word,
		  struct request *absent, long last, long seventh, long eighth)
{
	return request->fd + number + text[0] + word + (absent != NULL) + last + seventh + eighth;
}

int main(int count, char **words)
{
	long calls = count > 1 ? strtol(words[1], NULL, 10) : 20;
	struct inner inner = { -5, 77, { "one", "", "three" } };
	long sum = 0;
	ready();
	char line[16];
	if (!fgets(line, sizeof line, stdin))
		return 2;
	for (long i = 0; i < calls; i++) {
		struct request request = {
			.fd = (int)(i - 3), .port = (unsigned short)(8080 + i), .level = (signed char)-i,
			.bits = (unsigned char)(17 * i), .path = i % 3 ? "/etc/hostname" : "/tmp/x y",
			.inner = i % 4 ? &inner : (struct inner *)16, .words = { 1, 2, (unsigned)i, 0xffffffffu },
			.text = "fifteen letters", .big = 0x8000000000000001u + (uint64_t)i,
		};
		sum += fetch_target(&request, -i, i % 2 ? "odd" : "even", (unsigned)(0xfffffff0u + i),
				    (struct request *)8, i << 33, 7000 + i, 8000 + i);
	}
	printf("ok sum=%ld\n", sum);
	return 0;
}
