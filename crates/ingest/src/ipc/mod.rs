//! Arrow IPC.
//!
//! A stream is read message by message (here), a file through its footer (`file`), since only the footer has the
//! positions of a file's messages. Both parse the framing themselves and leave decoding to the Arrow crate
//! (`decode`), so that sizes are checked before memory is allocated.

mod align;
mod decode;
mod file;

use std::io::Read;
use std::sync::Arc;

use decode::{Decoder, message_of, prefix_bytes, unreadable};
use file::FileTask;

use crate::error::Fault;
use crate::parquet::FileReader;
use crate::plan::FolderColumns;
use crate::rows::Rows;
use crate::run::{Task, Tasks};

/// A file or a stream: one task.
pub(crate) struct IpcFile {
    task: Option<Box<dyn Task>>,
}

/// The magic bytes at the start and the end of a file; a stream has none.
const FILE_MAGIC: &[u8; 6] = b"ARROW1";
const END_MARKER: &[u8; 8] = b"\xff\xff\xff\xff\0\0\0\0";
/// Maximum size of a schema, message or footer.
const METADATA_BYTES_MAX: u64 = 64 << 20;

impl IpcFile {
    /// Returns whether the first bytes of Arrow data are those of a file. Otherwise it is a stream.
    pub fn is_file(head: &[u8]) -> bool {
        head.starts_with(FILE_MAGIC)
    }

    pub fn of_file(file: FileReader, folder: Arc<FolderColumns>) -> IpcFile {
        let task = FileTask::new(file, folder);
        IpcFile {
            task: Some(Box::new(task)),
        }
    }

    pub fn of_stream(reader: Box<dyn Read + Send>, folder: Arc<FolderColumns>) -> IpcFile {
        IpcFile {
            task: Some(Box::new(StreamTask { reader, folder })),
        }
    }
}

impl Tasks for IpcFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        Ok(self.task.take().map(|task| (0, task)))
    }
}

struct StreamTask {
    reader: Box<dyn Read + Send>,
    folder: Arc<FolderColumns>,
}

impl Task for StreamTask {
    fn run(mut self: Box<Self>, file: u64, _data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let mut decoder = Decoder::new(file, Arc::clone(&self.folder));
        while let Some(head) = self.head()? {
            let message = message_of(&head)?;
            let body_bytes = u64::try_from(message.bodyLength())
                .map_err(|_| Fault::file("a message has a negative length; the file is damaged"))?;
            decoder.message(&message, body_bytes, &mut self.reader, rows)?;
        }
        decoder.finish()
    }
}

impl StreamTask {
    /// Reads a message's prefix and metadata; `None` at the end.
    fn head(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let mut head = Vec::with_capacity(1024);
        let read = self.reader.by_ref().take(8).read_to_end(&mut head);
        read.map_err(unreadable)?;
        if head.is_empty() || head.starts_with(&[0; 4]) || head.starts_with(END_MARKER) {
            return Ok(None);
        }
        if head.len() < 8 {
            return Err(Fault::file(
                "it ends inside a message; the file is cut off, copy it again",
            ));
        }
        let prefix = prefix_bytes(&head);
        let length = head[prefix - 4..prefix].first_chunk().expect("4 bytes");
        let length = i32::from_le_bytes(*length);
        let length = u64::try_from(length)
            .ok()
            .filter(|n| (8..=METADATA_BYTES_MAX).contains(n));
        let length = length.ok_or_else(|| {
            Fault::file("a message has an impossible length; the file is damaged")
        })?;
        let missing = length - (8 - prefix as u64);
        let read = self.reader.by_ref().take(missing).read_to_end(&mut head);
        if (read.map_err(unreadable)? as u64) < missing {
            return Err(Fault::file(
                "it ends inside a message; the file is cut off, copy it again",
            ));
        }
        Ok(Some(align::with_aligned_counts(head, prefix)))
    }
}
