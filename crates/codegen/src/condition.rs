//! Conditions of events: comparisons of their fields, and the branches compiled from them.
//!
//! Numbers are compared by value, whatever their widths and signs: a field of type u8 is never
//! 300, and always greater than -1. So a comparison with a constant outside the field's range
//! is decided at compile time.

/// The number that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A field of the event, by its number.
    Field(usize),
    /// The thread's id in the program's own PID namespace.
    Thread,
    /// The CPU's number.
    Cpu,
}

/// Comparison operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `&`: the two numbers have a bit in common.
    Bits,
}

/// Condition under which an event is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Comparison of a number with a constant.
    Number {
        /// The number compared.
        subject: Subject,
        /// The operator.
        relation: Relation,
        /// The constant, between -2^63 and 2^64 - 1.
        with: i128,
    },
    /// Match of a field's string against a glob pattern with `*`, `?` and `[...]`; a backslash
    /// makes the next character literal.
    Text {
        /// The field's number.
        field: usize,
        /// The pattern, at most 65,535 bytes.
        pattern: Vec<u8>,
    },
    /// The inner condition does not hold.
    Not(Box<Condition>),
    /// All of them hold.
    All(Vec<Condition>),
    /// At least one of them holds.
    Any(Vec<Condition>),
}

/// Representation of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Width {
    /// Bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// True if it is signed.
    pub signed: bool,
    /// For a bit field: (offset of the lowest bit, number of bits).
    pub bits: Option<(u8, u8)>,
}

impl Width {
    /// Representation of a thread's id or a CPU's number.
    pub const WORD: Width = Width {
        bytes: 4,
        signed: false,
        bits: None,
    };

    /// Representation of an unsigned number of 1, 2, 4 or 8 bytes.
    #[must_use]
    pub const fn unsigned(bytes: u8) -> Width {
        Width {
            bytes,
            signed: false,
            bits: None,
        }
    }

    /// True if values of this width can be negative.
    pub(crate) fn is_signed(&self) -> bool {
        self.signed
    }

    /// Returns the number that the low bits of a 64-bit word represent.
    pub(crate) fn number(&self, word: u64) -> i128 {
        let (offset, width) = self.place();
        let (above, unused) = (64 - offset - width, 64 - width);
        match self.signed {
            true => i128::from((word << above) as i64 >> unused),
            false => i128::from(word << above >> unused),
        }
    }

    /// Returns the lowest bit's position in the word, and the number of bits.
    fn place(&self) -> (u32, u32) {
        match self.bits {
            Some((offset, width)) => (u32::from(offset), u32::from(width)),
            None => (0, 8 * u32::from(self.bytes)),
        }
    }

    /// Returns the least and the greatest value.
    fn range(&self) -> (i128, i128) {
        let (_, bits) = self.place();
        match self.is_signed() {
            true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            false => (0, (1 << bits) - 1),
        }
    }
}

/// The comparisons for which code is generated; the others are their negations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Test {
    Equal,
    Less,
    LessOrEqual,
    Bits,
}

/// A comparison in the form for which code is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Normal {
    /// Holds for every value, or for none.
    Constant(bool),
    /// Holds if this test gives `result`.
    Test { test: Test, with: u64, result: bool },
}

impl Normal {
    /// True if the comparison holds for this number.
    pub(crate) fn holds(self, number: i128, width: Width) -> bool {
        let (test, with, result) = match self {
            Normal::Constant(holds) => return holds,
            Normal::Test { test, with, result } => (test, with, result),
        };
        let as_number = match width.is_signed() {
            true => i128::from(with as i64),
            false => with.into(),
        };
        let is = match test {
            Test::Equal => number == as_number,
            Test::Less => number < as_number,
            Test::LessOrEqual => number <= as_number,
            Test::Bits => number as u64 & with != 0,
        };
        is == result
    }
}

