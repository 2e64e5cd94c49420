//! A place for one test: a state directory, a bundle, and the proof that nothing is left behind.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shared::{self, limit, skip, slowed};

/// One test's place. Dropped, it removes all of its containers.
pub struct Place {
    pub dir: PathBuf,
    pub root: PathBuf,
    pub bundle: PathBuf,
    pub id: String,
}

/// A place, or `None` with a reason on standard error when this host cannot have one.
pub fn place() -> Option<Place> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if !nix::unistd::geteuid().is_root() {
        skip("these tests make cgroups and namespaces and need root");
        return None;
    }
    let Some(busybox) =
        ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists())
    else {
        skip("no busybox; install it with: apt-get install busybox-static");
        return None;
    };
    let id = format!("oci-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(&id);
    let place = Place { root: dir.join("state"), bundle: dir.join("bundle"), dir, id };
    let rootfs = place.rootfs();
    for sub in ["bin", "proc", "sys", "dev", "tmp", "etc", "data"] {
        fs::create_dir_all(rootfs.join(sub)).unwrap();
    }
    fs::copy(busybox, rootfs.join("bin/busybox")).unwrap();
    for applet in [
        "sh", "true", "false", "sleep", "cat", "echo", "env", "hostname", "id", "kill", "ls", "nc",
        "pwd", "stat", "stty", "touch", "tty", "wc", "mkdir", "ip", "timeout", "sync", "head",
        "tr",
    ] {
        symlink("busybox", rootfs.join("bin").join(applet)).unwrap();
    }
    fs::write(
        rootfs.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
    )
    .unwrap();
    place.configure(&["true"], |_| {});
    Some(place)
}

impl Place {
    pub fn rootfs(&self) -> PathBuf {
        self.bundle.join("rootfs")
    }

