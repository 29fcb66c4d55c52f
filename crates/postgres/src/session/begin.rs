//! Starts a session's replication stream: with a new slot, or at the position where the permanent slot was left.

use std::time::{Duration, Instant};

use pgwire_replication::{Lsn as WireLsn, ReplicationClient};

use crate::connect::Pool;
use crate::database::{Options, ResumePoint};
use crate::error::{Error, replication_failed};
use crate::slot;
use crate::snapshot::Lsn;
use crate::stats::Stats;
use crate::work;

/// Maximum time to wait for transactions that started during the slot's creation. Later ones are in the stream.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Interval between two queries for the transaction that blocks a slot's creation, and the number of queries between
/// two log messages.
const BLOCKER_EVERY: Duration = Duration::from_millis(500);
const LOG_EVERY: u64 = 120;

/// Creates the slot or resumes the existing one, and starts the stream.
pub(super) async fn begin_stream(
    options: &Options,
    pool: &Pool,
    stats: &Stats,
    resume_point: Option<ResumePoint>,
) -> Result<(ReplicationClient, (String, u32), Lsn, bool), Error> {
    let name = options.permanent_slot.clone();
    let slot = name.clone().unwrap_or_else(slot::temporary_name);
    let address = &options.address;
    let mut config = address.replication(&slot, &options.publication).await?;
    if let Some(resume_point) = &resume_point {
        config = config.with_start_lsn(WireLsn::from_u64(resume_point.position));
    }
    let mut client = ReplicationClient::connect_gated(config)
        .await
        .map_err(|e| replication_failed(&e))?;
    let identity = client
        .identify_system()
        .await
        .map_err(|e| replication_failed(&e))?;
    let system = (identity.system_id, identity.timeline);
    let mut resumed_at = None;
    if let (Some(name), Some(resume_point)) = (&name, &resume_point) {
        if slot::can_resume(&mut client, name, resume_point, &system).await? {
            resumed_at = Some(resume_point.position);
        } else {
            // The stream starts at another position, so it needs a connection that was not configured with the position
            // of the lost one.
            drop(client);
            let config = address.replication(&slot, &options.publication).await?;
            client = ReplicationClient::connect_gated(config)
                .await
                .map_err(|e| replication_failed(&e))?;
        }
    }
    let position = match resumed_at {
        Some(position) => position,
        None => {
            // A slot that is still being created cannot be dropped.
            if let Some(abandoned) = stats.creating() {
                slot::end_creation(pool, &abandoned).await;
            }
            if let Some(name) = &name {
                slot::drop_own(pool, name).await?;
            }
            stats.set_creating(Some(&slot));
            let creating = slot::create(&mut client, &slot, name.is_none());
            let position = show_blockers(creating, pool, &slot, stats).await?;
            stats.set_creating(None);
            position
        }
    };
    client.start().await.map_err(|e| replication_failed(&e))?;
    client.wait_started().await.map_err(|error| {
        let message = format!("PostgreSQL cannot start the replication: {error}");
        if error.is_server() && resumed_at.is_none() {
            Error::Setup(message)
        } else {
            // The lost connection may still hold the slot for a moment.
            Error::Unreachable(message)
        }
    })?;
    Ok((client, system, position, resumed_at.is_some()))
}

/// Waits for the creation of a slot, and meanwhile reports which transaction blocks it.
async fn show_blockers(
    creating: impl Future<Output = Result<Lsn, Error>>,
    pool: &Pool,
    slot: &str,
    stats: &Stats,
) -> Result<Lsn, Error> {
    let waiting = "a slot that waits for transactions of PostgreSQL to end";
    stats.set_state(waiting, false);
    let mut creating = std::pin::pin!(creating);
    let mut tick = tokio::time::interval(BLOCKER_EVERY);
    // Usually the creation completes immediately.
    tick.reset();
    let (mut ticks, mut logged) = (0_u64, false);
    loop {
        tokio::select! {
            created = &mut creating => {
                if logged {
                    tracing::info!("the transactions of PostgreSQL that were waited for have ended");
                }
                return created;
            }
            _ = tick.tick() => {}
        }
        // If PostgreSQL is unreachable, the creation also fails.
        let Ok(Some(blocker)) = slot::blocker(pool, slot).await else {
            continue;
        };
        stats.set_state(
            &format!("a slot that waits for {blocker}; end it, or wait"),
            false,
        );
        if ticks.is_multiple_of(LOG_EVERY) {
            logged = true;
            tracing::warn!(
                "tables of PostgreSQL cannot be read yet: their replication slot waits for {blocker}"
            );
        }
        ticks += 1;
    }
}

/// Waits until every snapshot includes the commits before the start of the stream. These are not in the stream, and
/// snapshots may not include them for a moment, so no load may be made before.
pub(super) async fn settle(pool: &Pool) -> Result<(), Error> {
    let first = work::beat(pool, "").await?.snapshot;
    let began = Instant::now();
    while began.elapsed() < SETTLE_MAX {
        let snapshot = work::beat(pool, "").await?.snapshot;
        if snapshot.xmin >= first.xmax {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Transactions that are still running will be in the stream.
    Ok(())
}
