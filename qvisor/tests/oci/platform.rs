//! The choice of the platform.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::support::place;

/// `quark doctor`'s line for `what`: yes or no, and the rest.
fn line(doctor: &str, what: &str) -> Option<(bool, String)> {
    let line = doctor
        .lines()
        .find(|l| l.split_once(' ').is_some_and(|(_, rest)| rest.trim_start().starts_with(what)))?;
    let (mark, rest) = line.split_once(' ')?;
    Some((mark == "yes", rest.trim_start().strip_prefix(what)?.trim().to_owned()))
}

/// A reason without its numbers, which differ from one probe to the next.
fn words(reason: &str) -> &str {
    let reason = reason.split("; the probe took").next().unwrap_or(reason);
    reason.split(|c: char| c.is_ascii_digit()).next().unwrap_or(reason)
}

#[test]
fn kvm_is_refused_where_doctor_says_that_it_does_not_work() {
    let Some(p) = place() else { return };
    let doctor = p.good(&["doctor"]);
    let (works, reason) = line(&doctor, "kvm platform").expect("a line about kvm");
    let (chosen, auto) = line(&doctor, "auto").expect("a line about auto");
    assert!(
        chosen
            && (auto.starts_with("takes process: ") || (works && auto.starts_with("takes kvm: "))),
        "{doctor}"
    );
    assert!(reason.contains("the probe took"), "{doctor}");
    if works {
        // All other tests show that it is not refused.
        return;
    }
    let verdict = std::path::Path::new("/run/quark/kvm:verdict");
    // The second time the verdict is known.
    for command in [&["create"][..], &["run"], &["create"]] {
        let args = [&["--platform=kvm"][..], command, &[&p.id]].concat();
        let output = p.output(&args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.contains("--platform=kvm does not work on this host: "), "{error}");
        assert!(error.contains(words(&reason)), "{error:?} has not the reason of {reason:?}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(p.leftovers(&p.id), [""; 0]);
        // Without /dev/kvm there is nothing to keep a verdict for.
        if std::path::Path::new("/dev/kvm").exists() {
            let kept = fs::metadata(verdict).expect("the verdict is kept");
            assert_eq!(kept.permissions().mode() & 0o777, 0o600);
        }
    }
}

#[test]
fn doctor_tells_the_numbers_of_kvm_or_what_is_missing() {
    let Some(p) = place() else { return };
    let doctor = p.good(&["doctor"]);
    let (works, reason) = line(&doctor, "kvm platform").unwrap();
    if works {
        for what in ["kvm ring 0", "kvm system call", "kvm exit"] {
            assert!(
                line(&doctor, what)
                    .is_some_and(|(good, detail)| good && detail.contains(['n', 'u'])),
                "{doctor}"
            );
        }
    } else {
        let bad = ["kvm ring 0", "kvm system call", "kvm needs"];
        let has_line = bad.iter().any(|what| line(&doctor, what).is_some_and(|(good, _)| !good));
        assert!(has_line || reason.len() > 20, "no reason: {doctor}");
    }
}

#[test]
fn a_container_tells_its_platform() {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&["--no-pivot"]);
    p.good(&["start", &p.id]);
    let name = p.state()["platform"].as_str().unwrap().to_owned();
    assert!(["process", "kvm"].contains(&name.as_str()), "{name}");
    let listed: Value = serde_json::from_str(&p.good(&["list", "--format", "json"])).unwrap();
    assert_eq!(listed[0]["platform"], name);
    let event = p.events(&p.id);
    let platform = &event["data"]["quark"]["platform"];
    assert_eq!(platform["name"], name);
    assert_eq!(platform["exits"].is_object(), name == "kvm", "{platform}");
    p.good(&["delete", "--force", &p.id]);
}

/// What processors a thread may use, by its directory in /proc.
fn allowed(task: &Path) -> Option<String> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

/// What processors the threads of a host process and of all its descendants may use.
fn processors(pid: u32) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        found.extend(allowed(&task.path()));
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        found.extend(children.flat_map(processors));
    }
    found
}

/// Its rows of calls have the platform keep the program's thread and its own apart for a while.
/// What they make meanwhile must not be kept for its life.
#[test]
fn what_is_made_after_a_row_of_calls_may_use_all_processors() {
    const ROWS: &str = "\
import os, threading, time
for _ in range(4):
    for _ in range(3000): os.getppid()
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    os.posix_spawn('/bin/sleep', ['sleep', '100'], {})
print('there', flush=True)
time.sleep(100)";
    let Some(p) = place() else { return };
    for mode in ["auto", "eager"] {
        let mut command = p.quark(&["--fast-calls", mode, "do", "--", "python3", "-c", ROWS]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 5];
        let is_there = child.stdout.as_mut().map(|out| out.read_exact(&mut said));
        // Not that of other threads of the tests, whose children may be kept just now.
        let own = allowed(Path::new("/proc/thread-self")).into_iter().collect();
        // A receiver that still looks for more calls is kept until it finds none.
        p.wait_for("all processors", || processors(child.id()) == own);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(is_there, Some(Ok(()))), "the program says {said:?}");
    }
}
