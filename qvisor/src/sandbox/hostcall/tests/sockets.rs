//! Sockets.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::*;

fn inet(port: u16) -> Vec<u8> {
    [&(libc::AF_INET as u16).to_ne_bytes()[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]]
        .concat()
}

fn port_of(addr: &[u8]) -> u16 {
    u16::from_be_bytes([addr[2], addr[3]])
}

/// Turns the event loop until something happened to `token`.
fn wait_ready(g: &Guest, token: u64, mask: i32) {
    struct None;
    impl crate::sandbox::events::Sources for None {
        fn ready(&mut self, _: u64, _: crate::sandbox::events::Dispatch<'_>) {}
    }
    let seen = std::cell::Cell::new(false);
    let end = Instant::now() + Duration::from_secs(5);
    while !seen.get() {
        assert!(Instant::now() < end, "no event for {token}");
        let dispatch = |e: &qlib::platform::Event| {
            if e.a == token && e.b & mask as u64 != 0 {
                seen.set(true);
            }
        };
        let step = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        g.host.poller.turn(Some(step), &dispatch, &mut None).unwrap();
    }
}

#[test]
fn tcp_server_and_client_over_loopback() {
    let g = Guest::new();
    let (inet_domain, stream) = (libc::AF_INET as u64, libc::SOCK_STREAM as u64);
    let listener = g.ok(Op::Socket, 0, &[inet_domain, stream, 0], &[]).ret as u32;
    let one = 1i32.to_ne_bytes();
    g.ok(
        Op::SetSockOpt,
        listener,
        &[libc::SOL_SOCKET as u64, libc::SO_REUSEADDR as u64],
        &[In(&one)],
    );
    let got = g.ok(
        Op::GetSockOpt,
        listener,
        &[libc::SOL_SOCKET as u64, libc::SO_REUSEADDR as u64],
        &[Out(4)],
    );
    assert_eq!((got.ret, &got.out[0][..]), (4, &one[..]));
    g.ok(Op::Bind, listener, &[], &[In(&inet(0))]);
    g.ok(Op::Listen, listener, &[16], &[]);
    let name = g.ok(Op::GetSockName, listener, &[], &[Out(128)]);
    assert_eq!(name.ret, 16);
    let port = port_of(&name.out[0]);
    assert_eq!(g.err(Op::Accept, listener, &[], &[Out(128)]), libc::EAGAIN);
    g.ok(Op::Watch, listener, &[77], &[]);

    let echo = std::thread::spawn(move || {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"ping").unwrap();
        let mut back = [0; 4];
        client.read_exact(&mut back).unwrap();
        back
    });
    wait_ready(&g, 77, libc::EPOLLIN);
    let accepted = g.ok(Op::Accept, listener, &[], &[Out(128)]);
    assert_eq!(accepted.args[0], 16);
    let connection = accepted.ret as u32;
    g.ok(Op::Watch, connection, &[78], &[]);
    wait_ready(&g, 78, libc::EPOLLIN);
    let received = g.ok(Op::Recv, connection, &[0], &[Out(0), Out(0), Out(2), Out(100)]);
    assert_eq!(
        (received.ret, &received.out[2][..], &received.out[3][..2]),
        (4, &b"pi"[..], &b"ng"[..])
    );
    assert_eq!(g.err(Op::Recv, connection, &[0], &[Out(0), Out(0), Out(1)]), libc::EAGAIN);
    assert_eq!(g.ok(Op::Send, connection, &[0], &[In(b""), In(b""), In(b"po"), In(b"ng")]).ret, 4);
    assert_eq!(&echo.join().unwrap(), b"pong");
    wait_ready(&g, 78, libc::EPOLLRDHUP);
    assert_eq!(g.ok(Op::Recv, connection, &[0], &[Out(0), Out(0), Out(1)]).ret, 0);
    g.ok(Op::Shutdown, connection, &[libc::SHUT_WR as u64], &[]);
    g.ok(Op::Close, connection, &[], &[]);

    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = g.ok(Op::Socket, 0, &[inet_domain, stream, 0], &[]).ret as u32;
    let connect = g.call(Op::Connect, client, &[], &[In(&inet(host.local_addr().unwrap().port()))]);
    assert_eq!(connect.ret, -i64::from(libc::EINPROGRESS));
    g.ok(Op::Watch, client, &[79], &[]);
    let (mut peer, _) = host.accept().unwrap();
    wait_ready(&g, 79, libc::EPOLLOUT);
    g.ok(Op::Write, client, &[qlib::host::STREAM, 0], &[In(b"hi")]);
    let mut hi = [0; 2];
    peer.read_exact(&mut hi).unwrap();
    assert_eq!(&hi, b"hi");
    let queued = g.ok(Op::SockIoctl, client, &[libc::FIONREAD], &[Out(4)]);
    assert_eq!(queued.out[0], [0; 4]);
}

