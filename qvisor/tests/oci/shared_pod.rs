//! Containers of a pod that share one guest kernel.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Place, master_of, place};
use crate::shared::container::alive;
use crate::shared::repeats;

/// A pod whose first container sleeps, and a place for further ones.
pub(super) struct Pod {
    pub(super) p: Place,
    pub(super) id: String,
    pid: i64,
}

impl Pod {
    pub(super) fn new(change: impl FnOnce(&mut Value)) -> Option<Pod> {
        let p = place()?;
        let id = format!("{}-pod", p.id);
        let pod = Pod { p, id, pid: 0 };
        pod.configure("first", &["sleep", "1000"], |c| {
            c["annotations"] = json!({"io.quark.pod": "shared"});
            change(c);
        });
        pod.run("first");
        let pid = pod.state("first")["pid"].as_i64().unwrap();
        Some(Pod { pid, ..pod })
    }

    /// A bundle with files of its own.
    pub(super) fn bundle(&self, name: &str) -> PathBuf {
        self.p.dir.join(name)
    }

    /// Writes a configuration as Kubernetes' runtime interface would, changed by `change`.
    pub(super) fn configure(&self, name: &str, args: &[&str], change: impl FnOnce(&mut Value)) {
        let bundle = self.bundle(name);
        let rootfs = bundle.join("rootfs");
        if !rootfs.exists() {
            let copied = std::process::Command::new("cp")
                .arg("-a")
                .arg(self.p.rootfs())
                .arg({
                    fs::create_dir(&bundle).unwrap();
                    &rootfs
                })
                .status();
            assert!(copied.unwrap().success());
            fs::write(rootfs.join("etc/name"), name).unwrap();
        }
        let joined = |kind: &str, file: &str| json!({"type": kind, "path": format!("/proc/{}/ns/{file}", self.pid)});
        self.p.configure(args, |c| {
            c["root"]["path"] = json!(rootfs);
            c["linux"]["namespaces"] = if self.pid == 0 {
                json!([{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}])
            } else {
                json!([{"type": "pid"}, {"type": "mount"}, joined("ipc", "ipc"), joined("uts", "uts"),
                    joined("network", "net")])
            };
            if self.pid != 0 {
                c["annotations"] = json!({
                    "io.kubernetes.cri.container-type": "container",
                    "io.kubernetes.cri.sandbox-id": self.id,
                });
            }
            change(c);
        });
        fs::rename(self.p.bundle.join("config.json"), bundle.join("config.json")).unwrap();
    }

    /// Starts a container; it goes on.
    pub(super) fn run(&self, name: &str) {
        let id = &self.id_of(name);
        let bundle = self.bundle(name);
        let mut command =
            self.p.quark(&["run", "--detach", "--bundle", bundle.to_str().unwrap(), id]);
        let output = fs::File::create(self.bundle(name).join("output")).unwrap();
        command.stdout(output).stderr(Stdio::inherit());
        assert!(command.status().unwrap().success(), "{name}");
    }

    /// What a container has printed.
    pub(super) fn printed(&self, name: &str) -> String {
        fs::read_to_string(self.bundle(name).join("output")).unwrap_or_default()
    }

    /// Runs one to its end: its exit code, and what it and quark print.
    fn try_run(&self, name: &str) -> (Option<i32>, String) {
        let id = &self.id_of(name);
        let bundle = self.bundle(name);
        let output = self.p.output(&["run", "--bundle", bundle.to_str().unwrap(), id]);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    }

    /// The ID of the container of a bundle; other words stay as they are.
    pub(super) fn id_of(&self, name: &str) -> String {
        match name {
            "first" => self.id.clone(),
            _ if !name.contains('/') && self.bundle(name).join("rootfs/etc/name").exists() => {
                format!("{}-{name}", self.id)
            }
            _ => name.to_owned(),
        }
    }

