//! `/v1/spaces`: the contents of FT.INFO, and of FT.EXPLAIN for a query, as JSON.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use larder_protocol::commands::{Id, OwnedCommand};
use larder_protocol::errors::{Code, ROWS};
use larder_protocol::resp::client::{Replies, Reply};
use serde_json::{Value, json};

use super::Server;
use super::json_result::{Failure, JsonResult};
use crate::Shared;
use crate::error::Error;
use crate::tables::Refusal;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceQuery {
    /// Adds the route of this query.
    query: Option<String>,
}

pub async fn list(State(shared): Server) -> JsonResult<Value> {
    let catalog = shared.tables.spaces.load_full();
    let names: Vec<String> = catalog.spaces().map(|(name, _)| name.to_owned()).collect();
    let mut spaces = Vec::with_capacity(names.len());
    for name in names {
        match describe_space(&shared, &[&name]).await {
            Ok(space) => spaces.push(space),
            // The space was dropped meanwhile.
            Err(_) if shared.tables.spaces.load().space(&name).is_none() => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(Json(json!({ "spaces": spaces })))
}

pub async fn get_space(
    State(shared): Server,
    Path(name): Path<String>,
    query: Result<Query<SpaceQuery>, QueryRejection>,
) -> JsonResult<Value> {
    let Query(SpaceQuery { query }) = query.map_err(|why| Error::BadRequest(why.body_text()))?;
    let query = query.filter(|query| !query.trim().is_empty());
    let mut words = vec![name.as_str(), "REGIONS"];
    words.extend(query.as_deref());
    let mut space = describe_space(&shared, &words)
        .await
        .map_err(Failure::from)?;
    if let Some(query) = query {
        let explained = run_command(&shared, Id::FtExplain, &[&name, &query]).await?;
        let explained = text(&explained);
        // The query tree is followed by its route.
        let asks = explained
            .split("\n\n")
            .nth(1)
            .and_then(|it| it.lines().next());
        space["asks"] = asks.into();
        space["query"] = query.into();
    }
    Ok(Json(space))
}

/// Returns a summary of FT.INFO for a space.
async fn describe_space(shared: &Shared, words: &[&str]) -> Result<Value, Refusal> {
    let info = run_command(shared, Id::FtInfo, words).await?;
    let rule = value(&info, "index_definition").unwrap_or(&Reply::Null);
    let texts = |of: &Reply, name: &str| -> Value {
        let items = value(of, name).map(items).unwrap_or_default();
        items.iter().map(text).collect()
    };
    let attributes = value(&info, "attributes").map(items).unwrap_or_default();
    let attributes = attributes.iter().map(|it| {
        let of = |name: &str| value(it, name).map(text);
        json!({ "attribute": of("attribute"), "identifier": of("identifier"), "type": of("type") })
    });
    let mut space = json!({
        "name": value(&info, "index_name").map(text),
        "on": value(rule, "key_type").map(text),
        "prefixes": texts(rule, "prefixes"),
        "attributes": attributes.collect::<Vec<_>>(),
        "subspaces": texts(&info, "subspaces"),
        "objects": number(&info, "num_docs"),
        "memory_bytes": number(&info, "memory_bytes"),
        "fields_that_do_not_fit": number(&info, "hash_indexing_failures"),
        "indexing": number(&info, "indexing") == Some(1.0),
        "percent_indexed": number(&info, "percent_indexed"),
        "copies": number(&info, "copies"),
        "region_answers": number(&info, "region_answers"),
    });
    if let Some(filling) = value(&info, "filling") {
        space["filling"] = json!({
            "subspaces": texts(filling, "subspaces"),
            "copies": number(filling, "copies"),
            "of": number(filling, "of"),
            "regions_filled": number(filling, "regions filled"),
            "regions_in_all": number(filling, "regions in all"),
        });
    }
    if let Some(all) = value(&info, "subspace regions") {
        let all = items(all).iter().map(|subspace| {
            let attributes = value(subspace, "attributes").map(items).unwrap_or_default();
            let attributes = attributes.iter().map(|it| {
                json!({
                    "attribute": value(it, "attribute").map(text),
                    "cells": number(it, "cells"),
                    "cut": value(it, "cut").map(text),
                })
            });
            let numbers = |name: &str| {
                let items = value(subspace, name).map(items)?;
                Some(items.iter().map(number_of).collect::<Vec<_>>())
            };
            json!({
                "serves": number(subspace, "serves") == Some(1.0),
                "attributes": attributes.collect::<Vec<_>>(),
                "copies": numbers("copies"),
                "asked": numbers("asked"),
                "filled": number(subspace, "filled"),
                "of": number(subspace, "of"),
            })
        });
        space["regions"] = all.collect();
    }
    Ok(space)
}

async fn run_command(shared: &Shared, id: Id, words: &[&str]) -> Result<Reply, Refusal> {
    let words = words.iter().map(|word| word.as_bytes());
    let reply = shared.tables.execute(OwnedCommand::of(id, words)).await?;
    let mut replies = Replies::default();
    let mut left = &reply[..];
    while !left.is_empty() {
        let room = replies.input().spare();
        let (now, later) = left.split_at(room.len().min(left.len()));
        room[..now.len()].copy_from_slice(now);
        replies.input().commit(now.len());
        left = later;
    }
    match replies.next_reply() {
        Ok(Some(Reply::Error(error))) => {
            let row = ROWS.iter().find(|row| row.resp_prefix == error.code);
            Err((row.map_or(Code::BadRequest, |row| row.code), error.message))
        }
        Ok(Some(reply)) => Ok(reply),
        _ => Err((
            Code::Io,
            "the reply of an internal command cannot be decoded".to_owned(),
        )),
    }
}

fn value<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let mut pairs = items(reply).chunks_exact(2);
    let found = pairs.find(|pair| text(&pair[0]) == name);
    found.map(|pair| &pair[1])
}

fn items(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) => items,
        _ => &[],
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Simple(text) => text.clone(),
        _ => String::new(),
    }
}

fn number(reply: &Reply, name: &str) -> Option<f64> {
    value(reply, name).and_then(number_of)
}

fn number_of(reply: &Reply) -> Option<f64> {
    match reply {
        Reply::Integer(number) => Some(*number as f64),
        other => text(other).parse().ok(),
    }
}
