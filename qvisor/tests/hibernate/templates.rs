//! Templates and pools: containers that are made of an image by name, and commands that are killed
//! on the way.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use crate::snapshots::asked_inside;
use crate::support::container::{Container, alive};
use crate::support::{Outcome, eventually, limit, run, wait};
use crate::{memory, ready, verified};

/// Makes template `name` of it; it ends, and its ID and port are free.
fn template(c: &Container, name: &str) {
    c.must(&["template", "create", name, "--from", &c.id]);
    assert!(!alive(c.pid()), "it has ended");
    c.must(&["delete", &c.id]);
}

/// A command that makes containers, which keep its streams: those are files of the container's
/// kind.
fn making(c: &Container, args: &[&str]) -> Command {
    let mut quark = c.quark(&["--log"]);
    quark.arg(c.directory.join("log")).args(["--debug", "run", "--detach"]).args(args);
    c.on_its_streams(&mut quark);
    quark
}

fn make(c: &Container, args: &[&str]) -> Outcome {
    fs::remove_file(c.directory.join("log")).ok();
    let mut child = making(c, args).spawn().expect("start quark");
    let status = wait(&mut child, limit());
    let stderr = fs::read_to_string(c.directory.join("log")).unwrap_or_default();
    Outcome { status, stdout: String::new(), stderr }
}

fn made(c: &Container, args: &[&str]) -> String {
    let outcome = make(c, args);
    assert!(outcome.success(), "{}\n{}", outcome.describe(), c.output());
    outcome.stderr
}

/// The `pid` of the container's file is that of another one now.
fn note_pid(c: &Container) {
    let pid = c.state()["pid"].as_i64().expect("a pid");
    fs::write(c.directory.join("pid"), pid.to_string()).expect("pid file");
}

fn templates(c: &Container) -> Vec<Value> {
    let list = c.must(&["template", "list", "--format", "json"]);
    serde_json::from_str(&list).expect("JSON")
}

fn names(c: &Container) -> Vec<String> {
    templates(c).iter().map(|t| t["name"].as_str().expect("a name").to_owned()).collect()
}

fn ids(c: &Container) -> Vec<String> {
    c.must(&["list", "--quiet"]).lines().map(str::to_owned).collect()
}

/// What is in the directory of templates.
fn left(c: &Container) -> Vec<String> {
    let dir = fs::read_dir(c.images().join("templates")).into_iter().flatten().flatten();
    let names = dir.map(|item| item.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "lock:").collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

#[test]
fn a_container_of_a_template_is_as_the_one_it_was_made_of() {
    let c = memory("8");
    c.must(&["template", "create", "kept", "--from", &c.id, "--leave-running"]);
    verified(&c.ask("verify"));
    c.must(&["delete", "--force", &c.id]);
    assert_eq!(ids(&c), [""; 0], "a template is no container");
    let list = templates(&c);
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0]["container"], c.id.as_str());
    assert_eq!(list[0]["restorable"], true, "{list:?}");
    assert!(list[0]["bytes"].as_u64().is_some_and(|n| n > 8 << 20), "{list:?}");
    for _ in 0..2 {
        made(&c, &["--template", "kept", &c.id]);
        note_pid(&c);
        verified(&c.ask("verify"));
        c.must(&["delete", "--force", &c.id]);
    }
    made(&c, &["--template", "kept", &c.id]);
    // What runs of it goes on without it.
    c.must(&["template", "delete", "kept"]);
    assert_eq!(left(&c), [""; 0]);
    c.hibernate();
    verified(&c.ask("verify"));
    assert!(c.ask("change").starts_with("ok"));
    verified(&c.ask("verify"));
    let outcome = make(&c, &["--template", "kept", "other"]);
    assert!(outcome.stderr.contains("there is no template kept"), "{}", outcome.describe());
}

