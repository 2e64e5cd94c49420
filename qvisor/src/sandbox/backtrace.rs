//! Names the kernel's own functions in a report of its panic, from the symbol table of the embedded
//! image.

use std::fmt::Write;

use object::{Object, ObjectSegment, ObjectSymbol};

use super::loader::embedded_image;

const MAX_FRAMES: usize = 48;

/// Bytes of memory that the image takes.
pub fn image_bytes() -> u64 {
    object::File::parse(embedded_image()).map_or(0, |f| {
        f.segments().map(|s| s.address().saturating_add(s.size())).max().unwrap_or(0)
    })
}

/// The return addresses from `rip` on, found by following frame pointers from `frame` while they
/// lead through the image that lies at `base`. `read` gives the two words at an address.
pub fn walk(base: u64, rip: u64, frame: u64, read: &dyn Fn(u64) -> Option<(u64, u64)>) -> Vec<u64> {
    let image = base..base + image_bytes();
    let mut trace = vec![rip];
    let mut frame = frame;
    while trace.len() < MAX_FRAMES {
        let Some((next, ret)) = read(frame) else { break };
        if !image.contains(&ret) {
            break;
        }
        trace.push(ret);
        // Stacks grow down, so callers lie higher.
        if next <= frame {
            break;
        }
        frame = next;
    }
    trace
}

/// One line for each address: its offset in the image, and the function.
pub fn describe(base: u64, trace: &[u64]) -> String {
    let file = object::File::parse(embedded_image()).ok();
    let mut text = String::new();
    for (i, addr) in trace.iter().enumerate() {
        let offset = addr.wrapping_sub(base);
        // A return address may lie just behind its function.
        let at = if i == 0 { offset } else { offset.wrapping_sub(1) };
        let symbol = file.iter().flat_map(|f| f.symbols()).find(|s| {
            s.kind() == object::SymbolKind::Text
                && (s.address()..s.address() + s.size().max(1)).contains(&at)
        });
        let name = symbol
            .and_then(|s| s.name().ok().map(|n| format!("{:#}", rustc_demangle::demangle(n))));
        let name = name.unwrap_or_else(|| "?".into());
        writeln!(text, "  {i:2}: {offset:#010x} {name}").ok();
    }
    text
}