    /// Runs quark, for containers by the names of their bundles.
    pub(super) fn good(&self, args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|word| self.id_of(word)).collect();
        self.p.good(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(super) fn state(&self, name: &str) -> Value {
        serde_json::from_str(&self.good(&["state", name])).unwrap()
    }

    pub(super) fn events(&self, name: &str) -> Value {
        self.p.events(&self.id_of(name))
    }

    pub(super) fn leaves_nothing(&self, name: &str) {
        assert_eq!(self.p.leftovers(&self.id_of(name)), [""; 0]);
    }

    pub(super) fn refused(&self, args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|word| self.id_of(word)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = self.p.output(&args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Command lines of the guest's processes, as the first container sees them.
    fn processes(&self) -> String {
        self.p.good(&["exec", &self.id, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    }

    pub(super) fn stops(&self, id: &str) {
        self.p.wait_for(&format!("{id} stops"), || self.state(id)["status"] == "stopped");
    }

    pub(super) fn end(self) {
        self.p.good(&["delete", "--force", &self.id]);
        assert_eq!(self.p.leftovers(&self.id), [""; 0]);
    }
}

#[test]
fn each_has_files_and_processes_of_its_own_in_one_kernel() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let script = "cat /etc/name; hostname; echo $$; echo /proc/[0-9]*; echo x > /data/x; exit 7";
    pod.configure("one", &["sh", "-c", script], |_| {});
    let (code, text) = pod.try_run("one");
    assert_eq!((code, text.as_str()), (Some(7), "oneguest\n1\n/proc/1\n"));
    assert!(pod.bundle("one").join("rootfs/data/x").exists());
    assert!(!pod.bundle("first").join("rootfs/data/x").exists());

    pod.configure("two", &["sh", "-c", "sleep 1000 & wait"], |c| c["hostname"] = json!("other"));
    pod.run("two");
    let state = pod.state("two");
    assert_eq!((&state["status"], &state["pod"]), (&json!("running"), &json!(pod.id)));
    assert_ne!(state["pid"].as_i64(), Some(pod.pid));
    assert!(pod.good(&["exec", "two", "cat", "/etc/name"]).ends_with("two"));
    assert_eq!(pod.good(&["exec", &pod.id, "cat", "/etc/name"]), "first");
    // It shares the host name, as the configuration says.
    assert_eq!(pod.good(&["exec", "two", "hostname"]), "guest\n");
    let listed = pod.good(&["ps", "two"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("sleep 1000 & wait") && !listed.contains(" 1000 \n"), "{listed}");
    let first = pod.good(&["ps", &pod.id]);
    assert!(first.lines().count() == 2 && first.contains("sleep 1000"), "{first}");
    // One kernel: the first one sees all processes, and both the same boot.
    assert!(pod.processes().contains("sleep 1000 & wait"));
    let boot = |id: &str| pod.good(&["exec", id, "cat", "/proc/sys/kernel/random/boot_id"]);
    assert_eq!(boot("two"), boot(&pod.id));
    // And one loopback device.
    pod.configure("server", &["nc", "-ll", "-p", "7777", "-e", "cat", "/etc/name"], |_| {});
    pod.run("server");
    pod.p.wait_for("an answer", || {
        let script = "nc -w 1 127.0.0.1 7777 < /dev/null; true";
        pod.good(&["exec", "two", "sh", "-c", script]) == "server"
    });
    for id in ["two", "server"] {
        pod.good(&["delete", "--force", id]);
        pod.leaves_nothing(id);
    }
    pod.p.wait_for("their processes end", || pod.processes().matches("sleep").count() == 1);
    pod.end();
}

#[test]
fn one_ends_with_who_stands_for_it_and_all_with_the_first() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure("one", &["sh", "-c", "sleep 1001 & sleep 1002"], |_| {});
    for way in ["kill -9", "KILL", "delete"] {
        pod.run("one");
        let pid = i32::try_from(pod.state("one")["pid"].as_i64().unwrap()).unwrap();
        assert!(pod.processes().contains("sleep 1001"));
        match way {
            "kill -9" => {
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL)
                    .unwrap()
            }
            "delete" => drop(pod.good(&["delete", "--force", "one"])),
            signal => drop(pod.good(&["kill", "one", signal])),
        }
        if way == "delete" {
            assert!(!alive(pid));
        } else {
            pod.stops("one");
            pod.good(&["delete", "one"]);
        }
        pod.p.wait_for("its processes end", || !pod.processes().contains("sleep 1001"));
        pod.leaves_nothing("one");
    }
    for name in ["one", "two"] {
        pod.configure(name, &["sleep", "1001"], |_| {});
        pod.run(name);
    }
    pod.good(&["kill", &pod.id, "KILL"]);
    for name in ["one", "two"] {
        pod.stops(name);
        let ended = pod.state(name)["ended"].clone();
        assert_eq!(ended["status"], 137, "{ended}");
        assert!(ended["reason"].as_str().unwrap().contains("sandbox of its pod"), "{ended}");
        pod.good(&["delete", name]);
    }
    pod.end();
}

#[test]
fn an_exit_code_is_the_programs_and_is_kept() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure("one", &["sh", "-c", "kill -SEGV $$; exit 3"], |c| {
        // In the pod's PID namespace a signal without a handler ends it.
        let path = format!("/proc/{}/ns/pid", pod.pid);
        c["linux"]["namespaces"][0] = json!({"type": "pid", "path": path});
    });
    pod.run("one");
    pod.stops("one");
    assert_eq!(pod.state("one")["ended"]["status"], 139);
    pod.good(&["delete", "one"]);
    // There it sees the others, and what it leaves behind ends with it.
    pod.configure("two", &["sh", "-c", "cat /proc/1/cmdline; sleep 1003 & exit 0"], |c| {
        let path = format!("/proc/{}/ns/pid", pod.pid);
        c["linux"]["namespaces"][0] = json!({"type": "pid", "path": path});
    });
    assert_eq!(pod.try_run("two"), (Some(0), "sleep\u{0}1000\u{0}".to_owned()));
    pod.p.wait_for("what it left ends", || !pod.processes().contains("sleep 1003"));
    pod.end();
}

#[test]
fn one_may_be_among_the_processes_of_another() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure("app", &["sh", "-c", "sleep 1004 & wait"], |_| {});
    pod.run("app");
    let pid = pod.state("app")["pid"].as_i64().unwrap();
    // What `kubectl debug --target=app` asks for.
    let among = |c: &mut Value| {
        let path = format!("/proc/{pid}/ns/pid");
        c["linux"]["namespaces"][0] = json!({"type": "pid", "path": path});
    };
    pod.configure("debug", &["sh", "-c", "cat /proc/1/cmdline; echo $$; sleep 1005"], among);
    pod.run("debug");
    pod.p.wait_for("its words", || pod.printed("debug").ends_with('\n'));
    assert_eq!(pod.printed("debug"), "sh\0-c\0sleep 1004 & wait\x003\n");
    // It has its own files, and is one of its own to the command line.
    assert_eq!(pod.good(&["exec", "debug", "cat", "/etc/name"]), "debug");
    let listed = pod.good(&["ps", "app"]);
    assert!(listed.contains("1004") && !listed.contains("1005"), "{listed}");
    // It ends with the first process of the namespace that it is in.
    pod.good(&["kill", "app", "KILL"]);
    for name in ["app", "debug"] {
        pod.stops(name);
        assert_eq!(pod.state(name)["ended"]["status"], 137, "{name}");
    }
    let left = pod.processes();
    assert!(!left.contains("1004") && !left.contains("1005"), "{left}");
    pod.good(&["delete", "debug"]);
    // There is nobody to join any more.
    let bundle = pod.bundle("debug");
    let text = pod.refused(&["run", "--bundle", bundle.to_str().unwrap(), "debug"]);
    assert!(text.contains("/ns/pid"), "{text}");
    pod.leaves_nothing("debug");
    pod.good(&["delete", "app"]);
    pod.end();
}

#[test]
fn an_end_for_want_of_memory_is_told() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let limited = |c: &mut Value| {
        c["linux"]["resources"] = json!({"memory": {"limit": 64 << 20}});
    };
    pod.configure("other", &["sleep", "1000"], limited);
    pod.run("other");
    let kills = |id: &str| {
        let event = pod.events(id);
        event["data"]["quark"]["counts"]["oom_kills"].clone()
    };
    let grows = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo done";
    for (name, script) in [("one", grows), ("two", "sh -c 'exit 137'; exit $?")] {
        pod.configure(name, &["sh", "-c", script], limited);
        pod.run(name);
        pod.stops(name);
        let ended = pod.state(name)["ended"].clone();
        assert_eq!(ended["out_of_memory"], name == "one", "{ended}");
        assert_eq!(ended["status"], 137, "{ended}");
        pod.good(&["delete", name]);
    }
    // That is told of the pod, and of no other of its containers.
    assert_eq!((kills(&pod.id), kills("other")), (json!(1), json!(0)));
    pod.good(&["delete", "--force", "other"]);
    pod.end();
}

