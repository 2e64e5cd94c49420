//! The interfaces of a network namespace (netdevice(7)): its loopback interface, and those that
//! programs make: pairs of virtual Ethernet (veth(4)), bridges, and dummies, which lose all.

use alloc::collections::BTreeSet;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::network::Network;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;

/// The name of the loopback interface, and its number.
pub const LO: &[u8] = b"lo";
/// See [`LO`].
pub const LO_INDEX: u32 = 1;

/// IFF_*.
pub const UP: u32 = 1;
const BROADCAST: u32 = 2;
const LOOPBACK: u32 = 8;
const RUNNING: u32 = 0x40;
const NO_ARP: u32 = 0x80;
const MULTICAST: u32 = 0x1000;
const LOWER_UP: u32 = 0x1_0000;

/// The most addresses that one may have.
const MOST_ADDRESSES: usize = 1024;
/// The most ports of a bridge (BR_MAX_PORTS).
const MOST_PORTS: usize = 1024;
/// The least MTU, in bytes (ETH_MIN_MTU).
const LEAST_MTU: u32 = 68;
/// The most (ETH_MAX_MTU).
const MOST_MTU: u32 = 65535;
/// Bytes of a name with its end (IFNAMSIZ).
pub const NAME_BYTES: usize = 16;

/// An address that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
    /// Where all of its network listen, as whoever gave the address said.
    pub broadcast: Option<Ipv4Addr>,
    /// RT_SCOPE_*: from how far away it is of use.
    pub scope: u8,
}

/// RT_SCOPE_HOST.
pub const OF_HOST: u8 = 254;

impl Assigned {
    /// One of a network of this many bits.
    pub fn new(ip: IpAddr, prefix: u8) -> Self {
        Assigned { ip, prefix, broadcast: None, scope: if ip.is_loopback() { OF_HOST } else { 0 } }
    }

    /// True if `ip` is of its network.
    pub fn has_in_network(&self, ip: IpAddr) -> bool {
        is_within(ip, self.ip, self.prefix)
    }

    fn is_same(&self, other: &Assigned) -> bool {
        (self.ip, self.prefix) == (other.ip, other.prefix)
    }
}

/// True if the first `prefix` bits of two addresses of one family are the same.
pub fn is_within(ip: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (network, ip) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
            network_of(ip, prefix) == network_of(network, prefix)
        }
        _ => false,
    }
}

/// The network of an address: what follows its first `prefix` bits is 0.
pub fn network_of(ip: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match ip {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix)).unwrap_or(0);
            Ipv4Addr::from(u32::from(four) & mask).into()
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix)).unwrap_or(0);
            Ipv6Addr::from(u128::from(six) & mask).into()
        }
    }
}

/// The bits of an address of the family.
pub fn widest(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `lo`.
    Loopback,
    /// What is sent by it is lost.
    Dummy,
    /// What is sent by it arrives at its peer.
    Veth,
    /// What is sent by it goes out by its ports, and what arrives at them by the others.
    Bridge,
}

impl Kind {
    /// As IFLA_INFO_KIND has it; the loopback interface has none.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Loopback => "",
            Kind::Dummy => "dummy",
            Kind::Veth => "veth",
            Kind::Bridge => "bridge",
        }
    }

    /// That of a name, of those that programs may make.
    pub fn of_name(name: &[u8]) -> Option<Kind> {
        let kinds = [Kind::Dummy, Kind::Veth, Kind::Bridge];
        kinds.into_iter().find(|kind| kind.name().as_bytes() == name)
    }
}

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that went out, and came in.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
}

/// A way through an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Sent.
    Out,
    /// Received.
    In,
}

/// An interface.
pub struct Interface {
    /// What it is.
    pub kind: Kind,
    index: AtomicU32,
    name: Mutex<Vec<u8>>,
    hardware: Mutex<[u8; 6]>,
    is_up: AtomicBool,
    mtu: AtomicU32,
    addresses: Mutex<Vec<Assigned>>,
    packets: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    network: Mutex<Weak<Network>>,
    /// Of a pair.
    peer: Mutex<Weak<Interface>>,
    /// The bridge that it is a port of.
    bridge: Mutex<Weak<Interface>>,
    /// Of a bridge.
    ports: Mutex<Vec<Weak<Interface>>>,
}

