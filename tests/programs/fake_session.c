/*
 * Has memory mapped that bears the name of a session's, and of its ledger, and can hold anything:
 * whoever knows the descriptors, which are number 3 and 4, writes it. `fake_session BYTES` also maps as much memory
 * that nobody writes as if it were code, where it says; each line that it reads has it map all
 * of it again, if something has unmapped it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SESSION ((void *)0x100000000000)
#define LEDGER ((void *)0x200000000000)
#define CODE ((void *)0x300000000000)

static void map(size_t size)
{
    int flags = MAP_FIXED | MAP_NORESERVE;
    void *session = mmap(SESSION, size, PROT_READ | PROT_WRITE, flags | MAP_SHARED, 3, 0);
    void *ledger = mmap(LEDGER, size, PROT_READ | PROT_WRITE, flags | MAP_PRIVATE, 4, 0);
    void *code = mmap(CODE, size, PROT_READ | PROT_EXEC, flags | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (session == MAP_FAILED || ledger == MAP_FAILED || code == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
}

static int open_as(const char *name, int number, size_t size)
{
    int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (dup2(file, number) != number || ftruncate(number, size) ||
        fcntl(number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        return -1;
    if (file != number)
        close(file);
    return 0;
}

int main(int argc, char **argv)
{
    size_t size = argc > 1 ? strtoull(argv[1], NULL, 0) : 1 << 20;
    char line[16];
    int file = open_as("capriole", 3, size);
    int other = open_as("capriole-ledger", 4, size);
    if (file || other) {
        perror("memfd");
        return 1;
    }
    map(size);
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        map(size);
        printf("mapped\n");
        fflush(stdout);
    }
    printf("ok it was never disturbed\n");
    return 0;
}