#[test]
fn a_program_that_cannot_be_run_leaves_nothing() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure("one", &["/no/such/program"], |_| {});
    let (code, text) = pod.try_run("one");
    assert!(code != Some(0) && text.contains("/no/such/program"), "{code:?} {text}");
    pod.leaves_nothing("one");
    pod.configure("one", &["true"], |c| {
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.push(json!({"destination": "/bin/true/x", "type": "tmpfs", "source": "tmpfs"}));
    });
    let (code, text) = pod.try_run("one");
    assert!(code != Some(0) && text.contains("/bin/true/x"), "{code:?} {text}");
    pod.configure("one", &["true"], |_| {});
    assert_eq!(pod.try_run("one").0, Some(0));
    // Created and never started.
    let bundle = pod.bundle("one");
    let mut command =
        pod.p.quark(&["create", "--bundle", bundle.to_str().unwrap(), &pod.id_of("one")]);
    assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    assert_eq!(pod.state("one")["status"], "created");
    pod.good(&["delete", "one"]);
    pod.leaves_nothing("one");
    pod.end();
}

#[test]
fn what_is_for_all_is_asked_of_the_first() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure("one", &["sleep", "1000"], |_| {});
    pod.run("one");
    for args in [&["pause", "one"][..], &["kill", "one", "STOP"], &["hibernate", "one"]] {
        let error = pod.refused(args);
        assert!(error.contains(&format!("use {}", pod.id)), "{args:?}: {error}");
    }
    pod.good(&["pause", &pod.id]);
    assert!(pod.refused(&["exec", "one", "true"]).contains("that is paused"));
    for name in ["one", &pod.id] {
        assert_eq!(pod.state(name)["status"], "paused", "{name}");
    }
    let list: Value = serde_json::from_str(&pod.good(&["list", "--format", "json"])).unwrap();
    let told: Vec<_> = list.as_array().unwrap().iter().map(|c| &c["status"]).collect();
    assert_eq!(told, ["paused"; 2]);
    pod.configure("two", &["true"], |_| {});
    let bundle = pod.bundle("two");
    let create = ["create", "--bundle", bundle.to_str().unwrap(), "two"];
    assert!(pod.refused(&create).contains("is paused"));
    pod.good(&["resume", &pod.id]);
    assert_eq!(pod.state("one")["status"], "running");
    pod.configure("two", &["true"], |c| c["linux"]["namespaces"][4] = json!({"type": "network"}));
    let error = pod.refused(&create);
    assert!(error.contains("another net namespace than the pod"), "{error}");
    pod.configure("two", &["true"], |c| {
        c["linux"]["namespaces"][2] = json!({"type": "ipc", "path": "/proc/self/ns/ipc"});
    });
    assert!(pod.refused(&create).contains("another ipc namespace than the pod"));
    pod.configure("two", &["true"], |c| c["linux"]["sysctl"] = json!({"kernel.msgmax": "5000"}));
    assert!(pod.refused(&create).contains("sysctl kernel.msgmax is the pod's"));
    pod.configure("two", &["true"], |c| c["annotations"] = json!({"io.quark.pod": "both"}));
    assert!(pod.refused(&create).contains("io.quark.pod"));
    pod.leaves_nothing("two");
    pod.good(&["delete", "--force", "one"]);
    pod.end();
}

