//! Which sockets of a network namespace have which ports.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::errno::{Errno, Result};

/// What connections have that ask for no port (net.ipv4.ip_local_port_range).
const GIVEN: core::ops::RangeInclusive<u16> = 32768..=60999;

/// A protocol's ports are its own.
type Key = (u32, u16);

/// What a socket asks for.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The address.
    pub ip: IpAddr,
    /// An unspecified address of IPv6 stands for one of IPv4 too.
    pub is_dual: bool,
    /// The number of the interface by which it hears, 0 for any.
    pub device: u32,
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
    /// Whose the socket is: SO_REUSEPORT shares with the same user alone (socket(7)).
    pub uid: u32,
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
        let by_port = has.port && asks.port && has.uid == asks.uid;
        let is_shared = by_port || has.address && asks.address && !has.listens;
        let are_apart = self.device != 0 && new.device != 0 && self.device != new.device;
        !is_shared && !are_apart && (self.covers(new.ip) || new.covers(self.ip))
    }
}

/// Somebody to whom what comes may go, with the claim to it.
pub type Candidate<S> = (Arc<S>, Claim);

/// Who of those has what comes from one address to another: those with the least `rank` of those
/// that have one, of them those with just that address, and of their family. Of several that share
/// the port by SO_REUSEPORT each has a part of the senders, of others the last one has all.
pub fn choose<S>(
    candidates: Vec<Candidate<S>>,
    (from, to): (SocketAddr, SocketAddr),
    rank: impl Fn(&S) -> Option<u8>,
) -> Option<Arc<S>> {
    let mut ranked: Vec<_> = candidates
        .into_iter()
        .filter_map(|(socket, claim)| {
            let is_other_family = claim.ip.is_ipv4() != to.is_ipv4();
            let rank = (rank(&socket)?, claim.ip != to.ip(), is_other_family);
            Some((rank, claim.shares.port, socket))
        })
        .collect();
    let best = ranked.iter().map(|one| one.0).min()?;
    ranked.retain(|one| one.0 == best);
    let is_shared = ranked.iter().all(|one| one.1);
    let number = if is_shared { part_of(from) % ranked.len() } else { ranked.len() - 1 };
    Some(ranked.swap_remove(number).2)
}

/// A number that stands for a sender.
fn part_of(from: SocketAddr) -> usize {
    let ip = match from.ip() {
        IpAddr::V4(four) => u64::from(u32::from(four)),
        IpAddr::V6(six) => u128::from(six) as u64,
    };
    // The multiplier of a linear congruential generator, whose high bits are mixed well.
    let mixed = (ip ^ u64::from(from.port()) << 32).wrapping_mul(0x5851_f42d_4c95_7f2d);
    (mixed >> 40) as usize
}

struct Bound<S> {
    claim: Claim,
    socket: Weak<S>,
}

/// The ports of a network namespace.
pub struct Ports<S> {
    bound: BTreeMap<Key, Vec<Bound<S>>>,
    /// Connections that were accepted, by where they are in memory.
    connections: BTreeMap<Key, BTreeMap<usize, Bound<S>>>,
    last_given: u16,
}

fn place_of<S>(socket: &Weak<S>) -> usize {
    socket.as_ptr() as usize
}

impl<S> Default for Ports<S> {
    fn default() -> Self {
        Ports { bound: BTreeMap::new(), connections: BTreeMap::new(), last_given: 0 }
    }
}

impl<S> Ports<S> {
    /// Gives a socket a port of its protocol: 0 stands for any. EADDRINUSE.
    pub fn bind(
        &mut self,
        protocol: u32,
        port: u16,
        claim: Claim,
        socket: &Weak<S>,
    ) -> Result<u16> {
        let port = match port {
            0 => self.free(protocol).ok_or(Errno::EADDRINUSE)?,
            port => port,
        };
        let connections = self.connections.get(&(protocol, port)).into_iter().flatten();
        let is_taken = |other: &Bound<S>| other.claim.is_in_the_way_of(&claim);
        if connections.map(|(_, other)| other).any(is_taken) {
            return Err(Errno::EADDRINUSE);
        }
        let there = self.bound.entry((protocol, port)).or_default();
        if there.iter().any(is_taken) {
            return Err(Errno::EADDRINUSE);
        }
        there.push(Bound { claim, socket: socket.clone() });
        Ok(port)
    }

    /// A connection that was accepted has the port, too.
    pub fn add_connection(&mut self, key: Key, claim: Claim, socket: &Weak<S>) {
        let bound = Bound { claim, socket: socket.clone() };
        self.connections.entry(key).or_default().insert(place_of(socket), bound);
    }

    /// A port that nobody has, from where the last one was found.
    fn free(&mut self, protocol: u32) -> Option<u16> {
        for _ in GIVEN {
            let next = self.last_given.wrapping_add(1);
            self.last_given = if GIVEN.contains(&next) { next } else { *GIVEN.start() };
            let key = (protocol, self.last_given);
            if !self.bound.contains_key(&key) && !self.connections.contains_key(&key) {
                return Some(self.last_given);
            }
        }
        None
    }

