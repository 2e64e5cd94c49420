//! The routes of a network namespace (ip-route(8)): one table, `main`, beside the addresses of its
//! own, which come first.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::interface::{Assigned, Interface, Kind, is_within, network_of, widest};
use crate::errno::{Errno, Result};

/// The most routes.
const MOST: usize = 4096;

/// Who has made a route (rtm_protocol).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl Protocol {
    /// RTPROT_KERNEL: it came with an address.
    pub const KERNEL: Protocol = Protocol(2);
    /// RTPROT_BOOT: ioctl(2).
    pub const BOOT: Protocol = Protocol(3);
}

/// What becomes of what takes a route (rtm_type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It goes out by the interface.
    Unicast = 1,
    /// It is lost: EINVAL.
    Blackhole = 6,
    /// EHOSTUNREACH.
    Unreachable = 7,
    /// EACCES.
    Prohibit = 8,
}

impl Target {
    /// That of a number.
    pub fn of(number: u8) -> Option<Target> {
        let all = [Target::Unicast, Target::Blackhole, Target::Unreachable, Target::Prohibit];
        all.into_iter().find(|target| *target as u8 == number)
    }

    /// What who takes it is told.
    fn error(self) -> Result {
        match self {
            Target::Unicast => Ok(()),
            Target::Blackhole => Err(Errno::EINVAL),
            Target::Unreachable => Err(Errno::EHOSTUNREACH),
            Target::Prohibit => Err(Errno::EACCES),
        }
    }
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it leads: an address with nothing after its first bits.
    pub to: IpAddr,
    /// How many those are.
    pub prefix: u8,
    /// Who passes it on.
    pub gateway: Option<IpAddr>,
    /// The interface's number; 0 of one that leads nowhere.
    pub index: u32,
    /// What comes from no address comes from this one.
    pub source: Option<IpAddr>,
    /// Of two to the same place the one with less is taken.
    pub metric: u32,
    /// Who has made it.
    pub protocol: Protocol,
    /// RT_SCOPE_*: how far away what it leads to is.
    pub scope: u8,
    /// What becomes of what takes it.
    pub target: Target,
}

/// RT_SCOPE_LINK.
pub const SCOPE_LINK: u8 = 253;
/// The metric of routes of IPv6 that have none (IP6_RT_PRIO_KERN; IP6_RT_PRIO_USER is four times of
/// it).
pub const METRIC_6: u32 = 256;

impl Route {
    /// That to the network of an address of `link`. What is the loopback interface's is here.
    pub fn of_network(link: &Interface, one: Assigned) -> Option<Route> {
        let is_one = link.kind != Kind::Loopback && one.prefix < widest(one.ip);
        is_one.then(|| Route {
            to: network_of(one.ip, one.prefix),
            prefix: one.prefix,
            gateway: None,
            index: link.index(),
            source: one.ip.is_ipv4().then_some(one.ip),
            metric: if one.ip.is_ipv4() { 0 } else { METRIC_6 },
            protocol: Protocol::KERNEL,
            scope: if one.ip.is_ipv4() { SCOPE_LINK } else { 0 },
            target: Target::Unicast,
        })
    }

    /// True if what goes to `ip` may take it.
    fn leads_to(&self, ip: IpAddr) -> bool {
        is_within(ip, self.to, self.prefix)
    }

    /// True if both lead to the same place, for who has to choose by metric.
    fn is_rival(&self, other: &Route) -> bool {
        (self.to, self.prefix, self.metric) == (other.to, other.prefix, other.metric)
    }

    /// True if both lead to the same place by the same way.
    pub fn is_same(&self, other: &Route) -> bool {
        let way = |route: &Route| (route.gateway, route.index, route.target);
        self.is_rival(other) && way(self) == way(other)
    }
}

/// The table.
#[derive(Default)]
pub struct Routes {
    /// The ones that come first, first.
    all: Vec<Route>,
}

