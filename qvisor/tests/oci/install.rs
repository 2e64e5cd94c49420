//! `quark install` and `uninstall` on files of engines, and what runsc's callers see.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::shared;
use super::support::place;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn quark(args: &[&str]) -> Output {
    shared::quark().args(args).output().unwrap()
}

#[test]
fn docker_learns_of_it_and_forgets_it() {
    let Some(place) = place() else { return };
    let (config, prefix) = (place.dir.join("daemon.json"), place.dir.join("prefix"));
    let before = "{\n  \"debug\": false,\n  \"runtimes\" : { }\n}\n";
    fs::write(&config, before).unwrap();
    let at =
        ["--docker", "--config", config.to_str().unwrap(), "--prefix", prefix.to_str().unwrap()];
    let run = |command: &str, more: &[&str]| {
        let output = quark(&[&[command], &at[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let option = ["--runtime-arg", "--hibernate-after=30s"];
    let diff = run("install", &[&option[..], &["--dry-run"]].concat());
    assert!(diff.contains("+") && diff.contains("runtimeArgs"), "{diff}");
    assert!(!prefix.exists() && fs::read_to_string(&config).unwrap() == before);
    let said = run("install", &option);
    assert!(said.contains("next: systemctl reload docker"), "{said}");
    let value: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let binary = prefix.join("bin/quark");
    let runtime = json!({"path": binary, "runtimeArgs": ["--hibernate-after=30s"]});
    assert_eq!(value, json!({"debug": false, "runtimes": {"quark": runtime}}));
    assert!(Command::new(&binary).arg("--version").status().unwrap().success());
    assert!(run("install", &option).contains("nothing changed"));
    run("uninstall", &[]);
    assert_eq!(fs::read_to_string(&config).unwrap(), before);
    assert!(!binary.exists());
    assert!(run("uninstall", &[]).contains("is not registered"));
}

#[test]
fn what_would_not_last_is_refused_in_one_line() {
    let Some(place) = place() else { return };
    let config = place.dir.join("daemon.json");
    let at = ["install", "--docker", "--config", config.to_str().unwrap()];
    let refused = |more: &[&str], says: &str| {
        let output = quark(&[&at[..], more].concat());
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.lines().count() == 1, "{said}");
        assert!(said.contains(says), "{said}");
        assert!(!config.exists());
    };
    // The binary under test lies where builds do.
    refused(&[], "give --prefix /usr/local");
    let prefix = place.dir.join("prefix");
    let prefix = ["--prefix", prefix.to_str().unwrap()];
    refused(&[&prefix[..], &["--runtime-arg=--no-such"]].concat(), "--runtime-arg --no-such: ");
    refused(&[&prefix[..], &["--containerd"]].concat(), "--config is the file of one engine");
    refused(&["--prefix", "relative"], "use an absolute path");
    refused(&[&prefix[..], &["--name", "Quark"]].concat(), "lower-case letters");
}

#[test]
fn a_full_disk_leaves_the_file_as_it_was() {
    let Some(place) = place() else { return };
    let script = r#"
        set -e
        mount -t tmpfs -o size=16k none "$1"
        printf '{"runtimes": {}}' > "$1/daemon.json"
        head -c 12k /dev/zero > "$1/fill"; cat /dev/zero > "$1/fill2" 2>/dev/null || true
        if "$2" install --docker --config "$1/daemon.json" --prefix "$3"; then exit 9; fi
        cat "$1/daemon.json"; ls "$1" | wc -l
    "#;
    let dir = place.volume();
    let binary = shared::quark();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([dir.as_os_str(), binary.get_program(), place.dir.join("prefix").as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    assert!(out.ends_with("{\"runtimes\": {}}3\n"), "{output:?}");
    assert!(text(&output.stderr).contains("No space left on device"), "{output:?}");
}

#[test]
fn all_runtimes_of_this_binary_go_when_no_container_runs() {
    let Some(place) = place() else { return };
    place.configure(&["sleep", "1000"], |_| {});
    let binary = fs::canonicalize(shared::quark().get_program()).unwrap();
    let config = place.dir.join("daemon.json");
    let runtimes = |names: &[&str]| {
        let all = names.iter().map(|&name| {
            let path = if name == "other" { Path::new("/usr/local/bin/quark") } else { &binary };
            (name.to_owned(), json!({"path": path}))
        });
        json!({"debug": true, "runtimes": all.collect::<serde_json::Map<_, _>>()})
    };
    let before = runtimes(&["quark", "other", "quark-idle"]);
    fs::write(&config, before.to_string()).unwrap();
    // In a mount namespace where the default state directory has no containers but its own.
    let script = r#"
        mount -t tmpfs none /run || exit 2
        "$1" run --detach --bundle "$3" "$4" </dev/null >/dev/null 2>&1 || exit 3
        "$1" uninstall --all --docker --config "$2" && exit 4
        cmp "$2" "$2.copy" || exit 5
        "$1" delete --force "$4" || exit 6
        "$1" uninstall --all --docker --config "$2" || exit 7
        "$1" uninstall --all --docker --config "$2" || exit 8
        printf 'disabled_plugins = ["cri"]\n' > "$2.toml"
        "$1" uninstall --all --containerd --config "$2.toml" || exit 9
        printf '# quark\ndisabled_plugins = ["cri"]\n' > "$2.toml"
        ! "$1" uninstall --all --containerd --config "$2.toml"
    "#;
    fs::copy(&config, place.dir.join("daemon.json.copy")).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([binary.as_os_str(), config.as_os_str(), place.bundle.as_os_str()])
        .arg(&place.id)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    let [running, version] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(running.contains("a container of quark runs"), "{said}");
    // A file in a format of old may have it only if it says so.
    assert!(version.contains("its format is of version 1"), "{said}");
    let left: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    assert_eq!(left, runtimes(&["other"]));
    let said = text(&output.stdout);
    assert_eq!(said.matches("is no runtime of Docker any more").count(), 2, "{said}");
    assert_eq!(said.matches("next: ").count(), 1, "{said}");
    assert!(said.ends_with("nothing changed\n"), "{said}");
}

#[test]
fn kubernetes_gets_a_class() {
    let output = quark(&["install", "--kubernetes", "-", "--name", "quark-idle"]);
    assert!(output.status.success());
    let expected = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: quark-idle\n\
                    handler: quark-idle\n";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn shells_complete_its_words() {
    for shell in ["bash", "zsh", "fish"] {
        let output = quark(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("hibernate"), "{shell}");
    }
}

/// The way of containerd-shim-runsc-v1 through a container's life.
#[test]
fn called_as_runsc_it_understands_runsc() {
    let Some(place) = place() else { return };
    let runsc = place.dir.join("runsc");
    symlink(fs::canonicalize(shared::quark().get_program()).unwrap(), &runsc).unwrap();
    place.configure(&["sleep", "1000"], |_| {});
    let root = format!("--root={}", place.root.display());
    let run = |args: &[&str]| {
        let log = format!("--log={}", place.dir.join("log.json").display());
        let mut command = Command::new(&runsc);
        command.args([
            &root,
            &log,
            "--log-format=json",
            "--debug",
            "--panic-log=/x",
            "--dcache",
            "7",
        ]);
        let outcome = shared::run(command.args(args), shared::limit());
        (outcome.status.and_then(|status| status.code()), outcome.stdout)
    };
    let (bundle, id) = (place.bundle.to_str().unwrap(), place.id.as_str());
    let pid_file = place.dir.join("init.pid");
    let pid_file = pid_file.to_str().unwrap();
    // Its standard streams are the container's; a pipe would never end.
    let status = Command::new(&runsc)
        .args([&root, "create", "--bundle", bundle, "--pid-file", pid_file, "--user-log", "/x", id])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(run(&["start", id]).0, Some(0));
    let state: Value = serde_json::from_str(&run(&["state", id]).1).unwrap();
    assert_eq!((&state["status"], &state["id"]), (&json!("running"), &json!(id)));
    let pids: Vec<u32> = serde_json::from_str(&run(&["ps", "--format", "json", id]).1).unwrap();
    assert!(!pids.is_empty());
    let event: Value = serde_json::from_str(&run(&["events", "--stats", id]).1).unwrap();
    assert_eq!(event["type"], json!("stats"));
    let internal = place.dir.join("internal.pid");
    let (code, out) = run(&[
        "exec",
        "-cwd",
        "/tmp",
        "-internal-pid-file",
        internal.to_str().unwrap(),
        id,
        "sh",
        "-c",
        "pwd; echo $$; exit 3",
    ]);
    assert_eq!(code, Some(3));
    let inside = fs::read_to_string(&internal).unwrap();
    assert_eq!(out, format!("/tmp\n{inside}\n"));
    let listed: Value = serde_json::from_str(&run(&["list", "--format=json"]).1).unwrap();
    assert_eq!(listed[0]["id"], json!(id));
    assert_eq!(run(&["fscheckpoint", id]).0, Some(128));
    let waiter = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| run(&["wait", id]));
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!waiter.is_finished());
        assert_eq!(run(&["kill", "--all", id, "9"]).0, Some(0));
        waiter.join().unwrap()
    });
    assert_eq!(waiter, (Some(0), format!("{{\"exitStatus\":137,\"id\":\"{id}\"}}\n")));
    assert_eq!(run(&["delete", "--force", id]).0, Some(0));
    let log = fs::read_to_string(place.dir.join("log.json")).unwrap();
    assert!(log.contains("--dcache=7: it has no meaning"), "{log}");
    assert!(Path::new(pid_file).exists());
}
