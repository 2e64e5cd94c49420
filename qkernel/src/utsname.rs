//! What uname(2) reports: release and version of the system, names of the container.

use alloc::string::{String, ToString};

use crate::sync::{Mutex, mutex};

/// The release that uname(2) reports: the Linux whose interface this is.
pub const RELEASE: &str = "6.1.0-quark";
/// The version that uname(2) reports.
pub const VERSION: &str = concat!("#1 SMP quark ", env!("CARGO_PKG_VERSION"));

/// The most bytes of a host or domain name (__NEW_UTS_LEN).
pub const NAME_BYTES: usize = 64;

/// Host and domain name of the container.
static NAMES: Mutex<(String, String)> = mutex((String::new(), String::new()));

/// The container's host name.
pub fn hostname() -> String {
    NAMES.lock().0.clone()
}

/// Sets it.
pub fn set_hostname(name: String) {
    NAMES.lock().0 = name;
}

/// The container's NIS domain name.
pub fn domainname() -> String {
    let domain = NAMES.lock().1.clone();
    if domain.is_empty() { "(none)".to_string() } else { domain }
}

/// Sets it.
pub fn set_domainname(name: String) {
    NAMES.lock().1 = name;
}
