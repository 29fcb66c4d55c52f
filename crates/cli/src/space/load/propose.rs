//! Proposes a space for the columns of a file, from its first rows.
//!
//! | values of the column | attribute |
//! |---|---|
//! | numbers, also `$1,234.50` and `85%` | NUMERIC |
//! | dates | TIMESTAMP |
//! | booleans | BOOLEAN |
//! | a latitude and a longitude in two columns | a field `location`, GEO |
//! | long texts of several words that are mostly different | TEXT |
//! | anything else, and numbers with a leading 0, such as codes | TAG; several in one text, separated by `\|` or `;` |
//!
//! Columns that are empty in all these rows, and the key's column, are omitted. `--type` takes precedence.

use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;

use larder_space::base::instant;

use super::object::{LOCATION, normalize_number, pair_of_columns, parse_boolean, parse_pair};
use super::row::{Cell, Row};

/// The types of `--type`, including the absence of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeType {
    Tag,
    Numeric,
    Text,
    Geo,
    Timestamp,
    Boolean,
    None,
}

impl FromStr for AttributeType {
    type Err = String;

    fn from_str(text: &str) -> Result<AttributeType, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "tag" => AttributeType::Tag,
            "numeric" => AttributeType::Numeric,
            "text" => AttributeType::Text,
            "geo" => AttributeType::Geo,
            "timestamp" => AttributeType::Timestamp,
            "boolean" => AttributeType::Boolean,
            "none" => AttributeType::None,
            _ => {
                return Err(format!(
                    "{text:?} is no type; use tag, numeric, text, geo, timestamp, boolean or none"
                ));
            }
        })
    }
}

impl AttributeType {
    fn word(self) -> &'static str {
        match self {
            AttributeType::Tag => "TAG",
            AttributeType::Numeric => "NUMERIC",
            AttributeType::Text => "TEXT",
            AttributeType::Geo => "GEO",
            AttributeType::Timestamp => "TIMESTAMP",
            AttributeType::Boolean => "BOOLEAN",
            AttributeType::None => "",
        }
    }
}

/// A proposal: the arguments of FT.CREATE, and notes for the user.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Proposal {
    pub arguments: Vec<Vec<u8>>,
    pub notes: Vec<String>,
}

/// Statistics of a column.
#[derive(Default)]
struct ColumnStats {
    values: usize,
    numbers: usize,
    /// Numbers that begin with 0 and have more digits before the point.
    codes: usize,
    dates: usize,
    booleans: usize,
    pairs: usize,
    words: usize,
    lists: usize,
    /// One flag each for `|`, `;` and `,`: true if the column's texts contain it.
    has_separator: [bool; 3],
    distinct: HashSet<String>,
}

/// # Errors
/// `types` or `geo` name columns that do not exist, or no attribute remains.
pub fn propose(
    name: &str,
    prefix: &str,
    rows: &[Row],
    keys: &[&str],
    types: &[(String, AttributeType)],
    geo: &[String],
) -> Result<Proposal, String> {
    let mut columns: Vec<&str> = Vec::new();
    let mut seen: BTreeMap<&str, ColumnStats> = BTreeMap::new();
    for (column, cell) in rows.iter().flat_map(|row| &row.0) {
        let entry = seen.entry(column).or_insert_with(|| {
            columns.push(column);
            ColumnStats::default()
        });
        entry.add(cell);
    }
    if let Some((column, _)) = types
        .iter()
        .find(|(column, _)| !seen.contains_key(&**column))
    {
        return Err(format!(
            "--type {column}: there is no such column; the columns are {}",
            columns.join(", ")
        ));
    }
    let mut proposal = Proposal::default();
    let mut attributes: Vec<(&str, AttributeType)> = Vec::new();
    for column in &columns {
        let requested = types.iter().find(|(name, _)| name == column);
        let own = &seen[column];
        let kind = match requested {
            Some((_, requested)) => *requested,
            None if geo.iter().any(|name| name == column) => AttributeType::Geo,
            None if keys.contains(column) || own.values == 0 => AttributeType::None,
            None if own.pairs == own.values => {
                proposal.notes.push(format!(
                    "column {column:?} contains pairs of numbers: to search it by distance, pass --geo '{column}=lat,lon' (or lon,lat)"
                ));
                AttributeType::None
            }
            None => own.kind(),
        };
        if kind != AttributeType::None {
            attributes.push((column, kind));
        }
    }
    for made in geo.iter().filter(|name| !columns.contains(&&***name)) {
        attributes.push((made, AttributeType::Geo));
    }
    let pair = pair_of_columns(columns.iter().copied());
    if let Some(pair) = pair
        && geo.is_empty()
        && !columns.contains(&LOCATION)
    {
        let is_typed = |column: &str| types.iter().any(|(name, _)| name == column);
        attributes.retain(|(column, _)| !pair.contains(column) || is_typed(column));
        attributes.push((LOCATION, AttributeType::Geo));
    }
    if attributes.is_empty() {
        return Err("no column has anything to search by".to_owned());
    }
    let words = [name, "PREFIX", "1", prefix, "SCHEMA"];
    let mut arguments: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
    let mut names: HashSet<String> = HashSet::new();
    for (column, kind) in attributes {
        arguments.push(column.to_owned());
        let alias = alias(column, &mut names);
        if alias != column {
            arguments.extend(["AS".to_owned(), alias]);
        }
        arguments.push(kind.word().to_owned());
        let own = seen.get(column);
        if kind == AttributeType::Tag
            && let Some(separator) = own.and_then(ColumnStats::separator)
        {
            arguments.extend(["SEPARATOR".to_owned(), separator.to_owned()]);
        }
    }
    proposal.arguments = arguments.into_iter().map(String::into_bytes).collect();
    Ok(proposal)
}

