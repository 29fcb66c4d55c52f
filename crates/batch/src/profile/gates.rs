//! Gates that depend only on manifests: the number of records and the profile.

use super::{Profile, ShiftBasis, shift};
use crate::manifest::Manifest;

/// The conditions that a version must meet. A `column` of `*` is the limit of every column without one of its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    pub min_records: Option<u64>,
    /// Maximum decrease and increase of the number of records, relative to the version that it replaces.
    pub max_shrink_percent: Option<f64>,
    pub max_growth_percent: Option<f64>,
    /// Permits an empty version to replace one that is not empty.
    pub allow_empty: bool,
    /// Maximum share of nulls, in percent of the rows.
    pub max_nulls: Vec<ColumnLimit>,
    /// Maximum share of empty texts, in percent of the rows.
    pub max_empty: Vec<ColumnLimit>,
    /// Maximum shift, as [`shift`] measures it.
    pub max_shift: Vec<ColumnLimit>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ColumnLimit {
    pub column: String,
    pub limit: f64,
}

/// The result of one gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub gate: &'static str,
    pub column: Option<String>,
    pub expected: String,
    pub got: String,
    pub is_passed: bool,
    /// A sentence that states the actual and the expected value.
    pub message: String,
}

/// The version to replace, and its name for people: `live version 7`.
pub struct PreviousVersion<'a> {
    pub name: &'a str,
    pub manifest: &'a Manifest,
}

