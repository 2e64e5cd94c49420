//! Which sockets of a network namespace have which ports.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::errno::{Errno, Result};

/// What connections have that ask for no port (net.ipv4.ip_local_port_range).
const GIVEN: core::ops::RangeInclusive<u16> = 32768..=60999;

/// A protocol's ports are its own: SOCK_STREAM or SOCK_DGRAM.
type Key = (u32, u16);

/// What a socket asks for.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The address.
    pub ip: IpAddr,
    /// An unspecified address of IPv6 stands for one of IPv4 too.
    pub is_dual: bool,
    /// Who has it shares the port with others that allow it.
    pub shares: Shares,
}

/// With whom a port is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// SO_REUSEADDR, where none listens.
    pub address: bool,
    /// SO_REUSEPORT.
    pub port: bool,
    /// Connections come here.
    pub listens: bool,
}

impl Claim {
    /// True if what comes to `ip` may be for it.
    fn covers(&self, ip: IpAddr) -> bool {
        match self.ip {
            IpAddr::V4(own) => ip.is_ipv4() && (own.is_unspecified() || ip == own),
            IpAddr::V6(own) if own.is_unspecified() => ip.is_ipv6() || self.is_dual,
            IpAddr::V6(own) => ip == own,
        }
    }

    /// True if what this one has keeps `new` from the same port.
    fn is_in_the_way_of(&self, new: &Claim) -> bool {
        let (has, asks) = (self.shares, new.shares);
        let is_shared = has.port && asks.port || has.address && asks.address && !has.listens;
        !is_shared && (self.covers(new.ip) || new.covers(self.ip))
    }
}

struct Bound<S> {
    claim: Claim,
    socket: Weak<S>,
}

/// The ports of a network namespace.
pub struct Ports<S> {
    bound: BTreeMap<Key, Vec<Bound<S>>>,
    last_given: u16,
}

impl<S> Default for Ports<S> {
    fn default() -> Self {
        Ports { bound: BTreeMap::new(), last_given: 0 }
    }
}

impl<S> Ports<S> {
    /// Gives a socket a port of its protocol: 0 stands for any. EADDRINUSE.
    pub fn bind(&mut self, kind: u32, port: u16, claim: Claim, socket: &Weak<S>) -> Result<u16> {
        let port = match port {
            0 => self.free(kind).ok_or(Errno::EADDRINUSE)?,
            port => port,
        };
        let there = self.bound.entry((kind, port)).or_default();
        if there.iter().any(|other| other.claim.is_in_the_way_of(&claim)) {
            return Err(Errno::EADDRINUSE);
        }
        there.push(Bound { claim, socket: socket.clone() });
        Ok(port)
    }

    /// A port that nobody has, from where the last one was found.
    fn free(&mut self, kind: u32) -> Option<u16> {
        for _ in GIVEN {
            let next = self.last_given.wrapping_add(1);
            self.last_given = if GIVEN.contains(&next) { next } else { *GIVEN.start() };
            if !self.bound.contains_key(&(kind, self.last_given)) {
                return Some(self.last_given);
            }
        }
        None
    }

    /// Another claim of a socket that has the port. EADDRINUSE, if others are in its way.
    pub fn change(&mut self, (kind, port): Key, socket: &Weak<S>, claim: Claim) -> Result {
        let there = self.bound.get_mut(&(kind, port)).ok_or(Errno::EINVAL)?;
        let is_it = |bound: &Bound<S>| bound.socket.ptr_eq(socket);
        if there.iter().any(|other| !is_it(other) && other.claim.is_in_the_way_of(&claim)) {
            return Err(Errno::EADDRINUSE);
        }
        there.iter_mut().filter(|bound| is_it(bound)).for_each(|bound| bound.claim = claim);
        Ok(())
    }