#[test]
fn an_image_becomes_a_template_and_names_are_checked() {
    let c = memory("8");
    let image = c.directory.join("image");
    c.must(&["checkpoint", "--image-path", text(&image), &c.id]);
    c.must(&["delete", &c.id]);
    for name in ["", "..", "a/b", "a:b", &"x".repeat(201)] {
        let outcome = c.command(&["template", "create", name, "--image-path", text(&image)]);
        assert!(!outcome.success(), "{name}");
        assert_eq!(left(&c), [""; 0], "{name}");
    }
    c.must(&["template", "create", "taken", "--image-path", text(&image)]);
    assert!(!image.exists(), "it has become the template");
    let outcome = make(&c, &["--template", "taken", &c.id]);
    assert!(outcome.stderr.contains("say --bundle"), "{}", outcome.describe());
    made(&c, &["--template", "taken", "--bundle", text(&c.directory), &c.id]);
    verified(&c.ask("verify"));
    let outcome = c.command(&["template", "create", "taken", "--from", &c.id]);
    assert!(outcome.stderr.contains("there is a template taken"), "{}", outcome.describe());
    verified(&c.ask("verify"));
    let outcome = c.command(&["template", "delete", "other"]);
    assert!(outcome.stderr.contains("there is no template other"), "{}", outcome.describe());
}

#[test]
fn a_template_that_cannot_be_used_says_so() {
    let c = memory("8");
    template(&c, "kept");
    let manifest = c.images().join("templates/kept/manifest.json");
    let kept = fs::read_to_string(&manifest).expect("a manifest");
    fs::write(&manifest, kept.replacen("\"kernel\": \"", "\"kernel\": \"0", 1)).expect("write");
    assert_eq!(templates(&c)[0]["restorable"], false);
    let outcome = make(&c, &["--template", "kept", "--count", "3", &c.id]);
    assert!(outcome.stderr.contains("made by another build"), "{}", outcome.describe());
    fs::write(&manifest, kept).expect("write");
    let ram = c.images().join("templates/kept/ram");
    OpenOptions::new().write(true).open(&ram).and_then(|f| f.set_len(8 << 20)).expect("cut");
    let outcome = make(&c, &["--template", "kept", &c.id]);
    assert!(outcome.stderr.contains("ram does not check out"), "{}", outcome.describe());
    assert_eq!(ids(&c), [""; 0]);
}

/// Sleeps in a shell, without a network.
fn quiet() -> Container {
    let script = "i=0; echo ready; while :; do sleep 0.1; i=$((i+1)); echo $i > /dev/null; done";
    let c = Container::start("busybox", &["sh", "-c", script]);
    ready(&c);
    c
}

fn clones(c: &Container, count: usize) -> Vec<String> {
    let mut ids: Vec<String> = (1..=count).map(|n| format!("{}-{n}", c.id)).collect();
    ids.sort();
    ids
}

fn delete_all(c: &Container) {
    for id in ids(c) {
        c.must(&["delete", "--force", &id]);
    }
}

#[test]
fn many_are_made_at_once_or_those_are_named_that_are_not() {
    let c = quiet();
    template(&c, "many");
    made(&c, &["--template", "many", "--count", "9", &c.id]);
    assert_eq!(ids(&c), clones(&c, 9));
    for id in ids(&c) {
        assert_eq!(c.must(&["exec", &id, "echo", "up"]), "up\n");
    }
    // Two are there already.
    for n in [1, 2, 3, 4, 6, 7, 9] {
        c.must(&["delete", "--force", &format!("{}-{n}", c.id)]);
    }
    let outcome = make(&c, &["--template", "many", "--count", "9", &c.id]);
    assert_eq!(outcome.status.and_then(|s| s.code()), Some(1));
    let said: Vec<&str> = outcome.stderr.lines().filter(|l| l.contains("level=error")).collect();
    assert_eq!(said.len(), 2, "{}", outcome.describe());
    for (line, n) in said.iter().zip([5, 8]) {
        assert!(line.contains(&format!("{}-{n}: ", c.id)), "{line}");
    }
    assert_eq!(ids(&c), clones(&c, 9));
    delete_all(&c);
    let outcome = c.command(&["run", "--template", "many", "--count", "2", &c.id]);
    assert!(outcome.stderr.contains("--detach"), "{}", outcome.describe());
    let options = ["--template", "many", "--count", "2", "--pid-file", "/tmp/x", &c.id];
    let outcome = c.command(&[&["run", "--detach"], &options[..]].concat());
    assert!(outcome.stderr.contains("--pid-file"), "{}", outcome.describe());
}

