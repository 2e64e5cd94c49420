//! The life of a container, step by step.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::support::{Place, finish, master_of, place};

/// Runs the container in the foreground: exit code, output, errors.
fn run(p: &Place) -> (Option<i32>, String, String) {
    let output = p.output(&["run", &p.id]);
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn sh(p: &Place, script: &str) {
    p.configure(&["sh", "-c", script], |_| {});
}

#[test]
fn run_passes_streams_and_the_exit_code() {
    let Some(p) = place() else { return };
    sh(&p, "echo out; echo err >&2; exit 7");
    assert_eq!(run(&p), (Some(7), "out\n".into(), "err\n".into()));
    assert_eq!(p.leftovers(&p.id), [""; 0]);

    sh(&p, "kill -9 $$");
    // A first process of a PID namespace cannot kill itself: the shell goes on and ends by itself.
    assert_eq!(run(&p).0, Some(0));

    p.configure(&["wc", "-c"], |_| {});
    let mut child = p
        .quark(&["run", &p.id])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"12345").unwrap();
    assert_eq!(finish(child, &["run"]).stdout, b"5\n");
}

#[test]
fn run_sets_user_directory_environment_and_host_name() {
    let Some(p) = place() else { return };
    p.configure(&["sh", "-c", "id -u; id -g; pwd; echo $HOME $A; hostname; umask"], |c| {
        c["process"]["user"] = json!({"uid": 1000, "gid": 1001, "umask": 7});
        c["process"]["cwd"] = json!("/tmp");
        c["process"]["env"] = json!(["PATH=/bin", "A=b c"]);
    });
    assert_eq!(
        run(&p),
        (Some(0), "1000\n1001\n/tmp\n/home/user b c\nguest\n0007\n".into(), String::new())
    );
}

#[test]
fn a_missing_program_is_an_error_that_leaves_nothing() {
    let Some(p) = place() else { return };
    for (program, says) in [
        ("nothing", "exec: \"nothing\": executable file not found in $PATH"),
        ("/bin/nothing", "exec: \"/bin/nothing\": stat /bin/nothing: no such file or directory"),
        ("/etc/passwd", "exec: \"/etc/passwd\": permission denied"),
    ] {
        p.configure(&[program], |_| {});
        let (code, _, stderr) = run(&p);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(says) && stderr.lines().count() == 1, "{stderr}");
        assert_eq!(p.leftovers(&p.id), [""; 0]);
    }
}

