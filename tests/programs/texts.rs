// Calls with texts of Rust in all places: slices, owned texts and vectors, in structs.

use std::hint::black_box;

pub struct Order {
    pub id: u32,
    pub name: String,
    pub note: &'static str,
    pub data: Vec<u8>,
}

#[inline(never)]
#[unsafe(no_mangle)]
pub fn take(text: &str, owned: &String, bytes: &[u8], order: &Order, own: String) -> usize {
    black_box((text, owned, bytes, order, &own));
    black_box(text.len() + owned.len() + bytes.len() + order.name.len() + order.data.len())
}

// Results: in memory of the caller, and by reference.
#[inline(never)]
#[unsafe(no_mangle)]
pub fn made(text: &str) -> String {
    black_box(text.to_owned())
}

#[inline(never)]
#[unsafe(no_mangle)]
pub fn same(text: &String) -> &String {
    black_box(text)
}

// In two registers, of which LLVM leaves out the one that nobody asks for.
#[inline(never)]
fn half(text: &str) -> &str {
    black_box(text)
}

fn main() {
    let mut sum = 0;
    let long = "x".repeat(2000);
    for text in ["short", "", "a\0b", "gr\u{fc}\u{df}e", &long] {
        let order = Order {
            id: 1,
            name: format!("{text}!"),
            note: "note",
            data: text.bytes().rev().collect(),
        };
        black_box(order.id);
        let half = &text.as_bytes()[text.len() / 2..];
        sum += made(text).len() + same(&text.to_owned()).len() + self::half(text).len();
        sum += take(text, &text.to_owned(), half, &order, order.name.clone());
    }
    println!("{}", if sum > 0 { "ok texts" } else { "" });
}
