//! Images with copies of directories, and containers with copies of their own.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::images::{checkpoint_with, image, restored_by, restoring_with, text};
use crate::support::container::{Container, alive};
use crate::support::{Outcome, eventually, limit, run, wait};

/// What has a file open to append to, and one to read lines of; each `go` takes a line on.
const PROGRAM: &str = "cd /mnt/data/dir; exec 3>>/mnt/data/log 4</mnt/data/lines; echo ready; \
    while :; do if [ -e go ]; then read line <&4; echo \"$line\" >&3; rm go; fi; sleep 0.02; done";

/// A directory for a volume; removed when dropped.
struct Volume(PathBuf);

impl Volume {
    fn new(name: &str) -> Volume {
        let path = std::env::temp_dir().join(format!("quark-rw-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("dir")).expect("a directory");
        fs::write(path.join("lines"), "one\ntwo\nthree\nfour\n").expect("write");
        Volume(path)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn started(volume: &Volume, about: &[&str]) -> Container {
    let bind = format!("{}:/mnt/data", volume.0.display());
    let about: Vec<&str> = about.iter().copied().chain(["--bind", &bind]).collect();
    let c = Container::start_about(&about, "busybox", &["sh", "-c", PROGRAM]);
    eventually("it is ready", limit(), || c.output().contains("ready"));
    c
}

fn inside(c: &Container, id: &str, script: &str) -> String {
    c.must(&["exec", id, "sh", "-c", script])
}

/// Has the program take one more line on.
fn go(c: &Container, id: &str) {
    inside(c, id, "touch /mnt/data/dir/go; while [ -e /mnt/data/dir/go ]; do sleep 0.02; done");
}

fn log(c: &Container, id: &str) -> String {
    inside(c, id, "cat /mnt/data/log")
}

/// Containers that have copies.
fn copies(c: &Container) -> Vec<String> {
    let dir = fs::read_dir(c.images().join("rw-dirs")).into_iter().flatten().flatten();
    dir.map(|item| item.file_name().to_string_lossy().into_owned()).collect()
}

fn restore(c: &Container) -> Outcome {
    restored_by(c, restoring_with(c, &[], &[]))
}

fn restored(c: &Container) {
    let outcome = restore(c);
    assert!(outcome.success(), "{}\n{}", outcome.describe(), c.output());
}

#[test]
fn each_container_has_its_own_copy_and_goes_on_with_its_files() {
    let volume = Volume::new("own");
    let c = started(&volume, &[]);
    go(&c, &c.id);
    inside(&c, &c.id, "ln -s ../log /mnt/data/dir/link; chmod 640 /mnt/data/log");
    c.must(&["template", "create", "own", "--from", &c.id, "--rw-dir", "/mnt/data/"]);
    assert!(!alive(c.pid()));
    c.must(&["delete", &c.id]);
    assert_eq!(volume.read("log"), "one\n");
    // What comes of the volume since is nothing to them.
    fs::write(volume.0.join("lines"), "other\n").expect("write");
    fs::remove_file(volume.0.join("log")).expect("remove");
    let mut quark = c.quark(&["run", "--detach", "--template", "own", "--count", "2", &c.id]);
    c.on_its_streams(&mut quark);
    let status = wait(&mut quark.spawn().expect("start quark"), limit());
    assert!(status.is_some_and(|status| status.success()), "{status:?} {}", c.output());
    let ids = [format!("{}-1", c.id), format!("{}-2", c.id)];
    go(&c, &ids[0]);
    go(&c, &ids[0]);
    go(&c, &ids[1]);
    assert_eq!(log(&c, &ids[0]), "one\ntwo\nthree\n");
    assert_eq!(log(&c, &ids[1]), "one\ntwo\n");
    assert_eq!(
        inside(&c, &ids[1], "stat -c %a /mnt/data/log; cat /mnt/data/dir/link"),
        "640\none\ntwo\n"
    );
    assert!(!volume.0.join("log").exists(), "the host's is as it was");
    let mut there = copies(&c);
    there.sort();
    assert_eq!(there, ids);
    let private = fs::metadata(c.images().join("rw-dirs").join(&ids[0])).expect("a directory");
    assert_eq!(private.mode() & 0o777, 0o700);
    c.must(&["delete", "--force", &ids[0]]);
    assert_eq!(copies(&c), [ids[1].as_str()]);
    assert_eq!(log(&c, &ids[1]), "one\ntwo\n");
    c.must(&["delete", "--force", &ids[1]]);
    assert_eq!(copies(&c), [""; 0]);
}

#[test]
fn an_image_of_one_with_copies_has_copies_of_those() {
    let volume = Volume::new("again");
    let c = started(&volume, &["--annotation", "io.quark.rw-dirs=/mnt/data"]);
    for generation in 1..=3 {
        go(&c, &c.id);
        checkpoint_with(&c, &[]);
        restored(&c);
        assert_eq!(log(&c, &c.id).lines().count(), generation);
    }
    assert_eq!(log(&c, &c.id), "one\ntwo\nthree\n");
    assert_eq!(volume.read("log"), "one\n", "the first one had the volume itself");
    // A branch has its own, too.
    let fork = format!("{}-fork", c.id);
    c.must(&["fork", &c.id, &fork]);
    go(&c, &fork);
    assert_eq!((log(&c, &fork).lines().count(), log(&c, &c.id).lines().count()), (4, 3));
    c.must(&["delete", "--force", &fork]);
    c.must(&["hibernate", "--force", &c.id]);
    go(&c, &c.id);
    assert_eq!(log(&c, &c.id), "one\ntwo\nthree\nfour\n");
}

#[test]
fn what_cannot_be_copied_is_told_and_leaves_nothing() {
    let volume = Volume::new("refused");
    let c = started(&volume, &[]);
    let refused = |dir: &str, why: &str| {
        let path = image(&c);
        let args = ["checkpoint", "--rw-dir", dir, "--image-path", text(&path), &c.id];
        let outcome = c.command(&args);
        assert!(!outcome.success() && outcome.stderr.contains(why), "{}", outcome.describe());
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.describe());
        assert!(!image(&c).exists(), "{dir}");
    };
    refused("/mnt/elsewhere", "no volume of the container");
    refused("/mnt/data/../data", "no volume of the container");
    refused("/mnt/apps", "may not be written");
    refused("/tmp", "the container's own");
    let device = volume.0.join("dir/device");
    let made = run(Command::new("mknod").arg(&device).args(["c", "1", "3"]), limit());
    assert!(made.success(), "{}", made.describe());
    refused("/mnt/data", "dir/device: it is a device");
    fs::remove_file(&device).expect("remove");
    // It goes on.
    go(&c, &c.id);
    assert_eq!(volume.read("log"), "one\n");
}

#[test]
fn a_full_disk_leaves_nothing() {
    let volume = Volume::new("full");
    let c = started(&volume, &[]);
    let large = File::create(volume.0.join("large")).expect("a file");
    std::io::copy(&mut std::io::repeat(7).take(8 << 20), &mut &large).expect("write");
    let small = c.directory.join("small");
    fs::create_dir(&small).expect("a directory");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&small);
    assert!(run(&mut mount, limit()).success());
    let path = small.join("image");
    let args = ["checkpoint", "--rw-dir", "/mnt/data", "--image-path", text(&path), &c.id];
    let outcome = c.command(&args);
    let left = fs::read_dir(&small).expect("a directory").count();
    run(Command::new("umount").arg(&small), limit());
    assert!(!outcome.success(), "{}", outcome.describe());
    let said = outcome.stderr.contains("No space left") && outcome.stderr.lines().count() == 1;
    assert!(said, "{}", outcome.describe());
    assert_eq!(left, 0);
    go(&c, &c.id);
    assert_eq!(volume.read("log"), "one\n");
}

#[test]
fn a_restore_that_fails_or_is_killed_leaves_nothing() {
    let volume = Volume::new("killed");
    for number in 0..2000 {
        fs::write(volume.0.join("dir").join(number.to_string()), "x").expect("write");
    }
    let c = started(&volume, &[]);
    checkpoint_with(&c, &["--rw-dir", "/mnt/data"]);
    let tree = image(&c).join("rw/0");
    // Whoever made the image may have anything in it.
    let device = tree.join("device");
    let made = run(Command::new("mknod").arg(&device).args(["b", "7", "0"]), limit());
    assert!(made.success(), "{}", made.describe());
    let outcome = restore(&c);
    assert!(outcome.stderr.contains("it is a device"), "{}", outcome.describe());
    assert_eq!((copies(&c), c.must(&["list", "--quiet"])), (Vec::new(), String::new()));
    fs::remove_file(device).expect("remove");
    let aside = image(&c).join("aside");
    fs::rename(&tree, &aside).expect("rename");
    std::os::unix::fs::symlink("/etc", &tree).expect("a link");
    let outcome = restore(&c);
    assert!(outcome.stderr.contains("is damaged"), "{}", outcome.describe());
    assert_eq!((copies(&c), c.must(&["list", "--quiet"])), (Vec::new(), String::new()));
    fs::remove_file(&tree).expect("remove");
    fs::rename(aside, &tree).expect("rename");
    for pause_ms in [5, 15, 30, 60] {
        let mut child = restoring_with(&c, &[], &[]).spawn().expect("start quark");
        sleep(Duration::from_millis(pause_ms));
        child.kill().ok();
        child.wait().ok();
        if c.command(&["state", &c.id]).stdout.contains("running") {
            c.must(&["delete", "--force", &c.id]);
        }
    }
    restored(&c);
    assert_eq!(copies(&c), [c.id.as_str()]);
    go(&c, &c.id);
    assert_eq!(log(&c, &c.id), "one\n");
    assert_eq!(inside(&c, &c.id, "ls /mnt/data/dir | wc -l").trim(), "2000");
}

#[test]
fn one_of_a_pool_keeps_its_copy_under_its_own_name() {
    let volume = Volume::new("pool");
    let c = started(&volume, &[]);
    c.must(&["template", "create", "pooled", "--from", &c.id, "--rw-dir", "/mnt/data"]);
    c.must(&["delete", &c.id]);
    let mut pool = c.quark(&["pool", "--template", "pooled", "--size", "1"]);
    let ready = File::create(c.directory.join("pool")).expect("a file");
    let mut pool = pool.stdout(ready).spawn().expect("start quark");
    let says = || fs::read_to_string(c.directory.join("pool")).unwrap_or_default();
    eventually("it is ready", limit(), || says().contains("ready"));
    let mut quark = c.quark(&["run", "--detach", "--template", "pooled", "--pool", &c.id]);
    c.on_its_streams(&mut quark);
    let status = wait(&mut quark.spawn().expect("start quark"), limit());
    assert!(status.is_some_and(|status| status.success()), "{status:?} {}", c.output());
    assert!(copies(&c).contains(&c.id), "{:?}", copies(&c));
    go(&c, &c.id);
    assert_eq!((log(&c, &c.id), volume.read("log")), ("one\n".to_owned(), String::new()));
    c.must(&["delete", "--force", &c.id]);
    assert!(!copies(&c).contains(&c.id), "{:?}", copies(&c));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&pool),
        rustix::process::Signal::TERM,
    )
    .expect("kill");
    wait(&mut pool, limit());
    assert_eq!(copies(&c), [""; 0]);
}

#[test]
fn an_image_with_copies_becomes_a_template() {
    let volume = Volume::new("template");
    let c = started(&volume, &[]);
    go(&c, &c.id);
    checkpoint_with(&c, &["--rw-dir", "/mnt/data"]);
    c.must(&["template", "create", "copied", "--image-path", text(&image(&c))]);
    assert!(!image(&c).exists());
    let bundle = text(&c.directory).to_owned();
    let mut quark =
        c.quark(&["run", "--detach", "--template", "copied", "--bundle", &bundle, &c.id]);
    c.on_its_streams(&mut quark);
    let status = wait(&mut quark.spawn().expect("start quark"), limit());
    assert!(status.is_some_and(|status| status.success()), "{status:?} {}", c.output());
    go(&c, &c.id);
    assert_eq!((log(&c, &c.id), volume.read("log")), ("one\ntwo\n".to_owned(), "one\n".to_owned()));
}
