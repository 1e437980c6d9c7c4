/* Returns through replaced return addresses: what is done when a followed function is
 * entered, and when it returns.
 *
 * All of it stands in a region of its own, private memory of the program that stays mapped
 * when everything else is taken out (crates/resident/src/returns.rs draws it):
 *
 *   0         header   u64 magic, u64 address of two counters: missed, abandoned
 *   0x1000    this code
 *   0x2000    stubs    for slot i, at 16 * i:  push $64 * i; jmp capriole_returned
 *   0x202000  slots    64 bytes each: address, original, calls, works[5]
 *
 * A slot is one open call (and those that it was left for by a jump). The return address on
 * the stack is that of the slot's stub, so that it tells by itself which slot is meant,
 * wherever it is taken from.
 *
 * No system call, no lock that is waited for, no memory but the region, the stack and the
 * two counters; general registers only, all of which are kept, and the status flags. */
#include "numbers.h"

#define MASK (RETURNS_SLOTS - 1)

	.section .head, "ax", @progbits
	.quad	RETURNS_MAGIC
	.long	capriole_follow
	.long	capriole_find_fde
	.long	capriole_returned
	.long	capriole_follow_once

	.text

/* Both entries are called by a detour that has pushed two words: how far the stack pointer
 * is below that of the site (0, or 128 where there may be a red zone), and an argument.
 * They keep all registers and the status flags. */
.macro	SAVE
	push	%rax
	lahf
	seto	%al
	push	%rax
	push	%rcx
	push	%rdx
	push	%rsi
	push	%rdi
	push	%r8
	push	%r9
.endm
.macro	RESTORE
	pop	%r9
	pop	%r8
	pop	%rdi
	pop	%rsi
	pop	%rdx
	pop	%rcx
	pop	%rax
	add	$0x7f, %al			/* overflows exactly if OF was set */
	sahf
	pop	%rax
.endm
/* From the stack pointer after SAVE: 8 saved words, the return address. */
#define ARGUMENT 72
#define BELOW 80
#define SITE 88

/* A function is entered that is to be followed. argument = what is to be run when it returns.
 *
 * r8 = argument, rcx = address of the return address. The slot belongs to who changed its
 * address from 0 to his own; nobody else looks at the rest of it. The stack word is written
 * last: until then the slot is one that was abandoned. */
	.balign	64
capriole_follow:
	SAVE
	mov	ARGUMENT(%rsp), %r8
	lea	SITE(%rsp), %rcx
	add	BELOW(%rsp), %rcx
	lea	slots(%rip), %rsi
	mov	(%rcx), %rax
	lea	stubs(%rip), %rdx
	mov	%rax, %rdi
	sub	%rdx, %rdi
	cmp	$RETURNS_SLOTS * 16, %rdi
	jb	.Lby_jump
	/* home = (address >> 4) + (address >> 21) * spread: what is within 2 MiB has homes of
	 * its own. */
	mov	%rcx, %r9
	mov	%rcx, %rdx
	shr	$4, %r9
	shr	$21, %rdx
	imul	$RETURNS_SPREAD, %edx, %edx
	add	%edx, %r9d
	mov	$RETURNS_WINDOW, %edx
.Llook:
	and	$MASK, %r9d
	mov	%r9d, %edi
	shl	$6, %rdi
	add	%rsi, %rdi
	mov	(%rdi), %rax
	test	%rax, %rax
	jnz	.Ltaken
	lock cmpxchg %rcx, (%rdi)
	je	.Lours
.Ltaken:
	cmp	%rcx, %rax
	je	.Labandoned
	inc	%r9d
	dec	%edx
	jnz	.Llook
.Lmissed:
	mov	header + 8(%rip), %rax
	lock incq (%rax)
	jmp	.Lfollowed
.Labandoned:
	/* The stack address cannot hold two open calls. */
	cmpq	$0, 16(%rdi)
	je	.Lours
	mov	header + 8(%rip), %rax
	lock incq 8(%rax)
.Lours:
	mov	(%rcx), %rax
	mov	%rax, 8(%rdi)
	mov	%r8, 24(%rdi)
	movq	$1, 16(%rdi)
	mov	%r9d, %eax
	shl	$4, %rax
	lea	stubs(%rip), %rdx
	add	%rdx, %rax
	mov	%rax, (%rcx)			/* from here on it is followed */
.Lfollowed:
	RESTORE
	ret
/* Entered by a jump from a function that is followed itself: both return at once. rdi = 16
 * times the number of the slot. */
.Lby_jump:
	lea	(%rsi, %rdi, 4), %rdi
	cmpq	$0, (%rdi)
	je	.Lmissed
	mov	16(%rdi), %rax
	cmp	$RETURNS_MOST_CALLS, %rax
	jae	.Lmissed
	mov	%r8, 24(%rdi, %rax, 8)
	inc	%rax
	mov	%rax, 16(%rdi)
	jmp	.Lfollowed

