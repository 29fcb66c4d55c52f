//! Whether to follow a workload that changes: when other subspaces are worth the move.
//!
//! A workload is looked at in windows, and planned for in each. Other subspaces are taken when what they gain, less the cost of the move, is over a
//! threshold in several windows in a row. Each change doubles how many that are, and a long time in which nothing was to be gained halves it again: a workload that goes to
//! and fro is followed a few times at most, and then no more.
//!
//! There is no clock: a window says how long it was.

/// When a change is worth it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The least gain, as a share of all work.
    pub gain: f64,
    /// In so many windows in a row.
    pub windows: u32,
    /// Within how many seconds a move is to have paid for itself, beside that gain.
    pub horizon_seconds: f64,
}

impl Default for Threshold {
    fn default() -> Threshold {
        Threshold {
            gain: 0.1,
            windows: 3,
            horizon_seconds: 3600.0,
        }
    }
}

/// What was seen in one window, and what is predicted for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    pub seconds: f64,
    pub operations: f64,
    /// Microseconds of a processor that one operation takes in the mean: with what there is, and with what would be best.
    pub now_us: f64,
    pub best_us: f64,
    /// What the move to the best takes, once.
    pub move_us: f64,
}

/// What to do after a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Too little was done to tell.
    Idle,
    /// What there is is good enough.
    Stay { gain: f64 },
    /// The best would be better, in so many windows in a row now; it is worth it after as many as `of`.
    Wait { gain: f64, windows: u32, of: u32 },
    /// The best is to be had now.
    Change { gain: f64 },
}

/// Follows a workload.
#[derive(Debug, Clone)]
pub struct Follower {
    threshold: Threshold,
    /// How many windows in a row it takes now.
    needed: u32,
    /// In how many the best would have been better, up to now.
    better: u32,
    /// In how many in a row it would not have been.
    quiet: u32,
}

/// With fewer operations a window says nothing.
const OPERATIONS_MIN: f64 = 100.0;
/// A workload that goes to and fro makes it take this many times the windows at most.
const TIMES_MAX: u32 = 32;
/// So many times what a change takes have to be quiet before it takes less again.
const QUIET_TIMES: u32 = 16;

impl Window {
    /// The share of all work within the horizon that the best saves, the move subtracted. It may be negative.
    pub fn gain(&self, horizon_seconds: f64) -> f64 {
        let operations = self.operations / self.seconds * horizon_seconds;
        let (now, best) = (operations * self.now_us, operations * self.best_us);
        let gain = (now - best - self.move_us) / now;
        if gain.is_finite() { gain } else { 0.0 }
    }
}

impl Follower {
    pub fn new(threshold: Threshold) -> Follower {
        let threshold = Threshold {
            windows: threshold.windows.max(1),
            ..threshold
        };
        Follower {
            needed: threshold.windows,
            threshold,
            better: 0,
            quiet: 0,
        }
    }

    /// Takes the next window in. `None`: nothing was done in it.
    pub fn step(&mut self, window: Option<&Window>) -> Verdict {
        let Some(window) = window.filter(|window| window.operations >= OPERATIONS_MIN) else {
            return Verdict::Idle;
        };
        let gain = window.gain(self.threshold.horizon_seconds);
        if gain < self.threshold.gain {
            self.better = 0;
            self.quiet += 1;
            if self.quiet >= QUIET_TIMES * self.needed {
                self.needed = (self.needed / 2).max(self.threshold.windows);
                self.quiet = 0;
            }
            return Verdict::Stay { gain };
        }
        self.quiet = 0;
        self.better += 1;
        if self.better < self.needed {
            return Verdict::Wait {
                gain,
                windows: self.better,
                of: self.needed,
            };
        }
        self.better = 0;
        self.needed = (self.needed * 2).min(self.threshold.windows * TIMES_MAX);
        Verdict::Change { gain }
    }
}
