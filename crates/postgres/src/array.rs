//! Conversion between PostgreSQL's arrays and JSON arrays.
//!
//! ```text
//!  {1,NULL,3}              [1,null,3]
//!  [0:1]={{a,"b \"c"},{d,e}}  [["a","b \"c"],["d","e"]]       lower bounds are dropped
//! ```

use serde_json::value::RawValue;

/// PostgreSQL allows at most six dimensions.
const DEPTH_MAX: usize = 6;

/// Converts an array in PostgreSQL's output format to JSON. `element` converts an element that is not null. `None` if
/// the text is not an array.
pub fn to_json(text: &str, delimiter: u8, element: impl Fn(&str) -> String) -> Option<String> {
    // `[0:1][3:4]=` contains the lower and upper bound of each dimension.
    let text = if text.starts_with('[') {
        text.split_once('=')?.1
    } else {
        text
    };
    let bytes = text.as_bytes();
    let mut json = String::with_capacity(text.len() + 8);
    let (mut at, mut depth) = (0, 0);
    loop {
        match bytes.get(at)? {
            b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return None;
                }
                json.push('[');
                at += 1;
                if bytes.get(at) != Some(&b'}') {
                    continue;
                }
            }
            b'"' => {
                let (value, end) = unquote(text, at + 1)?;
                json.push_str(&element(&value));
                at = end;
            }
            _ => {
                let rest = &bytes[at..];
                let len = rest
                    .iter()
                    .position(|&byte| byte == delimiter || byte == b'}')?;
                let value = &text[at..at + len];
                match value {
                    "" => return None,
                    "NULL" => json.push_str("null"),
                    value => json.push_str(&element(value)),
                }
                at += len;
            }
        }
        // After an element, or in an empty array.
        while bytes.get(at) == Some(&b'}') {
            depth = depth.checked_sub(1)?;
            json.push(']');
            at += 1;
            if depth == 0 {
                return (at == bytes.len()).then_some(json);
            }
        }
        if depth == 0 || bytes.get(at) != Some(&delimiter) {
            return None;
        }
        json.push(',');
        at += 1;
    }
}

/// Returns the quoted element that starts at `from`, after its quotation mark, and the position after it.
fn unquote(text: &str, from: usize) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut chars = text.get(from..)?.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, from + at + 1)),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

/// Converts a JSON array to PostgreSQL's input format. With `is_json`, the elements are JSON values themselves, and the
/// array has one dimension.
pub fn from_json(json: &RawValue, delimiter: u8, is_json: bool) -> Option<String> {
    let elements: Vec<&RawValue> = serde_json::from_str(json.get()).ok()?;
    let element = |element: &&RawValue| {
        let text = element.get();
        match text.as_bytes().first()? {
            b'n' => Some("NULL".to_owned()),
            _ if is_json => Some(quote(text)),
            b'[' => from_json(element, delimiter, is_json),
            b'"' => Some(quote(&serde_json::from_str::<String>(text).ok()?)),
            _ => Some(quote(text)),
        }
    };
    let elements: Option<Vec<String>> = elements.iter().map(element).collect();
    let separator = char::from(delimiter).to_string();
    Some(format!("{{{}}}", elements?.join(&separator)))
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Option<String> {
        to_json(text, b',', |element| format!("<{element}>"))
    }

    #[test]
    fn arrays_become_json() {
        for (text, expected) in [
            ("{}", "[]"),
            ("{1,NULL,3}", "[<1>,null,<3>]"),
            ("{\"NULL\",null,\"\"}", "[<NULL>,<null>,<>]"),
            ("{{1,2},{3,4}}", "[[<1>,<2>],[<3>,<4>]]"),
            ("[0:1]={a,b}", "[<a>,<b>]"),
            ("[1:1][-2:-1]={{a,b}}", "[[<a>,<b>]]"),
            (
                r#"{"a,b","{c}","d\"e","f\\g","\\"}"#,
                r#"[<a,b>,<{c}>,<d"e>,<f\g>,<\>]"#,
            ),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(
            to_json("{(1,1),(0,0);(3,3),(2,2)}", b';', str::to_owned).as_deref(),
            Some("[(1,1),(0,0),(3,3),(2,2)]")
        );
    }

    #[test]
    fn malformed_arrays_are_none() {
        for text in [
            "",
            "a",
            "{",
            "}",
            "{a",
            "{a,}",
            "{,a}",
            "{\"a}",
            "{a}}",
            "{a}b",
            "[0:1]",
            "[0:1]{a}",
            "{{{{{{{1}}}}}}}",
        ] {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn json_arrays_become_arrays() {
        let array = |json: &str, is_json| {
            let json: Box<RawValue> = serde_json::from_str(json).unwrap();
            from_json(&json, b',', is_json)
        };
        assert_eq!(
            array(r#"[1, null, true, "a\"b\\c", []]"#, false).unwrap(),
            r#"{"1",NULL,"true","a\"b\\c",{}}"#
        );
        assert_eq!(
            array("[[1,2],[3,4]]", false).unwrap(),
            r#"{{"1","2"},{"3","4"}}"#
        );
        assert_eq!(
            array("[[1],{\"a\":2}]", true).unwrap(),
            r#"{"[1]","{\"a\":2}"}"#
        );
        assert_eq!(array("{}", false), None);
    }

    proptest! {
        #[test]
        fn any_text_is_an_array_or_none(text in "[\\[{}\\]\",\\\\aNUL:=é]{0,24}") {
            let _ = shown(&text);
        }

        #[test]
        fn arrays_round_trip(elements in proptest::collection::vec("[{}\",\\\\aé ]{0,6}", 0..5)) {
            let json = serde_json::to_string(&elements).unwrap();
            let raw: Box<RawValue> = serde_json::from_str(&json).unwrap();
            let array = from_json(&raw, b',', false).unwrap();
            let back = to_json(&array, b',', |element| serde_json::to_string(element).unwrap());
            prop_assert_eq!(back, Some(json));
        }
    }
}
