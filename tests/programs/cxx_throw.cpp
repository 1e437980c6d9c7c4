// Exceptions through probed functions: thrown deep, caught at every depth, rethrown,
// with destructors that must run in order. `cxx_throw [--threads N] [--seconds S]`;
// ends like hammer.
#include "common.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tests {

struct Failure : std::runtime_error {
	std::uint64_t seq;
	explicit Failure(std::uint64_t s) : std::runtime_error("failure " + std::to_string(s)), seq(s) {}
};

// Notes its destruction, so that the order can be checked.
struct Guard {
	std::vector<int> &order;
	int depth;
	Guard(std::vector<int> &o, int d) : order(o), depth(d) {}
	~Guard() { order.push_back(depth); }
};

PROBED std::uint64_t leaf(std::uint64_t thread, std::uint64_t seq)
{
	if (seq % 3 == 0)
		throw Failure(seq);
	if (seq % 3 == 1)
		throw thread;
	return thread + seq;
}

PROBED std::uint64_t descend(std::uint64_t thread, std::uint64_t seq, int depth, std::vector<int> &order)
{
	Guard guard(order, depth);
	if (depth == 0)
		return leaf(thread, seq);
	try {
		return descend(thread, seq, depth - 1, order) + 1;
	} catch (Failure &failure) {
		if (depth == 4)
			throw; // goes on as the same exception
		if (failure.seq != seq)
			BAD("a failure of call %llu in call %llu", (unsigned long long)failure.seq,
			    (unsigned long long)seq);
		throw Failure(seq);
	}
}

template <typename T> struct Box {
	T value;
	explicit Box(T v) : value(v) {}
	virtual ~Box() = default;
	PROBED virtual T get(std::uint64_t thread, std::uint64_t seq) const { return value + static_cast<T>(thread + seq); }
};

template struct Box<std::uint64_t>;

PROBED void no_throw(std::uint64_t thread, std::uint64_t seq) noexcept
{
	try {
		leaf(thread, seq - seq % 3);
		BAD("leaf did not throw");
	} catch (const std::exception &) {
	}
}

} // namespace tests

static int threads = 4;
static double seconds;
static volatile bool stop;

static void one_call(std::uint64_t thread, std::uint64_t seq)
{
	std::vector<int> order;
	int depth = static_cast<int>(seq % 7);
	int how = 0;
	try {
		std::uint64_t got = tests::descend(thread, seq, depth, order);
		if (got != thread + seq + static_cast<std::uint64_t>(depth))
			BAD("thread %llu seq %llu: got %llu", (unsigned long long)thread, (unsigned long long)seq,
			    (unsigned long long)got);
		how = 2;
	} catch (const tests::Failure &failure) {
		if (failure.seq != seq || failure.what() != "failure " + std::to_string(seq))
			BAD("caught %s in call %llu", failure.what(), (unsigned long long)seq);
		how = 0;
	} catch (std::uint64_t value) {
		if (value != thread)
			BAD("caught %llu in thread %llu", (unsigned long long)value, (unsigned long long)thread);
		how = 1;
	}
	if (how != static_cast<int>(seq % 3))
		BAD("call %llu ended in way %d", (unsigned long long)seq, how);
	if (order.size() != static_cast<std::size_t>(depth) + 1)
		BAD("%zu destructors ran, not %d", order.size(), depth + 1);
	for (int i = 0; i <= depth; i++)
		if (order[static_cast<std::size_t>(i)] != i)
			BAD("destructor %d ran as number %d", order[static_cast<std::size_t>(i)], i);
	std::unique_ptr<tests::Box<std::uint64_t>> box(new tests::Box<std::uint64_t>(seq));
	if (box->get(thread, seq) != 2 * seq + thread)
		BAD("a virtual function went wrong");
	tests::no_throw(thread, seq);
}

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--threads"))
			threads = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--seconds"))
			seconds = atof(argv[i + 1]);
		else
			return fprintf(stderr, "cxx_throw: what is %s?\n", argv[i]), 2;
	}
	stop_on_sigterm();
	std::vector<std::uint64_t> calls(static_cast<std::size_t>(threads));
	std::vector<std::thread> pool;
	for (std::size_t t = 0; t < calls.size(); t++)
		pool.emplace_back([t, &calls] {
			std::uint64_t seq = 0;
			while (!stop)
				one_call(t, seq++);
			calls[t] = seq;
		});
	ready();
	wait_for_stop(seconds);
	stop = true;
	std::uint64_t sum = 0;
	for (std::size_t t = 0; t < calls.size(); t++) {
		pool[t].join();
		printf("thread %zu calls %llu\n", t, (unsigned long long)calls[t]);
		sum += calls[t];
	}
	printf("ok calls=%llu\n", (unsigned long long)sum);
	return 0;
}
