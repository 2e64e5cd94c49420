//! Path resolution, dentries and mounts, on file systems in memory.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IFDIR, S_IFLNK, S_IFREG};

use super::inode::{FileSystem, Inode, NewNode};
use super::mount::namespace::MountNamespace;
use super::mount::{self, Mount, MountFlags, check_room};
use super::tmpfs::TmpFs;
use super::walk::{Target, Walk, WalkFlags};
use super::{Location, dentry, perm};
use crate::arch::test_heap::allocations_of;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::namespace::{INITIAL_USER, next_number};

fn node(mode: u32) -> NewNode {
    NewNode { mode, uid: 0, gid: 0, rdev: 0 }
}

/// A tree: "d" directory, "f" file, "l:target" link, by path.
fn tree(entries: &[(&str, &str)]) -> Location {
    let fs = TmpFs::new(1 << 20, 0o755, 0, 0);
    for (path, what) in entries {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at: Arc<dyn Inode> = fs.root();
        for part in parent.split('/').filter(|p| !p.is_empty()) {
            at = at.lookup(part.as_bytes()).unwrap();
        }
        let name = name.as_bytes();
        match what.split_once(':') {
            Some((_, target)) => at.make_symlink(name, target.as_bytes(), &node(S_IFLNK | 0o777)),
            None if *what == "d" => at.make_dir(name, &node(S_IFDIR | 0o755)),
            None => at.make_node(name, &node(S_IFREG | 0o644)),
        }
        .unwrap();
    }
    let mount = Mount::whole(fs, b"test", MountFlags::empty());
    MountNamespace::initial().set_root(&mount);
    mount.location()
}

fn root_creds() -> Creds {
    Creds { cap_effective: u64::MAX, ..Creds::default() }
}

fn resolve_from(root: &Location, at: &Location, path: &str, flags: WalkFlags) -> Result<Target> {
    let creds = root_creds();
    Walk { creds: &creds, caller: None, root: root.clone(), flags }.resolve(at, path.as_bytes())
}

fn find(root: &Location, path: &str) -> Result<Vec<u8>> {
    let place = resolve_from(root, root, path, WalkFlags::FOLLOW)?.existing()?;
    Ok(place.path_from(root))
}

#[test]
fn paths_lead_through_links_and_dots() {
    let root = tree(&[
        ("a", "d"),
        ("a/b", "d"),
        ("a/b/f", "f"),
        ("abs", "l:/a/b"),
        ("rel", "l:a/b"),
        ("a/up", "l:../a/b/f"),
        ("chain", "l:abs/../up"),
    ]);
    for (path, expected) in [
        ("/", "/"),
        ("a/b/f", "/a/b/f"),
        ("//a///b/./f", "/a/b/f"),
        ("a/b/../b/f", "/a/b/f"),
        ("abs/f", "/a/b/f"),
        ("rel/f", "/a/b/f"),
        ("a/up", "/a/b/f"),
        ("chain", "/a/b/f"),
        ("../../a", "/a"),
        ("rel/", "/a/b"),
        ("a/b/..", "/a"),
    ] {
        assert_eq!(find(&root, path).unwrap(), expected.as_bytes(), "{path}");
    }
}

