//! Images of containers, and containers made of them: every byte, register and wait is as it was.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::support::container::{Connection, Container, alive, children};
use crate::support::{Outcome, eventually, limit, run, wait};
use crate::{memory, ready, verified};

pub fn image(c: &Container) -> PathBuf {
    c.directory.join("image")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Saves it; it ends.
pub fn checkpoint(c: &Container) {
    checkpoint_with(c, &[]);
}

/// The same with options.
pub fn checkpoint_with(c: &Container, options: &[&str]) {
    fs::remove_dir_all(image(c)).ok();
    let path = image(c);
    let all = [&["checkpoint", "--image-path", text(&path)], options, &[&c.id]].concat();
    c.must(&all);
    assert!(!alive(c.pid()), "it has ended");
    c.must(&["delete", &c.id]);
}

/// What makes it anew of its image.
fn restoring(c: &Container) -> Command {
    restoring_with(c, &[], &[])
}

/// The same with options of every command, and of that one.
pub fn restoring_with(c: &Container, global: &[&str], own: &[&str]) -> Command {
    let mut quark = c.quark(&["--log", text(&c.directory.join("restore"))]);
    quark.args(global).args(["restore", "--detach"]).args(own);
    quark.arg("--image-path").arg(image(c)).arg("--bundle").arg(&c.directory);
    quark.arg("--pid-file").arg(c.directory.join("pid")).arg(&c.id);
    c.on_its_streams(&mut quark);
    quark
}

fn restore(c: &Container) -> Outcome {
    restored_by(c, restoring(c))
}

/// What comes of a command that makes it anew.
pub fn restored_by(c: &Container, mut command: Command) -> Outcome {
    let mut child = command.spawn().expect("start quark");
    let status = wait(&mut child, limit());
    let log = c.directory.join("restore");
    let stderr = fs::read_to_string(&log).unwrap_or_default();
    fs::remove_file(&log).ok();
    Outcome { status, stdout: String::new(), stderr }
}

pub fn restored(c: &Container) {
    let outcome = restore(c);
    assert!(outcome.success(), "{}\n{}", outcome.describe(), c.output());
}

/// Restoring it must fail, say `why` in one line, and leave nothing.
fn refused(c: &Container, why: &str) {
    let outcome = restore(c);
    assert!(!outcome.success(), "restored, although: {why}");
    let said = outcome.stderr.lines().filter(|line| line.contains("level=error")).count();
    assert!(outcome.stderr.contains(why) && said == 1, "{why}: {}", outcome.stderr);
    let list: Value = serde_json::from_str(&c.must(&["list", "--format", "json"])).expect("JSON");
    assert_eq!(list.as_array().map_or(0, Vec::len), 0, "{why}: {list}");
}

#[test]
fn registers_and_waits_survive_generations() {
    let c = Container::start("busybox", &["/mnt/apps/kept", "--tcp", "{port}"]);
    ready(&c);
    for generation in 0..4 {
        assert_eq!(c.ask("check"), "ok 10", "generation {generation}");
        if generation % 2 == 1 {
            c.hibernate();
        }
        checkpoint(&c);
        restored(&c);
    }
    assert_eq!(c.ask("check"), "ok 10");
    assert_eq!(c.ask("idle"), "ok");
    assert_eq!(c.must(&["exec", &c.id, "echo", "up"]), "up\n");
}

#[test]
fn every_byte_survives_generations() {
    let c = memory("24");
    for generation in 0..4 {
        if generation == 2 {
            // Of this one there is a working set.
            c.hibernate();
            verified(&c.ask("peek"));
            c.hibernate();
        }
        checkpoint(&c);
        restored(&c);
        verified(&c.ask("verify"));
        assert!(c.ask("change").starts_with("ok"));
        verified(&c.ask("verify"));
    }
    c.hibernate();
    verified(&c.ask("verify"));
}

#[test]
fn every_byte_survives_packing() {
    let c = memory("16");
    let key = c.directory.join("key");
    let digits = |digits: &str| fs::write(&key, digits.repeat(32)).expect("a key");
    let restored = |own: &[&str]| restored_by(&c, restoring_with(&c, &[], own));
    for options in [
        &["--compress"][..],
        &["--key-file", text(&key)],
        &["--compress", "--key-file", text(&key)],
    ] {
        digits("5a");
        checkpoint_with(&c, options);
        let names: Vec<_> = fs::read_dir(image(&c)).expect("an image").flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let own =
            if options.contains(&"--key-file") { &["--key-file", text(&key)][..] } else { &[] };
        if !own.is_empty() {
            let outcome = restored(&[]);
            assert!(outcome.stderr.contains("say --key-file"), "{}", outcome.describe());
            digits("5b");
            let outcome = restored(own);
            assert!(outcome.stderr.contains("another key"), "{}", outcome.describe());
            digits("5a");
        }
        let outcome = restored(own);
        assert!(outcome.success(), "{}", outcome.describe());
        verified(&c.ask("verify"));
        assert!(c.ask("change").starts_with("ok"));
    }
    // One that goes on has its memory, whatever becomes of the image; a directory that cannot be
    // written, or a key that is none, changes nothing.
    fs::remove_dir_all(image(&c)).expect("an image");
    let path = image(&c);
    let save = |options: &[&str]| {
        c.command(&[&["checkpoint", "--image-path", text(&path)], options, &[&c.id]].concat())
    };
    let outcome = save(&["--leave-running", "--compress"]);
    assert!(outcome.success(), "{}", outcome.describe());
    assert!(!save(&["--compress"]).success(), "there is one");
    fs::remove_dir_all(image(&c)).expect("an image");
    digits("xy");
    let outcome = save(&["--key-file", text(&key)]);
    assert!(outcome.stderr.contains("openssl rand -hex 32"), "{}", outcome.describe());
    assert!(!path.exists());
    verified(&c.ask("verify"));
    c.hibernate();
    verified(&c.ask("verify"));
}

#[test]
fn one_that_goes_on_is_as_before() {
    let c = memory("8");
    let before = children(c.pid()).len();
    for _ in 0..2 {
        c.must(&["checkpoint", "--leave-running", "--image-path", text(&image(&c)), &c.id]);
        verified(&c.ask("verify"));
        assert_eq!(children(c.pid()).len(), before);
        fs::remove_dir_all(image(&c)).expect("an image");
    }
    c.hibernate();
    c.must(&["checkpoint", "--leave-running", "--image-path", text(&image(&c)), &c.id]);
    assert_eq!(c.hibernation(), "Hibernated", "it was not woken for it");
    verified(&c.ask("verify"));
    // One image, twice; its address is taken meanwhile.
    let outcome = c.command(&["checkpoint", "--image-path", text(&image(&c)), &c.id]);
    assert!(outcome.stderr.contains("there is an image in"), "{}", outcome.describe());
    verified(&c.ask("verify"));
}

#[test]
fn connections_are_reset_and_listeners_listen() {
    let c = memory("8");
    let mut open = c.connect().expect("connect");
    assert_eq!(open.ask("ping"), "pong");
    checkpoint(&c);
    assert_eq!(open.try_answer().unwrap_or_default(), "", "its end is told");
    restored(&c);
    verified(&c.ask("verify"));
    let mut again = c.connect().expect("connect");
    assert_eq!(again.ask("ping"), "pong");
    assert_eq!(c.ask_datagram("ping").as_deref(), Some("pong"));
    // What listens where it did.
    let mut waiting: Vec<Connection> = (0..3).map(|_| c.connect().expect("connect")).collect();
    waiting.iter_mut().for_each(|one| assert_eq!(one.ask("ping"), "pong"));
}

#[test]
fn what_is_wrong_with_an_image_is_told_and_leaves_nothing() {
    let c = memory("8");
    checkpoint(&c);
    let change = |name: &str, how: &dyn Fn(&fs::File)| {
        let path = image(&c).join(name);
        let kept = fs::read(&path).expect("a part of the image");
        how(&OpenOptions::new().read(true).write(true).open(&path).expect("to write it"));
        (path, kept)
    };
    let cut =
        |file: &fs::File| file.set_len(file.metadata().expect("size").len() / 2).expect("cut");
    let last = |file: &fs::File| {
        let mut byte = [0];
        let at = file.metadata().expect("size").len() - 1;
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 1], at).expect("write");
    };
    let empty = |file: &fs::File| file.set_len(0).expect("cut");
    for (name, how) in [
        ("ram", &cut as &dyn Fn(&fs::File)),
        ("ram", &empty),
        ("sums", &last),
        ("sums", &cut),
        ("swap.0", &cut),
        ("manifest.json", &cut),
    ] {
        let (path, kept) = change(name, how);
        refused(&c, "is damaged");
        fs::write(path, kept).expect("to put it back");
    }
    let manifest = image(&c).join("manifest.json");
    let kept = fs::read_to_string(&manifest).expect("a manifest");
    for (from, to, why) in [
        ("\"format\": 3,", "\"format\": 7,", "is of format 7"),
        ("\"kernel\": \"", "\"kernel\": \"0", "made by another build"),
        ("\"volumes\": [", "\"volumes\": [\"/elsewhere\",", "with the volumes"),
    ] {
        assert!(kept.contains(from), "{from}: {kept}");
        fs::write(&manifest, kept.replacen(from, to, 1)).expect("write");
        refused(&c, why);
    }
    fs::remove_file(&manifest).expect("remove");
    refused(&c, "there is no image in");
    fs::write(&manifest, kept).expect("write");
    restored(&c);
    verified(&c.ask("verify"));
}

