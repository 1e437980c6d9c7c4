/* The empty function, for peers whose compiler instruments it or who patch it at run time.
   At -O0 GCC 12 makes of it, byte for byte, what the bench target's copies are. */

__attribute__((noinline)) void capriole_peer(long a, long b)
{
    (void)a;
    (void)b;
}
