//! The reply of FT.SEARCH. In RESP2, it is an array of the total and, for each row, its key and contents; in RESP3, a
//! map.

use larder_protocol::resp::{Encoder, Proto};
use larder_space::base::ordered::Scalar;
use larder_space::search::partial::print_sort_value;
use larder_space::search::{Content, Search};

pub(super) struct SearchReply<'a> {
    encoder: Encoder<'a>,
    search: &'a Search,
    has_content: bool,
    /// Number of elements of a row besides its key and, in RESP3, its values.
    extras: usize,
}

/// Writes the number of names and values that follow.
pub(super) type Head<'h> = &'h dyn Fn(&mut Vec<u8>, usize);

impl<'a> SearchReply<'a> {
    /// Starts a reply. The caller then appends `rows` rows and calls `end`.
    pub fn start(
        out: &'a mut Vec<u8>,
        proto: Proto,
        search: &'a Search,
        total: u64,
        rows: usize,
    ) -> SearchReply<'a> {
        let has_content = search.content != Content::Nothing;
        let extras = [has_content, search.with_payloads, search.with_sort_keys];
        let mut reply = SearchReply {
            encoder: Encoder { out, proto },
            search,
            has_content,
            extras: extras.iter().filter(|is_on| **is_on).count(),
        };
        let encoder = &mut reply.encoder;
        match proto {
            Proto::Resp2 => {
                encoder.array(1 + rows * (1 + reply.extras));
                encoder.count(total);
            }
            Proto::Resp3 => {
                encoder.map(5);
                encoder.text("attributes");
                encoder.array(0);
                encoder.text("format");
                encoder.text("STRING");
                encoder.text("results");
                encoder.array(rows);
            }
        }
        reply
    }

    /// Appends a row. `content` appends names and values as bulk strings, after their head.
    ///
    /// # Errors
    /// The error of `content`.
    pub fn push_row<E>(
        &mut self,
        key: &[u8],
        sorted_by: impl FnOnce() -> Option<Scalar>,
        content: impl FnOnce(&mut Vec<u8>, Head<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (encoder, search) = (&mut self.encoder, self.search);
        let is_map = encoder.proto == Proto::Resp3;
        let name = |encoder: &mut Encoder<'_>, name: &str| {
            if is_map {
                encoder.text(name);
            }
        };
        if is_map {
            encoder.map(2 + self.extras);
        }
        name(encoder, "id");
        encoder.bulk(key);
        if search.with_payloads {
            name(encoder, "payload");
            encoder.null();
        }
        if search.with_sort_keys {
            name(encoder, "sortkey");
            match sorted_by() {
                Some(value) => encoder.bulk(&print_sort_value(&value)),
                None => encoder.null(),
            }
        }
        if self.has_content {
            name(encoder, "extra_attributes");
            let proto = encoder.proto;
            content(encoder.out, &|out, pairs| Encoder { out, proto }.map(pairs))?;
        }
        if is_map {
            encoder.text("values");
            encoder.array(0);
        }
        Ok(())
    }

    pub fn finish(mut self, total: u64) {
        if self.encoder.proto == Proto::Resp3 {
            self.encoder.text("total_results");
            self.encoder.count(total);
            self.encoder.text("warning");
            self.encoder.array(0);
        }
    }
}
