/*
 * A program that provides pages of its own memory: the thread that does so passes a pointer into the page
 * that is missing, and whoever reads there waits for that very thread.
 *
 *   slow_memory uffd|device|apart|fuse|code [late]
 *
 * uffd: by userfaultfd(2); device: by /dev/userfaultfd; apart: so, but another process has the descriptor and
 * provides the pages, and who is about to touch one passes the pointer; fuse: of a file in a file system of
 * its own (root only); code: so, and the file may be executed. It says "skip" if that is not possible here.
 * With "late" it begins at the line "begin" (or ends before), and answers "begun". At each line "call" it
 * touches 16 pages, verifies them, and answers "called".
 */
#include "common.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define PAGE 4096ul
#define PAGES 4096ul
#define EACH 16

static char *region;
static int device; /* of userfaultfd, or /dev/fuse */
static volatile uint64_t provided;

/* The page's text is what will be there. */
PROBED uint64_t provide(const char *page, uint64_t number)
{
	return mix((uint64_t)page) + number;
}

PROBED uint64_t seen(const char *page, uint64_t number)
{
	return mix(number) + (uint64_t)page[0];
}

static void fill(char *page, uint64_t number)
{
	memset(page, 0, PAGE);
	snprintf(page, PAGE, "page %lu", (unsigned long)number);
}

static int is_apart, is_code;

static void will_provide(uint64_t number)
{
	char *page = region + number * PAGE;
	if (is_apart)
		return;
	if (provide(page, number) != mix((uint64_t)page) + number)
		BAD("provide() gave something else");
	provided++;
}

static void *provides(void *unused)
{
	static char page[PAGE] __attribute__((aligned(4096)));
	struct uffd_msg message;
	(void)unused;
	while (read(device, &message, sizeof message) == sizeof message) {
		if (message.event != UFFD_EVENT_PAGEFAULT)
			BAD("event %u", message.event);
		uint64_t number = (message.arg.pagefault.address - (uint64_t)region) / PAGE;
		will_provide(number);
		fill(page, number);
		struct uffdio_copy copy = { (uint64_t)region + number * PAGE, (uint64_t)page, PAGE, 0, 0 };
		CHECK(!ioctl(device, UFFDIO_COPY, &copy));
	}
	return 0;
}

static int begin_uffd(int by_device)
{
	if (by_device) {
		int all = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
		device = all < 0 ? all : ioctl(all, USERFAULTFD_IOC_NEW, O_CLOEXEC);
	} else {
		device = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	}
	if (device < 0)
		return 0;
	struct uffdio_api api = { UFFD_API, 0, 0 };
	CHECK(!ioctl(device, UFFDIO_API, &api));
	region = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(region != MAP_FAILED);
	struct uffdio_register whole = { { (uint64_t)region, PAGES * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	CHECK(!ioctl(device, UFFDIO_REGISTER, &whole));
	if (is_apart) {
		pid_t parent = getpid(), child = fork();
		CHECK(child >= 0);
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() == parent)
				provides(0);
			_exit(0);
		}
		close(device);
		return 1;
	}
	pthread_t thread;
	CHECK(!pthread_create(&thread, 0, provides, 0));
	return 1;
}

static struct fuse_attr attributes(uint64_t node)
{
	struct fuse_attr attr = { 0 };
	attr.ino = node;
	attr.mode = node == 1 ? 040755 : 0100644;
	attr.size = node == 1 ? 0 : PAGES * PAGE;
	attr.nlink = 1;
	return attr;
}

static void reply(uint64_t unique, int error, const void *data, size_t size)
{
	static char buffer[1 << 20];
	struct fuse_out_header head = { (uint32_t)(sizeof head + size), error, unique };
	memcpy(buffer, &head, sizeof head);
	memcpy(buffer + sizeof head, data, size);
	/* It fails if the caller was interrupted. */
	if (write(device, buffer, head.len) < 0 && errno != ENOENT)
		BAD("a reply: %s", strerror(errno));
}

