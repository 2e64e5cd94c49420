//! Operations that wait for the host's disk.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use qlib::host::DISK_BEGUN;
use qlib::platform::EVENT_READY;
use rustix::time::Timespec;

use super::super::super::events::{Dispatch, INTERNAL, Sources};
use super::super::disk::Work;
use super::*;

/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

struct NoSources;
impl Sources for NoSources {
    fn ready(&mut self, key: u64, _: Dispatch<'_>) {
        panic!("nothing was added under {key:#x}");
    }
}

/// Work that is over when the sender says how it ends, and says that it has begun.
fn held_up() -> (Work, Sender<Result<(), Errno>>, Receiver<()>) {
    let ((end, ends), (begin, begun)) = (channel(), channel());
    let work = Work::new(move || {
        begin.send(()).ok();
        // A test that is over ends it.
        ends.recv().unwrap_or(Ok(()))
    });
    (work, end, begun)
}

/// Waits for the event that tells of `token`.
pub(super) fn await_event(g: &Guest, token: u64) {
    let (seen, end) = (std::cell::Cell::new(false), Instant::now() + LIMIT);
    let look = |e: &qlib::platform::Event| {
        seen.set(seen.get() || (e.kind == EVENT_READY && e.a == token && e.b & 1 != 0));
    };
    while !seen.get() {
        assert!(Instant::now() < end, "no event for {token}");
        let step = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        g.host.poller.turn(Some(step), &look, &mut NoSources).unwrap();
    }
}

fn result(g: &Guest, token: u64) -> Result<i32, i32> {
    let answer = g.call(Op::DiskResult, NO_HANDLE, &[token], &[]);
    if answer.ret == 0 { Ok(answer.args[0] as i32) } else { Err(-answer.ret as i32) }
}

fn forget(g: &Guest, token: u64) -> i64 {
    g.call(Op::DiskForget, NO_HANDLE, &[token], &[]).ret
}

#[test]
fn what_takes_long_is_told_of_when_it_is_over() {
    let g = Guest::new();
    for (token, end, errno) in [(5, Ok(()), 0), (6, Err(Errno::IO), libc::EIO)]
        .into_iter()
        .chain([(7, Err(Errno::NOSPC), libc::ENOSPC), (8, Err(Errno::AGAIN), libc::EAGAIN)])
    {
        let (work, sender, begun) = held_up();
        assert_eq!(g.host.disk.begin(token, work).unwrap(), None);
        begun.recv_timeout(LIMIT).unwrap();
        assert_eq!(result(&g, token), Err(libc::EAGAIN));
        sender.send(end).unwrap();
        await_event(&g, token);
        assert_eq!(result(&g, token), Ok(errno));
        assert_eq!(result(&g, token), Err(libc::ENOENT), "taken twice");
        assert_eq!(forget(&g, token), -i64::from(libc::ENOENT));
    }
    assert_eq!(g.host.disk.len(), 0);
}

#[test]
fn what_is_over_at_once_is_answered_at_once() {
    let g = Guest::new();
    let at_once = || {
        (0..10_000).find_map(|_| match g.host.disk.begin(1, Work::new(|| Err(Errno::DQUOT))) {
            Ok(None) => {
                await_event(&g, 1);
                assert_eq!(result(&g, 1), Ok(libc::EDQUOT));
                None
            }
            done => Some(done),
        })
    };
    assert_eq!(at_once(), Some(Ok(Some(Err(Errno::DQUOT)))));
    assert_eq!((g.host.disk.len(), result(&g, 1)), (0, Err(libc::ENOENT)));
}

