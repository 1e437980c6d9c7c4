/* Members of small structs, which are passed in registers, and bit fields with a sign. */

volatile long sink;
struct small { short x; signed char y; unsigned char z; };
struct mixed { int id; char c; _Bool yes; unsigned short u; };
struct floats { float a, b; };
struct bits { int a : 3; int b : 7; unsigned c : 5; int d : 17; long long e : 20; };

__attribute__((noinline)) long take(struct small s, struct mixed m, struct bits b)
{
	sink = s.x + m.id;
	sink = b.a;
	return s.y + m.u + b.e;
}

__attribute__((noinline)) long in_memory(const struct bits *p)
{
	sink = p->a;
	return p->e;
}

__attribute__((noinline)) double real(struct floats f, double d)
{
	sink = f.a;
	return f.b + d;
}

int main(void)
{
	struct small s = {-3, -4, 250};
	struct mixed m = {-77, 'q', 1, 60000};
	struct floats f = {1.5, -2.5};

	for (int i = -2; i < 2; i++) {
		struct bits b = {i, -50, 21, -30000, -400000 * i};

		take(s, m, b);
		in_memory(&b);
		sink = real(f, 4.5);
	}
	return 0;
}
