//! Converts a row to an object's fields, in the forms that the space's attributes require, or reports why it does not
//! fit.

use std::fmt::Write as _;
use std::str::FromStr;

use larder_space::object::ObjectKind;
use larder_space::schema::{Attribute, AttributeKind, Definition};
use larder_space::value::read_bytes;

use super::row::{Cell, Row};

/// The source of points: `NAME=A,B`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeoSource {
    /// The column, or the new field.
    pub name: String,
    /// The columns of latitude and longitude; or `lat` and `lon`, in the order of the coordinates in the column `name`.
    pub parts: [String; 2],
}

impl FromStr for GeoSource {
    type Err = String;

    fn from_str(text: &str) -> Result<GeoSource, String> {
        let parts = text.rsplit_once('=').and_then(|(name, parts)| {
            let (first, second) = parts.split_once(',')?;
            let named = !name.is_empty() && !first.is_empty() && !second.is_empty();
            named.then(|| GeoSource {
                name: name.to_owned(),
                parts: [first.to_owned(), second.to_owned()],
            })
        });
        parts.ok_or_else(|| {
            format!(
                "{text:?} is neither NAME=LATITUDE_COLUMN,LONGITUDE_COLUMN nor COLUMN=lat,lon (or lon,lat)"
            )
        })
    }
}

/// Finds a column of latitudes and one of longitudes, by their names.
pub fn pair_of_columns<'a>(columns: impl Iterator<Item = &'a str> + Clone) -> Option<[&'a str; 2]> {
    let find = |names: [&str; 2]| {
        let is_it = |column: &&str| names.iter().any(|name| column.eq_ignore_ascii_case(name));
        columns.clone().find(is_it)
    };
    let lon = find(["longitude", "lon"]).or_else(|| find(["lng", "long"]))?;
    Some([find(["latitude", "lat"])?, lon])
}

/// Default name of the field that combines a latitude and a longitude.
pub const LOCATION: &str = "location";

/// The conversion of rows into objects.
pub struct ObjectShape {
    pub definition: Definition,
    /// The prefix of keys made from columns.
    pub prefix: String,
    pub geo: Vec<GeoSource>,
}

impl ObjectShape {
    /// Returns the object's fields in the row's order; `None` for fields that it does not have.
    ///
    /// # Errors
    /// A field does not fit its attribute: the field and its value.
    pub fn fields(&self, row: &Row) -> Result<Vec<(String, Option<String>)>, String> {
        let mut fields = Vec::with_capacity(row.0.len() + 1);
        for (name, cell) in &row.0 {
            let value = match cell {
                Cell::Null => None,
                cell => Some(self.text(name, cell)?),
            };
            fields.push((name.clone(), value));
        }
        for source in self.sources(row) {
            let place = fields.iter().position(|(name, _)| *name == source.name);
            let value = match place {
                Some(at) => {
                    let is_swapped = source.parts[0].eq_ignore_ascii_case("lat");
                    let text = fields[at].1.take();
                    text.map(|text| point_from_pair(&source.name, &text, is_swapped))
                        .transpose()?
                }
                None => point_from_columns(&source, row)?,
            };
            match place {
                Some(at) => fields[at].1 = value,
                None => fields.push((source.name, value)),
            }
        }
        for (name, value) in &fields {
            if let Some(value) = value {
                self.check(name, value)?;
            }
        }
        Ok(fields)
    }

    /// Returns the requested sources of points, or a latitude and a longitude if the space has a location that is not a
    /// column.
    fn sources(&self, row: &Row) -> Vec<GeoSource> {
        if !self.geo.is_empty() {
            return self.geo.clone();
        }
        let wants_location = row.get(LOCATION).is_none()
            && self
                .attributes(LOCATION)
                .any(|it| it.kind == AttributeKind::Geo);
        let pair = pair_of_columns(row.0.iter().map(|(name, _)| name.as_str()));
        let pair = pair.filter(|_| wants_location);
        let source = |pair: [&str; 2]| GeoSource {
            name: LOCATION.to_owned(),
            parts: pair.map(str::to_owned),
        };
        pair.map(source).into_iter().collect()
    }

    fn attributes(&self, field: &str) -> impl Iterator<Item = &Attribute> {
        let attributes = self.definition.attributes.iter();
        attributes.filter(move |it| it.identifier == field)
    }

