//! AF_UNIX sockets of the host in volumes.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use super::super::uds::HostUds;
use super::*;

const STREAM: u64 = libc::SOCK_STREAM as u64;
const ANY: [u64; 5] = [0o700, 0, 0, 0, STREAM];

fn connect(g: &Guest, path: &str) -> i64 {
    g.call(Op::ConnectUnix, g.root, &[STREAM], &[In(path.as_bytes())]).ret
}

fn bind(g: &Guest, path: &str) -> i64 {
    g.call(Op::BindUnix, g.root, &ANY, &[In(path.as_bytes())]).ret
}

fn guest(uds: HostUds) -> Guest {
    let g = Guest::new();
    g.host.allow_uds(uds);
    g
}

#[test]
fn sockets_are_reached_only_if_asked_for() {
    let (refused, unsupported) = (-i64::from(libc::ECONNREFUSED), -i64::from(libc::EOPNOTSUPP));
    for (uds, opens, creates) in [
        (HostUds::None, false, false),
        (HostUds::Open, true, false),
        (HostUds::Create, false, true),
        (HostUds::All, true, true),
    ] {
        let g = guest(uds);
        let _listener = UnixListener::bind(g.dir.join("s")).unwrap();
        let outcome = connect(&g, "s");
        assert!(if opens { outcome >= 0 } else { outcome == refused }, "{uds:?}: {outcome}");
        let outcome = bind(&g, "own");
        assert!(if creates { outcome >= 0 } else { outcome == unsupported }, "{uds:?}: {outcome}");
        if creates {
            g.ok(Op::Listen, outcome as u32, &[5], &[]);
            assert!(connect(&g, "own") >= 0, "what it made itself it reaches: {uds:?}");
        }
    }
}

#[test]
fn paths_stay_beneath_their_root() {
    let g = guest(HostUds::All);
    let outside = g.dir.with_extension("outside");
    fs::create_dir(&outside).unwrap();
    let _listener = UnixListener::bind(outside.join("s")).unwrap();
    symlink(outside.join("s"), g.dir.join("link")).unwrap();
    symlink(&outside, g.dir.join("dir")).unwrap();
    fs::write(g.dir.join("file"), "").unwrap();
    assert_eq!(connect(&g, "link"), -i64::from(libc::ECONNREFUSED));
    assert_eq!(connect(&g, "dir/s"), -i64::from(libc::ELOOP));
    assert_eq!(connect(&g, "file"), -i64::from(libc::ECONNREFUSED));
    assert_eq!(connect(&g, "../s"), -i64::from(libc::EINVAL));
    assert_eq!(connect(&g, "none"), -i64::from(libc::ENOENT));
    assert_eq!(bind(&g, "dir/new"), -i64::from(libc::ELOOP));
    assert_eq!(bind(&g, "link"), -i64::from(libc::EEXIST));
    assert_eq!(bind(&g, ""), -i64::from(libc::EINVAL));
    assert!(!outside.join("new").exists());
    let name = "n".repeat(120);
    assert_eq!(bind(&g, &name), -i64::from(libc::ENAMETOOLONG));
    let bad = g.call(Op::ConnectUnix, g.root, &[77], &[In(b"s")]).ret;
    assert_eq!(bad, -i64::from(libc::EINVAL));
    fs::remove_dir_all(&outside).unwrap();
}

#[test]
fn no_address_of_the_guests_is_used() {
    let g = guest(HostUds::All);
    let _listener = UnixListener::bind(g.dir.join("s")).unwrap();
    let made = bind(&g, "own") as u32;
    assert_eq!(fs::metadata(g.dir.join("own")).unwrap().permissions().mode() & 0o777, 0o700);
    let connected = connect(&g, "s") as u32;
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(g.dir.join("s").as_os_str().as_encoded_bytes());
    for handle in [made, connected] {
        assert_eq!(g.err(Op::Bind, handle, &[], &[In(&address)]), libc::EINVAL);
        assert_eq!(g.err(Op::Connect, handle, &[], &[In(&address)]), libc::EISCONN);
        let send = [In(&address), In(b""), In(b"x")];
        assert_eq!(g.err(Op::Send, handle, &[0], &send), libc::EISCONN);
    }
    // AF_UNIX sockets come from nothing else.
    let args = [libc::AF_UNIX as u64, STREAM, 0];
    assert_eq!(g.err(Op::Socket, 0, &args, &[]), libc::EAFNOSUPPORT);
    // And no path of the host's comes back.
    assert_eq!(g.ok(Op::GetPeerName, connected, &[], &[Out(128)]).ret, 2);
    let credentials = [libc::SOL_SOCKET as u64, libc::SO_PEERCRED as u64];
    let answer = g.ok(Op::GetSockOpt, connected, &credentials, &[Out(12)]);
    assert_eq!((answer.ret, &answer.out[0][..4]), (12, &[0; 4][..]));
}

#[test]
fn descriptors_that_come_are_closed() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let g = guest(HostUds::Open);
    let listener = UnixListener::bind(g.dir.join("s")).unwrap();
    let connected = connect(&g, "s") as u32;
    let (peer, _) = listener.accept().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let fds = [writer.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let data = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&peer, &data, &mut control, SendFlags::empty()).unwrap();
    drop(writer);
    let got = g.ok(Op::Recv, connected, &[0], &[Out(0), Out(64), Out(8)]);
    assert_eq!((got.ret, got.args[1]), (1, 0));
    assert_ne!(got.args[2] & libc::MSG_CTRUNC as u64, 0);
    // Nobody has it open any more: the end of the pipe.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
}
