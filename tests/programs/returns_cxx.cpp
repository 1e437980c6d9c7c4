// Exceptions through functions whose returns are probed: thrown deep, caught at some depths,
// rethrown, with destructors on the way. Prints "FUNCTION VALUE" for each call that returns, in
// order, at the end "ok".
#include "common.h"

#include <stdexcept>
#include <utility>
#include <vector>

static std::vector<std::pair<const char *, long>> notes;

struct Guard {
	long &count;
	~Guard() { count++; }
};

extern "C" PROBED long leaf(long n)
{
	if (n % 3 == 0)
		throw std::runtime_error("third");
	if (n % 7 == 0)
		throw n;
	notes.emplace_back("leaf", n * 2);
	return n * 2;
}

extern "C" PROBED long descend(long n, long depth)
{
	long unwound = 0, result;
	{
		Guard guard{unwound};
		try {
			result = depth == 0 ? leaf(n) : descend(n, depth - 1) + 1;
		} catch (long &number) {
			if (depth % 2)
				throw;
			result = number + 1000;
		}
	}
	notes.emplace_back("descend", result + unwound);
	return result + unwound;
}

int main()
{
	for (long n = 0; n < 200; n++) {
		try {
			descend(n, n % 6);
		} catch (std::runtime_error &) {
		} catch (long) {
		}
	}
	for (auto &note : notes)
		printf("%s %ld\n", note.first, note.second);
	puts("ok returns_cxx");
}