/// Evaluates every requested gate, in the order of the limits.
pub fn evaluate_gates(
    limits: &Limits,
    new: &Manifest,
    before: Option<PreviousVersion<'_>>,
) -> Vec<Verdict> {
    let mut verdicts = check_counts(limits, new, before.as_ref());
    let profile = new.profile();
    let of_before = before
        .as_ref()
        .and_then(|it| Some((it.name, it.manifest.profile()?)));
    let shares: [(&'static str, &[ColumnLimit], Share); 2] = [
        (
            "max_nulls",
            &limits.max_nulls,
            Share {
                of: |it| it.nulls,
                what: "null",
            },
        ),
        (
            "max_empty",
            &limits.max_empty,
            Share {
                of: |it| it.empty,
                what: "empty",
            },
        ),
    ];
    for (gate, limits, share) in shares {
        for (column, limit) in column_limits(gate, limits, new, None, &mut verdicts) {
            verdicts.push(share.check(gate, column, limit, profile));
        }
    }
    let columns = column_limits(
        "max_shift",
        &limits.max_shift,
        new,
        of_before.map(|it| it.1),
        &mut verdicts,
    );
    for (column, limit) in columns {
        verdicts.push(check_shift(column, limit, profile, of_before));
    }
    verdicts
}

fn check_counts(
    limits: &Limits,
    new: &Manifest,
    before: Option<&PreviousVersion<'_>>,
) -> Vec<Verdict> {
    let records = new.record_count;
    let mut verdicts = Vec::new();
    let mut add_verdict = |gate, expected: String, is_passed, message: String| {
        verdicts.push(Verdict {
            gate,
            column: None,
            expected,
            got: format!("{records} records"),
            is_passed,
            message,
        });
    };
    if let Some(min) = limits.min_records {
        add_verdict(
            "min_records",
            format!("at least {min}"),
            records >= min,
            format!("the new version holds {records} records and min_records requires {min}"),
        );
    }
    let Some(before) = before else {
        return verdicts;
    };
    let (name, had) = (before.name, before.manifest.record_count);
    if had > 0 {
        add_verdict(
            "allow_empty",
            "at least one".to_owned(),
            records > 0 || limits.allow_empty,
            format!(
                "the new version holds no records and {name} has {had}; if that is meant, push with --allow-empty \
                 (allow_empty among the pull's gates)"
            ),
        );
    }
    let change = 100.0 * records.abs_diff(had) as f64 / had.max(1) as f64;
    if let Some(percent) = limits.max_shrink_percent {
        add_verdict(
            "max_shrink_percent",
            format!("{percent} % fewer than {had} at most"),
            records as f64 >= had as f64 * (1.0 - percent / 100.0),
            format!(
                "the new version holds {records} records, {change:.1} % fewer than {name} with {had}, and max_shrink_percent allows {percent}"
            ),
        );
    }
    if let Some(percent) = limits.max_growth_percent {
        add_verdict(
            "max_growth_percent",
            format!("{percent} % more than {had} at most"),
            had == 0 || records as f64 <= had as f64 * (1.0 + percent / 100.0),
            format!(
                "the new version holds {records} records, {change:.1} % more than {name} with {had}, and max_growth_percent allows {percent}"
            ),
        );
    }
    verdicts
}

/// Returns the columns that have a limit: the named ones, and with `*` all others of either version. A column that
/// cannot be judged becomes a verdict immediately.
fn column_limits<'a>(
    gate: &'static str,
    limits: &'a [ColumnLimit],
    new: &'a Manifest,
    before: Option<&'a Profile>,
    verdicts: &mut Vec<Verdict>,
) -> Vec<(&'a str, f64)> {
    if limits.is_empty() {
        return Vec::new();
    }
    let mut add_failure = |column: &str, got: &str, message: String| {
        verdicts.push(Verdict {
            gate,
            column: Some(column.to_owned()),
            expected: "a column with a profile".to_owned(),
            got: got.to_owned(),
            is_passed: false,
            message,
        });
    };
    let Some(profile) = new.profile() else {
        let column = &limits[0].column;
        let subject = match column.as_str() {
            "*" => "every column".to_owned(),
            name => format!("column {name:?}"),
        };
        let how = if new.is_delta() {
            "build it from the complete input (--full), or compact it first (larder compact)"
        } else {
            "build it with one, as `larder build` does without --no-profile"
        };
        add_failure(
            column,
            "no profile",
            format!(
                "{gate} needs a profile of {subject}, but the new version has none: {how}, or push it without this gate"
            ),
        );
        return Vec::new();
    };
    if profile.has_too_many_columns {
        let most = super::COLUMNS_MAX;
        add_failure(
            &limits[0].column,
            "too many columns",
            format!(
                "{gate} needs a profile of the columns, but the new version has more than {most} columns and therefore none",
            ),
        );
        return Vec::new();
    }
    let mut columns: Vec<(&str, f64)> = Vec::new();
    for limit in limits.iter().filter(|it| it.column != "*") {
        let is_known = profile.column(&limit.column).is_some()
            || before.is_some_and(|it| it.column(&limit.column).is_some());
        if is_known {
            columns.push((&limit.column, limit.limit));
            continue;
        }
        let names: Vec<&str> = profile.all_columns().map(|it| it.name.as_str()).collect();
        add_failure(
            &limit.column,
            "no such column",
            format!(
                "{gate} checks column {:?}, which no row of the new version has; its columns are {}",
                limit.column,
                names.join(", ")
            ),
        );
    }
    let Some(others) = limits.iter().find(|it| it.column == "*") else {
        return columns;
    };
    let named = |name: &str| limits.iter().any(|it| it.column == name);
    let gone = before.into_iter().flat_map(|it| &it.columns);
    let gone = gone.filter(|it| profile.column(&it.name).is_none());
    // The key is never null, and it is not compared: new versions are expected to have new keys.
    let all = profile.columns.iter().chain(gone);
    columns.extend(
        all.map(|it| it.name.as_str())
            .filter(|name| !named(name))
            .map(|name| (name, others.limit)),
    );
    columns
}

struct Share {
    of: fn(&super::Column) -> u64,
    what: &'static str,
}

impl Share {
    fn check(
        &self,
        gate: &'static str,
        name: &str,
        limit: f64,
        profile: Option<&Profile>,
    ) -> Verdict {
        let rows = profile.map_or(0, |it| it.rows);
        let column = profile.and_then(|it| it.column(name));
        let count = column.map_or(rows, self.of);
        let share = 100.0 * count as f64 / rows.max(1) as f64;
        let what = self.what;
        Verdict {
            gate,
            column: Some(name.to_owned()),
            expected: format!("{limit} % {what} at most"),
            got: format!("{} % ({count} of {rows} rows)", percent(share)),
            is_passed: share <= limit,
            message: format!(
                "column {name:?} is {what} in {count} of {rows} rows, {} %, and {gate} allows {limit} %",
                percent(share)
            ),
        }
    }
}

