//! Collects a profile: one collector per thread; they are merged at the end.

use std::collections::HashMap;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::distinct::DistinctSketch;
use super::sample::{Sample, Sampled, SampledRow, TEXT_MAX};
use super::scan::{Cell, json_fields, msgpack_fields};
use super::{
    COLUMNS_MAX, Column, ExactNumber, FrequentValue, Profile, QUANTILE_PARTS, TOP_MAX, ValueKind,
};
use crate::built::Built;

/// The division of a value into columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    Json,
    MessagePack,
    /// The value is one column with this name.
    Column(String),
}

impl Shape {
    /// Returns the shape according to the description of the build; `None` if it is unknown.
    pub fn from_built(built: &Built) -> Option<Shape> {
        match (built.value.as_str(), &built.value_column) {
            ("json", _) => Some(Shape::Json),
            ("msgpack", _) => Some(Shape::MessagePack),
            ("column", Some(name)) => Some(Shape::Column(name.clone())),
            _ => None,
        }
    }
}

/// The statistics of one thread's rows.
pub struct Collector {
    shape: Shape,
    pub(super) rows: u64,
    pub(super) rows_without_columns: u64,
    pub(super) key: ColumnCounts,
    pub(super) columns: Columns,
    pub(super) sample: Sample,
    /// Buffer for a row's cells.
    cells: Vec<(u32, Sampled)>,
}

/// The column number of the key in a sampled row.
pub(super) const KEY: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Columns {
    pub(super) all: Vec<(Box<[u8]>, ColumnCounts)>,
    /// Their indexes in `all`.
    by_name: HashMap<Box<[u8]>, usize>,
    /// The column to try first for the next field: fields usually come in the same order.
    next: usize,
    pub(super) are_too_many: bool,
}

/// The statistics of all values of a column.
#[derive(Clone, Default)]
pub(super) struct ColumnCounts {
    /// Rows in which the column is not null.
    pub(super) present: u64,
    pub(super) empty: u64,
    pub(super) numbers: u64,
    pub(super) texts: u64,
    pub(super) booleans: u64,
    pub(super) nested: u64,
    pub(super) range: Option<(f64, f64)>,
    pub(super) distinct: DistinctSketch,
}

impl Collector {
    pub fn new(shape: Shape) -> Collector {
        let mut sample = Sample::default();
        sample.set_columns(1);
        Collector {
            shape,
            rows: 0,
            rows_without_columns: 0,
            key: ColumnCounts::default(),
            columns: Columns::default(),
            sample,
            cells: Vec::new(),
        }
    }

    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.rows += 1;
        let hash = row_hash(key, value);
        let mut cells = std::mem::take(&mut self.cells);
        let mut sampled = self.sample.accepts(hash).then_some(&mut cells);
        if let Some(cells) = &mut sampled {
            cells.clear();
        }
        let columns = &mut self.columns;
        let before = columns.all.len();
        let mut take = |at: u32, counts: &mut ColumnCounts, cell: Cell<'_>| {
            let hash = counts.add(cell);
            if let (Some(cells), Some(hash)) = (&mut sampled, hash) {
                cells.extend(to_sampled(cell, hash).map(|cell| (at, cell)));
            }
        };
        take(KEY, &mut self.key, Cell::from_text(key));
        columns.next = 0;
        let mut found = |name: &[u8], cell: Cell<'_>| {
            if let Some((at, counts)) = columns.find(name) {
                take(at as u32, counts, cell);
            }
        };
        let complete = match &self.shape {
            Shape::Json => json_fields(value, found),
            Shape::MessagePack => msgpack_fields(value, found),
            Shape::Column(name) => {
                found(name.as_bytes(), Cell::from_text(value));
                true
            }
        };
        self.rows_without_columns += u64::from(!complete);
        if self.columns.all.len() > before {
            self.sample.set_columns(self.columns.all.len());
        }
        if self.sample.accepts(hash) {
            self.sample.add(SampledRow {
                hash,
                cells: cells.clone(),
            });
        }
        self.cells = cells;
    }

    /// Merges another collector. The order of merges does not matter.
    pub fn merge(&mut self, other: Collector) {
        self.rows += other.rows;
        self.rows_without_columns += other.rows_without_columns;
        self.key.merge(&other.key);
        let mut places = Vec::with_capacity(other.columns.all.len());
        for (name, counts) in &other.columns.all {
            self.columns.next = 0;
            places.push(self.columns.find(name).map(|(at, own)| {
                own.merge(counts);
                at as u32
            }));
        }
        self.columns.are_too_many |= other.columns.are_too_many;
        self.sample.set_columns(self.columns.all.len());
        for mut row in other.sample.into_rows() {
            if !self.sample.accepts(row.hash) {
                break;
            }
            row.cells = row
                .cells
                .into_iter()
                .filter_map(|(at, cell)| match at {
                    KEY => Some((KEY, cell)),
                    at => places[at as usize].map(|at| (at, cell)),
                })
                .collect();
            self.sample.add(row);
        }
    }

    /// Returns the profile. `key` names the columns of the key.
    pub fn finish(self, key: &[String]) -> Profile {
        let rows = self.rows;
        let sample_rows = self.sample.len() as u64;
        let mut sampled: Vec<Vec<Sampled>> = vec![Vec::new(); self.columns.all.len()];
        let mut of_key = Vec::new();
        for row in self.sample.into_rows() {
            for (at, cell) in row.cells {
                match at {
                    KEY => of_key.push(cell),
                    at => sampled[at as usize].push(cell),
                }
            }
        }
        let is_all = sample_rows == rows;
        let has_too_many_columns = self.columns.are_too_many;
        let json = self.shape == Shape::Json;
        let named = self.columns.all.into_iter().zip(sampled);
        let mut columns: Vec<Column> = named
            .map(|((name, counts), sampled)| {
                counts.into_column(text_of(&name, json), rows, sampled, is_all, json)
            })
            .collect();
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        if has_too_many_columns {
            columns.clear();
        }
        Profile {
            rows,
            sample_rows,
            rows_without_columns: self.rows_without_columns,
            key: self
                .key
                .into_column(key.join(":"), rows, of_key, is_all, false),
            columns,
            has_too_many_columns,
        }
    }
}

