//! A watch: one request whose endless response is a line of JSON per batch of changes.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use futures::stream::{self, BoxStream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;

use super::http::EtcdMembers;
use super::wire::{self, KeyCodec};
use crate::coordination::{KeyEvent, Keys, Revision, WatchItem};

pub fn watch(
    members: Arc<EtcdMembers>,
    keys_codec: KeyCodec,
    keys: &Keys,
    after: Revision,
) -> BoxStream<'static, WatchItem> {
    let mut create = keys_codec.range(keys);
    create["start_revision"] = (after.0 + 1).to_string().into();
    let request = json!({ "create_request": create });
    let opened = async move {
        let body = members.stream("watch", &request).await?;
        Some(WatchLines {
            body,
            keys_codec,
            bytes: BytesMut::new(),
            searched: 0,
            items: VecDeque::new(),
        })
    };
    let lines = stream::once(opened);
    use futures::StreamExt as _;
    Box::pin(lines.flat_map(|lines| {
        stream::unfold(lines, |lines| async {
            let mut lines = lines?;
            let items = lines.next().await?;
            let continues = items != WatchItem::Compacted;
            Some((items, continues.then_some(lines)))
        })
    }))
}

struct WatchLines {
    body: Incoming,
    keys_codec: KeyCodec,
    bytes: BytesMut,
    /// Number of bytes already searched for the end of a line.
    searched: usize,
    items: VecDeque<WatchItem>,
}

impl WatchLines {
    /// Returns `None` when the watch ends: the connection broke, or etcd sent something unreadable.
    async fn next(&mut self) -> Option<WatchItem> {
        loop {
            if let Some(items) = self.items.pop_front() {
                return Some(items);
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
                let items = self.read(&line)?;
                self.items.extend(items);
            }
            self.searched = self.bytes.len();
        }
    }

    /// Parses a line. The inner `None` is a line without events, such as the confirmation of the watch; the outer `None` ends the
    /// watch.
    fn read(&self, line: &[u8]) -> Option<Option<WatchItem>> {
        let line: wire::StreamMessage<wire::Watch> = serde_json::from_slice(line).ok()?;
        let message = line.result;
        if message.canceled {
            return (message.compact_revision > 0).then_some(Some(WatchItem::Compacted));
        }
        let events = message
            .events
            .into_iter()
            .map(|event| self.keys_codec.event(event));
        let events: Vec<KeyEvent> = events.collect::<Result<_, _>>().ok()?;
        Some((!events.is_empty()).then_some(WatchItem::Events(events)))
    }
}