    fn text(&self, name: &str, cell: &Cell) -> Result<String, String> {
        let attribute = self.attributes(name).next();
        Ok(match (cell, attribute.map(|it| &it.kind)) {
            (Cell::Nested(json) | Cell::Text(json), Some(AttributeKind::Tag { separator, .. }))
                if json.starts_with('[') =>
            {
                tags(json, *separator).unwrap_or_else(|| json.clone())
            }
            (Cell::Nested(json), Some(AttributeKind::Geo)) => {
                pair_of_json(json).unwrap_or_else(|| json.clone())
            }
            (Cell::Nested(text), _) => text.clone(),
            (Cell::Text(text), Some(kind @ (AttributeKind::Numeric | AttributeKind::Boolean))) => {
                let is_fit = attribute.is_none_or(|it| read_bytes(it, text.as_bytes()).is_ok());
                let plain = match kind {
                    AttributeKind::Numeric => normalize_number(text),
                    _ => parse_boolean(text).map(str::to_owned),
                };
                plain.filter(|_| !is_fit).unwrap_or_else(|| text.clone())
            }
            (Cell::Text(text), _) => text.clone(),
            (Cell::Null, _) => String::new(),
        })
    }

    fn check(&self, name: &str, value: &str) -> Result<(), String> {
        if self.definition.on == ObjectKind::Json {
            return Ok(());
        }
        for attribute in self.attributes(name) {
            if read_bytes(attribute, value.as_bytes()).is_err() {
                let shown: String = value.chars().take(60).collect();
                let selected = match attribute.kind {
                    AttributeKind::Numeric => "a number",
                    AttributeKind::Geo => "a point, which is longitude,latitude",
                    AttributeKind::Timestamp => {
                        "an instant, which is a date such as 2024-02-29T12:30Z or seconds since 1970"
                    }
                    _ => "true or false",
                };
                return Err(format!(
                    "column {name:?} has {shown:?}, and the space wants {selected} there ({} {})",
                    attribute.name,
                    attribute.kind.name()
                ));
            }
        }
        Ok(())
    }
}

/// Joins tags into one text; `None` if some are not scalars, or contain the separator.
fn tags(json: &str, separator: Option<u8>) -> Option<String> {
    let separator = char::from(separator?);
    let list: Vec<serde_json::Value> = serde_json::from_str(json).ok()?;
    let mut out = String::new();
    for (index, tag) in list.iter().enumerate() {
        let text = match tag {
            serde_json::Value::String(text) if !text.contains(separator) => text.clone(),
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) => tag.to_string(),
            _ => return None,
        };
        if index > 0 {
            out.push(separator);
        }
        out.push_str(&text);
    }
    Some(out)
}

/// Parses `[lon, lat]`, the order of GeoJSON.
fn pair_of_json(json: &str) -> Option<String> {
    let pair: [f64; 2] = serde_json::from_str(json).ok()?;
    Some(format!("{},{}", pair[0], pair[1]))
}

/// Normalizes a formatted number: `$1,234.50`, `85%`, `120 €`.
pub fn normalize_number(text: &str) -> Option<String> {
    let marks = ['$', '€', '£', '¥', '%', ' ', '\u{a0}'];
    let bare = text.trim_matches(marks);
    let (sign, bare) = match bare.strip_prefix('-') {
        Some(rest) => ("-", rest.trim_start_matches(marks)),
        None => ("", bare),
    };
    let (integer, fraction) = bare.split_once('.').unwrap_or((bare, ""));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let mut groups = integer.split(',');
    let first = groups.next().filter(|first| is_digits(first))?;
    let mut out = format!("{sign}{first}");
    let mut is_first_short = first.len() <= 3;
    for group in groups {
        if group.len() != 3 || !is_digits(group) || !std::mem::replace(&mut is_first_short, true) {
            return None;
        }
        out.push_str(group);
    }
    if bare.contains('.') {
        if !is_digits(fraction) {
            return None;
        }
        let _ = write!(out, ".{fraction}");
    }
    Some(out)
}

/// Normalizes other spellings of a boolean.
pub fn parse_boolean(text: &str) -> Option<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "t" | "yes" | "y" | "true" => Some("true"),
        "f" | "no" | "n" | "false" => Some("false"),
        _ => None,
    }
}

/// Parses two numbers with a comma between them.
pub fn parse_pair(text: &str) -> Option<[f64; 2]> {
    let bare = text.trim().trim_start_matches(['(', '[']);
    let (first, second) = bare.trim_end_matches([')', ']']).split_once(',')?;
    let number = |text: &str| text.trim().parse().ok().filter(|it: &f64| it.is_finite());
    Some([number(first)?, number(second)?])
}