impl ColumnStats {
    fn add(&mut self, cell: &Cell) {
        let text = match cell {
            Cell::Null => return,
            Cell::Nested(json) => {
                self.values += 1;
                let list: Result<Vec<serde_json::Value>, _> = serde_json::from_str(json);
                self.lists += usize::from(list.is_ok());
                let tags = list.unwrap_or_default();
                let mut tags = tags.iter().filter_map(|tag| tag.as_str());
                self.has_separator[2] |= tags.any(|tag| tag.contains(','));
                return;
            }
            Cell::Text(text) if text.is_empty() => return,
            Cell::Text(text) => text,
        };
        if text.starts_with('[') && serde_json::from_str::<Vec<serde_json::Value>>(text).is_ok() {
            return self.add(&Cell::Nested(text.clone()));
        }
        self.values += 1;
        let number = match text.parse::<f64>() {
            Ok(number) => number.is_finite(),
            Err(_) => normalize_number(text).is_some(),
        };
        let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
        let is_code = digits.len() > 1 && digits[0] == b'0' && digits[1].is_ascii_digit();
        self.numbers += usize::from(number);
        self.codes += usize::from(is_code);
        self.dates += usize::from(!number && instant::parse(text.as_bytes()).is_some());
        self.booleans += usize::from(parse_boolean(text).is_some());
        self.pairs += usize::from(!number && parse_pair(text).is_some());
        self.words += text.split_whitespace().count();
        for (holds, separator) in self.has_separator.iter_mut().zip(['|', ';', ',']) {
            *holds |= text.contains(separator);
        }
        self.distinct.insert(text.clone());
    }

    /// Returns the separator of tags, unless it is a comma. Texts with `|` or `;` are lists; a comma is part of a text.
    fn separator(&self) -> Option<&'static str> {
        match self.has_separator {
            [true, ..] => Some("|"),
            [_, true, _] => Some(";"),
            [_, _, true] => Some("|"),
            _ => None,
        }
    }

    fn kind(&self) -> AttributeType {
        let all = |count: usize| count == self.values;
        if all(self.booleans) {
            return AttributeType::Boolean;
        }
        if all(self.numbers) && self.codes == 0 {
            return AttributeType::Numeric;
        }
        if all(self.dates) {
            return AttributeType::Timestamp;
        }
        let is_varied = self.distinct.len() * 2 > self.values;
        let is_wordy = self.words > self.values * 3 / 2;
        if self.lists == 0 && is_wordy && (is_varied || self.words > self.values * 8) {
            AttributeType::Text
        } else {
            AttributeType::Tag
        }
    }
}

