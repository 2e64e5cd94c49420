//! Containers of an ordinary user, who has user namespaces and nothing else.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::pipes::{fills, terminal};
use super::shared::skip;
use super::support::{Place, finish, place};

/// Who these tests are.
const USER: u32 = 1234;

/// A place, and a directory in it that is the user's; `None` when this host does not let ordinary
/// users make user namespaces.
fn users_place() -> Option<(Place, PathBuf)> {
    let p = place()?;
    let home = p.dir.join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    let doctor = String::from_utf8(as_user(&p, &home, &home, &["doctor"]).stdout).unwrap();
    let works = doctor.lines().any(|l| l.starts_with("yes") && l.contains(" rootless "));
    if !works && qvisor::oci::rootless::obstacle().is_some() {
        skip(&doctor);
        return None;
    }
    assert!(works, "{doctor}");
    Some((p, home))
}

/// Runs quark as the user, with `home` for all that is theirs.
fn as_user(p: &Place, home: &Path, cwd: &Path, args: &[&str]) -> Output {
    let child =
        command(home, cwd, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = p;
    finish(child, args)
}

fn command(home: &Path, cwd: &Path, args: &[&str]) -> Command {
    let quark = crate::shared::quark();
    let mut command = Command::new("setpriv");
    let id = USER.to_string();
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .arg(quark.get_program())
        .args(quark.get_args());
    command.args(args).current_dir(cwd).stdin(Stdio::null());
    command.env("HOME", home).env("XDG_RUNTIME_DIR", home);
    command
}

/// Makes directories and all that is in them the user's.
fn give_to_user(places: &[&Path]) {
    let given = Command::new("chown").args(["-R", &USER.to_string()]).args(places).status();
    assert!(given.unwrap().success());
}

fn good(p: &Place, home: &Path, args: &[&str]) -> String {
    let output = as_user(p, home, &p.bundle, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn do_works_for_an_ordinary_user_with_their_rights() {
    let Some((p, home)) = users_place() else { return };
    let (mine, roots) = (home.join("mine"), p.dir.join("roots"));
    for (path, owner) in [(&mine, USER), (&roots, 0)] {
        fs::write(path, format!("of {owner}\n")).unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let script = format!(
        "id -u; cat {}; cat {} || echo denied; cat /etc/shadow || echo denied; echo x > {0} && \
        cat {0}; \
         ls /run /tmp /sys/fs/cgroup; cat /proc/1/comm; umount /proc; ls /proc; exit 5",
        mine.display(),
        roots.display()
    );
    let volume = format!("{0}:{0}", p.dir.display());
    let output = as_user(&p, &home, &home, &["do", "-v", &volume, "--", "/bin/sh", "-c", &script]);
    let (out, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "{out}{errors}");
    let lines: Vec<&str> = out.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(lines[..5], ["0", "of 1234", "denied", "denied", "x"], "{errors}");
    assert!(out.contains("\nsh\n"), "{out}");
    // Through a volume it is written; its owner is who it was.
    assert_eq!(
        (fs::read_to_string(&mine).unwrap().as_str(), mine.metadata().unwrap().uid()),
        ("x\n", USER)
    );
    // Nothing is left, and the state was where it belongs.
    assert_eq!(
        fs::read_dir(home.join("quark")).unwrap().flatten().filter(|e| e.path().is_dir()).count(),
        0
    );
    // A set-user-ID program of the host's root, who has no number here, runs as who calls it.
    let script = "stat -c %a,%u /bin/su /usr/bin/passwd; su -s /bin/sh nobody -c 'id -u'";
    let output = as_user(&p, &home, &home, &["do", "--", "/bin/sh", "-c", script]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let seen = String::from_utf8_lossy(&output.stdout);
    assert_eq!(seen, "755,65534\n755,65534\n65534\n", "{errors}");
    // Without the volume what is written is thrown away.
    let script = "echo y > mine && cat mine";
    let output = as_user(&p, &home, &home, &["do", "--", "/bin/sh", "-c", script]);
    assert_eq!(output.stdout, b"y\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(&mine).unwrap(), "x\n");
}

#[test]
fn do_of_an_ordinary_user_has_the_network_that_is_asked_for() {
    let Some((p, home)) = users_place() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!(
        "import socket; socket.create_connection((\"127.0.0.1\", {port}), 5); print(\"in\")"
    );
    let run = |network: &str| {
        let output = as_user(&p, &home, &home, &["do", network, "--", "python3", "-c", &connect]);
        (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (out, errors) = run("--network=none");
    assert!(out.is_empty() && errors.contains("ConnectionRefusedError"), "{errors}");
    let (out, errors) = run("--network=host");
    assert_eq!(out, b"in\n", "{errors}");
}

#[test]
fn warnings_of_the_sandbox_are_the_commands_without_a_log() {
    let Some((p, home)) = users_place() else { return };
    p.configure(&["true"], |c| c["process"]["oomScoreAdj"] = json!(-999));
    assert!(
        Command::new("chown")
            .args(["-R", &USER.to_string()])
            .arg(&p.bundle)
            .status()
            .unwrap()
            .success()
    );
    let says = "process.oomScoreAdj -999 is not applied";
    let output = as_user(&p, &home, &p.bundle, &["run", &p.id]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors.matches(says).count(), 1, "{errors}");
    // What every user's containers lack is no news.
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let log = home.join("log");
    let output = as_user(&p, &home, &p.bundle, &["--log", log.to_str().unwrap(), "run", &p.id]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(&log).unwrap().matches(says).count(), 1);
}

#[test]
fn a_container_of_an_ordinary_user_lives_and_ends() {
    let Some((p, home)) = users_place() else { return };
    let volume = home.join("volume");
    fs::create_dir(&volume).unwrap();
    p.configure(
        &["sh", "-c", "echo made > /v/file; trap 'exit 3' TERM; while :; do sleep 0.1; done"],
        |c: &mut Value| {
            c["mounts"]
                .as_array_mut()
                .unwrap()
                .push(json!({"destination": "/v", "source": volume, "options": ["rbind"]}));
            c["linux"]["resources"] = json!({"memory": {"limit": 268_435_456}});
        },
    );
    give_to_user(&[&p.bundle, &volume]);
    // What a container inherits must not be a pipe that somebody reads to its end.
    let output = fs::File::create(p.dir.join("output")).unwrap();
    let mut run = command(&home, &p.bundle, &["run", "--detach", &p.id]);
    let status = run.stdout(output.try_clone().unwrap()).stderr(output).status().unwrap();
    assert!(status.success(), "{}", p.log());
    assert!(p.log().contains("limits of linux.resources are not applied"), "{}", p.log());
    p.wait_for("the file", || volume.join("file").exists());
    assert_eq!(volume.join("file").metadata().unwrap().uid(), USER);
    assert_eq!(good(&p, &home, &["exec", &p.id, "echo", "well"]), "well\n");
    assert!(good(&p, &home, &["ps", &p.id]).contains("sh -c"));
    let pids: Vec<i64> =
        serde_json::from_str(&good(&p, &home, &["ps", "-f", "json", &p.id])).unwrap();
    let state: Value = serde_json::from_str(&good(&p, &home, &["state", &p.id])).unwrap();
    assert!(pids.contains(&state["pid"].as_i64().unwrap()), "{pids:?} {state}");
    assert_eq!(state["owner"], USER.to_string());
    good(&p, &home, &["events", "--stats", &p.id]);
    good(&p, &home, &["kill", &p.id, "STOP"]);
    let state: Value = serde_json::from_str(&good(&p, &home, &["state", &p.id])).unwrap();
    assert_eq!(state["hibernation"], "Hibernated");
    assert_eq!(good(&p, &home, &["exec", &p.id, "echo", "awake"]), "awake\n");
    good(&p, &home, &["kill", &p.id, "TERM"]);
    p.wait_for("the end", || good(&p, &home, &["list"]).contains("stopped"));
    let state: Value = serde_json::from_str(&good(&p, &home, &["state", &p.id])).unwrap();
    assert_eq!(state["ended"]["status"], 3, "{state}");
    good(&p, &home, &["delete", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn the_state_directories_of_a_user_are_listed_for_the_user_alone() {
    let Some((p, home)) = users_place() else { return };
    give_to_user(&[&p.bundle]);
    let root = home.join("elsewhere");
    let root = root.to_str().unwrap();
    let output = fs::File::create(p.dir.join("output")).unwrap();
    let mut run = command(&home, &p.bundle, &["--root", root, "run", "--keep", &p.id]);
    let status = run.stdout(output.try_clone().unwrap()).stderr(output).status().unwrap();
    assert!(status.success(), "{}", p.log());
    let listed = good(&p, &home, &["list", "--all-roots"]);
    let line = listed.lines().find(|line| line.starts_with(&p.id)).unwrap();
    assert!(line.contains(" stopped ") && line.ends_with(root), "{line}");
    assert!(!p.good(&["list", "--all-roots"]).contains(&p.id));
    good(&p, &home, &["--root", root, "delete", &p.id]);
    assert!(!good(&p, &home, &["list", "--all-roots"]).contains(&p.id));
}

/// As after su(1): who may not open the terminal anew shares its open file description, which
/// blocks.
#[test]
fn an_unread_terminal_of_another_user_holds_nobody_up() {
    let Some((p, home)) = users_place() else { return };
    p.configure(&["sh", "-c", "while :; do echo $((n=n+1)) a line; done"], |_| {});
    give_to_user(&[&p.bundle]);
    let ends = terminal();
    let mut run = command(&home, &p.bundle, &["run", &p.id]);
    let errors = fs::File::create(p.dir.join("output")).unwrap();
    let mut run = run.stdout(ends.1.try_clone().unwrap()).stderr(errors).spawn().unwrap();
    for _ in 0..3 {
        fills(&p, &mut run, &ends, false);
        assert_eq!(good(&p, &home, &["exec", &p.id, "echo", "well"]), "well\n");
        fills(&p, &mut run, &ends, true);
    }
    fills(&p, &mut run, &ends, false);
    good(&p, &home, &["kill", &p.id, "STOP"]);
    assert_eq!(good(&p, &home, &["exec", &p.id, "echo", "awake"]), "awake\n");
    good(&p, &home, &["kill", &p.id, "KILL"]);
    assert_eq!(finish(run, &["run"]).status.code(), Some(137));
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

/// Who has a range in /etc/subuid and /etc/subgid has as many ids inside, which
/// newuidmap(1) and newgidmap(1) set. The files are those of a mount namespace of the test.
#[test]
fn a_user_with_subordinate_ids_has_them_inside() {
    let Some((p, home)) = users_place() else { return };
    if !Path::new("/usr/bin/newuidmap").exists() {
        return skip("newuidmap(1) is not installed (package uidmap)");
    }
    let file = |name: &str, text: String| {
        let path = p.dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    };
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let user = format!("quark-test:x:{USER}:{USER}::{}:/bin/sh\n", home.display());
    let files = [
        ("/etc/passwd", file("passwd", passwd + &user)),
        ("/etc/subuid", file("subuid", "quark-test:1000000:2000\n".to_string())),
        ("/etc/subgid", file("subgid", "quark-test:3000000:2000\n".to_string())),
    ];
    let mounts: String = files
        .iter()
        .map(|(over, file)| format!("mount --bind {} {over} && ", file.display()))
        .collect();
    let inside = "touch f && chown 7:9 f; stat -c %u:%g f";
    let volume = format!("{0}:{0}", home.display());
    let run = command(&home, &home, &["do", "-v", &volume, "--", "/bin/sh", "-c", inside]);
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "/bin/sh", "-c"])
        .args([&format!("{mounts} exec \"$@\""), "sh"])
        .arg(run.get_program())
        .args(run.get_args())
        .current_dir(&home)
        .env("HOME", &home)
        .env("XDG_RUNTIME_DIR", &home)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "7:9\n", "{errors}");
    let made = home.join("f").metadata().unwrap();
    // Id 0 is the user's own, so the range begins with 1.
    assert_eq!((made.uid(), made.gid()), (1_000_006, 3_000_008), "{errors}");
}
