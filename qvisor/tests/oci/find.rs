//! A part of an ID is enough for people, and never for engines.

use super::shared;
use super::support::place;

#[test]
fn a_part_of_an_id_finds_a_container_of_any_root() {
    let Some(place) = place() else { return };
    // Its root is none that quark looks at by itself; making it there notes it.
    place.configure(&["sleep", "1000"], |_| {});
    place.create(&[]);
    place.good(&["start", &place.id]);
    let quark = |args: &[&str]| {
        let output = shared::quark().args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let id = place.id.as_str();
    assert!(quark(&["why", id]).1.contains("awake"), "{:?}", quark(&["why", id]));
    assert_eq!(quark(&["exec", id, "echo", "found"]).1, "found\n");
    assert!(quark(&["ps", id]).1.contains("sleep"));
    assert!(quark(&["events", "--stats", id]).1.contains("\"stats\""));
    // What engines call is exact, and so is everything with --root.
    for args in [&["kill", id, "0"][..], &["state", id], &["delete", "--force", "no-such-one"]] {
        let (_, out, err) = quark(args);
        assert!(out.is_empty(), "{args:?}: {out} {err}");
    }
    // A name is never cut short.
    let part = &id[..id.len() - 1];
    assert!(quark(&["why", part]).2.contains("does not exist"), "{:?}", quark(&["why", part]));
    // IDs that engines make up are.
    let ids = ["0", "1"].map(|last| format!("{:08x}{}{last}", std::process::id(), "c".repeat(55)));
    let make = |id: &str| {
        let args = ["run", "--detach", "--bundle", place.bundle.to_str().unwrap(), id];
        let mut command = place.quark(&args);
        assert!(command.stdout(std::process::Stdio::null()).status().unwrap().success());
    };
    make(&ids[0]);
    let part = &ids[0][..12];
    assert!(quark(&["why", part]).1.contains("awake"), "{:?}", quark(&["why", part]));
    assert!(!place.output(&["why", part]).status.success());
    make(&ids[1]);
    let (good, _, said) = quark(&["why", part]);
    assert!(!good && said.lines().count() == 1, "{said}");
    assert!(said.contains(&ids[0]) && said.contains(&ids[1]), "{said}");
    assert!(said.contains("give more of it, or --root"), "{said}");
    assert!(quark(&["why", &ids[1]]).0);
    ids.iter().for_each(|id| drop(place.good(&["delete", "--force", id])));
}
