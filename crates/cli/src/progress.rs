//! Progress bars on standard error, shown only on a terminal and only for operations that take over a second.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use larder_protocol::http::{NodePull, NodePullState};

/// The unit of a bar.
#[derive(Clone, Copy)]
pub enum Unit {
    Bytes,
    Records,
    /// Slots of a cluster.
    Slots,
    Seconds,
    /// Copies of objects in regions.
    Copies,
    /// Steps of an operation.
    Steps,
}

/// A progress bar, which several threads may update. It is removed from the screen on drop.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    label: Mutex<&'static str>,
}

const SHOWN_AFTER: Duration = Duration::from_millis(700);

impl Progress {
    /// Creates a bar. It stays hidden if `quiet`, or if standard error is not a terminal.
    pub fn new(unit: Unit, label: &'static str, quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let template = match unit {
            Unit::Bytes => {
                "{msg:10} [{wide_bar}] {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left"
            }
            Unit::Seconds => "{msg:10} [{wide_bar}] {human_pos}/{human_len} s",
            Unit::Steps => "{msg:10} [{wide_bar}] {percent} %  {eta} left",
            Unit::Slots => "{msg:10} [{wide_bar}] {human_pos}/{human_len} slots  {eta} left",
            Unit::Copies => "{msg:10} [{wide_bar}] {human_pos}/{human_len} copies  {eta} left",
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

    /// Updates the position. A `total` of 0 means that it is not known yet.
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

/// A bar for each node of a cluster. They are removed from the screen on drop.
pub struct NodeBars {
    all: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
    started: Instant,
    is_quiet: bool,
}

impl NodeBars {
    pub fn new(is_quiet: bool) -> NodeBars {
        NodeBars {
            all: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()),
            bars: BTreeMap::new(),
            started: Instant::now(),
            is_quiet,
        }
    }

    /// Updates the position of each node.
    pub fn set(&mut self, nodes: &[NodePull]) {
        if self.is_quiet || self.started.elapsed() < SHOWN_AFTER {
            return;
        }
        if self.bars.is_empty() {
            self.all
                .set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        }
        for node in nodes {
            let bar = self.bars.entry(node.node.clone()).or_insert_with(|| {
                let style = ProgressStyle::with_template(
                    "{prefix:16} {msg:8} [{wide_bar}] {bytes}/{total_bytes}",
                );
                let style = style.expect("the template is fixed").progress_chars("=> ");
                let bar = self.all.add(ProgressBar::new(0).with_style(style));
                bar.set_prefix(node.node.clone());
                bar
            });
            bar.set_message(node.state.name());
            match node.state {
                // The node no longer reports the number of bytes.
                NodePullState::Ready => bar.set_position(bar.length().unwrap_or(0)),
                _ => {
                    bar.set_length(node.bytes_total.max(node.bytes_done));
                    bar.set_position(node.bytes_done);
                }
            }
        }
    }
}

impl Drop for NodeBars {
    fn drop(&mut self) {
        for bar in self.bars.values() {
            bar.finish_and_clear();
        }
    }
}