fn point_from_pair(name: &str, text: &str, is_swapped: bool) -> Result<String, String> {
    let [first, second] = parse_pair(text)
        .ok_or_else(|| format!("column {name:?} has {text:?}, which is no pair of numbers"))?;
    Ok(if is_swapped {
        format!("{second},{first}")
    } else {
        format!("{first},{second}")
    })
}

fn point_from_columns(source: &GeoSource, row: &Row) -> Result<Option<String>, String> {
    let [lat, lon] = &source.parts;
    for name in [lat, lon] {
        if row.get(name).is_none() {
            let have: Vec<&str> = row.0.iter().map(|(name, _)| &**name).collect();
            return Err(format!(
                "--geo {}={lat},{lon}: there is no column {name:?}; the columns are {}",
                source.name,
                have.join(", ")
            ));
        }
    }
    let both = row.text(lat).zip(row.text(lon));
    Ok(both.map(|(lat, lon)| format!("{},{}", lon.trim(), lat.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(schema: &str, geo: &[&str]) -> ObjectShape {
        let words = ["s", "SCHEMA"].into_iter().chain(schema.split(' '));
        let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
        ObjectShape {
            definition: Definition::parse_create(&words).unwrap(),
            prefix: String::new(),
            geo: geo.iter().map(|it| it.parse().unwrap()).collect(),
        }
    }

    #[track_caller]
    fn check(schema: &str, geo: &[&str], row: &str, expected: &str) {
        let row = Row::parse(row.as_bytes()).unwrap();
        let text = match shape(schema, geo).fields(&row) {
            Ok(fields) => {
                let fields = fields.into_iter().map(|(name, value)| {
                    let value = value.unwrap_or_else(|| "-".to_owned());
                    format!("{name}={value}")
                });
                fields.collect::<Vec<_>>().join(" ")
            }
            Err(why) => why,
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn fields_are_converted_for_their_attributes() {
        let row =
            r#"{"price":"$1,234.50","rate":"85%","pool":"t","tags":["a","b"],"x":null,"y":[1]}"#;
        check(
            "price NUMERIC rate NUMERIC pool BOOLEAN tags TAG",
            &[],
            row,
            "price=1234.50 rate=85 pool=true tags=a,b x=- y=[1]",
        );
        check("price TAG", &[], r#"{"price":"$54.00"}"#, "price=$54.00");
        check("price NUMERIC", &[], r#"{"price":"1e3"}"#, "price=1e3");
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_column() {
        check(
            "price NUMERIC",
            &[],
            r#"{"price":"cheap"}"#,
            r#"column "price" has "cheap", and the space wants a number there (price NUMERIC)"#,
        );
        check(
            "c AS since TIMESTAMP",
            &[],
            r#"{"c":"last year"}"#,
            r#"column "c" has "last year", and the space wants an instant, which is a date such as 2024-02-29T12:30Z or seconds since 1970 there (since TIMESTAMP)"#,
        );
    }

    #[test]
    fn points_are_read_from_two_columns_or_one_in_either_order() {
        let two = r#"{"lat":"41.9","lon":"12.5"}"#;
        check(
            "location GEO",
            &[],
            two,
            "lat=41.9 lon=12.5 location=12.5,41.9",
        );
        check(
            "place GEO",
            &["place=lat,lon"],
            two,
            "lat=41.9 lon=12.5 place=12.5,41.9",
        );
        let one = r#"{"at":"41.9, 12.5"}"#;
        check("at GEO", &["at=lat,lon"], one, "at=12.5,41.9");
        check("at GEO", &["at=lon,lat"], one, "at=41.9,12.5");
        check("at GEO", &[], r#"{"at":[12.5,41.9]}"#, "at=12.5,41.9");
        check("at GEO", &["at=lat,lon"], r#"{"at":null}"#, "at=-");
        check(
            "at GEO",
            &["at=a,b"],
            r#"{"x":1}"#,
            r#"--geo at=a,b: there is no column "a"; the columns are x"#,
        );
    }

    #[test]
    fn formatted_numbers_are_parsed_and_others_rejected() {
        for (text, plain) in [
            ("$54.00", Some("54.00")),
            ("1,234,567", Some("1234567")),
            ("-$3", Some("-3")),
            ("120 €", Some("120")),
            ("1,23", None),
            ("12345,678", None),
            ("1.", None),
            ("", None),
            ("abc", None),
        ] {
            assert_eq!(normalize_number(text).as_deref(), plain, "{text}");
        }
    }
}
