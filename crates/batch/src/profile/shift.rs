//! Measures the shift of a column's distribution between two versions: the population stability index, PSI (N.
//! Siddiqi, Credit Risk Scorecards, 2006), the sum over bins of `(new - old) * ln(new / old)`, where `new` and `old`
//! are shares of the rows.
//!
//! By convention, less than 0.1 is no change, and 0.25 or more is a large one. With few rows, chance alone causes a
//! shift: for equal distributions, PSI divided by `1/n + 1/m` follows a chi-square distribution with one degree of
//! freedom less than bins (B. Yurdakul, J. Naranjo, Statistical properties of the population stability index, Journal
//! of Risk Model Validation 14, 2020). [`Shift::chance`] is the value that one pair of samples in a thousand would
//! exceed.
//!
//! | bins | used if |
//! |---|---|
//! | most frequent values, and all others | they cover at least half of the old version's values |
//! | ten between the old version's quantiles, of numbers, or of lengths in bytes | otherwise |
//!
//! Null is a bin of its own in both cases.

use super::{Column, ExactNumber, Profile, ValueKind};

/// The size of a shift, and its bins.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift {
    pub psi: f64,
    /// The shift that chance alone may cause.
    pub chance: f64,
    pub bins: Vec<Bin>,
    pub by: ShiftBasis,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bin {
    pub name: String,
    /// Shares of all rows, from 0 to 1.
    pub old: f64,
    pub new: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShiftBasis {
    /// The versions have values of different kinds, so they cannot be compared and the shift is infinite.
    Kinds,
    Top,
    Values,
    Lengths,
}

impl ShiftBasis {
    pub fn name(self) -> &'static str {
        match self {
            ShiftBasis::Kinds => "the kind of its values",
            ShiftBasis::Top => "its most frequent values",
            ShiftBasis::Values => "its values",
            ShiftBasis::Lengths => "the lengths of its values",
        }
    }
}

const BINS: usize = 10;
/// A value whose share is below this in both versions is counted among the others.
const TOP_SHARE_MIN: f64 = 0.01;
/// If the most frequent values cover less than this share, quantiles are used.
const TOP_COVER_MIN: f64 = 0.5;

/// Returns the shift of a column from `old` to `new`, with the profiles that contain the columns.
pub fn shift((old, of_old): (&Column, &Profile), (new, of_new): (&Column, &Profile)) -> Shift {
    let (kind, now) = (old.kind(), new.kind());
    let is_infinite = kind != now && kind != ValueKind::Nothing && now != ValueKind::Nothing;
    let nulls = Bin {
        name: "null".to_owned(),
        old: old.null_share(of_old.rows),
        new: new.null_share(of_new.rows),
    };
    let (by, shares) = if is_infinite {
        (ShiftBasis::Kinds, Vec::new())
    } else if kind == ValueKind::Nothing || now == ValueKind::Nothing {
        // Only the share of nulls can differ.
        (ShiftBasis::Values, vec![("any value".to_owned(), 1.0, 1.0)])
    } else if old.top_share() >= TOP_COVER_MIN {
        (ShiftBasis::Top, by_top(old, new))
    } else if kind == ValueKind::Number {
        (ShiftBasis::Values, by_quantiles(old, new))
    } else {
        (ShiftBasis::Lengths, by_quantiles(old, new))
    };
    let (here, there) = (1.0 - nulls.old, 1.0 - nulls.new);
    let mut bins: Vec<Bin> = shares
        .into_iter()
        .map(|(name, old, new)| Bin {
            name,
            old: old * here,
            new: new * there,
        })
        .collect();
    if nulls.old + nulls.new > 0.0 {
        bins.push(nulls);
    }
    let (n, m) = (
        of_old.sample_rows.max(1) as f64,
        of_new.sample_rows.max(1) as f64,
    );
    Shift {
        psi: if is_infinite {
            f64::INFINITY
        } else {
            psi(&bins, n, m)
        },
        chance: (1.0 / n + 1.0 / m) * chi_square_999(bins.len().saturating_sub(1)),
        bins,
        by,
    }
}

/// Computes the PSI. An empty bin counts as half a row, because its logarithm would be infinite.
fn psi(bins: &[Bin], old_rows: f64, new_rows: f64) -> f64 {
    let of = |bin: &Bin| {
        let (old, new) = (bin.old.max(0.5 / old_rows), bin.new.max(0.5 / new_rows));
        (new - old) * (new / old).ln()
    };
    bins.iter().map(of).sum()
}

