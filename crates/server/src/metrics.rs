//! `/metrics`.
pub async fn scrape() -> &'static str {
    ""
}
