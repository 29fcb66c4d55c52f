//! PUBLISH and PUBSUB: messages between clients of this node (see `clients::channels`).

use std::sync::Arc;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::state::ConnectionState;
use crate::clients::CHANNEL_BYTES_MAX;
use crate::error::Refusal;
use crate::glob::Glob;

pub(super) fn publish(state: &mut ConnectionState, request: Request<'_>) {
    if let Err(refusal) = check_channel_length(request.arg(1)) {
        return state.refuse(refusal);
    }
    let channels = &state.core.shared.tables.channels;
    let sent = channels.publish(request.arg(1), request.arg(2));
    state.encoder().count(sent as u64);
}

/// # Errors
/// The channel's name is longer than PUBLISH permits, so no message could arrive.
pub(super) fn check_channel_length(channel: &[u8]) -> Result<(), Refusal> {
    if channel.len() > CHANNEL_BYTES_MAX {
        let message = format!(
            "the channel's name has {} bytes; {CHANNEL_BYTES_MAX} are allowed",
            channel.len()
        );
        Err((Code::BadRequest, message))
    } else {
        Ok(())
    }
}

pub(super) fn pubsub(state: &mut ConnectionState, request: Request<'_>) {
    let shared = state.core.shared.clone();
    let channels = &shared.tables.channels;
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"CHANNELS" => {
            let glob = request.get(2).map(Glob::parse).transpose();
            let names = match glob {
                Ok(Some(glob)) if glob.cost() > 1 && channels.count() > glob.texts_max() => {
                    let message = format!(
                        "matching {} channels with this pattern is too expensive: use a pattern with a shorter text after *",
                        channels.count()
                    );
                    return state.error(Code::BadRequest, &message);
                }
                Ok(glob) => {
                    let is_match = |name: &[u8]| glob.as_ref().is_none_or(|it| it.matches(name));
                    channels.names(is_match)
                }
                Err(refusal) => return state.refuse(refusal),
            };
            let mut encoder = state.encoder();
            encoder.array(names.len());
            names.iter().for_each(|name: &Arc<[u8]>| encoder.bulk(name));
        }
        b"NUMPAT" => state.encoder().count(channels.patterns() as u64),
        _ => {
            let mut encoder = state.encoder();
            encoder.array(2 * (request.len() - 2));
            for name in request.args().skip(2) {
                encoder.bulk(name);
                encoder.count(channels.subscribers(name) as u64);
            }
        }
    }
}
