//! Prints a configuration: the effective values, a sample file, the reference page.

use super::{Key, MAPPED_KEYS, SECTIONS, ServerConfig, keys};

impl ServerConfig {
    /// The effective configuration, as a TOML file with passwords masked.
    pub fn to_toml(&self) -> String {
        let mut text = print(|key| {
            let value = self.display_value(key.section, key.name);
            let shown = value.map(|value| value.to_string()).unwrap_or_default();
            format!("{} = {shown}\n", key.name)
        });
        for table in &self.mapped {
            text.push_str(&format!("\n[tables.{}]\n{}", table.name, table.to_toml()));
        }
        text
    }

    /// The value of a key, with passwords masked.
    pub fn display_value(&self, section: &str, name: &str) -> Option<toml::Value> {
        let stars = |text: String| Some(toml::Value::String(text));
        match (section, name) {
            ("server", "password") if !self.server.password.is_empty() => {
                stars("********".to_owned())
            }
            ("cluster", "etcd_password") if !self.cluster.etcd_password.is_empty() => {
                stars("********".to_owned())
            }
            ("postgres", "url") => stars(without_password(&self.postgres.url)),
            _ => self.get(section, name),
        }
    }
}

/// An address with its password masked.
fn without_password(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    let password = url[start..end].rfind('@').and_then(|at| {
        let colon = url[start..start + at].find(':')?;
        Some((start + colon + 1, start + at))
    });
    let mut shown = match password {
        Some((from, to)) => format!("{}********{}", &url[..from], &url[to..]),
        None => url.to_owned(),
    };
    if let Some(at) = shown.find("password=") {
        shown.truncate(at);
        shown.push_str("password=********");
    }
    shown
}

/// A file with every key, commented out at its default, under its documentation.
pub fn sample_toml() -> String {
    let mut text = print(|key| {
        let line = |what: &str, text: &str| match text {
            "" => String::new(),
            text => format!(" {what}: {text}."),
        };
        let unit = line("Unit", key.unit) + &line("Allowed", &key.allowed);
        format!(
            "# {}{unit} ({})\n# {} = {}\n\n",
            key.doc, key.env, key.name, key.default
        )
    });
    text.push_str("\n# A table in PostgreSQL; one section for each.\n# [tables.post]\n#\n");
    for key in MAPPED_KEYS {
        let example = match key.name {
            "pattern" => "\"post|<author>|<time:10>\"",
            "table" => "\"posts\"",
            "columns" => "{ time = \"posted_at\" }",
            "value" => "\"body\"",
            _ => "\"refuse\"",
        };
        text.push_str(&format!("# {}\n# {} = {example}\n#\n", key.doc, key.name));
    }
    text
}

/// The reference as a Markdown table per section.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Configuration\n\nA value from the file overrides the default, an environment variable overrides the file, and a flag overrides both.\n",
    );
    for (section, doc) in SECTIONS {
        text.push_str(&format!(
            "\n## [{section}]\n\n{}\n\n| key | type | default | allowed | unit | environment | meaning |\n|---|---|---|---|---|---|---|\n",
            doc.trim()
        ));
        for key in keys().iter().filter(|key| key.section == *section) {
            let Key {
                name,
                kind,
                default,
                allowed,
                unit,
                env,
                doc,
                ..
            } = key;
            let doc = doc.replace('|', "\\|");
            text.push_str(&format!(
                "| `{name}` | {kind} | `{default}` | {allowed} | {unit} | `{env}` | {doc} |\n"
            ));
        }
    }
    text.push_str(
        "\n## [tables.&lt;name&gt;]\n\nTables in PostgreSQL, one section for each. They can be declared only in the file. \
         [The guide](../guide/postgres.md) has an example.\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
    );
    for key in MAPPED_KEYS {
        text.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            key.name,
            key.kind,
            key.default,
            key.doc.replace('|', "\\|")
        ));
    }
    text
}

fn print(line: impl Fn(&Key) -> String) -> String {
    let mut text = String::new();
    for (section, doc) in SECTIONS {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("# {}\n[{section}]\n", doc.trim()));
        for key in keys().iter().filter(|key| key.section == *section) {
            text.push_str(&line(key));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use larder_types::ByteSize;

    use super::*;

    #[test]
    fn the_shown_configuration_round_trips_and_masks_the_password() {
        let mut config = ServerConfig::default();
        config.stores.retain_bytes = ByteSize(12_345);
        config.stores.max_shrink_percent = 12.5;
        let mut again = ServerConfig::default();
        again.apply_toml(&config.to_toml(), "shown").unwrap();
        assert_eq!(again, config);
        config.server.password = "hunter2".to_owned();
        config.postgres.url = "postgres://larder:hunter2@localhost/shop".to_owned();
        assert!(!config.to_toml().contains("hunter2"));
        assert!(
            config
                .to_toml()
                .contains("postgres://larder:********@localhost/shop")
        );
        let mut sample = ServerConfig::default();
        sample.apply_toml(&sample_toml(), "sample").unwrap();
        assert_eq!(sample, ServerConfig::default());
    }
}
