use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use qlib::host::Segment;
use qlib::{Gpa, PAGE_SIZE};
use rustix::fs::MemfdFlags;

use super::files::Files;
use super::host::ClockShift;
use super::write::{Sources, begin};
use super::*;
use crate::sandbox::image::each_run;
use crate::sandbox::memory::GuestMemory;
use crate::store::kept::{Kept, Run};
use crate::store::{Store, Stored};

/// A directory that is gone with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("quark-image-test-{}-{number}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn memfd(bytes: &[u8]) -> fs::File {
    let file: fs::File =
        rustix::fs::memfd_create(c"image-test", MemfdFlags::CLOEXEC).unwrap().into();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    file
}

fn manifest(store: Stored) -> Manifest {
    Manifest {
        format: FORMAT,
        kernel: build().to_owned(),
        host: Host::here().unwrap(),
        clocks: Clocks::now(ClockShift::default()),
        platform: PlatformKind::Process,
        container: Container {
            id: "one".to_owned(),
            init: 1,
            volumes: vec!["/data".to_owned()],
            terminal: None,
            layer: None,
            rw_dirs: Vec::new(),
            parent: None,
        },
        ram_sum: 0,
        sums_sum: 0,
        layers: 0,
        parts: Parts {
            base: 0x0800_0000_0000,
            ram_bytes: 4 << 20,
            user_blocks: vec![0],
            store,
            handles: Vec::new(),
            windows: Vec::new(),
            granted: 0,
            last_request: 7,
            files: 1,
        },
        files: vec![What::Given(0)],
    }
}

/// An image of a sandbox with `pages` pages of memory, and a slot for each of `runs`.
fn written(place: &Place, pages: u8, stored: Stored) {
    let bytes: Vec<u8> = (1..=pages).flat_map(|n| [n; PAGE_SIZE as usize]).collect();
    let end = stored.end().unwrap();
    let swap = memfd(&vec![3; (end * PAGE_SIZE) as usize]);
    let sources = Sources { ram: memfd(&bytes), swap: vec![swap], reap: None };
    write(place, stored, &sources, &Kept::default());
}

fn write(place: &Place, stored: Stored, sources: &Sources, kept: &Kept) {
    let begun = begin(&place.0, manifest(stored), (sources, kept), &[], |_| Ok(())).unwrap();
    begun.finish(sources).unwrap();
}

fn read(dir: &std::path::Path) -> anyhow::Result<(Files, Manifest)> {
    let files = Files::open(dir)?;
    let manifest = files.check()?;
    Ok((files, manifest))
}

fn stored() -> Stored {
    Stored { seed: 1, swap: vec![(0, vec![5; 3]), (9, vec![6; 2])], own: true, ..Stored::default() }
}

#[test]
fn what_is_written_is_read() {
    let place = Place::new();
    written(&place, 5, stored());
    let (files, manifest) = read(&place.0).unwrap();
    assert_eq!(files.swap.len(), 1);
    let store = &manifest.parts.store;
    assert_eq!((store.end(), store.layers.as_slice(), store.own), (Some(11), &[11][..], false));
    assert_eq!(store.swap, stored().swap);
    assert_eq!(manifest.files, [What::Given(0)]);
}

const HOWS: [(bool, Option<u8>); 3] = [(true, None), (false, Some(1)), (true, Some(1))];

fn how(compress: bool, key: Option<u8>) -> packed::How {
    packed::How { compress, key: key.map(key_of) }
}

fn key_of(byte: u8) -> seal::Key {
    let place = Place::new();
    fs::write(&place.0, format!("{byte:02x}").repeat(32)).unwrap();
    let key = seal::Key::read(&place.0).unwrap();
    fs::remove_file(&place.0).unwrap();
    key
}

/// An image, packed in a directory of its own.
fn packed_in(to: &Place, how: &packed::How) {
    let plain = Place::new();
    written(&plain, 5, stored());
    packed::pack(&Files::open(&plain.0).unwrap(), &to.0, how).unwrap();
}