/// Returns the 99.9th percentile of the chi-square distribution: the approximation of E. Wilson and M. Hilferty
/// (1931).
fn chi_square_999(degrees: usize) -> f64 {
    const NORMAL_999: f64 = 3.0902;
    let degrees = degrees as f64;
    if degrees == 0.0 {
        return 0.0;
    }
    let part = 2.0 / (9.0 * degrees);
    degrees * (1.0 - part + NORMAL_999 * part.sqrt()).powi(3)
}

type Share = (String, f64, f64);

fn by_top(old: &Column, new: &Column) -> Vec<Share> {
    // The share of a value that is not listed is at most that of the last listed one, if the list is full.
    let share = |column: &Column, value: &str| {
        let listed = column.top.iter().find(|it| it.value == value);
        listed.map(|it| it.sampled as f64 / column.sampled.max(1) as f64)
    };
    let least = |column: &Column| match column.top.len() {
        super::TOP_MAX => {
            column.top.last().map_or(0.0, |it| it.sampled as f64) / column.sampled.max(1) as f64
        }
        _ => 0.0,
    };
    let names = old
        .top
        .iter()
        .chain(new.top.iter().filter(|it| share(old, &it.value).is_none()));
    let mut bins: Vec<Share> = names
        .map(|it| {
            let (before, now) = (share(old, &it.value), share(new, &it.value));
            let before_or = before.unwrap_or_else(|| least(old).min(now.unwrap_or(0.0)));
            let now_or = now.unwrap_or_else(|| least(new).min(before.unwrap_or(0.0)));
            (it.value.clone(), before_or, now_or)
        })
        .filter(|(_, old, new)| old.max(*new) >= TOP_SHARE_MIN)
        .collect();
    let rest = |of: fn(&Share) -> f64| (1.0 - bins.iter().map(of).sum::<f64>()).max(0.0);
    let (before, now) = (rest(|it| it.1), rest(|it| it.2));
    if before + now > 1e-9 {
        bins.push(("others".to_owned(), before, now));
    }
    bins
}

fn by_quantiles(old: &Column, new: &Column) -> Vec<Share> {
    let parts = old.quantiles.len().saturating_sub(1);
    let mut edges: Vec<f64> = (1..BINS)
        .filter_map(|bin| old.quantiles.get((parts * bin + BINS / 2) / BINS))
        .map(|edge| edge.get())
        .collect();
    edges.dedup();
    let (mut last_old, mut last_new) = (0.0, 0.0);
    let mut bins = Vec::with_capacity(edges.len() + 1);
    let mut from = String::new();
    for edge in edges {
        let (before, now) = (
            share_at_most(&old.quantiles, edge),
            share_at_most(&new.quantiles, edge),
        );
        let to = format_number(edge);
        let name = match from.as_str() {
            "" => format!("to {to}"),
            from => format!("{from} to {to}"),
        };
        bins.push((name, before - last_old, now - last_new));
        (last_old, last_new, from) = (before, now, to);
    }
    bins.push((format!("over {from}"), 1.0 - last_old, 1.0 - last_new));
    bins
}

/// Returns the share of values that are at most `edge`, by linear interpolation between two quantiles.
fn share_at_most(quantiles: &[ExactNumber], edge: f64) -> f64 {
    let parts = quantiles.len().saturating_sub(1).max(1) as f64;
    let at = quantiles.partition_point(|it| it.get() <= edge);
    let Some(over) = quantiles.get(at) else {
        return 1.0;
    };
    let Some(under) = at.checked_sub(1).map(|at| quantiles[at].get()) else {
        return 0.0;
    };
    let within = (edge - under) / (over.get() - under);
    ((at - 1) as f64 + if within.is_finite() { within } else { 0.0 }) / parts
}

fn format_number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-3..1e9 => larder_types::figures::plain(value, 3),
        _ => format!("{value:e}"),
    }
}

#[cfg(test)]
mod tests {
    use larder_types::Random;

    use super::super::collect::{Collector, Shape};
    use super::*;

    /// Returns a column with this many values.
    fn profile(rows: usize, seed: u64, value: impl Fn(&mut Random) -> Option<String>) -> Profile {
        let mut random = Random::new(seed);
        let mut collector = Collector::new(Shape::Json);
        for row in 0..rows {
            let value = match value(&mut random) {
                Some(value) => format!("{{\"x\":{value}}}"),
                None => "{}".to_owned(),
            };
            collector.add(format!("{seed}-{row}").as_bytes(), value.as_bytes());
        }
        collector.finish(&["k".to_owned()])
    }

