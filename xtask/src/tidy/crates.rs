//! Checks that crates have the names of their folders and depend in one direction, and that some libraries are used by
//! few crates.

use std::path::Path;

use super::Findings;
use crate::tree::{self, Tree};

/// Each crate and the workspace crates that it may use, lowest first. A crate may use only crates above it in this
/// table, and only those in its row. Tests may use more.
const MAY_USE: [(&str, &[&str]); 23] = [
    ("testing", &[]),
    ("types", &[]),
    ("table", &["types"]),
    ("batch", &["types"]),
    ("join", &["types", "table"]),
    ("space", &["types"]),
    ("validate", &["types"]),
    ("page", &["types"]),
    ("sim", &["types"]),
    ("journal", &["types"]),
    ("cluster", &["types"]),
    ("protocol", &["types"]),
    ("postgres", &["types", "protocol"]),
    ("remote", &["types"]),
    ("ingest", &["types", "remote"]),
    ("python", &["types", "batch", "remote", "ingest"]),
    ("client", &["types", "protocol"]),
    (
        "server",
        &[
            "types", "table", "batch", "join", "space", "journal", "cluster", "postgres",
            "protocol", "remote",
        ],
    ),
    (
        "bench",
        &[
            "types", "table", "batch", "join", "space", "validate", "protocol", "client", "testing",
        ],
    ),
    ("bg", &["types", "validate", "page", "protocol", "client"]),
    (
        "cli",
        &[
            "types", "batch", "space", "page", "protocol", "remote", "ingest", "client", "server",
        ],
    ),
    (
        "fuzz",
        &[
            "types", "batch", "join", "space", "validate", "journal", "cluster", "postgres",
            "protocol", "ingest", "server",
        ],
    ),
    ("xtask", &["protocol"]),
];

/// Libraries that only few crates may use, and those crates.
const LIBRARY_USERS: [(&str, &[&str]); 15] = [
    ("object_store", &["remote"]),
    ("hdfs-native", &["remote"]),
    ("arrow-", &["ingest"]),
    ("parquet", &["ingest"]),
    (
        "tokio",
        &[
            "remote", "postgres", "cluster", "server", "client", "bg", "cli",
        ],
    ),
    ("tokio-postgres", &["postgres", "bg"]),
    ("pgwire-replication", &["postgres"]),
    ("axum", &["server", "bg"]),
    ("reqwest", &["remote"]),
    ("ureq", &["client"]),
    ("clap", &["cli", "bench", "bg"]),
    ("rand", &[]),
    ("memmap2", &["batch"]),
    ("blake3", &["batch"]),
    ("ring", &["batch", "cli"]),
];

/// Crates without clocks, sockets and randomness. Clippy enforces this, configured by a file in each.
const SANS_IO: [&str; 8] = [
    "types", "table", "batch", "join", "space", "validate", "sim", "cluster",
];

pub fn check(tree: &Tree, findings: &mut Findings) -> Result<(), String> {
    for core in SANS_IO {
        let path = format!("crates/{core}/clippy.toml");
        let rules = tree::text(&path).ok().flatten().unwrap_or_default();
        for method in [
            "std::time::Instant::now",
            "std::time::SystemTime::now",
            "std::net::TcpStream::connect",
        ] {
            if !rules.contains(method) {
                findings.add(
                    &path,
                    0,
                    format_args!("must disallow {method}: {core} is sans-IO"),
                );
            }
        }
    }
    for path in tree
        .paths
        .iter()
        .filter(|path| path.ends_with("/Cargo.toml") && !path.starts_with("bench/peers"))
    {
        let Some(folder) = Path::new(path)
            .parent()
            .and_then(Path::file_name)
            .and_then(|name| name.to_str())
        else {
            continue;
        };
        let manifest = tree::text(path)?.unwrap_or_default();
        let manifest: toml::Table =
            toml::from_str(&manifest).map_err(|error| format!("{path}: {error}"))?;

        let name = manifest
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(toml::Value::as_str);
        let expected = if path.starts_with("crates/") {
            format!("larder-{folder}")
        } else {
            folder.to_owned()
        };
        if path.starts_with("crates/") && name != Some(expected.as_str()) {
            findings.add(
                path,
                0,
                format_args!("the crate is named {name:?}; its folder makes it {expected}"),
            );
        }
        check_dependencies(path, folder, &manifest, findings);
    }
    Ok(())
}

fn check_dependencies(path: &str, folder: &str, manifest: &toml::Table, findings: &mut Findings) {
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == folder) else {
        findings.add(
            path,
            0,
            "the crate has no row in the table MAY_USE of xtask/src/tidy/crates.rs; add it there",
        );
        return;
    };
    let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return;
    };
    for dependency in dependencies.keys() {
        if let Some(ours) = dependency.strip_prefix("larder-")
            && !allowed.contains(&ours)
        {
            findings.add(
                path,
                0,
                format_args!("{folder} must not depend on {ours}; it may use {allowed:?}"),
            );
        }
        for (library, users) in LIBRARY_USERS {
            let matches = dependency == library
                || (library.ends_with('-') && dependency.starts_with(library));
            if matches && !users.contains(&folder) {
                findings.add(
                    path,
                    0,
                    format_args!("{folder} must not link {dependency}; only {users:?} may"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(folder: &str, dependencies: &str) -> Vec<String> {
        let manifest = toml::from_str(&format!("[dependencies]\n{dependencies}")).expect("TOML");
        let mut findings = Findings::default();
        check_dependencies("Cargo.toml", folder, &manifest, &mut findings);
        findings.0
    }

    #[test]
    fn dependencies_point_one_way() {
        assert_eq!(
            findings_of("batch", "larder-types.workspace = true"),
            [""; 0]
        );
        assert_eq!(
            findings_of("batch", "larder-protocol.workspace = true").len(),
            1
        );
        assert_eq!(
            findings_of("types", "larder-batch.workspace = true").len(),
            1
        );
        assert_eq!(
            findings_of("newcomer", "").len(),
            1,
            "a crate without a row is reported"
        );
    }

    #[test]
    fn libraries_are_used_only_by_their_crates() {
        assert_eq!(
            findings_of("remote", "object_store.workspace = true"),
            [""; 0]
        );
        assert_eq!(
            findings_of("server", "object_store.workspace = true").len(),
            1
        );
        assert_eq!(
            findings_of("batch", "arrow-array.workspace = true").len(),
            1
        );
    }
}
