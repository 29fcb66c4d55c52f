//! Checks before a command on tables is executed: rejects keys of stores, and keys and values that are too large.

use larder_protocol::commands::{Command, Group, Id, Keys, Spec};
use larder_protocol::errors::Code;
use larder_types::{CLIENT_KEY_BYTES_MAX, OBJECT_MARK, VALUE_BYTES_MAX};

use super::super::objects::wrong_type;
use super::super::subject::is_of_table;
use super::scan;
use crate::catalog::Snapshot;
use crate::error::show;
use crate::tables::Refusal;

/// Returns the error for a range in which larder stores objects and plain keys.
#[inline]
pub(in crate::resp) fn refuse_reserved_range(command: Command<'_>) -> Option<Refusal> {
    let (lo, hi) = command.range()?;
    let is_reserved = |bound: &[u8]| bound.first() == Some(&OBJECT_MARK);
    (is_reserved(lo) || is_reserved(hi)).then(|| {
        let message = "a range must lie in one table, and no table's name begins with a zero byte";
        (Code::BadRequest, message.to_owned())
    })
}

/// Checks that every key belongs to a table and is not too long.
pub(super) fn check_keys(snapshot: &Snapshot, command: Command<'_>) -> Result<(), Refusal> {
    match (command.id(), command.spec.keys) {
        (_, Keys::Range) => check_key(snapshot, command.spec, command.arg(1))?,
        // WATCH also accepts keys of stores.
        (Id::Watch, _) => {}
        (Id::Keys, _) => scan::refuse_store(snapshot, command.arg(1))?,
        _ => command
            .keys()
            .try_for_each(|key| check_key(snapshot, command.spec, key))?,
    }
    if command.writes()
        && command
            .args()
            .any(|value| value.len() as u64 > VALUE_BYTES_MAX)
    {
        let message = format!("the value is longer than the maximum of {VALUE_BYTES_MAX} bytes");
        return Err((Code::BadRequest, message));
    }
    Ok(())
}

fn check_key(snapshot: &Snapshot, command: &Spec, key: &[u8]) -> Result<(), Refusal> {
    if !is_of_table(snapshot, key) {
        return Err(store_key_error(command, key));
    }
    let most = CLIENT_KEY_BYTES_MAX;
    if key.len() > most && may_create_key(command) {
        let message = format!("the key has {} bytes; {most} are allowed", key.len());
        return Err((Code::BadRequest, message));
    }
    Ok(())
}

/// Returns whether a command may create a key. For other commands, a key that is too long is simply absent.
fn may_create_key(command: &Spec) -> bool {
    matches!(command.id, Id::Rename | Id::RenameNx)
        || command.flags.split(' ').any(|flag| flag == "denyoom")
}

fn store_key_error(command: &Spec, key: &[u8]) -> Refusal {
    let store = show(key.split(|byte| *byte == b':').next().unwrap_or_default());
    let name = command.name;
    if command.writes {
        return store_is_read_only(name, &store);
    }
    if command.group == Group::Objects {
        return wrong_type();
    }
    let message = match command.id {
        Id::Range | Id::RangeCount => {
            format!(
                "{store} is a store, which has no order of keys; {name} reads tables and join outputs"
            )
        }
        _ => format!(
            "{store} is a store; send {name} separately for keys of stores and for keys of tables"
        ),
    };
    (Code::BadRequest, message)
}

/// Returns the error for a write to a store.
pub(super) fn store_is_read_only(command: &str, store: &str) -> Refusal {
    let message = format!(
        "stores are read-only, {command} is refused; build a version and push it: larder push FILE --store {store}"
    );
    (Code::ReadOnly, message)
}