impl Interface {
    /// One that is down and in no namespace, with this address as Ethernet has it.
    pub fn new(kind: Kind, hardware: [u8; 6]) -> Arc<Self> {
        Arc::new(Interface {
            kind,
            index: AtomicU32::new(0),
            name: Mutex::default(),
            hardware: Mutex::new(hardware),
            is_up: AtomicBool::new(false),
            mtu: AtomicU32::new(if kind == Kind::Loopback { 65536 } else { 1500 }),
            addresses: Mutex::default(),
            packets: Default::default(),
            bytes: Default::default(),
            network: Mutex::default(),
            peer: Mutex::default(),
            bridge: Mutex::default(),
            ports: Mutex::default(),
        })
    }

    /// Two of virtual Ethernet.
    pub fn pair(hardware: [[u8; 6]; 2]) -> [Arc<Self>; 2] {
        let ends = hardware.map(|hardware| Interface::new(Kind::Veth, hardware));
        *ends[0].peer.lock() = Arc::downgrade(&ends[1]);
        *ends[1].peer.lock() = Arc::downgrade(&ends[0]);
        ends
    }

    /// Its number in its namespace.
    pub fn index(&self) -> u32 {
        self.index.load(Relaxed)
    }

    /// Its name.
    pub fn name(&self) -> Vec<u8> {
        self.name.lock().clone()
    }

    /// It is in a namespace from now on, under this number and name.
    pub(super) fn settle(&self, network: &Arc<Network>, index: u32, name: Vec<u8>) {
        *self.network.lock() = Arc::downgrade(network);
        self.index.store(index, Relaxed);
        self.rename(name);
    }

    /// Gives it a name, which nobody else in its namespace has.
    pub(super) fn rename(&self, name: Vec<u8>) {
        *self.name.lock() = name;
    }

    /// Its namespace's network, while there is one.
    pub fn network(&self) -> Option<Arc<Network>> {
        self.network.lock().upgrade()
    }

    /// The other one of its pair.
    pub fn peer(&self) -> Option<Arc<Interface>> {
        self.peer.lock().upgrade()
    }

    /// The bridge that it is a port of.
    pub fn bridge(&self) -> Option<Arc<Interface>> {
        self.bridge.lock().upgrade()
    }