/// Formats a percentage with enough digits to distinguish it from 0 and 100.
fn percent(share: f64) -> String {
    match share {
        0.0 | 100.0 => share.to_string(),
        ..0.01 => format!("{share:.1e}"),
        _ => larder_types::figures::plain(share, 2),
    }
}

fn check_shift(
    name: &str,
    limit: f64,
    profile: Option<&Profile>,
    before: Option<(&str, &Profile)>,
) -> Verdict {
    let verdict = |got: String, is_passed, message| Verdict {
        gate: "max_shift",
        column: Some(name.to_owned()),
        expected: format!("{limit} at most"),
        got,
        is_passed,
        message,
    };
    let Some((before_name, before)) = before else {
        let message = format!("column {name:?} is not compared: no previous version has a profile");
        return verdict("nothing to compare with".to_owned(), true, message);
    };
    let Some(profile) = profile else {
        unreachable!("columns are of a profile")
    };
    let absent = |rows| super::Column {
        name: name.to_owned(),
        nulls: rows,
        ..super::Column::default()
    };
    let Some(old) = before.column(name) else {
        let message = format!("column {name:?} is new: {before_name} does not have it");
        return verdict("a new column".to_owned(), true, message);
    };
    let gone = absent(profile.rows);
    let new = profile.column(name).unwrap_or(&gone);
    let shift = shift((old, before), (new, profile));
    let is_passed = shift.psi <= limit || shift.psi <= shift.chance;
    let by = shift.by.name();
    if shift.by == ShiftBasis::Kinds {
        let (was, is) = (old.kind().name(), new.kind().name());
        let message = format!(
            "column {name:?} has {is} instead of {was} in {before_name}, so max_shift rejects it"
        );
        return verdict(format!("{is}, before {was}"), is_passed, message);
    }
    let most = shift
        .bins
        .iter()
        .max_by(|a, b| (a.new - a.old).abs().total_cmp(&(b.new - b.old).abs()));
    let moved = most.map_or(String::new(), |bin| {
        format!(
            "; {:?} most: {} % of the rows, before {} %",
            bin.name,
            percent(100.0 * bin.new),
            percent(100.0 * bin.old)
        )
    });
    let psi = larder_types::figures::plain(shift.psi, 3);
    let message = format!(
        "column {name:?} has shifted by {psi} from {before_name} (PSI, by {by}) and max_shift allows {limit}{moved}"
    );
    verdict(format!("{psi}{moved}"), is_passed, message)
}

#[cfg(test)]
mod tests {
    use super::super::collect::{Collector, Shape};
    use super::*;
    use crate::built::Built;

    /// Returns a version with these rows as JSON.
    fn version(rows: impl Iterator<Item = String>) -> Manifest {
        let mut collector = Collector::new(Shape::Json);
        let mut count = 0;
        for (number, row) in rows.enumerate() {
            collector.add(format!("k{number}").as_bytes(), row.as_bytes());
            count += 1;
        }
        let profile = collector.finish(&["id".to_owned()]);
        Manifest {
            record_count: count,
            built: Some(Built {
                profile: Some(profile),
                ..Built::default()
            }),
            ..Manifest::unknown("s".parse().expect("a name"))
        }
    }

    fn limit(column: &str, limit: f64) -> Vec<ColumnLimit> {
        vec![ColumnLimit {
            column: column.to_owned(),
            limit,
        }]
    }

    fn failures(limits: &Limits, new: &Manifest, before: Option<&Manifest>) -> Vec<String> {
        let before = before.map(|manifest| PreviousVersion {
            name: "live version 7",
            manifest,
        });
        let all = evaluate_gates(limits, new, before);
        assert!(!all.is_empty(), "no gates were requested");
        all.into_iter()
            .filter(|it| !it.is_passed)
            .map(|it| it.message)
            .collect()
    }