    fn between(old: &Profile, new: &Profile) -> Shift {
        let column = |profile: &'_ Profile| profile.columns[0].clone();
        shift((&column(old), old), (&column(new), new))
    }

    fn number(random: &mut Random, center: f64) -> Option<String> {
        let sum: f64 = (0..12).map(|_| random.unit()).sum();
        Some((center + sum - 6.0).to_string())
    }

    #[test]
    fn an_unchanged_distribution_shifts_within_chance() {
        let mut beyond = 0;
        for seed in 0..40 {
            for rows in [60, 1_000, 9_000] {
                let old = profile(rows, seed, |random| number(random, 0.0));
                let new = profile(rows * 2, 1000 + seed, |random| number(random, 0.0));
                let shift = between(&old, &new);
                assert_eq!(shift.by, ShiftBasis::Values);
                beyond += u32::from(shift.psi > shift.chance);
                assert!(rows < 9_000 || shift.psi < 0.05, "{shift:?}");
            }
        }
        assert!(beyond <= 4, "{beyond} of 120 by chance");
    }

    /// For two normal distributions of equal variance, PSI without bins is the squared distance of the means.
    #[test]
    fn a_moved_distribution_shifts_by_its_squared_distance() {
        let old = profile(20_000, 1, |random| number(random, 0.0));
        for (distance, expected) in [(0.25, 0.0625), (0.5, 0.25), (1.0, 1.0)] {
            let new = profile(20_000, 2, |random| number(random, distance));
            let shift = between(&old, &new);
            assert!(
                shift.psi > expected * 0.7 && shift.psi < expected * 1.2,
                "{distance}: {shift:?}"
            );
            assert!(shift.psi > shift.chance);
        }
    }

    #[test]
    fn texts_are_compared_by_frequency() {
        let words = |often: u64| {
            move |random: &mut Random| {
                let word = if random.below(100) < often { "a" } else { "b" };
                Some(format!("\"{word}\""))
            }
        };
        let old = profile(20_000, 1, words(50));
        let new = profile(20_000, 2, words(80));
        let shift = between(&old, &new);
        assert_eq!(shift.by, ShiftBasis::Top);
        let exact = 0.3 * (0.8f64 / 0.5).ln() + 0.3 * (0.5f64 / 0.2).ln();
        assert!((shift.psi - exact).abs() < 0.08, "{shift:?}, {exact}");
        assert!(between(&old, &profile(20_000, 3, words(50))).psi < 0.01);
    }

    #[test]
    fn texts_without_frequent_values_are_compared_by_length() {
        let texts = |longest: u64| {
            move |random: &mut Random| {
                let size = 3 + random.below(longest) as usize;
                Some(format!("\"{}-{}\"", random.word(), "x".repeat(size)))
            }
        };
        let old = profile(5_000, 1, texts(20));
        let same = between(&old, &profile(5_000, 2, texts(20)));
        assert_eq!(same.by, ShiftBasis::Lengths);
        assert!(same.psi < 0.05, "{same:?}");
        assert!(between(&old, &profile(5_000, 2, texts(60))).psi > 1.0);
    }

    #[test]
    fn nulls_and_kinds_contribute_to_the_shift() {
        let old = profile(5_000, 1, |random| number(random, 0.0));
        let holes = profile(5_000, 2, |random| {
            (random.below(2) == 0)
                .then(|| number(random, 0.0))
                .flatten()
        });
        assert!(between(&old, &holes).psi > 1.0);
        let mut gone = profile(5_000, 2, |_| None);
        gone.columns.push(Column {
            name: "x".to_owned(),
            nulls: 5_000,
            ..Column::default()
        });
        assert!(between(&old, &gone).psi > 1.0);
        let texts = profile(5_000, 3, |random| Some(format!("\"x{}\"", random.below(9))));
        let shift = between(&old, &texts);
        assert_eq!((shift.psi, shift.by), (f64::INFINITY, ShiftBasis::Kinds));
    }

    #[test]
    fn chi_square_matches_published_quantiles() {
        for (degrees, table) in [(1, 10.828), (4, 18.467), (9, 27.877), (24, 51.179)] {
            let off = chi_square_999(degrees) / table - 1.0;
            assert!(off.abs() < 0.04, "{degrees}: {off}");
        }
    }
}
