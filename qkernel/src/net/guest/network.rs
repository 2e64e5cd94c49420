//! The network of a network namespace: its interfaces and its routes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::interface::{Assigned, Interface, Kind, LO, LO_INDEX, NAME_BYTES};
use super::routes::{Protocol, Route, Routes};
use crate::errno::{Errno, Result};
use crate::fs::proc::sys;
use crate::namespace::NetNamespace;
use crate::sync::{Mutex, mutex};
use crate::task::current;

/// The most interfaces that one may have.
const MOST_LINKS: usize = 4096;
/// The most who are told of what becomes of it: all are, at once.
const MOST_WATCHES: usize = 256;
/// The most addresses of all of them.
const MOST_ADDRESSES: usize = 16384;

/// What the loopback interface has as a rule.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOCALHOST_6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// By the numbers of their namespaces, from when somebody first asks.
static ALL: Mutex<BTreeMap<u64, Arc<Network>>> = mutex(BTreeMap::new());

/// What becomes of a network.
pub enum Event {
    /// An interface is there, or has changed.
    Link(Arc<Interface>),
    /// It has gone.
    NoLink(Arc<Interface>),
    /// An interface has an address.
    Address(Arc<Interface>, Assigned),
    /// It has lost it.
    NoAddress(Arc<Interface>, Assigned),
    /// A route is there.
    Route(Route),
    /// It has gone.
    NoRoute(Route),
}

/// Somebody who asked to be told of what becomes of a network.
pub trait Watch: Send + Sync {
    /// True if nobody listens any more.
    fn is_over(&self) -> bool;

    /// True if it is to be told of this, and has room for it.
    fn wants(&self, event: &Event) -> bool;

    /// How it is told: all are in the same words.
    fn words(&self, network: &Network, event: &Event) -> Vec<u8>;

    /// Tells it.
    fn tell(&self, words: &[u8]);
}

#[derive(Default)]
struct Links {
    all: BTreeMap<u32, Arc<Interface>>,
    last_index: u32,
}

impl Links {
    fn has(&self, name: &[u8]) -> bool {
        self.all.values().any(|link| link.name() == name)
    }
}

/// The network of a namespace.
pub struct Network {
    /// The number of its namespace.
    pub number: u64,
    links: Mutex<Links>,
    /// The addresses that are its own, but for the loopback interface's, and how many have each.
    own: Mutex<BTreeMap<IpAddr, u32>>,
    /// All addresses of its interfaces.
    addresses: AtomicUsize,
    pub(super) routes: Mutex<Routes>,
    watches: Mutex<Vec<Arc<dyn Watch>>>,
    /// Other namespaces that a link leads to: their places are their numbers here.
    known: Mutex<Vec<u64>>,
}

/// That of a namespace; `None` for the container's, whose interfaces are the host's.
pub fn of(namespace: &NetNamespace) -> Option<Arc<Network>> {
    if namespace.is_initial() {
        return None;
    }
    let known = ALL.lock().get(&namespace.number).cloned();
    Some(known.unwrap_or_else(|| {
        let network = Network::new(namespace.number);
        ALL.lock().insert(namespace.number, network.clone());
        network
    }))
}

/// That of the thread which the kernel works for, with its namespace.
pub fn current() -> Option<(Arc<NetNamespace>, Arc<Network>)> {
    let namespace = current::get()?.namespaces().net.clone();
    let network = of(&namespace)?;
    Some((namespace, network))
}

/// Nobody is in the network namespace of this number any more, and it has no sockets: its
/// interfaces go, and so do those that they are pairs with.
pub fn namespace_ended(number: u64) {
    sys::namespace_ended(number);
    let gone = ALL.lock().remove(&number);
    let Some(gone) = gone else { return };
    gone.links().iter().for_each(|link| take_peer(link));
}

/// Takes the other one of an interface's pair, if there is one, out of where it is.
fn take_peer(link: &Interface) {
    if let Some(peer) = link.peer()
        && let Some(network) = peer.network()
    {
        network.take(&peer);
    }
}

impl Network {
    /// One with a loopback interface that is down.
    pub(super) fn new(number: u64) -> Arc<Self> {
        let network = Arc::new(Network {
            number,
            links: Mutex::default(),
            own: Mutex::default(),
            addresses: AtomicUsize::new(0),
            routes: Mutex::default(),
            watches: Mutex::default(),
            known: Mutex::default(),
        });
        let lo = Interface::new(Kind::Loopback, [0; 6]);
        lo.settle(&network, LO_INDEX, LO.to_vec());
        let mut links = network.links.lock();
        links.all.insert(LO_INDEX, lo);
        links.last_index = LO_INDEX;
        drop(links);
        network
    }

