//! Commands on several keys that several cores have: MSET, MSETNX, RENAME, RENAMENX and COPY, as one in a pause; and KEYS.

use std::borrow::Cow;

use larder_protocol::commands::{Batch, Command, Id, OwnedCommand, spec};
use larder_protocol::resp::Request;
use larder_types::object_row;

use super::super::super::replies;
use super::super::condition::Condition;
use super::super::expire::{Times, deadline};
use super::super::keys::Puts;
use super::super::partly::refused;
use super::super::rows::refuse_computed_rows;
use super::super::{keys, scan};
use super::{Coordinator, all_replies, gone};
use crate::tables::Refusal;

/// Whether a GET was answered so since its key has an object.
pub(super) fn is_of_object(error: &[u8]) -> bool {
    error.starts_with(b"-WRONGTYPE ")
}

impl Coordinator {
    pub(super) async fn mset(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let pairs = keys::pairs(command.request, "mset")?;
        let paused = self.pause().await?;
        let error = self.put_all(command, &pairs).await;
        self.resume(paused).await?;
        let error = error?;
        Ok(error.unwrap_or_else(|| self.encoded(|encoder| encoder.ok())))
    }

    pub(super) async fn msetnx(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let puts = Puts::of(command.request, "msetnx", Condition::IfAbsent)?;
        self.put_if(command, &puts).await
    }

    pub(super) async fn msetex(&mut self, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
        let puts = Puts::with_options(command.request)?;
        self.put_if(command, &puts).await
    }

    async fn put_if(&mut self, command: Command<'_>, puts: &Puts<'_>) -> Result<Vec<u8>, Refusal> {
        let paused = self.pause().await?;
        let done = self.put_if_in_pause(command, puts).await;
        self.resume(paused).await?;
        done
    }

    async fn put_if_in_pause(
        &mut self,
        command: Command<'_>,
        puts: &Puts<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        if puts.condition != Condition::Always {
            let is_absent = puts.condition == Condition::IfAbsent;
            for (key, _) in &puts.pairs {
                if self.is_there(key).await? == is_absent {
                    return Ok(self.encoded(|encoder| encoder.integer(0)));
                }
            }
        }
        let at = match puts.times {
            Times::Until(expiry) => Some(deadline(expiry, self.core.tables.now(), "msetex")?),
            Times::Forever | Times::Kept => None,
        };
        let at = at.map(|at| at.to_string());
        let options: &[&[u8]] = match (&at, puts.times) {
            (Some(at), _) => &[b"PXAT", at.as_bytes()],
            (None, Times::Kept) => &[b"KEEPTTL"],
            (None, _) => &[],
        };
        let mut replies = Vec::with_capacity(puts.pairs.len());
        for (key, value) in &puts.pairs {
            let args = [&[*key, *value], options].concat();
            replies.push(self.one(Id::Set, &args).await?);
        }
        let error = refused(command, &replies);
        Ok(error.unwrap_or_else(|| self.encoded(|encoder| encoder.integer(1))))
    }

    /// Puts the rows of a command, in a pause; what is answered if some were refused.
    async fn put_all(
        &self,
        command: Command<'_>,
        pairs: &[usize],
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let mut all: Vec<Vec<&[u8]>> = vec![vec![b"MSET"]; self.cores()];
        for &at in pairs {
            all[self.owner(command.arg(at))].extend([command.arg(at), command.arg(at + 1)]);
        }
        let mut parts = vec![Batch::default(); self.cores()];
        for (part, pairs) in parts.iter_mut().zip(all).filter(|(_, p)| p.len() > 1) {
            part.push_args(spec(Id::MSet), pairs.iter().copied());
        }
        let asked = self.ask_each(parts, self.execution());
        let replies = all_replies(asked.into_iter().flatten()).await?;
        Ok(refused(command, &replies))
    }

    pub(super) async fn copy(&mut self, id: Id, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let copying = keys::Copying::parse(id, request)?;
        let paused = self.pause().await?;
        let done = self.copy_row(&copying, request).await;
        self.resume(paused).await?;
        Ok(match done? {
            Err(error) => error,
            Ok(_) if keys::is_answered_ok(id) => self.encoded(|encoder| encoder.ok()),
            Ok(done) => self.encoded(|encoder| encoder.integer(i64::from(done))),
        })
    }

