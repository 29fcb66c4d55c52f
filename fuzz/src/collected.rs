//! The counts and samples of rows that several builders have collected.

use larder_batch::profile::{COLUMNS_MAX, Collector, Shape};

/// Any bytes are rejected, or encoded again with the same size, which can be decoded again. Decoded collectors can be
/// merged, and yield a profile. Rows with equal hashes have no order.
pub fn collected(bytes: &[u8]) {
    let Ok(collector) = Collector::decode(Shape::Json, bytes) else {
        return;
    };
    let written = collector.encode();
    assert_eq!(written.len(), bytes.len());
    assert!(is_collected(&written));
    let mut all = Collector::new(Shape::Json);
    all.add(b"k", br#"{"a":1,"b":"x"}"#);
    all.merge(collector);
    let profile = all.finish(&["k".to_owned()]);
    assert!(profile.columns.len() <= COLUMNS_MAX);
    serde_json::to_string(&profile).expect("a profile is JSON");
}

/// Returns whether the bytes are an encoded collector.
pub fn is_collected(bytes: &[u8]) -> bool {
    Collector::decode(Shape::Json, bytes).is_ok()
}
