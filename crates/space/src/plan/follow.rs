//! Decides whether a changed workload justifies other subspaces.
//!
//! The workload is observed in windows, and a plan is computed for each. The subspaces change if the gain, after
//! deducting the cost of the move, exceeds a threshold in several consecutive windows. Each change doubles the required
//! number of windows, and a long time without a possible gain halves it again. An oscillating workload is therefore
//! followed a few times at most.
//!
//! There is no clock: each window states its length.

/// The conditions for a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The minimum gain, as a share of all work.
    pub gain: f64,
    /// The number of consecutive windows with that gain.
    pub windows: u32,
    /// The number of seconds within which a move must pay for itself, in addition to the gain.
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

/// The observations of one window, and the predictions for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    pub seconds: f64,
    pub operations: f64,
    /// The mean processor time of one operation in microseconds, with the current and with the best configuration.
    pub now_us: f64,
    pub best_us: f64,
    /// The cost of the move to the best configuration, once.
    pub move_us: f64,
}

/// The decision after a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// There were too few operations to decide.
    Idle,
    /// The current configuration is good enough.
    Stay { gain: f64 },
    /// The best configuration was better in `windows` consecutive windows. The change needs `of`.
    Wait { gain: f64, windows: u32, of: u32 },
    /// The change to the best configuration is justified now.
    Change { gain: f64 },
}

/// The decision state over several windows.
#[derive(Debug, Clone)]
pub struct Follower {
    threshold: Threshold,
    /// The required number of consecutive windows.
    needed: u32,
    /// The current number of consecutive windows in which the best configuration was better.
    better: u32,
    /// The current number of consecutive windows in which it was not.
    quiet: u32,
}

/// The minimum number of operations in a window for a decision.
const OPERATIONS_MIN: f64 = 100.0;
/// The maximum factor by which an oscillating workload increases the required number of windows.
const TIMES_MAX: u32 = 32;
/// The number of windows without a possible gain, as a multiple of the required number, after which the latter is
/// halved.
const QUIET_TIMES: u32 = 16;

impl Window {
    /// Returns the share of the work within the horizon that the best configuration saves, after deducting the move.
    /// May be negative.
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

    /// Processes the next window. `None`: there were no operations.
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
