//! Who asks only whether the container lives: load balancers, kubelets, health checks. They are
//! answered, and do not count as use of it.

use alloc::vec::Vec;

use linux_raw_sys::net::{AF_INET, AF_INET6};
use qlib::control::Network;

use super::address;
use crate::sync::{Count, Counted, Mutex, mutex};

/// Where probes come from.
static NETWORKS: Mutex<Vec<Network>> = mutex(Vec::new());
/// Health checks that run in the container.
static CHECKS: Count = Count::none();

/// Probes come from these networks.
pub fn come_from(networks: &[Network]) {
    *NETWORKS.lock() = networks.to_vec();
}

/// A health check runs in the container, as long as the result lives: what it asks over the
/// loopback device is a probe.
pub fn check_begins() -> Counted {
    CHECKS.begin()
}

/// True if some addresses are those of probes: worth finding out a peer's.
pub fn are_known() -> bool {
    !NETWORKS.lock().is_empty() || CHECKS.is_any()
}

/// True if who has this address (struct sockaddr) is a probe.
pub fn is_one(sockaddr: &[u8]) -> bool {
    let Some(peer) = internet(sockaddr) else { return false };
    NETWORKS.lock().iter().any(|network| network.contains(peer)) || is_of_a_check(sockaddr)
}

/// True if who connects to or from this address may be a health check in the container.
pub fn is_of_a_check(sockaddr: &[u8]) -> bool {
    CHECKS.is_any()
        && internet(sockaddr).is_some_and(|peer| LOOPBACK.iter().any(|net| net.contains(peer)))
}

/// 127.0.0.0/8 and ::1.
const LOOPBACK: [Network; 2] = [
    Network { address: mapped([127, 0, 0, 0]), prefix: 96 + 8 },
    Network { address: 1u128.to_be_bytes(), prefix: 128 },
];

/// An IPv4 address among those of IPv6 (RFC 4291, 2.5.5.2).
const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn internet(sockaddr: &[u8]) -> Option<[u8; 16]> {
    match address::family(sockaddr) {
        Ok(AF_INET) => Some(mapped(sockaddr.get(4..8)?.try_into().ok()?)),
        Ok(AF_INET6) => sockaddr.get(8..24)?.try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_known_by_their_network() {
        let four = |last| [2, 0, 0x1f, 0x90, 10, 1, 2, last];
        let mut six = [0; 28];
        six[0] = 10;
        six[8..24].copy_from_slice(&mapped([10, 1, 2, 3]));
        assert!(!are_known() && !is_one(&four(3)));
        come_from(&[Network { address: mapped([10, 1, 2, 0]), prefix: 96 + 30 }]);
        assert!(are_known());
        assert!(is_one(&four(3)) && !is_one(&four(4)));
        assert!(is_one(&six), "the same by a socket of IPv6");
        assert!(!is_one(&[1, 0]) && !is_one(&four(3)[..6]), "nobody's address");
        come_from(&[]);
        let local = [2, 0, 0, 80, 127, 9, 9, 9];
        assert!(!is_one(&local));
        let check = check_begins();
        assert!(is_one(&local) && !is_one(&four(3)));
        drop(check);
        assert!(!is_one(&local) && !are_known());
    }
}
