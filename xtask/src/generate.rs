//! Reference pages, written from the tables that the server itself runs on: `larder-protocol`.

use std::fs;

use larder_protocol::{columns, commands, config, errors};

use crate::tree;

const NOTICE: &str = "<!-- Written by `cargo xtask gen`; do not edit. -->\n\n";

/// One generated page: its path and what it must hold.
struct Page {
    path: &'static str,
    text: String,
}

fn pages() -> Vec<Page> {
    vec![
        Page {
            path: "docs/reference/commands.md",
            text: format!("{NOTICE}{}", commands_page()),
        },
        Page {
            path: "docs/reference/columns.md",
            text: format!("{NOTICE}{}", columns::reference_markdown()),
        },
        Page {
            path: "docs/reference/config.md",
            text: format!("{NOTICE}{}", config::reference_markdown()),
        },
        Page {
            path: "docs/reference/larder.toml",
            text: config::sample_toml(),
        },
        Page {
            path: "docs/reference/errors.md",
            text: format!("{NOTICE}{}", errors_page()),
        },
    ]
}

fn commands_page() -> String {
    let mut text = String::from(
        "# Commands\n\n\
         Over the Redis protocol, RESP2 or RESP3. Any other command is answered with Redis's own error text.\n",
    );
    let mut groups: Vec<&str> = commands::COMMANDS
        .iter()
        .map(|command| command.group.name())
        .collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        text.push_str(&format!(
            "\n## {group}\n\n| command | what it does |\n|---|---|\n"
        ));
        for command in commands::COMMANDS
            .iter()
            .filter(|command| command.group.name() == group)
        {
            let commands::Spec {
                name,
                syntax,
                summary,
                subcommands,
                ..
            } = command;
            if subcommands.is_empty() {
                text.push_str(&command_row(name, syntax, summary));
            }
            for sub in *subcommands {
                text.push_str(&command_row(
                    &format!("{name} {}", sub.name),
                    sub.syntax,
                    sub.summary,
                ));
            }
        }
    }
    text.push_str(commands::JOIN_LANGUAGE);
    text
}

fn command_row(name: &str, syntax: &str, summary: &str) -> String {
    // A bar would end the cell.
    let usage = format!("{name} {syntax}").trim_end().replace('|', "\\|");
    format!("| `{usage}` | {} |\n", summary.replace('|', "\\|"))
}

fn errors_page() -> String {
    let mut text = String::from(
        "# Errors\n\n\
         HTTP answers `{\"error\": {\"code\": ..., \"message\": ..., \"retry\": ...}}` with the status; the Redis \
         protocol answers `-PREFIX message`.\nMatch on codes and prefixes, show messages to people. Retry: \
         whether the same request may succeed later with nobody\nchanging anything.\n\n\
         | code | HTTP | Redis prefix | retry | meaning |\n|---|---|---|---|---|\n",
    );
    for row in errors::ROWS {
        let errors::Row {
            name,
            resp_prefix,
            http_status,
            retry,
            meaning,
            ..
        } = row;
        let retry = if *retry { "yes" } else { "no" };
        text.push_str(&format!(
            "| `{name}` | {http_status} | `{resp_prefix}` | {retry} | {meaning} |\n"
        ));
    }
    text
}

/// Writes every page that is not already as it should be.
pub fn write() -> Result<(), String> {
    for page in pages() {
        if on_disk(&page) != page.text {
            let path = tree::root().join(page.path);
            let folder = path.parent().expect("a page lies in a folder");
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&path, &page.text))
                .map_err(|error| format!("cannot write {}: {error}", page.path))?;
            println!("gen: wrote {}", page.path);
        }
    }
    Ok(())
}

/// The pages that are not what the tables say.
pub fn stale() -> Result<Vec<&'static str>, String> {
    Ok(pages()
        .into_iter()
        .filter(|page| on_disk(page) != page.text)
        .map(|page| page.path)
        .collect())
}

fn on_disk(page: &Page) -> String {
    tree::text(page.path).ok().flatten().unwrap_or_default()
}
