/* Constants of the region for followed calls. The Rust side is crates/ring/src/layout.rs; a test
 * compares them. */
#define RETURNS_MAGIC 0x314e525455525043 /* "CPRUTRN1" */
#define RETURNS_SLOTS 131072
/* Slots that are searched, from an address's home on. */
#define RETURNS_WINDOW 64
#define RETURNS_SPREAD 1021
/* Calls that can return at once, each left for the next one by a tail jump. */
#define RETURNS_CALLS 5
