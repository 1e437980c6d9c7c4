// Goes through the markers of two instances of a template until it is killed.
#include <capriole/marker.h>
#include <time.h>

template <typename T>
T costly(T n) {
  return n * 5;
}

template <typename T>
void step(T n) {
  // Nobody but who looks at the marker reads it: it has to be there all the same.
  char text[16] = {'o', 'n', ' ', 't', 'h', 'e', ' ', 's', 't', 'a', 'c', 'k', 0};
  CAPRIOLE_MARK(steps, step, "n=%ld three=%ld text=%s", static_cast<long>(n),
                static_cast<long>(n * 3), text);
  text[0] = 'x';
  CAPRIOLE_MARK_GUARDED(steps, costly, "%ld", static_cast<long>(costly(n)));
}

int main() {
  const timespec millisecond = {0, 1000000};
  for (int n = 0;; n++) {
    step(n % 1000000);
    step(static_cast<unsigned long>(n % 1000));
    nanosleep(&millisecond, nullptr);
  }
}
