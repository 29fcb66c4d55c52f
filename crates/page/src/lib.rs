//! What pages have in common that open from disk, ask nothing of the network and run no script: a head, charts, figures.
//!
//! ```text
//!  head ─► text and tables, with numbers by `figures` ─► charts as inline SVG (`chart`)
//! ```
//!
//! They follow the reader's light or dark (`page.css`). Who writes one: bg for a rating, larder for a plan of subspaces.

pub mod chart;
pub mod figures;

/// The beginning of a page, up to where its text begins.
pub fn head(title: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{}</style>\n",
        figures::escape(title),
        include_str!("page.css")
    )
}
