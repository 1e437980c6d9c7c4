/*
 * Known answers of zlib: compresses and uncompresses data of several kinds at all levels
 * and with all strategies, whole and in small pieces, and prints checksums of what came
 * out. See serve() in common.h. The library is loaded by name, so that none of its
 * headers is needed.
 */
#include "common.h"

#include <dlfcn.h>

/* z_stream of zlib.h, whose layout is part of zlib's binary interface since 1.0. */
struct stream {
	const unsigned char *next_in;
	unsigned avail_in;
	unsigned long total_in;
	unsigned char *next_out;
	unsigned avail_out;
	unsigned long total_out;
	const char *message;
	void *state;
	void *(*allocate)(void *, unsigned, unsigned);
	void (*release)(void *, void *);
	void *opaque;
	int data_type;
	unsigned long adler;
	unsigned long reserved;
};

enum { NO_FLUSH = 0, SYNC_FLUSH = 2, FINISH = 4, STREAM_END = 1, BUF_ERROR = -5 };

static unsigned long (*crc32_)(unsigned long, const unsigned char *, unsigned);
static unsigned long (*adler32_)(unsigned long, const unsigned char *, unsigned);
static const char *(*version_)(void);
static int (*compress2_)(unsigned char *, unsigned long *, const unsigned char *, unsigned long, int);
static int (*uncompress_)(unsigned char *, unsigned long *, const unsigned char *, unsigned long);
static int (*deflate_init_)(struct stream *, int, int, int, int, int, const char *, int);
static int (*deflate_)(struct stream *, int);
static int (*deflate_end_)(struct stream *);
static int (*inflate_init_)(struct stream *, int, const char *, int);
static int (*inflate_)(struct stream *, int);
static int (*inflate_end_)(struct stream *);

#define SIZE 40000
static unsigned char data[SIZE], packed[2 * SIZE], unpacked[SIZE];

/* Text, runs, noise, and a ramp. */
static void fill(int kind)
{
	static const char *words[] = { "probe ", "site ", "detour ", "packet\n", "of ", "the " };
	uint64_t x = 12345 + (uint64_t)kind;
	size_t at = 0;
	while (at < SIZE) {
		x = mix(x + 1);
		switch (kind) {
		case 0:
			for (const char *w = words[x % 6]; *w && at < SIZE; w++)
				data[at++] = (unsigned char)*w;
			break;
		case 1:
			for (uint64_t n = x % 700; n && at < SIZE; n--)
				data[at++] = (unsigned char)(x >> 32);
			break;
		case 2:
			data[at++] = (unsigned char)x;
			break;
		default:
			data[at] = (unsigned char)(at / 3);
			at++;
		}
	}
}

static void in_pieces(int level, int bits, int strategy, unsigned piece)
{
	struct stream s;
	memset(&s, 0, sizeof s);
	CHECK(deflate_init_(&s, level, 8, bits, 8, strategy, version_(), sizeof s) == 0);
	s.next_out = packed;
	s.avail_out = sizeof packed;
	for (unsigned at = 0; at < SIZE; at += piece) {
		s.next_in = data + at;
		s.avail_in = SIZE - at < piece ? SIZE - at : piece;
		CHECK(deflate_(&s, at / piece % 5 == 4 ? SYNC_FLUSH : NO_FLUSH) == 0);
	}
	CHECK(deflate_(&s, FINISH) == STREAM_END);
	unsigned long length = s.total_out;
	CHECK(deflate_end_(&s) == 0);

	memset(&s, 0, sizeof s);
	memset(unpacked, 0, sizeof unpacked);
	CHECK(inflate_init_(&s, bits, version_(), sizeof s) == 0);
	s.next_out = unpacked;
	int result = 0;
	unsigned long in = 0;
	while (result != STREAM_END) {
		if (s.avail_in == 0) {
			s.next_in = packed + in;
			s.avail_in = (unsigned)(length - in < piece / 3 + 1 ? length - in : piece / 3 + 1);
			in += s.avail_in;
		}
		unsigned left = (unsigned)(SIZE - s.total_out);
		s.avail_out = left < piece ? left : piece;
		result = inflate_(&s, NO_FLUSH);
		CHECK(result == 0 || result == STREAM_END || result == BUF_ERROR);
	}
	CHECK(s.total_out == SIZE && inflate_end_(&s) == 0);
	CHECK(!memcmp(data, unpacked, SIZE));
	printf("level %d bits %d strategy %d piece %u: %lu bytes, crc %08lx\n", level, bits, strategy,
	       piece, length, crc32_(0, packed, (unsigned)length));
}

static void answer(void)
{
	for (int kind = 0; kind < 4; kind++) {
		fill(kind);
		printf("kind %d crc %08lx adler %08lx\n", kind, crc32_(0, data, SIZE),
		       adler32_(1, data, SIZE));
		for (unsigned at = 0; at < 40; at++)
			printf("%08lx%c", crc32_(at, data + at, 3 * at) ^ adler32_(at, data + at, 2 * at),
			       at % 8 == 7 ? '\n' : ' ');
		for (int level = kind; level <= 9; level += 4) {
			unsigned long length = sizeof packed, back = sizeof unpacked;
			CHECK(compress2_(packed, &length, data, SIZE, level) == 0);
			CHECK(uncompress_(unpacked, &back, packed, length) == 0);
			CHECK(back == SIZE && !memcmp(data, unpacked, SIZE));
			printf("compress level %d: %lu bytes, crc %08lx\n", level, length,
			       crc32_(0, packed, (unsigned)length));
			packed[length / 2] ^= 0x55; /* damage is noticed */
			printf("damaged: %d\n", uncompress_(unpacked, &back, packed, length));
		}
		in_pieces(1 + kind, 15, kind, 1000 + 777 * (unsigned)kind);
		in_pieces(9 - kind, kind % 2 ? 31 : -12, 4, 4096);
	}
}

static void *named(void *library, const char *name)
{
	void *address = dlsym(library, name);
	if (!address)
		BAD("%s", dlerror());
	return address;
}

int main(void)
{
	void *library = dlopen("libz.so.1", RTLD_NOW);
	if (!library) {
		printf("skipped: %s\n", dlerror());
		return 0;
	}
#define FIND(variable, name) *(void **)&variable = named(library, name)
	FIND(crc32_, "crc32");
	FIND(adler32_, "adler32");
	FIND(version_, "zlibVersion");
	FIND(compress2_, "compress2");
	FIND(uncompress_, "uncompress");
	FIND(deflate_init_, "deflateInit2_");
	FIND(deflate_, "deflate");
	FIND(deflate_end_, "deflateEnd");
	FIND(inflate_init_, "inflateInit2_");
	FIND(inflate_, "inflate");
	FIND(inflate_end_, "inflateEnd");
	serve(answer);
	return 0;
}
