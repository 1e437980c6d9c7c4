/*
 * Functions with the names that compilers of OCaml and GHC give theirs, and of C with similar ones. "ok called".
 */
#include "common.h"

PROBED long ocaml_4(long a, long b) __asm__("camlOrders__price_283");
PROBED long ocaml_5(long a, long b) __asm__("camlOrders.price_283");
PROBED long ocaml_c(long a, long b) __asm__("caml_alloc_shr_2");
PROBED long camel(long a, long b) __asm__("camlCase_2");
PROBED long haskell(long a, long b) __asm__("Orders_zdwprice_info");
PROBED long upd_frame(long a, long b) __asm__("stg_upd_frame_info");
PROBED long info(long a, long b) __asm__("order_infos");

long ocaml_4(long a, long b) { return a + b; }
long ocaml_5(long a, long b) { return a - b; }
long ocaml_c(long a, long b) { return a * b; }
long camel(long a, long b) { return a ^ b; }
long haskell(long a, long b) { return a | b; }
long upd_frame(long a, long b) { return a & b; }
long info(long a, long b) { return a + 2 * b; }

int main(void)
{
	volatile long sum = 0;
	for (long i = 0; i < 10; i++)
		sum += ocaml_4(i, 1) + ocaml_5(i, 1) + ocaml_c(i, 1) + camel(i, 1) + haskell(i, 1) + upd_frame(i, 1) +
		       info(i, 1);
	puts("ok called");
	return 0;
}
