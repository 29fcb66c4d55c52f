//! larder itself: the same calls as `larder build` makes.

use std::fs::File;
use std::path::Path;

use larder_batch::version::files::StreamingFile;
use larder_batch::{BuildOptions, Builder, RowWriter, Value, Version};
use larder_ingest::{InputOptions, RowSink, SinkError, ValueSpec, ingest};
use larder_types::ByteSize;

use crate::data::DataSet;
use crate::engine::{Engine, Reader, Result, touch};

pub struct Larder {
    pub memory_bytes: u64,
}

struct Sink<'a>(RowWriter<'a>);

impl RowSink for Sink<'_> {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> std::result::Result<(), SinkError> {
        Ok(self.0.push(seq, key, value)?)
    }

    fn finish(self: Box<Self>) -> std::result::Result<(), SinkError> {
        Ok(self.0.close()?)
    }
}

impl Engine for Larder {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let threads = std::thread::available_parallelism()?.get();
        // The shares that `larder build --memory` gives to parsing and to sorting.
        let parsing = (self.memory_bytes / 4).min((64 << 20) * threads as u64);
        let input = InputOptions {
            inputs: vec![data.csv.display().to_string()],
            key: vec!["key".into()],
            value: ValueSpec::Column("value".into()),
            threads,
            memory: ByteSize(parsing),
            ..InputOptions::default()
        };
        let mut options = BuildOptions::new("bench".parse()?);
        options.memory = ByteSize(self.memory_bytes - parsing);
        options.threads = threads;
        let builder = Builder::new(options, out)?;
        ingest(&input, &|| Ok(Box::new(Sink(builder.writer()))), &|_| {})?;
        builder.finish(&|_| {})?;
        Ok(())
    }

    fn install(&self, out: &Path) -> Result<()> {
        // A server serves its own copy, written as a pull writes it.
        for entry in std::fs::read_dir(out)? {
            let path = entry?.path();
            let copy = path.with_extension("copy");
            let mut file = StreamingFile::for_serving(File::create_new(&copy)?, 0);
            std::io::copy(&mut File::open(&path)?, &mut file)?;
            file.finish(&copy)?;
            std::fs::rename(&copy, &path)?;
        }
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        // A reader lives as long as its process, so the version may as well.
        let version = Box::leak(Box::new(Version::open(out)?));
        Ok(Box::new(LarderReader {
            version,
            answers: Vec::new(),
        }))
    }
}

struct LarderReader {
    version: &'static Version,
    answers: Vec<std::result::Result<Option<Value<'static>>, larder_batch::Error>>,
}

impl Reader for LarderReader {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        self.version.get(key).ok()?.map(|value| touch(&value))
    }

    fn get_many(&mut self, keys: &[&[u8]]) -> Option<u64> {
        self.answers.clear();
        self.version.get_many(keys, &mut self.answers);
        let found = self.answers.iter().flatten().flatten();
        Some(found.fold(0, |sum, value| sum.wrapping_add(touch(value))))
    }

    fn on_warmed(&mut self) {
        // A server does this periodically. Lookups then detect that they need not wait for the disk.
        self.version.refresh_residency();
    }

    fn directory_bytes(&self) -> Option<u64> {
        Some(self.version.directory_bytes() as u64)
    }
}
