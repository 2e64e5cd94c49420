use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::collections::BTreeMap;

use linux_raw_sys::general::{O_RDONLY, O_RDWR};
use proptest::collection;
use proptest::prelude::*;

use super::table::most_of_one;
use super::*;
use crate::fs::FileOps;
use crate::fs::outside::Turn;

/// A file that nobody else can have.
struct Own;

impl FileOps for Own {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes of a file in the tests: the last is beyond all ranges but those to the end of the file,
/// and stands for all that follow.
const BYTES: usize = 28;
type Held = [Option<bool>; BYTES];

/// A file system of the host with one file: what each descriptor holds, by its number.
#[derive(Default)]
struct World {
    held: BTreeMap<u32, Held>,
    last: u32,
}

fn bytes(start: u64, end: u64) -> core::ops::Range<usize> {
    (start.min(BYTES as u64) as usize)..(end.min(BYTES as u64) as usize)
}

impl World {
    fn is_free(&self, of: u32, start: u64, end: u64, exclusive: bool) -> bool {
        let others = self.held.iter().filter(|(number, _)| **number != of);
        let mut held = others.flat_map(|(_, held)| held[bytes(start, end)].iter().flatten());
        !held.any(|held| *held || exclusive)
    }

    fn set(&mut self, of: u32, start: u64, end: u64, to: Option<bool>) {
        self.held.entry(of).or_default()[bytes(start, end)].fill(to);
    }
}

/// The file as opened in a container.
struct Shared(Arc<Mutex<World>>);

impl FileOps for Shared {
    fn outside_locks(&self, file: &OpenFile) -> Result<Option<Arc<dyn OutsideLocks>>> {
        let mut world = self.0.lock();
        world.last += 1;
        let number = world.last;
        world.held.insert(number, Held::default());
        let is_writable = file.is_writable();
        Ok(Some(Arc::new(Descriptor { world: self.0.clone(), number, is_writable })))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Descriptor {
    world: Arc<Mutex<World>>,
    number: u32,
    is_writable: bool,
}

impl OutsideLocks for Descriptor {
    fn take(&self, whole_file: bool, start: u64, end: u64, exclusive: bool) -> Result {
        let mut world = self.world.lock();
        if exclusive && !whole_file && !self.is_writable {
            return Err(Errno::EBADF);
        }
        if whole_file {
            world.set(self.number, 0, u64::MAX, None);
        }
        if !world.is_free(self.number, start, end, exclusive) {
            return Err(Errno::EAGAIN);
        }
        world.set(self.number, start, end, Some(exclusive));
        Ok(())
    }

    fn give_up(&self, _whole_file: bool, start: u64, end: u64) -> Result {
        self.world.lock().set(self.number, start, end, None);
        Ok(())
    }

    fn test(&self, start: u64, end: u64, exclusive: bool) -> Result<Option<Holder>> {
        let is_free = self.world.lock().is_free(self.number, start, end, exclusive);
        Ok((!is_free).then_some(Holder { start: 0, end: 1, exclusive: true, pid: 0 }))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn number(&self) -> u32 {
        self.number
    }

    fn turn(&self, _whole_file: bool) -> Arc<dyn Turn> {
        unreachable!("nobody waits here")
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.world.lock().held.remove(&self.number);
    }
}

/// What the table says that an owner holds.
fn held_inside(key: Key, owner: Owner) -> Held {
    let (mut held, mut from) = (Held::default(), 0);
    loop {
        let next = TABLE.lock().next_of(key, owner, from);
        let Some(lock) = next else { return held };
        held[bytes(lock.start, lock.end)].fill(Some(lock.exclusive));
        from = lock.end;
    }
}

/// What a descriptor of the owner holds outside; `None`: there is no such descriptor.
fn held_outside(world: &Mutex<World>, key: Key, owner: Owner) -> Option<Held> {
    let number = TABLE.lock().outside.get(&(owner, key)).map(|outside| outside.number())?;
    Some(world.lock().held[&number])
}

/// Somebody outside of all containers.
const OUTSIDER: u32 = 0;

fn is_of(pid: u32, lock: Option<Holder>) -> bool {
    lock.is_some_and(|lock| lock.pid == pid as i32)
}

#[test]
fn locks_are_limited_and_nobody_takes_all() {
    let key = |ino| Key { dev: 77, ino, whole_file: false };
    let file = OpenFile::new(Arc::new(Own), O_RDWR);
    let [greedy, modest] = [Owner::Process(1), Owner::Process(2)];
    let byte = |owner, at: u64| Lock { owner, start: 2 * at, end: 2 * at + 1, exclusive: true };
    let mut got = 0;
    while try_lock(&file, key(1), byte(greedy, got)).is_ok() {
        got += 1;
    }
    assert_eq!(got as usize, most_of_one());
    assert_eq!(try_lock(&file, key(1), byte(greedy, got)), Err(Errno::ENOLCK));
    assert_eq!(try_lock(&file, key(2), byte(modest, 0)), Ok(()));
    unlock(key(1), greedy, 0, 2);
    let wide = Lock { owner: greedy, start: 1 << 40, end: 1 << 41, exclusive: true };
    assert_eq!(try_lock(&file, key(1), wide), Ok(()));
    assert_eq!(
        try_unlock(key(1), greedy, (1 << 40) + 1, (1 << 40) + 2),
        Err(Errno::ENOLCK),
        "it would be two"
    );
    assert_eq!(try_unlock(key(1), greedy, 1 << 40, 1 << 41), Ok(()));
    process_ended(1);
    process_ended(2);
    let table = TABLE.lock();
    assert!(!table.files.contains_key(&key(1)) && !table.files.contains_key(&key(2)));
    assert_eq!(table.count_of(greedy) + table.count_of(modest), 0);
}

static CASES: AtomicU32 = AtomicU32::new(0);

proptest! {
    /// Two containers with two processes each, and somebody else, over one file.
    #[test]
    fn inside_and_outside_never_differ(
        steps in collection::vec((0..5u32, 0..20u64, 1..10u64, 0..8u32), 1..60),
    ) {
        let world: Arc<Mutex<World>> = Arc::default();
        let open = |flags| OpenFile::new(Arc::new(Shared(world.clone())), flags);
        let (reader, writer) = (open(O_RDONLY), open(O_RDWR));
        // A case that failed has left locks, which must not be met while it is made smaller.
        let first = 10_000 + 4 * CASES.fetch_add(1, Relaxed);
        let key = |who| Key { dev: u64::from(first + who / 2), ino: 1, whole_file: false };
        let owner = |who| Owner::Process(first + who);
        for (who, start, len, what) in steps {
            let end = if len == 9 { u64::MAX } else { start + len };
            let exclusive = what >= 5;
            if who == 4 {
                let mut world = world.lock();
                match what {
                    0..2 => world.set(OUTSIDER, start, end, None),
                    _ if world.is_free(OUTSIDER, start, end, exclusive) =>
                        world.set(OUTSIDER, start, end, Some(exclusive)),
                    _ => {}
                }
                continue;
            }
            let (key, owner) = (key(who), owner(who));
            let own = TABLE.lock().outside.get(&(owner, key)).map_or(u32::MAX, |o| o.number());
            let was = held_inside(key, owner);
            let mut is = was;
            match what {
                0 => {
                    process_ended(first + who);
                    is = Held::default();
                }
                1 => {
                    prop_assert_eq!(try_unlock(key, owner, start, end), Ok(()));
                    is[bytes(start, end)].fill(None);
                }
                _ => {
                    let file = if exclusive || what == 2 { &writer } else { &reader };
                    let is_free = world.lock().is_free(own, start, end, exclusive);
                    let wanted = Lock { owner, start, end, exclusive };
                    prop_assert_eq!(test(file, key, &wanted).unwrap().is_none(), is_free);
                    let taken = try_lock(file, key, wanted);
                    prop_assert_eq!(taken, if is_free { Ok(()) } else { Err(Errno::EAGAIN) });
                    if is_free {
                        is[bytes(start, end)].fill(Some(exclusive));
                    }
                }
            }
            prop_assert_eq!(held_inside(key, owner), is);
            let has_some = is.iter().any(Option::is_some);
            prop_assert_eq!(held_outside(&world, key, owner), has_some.then_some(is));
        }
        (0..4).for_each(|who| process_ended(first + who));
        prop_assert!(world.lock().held.keys().all(|number| *number == OUTSIDER));
    }
}

#[test]
fn a_conversion_that_fails_outside_has_lost_the_lock() {
    let world: Arc<Mutex<World>> = Arc::default();
    let file = OpenFile::new(Arc::new(Shared(world.clone())), O_RDONLY);
    let key = Key { dev: 7100, ino: 1, whole_file: true };
    let owner = Owner::of_file(&file);
    let whole = |exclusive| Lock { owner, start: 0, end: u64::MAX, exclusive };
    assert_eq!(try_lock(&file, key, whole(false)), Ok(()));
    world.lock().set(OUTSIDER, 0, u64::MAX, Some(false));
    assert_eq!(try_lock(&file, key, whole(true)), Err(Errno::EAGAIN));
    assert_eq!(
        (held_inside(key, owner), held_outside(&world, key, owner)),
        (Held::default(), None)
    );
    world.lock().set(OUTSIDER, 0, u64::MAX, None);
    // A reader may have it exclusively.
    assert_eq!(try_lock(&file, key, whole(true)), Ok(()));
    assert_eq!(held_outside(&world, key, owner), Some([Some(true); BYTES]));
    drop(file);
    assert_eq!(world.lock().held.keys().copied().collect::<Vec<_>>(), [OUTSIDER]);
}

#[test]
fn who_is_inside_is_named_and_who_is_outside_is_not() {
    let world: Arc<Mutex<World>> = Arc::default();
    let file = OpenFile::new(Arc::new(Shared(world.clone())), O_RDWR);
    let key = Key { dev: 7200, ino: 1, whole_file: false };
    let by = |pid, start, end| Lock { owner: Owner::Process(pid), start, end, exclusive: true };
    assert_eq!(try_lock(&file, key, by(7201, 0, 4)), Ok(()));
    world.lock().set(OUTSIDER, 6, 8, Some(true));
    assert!(is_of(7201, test(&file, key, &by(7202, 0, 8)).unwrap()));
    assert!(is_of(0, test(&file, key, &by(7202, 4, 8)).unwrap()));
    assert_eq!(test(&file, key, &by(7202, 4, 6)), Ok(None));
    assert_eq!(test(&file, key, &by(7201, 0, 6)), Ok(None), "it is its own");
    process_ended(7201);
    assert_eq!(world.lock().held.len(), 1, "descriptors of those that only asked are closed");
}
