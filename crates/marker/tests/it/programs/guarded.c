/* How often arguments are evaluated. */
#include <capriole/marker.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
extern unsigned short guarded_form_semaphore __attribute__((visibility("hidden")));
#ifdef __cplusplus
}
#endif

static int evaluated, unguarded;

static int costly(void) {
  return ++evaluated;
}

static void rounds(void) {
  for (int i = 0; i < 5; i++) {
    CAPRIOLE_MARK_GUARDED(guarded, form, "%d %d", costly(), i);
    if (CAPRIOLE_MARK_ENABLED(guarded, form)) {
      int prepared = costly();
      CAPRIOLE_MARK(guarded, form, "%d", prepared);
    }
    CAPRIOLE_MARK(guarded, always, "%d", ++unguarded);
  }
}

int main(void) {
  rounds();
  printf("off %d\n", evaluated);
  guarded_form_semaphore++;
  rounds();
  printf("on %d\n", evaluated);
  guarded_form_semaphore--;
  rounds();
  printf("off %d\nunguarded %d\n", evaluated, unguarded);
  return 0;
}
