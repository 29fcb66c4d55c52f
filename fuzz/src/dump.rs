//! The payload of RESTORE.

use larder_protocol::dump::{DumpLimits, DumpValue, reseal};

const LIMITS: DumpLimits = DumpLimits {
    text_bytes: 1 << 16,
    object_bytes: 1 << 16,
};

/// Decodes a payload unchanged and with a correct checksum. Decoded objects are within the limits, and survive DUMP.
pub fn dump(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    for payload in [bytes, &sealed] {
        let Ok(dumped) = DumpValue::decode(payload, LIMITS) else {
            continue;
        };
        let size = match &dumped {
            DumpValue::Text(text) | DumpValue::Json(text) => text.len(),
            DumpValue::Hash(fields) => fields.iter().map(|it| it.name.len() + it.value.len()).sum(),
        };
        assert!(size <= 1 << 16, "{size} bytes");
        assert_eq!(DumpValue::decode(&dumped.encode(), LIMITS), Ok(dumped));
    }
}

/// Returns whether the payload can be decoded with a correct checksum.
pub fn is_dump(bytes: &[u8]) -> bool {
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    DumpValue::decode(&sealed, LIMITS).is_ok()
}
