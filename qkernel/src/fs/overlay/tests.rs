//! An overlay over a file system in memory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{RENAME_EXCHANGE, S_IFDIR, S_IFLNK, S_IFREG};
use qlib::control::RootLayer;

use super::OverlayFs;
use super::file::list;
use super::node::OverlayNode;
use crate::errno::Errno;
use crate::fs::attr::SetAttributes;
use crate::fs::inode::{FileSystem, Inode, NewNode, Rename};
use crate::fs::tmpfs::TmpFs;

fn node(mode: u32) -> NewNode {
    NewNode { mode, uid: 0, gid: 0, rdev: 0 }
}

/// An overlay over "dir/{one,two}", "file", "link".
fn overlay() -> (Arc<TmpFs>, Arc<OverlayFs>) {
    let lower = TmpFs::new(1 << 20, 0o755, 0, 0);
    let dir = lower.root().make_dir(b"dir", &node(S_IFDIR | 0o755)).unwrap();
    for name in [b"one", b"two"] {
        dir.clone().make_node(name, &node(S_IFREG | 0o644)).unwrap();
    }
    lower.root().make_node(b"file", &node(S_IFREG | 0o600)).unwrap();
    lower.root().make_symlink(b"link", b"file", &node(S_IFLNK)).unwrap();
    let layer = RootLayer { is_on_disk: false, limit_bytes: 1 << 20 };
    let overlay = OverlayFs::new(lower.clone(), &layer).unwrap();
    (lower, overlay)
}

fn names(directory: &Arc<dyn Inode>) -> Vec<String> {
    let mut names: Vec<String> = list(directory.downcast::<OverlayNode>().unwrap())
        .unwrap()
        .iter()
        .map(|e| String::from_utf8(e.name.clone()).unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn both_layers_are_seen_as_one() {
    let (_, fs) = overlay();
    let root = fs.root();
    root.clone().make_node(b"new", &node(S_IFREG | 0o644)).unwrap();
    assert_eq!(names(&root), ["dir", "file", "link", "new"]);
    let dir = root.lookup(b"dir").unwrap();
    dir.clone().make_node(b"three", &node(S_IFREG | 0o644)).unwrap();
    assert_eq!(names(&dir), ["one", "three", "two"]);
}

#[test]
fn removed_names_stay_away_and_can_be_made_again() {
    let (lower, fs) = overlay();
    let root = fs.root();
    let file = root.clone().lookup(b"file").unwrap();
    root.unlink(b"file", &file).unwrap();
    assert_eq!(root.clone().lookup(b"file").err(), Some(Errno::ENOENT));
    assert!(lower.root().lookup(b"file").is_ok());
    let dir = root.clone().lookup(b"dir").unwrap();
    assert_eq!(root.unlink(b"dir", &dir), Err(Errno::ENOTEMPTY));
    for name in [b"one", b"two"] {
        let child = dir.clone().lookup(name).unwrap();
        dir.unlink(name, &child).unwrap();
    }
    root.unlink(b"dir", &dir).unwrap();
    assert_eq!(names(&root), ["link"]);
    // A directory of the same name does not show what the lower one holds.
    let again = root.clone().make_dir(b"dir", &node(S_IFDIR | 0o755)).unwrap();
    assert_eq!(names(&again), Vec::<String>::new());
    let found = root.lookup(b"dir").unwrap();
    assert_eq!(found.clone().lookup(b"one").err(), Some(Errno::ENOENT));
    assert_eq!(names(&found), Vec::<String>::new());
}

#[test]
fn a_change_copies_up_and_leaves_the_lower_layer_alone() {
    let (lower, fs) = overlay();
    let dir = fs.root().lookup(b"dir").unwrap();
    let one = dir.clone().lookup(b"one").unwrap();
    let before = one.attributes().unwrap();
    one.set_attributes(&SetAttributes { mode: Some(0o400), uid: Some(9), ..Default::default() })
        .unwrap();
    let after = one.attributes().unwrap();
    assert_eq!(
        (after.mode & 0o777, after.uid, after.ino, after.dev),
        (0o400, 9, before.ino, before.dev)
    );
    let untouched =
        lower.root().lookup(b"dir").unwrap().lookup(b"one").unwrap().attributes().unwrap();
    assert_eq!((untouched.mode & 0o777, untouched.uid), (0o644, 0));
    // A new look-up finds the copy, under the same number.
    let again = fs.root().lookup(b"dir").unwrap().lookup(b"one").unwrap().attributes().unwrap();
    assert_eq!((again.mode & 0o777, again.ino), (0o400, before.ino));
    assert_eq!(names(&dir), ["one", "two"]);
}

#[test]
fn files_of_the_lower_layer_are_renamed_and_directories_are_not() {
    let (lower, fs) = overlay();
    let root = fs.root();
    let (file, dir) = (root.clone().lookup(b"file").unwrap(), root.clone().lookup(b"dir").unwrap());
    let rename =
        |child, to_name, replaced, flags| Rename { child, to: &dir, to_name, replaced, flags };
    root.rename(b"file", &rename(&file, b"moved", None, 0)).unwrap();
    assert_eq!(root.clone().lookup(b"file").err(), Some(Errno::ENOENT));
    assert_eq!(names(&dir), ["moved", "one", "two"]);
    let one = dir.clone().lookup(b"one").unwrap();
    dir.rename(b"moved", &rename(&file, b"one", Some(&one), 0)).unwrap();
    assert_eq!(names(&dir), ["one", "two"]);
    let (one, two) = (dir.clone().lookup(b"one").unwrap(), dir.clone().lookup(b"two").unwrap());
    dir.rename(b"one", &rename(&one, b"two", Some(&two), RENAME_EXCHANGE)).unwrap();
    assert_eq!(dir.clone().lookup(b"two").unwrap().attributes().unwrap().mode & 0o777, 0o600);
    let up = Rename { child: &dir, to: &root, to_name: b"other", replaced: None, flags: 0 };
    assert_eq!(root.rename(b"dir", &up), Err(Errno::EXDEV));
    assert!(lower.root().lookup(b"file").is_ok());
}

#[test]
fn links_share_the_copy() {
    let (_, fs) = overlay();
    let root = fs.root();
    let file = root.clone().lookup(b"file").unwrap();
    let link = root.clone().link(b"hard", &file).unwrap();
    assert_eq!(link.attributes().unwrap().nlink, 2);
    assert_eq!(link.attributes().unwrap().ino, file.attributes().unwrap().ino);
    root.unlink(b"file", &file).unwrap();
    assert_eq!(names(&root), ["dir", "hard", "link"]);
}
