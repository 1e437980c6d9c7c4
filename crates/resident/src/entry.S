/* Head of the blob, entries from the detours, and what C cannot say.
 * The blob is linked at address 0: a symbol's value is its offset. */
#include "numbers.h"

	.section .head, "ax", @progbits
	.globl	capriole_blob_start
	.hidden	capriole_blob_start
capriole_blob_start:
	.long	RESIDENT_MAGIC
	.long	capriole_blob_end
	.long	capriole_entry_switch
	.long	capriole_entry_locked
	.long	capriole_trap
	.long	capriole_restorer
	.long	capriole_config
	.long	capriole_install_cs
	.long	capriole_batch
	.long	capriole_batch_home
	.long	capriole_fault
	.long	capriole_entry_run
	.long	capriole_entry_filtering
	.long	capriole_entry_action
	.long	capriole_batch_waits
	.long	capriole_batch_moves
	.long	capriole_entry_frame

	/* Read-only data of the blob; the tracer fills it before it is mapped in. */
	.balign	64
	.globl	capriole_config
	.hidden	capriole_config
capriole_config:
	.fill	CONFIG_SIZE, 1, 0

	/* struct rseq_cs { u32 version, flags; u64 start, length, abort } of
	 * capriole_install; the tracer adds the blob's address to start and abort. */
	.balign	32
capriole_install_cs:
	.long	0, 0
	.quad	.Linstall_start
	.quad	.Linstall_commit - .Linstall_start
	.quad	.Lnot_stored
	/* The same of capriole_add. */
capriole_add_cs:
	.long	0, 0
	.quad	.Ladd_start
	.quad	.Ladd_commit - .Ladd_start
	.quad	.Lnot_stored

	/* struct timespec; its second half is also an empty set of signals */
	.balign	8
capriole_patience:
	.quad	3, 0

	.text

	.equ	DIRECTION, 1 << 10
	.equ	ALIGNMENT_CHECK, 1 << 18

/* Saves the flags. The direction flag may be set in the middle of somebody's string copy, and C wants it
 * clear; nor does C keep to aligned accesses. */
.macro	SAVE_FLAGS
	pushfq
	.cfi_adjust_cfa_offset 8
	cld
	testl	$ALIGNMENT_CHECK, (%rsp)
	jz	.Lunchecked\@
	pushfq
	.cfi_adjust_cfa_offset 8
	andl	$~ALIGNMENT_CHECK, (%rsp)
	popfq
	.cfi_adjust_cfa_offset -8
.Lunchecked\@:
.endm

/* Restores the flags that are stored at `place` bytes from the stack pointer. Changes rax, and looks at nothing
 * that is stored elsewhere.
 *
 * Not by `popf` of all of them: if a debugger has stepped over the `pushf`, its trap flag is among them, and once
 * it has detached nobody handles the SIGTRAP. The trap flag stays what it is, as at any other instruction; that
 * of a program that steps itself is set now as well. Alignment checks can only be set by `popf`: of the flags
 * of now, and two instructions after these. */
.macro	RESTORE_FLAGS	place
	testl	$DIRECTION | ALIGNMENT_CHECK, \place(%rsp)
	jz	.Lusual\@
	testl	$DIRECTION, \place(%rsp)
	jz	.Lforward\@
	std
.Lforward\@:
	testl	$ALIGNMENT_CHECK, \place(%rsp)
	jz	.Lusual\@
	pushfq
	.cfi_adjust_cfa_offset 8
	orl	$ALIGNMENT_CHECK, (%rsp)
	popfq
	.cfi_adjust_cfa_offset -8
.Lusual\@:
	mov	\place(%rsp), %eax
	xchg	%al, %ah			/* ah: all status flags but OF */
	and	$8, %al				/* OF */
	add	$0x78, %al			/* overflows exactly if OF was set */
	sahf
.endm
/* Removes the stored flags, and keeps the current ones. */
.macro	DROP_FLAGS
	lea	8(%rsp), %rsp
	.cfi_adjust_cfa_offset -8
.endm

/* The entries are called from a detour with their argument on the stack and keep
 * every register and the flags; only the argument's slot changes. */
.macro	SAVE
	SAVE_FLAGS
	push	%rax
	.cfi_adjust_cfa_offset 8
	push	%rcx
	.cfi_adjust_cfa_offset 8
	push	%rdx
	.cfi_adjust_cfa_offset 8
	push	%rsi
	.cfi_adjust_cfa_offset 8
	push	%rdi
	.cfi_adjust_cfa_offset 8
	push	%r8
	.cfi_adjust_cfa_offset 8
	push	%r9
	.cfi_adjust_cfa_offset 8
	push	%r10
	.cfi_adjust_cfa_offset 8
	push	%r11
	.cfi_adjust_cfa_offset 8
	push	%rbp
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset rbp, 0
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
	and	$-16, %rsp
