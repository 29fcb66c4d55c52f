//! The files of the project, as a person sees them: no build output, nothing hidden but `.ci` and `.cargo`.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder in the workspace")
}

/// Every file, with its path relative to the root, in order.
pub struct Tree {
    pub paths: Vec<String>,
}

impl Tree {
    pub fn read() -> Result<Tree, String> {
        let mut paths = Vec::new();
        walk(root(), &mut paths)
            .map_err(|error| format!("cannot list the files of {}: {error}", root().display()))?;
        paths.sort();
        Ok(Tree { paths })
    }

    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a str> {
        let ends = format!(".{extension}");
        self.paths
            .iter()
            .map(String::as_str)
            .filter(move |path| path.ends_with(&ends))
    }

    /// Whether a file or folder stands at this path.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.paths.iter().any(|file| {
            file.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Whether some file's path ends with these components: `segment/writer.rs` for
    /// `crates/batch/src/segment/writer.rs`.
    pub fn has_ending(&self, ending: &str) -> bool {
        self.paths.iter().any(|file| {
            file.strip_suffix(ending)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    }
}

/// The text of a file of the project; `None` where it is not text.
pub fn text(path: &str) -> Result<Option<String>, String> {
    let bytes =
        fs::read(root().join(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
    Ok(String::from_utf8(bytes).ok())
}

fn walk(folder: &Path, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path: PathBuf = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            let built = matches!(
                name.as_str(),
                "target" | "corpus" | "artifacts" | "node_modules" | "__pycache__"
            );
            let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
            if !built && !hidden {
                walk(&path, paths)?;
            }
        } else if !name.ends_with(".tmp") {
            let relative = path
                .strip_prefix(root())
                .expect("the walk began at the root");
            paths.push(relative.to_string_lossy().into_owned());
        }
    }
    Ok(())
}
