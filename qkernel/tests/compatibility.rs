//! `doc/compatibility.md` says what the system-call table says.

use std::path::Path;

#[path = "../examples/compatibility/page.rs"]
mod page;

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page::PATH);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page::text(),
        "{} is out of date: cargo run -p qkernel --example compatibility",
        path.display()
    );
}