/// Converts a column's name to one that queries can use: letters, digits and `_`.
fn alias(column: &str, taken: &mut HashSet<String>) -> String {
    let mut name = String::new();
    for c in column.chars() {
        match to_ascii(c) {
            Some(c) => name.push(c),
            None if name.ends_with('_') || name.is_empty() => {}
            None => name.push('_'),
        }
    }
    let mut name = name.trim_end_matches('_').to_owned();
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        name.insert_str(0, "column_");
    }
    // A name that is usable as it is stays unchanged.
    if column.chars().all(|c| to_ascii(c) == Some(c))
        && column.starts_with(|c: char| !c.is_ascii_digit())
    {
        name = column.to_owned();
    }
    let mut tried = name.clone();
    let mut number = 2;
    while !taken.insert(tried.clone()) {
        tried = format!("{name}_{number}");
        number += 1;
    }
    tried
}

fn to_ascii(c: char) -> Option<char> {
    Some(match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => c,
        'à' | 'á' | 'â' | 'ä' | 'ã' | 'å' => 'a',
        'ç' => 'c',
        'è' | 'é' | 'ê' | 'ë' => 'e',
        'ì' | 'í' | 'î' | 'ï' => 'i',
        'ñ' => 'n',
        'ò' | 'ó' | 'ô' | 'ö' | 'õ' | 'ø' => 'o',
        'ù' | 'ú' | 'û' | 'ü' => 'u',
        'À' | 'Á' | 'Â' | 'Ä' | 'Å' => 'A',
        'Ç' => 'C',
        'È' | 'É' | 'Ê' | 'Ë' => 'E',
        'Ö' | 'Ô' | 'Ó' => 'O',
        'Ü' | 'Û' | 'Ú' => 'U',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: &[&str], types: &[(&str, AttributeType)], geo: &[&str], expected: &str) {
        let rows: Vec<Row> = rows
            .iter()
            .map(|row| Row::parse(row.as_bytes()).unwrap())
            .collect();
        let types: Vec<_> = types.iter().map(|(c, t)| ((*c).to_owned(), *t)).collect();
        let geo: Vec<String> = geo.iter().map(|it| (*it).to_owned()).collect();
        let text = propose("h", "h:", &rows, &["id"], &types, &geo);
        let text = text.map(|it| crate::space::info::quote_arguments(&it.arguments));
        assert_eq!(text.unwrap_or_else(|why| why), expected);
    }

    #[test]
    fn attribute_types_follow_the_rows() {
        let rows = [
            r#"{"id":1,"city":"Rome","price":"$1,200.00","zip":"00118","open":"t","since":"2011-05-01","about":"A quiet house near the old market","empty":null,"tags":["a","b"],"more":"[\"a, b\"]"}"#,
            r#"{"id":2,"city":"Oslo","price":"80","zip":"0150","open":"f","since":"2012-06-02","about":"Rooms with a view of the harbour","empty":null,"tags":[],"more":"x"}"#,
        ];
        check(
            &rows,
            &[],
            &[],
            "h PREFIX 1 h: SCHEMA city TAG price NUMERIC zip TAG open BOOLEAN since TIMESTAMP about TEXT tags TAG more TAG SEPARATOR '|'",
        );
        check(
            &rows,
            &[
                ("about", AttributeType::None),
                ("city", AttributeType::Text),
                ("since", AttributeType::None),
                ("tags", AttributeType::None),
                ("more", AttributeType::None),
                ("zip", AttributeType::None),
                ("open", AttributeType::None),
            ],
            &[],
            "h PREFIX 1 h: SCHEMA city TEXT price NUMERIC",
        );
    }

    #[test]
    fn points_are_found_and_names_are_valid_in_queries() {
        check(
            &[r#"{"NOM COMMERCIAL":"A, b","latitude":1.5,"longitude":2.5,"2":"x","é":"z"}"#],
            &[],
            &[],
            "h PREFIX 1 h: SCHEMA 'NOM COMMERCIAL' AS NOM_COMMERCIAL TEXT 2 AS column_2 TAG 'é' AS e TAG location GEO",
        );
        let pairs = [r#"{"at":"48.4, -0.6","n":1}"#];
        check(&pairs, &[], &[], "h PREFIX 1 h: SCHEMA n NUMERIC");
        check(
            &pairs,
            &[],
            &["at"],
            "h PREFIX 1 h: SCHEMA at GEO n NUMERIC",
        );
        check(
            &pairs,
            &[("street", AttributeType::Tag)],
            &[],
            "--type street: there is no such column; the columns are at, n",
        );
    }
}
