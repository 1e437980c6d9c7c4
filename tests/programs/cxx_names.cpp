/* Functions whose complete names are long: with types of the library, overloads, copies for some
 * callers, and lambdas. */
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#define APART __attribute__((noinline))
#define KEPT __asm__ volatile("" ::: "memory")

namespace shop {
using Names = std::vector<std::string>;

APART long total(const Names &names)
{
	KEPT;
	return (long)names.size();
}
APART long price(const std::map<std::string, int> &prices, const std::string &name)
{
	KEPT;
	return prices.at(name);
}
APART std::string label(int number)
{
	KEPT;
	return std::string("number ") + (char)('0' + number % 10);
}
APART int add(int a)
{
	KEPT;
	return a + 1;
}
APART int add(long a)
{
	KEPT;
	return (int)a + 2;
}
template<class T> struct Box {
	T value;
	APART const T &get() const
	{
		KEPT;
		return value;
	}
};
/* Returns, or ends in a call of add(). */
APART int either(int n)
{
	KEPT;
	if (n > 1000)
		return add(n);
	return n + 3;
}
/* Likewise, and is not called. */
APART int unused(int n)
{
	KEPT;
	if (n > 1000)
		return add(n);
	return n + 4;
}
/* Gets a copy for its only factor. */
static APART int scaled(int n, int factor)
{
	KEPT;
	return n * factor + add(n);
}
APART int folded(int n)
{
	auto each = [n](int m) APART {
		KEPT;
		return n + m;
	};
	return each(1) + each(2);
}
} // namespace shop

int main(int argc, char **)
{
	long sum = 0;
	shop::Box<std::string> box = {"apple"};

	for (int i = 0; i < 4; i++) {
		sum += shop::total({"apple", "pear"}) + shop::price({{"apple", 3}}, box.get());
		sum += (long)shop::label(i).size() + shop::add(3L) + shop::either(i);
		sum += shop::scaled(i, 7) + shop::folded(i);
	}
	if (argc > 1)
		sum += shop::unused(argc);
	printf("%ld\n", sum);
	return 0;
}
