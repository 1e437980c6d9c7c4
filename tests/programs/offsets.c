/* A variable whose offset in the file is not that in memory, and a function. */
#include <stdio.h>

volatile unsigned variable = 0x12345678;

__attribute__((noipa)) int work(int n)
{
	return n * 3 + (int)variable;
}

int main(int argc, char **argv)
{
	(void)argv;
	printf("ok %d\n", work(argc));
	return 0;
}