/// Hashes the key and the front of the value, which suffices to distinguish rows with the same key.
fn row_hash(key: &[u8], value: &[u8]) -> u64 {
    let front = &value[..value.len().min(64)];
    xxh3_64_with_seed(front, xxh3_64(key) ^ value.len() as u64)
}

impl Columns {
    /// Returns the column with this name and its index; `None` if there are too many columns.
    pub(super) fn find(&mut self, name: &[u8]) -> Option<(usize, &mut ColumnCounts)> {
        let at = match self.all.get(self.next) {
            Some((next, _)) if **next == *name => self.next,
            _ => match self.by_name.get(name) {
                Some(at) => *at,
                None => self.place(name)?,
            },
        };
        self.next = at + 1;
        Some((at, &mut self.all[at].1))
    }

    #[cold]
    fn place(&mut self, name: &[u8]) -> Option<usize> {
        let own: Box<[u8]> = name.into();
        let at = self.all.len();
        if at >= COLUMNS_MAX {
            self.are_too_many = true;
            return None;
        }
        self.by_name.insert(own.clone(), at);
        self.all.push((own, ColumnCounts::default()));
        Some(at)
    }
}

impl ColumnCounts {
    /// Counts a value and returns its hash; `None` for null.
    #[inline]
    fn add(&mut self, cell: Cell<'_>) -> Option<u64> {
        let hash = match cell {
            Cell::Null => return None,
            Cell::Number(value) => {
                self.numbers += 1;
                let (least, most) = self.range.unwrap_or((value, value));
                self.range = Some((least.min(value), most.max(value)));
                xxh3_64(&(value + 0.0).to_bits().to_le_bytes())
            }
            Cell::Boolean(value) => {
                self.booleans += 1;
                xxh3_64(&[u8::from(value)])
            }
            Cell::Empty => {
                self.empty += 1;
                self.texts += 1;
                xxh3_64(b"")
            }
            Cell::Text(text) => {
                self.texts += 1;
                xxh3_64(text)
            }
            Cell::Nested(bytes) => {
                self.nested += 1;
                xxh3_64(bytes)
            }
        };
        self.present += 1;
        self.distinct.add(hash);
        Some(hash)
    }

    fn merge(&mut self, other: &ColumnCounts) {
        self.present += other.present;
        self.empty += other.empty;
        self.numbers += other.numbers;
        self.texts += other.texts;
        self.booleans += other.booleans;
        self.nested += other.nested;
        self.range = match (self.range, other.range) {
            (Some((least, most)), Some((low, high))) => Some((least.min(low), most.max(high))),
            (own, other) => own.or(other),
        };
        self.distinct.merge(&other.distinct);
    }

