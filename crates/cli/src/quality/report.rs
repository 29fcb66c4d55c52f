//! The report on a version: the results of its gates, and its columns compared with those of the previous version. The
//! page is self-contained.

use std::fmt::{self, Write as _};

use larder_batch::profile::{Column, Shift, ValueKind, Verdict, shift};
use larder_batch::{Manifest, Profile};
use larder_page::chart::{Pair, pairs};
use larder_page::figures::{capitalize, count, escape, fine_percent, number};

use super::ComparedVersion;
use crate::output::bytes;

pub fn page(manifest: &Manifest, before: Option<&ComparedVersion>, verdicts: &[Verdict]) -> String {
    let mut page = larder_page::head(&format!("A version of {}", manifest.store));
    // Writing to a string cannot fail.
    let _ = head(&mut page, manifest, before, verdicts)
        .and_then(|()| gates(&mut page, verdicts))
        .and_then(|()| columns(&mut page, manifest, before));
    page
}

fn head(
    out: &mut String,
    manifest: &Manifest,
    before: Option<&ComparedVersion>,
    verdicts: &[Verdict],
) -> fmt::Result {
    let failed = verdicts.iter().filter(|it| !it.is_passed).count();
    let (class, word) = match (failed, verdicts.len()) {
        (0, 0) => ("", "no gates were requested".to_owned()),
        (0, 1) => ("met", "its gate is passed".to_owned()),
        (0, all) => ("met", format!("all {all} gates are passed")),
        (failed, all) => ("missed", format!("{failed} of {all} gates reject it")),
    };
    writeln!(
        out,
        "<h1>A version of {}: <span class=\"{class}\">{word}</span></h1>",
        escape(manifest.store.as_str())
    )?;
    let mut facts = vec![
        ("Records", count(manifest.record_count as f64)),
        ("Size", bytes(manifest.size_bytes)),
        ("Partitions", manifest.partitions.to_string()),
        ("Digest", manifest.digest.clone()),
    ];
    if let Some(profile) = manifest.profile() {
        facts.push(("Rows", count(profile.rows as f64)));
        if profile.sample_rows < profile.rows {
            let sampled = count(profile.sample_rows as f64);
            facts.push(("Sampled", format!("{sampled} rows, for means, distributions and frequent values; all else is of every row")));
        }
    }
    if let Some(built) = &manifest.built {
        facts.push(("From", built.inputs.join(", ")));
        facts.push(("By", built.by.clone()));
    }
    if let Some(before) = before {
        let records = count(before.manifest.record_count as f64);
        facts.push(("Beside", format!("{}, {records} records", before.name)));
    }
    writeln!(out, "<dl class=facts>")?;
    for (name, value) in facts {
        writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escape(&value))?;
    }
    writeln!(out, "</dl>")
}

fn gates(out: &mut String, verdicts: &[Verdict]) -> fmt::Result {
    if verdicts.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "<h2>Gates</h2><div class=wide><table><tr><th class=text>gate<th class=text>column<th class=text>expected<th class=text>got<th class=text>"
    )?;
    // Failed gates come first.
    let (failed, passed): (Vec<_>, Vec<_>) = verdicts.iter().partition(|it| !it.is_passed);
    for verdict in failed.into_iter().chain(passed) {
        let (class, word) = if verdict.is_passed {
            ("met", "passed")
        } else {
            ("missed", "refused")
        };
        writeln!(
            out,
            "<tr><td class=text>{}<td class=text>{}<td class=text>{}<td class=text>{}<td class=\"text {class}\">{word}",
            verdict.gate,
            escape(verdict.column.as_deref().unwrap_or_default()),
            escape(&verdict.expected),
            escape(&verdict.got)
        )?;
    }
    writeln!(out, "</table></div>")
}

fn columns(out: &mut String, manifest: &Manifest, before: Option<&ComparedVersion>) -> fmt::Result {
    writeln!(out, "<h2>Columns</h2>")?;
    let Some(profile) = manifest.profile() else {
        return writeln!(
            out,
            "<p class=none>The version was built without a profile.</p>"
        );
    };
    if profile.has_too_many_columns {
        writeln!(
            out,
            "<p class=warning>The values have too many columns to list.</p>"
        )?;
    }
    let earlier = before.and_then(|it| it.manifest.profile());
    if before.is_some() && earlier.is_none() {
        writeln!(
            out,
            "<p class=warning>The version before has no profile to compare with.</p>"
        )?;
    }
    table(out, profile, earlier)?;
    for column in profile.all_columns() {
        distribution(out, column, profile, earlier)?;
    }
    Ok(())
}