/// Reduces a comparison of a number of this width to its normal form.
pub(crate) fn normal(relation: Relation, with: i128, width: Width) -> Normal {
    use Normal::{Constant, Test as T};
    let (least, greatest) = width.range();
    let (low, high) = (with < least, with > greatest);
    let test = |test, result| T {
        test,
        with: with as u64,
        result,
    };
    match relation {
        // Bits beyond the field's width cannot match; a negative constant is truncated to the
        // field's width.
        Relation::Bits => match with as u64 & greatest.max(-1 - least) as u64 | sign(with, width) {
            0 => Constant(false),
            bits => T {
                test: Test::Bits,
                with: bits,
                result: true,
            },
        },
        Relation::Equal if low || high => Constant(false),
        Relation::NotEqual if low || high => Constant(true),
        Relation::Less | Relation::LessOrEqual if low || high => Constant(high),
        Relation::Greater | Relation::GreaterOrEqual if low || high => Constant(low),
        Relation::Equal => test(Test::Equal, true),
        Relation::NotEqual => test(Test::Equal, false),
        Relation::Less => test(Test::Less, true),
        Relation::GreaterOrEqual => test(Test::Less, false),
        Relation::LessOrEqual => test(Test::LessOrEqual, true),
        Relation::Greater => test(Test::LessOrEqual, false),
    }
}

/// Returns the sign bit of a constant, if the number is signed.
fn sign(with: i128, width: Width) -> u64 {
    let sign = 1u64 << (width.place().1 - 1);
    match width.is_signed() {
        true => with as u64 & sign,
        false => 0,
    }
}

/// A condition whose leaves generated code can test.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Tree<L> {
    Constant(bool),
    Leaf(L),
    Not(Box<Tree<L>>),
    All(Vec<Tree<L>>),
    Any(Vec<Tree<L>>),
}

/// Target of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The condition is decided, with this result.
    Decided(bool),
    /// Continue at the n-th branch.
    Branch(usize),
}

/// `if leaf == when goto exit`, else continue with the next branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Branch<'a, L> {
    pub leaf: &'a L,
    pub when: bool,
    pub exit: Exit,
}

impl<L> Tree<L> {
    /// Removes constants, unless the whole tree is one.
    pub(crate) fn fold(self) -> Tree<L> {
        match self {
            Tree::Not(inner) => match inner.fold() {
                Tree::Constant(holds) => Tree::Constant(!holds),
                inner => Tree::Not(Box::new(inner)),
            },
            Tree::All(of) => Tree::several(of, true),
            Tree::Any(of) => Tree::several(of, false),
            leaf => leaf,
        }
    }

    /// Folds a conjunction or disjunction: constants equal to `neutral` change nothing, the
    /// opposite constant decides.
    fn several(of: Vec<Tree<L>>, neutral: bool) -> Tree<L> {
        let mut kept = Vec::new();
        for part in of.into_iter().map(Tree::fold) {
            match part {
                Tree::Constant(holds) if holds == neutral => {}
                Tree::Constant(holds) => return Tree::Constant(holds),
                part => kept.push(part),
            }
        }
        match (kept.len(), neutral) {
            (0, _) => Tree::Constant(neutral),
            (_, true) => Tree::All(kept),
            (_, false) => Tree::Any(kept),
        }
    }

