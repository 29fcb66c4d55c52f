//! Writes to mapped tables: rejected, or executed in PostgreSQL and answered once the replication stream has returned
//! them.

use larder_postgres::{When, Write, Written};
use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::{Postgres, refusal};
use crate::tables::Refusal;

/// A write to be executed in PostgreSQL.
pub(crate) struct WriteJob {
    write: Write,
    reply: ReplyKind,
}

/// The form of the reply.
#[derive(Clone, Copy)]
enum ReplyKind {
    Ok,
    /// OK, or null if no row was changed.
    OkIfDone,
    Rows,
    Sum,
}

/// The outcome of a write.
pub(crate) enum WriteReply {
    Ok,
    Null,
    Number(i64),
}

/// Returns a job if the command writes to a mapped table.
///
/// # Errors
/// The write is rejected.
pub(crate) fn parse_write(
    postgres: &Postgres,
    command: Command<'_>,
    in_transaction: bool,
) -> Result<Option<WriteJob>, Refusal> {
    let mut keys: Vec<&[u8]> = command.keys().collect();
    if keys.is_empty() {
        // The first key of a range.
        keys.push(command.arg(1));
    }
    let mapped = |key: &&&[u8]| postgres.table_of(key).is_some();
    let Some(first) = keys.iter().find(mapped) else {
        return Ok(None);
    };
    let Some(table) = postgres.table_of(first) else {
        return Ok(None);
    };
    let (name, shown) = (&table.name, table.shown());
    let refuse = |message: String| Err((Code::BadRequest, message));
    for key in &keys {
        match postgres.table_of(key) {
            None => {
                return refuse(format!(
                    "table {name} is stored in PostgreSQL; write its keys and keys of other tables in separate commands"
                ));
            }
            Some(table) if !table.through => {
                let name = &table.name;
                let message = format!(
                    "table {name} is stored in PostgreSQL ({}); write there, or set tables.{name}.write = \"through\"",
                    table.shown()
                );
                return Err((Code::ReadOnly, message));
            }
            Some(_) => {}
        }
    }
    if in_transaction {
        return refuse(format!(
            "table {name} is stored in PostgreSQL, so a transaction cannot write to it; send the writes without MULTI: MSET and DEL of several keys are atomic"
        ));
    }
    let Some((write, reply)) = translate(command.id(), command.request)? else {
        return refuse(format!(
            "table {name} is stored in PostgreSQL and does not support {}; change the table {shown} there",
            command.name()
        ));
    };
    Ok(Some(WriteJob { write, reply }))
}

fn translate(id: Id, request: Request<'_>) -> Result<Option<(Write, ReplyKind)>, Refusal> {
    let arg = |at: usize| request.arg(at).to_vec();
    let set = |when| Write::Set {
        rows: vec![(arg(1), arg(2))],
        when,
    };
    let add = |by: Option<i64>| {
        let by = by.ok_or_else(|| {
            let message = "value is not an integer or out of range";
            (Code::BadRequest, message.to_owned())
        })?;
        let key = arg(1);
        Ok(Some((Write::Increment { key, by }, ReplyKind::Sum)))
    };
    let number = || larder_types::integer(request.arg(2));
    Ok(Some(match id {
        Id::Set => match request.get(3).map(<[u8]>::to_ascii_uppercase).as_deref() {
            None => (set(When::Always), ReplyKind::Ok),
            Some(b"NX") if request.len() == 4 => (set(When::IfAbsent), ReplyKind::OkIfDone),
            Some(b"XX") if request.len() == 4 => (set(When::IfPresent), ReplyKind::OkIfDone),
            Some(_) => {
                let message =
                    "SET on a table that is stored in PostgreSQL accepts only one option, NX or XX";
                return Err((Code::BadRequest, message.to_owned()));
            }
        },
        Id::SetNx => (set(When::IfAbsent), ReplyKind::Rows),
        Id::MSet => {
            if request.len().is_multiple_of(2) {
                let message = "wrong number of arguments for 'mset' command";
                return Err((Code::WrongArity, message.to_owned()));
            }
            let pairs = (1..request.len()).step_by(2);
            let rows = pairs.map(|at| (arg(at), arg(at + 1))).collect();
            let when = When::Always;
            (Write::Set { rows, when }, ReplyKind::Ok)
        }
        Id::Del | Id::Unlink => {
            let keys = (1..request.len()).map(arg).collect();
            (Write::Remove { keys }, ReplyKind::Rows)
        }
        Id::Incr => return add(Some(1)),
        Id::Decr => return add(Some(-1)),
        Id::IncrBy => return add(number()),
        Id::DecrBy => return add(number().and_then(i64::checked_neg)),
        _ => return Ok(None),
    }))
}

impl WriteJob {
    /// Executes the write, and waits until every core and every output reflect it.
    ///
    /// # Errors
    /// The write failed, or its outcome is unknown.
    pub async fn run(&self, postgres: &Postgres) -> Result<WriteReply, Refusal> {
        let written = postgres.database.write(self.write.clone()).await;
        let Written { rows, sum } = written.map_err(refusal)?;
        Ok(match self.reply {
            ReplyKind::Ok => WriteReply::Ok,
            ReplyKind::OkIfDone if rows > 0 => WriteReply::Ok,
            ReplyKind::OkIfDone => WriteReply::Null,
            ReplyKind::Rows => WriteReply::Number(i64::try_from(rows).unwrap_or(i64::MAX)),
            ReplyKind::Sum => WriteReply::Number(sum.unwrap_or_default()),
        })
    }
}
