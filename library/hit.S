/* The routines that detours call for the handlers of a site.
 *
 * Convention (crates/codegen, module `handler`): %rdi is the struct site, and right above the return
 * address are struct capriole_regs, with `di` and `sp` stored. All other registers, and the flags
 * unless they are dead, are the program's. The routine returns with all registers as they are then
 * in the struct, or goes on at another `ip` or with another `sp` by itself.
 *
 * Unwinders see the frame of a signal: the registers of the site, at the addresses where they are
 * stored. So a backtrace in a handler goes on in the probed function, and a debugger shows its
 * variables; the return address, which leads into a detour, is not a part of it. One that leaves handlers for
 * good (pthread_exit, pthread_cancel) calls capriole_left_handler as it passes.
 */
#include "numbers.h"

/* Offsets from the frame, which begins with the return address. */
#define R15	8
#define R14	16
#define R13	24
#define R12	32
#define BP	40
#define BX	48
#define R11	56
#define R10	64
#define R9	72
#define R8	80
#define AX	88
#define CX	96
#define DX	104
#define SI	112
#define DI	120
#define IP	128
#define FLAGS	136
#define SP	144
#define SPARE	152	/* not a register: for the routine */

/* Flags that neither sahf nor an addition restores: trap, direction, nested task, alignment check. */
#define TRAP	0x100
#define DIRECTION	0x400
#define ONLY_POPF	0x44100	/* all but direction, which has instructions of its own */
#define UNUSUAL	(ONLY_POPF | DIRECTION)

/* The direction flag may be set in the middle of a string copy, and C wants it clear; nor does C keep to
 * aligned accesses. */
.macro	FLAGS_FOR_C
	cld
	pushfq
	andl	$~(ONLY_POPF & ~TRAP), (%rsp)
	popfq
.endm

	.section capriole_text, "ax", @progbits

/* The register of DWARF's number `register` is at `place` bytes from %rsp, or from `base` (7: %rsp, 6: %rbp). */
.macro	AT	register, place, base=7
	.cfi_escape 0x10, \register, 3, 0x70 + \base, ((\place) & 0x7f) | 0x80, (\place) >> 7
.endm

/* What is stored of a site, `above` bytes from `base`: where it is, and registers that C functions change.
 * Those that are not described are where they were. */
.macro	DESCRIBE_SOME	above, others, base=7
	/* The CFA is what SP holds. */
	.cfi_escape 0x0f, 4, 0x70 + \base, ((SP + \above) & 0x7f) | 0x80, (SP + \above) >> 7, 0x06
	AT	16, IP + \above, \base
	AT	0, AX + \above, \base
	AT	1, DX + \above, \base
	AT	2, CX + \above, \base
	AT	4, SI + \above, \base
	AT	5, DI + \above, \base
.if	\others
	AT	8, R8 + \above, \base
	AT	9, R9 + \above, \base
	AT	10, R10 + \above, \base
	AT	11, R11 + \above, \base
.endif
.endm

/* All registers are stored, and %rbp is the frame. */
.macro	DESCRIBE
	DESCRIBE_SOME 0, 1, 6
	AT	3, BX, 6
	AT	6, BP, 6
	AT	12, R12, 6
	AT	13, R13, 6
	AT	14, R14, 6
	AT	15, R15, 6
.endm

.macro	STORE
	mov	%rax, AX(%rsp)
	mov	%rcx, CX(%rsp)
	STORE_OTHERS
.endm

/* All but ax, which is overwritten, cx, and what the detour has stored. */
.macro	STORE_OTHERS
	mov	%r15, R15(%rsp)
	mov	%r14, R14(%rsp)
	mov	%r13, R13(%rsp)
	mov	%r12, R12(%rsp)
	mov	%rbp, BP(%rsp)
	mov	%rbx, BX(%rsp)
	mov	%r11, R11(%rsp)
	mov	%r10, R10(%rsp)
	mov	%r9, R9(%rsp)
	mov	%r8, R8(%rsp)
	mov	%rdx, DX(%rsp)
	mov	%rsi, SI(%rsp)
	/* If a debugger steps over `pushf`, its trap flag is in what that stores. It would come back after the
	 * debugger has detached, and end the program. */
	pushfq
	pop	%rax
	and	$~TRAP, %eax
	mov	%rax, FLAGS(%rsp)
.endm

