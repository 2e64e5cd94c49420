//! The ways between network namespaces: what is sent goes from one to the next as routes and links
//! have it, all at once, and nothing is lost on its way but for want of one.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::datagram::Arrival;
use super::interface::{Interface, LO_INDEX, Way};
use super::network::Network;
use crate::errno::{Errno, Result};

/// How many gateways something passes at most (IP_TTL as it is at first).
const MOST_HOPS: usize = 64;
/// How many interfaces are asked at most whether they are the neighbour that is looked for.
const MOST_ASKED: usize = 4096;

/// Where something gets to.
pub struct Path {
    /// Its address if its sender has none.
    pub source: IpAddr,
    /// The network where it arrives; `None` when it is lost on its way.
    pub arrives: Option<Arc<Network>>,
    /// What it goes out by and comes in by, in turns.
    through: Vec<Arc<Interface>>,
}

impl Path {
    /// The same for what is lost after so many hops.
    pub(super) fn within(mut self, hops: u8) -> Self {
        if usize::from(hops) < self.through.len() / 2 {
            self.arrives = None;
        }
        self
    }

    /// How what goes that way arrives.
    pub(super) fn arrival(&self, from: SocketAddr, to: IpAddr) -> Arrival {
        let gateways = (self.through.len() / 2).saturating_sub(1) as u8;
        let index = self.through.last().map_or(LO_INDEX, |link| link.index());
        Arrival { from, to, gateways, index }
    }

    /// So many bytes went that way.
    pub fn count(&self, bytes: usize) {
        for (number, link) in self.through.iter().enumerate() {
            link.count(if number % 2 == 0 { Way::Out } else { Way::In }, bytes);
        }
    }
}

impl Network {
    /// The way from here to `to`. Without one from here it is the error that its sender is told:
    /// ENETUNREACH, EHOSTUNREACH for want of a neighbour, and what routes say.
    pub fn path(self: &Arc<Self>, to: IpAddr) -> Result<Path> {
        if let Some(source) = self.local(to) {
            let lo = self.link(LO_INDEX)?;
            // As on Linux, what a machine says to itself goes by its loopback interface.
            let arrives = lo.is_up().then(|| self.clone());
            return Ok(Path { source, arrives, through: alloc::vec![lo.clone(), lo] });
        }
        let (out, route_source, next) = self.first_hop(to)?;
        let source = route_source.or_else(|| self.source_of(&out, to));
        let source = source.ok_or(Errno::ENETUNREACH)?;
        let mut through = Vec::new();
        let arrives = walk((out, next), to, &mut through);
        Ok(Path { source, arrives, through })
    }

    /// The same by the interface of a number, of which 0 stands for any. Where no route leads by
    /// it, all are neighbours there, as on Linux. ENODEV if it is gone.
    pub fn path_by(self: &Arc<Self>, index: u32, to: IpAddr) -> Result<Path> {
        if index == 0 {
            return self.path(to);
        }
        let out = self.link(index)?;
        let has = || out.addresses().iter().any(|own| own.ip == to);
        if self.local(to).is_some() && (index == LO_INDEX || has()) {
            return self.path(to);
        }
        let (source, next) = match self.first_hop(to) {
            Ok((by, source, next)) if by.index() == index => (source, next),
            _ => (None, to),
        };
        let source = source.or_else(|| self.source_of(&out, to)).ok_or(Errno::ENETUNREACH)?;
        let mut through = Vec::new();
        let arrives = walk((out, next), to, &mut through);
        Ok(Path { source, arrives, through })
    }

    /// The interface by which what goes to `to` leaves, the address that a route gives it, and who
    /// is to hear it.
    fn first_hop(&self, to: IpAddr) -> Result<(Arc<Interface>, Option<IpAddr>, IpAddr)> {
        let route = self.routes.lock().find(to)?;
        let out = self.link(route.index)?;
        Ok((out, route.source, route.gateway.unwrap_or(to)))
    }

    /// True if what is sent from here to `to` arrives at `there`.
    pub fn reaches(self: &Arc<Self>, to: IpAddr, there: &Arc<Network>) -> bool {
        let path = self.path(to);
        path.is_ok_and(|path| path.arrives.is_some_and(|network| Arc::ptr_eq(&network, there)))
    }
}

