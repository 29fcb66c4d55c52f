//! Reads an object from an offset on.
//!
//! Invariants of a [`ByteStream`]:
//! 1. Its first byte is the byte at the requested offset.
//! 2. If the size is known, it ends without an error only after exactly `size - offset` bytes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::error::{Error, Result};
use crate::http;
use crate::location::{Location, Place};

const LOCAL_CHUNK_BYTES: usize = 1 << 20;

impl Location {
    /// Returns the size of the object in bytes, with one request.
    ///
    /// # Errors
    /// `NotFound`; `Failed` if the store fails; `WrongAnswer` if the server does not state it.
    pub async fn size(&self) -> Result<u64> {
        match &self.place {
            Place::Local(path) => {
                self.check_links(path)?;
                let meta = tokio::fs::metadata(path).await;
                let meta = meta.map_err(|e| Error::from_io(self, &e))?;
                self.check_regular(&meta)?;
                Ok(meta.len())
            }
            Place::Http(url) => http::size(self, url).await,
            Place::Store { store, path, .. } => {
                let meta = store.head(path).await;
                Ok(meta.map_err(|e| Error::from_store(self, e))?.size)
            }
            Place::Hdfs(hdfs) => hdfs.size(self).await,
        }
    }

    /// Returns the complete object, or an error if it is longer than `max` bytes.
    ///
    /// # Errors
    /// Like [`Location::stream`], and `TooLarge`.
    pub async fn get_all(&self, max: u64) -> Result<Bytes> {
        let too_large = |size| Error::TooLarge {
            location: self.to_string(),
            size,
            max,
        };
        let mut stream = self.stream(0).await?;
        if let Some(size) = stream.size().filter(|size| *size > max) {
            return Err(too_large(size));
        }
        let mut all = BytesMut::new();
        while let Some(part) = stream.next().await {
            all.extend_from_slice(&part?);
            if all.len() as u64 > max {
                return Err(too_large(all.len() as u64));
            }
        }
        Ok(all.freeze())
    }

    /// Returns the bytes from offset `from` on. If `from` equals the size, the stream is empty, except over HTTP,
    /// where only [`Location::stream_of_size`] detects this.
    ///
    /// # Errors
    /// `WrongAnswer` if the response begins elsewhere or `from` is past the end; the stream yields an error if it
    /// breaks or ends early.
    pub async fn stream(&self, from: u64) -> Result<ByteStream> {
        self.stream_of_size(from, None).await
    }

    /// Like [`Location::stream`], for an object that must have `expected_size` bytes in total: resuming a file that
    /// was replaced in the meantime is then an error and does not mix contents.
    pub async fn stream_of_size(
        &self,
        from: u64,
        expected_size: Option<u64>,
    ) -> Result<ByteStream> {
        if from > 0 && Some(from) == expected_size {
            return Ok(ByteStream::new(
                self,
                futures::stream::empty().boxed(),
                Some(from),
                from,
            ));
        }
        let (inner, size) = match &self.place {
            Place::Local(path) => self.stream_local(path, from).await?,
            Place::Http(url) => {
                let answer = http::get(self, url, from).await?;
                let location = self.clone();
                let stream = answer
                    .response
                    .bytes_stream()
                    .map(move |part| part.map_err(|e| Error::failed(&location, &e.without_url())));
                (stream.boxed(), answer.size)
            }
            Place::Store { store, path, .. } => {
                self.stream_store(store.as_ref(), path, from).await?
            }
            Place::Hdfs(hdfs) => {
                let check = |size| self.check_offset(from, size);
                let (stream, size) = hdfs.stream(self, from, None, check).await?;
                (stream, Some(size))
            }
        };
        if let (Some(size), Some(expected)) = (size, expected_size)
            && size != expected
        {
            return Err(self.wrong(format!("it has {size} bytes, expected {expected}"), false));
        }
        Ok(ByteStream::new(self, inner, size.or(expected_size), from))
    }

