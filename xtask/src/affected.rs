//! Tests the crates that a change affects: those with changed files, and all that depend on them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ci, tidy, tree};

/// Paths outside the crates that tests read, and the crates whose tests read them.
const READ_BY_TESTS: [(&str, &[&str]); 4] = [
    (
        "docs/",
        &["larder-server", "larder-cli", "larder-bg", "xtask"],
    ),
    (
        "testdata/",
        &["larder-server", "larder-cli", "larder-batch"],
    ),
    ("examples/", &["larder-cli"]),
    ("README.md", &["larder-cli", "larder-bg"]),
];

/// Files that affect all crates.
const SHARED: [&str; 3] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];

/// Checks and tests the crates affected by the changes since `base`, committed or not. The default base is the commit
/// at which the branch left `origin/main`.
pub fn run(base: Option<&str>) -> Result<(), String> {
    let base = base.map_or_else(default_base, |base| Ok(base.to_owned()))?;
    let mut changed = git(&["diff", "--name-only", &base])?;
    changed.extend(git(&["ls-files", "--others", "--exclude-standard"])?);
    let affected = affected(&Packages::read()?, &changed);
    tidy::run()?;
    if affected.is_empty() {
        println!("test: the changes since {base} affect no crate");
        return Ok(());
    }
    let names: Vec<&str> = affected.iter().map(String::as_str).collect();
    println!("test: affected since {base}: {}", names.join(", "));
    let packages: String = names.iter().map(|name| format!(" -p {name}")).collect();
    ci::step(
        "lints",
        &format!("cargo clippy{packages} --all-targets --locked --quiet -- --deny warnings"),
    )?;
    ci::step(
        "tests",
        &format!("cargo test{packages} --locked --no-fail-fast"),
    )
}

fn default_base() -> Result<String, String> {
    let fork = git(&["merge-base", "HEAD", "origin/main"]);
    let base = fork.ok().and_then(|lines| lines.into_iter().next());
    Ok(base.unwrap_or_else(|| "HEAD".to_owned()))
}

/// Runs git at the root of the workspace and returns the lines of its output.
fn git(arguments: &[&str]) -> Result<Vec<String>, String> {
    let output = tree::git(tree::root(), arguments)
        .map_err(|why| format!("`git {}` failed: {why}", arguments.join(" ")))?;
    Ok(output.lines().map(str::to_owned).collect())
}

/// The packages of the workspace.
#[derive(Default)]
struct Packages {
    /// Their folders, with a slash at the end, and their names.
    folders: Vec<(String, String)>,
    /// For each package, the packages that depend on it.
    dependants: BTreeMap<String, Vec<String>>,
}

impl Packages {
    fn read() -> Result<Packages, String> {
        let mut packages = Packages::default();
        for path in tree::Tree::read()?.paths {
            let Some(folder) = path.strip_suffix("Cargo.toml") else {
                continue;
            };
            let text = tree::text(&path)?.unwrap_or_default();
            packages
                .add(folder, &text)
                .map_err(|why| format!("{path}: {why}"))?;
        }
        Ok(packages)
    }

    /// Adds the package whose `Cargo.toml` has this text. A file without a package, like that of the workspace, is
    /// ignored.
    fn add(&mut self, folder: &str, text: &str) -> Result<(), String> {
        let manifest: toml::Table = text.parse().map_err(|error| format!("{error}"))?;
        let Some(name) = manifest
            .get("package")
            .and_then(|package| package.get("name")?.as_str())
        else {
            return Ok(());
        };
        self.folders.push((folder.to_owned(), name.to_owned()));
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            for dependency in table.keys() {
                let dependants = self.dependants.entry(dependency.clone()).or_default();
                dependants.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Returns the name of the package that contains a path: that of the innermost folder.
    fn containing(&self, path: &str) -> Option<&str> {
        let containing = self
            .folders
            .iter()
            .filter(|(folder, _)| !folder.is_empty() && path.starts_with(folder.as_str()));
        let innermost = containing.max_by_key(|(folder, _)| folder.len())?;
        Some(&innermost.1)
    }
}

/// Returns the names of the packages that a change of these paths affects.
fn affected(packages: &Packages, changed: &[String]) -> BTreeSet<String> {
    let mut affected = BTreeSet::new();
    let mut pending: Vec<String> = Vec::new();
    for path in changed {
        if SHARED.contains(&path.as_str()) {
            return packages
                .folders
                .iter()
                .map(|(_, name)| name.clone())
                .collect();
        }
        pending.extend(packages.containing(path).map(str::to_owned));
        for (prefix, readers) in READ_BY_TESTS {
            if path.starts_with(prefix) {
                affected.extend(readers.iter().map(|name| (*name).to_owned()));
            }
        }
    }
    let mut seen = BTreeSet::new();
    while let Some(name) = pending.pop() {
        if seen.insert(name.clone()) {
            pending.extend(
                packages
                    .dependants
                    .get(&name)
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
    }
    affected.append(&mut seen);
    affected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages() -> Packages {
        let mut packages = Packages::default();
        for (folder, text) in [
            ("", "[workspace]\nmembers = []"),
            ("crates/a/", "[package]\nname = \"a\""),
            (
                "crates/b/",
                "[package]\nname = \"b\"\n[dependencies]\na.workspace = true",
            ),
            (
                "crates/c/",
                "[package]\nname = \"c\"\n[dev-dependencies]\nb = { path = \"../b\" }",
            ),
            ("crates/d/", "[package]\nname = \"d\""),
        ] {
            packages.add(folder, text).expect("a manifest");
        }
        packages
    }

    fn of(changed: &[&str]) -> Vec<String> {
        let changed: Vec<String> = changed.iter().map(|path| (*path).to_owned()).collect();
        affected(&packages(), &changed).into_iter().collect()
    }

    #[test]
    fn a_change_affects_its_crate_and_all_that_depend_on_it() {
        assert_eq!(of(&["crates/a/src/lib.rs"]), ["a", "b", "c"]);
        assert_eq!(of(&["crates/b/tests/it/main.rs"]), ["b", "c"]);
        assert_eq!(
            of(&["crates/d/src/lib.rs", "crates/c/src/lib.rs"]),
            ["c", "d"]
        );
        assert_eq!(of(&["LICENSE"]), [""; 0]);
    }

    #[test]
    fn a_change_of_the_lock_file_affects_all_crates() {
        assert_eq!(
            of(&["crates/d/src/lib.rs", "Cargo.lock"]),
            ["a", "b", "c", "d"]
        );
    }

    #[test]
    fn a_change_of_a_page_affects_the_crates_whose_tests_read_it() {
        assert_eq!(of(&["README.md"]), ["larder-bg", "larder-cli"]);
    }
}
