/*
 * A handler that sees the arguments of a function of C++ as that sees them. The compiler checks that
 * both have the same type; a handler with another one does not compile.
 *
 *   c++ -O2 -g -o argument_probe argument_probe.cpp $(pkg-config --cflags --libs capriole)
 */
#include <capriole/probe.h>
#include <cstdio>
#include <string>

struct Order {
	std::string customer;
	int items;
};

namespace shop {
/* Overloaded: the address of which one is meant follows from the handler's type. */
__attribute__((noinline)) double price(const Order &order, double discount, bool gift)
{
	return (order.items * 9.5 + (gift ? 3 : 0)) * (1 - discount);
}
__attribute__((noinline)) double price(int items) { return items * 9.5; }
} // namespace shop

static double seen;

static double on_price(const Order &order, double discount, bool gift)
{
	seen += discount;
	std::printf("%s orders %d with %.0f %% off%s\n", order.customer.c_str(), order.items,
		    100 * discount, gift ? ", as a gift" : "");
	return 0; /* ignored */
}

int main()
{
	capriole_argument_probe probe = {};
	CAPRIOLE_ARGUMENT_PROBE(&probe, static_cast<decltype(&on_price)>(shop::price), on_price);
	if (capriole_argument_probe_register(&probe) != 0) {
		std::fprintf(stderr, "%s\n", capriole_error());
		return 1;
	}
	double sum = shop::price({ "Ada", 2 }, 0.1, true) + shop::price({ "Grace", 5 }, 0.25, false) +
		     shop::price(3);
	capriole_argument_probe_unregister(&probe);
	sum += shop::price({ "Edsger", 1 }, 0, false);
	std::printf("%.3f to pay, %.0f %% seen\n", sum, 100 * seen);
	return 0;
}
