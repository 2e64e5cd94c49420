//! Messages about routes: RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use linux_raw_sys::net::{AF_INET, AF_INET6};

use super::address::{ip_of, parts};
use super::{CREATE, EXCLUSIVE, REPLACE, ROUTE, find};
use crate::errno::{Errno, Result};
use crate::net::guest::address::unspecified;
use crate::net::guest::interface::{Interface, Kind, LO_INDEX, network_of, widest};
use crate::net::guest::network::{Event, Network};
use crate::net::guest::routes::{METRIC_6, Protocol, Route, SCOPE_LINK, Target, is_on_link};
use crate::net::netlink::{Message, append, word};

/// Bytes of struct rtmsg.
const RTMSG: usize = 12;
/// RTA_*.
const DESTINATION: u16 = 1;
const OUT: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const SOURCE: u16 = 7;
const METRICS: u16 = 8;
const MULTIPATH: u16 = 9;
const TABLE: u16 = 15;
/// RT_TABLE_MAIN, RT_TABLE_LOCAL.
pub const MAIN: u8 = 254;
/// See [`MAIN`].
pub const LOCAL: u8 = 255;
/// RTN_LOCAL, RT_SCOPE_HOST.
const IS_LOCAL: u8 = 2;
const OF_HOST: u8 = 254;
/// RT_SCOPE_NOWHERE: of what is to be removed, any.
const NOWHERE: u8 = 255;
/// RTM_F_CLONED.
const CLONED: u32 = 0x200;

/// What a route is told with.
struct Told {
    table: u8,
    kind: u8,
    flags: u32,
}

fn told(route: &Route, told: &Told) -> Message {
    let family = parts(route.to).0;
    let mut body = alloc::vec![family, route.prefix, 0, 0, told.table, route.protocol.0];
    body.extend([route.scope, told.kind]);
    body.extend(told.flags.to_ne_bytes());
    append(&mut body, TABLE, &u32::from(told.table).to_ne_bytes());
    if route.prefix != 0 {
        append(&mut body, DESTINATION, &parts(route.to).1);
    }
    if let Some(gateway) = route.gateway {
        append(&mut body, GATEWAY, &parts(gateway).1);
    }
    if let Some(source) = route.source {
        append(&mut body, SOURCE, &parts(source).1);
    }
    if route.index != 0 {
        append(&mut body, OUT, &route.index.to_ne_bytes());
    }
    if route.metric != 0 {
        append(&mut body, PRIORITY, &route.metric.to_ne_bytes());
    }
    Message { kind: ROUTE, flags: 0, body }
}

/// A route, as RTM_NEWROUTE tells of it.
pub fn message(route: &Route) -> Message {
    told(route, &Told { table: MAIN, kind: route.target as u8, flags: 0 })
}

/// All routes of the family that a question names: those of `main`, and those that addresses stand
/// for.
pub fn all(network: &Network, question: &[u8]) -> Vec<Message> {
    let family = question.first().copied().unwrap_or(0);
    let mut all: Vec<_> = network.routes.lock().all().iter().map(message).collect();
    for link in network.links().into_iter().filter(|link| link.is_up()) {
        for one in link.addresses() {
            let has_network = link.kind == Kind::Loopback && one.ip.is_ipv4();
            let prefix = if has_network { one.prefix } else { widest(one.ip) };
            let local = local_route(network_of(one.ip, prefix), prefix, one.ip, link.index());
            all.push(told(&local, &Told { table: LOCAL, kind: IS_LOCAL, flags: 0 }));
        }
    }
    all.retain(|message| family == 0 || message.body[0] == family);
    all
}

fn local_route(to: IpAddr, prefix: u8, source: IpAddr, index: u32) -> Route {
    Route {
        to,
        prefix,
        gateway: None,
        index,
        source: source.is_ipv4().then_some(source),
        metric: 0,
        protocol: Protocol::KERNEL,
        scope: if source.is_ipv4() { OF_HOST } else { 0 },
        target: Target::Unicast,
    }
}

