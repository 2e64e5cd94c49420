//! Bad input: one clear line, runc's exit code, and nothing left behind.

use std::fs;

use serde_json::{Value, json};

use super::shared::skip;
use super::support::{Place, place};

/// A bundle made wrong.
struct Case {
    name: &'static str,
    spoil: fn(&Place),
    /// A part of the one line.
    says: &'static str,
}

fn config(place: &Place, change: impl FnOnce(&mut Value)) {
    place.configure(&["true"], change);
}

const CASES: &[Case] = &[
    Case {
        name: "no config.json",
        spoil: |p| fs::remove_file(p.bundle.join("config.json")).unwrap(),
        says: "config.json not found",
    },
    Case {
        name: "config.json cut off",
        spoil: |p| fs::write(p.bundle.join("config.json"), "{\"ociVersion\": ").unwrap(),
        says: "not a valid OCI configuration",
    },
    Case {
        name: "config.json is a number",
        spoil: |p| fs::write(p.bundle.join("config.json"), "17").unwrap(),
        says: "not a valid OCI configuration",
    },
    Case {
        name: "config.json is a directory",
        spoil: |p| {
            fs::remove_file(p.bundle.join("config.json")).unwrap();
            fs::create_dir(p.bundle.join("config.json")).unwrap();
        },
        says: "config.json",
    },
    Case {
        name: "a FIFO for a network namespace",
        spoil: |p| {
            let fifo = p.bundle.join("fifo");
            nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
            config(p, |c| {
                c["linux"]["namespaces"] =
                    json!([{"type": "pid"}, {"type": "network", "path": fifo}]);
            });
        },
        says: "joining the network namespace: Invalid argument",
    },
    Case {
        name: "a mount point below a file",
        spoil: |p| {
            config(p, |c| {
                let mount = json!({"destination": "/bin/busybox/x", "type": "tmpfs"});
                c["mounts"].as_array_mut().unwrap().push(mount);
            });
        },
        says: "making /bin/busybox/x in the container failed: not a directory",
    },
    Case {
        name: "no rootfs",
        spoil: |p| fs::remove_dir_all(p.rootfs()).unwrap(),
        says: "No such file or directory",
    },
    Case {
        name: "rootfs is a file",
        spoil: |p| config(p, |c| c["root"]["path"] = json!("config.json")),
        says: "not a directory",
    },
    Case {
        name: "no root",
        spoil: |p| config(p, |c| drop(c.as_object_mut().unwrap().remove("root"))),
        says: "\"root\" is missing",
    },
    Case {
        name: "no process",
        spoil: |p| config(p, |c| drop(c.as_object_mut().unwrap().remove("process"))),
        says: "\"process\" is missing",
    },
    Case {
        name: "no args",
        spoil: |p| config(p, |c| c["process"]["args"] = json!([])),
        says: "args must not be empty",
    },
    Case {
        name: "relative cwd",
        spoil: |p| config(p, |c| c["process"]["cwd"] = json!("tmp")),
        says: "cwd must be an absolute path",
    },
    Case {
        name: "a soft limit above the hard one",
        spoil: |p| {
            config(p, |c| {
                c["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 2, "hard": 1}]);
            });
        },
        says: "soft limit 2 is above hard limit 1",
    },
    Case {
        name: "a score for the host's out-of-memory killer that there is not",
        spoil: |p| config(p, |c| c["process"]["oomScoreAdj"] = json!(1001)),
        says: "oomScoreAdj 1001 is not between -1000 and 1000",
    },
    Case {
        name: "a propagation that there is not",
        spoil: |p| config(p, |c| c["linux"]["rootfsPropagation"] = json!("rprivat")),
        says: "rootfsPropagation=rprivat is not supported",
    },
    Case {
        name: "a long host name",
        spoil: |p| config(p, |c| c["hostname"] = json!("h".repeat(65))),
        says: "hostname has 65 bytes, and 64 are the most",
    },
    Case {
        name: "missing volume",
        spoil: |p| {
            config(p, |c| {
                c["mounts"] = json!([{"destination": "/data", "source": "/nonexistent/v", "options": ["bind"]}]);
            });
        },
        says: "/nonexistent/v",
    },
    Case {
        name: "a device as volume",
        spoil: |p| {
            config(p, |c| {
                c["mounts"] =
                    json!([{"destination": "/data", "source": "/dev/zero", "options": ["bind"]}])
            });
        },
        says: "device",
    },
    Case {
        name: "unknown file system",
        spoil: |p| {
            config(p, |c| {
                c["mounts"] = json!([{"destination": "/data", "type": "ext4", "source": "/dev/x"}])
            })
        },
        says: "\"ext4\" is not supported",
    },
    Case {
        name: "user namespace",
        spoil: |p| {
            config(p, |c| c["linux"]["namespaces"] = json!([{"type": "pid"}, {"type": "user"}]))
        },
        says: "user namespaces are not supported",
    },
    Case {
        name: "the host's processes",
        spoil: |p| config(p, |c| c["linux"]["namespaces"] = json!([{"type": "network"}])),
        says: "linux.namespaces has no pid namespace",
    },
    Case {
        name: "a device of the host's",
        spoil: |p| {
            config(p, |c| {
                c["linux"]["devices"] =
                    json!([{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}]);
            });
        },
        says: "a guest reaches no device of the host, as /dev/fuse (c 10:229) would be",
    },
    Case {
        name: "a device where the image has a directory",
        spoil: |p| {
            config(p, |c| {
                c["linux"]["devices"] =
                    json!([{"path": "/dev/pts", "type": "c", "major": 1, "minor": 3}]);
            });
        },
        says: "making /dev/pts in the container failed: file exists",
    },
    Case {
        name: "missing network namespace",
        spoil: |p| {
            config(p, |c| {
                c["linux"]["namespaces"] =
                    json!([{"type": "pid"}, {"type": "network", "path": "/nonexistent/ns"}])
            })
        },
        says: "network namespace /nonexistent/ns",
    },
    Case {
        name: "not a network namespace",
        spoil: |p| {
            config(p, |c| {
                c["linux"]["namespaces"] =
                    json!([{"type": "pid"}, {"type": "network", "path": "/dev/null"}])
            })
        },
        says: "in the network namespace /dev/null",
    },
    Case {
        name: "a namespace twice",
        spoil: |p| {
            config(p, |c| {
                c["linux"]["namespaces"] =
                    json!([{"type": "pid"}, {"type": "mount"}, {"type": "pid"}])
            })
        },
        says: "namespace twice",
    },
    Case {
        name: "a variable without a value",
        spoil: |p| config(p, |c| c["process"]["env"] = json!(["PATH=/bin", "NAME"])),
        says: "\"NAME\" has no \"=\"",
    },
    Case {
        name: "an unknown option of a tmpfs",
        spoil: |p| {
            config(p, |c| {
                c["mounts"] = json!([{"destination": "/t", "type": "tmpfs", "options": ["nosuid", "foo=bar"]}])
            });
        },
        says: "mount /t: \"foo=bar\" is no option",
    },
    Case {
        name: "less memory than the sandbox itself needs",
        spoil: |p| config(p, |c| c["linux"]["resources"] = json!({"memory": {"limit": 5 << 20}})),
        says: "memory.limit of 5242880 bytes is too small: a sandbox, its kernel included, needs",
    },
    Case {
        name: "fewer processes than the sandbox itself",
        spoil: |p| config(p, |c| c["linux"]["resources"] = json!({"pids": {"limit": 3}})),
        says: "pids.limit of 3 is too small",
    },
    Case {
        name: "cgroupsPath in a unit that is no slice",
        spoil: |p| config(p, |c| c["linux"]["cgroupsPath"] = json!("system.service:quark:x")),
        says: "not the name of a slice",
    },
    Case {
        name: "cgroupsPath upwards",
        spoil: |p| config(p, |c| c["linux"]["cgroupsPath"] = json!("/quark/../../x")),
        says: "\"..\"",
    },
    Case {
        name: "a limit that makes no sense",
        spoil: |p| config(p, |c| c["linux"]["resources"] = json!({"cpu": {"cpus": "9999"}})),
        says: "cpuset.cpus",
    },
    Case {
        name: "a failing createRuntime hook",
        spoil: |p| config(p, |c| c["hooks"] = json!({"createRuntime": [{"path": "/bin/false"}]})),
        says: "createRuntime hook /bin/false: failed with exit code 1",
    },
    Case {
        name: "a missing prestart hook",
        spoil: |p| config(p, |c| c["hooks"] = json!({"prestart": [{"path": "/nonexistent/hook"}]})),
        says: "prestart hook /nonexistent/hook",
    },
    Case {
        name: "a failing createContainer hook",
        spoil: |p| config(p, |c| c["hooks"] = json!({"createContainer": [{"path": "/bin/false"}]})),
        says: "createContainer hook /bin/false",
    },
    Case {
        name: "a relative hook",
        spoil: |p| config(p, |c| c["hooks"] = json!({"poststop": [{"path": "hook"}]})),
        says: "absolute path",
    },
    Case {
        name: "a hook inside the guest",
        spoil: |p| config(p, |c| c["hooks"] = json!({"startContainer": [{"path": "/bin/true"}]})),
        says: "startContainer hooks are not supported",
    },
    Case {
        name: "a terminal without a socket",
        spoil: |p| config(p, |c| c["process"]["terminal"] = json!(true)),
        says: "console socket",
    },
];

#[test]
fn a_bad_bundle_is_refused_and_leaves_nothing() {
    let Some(p) = place() else { return };
    let rootfs = p.rootfs();
    let saved = p.dir.join("saved");
    for case in CASES {
        // The first cases remove what the next ones need.
        if rootfs.exists() {
            fs::rename(&rootfs, &saved).unwrap();
        }
        fs::remove_dir_all(&p.bundle).unwrap();
        fs::create_dir(&p.bundle).unwrap();
        if case.name == "no rootfs" {
            fs::create_dir(&rootfs).unwrap();
        } else {
            fs::rename(&saved, &rootfs).unwrap();
        }
        config(&p, |_| {});
        (case.spoil)(&p);
        for command in [&["create"][..], &["run", "-d"]] {
            let mut args = command.to_vec();
            args.push(&p.id);
            refused(&p, &args, case.says, 1, case.name);
        }
    }
}

/// Runs a command that must fail with `code` and one line that contains `says`, and leave nothing.
fn refused(p: &Place, args: &[&str], says: &str, code: i32, name: &str) {
    let output = p.output(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{name}: {args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{name}: {args:?}: not one line: {stderr}");
    assert!(stderr.contains(says), "{name}: {args:?}: {stderr:?} does not say {says:?}");
    assert_eq!(p.leftovers(&p.id), [""; 0], "{name}: {args:?}");
}

#[test]
fn an_environment_that_is_too_long_is_said_to_be() {
    let Some(p) = place() else { return };
    let long: Vec<String> = (0..200).map(|n| format!("V{n}={}", "x".repeat(1000))).collect();
    config(&p, |c| c["process"]["env"] = json!(long));
    refused(&p, &["run", "-d", &p.id], "and a sandbox takes 163840: shorten them", 1, "long");
}

#[test]
fn bad_arguments_are_refused() {
    let Some(p) = place() else { return };
    let long = "x".repeat(300);
    let cases: &[(&[&str], &str, i32)] = &[
        (&["state", "nobody"], "container \"nobody\" does not exist", 1),
        (&["start", "nobody"], "does not exist", 1),
        (&["kill", "nobody", "TERM"], "does not exist", 1),
        (&["delete", "nobody"], "does not exist", 1),
        (&["ps", "nobody"], "does not exist", 1),
        (&["pause", "nobody"], "does not exist", 1),
        (&["events", "--stats", "nobody"], "does not exist", 1),
        (&["update", "--memory", "1", "nobody"], "does not exist", 1),
        (&["exec", "nobody", "true"], "does not exist", 255),
        (&["create", "a/b"], "invalid container ID format", 1),
        (
            &["create", ".."],
            "invalid container ID format \"..\": it is to name a directory of its own",
            1,
        ),
        (
            &["create", &long],
            "invalid container ID format: it has 300 characters, and 200 are the most",
            1,
        ),
        (&["update", "--memory", "64X", "nobody"], "use bytes", 1),
        (&["do", "-v", "/tmp:/", "true"], "GUEST must not be /, /proc", 1),
        (&["do", "-v", "/tmp://.", "true"], "GUEST must not be /, /proc", 1),
        (&["do", "-v", "/tmp:/usr/..", "true"], "GUEST must not be /, /proc", 1),
        (&["do", "-v", "/tmp:/proc/sys", "true"], "GUEST must not be /, /proc", 1),
        (&["create", ""], "invalid container ID format", 1),
        (&["state", "ä"], "invalid container ID format", 1),
        (&["kill", "nobody", "FROB"], "unknown signal", 1),
        (&["frob"], "frob", 1),
        (&["do", "--netwrok", "host", "ls"], "unexpected argument '--netwrok' found; a similar", 1),
        (&["exec", "nobody", "--usr", "5", "true"], "unexpected argument '--usr'", 1),
        (&["exec", "--user", "bob", "nobody", "true"], "does not exist", 255),
        (&["run", "--bundle", "config.json", "x"], "is not a directory: give the one", 1),
        (&["create"], "<ID>", 1),
        (&["create", "--console-socket", "/nonexistent", "x"], "console socket", 1),
        (&["create", "--preserve-fds", "2", "x"], "--preserve-fds", 1),
        (&["--systemd-cgroup", "create", "x"], "--systemd-cgroup", 1),
        (&["--root", "/proc/quark", "create", "x"], "creating state directory /proc/quark", 1),
    ];
    for (args, says, code) in cases {
        refused(&p, args, says, *code, "arguments");
        assert_eq!(p.leftovers("x"), [""; 0], "{args:?}");
    }
    assert!(p.output(&["delete", "--force", "nobody"]).status.success());
}

#[test]
fn help_is_a_command_and_is_pointed_to_once() {
    let Some(p) = place() else { return };
    assert!(p.good(&["help"]).contains("Usage: quark"));
    assert!(p.good(&["help", "do"]).contains("--network"));
    assert_eq!(p.good(&["do", "ls", "-d", "--", "/etc"]), "/etc\n");
    for args in [&["list", "--format", "frob"][..], &["frob"], &["do", "--netwrok", "host", "ls"]] {
        let errors = String::from_utf8(p.output(args).stderr).unwrap();
        assert_eq!(errors.matches("--help").count(), 1, "{errors}");
    }
}

#[test]
fn a_directory_that_is_gone_is_told() {
    let Some(p) = place() else { return };
    let gone = p.dir.join("gone");
    fs::create_dir(&gone).unwrap();
    let script = "cd \"$1\" && rmdir \"$1\" && exec \"$2\" do true";
    let output = std::process::Command::new("/bin/sh")
        .args(["-c", script, "sh"])
        .arg(&gone)
        .arg(crate::shared::quark_binary())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("has been deleted: change to another"), "{errors}");
}

#[test]
fn a_platform_that_does_not_exist_is_refused() {
    let Some(p) = place() else { return };
    // Not with the platform under test. Of kvm where it does not work see platform.rs.
    let mut command = std::process::Command::new(crate::shared::quark_binary());
    command
        .arg("--root")
        .arg(&p.root)
        .args(["--platform", "frob", "create", "x"])
        .current_dir(&p.bundle);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "not one line: {stderr}");
    assert!(stderr.contains("invalid value 'frob'"), "{stderr:?}");
    assert_eq!(p.leftovers("x"), [""; 0]);
}

#[test]
fn the_log_gets_the_error_as_runc_writes_it() {
    let Some(p) = place() else { return };
    let log = p.dir.join("log.json");
    let output =
        p.output(&["--log", log.to_str().unwrap(), "--log-format", "json", "state", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    let text = fs::read_to_string(&log).unwrap();
    let line: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(line["level"], "error");
    assert!(line["msg"].as_str().unwrap().contains("\"nobody\" does not exist"), "{line}");
    assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
}

#[test]
fn an_id_in_use_is_refused_and_its_owner_stays() {
    let Some(p) = place() else { return };
    fs::create_dir_all(p.root.join(&p.id)).unwrap();
    let output = p.output(&["create", &p.id]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("already exists"));
    assert!(p.root.join(&p.id).is_dir());
    // What a killed `create` leaves, `delete --force` takes away.
    p.good(&["delete", "--force", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn without_root_there_is_no_permission() {
    use std::os::unix::process::CommandExt;
    let Some(p) = place() else { return };
    if std::env::var("QUARK_PLATFORM").is_ok_and(|p| p == "kvm") {
        return skip("/dev/kvm is not for other users, which is told first");
    }
    let mut command = crate::shared::quark();
    let output = command
        .args(["--root", "/run/quark-not-allowed", "create", &p.id])
        .current_dir(&p.bundle)
        .uid(65534);
    // A build directory that others may not enter cannot show it.
    let Ok(output) = output.output() else {
        return skip("the binary cannot be run as another user");
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.to_lowercase().contains("permission denied"), "{stderr}");
    assert!(stderr.contains("--root") && stderr.contains("XDG_RUNTIME_DIR"), "{stderr}");
    // A directory in one that others may not enter.
    let closed = p.dir.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = crate::shared::quark();
    command.arg("--root").arg(closed.join("state")).arg("list").uid(65534);
    let stderr = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(stderr.contains("ermission denied") && stderr.contains("--root"), "{stderr}");
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn a_state_directory_that_others_can_write_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let Some(p) = place() else { return };
    fs::create_dir(&p.root).unwrap();
    let commands: &[&[&str]] =
        &[&["create", &p.id], &["list"], &["state", &p.id], &["delete", "--force", &p.id]];
    let try_all = |says: &str| {
        for args in commands {
            let output = p.output(args);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
            assert!(stderr.contains(says), "{args:?}: {stderr:?} does not say {says:?}");
            assert!(!p.root.join(&p.id).exists(), "{args:?}");
        }
    };
    fs::set_permissions(&p.root, fs::Permissions::from_mode(0o777)).unwrap();
    try_all("may be written by others (mode 0777): chmod go-w it");
    fs::set_permissions(&p.root, fs::Permissions::from_mode(0o770)).unwrap();
    try_all("may be written by others");
    fs::set_permissions(&p.root, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&p.root, Some(65534), None).unwrap();
    try_all("belongs to user 65534, not to user 0: choose another --root");
    // A link of theirs leads where they like.
    let ours = p.dir.join("ours");
    fs::create_dir(&ours).unwrap();
    fs::remove_dir(&p.root).unwrap();
    symlink(&ours, &p.root).unwrap();
    std::os::unix::fs::lchown(&p.root, Some(65534), None).unwrap();
    try_all("belongs to user 65534");
    fs::remove_file(&p.root).unwrap();
    fs::write(&p.root, "").unwrap();
    try_all("is not a directory");
}

#[test]
fn a_pid_file_of_another_user_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let Some(p) = place() else { return };
    // A directory for everyone, as /tmp, and links where the file, and the one that becomes it,
    // might come to lie.
    let shared = p.dir.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let victim = p.dir.join("victim");
    fs::write(&victim, "precious").unwrap();
    for name in [".pid", "pid"] {
        symlink(&victim, shared.join(name)).unwrap();
    }
    p.create(&["--pid-file", shared.join("pid").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_to_string(shared.join("pid")).unwrap(), p.state()["pid"].to_string());
    p.good(&["delete", "--force", &p.id]);
}