    /// Returns the branches that decide the condition, testing each leaf at most once. If control
    /// passes the last branch, the result is `!goal`. All branches lead forward. A constant has
    /// none.
    pub(crate) fn branches(&self, goal: bool) -> Vec<Branch<'_, L>> {
        let mut branches = Vec::new();
        let mut places = 0;
        self.decide(goal, Exit::Decided(goal), &mut places, &mut branches);
        branches
    }

    /// Appends branches that lead to `exit` if the condition is `goal`, and past themselves
    /// otherwise.
    fn decide<'a>(
        &'a self,
        goal: bool,
        exit: Exit,
        places: &mut usize,
        branches: &mut Vec<Branch<'a, L>>,
    ) {
        match self {
            Tree::Constant(_) => {}
            Tree::Leaf(leaf) => branches.push(Branch {
                leaf,
                when: goal,
                exit,
            }),
            Tree::Not(inner) => inner.decide(!goal, exit, places, branches),
            Tree::All(of) => Tree::decide_several(of, goal, !goal, exit, places, branches),
            Tree::Any(of) => Tree::decide_several(of, goal, goal, exit, places, branches),
        }
    }

    /// Like `decide`, but for several parts. If `each == goal`, any part that is `goal` decides the
    /// whole.
    fn decide_several<'a>(
        of: &'a [Tree<L>],
        goal: bool,
        each: bool,
        exit: Exit,
        places: &mut usize,
        branches: &mut Vec<Branch<'a, L>>,
    ) {
        let Some((last, others)) = of.split_last() else {
            return;
        };
        let from = branches.len();
        // Placeholder for the position after these branches, until that is known.
        let place = Exit::Branch(usize::MAX - *places);
        *places += 1;
        for part in others {
            match each {
                true => part.decide(goal, exit, places, branches),
                false => part.decide(!goal, place, places, branches),
            }
        }
        last.decide(goal, exit, places, branches);
        if !each {
            let behind = Exit::Branch(branches.len());
            for branch in &mut branches[from..] {
                if branch.exit == place {
                    branch.exit = behind;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree() -> impl Strategy<Value = Tree<usize>> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Tree::Constant),
            (0usize..6).prop_map(Tree::Leaf),
            (0usize..6).prop_map(Tree::Leaf),
        ];
        leaf.prop_recursive(5, 40, 4, |inner| {
            prop_oneof![
                inner.clone().prop_map(|t| Tree::Not(Box::new(t))),
                prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::All),
                prop::collection::vec(inner, 0..4).prop_map(Tree::Any),
            ]
        })
    }

    fn truth(tree: &Tree<usize>, leaves: u32) -> bool {
        match tree {
            Tree::Constant(holds) => *holds,
            Tree::Leaf(leaf) => leaves >> leaf & 1 != 0,
            Tree::Not(inner) => !truth(inner, leaves),
            Tree::All(of) => of.iter().all(|t| truth(t, leaves)),
            Tree::Any(of) => of.iter().any(|t| truth(t, leaves)),
        }
    }

    proptest! {
        #[test]
        fn branches_decide_as_the_condition_does(tree in tree(), leaves in 0u32..64, goal: bool) {
            let wanted = truth(&tree, leaves);
            let folded = tree.fold();
            if let Tree::Constant(holds) = folded {
                prop_assert_eq!(holds, wanted);
                return Ok(());
            }
            let branches = folded.branches(goal);
            let (mut at, mut result) = (0, !goal);
            while let Some(branch) = branches.get(at) {
                let holds = leaves >> branch.leaf & 1 != 0;
                at += 1;
                if holds == branch.when {
                    match branch.exit {
                        Exit::Decided(decided) => {
                            result = decided;
                            break;
                        }
                        Exit::Branch(next) => {
                            prop_assert!(next >= at, "it leads back");
                            at = next;
                        }
                    }
                }
            }
            prop_assert_eq!(result, wanted);
        }
    }

    fn holds(relation: Relation, value: i128, with: i128, width: Width) -> bool {
        let (_, greatest) = width.range();
        let mask = (1u128 << (128 - (greatest as u128).leading_zeros())) - 1;
        match relation {
            Relation::Equal => value == with,
            Relation::NotEqual => value != with,
            Relation::Less => value < with,
            Relation::LessOrEqual => value <= with,
            Relation::Greater => value > with,
            Relation::GreaterOrEqual => value >= with,
            Relation::Bits => {
                let mask = if width.is_signed() {
                    mask << 1 | 1
                } else {
                    mask
                };
                value as u128 & with as u128 & mask != 0
            }
        }
    }

    #[test]
    fn every_comparison_is_that_of_the_numbers() {
        let relations = [
            Relation::Equal,
            Relation::NotEqual,
            Relation::Less,
            Relation::LessOrEqual,
            Relation::Greater,
            Relation::GreaterOrEqual,
            Relation::Bits,
        ];
        let edges = [
            0,
            1,
            2,
            3,
            7,
            8,
            127,
            128,
            255,
            256,
            300,
            65535,
            1 << 31,
            (1 << 63) - 1,
            1 << 63,
        ];
        let edges: Vec<i128> = edges.into_iter().flat_map(|e| [e, -e]).collect();
        for bytes in [1, 2, 4, 8] {
            let kinds = [None, Some((3, 4)), Some((0, 1))];
            let kinds = kinds.map(|bits| [(false, bits), (true, bits)]);
            for (signed, bits) in kinds.into_iter().flatten() {
                let width = Width {
                    bytes,
                    signed,
                    bits,
                };
                let (least, greatest) = width.range();
                for relation in relations {
                    for with in edges.iter().copied().chain([u64::MAX.into()]) {
                        if with < -(1 << 63) {
                            continue;
                        }
                        let made = normal(relation, with, width);
                        let values = edges.iter().copied().chain([least, greatest]);
                        for value in values.filter(|v| (least..=greatest).contains(v)) {
                            let result = made.holds(value, width);
                            let wanted = holds(relation, value, with, width);
                            assert_eq!(
                                result, wanted,
                                "{value} {relation:?} {with} {width:?} {made:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
