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

use super::object::{LOCATION, pair, pair_of_columns, plain_number, truth};
use super::row::{Cell, Row};

/// The types of `--type`, including the absence of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Tag,
    Numeric,
    Text,
    Geo,
    Timestamp,
    Boolean,
    None,
}

impl FromStr for Type {
    type Err = String;

    fn from_str(text: &str) -> Result<Type, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "tag" => Type::Tag,
            "numeric" => Type::Numeric,
            "text" => Type::Text,
            "geo" => Type::Geo,
            "timestamp" => Type::Timestamp,
            "boolean" => Type::Boolean,
            "none" => Type::None,
            _ => {
                return Err(format!(
                    "{text:?} is no type; use tag, numeric, text, geo, timestamp, boolean or none"
                ));
            }
        })
    }
}

impl Type {
    fn word(self) -> &'static str {
        match self {
            Type::Tag => "TAG",
            Type::Numeric => "NUMERIC",
            Type::Text => "TEXT",
            Type::Geo => "GEO",
            Type::Timestamp => "TIMESTAMP",
            Type::Boolean => "BOOLEAN",
            Type::None => "",
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
struct Seen {
    values: usize,
    numbers: usize,
    /// Numbers that begin with 0 and have more digits before the point.
    codes: usize,
    dates: usize,
    truths: usize,
    pairs: usize,
    words: usize,
    lists: usize,
    /// One flag each for `|`, `;` and `,`: true if the column's texts contain it.
    holds: [bool; 3],
    distinct: HashSet<String>,
}

/// # Errors
/// `types` or `geo` name columns that do not exist, or no attribute remains.
pub fn propose(
    name: &str,
    prefix: &str,
    rows: &[Row],
    keys: &[&str],
    types: &[(String, Type)],
    geo: &[String],
) -> Result<Proposal, String> {
    let mut columns: Vec<&str> = Vec::new();
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    for (column, cell) in rows.iter().flat_map(|row| &row.0) {
        let entry = seen.entry(column).or_insert_with(|| {
            columns.push(column);
            Seen::default()
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
    let mut attributes: Vec<(&str, Type)> = Vec::new();
    for column in &columns {
        let told = types.iter().find(|(name, _)| name == column);
        let own = &seen[column];
        let kind = match told {
            Some((_, told)) => *told,
            None if geo.iter().any(|name| name == column) => Type::Geo,
            None if keys.contains(column) || own.values == 0 => Type::None,
            None if own.pairs == own.values => {
                proposal.notes.push(format!(
                    "column {column:?} holds pairs of numbers: with --geo '{column}=lat,lon' (or lon,lat) it is searched by distance"
                ));
                Type::None
            }
            None => own.kind(),
        };
        if kind != Type::None {
            attributes.push((column, kind));
        }
    }
    for made in geo.iter().filter(|name| !columns.contains(&&***name)) {
        attributes.push((made, Type::Geo));
    }
    let pair = pair_of_columns(columns.iter().copied());
    if let Some(pair) = pair
        && geo.is_empty()
        && !columns.contains(&LOCATION)
    {
        let is_told = |column: &str| types.iter().any(|(name, _)| name == column);
        attributes.retain(|(column, _)| !pair.contains(column) || is_told(column));
        attributes.push((LOCATION, Type::Geo));
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
        if kind == Type::Tag
            && let Some(separator) = own.and_then(Seen::separator)
        {
            arguments.extend(["SEPARATOR".to_owned(), separator.to_owned()]);
        }
    }
    proposal.arguments = arguments.into_iter().map(String::into_bytes).collect();
    Ok(proposal)
}

impl Seen {
    fn add(&mut self, cell: &Cell) {
        let text = match cell {
            Cell::Null => return,
            Cell::Nested(json) => {
                self.values += 1;
                let list: Result<Vec<serde_json::Value>, _> = serde_json::from_str(json);
                self.lists += usize::from(list.is_ok());
                let tags = list.unwrap_or_default();
                let mut tags = tags.iter().filter_map(|tag| tag.as_str());
                self.holds[2] |= tags.any(|tag| tag.contains(','));
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
            Err(_) => plain_number(text).is_some(),
        };
        let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
        let is_code = digits.len() > 1 && digits[0] == b'0' && digits[1].is_ascii_digit();
        self.numbers += usize::from(number);
        self.codes += usize::from(is_code);
        self.dates += usize::from(!number && instant::parse(text.as_bytes()).is_some());
        self.truths += usize::from(truth(text).is_some());
        self.pairs += usize::from(!number && pair(text).is_some());
        self.words += text.split_whitespace().count();
        for (holds, separator) in self.holds.iter_mut().zip(['|', ';', ',']) {
            *holds |= text.contains(separator);
        }
        self.distinct.insert(text.clone());
    }

    /// Returns the separator of tags, unless it is a comma. Texts with `|` or `;` are lists; a comma is part of a text.
    fn separator(&self) -> Option<&'static str> {
        match self.holds {
            [true, ..] => Some("|"),
            [_, true, _] => Some(";"),
            [_, _, true] => Some("|"),
            _ => None,
        }
    }

    fn kind(&self) -> Type {
        let all = |count: usize| count == self.values;
        if all(self.truths) {
            return Type::Boolean;
        }
        if all(self.numbers) && self.codes == 0 {
            return Type::Numeric;
        }
        if all(self.dates) {
            return Type::Timestamp;
        }
        let is_varied = self.distinct.len() * 2 > self.values;
        let is_wordy = self.words > self.values * 3 / 2;
        if self.lists == 0 && is_wordy && (is_varied || self.words > self.values * 8) {
            Type::Text
        } else {
            Type::Tag
        }
    }
}

/// Converts a column's name to one that queries can use: letters, digits and `_`.
fn alias(column: &str, taken: &mut HashSet<String>) -> String {
    let mut name = String::new();
    for c in column.chars() {
        match plain(c) {
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
    if column.chars().all(|c| plain(c) == Some(c))
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

fn plain(c: char) -> Option<char> {
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
    fn check(rows: &[&str], types: &[(&str, Type)], geo: &[&str], expected: &str) {
        let rows: Vec<Row> = rows
            .iter()
            .map(|row| Row::parse(row.as_bytes()).unwrap())
            .collect();
        let types: Vec<_> = types.iter().map(|(c, t)| ((*c).to_owned(), *t)).collect();
        let geo: Vec<String> = geo.iter().map(|it| (*it).to_owned()).collect();
        let told = propose("h", "h:", &rows, &["id"], &types, &geo);
        let told = told.map(|it| crate::space::info::typed(&it.arguments));
        assert_eq!(told.unwrap_or_else(|why| why), expected);
    }

    #[test]
    fn attributes_are_what_the_rows_hold() {
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
                ("about", Type::None),
                ("city", Type::Text),
                ("since", Type::None),
                ("tags", Type::None),
                ("more", Type::None),
                ("zip", Type::None),
                ("open", Type::None),
            ],
            &[],
            "h PREFIX 1 h: SCHEMA city TEXT price NUMERIC",
        );
    }

    #[test]
    fn places_are_found_and_names_made_fit_for_queries() {
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
            &[("street", Type::Tag)],
            &[],
            "--type street: there is no such column; the columns are at, n",
        );
    }
}