/// RTM_GETROUTE about one address: the way that what goes there takes.
pub fn way(network: &Arc<Network>, body: &[u8]) -> Result<Message> {
    let family = *body.first().ok_or(Errno::EINVAL)?;
    let to = ip_of(family, find(body, RTMSG, DESTINATION)?.ok_or(Errno::EINVAL)?)?;
    if let Some(source) = network.local(to) {
        let route = Route { scope: 0, ..local_route(to, widest(to), source, LO_INDEX) };
        let how = Told { table: LOCAL, kind: IS_LOCAL, flags: CLONED };
        return Ok(told(&Route { protocol: Protocol(0), ..route }, &how));
    }
    let route = network.routes.lock().find(to)?;
    let source = network.path(to)?.source;
    let way = Route {
        to,
        prefix: widest(to),
        source: Some(source),
        metric: 0,
        protocol: Protocol(0),
        scope: 0,
        ..route
    };
    Ok(told(&way, &Told { table: MAIN, kind: Target::Unicast as u8, flags: CLONED }))
}

/// RTM_NEWROUTE. EOPNOTSUPP for other tables than `main`, and for several ways at once.
pub fn add(network: &Network, request: &Message) -> Result {
    let route = parse(&request.body)?;
    let route = complete(network, route)?;
    let outcome = {
        let mut routes = network.routes.lock();
        if request.flags & REPLACE != 0 && request.flags & EXCLUSIVE == 0 {
            routes.replace(route)
        } else if request.flags & CREATE == 0 {
            Err(Errno::ENOENT)
        } else {
            routes.add(route)
        }
    };
    outcome.inspect(|()| network.tell(&Event::Route(route)))
}

/// RTM_DELROUTE: what is not said is meant to be anything.
pub fn remove(network: &Network, body: &[u8]) -> Result {
    let meant = parse(body)?;
    let is_six = meant.to.is_ipv6();
    let has_metric = find(body, RTMSG, PRIORITY)?.is_some();
    let has_target = body[7] != 0;
    let has_scope = meant.to.is_ipv4() && meant.scope != NOWHERE;
    let gone = network.routes.lock().remove(|route| {
        (route.to, route.prefix, is_six) == (meant.to, meant.prefix, route.to.is_ipv6())
            && meant.gateway.is_none_or(|gateway| route.gateway == Some(gateway))
            && (meant.index == 0 || route.index == meant.index)
            && (!has_metric || route.metric == meant.metric)
            && (!has_scope || route.scope == meant.scope)
            && (!has_target || route.target == meant.target)
    })?;
    network.tell(&Event::NoRoute(gone));
    Ok(())
}

/// What a message says of a route. EINVAL.
fn parse(body: &[u8]) -> Result<Route> {
    let head: &[u8; RTMSG] = body.first_chunk().ok_or(Errno::EINVAL)?;
    let [family, prefix, source_prefix, tos, table, protocol, scope, kind, ..] = *head;
    if !matches!(u32::from(family), AF_INET | AF_INET6) {
        return Err(Errno::EOPNOTSUPP);
    }
    let number = |kind| -> Result<Option<u32>> {
        Ok(find(body, RTMSG, kind)?.and_then(|data| word(data, 0)))
    };
    let ip = |kind| find(body, RTMSG, kind)?.map(|bytes| ip_of(family, bytes)).transpose();
    let table = number(TABLE)?.unwrap_or(table.into());
    let is_main = table == 0 || table == u32::from(MAIN);
    let has_more =
        [METRICS, MULTIPATH].map(|kind| find(body, RTMSG, kind).is_ok_and(|d| d.is_some()));
    if !is_main || source_prefix != 0 || tos != 0 || has_more.contains(&true) {
        return Err(Errno::EOPNOTSUPP);
    }
    let to = ip(DESTINATION)?.unwrap_or(unspecified(family.into()));
    if prefix > widest(to) || network_of(to, prefix) != to {
        return Err(Errno::EINVAL);
    }
    let target = match kind {
        // Not said, where something is to be removed.
        0 => Target::Unicast,
        kind => Target::of(kind).ok_or(Errno::EOPNOTSUPP)?,
    };
    let standard = if to.is_ipv6() { 4 * METRIC_6 } else { 0 };
    let metric = number(PRIORITY)?.filter(|metric| *metric != 0 || to.is_ipv4());
    Ok(Route {
        to,
        prefix,
        gateway: ip(GATEWAY)?.filter(|gateway| !gateway.is_unspecified()),
        index: number(OUT)?.unwrap_or(0),
        source: ip(SOURCE)?,
        metric: metric.unwrap_or(standard),
        protocol: Protocol(protocol),
        scope,
        target,
    })
}

