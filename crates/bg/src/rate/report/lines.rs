//! Writes JSON that is readable but compact: one line for each experiment, each action and each second.
//!
//! Histograms are most of a rating, and standard pretty-printing would take four lines for each of their pairs of
//! numbers.

use serde_json::Value;

/// Maximum nesting depth of objects that are split into lines. An entry of a list always takes one line.
const DEPTH: usize = 3;

/// Returns the value as JSON, with one member or entry per line down to [`DEPTH`].
pub fn lines(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, 0);
    out.push('\n');
    out
}

fn write(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(members) if depth < DEPTH && !members.is_empty() => {
            let members = members.iter().map(|(name, member)| (Some(name), member));
            block(out, ['{', '}'], members, depth);
        }
        Value::Array(entries) if depth < DEPTH && entries.iter().any(is_container) => {
            let entries = entries.iter().map(|entry| (None, entry));
            block(out, ['[', ']'], entries, depth);
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn block<'a>(
    out: &mut String,
    ends: [char; 2],
    parts: impl Iterator<Item = (Option<&'a String>, &'a Value)>,
    depth: usize,
) {
    out.push(ends[0]);
    for (index, (name, part)) in parts.enumerate() {
        out.push_str(if index == 0 { "\n" } else { ",\n" });
        out.push_str(&"  ".repeat(depth + 1));
        match name {
            Some(name) => {
                out.push_str(&format!("{}: ", Value::from(name.as_str())));
                write(out, part, depth + 1);
            }
            None => out.push_str(&part.to_string()),
        }
    }
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
    out.push(ends[1]);
}

fn is_container(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::lines;

    #[test]
    fn each_experiment_action_and_second_has_its_own_line() {
        let value = json!({
            "format": "x\"y",
            "notes": [],
            "experiments": [{"load": 1, "verdict": {"met": true}}, {"load": 2}],
            "measured": {
                "actions": {"View": {"latency_ns": {"digits": 3, "values": [[1000, 5], [2000, 1]]}}},
                "series": [{"failed": 0}, {"failed": 1}]
            },
            "spread": null
        });
        let text = lines(&value);
        assert_eq!(
            text,
            r#"{
  "format": "x\"y",
  "notes": [],
  "experiments": [
    {"load":1,"verdict":{"met":true}},
    {"load":2}
  ],
  "measured": {
    "actions": {
      "View": {"latency_ns":{"digits":3,"values":[[1000,5],[2000,1]]}}
    },
    "series": [
      {"failed":0},
      {"failed":1}
    ]
  },
  "spread": null
}
"#
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }
}