/* All but ax and rsp, from the frame that is the stack pointer. Changes no flag. */
.macro	LOAD
	mov	CX(%rsp), %rcx
	mov	DX(%rsp), %rdx
	mov	SI(%rsp), %rsi
	mov	DI(%rsp), %rdi
	mov	R8(%rsp), %r8
	mov	R9(%rsp), %r9
	mov	R10(%rsp), %r10
	mov	R11(%rsp), %r11
	mov	BX(%rsp), %rbx
	mov	BP(%rsp), %rbp
	mov	R12(%rsp), %r12
	mov	R13(%rsp), %r13
	mov	R14(%rsp), %r14
	mov	R15(%rsp), %r15
.endm

/* Has the flags as they are stored; the status flags only if `status`. Changes rax, rcx. The unusual ones have
 * to be clear, but for the trap flag, which stays as it is unless a handler has asked for it. LOAD_UNUSUAL
 * follows, off the usual path. */
.macro	LOAD_FLAGS	name, status
	testl	$UNUSUAL, FLAGS(%rsp)
	jnz	.Lunusual_flags_\name
.Lusual_flags_\name:
.if	\status
	mov	FLAGS(%rsp), %eax
	mov	%eax, %ecx
	shr	$11, %ecx
	and	$1, %ecx		/* the overflow flag */
	shl	$8, %eax		/* ah: the others */
	mov	%cl, %al
	SET_STATUS
.endif
.endm
.macro	LOAD_UNUSUAL	name
.Lunusual_flags_\name:
	std
	testl	$ONLY_POPF, FLAGS(%rsp)
	jz	.Lusual_flags_\name
	pushq	FLAGS(%rsp)
	popfq
	jmp	.Lusual_flags_\name
.endm

/* `at`: where the site has the address that is the instruction pointer. `function`, `argument`: what
 * is called. `flags`: 1 if the status flags are to be as the handlers have left them; 0 where they are
 * dead.
 *
 * A thread notes its frame while it runs handlers: before it reads the site's set, until it does not
 * use that any more. Whoever replaces a set waits, after a memory barrier on all processors, until
 * each thread has been seen without the frame that it had: see settle() in probe.c. A thread without
 * a record of its own has one in which it always runs handlers. */
.macro	RUN	name, function, argument, flags
	mov	capriole_thread@gottpoff(%rip), %rax
	mov	%fs:(%rax), %rbx
.Lknown_\name:
	cmpq	$0, THREAD_FRAME(%rbx)
	jne	.Lactive_\name
	mov	%rbp, THREAD_FRAME(%rbx)
	mov	SITE_SET(%r12), %rax
	mov	\argument(%rax), %rdi
	lea	R15(%rbp), %rsi
.if	\function == SET_AFTER
	xor	%edx, %edx		/* a post-handler's flags */
.endif
	and	$-16, %rsp
	call	*\function(%rax)
	mov	%rbp, %rsp
	movq	$0, THREAD_FRAME(%rbx)
	test	%eax, %eax
	jnz	.Lskip_\name
	cmp	%r15, IP(%rsp)
	jne	.Lchanged_\name
	lea	8 + FRAME(%rsp), %rax
	cmp	%rax, SP(%rsp)
	jne	.Lchanged_\name
.Lback_\name:
	LOAD_FLAGS \name, \flags
	LOAD
	mov	AX(%rsp), %rax
	ret
	LOAD_UNUSUAL \name

.Lactive_\name:
	/* In a handler already; or out of it by a jump that has not come back here; or a new thread. */
	mov	%rbx, %rdi
	mov	SP(%rbp), %rsi
	and	$-16, %rsp
	call	capriole_active
	mov	%rbp, %rsp
	mov	%rax, %rbx
	test	%rax, %rax
	jnz	.Lknown_\name
.if	\function == SET_BEFORE
	/* What misses its pre-handlers misses its post-handlers as well, and counts once. */
	mov	%r12, %rdi
	and	$-16, %rsp
	call	capriole_miss
	mov	%rbp, %rsp
.endif
	jmp	.Lback_\name

.Lskip_\name:
	/* Skips the instruction, if the handler has not chosen another one. */
	mov	$1, %ecx
	jmp	.Lelsewhere_\name
.Lchanged_\name:
	xor	%ecx, %ecx
.Lelsewhere_\name:
	mov	%r12, %rdi
	lea	R15(%rsp), %rsi
	mov	%r15, %rdx
	and	$-16, %rsp
	call	capriole_redirect
	mov	%rbp, %rsp
	jmp	capriole_go
