//! Internet sockets of network namespaces that programs made: what streams, datagrams and those of
//! ICMP have in common.

use alloc::collections::BTreeMap;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linux_raw_sys::general::CAP_NET_BIND_SERVICE;
use linux_raw_sys::ioctl::FIONREAD;
use linux_raw_sys::net::{
    AF_INET, AF_INET6, AF_UNSPEC, MSG_ERRQUEUE, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM,
};
use qlib::Va;

use super::address;
use super::datagram::Datagrams;
use super::ioctl;
use super::network::{self, Network};
use super::options::Options;
use super::path::Path;
use super::ports::{Claim, Ports, Shares};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::fs::attr::Attributes;
use crate::fs::proc::sys;
use crate::io::IoBuffer;
use crate::ipc::AnonInode;
use crate::namespace::NetNamespace;
use crate::net::message::{Received, is_interface_ioctl};
use crate::net::unix::UnixSocket;
use crate::sync::{Mutex, mutex};
use crate::wait::{PollMask, WaitQueue};

/// IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMPV6.
pub(super) const ICMP: u32 = 1;
pub(super) const TCP: u32 = 6;
pub(super) const UDP: u32 = 17;
pub(super) const ICMP6: u32 = 58;
/// Protocols of raw sockets have ports of their own: all have this one, which nobody asks for.
pub(super) const RAW: u32 = 0x100;
/// See [`RAW`].
pub(super) const RAW_PORT: u16 = 1;

type SharedPorts = Arc<Mutex<Ports<GuestSocket>>>;

/// The ports of each namespace, by its number.
static PORTS: Mutex<BTreeMap<u64, SharedPorts>> = mutex(BTreeMap::new());

/// The namespace of this number is gone.
pub(super) fn forget(number: u64) {
    let gone = PORTS.lock().remove(&number);
    drop(gone);
}

/// The ports of the namespace of this number.
pub(super) fn ports_of(number: u64) -> SharedPorts {
    PORTS.lock().entry(number).or_default().clone()
}

/// The bound sockets of a protocol in a namespace.
pub(super) fn all(number: u64, protocol: u32) -> Vec<Arc<GuestSocket>> {
    let ports = PORTS.lock().get(&number).cloned();
    ports.map_or_else(Vec::new, |ports| ports.lock().all(protocol))
}

/// What a socket does.
#[derive(Default)]
pub(super) enum Role {
    /// Nothing yet; of a datagram socket everything.
    #[default]
    Idle,
    /// listen(2).
    Listens(Listener),
    /// Its connection waits for room at the listener.
    Connecting,
    /// It has a connection, which connect(2) has yet to tell of if it came late.
    Connected {
        /// connect(2) has told of it.
        is_told: bool,
    },
}

/// Connections on their way.
#[derive(Default)]
pub(super) struct Listener {
    pub backlog: usize,
    /// Those that accept(2) may take.
    pub pending: VecDeque<Arc<GuestSocket>>,
    /// Those for which there was no room, each with its number of [`State::connections`].
    pub waiting: VecDeque<(Weak<GuestSocket>, u64)>,
}

#[derive(Default)]
pub(super) struct State {
    pub local: Option<SocketAddr>,
    /// What bind(2) was given.
    pub asked: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// Of a connection, the number of the namespace at its other end.
    pub peer_network: u64,
    pub role: Role,
    /// The connections that it has had and given up (connect(2) with AF_UNSPEC).
    pub connections: u64,
    /// The last of them has ended, which is no news to a new one.
    pub is_dissolved: bool,
    /// To be reported by the next call, and by SO_ERROR.
    pub error: Option<Errno>,
    pub options: Options,
    pub datagrams: Datagrams,
    /// shutdown(2).
    pub read_shut: bool,
    pub write_shut: bool,
    /// Of a connection: a call has told that the other end is gone.
    pub is_told_of_end: bool,
}

