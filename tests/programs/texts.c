/*
 * Five texts, of a function and of an inlined one, as markers of capriole/marker.h.
 */
#include "common.h"

#include <capriole/marker.h>
#include <stdio.h>

PROBED void work(const char *text, int by_function)
{
	if (by_function)
		capriole_mark_text(text);
	else
		CAPRIOLE_MARK_TEXT(text);
}

int main(void)
{
	for (int i = 0; i < 5; i++) {
		char text[16];
		snprintf(text, sizeof text, "text %d", i);
		work(text, i & 1);
	}
	return 0;
}