.endm
.macro	RESTORE
	mov	%rbp, %rsp
	.cfi_def_cfa_register rsp
	RESTORE_FLAGS	80
	pop	%rbp
	.cfi_adjust_cfa_offset -8
	.cfi_restore rbp
	pop	%r11
	.cfi_adjust_cfa_offset -8
	pop	%r10
	.cfi_adjust_cfa_offset -8
	pop	%r9
	.cfi_adjust_cfa_offset -8
	pop	%r8
	.cfi_adjust_cfa_offset -8
	pop	%rdi
	.cfi_adjust_cfa_offset -8
	pop	%rsi
	.cfi_adjust_cfa_offset -8
	pop	%rdx
	.cfi_adjust_cfa_offset -8
	pop	%rcx
	.cfi_adjust_cfa_offset -8
	pop	%rax
	.cfi_adjust_cfa_offset -8
	DROP_FLAGS
.endm
/* The same with all registers, in the order of their numbers, the flags behind them. */
.macro	SAVE_ALL
	SAVE_FLAGS
	push	%r15
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r15, 0
	push	%r14
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r14, 0
	push	%r13
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r13, 0
	push	%r12
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset r12, 0
	push	%r11
	.cfi_adjust_cfa_offset 8
	push	%r10
	.cfi_adjust_cfa_offset 8
	push	%r9
	.cfi_adjust_cfa_offset 8
	push	%r8
	.cfi_adjust_cfa_offset 8
	push	%rdi
	.cfi_adjust_cfa_offset 8
	push	%rsi
	.cfi_adjust_cfa_offset 8
	push	%rbp
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset rbp, 0
	push	%rsp			/* not looked at */
	.cfi_adjust_cfa_offset 8
	push	%rbx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset rbx, 0
	push	%rdx
	.cfi_adjust_cfa_offset 8
	push	%rcx
	.cfi_adjust_cfa_offset 8
	push	%rax
	.cfi_adjust_cfa_offset 8
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
.endm
.macro	RESTORE_ALL
	mov	%rbp, %rsp
	.cfi_def_cfa_register rsp
	RESTORE_FLAGS	128
	pop	%rax
	.cfi_adjust_cfa_offset -8
	pop	%rcx
	.cfi_adjust_cfa_offset -8
	pop	%rdx
	.cfi_adjust_cfa_offset -8
	pop	%rbx
	.cfi_adjust_cfa_offset -8
	.cfi_restore rbx
	lea	8(%rsp), %rsp
	.cfi_adjust_cfa_offset -8
	pop	%rbp
	.cfi_adjust_cfa_offset -8
	.cfi_restore rbp
	pop	%rsi
	.cfi_adjust_cfa_offset -8
	pop	%rdi
	.cfi_adjust_cfa_offset -8
	pop	%r8
	.cfi_adjust_cfa_offset -8
	pop	%r9
	.cfi_adjust_cfa_offset -8
	pop	%r10
	.cfi_adjust_cfa_offset -8
	pop	%r11
	.cfi_adjust_cfa_offset -8
	pop	%r12
	.cfi_adjust_cfa_offset -8
	.cfi_restore r12
	pop	%r13
	.cfi_adjust_cfa_offset -8
	.cfi_restore r13
	pop	%r14
	.cfi_adjust_cfa_offset -8
	.cfi_restore r14
	pop	%r15
	.cfi_adjust_cfa_offset -8
	.cfi_restore r15
	DROP_FLAGS
.endm
/* After SAVE_ALL, where the word above the argument is how far the stack pointer is below that of the
 * site: what is saved of rsp becomes that of the site. */
.macro	SITE_STACK
	mov	152(%rsp), %rax
	lea	160(%rsp,%rax), %rax
	mov	%rax, 32(%rsp)
.endm
/* From %rbp after SAVE: 11 saved words, the return address, the argument. */
#define ARGUMENT 96

/* [argument] = units of the record; becomes 0: lost, 1: try again, 2: locked. */
	.balign	16
capriole_entry_switch:
	.cfi_startproc
	SAVE
	mov	ARGUMENT(%rbp), %rdi
	call	capriole_switch_packet
	mov	%eax, %eax
	mov	%rax, ARGUMENT(%rbp)
	RESTORE
	ret
	.cfi_endproc

/* [argument...] = the event: { u32 id, u32 bytes of fields }, fields. */
	.balign	16
capriole_entry_locked:
	.cfi_startproc
	SAVE
	lea	ARGUMENT(%rbp), %rdi
	call	capriole_locked_record
	RESTORE
	ret
	.cfi_endproc