#[test]
fn wrong_paths_have_their_errors() {
    let long = "x".repeat(256);
    let deep = "x/".repeat(3000);
    let root = tree(&[
        ("d", "d"),
        ("f", "f"),
        ("loop", "l:loop"),
        ("a", "l:b"),
        ("b", "l:a"),
        ("dangling", "l:nowhere"),
    ]);
    for (path, error) in [
        ("", Errno::ENOENT),
        ("none", Errno::ENOENT),
        ("none/x", Errno::ENOENT),
        ("f/x", Errno::ENOTDIR),
        ("f/", Errno::ENOTDIR),
        ("f/.", Errno::ENOTDIR),
        ("loop", Errno::ELOOP),
        ("a", Errno::ELOOP),
        ("dangling", Errno::ENOENT),
        (long.as_str(), Errno::ENAMETOOLONG),
        (deep.as_str(), Errno::ENAMETOOLONG),
    ] {
        assert_eq!(find(&root, path), Err(error), "{path:.20}");
    }
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let links: Vec<(String, String)> = (0..42)
        .map(|i| {
            (
                format!("l{i}"),
                format!("l:{}", if i == 0 { "d".into() } else { format!("l{}", i - 1) }),
            )
        })
        .collect();
    let mut entries: Vec<(&str, &str)> = vec![("d", "d")];
    entries.extend(links.iter().map(|(a, b)| (a.as_str(), b.as_str())));
    let root = tree(&entries);
    assert_eq!(find(&root, "l39").unwrap(), b"/d");
    assert_eq!(find(&root, "l40"), Err(Errno::ELOOP));
}

#[test]
fn a_missing_last_name_is_a_target_with_its_directory() {
    let root = tree(&[("d", "d"), ("link", "l:d/new"), ("d/old", "f")]);
    let target = resolve_from(&root, &root, "link", WalkFlags::FOLLOW).unwrap();
    let Target::Name(name) = target else { panic!("no name") };
    assert_eq!((name.name.as_slice(), name.found.is_none()), (&b"new"[..], true));
    assert_eq!(name.parent.path_from(&root), b"/d");
    // Not followed: the link itself.
    let Target::Name(name) = resolve_from(&root, &root, "link", WalkFlags::empty()).unwrap() else {
        panic!()
    };
    assert!(name.found.unwrap().inode().is_symlink());
    let Target::Name(name) = resolve_from(&root, &root, "d/x/", WalkFlags::FOLLOW).unwrap() else {
        panic!()
    };
    assert!(name.wants_dir);
}

#[test]
fn nobody_leaves_a_root_or_what_openat2_forbids() {
    let root = tree(&[
        ("jail", "d"),
        ("jail/in", "d"),
        ("jail/out", "l:/etc"),
        ("jail/up", "l:.."),
        ("etc", "d"),
    ]);
    let jail = resolve_from(&root, &root, "jail", WalkFlags::FOLLOW).unwrap().existing().unwrap();
    // chroot: "/" and ".." stay inside.
    let path = |p: &str| {
        resolve_from(&jail, &jail, p, WalkFlags::FOLLOW)
            .and_then(Target::existing)
            .map(|l| l.path_from(&root))
    };
    assert_eq!(path("/../../in").unwrap(), b"/jail/in");
    assert_eq!(path("up").unwrap(), b"/jail");
    assert_eq!(path("out"), Err(Errno::ENOENT));
    let with = |p: &str, flag| {
        resolve_from(&root, &jail, p, WalkFlags::FOLLOW | flag)
            .and_then(Target::existing)
            .map(|l| l.path_from(&root))
    };
    assert_eq!(with("in", WalkFlags::BENEATH).unwrap(), b"/jail/in");
    for path in ["..", "/jail/in", "in/../..", "up", "out"] {
        assert_eq!(with(path, WalkFlags::BENEATH), Err(Errno::EXDEV), "{path}");
    }
    assert_eq!(with("/in", WalkFlags::IN_ROOT).unwrap(), b"/jail/in");
    assert_eq!(with("../../in", WalkFlags::IN_ROOT).unwrap(), b"/jail/in");
    assert_eq!(with("up", WalkFlags::NO_SYMLINKS), Err(Errno::ELOOP));
}