/// Where what goes out by an interface, for a neighbour to hear, gets to.
fn walk(
    (mut out, mut next): (Arc<Interface>, IpAddr),
    to: IpAddr,
    through: &mut Vec<Arc<Interface>>,
) -> Option<Arc<Network>> {
    let mut left = MOST_ASKED;
    for _ in 0..MOST_HOPS {
        let (arrival, network) = out.neighbour(next, &mut left)?;
        through.extend([out, arrival]);
        if network.local(to).is_some() {
            return Some(network);
        }
        if !network.forwards(to) {
            return None;
        }
        (out, _, next) = network.first_hop(to).ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::interface::{Assigned, Kind};
    use super::super::routes::{Protocol, Route, Target};
    use super::*;
    use crate::fs::proc::sys;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn end(network: &Arc<Network>, link: &Arc<Interface>, name: &str, address: &str) {
        network.put(link, name.as_bytes()).expect("room");
        network.set_up(link, true);
        network.add_address(link, Assigned::new(ip(address), 24)).expect("an address");
    }

    fn default_route(network: &Network, gateway: &str, index: u32) {
        let route = Route {
            to: ip("0.0.0.0"),
            prefix: 0,
            gateway: Some(ip(gateway)),
            index,
            source: None,
            metric: 0,
            protocol: Protocol::BOOT,
            scope: 0,
            target: Target::Unicast,
        };
        network.routes.lock().add(route).expect("room");
    }

    #[test]
    fn a_pair_leads_from_one_to_the_other() {
        let [a, b] = [Network::new(1), Network::new(2)];
        let [one, two] = Interface::pair([[2; 6], [6; 6]]);
        end(&a, &one, "va", "10.0.0.1");
        assert_eq!(a.path(ip("10.0.0.2")).map(|path| path.arrives.is_none()), Ok(true));
        end(&b, &two, "vb", "10.0.0.2");
        assert!(a.reaches(ip("10.0.0.2"), &b) && b.reaches(ip("10.0.0.1"), &a));
        let path = a.path(ip("10.0.0.2")).expect("a way");
        assert_eq!(path.source, ip("10.0.0.1"));
        path.count(100);
        assert_eq!((one.traffic().bytes, two.traffic().bytes), ([100, 0], [0, 100]));
        assert!(a.path(ip("10.0.1.1")).is_err());
        b.set_up(&two, false);
        assert!(!a.reaches(ip("10.0.0.2"), &b));
        assert!(b.path(ip("10.0.0.1")).is_err());
    }

    #[test]
    fn a_gateway_passes_on_what_it_is_told_to() {
        let [a, b, c] = [11, 12, 13].map(Network::new);
        let [a1, b1] = Interface::pair([[2; 6], [6; 6]]);
        let [b2, c2] = Interface::pair([[2; 6], [6; 6]]);
        end(&a, &a1, "v", "10.0.1.1");
        end(&b, &b1, "v1", "10.0.1.2");
        end(&b, &b2, "v2", "10.0.2.1");
        end(&c, &c2, "v", "10.0.2.2");
        default_route(&a, "10.0.1.2", a1.index());
        default_route(&c, "10.0.2.1", c2.index());
        assert!(!a.reaches(ip("10.0.2.2"), &c));
        assert!(a.reaches(ip("10.0.2.1"), &b), "the gateway itself");
        sys::set_forwards(b.number);
        assert!(a.reaches(ip("10.0.2.2"), &c) && c.reaches(ip("10.0.1.1"), &a));
        // In a circle it is lost.
        default_route(&b, "10.0.2.2", b2.index());
        sys::set_forwards(c.number);
        assert!(a.path(ip("9.9.9.9")).expect("a way out").arrives.is_none());
    }

    #[test]
    fn all_ports_of_a_bridge_hear_each_other() {
        let middle = Network::new(9);
        let bridge = Interface::new(Kind::Bridge, [2; 6]);
        end(&middle, &bridge, "br0", "10.0.0.254");
        let networks: Vec<_> = (1..=3u8)
            .map(|number| {
                let network = Network::new(number.into());
                let [inside, port] = Interface::pair([[2; 6], [6; 6]]);
                end(&network, &inside, "eth0", &alloc::format!("10.0.0.{number}"));
                middle.put(&port, b"port%d").expect("room");
                middle.set_up(&port, true);
                port.attach(Some(&bridge)).expect("a port");
                network
            })
            .collect();
        assert!(networks[0].reaches(ip("10.0.0.3"), &networks[2]));
        assert!(networks[2].reaches(ip("10.0.0.254"), &middle));
        assert!(middle.reaches(ip("10.0.0.2"), &networks[1]));
        middle.set_up(&bridge, false);
        assert!(!networks[0].reaches(ip("10.0.0.3"), &networks[2]));
    }
}
