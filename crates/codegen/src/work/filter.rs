//! Conditions that straight code tests: on flags, registers and the thread.

use super::Work;
use crate::arch::registers::{ConditionCode, Register};
use crate::condition::{Test, Tree, Width};

/// The number that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operand {
    /// A 64-bit general register, or its low part of the number's width.
    Register(Register),
    /// The thread's id.
    Thread,
}

/// A comparison with a constant, and the result that counts as true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Compare {
    pub operand: Operand,
    pub width: Width,
    pub test: Test,
    pub with: u64,
    pub result: bool,
}

/// A condition on flags, registers and the thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Required condition on the flags at the site.
    pub(crate) flags: Option<ConditionCode>,
    /// Further condition.
    pub(crate) tree: Tree<Compare>,
}

impl Filter {
    /// Returns the required condition on the flags at the site.
    #[must_use]
    pub const fn flags(&self) -> Option<ConditionCode> {
        self.flags
    }

    /// True if the filter tests anything.
    pub(crate) fn asks(&self) -> bool {
        self.flags.is_some() || self.compares_any()
    }

    /// True if the filter tests more than the flags.
    pub(crate) fn compares_any(&self) -> bool {
        self.tree != Tree::Constant(true)
    }

    /// Returns the comparisons.
    pub(crate) fn compares(&self) -> Vec<&Compare> {
        let branches = self.tree.branches(true);
        branches.into_iter().map(|branch| branch.leaf).collect()
    }

    /// Returns the number of comparisons.
    pub(crate) fn compares_len(&self) -> usize {
        self.compares().len()
    }

    /// Returns the registers that the filter reads.
    pub(crate) fn registers(&self) -> impl Iterator<Item = Register> {
        let compares = self.compares();
        let register = |compare: &&Compare| match compare.operand {
            Operand::Register(register) => Some(register),
            Operand::Thread => None,
        };
        let registers: Vec<Register> = compares.iter().filter_map(register).collect();
        registers.into_iter()
    }
}

/// Returns the condition on the flags that all work of a site requires, if it is the same for all.
pub(crate) fn common_flags(work: &[Work]) -> Option<ConditionCode> {
    let mut all = work.iter().map(|w| w.filter().and_then(Filter::flags));
    let first = all.next()??;
    all.all(|flags| flags == Some(first)).then_some(first)
}

/// True if some work tests the flags, but not all work tests the same condition.
pub(crate) fn asks_for_flags(work: &[Work]) -> bool {
    let asks = |w: &Work| w.filter().is_some_and(|filter| filter.flags.is_some());
    common_flags(work).is_none() && work.iter().any(asks)
}