impl Routes {
    /// All, in the order in which they are tried.
    pub fn all(&self) -> &[Route] {
        &self.all
    }

    /// The one that what goes to `ip` takes. ENETUNREACH, and what routes that lead nowhere say.
    pub fn find(&self, ip: IpAddr) -> Result<Route> {
        let route = self.all.iter().find(|route| route.leads_to(ip)).ok_or(Errno::ENETUNREACH)?;
        route.target.error().map(|()| *route)
    }

    /// A further one. EEXIST; ENOBUFS.
    pub fn add(&mut self, route: Route) -> Result {
        // Of IPv6 there may be several ways to one place.
        let is_there = |other: &Route| match route.to {
            IpAddr::V4(_) => other.is_rival(&route),
            IpAddr::V6(_) => other.is_same(&route),
        };
        if self.all.iter().any(is_there) {
            return Err(Errno::EEXIST);
        }
        if self.all.len() >= MOST {
            return Err(Errno::ENOBUFS);
        }
        let rank = |route: &Route| (core::cmp::Reverse(route.prefix), route.metric);
        let place = self.all.partition_point(|other| rank(other) <= rank(&route));
        self.all.insert(place, route);
        Ok(())
    }

    /// The same in the place of what leads to the same place.
    pub fn replace(&mut self, route: Route) -> Result {
        self.retain(|other| !other.is_rival(&route));
        self.add(route)
    }

    /// Removes the first one that is meant, and tells which it was. ESRCH.
    pub fn remove(&mut self, is_meant: impl Fn(&Route) -> bool) -> Result<Route> {
        let place = self.all.iter().position(is_meant).ok_or(Errno::ESRCH)?;
        Ok(self.all.remove(place))
    }

    /// Keeps those for which `keep` holds.
    pub fn retain(&mut self, keep: impl FnMut(&Route) -> bool) {
        self.all.retain(keep);
    }
}

/// Whether a gateway can be reached by `link`, that is, by a network of one of its addresses, and
/// without another gateway.
pub fn is_on_link(routes: &Routes, link: &Arc<Interface>, gateway: IpAddr) -> bool {
    let route = routes.find(gateway);
    route.is_ok_and(|route| route.gateway.is_none() && route.index == link.index())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(to: &str, prefix: u8, index: u32, metric: u32) -> Route {
        Route {
            to: to.parse().expect("an address"),
            prefix,
            gateway: None,
            index,
            source: None,
            metric,
            protocol: Protocol::BOOT,
            scope: 0,
            target: Target::Unicast,
        }
    }

    #[test]
    fn the_longest_prefix_is_taken_then_the_least_metric() {
        let mut routes = Routes::default();
        for one in [
            route("0.0.0.0", 0, 1, 0),
            route("10.0.0.0", 8, 2, 5),
            route("10.0.0.0", 8, 3, 4),
            route("10.1.0.0", 16, 4, 9),
            Route { target: Target::Prohibit, ..route("10.2.0.0", 16, 0, 0) },
        ] {
            assert_eq!(routes.add(one), Ok(()));
        }
        assert_eq!(routes.add(route("10.0.0.0", 8, 7, 4)), Err(Errno::EEXIST));
        let find = |ip: &str| routes.find(ip.parse().expect("one")).map(|route| route.index);
        assert_eq!(find("1.1.1.1"), Ok(1));
        assert_eq!(find("10.9.1.1"), Ok(3));
        assert_eq!(find("10.1.1.1"), Ok(4));
        assert_eq!(find("10.2.1.1"), Err(Errno::EACCES));
        assert_eq!(find("::1"), Err(Errno::ENETUNREACH));
        assert_eq!(routes.replace(route("10.0.0.0", 8, 7, 4)), Ok(()));
        let gone = routes.remove(|route| route.prefix == 8).expect("one");
        assert_eq!(gone.index, 7);
        assert_eq!(routes.remove(|route| route.index == 7), Err(Errno::ESRCH));
    }
}
