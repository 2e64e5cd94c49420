//! Locks that others on the host see.

use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use proptest::collection;
use qlib::host::{LOCK_EXCLUSIVE, LOCK_FLOCK, LOCK_NONE, LOCK_RECORD, LOCK_SHARED};
use rustix::fs::{FlockOperation, flock};

use super::disk::await_event;
use super::*;

const TO_END: u64 = u64::MAX;

/// A guest with the empty file `f`, and a handle of it.
fn guest() -> (Guest, u32) {
    let g = Guest::new();
    fs::write(g.dir.join("f"), "").unwrap();
    let handle = open(&g);
    (g, handle)
}

fn open(g: &Guest) -> u32 {
    g.ok(Op::Open, g.root, &[libc::O_RDWR as u64], &[In(b"f")]).ret as u32
}

/// The file as somebody else on the host has it open.
fn outsider(g: &Guest) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(g.dir.join("f")).unwrap()
}

fn record(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: 0, l_start: start, l_len: len, l_pid: 0 }
}

fn set(file: &fs::File, kind: i32, start: i64, len: i64) -> bool {
    fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&record(kind, start, len))).is_ok()
}

#[test]
fn locks_exclude_those_of_others_and_do_not_wait() {
    let (g, ours) = guest();
    let file = outsider(&g);
    let exclusive = [LOCK_FLOCK, LOCK_EXCLUSIVE, 0, TO_END];
    g.ok(Op::Lock, ours, &exclusive, &[]);
    assert!(flock(&file, FlockOperation::NonBlockingLockShared).is_err());
    assert!(set(&file, libc::F_WRLCK, 0, 10), "the kinds do not see each other");
    g.ok(Op::Lock, ours, &[LOCK_RECORD, LOCK_SHARED, 10, TO_END], &[]);
    let wanted = [LOCK_RECORD, LOCK_SHARED, 9, 11];
    assert_eq!(g.err(Op::Lock, ours, &wanted, &[]), libc::EAGAIN);
    let found = g.ok(Op::LockTest, ours, &wanted, &[]);
    assert_eq!((found.ret, &found.args[1..5]), (1, &[LOCK_EXCLUSIVE, 0, 10, 1][..]));
    assert_eq!(g.ok(Op::LockTest, ours, &[LOCK_RECORD, LOCK_EXCLUSIVE, 10, 11], &[]).ret, 0);
    g.ok(Op::Lock, ours, &[LOCK_RECORD, LOCK_NONE, 20, 30], &[]);
    assert!(set(&file, libc::F_WRLCK, 20, 10) && !set(&file, libc::F_WRLCK, 19, 1));
    g.ok(Op::Close, ours, &[], &[]);
    assert!(set(&file, libc::F_WRLCK, 0, 0));
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let again = open(&g);
    assert_eq!(g.err(Op::Lock, again, &exclusive, &[]), libc::EWOULDBLOCK);
}

#[test]
fn hostile_arguments_are_refused() {
    let (g, ours) = guest();
    for args in [
        [2, LOCK_SHARED, 0, 1],
        [LOCK_RECORD, 3, 0, 1],
        [LOCK_RECORD, LOCK_SHARED, 1, 1],
        [LOCK_RECORD, LOCK_SHARED, 2, 1],
        [LOCK_RECORD, LOCK_SHARED, 1 << 63, TO_END],
        [LOCK_RECORD, LOCK_SHARED, 0, TO_END - 1],
    ] {
        for op in [Op::Lock, Op::LockTest] {
            assert_eq!(g.err(op, ours, &args, &[]), libc::EINVAL, "{args:?}");
        }
        let wait = [&[7], &args[..]].concat();
        assert_eq!(g.err(Op::LockWait, ours, &wait, &[]), libc::EINVAL, "{args:?}");
    }
    for how in [[LOCK_FLOCK, LOCK_SHARED, 0, 1], [LOCK_RECORD, LOCK_NONE, 0, 1]] {
        assert_eq!(g.err(Op::LockTest, ours, &how, &[]), libc::EINVAL);
    }
    for token in [1 << 63, u64::MAX] {
        let wait = [token, LOCK_FLOCK, LOCK_SHARED, 0, TO_END];
        assert_eq!(g.err(Op::LockWait, ours, &wait, &[]), libc::EINVAL);
    }
    assert_eq!(g.err(Op::LockForget, NO_HANDLE, &[7], &[]), libc::ENOENT);
    assert_eq!(g.host.lock_waits.len(), 0);
}

