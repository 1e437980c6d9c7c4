/* Code that the program makes while it runs, as just-in-time compilers do, with frame pointers.
 *
 * main() calls first(), that calls outer, that inner, that third(), and that hit(); outer and inner are made, 32 bytes
 * each. With -DLIKE_V8 the program has a function of V8, by which that is recognised.
 *
 * Commands, a line each:
 *
 *     where          prints the addresses of outer and inner
 *     go             calls, and prints "done"
 *     more           makes both once more, in the next page of what was reserved, and calls these from then on
 *     elsewhere      makes both once more, where nothing was reserved
 *     fork           makes a child, which lives as long as this process
 *     replace        puts data in the place of both; prints "done"
 *     dump FILE      maps the first page of the file as code, as the writer of a jitdump does
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define PAGE 4096
#define PAGES 64
#define SIZE 32

/* What made code calls, and with what. */
struct step {
	long (*function)(void *);
	void *argument;
};

static const unsigned char code[SIZE] = {
	0x55,                   /* push %rbp */
	0x48, 0x89, 0xe5,       /* mov %rsp,%rbp */
	0x48, 0x8b, 0x07,       /* mov (%rdi),%rax */
	0x48, 0x8b, 0x7f, 0x08, /* mov 8(%rdi),%rdi */
	0xff, 0xd0,             /* call *%rax */
	0x5d,                   /* pop %rbp */
	0xc3,                   /* ret */
};

static unsigned char *reserved, *outer, *inner;

#ifdef LIKE_V8
void *_ZN2v87Isolate10GetCurrentEv(void)
{
	return 0;
}
#endif

NOINLINE long hit(long n)
{
	volatile long room[9];

	room[n & 7] = n;
	__asm__ volatile("" ::: "memory");
	return room[n & 7] + 1;
}

NOINLINE long third(void *n)
{
	return hit((long)(intptr_t)n) + 1;
}

NOINLINE long first(void)
{
	struct step to_third = { third, (void *)5 };
	struct step to_inner = { (long (*)(void *))(uintptr_t)inner, &to_third };

	return ((long (*)(void *))(uintptr_t)outer)(&to_inner) + 1;
}

static int make(unsigned char *at)
{
	if (mprotect(at, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC))
		return -1;
	outer = at;
	inner = at + SIZE;
	memcpy(outer, code, SIZE);
	memcpy(inner, code, SIZE);
	return 0;
}

static unsigned char *reserve(unsigned long size)
{
	return mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static int dump(const char *path)
{
	int file = open(path, O_RDONLY);
	void *page = mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);

	close(file);
	return page == MAP_FAILED ? -1 : 0;
}

int main(void)
{
	unsigned char *elsewhere;
	char line[4096];

	setvbuf(stdout, 0, _IOLBF, 0);
	reserved = reserve(PAGES * PAGE);
	if (reserved == MAP_FAILED || make(reserved))
		return 1;
	printf("ready %d\n", (int)getpid());
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "where")) {
			printf("%p %p\n", (void *)outer, (void *)inner);
		} else if (!strcmp(line, "go")) {
			if (first() != 8)
				return 1;
			printf("done\n");
		} else if (!strcmp(line, "more")) {
			if (make(outer + PAGE))
				return 1;
			printf("done\n");
		} else if (!strcmp(line, "elsewhere")) {
			elsewhere = reserve(3 * PAGE);
			if (elsewhere == MAP_FAILED)
				return 1;
			/* Not connected with other memory. */
			munmap(elsewhere, PAGE);
			munmap(elsewhere + 2 * PAGE, PAGE);
			if (make(elsewhere + PAGE))
				return 1;
			printf("done\n");
		} else if (!strcmp(line, "fork")) {
			if (!fork()) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				for (;;)
					pause();
			}
			printf("done\n");
		} else if (!strcmp(line, "replace")) {
			memset(outer, 0xcc, 2 * SIZE);
			printf("done\n");
		} else if (!strncmp(line, "dump ", 5)) {
			if (dump(line + 5))
				return 1;
			printf("done\n");
		}
	}
	printf("ok \n");
	return 0;
}
