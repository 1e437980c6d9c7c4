/* A function that is only inlined, and one that is inlined and has code of its own. Each of
   three callers has parameters of the same names as the function. */

struct request {
	int len;
	const char *name;
};

volatile int sink;

static inline __attribute__((always_inline)) int handle_request(struct request *req, int size)
{
	int sum = size + req->len;

	sink = sum;
	for (int i = 0; i < size; i++)
		sink += req->name[i];
	return sum * 3;
}

int both(int size)
{
	sink = size;
	return sink * size;
}

__attribute__((noinline)) int first(struct request *r, int n)
{
	return handle_request(r, n) + 1;
}

__attribute__((noinline)) int second(struct request *r, int size)
{
	if (size > 100)
		return 0;
	return handle_request(r, size * 2 + 1) + size;
}

__attribute__((noinline)) int third(struct request *req)
{
	int x;

	sink = 4;
	x = handle_request(req + 1, 3);
	sink = x;
	return handle_request(req, 4) + x + req->len;
}

__attribute__((noinline)) int calls_both(int n)
{
	sink = n;
	return both(n + 5) + n;
}

int (*volatile by_pointer)(int) = both;

int main(int argc, char **argv)
{
	struct request r[2] = {{10, "some letters"}, {20, "others"}};

	(void)argv;
	for (int i = 0; i < 3; i++) {
		first(r, argc + 1);
		second(r, argc);
		third(r);
		calls_both(argc);
		by_pointer(argc);
	}
	return 0;
}
