//! The host side under attack by whoever owns the guest kernel: what it asks for that nobody gave
//! it.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use qlib::host::{LOCK_FLOCK, LOCK_RECORD, LOCK_SHARED};
use qlib::sockopt::{CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW};
use rustix::net::SocketType;

use super::*;

fn socket(g: &Guest, domain: i32, kind: i32, protocol: i32) -> u32 {
    g.ok(Op::Socket, 0, &[domain as u64, kind as u64, protocol as u64], &[]).ret as u32
}

fn set(g: &Guest, handle: u32, level: i32, name: i32, value: &[u8]) -> i64 {
    g.call(Op::SetSockOpt, handle, &[level as u64, name as u64], &[In(value)]).ret
}

#[test]
fn options_take_what_the_container_was_given() {
    let g = Guest::new();
    let tcp = socket(&g, libc::AF_INET, libc::SOCK_STREAM, 0);
    let one = 1i32.to_ne_bytes();
    let eperm = -i64::from(libc::EPERM);
    let mark = || set(&g, tcp, libc::SOL_SOCKET, libc::SO_MARK, &one);
    let force = || set(&g, tcp, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &one);
    assert_eq!((mark(), force()), (eperm, eperm));
    assert_eq!(set(&g, tcp, libc::IPPROTO_IP, libc::IP_TRANSPARENT, &one), eperm);
    // Twice tied to a device.
    assert_eq!(set(&g, tcp, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo\0"), 0);
    assert_eq!(set(&g, tcp, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b""), eperm);
    assert_eq!(set(&g, tcp, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &[0; 4]), eperm);
    g.host.grant(CAP_NET_RAW);
    assert_eq!((mark(), force()), (0, eperm));
    assert_eq!(set(&g, tcp, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b""), 0);
    g.host.grant(CAP_NET_ADMIN);
    assert_eq!((mark(), force()), (0, 0));
    // Congestion controls that are not for everybody stay out, also those that would have to be
    // loaded first.
    for name in [&b"dctcp"[..], b"no-such-module", b"", b"cubic-but-longer"] {
        assert_eq!(
            set(&g, tcp, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name),
            -i64::from(libc::ENOENT)
        );
    }
    let current = g.ok(
        Op::GetSockOpt,
        tcp,
        &[libc::IPPROTO_TCP as u64, libc::TCP_CONGESTION as u64],
        &[Out(16)],
    );
    assert_eq!(set(&g, tcp, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &current.out[0]), 0);
}

#[test]
fn control_messages_raw_sockets_and_low_ports_take_what_the_container_was_given() {
    let g = Guest::new();
    let udp = socket(&g, libc::AF_INET, libc::SOCK_DGRAM, 0);
    let to = [&2u16.to_ne_bytes()[..], &9u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat();
    let mut mark = 20u64.to_ne_bytes().to_vec();
    mark.extend([libc::SOL_SOCKET, libc::SO_MARK, 1, 0].map(i32::to_ne_bytes).concat());
    let send = || g.call(Op::Send, udp, &[0], &[In(&to), In(&mark), In(b"x")]).ret;
    let raw = || {
        let args = [libc::AF_INET as u64, libc::SOCK_RAW as u64, libc::IPPROTO_ICMP as u64];
        g.call(Op::Socket, 0, &args, &[]).ret
    };
    let eperm = -i64::from(libc::EPERM);
    assert_eq!((send(), raw()), (eperm, eperm));
    g.host.grant(CAP_NET_RAW);
    assert_eq!(send(), 1);
    assert!(raw() >= 0);
    // Port 1 by any family that the host would take for that of the socket.
    for family in [libc::AF_INET, libc::AF_UNSPEC, libc::AF_INET6] {
        let address = [&(family as u16).to_ne_bytes()[..], &1u16.to_be_bytes(), &[0; 24]].concat();
        for domain in [libc::AF_INET, libc::AF_INET6] {
            let tcp = socket(&g, domain, libc::SOCK_STREAM, 0);
            assert_eq!(
                g.err(Op::Bind, tcp, &[], &[In(&address)]),
                libc::EACCES,
                "{family} {domain}"
            );
        }
    }
    g.host.grant(CAP_NET_BIND_SERVICE);
    let elsewhere =
        [&2u16.to_ne_bytes()[..], &1u16.to_be_bytes(), &[192, 0, 2, 1], &[0; 8]].concat();
    let tcp = socket(&g, libc::AF_INET, libc::SOCK_STREAM, 0);
    assert_eq!(
        g.err(Op::Bind, tcp, &[], &[In(&elsewhere)]),
        libc::EADDRNOTAVAIL,
        "the host was asked"
    );
}

#[test]
fn netlink_speaks_to_the_kernel_and_asks() {
    let g = Guest::new();
    let route = socket(&g, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
    let address = |pid: u32, groups: u32| {
        let family = u32::from(libc::AF_NETLINK as u16);
        [family, pid, groups].map(u32::to_ne_bytes).concat()
    };
    assert_eq!(g.err(Op::Connect, route, &[], &[In(&address(4711, 0))]), libc::EPERM);
    assert_eq!(g.err(Op::Connect, route, &[], &[In(&address(0, 1))]), libc::EPERM);
    g.ok(Op::Connect, route, &[], &[In(&address(0, 0))]);
    // To connect is to be bound: another one.
    let route = socket(&g, libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
    assert_eq!(g.err(Op::Bind, route, &[], &[In(&address(0, 1 << 29))]), libc::EPERM);
    g.ok(Op::Bind, route, &[], &[In(&address(0, 1))]);
    assert_eq!(
        set(&g, route, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &30u32.to_ne_bytes()),
        -1
    );
    let request = |kind: u16, body: &[u8]| {
        let mut m = (16 + body.len() as u32).to_ne_bytes().to_vec();
        m.extend(kind.to_ne_bytes());
        m.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        m.extend([0; 8]);
        m.extend(body);
        m
    };
    let dcb = request(libc::RTM_GETDCB, &[0; 4]);
    let other_netns =
        request(libc::RTM_GETLINK, &[&[0; 16][..], &[8, 0, 46, 0, 0, 0, 0, 0]].concat());
    for message in [dcb, other_netns] {
        assert_eq!(g.err(Op::Send, route, &[0], &[In(b""), In(b""), In(&message)]), libc::EPERM);
        assert_eq!(g.err(Op::Write, route, &[qlib::host::STREAM, 0], &[In(&message)]), libc::EPERM);
    }
    // No device of that name: the host is not asked in the way that loads modules.
    let udp = socket(&g, libc::AF_INET, libc::SOCK_DGRAM, 0);
    let name = [&b"vhost_net"[..], &[0; 31]].concat();
    for command in [libc::SIOCGIFINDEX, libc::SIOCGIFADDR, libc::SIOCGIFFLAGS] {
        assert_eq!(g.err(Op::SockIoctl, udp, &[command], &[In(&name)]), libc::ENODEV);
    }
}

#[test]
fn no_vcpu_waits_for_a_socket_to_linger() {
    let g = Guest::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = [&2u16.to_ne_bytes()[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat();
    let tcp = socket(&g, libc::AF_INET, libc::SOCK_STREAM, 0);
    g.call(Op::Connect, tcp, &[], &[In(&to)]);
    let (peer, _) = listener.accept().unwrap();
    assert_eq!(
        set(&g, tcp, libc::SOL_SOCKET, libc::SO_LINGER, &[1, 600].map(i32::to_ne_bytes).concat()),
        0
    );
    let data = vec![0; 1 << 20];
    let end = Instant::now() + Duration::from_secs(10);
    // Until nothing more goes: the peer does not read.
    while g.call(Op::Send, tcp, &[0], &[In(b""), In(b""), In(&data)]).ret
        != -i64::from(libc::EAGAIN)
    {
        assert!(Instant::now() < end);
    }
    let start = Instant::now();
    g.ok(Op::Close, tcp, &[], &[]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(peer);
}

#[test]
fn what_was_handed_over_open_stays_as_it_is() {
    let g = Guest::new();
    let path = g.dir.join("stdin");
    fs::write(&path, "text").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let file = g.host.add_stdio(stream(fs::File::open(&path).unwrap().into())).unwrap();
    assert_eq!(g.ok(Op::Read, file, &[qlib::host::STREAM], &[Out(4)]).out[0], b"text");
    g.ok(Op::Stat, file, &[], &[Out(256)]);
    let directory = g.host.add_stdio(stream(fs::File::open(&g.dir).unwrap().into())).unwrap();
    let (_master, tty) = terminal();
    let tty = g.host.add_stdio(stream(tty)).unwrap();
    for handle in [file, directory, tty] {
        for flags in [libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR | libc::O_TRUNC, libc::O_PATH] {
            assert_eq!(g.err(Op::Open, handle, &[flags as u64, 0], &[In(b"")]), libc::EPERM);
        }
        assert!(g.call(Op::Open, handle, &[0, 0], &[In(b"stdin")]).ret < 0);
        assert!(g.call(Op::StatPath, handle, &[], &[In(b"stdin"), Out(256)]).ret < 0);
        for mask in [1, 2 | 4, 32 | 64] {
            assert_eq!(
                g.err(Op::SetAttr, handle, &[mask, 0o777, 1 | 1 << 32], &[In(b"")]),
                libc::EPERM
            );
        }
        assert_eq!(
            g.err(Op::SetXattr, handle, &[0], &[In(b""), In(b"user.a"), In(b"v")]),
            libc::EPERM
        );
        assert_eq!(g.err(Op::ListXattr, handle, &[], &[In(b""), Out(100)]), libc::EPERM);
        // Not opened for writing.
        assert_eq!(g.err(Op::Truncate, handle, &[0], &[]), libc::EINVAL);
        assert_eq!(g.err(Op::Allocate, handle, &[0, 0, 4096], &[]), libc::EINVAL);
        assert_eq!(g.err(Op::WindowMap, handle, &[0, 4096, 0], &[]), libc::EINVAL);
        assert_eq!(g.err(Op::ReadDir, handle, &[0], &[Out(1000)]), libc::ENOTDIR);
        for kind in [LOCK_FLOCK, LOCK_RECORD] {
            let lock = [kind, LOCK_SHARED, 0, u64::MAX];
            assert_eq!(g.err(Op::Lock, handle, &lock, &[]), libc::EINVAL);
            assert_eq!(g.err(Op::LockTest, handle, &lock, &[]), libc::EINVAL);
            assert_eq!(
                g.err(Op::LockWait, handle, &[5, kind, LOCK_SHARED, 0, 1], &[]),
                libc::EINVAL
            );
        }
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::read(&path).unwrap(), b"text");
}

#[test]
fn only_files_handed_over_have_a_position_here() {
    let g = Guest::new();
    let path = g.dir.join("file");
    fs::write(&path, "0123456789").unwrap();
    let read = |handle, offset| g.ok(Op::Read, handle, &[offset], &[Out(3)]).out.remove(0);
    let file = fs::OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let file = g.host.add_stdio(stream(file.into())).unwrap();
    let seek = |handle, to: i64, whence: i32| {
        g.call(Op::Seek, handle, &[to as u64, whence as u64], &[]).ret
    };
    assert_eq!(seek(file, 4, libc::SEEK_SET), 4);
    assert_eq!(read(file, qlib::host::STREAM), b"456");
    assert_eq!(read(file, 1), b"123");
    assert_eq!(seek(file, 0, libc::SEEK_CUR), 7, "of a read at another place it knows nothing");
    assert_eq!((seek(file, -1, libc::SEEK_END), seek(file, 0, libc::SEEK_HOLE)), (9, 10));
    for (to, whence, error) in [
        (-1, libc::SEEK_SET, libc::EINVAL),
        (i64::MIN, libc::SEEK_CUR, libc::EINVAL),
        (i64::MIN, libc::SEEK_END, libc::EINVAL),
        (-1, libc::SEEK_DATA, libc::ENXIO),
        (10, libc::SEEK_DATA, libc::ENXIO),
        (0, 5, libc::EINVAL),
        (0, -1, libc::EINVAL),
    ] {
        assert_eq!(seek(file, to, whence), -i64::from(error), "{to} {whence}");
    }
    // Of what the guest opened it has the position itself.
    let own = g.open("file", libc::O_RDONLY);
    for whence in [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 5, -1] {
        assert_eq!(seek(own, 0, whence), -i64::from(libc::ESPIPE), "{whence}");
    }
    assert_eq!((seek(own, 3, libc::SEEK_DATA), seek(own, 3, libc::SEEK_HOLE)), (3, 10));
    assert_eq!(seek(own, -1, libc::SEEK_HOLE), -i64::from(libc::ENXIO));
    assert_eq!(seek(g.root, 0, libc::SEEK_DATA), -i64::from(libc::ESPIPE));
    g.ok(Op::Truncate, file, &[2], &[]);
    assert_eq!(fs::read(&path).unwrap(), b"01");
    assert_eq!(g.err(Op::Truncate, file, &[u64::MAX], &[]), libc::EINVAL);
    let flags = |handle| g.call(Op::StreamFlags, handle, &[], &[]).ret;
    assert_eq!(flags(file), i64::from(libc::O_RDWR | libc::O_APPEND));
    let (r, _w) = rustix::pipe::pipe().unwrap();
    let pipe = g.host.add_stdio(stream(r)).unwrap();
    assert_eq!(
        (flags(pipe) & 0xffff_ffff, seek(pipe, 0, libc::SEEK_CUR)),
        (0, -i64::from(libc::ESPIPE))
    );
    let whole = |fd: OwnedFd| flags(g.host.add_stdio(stream(fd)).unwrap()) >> 32;
    let socket = |kind| {
        use rustix::net::{AddressFamily, SocketFlags, socketpair};
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap().0
    };
    assert_eq!((whole(rustix::pipe::pipe().unwrap().1), whole(terminal().1)), (1, 1));
    assert_eq!((whole(socket(SocketType::STREAM)), whole(socket(SocketType::SEQPACKET))), (1, 0));
    assert_eq!(whole(fs::File::open("/dev/null").unwrap().into()), 0);
    // What the guest opened itself shares a descriptor with others of its opens.
    let opened = g.open("file", libc::O_RDONLY);
    assert_eq!(
        (flags(opened), seek(opened, 0, libc::SEEK_SET)),
        (-i64::from(libc::EINVAL), -i64::from(libc::ESPIPE))
    );
    assert_eq!(seek(g.root, 0, libc::SEEK_SET), -i64::from(libc::ESPIPE));
    assert_eq!(
        (flags(4711), seek(4711, 0, libc::SEEK_SET)),
        (-i64::from(libc::EBADF), -i64::from(libc::EBADF))
    );
}

fn terminal() -> (OwnedFd, OwnedFd) {
    use rustix::pty::OpenptFlags;
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR).unwrap();
    (master, slave)
}

#[test]
fn nodes_of_the_host_keep_their_attributes() {
    let g = Guest::new();
    let dev = g.host.add_mount(fs::File::open("/dev").unwrap().into()).unwrap();
    let mode = fs::metadata("/dev/null").unwrap().mode();
    // What it has already, should it succeed.
    assert_eq!(g.err(Op::SetAttr, dev, &[1, u64::from(mode)], &[In(b"null")]), libc::EPERM);
    assert_eq!(
        g.err(Op::SetXattr, dev, &[0], &[In(b"null"), In(b"user.a"), In(b"v")]),
        libc::EPERM
    );
    symlink("/etc/passwd", g.dir.join("link")).unwrap();
    assert_eq!(g.err(Op::SetAttr, g.root, &[1, 0o777], &[In(b"link")]), libc::EOPNOTSUPP);
    assert_eq!(
        g.err(Op::SetXattr, g.root, &[0], &[In(b"link"), In(b"user.a"), In(b"v")]),
        libc::EPERM
    );
    // File capabilities take CAP_SETFCAP of the container.
    fs::write(g.dir.join("f"), "x").unwrap();
    let capability = [2u32 << 24 | 1, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
    let set = || {
        g.call(Op::SetXattr, g.root, &[0], &[In(b"f"), In(b"security.capability"), In(&capability)])
            .ret
    };
    assert_eq!(set(), -i64::from(libc::EPERM));
    g.host.grant(1 << 31);
    assert_ne!(set(), -i64::from(libc::EPERM));
    // What is the host's own is not told.
    let file = fs::File::open(g.dir.join("f")).unwrap();
    rustix::fs::fsetxattr(&file, "trusted.secret", b"v", rustix::fs::XattrFlags::empty()).ok();
    assert_eq!(
        g.err(Op::GetXattr, g.root, &[], &[In(b"f"), In(b"trusted.secret"), Out(10)]),
        libc::ENODATA
    );
    let list = g.ok(Op::ListXattr, g.root, &[], &[In(b"f"), Out(1000)]);
    assert!(!String::from_utf8_lossy(&list.out[0][..list.ret as usize]).contains("trusted"));
}

#[test]
fn procfs_of_the_host_shows_what_everybody_may_see() {
    let g = Guest::new();
    let proc = g.host.add_mount(fs::File::open("/proc").unwrap().into()).unwrap();
    let open = |path: &str, flags: i32| {
        g.call(Op::Open, proc, &[flags as u64, 0], &[In(path.as_bytes())]).ret as i32
    };
    let me = std::process::id();
    for name in ["mem", "environ", "maps", "smaps", "stat", "pagemap", "auxv"] {
        let path = format!("{me}/{name}");
        for flags in [libc::O_RDONLY, libc::O_RDWR] {
            assert_eq!(open(&path, flags), -libc::EACCES, "{path}");
        }
        // By way of a handle of the name.
        let handle = open(&path, libc::O_PATH);
        assert!(handle >= 0);
        assert_eq!(
            g.err(Op::Open, handle as u32, &[libc::O_RDONLY as u64, 0], &[In(b"")]),
            libc::EACCES,
            "{path}"
        );
    }
    assert_eq!(open("sys/kernel/hostname", libc::O_WRONLY), -libc::EACCES);
    for name in ["stat", "meminfo", "sys/kernel/hostname"] {
        assert!(open(name, libc::O_RDONLY) >= 0, "{name}");
    }
}

#[test]
fn the_host_keeps_descriptors_for_itself() {
    let mut g = Guest::new();
    g.host.max_descriptors = g.host.handles.len() + 20;
    fs::write(g.dir.join("f"), [1; 8192]).unwrap();
    let open = || g.call(Op::Open, g.root, &[0, 0], &[In(b"f")]).ret;
    // A window keeps the file although its handle is closed.
    for _ in 0..10 {
        let file = open() as u32;
        g.ok(Op::WindowMap, file, &[0, 4096, 0], &[]);
        g.ok(Op::Close, file, &[], &[]);
    }
    let handles: Vec<i64> = (0..20).map(|_| open()).collect();
    assert_eq!(handles.iter().filter(|h| **h >= 0).count(), 10);
    assert_eq!(handles[19], -i64::from(libc::EMFILE));
    let udp = g.call(Op::Socket, 0, &[libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0], &[]);
    assert_eq!(udp.ret, -i64::from(libc::EMFILE));
    assert_eq!(g.err(Op::WindowMap, handles[0] as u32, &[0, 4096, 0], &[]), libc::EMFILE);
    // What is not the guest's asking still goes.
    g.host.add_stdio(stream(fs::File::open("/dev/null").unwrap().into())).unwrap();
}
