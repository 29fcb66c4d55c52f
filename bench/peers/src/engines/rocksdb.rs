//! RocksDB by the C interface of Debian's librocksdb: one SST file of sorted rows, ingested.
//!
//! Cuckoo tables cannot be ingested ("External file version not found"): their rows are put in order without a
//! log, flushed and compacted.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr::null_mut;

use crate::data::{self, DataSet};
use crate::engine::{Engine, Reader, Result, touch};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Block,
    Cuckoo,
}

pub struct RocksDb {
    pub table: Table,
}

type Ptr = *mut c_void;

unsafe extern "C" {
    fn rocksdb_options_create() -> Ptr;
    fn rocksdb_options_set_create_if_missing(options: Ptr, on: c_uchar);
    fn rocksdb_options_set_compression(options: Ptr, kind: c_int);
    fn rocksdb_options_set_allow_mmap_reads(options: Ptr, on: c_uchar);
    fn rocksdb_options_set_max_open_files(options: Ptr, count: c_int);
    fn rocksdb_options_set_disable_auto_compactions(options: Ptr, on: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: Ptr, table: Ptr);
    fn rocksdb_options_set_cuckoo_table_factory(options: Ptr, table: Ptr);
    fn rocksdb_block_based_options_create() -> Ptr;
    fn rocksdb_block_based_options_set_filter_policy(table: Ptr, policy: Ptr);
    fn rocksdb_block_based_options_set_data_block_index_type(table: Ptr, kind: c_int);
    fn rocksdb_block_based_options_set_format_version(table: Ptr, version: c_int);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> Ptr;
    fn rocksdb_cuckoo_options_create() -> Ptr;
    fn rocksdb_envoptions_create() -> Ptr;
    fn rocksdb_sstfilewriter_create(env: Ptr, options: Ptr) -> Ptr;
    fn rocksdb_sstfilewriter_open(writer: Ptr, name: *const c_char, error: *mut *mut c_char);
    fn rocksdb_sstfilewriter_put(
        writer: Ptr,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_sstfilewriter_finish(writer: Ptr, error: *mut *mut c_char);
    fn rocksdb_sstfilewriter_destroy(writer: Ptr);
    fn rocksdb_ingestexternalfileoptions_create() -> Ptr;
    fn rocksdb_ingestexternalfileoptions_set_move_files(options: Ptr, on: c_uchar);
    fn rocksdb_ingest_external_file(
        db: Ptr,
        files: *const *const c_char,
        count: usize,
        options: Ptr,
        error: *mut *mut c_char,
    );
    fn rocksdb_open(options: Ptr, name: *const c_char, error: *mut *mut c_char) -> Ptr;
    fn rocksdb_open_for_read_only(
        options: Ptr,
        name: *const c_char,
        error_if_wal: c_uchar,
        error: *mut *mut c_char,
    ) -> Ptr;
    fn rocksdb_close(db: Ptr);
    fn rocksdb_options_set_write_buffer_size(options: Ptr, bytes: usize);
    fn rocksdb_options_set_target_file_size_base(options: Ptr, bytes: u64);
    fn rocksdb_writeoptions_create() -> Ptr;
    fn rocksdb_writeoptions_disable_WAL(options: Ptr, on: c_int);
    fn rocksdb_put(
        db: Ptr,
        options: Ptr,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_flushoptions_create() -> Ptr;
    fn rocksdb_flush(db: Ptr, options: Ptr, error: *mut *mut c_char);
    fn rocksdb_compact_range(
        db: Ptr,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );
    fn rocksdb_readoptions_create() -> Ptr;
    fn rocksdb_readoptions_set_verify_checksums(options: Ptr, on: c_uchar);
    fn rocksdb_get_pinned(
        db: Ptr,
        options: Ptr,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> Ptr;
    fn rocksdb_pinnableslice_value(slice: Ptr, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Ptr);
}

/// The options of an engine; they live until the process ends.
fn options(table: Table) -> Ptr {
    // SAFETY: each call takes what the library just made; factories take over the tables given to them.
    unsafe {
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_compression(options, 0);
        rocksdb_options_set_allow_mmap_reads(options, 1);
        rocksdb_options_set_max_open_files(options, -1);
        rocksdb_options_set_disable_auto_compactions(options, 1);
        match table {
            Table::Block => {
                let block = rocksdb_block_based_options_create();
                rocksdb_block_based_options_set_filter_policy(
                    block,
                    rocksdb_filterpolicy_create_bloom_full(10.0),
                );
                rocksdb_block_based_options_set_data_block_index_type(block, 1);
                rocksdb_block_based_options_set_format_version(block, 5);
                rocksdb_options_set_block_based_table_factory(options, block);
            }
            Table::Cuckoo => {
                rocksdb_options_set_cuckoo_table_factory(options, rocksdb_cuckoo_options_create())
            }
        }
        options
    }
}

/// Calls `call` with a place for an error, and returns the error if one was put there.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = null_mut();
    let result = call(&mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: the library puts a text that ends in 0 there.
    let text = unsafe { CStr::from_ptr(error) }
        .to_string_lossy()
        .into_owned();
    Err(format!("RocksDB: {text}").into())
}

fn text(path: &Path) -> Result<CString> {
    Ok(CString::new(
        path.to_str().ok_or("a path that is no text")?,
    )?)
}

/// Puts sorted rows without a log, then flushes and compacts them to one file.
fn put_all(options: Ptr, out: &Path, bytes: &[u8]) -> Result<()> {
    let database = text(&out.join("db"))?;
    // SAFETY: pointers come from the library, texts end in 0, slices have the lengths given.
    unsafe {
        rocksdb_options_set_write_buffer_size(options, 8 << 30);
        rocksdb_options_set_target_file_size_base(options, 8 << 30);
        let db = checked(|error| rocksdb_open(options, database.as_ptr(), error))?;
        let write_options = rocksdb_writeoptions_create();
        rocksdb_writeoptions_disable_WAL(write_options, 1);
        for row in data::sorted_rows(bytes) {
            let (key, value) = (row.key, row.value);
            checked(|error| {
                rocksdb_put(
                    db,
                    write_options,
                    key.as_ptr().cast(),
                    key.len(),
                    value.as_ptr().cast(),
                    value.len(),
                    error,
                )
            })?;
        }
        checked(|error| rocksdb_flush(db, rocksdb_flushoptions_create(), error))?;
        rocksdb_compact_range(db, std::ptr::null(), 0, std::ptr::null(), 0);
        rocksdb_close(db);
    }
    Ok(())
}

impl Engine for RocksDb {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let options = options(self.table);
        let bytes = data::read_rows(&data.csv)?;
        if self.table == Table::Cuckoo {
            return put_all(options, out, &bytes);
        }
        let file = text(&out.join("sorted.sst"))?;
        let database = text(&out.join("db"))?;
        // SAFETY: pointers come from the library and are destroyed once, texts end in 0, slices have the lengths given.
        unsafe {
            let writer = rocksdb_sstfilewriter_create(rocksdb_envoptions_create(), options);
            checked(|error| rocksdb_sstfilewriter_open(writer, file.as_ptr(), error))?;
            for row in data::sorted_rows(&bytes) {
                checked(|error| {
                    let (key, value) = (row.key, row.value);
                    rocksdb_sstfilewriter_put(
                        writer,
                        key.as_ptr().cast(),
                        key.len(),
                        value.as_ptr().cast(),
                        value.len(),
                        error,
                    );
                })?;
            }
            checked(|error| rocksdb_sstfilewriter_finish(writer, error))?;
            rocksdb_sstfilewriter_destroy(writer);
            let db = checked(|error| rocksdb_open(options, database.as_ptr(), error))?;
            let ingest = rocksdb_ingestexternalfileoptions_create();
            rocksdb_ingestexternalfileoptions_set_move_files(ingest, 1);
            checked(|error| rocksdb_ingest_external_file(db, &file.as_ptr(), 1, ingest, error))?;
            rocksdb_close(db);
        }
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        let database = text(&out.join("db"))?;
        // SAFETY: as in `build`.
        unsafe {
            let db = checked(|error| {
                rocksdb_open_for_read_only(options(self.table), database.as_ptr(), 0, error)
            })?;
            let read_options = rocksdb_readoptions_create();
            rocksdb_readoptions_set_verify_checksums(read_options, 0);
            Ok(Box::new(RocksDbReader { db, read_options }))
        }
    }
}

struct RocksDbReader {
    db: Ptr,
    read_options: Ptr,
}

impl Reader for RocksDbReader {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        let mut error = null_mut();
        // SAFETY: the database is open; a value found is read before its slice is destroyed.
        unsafe {
            let slice = rocksdb_get_pinned(
                self.db,
                self.read_options,
                key.as_ptr().cast(),
                key.len(),
                &mut error,
            );
            if slice.is_null() {
                return None;
            }
            let mut len = 0;
            let value = rocksdb_pinnableslice_value(slice, &mut len);
            let sum =
                (!value.is_null()).then(|| touch(std::slice::from_raw_parts(value.cast(), len)));
            rocksdb_pinnableslice_destroy(slice);
            sum
        }
    }
}