    /// Another claim of a socket that has the port. EADDRINUSE, if others are in its way.
    pub fn change(&mut self, (protocol, port): Key, socket: &Weak<S>, claim: Claim) -> Result {
        let there = self.bound.get_mut(&(protocol, port)).ok_or(Errno::EINVAL)?;
        let is_it = |bound: &Bound<S>| bound.socket.ptr_eq(socket);
        if there.iter().any(|other| !is_it(other) && other.claim.is_in_the_way_of(&claim)) {
            return Err(Errno::EADDRINUSE);
        }
        there.iter_mut().filter(|bound| is_it(bound)).for_each(|bound| bound.claim = claim);
        Ok(())
    }

    /// A socket is closed.
    pub fn release(&mut self, key: Key, socket: &Weak<S>) {
        if let Some(there) = self.connections.get_mut(&key)
            && there.remove(&place_of(socket)).is_some()
        {
            if there.is_empty() {
                self.connections.remove(&key);
            }
            return;
        }
        if let Some(there) = self.bound.get_mut(&key) {
            there.retain(|bound| !bound.socket.ptr_eq(socket));
            if there.is_empty() {
                self.bound.remove(&key);
            }
        }
    }

    /// Those to whom what comes to an address may go.
    pub fn at(&self, protocol: u32, to: SocketAddr) -> Vec<Candidate<S>> {
        let all = self.bound.get(&(protocol, to.port())).into_iter().flatten();
        let found = all.filter(|bound| bound.claim.covers(to.ip()));
        found.filter_map(|bound| Some((bound.socket.upgrade()?, bound.claim))).collect()
    }

    /// All sockets of a protocol, by port.
    pub fn all(&self, protocol: u32) -> Vec<Arc<S>> {
        let of_protocol = self.bound.iter().filter(|(key, _)| key.0 == protocol);
        let connections = self.connections.iter().filter(|(key, _)| key.0 == protocol);
        let connections = connections.flat_map(|(_, there)| there.values());
        let bound = of_protocol.flat_map(|(_, there)| there).chain(connections);
        bound.filter_map(|bound| bound.socket.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::net::{SOCK_DGRAM, SOCK_STREAM};

    use super::*;

    fn claim(ip: &str) -> Claim {
        let ip = ip.parse().expect("an address");
        Claim { ip, is_dual: true, device: 0, shares: Shares::default() }
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
    fn a_port_has_one_owner_for_each_interface() {
        let mut ports = Ports::<()>::default();
        let nobody = Weak::new();
        let mut bind = |device| {
            let claim = Claim { device, ..claim("0.0.0.0") };
            ports.bind(SOCK_DGRAM, 80, claim, &nobody)
        };
        assert_eq!([bind(1), bind(2)], [Ok(80); 2]);
        assert_eq!([bind(1), bind(0)], [Err(Errno::EADDRINUSE); 2]);
    }

    #[test]
    fn ports_are_shared_by_who_allows_it() {
        let mut ports = Ports::<()>::default();
        let nobody = Weak::new();
        let with = |address, port, listens| Claim {
            shares: Shares { address, port, listens, uid: 0 },
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
    fn a_port_is_not_shared_with_another_user() {
        let mut ports = Ports::<()>::default();
        let nobody = Weak::new();
        let of = |uid| Claim {
            shares: Shares { port: true, uid, ..Shares::default() },
            ..claim("0.0.0.0")
        };
        assert_eq!(ports.bind(SOCK_STREAM, 80, of(0), &nobody), Ok(80));
        assert_eq!(ports.bind(SOCK_STREAM, 80, of(1000), &nobody), Err(Errno::EADDRINUSE));
        assert_eq!(ports.bind(SOCK_STREAM, 80, of(0), &nobody), Ok(80));
    }

    #[test]
    fn connections_keep_their_port() {
        let mut ports = Ports::<u8>::default();
        let socket = Arc::new(7);
        let connection = Arc::downgrade(&socket);
        ports.add_connection((SOCK_STREAM, 80), claim("10.0.0.1"), &connection);
        assert!(ports.bind(SOCK_STREAM, 80, claim("0.0.0.0"), &Weak::new()).is_err());
        assert_eq!((ports.at(SOCK_STREAM, at(80)).len(), ports.all(SOCK_STREAM).len()), (0, 1));
        ports.release((SOCK_STREAM, 80), &connection);
        assert_eq!(ports.bind(SOCK_STREAM, 80, claim("0.0.0.0"), &Weak::new()), Ok(80));
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::new("10.0.0.1".parse().expect("an address"), port)
    }

    #[test]
    fn who_shares_a_port_has_a_part_of_the_senders() {
        let shared = Shares { port: true, ..Shares::default() };
        let all = || (0..4u8).map(|n| (Arc::new(n), Claim { shares: shared, ..claim("0.0.0.0") }));
        let choose_from = |port: u16| choose(all().collect(), (at(port), at(80)), |_| Some(0));
        let mut counts = [0; 4];
        (0..400).filter_map(|n| choose_from(40000 + n)).for_each(|n| counts[usize::from(*n)] += 1);
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
        // Who has just the address has all, and else the last one.
        let mut some: Vec<_> = (4..7u8).map(|n| (Arc::new(n), claim("0.0.0.0"))).collect();
        let chosen = |some: &Vec<_>| choose(some.clone(), (at(1), at(80)), |_| Some(0));
        assert_eq!(chosen(&some), Some(Arc::new(6)));
        some.insert(1, (Arc::new(9), claim("10.0.0.1")));
        assert_eq!(chosen(&some), Some(Arc::new(9)));
        assert_eq!(choose(some, (at(1), at(80)), |n| (*n < 5).then_some(0)), Some(Arc::new(4)));
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
