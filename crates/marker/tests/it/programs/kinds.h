/* Markers of every kind, for C and C++. */
#include <capriole/marker.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum colour { RED, BLUE = 7 };
struct item {
  char name[16];
  short number;
  const char *text;
};

static volatile int counter = 5;
static int plain_counter = 6;

static inline int inlined(int value) {
  CAPRIOLE_MARK(kinds, inlined, "value=%d", value);
  return value + 1;
}

static void sizes(struct item *item, bool yes) {
  char c = 'c';
  signed char sc = -1;
  unsigned char uc = 2;
  short s = -3;
  unsigned short us = 4;
  CAPRIOLE_MARK(kinds, small, "%d %c %hhd %hhu %hd %hu", yes, c, sc, uc, s, us);
  int i = -5 - counter;
  unsigned u = 6;
  long l = -7 - counter;
  unsigned long ul = 8;
  long long ll = -9;
  unsigned long long ull = 10;
  CAPRIOLE_MARK(kinds, large, "%d %u %ld %lu %lld %llu", i, u, l, ul, ll, ull);
  float f = 1.5f * (float)counter;
  double d = 2.5 * counter;
  CAPRIOLE_MARK(kinds, floating, "%d %f %g %d", i, f, d, i);
  enum colour colour = counter > 4 ? BLUE : RED;
  CAPRIOLE_MARK(kinds, others, "%d %zu %td %" PRIu64, (int)colour, sizeof(*item), (ptrdiff_t)l,
                (uint64_t)us);
  CAPRIOLE_MARK(kinds, pointers, "%p %s %s %p", (void *)item, item->name, item->text,
                (void *)(intptr_t)sizes);
  CAPRIOLE_MARK(kinds, memory, "%hd %d %d", item->number, counter, plain_counter);
}

static void counts(int a) {
  CAPRIOLE_MARK(kinds, bare);
  CAPRIOLE_MARK(kinds, n0, "nothing");
  CAPRIOLE_MARK(kinds, n1, "%d", a);
  CAPRIOLE_MARK(kinds, n2, "%d %d", a, 2);
  CAPRIOLE_MARK(kinds, n3, "%d %d %d", a, 2, 3);
  CAPRIOLE_MARK(kinds, n4, "%d %d %d %d", a, 2, 3, 4);
  CAPRIOLE_MARK(kinds, n5, "%d %d %d %d %d", a, 2, 3, 4, 5);
  CAPRIOLE_MARK(kinds, n6, "%d %d %d %d %d %d", a, 2, 3, 4, 5, 6);
  CAPRIOLE_MARK(kinds, n7, "%d %d %d %d %d %d %d", a, 2, 3, 4, 5, 6, 7);
  CAPRIOLE_MARK(kinds, n8, "%d %d %d %d %d %d %d %d", a, 2, 3, 4, 5, 6, 7, 8);
  CAPRIOLE_MARK(kinds, n9, "%d %d %d %d %d %d %d %d %d", a, 2, 3, 4, 5, 6, 7, 8, 9);
  CAPRIOLE_MARK(kinds, n10, "%d %d %d %d %d %d %d %d %d %d", a, 2, 3, 4, 5, 6, 7, 8, 9, 10);
  CAPRIOLE_MARK(kinds, n11, "%d %d %d %d %d %d %d %d %d %d %d", a, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
  /* All in registers at once. */
  CAPRIOLE_MARK(kinds, n12, "%d %d %d %d %d %d %d %d %d %d %d %d", a, a + 2, a + 3, a + 4, a + 5,
                a + 6, a + 7, a + 8, a + 9, a + 10, a + 11, a + 12);
}

/* Text that means something to assemblers and compilers. */
static void texts(int a) {
  CAPRIOLE_MARK(kinds, signs, "100%% {x|y} $1 \"q\" \\ \t%d\n \xc3\xa9", a);
}

/* Ends of branches that are alike but for an operand: compilers merge such. */
static int alike(int which, int a, int b) {
  if (which) {
    counter = 1;
    CAPRIOLE_MARK(kinds, alike, "%d", a); CAPRIOLE_MARK(kinds, after);
  } else {
    counter = 2;
    CAPRIOLE_MARK(kinds, alike, "%d", b); CAPRIOLE_MARK(kinds, after);
  }
  return counter;
}

static int loops(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum += inlined(inlined(i));
    CAPRIOLE_MARK(kinds, loop, "i=%d sum=%d", i, sum);
    if (i % 3)
      CAPRIOLE_MARK(kinds, third, "%d", inlined(sum));
    else
      CAPRIOLE_MARK_GUARDED(kinds, guarded, "%d", inlined(i * 7));
  }
  for (int i = 0; i < 4; i++)
    CAPRIOLE_MARK(kinds, unrolled, "%d", i);
  return sum;
}

static int all_kinds(int argc) {
  struct item item = {"name", 3, "text"};
  sizes(&item, argc > 1);
  counts(argc);
  texts(argc);
  alike(argc > 1, argc, argc + 1);
  if (CAPRIOLE_MARK_ENABLED(kinds, guarded))
    puts("on");
  capriole_mark_text("done");
  capriole_mark_text_to(argc - 100, item.text);
  CAPRIOLE_MARK_TEXT(item.text);
  return loops(argc + 10);
}
