/* A slow function that is reached by a tail call. */
#include <stdio.h>
#include <time.h>

__attribute__((noipa)) int slow(int n)
{
	struct timespec pause = { 0, 20000000 };
	nanosleep(&pause, NULL);
	return n;
}

__attribute__((noipa)) int outer(int n)
{
	return slow(n + 1);
}

int main(void)
{
	int sum = 0;
	for (int i = 0; i < 5; i++)
		sum += outer(i);
	puts(sum == 15 ? "ok jumps" : "");
	return 0;
}