/// Kills a command after so many milliseconds.
fn killed(mut command: Command, after: u64) {
    let mut child = command.spawn().expect("start quark");
    sleep(Duration::from_millis(after));
    child.kill().expect("kill");
    child.wait().expect("wait");
}

#[test]
fn a_killed_command_leaves_a_template_or_none() {
    let c = memory("8");
    for round in 0..12u64 {
        let mut quark = c.quark(&["template", "create", "kept", "--leave-running"]);
        quark.args(["--from", &c.id]).stdout(Stdio::null()).stderr(Stdio::null());
        killed(quark, round * 4);
        verified(&c.ask("verify"));
        let names = names(&c);
        assert_eq!(left(&c), names, "nothing half");
        if !names.is_empty() {
            assert_eq!(templates(&c)[0]["restorable"], true);
            c.must(&["template", "delete", "kept"]);
        }
    }
    // Of one that ends for it either it is there, or the template is.
    let mut round = 0;
    while names(&c).is_empty() {
        let mut quark = c.quark(&["template", "create", "kept"]);
        quark.args(["--from", &c.id]).stdout(Stdio::null()).stderr(Stdio::null());
        killed(quark, round * 4);
        round += 1;
        if names(&c).is_empty() {
            verified(&c.ask("verify"));
        }
    }
    c.must(&["delete", "--force", &c.id]);
    made(&c, &["--template", "kept", &c.id]);
    verified(&c.ask("verify"));
}

#[test]
fn two_commands_with_one_name_make_one_template() {
    let c = memory("8");
    let other = Container::start_beside(Some(&c), &[], &[], "busybox", &["sleep", "1000"]);
    for _ in 0..5 {
        let mut children: Vec<Child> = [&c.id, &other.id]
            .map(|id| {
                let mut quark =
                    c.quark(&["template", "create", "one", "--leave-running", "--from"]);
                quark.arg(id).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start")
            })
            .into();
        let ends = children.iter_mut().map(|child| child.wait().expect("wait"));
        let ok = ends.filter(|status| status.success()).count();
        assert_eq!(ok, 1);
        assert_eq!(left(&c), ["one"]);
        c.must(&["template", "delete", "one"]);
    }
    verified(&c.ask("verify"));
}

/// Nobody is between being made and going on, and what a killed command began has noticed.
fn settled(c: &Container) {
    let has_maker = |one: &Value| {
        let lock = c.root().join(one["id"].as_str().expect("an id")).join("owner.lock");
        fs::File::open(lock).is_ok_and(|f| Flock::lock(f, FlockArg::LockSharedNonblock).is_err())
    };
    eventually("they go on, or end", limit(), || {
        let list: Value =
            serde_json::from_str(&c.must(&["list", "--format", "json"])).expect("JSON");
        let all = list.as_array().expect("a list");
        all.iter().all(|one| one["status"] == "running" || one["pid"] == 0 && !has_maker(one))
    });
}

#[test]
fn a_killed_run_leaves_containers_or_what_the_next_one_removes() {
    let c = quiet();
    template(&c, "many");
    for round in 0..16u64 {
        killed(making(&c, &["--template", "many", "--count", "6", &c.id]), round * 8);
        settled(&c);
        // Those that run are whole, and the others do not stand in the way.
        let mut refusals = Vec::new();
        for id in ids(&c) {
            let up = c.command(&["exec", &id, "echo", "up"]);
            if up.success() {
                assert_eq!(up.stdout, "up\n");
                c.must(&["delete", "--force", &id]);
            } else {
                refusals.push(up.stderr);
            }
        }
        let outcome = make(&c, &["--template", "many", "--count", "6", &c.id]);
        let said = outcome.stderr.lines().filter(|line| line.contains("level=error"));
        let said: Vec<_> = said.collect();
        assert!(outcome.success(), "round {round}: {said:?}, {refusals:?}");
        assert_eq!(ids(&c), clones(&c, 6));
        delete_all(&c);
    }
}

