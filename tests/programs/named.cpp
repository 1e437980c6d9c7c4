/* Functions whose names are given in part, or without their library. With an argument it says `ready`,
 * and waits for a line before it begins. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define APART __attribute__((noinline))

namespace shop {
namespace cart {
APART long cost(int price, const char *name)
{
	__asm__ volatile("" ::: "memory");
	return price * 3 + name[0];
}
template<class T> struct Box {
	T value;
	APART T get()
	{
		__asm__ volatile("" ::: "memory");
		return value;
	}
};
} // namespace cart
APART int add(int a)
{
	__asm__ volatile("" ::: "memory");
	return a + 1;
}
APART int add(long a)
{
	__asm__ volatile("" ::: "memory");
	return (int)a + 2;
}
} // namespace shop

int main(int argc, char **)
{
	char line[16], room[64];
	volatile long sum = 0;
	if (argc > 1) {
		puts("ready");
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin))
			return 1;
	}
	shop::cart::Box<int> box = {3};
	const char *names[] = {"apple", "pear"};
	for (int i = 0; i < 40; i++) {
		sum += shop::cart::cost(i, names[i % 2]) + box.get() + shop::add(i) + shop::add(3L);
		free(aligned_alloc(64, 128));
		sum += (long)strlen(names[i & 1]);
		memcpy(room, names[i & 1], strlen(names[i % 2]));
		__asm__ volatile("" :: "r"(room) : "memory");
	}
	return sum ? 0 : 2;
}
