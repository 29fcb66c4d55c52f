//! Arrow IPC files, read through their footer.
//!
//! The footer has the schema and the position of every message. Other bytes between messages, or before the first,
//! have no meaning: some writers add padding, and some a copy of the schema without a length.

use std::sync::Arc;

use arrow_ipc::{Block, Footer, root_as_footer};

use super::align::with_aligned_counts;
use super::decode::{Decoder, message_of, prefix_bytes, unreadable};
use super::{FILE_MAGIC, METADATA_BYTES_MAX};
use crate::error::{Fault, decode_fault};
use crate::parquet::FileReader;
use crate::plan::FolderColumns;
use crate::rows::Rows;
use crate::run::Task;

pub(super) struct FileTask {
    file: FileReader,
    folder: Arc<FolderColumns>,
}

/// The footer's length and the magic bytes after it.
const TAIL_BYTES: u64 = 4 + FILE_MAGIC.len() as u64;

impl FileTask {
    pub fn new(file: FileReader, folder: Arc<FolderColumns>) -> FileTask {
        FileTask { file, folder }
    }

    fn footer(&self) -> Result<Vec<u8>, Fault> {
        let cut_off =
            || Fault::file("it ends before its footer; the file is cut off, copy it again");
        let tail_at = self
            .file
            .size()
            .checked_sub(TAIL_BYTES)
            .ok_or_else(cut_off)?;
        let tail = self.file.read_at(tail_at, TAIL_BYTES as usize);
        let tail = tail.map_err(unreadable)?;
        let length = tail.strip_suffix(FILE_MAGIC).ok_or_else(cut_off)?;
        let length = u32::from_le_bytes(length.try_into().expect("it is 4 bytes"));
        let begin = tail_at.checked_sub(u64::from(length));
        let begin = begin.filter(|_| u64::from(length) <= METADATA_BYTES_MAX);
        let begin = begin.ok_or_else(|| {
            Fault::file("its footer has an impossible length; the file is damaged, write it again")
        })?;
        let footer = self.file.read_at(begin, length as usize);
        self.file.count(u64::from(length) + TAIL_BYTES);
        footer.map_err(unreadable)
    }

    fn message(
        &self,
        block: &Block,
        decoder: &mut Decoder,
        rows: &mut Rows<'_>,
    ) -> Result<(), Fault> {
        let outside = || {
            Fault::data(
                decoder.at(),
                "a message is outside the file; the file is damaged, write it again",
            )
        };
        let begin = u64::try_from(block.offset()).map_err(|_| outside())?;
        let head_bytes = u64::try_from(block.metaDataLength()).map_err(|_| outside())?;
        let body_bytes = u64::try_from(block.bodyLength()).map_err(|_| outside())?;
        let body_at = begin.checked_add(head_bytes);
        let body_at = body_at.filter(|_| head_bytes <= METADATA_BYTES_MAX);
        let body_at = body_at.ok_or_else(outside)?;
        body_at
            .checked_add(body_bytes)
            .filter(|end| *end <= self.file.size())
            .ok_or_else(outside)?;
        let head = self.file.read_at(begin, head_bytes as usize);
        let head = head.map_err(unreadable)?;
        self.file.count(head_bytes + body_bytes);
        let prefix = prefix_bytes(&head);
        let head = with_aligned_counts(head, prefix);
        let message = message_of(&head)?;
        if decoder.replaces_dictionary(&message) {
            return Err(Fault::data(
                decoder.at(),
                "it replaces a dictionary, which an Arrow file must not; write it again, as a stream",
            ));
        }
        decoder.message(
            &message,
            body_bytes,
            &mut self.file.read_from(body_at),
            rows,
        )
    }
}

impl Task for FileTask {
    fn run(self: Box<Self>, file: u64, _data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let footer = self.footer()?;
        let footer: Footer<'_> = root_as_footer(&footer).map_err(|e| decode_fault(&e))?;
        let mut decoder = Decoder::new(file, Arc::clone(&self.folder));
        if let Some(schema) = footer.schema() {
            decoder.schema(schema, rows)?;
        }
        let blocks = footer.dictionaries().into_iter().flatten();
        for block in blocks.chain(footer.recordBatches().into_iter().flatten()) {
            self.message(block, &mut decoder, rows)?;
        }
        decoder.finish()
    }
}
