//! Values of stores whose partition another node of the cluster has: they are asked for over its HTTP, of the version that the request
//! began with.

use axum::body::Bytes;
use larder_types::slot_of;

use super::reads::absent;
use crate::Shared;
use crate::catalog::LiveStore;
use crate::error::Error;
use crate::fetch::cluster::{http_root, place};

/// The value, from the slot's owner or else from a replica. `encoded`: the key, as it is in the path.
///
/// # Errors
/// [`Error::AbsentKey`]; [`Error::Elsewhere`] if no node gave an answer.
pub async fn value(
    shared: &Shared,
    live: &LiveStore,
    key: &[u8],
    encoded: &str,
) -> Result<Bytes, Error> {
    let Some(membership) = &shared.membership else {
        return Err(not_here(live));
    };
    let view = membership.view();
    let slot = slot_of(&[live.name.as_str().as_bytes(), b":", key].concat());
    let mut failed: Vec<String> = Vec::new();
    for node in view.lookup.placed(slot).holders() {
        let member = view
            .map
            .member(node)
            .filter(|member| view.map.is_up(member.id));
        let Some(root) = member
            .filter(|it| it.id != view.me)
            .and_then(|it| http_root(shared, it))
        else {
            continue;
        };
        let url = format!(
            "{root}/v1/stores/{}/keys/{encoded}?version={}&here=true",
            live.name, live.version_id
        );
        let place = place(shared, &url)?;
        match tokio::time::timeout(shared.http_work.timeout, place.get_all(u64::MAX)).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(larder_remote::Error::NotFound { .. })) => return Err(absent(live, key)),
            Ok(Err(error)) => failed.push(error.to_string()),
            Err(_) => failed.push(format!("{} did not answer in time", view.map.name_of(node))),
        }
    }
    Err(Error::Elsewhere(match failed.is_empty() {
        true => format!("no node that is up has slot {slot}"),
        false => failed.join("; "),
    }))
}

/// The answer to another node that asks for what is not here either.
pub fn not_here(live: &LiveStore) -> Error {
    Error::Elsewhere(format!(
        "this node does not have the key's partition of version {} of store {}",
        live.version_id, live.name
    ))
}
