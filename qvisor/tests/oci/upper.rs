//! A layer over the root in guest memory: what is written there is the guest's, and goes with its
//! memory where that goes.

use std::fs::File;

use serde_json::json;

use super::support::{Place, is_kvm, place};

const SEEN: &str = "cat /etc/written; ls -d /made /etc/passwd 2>/dev/null; ls /made";

fn started() -> Option<Place> {
    let p = place()?;
    let script = "echo one > /etc/written; mkdir /made; while :; do sleep 1000; done";
    p.configure(&["sh", "-c", script], |c| {
        c["annotations"] = json!({"io.quark.rootfs.upper": "memory"});
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("the script", || p.output(&["exec", &p.id, "ls", "/made"]).status.success());
    Some(p)
}

fn inside(p: &Place, command: &str) -> String {
    p.good(&["exec", &p.id, "sh", "-c", command])
}

const CHANGES: &str = "echo two > /etc/written; touch /made/x; busybox rm /etc/passwd; \
                       busybox dd if=/dev/zero of=/big bs=64k count=64 2>/dev/null";

#[test]
fn the_host_has_nothing_of_what_is_written() {
    let Some(p) = started() else { return };
    assert_eq!(inside(&p, SEEN), "one\n/etc/passwd\n/made\n");
    inside(&p, CHANGES);
    let root = p.rootfs();
    assert!(root.join("etc/passwd").exists());
    for name in ["etc/written", "made", "big"] {
        assert!(!root.join(name).exists(), "{name}");
    }
    p.good(&["hibernate", &p.id]);
    assert_eq!(inside(&p, SEEN), "two\n/made\nx\n");
    p.good(&["delete", "--force", &p.id]);
    assert!(root.join("etc/passwd").exists());
}

#[test]
fn a_rollback_takes_files_of_the_layer_back() {
    let Some(p) = started() else { return };
    if is_kvm() {
        let refused = p.output(&["checkpoint", "--name", "one", &p.id]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("process platform"));
        return;
    }
    let then = inside(&p, SEEN);
    p.good(&["checkpoint", "--name", "one", &p.id]);
    for _ in 0..3 {
        inside(&p, CHANGES);
        assert_eq!(inside(&p, SEEN), "two\n/made\nx\n");
        p.good(&["rollback", &p.id, "one"]);
        assert_eq!(inside(&p, SEEN), then);
    }
    inside(&p, "echo three > /etc/written");
    let branch = format!("{}-branch", p.id);
    p.good(&["fork", &p.id, &branch]);
    inside(&p, "echo four > /etc/written");
    assert_eq!(p.good(&["exec", &branch, "cat", "/etc/written"]), "three\n");
    p.good(&["delete", "--force", &branch]);
    p.good(&["checkpoint", "--image-path", "image", &p.id]);
    p.good(&["delete", &p.id]);
    // Without the annotation: where it wrote, the image says.
    p.configure(&["true"], |_| {});
    let log = File::options().append(true).open(p.dir.join("output")).unwrap();
    let mut restore = p.quark(&["restore", "--detach", "--image-path", "image", &p.id]);
    let status = restore.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
    assert!(status.success(), "{}", p.log());
    assert_eq!(inside(&p, "cat /etc/written; echo five > /etc/written"), "four\n");
    assert!(!p.rootfs().join("etc/written").exists());
}
