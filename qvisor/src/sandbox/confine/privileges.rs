//! Capabilities, and the ways to get more of them.

use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::{
    CapabilitiesSecureBits as Bits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

use super::{ConfineError, step};

/// For the files of root and volumes, whose owners, modes and file capabilities are the guest's to
/// set.
pub const FILE_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// For sockets, if the container's programs may have them: ICMP without a ping group, ports below
/// 1024, changes of a network namespace that is the container's own.
pub const NETWORK_CAPABILITIES: CapabilitySet =
    CapabilitySet::NET_RAW.union(CapabilitySet::NET_BIND_SERVICE).union(CapabilitySet::NET_ADMIN);

/// Keeps `kept`, if it has them, and nothing else, for good: no program, user id or file gives back
/// what is given up.
pub fn keep(kept: CapabilitySet) -> Result<(), ConfineError> {
    let now = rustix::thread::capabilities(None).map_err(step("reading capabilities"))?;
    let bits = Bits::NO_ROOT
        | Bits::NO_ROOT_LOCKED
        | Bits::NO_SETUID_FIXUP
        | Bits::NO_SETUID_FIXUP_LOCKED
        | Bits::KEEP_CAPS_LOCKED
        | Bits::NO_CAP_AMBIENT_RAISE
        | Bits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits).map_err(step("locking securebits"))?;
    clear_ambient_capability_set().map_err(step("clearing ambient capabilities"))?;
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The host knows no more.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(step("cutting the bounding set")(e)),
        }
    }
    let kept = kept.intersection(now.permitted);
    // Nothing is executed, so nothing is inherited.
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(step("giving up capabilities"))?;
    set_no_new_privs(true).map_err(step("setting no_new_privs"))?;
    // Guest memory lies in it, of a user that others on the host may be.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(step("forbidding core dumps"))
}
