/* A function that begins with a breakpoint of its own, never called; calls work(). */
#include <stdio.h>

__attribute__((naked, used, noinline)) void trap(void)
{
	__asm__("int3\n\tret");
}

__attribute__((noipa)) int work(int n)
{
	return n * 3;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 5)
		trap();
	printf("ok %d\n", work(argc));
	return 0;
}