#[test]
fn mounts_are_crossed_both_ways() {
    let other = tree(&[("inner", "d"), ("inner/f", "f")]);
    // The last one is the namespace's root.
    let root = tree(&[("mnt", "d"), ("mnt/below", "f")]);
    let point = resolve_from(&root, &root, "mnt", WalkFlags::FOLLOW).unwrap().existing().unwrap();
    other.mount.attach(point);
    assert_eq!(find(&root, "mnt/inner/f").unwrap(), b"/mnt/inner/f");
    assert_eq!(find(&root, "mnt/below"), Err(Errno::ENOENT));
    assert_eq!(find(&root, "mnt/inner/../..").unwrap(), b"/");
    let across = resolve_from(&root, &root, "mnt/inner", WalkFlags::FOLLOW | WalkFlags::NO_XDEV);
    assert_eq!(across.err(), Some(Errno::EXDEV));
    other.mount.detach(false).unwrap();
    assert_eq!(find(&root, "mnt/below").unwrap(), b"/mnt/below");
    assert_eq!(root.mount.detach(false), Err(Errno::EINVAL));
}

#[test]
fn a_directory_without_search_permission_stops_others() {
    let root = tree(&[("open", "d"), ("open/f", "f")]);
    let closed = root
        .inode()
        .clone()
        .make_dir(b"closed", &NewNode { uid: 7, ..node(S_IFDIR | 0o700) })
        .unwrap();
    closed.make_node(b"f", &node(S_IFREG | 0o644)).unwrap();
    let walk = |uid: u32, path: &str| {
        let creds = Creds { fsuid: uid, fsgid: uid, ..Creds::default() };
        let walk =
            Walk { creds: &creds, caller: None, root: root.clone(), flags: WalkFlags::FOLLOW };
        walk.resolve(&root, path.as_bytes()).and_then(Target::existing).map(|_| ())
    };
    assert_eq!(walk(1, "open/f"), Ok(()));
    assert_eq!(walk(1, "closed/f"), Err(Errno::EACCES));
    assert_eq!(walk(7, "closed/f"), Ok(()));
}

#[test]
fn dentries_are_shared_and_follow_renames() {
    let root = tree(&[("a", "d"), ("a/f", "f"), ("b", "d")]);
    let place =
        |p: &str| resolve_from(&root, &root, p, WalkFlags::FOLLOW).unwrap().existing().unwrap();
    let (first, again) = (place("a/f"), place("a/f"));
    assert!(Arc::ptr_eq(&first.dentry, &again.dentry));
    let (a, b) = (place("a"), place("b"));
    let rename = super::inode::Rename {
        child: first.inode(),
        to: b.inode(),
        to_name: b"g",
        replaced: None,
        flags: 0,
    };
    a.inode().rename(b"f", &rename).unwrap();
    a.dentry.rename_child(&first.dentry, &b.dentry, b"g");
    assert_eq!(first.path_from(&root), b"/b/g");
    assert_eq!(find(&root, "a/f"), Err(Errno::ENOENT));
    assert!(Arc::ptr_eq(&place("b/g").dentry, &first.dentry));
    b.inode().unlink(b"g", first.inode()).unwrap();
    b.dentry.forget(&first.dentry);
    assert_eq!(first.path_from(&root), b"/b/g (deleted)");
    assert_eq!(first.attributes().unwrap().nlink, 0);
}

/// A name that gets longer and shorter again and again takes what its longest form does.
#[test]
fn renames_there_and_back_take_no_more_memory() {
    use linux_raw_sys::general::RENAME_EXCHANGE;
    let root = tree(&[("s", "f"), ("o", "f")]);
    let place =
        |p: &str| resolve_from(&root, &root, p, WalkFlags::FOLLOW).unwrap().existing().unwrap();
    let (child, other) = (place("s"), place("o"));
    let top = root.inode();
    let rename = |from: &[u8], child: &Location, to_name: &[u8], replaced: Option<&Location>| {
        let flags = if replaced.is_some() { RENAME_EXCHANGE } else { 0 };
        let (child, replaced) = (child.inode(), replaced.map(|place| place.inode()));
        top.rename(from, &super::inode::Rename { child, to: top, to_name, replaced, flags })
    };
    let long = [b'a'; 250];
    // Some 500 bytes each time would be more than there may be of that.
    for round in 0..200_000 {
        let (from, to): (&[u8], &[u8]) = if round % 2 == 0 { (b"s", &long) } else { (&long, b"s") };
        rename(from, &child, to, None).unwrap_or_else(|e| panic!("round {round}: {e:?}"));
    }
    rename(b"o", &other, &long, None).unwrap();
    for round in 0..200_000 {
        // The two files have the two names in turn.
        let (first, second) = if round % 2 == 0 { (&child, &other) } else { (&other, &child) };
        rename(b"s", first, &long, Some(second))
            .unwrap_or_else(|e| panic!("exchange {round}: {e:?}"));
    }
}