    fn ports(&self) -> Vec<Arc<Interface>> {
        self.ports.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes it a port of a bridge of its namespace, or of none. EINVAL for what is no bridge,
    /// ELOOP for a bridge, EXFULL when the bridge has no more of them.
    pub fn attach(self: &Arc<Self>, bridge: Option<&Arc<Interface>>) -> Result {
        if let Some(bridge) = bridge {
            match self.kind {
                Kind::Loopback => return Err(Errno::EINVAL),
                Kind::Bridge => return Err(Errno::ELOOP),
                Kind::Veth | Kind::Dummy => {}
            }
            if bridge.kind != Kind::Bridge {
                return Err(Errno::EOPNOTSUPP);
            }
            bridge.ports.lock().retain(|port| port.strong_count() > 0);
            if bridge.ports.lock().len() >= MOST_PORTS {
                return Err(Errno::EXFULL);
            }
        }
        if let Some(old) = self.bridge() {
            old.ports.lock().retain(|port| !core::ptr::eq(port.as_ptr(), Arc::as_ptr(self)));
        }
        if let Some(bridge) = bridge {
            bridge.ports.lock().push(Arc::downgrade(self));
        }
        *self.bridge.lock() = bridge.map_or_else(Weak::new, Arc::downgrade);
        Ok(())
    }

    /// It is taken out of its namespace: its ports go, too, and it is nobody's port.
    pub(super) fn detach(self: &Arc<Self>) {
        // Nothing is refused of what takes it out of a bridge.
        let _: Result = self.attach(None);
        let ports = core::mem::take(&mut *self.ports.lock());
        ports.iter().filter_map(Weak::upgrade).for_each(|port| *port.bridge.lock() = Weak::new());
    }

    /// IFF_*.
    pub fn flags(&self) -> u32 {
        let of_kind = match self.kind {
            Kind::Loopback => LOOPBACK,
            Kind::Dummy => BROADCAST | NO_ARP,
            Kind::Veth | Kind::Bridge => BROADCAST | MULTICAST,
        };
        let up = if self.is_up() { UP } else { 0 };
        of_kind | up | if self.is_running() { RUNNING | LOWER_UP } else { 0 }
    }

    /// True if it is up.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    /// True if it is up, and who is at its other side is, too.
    pub fn is_running(&self) -> bool {
        self.is_up()
            && match self.kind {
                Kind::Loopback | Kind::Dummy => true,
                Kind::Veth => self.peer().is_some_and(|peer| peer.is_up()),
                Kind::Bridge => self.ports().iter().any(|port| port.is_running()),
            }
    }

    pub(super) fn store_up(&self, is_up: bool) -> bool {
        self.is_up.swap(is_up, Relaxed) != is_up
    }

    /// IF_OPER_*: unknown, down, without carrier, up.
    pub fn operational_state(&self) -> u8 {
        match (self.kind, self.is_up()) {
            (_, false) => 2,
            (Kind::Loopback | Kind::Dummy, true) => 0,
            (_, true) if self.is_running() => 6,
            // As on Linux, who is to blame is known where the other one is near.
            (Kind::Veth, true) if self.has_near_peer() => 3,
            (_, true) => 2,
        }
    }

    fn has_near_peer(&self) -> bool {
        let other = self.peer().and_then(|peer| peer.network());
        let numbers = other.zip(self.network()).map(|(one, two)| (one.number, two.number));
        numbers.is_none_or(|(one, two)| one == two)
    }

    /// Bytes of its longest packets, which nothing is cut to.
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Relaxed)
    }

    /// Sets it. EINVAL for what is no length.
    pub fn set_mtu(&self, mtu: u32) -> Result {
        let is_one = match self.kind {
            Kind::Loopback => i32::try_from(mtu).is_ok(),
            _ => (LEAST_MTU..=MOST_MTU).contains(&mtu),
        };
        is_one.then(|| self.mtu.store(mtu, Relaxed)).ok_or(Errno::EINVAL)
    }

    /// Its address as Ethernet has it.
    pub fn hardware(&self) -> [u8; 6] {
        *self.hardware.lock()
    }

    /// Sets it. EOPNOTSUPP for the loopback interface, EADDRNOTAVAIL for what is of many.
    pub fn set_hardware(&self, address: [u8; 6]) -> Result {
        if self.kind == Kind::Loopback {
            return Err(Errno::EOPNOTSUPP);
        }
        if address[0] & 1 != 0 || address == [0; 6] {
            return Err(Errno::EADDRNOTAVAIL);
        }
        *self.hardware.lock() = address;
        Ok(())
    }

    /// Its addresses.
    pub fn addresses(&self) -> Vec<Assigned> {
        self.addresses.lock().clone()
    }

    /// Keeps those addresses for which `keep` holds.
    pub(super) fn retain(&self, keep: impl FnMut(&Assigned) -> bool) {
        self.addresses.lock().retain(keep);
    }

    /// Gives it an address. EEXIST; EINVAL for none that one may have; ENOBUFS.
    pub(super) fn add(&self, new: Assigned) -> Result {
        if new.prefix > widest(new.ip) || new.ip.is_unspecified() || new.ip.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let mut addresses = self.addresses.lock();
        let is_there = |one: &Assigned| one.ip == new.ip && (new.ip.is_ipv6() || one.is_same(&new));
        if addresses.iter().any(is_there) {
            return Err(Errno::EEXIST);
        }
        if addresses.len() >= MOST_ADDRESSES {
            return Err(Errno::ENOBUFS);
        }
        addresses.push(new);
        Ok(())
    }

    /// Takes an address from it, and tells what it was. EADDRNOTAVAIL.
    pub(super) fn remove(&self, gone: Assigned) -> Result<Assigned> {
        let mut addresses = self.addresses.lock();
        let place = addresses.iter().position(|one| one.is_same(&gone));
        Ok(addresses.remove(place.ok_or(Errno::EADDRNOTAVAIL)?))
    }

    /// True if an address that it has is this machine's: one of IPv6 is when it is up.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() || self.is_up()
    }

    /// The address by which what comes to `ip` is for this machine. As on Linux those of IPv4 are
    /// when it is down, too, and of the loopback interface's the whole networks.
    pub fn address_for(&self, ip: IpAddr) -> Option<IpAddr> {
        if !self.is_own(ip) {
            return None;
        }
        let has_network = self.kind == Kind::Loopback && ip.is_ipv4();
        let is_it =
            |one: &&Assigned| if has_network { one.has_in_network(ip) } else { one.ip == ip };
        self.addresses.lock().iter().find(is_it).map(|one| one.ip)
    }

    /// A message of so many bytes went through it.
    pub fn count(&self, way: Way, bytes: usize) {
        self.packets[way as usize].fetch_add(1, Relaxed);
        self.bytes[way as usize].fetch_add(bytes as u64, Relaxed);
    }

    /// What went through it.
    pub fn traffic(&self) -> Traffic {
        let read = |both: &[AtomicU64; 2]| [both[0].load(Relaxed), both[1].load(Relaxed)];
        Traffic { packets: read(&self.packets), bytes: read(&self.bytes) }
    }

    /// Who has the address `ip` among those that hear what is sent by it: the interface where it
    /// arrives, and the network of that. Each that is asked takes one off `left`; with none left
    /// it is nobody.
    pub(super) fn neighbour(
        self: &Arc<Self>,
        ip: IpAddr,
        left: &mut usize,
    ) -> Option<(Arc<Self>, Arc<Network>)> {
        let mut seen = BTreeSet::new();
        let mut arrivals: Vec<_> = self.far_ends();
        while let Some(arrival) = arrivals.pop() {
            *left = left.checked_sub(1)?;
            if !arrival.is_up() || !seen.insert(Arc::as_ptr(&arrival) as usize) {
                continue;
            }
            let bridge = arrival.bridge().filter(|bridge| bridge.is_up());
            let end = bridge.clone().unwrap_or(arrival);
            let is_new = bridge.is_none() || seen.insert(Arc::as_ptr(&end) as usize);
            if !is_new {
                continue;
            }
            let network = end.network().filter(|network| network.local(ip).is_some());
            if let Some(network) = network {
                return Some((end, network));
            }
            if bridge.is_some() {
                arrivals.extend(end.far_ends());
            }
        }
        None
    }

    /// Where what is sent by it arrives at first.
    fn far_ends(&self) -> Vec<Arc<Interface>> {
        let send = |port: &Interface| port.peer().filter(|_| port.is_up());
        match self.kind {
            Kind::Loopback | Kind::Dummy => Vec::new(),
            Kind::Veth => send(self).into_iter().collect(),
            Kind::Bridge => self.ports().iter().filter_map(|port| send(port)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn networks_are_the_first_bits() {
        assert_eq!(network_of(ip("10.1.2.3"), 8), ip("10.0.0.0"));
        assert_eq!(network_of(ip("10.1.2.3"), 0), ip("0.0.0.0"));
        assert_eq!(network_of(ip("10.1.2.3"), 32), ip("10.1.2.3"));
        assert_eq!(network_of(ip("fd00::1:2"), 64), ip("fd00::"));
        assert!(is_within(ip("1.2.3.4"), ip("0.0.0.0"), 0));
        assert!(!is_within(ip("::1"), ip("0.0.0.0"), 0));
    }

    #[test]
    fn addresses_are_there_once() {
        let lo = Interface::new(Kind::Loopback, [0; 6]);
        let one = Assigned::new(ip("10.0.0.1"), 24);
        assert_eq!(lo.add(one), Ok(()));
        assert_eq!(lo.add(one), Err(Errno::EEXIST));
        assert_eq!(lo.add(Assigned { prefix: 33, ..one }), Err(Errno::EINVAL));
        let six = Assigned::new(ip("fd00::1"), 64);
        assert_eq!(lo.add(six), Ok(()));
        assert_eq!(lo.address_for(ip("fd00::1")), None, "it is down");
        lo.store_up(true);
        assert_eq!(lo.address_for(ip("fd00::1")), Some(ip("fd00::1")));
        assert_eq!(lo.address_for(ip("10.0.0.77")), Some(ip("10.0.0.1")));
        assert_eq!(lo.remove(one), Ok(one));
        assert_eq!(lo.remove(one), Err(Errno::EADDRNOTAVAIL));
    }

    #[test]
    fn a_pair_runs_while_both_are_up() {
        let [one, two] = Interface::pair([[2; 6], [6; 6]]);
        one.store_up(true);
        assert_eq!((one.is_running(), one.operational_state()), (false, 3));
        two.store_up(true);
        assert_eq!((one.is_running(), one.operational_state()), (true, 6));
        let bridge = Interface::new(Kind::Bridge, [2; 6]);
        bridge.store_up(true);
        assert!(!bridge.is_running());
        assert_eq!(bridge.attach(Some(&bridge)), Err(Errno::ELOOP));
        assert_eq!(one.attach(Some(&two)), Err(Errno::EOPNOTSUPP));
        assert_eq!(one.attach(Some(&bridge)), Ok(()));
        assert!(bridge.is_running());
        bridge.detach();
        assert!(one.bridge().is_none() && !bridge.is_running());
    }
}
