// Values of enumerations: plain ones, with gaps and signs, flags, of a class, in a struct.
#include "common.h"

enum color { RED, GREEN = 5, BLUE = -3 };
enum access { NOTHING = 0, READ = 1, WRITE = 2, APPEND = 8 };
enum class level : unsigned char { low = 1, high = 200 };
struct request {
	unsigned id;
	enum access access;
};

PROBED int handle(enum color color, enum access access, enum level level, struct request *request)
{
	return (int)color + (int)access + (int)level + (int)request->id;
}

PROBED enum color pick(enum access access)
{
	return access == READ ? BLUE : access == WRITE ? GREEN : RED;
}

int main()
{
	static const enum color colors[] = { RED, GREEN, BLUE, (enum color)7 };
	static const int accesses[] = { 0, 1, 3, 11, 64, 66 };
	long sum = 0;
	for (unsigned i = 0; i < 24; i++) {
		enum access access = (enum access)accesses[i % 6];
		struct request request = { i, access };
		sum += handle(colors[i % 4], access, i & 1 ? level::low : level::high, &request);
		sum += pick((enum access)(i % 3));
	}
	printf("%ld\n", sum);
	return 0;
}
