//! `/v1/stats`.
pub async fn stats() -> &'static str {
    "{}"
}
