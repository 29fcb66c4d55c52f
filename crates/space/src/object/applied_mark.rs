//! Idempotent changes. The id of a request is stored in the object together with the change, so a retried request is
//! recognized as a duplicate.
//!
//! In HyperDex, clients number their requests and servers store the numbers. Here, a client that needs idempotency
//! names a location in the object for the id, so only such objects pay for it. A location holds only the most recent
//! id. A client with several requests in flight needs a location for each.

use serde_json::Value;

use super::{Change, Object, Target, document};

#[derive(Debug, Clone, PartialEq)]
pub struct AppliedMark {
    pub target: Target,
    pub id: Vec<u8>,
}

impl AppliedMark {
    /// Returns whether the object contains the id, so that the change was already applied.
    pub fn is_in(&self, object: &Object) -> bool {
        let is_id = |value: &Value| value.as_str().map(str::as_bytes) == Some(&self.id);
        let is_at = |root: &Value| match &self.target.path {
            Some(path) => path.select(root).into_iter().any(is_id),
            None => false,
        };
        match (object, &self.target.field) {
            (Object::Hash(hash), Some(field)) => match (hash.get(field), &self.target.path) {
                (Some(value), None) => value == self.id,
                (Some(text), Some(_)) => document::parse(text).is_ok_and(|root| is_at(&root)),
                (None, _) => false,
            },
            (Object::Json(document), None) => is_at(&document.root),
            _ => false,
        }
    }

    /// Returns the change that stores the id. `None` if the location is in JSON and the id is not UTF-8.
    pub fn change(&self) -> Option<(Target, Change)> {
        let value = match self.target.path {
            None => self.id.clone(),
            Some(_) => {
                let id = std::str::from_utf8(&self.id).ok()?;
                document::print(&Value::String(id.to_owned()))
            }
        };
        Some((self.target.clone(), Change::Put(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Document, Hash, ObjectKind, Path, apply};
    use super::*;

    fn mark(field: Option<&str>, path: Option<&str>, id: &str) -> AppliedMark {
        AppliedMark {
            target: Target {
                field: field.map(|it| it.as_bytes().to_vec()),
                path: path.map(|it| Path::parse(it).expect("a path")),
            },
            id: id.as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_stored_mark_is_found_and_other_marks_are_not() {
        let hash = Object::Hash(Hash::default());
        let document = Document::parse(b"{\"a\":1}").expect("JSON");
        for (object, field, path) in [
            (hash.clone(), Some("last"), None),
            (hash, Some("marks"), Some("$.of.me")),
            (Object::Json(document), None, Some("$.marks.me")),
        ] {
            let (one, other) = (mark(field, path, "w\"17"), mark(field, path, "w\"18"));
            assert!(!one.is_in(&object));
            let change = one.change().expect("text");
            let after =
                apply(Some(&object), object.kind(), &[change]).expect("the change is applied");
            assert!(one.is_in(&after) && !other.is_in(&after));
        }
    }

    #[test]
    fn non_text_ids_are_stored_only_in_fields() {
        let mut one = mark(Some("last"), None, "");
        one.id = vec![0xff];
        let change = one.change().expect("a field has any bytes");
        let after = apply(None, ObjectKind::Hash, &[change]).expect("the change is applied");
        assert!(one.is_in(&after));
        one.target = mark(Some("last"), Some("$.me"), "").target;
        assert_eq!(one.change(), None);
        assert!(!one.is_in(&after));
    }
}
