use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use qlib::PAGE_SIZE;
use qlib::host::Segment;
use rustix::fs::MemfdFlags;

use super::files::Files;
use super::write::{Sources, write};
use super::*;
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
        boot_id: directory::boot_id().unwrap(),
        platform: PlatformKind::Process,
        container: Container {
            id: "one".to_owned(),
            init: 1,
            volumes: vec!["/data".to_owned()],
            terminal: None,
            is_overlaid: false,
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
    write(&place.0, manifest(stored), &sources, |_| Ok(())).unwrap();
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

/// A store that says it has slots at high numbers takes memory for those that it has.
#[test]
fn far_slots_take_no_memory() {
    let far = (1 << 32) - 2;
    let stored = Stored { swap: vec![(far, vec![1])], layers: vec![far + 1], ..stored() };
    let stored = Stored { own: false, ..stored };
    let dir = fs::File::open(std::env::temp_dir()).unwrap();
    let none = || std::sync::Arc::new(memfd(&[]));
    let store = Store::again(dir.into(), 1 << 20, &stored, vec![none()], none()).unwrap();
    assert_eq!(store.stat().swap_pages, 1);
    let memory = crate::sandbox::memory::GuestMemory::at_random_base(4 << 20, 0).unwrap();
    let frame = [Segment { gpa: qlib::Gpa(0), len: PAGE_SIZE }];
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
            let swap = files.swap.into_iter().map(std::sync::Arc::new).collect();
            let reap = std::sync::Arc::new(files.reap);
            prop_assert!(Store::again(dir.into(), 1 << 20, &parts.store, swap, reap).is_ok());
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
