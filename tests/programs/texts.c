/*
 * Five texts as markers of capriole/marker.h: `texts [FILE]`. Two are by the function that
 * writes to a file as well, if there is one.
 */
#include "common.h"

#include <capriole/marker.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

PROBED void work(const char *text, int which, int file)
{
	if (which == 0)
		capriole_mark_text(text);
	else if (which == 1)
		capriole_mark_text_to(file, text);
	else
		CAPRIOLE_MARK_TEXT(text);
}

/* No probe can be put on a trap. */
__asm__(".text\n.globl never\n.type never, @function\nnever: ud2\n.size never, .-never\n");

int main(int count, char **words)
{
	int file = count > 1 ? open(words[1], O_WRONLY) : -1;
	errno = 0;
	for (int i = 0; i < 5; i++) {
		char text[16];
		snprintf(text, sizeof text, "text %d", i);
		work(text, i % 3, file);
	}
	/* Nothing can be written there. */
	work("", 1, 1000000);
	return errno;
}
