//! Files opened again and again on host files: what the guest kernel keeps for the next open must
//! never be seen.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::support::{Place, place};

/// The most handles that the guest kernel keeps (`MAX_KEPT` in qkernel/src/fs/hostfs/kept.rs).
const MAX_KEPT: usize = 64;

/// Puts the static build of `test-apps/syscalls/reopen.c` into the container.
fn add_program(p: &Place) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-apps/static/reopen");
    assert!(program.exists(), "{}: missing; run: make test-apps", program.display());
    fs::copy(program, p.rootfs().join("bin/reopen")).unwrap();
}

/// Runs every case of the program; all must pass.
fn run_cases(p: &Place) {
    let output = p.output(&["run", &p.id]);
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let bad: Vec<&str> = text.lines().filter(|l| !l.starts_with("ok ")).collect();
    assert!(bad.is_empty() && output.status.success(), "{bad:#?} {errors}");
    assert!(text.lines().count() > 10, "{text}");
}

/// How many files of `directory` the sandbox has open. By inode: the sandbox's mounts are its own,
/// so its paths say nothing here.
fn open_in(p: &Place, directory: &Path) -> usize {
    let pid = p.state()["pid"].as_i64().unwrap();
    let inode = |path: PathBuf| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let files: HashSet<_> =
        fs::read_dir(directory).unwrap().flatten().filter_map(|f| inode(f.path())).collect();
    let open =
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter_map(|f| inode(f.path()));
    open.filter(|file| files.contains(file)).count()
}

/// Lets the program take other users' identities and make device nodes, as root may.
fn may_change_user(config: &mut Value) {
    let capabilities =
        json!(["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD", "CAP_SETUID"]);
    config["process"]["capabilities"] =
        json!({"bounding": capabilities, "permitted": capabilities, "effective": capabilities});
}

#[test]
fn reopening_on_the_containers_own_root() {
    let Some(p) = place() else { return };
    add_program(&p);
    p.configure(&["reopen"], |c| {
        may_change_user(c);
        c["mounts"].as_array_mut().unwrap().retain(|m| m["destination"] != "/tmp");
    });
    run_cases(&p);
}

#[test]
fn reopening_on_a_volume() {
    let Some(p) = place() else { return };
    add_program(&p);
    let volume = p.volume();
    p.configure(&["reopen"], |c| {
        may_change_user(c);
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.retain(|m| m["destination"] != "/tmp");
        mounts.push(json!({"destination": "/tmp", "source": volume, "options": ["rbind"]}));
    });
    run_cases(&p);
}

#[test]
fn what_the_host_changes_in_a_volume_is_seen_by_the_next_open() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    fs::write(volume.join("f"), "old").unwrap();
    let script = "cat /v/f /v/f; echo > /v/ready; while [ ! -e /v/replaced ]; do cat /v/f > \
        /dev/null; done; cat /v/f; \
                  echo > /v/again; while [ ! -e /v/removed ]; do cat /v/f > /dev/null; done; cat /v/f || echo gone";
    p.configure(&["sh", "-c", script], |c| {
        let volume = json!({"destination": "/v", "source": volume, "options": ["rbind"]});
        c["mounts"].as_array_mut().unwrap().push(volume);
    });
    let mut command = p.quark(&["run", &p.id]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    p.wait_for("the first reads", || volume.join("ready").exists());
    fs::write(p.dir.join("new"), "new").unwrap();
    fs::rename(p.dir.join("new"), volume.join("f")).unwrap();
    fs::write(volume.join("replaced"), "").unwrap();
    p.wait_for("the second read", || volume.join("again").exists());
    fs::remove_file(volume.join("f")).unwrap();
    fs::write(volume.join("removed"), "").unwrap();
    let output = super::support::finish(child, &["run"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "oldoldnewgone\n");
}

#[test]
fn few_files_stay_open_and_none_for_long() {
    let Some(p) = place() else { return };
    let script = "i=0; while [ $i -lt 200 ]; do echo $i > /data/$i; : < /data/$i; i=$((i+1)); \
        done; echo ready; sleep 1000";
    p.configure(&["sh", "-c", script], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let data = p.rootfs().join("data");
    let mut most = 0;
    p.wait_for("the files are made", || {
        most = most.max(open_in(&p, &data));
        p.log().contains("ready")
    });
    most = most.max(open_in(&p, &data));
    assert!((1..=MAX_KEPT + 2).contains(&most), "{most} files are open at once");
    p.wait_for("an idle container keeps none", || open_in(&p, &data) == 0);
    p.good(&["kill", &p.id, "KILL"]);
}

#[test]
fn kept_files_make_room_when_the_host_is_out_of_descriptors() {
    let Some(p) = place() else { return };
    for i in 0..2 * MAX_KEPT {
        fs::write(p.rootfs().join(format!("data/{i}")), "").unwrap();
    }
    let script = format!(
        "i=0; while [ $i -lt {} ]; do : < /data/$i || exit 1; i=$((i+1)); done",
        2 * MAX_KEPT
    );
    p.configure(&["sh", "-c", &script], |_| {});
    // What is kept would take all descriptors that the sandbox may have.
    let limited = format!("ulimit -n {MAX_KEPT}; exec \"$@\"");
    let quark = p.quark(&["run", &p.id]);
    let mut command = Command::new("sh");
    command
        .args(["-c", &limited, "sh"])
        .arg(quark.get_program())
        .args(quark.get_args())
        .current_dir(&p.bundle);
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = super::support::finish(child, &["run"]);
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_hibernated_container_keeps_no_file_open() {
    let Some(p) = place() else { return };
    p.configure(&["sh", "-c", "while :; do : < /etc/passwd; sleep 0.5; done"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let etc = p.rootfs().join("etc");
    p.wait_for("a handle is kept", || open_in(&p, &etc) > 0);
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.state()["hibernation"], "Hibernated");
    assert_eq!(open_in(&p, &etc), 0);
    p.good(&["kill", &p.id, "CONT"]);
    p.wait_for("it goes on", || open_in(&p, &etc) > 0);
    p.good(&["kill", &p.id, "KILL"]);
}
