//! Exports the functions that `capriole bench hit` calls and probes: an installed program has no other
//! symbols.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=capriole_bench_*");
}