/* Serves one file, "file", of which page N begins with the text "page N" (linux/fuse.h). */
static void *serves(void *unused)
{
	static char request[1 << 20], data[1 << 20];
	struct fuse_in_header head;
	ssize_t length;
	(void)unused;
	while ((length = read(device, request, sizeof request)) > 0) {
		memcpy(&head, request, sizeof head);
		const void *body = request + sizeof head;
		if (head.opcode == FUSE_INIT) {
			struct fuse_init_out out = { 0 };
			out.major = 7;
			out.minor = 31;
			out.max_write = PAGE;
			reply(head.unique, 0, &out, sizeof out);
		} else if (head.opcode == FUSE_LOOKUP && !strcmp(body, "file")) {
			struct fuse_entry_out out = { 0 };
			out.nodeid = 2;
			out.attr = attributes(2);
			out.attr_valid = out.entry_valid = 1000;
			reply(head.unique, 0, &out, sizeof out);
		} else if (head.opcode == FUSE_GETATTR) {
			struct fuse_attr_out out = { 0 };
			out.attr_valid = 1000;
			out.attr = attributes(head.nodeid);
			reply(head.unique, 0, &out, sizeof out);
		} else if (head.opcode == FUSE_OPEN || head.opcode == FUSE_OPENDIR) {
			struct fuse_open_out out = { 0 };
			reply(head.unique, 0, &out, sizeof out);
		} else if (head.opcode == FUSE_READ) {
			struct fuse_read_in in;
			memcpy(&in, body, sizeof in);
			uint64_t first = in.offset / PAGE, count = in.size / PAGE;
			CHECK(in.offset % PAGE == 0 && in.size % PAGE == 0 && in.size <= sizeof data);
			for (uint64_t i = 0; i < count; i++) {
				will_provide(first + i);
				fill(data + i * PAGE, first + i);
			}
			reply(head.unique, 0, data, in.size);
		} else if (head.opcode == FUSE_RELEASE || head.opcode == FUSE_FLUSH) {
			reply(head.unique, 0, "", 0);
		} else if (head.opcode != FUSE_FORGET && head.opcode != FUSE_BATCH_FORGET
			   && head.opcode != FUSE_INTERRUPT) {
			reply(head.unique, head.opcode == FUSE_LOOKUP ? -ENOENT : -ENOSYS, "", 0);
		}
	}
	return 0;
}

static int begin_fuse(void)
{
	char options[128], path[300];
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0 || unshare(CLONE_NEWNS) || mount("none", "/", 0, MS_REC | MS_PRIVATE, 0))
		return 0;
	char *directory = temporary();
	CHECK(mkdtemp(directory));
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	int mounted = !mount("capriole-test", directory, "fuse.test", MS_NOSUID | MS_NODEV, options);
	if (!mounted) {
		rmdir(directory);
		return 0;
	}
	pthread_t thread;
	CHECK(!pthread_create(&thread, 0, serves, 0));
	snprintf(path, sizeof path, "%s/file", directory);
	int file = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(file >= 0);
	region = mmap(0, PAGES * PAGE, is_code ? PROT_READ | PROT_EXEC : PROT_READ, MAP_PRIVATE, file, 0);
	CHECK(region != MAP_FAILED && !madvise(region, PAGES * PAGE, MADV_RANDOM));
	close(file);
	/* It is mounted as long as this process lives; the directory stays. */
	return 1;
}

static void begin(const char *how)
{
	if (!strcmp(how, "fuse") || is_code ? begin_fuse() : begin_uffd(how[0] == 'd'))
		return;
	puts("skip");
	exit(0);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	const char *how = argv[1];
	is_apart = !strcmp(how, "apart");
	is_code = !strcmp(how, "code");
	char line[64];
	uint64_t next = 0;
	if (argc < 3)
		begin(how);
	ready();
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "begin\n")) {
			begin(how);
			puts("begun");
		} else if (!strcmp(line, "call\n")) {
			for (int i = 0; i < EACH; i++, next++) {
				const char *page = region + next * PAGE;
				char text[32];
				snprintf(text, sizeof text, "page %lu", (unsigned long)next);
				if (is_apart && provide(page, next) != mix((uint64_t)page) + next)
					BAD("provide() gave something else");
				provided += is_apart;
				if (strcmp(page, text))
					BAD("page %lu holds something else", (unsigned long)next);
				if (seen(page, next) != mix(next) + 'p')
					BAD("seen() gave something else");
			}
			puts("called");
		}
		fflush(stdout);
	}
	if (provided != next)
		BAD("%lu pages provided", (unsigned long)provided);
	printf("ok provided=%lu\n", (unsigned long)provided);
	fflush(stdout);
	_exit(0);
}
