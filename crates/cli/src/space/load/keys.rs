//! Keys of objects, made from one column or from a template such as `{country}:{id}`; `{#}` is the row number.

use super::row::{Cell, Row};

/// The column name that stands for the row number.
const NUMBER: &str = "#";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Column(String),
}

impl KeyTemplate {
    /// Parses a template. A text without braces is the name of a column.
    ///
    /// # Errors
    /// A brace is not closed, or the braces are empty.
    pub fn parse(text: &str) -> Result<KeyTemplate, String> {
        if !text.contains(['{', '}']) {
            return Ok(KeyTemplate(vec![Part::Column(text.to_owned())]));
        }
        let bad = || {
            format!("{text:?} is no template: columns stand in braces, as in '{{country}}:{{id}}'")
        };
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((literal, more)) = rest.split_once('{') {
            let (column, tail) = more.split_once('}').ok_or_else(bad)?;
            if literal.contains('}') || column.is_empty() || column.contains('{') {
                return Err(bad());
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            parts.push(Part::Column(column.to_owned()));
            rest = tail;
        }
        match rest.contains('}') {
            true => return Err(bad()),
            false if rest.is_empty() => {}
            false => parts.push(Part::Literal(rest.to_owned())),
        }
        Ok(KeyTemplate(parts))
    }

    /// Iterates over the columns in the template.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Column(name) if name != NUMBER => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns the key of a row; `number` is the row number, starting at 1.
    ///
    /// # Errors
    /// A column is missing, or is not a text.
    pub fn key(&self, prefix: &str, row: &Row, number: u64) -> Result<Vec<u8>, String> {
        let mut key = prefix.to_owned();
        for part in &self.0 {
            match part {
                Part::Literal(text) => key.push_str(text),
                Part::Column(name) if name == NUMBER => key.push_str(&number.to_string()),
                Part::Column(name) => match row.get(name) {
                    Some(Cell::Text(text)) if !text.is_empty() => key.push_str(text),
                    Some(Cell::Nested(_)) => {
                        return Err(format!(
                            "key column {name:?} is an array or object; a key is made of texts and numbers"
                        ));
                    }
                    Some(_) => {
                        return Err(format!(
                            "key column {name:?} is empty; every object needs a key"
                        ));
                    }
                    None => {
                        let have: Vec<&str> = row.0.iter().map(|(name, _)| &**name).collect();
                        return Err(format!(
                            "there is no column {name:?} for the key; the columns are {}",
                            have.join(", ")
                        ));
                    }
                },
            }
        }
        Ok(key.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_column_or_a_template() {
        let row = Row::parse(br#"{"id":7,"city":"Rome","none":null,"list":[1]}"#).unwrap();
        let key = |template: &str| {
            let template = KeyTemplate::parse(template)?;
            let key = template.key("hotel:", &row, 3)?;
            Ok::<String, String>(String::from_utf8(key).unwrap())
        };
        assert_eq!(key("id").unwrap(), "hotel:7");
        assert_eq!(key("{city}-{id}x").unwrap(), "hotel:Rome-7x");
        assert_eq!(key("{#}").unwrap(), "hotel:3");
        for (bad, why) in [
            ("none", "is empty"),
            ("list", "is an array"),
            ("street", "the columns are id, city, none, list"),
            ("{id", "is no template"),
            ("id}", "is no template"),
            ("{}", "is no template"),
            ("{a{b}}", "is no template"),
        ] {
            let error = key(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
