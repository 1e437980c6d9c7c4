/* Copies of an inlined function, in none of which a parameter is anywhere. */
volatile int sink;
static inline __attribute__((always_inline)) int dropped(int value, int unused)
{
	(void)unused;
	sink = value;
	return sink + 1;
}
__attribute__((noinline)) int around(int a) { return dropped(a, sink) + 2; }
__attribute__((noinline)) int again(int a) { return dropped(a, sink * 2) + 3; }
int main(int argc, char **argv) { (void)argv; return around(argc) + again(argc) == 3; }