    // ---- interfaces ----

    /// Its interfaces, by number.
    pub fn links(&self) -> Vec<Arc<Interface>> {
        self.links.lock().all.values().cloned().collect()
    }

    /// That of a number. ENODEV.
    pub fn link(&self, index: u32) -> Result<Arc<Interface>> {
        self.links.lock().all.get(&index).cloned().ok_or(Errno::ENODEV)
    }

    /// That of a name. ENODEV.
    pub fn named(&self, name: &[u8]) -> Result<Arc<Interface>> {
        let links = self.links.lock();
        links.all.values().find(|link| link.name() == name).cloned().ok_or(Errno::ENODEV)
    }

    /// Takes an interface in, under `name`, which may have a %d for the first number that is free.
    /// EEXIST, EINVAL for no name, ENOSPC with too many.
    pub(super) fn put(self: &Arc<Self>, link: &Arc<Interface>, name: &[u8]) -> Result {
        let name = self.free_name(name)?;
        let index = {
            let mut links = self.links.lock();
            if links.all.len() >= MOST_LINKS {
                return Err(Errno::ENOSPC);
            }
            // One that comes from elsewhere keeps its number where that is free.
            let own = link.index();
            let is_free = own != 0 && !links.all.contains_key(&own);
            let index = if is_free { own } else { links.last_index.wrapping_add(1).max(2) };
            links.last_index = links.last_index.max(index);
            links.all.insert(index, link.clone());
            index
        };
        link.settle(self, index, name);
        self.tell(&Event::Link(link.clone()));
        Ok(())
    }

    /// Gives an interface of it another name. EEXIST, EINVAL.
    pub(super) fn rename(&self, link: &Arc<Interface>, name: &[u8]) -> Result {
        if link.name() != name {
            link.rename(self.free_name(name)?);
            self.tell(&Event::Link(link.clone()));
        }
        Ok(())
    }

    fn free_name(&self, asked: &[u8]) -> Result<Vec<u8>> {
        let is_name = |name: &[u8]| {
            let is_plain = |byte: &u8| !byte.is_ascii_whitespace() && !b"/:".contains(byte);
            !matches!(name, b"" | b"." | b"..")
                && name.len() < NAME_BYTES
                && name.iter().all(is_plain)
        };
        let name = match asked.strip_suffix(b"%d") {
            None => asked.to_vec(),
            Some(first) => {
                let name = |n: usize| [first, format!("{n}").as_bytes()].concat();
                let links = self.links.lock();
                let taken: alloc::collections::BTreeSet<_> =
                    links.all.values().map(|link| link.name()).collect();
                (0..).map(name).find(|name| !taken.contains(name)).ok_or(Errno::ENFILE)?
            }
        };
        if !is_name(&name) {
            return Err(Errno::EINVAL);
        }
        if self.links.lock().has(&name) { Err(Errno::EEXIST) } else { Ok(name) }
    }

    /// Takes an interface out of it, with its addresses and routes.
    pub(super) fn take(self: &Arc<Self>, link: &Arc<Interface>) {
        self.set_up(link, false);
        link.detach();
        let index = link.index();
        self.routes.lock().retain(|route| route.index != index);
        self.drop_addresses(link, false, |_| true);
        self.links.lock().all.remove(&index);
        self.tell(&Event::NoLink(link.clone()));
    }

    /// Ends an interface, and the other one of its pair. EOPNOTSUPP for the loopback interface.
    pub(super) fn delete(self: &Arc<Self>, link: &Arc<Interface>) -> Result {
        if link.kind == Kind::Loopback {
            return Err(Errno::EOPNOTSUPP);
        }
        take_peer(link);
        self.take(link);
        Ok(())
    }

    /// Has an interface of it go to another one. EINVAL for the loopback interface, EEXIST.
    pub(super) fn give(self: &Arc<Self>, link: &Arc<Interface>, to: &Arc<Network>) -> Result {
        if link.kind == Kind::Loopback {
            return Err(Errno::EINVAL);
        }
        if Arc::ptr_eq(self, to) {
            return Ok(());
        }
        let name = link.name();
        to.free_name(&name)?;
        self.take(link);
        to.put(link, &name)
    }