/* [argument] = number of the system call that was just made, if it is known. */
	.balign	16
capriole_entry_action:
	.cfi_startproc
	SAVE_ALL
	mov	144(%rsp), %rsi
	mov	%rsp, %rdi
	and	$-16, %rsp
	call	capriole_action
	RESTORE_ALL
	ret
	.cfi_endproc

/* [argument] = address of a struct program, with RUN_RED_ZONE if the detour has gone below
 * the red zone; above it the event's id. All registers are looked at. */
	.balign	16
capriole_entry_run:
	.cfi_startproc
	SAVE_ALL
	mov	%rsp, %rdi		/* 16 registers, the flags, the return address, */
	mov	144(%rsp), %rsi		/* the program, */
	mov	152(%rsp), %edx		/* the event */
	lea	160(%rsp), %rcx
	mov	%esi, %eax
	and	$RUN_RED_ZONE, %eax
	sub	%rax, %rsi
	shl	$7, %eax
	add	%rax, %rcx		/* the stack pointer at the site */
	and	$-16, %rsp
	call	capriole_run
	RESTORE_ALL
	ret
	.cfi_endproc

/* [argument] = what is known of a system call that comes next; above it how far the stack
 * pointer is below that of the site. All registers are looked at. */
	.balign	16
capriole_entry_filtering:
	.cfi_startproc
	SAVE_ALL
	mov	144(%rsp), %rsi
	SITE_STACK
	mov	%rsp, %rdi
	and	$-16, %rsp
	call	capriole_filtering
	RESTORE_ALL
	ret
	.cfi_endproc

/* Before `_Unwind_Find_FDE`: above the argument, how far the stack pointer is below that of the site.
 * Goes on there, or returns from it to its caller. */
	.balign	16
capriole_entry_frame:
	.cfi_startproc
	SAVE_ALL
	SITE_STACK
	mov	%rsp, %rdi
	and	$-16, %rsp
	call	capriole_find_frame
	test	%rax, %rax
	jnz	1f
	.cfi_remember_state
	RESTORE_ALL
	ret
	.cfi_restore_state
	/* A function has kept the registers that it has to keep. */
1:	mov	%rbp, %rcx
	.cfi_def_cfa_register rcx
	mov	40(%rcx), %rbp
	.cfi_restore rbp
	.cfi_restore rbx
	.cfi_restore r12
	.cfi_restore r13
	.cfi_restore r14
	.cfi_restore r15
	mov	32(%rcx), %rsp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc

/* u32 capriole_install(stream rdi, old rsi, new rdx, cpu ecx, rseq_offset r8, seq r9,
 * old_seq on the stack) */
	.balign	16
	.globl	capriole_install
	.hidden	capriole_install
capriole_install:
	.cfi_startproc
	mov	8(%rsp), %r10
	lea	capriole_install_cs(%rip), %rax
	mov	%rax, %fs:8(%r8)
.Linstall_start:
	cmp	%ecx, %fs:4(%r8)		/* still on this CPU? */
	jne	.Lnot_stored
	cmp	%rsi, (%rdi)			/* still the current packet, as full, */
	jne	.Lnot_stored
	cmp	%r10, (%r9)			/* in the same life? */
	jne	.Lnot_stored
	mov	%rdx, (%rdi)			/* the one store */
.Linstall_commit:
	mov	$1, %eax
	ret
	.cfi_endproc

/* u32 capriole_add(cell rdi, amount rsi, cpu edx, rseq_offset rcx, maximum r8d) */
	.balign	16
	.globl	capriole_add
	.hidden	capriole_add
capriole_add:
	.cfi_startproc
	lea	capriole_add_cs(%rip), %rax
	mov	%rax, %fs:8(%rcx)
.Ladd_start:
	cmp	%edx, %fs:4(%rcx)		/* still on this CPU? */
	jne	.Lnot_stored
	mov	(%rdi), %rax
	test	%r8d, %r8d
	jnz	.Ladd_maximum
	add	%rsi, %rax
	jmp	.Ladd_store
.Ladd_maximum:
	cmp	%rsi, %rax
	cmovb	%rsi, %rax
.Ladd_store:
	mov	%rax, (%rdi)			/* the one store */
.Ladd_commit:
	mov	$1, %eax
	ret
	.cfi_endproc

	/* Who has stored nothing ends here, of its own or aborted: it is behind what is
	 * restarted. */
	.long	RSEQ_SIGNATURE
	.cfi_startproc
.Lnot_stored:
	xor	%eax, %eax
	ret
	.cfi_endproc

	/* Returns from a signal handler. The byte pattern is the one unwinders know. */
	.balign	16
	nop
	.globl	capriole_restorer
	.hidden	capriole_restorer
