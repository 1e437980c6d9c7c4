/*
 * Known answers of libcrypto's digests: those of fixed data of many lengths, in one piece
 * and in several. See serve() in common.h. The library is loaded by name, so that none of
 * its headers is needed.
 */
#include "common.h"

#include <dlfcn.h>

static const void *(*by_name)(const char *);
static void *(*new_context)(void);
static void (*free_context)(void *);
static int (*start)(void *, const void *, void *);
static int (*update)(void *, const void *, size_t);
static int (*finish)(void *, unsigned char *, unsigned *);
static unsigned char *(*hmac)(const void *, const void *, int, const unsigned char *, size_t,
			      unsigned char *, unsigned *);

static const char *digests[] = { "sha1", "sha224", "sha256", "sha384", "sha512", "sha512-256",
				 "sha3-224", "sha3-256", "sha3-512", "shake128", "md5", "md5-sha1",
				 "blake2b512", "blake2s256", "ripemd160", "sm3" };
/* "abc", from FIPS 180-4, FIPS 202, RFC 1321, RFC 7693. */
static const struct {
	const char *name, *digest;
} of_abc[] = {
	{ "sha1", "a9993e364706816aba3e25717850c26c9cd0d89d" },
	{ "sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
	{ "sha512", "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
		    "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f" },
	{ "sha3-256", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532" },
	{ "md5", "900150983cd24fb0d6963f7d28e17f72" },
	{ "blake2b512", "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
			"7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923" },
	{ "blake2s256", "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982" },
};

static unsigned char data[20000];

static void hex(char *text, const unsigned char *bytes, unsigned length)
{
	for (unsigned i = 0; i < length; i++)
		sprintf(text + 2 * i, "%02x", bytes[i]);
}

/* In pieces of `piece` bytes. */
static unsigned digest(const void *kind, const unsigned char *bytes, size_t length, size_t piece,
		       unsigned char *result)
{
	unsigned size = 0;
	void *context = new_context();
	CHECK(context && start(context, kind, NULL) == 1);
	for (size_t at = 0; at < length; at += piece)
		CHECK(update(context, bytes + at, length - at < piece ? length - at : piece) == 1);
	CHECK(finish(context, result, &size) == 1);
	free_context(context);
	return size;
}

static void answer(void)
{
	unsigned char result[64], whole[64];
	char text[129];
	for (size_t i = 0; i < sizeof of_abc / sizeof *of_abc; i++) {
		const void *kind = by_name(of_abc[i].name);
		if (!kind)
			continue;
		hex(text, result, digest(kind, (const unsigned char *)"abc", 3, 1, result));
		if (strcmp(text, of_abc[i].digest))
			BAD("%s of abc is %s", of_abc[i].name, text);
	}
	for (size_t i = 0; i < sizeof digests / sizeof *digests; i++) {
		const void *kind = by_name(digests[i]);
		if (!kind)
			continue; /* a legacy one that is not offered */
		unsigned char sum[64] = { 0 };
		unsigned size = 0;
		for (size_t length = 0; length < sizeof data; length = length * 5 / 4 + 7) {
			size = digest(kind, data, length, sizeof data, whole);
			CHECK(digest(kind, data, length, 61, result) == size && !memcmp(result, whole, size));
			for (unsigned b = 0; b < size; b++)
				sum[b] = (unsigned char)(sum[b] * 3 + whole[b]);
		}
		hex(text, sum, size);
		printf("%s %s\n", digests[i], text);
		if (hmac(kind, data, 77, data + 77, 3000, result, &size)) {
			hex(text, result, size);
			printf("  hmac %s\n", text);
		}
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
	void *library = dlopen("libcrypto.so.3", RTLD_NOW);
	if (!library)
		library = dlopen("libcrypto.so.1.1", RTLD_NOW);
	if (!library) {
		printf("skipped: %s\n", dlerror());
		return 0;
	}
#define FIND(variable, name) *(void **)&variable = named(library, name)
	FIND(by_name, "EVP_get_digestbyname");
	FIND(new_context, "EVP_MD_CTX_new");
	FIND(free_context, "EVP_MD_CTX_free");
	FIND(start, "EVP_DigestInit_ex");
	FIND(update, "EVP_DigestUpdate");
	FIND(finish, "EVP_DigestFinal_ex");
	FIND(hmac, "HMAC");
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)mix(i);
	serve(answer);
	return 0;
}
