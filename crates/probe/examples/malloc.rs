//! Counts the calls of malloc in this program by size, with a probe in itself.
//!
//! ```text
//! cargo build -p capriole-cli
//! CAPRIOLE_HELPER=target/debug/capriole cargo run -p capriole-probe --example malloc
//! ```

use capriole_probe::{Action, Error, Probe};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Calls by the number of bits of the size.
static CALLS: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];

fn main() -> Result<(), Error> {
    let probe = Probe::symbol("libc", "malloc").before(|regs| {
        let size = regs.di; // the first argument
        CALLS[64 - size.leading_zeros() as usize].fetch_add(1, Relaxed);
        Action::Continue
    });
    // SAFETY: the handler reads a register and adds to atomic numbers: it changes no register, allocates
    // nothing and takes no lock.
    let malloc = unsafe { probe.register() }?;

    let texts: Vec<String> = (0..1000).map(|_| "a".repeat(600)).collect();
    println!("{} texts", texts.len());

    let missed = malloc.missed();
    malloc.unregister()?;
    for (bits, calls) in CALLS.iter().enumerate() {
        let calls = calls.load(Relaxed);
        if calls > 0 {
            let least = (1u64 << bits) >> 1;
            println!(
                "{calls:10} calls for {least} to {} bytes",
                (1u128 << bits) - 1
            );
        }
    }
    println!("{missed} calls were missed");
    Ok(())
}
