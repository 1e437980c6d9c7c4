/* A function that calls nobody and has variables in memory across a marker. */
#include <capriole/marker.h>
#include <stdio.h>

#if defined __GNUC__
__attribute__((noinline))
#endif
static long leaf(long a, int n) {
  volatile long kept[6];
  for (int i = 0; i < 6; i++)
    kept[i] = a + i;
  CAPRIOLE_MARK(leaf, leaf, "a=%ld", a);
  return kept[n] - n;
}

int main(void) {
  int wrong = 0;
  for (int i = 0; i < 10000; i++)
    wrong += leaf(i, i % 6) != i;
  printf("%d of 10000 wrong\n", wrong);
  return 0;
}
