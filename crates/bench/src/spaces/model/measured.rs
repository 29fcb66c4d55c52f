//! The measurements, stored as one line of JSON for each measurement of a configuration.

use std::path::Path;

use larder_space::plan::{Deployment, Workload};
use serde_json::{Value, json};

use crate::Result;

/// The measurements of one configuration.
#[derive(Clone)]
pub struct MeasuredConfiguration {
    pub lists: Vec<String>,
    /// `drawn`, or the method that chose it, such as `A1 best`.
    pub origins: Vec<String>,
    /// The turns of each class.
    pub classes_us: Vec<Vec<f64>>,
    /// The turns of each workload; empty if it was not measured.
    pub mixes_us: Vec<Vec<f64>>,
    /// The time of a read by key after each turn, which shows the speed of the machine. Other times are normalized to
    /// the time of a read during the calibration.
    pub reads_us: Vec<f64>,
}

pub struct Measurements {
    /// The time of a read by key, directly before and after the calibration.
    pub read_us: f64,
    pub deployment: Deployment,
    pub recorded: Workload,
    pub all: Vec<MeasuredConfiguration>,
}

/// The median of some turns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Median {
    pub us: f64,
    /// The interquartile range of the turns, divided by the root of their number.
    pub spread_us: f64,
}

impl Median {
    /// Returns `None` without turns.
    pub fn of_turns(turns: &[f64]) -> Option<Median> {
        let mut turns = turns.to_vec();
        turns.sort_by(f64::total_cmp);
        let last = turns.len().checked_sub(1)?;
        let at = |share: f64| turns[(share * last as f64).round() as usize];
        Some(Median {
            us: at(0.5),
            spread_us: (at(0.75) - at(0.25)) / (turns.len() as f64).sqrt(),
        })
    }

    /// Returns whether the difference is within the uncertainty of both.
    pub fn is_tie(self, other: Median) -> bool {
        (self.us - other.us).abs() <= self.spread_us + other.spread_us
    }
}

impl MeasuredConfiguration {
    pub fn classes(&self) -> Vec<Median> {
        let classes = self.classes_us.iter();
        classes
            .filter_map(|turns| Median::of_turns(turns))
            .collect()
    }

    /// Adds repeated measurements.
    pub fn add(&mut self, again: MeasuredConfiguration) {
        for (own, more) in self.classes_us.iter_mut().zip(again.classes_us) {
            own.extend(more);
        }
        for (own, more) in self.mixes_us.iter_mut().zip(again.mixes_us) {
            own.extend(more);
        }
        self.reads_us.extend(again.reads_us);
    }

    pub fn line(&self) -> Value {
        json!({
            "lists": self.lists, "by": self.origins[0], "classes_us": self.classes_us, "mixes_us": self.mixes_us,
            "reads_us": self.reads_us,
        })
    }
}

impl Measurements {
    /// Reads measurements.
    ///
    /// # Errors
    /// The file cannot be read, or contains other data.
    pub fn read(raw: &Path) -> Result<Measurements> {
        let text = std::fs::read_to_string(raw)?;
        let mut lines = text.lines().map(serde_json::from_str::<Value>);
        let head = lines.next().ok_or("nothing was measured")??;
        let of = |name: &str| head[name].as_str().unwrap_or_default().to_owned();
        let mut bench = Measurements {
            read_us: (head["read_us"].as_f64())
                .ok_or("no read_us: it was measured by an earlier build")?,
            deployment: Deployment::from_toml(&of("deployment")).map_err(|it| it.to_string())?,
            recorded: Workload::from_toml(&of("recorded")).map_err(|it| it.to_string())?,
            all: Vec::new(),
        };
        for line in lines {
            bench.add_line(&line?)?;
        }
        Ok(bench)
    }

    /// Adds a line.
    ///
    /// # Errors
    /// The line contains other data.
    pub fn add_line(&mut self, line: &Value) -> Result<()> {
        let lists = line["lists"].as_array().into_iter().flatten();
        let lists = lists.filter_map(|it| it.as_str().map(str::to_owned));
        let lists: Vec<String> = lists.collect();
        let known = self.all.iter_mut().find(|it| it.lists == lists);
        if let Some(by) = line["also"].as_str() {
            known
                .ok_or("a line is of nothing")?
                .origins
                .push(by.to_owned());
            return Ok(());
        }
        let turns = |name: &str| -> Vec<Vec<f64>> {
            let all = line[name].as_array().into_iter().flatten();
            let turns = |it: &Value| {
                it.as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_f64)
                    .collect()
            };
            all.map(turns).collect()
        };
        let reads = line["reads_us"].as_array().into_iter().flatten();
        let one = MeasuredConfiguration {
            lists,
            origins: vec![line["by"].as_str().unwrap_or_default().to_owned()],
            classes_us: turns("classes_us"),
            mixes_us: turns("mixes_us"),
            reads_us: reads.filter_map(Value::as_f64).collect(),
        };
        match known {
            Some(known) => known.add(one),
            None => self.all.push(one),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_turn_is_ignored_and_small_differences_are_ties() {
        let quiet = Median::of_turns(&[10.0, 10.2, 10.1, 10.3, 10.1]).expect("turns");
        let disturbed = Median::of_turns(&[10.0, 10.2, 30.0, 10.3, 10.1]).expect("turns");
        assert_eq!(quiet.us, 10.1);
        assert!(quiet.is_tie(disturbed), "{quiet:?} {disturbed:?}");
        let other = Median::of_turns(&[10.5, 10.6, 10.5, 10.6, 10.5]).expect("turns");
        assert!(!quiet.is_tie(other), "{quiet:?} {other:?}");
        assert_eq!(Median::of_turns(&[]), None);
    }
}
