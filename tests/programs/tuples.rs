//! Tuples and tuple structs, in Rust.

struct Meters(u64);

struct Leg {
    pair: (u16, i64),
    length: Meters,
}

struct Route(Leg, (u8, (u32, &'static str)));

impl Route {
    #[inline(never)]
    fn take(&self, pair: (u32, i16), deep: &((u64, u8), Meters), texts: &(&str, String)) -> u64 {
        let sum = self.0.length.0 + u64::from(pair.0) + deep.0.0;
        sum + texts.1.len() as u64
    }
}

fn main() {
    let mut sum = 0;
    for i in 0..100u16 {
        let leg = Leg {
            pair: (i, -i64::from(i)),
            length: Meters(1000 + u64::from(i)),
        };
        let route = Route(leg, (3, (u32::from(i) + 2000, "route")));
        let deep = ((u64::from(i) + 3000, 4), Meters(u64::from(i) + 4000));
        sum += route.take(
            (u32::from(i) + 5000, -6),
            &deep,
            &("first", "second".to_owned()),
        );
    }
    println!("ok {sum}");
}
