//! cdb: Debian's tinycdb, by its C interface.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;

use crate::data::{self, DataSet};
use crate::engine::{Engine, Reader, Result, touch};
use crate::engines::sync;

/// `struct cdb` of cdb.h 0.78.
#[repr(C)]
struct CdbRead {
    fd: c_int,
    file_bytes: c_uint,
    data_end: c_uint,
    memory: *const u8,
    value_at: c_uint,
    value_len: c_uint,
    key_at: c_uint,
    key_len: c_uint,
}

/// `struct cdb_make` of cdb.h 0.78.
#[repr(C)]
struct CdbMake {
    fd: c_int,
    data_at: c_uint,
    record_count: c_uint,
    buffer: [u8; 4096],
    buffer_at: *mut u8,
    records: [*mut c_void; 256],
}

unsafe extern "C" {
    fn cdb_init(cdb: *mut CdbRead, fd: c_int) -> c_int;
    fn cdb_free(cdb: *mut CdbRead);
    fn cdb_find(cdb: *mut CdbRead, key: *const c_void, key_len: c_uint) -> c_int;
    fn cdb_get(cdb: *const CdbRead, len: c_uint, at: c_uint) -> *const c_void;
    fn cdb_make_start(make: *mut CdbMake, fd: c_int) -> c_int;
    fn cdb_make_add(
        make: *mut CdbMake,
        key: *const c_void,
        key_len: c_uint,
        value: *const c_void,
        value_len: c_uint,
    ) -> c_int;
    fn cdb_make_finish(make: *mut CdbMake) -> c_int;
}

pub struct Cdb;

impl Engine for Cdb {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let path = out.join("data.cdb");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // SAFETY: all-zero bytes are valid for this plain C struct, and `cdb_make_start` sets it up.
        let mut make: Box<CdbMake> = Box::new(unsafe { std::mem::zeroed() });
        let mut failed = false;
        // SAFETY: `make` outlives all calls; the file is open; keys and values are slices of the lengths given.
        unsafe {
            failed |= cdb_make_start(&mut *make, file.as_raw_fd()) != 0;
            data::for_each_row(&data.csv, |key, value| {
                failed |= cdb_make_add(
                    &mut *make,
                    key.as_ptr().cast(),
                    key.len() as c_uint,
                    value.as_ptr().cast(),
                    value.len() as c_uint,
                ) != 0;
            })?;
            failed |= cdb_make_finish(&mut *make) != 0;
        }
        if failed {
            return Err("cdb: writing failed; a cdb holds at most 4 GiB".into());
        }
        sync(&path)?;
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        let file = File::open(out.join("data.cdb"))?;
        // SAFETY: as in `build`; the descriptor is the library's from now on.
        let mut cdb: Box<CdbRead> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: `cdb` is valid and the descriptor open.
        if unsafe { cdb_init(&mut *cdb, file.into_raw_fd()) } != 0 {
            return Err("cdb: the file cannot be opened".into());
        }
        Ok(Box::new(CdbReader(cdb)))
    }
}

struct CdbReader(Box<CdbRead>);

impl Reader for CdbReader {
    #[inline]
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        // SAFETY: the struct was set up by `cdb_init`; a value found lies within the map, which lives as long as it.
        unsafe {
            if cdb_find(&mut *self.0, key.as_ptr().cast(), key.len() as c_uint) <= 0 {
                return None;
            }
            let value = cdb_get(&*self.0, self.0.value_len, self.0.value_at);
            if value.is_null() {
                return None;
            }
            Some(touch(std::slice::from_raw_parts(
                value.cast(),
                self.0.value_len as usize,
            )))
        }
    }
}

impl Drop for CdbReader {
    fn drop(&mut self) {
        // SAFETY: set up by `cdb_init`, and not used after.
        unsafe { cdb_free(&mut *self.0) }
    }
}
