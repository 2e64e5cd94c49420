//! What a container that is made of an image has of its own: its terminal, its limits, its name.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use serde_json::json;

use super::support::{Place, master_of, place};

/// Starts the container by `command`, with a terminal.
fn on_terminal(p: &Place, command: &[&str], id: &str) -> OwnedFd {
    let path = p.dir.join(format!("{id}.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    let path = path.to_str().unwrap();
    p.good(&[command, &["--detach", "--console-socket", path, id]].concat());
    master_of(&listener)
}

/// Types a line, and waits for what is to come then; all that came.
fn typed(p: &Place, master: &OwnedFd, line: &str, until: &str) -> String {
    rustix::io::write(master, line.as_bytes()).unwrap();
    let mut text = String::new();
    p.wait_for(until, || {
        let mut block = [0; 256];
        let n = rustix::io::read(master, &mut block).unwrap();
        text.push_str(&String::from_utf8_lossy(&block[..n]));
        text.contains(until)
    });
    text
}

#[test]
fn a_terminal_is_as_it_was() {
    let Some(p) = place() else { return };
    p.configure(&["sh"], |c| {
        c["process"]["terminal"] = json!(true);
    });
    let image = p.dir.join("image");
    let image = image.to_str().unwrap();
    let old = format!("{}-old", p.id);
    let master = on_terminal(&p, &["run"], &old);
    typed(&p, &master, "x=kept; echo $x.\n", "kept.\r\n");
    p.good(&["checkpoint", "--image-path", image, &old]);
    drop(master);
    p.good(&["delete", &old]);
    p.configure(&["sh"], |c| {
        c["process"]["terminal"] = json!(true);
        c["hostname"] = json!("another");
    });
    let master = on_terminal(&p, &["restore", "--image-path", image], &p.id);
    let text = typed(&p, &master, "echo $x. $(hostname).\n", "kept. another.\r\n");
    assert_eq!(text.matches("echo $x").count(), 1, "echoed once: {text:?}");
    typed(&p, &master, "sleep 1000\n", "sleep 1000\r\n");
    p.wait_for("the sleep", || p.good(&["ps", &p.id]).contains("sleep 1000"));
    // ^C ends it, and not the shell.
    typed(&p, &master, "\x03", "^C\r\n");
    typed(&p, &master, "echo after.\n", "after.\r\n");
    p.good(&["delete", "--force", &p.id]);
}
