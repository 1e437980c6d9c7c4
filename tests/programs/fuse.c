/*
 * A file system of a server (FUSE) that only one user may read: fuse DIRECTORY USER FILE... has the files, by the
 * numbers 0, 1 and so on as their names. Prints "ready PID", and unmounts when its input ends.
 */
#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define MOST 8

static const char *contents[MOST];
static size_t sizes[MOST];
static unsigned user;

static struct fuse_attr attributes(uint64_t node)
{
	struct fuse_attr a = { .ino = node, .nlink = 1, .uid = user, .gid = user, .blksize = 4096 };

	a.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0755;
	a.size = node == FUSE_ROOT_ID ? 0 : sizes[node - 2];
	return a;
}

static void answer(int server, const struct fuse_in_header *in, int count)
{
	static char out[1 << 20];
	struct fuse_out_header *header = (struct fuse_out_header *)out;
	void *body = out + sizeof *header;
	const void *given = in + 1;
	size_t size = 0;

	*header = (struct fuse_out_header){ .unique = in->unique };
	memset(body, 0, sizeof(struct fuse_init_out) + sizeof(struct fuse_entry_out));
	switch (in->opcode) {
	case FUSE_INIT:
		*(struct fuse_init_out *)body = (struct fuse_init_out){ .major = 7, .minor = 31, .max_write = 4096 };
		size = sizeof(struct fuse_init_out);
		break;
	case FUSE_LOOKUP: {
		int file = *(const char *)given - '0';
		struct fuse_entry_out *entry = body;
		if (file < 0 || file >= count || ((const char *)given)[1]) {
			header->error = -ENOENT;
			break;
		}
		entry->nodeid = (uint64_t)file + 2;
		entry->attr = attributes(entry->nodeid);
		size = sizeof *entry;
		break;
	}
	case FUSE_GETATTR:
		((struct fuse_attr_out *)body)->attr = attributes(in->nodeid);
		size = sizeof(struct fuse_attr_out);
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		size = sizeof(struct fuse_open_out);
		break;
	case FUSE_READ: {
		const struct fuse_read_in *read = given;
		size_t all = sizes[in->nodeid - 2];
		if (read->offset < all)
			size = read->size < all - read->offset ? read->size : all - read->offset;
		memcpy(body, contents[in->nodeid - 2] + read->offset, size);
		break;
	}
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		return;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
		break;
	default:
		header->error = -ENOSYS;
	}
	header->len = (uint32_t)(sizeof *header + size);
	/* The request may have been given up. */
	if (write(server, out, header->len) < 0 && errno != ENOENT)
		BAD("the answer was refused: %d", errno);
}

int main(int argc, char **argv)
{
	static char in[1 << 17] __attribute__((aligned(8)));
	char options[128];
	int count = argc - 3, server = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	CHECK(count > 0 && count <= MOST && server >= 0);
	user = (unsigned)atoi(argv[2]);
	for (int i = 0; i < count; i++) {
		struct stat status;
		int file = open(argv[i + 3], O_RDONLY | O_CLOEXEC);
		CHECK(file >= 0 && fstat(file, &status) == 0);
		sizes[i] = (size_t)status.st_size;
		contents[i] = mmap(NULL, sizes[i], PROT_READ, MAP_PRIVATE, file, 0);
		CHECK(contents[i] != MAP_FAILED);
	}
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", server, user, user);
	CHECK(mount("test", argv[1], "fuse.test", 0, options) == 0);
	ready();
	for (;;) {
		struct pollfd both[] = { { .fd = server, .events = POLLIN }, { .fd = 0, .events = POLLIN } };
		CHECK(poll(both, 2, -1) > 0);
		if (both[1].revents)
			break;
		if (both[0].revents & POLLIN && read(server, in, sizeof in) > 0)
			answer(server, (struct fuse_in_header *)in, count);
	}
	CHECK(umount2(argv[1], MNT_DETACH) == 0);
	puts("ok unmounted");
	return 0;
}
