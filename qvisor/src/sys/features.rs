//! What this host's kernel and processors can do.
#![allow(unsafe_code)]

/// True if this host ends a receive of a seccomp listener when all tasks are gone (Linux 6.11).
pub fn receive_ends() -> bool {
    host_release() >= (6, 11)
}

/// The host's release, as (major, minor).
pub fn host_release() -> (u32, u32) {
    let name = rustix::system::uname();
    let mut parts = name
        .release()
        .to_str()
        .unwrap_or_default()
        .split(['.', '-'])
        .map(|p| p.trim().parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// How many mappings the host lets a process have (proc(5), vm.max_map_count); its default where it
/// does not say.
pub fn max_map_count() -> u64 {
    const DEFAULT: u64 = 65530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(DEFAULT)
}

/// AT_HWCAP2: programs may use RDFSBASE and its kin.
pub const HWCAP2_FSGSBASE: u64 = 2;

/// AT_HWCAP2 of this process.
pub fn hwcap2() -> u64 {
    // SAFETY: a plain query.
    unsafe { libc::getauxval(libc::AT_HWCAP2) }
}

/// True if programs may use RDFSBASE and its kin.
pub fn has_fsgsbase() -> bool {
    hwcap2() & HWCAP2_FSGSBASE != 0
}

/// AT_MINSIGSTKSZ: bytes that the largest signal frame of this host takes.
pub fn min_signal_stack() -> u64 {
    // SAFETY: a plain query.
    unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) }
}
