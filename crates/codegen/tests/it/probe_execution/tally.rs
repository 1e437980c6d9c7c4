//! Statistics of all runs, in memory that parent and children share.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use capriole_tactic::site::Tactic;

/// Reasons why a case is not a site-run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// `choose` refused the site.
    Refused,
    /// The function has instructions whose results differ from run to run.
    Unsuitable,
    /// The original did not reach the site.
    NotReached,
    /// An indirect jump went astray on random values.
    Astray,
    /// The stack pointer did not point to the stack on arrival at the site.
    NoStack,
    /// The original reads stack memory that it never wrote, because a call that would have
    /// written it was left out or the run began in the middle.
    Garbage,
    /// The memory that a tactic requires is not free.
    NoMemory,
}

impl Other {
    const ALL: [Self; 7] = [
        Self::Refused,
        Self::Unsuitable,
        Self::NotReached,
        Self::Astray,
        Self::NoStack,
        Self::Garbage,
        Self::NoMemory,
    ];
}

/// The ways in which runs of originals end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Left,
    Fault,
    Bound,
}

impl Ended {
    const ALL: [Self; 3] = [Self::Left, Self::Fault, Self::Bound];
}

const TACTICS: usize = Tactic::ALL.len();

/// The counts.
#[derive(Default)]
pub struct Tally {
    tactics: [AtomicU64; TACTICS],
    others: [AtomicU64; Other::ALL.len()],
    ended: [AtomicU64; Ended::ALL.len()],
    plain: AtomicU64,
    restartable: AtomicU64,
    counted: AtomicU64,
    fulfilled: AtomicU64,
    not_fulfilled: AtomicU64,
    arrivals: AtomicU64,
    steps: AtomicU64,
    sites: AtomicU64,
    no_rseq: AtomicU64,
    half_written: AtomicU64,
}

fn add(to: &AtomicU64, n: u64) {
    to.fetch_add(n, Ordering::Relaxed);
}

fn get(from: &AtomicU64) -> u64 {
    from.load(Ordering::Relaxed)
}

impl Tally {
    pub fn shared() -> &'static Tally {
        // SAFETY: a new shared anonymous mapping.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        const { assert!(size_of::<Tally>() <= 4096) };
        // SAFETY: mapped, zeroed (as all its atomics may be), never unmapped.
        unsafe { &*page.cast::<Tally>() }
    }

    /// Counts a child whose `struct rseq` the kernel did not accept.
    pub fn no_rseq(&self) {
        add(&self.no_rseq, 1);
    }

    /// Returns true if it accepted all of them.
    pub fn has_rseq(&self) -> bool {
        get(&self.no_rseq) == 0
    }

    pub fn site(&self) {
        add(&self.sites, 1);
    }

    /// Counts a site-run: original and probed run stepped, and compared.
    pub fn run(&self, tactic: Tactic, ended: Ended, steps: usize, arrivals: usize) {
        add(&self.tactics[tactic as usize], 1);
        add(&self.ended[ended as usize], 1);
        add(&self.steps, steps as u64);
        add(&self.arrivals, arrivals as u64);
    }

    /// Counts a site-run with only some of a probe's writes.
    pub fn half_written(&self) {
        add(&self.half_written, 1);
    }

    /// Counts a site-run repeated at full speed; `restartable`: a restartable sequence did some of
    /// its work.
    pub fn plain(&self, restartable: bool) {
        add(&self.plain, 1);
        add(&self.restartable, u64::from(restartable));
    }

    /// Counts a site-run whose arrivals were counted.
    pub fn counted(&self) {
        add(&self.counted, 1);
    }

    /// Counts an arrival at work with a condition on the flags, fulfilled or not.
    pub fn asked(&self, fulfilled: bool) {
        let which = match fulfilled {
            true => &self.fulfilled,
            false => &self.not_fulfilled,
        };
        add(which, 1);
    }

    pub fn other(&self, other: Other) {
        add(&self.others[other as usize], 1);
    }

    /// Returns the number of site-runs.
    pub fn runs(&self) -> u64 {
        self.tactics.iter().map(get).sum()
    }

    /// Checks that enough of everything occurred in this many cases.
    pub fn check(&self, cases: u64) {
        let least = 8 * cases;
        let runs = self.runs();
        assert!(runs >= least, "{runs} site-runs, fewer than {least}");
        // Reserved bytes are rare in libraries.
        for tactic in &Tactic::ALL[1..] {
            let runs = get(&self.tactics[*tactic as usize]);
            assert!(runs * 1000 >= least, "{runs} site-runs by {tactic}");
        }
        let plain = get(&self.plain);
        assert!(plain * 10 >= runs, "{plain} of {runs} at full speed");
        let restartable = get(&self.restartable);
        assert!(
            restartable * 5 >= plain || !self.has_rseq(),
            "{restartable} of {plain} by restartable sequences"
        );
        let counted = get(&self.counted);
        assert!(counted * 10 >= runs, "{counted} of {runs} counted");
        for asked in [&self.fulfilled, &self.not_fulfilled] {
            let asked = get(asked);
            assert!(
                asked * 50 >= runs,
                "{asked} of {runs} hits with asked flags"
            );
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} site-runs at {} sites ({} arrivals, {} instructions; {} counted; flags asked for: {} \
             times as wanted, {} times not; {} also at full speed, {} of \
             them by restartable sequences; {} half written):",
            self.runs(),
            get(&self.sites),
            get(&self.arrivals),
            get(&self.steps),
            get(&self.counted),
            get(&self.fulfilled),
            get(&self.not_fulfilled),
            get(&self.plain),
            get(&self.restartable),
            get(&self.half_written),
        )?;
        for tactic in Tactic::ALL {
            write!(f, " {tactic} {}", get(&self.tactics[tactic as usize]))?;
        }
        write!(f, "; ended by")?;
        for ended in Ended::ALL {
            write!(f, " {ended:?} {}", get(&self.ended[ended as usize]))?;
        }
        write!(f, "; left out:")?;
        for other in Other::ALL {
            write!(f, " {other:?} {}", get(&self.others[other as usize]))?;
        }
        Ok(())
    }
}
