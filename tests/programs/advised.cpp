// Values and functions whose plain names are refused, with advice to write other ones.
#include <cstdio>
#include <string>
#include <string_view>
#include <tuple>

#define KEPT __attribute__((noinline, noclone))

struct Base { int x; };
struct Left : Base { int left; };
struct Right : Base { int right; };
struct Both : Left, Right { int own; };
template <class T> struct Box {
    T value;
    static int count;
};
template <class T> int Box<T>::count = 7;
struct Boxes : Box<int>, Box<unsigned long> {};
namespace {
struct One { int same; };
struct Other { int same; };
struct Hidden : One, Other {};
} // namespace

enum Colour { RED, GREEN, BLUE };
namespace first { int z = 41; }
namespace second { int z = 42; }
int size = 43;
int large[100] = {44, 45};

KEPT long inherited(std::tuple<long, int, short> t, Both d, Boxes *e, Hidden j) {
    asm volatile("");
    return std::get<0>(t) + d.own + e->Box<int>::value + j.One::same;
}

KEPT long texts(const char *s, const std::string &x, std::string_view v) {
    asm volatile("" ::"r"(s));
    return x.size() + s[0] + v.size();
}

KEPT int number(int k, int *p, int **q, Colour colour, float _Complex c) {
    using namespace first;
    using namespace second;
    asm volatile("");
    return k + *p + **q + first::z + second::z + colour + large[0] + (int)__real__ c;
}

template <class... T> KEPT long packed(T... args) {
    asm volatile("");
    return (0 + ... + args);
}

struct Sized {
    int held;
    KEPT int size() {
        asm volatile("");
        return held;
    }
};

KEPT int late(int n) {
    int array[n];
    array[0] = n;
    return array[0]; // stored
}

KEPT int lambdas() {
    auto constant = [](int a) {
        asm volatile("");
        return a + 1;
    };
    auto changing = [](long a) mutable {
        asm volatile("");
        return (int)a + 2;
    };
    return constant(3) + changing(4);
}

int main() {
    Both d;
    d.Left::x = 11, d.Right::x = 12, d.left = 13, d.right = 14, d.own = 15;
    Boxes e;
    e.Box<int>::value = 21, e.Box<unsigned long>::value = 22;
    Hidden j;
    j.One::same = 31, j.Other::same = 32;
    int k = 8, *p = &k;
    Sized sized{9};
    long sum = inherited({1, 2, 3}, d, &e, j) + texts("hello", "world", "view");
    sum += number(7, p, &p, GREEN, 1.5f) + packed(51, 52L) + sized.size() + size;
    sum += late(4) + lambdas() + Box<int>::count;
    std::printf("%ld\n", sum);
}