#[test]
fn a_pod_sleeps_as_a_whole_and_wakes_for_each() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure(
        "one",
        // It stays: its end would be that of the process that writes.
        &["sh", "-c", "while :; do read line < /data/in; echo \"got $line\"; done"],
        |_| {},
    );
    let fifo = pod.bundle("one").join("rootfs/data/in");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pod.run("one");
    pod.good(&["hibernate", &pod.id]);
    for id in ["one", &pod.id] {
        assert_eq!(pod.state(id)["hibernation"], "Hibernated", "{id}");
    }
    // A further one wakes it, and so does an exec in one.
    pod.configure("two", &["cat", "/etc/name"], |_| {});
    assert_eq!(pod.try_run("two"), (Some(0), "two".to_owned()));
    assert_ne!(pod.state("one")["hibernation"], "Hibernated");
    pod.good(&["hibernate", &pod.id]);
    pod.good(&["exec", "one", "sh", "-c", "echo hello > /data/in"]);
    pod.p.wait_for("the reader", || pod.printed("one") == "got hello\n");
    // One may go while the others sleep.
    pod.configure("three", &["sleep", "1000"], |_| {});
    pod.run("three");
    pod.good(&["hibernate", &pod.id]);
    pod.good(&["delete", "--force", "three"]);
    pod.p.wait_for("it is gone", || pod.processes().matches("sleep").count() == 1);
    pod.end();
}

