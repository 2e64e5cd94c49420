use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::skip::skip;

mod mapped;

/// Guest memory that is a plain vector; can be told to fail.
struct Fake {
    bytes: Mutex<Vec<u8>>,
    /// Bytes that can still be written to files, and the error after them.
    budget: Cell<u64>,
    error: i32,
    /// The most bytes moved by one call.
    step: usize,
}

impl Fake {
    fn new(pages: u64) -> Self {
        let bytes = Mutex::new(vec![0; (pages * PAGE_SIZE) as usize]);
        Self { bytes, budget: Cell::new(u64::MAX), error: libc::ENOSPC, step: usize::MAX }
    }

    fn check(&self, range: &Segment) -> io::Result<std::ops::Range<usize>> {
        let end = range
            .gpa
            .0
            .checked_add(range.len)
            .filter(|&e| e <= self.bytes.lock().unwrap().len() as u64);
        let end = end.ok_or(io::Error::from_raw_os_error(libc::EFAULT))?;
        Ok(range.gpa.0 as usize..end as usize)
    }

    /// Fills a page with something that depends on `value` in every byte.
    fn fill(&self, page: u64, value: u64) {
        let start = (page * PAGE_SIZE) as usize;
        let mut bytes = self.bytes.lock().unwrap();
        for (i, word) in bytes[start..start + PAGE].chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(
                &(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64).to_le_bytes(),
            );
        }
    }

    fn holds(&self, page: u64, value: u64) -> bool {
        let start = (page * PAGE_SIZE) as usize;
        let bytes = self.bytes.lock().unwrap();
        bytes[start..start + PAGE].chunks_exact(8).enumerate().all(|(i, word)| {
            word == (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64).to_le_bytes()
        })
    }
}

impl PageMemory for Fake {
    fn write_out(&self, from: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        let file = File::from(file.try_clone_to_owned()?);
        let mut all = Vec::new();
        for range in from {
            let range = self.check(range)?;
            all.extend_from_slice(&self.bytes.lock().unwrap()[range]);
        }
        let len = all.len().min(self.step).min(self.budget.get() as usize);
        if len == 0 && !all.is_empty() {
            return Err(io::Error::from_raw_os_error(self.error));
        }
        let written = file.write_at(&all[..len], offset)?;
        self.budget.set(self.budget.get() - written as u64);
        Ok(written)
    }

    fn read_in(&self, to: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        let file = File::from(file.try_clone_to_owned()?);
        let mut done = 0;
        for range in to {
            let range = self.check(range)?;
            let len = range.len().min(self.step - done);
            let got = file.read_at(
                &mut self.bytes.lock().unwrap()[range.start..range.start + len],
                offset + done as u64,
            )?;
            done += got;
            if got < range.len() {
                break;
            }
        }
        Ok(done)
    }

    fn copy_out(&self, from: Gpa, to: &mut [u8]) -> io::Result<()> {
        let range = self.check(&Segment { gpa: from, len: to.len() as u64 })?;
        to.copy_from_slice(&self.bytes.lock().unwrap()[range]);
        Ok(())
    }

    fn copy_in(&self, to: Gpa, from: &[u8]) -> io::Result<()> {
        let range = self.check(&Segment { gpa: to, len: from.len() as u64 })?;
        self.bytes.lock().unwrap()[range].copy_from_slice(from);
        Ok(())
    }
}

fn segment(page: u64, pages: u64) -> Segment {
    Segment { gpa: Gpa(page * PAGE_SIZE), len: pages * PAGE_SIZE }
}

fn store(quota_pages: u64) -> Store {
    Store::new(&std::env::temp_dir(), quota_pages * PAGE_SIZE).unwrap()
}

