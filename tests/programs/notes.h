/*
 * Static markers as a program has them, written by hand: the notes are what is tested, so they
 * do not come from a header that might write other ones tomorrow.
 *
 * SITE(provider, name, nop, semaphore, operands, ...) is a place with a note of sys/sdt.h;
 * MARK(provider, name, format, operands, ...) one with a nop of five bytes and the two notes of
 * capriole/marker.h. `operands` is the argument string as asm has it, such as
 * "-4@%k[fd] 8@%[buffer]", and what follows are the operands. In `format` each % is doubled.
 */
#ifndef CAPRIOLE_TEST_NOTES_H
#define CAPRIOLE_TEST_NOTES_H

#define NOTES_TEXT_(x) #x
#define NOTES_TEXT(x) NOTES_TEXT_(x)

#define NOTES_BASE \
	".ifndef _.stapsdt.base\n" \
	".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
	".weak _.stapsdt.base\n" \
	".hidden _.stapsdt.base\n" \
	"_.stapsdt.base: .space 1\n" \
	".size _.stapsdt.base, 1\n" \
	".popsection\n" \
	".endif\n"

#define NOTES_SDT(provider, name, semaphore, operands) \
	".pushsection .note.stapsdt,\"?\",\"note\"\n" \
	".balign 4\n" \
	".4byte 992f-991f, 994f-993f, 3\n" \
	"991: .asciz \"stapsdt\"\n" \
	"992: .balign 4\n" \
	"993: .8byte 990b\n" \
	".8byte _.stapsdt.base\n" \
	".8byte " semaphore "\n" \
	".asciz \"" provider "\"\n" \
	".asciz \"" name "\"\n" \
	".ascii \"" operands "\"\n" \
	".byte 0\n" \
	"994: .balign 4\n" \
	".popsection\n"

#define NOTES_CAPRIOLE(provider, name, format) \
	".pushsection .note.capriole,\"?\",\"note\"\n" \
	".balign 4\n" \
	".4byte 992f-991f, 994f-993f, 1\n" \
	"991: .asciz \"capriole\"\n" \
	"992: .balign 4\n" \
	"993: .8byte 990b\n" \
	".8byte _.stapsdt.base\n" \
	".4byte " NOTES_TEXT(__LINE__) ", 0\n" \
	".asciz \"" provider "\"\n" \
	".asciz \"" name "\"\n" \
	".asciz \"" format "\"\n" \
	".asciz \"" __FILE__ "\"\n" \
	"994: .balign 4\n" \
	".popsection\n"

#define NOTES_NOP1 "990: nop\n"
#define NOTES_NOP5 "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"

#define SITE(provider, name, nop, semaphore, operands, ...) \
	__asm__ __volatile__(nop NOTES_SDT(provider, name, semaphore, operands) NOTES_BASE \
	                     : : __VA_ARGS__)

#define MARK_GUARDED(provider, name, semaphore, format, operands, ...) \
	__asm__ __volatile__(NOTES_NOP5 NOTES_SDT(provider, name, semaphore, operands) \
	                     NOTES_CAPRIOLE(provider, name, format) NOTES_BASE \
	                     : : __VA_ARGS__)

#define MARK(provider, name, format, operands, ...) \
	MARK_GUARDED(provider, name, "0", format, operands, __VA_ARGS__)

#endif