/// The route with the interface that it needs. ENODEV, ENETDOWN, ENETUNREACH for a gateway that
/// nothing leads to; EINVAL for a source that is not this machine's.
pub fn complete(network: &Network, mut route: Route) -> Result<Route> {
    if route.target != Target::Unicast {
        return Ok(Route { index: 0, gateway: None, ..route });
    }
    let link: Arc<Interface> = match (route.index, route.gateway) {
        (0, None) => return Err(Errno::ENODEV),
        (0, Some(gateway)) => {
            let near = network.routes.lock().find(gateway).map_err(|_| Errno::ENETUNREACH)?;
            network.link(near.index)?
        }
        (index, _) => network.link(index)?,
    };
    if !link.is_up() {
        return Err(Errno::ENETDOWN);
    }
    if let Some(gateway) = route.gateway {
        if network.local(gateway).is_some() {
            return Err(Errno::EINVAL);
        }
        if !is_on_link(&network.routes.lock(), &link, gateway) {
            return Err(Errno::ENETUNREACH);
        }
    } else if route.to.is_ipv4() && route.scope == 0 {
        route.scope = SCOPE_LINK;
    }
    if route.source.is_some_and(|source| network.local(source).is_none()) {
        return Err(Errno::EINVAL);
    }
    route.index = link.index();
    Ok(route)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::guest::interface::Assigned;

    fn request(body: Vec<u8>, flags: u16) -> Message {
        Message { kind: ROUTE, flags, body }
    }

    #[test]
    fn a_gateway_has_to_be_near() {
        let network = Network::new(2);
        let link = Interface::new(Kind::Dummy, [2; 6]);
        network.put(&link, b"d0").expect("room");
        let mut body = alloc::vec![2, 0, 0, 0, MAIN, 3, 0, 1, 0, 0, 0, 0];
        append(&mut body, GATEWAY, &[10, 0, 0, 9]);
        let add = |flags| add(&network, &request(body.clone(), flags));
        assert_eq!(add(CREATE | EXCLUSIVE), Err(Errno::ENETUNREACH));
        let one = Assigned::new("10.0.0.1".parse().expect("one"), 24);
        network.add_address(&link, one).expect("an address");
        network.set_up(&link, true);
        assert_eq!(add(CREATE | EXCLUSIVE), Ok(()));
        assert_eq!(add(CREATE | EXCLUSIVE), Err(Errno::EEXIST));
        assert_eq!(add(CREATE | REPLACE), Ok(()));
        // Those of main, and the address itself.
        assert_eq!(all(&network, &[2]).len(), 3);
        assert_eq!(remove(&network, &body), Ok(()));
        assert_eq!(remove(&network, &body), Err(Errno::ESRCH));
        network.set_up(&link, false);
        assert_eq!(all(&network, &[0]).len(), 0);
    }

    #[test]
    fn what_is_malformed_or_not_there_is_refused() {
        let network = Network::new(2);
        let add = |body: &[u8]| add(&network, &request(body.to_vec(), CREATE));
        assert_eq!(add(&[2, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(add(&[2, 40, 0, 0, MAIN, 3, 0, 1, 0, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(add(&[2, 0, 0, 0, 7, 3, 0, 1, 0, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(add(&[7, 0, 0, 0, MAIN, 3, 0, 1, 0, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(add(&[2, 0, 0, 0, MAIN, 3, 0, 1, 0, 0, 0, 0]), Err(Errno::ENODEV));
    }
}
