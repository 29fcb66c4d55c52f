//! The types of configuration keys, and the conversions of each from text, from TOML, and to TOML.

use std::path::PathBuf;

use larder_types::ByteSize;

/// The type of a configuration key's value. Reading and printing are exact inverses.
pub trait ConfigValue: Sized {
    /// The type's name on the reference page.
    const TYPE: &'static str;

    /// Returns the allowed words, if the type is a fixed set of words.
    fn words() -> Vec<&'static str> {
        Vec::new()
    }

    /// Parses a flag or an environment variable. The error completes the sentence "... must be".
    fn from_text(text: &str) -> Result<Self, String>;

    /// Converts from a TOML value.
    fn from_toml(value: &toml::Value) -> Result<Self, String>;

    /// Converts to TOML.
    fn to_toml(&self) -> toml::Value;
}

impl ConfigValue for String {
    const TYPE: &'static str = "text";

    fn from_text(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn from_toml(value: &toml::Value) -> Result<String, String> {
        let text = value.as_str().ok_or("a text in quotes")?;
        Ok(text.to_owned())
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.clone())
    }
}

impl ConfigValue for Vec<String> {
    const TYPE: &'static str = "list";

    /// Accepts entries separated by commas, or the form of the configuration file.
    fn from_text(text: &str) -> Result<Vec<String>, String> {
        let trimmed = text.trim();
        if trimmed.starts_with('[') && trimmed.ends_with(']') {
            let read = toml::from_str::<toml::Table>(&format!("list = {trimmed}"));
            let list = read.ok().and_then(|table| table.get("list").cloned());
            return Vec::from_toml(&list.unwrap_or(toml::Value::Boolean(false)));
        }
        let entries = text.split(',').map(str::trim);
        Ok(entries
            .filter(|entry| !entry.is_empty())
            .map(str::to_owned)
            .collect())
    }

    fn from_toml(value: &toml::Value) -> Result<Vec<String>, String> {
        let texts = || -> Option<Vec<String>> {
            let entries = value.as_array()?.iter();
            entries
                .map(|entry| Some(entry.as_str()?.to_owned()))
                .collect()
        };
        texts().ok_or_else(|| "a list of texts in quotes, such as [\"a\", \"b\"]".to_owned())
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Array(self.iter().cloned().map(toml::Value::String).collect())
    }
}

impl ConfigValue for PathBuf {
    const TYPE: &'static str = "path";

    fn from_text(text: &str) -> Result<PathBuf, String> {
        if text.is_empty() {
            return Err("a path; it is empty".to_owned());
        }
        Ok(PathBuf::from(text))
    }

    fn from_toml(value: &toml::Value) -> Result<PathBuf, String> {
        PathBuf::from_text(value.as_str().ok_or("a path in quotes")?)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string_lossy().into_owned())
    }
}

impl ConfigValue for bool {
    const TYPE: &'static str = "boolean";

    fn from_text(text: &str) -> Result<bool, String> {
        match text {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err("true or false".to_owned()),
        }
    }

    fn from_toml(value: &toml::Value) -> Result<bool, String> {
        Ok(value.as_bool().ok_or("true or false, without quotes")?)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Boolean(*self)
    }
}

impl ConfigValue for u64 {
    const TYPE: &'static str = "number";

    fn from_text(text: &str) -> Result<u64, String> {
        let value: u64 = text.parse().map_err(|_| whole_number())?;
        // TOML's integers have 64 bits with a sign, so a larger number could not be printed.
        i64::try_from(value).map_err(|_| whole_number())?;
        Ok(value)
    }

    fn from_toml(value: &toml::Value) -> Result<u64, String> {
        let number = value.as_integer().ok_or_else(whole_number)?;
        u64::try_from(number).map_err(|_| whole_number())
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl ConfigValue for u32 {
    const TYPE: &'static str = "number";

    fn from_text(text: &str) -> Result<u32, String> {
        text.parse().map_err(|_| small_number())
    }

    fn from_toml(value: &toml::Value) -> Result<u32, String> {
        let number = value.as_integer().ok_or_else(small_number)?;
        u32::try_from(number).map_err(|_| small_number())
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Integer(i64::from(*self))
    }
}

impl ConfigValue for f64 {
    const TYPE: &'static str = "number";

    fn from_text(text: &str) -> Result<f64, String> {
        let number: f64 = text
            .parse()
            .map_err(|_| "a number of at least 0".to_owned())?;
        if number.is_finite() && number >= 0.0 {
            Ok(number)
        } else {
            Err("a number of at least 0".to_owned())
        }
    }

    fn from_toml(value: &toml::Value) -> Result<f64, String> {
        match value {
            toml::Value::Integer(number) => f64::from_text(&number.to_string()),
            toml::Value::Float(number) => f64::from_text(&number.to_string()),
            _ => Err("a number of at least 0".to_owned()),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::Float(*self)
    }
}

impl ConfigValue for ByteSize {
    const TYPE: &'static str = "size";

    fn from_text(text: &str) -> Result<ByteSize, String> {
        text.parse()
            .map_err(|_| "a size such as 512KiB, 64MiB or 1GiB".to_owned())
    }

    fn from_toml(value: &toml::Value) -> Result<ByteSize, String> {
        match value {
            toml::Value::String(text) => ByteSize::from_text(text),
            toml::Value::Integer(number) => ByteSize::from_text(&number.to_string()),
            _ => Err("a size such as \"64MiB\"".to_owned()),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(String::from(*self))
    }
}

fn whole_number() -> String {
    "a whole number of at least 0".to_owned()
}

fn small_number() -> String {
    format!("a whole number from 0 to {}", u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_commas_or_as_in_the_configuration_file() {
        let read = |text: &str| Vec::<String>::from_text(text);
        assert_eq!(read("/a, b,").unwrap(), ["/a", "b"]);
        assert_eq!(read(r#"["/x/gate.sh"]"#).unwrap(), ["/x/gate.sh"]);
        assert_eq!(read(r#" ["a", "b,c"] "#).unwrap(), ["a", "b,c"]);
        assert_eq!(read("[]").unwrap(), [""; 0]);
        assert_eq!(read("[::1]:2379").unwrap(), ["[::1]:2379"]);
        for wrong in ["[a, b]", "[1]", r#"["a]"#] {
            assert!(read(wrong).unwrap_err().contains("in quotes"), "{wrong}");
        }
    }
}