capriole_restorer:
	mov	$15, %rax
	syscall
	ud2

/* The last steps of a return from the handler of SIGTRAP without rt_sigreturn, see `go_on` in
 * resident.c: rdi = the registers in the signal frame, in the order of struct sigcontext_64. What
 * is there for rsp leads to the flags and the address to go on at, TRAP_ABOVE bytes below the
 * stack that was interrupted.
 *
 *   rsp ──▶ r8 .. rcx, rsp ... vector registers │ flags, rip │ 64 bytes │ red zone │ stack
 *           └───────── the kernel's frame ──────────────────┘
 *
 * Any signal may arrive between two of these instructions, and write over all that is more than 128
 * bytes below the stack pointer. What is still needed is never below it.
 *
 * First, 16 calls that do not return. The processor predicts a return by the last call that has not
 * returned, and the last ones were the kernel's. Where such a prediction leads to the kernel, the
 * return of the function that hit the breakpoint takes 0.4 us more (measured on an AMD EPYC), and
 * that of its caller too; where it leads here, some cycles. */
	.balign	16
	.globl	capriole_go_on
	.hidden	capriole_go_on
capriole_go_on:
	mov	$8, %eax
1:	call	2f
	int3
2:	call	3f
	int3
3:	add	$16, %rsp
	dec	%eax
	jnz	1b
	mov	%rdi, %rsp
	pop	%r8
	pop	%r9
	pop	%r10
	pop	%r11
	pop	%r12
	pop	%r13
	pop	%r14
	pop	%r15
	pop	%rdi
	pop	%rsi
	pop	%rbp
	pop	%rbx
	pop	%rdx
	pop	%rax
	pop	%rcx
	pop	%rsp
	popfq
	ret	$TRAP_ABOVE

/* Where a thread goes that a SIGTRAP ends. */
	.globl	capriole_breakpoint
	.hidden	capriole_breakpoint
capriole_breakpoint:
	int3

/* Not called by detours: the tracer leads a thread here to make one system call for
 * each row of a table, { arguments 0, 1 and 5, wanted result }, up to the first that
 * gives another result. rbx: first row, rbp: behind the last, r12: number of the call,
 * r14, r15, r8: arguments 2, 3 and 4, r13: where to note the row it came to.
 * Then it waits to be fetched; if nobody comes within seconds, the tracer is dead, and
 * the stack leads home.
 *
 * It waits for no signal at all: a sleep whose interruption leaves nothing behind in the
 * thread. nanosleep, poll and futex note in its `restart_block` how they are to be gone on
 * with, over what a call of the program's own, which we have interrupted, has noted there.
 *
 * The sleep may end early: the kernel wakes a thread late for a lock of its own that the thread
 * has got meanwhile, such as that of its mappings. Then it sleeps again, but not for ever: a
 * dead tracer may have left signals unblocked, and each of them wakes it. */
	.equ	BATCH_WAKES, 100
	.balign	16
capriole_batch:
	cmp	%rbp, %rbx
	jae	.Lbatch_done
	mov	(%rbx), %rdi
	mov	8(%rbx), %rsi
	mov	16(%rbx), %r9
	mov	%r14, %rdx
	mov	%r15, %r10
	mov	%r12, %rax
	syscall
	cmp	24(%rbx), %rax
	jne	.Lbatch_done
	add	$32, %rbx
	jmp	capriole_batch
	/* The same for mremap, whose rows are { old address, size, 0, new address }. */
capriole_batch_moves:
	cmp	%rbp, %rbx
	jae	.Lbatch_done
	mov	(%rbx), %rdi
	mov	8(%rbx), %rsi
	mov	%rsi, %rdx
	mov	%r15, %r10
	mov	24(%rbx), %r8
	mov	%r12, %rax
	syscall
	cmp	24(%rbx), %rax
	jne	.Lbatch_done
	add	$32, %rbx
	jmp	capriole_batch_moves
.Lbatch_done:
	mov	%rbx, (%r13)
	mov	$BATCH_WAKES, %r9d
.Lbatch_wait:
	lea	capriole_patience(%rip), %rdx
	lea	8(%rdx), %rdi			/* no signal: eight zero bytes */
	xor	%esi, %esi
	mov	$8, %r10d
	mov	$128, %eax			/* rt_sigtimedwait */
	syscall
capriole_batch_waits:
	cmp	$-4, %rax			/* EINTR; EAGAIN if nobody came */
	jne	capriole_batch_home
	dec	%r9d
	jnz	.Lbatch_wait
capriole_batch_home:
	ret

	.section .tail, "ax", @progbits
	.balign	64
	.globl	capriole_blob_end
	.hidden	capriole_blob_end
capriole_blob_end:
	.section .note.GNU-stack, "", @progbits
