// Names that mean several things: members, variables of namespaces and static variables of two
// units, all with global namesakes, and parameter packs. Second unit: names_other.cpp.
#include <cstdio>

#define OWN __attribute__((noinline))

volatile long sink;
volatile int level = 1000, size = 1001, state = 1002, total = 1003, weight = 1004, depth = 1005;
volatile int shared = 1006, limit = 1007, only_global = 1008;
static volatile int same = 11, only_here = 12;
int other_unit(int n);
int other_member(int n);

namespace net {
volatile int state = 2002, only_net = 2003;
static volatile int limit = 2007, twin = 2009;
namespace { volatile int hidden = 2010; }

struct Base {
	int size = 3001, based = 3002;
	static volatile int shared;
};
volatile int Base::shared = 3006;
struct Second { long weight = 3104, twice = 3105; };
struct Third { long twice = 3205; };

struct Outer {
	static volatile int depth;
	struct Inner {
		int level = 5, count;
		OWN int member(int n) { sink = n; return n + level + depth + count + state; }
	};
};
volatile int Outer::depth = 3005;

struct Server : Base, Second, Third {
	int level;
	const char *label = "server";
	static volatile int total;
	Server(int n) : level(n * 7) {}
	OWN int member(int n)
	{
		int local = n * 3;
		sink = local;
		return level + size + n + total + shared + static_cast<int>(weight) + local + state;
	}
	OWN int hides(int level)
	{
		int weight = level * 2;
		sink = weight;
		return level + weight + size + this->level;
	}
	OWN static int still(int n) { sink = n + total; return n + total + shared + state; }
	OWN int lambda(int n)
	{
		int base = n + 1;
		auto add = [this, base](int q) OWN { sink = q; return q + base + level + size; };
		return add(n) + add(n + 1);
	}
	__attribute__((always_inline)) int inlined(int n)
	{
		int inner = n + level;
		sink = inner;
		return inner + size + static_cast<int>(sink);
	}
};
volatile int Server::total = 3003;

namespace deep {
volatile int total = 4003, deepest = 4004;
OWN int function(int n)
{
	sink = n + limit;
	return n + total + state + limit + deepest + hidden + twin;
}
}
OWN int calls(Server &server, int n) { sink = n; return server.inlined(n) + server.inlined(n + 2); }
}

template <typename... Args> OWN int pack(int first, Args... args)
{
	sink = first;
	return static_cast<int>((first + ... + args)) + static_cast<int>(sink);
}
OWN int plain(int n)
{
	sink = n + same;
	return n + level + state + same + only_here + size + only_global + limit;
}

int main()
{
	long sum = 0;
	for (int n = 1; n <= 6; n++) {
		net::Server server(n);
		net::Outer::Inner inner;
		inner.count = n;
		sum += server.member(n) + server.hides(n) + server.still(n) + server.lambda(n) + inner.member(n);
		sum += net::deep::function(n) + net::calls(server, n) + plain(n) + other_unit(n) + other_member(n);
		sum += pack(n, 5L, n * 2, 'c') + pack(n, static_cast<short>(n), 9u) + total + weight + depth + shared;
		same = same + n;
		net::state = net::state + n;
	}
	std::printf("ok names %ld\n", sum);
	return 0;
}
