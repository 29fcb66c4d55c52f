//! JSON.MSET of documents on several cores, atomically in a pause. This core computes the new documents.

use std::collections::BTreeMap;

use larder_protocol::commands::Id;
use larder_protocol::resp::Request;
use larder_space::object::{Document, Object};

use super::super::super::objects::{
    assign_all, check_object_size, corrupted_object, parse_assignments,
};
use super::super::super::reply_decoding;
use super::Coordinator;
use super::keys::is_of_object;
use crate::tables::Refusal;
use crate::tables::objects::wrong_type;

impl Coordinator {
    pub(super) async fn json_mset(&mut self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let paused = self.pause().await?;
        let done = self.json_mset_in_pause(request).await;
        self.resume(paused).await?;
        done
    }

    /// Reads all documents and computes the new ones before the first is put.
    async fn json_mset_in_pause(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let settings = parse_assignments(request)?;
        let mut before = BTreeMap::new();
        for setting in &settings {
            let key = setting.key;
            if before.contains_key(key) {
                continue;
            }
            match self.read_value(key).await? {
                Ok(Some(_)) => return Err(wrong_type()),
                // Returns an error for a key of a computed or mapped table.
                Ok(None) => {
                    let reply = self.execute_on_owner(Id::Del, &[key]).await?;
                    if reply.first() == Some(&b'-') {
                        return Ok(reply);
                    }
                }
                Err(error) if is_of_object(&error) => {
                    let reply = self.execute_on_owner(Id::JsonGet, &[key]).await?;
                    if reply.first() == Some(&b'-') {
                        // The key holds a hash.
                        return Ok(reply);
                    }
                    let Some(text) = reply_decoding::decode_value(&reply) else {
                        // The key has expired since then.
                        continue;
                    };
                    let document = Document::parse(text).map_err(|_| corrupted_object())?;
                    let object = Object::Json(document);
                    before.insert(key, object);
                }
                Err(error) => return Ok(error),
            }
        }
        let after = assign_all(settings, &before)?;
        for object in after.values() {
            check_object_size(object.encode().len())?;
        }
        for (key, object) in &after {
            let Object::Json(document) = object else {
                return Err(wrong_type());
            };
            let args: &[&[u8]] = &[key, b"$", &document.print()];
            let reply = self.execute_on_owner(Id::JsonSet, args).await?;
            if reply.first() == Some(&b'-') {
                return Ok(reply);
            }
        }
        Ok(self.encode(|encoder| encoder.ok()))
    }
}
