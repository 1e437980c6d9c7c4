/*
 * A program that knows its own heap: how often blocks are allocated, and which are still in use.
 *
 *   cc -O2 -g -o heap_profile heap_profile.c $(pkg-config --cflags --libs capriole)
 *
 * Results are seen at the return, so these are return probes. In some C libraries calloc() or realloc() ends by a
 * jump to another function (a tail call), which has exits of its own, and a return probe of it is refused. So all
 * three are followed by their return addresses (`by_address`), which is possible whatever they end with.
 */
#include <capriole/probe.h>
#include <stdio.h>
#include <stdlib.h>

/* Blocks in use, by address. GONE: there was one. */
#define ROOM 65536
#define GONE ((uint64_t)1)
static struct block {
	uint64_t address, size;
} table[ROOM];
static uint64_t count, bytes, too_many;
static int lock;

/* Handlers may wait for a lock that only handlers take: no hit in a handler calls another one. */
static CAPRIOLE_HANDLER void take_lock(void)
{
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
}

static CAPRIOLE_HANDLER void leave_lock(void)
{
	__atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

/* Takes a block out, with the lock. Returns its size; 0: it is not known, as it was allocated before. */
static CAPRIOLE_HANDLER uint64_t take_out_locked(uint64_t address)
{
	for (uint64_t i = 0, at = address / 16; i < ROOM; i++, at++) {
		struct block *block = &table[at % ROOM];
		if (!block->address)
			break;
		if (block->address != address)
			continue;
		block->address = GONE;
		bytes -= block->size;
		count--;
		return block->size;
	}
	return 0;
}

static CAPRIOLE_HANDLER uint64_t take_out(uint64_t address)
{
	take_lock();
	uint64_t size = take_out_locked(address);
	leave_lock();
	return size;
}

static CAPRIOLE_HANDLER void add(uint64_t address, uint64_t size)
{
	take_lock();
	/* It is known already if one of these functions has called another one. */
	take_out_locked(address);
	uint64_t i = 0, at = address / 16;
	while (i < ROOM && table[at % ROOM].address > GONE)
		i++, at++;
	if (i < ROOM) {
		table[at % ROOM] = (struct block){ address, size };
		bytes += size;
		count++;
	} else {
		too_many++;
	}
	leave_lock();
}

/* A call that is going on. */
struct request {
	uint64_t size, old, old_size;
};
static unsigned long calls[3];
enum { MALLOC, CALLOC, REALLOC };

static CAPRIOLE_HANDLER int on_malloc(struct capriole_call *call, struct capriole_regs *regs)
{
	*(struct request *)call->data = (struct request){ .size = regs->di };
	__atomic_fetch_add(&calls[MALLOC], 1, __ATOMIC_RELAXED);
	return 0;
}

static CAPRIOLE_HANDLER int on_calloc(struct capriole_call *call, struct capriole_regs *regs)
{
	*(struct request *)call->data = (struct request){ .size = regs->di * regs->si };
	__atomic_fetch_add(&calls[CALLOC], 1, __ATOMIC_RELAXED);
	return 0;
}

/* The old block is taken out first: as soon as it is free, another thread may get its address. */
static CAPRIOLE_HANDLER int on_realloc(struct capriole_call *call, struct capriole_regs *regs)
{
	uint64_t old_size = regs->di ? take_out(regs->di) : 0;
	*(struct request *)call->data = (struct request){ regs->si, regs->di, old_size };
	__atomic_fetch_add(&calls[REALLOC], 1, __ATOMIC_RELAXED);
	return 0;
}

static CAPRIOLE_HANDLER int returned(struct capriole_call *call, struct capriole_regs *regs)
{
	const struct request *request = (const struct request *)call->data;
	if (regs->ax)
		add(regs->ax, request->size);
	else if (request->old_size && request->size)
		add(request->old, request->old_size);	/* realloc() has failed, and the block stays */
	return 0;
}

static CAPRIOLE_HANDLER int on_free(struct capriole_probe *p, struct capriole_regs *regs)
{
	(void)p;
	if (regs->di)
		take_out(regs->di);
	return 0;
}

#define ALLOCATES(name, on_entry)                                                                  \
	{                                                                                          \
		.probe = { .object = "libc", .symbol = name }, .entry = on_entry,                  \
		.handler = returned, .data_size = sizeof(struct request), .by_address = 1          \
	}
static struct capriole_return_probe allocates[] = {
	ALLOCATES("malloc", on_malloc), ALLOCATES("calloc", on_calloc), ALLOCATES("realloc", on_realloc)
};
static struct capriole_probe frees = { .object = "libc", .symbol = "free", .pre = on_free };

/* The program: forgets to free some of its blocks. */
static void *volatile blocks[300];

static void work(void)
{
	for (int i = 0; i < 100; i++) {
		blocks[i] = malloc(100);
		blocks[100 + i] = calloc(10, 20);
		blocks[200 + i] = realloc(malloc(50), 5000);
	}
	for (int i = 0; i < 300; i++)
		if (i % 10)
			free(blocks[i]);
}

int main(void)
{
	struct capriole_return_probe *list[] = { &allocates[0], &allocates[1], &allocates[2] };
	/* What is freed first: else a block that is freed meanwhile would stay in the table. */
	if (capriole_probe_register(&frees) < 0 || capriole_return_probes_register(list, 3) < 0) {
		fprintf(stderr, "heap_profile: %s\n", capriole_error());
		return 1;
	}
	work();
	if (capriole_return_probes_unregister(list, 3) < 0 || capriole_probe_unregister(&frees) < 0) {
		fprintf(stderr, "heap_profile: %s\n", capriole_error());
		return 1;
	}
	printf("malloc: %lu calls, calloc: %lu, realloc: %lu\n", calls[MALLOC], calls[CALLOC], calls[REALLOC]);
	printf("in use: %lu blocks, %lu bytes\n", (unsigned long)count, (unsigned long)bytes);
	if (too_many)
		printf("no room for %lu blocks\n", (unsigned long)too_many);
	return 0;
}
