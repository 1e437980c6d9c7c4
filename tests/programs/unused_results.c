/* Functions whose results are used by some caller, passed on, or used by none. */
#include <stdio.h>

#define KEPT __attribute__((noinline))
#define OPAQUE(x) __asm__ volatile("" : "+r"(x))

static int sink;
static double real_sink;

KEPT static int unused(int k) {
    OPAQUE(k);
    sink += k;
    return sink * 2;
}
/* Its code writes the register, but not with the result. */
KEPT static int unused_written(int k) {
    if (k > 1) {
        sink++;
        return 7;
    }
    sink--;
    return k;
}
KEPT static double unused_real(int k) {
    OPAQUE(k);
    real_sink += k;
    return real_sink * 2;
}
KEPT static int unused_inner(int k) {
    sink += k;
    return sink * 11;
}
KEPT static int unused_outer(int k) {
    sink += k;
    return unused_inner(k);
}

KEPT static int used(int k) {
    OPAQUE(k);
    return k * 3;
}
KEPT static double used_real(int k) {
    OPAQUE(k);
    return k * 1.5;
}
KEPT static int passed(int k) {
    OPAQUE(k);
    return k * 5;
}
KEPT int passes(int k) {
    sink ^= k;
    return passed(k + 2);
}
/* Callers that are not known may use it. */
KEPT static int pointed(int k) {
    OPAQUE(k);
    sink += k;
    return k * 7;
}
int (*volatile table)(int) = pointed;

int main(int count, char **arguments) {
    (void)arguments;
    for (int i = 0; i < 2; i++) {
        unused(count + i);
        unused_written(count + i);
        unused_real(count + i);
        unused_outer(count);
        pointed(i);
    }
    printf("%d %d %f %d\n", used(count + 1) + 1, passes(count), used_real(count), table(3));
    return 0;
}
