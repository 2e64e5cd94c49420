use std::cell::{Cell, RefCell};
use std::io::{IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use proptest::prelude::*;
use qlib::Gpa;
use qlib::control::{ContainerSpec, MountSpec, PlatformStats};
use qlib::platform::{EVENT_READY, Event};
use rustix::net::SendFlags;

use super::super::events::Poller;
use super::super::mailbox::{MAX_LINE_BYTES, Replies};
use super::super::memory::{GuestMemory, Layout, RAM_UNIT};
use super::*;

const MAILBOX: Mailbox = Mailbox { gpa: Gpa(4096), bytes: 64 << 10 };

/// A platform that counts one thing.
struct Nowhere;

impl Running for Nowhere {
    fn dispatch(&self, _: &Event) {}

    fn stats(&self) -> PlatformStats {
        let exits = vec![("halt".into(), 1)];
        PlatformStats { name: "nowhere".into(), exits, ..PlatformStats::default() }
    }

    fn limit_tasks(&self, _: u32) {}
}

struct Fixture {
    server: ControlServer,
    path: std::path::PathBuf,
    /// What the kernel saw: request id and request.
    seen: RefCell<Vec<(u64, Request)>>,
    /// The kernel leaves what it saw in the mailbox.
    leaves: Cell<bool>,
}

impl Fixture {
    fn new(name: &str) -> Fixture {
        let memory =
            GuestMemory::new(Layout { base: None, ram_bytes: RAM_UNIT, window_bytes: 0 }).unwrap();
        let replies = Arc::new(Replies::new());
        let host = HostSide::new(Arc::new(memory), Arc::new(Poller::new().unwrap()), replies, None);
        let host = Arc::new(host.unwrap());
        let path =
            std::env::temp_dir().join(format!("quark-control-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = ControlServer::new(
            host,
            Arc::new(Nowhere),
            MAILBOX,
            true,
            Some(listener.into()),
            Default::default(),
        )
        .unwrap();
        Fixture { server, path, seen: RefCell::default(), leaves: Cell::default() }
    }

    fn connect(&mut self) -> UnixStream {
        let client = UnixStream::connect(&self.path).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        self.turn();
        client
    }

    /// Serves everything that is there.
    fn turn(&mut self) {
        let host = self.server.host.clone();
        let dispatch = |event: &Event| {
            assert_ne!(event.kind, EVENT_READY);
            let mut bytes = vec![0; event.b as usize];
            host.memory.read(MAILBOX.gpa, &mut bytes).unwrap();
            self.seen.borrow_mut().push((event.a, postcard::from_bytes(&bytes).unwrap()));
            if !self.leaves.get() {
                host.replies.taken(&host, event.a).unwrap();
            }
        };
        let step = rustix::time::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        for _ in 0..4 {
            host.poller.turn(Some(step), &dispatch, &mut self.server).unwrap();
        }
    }

    fn answer(&self, reply: &Reply) {
        let (id, _) = *self.seen.borrow().last().as_ref().map(|(id, r)| (*id, r)).as_ref().unwrap();
        self.server.host.replies.deliver(id, &postcard::to_allocvec(reply).unwrap()).unwrap();
    }

    fn last(&self) -> Request {
        self.seen.borrow().last().unwrap().1.clone()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn frame(request: &Request) -> Vec<u8> {
    let body = postcard::to_allocvec(request).unwrap();
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

fn read_reply(client: &mut UnixStream) -> Reply {
    let mut head = [0; 4];
    client.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_le_bytes(head) as usize];
    client.read_exact(&mut body).unwrap();
    postcard::from_bytes(&body).unwrap()
}

fn is_closed(client: &mut UnixStream) -> bool {
    matches!(client.read(&mut [0]), Ok(0)) || client.write(&[0]).is_err()
}

fn send_with_fds(client: &UnixStream, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|f| f.as_fd()).collect();
    sys::send_files(client, &[IoSlice::new(bytes)], &fds, SendFlags::empty()).unwrap();
}

#[test]
fn requests_reach_the_kernel_and_answers_the_client() {
    let mut f = Fixture::new("roundtrip");
    let mut client = f.connect();
    // In pieces, as a stream may bring it.
    for piece in frame(&Request::Signal { pid: 1, all: false, signo: 15 }).chunks(3) {
        client.write_all(piece).unwrap();
        f.turn();
    }
    assert_eq!(f.last(), Request::Signal { pid: 1, all: false, signo: 15 });
    f.answer(&Reply::Done);
    assert_eq!(read_reply(&mut client), Reply::Done);

    // Two at once, answered in the other operation, on two connections.
    let mut waiter = f.connect();
    waiter.write_all(&frame(&Request::Wait { pid: 1 })).unwrap();
    f.turn();
    let wait = f.seen.borrow().last().unwrap().0;
    client
        .write_all(
            &[
                frame(&Request::Stats),
                frame(&Request::Hibernate { patience_ms: 1, force: false, stay: false }),
            ]
            .concat(),
        )
        .unwrap();
    f.turn();
    assert_eq!(f.last(), Request::Hibernate { patience_ms: 1, force: false, stay: false });
    f.answer(&Reply::Done);
    assert_eq!(read_reply(&mut client), Reply::Done);
    let exited = postcard::to_allocvec(&Reply::Exited(3)).unwrap();
    assert_eq!(f.server.host.replies.deliver(wait, &[99, 99]), Err(Errno::INVAL));
    f.server.host.replies.deliver(wait, &exited).unwrap();
    assert_eq!(f.server.host.replies.deliver(wait, &exited), Err(Errno::NOENT), "one answer each");
    assert_eq!(read_reply(&mut waiter), Reply::Exited(3));
}

#[test]
fn a_request_lies_in_the_mailbox_until_it_is_taken() {
    let mut f = Fixture::new("mailbox");
    f.leaves.set(true);
    let mut clients: Vec<_> = (0..5).map(|_| f.connect()).collect();
    let request = |pid: usize| Request::Wait { pid: pid as u32 };
    for (pid, client) in clients.iter_mut().enumerate() {
        // Two each, of different lengths.
        client.write_all(&frame(&request(pid))).unwrap();
        client.write_all(&frame(&request(pid << 20))).unwrap();
        f.turn();
    }
    let host = f.server.host.clone();
    let mut got = Vec::new();
    for count in 1..=10 {
        assert_eq!(f.seen.borrow().len(), count, "one at a time");
        let (id, first) = f.seen.borrow().last().unwrap().clone();
        f.turn();
        // It is still there, and what was not there was not taken.
        let mut bytes = vec![0; postcard::to_allocvec(&first).unwrap().len()];
        host.memory.read(MAILBOX.gpa, &mut bytes).unwrap();
        assert_eq!(postcard::from_bytes::<Request>(&bytes), Ok(first.clone()));
        assert_eq!(host.replies.taken(&host, id + 1), Err(Errno::NOENT));
        got.push(first);
        host.replies.taken(&host, id).unwrap();
        assert_eq!(
            f.seen.borrow().len(),
            count,
            "the kernel is not entered from its own host call"
        );
        assert_eq!(host.replies.taken(&host, id), Err(Errno::NOENT), "taken is taken");
        f.turn();
    }
    got.sort_by_key(|r| if let Request::Wait { pid } = r { *pid } else { 0 });
    let mut expected: Vec<_> = (0..5).flat_map(|pid| [request(pid), request(pid << 20)]).collect();
    expected.sort_by_key(|r| if let Request::Wait { pid } = r { *pid } else { 0 });
    assert_eq!(got, expected);
    f.answer(&Reply::Done);
}

#[test]
fn what_waits_for_the_mailbox_is_bounded_but_not_for_the_vmm() {
    let mut f = Fixture::new("line");
    f.leaves.set(true);
    let big = ProcessSpec {
        args: vec!["x".repeat(50_000)],
        stdio: [NO_HANDLE; 3],
        ..ProcessSpec::default()
    };
    let mut client = f.connect();
    client.set_nonblocking(true).unwrap();
    let bytes = frame(&Request::Exec(big));
    let mut refused = 0;
    for _ in 0..MAX_LINE_BYTES / 50_000 + 3 {
        client.write_all(&bytes).unwrap();
        f.turn();
        let mut head = [0; 4];
        if client.read_exact(&mut head).is_ok() {
            let mut body = vec![0; u32::from_le_bytes(head) as usize];
            client.read_exact(&mut body).unwrap();
            let reply = postcard::from_bytes(&body).unwrap();
            assert!(matches!(reply, Reply::Error { errno: libc::EAGAIN, .. }), "{reply:?}");
            refused += 1;
        }
    }
    assert!(refused > 0);
    assert!(f.server.host.replies.line().bytes <= MAX_LINE_BYTES);
    let nothing: Dispatch<'_> = &|_| panic!("the mailbox is not free");
    f.server.mailbox.local(&f.server.host, &Request::Stats, nothing).unwrap();
    // Everything comes when the kernel takes it.
    f.leaves.set(false);
    let first = f.seen.borrow()[0].0;
    f.server.host.replies.taken(&f.server.host, first).unwrap();
    for _ in 0..100 {
        f.turn();
    }
    assert_eq!(f.last(), Request::Stats);
    assert_eq!(f.server.host.replies.line().bytes, 0);
}

#[test]
fn a_client_that_leaves_takes_its_requests_along() {
    let mut f = Fixture::new("leave");
    let mut client = f.connect();
    client.write_all(&frame(&Request::Wait { pid: 1 })).unwrap();
    f.turn();
    let id = f.seen.borrow().last().unwrap().0;
    drop(client);
    f.turn();
    let reply = postcard::to_allocvec(&Reply::Exited(0)).unwrap();
    assert_eq!(f.server.host.replies.deliver(id, &reply), Err(Errno::NOENT));
    assert!(f.server.connections.is_empty());
}

#[test]
fn descriptors_become_handles() {
    let mut f = Fixture::new("fds");
    let client = f.connect();
    let (r, w) = rustix::pipe::pipe().unwrap();
    let before = f.server.host.handles.len();
    // Indices may name the same descriptor twice.
    let spec = ProcessSpec { args: vec!["sh".into()], stdio: [0, 1, 1], ..ProcessSpec::default() };
    send_with_fds(&client, &frame(&Request::Exec(spec.clone())), &[&r, &w]);
    f.turn();
    let Request::Exec(got) = f.last() else { panic!() };
    assert_eq!(f.server.host.handles.len(), before + 2);
    assert_eq!(got.stdio[1], got.stdio[2]);
    assert!(got.stdio.iter().all(|h| f.server.host.handles.get(*h).is_some()));
    // An index without a descriptor is no stream.
    let bad = ProcessSpec { stdio: [0, 1, 7], ..spec.clone() };
    send_with_fds(&client, &frame(&Request::Exec(bad)), &[&r, &w]);
    f.turn();
    let Request::Exec(got) = f.last() else { panic!() };
    assert_eq!(got.stdio[2], NO_HANDLE);
    // The first process has the streams that its container was made with, whatever is said.
    let mut client2 = f.connect();
    client2.write_all(&frame(&Request::Start(spec))).unwrap();
    f.turn();
    let Request::Start(got) = f.last() else { panic!() };
    assert_eq!(got.stdio, [NO_HANDLE; 3]);
}

/// A container with one mount of the host, and one that is not.
fn container() -> ContainerSpec {
    let mount = |fstype: &str| MountSpec { fstype: fstype.into(), ..MountSpec::default() };
    ContainerSpec { mounts: vec![mount("tmpfs"), mount("host")], ..ContainerSpec::default() }
}

#[test]
fn a_further_container_has_its_files_and_ends_with_its_connection() {
    let mut f = Fixture::new("further");
    let before = f.server.host.handles.len();
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    // Root, mount and streams; some with each of the first bytes.
    let client = f.connect();
    let bytes = frame(&Request::Create(container()));
    send_with_fds(&client, &bytes[..1], &[&null; 2]);
    send_with_fds(&client, &bytes[1..], &[&null; 3]);
    f.turn();
    let Request::Create(got) = f.last() else { panic!() };
    let handles = [got.root, got.mounts[1].host, got.stdio[0], got.stdio[1], got.stdio[2]];
    assert!(handles.iter().all(|h| f.server.host.handles.get(*h).is_some()));
    assert_eq!(f.server.host.handles.len(), before + handles.len());
    f.answer(&Reply::Container(3));
    drop(client);
    f.turn();
    assert_eq!(f.last(), Request::Remove { container: 3 });
    // Also if it went before the answer came.
    let client = f.connect();
    send_with_fds(&client, &frame(&Request::Create(container())), &[&null; 5]);
    f.turn();
    drop(client);
    let (id, _) = f.seen.borrow().last().cloned().unwrap();
    f.turn();
    let made = postcard::to_allocvec(&Reply::Container(4)).unwrap();
    f.server.host.replies.deliver(id, &made).unwrap();
    f.turn();
    assert_eq!(f.last(), Request::Remove { container: 4 });
    // One or many too few or too many.
    let (seen, before) = (f.seen.borrow().len(), f.server.host.handles.len());
    for count in [0, 2, 4, 6, 16] {
        let mut client = f.connect();
        let fds = vec![&null; count];
        send_with_fds(&client, &frame(&Request::Create(container())), &fds);
        f.turn();
        assert!(is_closed(&mut client), "{count}");
    }
    let mut client = f.connect();
    client.write_all(&frame(&Request::Remove { container: 0 })).unwrap();
    f.turn();
    assert!(is_closed(&mut client), "it is the VMM's to ask");
    // Nor are there any in a sandbox that is not shared.
    f.server.is_shared = false;
    let mut client = f.connect();
    send_with_fds(&client, &frame(&Request::Create(container())), &[&null; 5]);
    f.turn();
    assert!(is_closed(&mut client));
    assert_eq!((f.seen.borrow().len(), f.server.host.handles.len()), (seen, before));
}

#[test]
fn what_is_malformed_ends_its_own_connection_only() {
    let mut f = Fixture::new("malformed");
    let mut good = f.connect();
    let huge = [0xff, 0xff, 0xff, 0x7f, 0];
    let create = frame(&Request::Create(ContainerSpec::default()));
    let trailing = {
        let mut t = frame(&Request::Stats);
        t[0] += 1;
        t.push(0);
        t
    };
    for bad in [&[0u8, 0, 0, 0][..], &huge, &[2, 0, 0, 0, 200, 200], &create, &trailing] {
        let mut client = f.connect();
        client.write_all(bad).unwrap();
        f.turn();
        assert!(is_closed(&mut client), "{bad:?}");
    }
    // More descriptors than a process has streams.
    let mut client = f.connect();
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    send_with_fds(&client, &frame(&Request::Stats), &[&null; 8]);
    f.turn();
    assert!(is_closed(&mut client));
    assert!(f.seen.borrow().is_empty());
    good.write_all(&frame(&Request::Stats)).unwrap();
    f.turn();
    assert_eq!(f.last(), Request::Stats);
}

#[test]
fn connections_are_limited() {
    let mut f = Fixture::new("limit");
    let clients: Vec<_> = (0..MAX_CONNECTIONS + 3).map(|_| f.connect()).collect();
    f.turn();
    assert_eq!(f.server.connections.len(), MAX_CONNECTIONS);
    drop(clients);
    f.turn();
    for _ in 0..MAX_CONNECTIONS {
        f.turn();
    }
    assert!(f.server.connections.is_empty());
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_blocks_nobody() {
    let mut f = Fixture::new("stuck");
    let mut client = f.connect();
    let big = Reply::Error { errno: 1, message: "x".repeat(100_000) };
    for _ in 0..20 {
        if client.write_all(&frame(&Request::Stats)).is_err() {
            break;
        }
        f.turn();
        if f.server.connections.is_empty() {
            break;
        }
        f.answer(&big);
    }
    f.turn();
    assert!(f.server.connections.is_empty());
}

#[test]
fn a_held_process_ends_with_its_connection() {
    let mut f = Fixture::new("hold");
    let mut client = f.connect();
    client.write_all(&frame(&Request::Hold { pid: 7 })).unwrap();
    f.turn();
    assert_eq!(f.seen.borrow().last().unwrap().1, Request::Wait { pid: 7 });
    drop(client);
    f.turn();
    let kill = Request::Signal { pid: 7, all: false, signo: libc::SIGKILL as u32 };
    assert_eq!(f.seen.borrow().last().unwrap().1, kill);
    // One that has ended is left alone, for its number may be another's by now.
    let mut client = f.connect();
    client.write_all(&frame(&Request::Hold { pid: 8 })).unwrap();
    f.turn();
    f.answer(&Reply::Exited(0));
    drop(client);
    f.turn();
    assert_eq!(f.seen.borrow().len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever bytes come, the server goes on, and no connection holds more than one frame.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
        small in any::<bool>(),
    ) {
        let (mut a, b) = UnixStream::pair().unwrap();
        let socket = Arc::new(b.into());
        let mut connection = Connection { socket, bytes: Vec::new(), fds: Vec::new(), stands_for: None, keeps: false };
        rustix::io::ioctl_fionbio(&connection.socket, true).unwrap();
        for mut chunk in chunks {
            if small && chunk.len() > 4 {
                chunk[0] = (chunk.len() - 4) as u8;
                chunk[1..4].fill(0);
            }
            a.write_all(&chunk).unwrap();
            match connection.receive(MAX_FDS) {
                Ok(true) => {
                    let (_, bytes, _) = connection.take();
                    let _ = parse(&bytes);
                }
                Ok(false) => {}
                Err(_) => break,
            }
            prop_assert!(connection.bytes.len() <= MAX_FRAME + 4);
        }
    }
}

#[test]
fn the_platform_s_numbers_come_without_the_kernel() {
    let mut f = Fixture::new("platform");
    let mut client = f.connect();
    client.write_all(&frame(&Request::Platform)).unwrap();
    f.turn();
    assert_eq!(read_reply(&mut client), Reply::Platform(Nowhere.stats()));
    assert!(f.seen.borrow().is_empty(), "the kernel was not asked");
}

#[test]
fn a_process_of_an_exec_that_was_given_up_is_killed() {
    let mut f = Fixture::new("given-up");
    let exec = Request::Exec(ProcessSpec { args: vec!["x".into()], ..ProcessSpec::default() });
    let kill = |pid| Request::Signal { pid, all: false, signo: libc::SIGKILL as u32 };
    // Before the answer.
    let mut client = f.connect();
    client.write_all(&frame(&exec)).unwrap();
    f.turn();
    assert!(matches!(f.last(), Request::Exec(_)));
    drop(client);
    f.turn();
    f.answer(&Reply::Pid(7));
    f.turn();
    assert_eq!(f.last(), kill(7));
    // Before it was looked at: then it is not even begun.
    let count = f.seen.borrow().len();
    for request in [&exec, &Request::Pause] {
        let mut client = f.connect();
        client.write_all(&frame(request)).unwrap();
        drop(client);
        f.turn();
        assert_eq!(f.seen.borrow().len(), count);
    }
    // After the answer, before it was asked for its end.
    let mut client = f.connect();
    client.write_all(&frame(&exec)).unwrap();
    f.turn();
    f.answer(&Reply::Pid(8));
    f.turn();
    drop(client);
    f.turn();
    assert_eq!(f.last(), kill(8));
    // Who waits for it leaves it running, and so does an answer that is no process.
    for claims in [true, false] {
        let mut client = f.connect();
        client.write_all(&frame(&exec)).unwrap();
        f.turn();
        if claims {
            f.answer(&Reply::Pid(9));
            client.write_all(&frame(&Request::Wait { pid: 9 })).unwrap();
        } else {
            f.answer(&Reply::Error { errno: 2, message: "no such program".into() });
        }
        f.turn();
        let count = f.seen.borrow().len();
        drop(client);
        f.turn();
        assert_eq!(f.seen.borrow().len(), count, "claims: {claims}");
    }
}