#[test]
fn the_dentry_cache_lets_go_of_what_is_removed() {
    let root = tree(&[]);
    let inode = root.inode().clone().make_node(b"f", &node(S_IFREG | 0o600)).unwrap();
    let weak = Arc::downgrade(&inode);
    let dentry = root.dentry.insert(b"f", inode);
    root.inode().unlink(b"f", &dentry.inode).unwrap();
    root.dentry.forget(&dentry);
    drop(dentry);
    assert!(weak.upgrade().is_none());
}

#[test]
fn directories_of_tmpfs_count_links_and_refuse_to_vanish_full() {
    let root = tree(&[("d", "d"), ("d/sub", "d"), ("f", "f")]);
    let fs = root.dentry.fs.clone();
    let top = fs.root();
    assert_eq!(top.attributes().unwrap().nlink, 3);
    let d = top.clone().lookup(b"d").unwrap();
    assert_eq!(top.unlink(b"d", &d), Err(Errno::ENOTEMPTY));
    let sub = d.clone().lookup(b"sub").unwrap();
    d.unlink(b"sub", &sub).unwrap();
    top.unlink(b"d", &d).unwrap();
    assert_eq!((top.attributes().unwrap().nlink, d.attributes().unwrap().nlink), (2, 0));
    let f = top.clone().lookup(b"f").unwrap();
    let second = top.clone().link(b"g", &f).unwrap();
    assert_eq!(second.attributes().unwrap().nlink, 2);
    assert_eq!(top.clone().link(b"g", &f).err(), Some(Errno::EEXIST));
    assert_eq!(f.attributes().unwrap().nlink, 2);
}

#[test]
fn sticky_directories_guard_what_others_own() {
    let directory = super::Attributes { mode: S_IFDIR | 0o1777, ..Default::default() };
    let file = super::Attributes { uid: 5, ..Default::default() };
    let by = |fsuid| perm::check_sticky(&Creds { fsuid, ..Creds::default() }, &directory, &file);
    assert_eq!((by(5), by(6)), (Ok(()), Err(Errno::EPERM)));
}

#[test]
fn giving_up_recent_names_takes_no_memory() {
    let names: Vec<String> = (0..100).map(|n| format!("name-{n}")).collect();
    let entries: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "f")).collect();
    let root = tree(&entries);
    for name in &names {
        assert_eq!(find(&root, name).unwrap(), format!("/{name}").into_bytes());
    }
    let all = root.dentry.clone();
    assert!(Arc::strong_count(&all) > 100, "each name that is kept holds its directory");
    assert_eq!(allocations_of(|| dentry::shrink_of(|fs| Arc::ptr_eq(fs, &root.dentry.fs))), 0);
    assert!(Arc::strong_count(&all) < 10, "none is kept");
    assert!(allocations_of(|| drop(names.clone())) > 100, "what allocates is seen");
}

#[test]
fn half_of_the_room_for_mounts_is_the_containers_own() {
    let more = mount::most() as usize / 2 + 1;
    assert_eq!(check_room(more, next_number()), Err(Errno::ENOSPC));
    assert_eq!(check_room(more, INITIAL_USER), Ok(()));
}
