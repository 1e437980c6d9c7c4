/*
 * Texts of servers in C, with the types as in their headers: nginx (ngx_string.h), PostgreSQL (c.h,
 * lib/stringinfo.h; varlena as its varatt.h says), GLib (gstring.h), HAProxy (import/ist.h), H2O (h2o/memory.h), redis (sds.h).
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef OTHER
/* Another type of a known name. */
typedef struct {
	int len;
	int data;
} ngx_str_t;

__attribute__((noipa)) int take(ngx_str_t *uri)
{
	return uri->len + uri->data;
}

int main(void)
{
	ngx_str_t uri = { 7, 8 };
	puts(take(&uri) == 15 ? "ok texts" : "");
	return 0;
}
#else
typedef unsigned char u_char;
typedef struct {
	size_t len;
	u_char *data;
} ngx_str_t;

typedef struct nameData {
	char data[64];
} NameData;
typedef NameData *Name;
typedef struct StringInfoData {
	char *data;
	int len;
	int maxlen;
	int cursor;
} StringInfoData;
typedef StringInfoData *StringInfo;

struct varlena {
	char vl_len_[4];
	char vl_dat[];
};
typedef struct varlena text;
typedef struct varlena bytea;

typedef char gchar;
typedef struct _GString {
	gchar *str;
	size_t len, allocated_len;
} GString;

struct ist {
	char *ptr;
	size_t len;
};

typedef struct st_h2o_iovec_t {
	char *base;
	size_t len;
} h2o_iovec_t;

typedef char *sds;


struct request {
	ngx_str_t uri;
	struct request *main;
};

__attribute__((noipa)) size_t take(ngx_str_t *uri, const ngx_str_t value, const struct request *r,
				   StringInfo info, Name name, const GString *string, struct ist ist,
				   h2o_iovec_t body, sds own, const text *sql, bytea *small)
{
	__asm__ volatile("" ::: "memory");
	if (!sql || !small)
		return 0;
	return uri->len + value.len + r->uri.len + (size_t)info->len + strlen(name->data) +
	       string->len + ist.len + body.len + strlen(own);
}

/* Results: in two registers, and by their address. */
__attribute__((noipa)) ngx_str_t seen(const ngx_str_t *uri)
{
	__asm__ volatile("" ::: "memory");
	return *uri;
}

__attribute__((noipa)) const ngx_str_t *same(const ngx_str_t *uri)
{
	__asm__ volatile("" ::: "memory");
	return uri;
}

/* Only the first kind can be shown: the others are compressed, and elsewhere. */
__attribute__((noipa)) int kind(const text *sql)
{
	__asm__ volatile("" ::: "memory");
	return sql->vl_len_[0];
}

/* A varlena with a header of four bytes, or of one. */
static text *varlena(char *to, const char *from, size_t length, int small)
{
	unsigned int header = small ? (unsigned int)(length + 1) << 1 | 1 : (unsigned int)(length + 4) << 2;
	memcpy(to, &header, small ? 1 : 4);
	memcpy(to + (small ? 1 : 4), from, length);
	return (text *)to;
}

int main(void)
{
	static char texts[][32] = { "short", "", "/index.html?a=b", "seven\0", "x" };
	size_t sum = 0;

	for (size_t i = 0; i < 5; i++) {
		/* None of these but the name and the sds ends with NUL. */
		char longer[64];
		size_t length = i == 3 ? 6 : strlen(texts[i]);
		memset(longer, '#', sizeof longer);
		memcpy(longer, texts[i], length);
		ngx_str_t uri = { length, (u_char *)longer };
		struct request main_request = { { length / 2, (u_char *)longer }, NULL };
		struct request request = { uri, &main_request };
		StringInfoData info = { longer, (int)length, 64, 0 };
		NameData name = { "" };
		GString string = { longer, length, 64 };
		struct ist ist = { longer, length };
		h2o_iovec_t body = { longer, length };

		/* As long as one that has a header of one byte can be, and longer than what is recorded. */
		static char many[3000], sql[3100], small[200];
		memset(many, 'm', sizeof many);
		size_t lengths[] = { length, 0, 126, 1020, sizeof many };

		memcpy(name.data, texts[i], length);
		memcpy(many, texts[i], length);
		sum += seen(&uri).len + same(&uri)->len;
		sum += take(&uri, uri, &request, &info, &name, &string, ist, body, texts[i],
			    varlena(sql, many, lengths[i], 0),
			    varlena(small, many, lengths[i] < 126 ? lengths[i] : 126, 1));
	}
	/* Plain; compressed, as its second lowest bit says; a pointer to what is elsewhere (VARTAG_ONDISK). */
	static char whole[40], compressed[] = "\x0a\0\0\0\5\0\0\0what", external[] = "\x01\x12 sixteen bytes..";
	sum += (size_t)kind(varlena(whole, "whole", 5, 0)) + (size_t)kind((text *)compressed);
	sum += (size_t)kind((text *)external);
	puts(sum ? "ok texts" : "");
	return 0;
}
#endif
