//! sparkey: a log and a hash file beside it, by its C interface.

use std::ffi::CString;
use std::path::Path;
use std::ptr::null_mut;

use sparkey_sys as c;

use crate::data::{self, DataSet};
use crate::engine::{Engine, Reader, Result, touch};
use crate::engines::sync;

pub struct Sparkey;

fn check(code: c::returncode) -> Result<()> {
    match code {
        c::returncode::SUCCESS => Ok(()),
        other => Err(format!("sparkey: {other:?}").into()),
    }
}

fn names(out: &Path) -> Result<(CString, CString)> {
    let text = |name: &str| {
        Ok::<_, Box<dyn std::error::Error>>(CString::new(
            out.join(name).to_str().ok_or("a path that is no text")?,
        )?)
    };
    Ok((text("data.spi")?, text("data.spl")?))
}

impl Engine for Sparkey {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let (index, log) = names(out)?;
        let mut writer = null_mut();
        let mut failed = Ok(());
        // SAFETY: the names end in 0, the writer is made by `logwriter_create` and closed once.
        unsafe {
            check(c::logwriter_create(
                &mut writer,
                log.as_ptr(),
                c::compression_type::COMPRESSION_NONE,
                0,
            ))?;
            data::for_each_row(&data.csv, |key, value| {
                let put = c::logwriter_put(
                    writer,
                    key.len() as u64,
                    key.as_ptr(),
                    value.len() as u64,
                    value.as_ptr(),
                );
                if failed.is_ok() {
                    failed = check(put);
                }
            })?;
            failed?;
            check(c::logwriter_close(&mut writer))?;
            check(c::hash_write(index.as_ptr(), log.as_ptr(), 0))?;
        }
        sync(&out.join("data.spl"))?;
        sync(&out.join("data.spi"))?;
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        let (index, log) = names(out)?;
        let (mut hash, mut iterator) = (null_mut(), null_mut());
        // SAFETY: the names end in 0; reader and iterator live until the process ends.
        unsafe {
            check(c::hash_open(&mut hash, index.as_ptr(), log.as_ptr()))?;
            let log = c::hash_getreader(hash);
            check(c::logiter_create(&mut iterator, log))?;
            Ok(Box::new(SparkeyReader {
                hash,
                log,
                iterator,
            }))
        }
    }
}

struct SparkeyReader {
    hash: *mut c::hashreader,
    log: *mut c::logreader,
    iterator: *mut c::logiter,
}

impl Reader for SparkeyReader {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        // SAFETY: all three pointers come from `open`; a chunk lies within the map of the log.
        unsafe {
            let got = c::hash_get(self.hash, key.as_ptr(), key.len() as u64, self.iterator);
            if !matches!(got, c::returncode::SUCCESS)
                || !matches!(c::logiter_state(self.iterator), c::iter_state::ITER_ACTIVE)
            {
                return None;
            }
            let (mut chunk, mut len) = (null_mut(), 0);
            let wanted = c::logiter_valuelen(self.iterator);
            let read = c::logiter_valuechunk(self.iterator, self.log, wanted, &mut chunk, &mut len);
            if !matches!(read, c::returncode::SUCCESS) {
                return None;
            }
            Some(touch(std::slice::from_raw_parts(chunk, len as usize)))
        }
    }
}
