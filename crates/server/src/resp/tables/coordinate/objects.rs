//! JSON.MSET of documents that several cores have: as one, in a pause. What the documents become is computed here.

use std::collections::BTreeMap;

use larder_protocol::commands::Id;
use larder_protocol::resp::Request;
use larder_space::object::Object;
use larder_types::object_row;

use super::super::super::objects::{broken, refuse_large, set_all, settings};
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

    /// All are read, and what they become is known, before the first is put.
    async fn json_mset_in_pause(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let settings = settings(request)?;
        let mut before = BTreeMap::new();
        for setting in &settings {
            let key = setting.key;
            if before.contains_key(key) {
                continue;
            }
            match self.value(key).await? {
                Ok(Some(_)) => return Err(wrong_type()),
                // Of what is computed or kept elsewhere, this says so.
                Ok(None) => {
                    let reply = self.one(Id::Del, &[key]).await?;
                    if reply.first() == Some(&b'-') {
                        return Ok(reply);
                    }
                }
                Err(error) if is_of_object(&error) => {
                    let object = match self.value(&object_row(key)).await? {
                        Ok(Some(bytes)) => Object::decode(&bytes).map_err(|_| broken())?,
                        Ok(None) => continue,
                        Err(error) => return Ok(error),
                    };
                    before.insert(key, object);
                }
                Err(error) => return Ok(error),
            }
        }
        let after = set_all(settings, &before)?;
        let encoded: Vec<_> = after.iter().map(|(key, it)| (*key, it.encode())).collect();
        for (_, bytes) in &encoded {
            refuse_large(bytes.len())?;
        }
        for (key, bytes) in encoded {
            let args: &[&[u8]] = &[&object_row(key), &bytes, b"KEEPTTL"];
            let reply = self.one(Id::Set, args).await?;
            if reply.first() == Some(&b'-') {
                return Ok(reply);
            }
        }
        Ok(self.encoded(|encoder| encoder.ok()))
    }
}
