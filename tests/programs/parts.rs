//! A function with a parameter that the compiler keeps nowhere.

#[inline(never)]
fn part(_unused: u64, n: u64, sum: &mut u64) {
    *sum += n;
}

fn main() {
    let mut sum = 0;
    for n in 0..3 {
        part(3, n, &mut sum);
    }
    println!("{sum}");
}
