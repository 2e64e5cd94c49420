//! The loopback interface of a network namespace, `lo`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::errno::{Errno, Result};
use crate::namespace::NetNamespace;
use crate::sync::{Mutex, mutex};
use crate::task::current;

/// Its name and its number.
pub const NAME: &[u8] = b"lo";
/// See [`NAME`].
pub const INDEX: u32 = 1;
/// Its MTU at first, in bytes.
const MTU: u32 = 65536;

/// IFF_UP and IFF_RUNNING with IFF_LOWER_UP; IFF_LOOPBACK.
pub const UP: u32 = 1;
const RUNNING: u32 = 0x1_0040;
const LOOPBACK: u32 = 8;

/// The most addresses that it may have.
const MOST_ADDRESSES: usize = 1024;

/// An address that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
}

impl Assigned {
    /// True if `ip` is the interface's by this: as on Linux, of IPv4 the whole network is.
    fn covers(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                u32::from(own) & mask == u32::from(ip) & mask
            }
            (own, ip) => own == ip,
        }
    }
}

/// The interface.
pub struct Interface {
    is_up: AtomicBool,
    mtu: AtomicU32,
    addresses: Mutex<Vec<Assigned>>,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Default for Interface {
    fn default() -> Self {
        Interface {
            is_up: AtomicBool::new(false),
            mtu: AtomicU32::new(MTU),
            addresses: Mutex::default(),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// By the numbers of their namespaces, from when somebody first asks.
static ALL: Mutex<BTreeMap<u64, Arc<Interface>>> = mutex(BTreeMap::new());

/// That of a namespace; `None` for the container's, whose interfaces are the host's.
pub fn of(namespace: &NetNamespace) -> Option<Arc<Interface>> {
    let find = || ALL.lock().entry(namespace.number).or_default().clone();
    (!namespace.is_initial()).then(find)
}

/// That of the thread which the kernel works for, with its namespace.
pub fn current() -> Option<(Arc<NetNamespace>, Arc<Interface>)> {
    let namespace = current::get()?.namespaces().net.clone();
    let interface = of(&namespace)?;
    Some((namespace, interface))
}

/// The namespace of this number is gone.
pub(super) fn forget(number: u64) {
    ALL.lock().remove(&number);
}

impl Interface {
    /// IFF_*.
    pub fn flags(&self) -> u32 {
        if self.is_up() { LOOPBACK | UP | RUNNING } else { LOOPBACK }
    }

    /// True if it is up.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    /// Bytes of its longest packets, which nothing is cut to.
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Relaxed)
    }

    /// Sets it. EINVAL for what is no length.
    pub fn set_mtu(&self, mtu: u32) -> Result {
        i32::try_from(mtu).map_err(|_| Errno::EINVAL)?;
        self.mtu.store(mtu, Relaxed);
        Ok(())
    }

    /// Brings it up, when it gets the addresses that it has as a rule, or down, when those of IPv6
    /// go.
    pub fn set_up(&self, is_up: bool) {
        if self.is_up.swap(is_up, Relaxed) == is_up {
            return;
        }
        let mut addresses = self.addresses.lock();
        if !is_up {
            return addresses.retain(|one| one.ip.is_ipv4());
        }
        if !addresses.iter().any(|one| one.ip.is_ipv4()) {
            addresses.push(Assigned { ip: Ipv4Addr::LOCALHOST.into(), prefix: 8 });
        }
        let six = Assigned { ip: Ipv6Addr::LOCALHOST.into(), prefix: 128 };
        if !addresses.contains(&six) {
            addresses.push(six);
        }
    }

    /// Its addresses.
    pub fn addresses(&self) -> Vec<Assigned> {
        self.addresses.lock().clone()
    }

    /// Gives it an address. EEXIST; EINVAL for none that one may have; ENOBUFS.
    pub fn add(&self, new: Assigned) -> Result {
        let widest = if new.ip.is_ipv4() { 32 } else { 128 };
        if new.prefix > widest || new.ip.is_unspecified() || new.ip.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let mut addresses = self.addresses.lock();
        if addresses.iter().any(|one| one.ip == new.ip && (new.ip.is_ipv6() || *one == new)) {
            return Err(Errno::EEXIST);
        }
        if addresses.len() >= MOST_ADDRESSES {
            return Err(Errno::ENOBUFS);
        }
        addresses.push(new);
        Ok(())
    }

    /// Takes an address from it. EADDRNOTAVAIL.
    pub fn remove(&self, gone: Assigned) -> Result {
        let mut addresses = self.addresses.lock();
        let place = addresses.iter().position(|one| *one == gone).ok_or(Errno::EADDRNOTAVAIL)?;
        addresses.remove(place);
        Ok(())
    }

    /// True if a socket can be bound to that address, or reached there.
    pub fn has(&self, ip: IpAddr) -> bool {
        self.is_up() && self.addresses.lock().iter().any(|one| one.covers(ip))
    }

    /// Where a message to `ip` comes from, if its sender has no address. ENETUNREACH.
    pub fn source_for(&self, ip: IpAddr) -> Result<IpAddr> {
        let addresses = self.addresses.lock();
        let to = addresses.iter().find(|one| one.covers(ip)).filter(|_| self.is_up());
        to.map(|one| one.ip).ok_or(Errno::ENETUNREACH)
    }

    /// A message of so many bytes went through it.
    pub fn count(&self, bytes: usize) {
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// The messages and bytes that went through it.
    pub fn traffic(&self) -> (u64, u64) {
        (self.packets.load(Relaxed), self.bytes.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn it_is_down_and_has_nothing_at_first() {
        let lo = Interface::default();
        assert!(!lo.has(ip("127.0.0.1")) && lo.addresses().is_empty());
        assert_eq!(lo.source_for(ip("127.0.0.1")), Err(Errno::ENETUNREACH));
        lo.set_up(true);
        assert!(lo.has(ip("127.200.0.9")) && lo.has(ip("::1")) && !lo.has(ip("::2")));
        assert_eq!(lo.source_for(ip("127.0.0.9")), Ok(ip("127.0.0.1")));
        assert_eq!(lo.source_for(ip("128.0.0.1")), Err(Errno::ENETUNREACH));
        lo.set_up(false);
        assert_eq!(lo.addresses().len(), 1);
        assert!(!lo.has(ip("127.0.0.1")));
    }

    #[test]
    fn addresses_are_there_once() {
        let lo = Interface::default();
        let one = Assigned { ip: ip("10.0.0.1"), prefix: 24 };
        assert_eq!(lo.add(one), Ok(()));
        assert_eq!(lo.add(one), Err(Errno::EEXIST));
        assert_eq!(lo.add(Assigned { prefix: 33, ..one }), Err(Errno::EINVAL));
        lo.set_up(true);
        assert!(lo.has(ip("10.0.0.77")) && !lo.has(ip("127.0.0.1")));
        assert_eq!(lo.remove(one), Ok(()));
        assert_eq!(lo.remove(one), Err(Errno::EADDRNOTAVAIL));
        let all = Assigned { ip: ip("10.0.0.1"), prefix: 0 };
        assert!(all.covers(ip("1.2.3.4")) && !all.covers(ip("::1")));
    }
}
