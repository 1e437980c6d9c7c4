// The second unit of names.cpp, with static variables of the same names.

#define OWN __attribute__((noinline))

extern volatile long sink;
static volatile int same = 22, only_other = 23;
namespace net {
extern volatile int state;
static volatile int twin = 5009;
// As in the first unit.
struct Base {
	int size = 3001, based = 3002;
	static volatile int shared;
};
struct Client : Base {
	int level = 61;
	OWN int member(int n)
	{
		sink = n + same;
		return n + level + size + shared + twin + state + same;
	}
};
}

OWN int other_unit(int n)
{
	static volatile int kept = 70;
	kept = kept + n;
	sink = kept;
	return n + same + only_other + kept + net::twin;
}
OWN int other_member(int n) { net::Client client; return client.member(n); }
