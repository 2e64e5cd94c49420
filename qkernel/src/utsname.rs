//! What uname(2) reports: release and version of the system, and the names that each UTS namespace
//! has of its own (uts_namespaces(7)).

use alloc::string::{String, ToString};
use alloc::sync::Arc;

use crate::namespace::{self, INITIAL_UTS};
use crate::sync::{Mutex, Once};
use crate::user_namespace::UserNs;

/// The release that uname(2) reports: the Linux whose interface this is.
pub const RELEASE: &str = "6.12.0-quark";
/// The version that uname(2) reports.
pub const VERSION: &str = concat!("#1 SMP quark ", env!("CARGO_PKG_VERSION"));

/// The most bytes of a host or domain name (__NEW_UTS_LEN).
pub const NAME_BYTES: usize = 64;

/// A UTS namespace.
pub struct UtsNamespace {
    /// The inode number of its file in /proc/PID/ns.
    pub number: u64,
    /// The user namespace that it belongs to.
    pub user: UserNs,
    names: Mutex<Names>,
}

#[derive(Clone, Default)]
struct Names {
    host: String,
    domain: String,
}

impl UtsNamespace {
    /// That of the container's first process.
    pub fn initial() -> Arc<Self> {
        static INITIAL: Once<Arc<UtsNamespace>> = Once::new();
        let make = || UtsNamespace {
            number: INITIAL_UTS,
            user: UserNs::default(),
            names: Mutex::default(),
        };
        INITIAL.get_or_set(|| Arc::new(make())).clone()
    }

    /// Another one, of this user namespace, with the same names.
    pub fn copy(&self, user: &UserNs) -> Arc<Self> {
        let names = self.names.lock().clone();
        Arc::new(UtsNamespace {
            number: namespace::next_number(),
            user: user.clone(),
            names: Mutex::new(names),
        })
    }

    /// The host name.
    pub fn hostname(&self) -> String {
        self.names.lock().host.clone()
    }

    /// Sets it.
    pub fn set_hostname(&self, name: String) {
        self.names.lock().host = name;
    }

    /// The NIS domain name.
    pub fn domainname(&self) -> String {
        let domain = self.names.lock().domain.clone();
        if domain.is_empty() { "(none)".to_string() } else { domain }
    }

    /// Sets it.
    pub fn set_domainname(&self, name: String) {
        self.names.lock().domain = name;
    }
}
