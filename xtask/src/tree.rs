//! The files of the project: those that git tracks, or would add.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder in the workspace")
}

/// All files, as sorted paths relative to the root.
pub struct Tree {
    pub paths: Vec<String>,
}

impl Tree {
    pub fn read() -> Result<Tree, String> {
        files(root()).map(|paths| Tree { paths })
    }

    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a str> {
        let ends = format!(".{extension}");
        self.paths
            .iter()
            .map(String::as_str)
            .filter(move |path| path.ends_with(&ends))
    }

    /// Returns whether there is a file or folder at this path.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.paths.iter().any(|file| {
            file.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Returns whether the path of some file ends with these components: `segment/writer.rs` for
    /// `crates/batch/src/segment/writer.rs`.
    pub fn has_ending(&self, ending: &str) -> bool {
        self.paths.iter().any(|file| {
            file.strip_suffix(ending)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    }
}

/// Returns the text of a file of the project, or `None` if it is not text.
pub fn text(path: &str) -> Result<Option<String>, String> {
    let bytes =
        fs::read(root().join(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
    Ok(String::from_utf8(bytes).ok())
}

/// Returns the files below `root` that git tracks or would add, in order. Ignored files are excluded, because they may
/// be anything, such as links out of the project. Links to folders and deleted files are excluded too.
fn files(root: &Path) -> Result<Vec<String>, String> {
    let listed = git(
        root,
        &[
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
    );
    let names = listed.map_err(|why| {
        format!(
            "git cannot list the files of {}: {why}; run this in a git clone",
            root.display()
        )
    })?;
    let is_file = |name: &&str| fs::metadata(root.join(name)).is_ok_and(|found| found.is_file());
    let mut paths: Vec<String> = names
        .split('\0')
        .filter(is_file)
        .map(str::to_owned)
        .collect();
    paths.sort();
    // During a merge, git lists a conflicting file once for each side.
    paths.dedup();
    Ok(paths)
}

/// Runs git in a folder and returns its output.
pub fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut git = Command::new("git");
    // The variables that git sets for its hooks refer to another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    let output = git.arg("-C").arg(folder).args(arguments).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_that_git_tracks_or_would_add() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let made = Command::new("git")
            .args(["init", "--quiet"])
            .arg(root)
            .env_remove("GIT_DIR")
            .status();
        assert!(made.expect("git").success());
        let write = |name: &str, text: &str| fs::write(root.join(name), text).expect("written");
        write(".gitignore", "/.venv\n*.tmp\n");
        write("new.rs", "");
        write("ignored.tmp", "");
        fs::create_dir(root.join("inner")).expect("a folder");
        write("inner/page.md", "");
        // Python's tools, kept elsewhere; and a link that git would add.
        for link in [".venv", "linked"] {
            std::os::unix::fs::symlink(root.join("inner"), root.join(link)).expect("a link");
        }
        let found = files(root).expect("listed");
        assert_eq!(found, [".gitignore", "inner/page.md", "new.rs"]);
    }
}
