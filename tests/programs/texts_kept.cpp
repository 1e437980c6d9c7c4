/* Texts of the entry that are read at the return, and pointers that are no strings. */
#include <cstdio>
#include <string>

struct ngx_str_t {
	size_t len;
	unsigned char *data;
};

struct Request {
	int id;
	std::string name;
	ngx_str_t uri;
	char path[32];
	const char *method;
};

__attribute__((noinline)) int handle(const std::string &text, const ngx_str_t *uri, const Request *request,
				     std::string own)
{
	__asm__ volatile("" ::: "memory");
	return request->id + (int)(text.size() + uri->len + own.size());
}

__attribute__((noinline)) int take(std::string *text, std::string **pointer, Request *request)
{
	__asm__ volatile("" ::"r"(text), "r"(pointer) : "memory");
	return request->id;
}

__attribute__((noinline)) std::string *give(std::string *text)
{
	__asm__ volatile("" ::"r"(text) : "memory");
	return text;
}

int main()
{
	int sum = 0;

	for (int i = 0; i < 5; i++) {
		unsigned char data[] = "abcdefgh";
		std::string text = "text" + std::to_string(i), name(20 + i, 'n');
		name += std::string("\0z", 2);
		ngx_str_t uri = { (size_t)i + 1, data };
		Request request = { i, name, uri, "/the/path", "GET" };
		std::string *pointer = &text;
		sum += handle(text, &uri, &request, name) + take(&text, &pointer, &request);
		sum += (int)give(&text)->size();
	}
	std::puts(sum ? "ok texts" : "");
}