    /// Copies or moves a row, in a pause. An error reply is handed on.
    async fn copy_row(
        &self,
        copying: &keys::Copying,
        request: Request<'_>,
    ) -> Result<Result<bool, Vec<u8>>, Refusal> {
        let (from, to) = (request.arg(1), request.arg(2));
        let (mut source, mut target) = (Cow::Borrowed(from), Cow::Borrowed(to));
        let mut value = self.value(from).await?;
        let is_object = matches!(&value, Err(error) if is_of_object(error));
        if is_object {
            (source, target) = (object_row(from).into(), object_row(to).into());
            value = self.value(&source).await?;
        }
        let value = match value {
            Err(error) => return Ok(Err(error)),
            Ok(Some(value)) => value,
            Ok(None) => return copying.refuse_absent().map(|()| Ok(false)),
        };
        if !copying.replaces && self.is_there(to).await? {
            return Ok(Ok(false));
        }
        if copying.moves && from == to {
            return Ok(Ok(true));
        }
        if copying.moves {
            self.refuse_computed_rows([from])?;
        }
        let (from, to) = (&*source, &*target);
        let at = self.one(Id::PExpireTime, &[from]).await?;
        let at = keys::time_of(&at).map(|at| at.to_string());
        let put: &[&[u8]] = match &at {
            None => &[to, &value],
            Some(at) => &[to, &value, b"PXAT", at.as_bytes()],
        };
        let mut reply = self.one(Id::Set, put).await?;
        if copying.moves && reply.first() != Some(&b'-') {
            reply = self.one(Id::Del, &[from]).await?;
        }
        Ok(match reply.first() {
            Some(b'-') => Err(reply),
            _ => Ok(true),
        })
    }

    /// Refuses a write of rows of a computed table, before anything is written.
    pub(super) fn refuse_computed_rows<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Result<(), Refusal> {
        let tables = &self.core.tables;
        tables.read(|engine, now| refuse_computed_rows(engine, keys, now))
    }

    /// Whether a key has a row or an object.
    async fn is_there(&self, key: &[u8]) -> Result<bool, Refusal> {
        Ok(match self.value(key).await? {
            Ok(value) => value.is_some(),
            Err(error) => is_of_object(&error),
        })
    }

    /// The value of a row, or the error reply.
    pub(super) async fn value(
        &self,
        key: &[u8],
    ) -> Result<Result<Option<Vec<u8>>, Vec<u8>>, Refusal> {
        let reply = self.one(Id::Get, &[key]).await?;
        Ok(match reply.first() {
            Some(b'-') => Err(reply),
            _ => Ok(replies::value(&reply).map(<[u8]>::to_vec)),
        })
    }

    /// The reply of the core that has a key, which is the first argument.
    pub(super) async fn one(&self, id: Id, args: &[&[u8]]) -> Result<Vec<u8>, Refusal> {
        let command = OwnedCommand::of(id, args.iter().copied());
        let owner = self.owner(command.command().arg(1));
        let mut incoming = self.ask(owner, command.into(), self.execution());
        incoming.reply().await.ok_or_else(gone)
    }

    /// RANDOMKEY of all cores of this node.
    pub(super) async fn random_key(&self) -> Result<Vec<u8>, Refusal> {
        let mut keys = Vec::new();
        for walk in scan::Walk::random() {
            keys = self.walked(&walk).await?;
            if !keys.is_empty() {
                break;
            }
        }
        Ok(self.encoded(|encoder| scan::answer_random(encoder, &keys)))
    }

    pub(super) async fn keys(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        scan::refuse_store(&self.core.shared.catalog.load(), request.arg(1))?;
        let walk = scan::Walk::of_all(request.arg(1))?;
        let keys = walk.all(self.walked(&walk).await?)?;
        Ok(self.encoded(|encoder| scan::answer_keys(encoder, &keys)))
    }
}
