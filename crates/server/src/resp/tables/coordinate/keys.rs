//! Commands on keys of several cores: MSET, MSETNX, RENAME, RENAMENX and COPY, atomically in a pause, and KEYS.

use larder_protocol::commands::{Batch, Command, Id, OwnedCommand, spec};
use larder_protocol::resp::Request;

use super::super::super::reply_decoding;
use super::super::condition::Condition;
use super::super::expire::{Ttl, deadline};
use super::super::keys::MultiPut;
use super::super::partial_write::combined_error;
use super::super::rows::refuse_computed_rows;
use super::super::{keys, scan};
use super::{Coordinator, collect_replies, core_stopped};
use crate::tables::Refusal;

/// Returns whether the error of a GET means that the key holds an object.
pub(in crate::resp) fn is_of_object(error: &[u8]) -> bool {
    error.starts_with(b"-WRONGTYPE ")
}

impl Coordinator {
    /// Executes MSET, MSETNX and MSETEX.
    pub(in crate::resp) async fn put_texts(
        &mut self,
        command: Command<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        self.refuse_computed_rows(command.keys())?;
        let puts = MultiPut::parse(command.id(), command.request)?;
        let paused = self.pause().await?;
        let done = self.put_in_pause(command, &puts).await;
        self.resume(paused).await?;
        Ok(match done? {
            Err(error) => error,
            Ok(_) if command.id() == Id::MSet => self.encode(|encoder| encoder.ok()),
            Ok(done) => self.encode(|encoder| encoder.integer(i64::from(done))),
        })
    }

    /// Returns whether the condition was met, or an error reply if some of the texts were rejected.
    async fn put_in_pause(
        &mut self,
        command: Command<'_>,
        puts: &MultiPut<'_>,
    ) -> Result<Result<bool, Vec<u8>>, Refusal> {
        if puts.condition != Condition::Always {
            for key in puts.keys() {
                if puts.is_violated(self.key_exists(key).await?) {
                    return Ok(Ok(false));
                }
            }
        }
        let time;
        let ttl_args: &[&[u8]] = match puts.ttl {
            Ttl::Until(expiry) => {
                time = deadline(expiry, self.core.tables.now(), puts.command)?.to_string();
                &[b"PXAT", time.as_bytes()]
            }
            Ttl::Keep => &[b"KEEPTTL"],
            Ttl::Forever => &[],
        };
        let mut all = vec![Vec::new(); self.cores()];
        for &(key, value) in &puts.pairs {
            all[self.owner(key)].extend([key, value]);
        }
        let mut parts = vec![Batch::default(); self.cores()];
        for (part, pairs) in parts.iter_mut().zip(all).filter(|(_, p)| !p.is_empty()) {
            let count = (pairs.len() / 2).to_string();
            let args = [&[b"MSETEX", count.as_bytes()], &*pairs, ttl_args].concat();
            part.push_args(spec(Id::MSetEx), args.into_iter());
        }
        let incoming = self.request_cores(parts, self.execution());
        let replies = collect_replies(incoming.into_iter().flatten()).await?;
        Ok(combined_error(command, &replies).map_or(Ok(true), Err))
    }

    pub(in crate::resp) async fn copy(
        &mut self,
        id: Id,
        request: Request<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let options = keys::CopyOptions::parse(id, request)?;
        let paused = self.pause().await?;
        let done = self.copy_row(&options, request).await;
        self.resume(paused).await?;
        Ok(match done? {
            Err(error) => error,
            Ok(_) if keys::returns_ok(id) => self.encode(|encoder| encoder.ok()),
            Ok(done) => self.encode(|encoder| encoder.integer(i64::from(done))),
        })
    }