#[test]
fn containers_meet_on_a_volume() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let volume = pod.p.volume();
    let with_volume = |c: &mut Value| {
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.push(json!({"destination": "/v", "type": "bind", "source": volume, "options": ["rbind", "rw"]}));
    };
    let reader = "busybox mkfifo /v/fifo; cat /v/fifo; sleep 1000";
    pod.configure("one", &["sh", "-c", reader], with_volume);
    pod.run("one");
    pod.p.wait_for("the FIFO", || volume.join("fifo").exists());
    pod.configure("two", &["sh", "-c", "echo through > /v/fifo"], with_volume);
    assert_eq!(pod.try_run("two").0, Some(0));
    pod.p.wait_for("what came through", || pod.printed("one") == "through\n");
    pod.good(&["delete", "--force", "one"]);
    pod.end();
}

#[test]
fn each_gets_its_own_early_signal() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    for name in ["one", "two"] {
        let script = "sleep 0.4; trap 'echo got it; exit 0' TERM; while :; do sleep 0.1; done";
        pod.configure(name, &["sh", "-c", script], |_| {});
    }
    let start_and_kill = || {
        let begin = Instant::now();
        ["one", "two"].iter().for_each(|name| pod.run(name));
        for name in ["one", "two"] {
            pod.good(&["kill", name, "TERM"]);
        }
        begin.elapsed()
    };
    // A program has a second for its handler; a busy host, or its disk, may take that.
    while start_and_kill() > Duration::from_millis(500) {
        for name in ["one", "two"] {
            pod.good(&["delete", "--force", name]);
        }
    }
    for name in ["one", "two"] {
        pod.stops(name);
        assert_eq!(pod.printed(name), "got it\n", "{name}");
        pod.good(&["delete", name]);
    }
    pod.end();
}

#[test]
fn one_that_cannot_be_made_leaves_no_mounts() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    pod.configure("one", &["true"], |_| {});
    let before = held(pod.pid).1;
    let bundle = pod.bundle("one");
    for _ in 0..2 {
        let bundle = bundle.to_str().unwrap();
        pod.refused(&["create", "--pid-file", "/nonexistent/x", "--bundle", bundle, "one"]);
        assert_eq!(held(pod.pid).1, before);
    }
    // More than the limits allow is held already.
    pod.configure("two", &["true"], |c| {
        c["linux"]["resources"] = json!({"memory": {"limit": 64 << 20}});
    });
    pod.good(&["exec", &pod.id, "sh", "-c", "busybox dd if=/dev/zero of=/tmp/big bs=1M count=80"]);
    let (code, text) = pod.try_run("two");
    assert!(code != Some(0) && text.contains("holds more memory"), "{code:?} {text}");
    pod.leaves_nothing("two");
    pod.good(&["exec", &pod.id, "sh", "-c", "echo > /tmp/big"]);
    assert_eq!(pod.try_run("two"), (Some(0), String::new()));
    pod.end();
}