.endm

/* Has the status flags of %eax as lahf and seto gave them. */
.macro	SET_STATUS
	add	$0x7f, %al		/* overflows if the overflow flag was set */
	sahf
.endm

/* Has the status flags that READ_ONLY found. */
.macro	STATUS_FOUND
	mov	FLAGS(%rsp), %eax
	SET_STATUS
.endm

/* Calls `target`, a handler that only reads registers, and returns to the detour. With `others` r8 to r11
 * are stored as well, or they are where they were. */
.macro	CALL_READER	flags, others, target
.if	\others
	mov	%r8, R8(%rsp)
	mov	%r9, R9(%rsp)
	mov	%r10, R10(%rsp)
	mov	%r11, R11(%rsp)
.endif
	test	$8, %spl
	jz	.Laligned\@
	lea	-8(%rsp), %rsp
	.cfi_remember_state
	DESCRIBE_SOME 8, \others
	call	\target
	lea	8(%rsp), %rsp
	.cfi_restore_state
	.cfi_remember_state
	DESCRIBE_SOME 0, \others
.Lcalled\@:
	mov	capriole_thread@gottpoff(%rip), %rax
	mov	%fs:(%rax), %rcx
	movq	$0, THREAD_FRAME(%rcx)
	PUT_BACK \flags, \others
.Laligned\@:
	call	\target
	jmp	.Lcalled\@
	.cfi_restore_state
.endm

.macro	PUT_BACK	flags, others
.if	\flags
	STATUS_FOUND
.endif
.if	\others
	mov	R8(%rsp), %r8
	mov	R9(%rsp), %r9
	mov	R10(%rsp), %r10
	mov	R11(%rsp), %r11
.endif
	mov	CX(%rsp), %rcx
	mov	DX(%rsp), %rdx
	mov	SI(%rsp), %rsi
	mov	DI(%rsp), %rdi
	mov	AX(%rsp), %rax
	ret
.endm

/* Where the site's handler only reads registers (crates/helper, module `reads`), those that a C function
 * preserves stay where they are, and nothing is looked at afterwards. The handler reads neither these nor
 * the flags, has no instruction that depends on the direction flag, and returns 0. A simple one changes and
 * reads only %rax, %rcx, %rdx, %rsi and %rdi, and the others stay in place as well.
 *
 * No register is left for what is needed after the call: the thread is found again, and how the stack was
 * aligned is known from the address that the handler returns to. A stack pointer that is no multiple of
 * eight is not aligned: only vector instructions would mind.
 *
 * The set is looked at only while the frame is noted. If its handler is another one, all is as it was but
 * for the flags, which STATUS_FOUND puts right.
 *
 * The entry and the exits of a function with a return probe, whose handlers are simple, are noted here:
 * that is entered() and left() of return.c, which are called where they would call others. At an exit the
 * call is taken off the list before the handler is called: no call can be entered meanwhile. */
.macro	READ_ONLY	name, flags
	mov	%rax, AX(%rsp)
	lahf
	seto	%al
	mov	%eax, FLAGS(%rsp)
	mov	%rcx, CX(%rsp)
	mov	capriole_thread@gottpoff(%rip), %rax
	mov	%fs:(%rax), %rcx
	cmpq	$0, THREAD_FRAME(%rcx)
	jne	.Lfull_\name
	mov	%rsp, THREAD_FRAME(%rcx)
	mov	SITE_SET(%rdi), %rax
	cmpq	$READS, SET_READ_ONLY(%rax)
	jb	.Lwrites_\name
	mov	%rdx, DX(%rsp)
	mov	%rsi, SI(%rsp)
	mov	SITE_ADDRESS(%rdi), %rdx
	mov	%rdx, IP(%rsp)
	ja	.Lsimple_\name
.Lother_\name:
	mov	SET_BEFORE_ARGUMENT(%rax), %rdi
	lea	R15(%rsp), %rsi
	CALL_READER \flags, 1, *SET_BEFORE(%rax)

.Lsimple_\name:
	mov	SET_BEFORE_ARGUMENT(%rax), %rdi
	cmpq	$READS_ENTRY, SET_READ_ONLY(%rax)
	jae	.Lcall_\name
	lea	R15(%rsp), %rsi
	CALL_READER \flags, 0, *SET_BEFORE(%rax)