/// Changes one byte of a file as a bad disk would, through a descriptor of its own.
fn flip(file: &HiddenFile, at: u64) {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn pages_come_back_from_their_slots() {
    let (store, memory) = (store(1000), Fake::new(600));
    assert_eq!(
        store.stat(),
        StoreStat { quota_bytes: 1000 * PAGE_SIZE, ..StoreStat::default() },
        "nothing is opened"
    );
    (0..600).for_each(|p| memory.fill(p, p));
    let slots =
        store.swap_out(&memory, &[segment(300, 300), segment(10, 1), segment(20, 100)]).unwrap();
    assert_eq!(slots, (0..401).collect::<Vec<_>>());
    for (page, slot) in [(300, 0), (599, 299), (10, 300), (119, 400)] {
        store.swap_in(&memory, slot, &[segment(0, 1)]).unwrap();
        assert!(memory.holds(0, page));
    }
    // Several at once, into scattered frames.
    store.swap_in(&memory, 298, &[segment(1, 1), segment(5, 2), segment(3, 1)]).unwrap();
    assert!(
        memory.holds(1, 598) && memory.holds(5, 599) && memory.holds(6, 10) && memory.holds(3, 20)
    );
    assert_eq!(
        errno(store.swap_in(&memory, 399, &[segment(0, 3)])),
        libc::EINVAL,
        "past the last slot"
    );
    assert_eq!(
        errno(store.swap_in(&memory, 0, &[segment(0, MAX_SWAP_IN_PAGES + 1)])),
        libc::EINVAL
    );
    assert_eq!(errno(store.swap_in(&memory, u64::MAX, &[segment(0, 2)])), libc::EINVAL);
    let stat = store.stat();
    assert_eq!((stat.swap_pages, stat.reap_pages), (401, 0));
    assert!(stat.swap_disk_bytes >= 401 * PAGE_SIZE);
    assert!(store.swap_out(&memory, &[]).unwrap().is_empty());
}

#[test]
fn freed_slots_are_used_again_and_give_their_space_back() {
    let (store, memory) = (store(10_000), Fake::new(4096));
    let slots = store.swap_out(&memory, &[segment(0, 4096)]).unwrap();
    let full = store.stat().swap_disk_bytes;
    store.swap_free(&slots[1000..3000]).unwrap();
    assert_eq!(store.stat().swap_pages, 2096);
    assert!(store.stat().swap_disk_bytes <= full - 1900 * PAGE_SIZE, "{:?}", store.stat());
    assert_eq!(store.swap_out(&memory, &[segment(0, 2)]).unwrap(), [1000, 1001]);
    store.swap_free(&slots[3000..]).unwrap();
    store.swap_free(&slots[..1002]).unwrap();
    assert_eq!((store.stat().swap_pages, store.stat().swap_disk_bytes), (0, 0));
    assert_eq!(store.swap_out(&memory, &[segment(0, 2)]).unwrap(), [0, 1]);
}

/// Holes that are too short for large requests are not looked through each time, but are found by
/// small ones, and longer ones by all.
#[test]
fn holes_are_found_again() {
    let mut slots = Slots::default();
    let take = |slots: &mut Slots, pages: u64| {
        let places = slots.choose(pages);
        places.iter().cloned().flatten().for_each(|slot| slots.occupy(slot, 0));
        slots.chosen(pages, &places);
        places
    };
    assert_eq!(take(&mut slots, 200), vec![0..200]);
    (50..60).for_each(|slot| slots.vacate(slot));
    assert_eq!(take(&mut slots, 64), vec![200..264]);
    (60..81).for_each(|slot| slots.vacate(slot));
    assert_eq!(take(&mut slots, 64), vec![264..328], "31 are too few");
    slots.vacate(81);
    assert_eq!(take(&mut slots, 64), vec![50..82, 328..360]);
    slots.vacate(7);
    assert_eq!(take(&mut slots, 1), vec![7..8]);
    (100..200).for_each(|slot| slots.vacate(slot));
    assert_eq!(take(&mut slots, 64), vec![100..164]);
    assert_eq!(take(&mut slots, 64), vec![164..200, 360..388]);
}

#[test]
fn bad_requests_change_nothing() {
    let (store, memory) = (store(100), Fake::new(100));
    for bad in [
        Segment { gpa: Gpa(1), len: PAGE_SIZE },
        Segment { gpa: Gpa(0), len: 100 },
        Segment { gpa: Gpa(0), len: 0 },
        Segment { gpa: Gpa(u64::MAX - 4095), len: PAGE_SIZE },
    ] {
        assert_eq!(errno(store.swap_out(&memory, &[segment(0, 1), bad])), libc::EINVAL);
        assert_eq!(errno(store.reap_in(&memory, 0, &[bad])), libc::EINVAL);
    }
    assert_eq!(errno(store.swap_out(&memory, &[segment(0, 1), segment(99, 2)])), libc::EFAULT);
    assert_eq!(store.stat().swap_pages, 0);
    assert_eq!(errno(store.swap_in(&memory, 0, &[segment(0, 1)])), libc::EINVAL);
    store.swap_out(&memory, &[segment(0, 3)]).unwrap();
    assert_eq!(errno(store.swap_in(&memory, 3, &[segment(0, 1)])), libc::EINVAL);
    assert_eq!(errno(store.swap_in(&memory, u64::MAX, &[segment(0, 1)])), libc::EINVAL);
    assert_eq!(errno(store.swap_in(&memory, 0, &[segment(100, 1)])), libc::EFAULT);
    assert_eq!(errno(store.swap_free(&[0, 1, 1])), libc::EINVAL);
    assert_eq!(errno(store.swap_free(&[0, u64::MAX])), libc::EINVAL);
    assert_eq!(store.stat().swap_pages, 3);
    assert_eq!(errno(store.reap_append(&memory, &[segment(0, 1)])), libc::EINVAL);
    assert_eq!(errno(store.reap_end()), libc::EINVAL);
    assert_eq!(errno(store.reap_in(&memory, 0, &[])), libc::EINVAL);
}

#[test]
fn the_quota_holds_for_both_files_together() {
    let (store, memory) = (store(10), Fake::new(100));
    assert_eq!(errno(store.swap_out(&memory, &[segment(0, 11)])), libc::EDQUOT);
    let slots = store.swap_out(&memory, &[segment(0, 6)]).unwrap();
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 4)]).unwrap();
    assert_eq!(errno(store.swap_out(&memory, &[segment(0, 1)])), libc::EDQUOT);
    assert_eq!(errno(store.reap_append(&memory, &[segment(0, 1)])), libc::EDQUOT);
    assert_eq!(errno(store.reap_end()), libc::EINVAL, "a REAP file that failed is forgotten");
    store.swap_free(&slots[..1]).unwrap();
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 5)]).unwrap();
    store.reap_end().unwrap();
    // A new one counts in place of the old one.
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 5)]).unwrap();
    store.reap_end().unwrap();
    let everything = Segment { gpa: Gpa(0), len: 1 << 62 };
    assert_eq!(errno(store.swap_out(&memory, &[everything; 8])), libc::EDQUOT);
}

