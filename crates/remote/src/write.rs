//! Copies a local file to a location, and removes files.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use bytes::BytesMut;
use object_store::ObjectStoreExt;
use object_store::buffered::BufWriter;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

use crate::error::{Error, Result};
use crate::location::{Location, Place};

const PART_BYTES: usize = 8 << 20;

/// The suffix of the names of unfinished files, locally and in HDFS.
pub(crate) const UNFINISHED: &str = "part";

impl Location {
    /// Copies the local file here, in parts of 8 MiB with several in flight, and calls `progress` with the bytes sent
    /// so far. The file becomes visible only when it is complete.
    ///
    /// # Errors
    /// `Unsupported` over HTTP; `Failed` if the store fails, and the uploaded parts are then abandoned.
    pub async fn put_file(&self, local: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        match &self.place {
            Place::Local(path) => self.put_local(local, path, progress).await,
            Place::Http(_) => Err(Error::Unsupported {
                location: self.to_string(),
                reason: "files cannot be put over http; use a path, s3, gs, az or hdfs".into(),
            }),
            Place::Store { store, path, .. } => {
                let writer = BufWriter::with_capacity(Arc::clone(store), path.clone(), PART_BYTES);
                self.put_store(local, writer, progress).await
            }
            Place::Hdfs(hdfs) => hdfs.put(self, local, progress).await,
        }
    }

    /// Removes the file here. Removing a missing file succeeds.
    ///
    /// # Errors
    /// `Unsupported` over HTTP; `Failed` if the store fails.
    pub async fn remove(&self) -> Result<()> {
        let removed = match &self.place {
            Place::Local(path) => {
                let removed = tokio::fs::remove_file(path).await;
                removed.map_err(|e| Error::from_io(self, &e))
            }
            Place::Http(_) => Err(Error::Unsupported {
                location: self.to_string(),
                reason: "files cannot be removed over http".into(),
            }),
            Place::Store { store, path, .. } => {
                let removed = store.delete(path).await;
                removed.map_err(|e| Error::from_store(self, e))
            }
            Place::Hdfs(hdfs) => hdfs.remove(self).await,
        };
        match removed {
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// Removes what killed processes left in this folder while they copied files into it. Object stores discard such
    /// uploads on their own, and do not list them.
    ///
    /// # Errors
    /// `Failed` if the file system fails.
    pub async fn remove_unfinished(&self) -> Result<()> {
        match &self.place {
            Place::Local(folder) => {
                let io = |e: std::io::Error| Error::from_io(self, &e);
                for entry in std::fs::read_dir(folder).map_err(io)? {
                    let path = entry.map_err(io)?.path();
                    if path.extension().is_some_and(|it| it == UNFINISHED) {
                        std::fs::remove_file(path).map_err(io)?;
                    }
                }
                Ok(())
            }
            Place::Hdfs(hdfs) => hdfs.remove_unfinished(self).await,
            Place::Http(_) | Place::Store { .. } => Ok(()),
        }
    }

    async fn put_store(
        &self,
        local: &Path,
        mut writer: BufWriter,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let copied = self.copy_parts(local, &mut writer, progress).await;
        if copied.is_err() {
            writer.abort().await.ok();
            return copied;
        }
        // Shutting down completes the upload and makes the object visible.
        let done = tokio::io::AsyncWriteExt::shutdown(&mut writer).await;
        done.map_err(|e| Error::failed(self, &e))
    }

    async fn copy_parts(
        &self,
        local: &Path,
        writer: &mut BufWriter,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let here = Location::local(local);
        let file = tokio::fs::File::open(local).await;
        let mut file = file.map_err(|e| Error::from_io(&here, &e))?;
        let mut done = 0;
        loop {
            let mut part = BytesMut::with_capacity(1 << 20);
            let read = file.read_buf(&mut part).await;
            if read.map_err(|e| Error::from_io(&here, &e))? == 0 {
                return Ok(());
            }
            done += part.len() as u64;
            writer
                .put(part.freeze())
                .await
                .map_err(|e| Error::from_store(self, e))?;
            progress(done);
        }
    }

    async fn put_local(
        &self,
        local: &Path,
        to: &Path,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let io = |e: std::io::Error| Error::from_io(self, &e);
        if let Some(folder) = to.parent() {
            tokio::fs::create_dir_all(folder).await.map_err(io)?;
        }
        let mut unfinished = to.as_os_str().to_owned();
        // Two processes may write the same file concurrently, and one of them may be killed.
        let number = RandomState::new().build_hasher().finish();
        unfinished.push(format!(".{number:016x}.{UNFINISHED}"));
        let copied = tokio::fs::copy(local, &unfinished).await;
        let copied = copied.map_err(|e| Error::from_io(&Location::local(local), &e))?;
        let file = tokio::fs::File::open(&unfinished).await.map_err(io)?;
        file.sync_all().await.map_err(io)?;
        tokio::fs::rename(&unfinished, to).await.map_err(io)?;
        progress(copied);
        Ok(())
    }
}
