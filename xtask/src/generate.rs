//! Reference pages, written from the tables that the server itself runs on.

use std::fs;

use crate::tree;

/// One generated page: its path and what it must hold.
struct Page {
    path: &'static str,
    text: String,
}

fn pages() -> Vec<Page> {
    Vec::new()
}

/// Writes every page that is not already as it should be.
pub fn write() -> Result<(), String> {
    for page in pages() {
        if on_disk(&page) != page.text {
            let path = tree::root().join(page.path);
            let folder = path.parent().expect("a page lies in a folder");
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&path, &page.text))
                .map_err(|error| format!("cannot write {}: {error}", page.path))?;
            println!("gen: wrote {}", page.path);
        }
    }
    Ok(())
}

/// The pages that are not what the tables say.
pub fn stale() -> Result<Vec<&'static str>, String> {
    Ok(pages()
        .into_iter()
        .filter(|page| on_disk(page) != page.text)
        .map(|page| page.path)
        .collect())
}

fn on_disk(page: &Page) -> String {
    tree::text(page.path).ok().flatten().unwrap_or_default()
}