#[test]
fn a_failed_swap_out_leaves_the_store_as_it_was() {
    for error in [libc::ENOSPC, libc::EIO, libc::EDQUOT, libc::EFBIG] {
        let (store, mut memory) = (store(10_000), Fake::new(2000));
        memory.error = error;
        (0..2000).for_each(|p| memory.fill(p, p));
        let slots = store.swap_out(&memory, &[segment(0, 400)]).unwrap();
        store.swap_free(&slots[100..200]).unwrap();
        let before = store.stat();
        memory.budget.set(700 * PAGE_SIZE + 77);
        let expected = if error == libc::EIO { libc::EIO } else { libc::ENOSPC };
        assert_eq!(errno(store.swap_out(&memory, &[segment(0, 1000)])), expected);
        let after = store.stat();
        assert_eq!(after.swap_pages, before.swap_pages);
        assert!(after.swap_disk_bytes <= before.swap_disk_bytes, "{before:?} {after:?}");
        for page in (0..100).chain(200..400) {
            store.swap_in(&memory, page, &[segment(1999, 1)]).unwrap();
            assert!(memory.holds(1999, page));
        }
        memory.budget.set(u64::MAX);
        assert_eq!(store.swap_out(&memory, &[segment(0, 1000)]).unwrap().len(), 1000);
    }
}