    /// Brings an interface up, when the loopback interface gets the addresses that it has as a rule
    /// and all get the routes of their networks; or down, when those of IPv6 and all routes go.
    pub fn set_up(self: &Arc<Self>, link: &Arc<Interface>, is_up: bool) {
        if !link.store_up(is_up) {
            return;
        }
        if !is_up {
            let index = link.index();
            self.routes.lock().retain(|route| route.index != index);
            self.drop_addresses(link, true, |one| one.ip.is_ipv6());
        } else {
            // Those of IPv4 are its own already.
            let six = link.addresses().into_iter().filter(|one| one.ip.is_ipv6());
            six.for_each(|one| self.note_own(link, one.ip));
            if link.kind == Kind::Loopback {
                let has_four = link.addresses().iter().any(|one| one.ip.is_ipv4());
                if !has_four {
                    // Both are addresses that one may have.
                    let _: Result = self.give_address(link, Assigned::new(LOCALHOST, 8));
                }
                let _: Result = self.give_address(link, Assigned::new(LOCALHOST_6, 128));
            }
            link.addresses().into_iter().for_each(|one| self.add_route_of(link, one));
        }
        self.tell(&Event::Link(link.clone()));
        // Its pair has a carrier now, or none.
        if let Some(peer) = link.peer().filter(|peer| peer.is_up())
            && let Some(network) = peer.network()
        {
            network.tell(&Event::Link(peer));
        }
    }

    fn add_route_of(&self, link: &Arc<Interface>, one: Assigned) {
        if let Some(route) = Route::of_network(link, one) {
            // Another address of the same network has it already, or there are too many.
            let _: Result = self.routes.lock().add(route);
        }
    }

    /// Gives an interface of it an address, with the route to its network. EEXIST, EINVAL, ENOBUFS.
    pub(super) fn add_address(&self, link: &Arc<Interface>, one: Assigned) -> Result {
        self.give_address(link, one)?;
        if link.is_up() {
            self.add_route_of(link, one);
        }
        self.tell(&Event::Address(link.clone(), one));
        Ok(())
    }

    fn give_address(&self, link: &Interface, one: Assigned) -> Result {
        if self.addresses.load(Relaxed) >= MOST_ADDRESSES {
            return Err(Errno::ENOBUFS);
        }
        link.add(one)?;
        self.addresses.fetch_add(1, Relaxed);
        if link.is_own(one.ip) {
            self.note_own(link, one.ip);
        }
        Ok(())
    }

    fn note_own(&self, link: &Interface, ip: IpAddr) {
        if link.kind != Kind::Loopback {
            *self.own.lock().entry(ip).or_default() += 1;
        }
    }

    fn forget_own(&self, link: &Interface, ip: IpAddr) {
        let mut own = self.own.lock();
        if link.kind != Kind::Loopback
            && let Some(count) = own.get_mut(&ip)
        {
            *count -= 1;
            if *count == 0 {
                own.remove(&ip);
            }
        }
    }

    /// Takes those addresses from an interface, which was up or not, for which `is_gone` holds.
    fn drop_addresses(&self, link: &Interface, was_up: bool, is_gone: impl Fn(&Assigned) -> bool) {
        for one in link.addresses().into_iter().filter(|one| is_gone(one)) {
            self.addresses.fetch_sub(1, Relaxed);
            if one.ip.is_ipv4() || was_up {
                self.forget_own(link, one.ip);
            }
        }
        link.retain(|one| !is_gone(one));
    }

    /// Takes an address from an interface of it, with the route. EADDRNOTAVAIL.
    pub(super) fn remove_address(&self, link: &Arc<Interface>, one: Assigned) -> Result {
        let gone = link.remove(one)?;
        self.addresses.fetch_sub(1, Relaxed);
        if link.is_own(gone.ip) {
            self.forget_own(link, gone.ip);
        }
        {
            let mut routes = self.routes.lock();
            if let Some(own) = Route::of_network(link, gone) {
                routes.retain(|route| !(route.is_same(&own) && route.protocol == Protocol::KERNEL));
            }
            routes.retain(|route| route.source != Some(gone.ip) || route.index != link.index());
        }
        // What else is in that network goes on to have the route.
        link.addresses()
            .into_iter()
            .filter(|other| link.is_up() && other.has_in_network(gone.ip))
            .for_each(|other| self.add_route_of(link, other));
        self.tell(&Event::NoAddress(link.clone(), gone));
        Ok(())
    }

    // ---- where things go ----

