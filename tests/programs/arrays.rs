//! Arrays behind references, in Rust.

struct Quad<'a> {
    p: &'a [u32; 4],
    n: u64,
}

#[inline(never)]
fn take(b: &[u16; 3], q: &Quad, bb: &&[u16; 3], raw: *const u64) -> u64 {
    // SAFETY: it points to an array of three.
    let third = unsafe { *raw.add(2) };
    u64::from(b[1]) + u64::from(q.p[2]) + q.n + u64::from(bb[0]) + third
}

fn main() {
    let mut sum = 0;
    for i in 0..100u16 {
        let array = [i, i + 1000, i + 2000];
        let four = [1, 2, u32::from(i) + 3000, 4];
        let numbers = [1, 2, u64::from(i) + 4000];
        let quad = Quad { p: &four, n: u64::from(i) };
        sum += take(&array, &quad, &&array, numbers.as_ptr());
    }
    println!("ok {sum}");
}