    /// A socket is closed.
    pub fn release(&mut self, key: Key, socket: &Weak<S>) {
        if let Some(there) = self.bound.get_mut(&key) {
            there.retain(|bound| !bound.socket.ptr_eq(socket));
            if there.is_empty() {
                self.bound.remove(&key);
            }
        }
    }

    /// Those to whom what comes to an address may go, the ones with just that address first.
    pub fn at(&self, kind: u32, to: SocketAddr) -> Vec<Arc<S>> {
        let all = self.bound.get(&(kind, to.port())).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<_> = all.iter().filter(|bound| bound.claim.covers(to.ip())).collect();
        found.sort_by_key(|bound| bound.claim.ip != to.ip());
        found.iter().filter_map(|bound| bound.socket.upgrade()).collect()
    }

    /// All sockets of a protocol, by port.
    pub fn all(&self, kind: u32) -> Vec<Arc<S>> {
        let of_kind = self.bound.iter().filter(|(key, _)| key.0 == kind);
        of_kind.flat_map(|(_, there)| there).filter_map(|bound| bound.socket.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::net::{SOCK_DGRAM, SOCK_STREAM};

    use super::*;

    fn claim(ip: &str) -> Claim {
        let ip = ip.parse().expect("an address");
        Claim { ip, is_dual: true, shares: Shares::default() }
    }

    #[test]
    fn a_port_has_one_owner_for_each_address() {
        let mut ports = Ports::<()>::default();
        let nobody = Weak::new();
        let mut bind = |kind, claim: Claim| ports.bind(kind, 80, claim, &nobody);
        assert_eq!(bind(SOCK_STREAM, claim("127.0.0.1")), Ok(80));
        assert_eq!(bind(SOCK_STREAM, claim("127.0.0.1")), Err(Errno::EADDRINUSE));
        assert_eq!(bind(SOCK_STREAM, claim("0.0.0.0")), Err(Errno::EADDRINUSE));
        assert_eq!(bind(SOCK_STREAM, claim("::")), Err(Errno::EADDRINUSE), "which is dual");
        assert_eq!(bind(SOCK_STREAM, Claim { is_dual: false, ..claim("::") }), Ok(80));
        assert_eq!(bind(SOCK_STREAM, claim("127.0.0.2")), Ok(80));
        assert_eq!(bind(SOCK_DGRAM, claim("0.0.0.0")), Ok(80));
    }

    #[test]
    fn ports_are_shared_by_who_allows_it() {
        let mut ports = Ports::<()>::default();
        let nobody = Weak::new();
        let with = |address, port, listens| Claim {
            shares: Shares { address, port, listens },
            ..claim("0.0.0.0")
        };
        assert_eq!(ports.bind(SOCK_STREAM, 80, with(true, false, false), &nobody), Ok(80));
        assert_eq!(ports.bind(SOCK_STREAM, 80, with(true, true, false), &nobody), Ok(80));
        assert_eq!(ports.bind(SOCK_STREAM, 80, with(true, false, true), &nobody), Ok(80));
        assert!(ports.bind(SOCK_STREAM, 80, with(true, true, false), &nobody).is_err());
        assert!(ports.bind(SOCK_STREAM, 80, with(false, true, false), &nobody).is_err());
        assert_eq!(ports.bind(SOCK_STREAM, 81, with(false, true, true), &nobody), Ok(81));
        assert_eq!(ports.bind(SOCK_STREAM, 81, with(false, true, true), &nobody), Ok(81));
    }

    #[test]
    fn any_port_is_one_that_is_free() {
        let mut ports = Ports::<()>::default();
        let nobody = Weak::new();
        let mut given: Vec<u16> = (0..1000)
            .map(|_| ports.bind(SOCK_DGRAM, 0, claim("0.0.0.0"), &nobody).expect("one"))
            .collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 1000);
        ports.release((SOCK_DGRAM, given[0]), &nobody);
        assert_eq!(ports.bind(SOCK_DGRAM, given[0], claim("0.0.0.0"), &nobody), Ok(given[0]));
    }
}
