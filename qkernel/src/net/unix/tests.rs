use linux_raw_sys::net::{MSG_PEEK, MSG_TRUNC, SO_PEERCRED, SOCK_SEQPACKET, SOL_SOCKET};

use super::options::QUEUE_BYTES;
use super::*;
use crate::fs::OpenFile;
use crate::io::IoBuffer;
use crate::ipc::eventfd::EventFd;
use crate::net::message::Control;
use crate::net::{Family, Socket};

const ME: Credentials = Credentials { number: 1, pid: 1, namespace: 7, serial: 9, uid: 2, gid: 3 };

fn control() -> Control {
    Control { claimed: Some(ME), ..Control::default() }
}

fn send(socket: &UnixSocket, bytes: &[u8]) -> Result<usize> {
    socket.send(&mut IoBuffer::kernel_const(bytes), 0, None, &mut control())
}

fn receive(socket: &UnixSocket, max: usize, flags: u32) -> Result<Vec<u8>> {
    let mut bytes = alloc::vec![0; max];
    let got = socket.receive(&mut IoBuffer::kernel(&mut bytes), flags)?;
    bytes.truncate(got.bytes);
    Ok(bytes)
}

#[test]
fn streams_have_no_bounds() {
    let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
    assert_eq!(send(&a, b"one"), Ok(3));
    assert_eq!(send(&a, b"two"), Ok(3));
    assert_eq!(receive(&b, 9, MSG_PEEK).expect("data"), b"onetwo");
    assert_eq!(receive(&b, 4, 0).expect("data"), b"onet");
    assert_eq!(receive(&b, 9, 0).expect("data"), b"wo");
    assert_eq!(receive(&b, 9, 0), Err(Errno::EAGAIN));
    a.close();
    assert_eq!(receive(&b, 9, 0).expect("end"), b"");
    assert_eq!(send(&b, b"x"), Err(Errno::EPIPE));
    assert!(b.poll().contains(PollMask::HUP | PollMask::IN | PollMask::RDHUP));
}

#[test]
fn a_full_stream_takes_what_fits() {
    let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
    let big = alloc::vec![7; QUEUE_BYTES + 5];
    assert_eq!(send(&a, &big), Ok(QUEUE_BYTES));
    assert_eq!(send(&a, b"x"), Err(Errno::EAGAIN));
    assert!(!a.poll().contains(PollMask::OUT));
    assert_eq!(receive(&b, QUEUE_BYTES * 2, 0).map(|d| d.len()), Ok(QUEUE_BYTES));
    assert!(a.poll().contains(PollMask::OUT));
}

#[test]
fn packets_keep_their_bounds() {
    let (a, b) = UnixSocket::pair(SOCK_SEQPACKET, ME);
    assert_eq!(send(&a, b"one"), Ok(3));
    assert_eq!(send(&a, b""), Ok(0));
    assert_eq!(send(&a, b"three"), Ok(5));
    assert_eq!(receive(&b, 2, 0).expect("data"), b"on");
    assert_eq!(receive(&b, 9, 0).expect("data"), b"");
    let mut bytes = [0; 2];
    let got = b.receive(&mut IoBuffer::kernel(&mut bytes), MSG_TRUNC).expect("data");
    assert_eq!((got.bytes, got.flags), (5, MSG_TRUNC));
}

#[test]
fn shutdown_is_seen_by_both() {
    let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
    send(&a, b"last").expect("send");
    a.shutdown(1).expect("shutdown");
    assert_eq!(send(&a, b"x"), Err(Errno::EPIPE));
    assert_eq!(receive(&b, 9, 0).expect("data"), b"last");
    assert_eq!(receive(&b, 9, 0).expect("end"), b"");
    assert_eq!(send(&b, b"back"), Ok(4));
    assert_eq!(receive(&a, 9, 0).expect("data"), b"back");
}

#[test]
fn closing_with_unread_data_resets() {
    let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
    send(&a, b"unread").expect("send");
    b.close();
    assert_eq!(receive(&a, 9, 0), Err(Errno::ECONNRESET));
    assert_eq!(receive(&a, 9, 0).expect("end"), b"");
}

#[test]
fn descriptors_travel_with_the_first_byte() {
    let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
    let file = OpenFile::new(EventFd::new(0, false), 0);
    send(&a, b"before").expect("send");
    let mut with = Control { rights: alloc::vec![file.clone()], ..control() };
    a.send(&mut IoBuffer::kernel_const(b"with"), 0, None, &mut with).expect("send");
    send(&a, b"after").expect("send");
    let mut bytes = [0; 99];
    let got = b.receive(&mut IoBuffer::kernel(&mut bytes), 0).expect("data");
    assert_eq!(&bytes[..got.bytes], b"beforewith");
    assert!(Arc::ptr_eq(&got.rights[0], &file));
    assert_eq!(receive(&b, 9, 0).expect("data"), b"after");
}

