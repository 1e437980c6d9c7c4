/* Probes as they are in text books: a breakpoint, whose handler has a copy of the instruction executed
   with the trap flag set, and a second trap, which goes on behind the instruction. So were the first
   kprobes. Calls are followed by a breakpoint at the entry, which replaces the return address by that of
   another breakpoint. The first instruction of the probed functions is one byte, push %rbp, and means
   the same at any address. One probe at a time, one thread. */

#define _GNU_SOURCE
#include "program.h"
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define TRAP_FLAG 0x100
#define LENGTH 1
#define SITES 64

extern const char step_trampoline[];

/* A site, found by its address as kprobes find theirs: by a hash. */
struct step {
    uintptr_t address;
    unsigned char *slot;
    capriole_pre_handler pre;
    struct capriole_return_probe returns;
};
static struct step sites[SITES];
static unsigned char *slots;
static __thread struct step *stepping;
static __thread struct capriole_call open_calls[64];
static __thread size_t open_count;

static struct step *site_of(uintptr_t address)
{
    return &sites[address / 64 % SITES];
}

static const int order[] = {REG_R15, REG_R14, REG_R13, REG_R12, REG_RBP, REG_RBX, REG_R11, REG_R10, REG_R9,
                            REG_R8,  REG_RAX, REG_RCX, REG_RDX, REG_RSI, REG_RDI, REG_RIP, REG_EFL, REG_RSP};

static void load(struct capriole_regs *regs, const greg_t *from)
{
    for (unsigned i = 0; i < 18; i++)
        ((uint64_t *)regs)[i] = (uint64_t)from[order[i]];
}

static void store(const struct capriole_regs *regs, greg_t *to)
{
    for (unsigned i = 0; i < 18; i++)
        to[order[i]] = (greg_t)((const uint64_t *)regs)[i];
}

static int entered(struct step *site, struct capriole_regs *regs)
{
    struct capriole_call *call = &open_calls[open_count];
    call->probe = &site->returns;
    call->sp = regs->sp;
    call->return_address = *(uint64_t *)regs->sp;
    if (site->returns.entry && site->returns.entry(call, regs))
        return 0;
    open_count++;
    *(uint64_t *)regs->sp = (uint64_t)step_trampoline;
    return 0;
}

static void trapped(int signal, siginfo_t *info, void *context)
{
    greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t ip = (uintptr_t)gregs[REG_RIP];
    struct capriole_regs regs;
    (void)signal;
    if (stepping && info->si_code == TRAP_TRACE) {
        gregs[REG_RIP] = (greg_t)(ip - (uintptr_t)stepping->slot + stepping->address);
        gregs[REG_EFL] &= ~TRAP_FLAG;
        stepping = NULL;
        return;
    }
    load(&regs, gregs);
    regs.ip = ip - 1;
    if (regs.ip == (uintptr_t)step_trampoline) {
        struct capriole_call *call = &open_calls[--open_count];
        regs.ip = call->return_address;
        call->probe->handler(call, &regs);
        store(&regs, gregs);
        return;
    }
    struct step *site = site_of(regs.ip);
    if (site->pre)
        site->pre(NULL, &regs);
    else
        entered(site, &regs);
    store(&regs, gregs);
    gregs[REG_RIP] = (greg_t)(uintptr_t)site->slot;
    gregs[REG_EFL] |= TRAP_FLAG;
    stepping = site;
}

static int protect(uintptr_t address, int protection)
{
    return mprotect((void *)(address & ~(uintptr_t)4095), 4096, protection);
}

/* Nobody else runs in the function meanwhile. */
static int put(uintptr_t address, unsigned char byte)
{
    if (protect(address, PROT_READ | PROT_WRITE | PROT_EXEC))
        return -1;
    *(volatile unsigned char *)address = byte;
    return protect(address, PROT_READ | PROT_EXEC);
}

static struct step *new_site(void *address)
{
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    struct step *site = site_of((uintptr_t)address);
    if (site->address || sigaction(SIGTRAP, &action, NULL))
        return NULL;
    if (!slots) {
        slots = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (slots == MAP_FAILED)
            return NULL;
    }
    site->address = (uintptr_t)address;
    site->slot = slots + 64 * (site - sites);
    memcpy(site->slot, address, LENGTH);
    site->slot[LENGTH] = 0xcc;
    return site;
}

int step_probe(void *address, capriole_pre_handler handler)
{
    struct step *site = new_site(address);
    if (!site)
        return -1;
    site->pre = handler;
    return put(site->address, 0xcc);
}

int step_return_probe(void *address, capriole_call_handler entry, capriole_call_handler handler)
{
    struct step *site = new_site(address);
    if (!site)
        return -1;
    site->returns.entry = entry;
    site->returns.handler = handler;
    return put(site->address, 0xcc);
}

/* Takes all probes out. */
int step_end(void)
{
    int failed = 0;
    for (struct step *site = sites; site < sites + SITES; site++) {
        if (site->address)
            failed |= put(site->address, site->slot[0]);
        memset(site, 0, sizeof *site);
    }
    return failed;
}
