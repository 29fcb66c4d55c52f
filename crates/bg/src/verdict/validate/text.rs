//! Reads text logs of the original BG: the files `read*.txt` and `update*.txt` of a folder.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use larder_validate::bg_text::{Kind, Line, parse};
use larder_validate::record::Record;
use larder_validate::report::Names;

use super::Records;
use super::files::{files, path_error};

/// Typical length of a line in bytes.
const LINE_SIZE: u64 = 64;

pub struct TextFolder {
    paths: Vec<PathBuf>,
    without_value: Cell<u64>,
    of_graph: Cell<u64>,
}

impl TextFolder {
    /// Lists the logs of a folder.
    ///
    /// # Errors
    ///
    /// The folder cannot be read or has no logs.
    pub fn open(folder: &Path) -> Result<TextFolder, String> {
        let paths = files(folder, |name| {
            (name.starts_with("read") || name.starts_with("update")) && name.ends_with(".txt")
        })?;
        if paths.is_empty() {
            Err(format!(
                "{}: contains no file read*.txt or update*.txt",
                folder.display()
            ))
        } else {
            Ok(TextFolder {
                paths,
                without_value: Cell::new(0),
                of_graph: Cell::new(0),
            })
        }
    }

    /// Returns the numbers of reads that the last pass ignored: those logged without a value, and those of the graph.
    pub fn ignored_reads(&self) -> (u64, u64) {
        (self.without_value.get(), self.of_graph.get())
    }
}

impl Records for TextFolder {
    fn expected(&self) -> Result<u64, String> {
        let sizes = self.paths.iter().map(|path| {
            let size = fs::metadata(path)
                .map_err(|why| path_error(path, &why))?
                .len();
            Ok(size / LINE_SIZE)
        });
        sizes.sum()
    }

    fn each(&self, take: &mut dyn FnMut(Record) -> Result<(), String>) -> Result<(), String> {
        self.without_value.set(0);
        self.of_graph.set(0);
        for path in &self.paths {
            let file = File::open(path).map_err(|why| path_error(path, &why))?;
            let lines = BufReader::with_capacity(1 << 20, file).lines();
            for (number, line) in lines.enumerate() {
                let line = line.map_err(|why| path_error(path, &why))?;
                if line.trim().is_empty() {
                    continue;
                }
                match parse(&line) {
                    Ok(Line::Call(record)) => take(record)?,
                    Ok(Line::NoValue) => self.without_value.set(self.without_value.get() + 1),
                    Ok(Line::Graph) => self.of_graph.set(self.of_graph.get() + 1),
                    Err(why) => {
                        let line = number + 1;
                        return Err(path_error(path, &format_args!("line {line}: {why}")));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Formats items under their names in the logs.
pub struct TextNames;

impl Names for TextNames {
    fn item(&self, item: u64) -> String {
        let id = item & ((1 << 56) - 1);
        match Kind::from_item(item) {
            Some(kind) => format!("{} of {id}", kind.name()),
            None => format!("item {item}"),
        }
    }

    fn action(&self, _: u8) -> String {
        "an action".to_owned()
    }

    fn origin(&self) -> u64 {
        // The parser maps zero to this value.
        1 << 63
    }
}
