#include <cstdio>
#include <stdexcept>
#include <string>

[[gnu::noinline]] int port_of(const std::string &text) { return std::stoi(text); }

[[gnu::noinline]] void open_shop(const char *path)
{
	throw std::runtime_error(std::string("cannot open ") + path);
}

int main()
{
	for (const char *text : {"80", "eighty"}) {
		try {
			std::printf("%d\n", port_of(text));
			open_shop("shop.conf");
		} catch (const std::exception &) {
		}
	}
}