    fn prices(count: u64, nulls: u64, add: u64) -> Manifest {
        version((0..count).map(|row| {
            if row < nulls {
                r#"{"price":null,"name":""}"#.to_owned()
            } else {
                format!(r#"{{"price":{},"name":"n"}}"#, row * 7919 % 1000 + add)
            }
        }))
    }

    #[test]
    fn shares_of_nulls_and_empty_texts_are_limited() {
        let new = prices(1000, 50, 0);
        for (limits, error) in [
            (limit("price", 5.0), None),
            (
                limit("price", 4.9),
                Some(
                    "column \"price\" is null in 50 of 1000 rows, 5 %, and max_nulls allows 4.9 %",
                ),
            ),
            (
                limit("*", 4.0),
                Some("column \"price\" is null in 50 of 1000 rows, 5 %, and max_nulls allows 4 %"),
            ),
            ([limit("*", 4.0), limit("price", 5.0)].concat(), None),
        ] {
            let limits = Limits {
                max_nulls: limits,
                ..Limits::default()
            };
            assert_eq!(
                failures(&limits, &new, None).first().map(String::as_str),
                error
            );
        }
        let limits = Limits {
            max_empty: limit("name", 1.0),
            ..Limits::default()
        };
        assert_eq!(
            failures(&limits, &new, None),
            ["column \"name\" is empty in 50 of 1000 rows, 5 %, and max_empty allows 1 %"]
        );
    }

    #[test]
    fn a_shift_is_limited() {
        let (live, moved) = (prices(5000, 0, 0), prices(5000, 0, 400));
        let limits = |limit_of: Vec<ColumnLimit>| Limits {
            max_shift: limit_of,
            ..Limits::default()
        };
        for limit_of in [limit("price", 0.25), limit("*", 0.25)] {
            let error = failures(&limits(limit_of.clone()), &moved, Some(&live));
            assert_eq!(error.len(), 1, "{error:?}");
            assert!(
                error[0].starts_with("column \"price\" has shifted by "),
                "{error:?}"
            );
            assert!(
                error[0].contains("live version 7") && error[0].contains("before"),
                "{error:?}"
            );
            assert!(failures(&limits(limit_of.clone()), &live, Some(&live)).is_empty());
            assert!(
                failures(&limits(limit_of), &moved, None).is_empty(),
                "the first has nothing before it"
            );
        }
        assert!(failures(&limits(limit("price", 1e9)), &moved, Some(&live)).is_empty());
    }

    #[test]
    fn a_removed_column_is_a_shift_and_an_unknown_one_is_reported() {
        let live = prices(3000, 0, 0);
        let gone = version((0..3000).map(|_| r#"{"name":"n"}"#.to_owned()));
        let limits = Limits {
            max_shift: limit("*", 0.25),
            ..Limits::default()
        };
        let error = failures(&limits, &gone, Some(&live));
        assert!(
            error.len() == 1 && error[0].contains("\"price\""),
            "{error:?}"
        );
        let limits = Limits {
            max_nulls: limit("prize", 1.0),
            ..Limits::default()
        };
        assert_eq!(
            failures(&limits, &live, None),
            [
                "max_nulls checks column \"prize\", which no row of the new version has; its columns are id, name, price"
            ]
        );
    }

    #[test]
    fn a_version_without_a_profile_fails_column_gates() {
        let live = prices(100, 0, 0);
        let blind = Manifest {
            built: None,
            ..live.clone()
        };
        for limits in [
            Limits {
                max_nulls: limit("*", 100.0),
                ..Limits::default()
            },
            Limits {
                max_shift: limit("*", 9.0),
                ..Limits::default()
            },
        ] {
            let error = failures(&limits, &blind, Some(&live));
            assert!(
                error.len() == 1 && error[0].contains("needs a profile of"),
                "{error:?}"
            );
            assert!(failures(&limits, &live, Some(&blind)).is_empty());
        }
    }

    #[test]
    fn counts_are_limited() {
        let (small, large) = (prices(100, 0, 0), prices(130, 0, 0));
        let growth = |percent| Limits {
            max_growth_percent: Some(percent),
            ..Limits::default()
        };
        assert!(failures(&growth(30.0), &large, Some(&small)).is_empty());
        assert_eq!(
            failures(&growth(29.0), &large, Some(&small)),
            [
                "the new version holds 130 records, 30.0 % more than live version 7 with 100, and max_growth_percent allows 29"
            ]
        );
        let shrink = Limits {
            max_shrink_percent: Some(20.0),
            ..Limits::default()
        };
        assert_eq!(failures(&shrink, &small, Some(&large)).len(), 1);
        assert!(failures(&shrink, &large, Some(&small)).is_empty());
    }
}