    /// Writes config.json for `args`, changed by `change`.
    pub fn configure(&self, args: &[&str], change: impl FnOnce(&mut Value)) {
        let mut config = json!({
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs"},
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": args,
                "env": ["PATH=/bin"],
            },
            "hostname": "guest",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            ],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "mount"}]},
        });
        change(&mut config);
        fs::write(self.bundle.join("config.json"), config.to_string()).unwrap();
    }

    /// Changes config.json as it is.
    pub fn reconfigure(&self, change: impl FnOnce(&mut Value)) {
        let path = self.bundle.join("config.json");
        let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(path, config.to_string()).unwrap();
    }

    /// The command with this place's state directory.
    pub fn quark(&self, args: &[&str]) -> Command {
        let mut command = shared::quark();
        command
            .arg("--root")
            .arg(&self.root)
            .args(args)
            .current_dir(&self.bundle)
            .stdin(Stdio::null());
        command
    }

    /// Runs it; panics when it takes too long.
    pub fn output(&self, args: &[&str]) -> Output {
        let mut command = self.quark(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        finish_or_say(child, args, || self.views())
    }

    /// What quark says of the place's container: for a test that fails.
    fn views(&self) -> String {
        let views: [&[&str]; 3] = [&["state"], &["events", "--stats"], &["ps"]];
        let say = |view: &&[&str]| {
            let mut command = self.quark(&["--timeout", "10"]);
            let outcome = shared::run(command.args(*view).arg(&self.id), command_limit());
            format!("{view:?}: {outcome:?}\n")
        };
        views.iter().map(say).collect()
    }

    /// Runs it; panics unless its exit code is 0. What it printed.
    pub fn good(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        assert!(output.status.success(), "{args:?}: {}: {}", output.status, text(&output.stderr));
        text(&output.stdout)
    }

    /// Makes an empty directory, for a volume.
    pub fn volume(&self) -> PathBuf {
        let volume = self.dir.join("volume");
        fs::create_dir(&volume).unwrap();
        volume
    }

    /// Makes a container with standard output and error to a file, which `log` reads.
    pub fn create(&self, more: &[&str]) {
        self.create_with(more, |_| {});
    }

    /// As `create`, by a command that `change` has changed.
    pub fn create_with(&self, more: &[&str], change: impl FnOnce(&mut Command)) {
        let log = fs::File::create(self.dir.join("output")).unwrap();
        let mut args = vec!["create"];
        args.extend(more);
        args.push(&self.id);
        let mut command = self.quark(&args);
        change(&mut command);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let output = finish(child, &args);
        assert!(output.status.success(), "{args:?}: {}: {}", output.status, self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("output")).unwrap_or_default()
    }

    pub fn state(&self) -> Value {
        serde_json::from_str(&self.good(&["state", &self.id])).unwrap()
    }

    /// What `quark events --stats` says of a container.
    pub fn events(&self, id: &str) -> Value {
        serde_json::from_str(&self.good(&["events", "--stats", id])).unwrap()
    }

    pub fn status(&self) -> String {
        self.state()["status"].as_str().unwrap().to_owned()
    }

    /// Waits until `ready`, for a bounded time.
    pub fn wait_for(&self, what: &str, mut ready: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !ready() {
            assert!(
                begin.elapsed() < limit(),
                "{what}: not within {:?}; output: {}",
                limit(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What a container leaves when it is not taken away whole.
    pub fn leftovers(&self, id: &str) -> Vec<String> {
        let mut found = Vec::new();
        if self.root.join(id).exists() {
            found.push(format!("directory {}", self.root.join(id).display()));
        }
        for controller in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            for path in [format!("quark/{id}"), id.to_owned()] {
                if controller.path().join(&path).exists() {
                    found.push(format!("cgroup {}", controller.path().join(path).display()));
                }
            }
        }
        if Path::new("/sys/fs/cgroup/quark").join(id).exists() {
            found.push(format!("cgroup /sys/fs/cgroup/quark/{id}"));
        }
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(command) = fs::read(process.path().join("cmdline")) else { continue };
            let words: Vec<&[u8]> = command.split(|b| *b == 0).collect();
            let kinds = [&b"sandbox-process"[..], b"member-process"];
            if words.get(1).is_some_and(|word| kinds.contains(word))
                && words.get(2) == Some(&id.as_bytes())
            {
                found.push(format!("process {}", process.path().display()));
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = self.dir.display().to_string();
        found.extend(mounts.lines().filter(|m| m.contains(&ours)).map(|m| format!("mount {m}")));
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            self.quark(&["delete", "--force", &id]).status().ok();
        }
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// True if kvm is the platform under test.
pub fn is_kvm() -> bool {
    std::env::var("QUARK_PLATFORM").is_ok_and(|p| p == "kvm")
}

/// How long a command may take: less than [`limit`] where all is slow, so that one that hangs
/// leaves time for the other tests.
fn command_limit() -> Duration {
    slowed(Duration::from_secs(20)).max(Duration::from_secs(60))
}

/// Waits for a command and takes what it printed; kills it and panics when it takes too long.
pub fn finish(child: Child, args: &[&str]) -> Output {
    finish_or_say(child, args, String::new)
}

/// As [`finish`]; `say` is asked for what else is to be told of one that takes too long.
fn finish_or_say(mut child: Child, args: &[&str], say: impl Fn() -> String) -> Output {
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = bytes.clone();
        let thread = std::thread::spawn(move || {
            let (Some(mut pipe), mut block) = (pipe, [0; 4096]) else { return };
            while let Ok(n @ 1..) = pipe.read(&mut block) {
                to.lock().unwrap().extend_from_slice(&block[..n]);
            }
        });
        (thread, bytes)
    };
    let (out, stdout) = reader(child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
    let (err, stderr) = reader(child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
    let taken = |bytes: &Mutex<Vec<u8>>| std::mem::take(&mut *bytes.lock().unwrap());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > command_limit() {
            let took = begin.elapsed();
            // Twice, so that it shows who gets on.
            let before = stuck(child.id());
            std::thread::sleep(Duration::from_secs(1));
            let (after, more) = (stuck(child.id()), say());
            child.kill().ok();
            child.wait().ok();
            let text = |bytes| String::from_utf8_lossy(&taken(bytes)).into_owned();
            panic!(
                "quark {args:?} did not end within {took:?}\nstdout: {}\nstderr: {}\n{before}\n\
                one second later:\n{after}\n{more}",
                text(&stdout),
                text(&stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    out.join().unwrap();
    err.join().unwrap();
    Output { status, stdout: taken(&stdout), stderr: taken(&stderr) }
}

/// What the threads of process `pid` and of all sandboxes do, as far as the host tells.
fn stuck(pid: u32) -> String {
    let mut text = String::new();
    for process in fs::read_dir("/proc").unwrap().flatten().map(|p| p.path()) {
        let Ok(command) = fs::read(process.join("cmdline")) else { continue };
        let is_sandbox = command.split(|b| *b == 0).nth(1) == Some(b"sandbox-process");
        if !is_sandbox && process != Path::new("/proc").join(pid.to_string()) {
            continue;
        }
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        text.push_str(&format!("process {}: {command}\n", process.display()));
        for thread in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
            let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            // stat has the state and the times in user mode and in the kernel.
            for name in ["stat", "wchan", "syscall", "stack"] {
                text.push_str(&format!("  {name}: {}\n", read(name).trim_end()));
            }
        }
    }
    text
}

/// Takes the terminal that comes to a console socket.
pub fn master_of(listener: &UnixListener) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let (stream, _) = listener.accept().unwrap();
    let mut name = [0; 256];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut name)];
    recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fds = control.drain().find_map(|c| match c {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.unwrap()
}

#[test]
fn a_command_that_hangs_is_described() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    // spawn returns when execve(2) closes a pipe, which is before the new arguments are in place.
    let begin = Instant::now();
    while fs::read(format!("/proc/{}/cmdline", child.id())).unwrap() != b"sleep\x001000\0" {
        assert!(begin.elapsed() < limit(), "sleep did not get its arguments");
        std::thread::sleep(Duration::from_millis(1));
    }
    let text = stuck(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text.contains(&format!("process /proc/{}: sleep 1000", child.id())), "{text}");
    assert!(text.contains(&format!("  stat: {} (", child.id())), "{text}");
}
