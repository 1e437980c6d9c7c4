//! How much a test does, and the seed of what it chooses at random.
//!
//! There are two tiers. `make test` runs tests whose input and path are the same each time. What finds
//! defects by chance, or by going through everything, belongs to `make soak`: the same test does more
//! there ([`rounds`], [`seed`]), or it is marked `#[ignore = "soak"]` and runs only there.

/// Tiers of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// `make test`.
    Test,
    /// `make soak`, which sets `CAPRIOLE_SOAK=1`.
    Soak,
    /// One test for as long as its proof needs: `CAPRIOLE_LONG=1`.
    Long,
}

/// Tier of this run.
#[must_use]
pub fn effort() -> Effort {
    let set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
    match (set("CAPRIOLE_LONG"), set("CAPRIOLE_SOAK")) {
        (true, _) => Effort::Long,
        (false, true) => Effort::Soak,
        (false, false) => Effort::Test,
    }
}

/// True in the long form of a test.
#[must_use]
pub fn is_long() -> bool {
    effort() == Effort::Long
}

/// Number of rounds in each tier.
#[must_use]
pub fn rounds(test: usize, soak: usize, long: usize) -> usize {
    match effort() {
        Effort::Test => test,
        Effort::Soak => soak,
        Effort::Long => long,
    }
}

/// Seed of random choices: `CAPRIOLE_SEED`, which a soak prints and sets, otherwise 1.
#[must_use]
pub fn seed() -> u64 {
    let Ok(text) = std::env::var("CAPRIOLE_SEED") else {
        return 1;
    };
    let seed = text.parse();
    seed.unwrap_or_else(|_| panic!("CAPRIOLE_SEED={text}: not a number from 0 to 2^64-1"))
}

/// A random number generator for choices in tests: xorshift64* of Vigna (2016), "An experimental
/// exploration of Marsaglia's xorshift generators, scrambled".
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator for [`seed`] and a number that differs among a test's generators.
    #[must_use]
    pub fn new(stream: u64) -> Random {
        Random::of(seed() ^ stream.rotate_left(32))
    }

    /// A generator that gives the same numbers for the same seed in each run.
    #[must_use]
    pub fn of(seed: u64) -> Random {
        // A state of 0 would stay 0.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number, of 64 random bits.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The upper bits are the better ones.
        (self.number() >> 33) as usize % end
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
