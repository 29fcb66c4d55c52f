//! LMDB through heed.

use std::fs::File;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, WithoutTls};

use crate::data::{self, DataSet};
use crate::engine::{Engine, Reader, Result, touch};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    AppendMapped,
    Append,
    Unsorted,
}

pub struct Lmdb {
    pub mode: Mode,
}

const MAP_BYTES: usize = 64 << 30;

fn open(folder: &Path, flags: EnvFlags) -> Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(MAP_BYTES);
    // SAFETY: the folder is this process's alone, so nothing changes the map behind its back; flags that give up
    // durability are followed by a sync.
    let env = unsafe {
        options.flags(flags);
        options.open(folder)?
    };
    Ok(env)
}

impl Engine for Lmdb {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let flags = match self.mode {
            Mode::AppendMapped => EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC,
            Mode::Append | Mode::Unsorted => EnvFlags::empty(),
        };
        let env = open(out, flags)?;
        let database = env
            .create_databases_and_commit(env.write_txn()?, |create, txn| -> heed::Result<_> {
                Ok(CommitOrAbort::<_, ()>::Commit(
                    create.create_database::<Bytes, Bytes>(txn, None)?,
                ))
            })?
            .commit()
            .ok_or("the database was not created")?;
        let mut txn = env.write_txn()?;
        if self.mode == Mode::Unsorted {
            let mut failed = None;
            data::for_each_row(&data.csv, |key, value| {
                if failed.is_none() {
                    failed = database.put(&mut txn, key, value).err();
                }
            })?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        } else {
            let bytes = data::read_rows(&data.csv)?;
            for row in data::sorted_rows(&bytes) {
                database.put_with_flags(&mut txn, PutFlags::APPEND, row.key, row.value)?;
            }
        }
        txn.commit()?;
        env.force_sync()?;
        let pages = env.info().last_page_number as u64 + 1;
        // A writable map leaves a file as long as the map; what is behind the last page is a hole.
        let file = File::options().write(true).open(out.join("data.mdb"))?;
        file.set_len(pages * 4096)?;
        file.sync_all()?;
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        let env = open(
            out,
            EnvFlags::READ_ONLY | EnvFlags::NO_READ_AHEAD | EnvFlags::NO_LOCK,
        )?;
        let database = env
            .open_databases_and_commit(env.read_txn()?, |open, txn| -> heed::Result<_> {
                Ok(CommitOrAbort::<_, ()>::Commit(
                    open.open_database::<Bytes, Bytes>(txn, None)?,
                ))
            })?
            .commit()
            .flatten()
            .ok_or("the LMDB file has no database")?;
        // SAFETY: the lifetime only ties the handle to its environment, which the transaction beside it keeps open.
        let database = unsafe {
            std::mem::transmute::<Database<'_, Bytes, Bytes>, Database<'static, Bytes, Bytes>>(
                database,
            )
        };
        Ok(Box::new(LmdbReader {
            txn: env.static_read_txn()?,
            database,
        }))
    }
}

struct LmdbReader {
    txn: RoTxn<'static, WithoutTls>,
    database: Database<'static, Bytes, Bytes>,
}

impl Reader for LmdbReader {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        self.database.get(&self.txn, key).ok()?.map(touch)
    }
}
