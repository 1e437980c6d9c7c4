/* Static markers in C: see docs/markers.md.
 *
 *   markers [SECONDS]    until Ctrl-C, or for as many seconds
 */
#include <capriole/marker.h>

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum method { GET, PUT };

static volatile sig_atomic_t stop;

static void on_signal(int number) {
  (void)number;
  stop = 1;
}

/* Something that is not to be done for nothing. */
static uint64_t checksum(const char *text) {
  uint64_t sum = 14695981039346656037u;
  for (; *text; text++)
    sum = (sum ^ (unsigned char)*text) * 1099511628211u;
  return sum;
}

static unsigned serve(unsigned number, enum method method, const char *path) {
  double cost = number * 0.5;
  CAPRIOLE_MARK(shop, request, "number=%u method=%d path=%s", number, (int)method, path);
  CAPRIOLE_MARK_GUARDED(shop, hashed, "hash=%llx", (unsigned long long)checksum(path));
  unsigned status = number % 10 == 0 ? 404 : 200;
  CAPRIOLE_MARK(shop, reply, "number=%u status=%u cost=%g", number, status, cost);
  return status;
}

int main(int argc, char **argv) {
  if (argc > 1) {
    signal(SIGALRM, on_signal);
    alarm((unsigned)atoi(argv[1]));
  }
  printf("process %d serves\n", (int)getpid());
  fflush(stdout);
  unsigned missing = 0;
  for (unsigned number = 1; !stop; number++) {
    missing += serve(number, number % 3 ? GET : PUT, "/index.html") == 404;
    if (missing % 100 == 99) {
      CAPRIOLE_MARK_TEXT("a hundred requests in vain");
      missing++;
    }
    usleep(1000);
  }
  return 0;
}
