//! MODULE LIST and the modules section of INFO. They list the Redis modules whose commands larder implements, FT.* and
//! JSON.*, because object mappers check for these modules before they use the commands.

use std::fmt::Write as _;

use larder_protocol::resp::Encoder;

use super::super::state::ConnectionState;

/// Redis's names of the modules, and the versions whose commands are followed: 20810 is 2.8.10.
const MODULES: [(&str, u64); 2] = [("search", 20810), ("ReJSON", 20808)];

pub(in crate::resp) fn modules(state: &mut ConnectionState) {
    put_modules(&mut state.encoder());
}

/// Appends the module list, for MODULE LIST and HELLO.
pub(in crate::resp) fn put_modules(encoder: &mut Encoder<'_>) {
    encoder.array(MODULES.len());
    for (name, version) in MODULES {
        encoder.map(4);
        super::encode_pair(encoder, "name", name);
        encoder.text("ver");
        encoder.count(version);
        super::encode_pair(encoder, "path", "");
        encoder.text("args");
        encoder.array(0);
    }
}

pub(super) fn info_modules() -> String {
    let mut text = String::new();
    for (name, version) in MODULES {
        let _ = write!(
            text,
            "module:name={name},ver={version},api=1,filters=0,usedby=[],using=[],options=[]\r\n"
        );
    }
    text
}