/// It is stopped in the middle of what it does, and goes on there.
#[test]
fn who_is_never_idle_is_saved_too() {
    let counts = "echo ready; i=0; while :; do i=$((i+1)); [ $((i % 5000)) != 0 ] || echo $i; done";
    let c = Container::start("busybox", &["sh", "-c", counts]);
    ready(&c);
    let counted = || c.output().lines().filter_map(|n| n.parse::<u64>().ok()).collect::<Vec<_>>();
    eventually("it counts", limit(), || counted().len() > 3);
    for is_paused in [false, true, true] {
        if is_paused {
            c.must(&["pause", &c.id]);
        }
        checkpoint(&c);
        let before = counted().len();
        restored(&c);
        eventually("it counts on", limit(), || counted().len() > before + 3);
    }
    let numbers = counted();
    let expected: Vec<u64> = (1..=numbers.len() as u64).map(|n| n * 5000).collect();
    assert_eq!(numbers, expected, "nothing twice, and nothing left out");
}

/// A page of the store that has changed is noticed when it is needed, and ends the container: no
/// instruction runs on what is not there.
#[test]
fn a_page_that_has_changed_never_runs() {
    let c = memory("8");
    checkpoint(&c);
    let swap = OpenOptions::new().write(true).open(image(&c).join("swap.0")).expect("open");
    let end = swap.metadata().expect("size").len();
    for page in 0..end / 4096 {
        swap.write_all_at(&[0x5a; 8], page * 4096 + 100).expect("write");
    }
    let outcome = restore(&c);
    let asked = c.connect().and_then(|mut one| {
        one.try_send("verify");
        one.try_answer().filter(|answer| !answer.is_empty())
    });
    assert_eq!(asked, None);
    if outcome.success() {
        eventually("it has ended", limit(), || !alive(c.pid()));
    }
}

