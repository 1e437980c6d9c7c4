// Names that need care: overloads, operators, templates, lambdas. Calls each function a
// number of times of its own and prints "ok" with the counts. Uses common.h's rules.
#include "common.h"

namespace over {

PROBED int twice(int x) { return x + x; }
PROBED double twice(double x) { return x + x; }
PROBED int twice(const char *x, int n) { return x[0] + n; }

struct Value {
	int value;
	PROBED Value operator<<(int n) const { return Value{value << n}; }
	PROBED bool operator<(const Value &other) const { return value < other.value; }
	PROBED int operator()(int n) const { return value + n; }
};

template <typename T, int N> struct Sized {
	PROBED static T times(T x) { return x * N; }
};

} // namespace over

int main()
{
	int sum = 0;
	for (int i = 0; i < 11; i++)
		sum += over::twice(i);
	for (int i = 0; i < 12; i++)
		sum += static_cast<int>(over::twice(0.5 * i));
	for (int i = 0; i < 13; i++)
		sum += over::twice("a", i);
	over::Value one{1};
	for (int i = 0; i < 14; i++)
		sum += (one << i).value;
	for (int i = 0; i < 15; i++)
		sum += one < over::Value{i};
	for (int i = 0; i < 16; i++)
		sum += one(i);
	for (int i = 0; i < 17; i++)
		sum += over::Sized<int, 3>::times(i);
	printf("ready %d\nok sum=%d\n", static_cast<int>(getpid()), sum);
	return 0;
}
