//! Internet sockets that reach only each other: what streams and datagrams have in common.

use alloc::collections::BTreeMap;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linux_raw_sys::general::CAP_NET_BIND_SERVICE;
use linux_raw_sys::ioctl::FIONREAD;
use linux_raw_sys::net::{AF_INET, AF_INET6, AF_UNSPEC, SOCK_DGRAM, SOCK_STREAM};
use qlib::Va;

use super::address;
use super::datagram::Datagrams;
use super::interface::{self, Interface};
use super::ioctl;
use super::options::Options;
use super::ports::{Claim, Ports};
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

const TCP: u32 = 6;
const UDP: u32 = 17;

type SharedPorts = Arc<Mutex<Ports<LoopbackSocket>>>;

/// The ports of each namespace, by its number.
static PORTS: Mutex<BTreeMap<u64, SharedPorts>> = mutex(BTreeMap::new());

/// The namespace of this number is gone.
pub(super) fn forget(number: u64) {
    let gone = PORTS.lock().remove(&number);
    drop(gone);
}

/// The bound sockets of a protocol in a namespace.
pub(super) fn all(namespace: &NetNamespace, kind: u32) -> Vec<Arc<LoopbackSocket>> {
    let ports = PORTS.lock().get(&namespace.number).cloned();
    ports.map_or_else(Vec::new, |ports| ports.lock().all(kind))
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
    pub pending: VecDeque<Arc<LoopbackSocket>>,
    /// Those for which there was no room.
    pub waiting: VecDeque<Weak<LoopbackSocket>>,
}

#[derive(Default)]
pub(super) struct State {
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub role: Role,
    /// To be reported by the next call, and by SO_ERROR.
    pub error: Option<Errno>,
    pub options: Options,
    pub datagrams: Datagrams,
    /// shutdown(2); whether a stream is read from, its bytes' sockets know.
    pub read_shut: bool,
    pub write_shut: bool,
}

impl State {
    /// Fails by the error that is to be reported, once.
    pub fn report(&mut self) -> Result {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// An internet socket of a network namespace that has nothing but its loopback interface.
pub struct LoopbackSocket {
    pub(super) domain: u32,
    pub(super) kind: u32,
    pub(super) namespace: Arc<NetNamespace>,
    pub(super) interface: Arc<Interface>,
    pub(super) ports: SharedPorts,
    pub(super) state: Mutex<State>,
    pub(super) queue: Arc<WaitQueue>,
    /// What a connection's bytes go through. Of datagrams only its options are used.
    pub(super) data: Arc<UnixSocket>,
    pub(super) me: Weak<LoopbackSocket>,
}

impl LoopbackSocket {
    /// socket(2) of AF_INET or AF_INET6 in a namespace. ESOCKTNOSUPPORT and EPROTONOSUPPORT for
    /// other than TCP and UDP.
    pub fn new(
        namespace: &Arc<NetNamespace>,
        domain: u32,
        kind: u32,
        protocol: u32,
    ) -> Result<Arc<Self>> {
        match (kind, protocol) {
            (SOCK_STREAM, 0 | TCP) | (SOCK_DGRAM, 0 | UDP) => {}
            (SOCK_STREAM | SOCK_DGRAM, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        }
        let interface = interface::of(namespace).ok_or(Errno::EAFNOSUPPORT)?;
        let ports = PORTS.lock().entry(namespace.number).or_default().clone();
        Ok(Self::with((domain, kind), namespace.clone(), interface, ports, State::default()))
    }

    /// The side of a connection that accept(2) gives.
    pub(super) fn served(&self, state: State) -> Arc<Self> {
        let (namespace, interface) = (self.namespace.clone(), self.interface.clone());
        Self::with((self.domain, self.kind), namespace, interface, self.ports.clone(), state)
    }

    fn with(
        (domain, kind): (u32, u32),
        namespace: Arc<NetNamespace>,
        interface: Arc<Interface>,
        ports: SharedPorts,
        state: State,
    ) -> Arc<Self> {
        let queue = Arc::new(WaitQueue::new());
        Arc::new_cyclic(|me| LoopbackSocket {
            domain,
            kind,
            namespace,
            interface,
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
    fn claim(&self, ip: IpAddr, listens: bool) -> Claim {
        let options = &self.state.lock().options;
        let is_dual = self.domain == AF_INET6 && !options.is_v6_only;
        Claim { ip, is_dual, shares: options.shares(listens) }
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
        if !ip.is_unspecified() && !self.interface.has(ip) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let first_unprivileged = sys::number("net/ipv4/ip_unprivileged_port_start", 1024);
        if port != 0
            && u64::from(port) < first_unprivileged
            && !creds.capable_in(&self.namespace.user, CAP_NET_BIND_SERVICE)
        {
            return Err(Errno::EACCES);
        }
        if self.state.lock().local.is_some() {
            return Err(Errno::EINVAL);
        }
        self.bind_to(ip, port)
    }

    fn bind_to(&self, ip: IpAddr, port: u16) -> Result {
        let claim = self.claim(ip, false);
        let port = self.ports.lock().bind(self.kind, port, claim, &self.me)?;
        self.state.lock().local = Some(SocketAddr::new(ip, port));
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
        self.ports.lock().change((self.kind, local.port()), &self.me, claim)
    }

    /// Where an address of connect(2) or sendto(2) is, and where what it is sent comes from.
    /// ENETUNREACH.
    pub(super) fn route(&self, mut to: SocketAddr) -> Result<(SocketAddr, IpAddr)> {
        // No address stands for this machine.
        if to.ip().is_unspecified() {
            to.set_ip(match to.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        self.check_version(to.ip(), Errno::ENETUNREACH)?;
        let source = self.interface.source_for(to.ip())?;
        Ok((to, source))
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
        let name = match of_peer {
            true => state.remote.filter(|_| is_connected).ok_or(Errno::ENOTCONN)?,
            false => state.local.unwrap_or(nothing),
        };
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
            return Ok(());
        }
        let (to, source) = self.route(address::parse(self.domain, address)?)?;
        let local = self.local_for(source)?;
        let mut state = self.state.lock();
        (state.local, state.remote) = (Some(local), Some(to));
        Ok(())
    }

    /// sendmsg(2), without waiting. EAGAIN.
    pub fn send(&self, buffer: &mut IoBuffer<'_>, flags: u32, to: &[u8]) -> Result<usize> {
        let sent = if self.is_stream() {
            self.send_stream(buffer, flags)
        } else {
            self.send_datagram(buffer, flags, to)
        }?;
        self.interface.count(sent);
        Ok(sent)
    }

    /// recvmsg(2), without waiting. EAGAIN.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
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
            // Of a connection that was accepted the port is the listener's.
            self.ports.lock().release((self.kind, local.port()), &self.me);
        }
        if let Role::Listens(listener) = role {
            listener.end();
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
        let bytes = match command {
            FIONREAD if !self.is_stream() => self.state.lock().datagrams.first_bytes(),
            SIOCOUTQ if !self.is_stream() => 0,
            FIONREAD | SIOCOUTQ => return self.data.ioctl(caller, command, argument),
            _ if is_interface_ioctl(command) => {
                let place = (&*self.namespace, &*self.interface);
                return ioctl::ioctl(place, caller, command, argument);
            }
            _ => return Err(Errno::ENOTTY),
        };
        caller.mm().write(Va(argument), &(bytes as i32)).map(|()| 0)
    }
}
