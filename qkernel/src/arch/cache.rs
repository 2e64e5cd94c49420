//! The caches of the processors, as CPUID tells: Intel's manual, volume 2, leaf 4; AMD's, volume 3,
//! leaf 8000_001D of the same form, and 8000_0005 and 8000_0006 of those that lack it.

use alloc::vec::Vec;
use core::arch::x86_64::__cpuid_count;

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Data,
    Instruction,
    Unified,
}

/// One cache of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is next to the processor.
    pub level: u32,
    /// What it holds.
    pub kind: Kind,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// Lines that share a tag.
    pub partitions: u32,
    /// Lines that an address may lie in.
    pub ways: u32,
    /// Groups of so many lines.
    pub sets: u32,
}

/// Caches that a processor may tell of: more than any has.
const MOST: u32 = 16;
const INTEL_LEAF: u32 = 4;
const AMD_LEAF: u32 = 0x8000_001d;
const FIRST_LEVEL_LEAF: u32 = 0x8000_0005;
const HIGHER_LEVELS_LEAF: u32 = 0x8000_0006;
/// Of leaf 8000_0001's ECX: there is AMD's leaf (TOPOEXT).
const HAS_AMD_LEAF: u32 = 1 << 22;

impl Cache {
    /// What EAX, EBX and ECX of the leaf say; `None` after the last one.
    fn from_registers(eax: u32, ebx: u32, ecx: u32) -> Option<Cache> {
        let kind = match eax & 0x1f {
            1 => Kind::Data,
            2 => Kind::Instruction,
            3 => Kind::Unified,
            _ => return None,
        };
        Some(Cache {
            level: eax >> 5 & 7,
            kind,
            line_bytes: (ebx & 0xfff) + 1,
            partitions: (ebx >> 12 & 0x3ff) + 1,
            ways: (ebx >> 22) + 1,
            sets: ecx.saturating_add(1),
        })
    }

    /// What leaf 8000_0005 says of one of the first level.
    fn of_first_level(kind: Kind, told: u32) -> Option<Cache> {
        Cache::of_size(1, kind, u64::from(told >> 24) << 10, told >> 16 & 0xff, told)
    }

    /// What leaf 8000_0006 says of one of a higher level, which holds so many bytes.
    fn of_level(level: u32, bytes: u64, told: u32) -> Option<Cache> {
        let ways = match told >> 12 & 0xf {
            few @ 1..=4 => few,
            0x5 => 6,
            0x6 => 8,
            0x8 => 16,
            0xa => 32,
            0xb => 48,
            0xc => 64,
            0xd => 96,
            0xe => 128,
            _ => 0,
        };
        Cache::of_size(level, Kind::Unified, bytes, ways, told)
    }

    /// `None` if there is none, or one whose shape has no numbers.
    fn of_size(level: u32, kind: Kind, bytes: u64, ways: u32, told: u32) -> Option<Cache> {
        let line_bytes = told & 0xff;
        let sets = bytes.checked_div(u64::from(line_bytes * ways))?;
        let sets = u32::try_from(sets).ok().filter(|sets| *sets > 0)?;
        Some(Cache { level, kind, line_bytes, partitions: 1, ways, sets })
    }

    /// Number `index` of a processor of AMD that has no leaf 8000_001D.
    fn of_old_amd(index: u32) -> Option<Cache> {
        let first = || __cpuid_count(FIRST_LEVEL_LEAF, 0);
        let higher = || __cpuid_count(HIGHER_LEVELS_LEAF, 0);
        match index {
            0 => Cache::of_first_level(Kind::Data, first().ecx),
            1 => Cache::of_first_level(Kind::Instruction, first().edx),
            2 => Cache::of_level(2, u64::from(higher().ecx >> 16) << 10, higher().ecx),
            3 => Cache::of_level(3, u64::from(higher().edx >> 18) << 19, higher().edx),
            _ => None,
        }
    }

    /// How much it holds, in bytes.
    pub fn bytes(&self) -> u64 {
        [self.line_bytes, self.partitions, self.ways, self.sets].map(u64::from).iter().product()
    }
}

/// Those of a processor, from the smallest on; none where CPUID does not tell.
pub fn caches() -> Vec<Cache> {
    let most_extended = __cpuid_count(0x8000_0000, 0).eax;
    let has_amd_leaf =
        most_extended >= AMD_LEAF && __cpuid_count(0x8000_0001, 0).ecx & HAS_AMD_LEAF != 0;
    let of_leaf = |leaf, index| {
        let told = __cpuid_count(leaf, index);
        Cache::from_registers(told.eax, told.ebx, told.ecx)
    };
    let is_there = |leaf: &u32| match *leaf {
        AMD_LEAF => has_amd_leaf,
        leaf => __cpuid_count(0, 0).eax >= leaf && of_leaf(leaf, 0).is_some(),
    };
    let leaf = [AMD_LEAF, INTEL_LEAF].into_iter().find(is_there);
    match leaf {
        Some(leaf) => (0..MOST).map_while(|index| of_leaf(leaf, index)).collect(),
        // Those that are told of: an older KVM says nothing of the first level.
        None if most_extended >= HIGHER_LEVELS_LEAF => {
            (0..MOST).filter_map(Cache::of_old_amd).collect()
        }
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_tells_size_and_shape() {
        // 32 MiB, level 3, of 64-byte lines in 16 ways.
        let cache = Cache::from_registers(0x0000_4163, 0x03c0_003f, 32_767).unwrap();
        assert_eq!((cache.level, cache.kind, cache.bytes()), (3, Kind::Unified, 32 << 20));
        assert_eq!((cache.line_bytes, cache.ways, cache.partitions), (64, 16, 1));
        assert_eq!(Cache::from_registers(0, 0, 0), None);
        // 64 KiB in 2 ways; 512 KiB in 8; 8 MiB in 16; none, and one without a shape.
        let shape = |cache: Option<Cache>| cache.map(|c| (c.bytes(), c.ways, c.line_bytes));
        let first = Cache::of_first_level(Kind::Data, 0x4002_0140);
        assert_eq!(shape(first), Some((64 << 10, 2, 64)));
        assert_eq!(shape(Cache::of_level(2, 512 << 10, 0x0200_6140)), Some((512 << 10, 8, 64)));
        assert_eq!(shape(Cache::of_level(3, 8 << 20, 0x0040_8140)), Some((8 << 20, 16, 64)));
        for told in [0, 0xf140, 0x0140, 0x8000] {
            assert_eq!(Cache::of_level(3, 1 << 20, told), None, "{told:x}");
        }
        // Nothing overflows.
        assert!(Cache::from_registers(!0x1f | 1, u32::MAX, u32::MAX).unwrap().bytes() > 0);
    }
}