/* The same for a function that keeps something of its entry (the time, arguments) by the place of
 * its return address. If it is entered by a jump while it is to return there already, the new call
 * has taken the place of the older one: only one of the two can be known, and the older one is
 * missed. rdi = the slot, rax = its calls, rdx = one of them. */
	.balign	64
capriole_follow_once:
	SAVE
	mov	ARGUMENT(%rsp), %r8
	lea	SITE(%rsp), %rcx
	add	BELOW(%rsp), %rcx
	lea	slots(%rip), %rsi
	mov	(%rcx), %rdi
	lea	stubs(%rip), %rdx
	sub	%rdx, %rdi
	cmp	$RETURNS_SLOTS * 16, %rdi
	jae	.Lonce
	lea	(%rsi, %rdi, 4), %rdi
	cmpq	$0, (%rdi)
	je	.Lonce
	mov	16(%rdi), %rax
	cmp	$RETURNS_MOST_CALLS, %rax
	ja	.Lonce
	xor	%edx, %edx
.Lfind:
	cmp	%rax, %rdx
	jae	.Lonce
	cmp	%r8, 24(%rdi, %rdx, 8)
	je	.Lolder
	inc	%edx
	jmp	.Lfind
.Lolder:
	lea	1(%rdx), %rcx
	cmp	%rax, %rcx
	jae	.Lnewest
	mov	24(%rdi, %rcx, 8), %r9
	mov	%r9, 24(%rdi, %rdx, 8)
	mov	%rcx, %rdx
	jmp	.Lolder
.Lnewest:
	mov	%r8, 24(%rdi, %rdx, 8)
	jmp	.Lmissed
.Lonce:
	RESTORE
	jmp	capriole_follow

/* `_Unwind_Find_FDE(pc = rdi, bases = rsi)` is entered: libgcc asks for the function that a
 * return address, less one (not below a signal frame), lies in. If that is a stub, it is
 * given the original instead, and so is the unwinder, whose copy of it stands before the bases:
 *
 *	struct _Unwind_Context { ...; void *cfa, *ra, *lsda; struct dwarf_eh_bases bases; ... }
 *
 * So the frames are those that there would be without us, also if the stack is put in order
 * while an exception is on its way. */
	.balign	16
capriole_find_fde:
	SAVE
	lea	stubs(%rip), %rdx
	lea	1(%rdi), %rax
	sub	%rdx, %rax
	cmp	$RETURNS_SLOTS * 16, %rax
	jae	.Lfollowed
	and	$-16, %rax
	lea	(%rax, %rdx), %rcx		/* the stub */
	cmp	%rcx, -16(%rsi)
	jne	.Lfollowed			/* somebody else asks */
	lea	slots(%rip), %r8
	mov	8(%r8, %rax, 4), %rdx		/* the original */
	mov	%rdx, -16(%rsi)
	sub	%rcx, %rdi
	add	%rdx, %rdi
	mov	%rdi, 16(%rsp)			/* rdi, as it is restored */
	jmp	.Lfollowed

/* A followed function has returned to its stub, which has pushed 64 times the number of its
 * slot to where the return address stood. There it is put back, and then what is to be run
 * finds everything as at a `ret`.
 *
 * What is to be run is left where neither the function's caller can have anything (its red
 * zone ends one word above) nor a signal handler writes, 128 bytes below. */
	.balign	64
capriole_returned:
	lea	-128(%rsp), %rsp
	push	%rax
	lahf
	seto	%al
	push	%rax
	push	%rcx
	push	%rdx
	mov	160(%rsp), %rcx
	lea	slots(%rip), %rax
	add	%rax, %rcx
	mov	8(%rcx), %rdx			/* the original */
	cmpq	$0, (%rcx)
	je	.Lhome
	mov	16(%rcx), %rax
	sub	$1, %rax
	jb	.Lforgotten
	jne	.Lmore
	mov	%rdx, 160(%rsp)
	mov	24(%rcx), %rdx
	movq	$0, (%rcx)			/* the slot is free */
.Lrun:
	mov	%rdx, 32(%rsp)
	pop	%rdx
	pop	%rcx
	pop	%rax
	add	$0x7f, %al
	sahf
	pop	%rax
	lea	128(%rsp), %rsp
	jmp	*-128(%rsp)
/* The innermost of several calls that return at once. It will come here again. */
.Lmore:
	mov	%rax, 16(%rcx)
	mov	24(%rcx, %rax, 8), %rdx
	mov	160(%rsp), %rax
	shr	$2, %rax
	lea	stubs(%rip), %rcx
	add	%rcx, %rax
	mov	%rax, 160(%rsp)
	jmp	.Lrun
/* Capriole has been taken out since: there is nothing to run. */
.Lforgotten:
	movq	$0, (%rcx)
.Lhome:
	mov	%rdx, 160(%rsp)
	pop	%rdx
	pop	%rcx
	pop	%rax
	add	$0x7f, %al
	sahf
	pop	%rax
	lea	136(%rsp), %rsp
	jmp	*-8(%rsp)
	.section .note.GNU-stack, "", @progbits