#[test]
fn a_failed_reap_file_leaves_the_last_one() {
    let (store, memory) = (store(10_000), Fake::new(2000));
    (0..2000).for_each(|p| memory.fill(p, p));
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 300), segment(1000, 5)]).unwrap();
    store.reap_append(&memory, &[segment(700, 100)]).unwrap();
    assert_eq!(
        errno(store.reap_in(&memory, 0, &[segment(0, 1)])),
        libc::EINVAL,
        "not before it is whole"
    );
    store.reap_end().unwrap();
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 300)]).unwrap();
    memory.budget.set(10 * PAGE_SIZE);
    assert_eq!(errno(store.reap_append(&memory, &[segment(0, 300)])), libc::ENOSPC);
    assert_eq!(errno(store.reap_append(&memory, &[segment(0, 1)])), libc::EINVAL);
    store.reap_in(&memory, 0, &[segment(1500, 405)]).unwrap();
    assert!((0..300).all(|p| memory.holds(1500 + p, p)));
    assert!((0..5).all(|p| memory.holds(1800 + p, 1000 + p)));
    assert!((0..100).all(|p| memory.holds(1805 + p, 700 + p)));
    // In pieces, and scattered.
    store.reap_in(&memory, 299, &[segment(1, 1), segment(9, 2)]).unwrap();
    assert!(memory.holds(1, 299) && memory.holds(9, 1000) && memory.holds(10, 1001));
    assert_eq!(errno(store.reap_in(&memory, 400, &[segment(0, 6)])), libc::EINVAL);
    assert_eq!(errno(store.reap_in(&memory, u64::MAX, &[segment(0, 1)])), libc::EINVAL);
    store.reap_discard();
    assert_eq!(store.stat().reap_pages, 0);
}

#[test]
fn short_transfers_are_continued() {
    let (store, mut memory) = (store(10_000), Fake::new(900));
    memory.step = 5000;
    (0..900).for_each(|p| memory.fill(p, p));
    let scattered: Vec<_> = (0..300).map(|p| segment(p * 3, 1)).collect();
    store.reap_begin().unwrap();
    store.reap_append(&memory, &scattered).unwrap();
    store.reap_end().unwrap();
    store.reap_in(&memory, 0, &[segment(600, 300)]).unwrap();
    assert!((0..300).all(|p| memory.holds(600 + p, p * 3)));
}

#[test]
fn damage_is_noticed() {
    let (store, memory) = (store(10_000), Fake::new(900));
    (0..900).for_each(|p| memory.fill(p, p));
    let slots = store.swap_out(&memory, &[segment(0, 500)]).unwrap();
    store.reap_begin().unwrap();
    store.reap_append(&memory, &[segment(0, 500)]).unwrap();
    store.reap_end().unwrap();
    {
        let inner = store.lock();
        flip(inner.swap.as_ref().unwrap(), 123 * PAGE_SIZE + 4095);
        flip(&inner.reap.as_ref().unwrap().file, 321 * PAGE_SIZE);
    }
    memory.fill(899, 7);
    assert_eq!(errno(store.swap_in(&memory, slots[123], &[segment(899, 1)])), libc::EBADMSG);
    assert!(memory.holds(899, 7), "bad bytes do not reach the guest");
    let before = memory.bytes.lock().unwrap()[899 * PAGE..].to_vec();
    assert_eq!(
        errno(store.swap_in(&memory, slots[122], &[segment(899, 2)])),
        libc::EBADMSG,
        "one of two is enough"
    );
    assert_eq!(memory.bytes.lock().unwrap()[899 * PAGE..], before, "and neither frame is touched");
    store.swap_in(&memory, slots[122], &[segment(899, 1)]).unwrap();
    let damaged = store.reap_in(&memory, 0, &[segment(0, 500)]).unwrap_err();
    assert_eq!(
        (damaged.errno(), damaged.to_string()),
        (libc::EBADMSG, "page 321 of the REAP file is damaged".into())
    );
    store.reap_in(&memory, 322, &[segment(0, 178)]).unwrap();
}

#[test]
fn lost_and_misplaced_writes_are_noticed() {
    let (store, memory) = (store(10_000), Fake::new(10));
    memory.fill(0, 1);
    let first = store.swap_out(&memory, &[segment(0, 1), segment(0, 1)]).unwrap();
    let file =
        |store: &Store| store.lock().swap.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap();
    let disk = File::from(file(&store));
    let mut old = [0; PAGE];
    disk.read_exact_at(&mut old, 0).unwrap();
    // The write of slot 0 is lost: what is there is its older content.
    store.swap_free(&first[..1]).unwrap();
    memory.fill(0, 2);
    assert_eq!(store.swap_out(&memory, &[segment(0, 1)]).unwrap(), [0]);
    disk.write_all_at(&old, 0).unwrap();
    assert_eq!(errno(store.swap_in(&memory, 0, &[segment(0, 1)])), libc::EBADMSG);
    // Equal pages in two slots have different checksums: one in place of the other is noticed.
    let sums = |slot| store.lock().slots.sum(slot).unwrap();
    let again = store.swap_out(&memory, &[segment(0, 1), segment(0, 1)]).unwrap();
    assert_ne!(sums(again[0]), sums(again[1]));
    // The file is cut short.
    disk.set_len(PAGE_SIZE).unwrap();
    assert_eq!(errno(store.swap_in(&memory, 1, &[segment(0, 1)])), libc::EBADMSG);
}

