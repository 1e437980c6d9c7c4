/* Strings of whose parts clang has no description, because no constructor of them is here. */
#include <cstdio>
#include <fstream>
#include <string>

static std::string store[4];

__attribute__((noinline)) std::string &put(int i, const std::string &text)
{
	store[i & 3] += text;
	__asm__ volatile("" ::: "memory");
	return store[i & 3];
}

/* Behind the throw clang puts a jump to the end of the function, which nothing reaches. */
__attribute__((noinline)) std::string doubled(const std::string &text)
{
	std::string twice = text;
	if (text.empty())
		throw 1;
	twice += text;
	return twice;
}

/* Nobody uses the result, so LLVM may leave it out, and GCC makes a copy without it. */
__attribute__((noinline)) static std::string &local(int i, const char *text)
{
	store[i & 3] = text;
	__asm__ volatile("" ::: "memory");
	return store[(i + 1) & 3];
}

/* Any other class that is only declared. */
__attribute__((noinline)) std::ifstream opened(const char *path)
{
	return std::ifstream(path);
}

int main()
{
	opened("/dev/null");
	for (int i = 0; i < 4; i++)
		local(i, "a text that is longer than fifteen");
	for (int i = 0; i < 3; i++)
		put(i, doubled(store[3]).size() ? store[3] : store[0]);
	std::puts(store[0].size() ? "ok texts" : "");
}