#[test]
fn few_are_under_way_at_once_and_the_rest_in_turn() {
    const MANY: u64 = 40;
    let g = Guest::new();
    let running = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let mut ends = Vec::new();
    for token in 0..MANY {
        let (end, ends_when) = channel::<()>();
        let (running, most) = (running.clone(), most.clone());
        let work = Work::new(move || {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            ends_when.recv().ok();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        });
        assert_eq!(g.host.disk.begin(token, work).unwrap(), None);
        ends.push(end);
    }
    assert_eq!(g.host.disk.len() as u64, MANY);
    let end = Instant::now() + LIMIT;
    while running.load(Ordering::SeqCst) < 16 {
        assert!(Instant::now() < end, "{running:?} have begun");
        std::thread::sleep(Duration::from_millis(1));
    }
    // One that waits its turn, and one that has begun.
    assert_eq!((forget(&g, MANY - 1), forget(&g, 0)), (0, 0));
    assert_eq!((result(&g, 0), result(&g, MANY - 1)), (Err(libc::ENOENT), Err(libc::ENOENT)));
    drop(ends);
    for token in 1..MANY - 1 {
        while result(&g, token) == Err(libc::EAGAIN) {
            assert!(Instant::now() < end, "{token} does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!((most.load(Ordering::SeqCst), g.host.disk.len()), (16, 0));
}

#[test]
fn tokens_are_checked_and_one_that_is_used_anew_gets_its_own_result() {
    let g = Guest::new();
    fs::write(g.dir.join("f"), "x").unwrap();
    let file = g.open("f", libc::O_RDWR);
    for token in [INTERNAL, u64::MAX] {
        assert_eq!(g.host.disk.begin(token, Work::new(|| Ok(()))), Err(Errno::INVAL));
        assert_eq!((result(&g, token), forget(&g, token)), (Err(libc::ENOENT), -2));
    }
    let (work, first, begun) = held_up();
    assert_eq!(g.host.disk.begin(3, work).unwrap(), None);
    begun.recv_timeout(LIMIT).unwrap();
    assert_eq!(g.host.disk.begin(3, Work::new(|| Ok(()))), Err(Errno::EXIST));
    // Forgotten, and the token used once more while it goes on.
    assert_eq!(forget(&g, 3), 0);
    let (work, second, begun) = held_up();
    assert_eq!(g.host.disk.begin(3, work).unwrap(), None);
    begun.recv_timeout(LIMIT).unwrap();
    first.send(Err(Errno::IO)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(result(&g, 3), Err(libc::EAGAIN), "not the first one's");
    second.send(Ok(())).unwrap();
    await_event(&g, 3);
    assert_eq!(result(&g, 3), Ok(0));
    // The object's own errors come first.
    for op in [Op::Sync, Op::SyncFs] {
        for handle in [NO_HANDLE, 999] {
            assert_eq!(g.err(op, handle, &[1, 0], &[]), libc::EBADF);
        }
    }
    let (_r, w) = rustix::pipe::pipe().unwrap();
    let pipe = g.host.add_stdio(stream(w)).unwrap();
    assert_eq!(g.err(Op::Sync, pipe, &[1, 0], &[]), libc::EINVAL);
    g.ok(Op::Close, file, &[], &[]);
    assert_eq!(g.err(Op::Sync, file, &[1, 0], &[]), libc::EBADF);
}

#[test]
fn a_file_may_be_closed_meanwhile() {
    let g = Guest::new();
    for token in 0..12 {
        fs::write(g.dir.join("f"), "something").unwrap();
        let file = g.open("f", libc::O_RDWR);
        let op = [Op::Sync, Op::SyncFs, Op::Fetch][token as usize / 2 % 3];
        let begun = g.ok(op, file, &[token, token & 1, 9], &[]).ret as u64;
        g.ok(Op::Close, file, &[], &[]);
        if begun == DISK_BEGUN && token % 3 != 0 {
            await_event(&g, token);
            assert_eq!(result(&g, token), Ok(0));
        } else if begun == DISK_BEGUN {
            assert_eq!(forget(&g, token), 0);
        }
        assert_eq!(result(&g, token), Err(libc::ENOENT));
    }
}

#[test]
fn a_huge_page_changes_no_byte() {
    const HUGE: u64 = 2 << 20;
    let g = Guest::new();
    // What the segments of calls lie in is below.
    let extent = g.host.memory.ram_bytes() - HUGE;
    let bytes: Vec<u8> = (0..HUGE).map(|i| (i / 4096 * 7) as u8).collect();
    for (offset, len) in [(0, 4096), (5 * 4096, 8192), (HUGE - 4096, 4096)] {
        let part = &bytes[offset as usize..][..len];
        g.host.memory.write(Gpa(extent + offset), part).unwrap();
    }
    let mut before = vec![0; HUGE as usize];
    g.host.memory.read(Gpa(extent), &mut before).unwrap();
    assert_eq!(g.ok(Op::HugePage, NO_HANDLE, &[1, extent], &[]).ret as u64, DISK_BEGUN);
    await_event(&g, 1);
    // Some hosts have none, or no room for one.
    let known = [0, libc::ETIME, libc::EINVAL, libc::EAGAIN, libc::ENOMEM, libc::EBUSY];
    let outcome = result(&g, 1).unwrap();
    assert!(known.contains(&outcome), "{outcome}");
    let mut after = vec![1; HUGE as usize];
    g.host.memory.read(Gpa(extent), &mut after).unwrap();
    assert!(before == after);
    // Of what is no such part of RAM nothing is made.
    let ram = g.host.memory.ram_bytes();
    for wrong in [extent + 4096, ram, ram - HUGE / 2, u64::MAX - HUGE + 1, u64::MAX] {
        g.ok(Op::HugePage, NO_HANDLE, &[2, wrong], &[]);
        await_event(&g, 2);
        assert_eq!(result(&g, 2), Ok(libc::EINVAL), "{wrong:#x}");
    }
    assert_eq!(g.err(Op::HugePage, NO_HANDLE, &[1 << 63, extent], &[]), libc::EINVAL);
}

#[test]
fn what_is_not_cached_is_fetched() {
    const BYTES: usize = 300_000;
    let g = Guest::new();
    let content: Vec<u8> = (0..BYTES).map(|i| (i / 7) as u8).collect();
    fs::write(g.dir.join("f"), &content).unwrap();
    let own = fs::File::open(g.dir.join("f")).unwrap();
    own.sync_all().unwrap();
    rustix::fs::fadvise(&own, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let file = g.open("f", libc::O_RDONLY);
    let cached = |offset: u64, len| g.call(Op::Read, file, &[offset, 1], &[Out(len)]);
    // Not each file system can tell, and not each gives pages up when it is asked to.
    let before = cached(0, 100).ret;
    let possible = [100, -i64::from(libc::EAGAIN), -i64::from(libc::EOPNOTSUPP)];
    assert!(possible.contains(&before), "{before}");
    for offset in (0..BYTES as u64).step_by(1 << 18) {
        g.finished(Op::Fetch, file, &[offset, 1 << 18]);
    }
    // What is behind the end is no error.
    g.finished(Op::Fetch, file, &[BYTES as u64, u64::MAX - (1 << 20)]);
    if before != possible[2] {
        for offset in [0, 4_000, 299_000] {
            let after = cached(offset, 1_000);
            assert_eq!(after.ret, 1_000);
            assert_eq!(after.out[0], content[offset as usize..][..1_000]);
        }
        assert_eq!(cached(BYTES as u64, 10).ret, 0);
    }
    assert_eq!(g.err(Op::Fetch, file, &[1, u64::MAX, 1], &[]), libc::EINVAL);
    assert_eq!(g.err(Op::Fetch, g.root, &[1, 0, 1], &[]), libc::EINVAL);
    let (r, _w) = rustix::pipe::pipe().unwrap();
    let pipe = g.host.add_stdio(stream(r)).unwrap();
    assert_eq!(g.err(Op::Fetch, pipe, &[1, 0, 1], &[]), libc::EINVAL);
}
