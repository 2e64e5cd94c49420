//! Ways out of a container that a program in it may try: `test-apps/adversary` under the whole
//! runtime.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;

use super::support::{Place, place};

/// Builds the programs, once, and puts one into the container.
pub fn add_program(p: &Place, name: &str) {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let out = BUILT.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("escape");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test-apps/adversary");
        let made = Command::new("make")
            .arg("-s")
            .arg("-C")
            .arg(source)
            .arg(format!("OUT={}", out.display()))
            .status();
        assert!(made.expect("make").success(), "build the adversary: make and gcc are needed");
        out
    });
    fs::copy(out.join("adversary").join(name), p.rootfs().join("bin").join(name)).unwrap();
}

#[test]
fn sockets_lend_no_capability_of_the_host() {
    let Some(p) = place() else { return };
    add_program(&p, "sockets");
    p.configure(&["sockets"], |c| c["process"]["user"] = json!({"uid": 65534, "gid": 65534}));
    let output = p.output(&["run", &p.id]);
    let text = String::from_utf8_lossy(&output.stdout);
    let got: Vec<&str> = text.lines().filter(|l| l.starts_with("GOT")).collect();
    assert!(got.is_empty() && output.status.code() == Some(0), "{got:#?} {output:?}");
    assert!(text.lines().filter(|l| l.starts_with("refused")).count() > 40, "{text}");
}

/// Exchanges `dir/name` with a symbolic link to `outside`, to and fro, until told to stop. How
/// often it was done.
fn exchange(dir: &Path, name: &str, outside: &Path, stop: &AtomicBool, done: &AtomicU32) {
    let link = dir.join(format!("{name}-link"));
    let c = |path: &Path| CString::new(path.to_str().unwrap()).unwrap();
    let (a, b) = (c(&dir.join(name)), c(&link));
    while !stop.load(Ordering::Relaxed) {
        if !link.is_symlink() {
            fs::remove_dir(&link).or_else(|_| fs::remove_file(&link)).ok();
            symlink(outside, &link).ok();
        }
        if rustix::fs::renameat_with(
            rustix::fs::CWD,
            &a,
            rustix::fs::CWD,
            &b,
            rustix::fs::RenameFlags::EXCHANGE,
        )
        .is_ok()
        {
            done.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(20));
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                &a,
                rustix::fs::CWD,
                &b,
                rustix::fs::RenameFlags::EXCHANGE,
            )
            .ok();
        }
    }
}

#[test]
fn no_race_on_a_volume_reaches_a_file_outside() {
    let Some(p) = place() else { return };
    add_program(&p, "files");
    let (volume, outside) = (p.dir.join("volume"), p.dir.join("outside"));
    fs::create_dir(&volume).unwrap();
    fs::write(&outside, "secret").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(volume.join("file"), "x").unwrap();
    let look = || {
        let m = fs::metadata(&outside).unwrap();
        (
            m.mode(),
            m.uid(),
            m.gid(),
            m.mtime_nsec(),
            m.ctime_nsec(),
            m.len(),
            fs::read_to_string(&outside).unwrap(),
        )
    };
    let before = look();
    let rounds = std::env::var("QUARK_ESCAPE_ROUNDS").unwrap_or_else(|_| "2000".into());
    p.configure(&["files", "/v", &rounds], |c| {
        let capabilities = json!(["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID"]);
        c["process"]["capabilities"] =
            json!({"bounding": capabilities, "permitted": capabilities, "effective": capabilities});
        let mount = json!({"destination": "/v", "source": volume, "options": ["rbind"]});
        c["mounts"].as_array_mut().unwrap().push(mount);
    });
    let (stop, done) = (AtomicBool::new(false), AtomicU32::new(0));
    let output = std::thread::scope(|s| {
        for name in ["made", "file"] {
            let (volume, outside, stop, done) = (&volume, &outside, &stop, &done);
            s.spawn(move || exchange(volume, name, outside, stop, done));
        }
        let output = p.output(&["run", &p.id]);
        stop.store(true, Ordering::Relaxed);
        output
    });
    assert!(output.status.success(), "{output:?}");
    assert_eq!(look(), before, "the file outside was changed; {output:?}");
    assert!(
        done.load(Ordering::Relaxed) > 100,
        "the names were exchanged {done:?} times: too few to say anything"
    );
}