    async fn stream_local(
        &self,
        path: &std::path::Path,
        from: u64,
    ) -> Result<(BoxStream<'static, Result<Bytes>>, Option<u64>)> {
        // Opening may block on a file system, though not on the file: it runs on a thread that can be abandoned.
        let (location, path) = (self.clone(), path.to_owned());
        let opened = tokio::task::spawn_blocking(move || {
            let file = location.open_file(&path)?;
            let size = file.metadata().map_err(|e| Error::from_io(&location, &e))?;
            Ok((file, size.len()))
        });
        let (file, size) = opened.await.map_err(|e| Error::failed(self, &e))??;
        self.check_offset(from, size)?;
        let mut file = tokio::fs::File::from_std(file);
        file.seek(std::io::SeekFrom::Start(from))
            .await
            .map_err(|e| Error::from_io(self, &e))?;
        let location = self.clone();
        let stream = futures::stream::try_unfold(file, move |mut file| {
            let location = location.clone();
            async move {
                let mut part = BytesMut::with_capacity(LOCAL_CHUNK_BYTES);
                let read = file.read_buf(&mut part).await;
                match read.map_err(|e| Error::from_io(&location, &e))? {
                    0 => Ok(None),
                    _ => Ok(Some((part.freeze(), file))),
                }
            }
        });
        Ok((stream.boxed(), Some(size)))
    }

    async fn stream_store(
        &self,
        store: &dyn ObjectStore,
        path: &object_store::path::Path,
        from: u64,
    ) -> Result<(BoxStream<'static, Result<Bytes>>, Option<u64>)> {
        let options = GetOptions {
            range: (from > 0).then_some(GetRange::Offset(from)),
            ..GetOptions::default()
        };
        let answer = match store.get_opts(path, options).await {
            Ok(answer) => answer,
            // Stores reject an empty range with an unspecific error.
            Err(refusal) if from > 0 => {
                let size = store.head(path).await.map(|meta| meta.size);
                let size = size.unwrap_or(u64::MAX);
                self.check_offset(from, size)?;
                if from == size {
                    return Ok((futures::stream::empty().boxed(), Some(size)));
                }
                return Err(Error::from_store(self, refusal));
            }
            Err(error) => return Err(Error::from_store(self, error)),
        };
        let size = answer.meta.size;
        self.check_offset(from, size)?;
        if answer.range.start != from {
            let start = answer.range.start;
            return Err(self.wrong(
                format!("the request was for the bytes from {from} on, but the response begins at {start}"),
                false,
            ));
        }
        let location = self.clone();
        let stream = answer
            .into_stream()
            .map(move |part| part.map_err(|e| Error::from_store(&location, e)));
        Ok((stream.boxed(), Some(size)))
    }

    fn check_offset(&self, from: u64, size: u64) -> Result<()> {
        if from <= size {
            return Ok(());
        }
        Err(self.wrong(
            format!("the read was for byte {from}, but the file has only {size} bytes"),
            false,
        ))
    }

    fn wrong(&self, reason: String, retry: bool) -> Error {
        Error::WrongAnswer {
            location: self.to_string(),
            reason,
            retry,
        }
    }
}

/// The bytes of an object from an offset on, checked against its size. See the module's invariants.
pub struct ByteStream {
    location: Location,
    inner: BoxStream<'static, Result<Bytes>>,
    size: Option<u64>,
    offset: u64,
    ended: bool,
}

impl ByteStream {
    fn new(
        location: &Location,
        inner: BoxStream<'static, Result<Bytes>>,
        size: Option<u64>,
        from: u64,
    ) -> Self {
        ByteStream {
            location: location.clone(),
            inner,
            size,
            offset: from,
            ended: false,
        }
    }

    /// Returns the total size of the object in bytes; `None` if the source does not state it.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns the offset of the next byte, from which to resume after an error.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn check(&mut self, item: Option<Result<Bytes>>) -> Option<Result<Bytes>> {
        match item {
            Some(Ok(part)) => {
                let end = self.offset + part.len() as u64;
                if let Some(size) = self.size.filter(|size| end > *size) {
                    self.ended = true;
                    let reason = format!("it holds more than the {size} bytes that were announced");
                    return Some(Err(self.location.wrong(reason, false)));
                }
                self.offset = end;
                Some(Ok(part))
            }
            Some(Err(error)) => {
                self.ended = true;
                Some(Err(error))
            }
            None => {
                self.ended = true;
                let size = self.size.filter(|size| self.offset < *size)?;
                let reason = format!("it ended after {} of {size} bytes", self.offset);
                Some(Err(self.location.wrong(reason, true)))
            }
        }
    }
}

impl Stream for ByteStream {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.inner
            .as_mut()
            .poll_next(context)
            .map(|item| self.check(item))
    }
}