#[test]
fn files_have_no_name() {
    let dir = std::env::temp_dir().join(format!("quark-store-test-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let (store, memory) = (Store::new(&dir, 1 << 20).unwrap(), Fake::new(10));
    store.swap_out(&memory, &[segment(0, 1)]).unwrap();
    store.reap_begin().unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    // The directory may be gone by path; the store keeps it open.
    let moved = dir.with_extension("moved");
    std::fs::rename(&dir, &moved).unwrap();
    store.reap_begin().unwrap();
    std::fs::remove_dir(&moved).unwrap();
    assert!(Store::new(&dir, 1 << 20).is_err());
}

#[test]
fn written_pages_are_clean() {
    // An idle sandbox must not be charged for dirty page cache: the file's pages are clean when the
    // call returns.
    let (store, memory) = (store(10_000), Fake::new(2000));
    (0..2000).for_each(|p| memory.fill(p, p));
    store.swap_out(&memory, &[segment(0, 2000)]).unwrap();
    let inner = store.lock();
    let file = inner.swap.as_ref().unwrap();
    let Some(dirty) = mapped::dirty_pages(file.as_fd(), 2000 * PAGE_SIZE) else {
        return skip("the host does not tell which pages are dirty");
    };
    assert_eq!(dirty, 0);
}

/// Runs in a mount namespace of its own, see [`a_full_disk`].
#[test]
#[ignore = "run by a_full_disk"]
fn in_a_directory_of_one_mebibyte() {
    let dir = std::env::var_os("QUARK_TEST_STORE_DIR").unwrap();
    let (store, memory) = (Store::new(Path::new(&dir), 1 << 30).unwrap(), Fake::new(600));
    (0..600).for_each(|p| memory.fill(p, p));
    let slots = store.swap_out(&memory, &[segment(0, 150)]).unwrap();
    let before = store.stat();
    for _ in 0..3 {
        assert_eq!(errno(store.swap_out(&memory, &[segment(0, 400)])), libc::ENOSPC);
        assert_eq!(store.stat(), before);
        store.reap_begin().unwrap();
        assert_eq!(errno(store.reap_append(&memory, &[segment(0, 400)])), libc::ENOSPC);
    }
    for (page, &slot) in (0..).zip(&slots) {
        store.swap_in(&memory, slot, &[segment(599, 1)]).unwrap();
        assert!(memory.holds(599, page));
    }
    store.swap_free(&slots).unwrap();
    assert_eq!(
        store.swap_out(&memory, &[segment(0, 200)]).unwrap().len(),
        200,
        "freed space can be used again"
    );
}

#[test]
fn a_full_disk() {
    let dir = std::env::temp_dir().join(format!("quark-store-full-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let inner = "store::tests::in_a_directory_of_one_mebibyte";
    let script = r#"mount -t tmpfs -o size=1m none "$0" || exit 77; exec "$@""#;
    let done = std::process::Command::new("unshare")
        .args(["--map-root-user", "--user", "--mount", "sh", "-c", script])
        .arg(&dir)
        .arg(std::env::current_exe().unwrap())
        .args([inner, "--exact", "--ignored", "--test-threads=1"])
        .env("QUARK_TEST_STORE_DIR", &dir)
        .output();
    std::fs::remove_dir(&dir).unwrap();
    let output = done.unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.code() == Some(77) || text.contains("unshare failed") {
        return skip(format!("no mount namespace here: {text}"));
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[derive(Clone, Debug)]
enum Step {
    Out(u64, u64),
    OutSoon(u64, u64),
    OutFails(u64, u64, u64),
    Free(usize, usize),
    Check(usize),
    /// The store goes on with what it has as an image has it.
    Adopt,
    /// The same in the place of it.
    Again,
    /// It becomes what it was at the last of these.
    GoBack,
}

/// What a store holds, as an image of it has it: every file read-only, and none its own.
fn as_image(store: &Store) -> (Stored, Vec<File>, Option<File>) {
    let (mut stored, files) = store.stored();
    let open =
        |file: &Arc<File>| File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let mut files: Vec<File> = files.iter().map(open).collect();
    let reap = stored.reap.is_some().then(|| files.pop().unwrap());
    if std::mem::take(&mut stored.own) {
        let end = stored.end().unwrap();
        if end > stored.layers.last().copied().unwrap_or(0) {
            stored.layers.push(end);
        } else {
            files.pop();
        }
    }
    (stored, files, reap)
}

fn shared(files: &[File]) -> Vec<Arc<File>> {
    files.iter().map(|file| Arc::new(file.try_clone().unwrap())).collect()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..200u64, 1..100u64).prop_map(|(p, n)| Step::Out(p, n)),
        4 => (0..200u64, 1..100u64).prop_map(|(p, n)| Step::OutSoon(p, n)),
        1 => (0..200u64, 1..100u64, 0..50u64).prop_map(|(p, n, ok)| Step::OutFails(p, n, ok)),
        4 => (any::<usize>(), 1..80usize).prop_map(|(i, n)| Step::Free(i, n)),
        4 => any::<usize>().prop_map(Step::Check),
        1 => Just(Step::Adopt),
        1 => Just(Step::Again),
        1 => Just(Step::GoBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..60)) {
        let (mut store, memory) = (store(2000), Fake::new(301));
        let mut model = std::collections::BTreeMap::new();
        let mut value = 0;
        let mut then = None;
        let none = || Arc::new(File::open("/dev/null").unwrap());
        for step in steps {
            match step {
                Step::Out(page, count)
                | Step::OutSoon(page, count)
                | Step::OutFails(page, count, _) => {
                    (page..page + count).for_each(|p| { value += 1; memory.fill(p, value); });
                    let fails = matches!(step, Step::OutFails(_, _, ok) if ok < count);
                    if let Step::OutFails(_, _, ok) = step {
                        memory.budget.set(ok * PAGE_SIZE);
                    }
                    let pages = [segment(page, count)];
                    let out = match step {
                        Step::OutSoon(..) => store.swap_out_soon(&memory, &pages),
                        _ => store.swap_out(&memory, &pages),
                    };
                    match out {
                        Ok(slots) => {
                            prop_assert!(!fails && slots.len() as u64 == count);
                            for (i, slot) in slots.into_iter().enumerate() {
                                let old = model.insert(slot, value - count + 1 + i as u64);
                                prop_assert!(old.is_none(), "slot {} was in use", slot);
                            }
                        }
                        Err(error) => prop_assert!(fails || error.errno() == libc::EDQUOT),
                    }
                    memory.budget.set(u64::MAX);
                }
                Step::Free(i, count) if !model.is_empty() => {
                    let from = model.keys().copied().skip(i % model.len());
                    let some: Vec<u64> = from.take(count).collect();
                    store.swap_free(&some).unwrap();
                    some.iter().for_each(|slot| { model.remove(slot); });
                    prop_assert!(store.swap_free(&some[..1]).is_err());
                }
                Step::Check(i) if !model.is_empty() => {
                    let (&slot, &value) = model.iter().nth(i % model.len()).unwrap();
                    store.swap_in(&memory, slot, &[segment(300, 1)]).unwrap();
                    prop_assert!(memory.holds(300, value));
                }
                Step::Adopt => {
                    let (stored, files, reap) = as_image(&store);
                    then = Some((stored.clone(), shared(&files), model.clone()));
                    let layers = stored.layers.into_iter().zip(files).collect();
                    store.adopt(layers, reap, fresh_files().unwrap()).unwrap();
                }
                Step::Again => {
                    let (stored, files, _) = as_image(&store);
                    let dir = File::open(std::env::temp_dir()).unwrap().into();
                    let quota = store.stat().quota_bytes;
                    // What lies in the old one's own file goes with that, unless it gives it up.
                    let layers = stored.layers.iter().copied().zip(files.iter().map(|f| f.try_clone().unwrap()));
                    store.adopt(layers.collect(), None, fresh_files().unwrap()).unwrap();
                    store = Store::again(dir, quota, &stored, shared(&files), none()).unwrap();
                }
                Step::GoBack => {
                    if let Some((stored, files, held)) = &then {
                        store.become_again(stored, files.clone(), none()).unwrap();
                        model.clone_from(held);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(store.stat().swap_pages, model.len() as u64);
        }
        for (&slot, &value) in &model {
            store.swap_in(&memory, slot, &[segment(300, 1)]).unwrap();
            prop_assert!(memory.holds(300, value));
        }
    }
}

#[test]
fn files_made_ahead_are_used_again_and_empty() {
    let dir = std::fs::File::open(std::env::temp_dir()).unwrap();
    let pool = Pool::new(dir.as_fd(), 2);
    let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
    assert_eq!(pool.take().unwrap_err().raw_os_error(), Some(libc::ENFILE));
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::File::from(one.as_fd().try_clone_to_owned().unwrap()),
        b"x",
        0,
    )
    .unwrap();
    drop(one);
    let again = pool.take().unwrap();
    assert!(!again.read_exactly(0, &mut [0]).unwrap(), "what was written is gone");
    drop((again, two));
    // A file system that makes no files: whoever takes one learns why.
    let proc = std::fs::File::open("/proc").unwrap();
    let errno = Pool::new(proc.as_fd(), 1).take().unwrap_err().raw_os_error();
    assert!(errno.is_some_and(|e| e != libc::ENFILE), "{errno:?}");
}

/// Slots for pages that are kept are in use like others, and their checksums come when they are
/// written.
/// Whoever makes an image writes kept pages where they were to be, though the guest has freed their
/// slots meanwhile: nothing else is written there.
#[test]
fn slots_of_kept_pages_are_not_used_before_that_is_over() {
    let (store, memory) = (store(1000), Fake::new(300));
    store.keep_begin();
    let first = store.swap_keep(&[segment(0, 100)]).unwrap();
    let kept: Vec<u64> = (first..first + 100).collect();
    store.swap_free(&kept).unwrap();
    let slots = store.swap_out_soon(&memory, &[segment(100, 40)]).unwrap();
    assert!(slots.iter().all(|slot| *slot >= first + 100), "{slots:?}");
    store.not_written();
    let slots = store.swap_out(&memory, &[segment(100, 40)]).unwrap();
    assert_eq!(slots[0], first);
}

#[test]
fn kept_pages_have_slots_before_they_are_written() {
    let store = Store::new(&std::env::temp_dir(), 1 << 30).unwrap();
    let ranges =
        |first: u64, pages: u64| [Segment { gpa: Gpa(first * PAGE_SIZE), len: pages * PAGE_SIZE }];
    assert_eq!(store.swap_keep(&ranges(0, 100)).unwrap(), 0);
    assert_eq!(store.swap_keep(&ranges(500, 1000)).unwrap(), 100);
    assert_eq!(store.stat().swap_pages, 1100);
    let (stored, _) = store.stored();
    assert!(store.kept().is_of(&stored, 1500 * PAGE_SIZE));
    assert!(!store.kept().is_of(&stored, 1499 * PAGE_SIZE), "beyond memory");
    assert!(!store.kept().is_of(&Stored::default(), u64::MAX), "beyond the slots");
    let runs = store.kept().swap;
    assert_eq!(
        runs.iter().map(|run| (run.place, run.pages)).collect::<Vec<_>>(),
        [(0, 100), (100, 1000)]
    );
    store.swap_free(&[7, 63, 64, 1099]).unwrap();
    let (mut stored, _) = store.stored();
    assert_eq!(
        stored.swap.iter().map(|(first, sums)| (*first, sums.len())).collect::<Vec<_>>(),
        [(0, 7), (8, 55), (65, 1034)]
    );
    for (first, sums) in &mut stored.swap {
        sums.iter_mut().zip(*first..).for_each(|(sum, slot)| *sum = slot as u32 + 1);
    }
    store.swap_free(&[65]).unwrap();
    store.written(&stored);
    assert!(store.kept().is_empty());
    let (now, _) = store.stored();
    let sums = now.swap.iter().flat_map(|(first, sums)| (*first..).zip(sums));
    let right = sums.inspect(|(slot, sum)| assert_eq!(u64::from(**sum), slot + 1)).count();
    assert_eq!(right, 1095);
    assert!(store.swap_keep(&ranges(0, 1 << 20)).is_err(), "the quota");
}