/// A pool of its own.
struct Pool(Child);

impl Pool {
    /// Starts one, and waits until it is full.
    fn start(c: &Container, size: &str) -> Pool {
        let mut pool = Pool::begin(c, size);
        let mut said = [0; 64];
        let n = pool.0.stdout.as_mut().expect("its output").read(&mut said).expect("read");
        assert_eq!(&said[..n], format!("{size} containers are ready\n").as_bytes());
        pool
    }

    fn begin(c: &Container, size: &str) -> Pool {
        let mut quark = c.quark(&["--log", text(&c.directory.join("pool")), "pool", "--size"]);
        quark.args([size, "--template", "kept"]);
        quark.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Pool(quark.spawn().expect("start quark"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }

    /// As an administrator does.
    fn end(mut self) {
        let pid = self.0.id().to_string();
        assert!(run(Command::new("kill").arg(&pid), limit()).success());
        assert!(wait(&mut self.0, limit()).is_some_and(|s| s.success()));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn members(c: &Container) -> Vec<String> {
    ids(c).into_iter().filter(|id| id.starts_with("pool-kept-")).collect()
}

fn pools(c: &Container) -> Vec<PathBuf> {
    let dir = fs::read_dir(c.root().join("templates:pools")).into_iter().flatten().flatten();
    dir.map(|item| item.path()).collect()
}

#[test]
fn a_pool_gives_containers_that_are_ready() {
    let c = quiet();
    template(&c, "kept");
    let pool = Pool::start(&c, "2");
    assert_eq!(members(&c).len(), 2);
    let said = c.must(&["list"]);
    assert_eq!(said.matches("created").count(), 2, "{said}");
    for round in 0..4 {
        let id = format!("{}-{round}", c.id);
        let log = made(&c, &["--template", "kept", "--pool", &id]);
        assert!(!log.contains("without the pool"), "{log}");
        assert_eq!(c.must(&["exec", &id, "echo", "up"]), "up\n");
        c.must(&["kill", &id, "STOP"]);
        assert_eq!(c.must(&["exec", &id, "cat", "/proc/1/comm"]), "sh\n");
        eventually("it is full again", limit(), || {
            members(&c).len() == 2 && c.must(&["list"]).matches("created").count() == 2
        });
    }
    // Its ID is in use.
    let id = format!("{}-0", c.id);
    let outcome = make(&c, &["--template", "kept", "--pool", &id]);
    assert!(outcome.stderr.contains("already exists"), "{}", outcome.describe());
    // Without a detour, it is waited for, and deleted.
    let id = format!("{}-9", c.id);
    let output = OpenOptions::new().append(true).open(c.directory.join("output")).expect("output");
    let mut quark = c.quark(&["run", "--template", "kept", "--pool", &id]);
    quark.stdin(Stdio::null()).stdout(output.try_clone().expect("output")).stderr(output);
    let mut attended = quark.spawn().expect("start quark");
    eventually("it runs", limit(), || c.command(&["exec", &id, "true"]).success());
    c.must(&["kill", &id, "KILL"]);
    let status = wait(&mut attended, limit()).and_then(|status| status.code());
    assert_eq!(status, Some(137));
    assert!(!ids(&c).contains(&id));
    // Nobody else can start a member, and it is as ready afterwards.
    let member = members(&c)[0].clone();
    let outcome = c.command(&["start", &member]);
    assert!(outcome.stderr.contains("is not yours to start"), "{}", outcome.describe());
    assert!(members(&c).contains(&member));
    // A member that somebody deletes is made anew.
    let gone = members(&c)[0].clone();
    c.must(&["delete", "--force", &gone]);
    eventually("another one", limit(), || members(&c).len() == 2 && !members(&c).contains(&gone));
    pool.end();
    assert_eq!((members(&c), pools(&c)), (Vec::new(), Vec::new()));
    assert_eq!(c.must(&["exec", &format!("{}-1", c.id), "echo", "up"]), "up\n");
    // Now there is none.
    let log = made(&c, &["--template", "kept", "--pool", "slow"]);
    assert!(log.contains("without the pool"), "{log}");
    delete_all(&c);
}

/// What listens can be made many times of one template, beside the one that it was made of.
#[test]
fn containers_of_a_template_have_networks_of_their_own() {
    let c = memory("4");
    c.must(&["template", "create", "--leave-running", "--from", &c.id, "kept"]);
    let outcome = make(&c, &["--template", "kept", "same"]);
    assert!(outcome.stderr.contains("binding a socket"), "{}", outcome.describe());
    made(&c, &["--template", "kept", "--new-network", "one"]);
    made(&c, &["--template", "kept", "--new-network", "--count", "2", "more"]);
    for id in ["one", "more-1", "more-2"] {
        verified(&asked_inside(&c, id, "verify"));
    }
    verified(&c.ask("verify"));
    delete_all(&c);
}

/// What a program writes when it goes on comes out of the streams of who took it.
#[test]
fn a_container_of_a_pool_has_the_streams_of_who_takes_it() {
    let script = "echo ready; while :; do sleep 0.2; echo tick; done";
    let c = Container::start("busybox", &["sh", "-c", script]);
    ready(&c);
    template(&c, "kept");
    let pool = Pool::start(&c, "1");
    let before = c.output().len();
    sleep(Duration::from_millis(600));
    assert_eq!(c.output().len(), before, "it does not run yet");
    made(&c, &["--template", "kept", "--pool", "one"]);
    eventually("it ticks", limit(), || c.output()[before..].contains("tick\ntick\n"));
    // A pipe is not what the image has.
    let mut quark = c.quark(&["run", "--detach", "--template", "kept", "--pool", "two"]);
    eventually("it is full again", limit(), || members(&c).len() == 1);
    let outcome = run(&mut quark, limit());
    assert!(outcome.stderr.contains("standard stream"), "{}", outcome.describe());
    assert!(!ids(&c).contains(&"two".to_owned()));
    pool.end();
    delete_all(&c);
}

#[test]
fn a_killed_pool_leaves_what_the_next_one_removes() {
    let c = quiet();
    template(&c, "kept");
    for round in 0..10u64 {
        let mut pool = Pool::begin(&c, "3");
        sleep(Duration::from_millis(round * 12));
        pool.kill();
        settled(&c);
    }
    let pool = Pool::start(&c, "3");
    assert_eq!(members(&c).len(), 3, "{:?}", members(&c));
    // Who takes one may be killed too.
    for round in 0..10u64 {
        killed(making(&c, &["--template", "kept", "--pool", &c.id]), round);
        settled_but_members(&c);
        let outcome = make(&c, &["--template", "kept", "--pool", "again"]);
        assert!(outcome.success(), "{}", outcome.describe());
        c.must(&["delete", "--force", "again"]);
        if ids(&c).contains(&c.id) {
            let up = c.command(&["exec", &c.id, "echo", "up"]);
            assert!(!up.success() || up.stdout == "up\n", "{}", up.describe());
            c.must(&["delete", "--force", &c.id]);
        }
    }
    eventually("it is full", limit(), || members(&c).len() == 3);
    // With its template it ends.
    c.must(&["template", "delete", "kept"]);
    let outcome = make(&c, &["--template", "kept", "--pool", &c.id]);
    assert!(outcome.stderr.contains("there is no template"), "{}", outcome.describe());
    eventually("nothing is left", limit(), || ids(&c).is_empty() && pools(&c).is_empty());
    drop(pool);
}

fn settled_but_members(c: &Container) {
    eventually("it goes on, or ends", limit(), || {
        !c.command(&["state", &c.id]).stdout.contains("\"status\": \"created\"")
    });
}
