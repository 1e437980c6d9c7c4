// Names that mean something else outside of their class, namespace or function.
volatile long sink;
volatile int level = 1, state = 2;
namespace net {
volatile int state = 22;
struct Server {
	int level = 11;
	static volatile int total;
	__attribute__((noinline, noipa)) int member(int n) { sink = n; return n + level + state + total; }
};
volatile int Server::total = 33;
}
template <typename... Args> __attribute__((noinline, noipa)) long pack(int first, Args... args)
{
	sink = first;
	long all[] = {first, args...};
	return all[sizeof...(args)] + sink;
}
int main(int argc, char **)
{
	net::Server server;
	return server.member(argc) + pack(argc, 5, 6L) + level + state == 0;
}
