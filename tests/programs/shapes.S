# Functions of fixed bytes, one for each way of being probed. Build with
# -nostdlib -static -no-pie -Wl,-Ttext=0x401000 -Wl,--build-id=none. The program calls each
# of them twice with arguments 5 and 6, and exits with status 0.
	.text
	.macro function name
	.balign 16, 0xcc
	.globl \name
	.type \name, @function
\name:
	.endm

	function _start
	xor %ebp, %ebp
	mov $2, %ebx
1:	mov $5, %edi
	mov $6, %esi
	call shape_reserved
	call shape_jump
	call shape_region
	call shape_endbr
	call shape_short
	call shape_loop
	call shape_table
	call shape_stubborn
	dec %ebx
	jnz 1b
	mov $60, %eax
	xor %edi, %edi
	syscall
	.size _start, . - _start

	function shape_reserved
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00 # a nop of 5 bytes
	lea (%rdi,%rsi), %rax
	ret
	.size shape_reserved, . - shape_reserved

	function shape_jump
	mov $7, %eax
	ret
	.size shape_jump, . - shape_jump

	function shape_region
	push %rbp
	mov %rsp, %rbp
	mov %rdi, %rax
	pop %rbp
	ret
	.size shape_region, . - shape_region

	function shape_endbr
	endbr64
	mov $8, %eax
	ret
	.size shape_endbr, . - shape_endbr

	# One byte, and a function right behind it.
	function shape_short
	ret
	.size shape_short, . - shape_short
	.globl shape_behind
	.type shape_behind, @function
shape_behind:
	mov %edi, %eax
	ret
	.size shape_behind, . - shape_behind

	# Comes back to its third byte.
	function shape_loop
	mov %edi, %ecx
1:	dec %ecx
	jnz 1b
	ret
	.size shape_loop, . - shape_loop

	# Goes on through a table.
	function shape_table
	and $3, %edi
	jmp *table(,%rdi,8)
1:	mov $1, %eax
	ret
2:	mov $2, %eax
	ret
	.size shape_table, . - shape_table

	# Others jump into the middle of its first instruction.
	function shape_stubborn
	mov %edi, %eax
	ret
	.size shape_stubborn, . - shape_stubborn
	function shape_overlap
	jmp shape_stubborn + 1
	.size shape_overlap, . - shape_overlap

	.section .rodata
	.balign 8
table:	.quad 1b, 2b, 1b, 2b

	.section .note.GNU-stack, "", @progbits
