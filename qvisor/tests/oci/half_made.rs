//! `delete --force` of a container that another command still makes, or was killed while it made
//! it: it is gone at once, and nothing of it stays.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::shared::{repeats, slowed};
use super::support::{Place, finish, place};

/// How long a `delete --force` may take: more only if the maker neither ends nor goes on.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Moments of a `create`, which takes less than this long for all of them.
const MOMENTS: u32 = 40;
const LAST_MOMENT: Duration = Duration::from_millis(160);

fn begin(p: &Place, args: &[&str]) -> Child {
    let output = fs::File::create(p.dir.join("output")).unwrap();
    let mut command = p.quark(args);
    command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    // It has not been waited for.
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

fn delete(p: &Place, id: &str) -> Child {
    let mut command = p.quark(&["delete", "--force", id]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn deleted(child: Child) {
    let output = finish(child, &["delete", "--force"]);
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && says.is_empty(), "{}: {says}", output.status);
}

/// Nothing of it is there, not even what is not yet called by its name.
fn is_gone(p: &Place, id: &str) {
    assert_eq!(p.leftovers(id), Vec::<String>::new());
    let unseen = p.root.join(format!("new:{id}"));
    assert!(!unseen.exists(), "{}", unseen.display());
}

/// Deletes a container by so many commands at once at each moment of its making by `args`, whose
/// maker is sent a signal before.
fn at_each_moment(args: &[&str], count: usize, before: Option<Signal>) {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    let moments = repeats(MOMENTS);
    for moment in 0..moments {
        let id = format!("{}-{moment}", p.id);
        let maker = begin(&p, &[args, &[&id]].concat());
        std::thread::sleep(slowed(LAST_MOMENT) * moment / moments);
        if let Some(before) = before {
            signal(&maker, before);
        }
        let since = Instant::now();
        let commands: Vec<Child> = (0..count).map(|_| delete(&p, &id)).collect();
        commands.into_iter().for_each(deleted);
        let took = since.elapsed();
        assert!(took < slowed(AT_ONCE), "moment {moment}: {took:?}: {}", p.log());
        let made = finish(maker, args).status;
        if made.success() {
            // It had not begun to be made when it was deleted.
            deleted(delete(&p, &id));
        } else if before.is_none() {
            let says = p.log();
            // The last is what `run` says whose program was about to begin.
            let words = [
                "was deleted while it was being made",
                "does not exist",
                "has stopped",
                "the sandbox ended",
            ];
            assert!(
                words.iter().any(|word| says.contains(word)),
                "moment {moment}: {made}: {says}"
            );
            assert_eq!(says.lines().count(), 1, "{says}");
        }
        is_gone(&p, &id);
    }
}

#[test]
fn one_that_is_being_made_is_deleted_at_any_moment() {
    at_each_moment(&["create"], 1, None);
}

#[test]
fn one_whose_maker_was_killed_is_deleted_at_any_moment() {
    at_each_moment(&["create"], 1, Some(Signal::SIGKILL));
}

#[test]
fn two_commands_delete_one_at_once() {
    at_each_moment(&["create"], 2, None);
    at_each_moment(&["run", "--detach"], 2, None);
}

/// The command that deletes has looked whether somebody makes the container, and found nobody, when
/// somebody begins to: the maker is asked to stop all the same.
#[test]
fn a_maker_that_begins_after_the_first_look_is_asked_to_stop() {
    let Some(p) = place() else { return };
    let dir = p.root.join(&p.id);
    fs::create_dir_all(&dir).unwrap();
    let locked = |name: &str| {
        let file = fs::File::create(dir.join(name)).unwrap();
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e).unwrap()
    };
    // It waits for this one.
    let held = locked("lock");
    let deleting = delete(&p, &p.id);
    std::thread::sleep(slowed(Duration::from_millis(100)));
    let maker = locked("owner.lock");
    drop(held);
    p.wait_for("the request to stop", || dir.join("doom").exists());
    fs::remove_dir_all(&dir).unwrap();
    drop(maker);
    deleted(deleting);
    is_gone(&p, &p.id);
}

/// Waits until the container is at the hook that writes this file.
fn at_hook(p: &Place, file: &str) {
    p.wait_for("the hook", || p.dir.join(file).exists());
}

/// A place whose containers stand still at createRuntime, and count poststop.
fn with_hooks() -> Option<Place> {
    let p = place()?;
    let hook = |script: String| json!([{"path": "/bin/sh", "args": ["sh", "-c", script]}]);
    let dir = p.dir.display().to_string();
    p.configure(&["sleep", "1000"], |c: &mut Value| {
        c["hooks"] = json!({
            "createRuntime": hook(format!("touch {dir}/at; while [ ! -e {dir}/go ]; do sleep 0.1; done")),
            "poststop": hook(format!("echo >>{dir}/over")),
        });
    });
    Some(p)
}

#[test]
fn a_maker_that_waits_for_a_hook_is_not_waited_for() {
    let Some(p) = with_hooks() else { return };
    let maker = begin(&p, &["create", &p.id]);
    at_hook(&p, "at");
    let since = Instant::now();
    deleted(delete(&p, &p.id));
    assert!(since.elapsed() < slowed(2 * AT_ONCE), "{:?}", since.elapsed());
    is_gone(&p, &p.id);
    // The ID is free, and what the first maker undoes now is not that of the next.
    fs::rename(p.dir.join("at"), p.dir.join("was-at")).unwrap();
    let next = begin(&p, &["create", &p.id]);
    at_hook(&p, "at");
    fs::write(p.dir.join("go"), "").unwrap();
    assert!(!finish(maker, &["create"]).status.success());
    let made = finish(next, &["create"]);
    assert!(made.status.success(), "{}", p.log());
    assert_eq!(p.status(), "created");
    deleted(delete(&p, &p.id));
    is_gone(&p, &p.id);
    let over = fs::read_to_string(p.dir.join("over")).unwrap();
    assert_eq!(over.lines().count(), 2, "poststop hooks, once for each");
}

#[test]
fn a_maker_that_was_stopped_finds_it_gone() {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    let moments = repeats(8);
    for moment in 0..moments {
        let id = format!("{}-{moment}", p.id);
        let maker = begin(&p, &["create", &id]);
        std::thread::sleep(slowed(LAST_MOMENT) * moment / moments / 2);
        signal(&maker, Signal::SIGSTOP);
        let since = Instant::now();
        deleted(delete(&p, &id));
        assert!(since.elapsed() < slowed(3 * AT_ONCE), "{:?}", since.elapsed());
        let was_there = p.root.join(&id).exists();
        signal(&maker, Signal::SIGCONT);
        if finish(maker, &["create"]).status.success() {
            deleted(delete(&p, &id));
        }
        assert!(!was_there, "moment {moment}: {}", p.log());
        is_gone(&p, &id);
    }
}
