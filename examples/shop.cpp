/* Overloaded functions in C++: one name, two functions. Runs for a moment.
 *
 *   c++ -O2 -g -o shop shop.cpp
 */
#include <cstdio>

/* The compiler must not melt these into their callers. */
#define STEP __attribute__((noinline))

namespace shop {

class Order {
public:
	void add(long price);
	void add(long price, long discount);
	long total() const { return cents; }

private:
	long cents = 0;
};

STEP void Order::add(long price)
{
	cents += price;
}

STEP void Order::add(long price, long discount)
{
	cents += price - discount;
}

} // namespace shop

int main()
{
	shop::Order order;
	for (long i = 0; i < 100; i++) {
		order.add(199 + i);
		order.add(499, i);
	}
	std::printf("%ld cents\n", order.total());
	return 0;
}
