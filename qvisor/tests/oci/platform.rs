//! The choice of the platform.

use std::fs;
use std::os::unix::fs::PermissionsExt;

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
    let event: Value = serde_json::from_str(&p.good(&["events", "--stats", &p.id])).unwrap();
    let platform = &event["data"]["quark"]["platform"];
    assert_eq!(platform["name"], name);
    assert_eq!(platform["exits"].is_object(), name == "kvm", "{platform}");
    p.good(&["delete", "--force", &p.id]);
}
