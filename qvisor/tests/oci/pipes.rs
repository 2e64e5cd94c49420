//! Pipes, sockets and terminals of the host as standard output: how much a write takes, and what
//! becomes of a writer whose reader is gone. Each is run on Linux too.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

use super::support::{Place, finish, place};
use crate::shared::slowness;

/// A reader's end and a writer's end.
type Ends = (OwnedFd, OwnedFd);

fn pipe() -> Ends {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

fn stream_socket() -> Ends {
    let (a, b) = UnixStream::pair().unwrap();
    (a.into(), b.into())
}

fn packet_socket() -> Ends {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

pub fn terminal() -> Ends {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    unlockpt(&master).unwrap();
    let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
    (master, slave)
}

/// Waits until a terminal's writer has filled it. Then reads more than it holds if `reads` says so.
pub fn fills(p: &Place, writer: &mut Child, (master, slave): &Ends, reads: bool) {
    let mut lives = || assert_eq!(writer.try_wait().unwrap(), None, "output: {}", p.log());
    let ready = |fd: &OwnedFd, what| {
        let mut fds = [PollFd::new(fd, what)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap() > 0
    };
    p.wait_for("a full terminal", || {
        lives();
        !ready(slave, PollFlags::OUT)
    });
    let mut left = if reads { 256 << 10 } else { 0 };
    let mut piece = vec![0; 64 << 10];
    p.wait_for("the writer", || {
        lives();
        if left > 0 && ready(master, PollFlags::IN) {
            left -= rustix::io::read(master, &mut piece).unwrap().min(left);
        }
        left == 0
    });
}

/// Makes one.
type Make = fn() -> Ends;

const KINDS: [(&str, Make); 4] = [
    ("pipe", pipe),
    ("stream socket", stream_socket),
    ("packet socket", packet_socket),
    ("terminal", terminal),
];

/// What a Python program says on standard error, and the code it ends with, while `read` has the
/// other end of its standard output: on Linux, and in a sandbox.
fn twice(p: &Place, program: &str, ends: Make, read: fn(OwnedFd)) -> [(String, i32); 2] {
    let python = ["python3", "-c", program];
    let native = Command::new(python[0]);
    let inside = p.quark(&["do", "--", python[0]]);
    [native, inside].map(|mut command| {
        let (reader, writer) = ends();
        command.args(&python[1..]).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // It holds the writer's end.
        drop(command);
        let reading = std::thread::spawn(move || read(reader));
        let done = finish(child, &["do"]);
        reading.join().unwrap();
        (String::from_utf8_lossy(&done.stderr).into_owned(), done.status.code().unwrap_or(-1))
    })
}

/// Reads everything, with a pause before each piece, so that the writer has to wait.
fn slowly(reader: OwnedFd) {
    let mut reader = fs::File::from(reader);
    let mut piece = vec![0; 64 << 10];
    while reader.read(&mut piece).is_ok_and(|n| n > 0) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads a little of what has filled it, and goes away.
fn a_little(reader: OwnedFd) {
    std::thread::sleep(Duration::from_millis(1000));
    fs::File::from(reader).read_exact(&mut [0; 8192]).unwrap();
}

#[test]
fn a_writer_without_a_reader_gets_sigpipe_where_linux_sends_it() {
    let Some(p) = place() else { return };
    let program = r#"
import errno, os, signal, sys
seen = []
signal.signal(signal.SIGPIPE, lambda *a: seen.append(1))
def fails(what, *a):
    try: n = what(*a)
    except OSError as e: n = errno.errorcode[e.errno]
    print(what.__name__, n, len(seen), file=sys.stderr)
fails(os.write, 1, b"x")
fails(os.writev, 1, [b"x", b"y"])
fails(os.sendfile, 1, os.open("/etc/passwd", 0), 0, 5)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.write(1, b"x")
"#;
    // One that hangs up gives EIO, but Linux first has other calls for it.
    for (kind, ends) in KINDS.into_iter().filter(|(kind, _)| *kind != "terminal") {
        let [native, mut inside] = twice(&p, program, ends, drop);
        if kind != "packet socket" {
            assert_eq!(native.1, -1, "{kind}: {native:?}");
            assert_eq!(inside.1, 128 + libc::SIGPIPE, "{kind}: {inside:?}");
            inside.1 = native.1;
        }
        assert_eq!(inside, native, "{kind}");
    }
}

#[test]
fn a_long_write_is_whole() {
    let Some(p) = place() else { return };
    let program = r#"
import os, sys
print(os.write(1, b"x" * 700001), os.writev(1, [b"y" * 70000] * 3), file=sys.stderr)
"#;
    for (kind, ends) in KINDS {
        if kind == "packet socket" {
            continue;
        }
        let [native, inside] = twice(&p, program, ends, slowly);
        assert_eq!(native, ("700001 210000\n".to_owned(), 0), "{kind}");
        assert_eq!(inside, native, "{kind}");
    }
}

/// However its reader stops: Linux may tell a writer that cannot write of room before there is any.
#[test]
fn a_terminal_is_filled_up_again_and_again() {
    let Some(p) = place() else { return };
    let ends = terminal();
    let program = "while :; do echo $((n=n+1)) a line; done";
    let mut command = p.quark(&["do", "--", "sh", "-c", program]);
    let errors = fs::File::create(p.dir.join("output")).unwrap();
    command.stdin(Stdio::null()).stdout(ends.1.try_clone().unwrap()).stderr(errors);
    let mut child = command.spawn().unwrap();
    for _ in 0..(15 / slowness()).max(2) {
        fills(&p, &mut child, &ends, true);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_write_whose_reader_leaves_says_what_was_taken() {
    let Some(p) = place() else { return };
    let program = r#"
import os, signal, sys
seen = []
signal.signal(signal.SIGPIPE, lambda *a: seen.append(1))
print(8192 < os.write(1, b"x" * 7000001) < 7000001, len(seen), file=sys.stderr)
"#;
    for (kind, ends, signals) in [("pipe", pipe as Make, 1), ("stream socket", stream_socket, 0)] {
        let [native, inside] = twice(&p, program, ends, a_little);
        assert_eq!(native, (format!("True {signals}\n"), 0), "{kind}");
        assert_eq!(inside, native, "{kind}");
    }
}