#[test]
fn long_chains_of_sockets_in_flight_are_let_go() {
    // Each pair's one end is in flight to the next pair.
    let mut last: Option<Arc<OpenFile>> = None;
    for _ in 0..8000 {
        let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
        let mut with = Control { rights: last.into_iter().collect(), ..control() };
        a.send(&mut IoBuffer::kernel_const(b"x"), 0, None, &mut with).expect("send");
        last = Some(Socket::file(Family::Unix(b), 0));
    }
    drop(last);
    let (a, _b) = UnixSocket::pair(SOCK_STREAM, ME);
    let many: Vec<Arc<OpenFile>> =
        (0..200).map(|_| OpenFile::new(EventFd::new(0, false), 0)).collect();
    let mut with = Control { rights: many, ..control() };
    a.send(&mut IoBuffer::kernel_const(b"x"), 0, None, &mut with)
        .expect("none are in flight any more");
}

#[test]
fn connections_wait_in_the_backlog() {
    let listener = UnixSocket::new(SOCK_STREAM);
    listener.state.lock().name = Some(Name::Abstract(0, b"server".to_vec()));
    assert_eq!(UnixSocket::new(SOCK_STREAM).connect(Some(&listener), ME), Err(Errno::ECONNREFUSED));
    listener.listen(0, ME).expect("listen");
    assert_eq!(listener.accept().err(), Some(Errno::EAGAIN));
    let client = UnixSocket::new(SOCK_STREAM);
    client.connect(Some(&listener), ME).expect("connect");
    assert_eq!(client.connect(Some(&listener), ME), Err(Errno::EISCONN));
    assert_eq!(send(&client, b"early"), Ok(5));
    assert_eq!(UnixSocket::new(SOCK_STREAM).connect(Some(&listener), ME), Err(Errno::EAGAIN));
    assert!(listener.poll().contains(PollMask::IN));
    let served = listener.accept().expect("accept");
    assert_eq!(receive(&served, 9, 0).expect("data"), b"early");
    assert_eq!(client.name(true).expect("connected"), b"\x01\0\0server");
    assert_eq!(served.option(SOL_SOCKET, SO_PEERCRED).expect("option"), ME.to_bytes());
    let waiting = UnixSocket::new(SOCK_STREAM);
    waiting.connect(Some(&listener), ME).expect("connect");
    listener.close();
    assert_eq!(receive(&waiting, 9, 0), Err(Errno::ECONNRESET));
}

#[test]
fn datagrams_have_senders_and_a_bounded_queue() {
    let (a, b) = (UnixSocket::new(SOCK_DGRAM), UnixSocket::new(SOCK_DGRAM));
    a.state.lock().name = Some(Name::Abstract(0, b"a".to_vec()));
    a.connect(Some(&b), ME).expect("connect");
    assert_eq!(send(&a, b"hello"), Ok(5));
    let mut bytes = [0; 9];
    let got = b.receive(&mut IoBuffer::kernel(&mut bytes), 0).expect("data");
    assert_eq!((&bytes[..got.bytes], &got.address[..]), (&b"hello"[..], &b"\x01\0\0a"[..]));
    for _ in 0..=options::max_datagrams() {
        assert_eq!(send(&a, b"x"), Ok(1));
    }
    assert_eq!(send(&a, b"x"), Err(Errno::EAGAIN));
    b.close();
    assert_eq!(send(&a, b"x"), Err(Errno::ECONNREFUSED));
    assert_eq!(send(&b, b"x"), Err(Errno::ENOTCONN));
}

#[test]
fn sockets_that_only_each_other_hold_are_collected() {
    let in_file = |socket: Arc<UnixSocket>| Socket::file(Family::Unix(socket), 0);
    let pass = |from: &UnixSocket, file: &Arc<OpenFile>| {
        let mut control = Control { rights: alloc::vec![file.clone()], ..control() };
        from.send(&mut IoBuffer::kernel_const(b"x"), 0, None, &mut control).expect("room")
    };
    let (a, b) = UnixSocket::pair(SOCK_STREAM, ME);
    let (weak_a, weak_b) = (Arc::downgrade(&a), Arc::downgrade(&b));
    let (file_a, file_b) = (in_file(a.clone()), in_file(b.clone()));
    // Each lies in the queue of the other.
    pass(&a, &file_a);
    pass(&b, &file_b);
    drop((a, b));
    rights::collect();
    assert!(weak_a.strong_count() > 0 && weak_b.strong_count() > 0, "descriptors lead to them");
    drop(file_a);
    rights::collect();
    assert!(weak_a.strong_count() > 0, "it can be received from the other");
    drop(file_b);
    assert!(weak_a.strong_count() > 0, "a circle");
    rights::collect();
    // Another test may be letting files go just now: then it does so with these, too.
    let begin = std::time::Instant::now();
    let are_gone = || weak_a.strong_count() == 0 && weak_b.strong_count() == 0;
    while !are_gone() && begin.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!((weak_a.strong_count(), weak_b.strong_count()), (0, 0));
}