.Lcall_\name:
	mov	%rax, SPARE(%rsp)
	mov	PROBE_INSIDE(%rdi), %rax
	mov	SP(%rsp), %rdx
	mov	THREAD_LAST(%rcx), %rdi
	jne	.Lleaves_\name
	test	%rdi, %rdi
	jz	1f
	cmp	%rdx, OPEN_SP(%rdi)
	jbe	.Lwith_care_\name
1:	cmpq	$0, THREAD_UNORDERED(%rcx)
	jne	.Lwith_care_\name
	mov	THREAD_FREE(%rcx), %rsi
	cmp	THREAD_MOST(%rcx), %rsi
	ja	.Lwith_care_\name
	mov	%rax, OPEN_INSIDE(%rsi)
	mov	%rdx, OPEN_SP(%rsi)
	mov	%rdi, OPEN_BEFORE(%rsi)
	movq	$0, OPEN_STUB(%rsi)
	mov	(%rdx), %rdx
	mov	%rdx, OPEN_RETURN(%rsi)
	mov	INSIDE_OUTER(%rax), %rdx
	mov	%rdx, OPEN_PROBE(%rsi)
	lea	OPEN_SIZE(%rsi), %rdx
	mov	%rdx, OPEN_DATA(%rsi)
	mov	INSIDE_STAMP(%rax), %rdx
	mov	%rdx, OPEN_STAMP(%rsi)
	mov	%rsi, THREAD_LAST(%rcx)
	mov	%edx, %edx		/* the size with data */
	add	%rsi, %rdx
	mov	%rdx, THREAD_FREE(%rcx)
	mov	INSIDE_ENTRY(%rax), %rax
	lea	OPEN_PROBE(%rsi), %rdi
	lea	R15(%rsp), %rsi
	test	%rax, %rax
	jnz	2f
	movq	$0, THREAD_FRAME(%rcx)
	PUT_BACK \flags, 0
2:	CALL_READER \flags, 0, *%rax

.Lleaves_\name:
	test	%rdi, %rdi
	jz	.Lwith_care_\name
	cmp	%rdx, OPEN_SP(%rdi)
	jne	.Lwith_care_\name
	cmp	%rax, OPEN_INSIDE(%rdi)
	jne	.Lwith_care_\name
	mov	INSIDE_STAMP(%rax), %rsi
	cmp	%rsi, OPEN_STAMP(%rdi)
	jne	.Lwith_care_\name
	mov	OPEN_STUB(%rdi), %rsi
	or	THREAD_UNORDERED(%rcx), %rsi
	jnz	.Lwith_care_\name
	mov	OPEN_BEFORE(%rdi), %rsi
	mov	%rsi, THREAD_LAST(%rcx)
	mov	%rdi, THREAD_FREE(%rcx)
	mov	OPEN_RETURN(%rdi), %rsi
	mov	%rsi, IP(%rsp)
	add	$8, %rdx
	mov	%rdx, SP(%rsp)
	add	$OPEN_PROBE, %rdi
	lea	R15(%rsp), %rsi
	mov	INSIDE_HANDLER(%rax), %rax
	CALL_READER \flags, 0, *%rax

.Lwith_care_\name:
	mov	SPARE(%rsp), %rax
	jmp	.Lother_\name
.Lwrites_\name:
	movq	$0, THREAD_FRAME(%rcx)
.Lfull_\name:
.endm

.macro	ROUTINE	name, at, function, argument, flags
	.globl	\name
	.hidden	\name
	.type	\name, @function
	.balign	64
\name:
	.cfi_startproc
	.cfi_personality 0x1b, capriole_left_handler
	.cfi_signal_frame
	.cfi_undefined rip
.if	\function == SET_BEFORE
	READ_ONLY	\name, \flags
	STATUS_FOUND
	STORE_OTHERS
.else
	STORE
.endif
	mov	%rsp, %rbp
	mov	%rdi, %r12
	mov	\at(%rdi), %r15
	mov	%r15, IP(%rsp)
	DESCRIBE
	test	$UNUSUAL, %eax
	jnz	.Lunusual_\name
	RUN	\name, \function, \argument, \flags
.Lunusual_\name:
	FLAGS_FOR_C
	RUN	\name\()_unusual, \function, \argument, \flags
	.cfi_endproc
	.size	\name, . - \name
