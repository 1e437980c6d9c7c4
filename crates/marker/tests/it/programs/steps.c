/* Goes through markers until it is killed. */
#include <capriole/marker.h>
#include <time.h>

static int costly(int n) {
  return n * 5;
}

static void step(int n) {
  /* Nobody but who looks at the marker reads it: it has to be there all the same. */
  char text[16] = {'o', 'n', ' ', 't', 'h', 'e', ' ', 's', 't', 'a', 'c', 'k', 0};
  CAPRIOLE_MARK(steps, step, "n=%d three=%d text=%s", n, n * 3, text);
  text[0] = 'x';
  CAPRIOLE_MARK_GUARDED(steps, costly, "%d", costly(n));
}

int main(void) {
  const struct timespec millisecond = {0, 1000000};
  for (int n = 0;; n++) {
    step(n % 1000000);
    nanosleep(&millisecond, 0);
  }
}
