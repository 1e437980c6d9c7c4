/* The probed functions: copies of one empty function with six integer arguments, as GCC compiles it
   at -O0, each in a cache line of its own. A jump of five bytes at the start displaces the first three
   instructions. */

	.macro	BODY
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
	mov	%rdi, -8(%rbp)
	mov	%rsi, -16(%rbp)
	mov	%rdx, -24(%rbp)
	mov	%rcx, -32(%rbp)
	mov	%r8, -40(%rbp)
	mov	%r9, -48(%rbp)
	nop
	pop	%rbp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc
	.endm

	.altmacro
	.macro	COPY prefix, number
	.balign	64
	.globl	\prefix\()_\number
	.type	\prefix\()_\number, @function
\prefix\()_\number:
	BODY
	.size	\prefix\()_\number, . - \prefix\()_\number
	.endm

	.text
	.balign	64
	.globl	copies
copies:
	.set	number, 0
	.rept	COPIES
	COPY	copy, %number
	.set	number, number + 1
	.endr
	.balign	64

	/* For registering very many probes at once. */
	.globl	crowd
crowd:
	.set	number, 0
	.rept	CROWD
	COPY	crowd, %number
	.set	number, number + 1
	.endr
	.balign	64

	/* The floor: the same function with a jump to the record of 64 bytes, written by hand. It knows
	   that rax, r10, r11 and the flags are free at the entry, and where the thread's ring is. */
	.globl	floor_record
	.type	floor_record, @function
floor_record:
	.byte	0xe9
	.long	floor_stub - . - 4
	.byte	0x7d, 0xf8, 0xcc	/* what is left of the displaced instructions */
.Lresume:
	mov	%rsi, -16(%rbp)
	mov	%rdx, -24(%rbp)
	mov	%rcx, -32(%rbp)
	mov	%r8, -40(%rbp)
	mov	%r9, -48(%rbp)
	nop
	pop	%rbp
	ret
	.size	floor_record, . - floor_record

	.balign	64
floor_stub:
	mov	%fs:ring@tpoff, %r10
	mov	%rdx, %r11
	lea	64(%r10), %rax
	mov	%rax, %fs:ring@tpoff
	and	$RING_BYTES - 1, %r10d
	rdtsc
	mov	%eax, %fs:ring@tpoff + 64(%r10)
	mov	%edx, %fs:ring@tpoff + 68(%r10)
	mov	%fs:ring@tpoff + 8, %eax
	mov	%eax, %fs:ring@tpoff + 72(%r10)
	movl	$EVENT, %fs:ring@tpoff + 76(%r10)
	mov	%r11, %rdx
	mov	%rdi, %fs:ring@tpoff + 80(%r10)
	mov	%rsi, %fs:ring@tpoff + 88(%r10)
	mov	%r11, %fs:ring@tpoff + 96(%r10)
	mov	%rcx, %fs:ring@tpoff + 104(%r10)
	mov	%r8, %fs:ring@tpoff + 112(%r10)
	mov	%r9, %fs:ring@tpoff + 120(%r10)
	push	%rbp
	mov	%rsp, %rbp
	mov	%rdi, -8(%rbp)
	jmp	.Lresume

	/* What is below every handler that sees all registers, and may change them: they are stored, a
	   function is called, and they are loaded. No flags, no table of handlers, nobody who counts. */
	.balign	64
	.globl	floor_call
	.type	floor_call, @function
floor_call:
	.byte	0xe9
	.long	call_stub - . - 4
	.byte	0x7d, 0xf8, 0xcc
.Lresume_call:
	mov	%rsi, -16(%rbp)
	mov	%rdx, -24(%rbp)
	mov	%rcx, -32(%rbp)
	mov	%r8, -40(%rbp)
	mov	%r9, -48(%rbp)
	nop
	pop	%rbp
	ret
	.size	floor_call, . - floor_call

	.macro	EACH what
	.set	place, 0
	.irp	name, r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi
	\what	\name
	.set	place, place + 8
	.endr
	.endm
	.macro	STORE name
	mov	%\name, place(%rsp)
	.endm
	.macro	LOAD name
	mov	place(%rsp), %\name
	.endm

	.balign	64
call_stub:
	lea	-280(%rsp), %rsp	/* below the red zone, and aligned for the call */
	EACH	STORE
	mov	%rsp, %rsi
	xor	%edi, %edi
	call	*floor_handler(%rip)
	EACH	LOAD
	lea	280(%rsp), %rsp
	push	%rbp
	mov	%rsp, %rbp
	mov	%rdi, -8(%rbp)
	jmp	.Lresume_call

	/* Where calls return whose return addresses the classical implementation replaces. */
	.balign	64
	.globl	step_trampoline
	.type	step_trampoline, @function
step_trampoline:
	int3
	ud2
	.size	step_trampoline, . - step_trampoline

	.section .note.GNU-stack, "", @progbits