.endm

	ROUTINE	capriole_hit, SITE_ADDRESS, SET_BEFORE, SET_BEFORE_ARGUMENT, 0
	ROUTINE	capriole_hit_flags, SITE_ADDRESS, SET_BEFORE, SET_BEFORE_ARGUMENT, 1
	ROUTINE	capriole_hit_after, SITE_NEXT, SET_AFTER, SET_AFTER_ARGUMENT, 1

/* Goes on with all registers as they are stored in the frame that is the stack pointer. The words for
 * this are below the red zone of the new stack; where that is the stack of the frame, they are above
 * the stored registers (FRAME has room for it), and so never overwrite one that is not loaded yet.
 * While rsp is the old one, signals leave them alone as they are above it, and afterwards as they
 * are above the new one. */
	.globl	capriole_go
	.hidden	capriole_go
	.type	capriole_go, @function
	.balign	16
capriole_go:
	.cfi_startproc
	.cfi_undefined rip
	lea	R15(%rsp), %rdi
	mov	SP - R15(%rdi), %rcx
	lea	-RED_ZONE - 32(%rcx), %rcx
	mov	IP - R15(%rdi), %rax
	mov	FLAGS - R15(%rdi), %rdx
	mov	DI - R15(%rdi), %rsi
	mov	CX - R15(%rdi), %rbx
	mov	%rsi, (%rcx)
	mov	%rbx, 8(%rcx)
	mov	%rdx, 16(%rcx)
	mov	%rax, 24(%rcx)
	mov	(%rdi), %r15
	mov	R14 - R15(%rdi), %r14
	mov	R13 - R15(%rdi), %r13
	mov	R12 - R15(%rdi), %r12
	mov	BP - R15(%rdi), %rbp
	mov	BX - R15(%rdi), %rbx
	mov	R11 - R15(%rdi), %r11
	mov	R10 - R15(%rdi), %r10
	mov	R9 - R15(%rdi), %r9
	mov	R8 - R15(%rdi), %r8
	mov	AX - R15(%rdi), %rax
	mov	DX - R15(%rdi), %rdx
	mov	SI - R15(%rdi), %rsi
	mov	%rcx, %rsp		/* from here on signals may overwrite the frame */
	pop	%rdi
	pop	%rcx
	popfq
	ret	$RED_ZONE
	.cfi_endproc
	.size	capriole_go, . - capriole_go

/* int capriole_call_arguments(struct capriole_argument_probe *, struct capriole_regs *): calls the
 * handler as the program calls the function. */
	.globl	capriole_call_arguments
	.hidden	capriole_call_arguments
	.type	capriole_call_arguments, @function
	.balign	16
capriole_call_arguments:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
	mov	ARGUMENT_HANDLER(%rdi), %r11
	mov	ARGUMENT_STACK(%rdi), %ecx
	lea	-8(%rsi), %r10			/* as a frame */
	test	%ecx, %ecx
	jnz	2f
1:	mov	DI(%r10), %rdi
	mov	SI(%r10), %rsi
	mov	DX(%r10), %rdx
	mov	CX(%r10), %rcx
	mov	R8(%r10), %r8
	mov	R9(%r10), %r9
	mov	AX(%r10), %rax			/* number of vector registers, for printf and the like */
	mov	R10(%r10), %r10			/* static chain */
	call	*%r11
	xor	%eax, %eax
	leave
	.cfi_remember_state
	.cfi_def_cfa rsp, 8
	ret
	.cfi_restore_state
2:	/* The words above the return address, the last one first. */
	lea	1(%rcx), %eax
	and	$-2, %eax
	shl	$3, %eax
	sub	%rax, %rsp
	mov	SP(%r10), %rsi
3:	mov	(%rsi,%rcx,8), %rax
	mov	%rax, -8(%rsp,%rcx,8)
	dec	%ecx
	jnz	3b
	jmp	1b
	.cfi_endproc
	.size	capriole_call_arguments, . - capriole_call_arguments

/* int capriole_read(address, u64 *word, segment): the instructions that may fault are between
 * capriole_reads and capriole_reads_end. */
	.globl	capriole_read
	.hidden	capriole_read
	.globl	capriole_reads
	.hidden	capriole_reads
	.globl	capriole_reads_end
	.hidden	capriole_reads_end
	.globl	capriole_unreadable
	.hidden	capriole_unreadable
	.type	capriole_read, @function
	.type	capriole_reads, @function
	.type	capriole_reads_end, @function
	.type	capriole_unreadable, @function
	.balign	16
