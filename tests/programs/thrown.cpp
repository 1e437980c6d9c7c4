/*
 * A function that is left by exceptions, and by returning: thrown_work(n) throws for n from 1,000
 * to 1,999 and returns otherwise. Called with 1,000 to 1,099, each followed by a call with less
 * from the same place, and with 2,000 to 2,049: "ok".
 */
#include <cstdio>
#include <stdexcept>

extern "C" __attribute__((noipa)) long thrown_work(long n)
{
	if (n >= 1000 && n < 2000)
		throw std::runtime_error("wanted");
	return n + 1;
}

int main()
{
	long thrown = 0, sum = 0;
	for (long i = 0; i < 250; i++) {
		long n = i >= 200 ? 2000 + i - 200 : i % 2 ? i / 2 : 1000 + i / 2;
		try {
			sum += thrown_work(n) - n;
		} catch (const std::runtime_error &) {
			thrown++;
		}
	}
	if (thrown != 100 || sum != 150) {
		std::printf("BAD %ld %ld\n", thrown, sum);
		return 1;
	}
	std::puts("ok");
	return 0;
}