impl State {
    /// Fails by the error that is to be reported, once.
    pub fn report(&mut self) -> Result {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// An internet socket of a network namespace that a program made.
pub struct GuestSocket {
    pub(super) domain: u32,
    pub(super) kind: u32,
    /// IPPROTO_*; of a raw socket with [`RAW`].
    pub(super) protocol: u32,
    pub(super) namespace: Arc<NetNamespace>,
    pub(super) network: Arc<Network>,
    pub(super) ports: SharedPorts,
    pub(super) state: Mutex<State>,
    pub(super) queue: Arc<WaitQueue>,
    /// What a connection's bytes go through. Of datagrams only its options are used.
    pub(super) data: Arc<UnixSocket>,
    pub(super) me: Weak<GuestSocket>,
}

impl GuestSocket {
    /// socket(2) of AF_INET or AF_INET6 in a namespace. ESOCKTNOSUPPORT and EPROTONOSUPPORT for
    /// other than TCP, UDP and ICMP.
    pub fn new(
        namespace: &Arc<NetNamespace>,
        domain: u32,
        kind: u32,
        protocol: u32,
    ) -> Result<Arc<Self>> {
        let of_icmp = if domain == AF_INET { ICMP } else { ICMP6 };
        let protocol = match (kind, protocol) {
            (SOCK_STREAM, 0 | TCP) => TCP,
            (SOCK_DGRAM, 0 | UDP) => UDP,
            (SOCK_DGRAM, protocol) if protocol == of_icmp => protocol,
            (SOCK_RAW, protocol) if protocol == of_icmp => protocol | RAW,
            (SOCK_STREAM | SOCK_DGRAM | SOCK_RAW, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        let network = network::of(namespace).ok_or(Errno::EAFNOSUPPORT)?;
        let (namespace, state) = (namespace.clone(), State::default());
        let socket = Self::with((domain, kind, protocol), namespace, network, state);
        if kind == SOCK_RAW {
            socket.bind_to(address::unspecified(domain), RAW_PORT)?;
        }
        Ok(socket)
    }

    /// The side of a connection that accept(2) gives.
    pub(super) fn served(&self, state: State) -> Arc<Self> {
        let (namespace, network) = (self.namespace.clone(), self.network.clone());
        Self::with((self.domain, self.kind, self.protocol), namespace, network, state)
    }

    fn with(
        (domain, kind, protocol): (u32, u32, u32),
        namespace: Arc<NetNamespace>,
        network: Arc<Network>,
        state: State,
    ) -> Arc<Self> {
        let queue = Arc::new(WaitQueue::new());
        let ports = ports_of(network.number);
        Arc::new_cyclic(|me| GuestSocket {
            domain,
            kind,
            protocol,
            namespace,
            network,
            ports,
            state: Mutex::new(state),
            data: UnixSocket::unnamed(kind, queue.clone()),
            queue,
            me: me.clone(),
        })
    }

    /// True if it is a SOCK_STREAM socket.
    pub fn is_stream(&self) -> bool {
        self.kind == SOCK_STREAM
    }

    /// SO_RCVLOWAT: the bytes that a reader waits for.
    pub fn low_water(&self) -> usize {
        if self.is_stream() { self.data.low_water() } else { 1 }
    }

    /// What notifies of readiness.
    pub fn events(&self) -> &WaitQueue {
        &self.queue
    }

    /// Whose it is, and when it was made.
    pub fn identity(&self) -> &AnonInode {
        self.data.identity()
    }

    /// What stat(2) says.
    pub fn attributes(&self) -> Attributes {
        self.data.attributes()
    }

    /// What it holds to be received, about, in bytes.
    pub fn held_bytes(&self) -> u64 {
        /// Of a connection that nobody has accepted.
        const CONNECTION: usize = 2048;
        let connections = match &self.state.lock().role {
            Role::Listens(listener) => listener.pending.len() * CONNECTION,
            _ => 0,
        };
        let datagrams = self.state.lock().datagrams.bytes();
        (connections + datagrams) as u64 + self.data.held_bytes()
    }

    // ---- names ----

    /// What it claims of its port at this address. `listens`: connections are to come there.
    pub(super) fn claim(&self, ip: IpAddr, listens: bool) -> Claim {
        let uid = self.attributes().uid;
        let options = &self.state.lock().options;
        let is_dual = self.domain == AF_INET6 && !options.is_v6_only;
        let all_hear = Shares { address: true, ..Shares::default() };
        let shares = if self.is_raw() { all_hear } else { options.shares(listens, uid) };
        Claim { ip, is_dual, device: options.device, shares }
    }

    /// True if it is a SOCK_RAW socket.
    pub(super) fn is_raw(&self) -> bool {
        self.kind == SOCK_RAW
    }

    /// True if it is one of ICMP.
    pub(super) fn is_of_icmp(&self) -> bool {
        matches!(self.protocol & !RAW, ICMP | ICMP6)
    }

    fn check_version(&self, ip: IpAddr, errno: Errno) -> Result {
        let is_mapped = self.domain == AF_INET6 && ip.is_ipv4();
        if is_mapped && self.state.lock().options.is_v6_only { Err(errno) } else { Ok(()) }
    }

    /// bind(2), for who has these credentials.
    pub fn bind(&self, creds: &Creds, bytes: &[u8]) -> Result {
        // As on Linux, no address of no family is none of this one.
        let is_none = self.domain == AF_INET
            && bytes.len() >= 8
            && address::family_is(bytes, AF_UNSPEC)
            && bytes[4..8] == [0; 4];
        let asked = if is_none {
            let port = u16::from_be_bytes([bytes[2], bytes[3]]);
            SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
        } else {
            address::parse(self.domain, bytes)?
        };
        let (ip, port) = (asked.ip(), asked.port());
        self.check_version(ip, Errno::EINVAL)?;
        if !ip.is_unspecified() && self.network.local(ip).is_none() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if self.is_raw() {
            return self.rebind(ip);
        }
        let first_unprivileged = sys::number("net/ipv4/ip_unprivileged_port_start", 1024);
        if port != 0
            && !self.is_of_icmp()
            && u64::from(port) < first_unprivileged
            && !creds.capable_in(&self.namespace.user, CAP_NET_BIND_SERVICE)
        {
            return Err(Errno::EACCES);
        }
        if self.state.lock().local.is_some() {
            return Err(Errno::EINVAL);
        }
        self.bind_to(ip, port)?;
        let mut state = self.state.lock();
        state.asked = state.local;
        Ok(())
    }

    /// Goes back to what bind(2) gave it, after a connection that came to nothing or is no more.
    pub(super) fn unbind(&self) {
        let gone = {
            let mut state = self.state.lock();
            let gone = state.local.filter(|_| state.asked.is_none());
            state.local = state.asked;
            gone
        };
        if let Some(gone) = gone {
            self.ports.lock().release((self.protocol, gone.port()), &self.me);
        }
    }

    fn bind_to(&self, ip: IpAddr, port: u16) -> Result {
        let claim = self.claim(ip, false);
        let port = self.ports.lock().bind(self.protocol, port, claim, &self.me)?;
        self.state.lock().local = Some(SocketAddr::new(ip, port));
        Ok(())
    }

    /// Of a raw socket: it hears what comes to this address alone.
    fn rebind(&self, ip: IpAddr) -> Result {
        let claim = self.claim(ip, false);
        self.ports.lock().change((self.protocol, RAW_PORT), &self.me, claim)?;
        self.state.lock().local = Some(SocketAddr::new(ip, RAW_PORT));
        Ok(())
    }

    /// Gives it a port if it has none.
    pub(super) fn autobind(&self) -> Result {
        if self.state.lock().local.is_some() {
            return Ok(());
        }
        self.bind_to(address::unspecified(self.domain), 0)
    }

    /// Connections are to come to its port from now on. EADDRINUSE.
    pub(super) fn claim_connections(&self) -> Result {
        let Some(local) = self.state.lock().local else { return Err(Errno::EINVAL) };
        let claim = self.claim(local.ip(), true);
        self.ports.lock().change((self.protocol, local.port()), &self.me, claim)
    }

    /// Where an address of connect(2) or sendto(2) is, and the way there. ENETUNREACH,
    /// EHOSTUNREACH.
    pub(super) fn route(&self, to: SocketAddr) -> Result<(SocketAddr, Path)> {
        self.route_by(None, to)
    }

    /// The same by the interface of this number, if it is to be another than that of the socket.
    pub(super) fn route_by(
        &self,
        by: Option<u32>,
        mut to: SocketAddr,
    ) -> Result<(SocketAddr, Path)> {
        // No address stands for this machine.
        if to.ip().is_unspecified() {
            to.set_ip(match to.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        self.check_version(to.ip(), Errno::ENETUNREACH)?;
        // What has an address of IPv6 does not speak IPv4.
        let own = self.state.lock().local.map(|local| local.ip());
        if to.is_ipv4() && own.is_some_and(|ip| ip.is_ipv6() && !ip.is_unspecified()) {
            return Err(Errno::ENETUNREACH);
        }
        let (hops, device) = {
            let options = &self.state.lock().options;
            (options.hops(to.ip()), options.device)
        };
        let path = self.network.path_by(by.unwrap_or(device), to.ip())?.within(hops);
        Ok((to, path))
    }

    /// True if it hears what comes by the interface of this number.
    pub(super) fn hears(&self, index: u32) -> bool {
        let device = self.device();
        device == 0 || device == index
    }

    /// The number of the interface that it is bound to, 0 for none.
    pub(super) fn device(&self) -> u32 {
        self.state.lock().options.device
    }

    /// Its address as what it sends to `source`'s network has it.
    pub(super) fn local_for(&self, source: IpAddr) -> Result<SocketAddr> {
        self.autobind()?;
        let local = self.state.lock().local.ok_or(Errno::EINVAL)?;
        let ip = if local.ip().is_unspecified() { source } else { local.ip() };
        Ok(SocketAddr::new(ip, local.port()))
    }

    /// getsockname(2) or getpeername(2).
    pub fn name(&self, of_peer: bool) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let nothing = SocketAddr::new(address::unspecified(self.domain), 0);
        let is_connected = !self.is_stream() || matches!(state.role, Role::Connected { .. });
        let mut name = match of_peer {
            true => state.remote.filter(|_| is_connected).ok_or(Errno::ENOTCONN)?,
            false => state.local.unwrap_or(nothing),
        };
        if self.is_raw() {
            name.set_port(0);
        }
        Ok(address::to_bytes(self.domain, name))
    }

    /// Its address and that of its peer, as /proc/net/tcp and its like have them.
    pub(super) fn listed(&self) -> (SocketAddr, SocketAddr) {
        let state = self.state.lock();
        let nothing = SocketAddr::new(address::unspecified(self.domain), 0);
        (state.local.unwrap_or(nothing), state.remote.unwrap_or(nothing))
    }

    // ---- messages ----

    /// connect(2), without waiting: EINPROGRESS or EALREADY while it is under way. Called again
    /// afterwards it reports the outcome.
    pub fn connect(&self, address: &[u8]) -> Result {
        if self.is_stream() {
            return self.connect_stream(address);
        }
        if address::family_is(address, AF_UNSPEC) {
            self.state.lock().remote = None;
            self.unbind();
            return Ok(());
        }
        let (to, path) = self.route(address::parse_datagram(self.domain, address)?)?;
        let local = self.local_for(path.source)?;
        let mut state = self.state.lock();
        (state.local, state.remote) = (Some(local), Some(to));
        Ok(())
    }

    /// sendmsg(2), without waiting. EAGAIN.
    /// `control`: the messages of [`SOL_IP`](super::kept::IP) and its like.
    pub fn send(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        to: &[u8],
        control: &[u8],
    ) -> Result<usize> {
        match (self.is_stream(), self.is_of_icmp()) {
            (true, _) => self.send_stream(buffer, flags),
            (false, true) => self.send_echo(buffer, flags, to),
            (false, false) => self.send_datagram(buffer, flags, to, control),
        }
    }

    /// recvmsg(2), without waiting. EAGAIN.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
        if flags & MSG_ERRQUEUE != 0 {
            // Nothing is lost that would be told of there.
            return Err(Errno::EAGAIN);
        }
        if self.is_stream() {
            self.receive_stream(buffer, flags)
        } else {
            self.receive_datagram(buffer, flags)
        }
    }

    /// shutdown(2): `how` 0 read, 1 write, 2 both.
    pub fn shutdown(&self, how: u32) -> Result {
        if self.is_stream() {
            return self.shut_stream(how);
        }
        {
            let mut state = self.state.lock();
            if state.remote.is_none() {
                return Err(Errno::ENOTCONN);
            }
            state.read_shut |= how != 1;
            state.write_shut |= how != 0;
        }
        self.wake_all();
        Ok(())
    }

    /// The descriptor was closed.
    pub fn close(&self) {
        let (local, role, datagrams) = {
            let mut state = self.state.lock();
            let datagrams = core::mem::take(&mut state.datagrams);
            (state.local, core::mem::take(&mut state.role), datagrams)
        };
        drop(datagrams);
        if let Some(local) = local {
            self.ports.lock().release((self.protocol, local.port()), &self.me);
        }
        if let Role::Listens(listener) = role {
            listener.end();
        }
        if self.resets_at_close() {
            self.data.fail_peer(Errno::ECONNRESET);
        }
        self.data.close();
        self.wake_all();
    }

    pub(super) fn wake_all(&self) {
        self.queue.wake(PollMask::READ | PollMask::WRITE | PollMask::RDHUP | PollMask::ALWAYS);
    }

    /// Readiness now.
    pub fn poll(&self) -> PollMask {
        let mut mask = if self.is_stream() { self.poll_stream() } else { self.poll_datagrams() };
        mask.set(PollMask::ERR, mask.contains(PollMask::ERR) || self.state.lock().error.is_some());
        mask
    }

    /// ioctl(2).
    pub fn ioctl(&self, caller: &dyn Caller, command: u32, argument: u64) -> Result<usize> {
        const SIOCOUTQ: u32 = 0x5411;
        const SIOCATMARK: u32 = 0x8905;
        let bytes = match command {
            FIONREAD if !self.is_stream() => self.state.lock().datagrams.first_bytes(),
            SIOCOUTQ if !self.is_stream() => 0,
            FIONREAD if self.listens() => return Err(Errno::EINVAL),
            FIONREAD => self.data.bytes_before_mark(),
            SIOCOUTQ => return self.data.ioctl(caller, command, argument),
            SIOCATMARK if self.is_stream() => {
                return self.data.ioctl(caller, command, argument);
            }
            _ if is_interface_ioctl(command) => {
                let place = (&*self.namespace, &self.network);
                return ioctl::ioctl(place, caller, command, argument);
            }
            _ => return Err(Errno::ENOTTY),
        };
        caller.mm().write(Va(argument), &(bytes as i32)).map(|()| 0)
    }
}
