// Functions whose names people write in several ways: `spellings` calls each of them once.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <vector>

#define PROBED __attribute__((noipa))

static volatile int done;

namespace shop {
PROBED int take(std::string text) { return (int)text.size() + done; }
PROBED int take(const std::string &text, int number) { return (int)text.size() + number + done; }
PROBED int take(std::vector<int> all) { return (int)all.size() + done; }
PROBED int take(const std::vector<std::string> &all) { return (int)all.size() + done; }
PROBED int take(unsigned long number, const char *text) { return (int)number + text[0] + done; }
PROBED int take(std::map<std::string, int> &all) { return (int)all.size() + done; }
PROBED std::string tagged(int number) { return std::to_string(number + done); }
PROBED int foo(int number) { return number + done; }
PROBED int foo(int *number) { return *number + done; }
PROBED int foo() { return 1 + done; }
PROBED int foo(const char *const *text) { return **text + done; }

namespace {
PROBED int hidden(int number) { return number * 3 + done; }
struct Inner {
	PROBED int method(int number) { return number * 5 + done; }
};
}

template <class T> struct Box {
	T value;
	PROBED T get() const { return value; }
	PROBED void put(T other) { value = other; }
};

template <class A, class B> PROBED int two(A a, B b) { return (int)a + (int)b + done; }

struct Op {
	int value;
	PROBED explicit Op(int number) : value(number + done) {}
	PROBED ~Op() { done = value - value; }
	PROBED bool operator==(const Op &other) const { return value == other.value; }
	PROBED int operator()(int number) { return value + number + done; }
};
}

PROBED void *operator new(unsigned long size) { return malloc(size + (unsigned long)done); }
PROBED void operator delete(void *memory) noexcept { free(memory); }
PROBED void operator delete(void *memory, unsigned long) noexcept { free(memory); }

int main()
{
	using namespace shop;
	std::string text = "abc";
	std::vector<int> numbers(3);
	std::vector<std::string> texts(1, text);
	std::map<std::string, int> map;
	const char *characters = "x";
	const char *const *all = &characters;
	int one = 1;
	Inner inner;
	Box<int> box = {1};
	Box<std::string> named = {"x"};
	int sum = take(text) + take(text, 1) + take(numbers) + take(texts) + take(3ul, "x");
	sum += take(map) + (int)tagged(3).size() + foo(one) + foo(&one) + foo() + foo(all);
	sum += hidden(2) + inner.method(3) + box.get() + (int)named.get().size();
	sum += two(1, 2L) + two<char, unsigned>('a', 2);
	box.put(2);
	named.put("y");
	{
		Op first(3), second(4);
		sum += (first == second) + first(1);
	}
	std::printf("ok %d\n", sum != 0);
	return 0;
}