capriole_read:
	.cfi_startproc
	cmp	$1, %edx
	je	1f
	ja	2f
capriole_reads:
	mov	(%rdi), %rax
	jmp	3f
1:	mov	%fs:(%rdi), %rax
	jmp	3f
2:	mov	%gs:(%rdi), %rax
capriole_reads_end:
3:	mov	%rax, (%rsi)
	mov	$1, %eax
	ret
capriole_unreadable:
	xor	%eax, %eax
	ret
	.cfi_endproc
	.size	capriole_read, . - capriole_read
	/* Debuggers would give them all that follows. */
	.size	capriole_reads, capriole_reads_end - capriole_reads
	.size	capriole_reads_end, capriole_unreadable - capriole_reads_end
	.size	capriole_unreadable, . - capriole_unreadable

/* Where calls return whose return addresses are replaced: each to a stub of its own, of 16 bytes, so
 * that the address says which call it is. capriole_returning has an entry of 16 bytes for each, with
 * the address that it really returns to. */
	.globl	capriole_stubs
	.hidden	capriole_stubs
	.balign	16
	/* Unwinders look a return address up by the byte before it, that of the first stub as well. */
.Lstubs:
	.skip	16, 0xcc
capriole_stubs:
	.set	number, 0
	.rept	RETURNS
	.balign	16
	pushq	$number + 0x10000		/* more than a byte: five bytes each */
	jmp	capriole_return
	.set	number, number + 1
	.endr
	.balign	16
.Lstubs_end:

/* All registers are the caller's now, and what the function returns. The word that the stub has pushed
 * is where the return address was. */
	.type	capriole_return, @function
	.balign	64
capriole_return:
	.cfi_startproc
	.cfi_personality 0x1b, capriole_left_handler
	.cfi_signal_frame
	.cfi_undefined rip
	lea	-FRAME(%rsp), %rsp
	mov	%rdi, DI(%rsp)
	lea	FRAME + 8(%rsp), %rdi
	mov	%rdi, SP(%rsp)
	STORE
	mov	%rsp, %rbp
	mov	FRAME(%rsp), %rdi
	sub	$0x10000, %rdi
	mov	%rdi, %rax
	shl	$4, %rax
	lea	capriole_returning(%rip), %rcx
	mov	(%rcx,%rax), %r15
	mov	%r15, IP(%rsp)
	DESCRIBE
	testl	$UNUSUAL, FLAGS(%rsp)
	jnz	3f
4:	lea	R15(%rsp), %rsi
	and	$-16, %rsp
	call	capriole_returned
	mov	%rbp, %rsp
	lea	FRAME + 8(%rsp), %rax
	cmp	%rax, SP(%rsp)
	jne	capriole_go
	mov	IP(%rsp), %rax
	mov	%rax, FRAME(%rsp)
	LOAD_FLAGS return, 1
	LOAD
	mov	AX(%rsp), %rax
	lea	FRAME + 8(%rsp), %rsp
	jmp	*-8(%rsp)
	LOAD_UNUSUAL return
3:	FLAGS_FOR_C
	jmp	4b
	.cfi_endproc
	.size	capriole_return, . - capriole_return

/* From the address of a stub, on the stack of the expression, to that of its entry. */
.macro	ENTRY_OF
	.byte	0x0d			/* DW_OP_const4s */
.Lfirst\@:
	.long	capriole_returning - .
	.byte	0x22			/* DW_OP_plus */
	.byte	0x0d
.Lsecond\@:
	.long	capriole_stubs - .
	.byte	0x1c			/* DW_OP_minus */
	.byte	0x09			/* DW_OP_const1s */
	.byte	.Lsecond\@ - .Lfirst\@
	.byte	0x1c
.endm

/* Unwind information of the stubs, by hand: it needs the distance of the table. A stub's frame begins
 * where its call's ended, and its return address is in the entry as far behind the stub as the table
 * is behind the stubs. So exceptions and backtraces pass it as if the address had not been replaced. It
 * is not the frame of a signal: what it leads to is a return address, and the call is before that.
 * Unwinders tell frames apart by their CFAs; so the stub's is not the stack pointer, which is also the
 * CFA of the frame before, but a byte above. Where calls were entered by jumps, stubs lead to each other
 * with one stack pointer: the last one's, behind which an exception may be caught, is two bytes above. Its
 * entry has bit 0 set in its second word. */
	.section .eh_frame, "a", @progbits
	.balign	8