    /// Copies or moves a row, during a pause. Error replies are passed through.
    async fn copy_row(
        &self,
        options: &keys::CopyOptions,
        request: Request<'_>,
    ) -> Result<Result<bool, Vec<u8>>, Refusal> {
        let (from, to) = (request.arg(1), request.arg(2));
        let (put, value) = match self.read_value(from).await? {
            Ok(Some(text)) => (Id::Set, text),
            Ok(None) => return options.refuse_absent().map(|()| Ok(false)),
            Err(error) if is_of_object(&error) => {
                let dumped = self.execute_on_owner(Id::Dump, &[from]).await?;
                match reply_decoding::decode_value(&dumped) {
                    Some(payload) => (Id::Restore, payload.to_vec()),
                    None if dumped.first() == Some(&b'-') => return Ok(Err(dumped)),
                    // The key has expired since then.
                    None => return options.refuse_absent().map(|()| Ok(false)),
                }
            }
            Err(error) => return Ok(Err(error)),
        };
        if !options.replaces && self.key_exists(to).await? {
            return Ok(Ok(false));
        }
        if options.moves && from == to {
            return Ok(Ok(true));
        }
        if options.moves {
            self.refuse_computed_rows([from])?;
        }
        let at = self.execute_on_owner(Id::PExpireTime, &[from]).await?;
        let at = keys::parse_time(&at).map(|at| at.to_string());
        let args: &[&[u8]] = match (put, &at) {
            (Id::Set, None) => &[to, &value],
            (Id::Set, Some(at)) => &[to, &value, b"PXAT", at.as_bytes()],
            (_, None) => &[to, b"0", &value, b"REPLACE"],
            (_, Some(at)) => &[to, at.as_bytes(), &value, b"REPLACE", b"ABSTTL"],
        };
        let mut reply = self.execute_on_owner(put, args).await?;
        if options.moves && reply.first() != Some(&b'-') {
            reply = self.execute_on_owner(Id::Del, &[from]).await?;
        }
        Ok(match reply.first() {
            Some(b'-') => Err(reply),
            _ => Ok(true),
        })
    }

    /// Rejects a write to a computed table, before anything is written.
    pub(super) fn refuse_computed_rows<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<(), Refusal> {
        let tables = &self.core.tables;
        tables.read(|engine, _| refuse_computed_rows(engine, keys))
    }

    /// Returns whether a key has a row or an object.
    async fn key_exists(&self, key: &[u8]) -> Result<bool, Refusal> {
        Ok(match self.read_value(key).await? {
            Ok(value) => value.is_some(),
            Err(error) => is_of_object(&error),
        })
    }

    /// Returns the value of a row, or the error reply.
    pub(in crate::resp) async fn read_value(
        &self,
        key: &[u8],
    ) -> Result<Result<Option<Vec<u8>>, Vec<u8>>, Refusal> {
        let reply = self.execute_on_owner(Id::Get, &[key]).await?;
        Ok(match reply.first() {
            Some(b'-') => Err(reply),
            _ => Ok(reply_decoding::decode_value(&reply).map(<[u8]>::to_vec)),
        })
    }

    /// Returns the reply of the core that owns a key, which is the first argument.
    pub(in crate::resp) async fn execute_on_owner(
        &self,
        id: Id,
        args: &[&[u8]],
    ) -> Result<Vec<u8>, Refusal> {
        let command = OwnedCommand::of(id, args.iter().copied());
        let owner = self.owner(command.command().arg(1));
        let mut incoming = self.request_core(owner, command.into(), self.execution());
        incoming.reply().await.ok_or_else(core_stopped)
    }

    /// Executes RANDOMKEY over all cores of this node.
    pub(in crate::resp) async fn random_key(&self) -> Result<Vec<u8>, Refusal> {
        let mut keys = Vec::new();
        for walk in scan::KeyWalk::random() {
            keys = self.collect_keys(&walk).await?;
            if !keys.is_empty() {
                break;
            }
        }
        Ok(self.encode(|encoder| scan::encode_random_key(encoder, &keys)))
    }

    pub(in crate::resp) async fn keys(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        scan::refuse_store(&self.core.shared.catalog.load(), request.arg(1))?;
        let walk = scan::KeyWalk::all_matching(request.arg(1))?;
        let keys = walk.filter_keys(self.collect_keys(&walk).await?)?;
        Ok(self.encode(|encoder| scan::encode_keys(encoder, &keys)))
    }
}
