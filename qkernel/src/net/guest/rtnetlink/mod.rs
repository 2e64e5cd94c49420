//! rtnetlink(7) of a network namespace that programs made: links, addresses, routes, and who is
//! told of their changes. There is one table of routes, `main`, and no rule but the usual ones.

mod address;
mod link;
mod monitor;
mod place;
mod route;
mod rule;

pub use link::{QUEUE, hardware_kind};

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_NET_ADMIN;

use super::network::Network;
use crate::errno::{Errno, Result};
use crate::namespace::NetNamespace;
use crate::net::local::{Kernel, Served, Watches, code, error};
use crate::net::netlink::{self, DONE, DUMP, FIRST, MULTI, Message, attributes};
use crate::task::current;

/// The messages of a kind of object, whose two low bits tell what is done.
const LINK: u16 = 16;
const ADDRESS: u16 = 20;
const ROUTE: u16 = 24;
const RULE: u16 = 32;
const NEW: u16 = 0;
const DELETE: u16 = 1;
const GET: u16 = 2;
const SET: u16 = 3;
/// RTM_GETNEIGH, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, RTM_GETNEIGHTBL, RTM_GETADDRLABEL,
/// RTM_GETNETCONF, RTM_GETMDB, RTM_GETNEXTHOP: of what there is none of, lists are empty.
const EMPTY: &[u16] = &[30, 38, 42, 46, 66, 74, 82, 86, 106];
/// NLM_F_ACK; of requests to make something NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE.
const ACK: u16 = 4;
const REPLACE: u16 = 0x100;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
/// NETLINK_ROUTE.
const PROTOCOL: u32 = 0;

/// What serves a netlink socket of this protocol in a namespace.
pub fn server(namespace: Arc<NetNamespace>, network: Arc<Network>, protocol: u32) -> Kernel {
    let watched = network.clone();
    let watch: Watches = Box::new(move |socket| monitor::join(&watched, socket));
    let serve = Box::new(move |message: &Message, sequence, port| {
        let outcome = match protocol {
            PROTOCOL => answer(&namespace, &network, message),
            // What other protocols tell of is the container's.
            _ => Err(Errno::EOPNOTSUPP),
        };
        Served::Here(packets(message, outcome, (sequence, port)))
    });
    // Of other protocols there is nothing to be told of.
    Kernel { serve, watch: Some(watch) }
}

fn packets(request: &Message, outcome: Result<Vec<Message>>, ids: (u32, u32)) -> Vec<Vec<u8>> {
    let (sequence, port) = ids;
    let mut all = match outcome {
        Ok(all) => all,
        Err(errno) => alloc::vec![error(request, sequence, port, code(errno))],
    };
    let has_failed = all.first().is_some_and(|first| first.kind == netlink::ERROR);
    if is_dump(request) && !has_failed {
        all.iter_mut().for_each(|message| message.flags |= MULTI);
        all.push(Message { kind: DONE, flags: MULTI, body: alloc::vec![0; 4] });
    } else if request.flags & ACK != 0 && !has_failed {
        all.push(error(request, sequence, port, 0));
    }
    all.iter().map(|message| message.to_bytes(sequence, port)).collect()
}

/// What messages of who is in the container's own network namespace are answered with that are
/// about namespaces which programs made; `None` for others. Who may change something was checked.
pub fn answer_outside(request: &Message, ids: (u32, u32)) -> Option<Vec<Vec<u8>>> {
    let outcome = match request.kind {
        kind if kind == place::KIND | GET && is_dump(request) => Ok(Vec::new()),
        kind if kind == place::KIND | GET => {
            place::number(None, &request.body).map(|message| alloc::vec![message])
        }
        _ => link::make_elsewhere(request)?.map(|()| Vec::new()),
    };
    Some(packets(request, outcome, ids))
}

fn is_dump(request: &Message) -> bool {
    request.flags & DUMP != 0 && request.kind & 3 == GET
}

fn answer(
    namespace: &NetNamespace,
    network: &Arc<Network>,
    request: &Message,
) -> Result<Vec<Message>> {
    let is_change = request.kind >= FIRST && request.kind & 3 != GET;
    let may =
        || current::get().is_some_and(|t| t.creds().capable_in(&namespace.user, CAP_NET_ADMIN));
    if is_change && !may() {
        return Err(Errno::EPERM);
    }
    let done = |()| Vec::new();
    match (request.kind & !3, request.kind & 3) {
        (LINK, GET) if is_dump(request) => Ok(link::all(network)),
        (LINK, GET) => Ok(alloc::vec![link::message(network, &*link::named(network, request)?)]),
        (LINK, NEW) => link::make(network, request).map(done),
        (LINK, SET) => link::change(network, request).map(done),
        (LINK, DELETE) => network.delete(&link::named(network, request)?).map(done),
        (ADDRESS, GET) if is_dump(request) => Ok(address::all(network, &request.body)),
        (ADDRESS, NEW) => address::add(network, request).map(done),
        (ADDRESS, DELETE) => address::remove(network, &request.body).map(done),
        (ROUTE, GET) if is_dump(request) => Ok(route::all(network, &request.body)),
        (ROUTE, GET) => route::way(network, &request.body).map(|message| alloc::vec![message]),
        (ROUTE, NEW) => route::add(network, request).map(done),
        (ROUTE, DELETE) => route::remove(network, &request.body).map(done),
        (place::KIND, GET) if !is_dump(request) => {
            place::number(Some(network), &request.body).map(|message| alloc::vec![message])
        }
        (RULE, GET) if is_dump(request) => Ok(rule::all(&request.body)),
        _ if EMPTY.contains(&request.kind) && is_dump(request) => Ok(Vec::new()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// The data of an attribute that follows a structure of so many bytes. EINVAL if that is cut short.
fn find(body: &[u8], after: usize, wanted: u16) -> Result<Option<&[u8]>> {
    let all = body.get(after..).ok_or(Errno::EINVAL)?;
    Ok(attributes(all).find(|(kind, _)| *kind == wanted).map(|(_, data)| data))
}
