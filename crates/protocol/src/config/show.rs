//! A configuration for people: as it is in force, as a sample file, as the reference page.

use super::{Key, SECTIONS, ServerConfig, keys};

impl ServerConfig {
    /// The configuration in force, as a TOML file. The password is shown only as set or not.
    pub fn to_toml(&self) -> String {
        print(|key| {
            let value = self.get(key.section, key.name);
            let shown = value.map(|value| value.to_string()).unwrap_or_default();
            let hidden = key.path() == "server.password" && !self.server.password.is_empty();
            let shown = if hidden {
                "\"********\"".to_owned()
            } else {
                shown
            };
            format!("{} = {shown}\n", key.name)
        })
    }
}

/// A file with every key, commented out at its default, under its documentation.
pub fn sample_toml() -> String {
    print(|key| {
        let unit = if key.unit.is_empty() {
            String::new()
        } else {
            format!(" Unit: {}.", key.unit)
        };
        format!(
            "# {}{unit} ({})\n# {} = {}\n\n",
            key.doc, key.env, key.name, key.default
        )
    })
}

/// The reference as a Markdown table per section.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Configuration\n\nDefaults, then the file, then environment variables, then flags; later ones win.\n",
    );
    for (section, doc) in SECTIONS {
        text.push_str(&format!(
            "\n## [{section}]\n\n{}\n\n| key | type | default | unit | environment | meaning |\n|---|---|---|---|---|---|\n",
            doc.trim()
        ));
        for key in keys().iter().filter(|key| key.section == *section) {
            let Key {
                name,
                kind,
                default,
                unit,
                env,
                doc,
                ..
            } = key;
            text.push_str(&format!(
                "| `{name}` | {kind} | `{default}` | {unit} | `{env}` | {doc} |\n"
            ));
        }
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
    fn what_is_shown_reads_back_the_same_and_hides_the_password() {
        let mut config = ServerConfig::default();
        config.stores.retain_bytes = ByteSize(12_345);
        config.stores.max_shrink_percent = 12.5;
        let mut again = ServerConfig::default();
        again.apply_toml(&config.to_toml(), "shown").unwrap();
        assert_eq!(again, config);
        config.server.password = "hunter2".to_owned();
        assert!(!config.to_toml().contains("hunter2"));
        let mut sample = ServerConfig::default();
        sample.apply_toml(&sample_toml(), "sample").unwrap();
        assert_eq!(sample, ServerConfig::default());
    }
}
