/* Calls with texts of C++ in all places: by value and reference, in structs, short and long. */
#include <cstdio>
#include <string>
#include <string_view>

struct Order {
	int id;
	std::string name;
	std::string_view note;
};

__attribute__((noinline)) size_t take(const std::string &text, std::string_view view, const Order *order,
                                      std::string own, const std::string *pointer)
{
	__asm__ volatile("" ::: "memory");
	return text.size() + view.size() + order->name.size() + own.size() + pointer->size();
}

__attribute__((noinline)) int price(Order order, int count, std::string_view unit)
{
	__asm__ volatile("" ::: "memory");
	return order.id * count + (int)unit.size();
}

__attribute__((noinline)) int only(Order order)
{
	__asm__ volatile("" ::: "memory");
	return order.id;
}

/* Results: in memory of the caller, in two registers, and by reference. */
__attribute__((noinline)) std::string made(const std::string &text)
{
	__asm__ volatile("" ::: "memory");
	return text;
}

__attribute__((noinline)) std::string_view seen(const std::string &text)
{
	__asm__ volatile("" ::: "memory");
	return text;
}

__attribute__((noinline)) const std::string &same(const std::string &text)
{
	__asm__ volatile("" ::: "memory");
	return text;
}

int main()
{
	size_t sum = 0;
	const std::string texts[] = {
		"short", "", "longer than fifteen characters, so not in the object itself",
		std::string("a\0b", 3), std::string(2000, 'x'),
		/* The longest that std::string has in itself, and one more: libstdc++, libc++. */
		std::string(15, 'a'), std::string(16, 'b'), std::string(22, 'c'), std::string(23, 'd'),
		std::string(24, 'e'),
	};
	for (const std::string &text : texts) {
		Order order = { 1, text + "!", std::string_view(text).substr(0, 2) };
		sum += (size_t)(price(order, 3, "kg") + only(order));
		sum += made(text).size() + seen(text).size() + same(text).size();
		sum += take(text, std::string_view(text).substr(text.size() / 2), &order, text, &text);
	}
	std::puts(sum ? "ok texts" : "");
}
