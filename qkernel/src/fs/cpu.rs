//! What the processor says of itself, for /proc/cpuinfo.

use alloc::string::String;
use alloc::vec::Vec;
use core::arch::x86_64::{__cpuid, __cpuid_count};

/// A description of the processor.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Cpu {
    pub vendor: String,
    pub name: String,
    pub family: u32,
    pub model: u32,
    pub stepping: u32,
    /// Features by their names in /proc/cpuinfo.
    pub flags: String,
}

/// (bit, name) of the features reported by leaf 1 in %edx and %ecx, leaf 7 in %ebx, and the
/// extended leaf in %edx and %ecx.
const LEAF1_EDX: &[(u32, &str)] = &[
    (0, "fpu"),
    (3, "pse"),
    (4, "tsc"),
    (5, "msr"),
    (6, "pae"),
    (8, "cx8"),
    (11, "sep"),
    (13, "pge"),
    (15, "cmov"),
    (16, "pat"),
    (19, "clflush"),
    (23, "mmx"),
    (24, "fxsr"),
    (25, "sse"),
    (26, "sse2"),
    (28, "ht"),
];
const LEAF1_ECX: &[(u32, &str)] = &[
    (0, "pni"),
    (1, "pclmulqdq"),
    (9, "ssse3"),
    (12, "fma"),
    (13, "cx16"),
    (19, "sse4_1"),
    (20, "sse4_2"),
    (22, "movbe"),
    (23, "popcnt"),
    (25, "aes"),
    (26, "xsave"),
    (28, "avx"),
    (29, "f16c"),
    (30, "rdrand"),
    (31, "hypervisor"),
];
const LEAF7_EBX: &[(u32, &str)] = &[
    (0, "fsgsbase"),
    (3, "bmi1"),
    (5, "avx2"),
    (8, "bmi2"),
    (9, "erms"),
    (16, "avx512f"),
    (17, "avx512dq"),
    (18, "rdseed"),
    (19, "adx"),
    (23, "clflushopt"),
    (24, "clwb"),
    (28, "avx512cd"),
    (29, "sha_ni"),
    (30, "avx512bw"),
    (31, "avx512vl"),
];
const EXTENDED_EDX: &[(u32, &str)] =
    &[(11, "syscall"), (20, "nx"), (26, "pdpe1gb"), (27, "rdtscp"), (29, "lm")];
const EXTENDED_ECX: &[(u32, &str)] = &[(0, "lahf_lm"), (5, "abm"), (8, "3dnowprefetch")];

fn text(registers: &[u32]) -> String {
    let bytes: Vec<u8> =
        registers.iter().flat_map(|r| r.to_le_bytes()).filter(|b| *b != 0).collect();
    String::from(String::from_utf8_lossy(&bytes).trim())
}

/// Asks the processor.
pub fn describe() -> Cpu {
    let (zero, one, seven) = (__cpuid(0), __cpuid(1), __cpuid_count(7, 0));
    let highest = __cpuid(0x8000_0000).eax;
    let extended = __cpuid(0x8000_0001);
    let mut brand = Vec::new();
    if highest >= 0x8000_0004 {
        for leaf in 0x8000_0002..=0x8000_0004 {
            let part = __cpuid(leaf);
            brand.extend([part.eax, part.ebx, part.ecx, part.edx]);
        }
    }
    let base_family = one.eax >> 8 & 0xf;
    let family =
        if base_family == 0xf { base_family + (one.eax >> 20 & 0xff) } else { base_family };
    let model = (one.eax >> 4 & 0xf)
        | if base_family == 6 || base_family == 0xf { one.eax >> 12 & 0xf0 } else { 0 };
    let mut flags = String::new();
    for (word, names) in [
        (one.edx, LEAF1_EDX),
        (one.ecx, LEAF1_ECX),
        (seven.ebx, LEAF7_EBX),
        (extended.edx, EXTENDED_EDX),
        (extended.ecx, EXTENDED_ECX),
    ] {
        for (_, name) in names.iter().filter(|(bit, _)| word >> bit & 1 != 0) {
            if !flags.is_empty() {
                flags.push(' ');
            }
            flags.push_str(name);
        }
    }
    Cpu {
        vendor: text(&[zero.ebx, zero.edx, zero.ecx]),
        name: text(&brand),
        family,
        model,
        stepping: one.eax & 0xf,
        flags,
    }
}