#[test]
fn what_is_packed_is_unpacked() {
    for (compress, key) in HOWS {
        let place = Place::new();
        packed_in(&place, &how(compress, key));
        let names: Vec<_> = fs::read_dir(&place.0).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing else of it is there");
        let key = key.map(key_of);
        let files = packed::find(&place.0, key.as_ref()).unwrap();
        let manifest = files.check().unwrap();
        assert_eq!(manifest.parts.store.swap, stored().swap);
        let mut page = [0; PAGE_SIZE as usize];
        std::os::unix::fs::FileExt::read_exact_at(&files.swap[0], &mut page, 9 * PAGE_SIZE)
            .unwrap();
        assert_eq!(page, [3; PAGE_SIZE as usize]);
        // Holes stay holes.
        let length = files.ram.metadata().unwrap().len();
        assert_eq!(length, 5 * PAGE_SIZE);
        // There is an image now.
        let plain = Place::new();
        written(&plain, 2, stored());
        let again = packed::pack(&Files::open(&plain.0).unwrap(), &place.0, &how(true, None));
        assert!(again.unwrap_err().to_string().contains("there is an image in"));
        assert!(directory::is_image(&place.0));
        assert_eq!(files.names(), ["packed"]);
    }
}

#[test]
fn keys_are_asked_for_and_for_nothing_else() {
    let why = |place: &Place, key: Option<u8>| {
        format!("{:#}", packed::find(&place.0, key.map(key_of).as_ref()).unwrap_err())
    };
    let plain = Place::new();
    written(&plain, 2, stored());
    assert!(packed::find(&plain.0, None).is_ok());
    assert!(why(&plain, Some(1)).contains("leave out --key-file"));
    let compressed = Place::new();
    packed_in(&compressed, &how(true, None));
    assert!(why(&compressed, Some(1)).contains("leave out --key-file"));
    for compress in [false, true] {
        let encrypted = Place::new();
        packed_in(&encrypted, &how(compress, Some(1)));
        assert!(why(&encrypted, None).contains("say --key-file"));
        assert!(why(&encrypted, Some(2)).contains("another key"));
    }
}

/// What it cannot write is said, and nothing is left of it.
#[test]
fn what_cannot_be_packed_leaves_nothing() {
    let plain = Place::new();
    written(&plain, 5, stored());
    let mut files = Files::open(&plain.0).unwrap();
    files.ram = fs::File::open("/proc/self/mem").unwrap();
    let place = Place::new();
    assert!(packed::pack(&files, &place.0, &how(true, None)).is_err());
    assert!(!place.0.exists());
}

/// What a sandbox keeps comes out of its memory, and is not in the image twice; what it has slots
/// for besides, out of its store.
#[test]
fn what_is_kept_is_written_from_memory() {
    let place = Place::new();
    let page = |n: u8| [n; PAGE_SIZE as usize];
    let ram = memfd(&[page(1), page(2), page(3), page(0), page(5)].concat());
    let sources = Sources {
        ram: ram.try_clone().unwrap(),
        swap: vec![memfd(&[page(7), page(8)].concat())],
        reap: Some(memfd(&page(9))),
    };
    let (slots, set) = (vec![5, 5, 0, 0, 0], Some(vec![5, 0]));
    let stored = Stored { swap: vec![(0, slots)], own: true, reap: set, ..stored() };
    let run = |place, page: u64, pages| Run { place, gpa: Gpa(page * PAGE_SIZE), pages };
    let kept = Kept { swap: vec![run(2, 2, 2), run(4, 1, 1)], reap: vec![run(1, 4, 1)] };
    write(&place, stored, &sources, &kept);
    let (files, manifest) = read(&place.0).unwrap();
    let mut rest = Vec::new();
    each_run(&files.ram, &[], |offset, bytes| {
        rest.push((offset, bytes[0]));
        Ok(())
    })
    .unwrap();
    assert_eq!(rest, [(0, 1)]);
    assert_eq!(manifest.parts.store.end(), Some(5));
    // Sums of what is kept hold, those of what lies in files are as the sandbox says.
    let again = |stored: &Stored, swap: Arc<fs::File>, reap: Arc<fs::File>| {
        let dir = fs::File::open(std::env::temp_dir()).unwrap();
        Store::again(dir.into(), 1 << 20, stored, vec![swap], reap).unwrap()
    };
    let [swap] = <[fs::File; 1]>::try_from(files.swap).unwrap();
    let store = again(&manifest.parts.store, Arc::new(swap), Arc::new(files.reap));
    let memory = GuestMemory::at_random_base(4 << 20, 0).unwrap();
    let frame = |pages| [Segment { gpa: Gpa(0), len: pages * PAGE_SIZE }];
    store.swap_in(&memory, 2, &frame(3)).unwrap();
    for (at, byte) in [(0, 3), (1, 0), (2, 2)] {
        let mut bytes = page(99);
        memory.read(Gpa(at * PAGE_SIZE), &mut bytes).unwrap();
        assert_eq!(bytes, page(byte), "page {at}");
    }
    store.reap_in(&memory, 1, &frame(1)).unwrap();
    let mut bytes = page(99);
    memory.read(Gpa(0), &mut bytes).unwrap();
    assert_eq!(bytes, page(5));
}

