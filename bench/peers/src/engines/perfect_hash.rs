//! A minimal perfect hash in memory, an offset per key, and records in the order of the input.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use epserde::deser::Deserialize;
use epserde::ser::Serialize;
use memmap2::{Advice, Mmap};
use ptr_hash::hash::StrongerIntHash;
use ptr_hash::{DefaultPtrHash, PtrHashParams};
use xxhash_rust::xxh3::xxh3_64;

use crate::data::{self, DataSet};
use crate::engine::{Engine, Reader, Result, touch};
use crate::engines::sync;

pub struct PerfectHash;

type Hash = DefaultPtrHash<StrongerIntHash>;

impl Engine for PerfectHash {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let mut hashes = Vec::new();
        let mut starts: Vec<u32> = Vec::new();
        let mut at = 0u64;
        let mut failed = None;
        let mut records = BufWriter::with_capacity(1 << 20, File::create_new(out.join("records"))?);
        data::for_each_row(&data.csv, |key, value| {
            hashes.push(xxh3_64(key));
            starts.push(at as u32);
            let lens = ((key.len() as u32) << 24 | value.len() as u32).to_le_bytes();
            for part in [&lens[..], key, value] {
                at += part.len() as u64;
                failed = failed.take().or(records.write_all(part).err());
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if at > u64::from(u32::MAX) {
            return Err("the offsets of this layout reach 4 GiB".into());
        }
        records.into_inner()?.sync_all()?;
        let hash = <Hash>::new(&hashes, PtrHashParams::default_fast());
        let mut offsets = vec![0u8; hash.n() * 4];
        for (key_hash, start) in hashes.iter().zip(&starts) {
            let index = hash.index(key_hash) * 4;
            offsets[index..index + 4].copy_from_slice(&start.to_le_bytes());
        }
        std::fs::write(out.join("offsets"), &offsets)?;
        // SAFETY: the type has no padding that matters: it is read back by the same program only.
        unsafe { hash.store(out.join("hash"))? };
        sync(&out.join("offsets"))?;
        sync(&out.join("hash"))?;
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        let map = |name: &str| -> Result<Mmap> {
            // SAFETY: nothing changes the file while it is mapped.
            let map = unsafe { Mmap::map(&File::open(out.join(name))?)? };
            map.advise(Advice::Random)?;
            Ok(map)
        };
        // SAFETY: `build` of this program wrote the file.
        let hash = unsafe { <Hash>::load_full(out.join("hash"))? };
        Ok(Box::new(PerfectHashReader {
            hash,
            offsets: map("offsets")?,
            records: map("records")?,
        }))
    }
}

struct PerfectHashReader {
    hash: Hash,
    offsets: Mmap,
    records: Mmap,
}

impl Reader for PerfectHashReader {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        let index = self.hash.index(&xxh3_64(key)) * 4;
        let start = word(&self.offsets, index)? as usize;
        let lens = word(&self.records, start)?;
        let (key_len, value_len) = ((lens >> 24) as usize, (lens & 0xff_ffff) as usize);
        let value_at = start + 4 + key_len;
        if self.records.get(start + 4..value_at)? != key {
            return None;
        }
        self.records.get(value_at..value_at + value_len).map(touch)
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
