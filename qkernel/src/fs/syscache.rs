//! /sys/devices/system/cpu/cpuN/cache: what the processors' caches are like.
//!
//! As each CPU is a core of its own in one package here, caches of the first two levels are its
//! own, and all share the others.

use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::S_IFDIR;

use super::synth::{Dir, Node};
use super::sysfs::{Files, Lines, cpu_list, cpu_mask};
use crate::arch;
use crate::arch::cache::{Cache, Kind, caches};

/// Caches of higher levels are shared.
const LAST_OWN_LEVEL: u32 = 2;

/// The directory of one CPU.
pub struct Caches(pub u32);

impl Dir for Caches {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let digits = name.strip_prefix(b"index")?;
        let index: usize = core::str::from_utf8(digits).ok()?.parse().ok()?;
        let cache = *caches().get(index)?;
        let of = Place { cpu: self.0, cache };
        // No other spelling.
        (format!("{index}").as_bytes() == digits)
            .then(|| Node::Dir(Arc::new(Lines { of, files: INDEX })))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        (0..caches().len()).map(|i| (format!("index{i}").into_bytes(), S_IFDIR)).collect()
    }
}

/// A cache of a CPU.
#[derive(Clone, Copy)]
struct Place {
    cpu: u32,
    cache: Cache,
}

/// cpuN/cache/indexM.
const INDEX: Files<Place> = &[
    ("coherency_line_size", |f| f.cache.line_bytes.to_string()),
    ("id", |f| if f.is_shared() { 0 } else { f.cpu }.to_string()),
    ("level", |f| f.cache.level.to_string()),
    ("number_of_sets", |f| f.cache.sets.to_string()),
    ("physical_line_partition", |f| f.cache.partitions.to_string()),
    ("shared_cpu_list", |f| if f.is_shared() { cpu_list() } else { f.cpu.to_string() }),
    ("shared_cpu_map", |f| match f.is_shared() {
        true => cpu_mask(0..arch::boot().cpus),
        false => cpu_mask(f.cpu..f.cpu + 1),
    }),
    ("size", |f| format!("{}K", f.cache.bytes() >> 10)),
    ("type", |f| {
        match f.cache.kind {
            Kind::Data => "Data",
            Kind::Instruction => "Instruction",
            Kind::Unified => "Unified",
        }
        .to_string()
    }),
    ("ways_of_associativity", |f| f.cache.ways.to_string()),
];

impl Place {
    fn is_shared(&self) -> bool {
        self.cache.level > LAST_OWN_LEVEL
    }
}
