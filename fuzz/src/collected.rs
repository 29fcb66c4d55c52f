//! What several builders have counted and sampled of their rows.

use larder_batch::profile::{COLUMNS_MAX, Collector, Shape};

/// Any bytes are refused, or are as many as a collector writes again, which are read again; then they can be merged, and make a profile. Rows of one
/// hash have no order.
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

/// Whether they are what a collector wrote.
pub fn is_collected(bytes: &[u8]) -> bool {
    Collector::decode(Shape::Json, bytes).is_ok()
}
