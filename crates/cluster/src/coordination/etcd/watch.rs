//! A watch: one request whose endless response is a line of JSON per batch of changes.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use futures::stream::{self, BoxStream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;

use super::http::Members;
use super::wire::{self, Names};
use crate::coordination::{Event, Keys, Revision, Watched};

pub fn watch(
    members: Arc<Members>,
    names: Names,
    keys: &Keys,
    after: Revision,
) -> BoxStream<'static, Watched> {
    let mut create = names.range(keys);
    create["start_revision"] = (after.0 + 1).to_string().into();
    let request = json!({ "create_request": create });
    let opened = async move {
        let body = members.stream("watch", &request).await?;
        Some(Lines {
            body,
            names,
            bytes: BytesMut::new(),
            searched: 0,
            heard: VecDeque::new(),
        })
    };
    let lines = stream::once(opened);
    use futures::StreamExt as _;
    Box::pin(lines.flat_map(|lines| {
        stream::unfold(lines, |lines| async {
            let mut lines = lines?;
            let heard = lines.next().await?;
            let goes_on = heard != Watched::Compacted;
            Some((heard, goes_on.then_some(lines)))
        })
    }))
}

struct Lines {
    body: Incoming,
    names: Names,
    bytes: BytesMut,
    /// Number of bytes already searched for the end of a line.
    searched: usize,
    heard: VecDeque<Watched>,
}

impl Lines {
    /// Returns `None` when the watch ends: the connection broke, or etcd sent something unreadable.
    async fn next(&mut self) -> Option<Watched> {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return Some(heard);
            }
            let frame = self.body.frame().await?.ok()?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            self.bytes.extend_from_slice(data);
            while let Some(at) = self.bytes[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                let line = self.bytes.split_to(self.searched + at + 1);
                self.searched = 0;
                let heard = self.read(&line)?;
                self.heard.extend(heard);
            }
            self.searched = self.bytes.len();
        }
    }

    /// Parses a line. The inner `None` is a line without events, such as the confirmation of the watch; the outer `None` ends the
    /// watch.
    fn read(&self, line: &[u8]) -> Option<Option<Watched>> {
        let line: wire::Streamed<wire::Watch> = serde_json::from_slice(line).ok()?;
        let told = line.result;
        if told.canceled {
            return (told.compact_revision > 0).then_some(Some(Watched::Compacted));
        }
        let events = told.events.into_iter().map(|event| self.names.event(event));
        let events: Vec<Event> = events.collect::<Result<_, _>>().ok()?;
        Some((!events.is_empty()).then_some(Watched::Events(events)))
    }
}