#[test]
fn a_command_that_is_killed_leaves_the_one_or_the_other() {
    let c = memory("8");
    for round in 0..12u64 {
        fs::remove_dir_all(image(&c)).ok();
        let mut quark = c.quark(&["checkpoint", "--leave-running"]);
        quark.arg("--image-path").arg(image(&c)).arg(&c.id);
        quark.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = quark.spawn().expect("start quark");
        sleep(Duration::from_millis(round * 4));
        child.kill().expect("kill");
        child.wait().expect("wait");
        if round % 2 == 0 {
            eventually("it is awake again", limit(), || c.hibernation() != "Hibernated");
        }
        verified(&c.ask("verify"));
    }
    fs::remove_dir_all(image(&c)).ok();
    checkpoint(&c);
    for round in 0..12u64 {
        let mut child = restoring(&c).spawn().expect("start quark");
        sleep(Duration::from_millis(round * 3));
        child.kill().expect("kill");
        child.wait().expect("wait");
        eventually("it goes on, or ends", limit(), || {
            !c.command(&["state", &c.id]).stdout.contains("\"status\": \"created\"")
        });
        let gone = run(&mut c.quark(&["delete", "--force", &c.id]), limit());
        assert!(gone.success(), "{}", gone.describe());
    }
    restored(&c);
    verified(&c.ask("verify"));
}
