//! `/v1/joins`: declares, shows and drops joins.

use std::future::poll_fn;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use larder_join::{CreateBehavior, DropBehavior, JoinInfo};
use larder_protocol::http::{JoinExplained, JoinIfDefined, JoinList, JoinRequest, JoinStatus};

use super::Server;
use super::json_result::{Failure, JsonResult, decode};
use crate::Shared;
use crate::error::Error;
use crate::resp::tables::{JoinChange, define_in_cluster, define_on_all_cores};
use crate::tables::{Gate, Refusal, refusal};

impl From<Refusal> for Failure {
    fn from((code, message): Refusal) -> Failure {
        Failure(Error::Tables(code, message))
    }
}

fn status(join: JoinInfo) -> JoinStatus {
    JoinStatus {
        name: join.name,
        definition: join.definition,
        rows: join.rows,
        ranges: join.ranges as u64,
        filled: join.filled,
        evicted: join.evicted,
        left_out: join.left_out,
        updaters: join.updaters as u64,
        memory_bytes: join.memory_bytes as u64,
    }
}

pub async fn list(State(shared): Server) -> JsonResult<JoinList> {
    let joins = shared.tables.joins(None).await?;
    let joins = joins.into_iter().map(status).collect();
    Ok(Json(JoinList { joins }))
}

pub async fn get_join(State(shared): Server, Path(name): Path<String>) -> JsonResult<JoinStatus> {
    Ok(Json(status(find(&shared, name).await?)))
}

async fn find(shared: &Shared, name: String) -> Result<JoinInfo, Failure> {
    let joins = shared.tables.joins(None).await?;
    let found = joins.into_iter().find(|join| join.name == name);
    Ok(found.ok_or_else(|| refusal(larder_join::Error::UnknownJoin { name }))?)
}

/// Responds once the definition is as durable as `tables.fsync` specifies.
pub async fn create(
    State(shared): Server,
    body: Bytes,
) -> Result<(StatusCode, Json<JoinStatus>), Failure> {
    let JoinRequest {
        name,
        definition,
        if_defined,
    } = decode(&body)?;
    let change = JoinChange::Create {
        name: name.clone(),
        definition,
        if_defined: match if_defined {
            JoinIfDefined::Refuse => CreateBehavior::Refuse,
            JoinIfDefined::Keep => CreateBehavior::Keep,
            JoinIfDefined::Replace => CreateBehavior::Replace,
        },
    };
    define(&shared, change).await?;
    Ok((
        StatusCode::CREATED,
        Json(status(find(&shared, name).await?)),
    ))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropQuery {
    /// Also drops the joins that read its output.
    #[serde(default)]
    cascade: bool,
}

pub async fn remove(
    State(shared): Server,
    Path(name): Path<String>,
    query: Result<Query<DropQuery>, QueryRejection>,
) -> Result<StatusCode, Failure> {
    let Query(DropQuery { cascade }) = query.map_err(|why| Error::BadRequest(why.body_text()))?;
    let if_read = if cascade {
        DropBehavior::Cascade
    } else {
        DropBehavior::Refuse
    };
    define(&shared, JoinChange::Drop { name, if_read }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn define(shared: &Arc<Shared>, change: JoinChange) -> Result<(), Failure> {
    let own = shared.clone();
    let defined = shared.tables.run_on(0, move |tables| async move {
        let mut gate = Gate::default();
        if tables.is_in_cluster() {
            return define_in_cluster(&own, &tables, &change).await;
        }
        define_on_all_cores(tables.clone(), &mut gate, &change).await?;
        wait_for_gate(&tables, &mut gate).await
    });
    Ok(defined.await??)
}

async fn wait_for_gate(tables: &crate::tables::Tables, gate: &mut Gate) -> Result<(), Refusal> {
    let wait_for_gate = poll_fn(|cx| tables.poll_gate(gate, cx)).await;
    wait_for_gate.map_err(|error| (larder_protocol::errors::Code::Io, error.to_string()))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainQuery {
    lo: Option<String>,
    hi: Option<String>,
}

/// Returns the plan and, with `lo` and `hi`, the parts of that range that are filled.
pub async fn explain(
    State(shared): Server,
    Path(name): Path<String>,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> JsonResult<JoinExplained> {
    let Query(ExplainQuery { lo, hi }) = query.map_err(|why| Error::BadRequest(why.body_text()))?;
    let core = lo
        .as_deref()
        .map_or(0, |lo| shared.tables.owner_of(lo.as_bytes()));
    let plan = shared
        .tables
        .run_on(core, move |tables| async move {
            let range = lo.as_deref().zip(hi.as_deref());
            let range = range.map(|(lo, hi)| (lo.as_bytes(), hi.as_bytes()));
            let plan = tables.read(|engine, _| engine.explain(&name, range));
            plan.map_err(refusal)
        })
        .await??;
    Ok(Json(JoinExplained { plan }))
}