/// A store that says it has slots at high numbers takes memory for those that it has.
#[test]
fn far_slots_take_no_memory() {
    let far = (1 << 32) - 2;
    let stored = Stored { swap: vec![(far, vec![1])], layers: vec![far + 1], ..stored() };
    let stored = Stored { own: false, ..stored };
    let dir = fs::File::open(std::env::temp_dir()).unwrap();
    let none = || Arc::new(memfd(&[]));
    let store = Store::again(dir.into(), 1 << 20, &stored, vec![none()], none()).unwrap();
    assert_eq!(store.stat().swap_pages, 1);
    let memory = GuestMemory::at_random_base(4 << 20, 0).unwrap();
    let frame = [Segment { gpa: Gpa(0), len: PAGE_SIZE }];
    assert!(store.swap_in(&memory, far, &frame).is_err(), "it is not there");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever is done to the files of an image, reading it ends soon, with an error or with what
    /// fits together.
    #[test]
    fn altered_images_are_refused_or_whole(
        name in prop::sample::select(vec!["manifest.json", "ram", "sums", "swap.0", "reap"]),
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..12),
        cut in any::<bool>(),
    ) {
        let place = Place::new();
        written(&place, 3, stored());
        let path = place.0.join(name);
        let mut text = fs::read(&path).unwrap();
        let from = if text.is_empty() { 0 } else { at.index(text.len()) };
        if cut {
            text.truncate(from);
        }
        let to = (from + bytes.len()).min(text.len());
        text.splice(from.min(to)..to, bytes.iter().copied());
        fs::write(&path, &text).unwrap();
        if let Ok((files, Manifest { parts, .. })) = read(&place.0) {
            prop_assert_eq!(parts.store.layers.len(), files.swap.len());
            prop_assert_eq!(parts.store.swap.clone(), stored().swap, "checksums hold");
            let dir = fs::File::open(std::env::temp_dir()).unwrap();
            let swap = files.swap.into_iter().map(Arc::new).collect();
            let reap = Arc::new(files.reap);
            prop_assert!(Store::again(dir.into(), 1 << 20, &parts.store, swap, reap).is_ok());
        }
    }

    /// A packed image that was altered or cut short is refused, or the same.
    #[test]
    fn altered_packed_images_are_refused_or_whole(
        form in 0..3_usize,
        at in any::<prop::sample::Index>(),
        bit in 0..8,
        cut in any::<bool>(),
    ) {
        let place = Place::new();
        let (compress, key) = HOWS[form];
        packed_in(&place, &how(compress, key));
        let path = place.0.join("packed");
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        match cut {
            true => bytes.truncate(at),
            false => bytes[at] ^= 1_u8 << bit,
        }
        fs::write(&path, bytes).unwrap();
        let key = key.map(key_of);
        if let Ok(files) = packed::find(&place.0, key.as_ref()) {
            prop_assert!(key.is_none(), "an encrypted one is always refused");
            prop_assert!(files.check().is_ok() || !cut);
        }
    }

    /// So it is with words of the manifest in the place of others.
    #[test]
    fn altered_manifests_are_refused_or_whole(
        line in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            "0", "-1", "18446744073709551615", "1e99", "null", "[]", "{}", "\"..\"", "[[[[", "\"\\u0000\"",
        ]),
    ) {
        let place = Place::new();
        written(&place, 3, stored());
        let path = place.0.join("manifest.json");
        let text = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let at = line.index(lines.len());
        let name = lines[at].split_once(": ").map_or(String::new(), |(name, _)| format!("{name}: "));
        let comma = if lines[at].ends_with(',') { "," } else { "" };
        lines[at] = format!("{name}{value}{comma}");
        fs::write(&path, lines.join("\n")).unwrap();
        if let Ok((files, manifest)) = read(&place.0) {
            prop_assert_eq!(manifest.parts.store.layers.len(), files.swap.len());
            let mounts = [];
            let files = &manifest.files;
            // Nothing that it names is there.
            let sockets = open::Sockets { low_ports: false, in_place: false, kept: &|_| None };
            if let Ok(files) = open::open_all(files, &[], &mounts, sockets) {
                prop_assert!(files.iter().all(Option::is_none));
            }
        }
    }
}
