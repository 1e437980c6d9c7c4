/* zlib packs and unpacks a text at every level and in every way: the same calls in every run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zlib.h"

static unsigned char text[6000], packed[9000], back[6000];

static unsigned long pack(int level, int strategy, int window)
{
	z_stream stream;
	int result;
	memset(&stream, 0, sizeof stream);
	if (deflateInit2(&stream, level, Z_DEFLATED, window, 6, strategy) != Z_OK)
		abort();
	stream.next_in = text;
	stream.next_out = packed;
	stream.avail_out = sizeof packed;
	do {
		stream.avail_in = text + sizeof text - stream.next_in > 2500 ? 2500 : (unsigned)(text + sizeof text - stream.next_in);
		result = deflate(&stream, stream.next_in + stream.avail_in == text + sizeof text ? Z_FINISH : Z_SYNC_FLUSH);
	} while (result == Z_OK);
	deflateEnd(&stream);
	return stream.total_out;
}

static unsigned long unpack(unsigned long length, int window)
{
	z_stream stream;
	memset(&stream, 0, sizeof stream);
	if (inflateInit2(&stream, window) != Z_OK)
		abort();
	stream.next_in = packed;
	stream.avail_in = (unsigned)length;
	stream.next_out = back;
	stream.avail_out = sizeof back;
	while (inflate(&stream, Z_NO_FLUSH) == Z_OK)
		;
	inflateEnd(&stream);
	return crc32(0, back, (unsigned)stream.total_out) + adler32(1, back, (unsigned)stream.total_out);
}

int main(void)
{
	unsigned long sum = 0, random = 12345;
	int i;
	for (i = 0; i < (int)sizeof text; i++) {
		random = random * 1103515245 + 12345;
		text[i] = i % 700 < 500 ? "the quick brown fox jumps over the lazy dog, "[i % 45] : (unsigned char)(random >> 16 & 63);
	}
	for (i = 0; i < 6; i++) {
		int window = i == 5 ? 31 : i % 2 ? -15 : 15;
		sum += unpack(pack(i < 4 ? 3 * i : 6, i == 4 ? Z_FIXED : i == 3 ? Z_FILTERED : 0, window), window);
	}
	printf("ok zlib %lu\n", sum);
	return 0;
}