#[test]
fn a_terminal_is_seen_by_its_own_container_alone() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let sockets: Vec<_> = ["one", "two"]
        .map(|name| {
            // Neither by a node nor as the console.
            let script = "tty; ls /dev/pts; busybox mknod /tmp/0 c 136 0; busybox mknod /tmp/1 c 136 1; \
                for i in /tmp/0 /tmp/1; do (: < $i) 2> /dev/null && echo reached $i; done; sleep 1000";
            pod.configure(name, &["sh", "-c", script], |c| {
                let caps = json!(["CAP_MKNOD", "CAP_DAC_OVERRIDE"]);
                c["process"]["capabilities"] = json!({"bounding": caps, "effective": caps, "permitted": caps});
                c["process"]["terminal"] = json!(true);
            });
            let path = pod.p.dir.join(format!("{name}.sock"));
            let listener = UnixListener::bind(&path).unwrap();
            let bundle = pod.bundle(name);
            let args = [
                "run",
                "--detach",
                "--console-socket",
                path.to_str().unwrap(),
                "--bundle",
                bundle.to_str().unwrap(),
                name,
            ];
            pod.good(&args);
            master_of(&listener)
        })
        .into();
    let mut seen = Vec::new();
    for master in sockets {
        let mut text = String::new();
        pod.p.wait_for("its terminal", || {
            let mut block = [0; 256];
            let n = rustix::io::read(&master, &mut block).unwrap();
            text.push_str(&String::from_utf8_lossy(&block[..n]));
            text.contains("reached /tmp/")
        });
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        assert_eq!(words.len(), 5, "{text}");
        assert_eq!(words[4], format!("/tmp/{}", words[1]), "{text}");
        assert_eq!(words[0], format!("/dev/pts/{}", words[1]));
        seen.push(words[1].clone());
    }
    assert_ne!(seen[0], seen[1]);
    for name in ["one", "two"] {
        pod.good(&["delete", "--force", name]);
    }
    pod.end();
}

/// Descriptors of a process, and what is mounted in its mount namespace.
fn held(pid: i64) -> (usize, usize) {
    let count = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).unwrap().count();
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    (count("fd"), mounts.lines().count())
}

#[test]
fn a_thousand_containers_come_and_go() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    let volume = pod.p.volume();
    pod.configure("one", &["cat", "/v/file", "/etc/name"], |c| {
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.push(json!({"destination": "/v", "type": "bind", "source": volume, "options": ["rbind", "ro"]}));
        let file = volume.join("file");
        mounts.push(json!({"destination": "/v/file", "type": "bind", "source": file, "options": ["ro"]}));
    });
    fs::write(volume.join("file"), "volume ").unwrap();
    let heap = || {
        let event = pod.events(&pod.id);
        event["data"]["quark"]["memory"]["kernel_heap"].as_u64().unwrap()
    };
    let round = || assert_eq!(pod.try_run("one"), (Some(0), "volume one".to_owned()));
    for _ in 0..20 {
        round();
    }
    let before = (heap(), held(pod.pid));
    let rounds = repeats(100);
    for _ in 0..rounds {
        round();
    }
    let after = (heap(), held(pod.pid));
    assert_eq!(before.1, after.1, "descriptors and mounts");
    let grown = after.0.saturating_sub(before.0);
    assert!(grown < 64 * u64::from(rounds) + 16384, "the kernel's heap has grown by {grown} bytes");
    assert!(Path::new(&format!("/proc/{}", pod.pid)).exists());
    pod.end();
}

#[test]
fn statistics_of_a_further_container_are_its_own() {
    let Some(pod) = Pod::new(|_| {}) else { return };
    // 8 MiB that its shell holds, and three processes; time of one that has ended counts too.
    let busy = "x=$(head -c 8388608 /dev/zero | tr '\\0' x); sleep 1000 & sleep 1000 &\n\
                sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'\n\
                echo up; while :; do sleep 1000; done";
    for name in ["busy", "idle"] {
        pod.configure(
            name,
            &["sh", "-c", if name == "busy" { busy } else { "sleep 1000" }],
            |_| {},
        );
        pod.run(name);
    }
    pod.p.wait_for("the work", || pod.printed("busy").contains("up"));
    let stats = |name| {
        let event = pod.events(name);
        let number = |path: &str| event["data"].pointer(path).unwrap().as_u64().unwrap();
        (number("/memory/usage/usage"), number("/cpu/usage/total"), number("/pids/current"))
    };
    let (busy, idle) = (stats("busy"), stats("idle"));
    assert!(busy.0 > 8 << 20 && busy.0 < 64 << 20, "{busy:?}");
    assert!(busy.1 > 10_000_000, "{busy:?}");
    assert_eq!(busy.2, 4, "{busy:?}");
    assert!(idle.0 > 0 && idle.0 < 8 << 20 && idle.1 < busy.1 / 2, "{idle:?} {busy:?}");
    assert_eq!(idle.2, 1);
    // They go on, and never back.
    pod.good(&["exec", "busy", "sh", "-c", "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done"]);
    assert!(stats("busy").1 > busy.1);
    pod.end();
}
