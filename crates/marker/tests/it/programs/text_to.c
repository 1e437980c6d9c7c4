/* Writes one text to standard output: the others have no text, or no file. */
#include <capriole/marker.h>
#include <errno.h>
#include <stddef.h>

int main(int count, char **words) {
  errno = 0;
  capriole_mark_text_to(1, count > 1 ? words[1] : NULL);
  capriole_mark_text_to(1, NULL);
  capriole_mark_text_to(-1, "no file\n");
  capriole_mark_text_to(1000000, "not open\n");
  capriole_mark_text_to(count, "done\n");
  return errno;
}
