//! Limits of resources (getrlimit(2)) of the sandbox process itself.

use rustix::io::Errno;

/// Every handle and every window holds a descriptor. The sandbox has files of its own, guest RAM
/// among them. What limits a caller has for files count for the guest's programs (the
/// command line passes them on), and the guest kernel sees to them.
pub fn raise() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
    // What a hard limit that stays keeps from being made is reported when it is.
    lift(Resource::Fsize).ok();
}

/// Takes a limit of this process away; without CAP_SYS_RESOURCE its hard limit stays.
pub fn lift(resource: rustix::process::Resource) -> Result<(), Errno> {
    use rustix::process::{Rlimit, getrlimit, setrlimit};
    setrlimit(resource, Rlimit { current: None, maximum: None }).or_else(|_| {
        let maximum = getrlimit(resource).maximum;
        setrlimit(resource, Rlimit { current: maximum, maximum })
    })
}
