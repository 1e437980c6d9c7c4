/* Calls named() with texts that are not UTF-8, and differ only in what is not. */
#include <stdio.h>

__attribute__((noipa)) int named(const char *name)
{
	return name[0];
}

int main(void)
{
	int sum = 0;
	for (int i = 0; i < 3; i++)
		sum += named("caf\xe9");
	for (int i = 0; i < 2; i++)
		sum += named("caf\xe8");
	sum += named("caf\\xe8");
	printf("ok %d\n", sum);
	return 0;
}
