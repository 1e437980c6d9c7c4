/* Small functions, of whose instructions many are probed at once. */
#include <signal.h>
#include <stdio.h>

#define PROBED __attribute__((noipa))

PROBED int add(int a, int b)
{
	return a + b;
}

PROBED long parse(const char *text)
{
	long number = 0;
	while (*text >= '0' && *text <= '9')
		number = number * 10 + (*text++ - '0');
	return number;
}

PROBED unsigned hash(const char *text, unsigned value)
{
	for (; *text; text++) {
		value ^= (unsigned char)*text;
		value *= 16777619u;
		value = value << 3 | value >> 29;
	}
	return value;
}

PROBED int middle(int a, int b, int c)
{
	if (a > b) {
		int t = a;
		a = b;
		b = t;
	}
	if (b > c)
		b = c;
	return a > b ? a : b;
}

PROBED long call(void)
{
	long result = 39; /* getpid */
	__asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11", "memory");
	return result;
}

int main(void)
{
	long sum = add(3, 4) + parse("4711") + hash("hello", 5) + middle(9, 3, 5);
	printf("ok %ld, SIGHUP is %s\n", sum + (call() > 0),
		signal(SIGHUP, SIG_IGN) == SIG_IGN ? "ignored" : "not ignored");
	return 0;
}