    fn into_column(
        self,
        name: String,
        rows: u64,
        sampled: Vec<Sampled>,
        is_all: bool,
        json: bool,
    ) -> Column {
        let mut column = Column {
            name,
            nulls: rows.saturating_sub(self.present),
            empty: self.empty,
            numbers: self.numbers,
            texts: self.texts,
            booleans: self.booleans,
            nested: self.nested,
            distinct: self.distinct.estimate().min(self.present),
            min: self.range.and_then(|(least, _)| ExactNumber::new(least)),
            max: self.range.and_then(|(_, most)| ExactNumber::new(most)),
            sampled: sampled.len() as u64,
            ..Column::default()
        };
        let is_number = column.kind() == ValueKind::Number;
        let mut of: HashMap<u64, (u64, &Sampled)> = HashMap::new();
        let mut ordered = Vec::with_capacity(sampled.len());
        let (mut sum, mut count) = (0.0, 0u32);
        for cell in &sampled {
            let entry = of.entry(identity(cell)).or_insert((0, cell));
            entry.0 += 1;
            let number = match cell {
                Sampled::Number(value) => {
                    sum += value;
                    count += 1;
                    Some(*value)
                }
                _ => None,
            };
            if is_number {
                ordered.extend(number)
            } else {
                ordered.push(length(cell))
            }
        }
        if is_all {
            column.distinct = of.len() as u64;
        }
        column.mean = (count > 0)
            .then(|| ExactNumber::new(sum / f64::from(count)))
            .flatten();
        ordered.sort_by(f64::total_cmp);
        column.quantiles = quantiles(&ordered);
        column.top = top(of.into_values().collect(), json);
        column
    }
}

fn to_sampled(cell: Cell<'_>, hash: u64) -> Option<Sampled> {
    Some(match cell {
        Cell::Null => return None,
        Cell::Number(value) => Sampled::Number(value + 0.0),
        Cell::Boolean(value) => Sampled::Boolean(value),
        Cell::Empty => Sampled::Empty,
        Cell::Text(text) => Sampled::Text {
            front: text[..text.len().min(TEXT_MAX)].into(),
            bytes: text.len() as u64,
            hash,
        },
        Cell::Nested(bytes) => Sampled::Nested {
            bytes: bytes.len() as u64,
            hash,
        },
    })
}

fn identity(cell: &Sampled) -> u64 {
    match cell {
        Sampled::Number(value) => value.to_bits(),
        Sampled::Boolean(value) => u64::from(*value) + 1,
        Sampled::Empty => 0x7ff8_0000_0000_0001,
        Sampled::Text { hash, .. } | Sampled::Nested { hash, .. } => *hash,
    }
}

fn length(cell: &Sampled) -> f64 {
    match cell {
        Sampled::Text { bytes, .. } | Sampled::Nested { bytes, .. } => *bytes as f64,
        Sampled::Number(value) => value.to_string().len() as f64,
        Sampled::Boolean(_) => 1.0,
        Sampled::Empty => 0.0,
    }
}

/// Returns the quantiles. Each is a value that occurred: there is no interpolation.
fn quantiles(ordered: &[f64]) -> Vec<ExactNumber> {
    let Some(last) = ordered.len().checked_sub(1) else {
        return Vec::new();
    };
    (0..=QUANTILE_PARTS)
        .filter_map(|part| {
            ExactNumber::new(ordered[(last * part + QUANTILE_PARTS / 2) / QUANTILE_PARTS])
        })
        .collect()
}

/// Returns the most frequent values in descending order; equally frequent ones are in ascending order. In a long
/// list, values that occur once are omitted, because they are not significant.
fn top(counted: Vec<(u64, &Sampled)>, json: bool) -> Vec<FrequentValue> {
    let is_few = counted.len() <= TOP_MAX;
    let mut all: Vec<FrequentValue> = counted
        .into_iter()
        .filter(|(sampled, cell)| {
            (is_few || *sampled > 1) && !matches!(cell, Sampled::Nested { .. })
        })
        .map(|(sampled, cell)| FrequentValue {
            value: match cell {
                Sampled::Number(value) => value.to_string(),
                Sampled::Boolean(value) => value.to_string(),
                Sampled::Text { front, bytes, .. } if front.len() as u64 == *bytes => {
                    text_of(front, json)
                }
                Sampled::Text { front, .. } => format!("{}…", String::from_utf8_lossy(front)),
                Sampled::Empty | Sampled::Nested { .. } => String::new(),
            },
            sampled,
        })
        .collect();
    all.sort_by(|a, b| {
        b.sampled
            .cmp(&a.sampled)
            .then_with(|| a.value.cmp(&b.value))
    });
    all.truncate(TOP_MAX);
    all
}