#[test]
fn create_start_kill_delete() {
    let Some(p) = place() else { return };
    sh(&p, "trap 'echo got TERM; exit 3' TERM; echo started; while :; do sleep 0.1; done");
    let pid_file = p.dir.join("pid");
    p.create(&["--pid-file", pid_file.to_str().unwrap()]);
    let state = p.state();
    assert_eq!(state["status"], "created");
    assert_eq!(state["id"], json!(p.id));
    assert_eq!(state["bundle"], json!(p.bundle));
    assert_eq!(state["pid"].to_string(), fs::read_to_string(&pid_file).unwrap());
    assert_eq!(p.log(), "", "nothing runs before start");
    let again = p.output(&["create", &p.id]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("already exists"));

    p.good(&["start", &p.id]);
    p.wait_for("the program's first line", || p.log().contains("started"));
    assert_eq!(p.status(), "running");
    assert_eq!(p.output(&["start", &p.id]).status.code(), Some(1));
    let refused = p.output(&["delete", &p.id]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not stopped: running"));

    let list: Value = serde_json::from_str(&p.good(&["list", "-f", "json"])).unwrap();
    assert_eq!(
        (list[0]["id"].as_str(), list[0]["status"].as_str()),
        (Some(p.id.as_str()), Some("running"))
    );
    assert_eq!(p.good(&["list", "-q"]), format!("{}\n", p.id));
    assert!(p.good(&["list"]).starts_with("ID "));

    p.good(&["kill", &p.id, "TERM"]);
    p.wait_for("the end", || p.status() == "stopped");
    assert!(p.log().contains("got TERM"), "{}", p.log());
    let dead = p.output(&["kill", &p.id, "TERM"]);
    assert!(String::from_utf8_lossy(&dead.stderr).contains("container not running"));
    p.good(&["delete", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn a_created_container_can_be_killed_and_deleted() {
    let Some(p) = place() else { return };
    p.create(&[]);
    p.good(&["kill", &p.id, "KILL"]);
    p.wait_for("the end", || p.status() == "stopped");
    p.good(&["delete", &p.id]);
    p.create(&[]);
    p.good(&["delete", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn exec_ps_events_and_pause() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    p.create(&[]);
    p.good(&["start", &p.id]);
    assert_eq!(
        p.good(&["exec", "--env", "X=y", "--cwd", "/tmp", &p.id, "sh", "-c", "echo $X; pwd"]),
        "y\n/tmp\n"
    );
    assert_eq!(p.good(&["exec", "--user", "5:6", &p.id, "sh", "-c", "id -u; id -g"]), "5\n6\n");
    assert_eq!(p.output(&["exec", &p.id, "sh", "-c", "exit 9"]).status.code(), Some(9));
    let missing = p.output(&["exec", &p.id, "nothing"]);
    assert_eq!(missing.status.code(), Some(255));
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains("executable file not found in $PATH")
    );
    let process = p.dir.join("process.json");
    fs::write(
        &process,
        r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["echo","from file"],"env":["PATH=/bin"]}"#,
    )
    .unwrap();
    assert_eq!(p.good(&["exec", "--process", process.to_str().unwrap(), &p.id]), "from file\n");

    let ps = p.good(&["ps", &p.id]);
    assert!(ps.lines().count() >= 2 && ps.contains("sh -c"), "{ps}");
    let pids: Vec<i64> = serde_json::from_str(&p.good(&["ps", "-f", "json", &p.id])).unwrap();
    assert!(pids.contains(&p.state()["pid"].as_i64().unwrap()), "host process ids: {pids:?}");

    let event = p.events(&p.id);
    assert_eq!(
        (event["type"].as_str(), event["id"].as_str()),
        (Some("stats"), Some(p.id.as_str()))
    );
    assert!(event["data"]["memory"]["usage"]["usage"].as_u64().unwrap() > 0, "{event}");
    assert!(event["data"]["cpu"]["usage"]["total"].as_u64().unwrap() > 0, "{event}");
    assert!(event["data"]["pids"]["current"].as_u64().unwrap() > 0, "{event}");
    assert!(event["data"]["quark"]["memory"]["frames_used"].as_u64().unwrap() > 0, "{event}");

    p.good(&["pause", &p.id]);
    assert_eq!(p.status(), "paused");
    assert_eq!(p.output(&["pause", &p.id]).status.code(), Some(1));
    p.good(&["resume", &p.id]);
    assert_eq!(p.status(), "running");
    p.good(&["delete", "--force", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn what_cannot_be_written_down_is_taken_back() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    p.create(&[]);
    // As when the disk is full: there cannot be a new state file.
    let new = p.root.join(&p.id).join("state.json.new");
    let fails = |command: &str| {
        fs::create_dir(&new).unwrap();
        let output = p.output(&[command, &p.id]);
        fs::remove_dir(&new).unwrap();
        let says = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && says.contains("writing"), "{command}: {says}");
    };
    p.good(&["start", &p.id]);
    fails("pause");
    assert_eq!(p.status(), "running");
    assert_eq!(p.good(&["exec", &p.id, "echo", "here"]), "here\n");
    p.good(&["pause", &p.id]);
    fails("resume");
    assert_eq!(p.status(), "paused");
    p.good(&["resume", &p.id]);
    p.good(&["delete", "--force", &p.id]);
    p.create(&[]);
    fails("start");
    assert_eq!(p.status(), "stopped");
    p.good(&["delete", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

/// Runs the command `argv[2:]` and says the process that it leaves behind, whose ID is in the file
/// `argv[1]` then, and the exit code of that process, which comes to it as its subreaper. This is a
/// process of its own, for the tests beside would leave their processes to it too, and those that
/// nobody waits for hold the ends of their sandboxes up (pid_namespaces(7)).
const SUBREAPER: &str = "
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
pid = int(open(sys.argv[1]).read())
print(pid, flush=True)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn a_detached_exec_leaves_a_process_with_its_exit_code() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    p.create(&[]);
    p.good(&["start", &p.id]);
    let pid_file = p.dir.join("exec-pid");
    let pid_file = pid_file.to_str().unwrap();
    let exec = |script: &str| {
        let args = ["exec", "--detach", "--pid-file", pid_file, &p.id, "sh", "-c", script];
        let command = p.quark(&args);
        let mut subreaper = std::process::Command::new("python3")
            .args(["-c", SUBREAPER, pid_file])
            .arg(command.get_program())
            .args(command.get_args())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(subreaper.stdout.take().unwrap()).lines();
        let mut number = move || lines.next().unwrap().unwrap().parse::<i32>().unwrap();
        let pid = number();
        assert!(pid > 1);
        (Pid::from_raw(pid), move || (number(), subreaper.wait().unwrap().success()))
    };
    let (_, mut ended) = exec("sleep 0.3; exit 4");
    assert_eq!(ended(), (4, true));
    // A signal to it is a signal to the guest process.
    let (pid, mut ended) = exec("trap 'exit 5' USR1; while :; do sleep 0.1; done");
    std::thread::sleep(Duration::from_millis(300));
    kill(pid, Signal::SIGUSR1).unwrap();
    assert_eq!(ended(), (5, true));
    // SIGKILL cannot be passed on, but is meant likewise.
    let (pid, mut ended) = exec("exec sleep 1234");
    let runs = || p.good(&["ps", &p.id]).contains("sleep 1234");
    p.wait_for("the process in the guest", runs);
    kill(pid, Signal::SIGKILL).unwrap();
    p.wait_for("the end of the process in the guest", || !runs());
    assert_eq!(ended(), (-(Signal::SIGKILL as i32), true));
    assert_eq!(p.status(), "running");
}

#[test]
fn volumes_show_host_directories_and_files() {
    let Some(p) = place() else { return };
    let (rw, ro, file) = (p.dir.join("rw"), p.dir.join("ro"), p.dir.join("file"));
    fs::create_dir(&rw).unwrap();
    fs::create_dir(&ro).unwrap();
    fs::write(ro.join("old"), "kept").unwrap();
    fs::write(&file, "from the host").unwrap();
    p.configure(
        &[
            "sh",
            "-c",
            "echo new > /rw/made; cat /ro/old /data/file; echo bad > /ro/old || echo refused",
        ],
        |c| {
            c["mounts"].as_array_mut().unwrap().extend([
                json!({"destination": "/rw", "source": rw, "options": ["rbind"]}),
                json!({"destination": "/ro", "source": ro, "options": ["bind", "ro"]}),
                json!({"destination": "/data/file", "source": file, "options": ["bind"]}),
            ]);
        },
    );
    let (code, stdout, stderr) = run(&p);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "keptfrom the hostrefused\n", "{stderr}");
    assert_eq!(fs::read_to_string(rw.join("made")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(ro.join("old")).unwrap(), "kept");
}

#[test]
fn hooks_are_called_in_order_with_the_state() {
    let Some(p) = place() else { return };
    let record = p.dir.join("record");
    let hook = |name: &str| {
        let script = format!(
            "state=$(cat); pid=$(echo $state | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'); \
             ns=other; [ $pid = 0 ] || [ \"$(readlink /proc/$pid/ns/net)\" = \"$(readlink \
                 /proc/self/ns/net)\" ] && ns=same; \
             echo {name} $(echo $state | sed 's/.*\"status\":\"\\([a-z]*\\)\".*/\\1/') $ns >> {}",
            record.display()
        );
        json!([{"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]}])
    };
    p.configure(&["true"], |c| {
        c["hooks"] = json!({
            "prestart": hook("prestart"), "createRuntime": hook("createRuntime"), "poststart": hook("poststart"),
            "poststop": hook("poststop"),
        });
    });
    assert_eq!(run(&p).0, Some(0));
    let text = fs::read_to_string(&record).unwrap();
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "prestart creating other",
            "createRuntime creating other",
            "poststart running other",
            "poststop stopped same"
        ]
    );
}

#[test]
fn limits_reach_the_cgroup_and_the_sandbox_is_in_it() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    p.reconfigure(|config| {
        config["linux"]["resources"] =
            json!({"memory": {"limit": 268_435_456}, "pids": {"limit": 100}});
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    let event = p.events(&p.id);
    assert_eq!(event["data"]["memory"]["usage"]["limit"], 268_435_456);
    let pid = p.state()["pid"].to_string();
    let member = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(member.contains(&format!("/quark/{}", p.id)), "{member}");
    for (option, limit, why) in [
        ("--memory", "5M", "is too small"),
        ("--pids-limit", "2", "is too small"),
        // What runc has besides.
        ("--cpu-rt-runtime", "95000", "no real-time priority on the host"),
        ("--cpu-rt-period", "100000", "no real-time priority on the host"),
        ("--l3-cache-schema", "L3:0=f", "is not supported"),
        ("--mem-bw-schema", "MB:0=20", "is not supported"),
    ] {
        let refused = p.output(&["update", option, limit, &p.id]);
        assert_eq!(refused.status.code(), Some(1), "{option}");
        let says = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(says.contains(why) && says.lines().count() == 1, "{option}: {says}");
    }
    let file = p.dir.join("resources");
    fs::write(&file, r#"{"cpu": {"realtimeRuntime": 95000}}"#).unwrap();
    assert!(!p.output(&["update", "-r", file.to_str().unwrap(), &p.id]).status.success());
    fs::write(&file, r#"{"pids": {"limit": 90}, "cpu": {"realtimeRuntime": 0}}"#).unwrap();
    p.good(&["update", "-r", file.to_str().unwrap(), &p.id]);
    let event = p.events(&p.id);
    assert_eq!(event["data"]["pids"]["limit"], 90);
    let output = p.output(&["update", "--cpuset-cpus", "4711", &p.id]);
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(says.contains("use numbers and ranges among 0"), "{says}");
    p.good(&["update", "--memory", "536870912", &p.id]);
    let event = p.events(&p.id);
    assert_eq!(event["data"]["memory"]["usage"]["limit"], 536_870_912);
}

#[test]
fn an_exec_that_fails_leaves_nothing_in_the_kernel() {
    const EXECS: usize = 60;
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 60; done");
    p.create(&[]);
    p.good(&["start", &p.id]);
    let heap = || {
        for _ in 0..EXECS {
            assert_eq!(p.output(&["exec", &p.id, "/no/such/program"]).status.code(), Some(255));
        }
        let event = p.events(&p.id);
        event["data"]["quark"]["memory"]["kernel_heap"].as_i64().unwrap()
    };
    // The first ones fill what is kept.
    let (before, after) = (heap(), heap());
    // An address space takes some hundred bytes, and a name or two may come and go.
    assert!(after - before < EXECS as i64 * 100, "{before} bytes, then {after}");
}

#[test]
fn a_killed_sandbox_leaves_nothing_but_its_entry() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    p.create(&[]);
    p.good(&["start", &p.id]);
    let pid = i32::try_from(p.state()["pid"].as_i64().unwrap()).unwrap();
    assert!(pid > 1, "it has ended by itself: {}", p.log());
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    p.wait_for("the end", || p.status() == "stopped");
    p.good(&["delete", &p.id]);
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn delete_waits_for_processes_that_are_on_their_way_out_of_the_cgroup() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.2; done");
    p.create(&[]);
    p.good(&["start", &p.id]);
    let pid = p.state()["pid"].as_i64().unwrap();
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let at = |line: &str| -> Option<PathBuf> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let dir = PathBuf::from("/sys/fs/cgroup").join(controllers).join(path).join("cgroup.procs");
        (path.contains(&p.id) && dir.exists()).then_some(dir)
    };
    let list = cgroups.lines().find_map(at).expect("a cgroup of the container");
    let mut late = std::process::Command::new("sleep").arg("0.5").spawn().unwrap();
    fs::write(list, late.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || late.wait().unwrap());
    p.good(&["delete", "--force", &p.id]);
    assert!(reaper.join().unwrap().success());
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn a_terminal_goes_to_the_console_socket() {
    use std::io::Read;
    let Some(p) = place() else { return };
    p.configure(
        &["sh", "-c", "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo a terminal; stty size"],
        |c| {
            c["process"]["terminal"] = json!(true);
            c["process"]["consoleSize"] = json!({"height": 33, "width": 77});
        },
    );
    let path = p.dir.join("console");
    let listener = UnixListener::bind(&path).unwrap();
    let receiver = std::thread::spawn(move || {
        let mut master = fs::File::from(master_of(&listener));
        let mut screen = Vec::new();
        let mut buffer = [0; 1024];
        // EIO: the other end is closed.
        while let Ok(n @ 1..) = master.read(&mut buffer) {
            screen.extend_from_slice(&buffer[..n]);
        }
        String::from_utf8_lossy(&screen).into_owned()
    });
    p.create(&["--console-socket", path.to_str().unwrap()]);
    p.good(&["start", &p.id]);
    p.wait_for("the end", || p.status() == "stopped");
    let screen = receiver.join().unwrap();
    assert!(screen.contains("a terminal\r\n") && screen.contains("33 77\r\n"), "{screen:?}");
}

#[test]
fn stop_hibernates_and_cont_wakes() {
    let Some(p) = place() else { return };
    sh(&p, "while :; do sleep 0.1; echo tick; done");
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("a tick", || p.log().contains("tick"));
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.state()["hibernation"], "Hibernated");
    let before = p.log();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(p.log(), before, "a hibernated container does nothing");
    p.good(&["kill", &p.id, "CONT"]);
    p.wait_for("a tick after the wake", || p.log().len() > before.len());
    p.good(&["kill", &p.id, "KILL"]);
    p.wait_for("the end", || p.status() == "stopped");
}

#[test]
fn do_runs_over_the_hosts_root_and_writes_nothing_to_it() {
    let Some(p) = place() else { return };
    let probe = format!("/var/{}", p.id);
    let script = format!("echo x > {probe} && cat {probe}; pwd; echo $MARK; exit 6");
    let output = p
        .quark(&["do", "--", "/bin/sh", "-c", &script])
        .env("MARK", "m")
        .current_dir("/usr")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "x\n/usr\nm\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(6));
    assert!(!fs::exists(&probe).unwrap());
    assert_eq!(fs::read_dir(&p.root).unwrap().count(), 0);
}

#[test]
fn what_a_killed_do_leaves_is_swept_by_the_next() {
    let Some(p) = place() else { return };
    let start = || {
        let mut child = p
            .quark(&["do", "--", "/bin/sh", "-c", "echo up; sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        child
    };
    let (mut dead, mut alive) = (start(), start());
    let id = |child: &std::process::Child| format!("do-{}", child.id());
    dead.kill().unwrap();
    dead.wait().unwrap();
    assert_ne!(p.leftovers(&id(&dead)), [""; 0]);
    p.wait_for("the sweep", || {
        p.good(&["do", "--", "/bin/true"]);
        p.leftovers(&id(&dead)).is_empty()
    });
    // Of the living it takes nothing.
    assert!(p.root.join(id(&alive)).join("state.json").exists());
    assert!(alive.try_wait().unwrap().is_none());
    alive.kill().unwrap();
    alive.wait().unwrap();
    p.wait_for("the sweep", || {
        p.good(&["do", "--", "/bin/true"]);
        p.leftovers(&id(&alive)).is_empty()
    });
}

#[test]
fn the_callers_file_size_limit_is_the_guests() {
    let Some(p) = place() else { return };
    let inner = "f=$(mktemp); ulimit -f; head -c 60000 /dev/zero > $f; echo $(wc -c < $f)";
    let quark = p.quark(&["do", "--", "/bin/sh", "-c", inner]);
    let mut command = std::process::Command::new("/bin/sh");
    command
        .args(["-c", "ulimit -S -f 100; exec \"$@\"", "sh"])
        .arg(quark.get_program())
        .args(quark.get_args());
    let output = command.output().unwrap();
    // dash counts blocks of 512 bytes.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "100\n51200\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn network_settings_are_those_of_the_namespace() {
    let Some(p) = place() else { return };
    let script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
        (sleep 0.2; echo | nc 127.0.0.1 80) & timeout 5 nc -l -p 80 > /dev/null; echo $?";
    let with = |start: Option<&str>| {
        p.configure(&["sh", "-c", script], |c| {
            c["process"]["user"] = serde_json::json!({"uid": 1000, "gid": 1000});
            if let Some(start) = start {
                c["linux"]["sysctl"] =
                    serde_json::json!({"net.ipv4.ip_unprivileged_port_start": start});
            }
        });
        run(&p).1
    };
    assert_eq!(with(None), "1024\n1\n");
    assert_eq!(with(Some("80")), "80\n0\n");
    assert_eq!(with(Some("81")), "81\n1\n");
    // Those of the host are not the container's to change.
    p.configure(&["true"], |c| {
        c["linux"] = serde_json::json!({"sysctl": {"net.ipv4.ip_unprivileged_port_start": "80"},
            "namespaces": [{"type": "pid"}, {"type": "mount"}]});
    });
    let (code, _, errors) = run(&p);
    assert_eq!(code, Some(1));
    assert!(errors.contains("net.ipv4.ip_unprivileged_port_start: not allowed"), "{errors}");
}

#[test]
fn settings_have_an_effect_or_are_refused() {
    let Some(p) = place() else { return };
    let with = |settings: serde_json::Value, script: &str| {
        p.configure(&["sh", "-c", script], |c| {
            for set in ["bounding", "effective", "permitted"] {
                c["process"]["capabilities"][set] = serde_json::json!(["CAP_SYS_ADMIN"]);
            }
            c["linux"] = serde_json::json!({"sysctl": settings, "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]});
        });
        run(&p)
    };
    let show = "cd /proc/sys; cat kernel/msgmax kernel/sem vm/swappiness";
    let (code, out, errors) = with(
        serde_json::json!({"kernel.msgmax": "4096", "kernel.sem": "100 \
            200", "vm.swappiness": "60"}),
        show,
    );
    assert_eq!((code, out.as_str()), (Some(0), "4096\n100\t200\t500\t32000\n60\n"), "{errors}");
    for (name, value, why) in [
        ("vm.swappiness", "10", "no effect"),
        ("kernel.no_such_thing", "1", "no such setting"),
        ("kernel.msgmax", "many", "cannot have this value"),
        ("kernel.msgmax", "-1", "cannot have this value"),
        ("kernel.sem", "1 2 3 4 5", "cannot have this value"),
    ] {
        let (code, _, errors) = with(serde_json::json!({name: value}), "echo it ran");
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{name}={value}: {errors}");
        assert!(
            errors.contains(&format!("sysctl {name}={value}: ")) && errors.contains(why),
            "{errors}"
        );
    }
    // From inside, as on Linux: what can be written is, and the rest is as files that nobody may
    // write.
    let script = "cd /proc/sys; echo 5000 > kernel/msgmax && cat kernel/msgmax; echo here > \
        kernel/domainname && cat kernel/domainname;
        (echo 1 > vm/swappiness) 2>/dev/null || echo refused; (echo x > kernel/msgmax) 2>/dev/null || echo invalid; cat kernel/msgmax";
    let (code, out, errors) = with(serde_json::json!({}), script);
    assert_eq!((code, out.as_str()), (Some(0), "5000\nhere\nrefused\ninvalid\n5000\n"), "{errors}");
}

#[test]
fn sync_reaches_the_hosts_file_systems() {
    let Some(p) = place() else { return };
    let log = p.dir.join("log");
    let calls = |args: &[&str]| {
        p.configure(args, |_| {});
        let options = ["--debug", "--log", log.to_str().unwrap(), "run", &p.id];
        assert!(
            p.quark(&options)
                .env("QUARK_TRACE", "1")
                .stdout(Stdio::null())
                .status()
                .unwrap()
                .success()
        );
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        text.matches("SyncFs").count()
    };
    assert_eq!(calls(&["true"]), 0);
    // The root, which is the only file system of the host here.
    assert_eq!(calls(&["sync"]), 1);
    assert_eq!(calls(&["sync", "-f", "/etc/passwd"]), 1);
    assert_eq!(calls(&["sync", "-f", "/tmp"]), 0);
}

/// Configures a container that runs system-call cases of `test-apps` with a directory of the host,
/// `volume`, as /tmp.
pub fn configure_cases(p: &Place, volume: &std::path::Path, cases: &[&str], env: &str) {
    let program = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/test-apps/syscalls")
        .join(cases[0]);
    let program = program.canonicalize().expect("the test programs are made by: make test-apps");
    let mut args = vec![program.to_str().unwrap()];
    args.extend(&cases[1..]);
    p.configure(&args, |c| {
        c["root"] = json!({"path": "/", "readonly": true});
        let limit_s = format!("QUARK_TEST_LIMIT_S={}", crate::shared::limit().as_secs());
        c["process"]["env"] = json!(["PATH=/bin", env, limit_s]);
        let tmp = json!({"destination": "/tmp", "type": "bind", "source": volume, "options": ["rbind", "rw"]});
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.retain(|m| m["destination"] != "/tmp");
        mounts.push(tmp);
    });
}

/// Runs such cases.
pub fn cases_on(p: &Place, volume: &std::path::Path, cases: &[&str], env: &str) {
    configure_cases(p, volume, cases, env);
    let (code, output, errors) = run(p);
    assert_eq!(code, Some(0), "{output}{errors}");
    assert_eq!(output.matches("ok ").count(), cases.len() - 1, "{output}");
}

#[test]
fn huge_pages_fit_into_a_memory_limit() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let cases = ["memory", "huge_pages_fit_into_a_limit"];
    configure_cases(&p, &volume, &cases, "QUARK_LIMITED=1");
    p.reconfigure(|config| {
        config["linux"]["resources"] = json!({"memory": {"limit": 64 << 20}});
    });
    let (code, output, errors) = run(&p);
    let all_ran = "ok huge_pages_fit_into_a_limit\n";
    assert_eq!((code, output.as_str()), (Some(0), all_ran), "{errors}");
}

#[test]
fn one_file_of_the_host_is_one_futex() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    cases_on(&p, &volume, &["threads", "futex_of_a_file_mapped_read_only_and_writable"], "A=B");
}

#[test]
fn files_of_the_host_are_synchronized_by_many_at_once() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    cases_on(
        &p,
        &volume,
        &[
            "sync",
            "fsync_family",
            "fsyncs_at_once",
            "synchronous_copies",
            "transfers_at_one_position_do_not_mix",
        ],
        "A=B",
    );
}

#[test]
fn a_noexec_mount_of_the_host_is_one_for_the_guest() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let Some(p) = place() else { return };
    let volume = p.volume();
    mount(Some("tmpfs"), &volume, Some("tmpfs"), MsFlags::MS_NOEXEC, None::<&str>).unwrap();
    let result = std::panic::catch_unwind(|| {
        cases_on(
            &p,
            &volume,
            &["memory", "nothing_on_a_noexec_mount_is_executable"],
            "QUARK_NOEXEC=1",
        );
    });
    umount2(&volume, MntFlags::MNT_DETACH).unwrap();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn files_without_names_and_busy_programs_on_a_volume() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let cases = ["files", "tmpfiles_get_names", "tmpfiles_get_names_in_a_root", "open_tmpfile"];
    cases_on(&p, &volume, &cases, "A=B");
    cases_on(&p, &volume, &["process", "text_is_busy", "script_text_is_busy"], "A=B");
    for (family, case) in [
        ("files", "names_of_attributes_that_are_kept"),
        ("files", "holes_of_kept_files"),
        ("files", "extents_of_a_file"),
        ("memory", "private_copies_of_many_pages"),
    ] {
        cases_on(&p, &volume, &[family, case], "QUARK_KEPT=1");
    }
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0, "nothing is left on the host");
}

/// What a package manager does with its files, with the capabilities that Docker gives.
#[test]
fn capabilities_of_files_are_kept_by_the_host() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    configure_cases(&p, &volume, &["privileges", "capabilities_of_files"], "A=B");
    p.reconfigure(|config| {
        let docker = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETFCAP", "SETUID", "SETGID"];
        let names: Vec<String> = docker.iter().map(|n| format!("CAP_{n}")).collect();
        config["process"]["capabilities"] =
            json!({"bounding": names, "effective": names, "permitted": names});
    });
    let (code, output, errors) = run(&p);
    assert_eq!((code, output.as_str()), (Some(0), "ok capabilities_of_files\n"), "{errors}");
}

/// Capabilities that the host keeps with its files are those of the program that is executed, and
/// end with a change of the file.
#[test]
fn capabilities_of_files_of_the_host_take_effect() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let cases = [
        "privileges",
        "capabilities_of_files_at_exec",
        "capabilities_of_files_are_bounded",
        "capabilities_of_files_that_have_no_name",
        "capabilities_of_files_and_root",
        "capabilities_of_files_of_scripts_are_the_interpreters",
        "capabilities_of_files_end_when_they_change",
    ];
    configure_cases(&p, &volume, &cases, "A=B");
    p.reconfigure(|config| {
        let needed = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID"];
        let names: Vec<String> =
            needed.iter().chain(&["SETPCAP", "SETUID"]).map(|n| format!("CAP_{n}")).collect();
        config["process"]["capabilities"] =
            json!({"bounding": names, "effective": names, "permitted": names});
        config["process"]["noNewPrivileges"] = json!(false);
    });
    let (code, output, errors) = run(&p);
    assert_eq!(code, Some(0), "{output}{errors}");
    assert_eq!(output.matches("ok ").count(), cases.len() - 1, "{output}");
}

/// As runc: what the configuration does not say is inherited.
#[test]
fn a_limit_of_open_files_is_the_callers() {
    let Some(p) = place() else { return };
    sh(&p, "ulimit -Sn; ulimit -Hn");
    let limited = |p: &Place| {
        let quark = p.quark(&["run", &p.id]);
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -Sn 700 && ulimit -Hn 800 && exec \"$@\"", "sh"]);
        command.arg(quark.get_program()).args(quark.get_args()).current_dir(&p.bundle);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(limited(&p), "700\n800\n");
    p.configure(&["sh", "-c", "ulimit -Sn; ulimit -Hn"], |c| {
        c["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 300, "hard": 400}]);
    });
    assert_eq!(limited(&p), "300\n400\n");
}

/// Programs look for the types that Linux has, and for what may be written.
#[test]
fn mounts_are_listed_as_on_linux() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    let script = "while read source point type flags rest; do \
                  case $point in /data|/sys|/tmp|/dev|/dev/pts|/) echo $point $type $flags;; esac; \
                  done < /proc/mounts";
    p.configure(&["sh", "-c", script], |c| {
        let volume = json!({"destination": "/data", "type": "bind", "source": volume,
                            "options": ["bind", "ro", "nosuid"]});
        let sys = json!({"destination": "/sys", "source": "/sys", "options": ["rbind", "ro"]});
        c["mounts"].as_array_mut().unwrap().extend([volume, sys]);
        c["mounts"][2]["options"] = json!(["noexec", "gid=5", "mode=0620", "ptmxmode=0666"]);
        c["mounts"][3]["options"] = json!(["size=64k", "nodev"]);
    });
    let stat = std::process::Command::new("stat").args(["-f", "-c", "%T"]).arg(&volume).output();
    let told = String::from_utf8(stat.unwrap().stdout).unwrap();
    // It calls them all by one name.
    let expected = if told.starts_with("ext2") { "ext4" } else { told.trim_end() };
    let output = p.good(&["run", &p.id]);
    assert_eq!(
        output,
        format!(
            "/ {expected} rw,relatime\n/dev tmpfs rw,relatime,mode=755,inode64\n\
            /dev/pts devpts rw,noexec,relatime,gid=5,mode=620,ptmxmode=666\n\
            /tmp tmpfs rw,nodev,relatime,size=64k,inode64\n\
            /data {expected} ro,nosuid,relatime\n\
            /sys sysfs ro,relatime\n"
        )
    );
}

/// What a node stands for outlives the container; in a volume there is none.
#[test]
fn device_nodes_of_the_root_last() {
    use std::os::unix::fs::PermissionsExt;
    let Some(p) = place() else { return };
    let volume = p.volume();
    let forged = volume.join("forged");
    fs::write(&forged, "").unwrap();
    fs::set_permissions(&forged, fs::Permissions::from_mode(0o1666)).unwrap();
    let name = "user.quark.device";
    if rustix::fs::setxattr(&forged, name, b"c 1:5", rustix::fs::XattrFlags::empty()).is_err() {
        crate::shared::skip("the file system of the tests has no attributes");
        return;
    }
    let run_script = |script: &str| {
        p.configure(&["sh", "-c", script], |c| {
            let data = json!({"destination": "/data", "source": volume, "options": ["bind"]});
            c["mounts"].as_array_mut().unwrap().push(data);
            let names = json!(["CAP_MKNOD", "CAP_SETUID", "CAP_SETGID"]);
            c["process"]["capabilities"] =
                json!({"bounding": names, "effective": names, "permitted": names});
        });
        let (code, output, errors) = run(&p);
        assert_eq!(code, Some(0), "{output}{errors}");
        output
    };
    let made = run_script(
        "set -e; b=/bin/busybox; $b mknod -m 640 /null c 1 3; $b mknod /disk b 8 0; echo x > /null; \
         ! cat /disk 2> /dev/null; $b ln /null /other; $b mv /null /moved; $b chmod 600 /moved; \
         ! $b mknod /data/null c 1 3 2> /dev/null; stat -c '%F' /data/forged; cat /data/forged; \
         $b rm /other",
    );
    assert_eq!(made, "regular empty file\n");
    let left = run_script("stat -c '%F %t:%T %a' /moved /disk; echo y > /moved; cat /moved");
    assert_eq!(left, "character special file 1:3 600\nblock special file 8:0 644\n");
    assert!(fs::symlink_metadata(p.rootfs().join("moved")).unwrap().is_file(), "none on the host");
}

/// Who looks from the host (`docker top`) finds the guest's programs by their names, which do
/// nothing to his terminal.
#[test]
fn the_host_calls_programs_by_their_names() {
    let Some(p) = place() else { return };
    let script = |name: &str, text: &str| {
        let path = p.rootfs().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("serves", "ev*1 & worker & (while :; do sleep 1000; done) & wait");
    script("ev\nil\x1b[2J\u{1}1", "while :; do sleep 1000; done");
    script("worker", "echo renamed > /proc/self/comm; while :; do sleep 1000; done");
    p.configure(&["sh", "-c", "cd /bin; exec serves"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let names = || {
        let pids: Vec<u32> =
            serde_json::from_str(&p.good(&["ps", "--format", "json", &p.id])).unwrap();
        let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut names: Vec<String> = pids.into_iter().map(name).collect();
        names.retain(|name| !name.starts_with("quark"));
        names.sort();
        names
    };
    let expected =
        ["ev?il?[2J?1\n", "renamed\n", "serves\n", "serves\n", "sleep\n", "sleep\n", "sleep\n"];
    p.wait_for(&format!("{expected:?}"), || names() == expected);
    p.good(&["delete", "--force", &p.id]);
}
