/* Functions with a marker, and, with CAPRIOLE_MARK_NONE, the same without. */
#include <capriole/marker.h>
#include <string.h>

int empty_loop(int n);
long arguments(int fd, long bytes, const char *path);
int leaf(int a, int b);
void copies(char *to, const char *from, int n);
int guarded(int a);

int empty_loop(int n) {
  int i;
  for (i = 0; i < n; i++)
    CAPRIOLE_MARK(hot, empty_loop);
  return i;
}

long arguments(int fd, long bytes, const char *path) {
  CAPRIOLE_MARK(hot, arguments, "fd=%d bytes=%ld path=%s", fd, bytes, path);
  return bytes + fd;
}

int leaf(int a, int b) {
  CAPRIOLE_MARK(hot, leaf, "a=%d b=%d", a, b);
  return a * b;
}

void copies(char *to, const char *from, int n) {
  for (int i = 0; i < n; i++) {
    memcpy(to, from, 4096);
    CAPRIOLE_MARK(hot, copies, "i=%d to=%p", i, (void *)to);
  }
}

int guarded(int a) {
  CAPRIOLE_MARK_GUARDED(hot, guarded, "a=%d", a * a);
  return a + 1;
}
