//! A layer over the root in guest memory, or on disk: what is written there is the guest's, and
//! goes with its memory where that goes.

use std::fs::{self, File};

use serde_json::json;

use super::shared::test_apps;
use super::support::{Place, is_kvm, place};

const SEEN: &str = "cat /etc/written; ls -d /made /etc/passwd 2>/dev/null; ls /made";

fn started(upper: &str) -> Option<Place> {
    let p = place()?;
    let script = "echo one > /etc/written; mkdir /made; while :; do sleep 1000; done";
    p.configure(&["sh", "-c", script], |c| {
        c["annotations"] = json!({"io.quark.rootfs.upper": upper});
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
    nothing_is_written("memory");
}

#[test]
fn the_host_has_nothing_of_what_is_written_to_a_layer_on_disk() {
    nothing_is_written("disk");
}

fn nothing_is_written(upper: &str) {
    let Some(p) = started(upper) else { return };
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
    files_go_back("memory");
}

#[test]
fn a_rollback_takes_files_of_a_layer_on_disk_back() {
    files_go_back("disk");
}

fn files_go_back(upper: &str) {
    let Some(p) = started(upper) else { return };
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

/// A container of 64 MiB with a layer on disk of at most `size`, and `files` in it.
fn small(size: &str) -> Option<Place> {
    let p = place()?;
    let files = test_apps("hibernation").join("files");
    fs::copy(files, p.rootfs().join("bin/files")).expect("files is missing; make test-apps");
    p.configure(&["sh", "-c", "while :; do sleep 1000; done"], |c| {
        let annotations = [("io.quark.rootfs.upper", "disk"), ("io.quark.rootfs.size", size)];
        c["annotations"] = annotations.into_iter().collect();
        c["linux"]["resources"] = json!({"memory": {"limit": 64 << 20, "swap": 64 << 20}});
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    Some(p)
}

/// Bytes that its store holds.
fn of_store(p: &Place) -> u64 {
    let event = p.events(&p.id);
    event["data"]["quark"]["memory"]["swapped_raw"].as_u64().unwrap_or_else(|| panic!("{event}"))
}

/// 128 MiB of files in a container of 64, and a file of 100 MiB that is mapped as a whole.
#[test]
fn files_of_a_layer_on_disk_may_be_larger_than_memory() {
    let Some(p) = small("1g") else { return };
    inside(&p, "mkdir /d");
    assert_eq!(inside(&p, "files /d 8 4096 20000 1"), "ok 20000\n");
    assert_eq!(inside(&p, "files /d 8 4096 check 1"), "ok 32768\n");
    p.good(&["hibernate", &p.id]);
    assert_eq!(inside(&p, "files /d 8 4096 check 1"), "ok 32768\n");
    inside(&p, "mkdir /m");
    assert_eq!(inside(&p, "files /m 1 25600 map 1"), "ok 25600\n");
    let held = of_store(&p);
    assert!(held > 64 << 20, "{held} bytes are in the store");
    inside(&p, "busybox rm -r /d /m");
    let held = of_store(&p);
    assert!(held < 16 << 20, "{held} bytes are in the store of what is removed");
}

/// What was found by somebody who tried to break it: a page of zeros that has no slot, in front of
/// pages whose slots have the numbers of their places.
#[test]
fn pages_of_zeros_on_disk_stay_zeros() {
    let Some(p) = small("1g") else { return };
    let made = "busybox fallocate -l 4096 /f; \
                busybox dd if=/bin/busybox of=/f bs=4096 seek=1 conv=notrunc 2>/dev/null; \
                busybox dd if=/dev/zero of=/g bs=64k count=400 2>/dev/null";
    inside(&p, made);
    let rest = "busybox head -c 4096 /f | busybox tr -d '\\0' | wc -c; \
                busybox tail -c +4097 /f | busybox cmp - /bin/busybox && echo same";
    for _ in 0..3 {
        assert_eq!(inside(&p, rest), "0\nsame\n");
        inside(&p, "busybox dd if=/dev/zero of=/g bs=64k count=400 2>/dev/null");
    }
}

/// Files that were written in turn have their pages in the store in turn: to remove them is not to
/// stop the others.
#[test]
fn files_written_in_turn_are_removed_at_once() {
    let Some(p) = small("1g") else { return };
    let made = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); \
                busybox dd if=/dev/zero bs=1k count=2048 2>/dev/null | busybox tee -a /x >> /y; done; \
                busybox stat -c %s /x /y";
    let size = 100 << 21;
    assert_eq!(inside(&p, made), format!("{size}\n{size}\n"));
    let begin = std::time::Instant::now();
    inside(&p, "busybox rm /x /y");
    let took = begin.elapsed();
    // It takes some tenths of a second, and some seconds where the machine is busy.
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    let held = of_store(&p);
    assert!(held < 16 << 20, "{held} bytes are in the store of what is removed");
}

#[test]
fn snapshots_have_large_files_of_a_layer_on_disk() {
    let Some(p) = small("1g").filter(|_| !is_kvm()) else { return };
    inside(&p, "mkdir /d; files /d 4 4096 6000 1");
    p.good(&["checkpoint", "--name", "one", &p.id]);
    for seed in 2..5 {
        let all = format!("busybox rm -r /d; mkdir /d; files /d 4 4096 4000 {seed}");
        assert_eq!(inside(&p, &all), "ok 4000\n");
        p.good(&["rollback", &p.id, "one"]);
        assert_eq!(inside(&p, "files /d 4 4096 check 1"), "ok 16384\n");
    }
    let branch = format!("{}-branch", p.id);
    // While the image of the branch is written, the container goes on writing.
    inside(&p, "busybox setsid files /d 4 4096 12000 9 </dev/null >/said 2>&1 &");
    p.good(&["fork", &p.id, &branch]);
    p.good(&["delete", "--force", &branch]);
    p.wait_for("the writer", || !inside(&p, "cat /said").is_empty());
    assert_eq!(inside(&p, "cat /said"), "ok 12000\n");
    assert_eq!(inside(&p, "files /d 4 4096 check 9"), "ok 16384\n");
}

/// A file of the image that is changed comes to the layer whole, though it is larger than memory.
#[test]
fn a_file_larger_than_memory_is_copied_up() {
    let Some(p) = small("1g") else { return };
    let bytes: Vec<u8> =
        (0..96u32 << 18).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    fs::write(p.rootfs().join("big"), &bytes).unwrap();
    let sum = |of: &str| {
        inside(&p, &format!("busybox md5sum {of}")).split(' ').next().unwrap().to_owned()
    };
    let before = sum("/big");
    inside(&p, "echo -n x >> /big");
    assert_eq!(inside(&p, "busybox stat -c %s /big"), format!("{}\n", bytes.len() + 1));
    inside(&p, &format!("busybox truncate -s {} /big", bytes.len()));
    assert_eq!(sum("/big"), before);
    assert_eq!(fs::metadata(p.rootfs().join("big")).unwrap().len(), bytes.len() as u64);
}

#[test]
fn a_full_layer_on_disk_says_so_and_goes_on() {
    let Some(p) = small("8m") else { return };
    let full = "busybox dd if=/dev/zero of=/big bs=64k count=1000 2>&1 | busybox grep -o 'No space.*'; \
                busybox stat -c %s /big; busybox rm /big; echo well > /small; cat /small";
    assert_eq!(inside(&p, full), "No space left on device\n8388608\nwell\n");
    // 20 GiB are more than is known of so many pages has place for.
    let given = "busybox fallocate -l 7m /f && busybox stat -c '%s %b' /f; \
                 busybox fallocate -l 9m /g 2>/dev/null; echo $?; cat /small";
    assert_eq!(inside(&p, given), "7340032 14336\n1\nwell\n");
}
