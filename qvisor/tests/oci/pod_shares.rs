//! What one container of a pod with one kernel does not take from the others: their memory, their
//! files, commands about them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::shared_pod::Pod;

/// A further container with this limit, in MiB (0: none), that runs a script.
fn limited(pod: &Pod, name: &str, mib: u64, script: &str) {
    pod.configure(name, &["sh", "-c", script], |c| {
        if mib != 0 {
            c["linux"]["resources"] = json!({"memory": {"limit": mib << 20}});
        }
    });
    pod.run(name);
}

fn number(stats: &Value, path: &str) -> u64 {
    stats["data"].pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{stats}"))
}

/// Many programs of a few MiB each, none of which is large.
const LEAK: &str = "i=0; while [ $i -lt 60 ]; do (x=$(head -c 8000000 /dev/zero | tr '\\0' x); \
                    echo; sleep 1000; echo $x) & i=$((i+1)); sleep .05; done; wait";

#[test]
fn who_is_at_its_own_limit_ends_and_not_its_neighbour() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let inn = "x=$(head -c 70000000 /dev/zero | tr '\\0' x); echo up; sleep 1000; echo $x";
    limited(&pod, "inn", 200, inn);
    pod.p.wait_for("the memory", || pod.printed("inn").contains("up"));
    limited(&pod, "leak", 64, LEAK);
    let kills = |name| number(&pod.events(name), "/quark/counts/oom_kills");
    pod.p.wait_for("a kill", || kills("leak") > 0);
    // All of them would hold 500 MiB. What was reserved for a program and not touched at a look may
    // come in addition.
    std::thread::sleep(Duration::from_secs(2));
    let held = number(&pod.events("leak"), "/memory/usage/usage");
    assert!(held < 96 << 20, "{held}");
    assert_eq!((kills("inn"), pod.state("inn")["status"].as_str()), (0, Some("running")));
    assert_eq!(pod.good(&["exec", "inn", "echo", "well"]), "well\n");
    pod.good(&["delete", "--force", "leak"]);
    // Its only program.
    let all = "x=$(head -c 150000000 /dev/zero | tr '\\0' x); echo done";
    limited(&pod, "one", 64, all);
    pod.stops("one");
    let ended = pod.state("one")["ended"].clone();
    assert_eq!((&ended["out_of_memory"], &ended["status"]), (&json!(true), &json!(137)), "{ended}");
    assert_eq!((kills("inn"), pod.state("inn")["status"].as_str()), (0, Some("running")));
    pod.good(&["delete", "one"]);
    pod.good(&["delete", "--force", "inn"]);
    pod.end();
}

/// Memory that programs share counts once: 24 of them that have 16 MiB in common are below 64.
#[test]
fn what_programs_share_counts_once_against_the_limit() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let script = "x=$(head -c 16000000 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 24 ]; do \
                  (sleep 1000; echo $x) & i=$((i+1)); done; echo up; wait";
    limited(&pod, "server", 64, script);
    pod.p.wait_for("the programs", || pod.printed("server").contains("up"));
    let stats = pod.events("server");
    let held = number(&stats, "/memory/usage/usage");
    assert!((16 << 20..60 << 20).contains(&held), "{held}");
    assert_eq!(number(&stats, "/quark/counts/oom_kills"), 0, "{stats}");
    pod.good(&["delete", "--force", "server"]);
    pod.end();
}

#[test]
fn a_limit_that_is_refused_stays_as_it_was() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let script = "x=$(head -c 40000000 /dev/zero | tr '\\0' x); echo up; sleep 1000; echo $x";
    limited(&pod, "one", 300, script);
    pod.p.wait_for("the memory", || pod.printed("one").contains("up"));
    let limit = || number(&pod.events("one"), "/memory/usage/limit");
    let before = limit();
    let refused = pod.refused(&["update", "--memory", "20M", "one"]);
    assert!(refused.contains("hold more"), "{refused}");
    assert_eq!(limit(), before);
    pod.good(&["update", "--memory", "150M", "one"]);
    assert_eq!(limit(), 150 << 20);
    pod.good(&["delete", "--force", "one"]);
    pod.end();
}

/// Who makes a container that is deleted meanwhile, and does not hear of that for long, cleans up
/// after itself when another has its ID.
#[test]
fn a_maker_that_comes_late_leaves_the_files_of_its_successor() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let (hook, go) = (pod.bundle("first").join("hook"), pod.bundle("first").join("go"));
    // For a minute at most.
    let waits = format!(
        "#!/bin/sh\ntrap '' TERM\ni=0\nwhile [ ! -e {} ] && [ $i -lt 600 ]; do i=$((i+1)); sleep .1; done\n",
        go.display()
    );
    fs::write(&hook, waits).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    pod.configure("one", &["sleep", "1000"], |c| {
        c["hooks"] = json!({"createRuntime": [{"path": hook}]});
    });
    let (bundle, id) = (pod.bundle("one"), pod.id_of("one"));
    let create = ["run", "--detach", "--bundle", bundle.to_str().unwrap(), &id];
    let mut maker = pod.p.quark(&create);
    let maker = maker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    pod.p.wait_for("the hook", || {
        let processes = std::process::Command::new("ps").args(["-eo", "args"]).output().unwrap();
        String::from_utf8_lossy(&processes.stdout).contains(hook.to_str().unwrap())
    });
    pod.good(&["delete", "--force", &id]);
    pod.configure("one", &["sleep", "1000"], |_| {});
    pod.run("one");
    fs::write(&go, "").unwrap();
    assert!(!maker.wait_with_output().unwrap().status.success());
    assert_eq!(pod.good(&["exec", "one", "cat", "/etc/name"]), "one");
    pod.good(&["delete", "--force", "one"]);
    pod.leaves_nothing("one");
    pod.end();
}

#[test]
fn processes_of_exec_leave_room_for_commands() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    for name in ["one", "two"] {
        pod.configure(name, &["sleep", "1000"], |_| {});
        pod.run(name);
    }
    let id = pod.id_of("one");
    // What it says goes to a file: a pipe would be open until its process ends.
    let said = pod.bundle("one").join("said");
    let fails = || {
        let mut command = pod.p.quark(&["exec", "--detach", &id, "sleep", "1000"]);
        let to = fs::File::create(&said).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(to);
        !command.status().unwrap().success()
    };
    assert!((0..300).any(|_| fails()), "there is a limit");
    let refused = fs::read_to_string(&said).unwrap();
    assert!(refused.contains("as many containers and processes of exec as it may"), "{refused}");
    assert_eq!(pod.state("two")["status"], "running");
    pod.good(&["kill", "two", "KILL"]);
    pod.stops("two");
    pod.good(&["delete", "--force", &id]);
    assert_eq!(pod.good(&["exec", &pod.id, "echo", "well"]), "well\n");
    pod.good(&["delete", "two"]);
    pod.end();
}
