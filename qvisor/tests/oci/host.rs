//! `quark do`: what it shows of the host, and what not.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

use serde_json::json;

use super::support::{Place, place};

/// Runs a shell script in `quark do` from `cwd`: exit code, output, errors.
fn script(p: &Place, options: &[&str], cwd: &Path, script: &str) -> (Option<i32>, String, String) {
    let args = [&["do"][..], options, &["--", "/bin/sh", "-c", script]].concat();
    let output = p.quark(&args).current_dir(cwd).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_the_hosts_kernel_shows_of_itself_is_not_there() {
    let Some(p) = place() else { return };
    // Things of the host that the guest has not of its own: below its mounts, which its root may
    // take away, and in /run and /tmp.
    let secret = format!("quark-secret-{}", p.id);
    let places = ["/run", "/dev/shm", "/tmp"].map(|d| Path::new(d).join(&secret));
    for place in &places {
        fs::write(place, "secret").unwrap();
    }
    let (code, out, errors) = script(
        &p,
        &[],
        Path::new("/"),
        &format!(
            "umount /proc; umount /dev/mqueue; umount /dev/shm; umount /dev/pts; umount -l /dev; \
            umount /sys; \
             ls /proc /sys; cat /proc/1/environ /proc/version /sys/kernel/uevent_seqnum; \
             cat /run/{secret} /dev/shm/{secret} /tmp/{secret}; ls /run /tmp; [ -e /dev/kmsg ] || echo none"
        ),
    );
    for place in &places {
        fs::remove_file(place).unwrap();
    }
    assert_eq!(code, Some(0), "{errors}");
    let lines: Vec<&str> = out.lines().filter(|l| !l.is_empty()).collect();
    // What umount(8) itself leaves in /run is the guest's.
    assert_eq!(lines, ["/proc:", "/sys:", "/run:", "mount", "/tmp:", "none"], "{errors}");
}

#[test]
fn the_hosts_network_is_there_only_if_asked_for() {
    let Some(p) = place() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 5); \
        print(\"in\")'"
    );
    let served = std::thread::spawn(move || listener.accept().map(drop));
    for options in [&[][..], &["--network=none"], &["--network", "new"]] {
        let (code, out, errors) = script(&p, options, Path::new("/"), &connect);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{errors}");
        assert!(
            errors.contains("ConnectionRefusedError"),
            "a loopback device of its own: {errors}"
        );
    }
    assert!(!served.is_finished());
    assert_eq!(script(&p, &["--network=host"], Path::new("/"), &connect).1, "in\n");
    served.join().unwrap().unwrap();
}

#[test]
fn the_current_directory_is_there_wherever_it_lies() {
    let Some(p) = place() else { return };
    let busybox = fs::read(p.rootfs().join("bin/busybox")).unwrap();
    // Below /tmp, which is empty otherwise, and below /run.
    let run = Path::new("/run").join(&p.id);
    fs::create_dir(&run).unwrap();
    for dir in [&p.dir.join("work"), &run] {
        fs::create_dir_all(dir).unwrap();
        let program = dir.join("busybox");
        fs::File::create(&program).unwrap().write_all(&busybox).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (code, out, errors) =
            script(&p, &[], dir, "pwd; ./busybox echo ran; echo new > made && cat made; ls ..");
        let name = dir.file_name().unwrap().to_str().unwrap();
        assert_eq!(
            (code, out),
            (Some(0), format!("{}\nran\nnew\n{name}\n", dir.display())),
            "{errors}"
        );
        assert!(!dir.join("made").exists(), "what is written is thrown away");
        // From elsewhere the program is not there, and it is said what to do.
        let output = p
            .quark(&["do", "--", program.to_str().unwrap(), "true"])
            .current_dir("/")
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
        let volume = format!("{0}:{0}:ro", dir.display());
        assert!(errors.contains(&format!("--volume {volume}")), "{errors}");
        let args = ["do", "--volume", &volume, "--", program.to_str().unwrap(), "echo", "there"];
        assert_eq!(p.quark(&args).current_dir("/").output().unwrap().stdout, b"there\n");
    }
    fs::remove_dir_all(&run).unwrap();
    for dir in ["/proc/self", "/dev/shm", "/sys/kernel"] {
        let (code, _, errors) = script(&p, &[], Path::new(dir), "true");
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains("change to another"), "{errors}");
    }
}