#[test]
fn a_connection_without_room_for_it_waits() {
    let mut g = Guest::new();
    let stream = &[libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0];
    let listener = g.ok(Op::Socket, 0, stream, &[]).ret as u32;
    g.ok(Op::Bind, listener, &[], &[In(&inet(0))]);
    g.ok(Op::Listen, listener, &[16], &[]);
    let port = port_of(&g.ok(Op::GetSockName, listener, &[], &[Out(128)]).out[0]);
    g.ok(Op::Watch, listener, &[77], &[]);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    wait_ready(&g, 77, libc::EPOLLIN);
    let most = std::mem::replace(&mut g.host.max_descriptors, g.host.handles.len());
    assert_eq!(g.err(Op::Accept, listener, &[], &[Out(128)]), libc::EMFILE);
    g.host.max_descriptors = most;
    g.ok(Op::Accept, listener, &[], &[Out(128)]);
    client.write_all(b"it was not closed").unwrap();
}

#[test]
fn datagrams_and_interfaces() {
    let g = Guest::new();
    let socket =
        g.ok(Op::Socket, 0, &[libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0], &[]).ret as u32;
    g.ok(Op::Bind, socket, &[], &[In(&inet(0))]);
    let port = port_of(&g.ok(Op::GetSockName, socket, &[], &[Out(16)]).out[0]);
    let host = UdpSocket::bind("127.0.0.1:0").unwrap();
    host.send_to(b"datagram", ("127.0.0.1", port)).unwrap();
    let received = g.ok(Op::Recv, socket, &[0], &[Out(128), Out(64), Out(4)]);
    assert_eq!((received.ret, received.args[0], &received.out[2][..]), (4, 16, &b"data"[..]));
    assert_eq!(port_of(&received.out[0]), host.local_addr().unwrap().port());
    assert_eq!(received.args[2] as i32, libc::MSG_TRUNC);
    let reply = inet(host.local_addr().unwrap().port());
    assert_eq!(g.ok(Op::Send, socket, &[0], &[In(&reply), In(b""), In(b"answer")]).ret, 6);
    let mut answer = [0; 6];
    host.recv(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");

    let mut request = b"lo".to_vec();
    request.resize(40, 0);
    let answer = g.call(Op::SockIoctl, socket, &[libc::SIOCGIFINDEX], &[In(&request)]);
    assert_eq!(answer.ret, 0);
    let list = g.ok(Op::SockIoctl, socket, &[libc::SIOCGIFCONF], &[Out(400)]);
    assert!(list.out[0][..list.ret as usize].chunks(40).any(|i| i.starts_with(b"lo\0")));
}

#[test]
fn sockets_have_bounds() {
    let g = Guest::new();
    let socket = |domain: i32, kind: i32, protocol: i32| {
        g.call(Op::Socket, 0, &[domain as u64, kind as u64, protocol as u64], &[]).ret as i32
    };
    assert_eq!(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), -libc::EAFNOSUPPORT);
    assert_eq!(socket(libc::AF_PACKET, libc::SOCK_RAW, 0), -libc::EAFNOSUPPORT);
    assert_eq!(socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0), -libc::EAFNOSUPPORT);
    assert_eq!(socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW), -libc::EPROTONOSUPPORT);
    assert_eq!(
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
        -libc::EPROTONOSUPPORT
    );
    assert_eq!(
        socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDPLITE),
        -libc::EPROTONOSUPPORT
    );
    let tcp = socket(libc::AF_INET, libc::SOCK_STREAM, 0) as u32;
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
        (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
        (libc::IPPROTO_TCP, libc::TCP_ULP),
        (libc::IPPROTO_IP, 64),
    ] {
        assert_eq!(
            g.err(Op::SetSockOpt, tcp, &[level as u64, name as u64], &[In(&[0; 16])]),
            libc::ENOPROTOOPT
        );
    }
    assert_eq!(g.err(Op::SetSockOpt, tcp, &[9999, 1], &[In(&[0; 4])]), libc::ENOPROTOOPT);
    assert_eq!(
        g.err(Op::Send, tcp, &[libc::MSG_ZEROCOPY as u64], &[In(b""), In(b""), In(b"x")]),
        libc::EOPNOTSUPP
    );

    // Netlink: the list of links may be asked for, and nothing changed.
    let route = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE) as u32;
    let message = |kind: u16, flags: u16| {
        let mut m = 32u32.to_ne_bytes().to_vec();
        m.extend(kind.to_ne_bytes());
        m.extend(flags.to_ne_bytes());
        m.resize(32, 0);
        m
    };
    let dump = message(libc::RTM_GETLINK, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16);
    assert_eq!(g.ok(Op::Send, route, &[0], &[In(b""), In(b""), In(&dump)]).ret, 32);
    assert!(g.ok(Op::Recv, route, &[0], &[Out(128), Out(0), Out(8192)]).ret > 16);
    let mut new = message(libc::RTM_NEWLINK, libc::NLM_F_REQUEST as u16);
    // With nothing in it, it is how programs ask what the host knows.
    assert_eq!(g.ok(Op::Send, route, &[0], &[In(b""), In(b""), In(&new)]).ret, 32);
    // Interface 1.
    new[20] = 1;
    assert_eq!(g.err(Op::Send, route, &[0], &[In(b""), In(b""), In(&new)]), libc::EPERM);
    assert_eq!(g.err(Op::Write, route, &[qlib::host::STREAM, 0], &[In(&new)]), libc::EPERM);
}
