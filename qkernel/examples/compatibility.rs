//! Writes `doc/compatibility.md` from the system-call table: `cargo run -p qkernel --example
//! compatibility`.

use std::path::Path;

#[path = "compatibility/page.rs"]
mod page;

fn main() -> std::io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page::PATH);
    std::fs::write(&path, page::text())?;
    println!("wrote {}", path.display());
    Ok(())
}
