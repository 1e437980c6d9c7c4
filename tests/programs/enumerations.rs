//! An enumeration of Rust, as a parameter and as a member.

#[derive(Clone, Copy)]
#[repr(i16)]
pub enum Level {
    Low = -7,
    Middle,
    High = 300,
}

pub struct Request {
    id: u32,
    level: Level,
}

#[inline(never)]
#[unsafe(no_mangle)]
pub fn handle(level: Level, request: &Request) -> i64 {
    std::hint::black_box(level as i64 + request.level as i64 + i64::from(request.id))
}

fn main() {
    let levels = [Level::Low, Level::Middle, Level::High];
    let mut sum = 0;
    for id in 0..12 {
        let request = Request { id, level: levels[id as usize / 4] };
        sum += handle(levels[id as usize % 3], &request);
    }
    println!("{sum}");
}
