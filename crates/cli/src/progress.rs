//! A progress bar on standard error: shown on a terminal only, and only for what takes over a second.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How a bar counts.
#[derive(Clone, Copy)]
pub enum Unit {
    Bytes,
    Records,
    /// Of a cluster.
    Slots,
}

/// One bar. `Sync`: threads may report together. Removed from the screen when dropped.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    label: Mutex<&'static str>,
}

const SHOWN_AFTER: Duration = Duration::from_millis(700);

impl Progress {
    /// A bar that stays hidden when `quiet`, or when standard error is no terminal.
    pub fn new(unit: Unit, label: &'static str, quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let template = match unit {
            Unit::Bytes => {
                "{msg:10} [{wide_bar}] {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left"
            }
            Unit::Slots => "{msg:10} [{wide_bar}] {human_pos}/{human_len} slots  {eta} left",
            Unit::Records => {
                "{msg:10} [{wide_bar}] {human_pos}/{human_len} records  {per_sec}  {eta} left"
            }
        };
        let style = ProgressStyle::with_template(template).expect("the template is fixed");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(label);
        let started = Instant::now();
        if quiet {
            bar.finish();
        }
        Progress {
            bar,
            started,
            label: Mutex::new(label),
        }
    }

    /// Where it stands. A total of 0 means that it is not known yet.
    pub fn set(&self, label: &'static str, done: u64, total: u64) {
        if self.bar.is_finished() {
            return;
        }
        if self.bar.is_hidden() {
            if self.started.elapsed() < SHOWN_AFTER {
                return;
            }
            self.bar
                .set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        }
        let mut shown = self
            .label
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if *shown != label {
            // Another phase has another speed.
            *shown = label;
            self.bar.set_message(label);
            self.bar.reset_eta();
        }
        drop(shown);
        self.bar.set_length(total.max(done));
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
