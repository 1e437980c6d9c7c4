// Values of all kinds, passed, returned, kept and inlined in all ways: what the debug
// information of C++20 has to describe.
#include <array>
#include <cmath>
#include <compare>
#include <complex.h>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#define OWN __attribute__((noinline))

namespace values {

volatile long sink;
int counter = 3;
static const char *const words[] = {"one", "two", "three"};

enum class Colour : unsigned char { red = 1, green = 200 };
enum Sign : int { minus = -5, plus = 5 };

struct Empty {};
struct Pair { long a, b; };
struct Small { short x; signed char y; unsigned char z; };
struct Mixed { double d; int i; };
struct Floats { float a, b, c; };
struct Big { long v[5]; const char *name; };
struct Bits { unsigned a : 3; int b : 5; unsigned long long c : 40; bool d : 1; Colour colour : 8; };
struct alignas(32) Wide { int v[8]; };
union Either { int number; float real; unsigned char bytes[8]; };
struct Inside {
	Empty nothing;
	union { int number; float real; };
	struct { char letter; bool yes; };
	Bits bits;
	int grid[2][3];
	Inside *next;
};

// A class that the ABI passes by the address of a copy.
struct Counted {
	int number;
	std::string label;
	Counted(int n) : number(n), label("n" + std::to_string(n)) { counter++; }
	Counted(const Counted &other) : number(other.number + 100), label(other.label) { counter++; }
	~Counted() { counter--; }
};
struct Destroyed {
	int number;
	~Destroyed() { sink = number; }
};
struct Moved {
	std::unique_ptr<int> held;
	int number;
};

struct Shape {
	int id;
	explicit Shape(int i) : id(i) {}
	virtual ~Shape() = default;
	OWN virtual double area(double scale) const { return id * scale; }
};
struct Named { const char *name = "named"; };
struct Square : Shape, Named {
	double side;
	Square(int i, double s) : Shape(i), side(s) {}
	OWN double area(double scale) const override { double own = side * side; return own * scale + id; }
};

OWN long many(int a, unsigned char b, short c, long d, bool e, char f, long g, int h, Colour i, Sign j)
{
	long sum = a + b + c + d;
	if (e) {
		long inner = sum * 2 + f;
		sink = inner;
		sum += inner;
	}
	sum += g + h + static_cast<int>(i) + j;
	sink = sum;
	return sum;
}
OWN long structs(Pair p, Small s, Big b, Mixed m, Floats f, Empty, int after)
{
	long total = p.a - p.b + s.x + s.y + s.z;
	total += b.v[4] + static_cast<long>(m.d) + m.i + static_cast<long>(f.a + f.b + f.c);
	sink = total;
	return total + after;
}
OWN int empties(Empty, int first, Empty, int second)
{
	sink = first;
	return first * 10 + second;
}
OWN double doubles(double a, float b, int c, double d, float e)
{
	double sum = a + static_cast<double>(b);
	sum += c * d + static_cast<double>(e);
	sink = static_cast<long>(sum);
	return sum;
}
OWN float single(float x, float y) { float z = x * y; sink = static_cast<long>(z); return z + 1; }
OWN long double longer(long double x, int n, long double y)
{
	long double z = x * n;
	sink = n;
	return z + y;
}
OWN int after_long(long double x, int n, __int128 w, int m) { sink = static_cast<long>(x); return n + m + static_cast<int>(w); }
OWN _Complex double complexes(_Complex double x, int n, _Complex float y)
{
	sink = n;
	return x * static_cast<double>(n) + static_cast<_Complex double>(y);
}
typedef int Four __attribute__((vector_size(16)));
OWN Four vectors(Four x, int n, Four y) { Four z = x + y; sink = z[1] + n; return z; }
#ifndef __clang__
OWN __float128 quads(__float128 x, int n, __float128 y) { sink = n; return x * n + y; }
#else
OWN long double quads(long double x, int n, long double y) { sink = n; return x * n + y; }
#endif
OWN int wides(Wide w, int n, Wide x)
{
	alignas(64) int local[16] = {};
	for (int i = 0; i < 8; i++)
		local[i] = w.v[i] + x.v[7 - i];
	sink = local[n & 7];
	return local[n & 7] + n;
}
OWN Big returns(int first, long second) { Big big{{first, second, first + second, 4, 5}, "big"}; sink = first; return big; }
OWN Pair pairs(long first, int second) { Pair pair{first * 2, second}; sink = first; return pair; }
OWN Counted takes(Counted c, int after, Counted *other)
{
	int number = c.number + after;
	sink = number + other->number;
	return Counted(number);
}
OWN Destroyed destroyed(Destroyed d, int after) { sink = d.number; return Destroyed{d.number + after}; }
OWN int moves(Moved m, int after) { int held = *m.held; sink = held; return held + m.number + after; }
OWN int variant(std::variant<int, std::string> v, std::optional<int> o, int n)
{
	int size = std::holds_alternative<std::string>(v) ? static_cast<int>(std::get<std::string>(v).size()) : std::get<int>(v);
	sink = size;
	return size + o.value_or(n);
}
OWN int text(std::string_view view, const std::string &reference, std::string value, const char *plain, char letter)
{
	int sum = 0;
	for (char c : view)
		sum += c;
	sink = sum;
	return sum + static_cast<int>(reference.size() + value.size()) + plain[0] + letter;
}
OWN int members(Inside *in, const Inside &reference, Either either, Inside value)
{
	int sum = 0;
	for (Inside *at = in; at; at = at->next) {
		int grid = at->grid[1][2] + at->number;
		sum += grid + static_cast<int>(at->bits.c);
		sink = sum;
	}
	sum += reference.bits.b + either.number + value.grid[0][1];
	sink = sum;
	return sum;
}

// Inlined into several functions that have variables of the same names.
static inline __attribute__((always_inline)) int twice(int what, int dropped)
{
	int result = what * 2;
	sink = result;
	return result + static_cast<int>(sink);
}
static inline int blend(const Pair &pair, int what, int size)
{
	int dropped = static_cast<int>(pair.a) + what;
	int result = twice(dropped, what);
	sink = dropped;
	return result + size;
}
OWN int caller(int what, int dropped)
{
	int result = twice(what + 1, 77) + twice(dropped + 2, what);
	sink = result;
	return result + dropped + what;
}
OWN int blends(Pair pair, int size)
{
	int what = size + 1;
	int result = blend(pair, what, 5);
	result += blend({pair.b, pair.a}, size, what);
	sink = what;
	return result + what;
}
// GCC makes clones of these for constants and parts.
static const Pair several[] = {{1, 2}, {3, 4}};
static OWN int clone(int a, int constant, const Pair *pair)
{
	int sum = a * constant + static_cast<int>(pair->a);
	sink = sum;
	return sum;
}
OWN int spilled(int a, int b, int *out)
{
	int kept = a + b;
	*out = kept;
	auto change = [](int *p) { *p += 3; sink = *p; };
	change(&a);
	change(&kept);
	return a + b + kept;
}

template <std::integral T> OWN T gcd(T a, T b) { return b == 0 ? a : gcd(b, static_cast<T>(a % b)); }
template <typename Range, typename Of> OWN auto folded(const Range &range, Of of)
{
	decltype(of(*range.begin())) sum{};
	for (const auto &each : range) {
		auto part = of(each);
		sum += part;
		sink = static_cast<long>(sum);
	}
	return sum;
}
struct Version {
	int major, minor;
	auto operator<=>(const Version &) const = default;
};
OWN int compare(Version a, Version b)
{
	auto order = a <=> b;
	int number = order < 0 ? -1 : order > 0;
	sink = number;
	return number;
}
OWN int depth(int n, long weight)
{
	if (n == 0)
		return static_cast<int>(weight);
	int below = depth(n - 1, weight + n);
	sink = below;
	return below + n;
}
OWN long arrays(int (&grid)[2][3], std::span<const int> span, std::array<short, 4> four)
{
	long sum = 0;
	for (const auto &row : grid)
		sum += std::accumulate(row, row + 3, 0);
	for (int each : span)
		sum += each;
	sink = sum;
	return sum + four[2];
}
OWN int thrown(int n)
{
	try {
		if (n % 2)
			throw n;
		return n;
	} catch (int caught) {
		int value = caught * 3;
		sink = value;
		return value;
	}
}

OWN int round(int n)
{
	int out = 0, grid[2][3] = {{1, 2, n}, {4, n, 6}};
	Inside second{.number = n, .bits = {2, -7, 99, false, Colour::red}, .grid = {{7, 8, 9}, {1, n, 3}}, .next = nullptr};
	Inside first{.number = 5, .letter = 'q', .yes = true, .bits = {5, -3, 0x123456789a, true, Colour::green}, .grid = {{1}, {2, 3, n}}, .next = &second};
	Wide wide{{n, 2, 3, 4, 5, 6, 7, 8}};
	Either either{.number = n};
	Counted counted(n);
	std::vector<int> list{3, 1, n};
	std::map<std::string, double> map{{"a", 1.5}, {"b", n}};
	std::vector<std::unique_ptr<Shape>> shapes;
	shapes.push_back(std::make_unique<Square>(n, 2.5));
	shapes.push_back(std::make_unique<Shape>(n));
	long sum = many(n, 200, -9, 1L << 33, n & 1, 'f', 7777777777, -8, Colour::green, minus);
	sum += structs({n, -2}, {-3, -4, 250}, {{1, 2, 3, 4, n}, words[n % 3]}, {2.5, n}, {1, 2, 3}, {}, 66);
	sum += empties({}, n, {}, 8) + static_cast<long>(doubles(1.5, 2.5f, n, 4, 5) + static_cast<double>(single(static_cast<float>(n), 3)));
	sum += static_cast<long>(longer(1.25L, n, 7)) + after_long(3, n, 5, 6);
	_Complex double z = 1.5;
	sum += static_cast<long>(__real__ complexes(z, n, 2));
	sum += vectors(Four{1, 2, 3, n}, n, Four{5, 6, 7, 8})[3] + static_cast<long>(quads(2, n, 3)) + wides(wide, n, wide);
	sum += returns(n, 32).v[2] + pairs(n, 6).b + takes(counted, n, &counted).number + destroyed({n}, 4).number;
	sum += moves({std::make_unique<int>(n), 5}, 6) + variant(n % 2 ? std::variant<int, std::string>(n) : "text", n % 3 ? std::optional<int>(n) : std::nullopt, 9);
	sum += text("view", counted.label, "a value that is long enough for the heap", words[n % 3], 'l') + members(&first, second, either, second);
	sum += caller(n, 30) + blends({n, 11}, 12) + clone(n, 17, &several[n % 2]) + spilled(n, 4, &out);
	sum += gcd(84, n + 1) + static_cast<long>(gcd<unsigned long>(84UL, 18UL)) + static_cast<long>(folded(list, [n](int x) { return x * n; }));
	sum += static_cast<long>(folded(map, [](const auto &entry) { return entry.second; })) + compare({1, n}, {1, 3}) + depth(n % 4, 5);
	sum += arrays(grid, list, {1, 2, 3, 4}) + thrown(n);
	for (const auto &shape : shapes)
		sum += static_cast<long>(shape->area(1.5));
	return static_cast<int>(sum % 100000);
}

} // namespace values

int main()
{
	long sum = 0;
	for (int n = 1; n <= 6; n++)
		sum += values::round(n);
	std::printf("ok values %ld\n", sum);
	return 0;
}
