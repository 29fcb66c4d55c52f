//! Self-contained HTML pages that open from disk, without network access and scripts: a head, charts, number
//! formatting.
//!
//! ```text
//!  head ─► text and tables, with numbers by `figures` ─► charts as inline SVG (`chart`)
//! ```
//!
//! They follow the reader's light or dark mode (`page.css`). bg writes one for a rating, larder for a plan of
//! subspaces.

pub mod chart;
pub mod figures;

/// Returns the start of a page, up to its text.
pub fn head(title: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{}</style>\n",
        figures::escape(title),
        include_str!("page.css")
    )
}