#[test]
fn other_disks_are_shown_and_other_memory_is_not() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let Some(p) = place() else { return };
    // Not below /tmp.
    let base = Path::new("/var/tmp").join(&p.id);
    let (disk, memory) = (base.join("disk"), base.join("memory"));
    for dir in [&disk, &memory, &base.join("source"), &base.join("upper"), &base.join("work")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(base.join("source/file"), "on disk").unwrap();
    // What is at hand: a bind mount is one of the type that it shows.
    mount(Some(&base.join("source")), &disk, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    mount(Some("tmpfs"), &memory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::write(memory.join("file"), "in memory").unwrap();
    let read = format!(
        "cat {0}/disk/file; cat {0}/memory/file 2> /dev/null || echo; ls {0}/memory",
        base.display()
    );
    let elsewhere = script(&p, &[], Path::new("/"), &read);
    let inside = script(&p, &[], &memory, &read);
    let volume = format!("{0}/memory:{0}/memory", base.display());
    let asked = script(
        &p,
        &["-v", &volume],
        Path::new("/"),
        &format!("{read}; echo w > {}/w", memory.display()),
    );
    let written = fs::read_to_string(memory.join("w"));
    umount2(&disk, MntFlags::MNT_DETACH).unwrap();
    umount2(&memory, MntFlags::MNT_DETACH).unwrap();
    fs::remove_dir_all(&base).unwrap();
    assert_eq!(elsewhere, (Some(0), "on disk\n".into(), String::new()));
    assert_eq!(inside, (Some(0), "on diskin memoryfile\n".into(), String::new()));
    assert_eq!(asked, (Some(0), "on diskin memoryfile\n".into(), String::new()));
    assert_eq!(written.unwrap(), "w\n");
}

#[test]
fn bad_volumes_are_refused() {
    let Some(p) = place() else { return };
    for (volume, says) in [
        ("/etc", "use HOST:GUEST"),
        ("/etc:/v:rx", "use HOST:GUEST"),
        ("/etc:v", "must be an absolute path"),
        (":/v", "must not be empty"),
        ("/nonexistent/v:/v", "/nonexistent/v"),
        ("/dev/null:/v", "device"),
    ] {
        let (code, _, errors) = script(&p, &["-v", volume], Path::new("/"), "true");
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{volume}: {errors}");
        assert!(errors.contains(says), "{volume}: {errors}");
    }
    assert_eq!(fs::read_dir(&p.root).map_or(0, Iterator::count), 0);
}

/// As `quark spec` asks for one, with an image that has programs only.
#[test]
fn a_read_only_root_gets_its_mount_points() {
    let Some(p) = place() else { return };
    for name in ["proc", "dev", "tmp"] {
        let dir = p.rootfs().join(name);
        if dir.exists() {
            fs::remove_dir_all(dir).unwrap();
        }
    }
    let file = p.dir.join("file");
    fs::write(&file, "from the host\n").unwrap();
    let script = "cat /proc/1/comm /new/file && ls /dev/pts/ptmx && ! touch /x 2> /dev/null";
    p.configure(&["sh", "-c", script], |c| {
        c["root"]["readonly"] = true.into();
        let mount = json!({"destination": "/new/file", "source": file, "options": ["bind"]});
        c["mounts"].as_array_mut().unwrap().push(mount);
    });
    assert_eq!(p.good(&["run", &p.id]), "sh\nfrom the host\n/dev/pts/ptmx\n");
}

/// Of what is made inside: the host's own file systems need not do so (Linux's overlayfs does not).
#[test]
fn names_are_listed_with_the_numbers_of_stat() {
    let Some(p) = place() else { return };
    let python = "import os; os.makedirs('/made/dir'); open('/made/file', 'w').close(); \
                  os.link('/made/file', '/made/link'); \
                  print([e.name for e in os.scandir('/made') \
                  if e.inode() != os.lstat(e.path).st_ino])";
    let (code, out, errors) = script(&p, &[], Path::new("/"), &format!("python3 -c \"{python}\""));
    assert_eq!((code, out.as_str()), (Some(0), "[]\n"), "{errors}");
}
