//! Helpers that run an ingest and return its rows.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use larder_ingest::{Error, InputOptions, RowSink, SinkError, Summary, ValueSpec, ingest};

pub type Row = (u64, Vec<u8>, Vec<u8>);

struct Collect {
    own: Vec<Row>,
    all: Arc<Mutex<Vec<Row>>>,
}

impl RowSink for Collect {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        self.own.push((seq, key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), SinkError> {
        self.all.lock().unwrap().append(&mut self.own);
        Ok(())
    }
}

/// Returns all rows by their sequence numbers.
pub fn rows_of(options: &InputOptions) -> Result<(Vec<Row>, Summary), Error> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let make = || {
        Ok(Box::new(Collect {
            own: Vec::new(),
            all: Arc::clone(&all),
        }) as Box<dyn RowSink>)
    };
    let summary = ingest(options, &make, &|_| {})?;
    let mut rows = std::mem::take(&mut *all.lock().unwrap());
    rows.sort();
    assert!(
        rows.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "sequence numbers are unique"
    );
    assert_eq!(rows.len() as u64, summary.rows);
    Ok((rows, summary))
}

/// Returns `key=value` per row, as text with replacement characters.
pub fn texts(options: &InputOptions) -> Result<Vec<String>, String> {
    let (rows, _) = rows_of(options).map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(rows
        .iter()
        .map(|(_, key, value)| format!("{}={}", text(key), text(value)))
        .collect())
}

pub fn options(path: impl AsRef<Path>, key: &str, value: ValueSpec) -> InputOptions {
    InputOptions {
        inputs: vec![path.as_ref().to_str().unwrap().to_owned()],
        key: key.split(',').map(str::to_owned).collect(),
        value,
        threads: 2,
        ..InputOptions::default()
    }
}

pub fn column(name: &str) -> ValueSpec {
    ValueSpec::Column(name.to_owned())
}

/// Returns a real data file; `None`, with a message, if it is absent.
pub fn real_data(name: &str) -> Option<PathBuf> {
    larder_testing::external_data(&format!("ingest/{name}"))
}

/// Returns the files of a tar archive that is packed with zstd: names and contents.
pub fn untar(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut tar = Vec::new();
    zstd::Decoder::new(std::fs::File::open(path).unwrap())
        .unwrap()
        .read_to_end(&mut tar)
        .unwrap();
    let (mut files, mut at) = (Vec::new(), 0);
    while at + 512 <= tar.len() && tar[at] != 0 {
        let header = &tar[at..at + 512];
        let field = |from: usize, to: usize| {
            let text = header[from..to].split(|byte| *byte == 0).next().unwrap();
            String::from_utf8_lossy(text).trim().to_owned()
        };
        let size = usize::from_str_radix(&field(124, 136), 8).unwrap();
        if matches!(header[156], b'0' | 0) {
            files.push((field(0, 100), tar[at + 512..at + 512 + size].to_vec()));
        }
        at += 512 + size.div_ceil(512) * 512;
    }
    files
}
