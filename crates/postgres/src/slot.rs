//! The replication slot, which makes PostgreSQL retain its log.
//!
//! A *temporary* slot ends with its connection. A *permanent* slot outlives the connection: PostgreSQL retains its log
//! until larder reconnects, and nothing has to be loaded again. Rows are only in memory, so an old slot is useless
//! after a restart of larder, which creates a new one.

use pgwire_replication::ReplicationClient;

use crate::connect::Pool;
use crate::database::ResumePoint;
use crate::error::{Error, describe_error};
use crate::snapshot::{Lsn, parse_lsn};
use crate::sql::literal;
use crate::work;

/// Returns a name that no other connection uses.
pub fn temporary_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::{SystemTime, UNIX_EPOCH};

    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos() as u64);
    let count = COUNT.fetch_add(1, Relaxed);
    format!("larder_{}_{nanos:x}_{count}", std::process::id())
}

/// Returns a description of the transaction that blocks the creation of a slot, or `None` if there is none at the
/// moment. A slot starts when all transactions have ended that had written, in any database of the server, when its
/// creation began. It waits for one after the other.
///
/// # Errors
/// PostgreSQL is unreachable.
pub async fn blocker(pool: &Pool, name: &str) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT h.pid, p.gid, a.datname, a.usename, a.application_name, \
         floor(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))) \
         FROM pg_replication_slots s JOIN pg_locks l ON l.pid = s.active_pid AND l.locktype = 'transactionid' AND NOT l.granted \
         JOIN pg_locks h ON h.locktype = 'transactionid' AND h.transactionid = l.transactionid AND h.granted \
         LEFT JOIN pg_stat_activity a ON a.pid = h.pid LEFT JOIN pg_prepared_xacts p ON p.transaction = h.transactionid \
         WHERE s.slot_name = {}",
        literal(name)
    );
    let rows = work::rows(pool, &sql).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let cell = |at: usize| row.get(at).filter(|text| !text.is_empty());
    let mut shown = match (cell(1), cell(0)) {
        (Some(gid), _) => format!("the prepared transaction '{gid}'"),
        (None, pid) => format!("the transaction of pid {}", pid.unwrap_or("?")),
    };
    let mut about = Vec::new();
    for (what, at) in [("database", 2), ("user", 3), ("application", 4)] {
        about.extend(cell(at).map(|text| format!("{what} {text}")));
    }
    // Not visible for another user's transaction without the role pg_read_all_stats.
    about.push(match cell(5) {
        Some(seconds) => format!("open for {seconds} s"),
        None => "open for an unknown time".to_owned(),
    });
    shown.push_str(&format!(" ({})", about.join(", ")));
    Ok(Some(shown))
}

/// Aborts the creation of a slot. PostgreSQL does not notice that the connection was closed until the creation stops
/// waiting.
pub async fn end_creation(pool: &Pool, name: &str) {
    let sql = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
         WHERE slot_name = {} AND active_pid IS NOT NULL AND confirmed_flush_lsn IS NULL",
        literal(name)
    );
    // If this fails, the slot disappears when the transactions have ended.
    let _ = work::rows(pool, &sql).await;
}

/// Creates a slot, and returns the position from which it sends commits.
///
/// # Errors
/// [`Error::Setup`] with PostgreSQL's message.
pub async fn create(
    client: &mut ReplicationClient,
    name: &str,
    is_temporary: bool,
) -> Result<Lsn, Error> {
    let kind = if is_temporary { "TEMPORARY " } else { "" };
    let sql = format!("CREATE_REPLICATION_SLOT {name} {kind}LOGICAL pgoutput NOEXPORT_SNAPSHOT");
    let rows = client.simple_query(&sql).await.map_err(|error| {
        let message = format!("PostgreSQL cannot create a replication slot: {error}");
        if error.is_server() {
            Error::Setup(format!(
                "{message}; if all are in use, drop an unused one (SELECT * FROM pg_replication_slots) or raise max_replication_slots and max_wal_senders"
            ))
        } else {
            Error::Unreachable(message)
        }
    })?;
    let point = rows.first().and_then(|row| row.get(1)).cloned().flatten();
    let point = point.and_then(|text| parse_lsn(std::str::from_utf8(&text).ok()?));
    point
        .ok_or_else(|| Error::Unreachable("PostgreSQL returned no position of the slot".to_owned()))
}

/// Returns whether a permanent slot still has all changes since its connection was lost.
pub async fn can_resume(
    client: &mut ReplicationClient,
    name: &str,
    resume_point: &ResumePoint,
    system: &(String, u32),
) -> Result<bool, Error> {
    if *system != resume_point.system {
        return Ok(false);
    }
    let sql = format!(
        "SELECT confirmed_flush_lsn, wal_status FROM pg_replication_slots WHERE slot_name = {} AND plugin = 'pgoutput'",
        literal(name)
    );
    let rows = client.simple_query(&sql).await;
    let rows = rows.map_err(|error| Error::Unreachable(error.to_string()))?;
    let Some(row) = rows.first() else {
        return Ok(false);
    };
    let text = |at: usize| {
        let cell = row.get(at).cloned().flatten();
        cell.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
    };
    let confirmed = text(0).and_then(|text| parse_lsn(&text));
    let is_available = text(1).is_none_or(|status| status != "lost");
    Ok(is_available && confirmed.is_some_and(|confirmed| confirmed <= resume_point.position))
}

/// Drops a slot that an earlier run or connection left behind.
///
/// # Errors
/// The slot is in use.
pub async fn drop_own(pool: &Pool, name: &str) -> Result<(), Error> {
    let connection = pool.get().await?;
    let sql = format!(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {}",
        literal(name)
    );
    let dropped = connection.client().simple_query(&sql).await;
    match dropped {
        Ok(_) => {
            connection.release();
            Ok(())
        }
        Err(error) => Err(Error::Setup(format!(
            "the replication slot {name} cannot be created again: {}; if another larder uses it, give each its own postgres.slot_name",
            describe_error(&error)
        ))),
    }
}