/// Decodes a text that is written as in JSON, or as it is.
fn text_of(written: &[u8], json: bool) -> String {
    let plain = || String::from_utf8_lossy(written).into_owned();
    if !json || !written.contains(&b'\\') {
        return plain();
    }
    let quoted = [b"\"", written, b"\""].concat();
    serde_json::from_slice(&quoted).unwrap_or_else(|_| plain())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn profile(shape: Shape, rows: &[(String, String)], threads: usize) -> Profile {
        let mut all = Collector::new(shape.clone());
        for part in 0..threads {
            let mut collector = Collector::new(shape.clone());
            for (key, value) in rows.iter().skip(part).step_by(threads) {
                collector.add(key.as_bytes(), value.as_bytes());
            }
            all.merge(collector);
        }
        all.finish(&["id".to_owned()])
    }

    /// Generates rows with varying columns, and the expected contents of each.
    fn rows(count: usize, seed: u64) -> Vec<(String, serde_json::Value)> {
        let mut random = larder_types::Random::new(seed);
        let row = |number: usize| {
            let mut value = serde_json::Map::new();
            if random.below(3) > 0 {
                value.insert("price".into(), (random.below(1000) as f64 / 10.0).into());
            }
            let city = ["rome", "bern", "a \"quoted\" one", ""];
            match random.below(8) {
                0 => value.insert("city".into(), serde_json::Value::Null),
                at => value.insert("city".into(), city[at as usize % 4].into()),
            };
            value.insert("flag".into(), (random.below(4) == 0).into());
            value.insert("tags".into(), vec![random.below(5)].into());
            (number.to_string(), value.into())
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn counts_match_the_rows() {
        for count in [1, 50, 3_000, 20_000] {
            let rows = rows(count, count as u64);
            let texts: Vec<(String, String)> = rows
                .iter()
                .map(|(key, value)| (key.clone(), value.to_string()))
                .collect();
            let profile = profile(Shape::Json, &texts, 1);
            assert_eq!(profile.rows, count as u64);
            for column in &profile.columns {
                let all = || rows.iter().map(|(_, value)| &value[&column.name]);
                let nulls = all().filter(|it| it.is_null()).count() as u64;
                let empty = all().filter(|it| it.as_str() == Some("")).count() as u64;
                assert_eq!(
                    (column.nulls, column.empty),
                    (nulls, empty),
                    "{}",
                    column.name
                );
                let numbers: Vec<f64> = all().filter_map(serde_json::Value::as_f64).collect();
                let least = numbers.iter().copied().reduce(f64::min);
                assert_eq!(column.min.map(ExactNumber::get), least);
                let most = numbers.iter().copied().reduce(f64::max);
                assert_eq!(column.max.map(ExactNumber::get), most);
                let different: BTreeSet<String> = all()
                    .filter(|it| !it.is_null())
                    .map(ToString::to_string)
                    .collect();
                let off = column.distinct.abs_diff(different.len() as u64);
                assert!(off * 10 <= different.len() as u64, "{column:?}");
                if count <= 4096 {
                    assert_eq!(column.distinct, different.len() as u64);
                }
                if let Some(mean) = column.mean {
                    let mean_of_all = numbers.iter().sum::<f64>() / numbers.len() as f64;
                    assert!((mean.get() - mean_of_all).abs() < 3.0, "{column:?}");
                }
            }
        }
    }

    #[test]
    fn neither_threads_nor_order_change_a_profile() {
        let rows = rows(20_000, 9);
        let mut texts: Vec<(String, String)> = rows
            .iter()
            .map(|(key, value)| (key.clone(), value.to_string()))
            .collect();
        let one = profile(Shape::Json, &texts, 1);
        assert_eq!(profile(Shape::Json, &texts, 5), one);
        larder_types::Random::new(1).shuffle(&mut texts);
        assert_eq!(profile(Shape::Json, &texts, 2), one);
        let text = serde_json::to_string(&one).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Profile>(&text).expect("as written"),
            one
        );
    }

    #[test]
    fn quoted_names_and_values_are_unescaped() {
        let value = r#"{"a \"b\"":"x\u00e9"}"#.to_owned();
        let profile = profile(Shape::Json, &[("k".to_owned(), value)], 1);
        assert_eq!(profile.columns[0].name, "a \"b\"");
        assert_eq!(profile.columns[0].top[0].value, "xé");
    }

    #[test]
    fn a_plain_value_becomes_a_single_column() {
        let rows: Vec<(String, String)> = (0..100)
            .map(|it| (format!("k{it}"), (it % 7).to_string()))
            .collect();
        let profile = profile(Shape::Column("stars".to_owned()), &rows, 2);
        let column = &profile.columns[0];
        assert_eq!(
            (column.name.as_str(), column.numbers, column.distinct),
            ("stars", 100, 7)
        );
        assert_eq!(profile.key.distinct, 100);
        assert_eq!(column.quantiles.len(), QUANTILE_PARTS + 1);
    }

    #[test]
    fn columns_and_cells_are_bounded() {
        let mut collector = Collector::new(Shape::Json);
        for row in 0..2_000u32 {
            let field = |at: u32| format!("\"c{}\":{at}", (row * 7 + at) % 400);
            let fields: Vec<String> = (0..40).map(field).collect();
            let value = format!("{{{}}}", fields.join(","));
            collector.add(&row.to_le_bytes(), value.as_bytes());
        }
        let profile = collector.finish(&["k".to_owned()]);
        assert!(profile.has_too_many_columns && profile.columns.is_empty());
        assert_eq!((profile.rows, profile.sample_rows), (2_000, 512));
    }
}