/// Returns the same column of the previous version. The key corresponds to the key, whatever its name.
fn find_same_column<'a>(
    column: &Column,
    profile: &Profile,
    earlier: &'a Profile,
) -> Option<&'a Column> {
    if std::ptr::eq(column, &profile.key) {
        Some(&earlier.key)
    } else {
        earlier.columns.iter().find(|it| it.name == column.name)
    }
}

fn table(out: &mut String, profile: &Profile, earlier: Option<&Profile>) -> fmt::Result {
    writeln!(
        out,
        "<div class=wide><table><tr><th class=text>column<th class=text>holds<th>null<th>empty<th>different<th>least<th>mean<th>most{}",
        if earlier.is_some() {
            "<th>null before<th>shift (PSI)"
        } else {
            ""
        }
    )?;
    for column in profile.all_columns() {
        let format_number = |it: Option<larder_batch::profile::ExactNumber>| {
            it.map_or(String::new(), |it| number(it.get()))
        };
        let percent = |part: u64, rows: u64| fine_percent(100.0 * part as f64 / rows.max(1) as f64);
        let rows = profile.rows;
        write!(
            out,
            "<tr><td class=name>{}<td class=text>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            escape(&column.name),
            column.kind().name(),
            percent(column.nulls, rows),
            percent(column.empty, rows),
            count(column.distinct as f64),
            format_number(column.min),
            format_number(column.mean),
            format_number(column.max),
        )?;
        let Some(earlier) = earlier else {
            writeln!(out)?;
            continue;
        };
        match find_same_column(column, profile, earlier) {
            None => writeln!(out, "<td>new<td>")?,
            Some(old) => {
                let moved = shift((old, earlier), (column, profile));
                let class = match moved.psi {
                    psi if psi <= moved.chance || psi < 0.1 => "",
                    psi if psi < 0.25 => "b",
                    _ => "missed",
                };
                let nulls = percent(old.nulls, earlier.rows);
                writeln!(out, "<td>{nulls}<td class=\"{class}\">{}", psi(&moved))?;
            }
        }
    }
    writeln!(out, "</table></div>")?;
    let gone = earlier.into_iter().flat_map(|it| &it.columns);
    let gone: Vec<&str> = gone
        .filter(|it| profile.columns.iter().all(|own| own.name != it.name))
        .map(|it| it.name.as_str())
        .collect();
    if gone.is_empty() {
        Ok(())
    } else {
        writeln!(
            out,
            "<p class=warning>Gone since the version before: {}.</p>",
            escape(&gone.join(", "))
        )
    }
}

fn psi(shift: &Shift) -> String {
    if shift.psi.is_finite() {
        format!("{:.3}", shift.psi)
    } else {
        "another kind".to_owned()
    }
}

/// Draws the shares of rows as bars, next to those of the previous version.
fn distribution(
    out: &mut String,
    column: &Column,
    profile: &Profile,
    earlier: Option<&Profile>,
) -> fmt::Result {
    if column.kind() == ValueKind::Nothing {
        return Ok(());
    }
    let compared = earlier.and_then(|earlier| {
        let old = find_same_column(column, profile, earlier)?;
        let shift = shift((old, earlier), (column, profile));
        shift.psi.is_finite().then_some(shift)
    });
    let is_compared = compared.is_some();
    let shift = compared.unwrap_or_else(|| shift((column, profile), (column, profile)));
    writeln!(
        out,
        "<h3>{}</h3><p class=sub>{} by {}{}</p>",
        escape(&column.name),
        capitalize("share of the rows"),
        shift.by.name(),
        if is_compared {
            format!(
                "; shift {}, of which chance alone may make {:.3}",
                psi(&shift),
                shift.chance
            )
        } else {
            String::new()
        }
    )?;
    let shown: Vec<Pair> = shift
        .bins
        .iter()
        .map(|bin| Pair {
            name: bin.name.clone(),
            before: is_compared.then_some(100.0 * bin.old),
            now: 100.0 * bin.new,
        })
        .collect();
    writeln!(out, "{}", pairs("percent of the rows", &shown))
}
