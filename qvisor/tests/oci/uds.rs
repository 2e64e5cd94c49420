//! AF_UNIX sockets in volumes: between a container and the host, and between two containers.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::shared::slowed;
use crate::support::{Place, place};

const PYTHON: &str = "/usr/bin/python3";

/// Connects to /tmp/s in each way, and prints what became of it.
const CLIENT: &str = r"
import socket, struct
def attempt(what):
    try: print(what())
    except OSError as e: print(e.errno)
s = socket.socket(socket.AF_UNIX)
def talk():
    s.connect('/tmp/s')
    s.send(b'ping')
    return s.recv(9), s.getpeername(), s.getsockname(), struct.unpack('3i', s.getsockopt(1, 17, 12))
attempt(talk)
attempt(lambda: socket.send_fds(s, [b'x'], [0]))
attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect('/tmp/s'))
attempt(lambda: socket.socket(socket.AF_UNIX).connect('/tmp/none'))
";

/// Listens at /tmp/s and answers.
const SERVER: &str = r"
import socket
s = socket.socket(socket.AF_UNIX)
s.bind('/tmp/s')
s.listen(5)
print('ready', flush=True)
while True:
    c, _ = s.accept()
    while c.recv(9): c.send(b'pong')
";

/// The container's /tmp is `volume`.
fn configure(p: &Place, volume: &Path, program: &str, uds: Option<&str>) {
    p.configure(&[PYTHON, "-c", program], |c| {
        c["root"] = json!({"path": "/", "readonly": true});
        if let Some(uds) = uds {
            c["annotations"] = json!({"io.quark.host-uds": uds});
        }
        let tmp = json!({"destination": "/tmp", "type": "bind", "source": volume, "options": ["rbind", "rw"]});
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.retain(|m| m["destination"] != "/tmp");
        mounts.push(tmp);
    });
}

fn ask(volume: &Path) -> String {
    let mut stream = UnixStream::connect(volume.join("s")).expect("somebody listens");
    stream.set_read_timeout(Some(slowed(Duration::from_secs(20)))).unwrap();
    stream.write_all(b"ping").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_container_connects_to_a_socket_of_the_hosts() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    configure(&p, &volume, CLIENT, Some("open"));
    let listener = UnixListener::bind(volume.join("s")).unwrap();
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut asked = [0; 4];
        peer.read_exact(&mut asked).unwrap();
        peer.write_all(b"pong").unwrap();
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        (asked, rest)
    });
    let out = p.good(&["run", &p.id]);
    let (asked, rest) = server.join().unwrap();
    assert_eq!((&asked, &rest[..]), (b"ping", &b""[..]));
    let lines: Vec<&str> = out.lines().collect();
    // The host's process has no number in the container.
    let talk = "(b'pong', '/tmp/s', '', (0, 0, 0))";
    let numbers = [libc::EOPNOTSUPP, libc::EPROTOTYPE, libc::ENOENT].map(|n| n.to_string());
    assert_eq!(lines, [talk, &numbers[0], &numbers[1], &numbers[2]]);
}

#[test]
fn sockets_of_the_host_are_out_of_reach_unless_asked_for() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let _listener = UnixListener::bind(volume.join("s")).unwrap();
    for uds in [None, Some("none"), Some("create")] {
        configure(&p, &volume, CLIENT, uds);
        let out = p.good(&["run", &p.id]);
        assert_eq!(out.lines().next(), Some(&libc::ECONNREFUSED.to_string()[..]), "{uds:?}");
    }
    configure(&p, &volume, CLIENT, Some("both"));
    let output = p.output(&["run", &p.id]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("io.quark.host-uds"));
}

/// A container whose server listens in its volume.
fn serving() -> Option<(Place, PathBuf)> {
    let p = place()?;
    let volume = p.volume();
    configure(&p, &volume, SERVER, Some("create"));
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("the server", || p.log().contains("ready"));
    Some((p, volume))
}

#[test]
fn the_host_connects_to_a_containers_socket_and_wakes_it() {
    let Some((p, volume)) = serving() else { return };
    assert_eq!(ask(&volume), "pong");
    for _ in 0..2 {
        p.good(&["kill", &p.id, "STOP"]);
        assert_eq!(p.state()["hibernation"], "Hibernated");
        assert_eq!(ask(&volume), "pong");
        assert_ne!(p.state()["hibernation"], "Hibernated");
    }
    // An open connection does too.
    let mut open = UnixStream::connect(volume.join("s")).unwrap();
    open.set_read_timeout(Some(slowed(Duration::from_secs(20)))).unwrap();
    let mut answer = [0; 4];
    open.write_all(b"ping").unwrap();
    open.read_exact(&mut answer).unwrap();
    p.good(&["kill", &p.id, "STOP"]);
    open.write_all(b"ping").unwrap();
    open.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");
}

#[test]
fn a_container_connects_to_another_ones_socket() {
    let Some((p, volume)) = serving() else { return };
    configure(&p, &volume, CLIENT, None);
    let other = format!("{}-other", p.id);
    let out = p.good(&["--host-uds=open", "run", &other]);
    assert!(out.starts_with("(b'pong', '/tmp/s', ''"), "{out}");
    assert!(fs::symlink_metadata(volume.join("s")).is_ok());
}
