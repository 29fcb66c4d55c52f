//! Reads the trace files of a folder piece by piece.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use larder_validate::record::{Decoder, RECORD_SIZE, Record};

use super::Records;

/// All files of a folder whose names end in `.trace`.
pub struct TraceFolder {
    paths: Vec<PathBuf>,
}

impl TraceFolder {
    /// Lists the trace files of a folder.
    ///
    /// # Errors
    ///
    /// The folder cannot be read or has no traces.
    pub fn open(folder: &Path) -> Result<TraceFolder, String> {
        let paths = files(folder, |name| name.ends_with(".trace"))?;
        if paths.is_empty() {
            Err(format!("{}: contains no .trace file", folder.display()))
        } else {
            Ok(TraceFolder { paths })
        }
    }
}

impl Records for TraceFolder {
    fn expected(&self) -> Result<u64, String> {
        let sizes = self.paths.iter().map(|path| {
            let size = fs::metadata(path)
                .map_err(|why| path_error(path, &why))?
                .len();
            Ok(size / RECORD_SIZE as u64)
        });
        sizes.sum()
    }

    fn each(&self, take: &mut dyn FnMut(Record) -> Result<(), String>) -> Result<(), String> {
        self.paths.iter().try_for_each(|path| each(path, take))
    }
}

/// Passes the records of one file to `take`.
pub(super) fn each(
    path: &Path,
    take: &mut dyn FnMut(Record) -> Result<(), String>,
) -> Result<(), String> {
    let file = File::open(path).map_err(|why| path_error(path, &why))?;
    let size = file.metadata().map_err(|why| path_error(path, &why))?.len();
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut piece = [0; RECORD_SIZE];
    let mut next = |piece: &mut [u8; RECORD_SIZE]| {
        let read = file.read_exact(piece);
        read.map_err(|why| path_error(path, &why))
    };
    if size < RECORD_SIZE as u64 {
        return Err(path_error(
            path,
            &format_args!("a trace of {size} bytes is cut short"),
        ));
    }
    next(&mut piece)?;
    let mut decoder = Decoder::start(size, &piece).map_err(|why| path_error(path, &why))?;
    for _ in 0..decoder.expected() {
        next(&mut piece)?;
        take(
            decoder
                .record(&piece)
                .map_err(|why| path_error(path, &why))?,
        )?;
    }
    next(&mut piece)?;
    decoder.finish(&piece).map_err(|why| path_error(path, &why))
}

/// Returns the files of a folder whose names satisfy `matches_name`, sorted.
pub(super) fn files(
    folder: &Path,
    matches_name: impl Fn(&str) -> bool,
) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for file in fs::read_dir(folder).map_err(|why| path_error(folder, &why))? {
        let path = file.map_err(|why| path_error(folder, &why))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(&matches_name) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

pub(super) fn path_error(path: &Path, why: &dyn Display) -> String {
    format!("{}: {why}", path.display())
}