#[test]
fn a_wait_tells_of_its_turn_once() {
    let (g, ours) = guest();
    let file = outsider(&g);
    assert!(set(&file, libc::F_WRLCK, 0, 10));
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let wait = |token, kind| {
        g.call(Op::LockWait, ours, &[token, kind, LOCK_EXCLUSIVE, 0, TO_END], &[]).ret
    };
    assert_eq!((wait(1, LOCK_RECORD), wait(2, LOCK_FLOCK), wait(3, LOCK_FLOCK)), (0, 0, 0));
    assert_eq!(wait(1, LOCK_FLOCK), -i64::from(libc::EEXIST));
    g.ok(Op::LockForget, NO_HANDLE, &[3], &[]);
    assert!(set(&file, libc::F_UNLCK, 0, 0));
    await_event(&g, 1);
    // A record lock is only said to be free, one of flock(2) is had.
    assert!(set(&file, libc::F_WRLCK, 0, 10));
    flock(&file, FlockOperation::NonBlockingUnlock).unwrap();
    await_event(&g, 2);
    assert!(flock(&file, FlockOperation::NonBlockingLockShared).is_err());
    assert_eq!(g.host.lock_waits.len(), 0);
    assert_eq!(g.err(Op::LockForget, NO_HANDLE, &[2], &[]), libc::ENOENT);
}

#[test]
fn nothing_is_taken_for_a_wait_that_was_forgotten() {
    let (g, ours) = guest();
    let file = outsider(&g);
    for _ in 0..50 {
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        g.ok(Op::LockWait, ours, &[1, LOCK_FLOCK, LOCK_EXCLUSIVE, 0, TO_END], &[]);
        std::thread::sleep(Duration::from_millis(1));
        g.ok(Op::LockForget, NO_HANDLE, &[1], &[]);
        flock(&file, FlockOperation::NonBlockingUnlock).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    }
}

#[test]
fn waits_are_bounded_and_count_as_descriptors() {
    let (mut g, ours) = guest();
    let file = outsider(&g);
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let wait = |g: &Guest, token| {
        g.call(Op::LockWait, ours, &[token, LOCK_FLOCK, LOCK_SHARED, 0, TO_END], &[]).ret
    };
    let begun = (1..100_000).take_while(|token| wait(&g, *token) == 0).count();
    assert_eq!(begun, 4096);
    assert_eq!(wait(&g, 100_000), -i64::from(libc::ENOLCK));
    // What each keeps open is no more than the guest may have.
    g.host.max_descriptors = 4096;
    let flags = [libc::O_RDWR as u64];
    assert_eq!(g.err(Op::Open, g.root, &flags, &[In(b"f")]), libc::EMFILE);
    (1..=begun as u64).for_each(|token| drop(g.ok(Op::LockForget, NO_HANDLE, &[token], &[])));
    g.ok(Op::Open, g.root, &flags, &[In(b"f")]);
}

proptest! {
    /// Two guests' handles and somebody else: what one has, no other gets.
    #[test]
    fn ranges_are_those_of_the_host(
        steps in collection::vec((0..3usize, 0..12u64, 1..12u64, 0..3u64), 1..60),
    ) {
        let (g, first) = guest();
        let (second, file) = (open(&g), outsider(&g));
        let mut held = [[LOCK_NONE; 24]; 3];
        for (who, start, len, how) in steps {
            let range = start as usize..(start + len) as usize;
            let stands_in_the_way = |theirs: u64| {
                how != LOCK_NONE && theirs != LOCK_NONE && (how == LOCK_EXCLUSIVE || theirs == LOCK_EXCLUSIVE)
            };
            let is_free = (0..3).filter(|other| *other != who)
                .all(|other| !held[other][range.clone()].iter().any(|l| stands_in_the_way(*l)));
            let args = [LOCK_RECORD, how, start, start + len];
            let done = match who {
                0 => g.call(Op::Lock, first, &args, &[]).ret == 0,
                1 => g.call(Op::Lock, second, &args, &[]).ret == 0,
                _ => {
                    let kind = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK][how as usize];
                    set(&file, kind, start as i64, len as i64)
                }
            };
            prop_assert_eq!(done, is_free);
            if done {
                held[who][range].fill(how);
            }
        }
    }
}
