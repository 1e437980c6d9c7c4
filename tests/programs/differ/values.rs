//! Values of all kinds, passed, returned, kept and inlined in all ways, as test data for Rust's
//! debug information. Maps are ordered, so that every run is the same.
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    x: i32,
    y: i64,
}
#[derive(Clone, Debug)]
struct Person {
    name: String,
    age: u8,
    scores: Vec<u32>,
    place: Point,
    next: Option<Box<Person>>,
}
#[derive(Clone, Debug)]
enum Shape {
    Circle(f64),
    Square { side: f32, id: u16 },
    Nothing,
}
struct Wrapper<T>(T, u8);
#[repr(u8)]
#[derive(Clone, Copy)]
enum Colour {
    Red = 3,
    Green = 250,
}

trait Area {
    fn area(&self, scale: f64) -> f64;
}
impl Area for Shape {
    #[inline(never)]
    fn area(&self, scale: f64) -> f64 {
        let own = match self {
            Shape::Circle(radius) => radius * radius * 3.0,
            Shape::Square { side, id } => f64::from(*side) * f64::from(*side) + f64::from(*id),
            Shape::Nothing => 0.0,
        };
        black_box(own * scale)
    }
}
impl Area for Point {
    #[inline(never)]
    fn area(&self, scale: f64) -> f64 {
        let product = i64::from(self.x) * self.y;
        black_box(product as f64 * scale)
    }
}

#[inline(never)]
fn numbers(a: i8, b: u16, c: i32, d: u64, e: bool, f: char, g: usize, h: i128) -> i64 {
    let mut sum = i64::from(a) + i64::from(b);
    if e {
        let inner = sum * 3 + i64::from(c);
        sum += black_box(inner);
    }
    sum += d as i64 + i64::from(f as u32) + g as i64 + h as i64;
    black_box(sum)
}
#[inline(never)]
fn floats(a: f32, b: f64, n: u32) -> f64 {
    let product = f64::from(a) * b;
    black_box(product) + f64::from(n)
}
#[inline(never)]
fn texts(slice: &str, string: String, bytes: &[u8]) -> usize {
    let mut sum = slice.len() + string.len();
    for byte in bytes {
        sum += usize::from(*byte);
        black_box(sum);
    }
    sum
}
#[inline(never)]
fn structs(point: Point, person: &Person, mut owned: Person, wrapper: Wrapper<i32>) -> i64 {
    let mut at = Some(person);
    let mut sum = point.y + i64::from(wrapper.0) + i64::from(wrapper.1);
    while let Some(current) = at {
        sum += i64::from(current.age) + current.place.y;
        black_box(sum);
        at = current.next.as_deref();
    }
    owned.age = owned.age.wrapping_add(1);
    black_box(&owned);
    sum + i64::from(owned.age) + owned.scores.len() as i64
}
#[inline(always)]
fn blend(what: i32, dropped: i32) -> i32 {
    let result = what * 2 + dropped;
    black_box(result)
}
#[inline(never)]
fn blends(what: i32, dropped: i32) -> i32 {
    let result = blend(what + 1, 5) + blend(dropped, what);
    black_box(result) + what
}
#[inline(never)]
fn options(maybe: Option<u32>, result: Result<i16, String>, colour: Colour, pair: (u8, i64)) -> i64 {
    let first = maybe.unwrap_or(7);
    let second = match &result {
        Ok(number) => i64::from(*number),
        Err(text) => text.len() as i64,
    };
    black_box(i64::from(first) + second + colour as i64 + i64::from(pair.0) + pair.1)
}
#[inline(never)]
fn generic<T: Into<f64> + Copy>(items: &[T; 4], scale: T) -> f64 {
    let mut sum = 0.0;
    for item in items {
        let part: f64 = (*item).into();
        sum += black_box(part) * scale.into();
    }
    sum
}
#[inline(never)]
fn depth(n: u32, weight: u64) -> u64 {
    if n == 0 {
        return weight;
    }
    let below = depth(n - 1, weight + u64::from(n));
    black_box(below) + 1
}
#[inline(never)]
fn collections(count: usize) -> usize {
    let mut map: BTreeMap<u32, String> = BTreeMap::new();
    let mut queue = VecDeque::new();
    for index in 0..count {
        let key = (index * 7 % 5) as u32;
        map.insert(key, format!("entry {index}"));
        queue.push_back(key);
        if queue.len() > 3 {
            let oldest = queue.pop_front();
            black_box(oldest);
        }
    }
    let shared: Rc<[u32]> = queue.into_iter().collect();
    let mut sorted = shared.to_vec();
    sorted.sort_unstable();
    map.values().map(String::len).sum::<usize>() + sorted.len()
}

fn main() {
    let mut sum = 0.0;
    for n in 1..=6_i32 {
        let inner = Person { name: "inner".into(), age: 200, scores: vec![9], place: Point { x: 1, y: -2 }, next: None };
        let person = Person { name: format!("person {n}"), age: n as u8, scores: vec![1, 2, n as u32], place: Point { x: n, y: -5 }, next: Some(Box::new(inner)) };
        sum += numbers(-3, 60000, n, 1 << 40, n % 2 == 0, 'ß', 12, -9) as f64 + floats(1.5, f64::from(n), 3);
        sum += texts("slice", person.name.clone(), b"\x01\x02") as f64;
        sum += structs(Point { x: n, y: 77 }, &person, person.clone(), Wrapper(n, 8)) as f64;
        sum += f64::from(blends(n, 30)) + depth(n as u32 % 4, 5) as f64;
        let result = if n % 2 == 0 { Ok(n as i16) } else { Err("odd".to_owned()) };
        let colour = if n > 3 { Colour::Red } else { Colour::Green };
        sum += options((n % 3 != 0).then_some(n as u32), result, colour, (4, 1 << 35)) as f64;
        sum += generic(&[1.5_f32, 2.0, 3.0, n as f32], 2.0) + generic(&[1_i32, 2, 3, n], 4);
        let shapes: [Box<dyn Area>; 4] = [Box::new(Shape::Circle(2.0)), Box::new(Shape::Square { side: 1.5, id: n as u16 }), Box::new(Shape::Nothing), Box::new(person.place)];
        sum += shapes.iter().map(|shape| shape.area(1.5)).sum::<f64>() + collections(6 + n as usize) as f64;
    }
    println!("ok values {sum}");
}