.Lcie:
	.long	.Lcie_end - .Lcie_start
.Lcie_start:
	.long	0
	.byte	1
	.string	"zR"
	.uleb128 1
	.sleb128 -1
	.byte	16
	.uleb128 1
	.byte	0x1b			/* relative to here, 32 bits */
	.balign	8
.Lcie_end:
	.long	.Lfde_end - .Lfde_start
.Lfde_start:
	.long	.Lfde_start - .Lcie
	.long	.Lstubs - .
	.long	.Lstubs_end - .Lstubs
	.uleb128 0
	.byte	0x0f			/* DW_CFA_def_cfa_expression */
	.uleb128 .Lcfa_end - .Lcfa
.Lcfa:
	.byte	0x77, 1			/* DW_OP_breg7 rsp, 1 */
	.byte	0x80, 8			/* DW_OP_breg16 rip, 8 */
	ENTRY_OF
	.byte	0x06			/* DW_OP_deref */
	.byte	0x31			/* DW_OP_lit1 */
	.byte	0x1a			/* DW_OP_and */
	.byte	0x22
.Lcfa_end:
	.byte	0x16, 7, 2, 0x77, 0	/* DW_CFA_val_expression rsp: DW_OP_breg7 rsp, 0 */
	.byte	0x10, 16		/* DW_CFA_expression rip */
	.uleb128 .Lexpression_end - .Lexpression
.Lexpression:
	.byte	0x80, 0			/* DW_OP_breg16 rip */
	ENTRY_OF
.Lexpression_end:
	.balign	8
.Lfde_end:
	.section capriole_text, "ax", @progbits

/* int capriole_guarded(probe, regs, handler, u64 *leave) */
	.globl	capriole_guarded
	.hidden	capriole_guarded
	.globl	capriole_abandoned
	.hidden	capriole_abandoned
	.type	capriole_guarded, @function
	.balign	16
capriole_guarded:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
	push	%rbx
	.cfi_offset rbx, -24
	push	%r12
	.cfi_offset r12, -32
	push	%r13
	.cfi_offset r13, -40
	push	%r14
	.cfi_offset r14, -48
	push	%r15
	.cfi_offset r15, -56
	sub	$8, %rsp
	mov	%rsp, (%rcx)
	mov	%rdx, %rax
	xor	%edx, %edx		/* a post-handler's flags */
	call	*%rax
1:	add	$8, %rsp
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbx
	pop	%rbp
	.cfi_remember_state
	.cfi_def_cfa rsp, 8
	ret
	.cfi_restore_state
capriole_abandoned:
	/* The handler may have had the direction flag set. */
	cld
	xor	%eax, %eax
	jmp	1b
	.cfi_endproc
	.size	capriole_guarded, . - capriole_guarded

/* int capriole_clone(flags, stack, function, argument): the function runs on the stack, in a task that
 * shares the memory, while the caller is suspended (CLONE_VFORK), and ends the task. */
	.section capriole_calls, "ax", @progbits
	.globl	capriole_clone
	.hidden	capriole_clone
	.type	capriole_clone, @function
	.balign	16
capriole_clone:
	.cfi_startproc
	mov	%rdx, %r8
	mov	%rcx, %r9
	xor	%edx, %edx
	xor	%r10d, %r10d
	mov	$56, %eax
	syscall
	test	%eax, %eax
	jz	1f
	ret
1:	.cfi_undefined rip
	xor	%ebp, %ebp
	mov	%r9, %rdi
	call	*%r8
	ud2
	.cfi_endproc
	.size	capriole_clone, . - capriole_clone

	.text
/* Markers of capriole_record: a nop that a probe replaces, and a return. Each is a function of its own,
 * because the helper probes only what it knows to be code: in a library without a symbol table, by the
 * unwind information. */
	.globl	capriole_records
	.hidden	capriole_records
	.type	capriole_records, @function
	.balign	16
capriole_records:
	.rept	RECORDS
	.balign	16
	/* Each is a function: where none begins there may be data, for all that is known. */
	.cfi_startproc
	nopl	0(%rax,%rax,1)
	ret
	.cfi_endproc
	.endr
	.balign	16
	.size	capriole_records, . - capriole_records

	.section .note.GNU-stack, "", @progbits
