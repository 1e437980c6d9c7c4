/* The same function with an instruction of five bytes, which is what GDB's fast
   tracepoints want on x86-64, to be replaced by a jump. */

__attribute__((noinline)) void capriole_peer(long a, long b)
{
    __asm__ volatile(".globl capriole_peer_site\n"
                     "capriole_peer_site: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
                     :
                     : "D"(a), "S"(b));
}