    /// The address of its own by which what comes to `ip` is for it.
    pub fn local(&self, ip: IpAddr) -> Option<IpAddr> {
        if self.own.lock().contains_key(&ip) {
            return Some(ip);
        }
        let lo = self.links.lock().all.get(&LO_INDEX).cloned();
        lo.and_then(|lo| lo.address_for(ip))
    }

    /// The address that stands for `link` to others of the family of `ip`: one of the network of
    /// `ip` before another.
    pub(super) fn source_of(&self, link: &Interface, ip: IpAddr) -> Option<IpAddr> {
        let mut own = link.addresses();
        own.retain(|one| one.ip.is_ipv4() == ip.is_ipv4());
        let near = own.iter().find(|one| one.has_in_network(ip)).or(own.first());
        let others = || {
            let mut all = self.links().into_iter().filter(|other| other.kind != Kind::Loopback);
            all.find_map(|other| {
                let same = |one: &Assigned| one.ip.is_ipv4() == ip.is_ipv4();
                other.addresses().into_iter().find(same).map(|one| one.ip)
            })
        };
        near.map(|one| one.ip).or_else(others)
    }

    /// True if what arrives for others of the family of `ip` goes on.
    pub fn forwards(&self, ip: IpAddr) -> bool {
        sys::forwards(self.number, ip.is_ipv6())
    }

    /// The number that another namespace has in this one (IFLA_LINK_NETNSID).
    pub(super) fn number_of(&self, other: &Network) -> u32 {
        self.known_number_of(other).unwrap_or_else(|| {
            let mut known = self.known.lock();
            known.push(other.number);
            (known.len() - 1) as u32
        })
    }

    /// The number that it has, if it has one.
    pub(super) fn known_number_of(&self, other: &Network) -> Option<u32> {
        let place = self.known.lock().iter().position(|number| *number == other.number);
        place.map(|place| place as u32)
    }

    /// Has somebody be told of what becomes of it. ENOBUFS with too many who are.
    pub(super) fn watch(&self, watch: Arc<dyn Watch>) -> Result {
        let mut watches = self.watches.lock();
        let (over, mut going): (Vec<_>, Vec<_>) =
            core::mem::take(&mut *watches).into_iter().partition(|one| one.is_over());
        let has_room = going.len() < MOST_WATCHES;
        if has_room {
            going.push(watch);
        }
        *watches = going;
        drop(watches);
        drop(over);
        has_room.then_some(()).ok_or(Errno::ENOBUFS)
    }

    /// Tells those that asked for it what has become of it.
    pub(super) fn tell(&self, event: &Event) {
        let watches = self.watches.lock().clone();
        let mut words = None;
        for watch in watches.iter().filter(|watch| watch.wants(event)) {
            watch.tell(words.get_or_insert_with(|| watch.words(self, event)));
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
    fn the_loopback_interface_is_down_at_first() {
        let network = Network::new(2);
        let lo = network.link(LO_INDEX).expect("it");
        assert!(network.local(LOCALHOST).is_none() && lo.addresses().is_empty());
        network.set_up(&lo, true);
        assert_eq!(network.local(ip("127.200.0.9")), Some(LOCALHOST));
        assert!(network.local(LOCALHOST_6).is_some() && network.local(ip("::2")).is_none());
        network.set_up(&lo, false);
        assert_eq!(lo.addresses().len(), 1);
        assert!(network.local(LOCALHOST_6).is_none());
    }

    #[test]
    fn addresses_are_its_own_as_long_as_a_link_has_them() {
        let network = Network::new(2);
        let links = Interface::pair([[2; 6], [6; 6]]);
        for (link, name) in links.iter().zip([b"a", b"b"]) {
            network.put(link, name).expect("room");
            for (text, prefix) in [("10.0.0.1", 24), ("fd00::1", 64)] {
                network.add_address(link, Assigned::new(ip(text), prefix)).expect("one");
            }
        }
        assert!(network.local(ip("10.0.0.1")).is_some() && network.local(ip("fd00::1")).is_none());
        network.set_up(&links[0], true);
        assert!(network.local(ip("fd00::1")).is_some());
        // That it is the other one's, too, which is down, is nothing to those that are up.
        network.delete(&links[1]).expect("no loopback interface");
        assert!(network.local(ip("10.0.0.1")).is_none() && network.local(ip("fd00::1")).is_none());
        assert_eq!(network.addresses.load(Relaxed), 0);
        assert!(network.own.lock().is_empty());
    }
}
