// Exceptions in every way they are used: by value and pointer, caught by base, by
// reference and by `...`, rethrown, nested, through destructors, out of constructors,
// through functions with many saved registers, kept in std::exception_ptr and taken to
// another thread; and some of the standard library. See serve() in common.h.
#include "common.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

namespace tests {

struct Base {
	virtual ~Base() {}
	virtual int number() const { return 1; }
};
struct Left : virtual Base {
	int number() const override { return 2; }
};
struct Right : virtual Base {
	int more = 5;
};
struct Both : Left, Right {
	int number() const override { return 3; }
};

struct Guard {
	std::string &text;
	char letter;
	Guard(std::string &t, char l) : text(t), letter(l) {}
	~Guard() { text += letter; }
};

struct Fails {
	Guard guard;
	std::vector<std::string> strings;
	Fails(std::string &text, int when) : guard(text, 'm'), strings(10, "a string that is allocated")
	{
		if (when == 2)
			throw std::invalid_argument("constructor");
	}
};

PROBED std::uint64_t deep(int depth, int kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
			  std::string &text)
{
	Guard guard(text, static_cast<char>('a' + depth));
	double d = static_cast<double>(a) / 3;
	if (depth == 0) {
		switch (kind) {
		case 0: throw static_cast<int>(a);
		case 1: throw std::runtime_error("runtime " + std::to_string(b));
		case 2: throw Both();
		case 3: throw static_cast<const char *>("text");
		case 4: throw std::make_shared<std::string>("shared");
		case 5: { Fails fails(text, 2); return 0; }
		case 6: return std::stoul("no number");
		case 7: throw new Both();
		case 8: return std::vector<int>(3).at(a % 5 + 3);
		case 9: return dynamic_cast<const Both &>(static_cast<const Base &>(Left())).more;
		default: return a + b * 3 + c * 5;
		}
	}
	std::uint64_t sum;
	if (depth % 3 == 1) {
		try {
			sum = deep(depth - 1, kind, a + 1, b ^ c, c + a, text);
		} catch (const std::logic_error &) {
			text += '!';
			throw;
		}
	} else {
		sum = deep(depth - 1, kind, b + c, a, c * 7, text);
	}
	return sum + static_cast<std::uint64_t>(d) + a * 3 + b * 5 + c;
}

PROBED std::string caught(int depth, int kind)
{
	std::string text;
	std::ostringstream result;
	try {
		result << "value " << deep(depth, kind, 7, 11, 13, text);
	} catch (int i) {
		result << "int " << i;
	} catch (const std::out_of_range &e) {
		result << "range " << (e.what()[0] != 0);
	} catch (const std::exception &e) {
		result << typeid(e).name() << ' ' << e.what();
	} catch (const Right &r) {
		result << "right " << r.more << ' ' << r.number();
	} catch (Base *b) {
		result << "pointer " << b->number();
		delete b;
	} catch (const char *s) {
		result << s;
	} catch (...) {
		try {
			throw;
		} catch (const std::shared_ptr<std::string> &s) {
			result << "again " << *s;
		}
	}
	result << ' ' << text;
	return result.str();
}

PROBED void nested(int depth)
{
	try {
		if (depth == 0)
			throw std::domain_error("innermost");
		nested(depth - 1);
	} catch (...) {
		std::throw_with_nested(std::runtime_error("level " + std::to_string(depth)));
	}
}

std::string unfold(const std::exception &e)
{
	std::string text = e.what();
	try {
		std::rethrow_if_nested(e);
	} catch (const std::exception &inner) {
		text += " < " + unfold(inner);
	}
	return text;
}

std::string elsewhere(int kind)
{
	std::exception_ptr pointer;
	std::thread([&] {
		std::string text;
		try {
			deep(4, kind, 1, 2, 3, text);
		} catch (...) {
			pointer = std::current_exception();
		}
	}).join();
	if (!pointer)
		return "nothing";
	try {
		std::rethrow_exception(pointer);
	} catch (const std::exception &e) {
		return e.what()[0] ? "exception" : "empty";
	} catch (...) {
		return "something";
	}
}

void answer()
{
	for (int kind = 0; kind <= 10; kind++) {
		for (int depth = 0; depth < 9; depth += 2)
			std::printf("%s\n", caught(depth, kind).c_str());
		std::printf("elsewhere %s\n", elsewhere(kind).c_str());
	}
	try {
		nested(6);
	} catch (const std::exception &e) {
		std::printf("%s\n", unfold(e).c_str());
	}

	std::map<std::string, int> counts;
	std::istringstream words("the quick brown fox jumps over the lazy dog and the other dog");
	for (std::string word; words >> word;)
		counts[word]++;
	for (const auto &count : counts)
		std::printf("%s=%d ", count.first.c_str(), count.second);
	std::vector<double> numbers;
	for (int i = 0; i < 300; i++)
		numbers.push_back(static_cast<double>(mix(static_cast<std::uint64_t>(i)) % 1000) / 7);
	std::stable_sort(numbers.begin(), numbers.end(), std::greater<double>());
	std::ostringstream out;
	out.precision(9);
	out << numbers[0] << ' ' << numbers[150] << ' ' << std::hexfloat << numbers[299];
	std::printf("\n%s\n", out.str().c_str());
	try {
		std::regex bad("(unclosed");
	} catch (const std::regex_error &e) {
		std::printf("regex_error %d\n", static_cast<int>(e.code() == std::regex_constants::error_paren));
	}
	std::string text = std::regex_replace(std::string("a1b22c333"), std::regex("([a-z])([0-9]+)"), "$2$1,");
	std::printf("%s\n", text.c_str());
}

} // namespace tests

int main()
{
	serve(tests::answer);
	return 0;
}
