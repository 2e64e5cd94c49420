//! Memory used up, as programs and engines see it.

use std::fs;

use serde_json::json;

use super::shared::test_apps;
use super::support::{Place, place};

/// A container with this limit, in MiB, and `hungry` in it.
fn limited(mib: u64, args: &[&str]) -> Option<Place> {
    let p = place()?;
    let hungry = test_apps("bombs").join("hungry");
    fs::copy(hungry, p.rootfs().join("bin/hungry")).expect("hungry is missing; make test-apps");
    p.configure(args, |c| {
        let limit = mib << 20;
        c["linux"]["resources"] = json!({"memory": {"limit": limit, "swap": limit}});
    });
    Some(p)
}

/// A copy to memory that cannot be had is what a fault there would be: no call fails for it.
#[test]
fn a_call_that_uses_memory_up_is_killed_and_does_not_fail() {
    const KINDS: &str = "zeros zeros-long tmpfs tmpfs-long file file-long file-parts pipe stream message \
                         tcp udp getrandom stat getdents wait clock signal exec";
    let all = format!(
        "ip link set lo up; for kind in {KINDS}; do hungry $kind; echo $kind $?; done; echo over"
    );
    let Some(p) = limited(64, &["sh", "-c", &all]) else { return };
    let output = p.output(&["run", &p.id]);
    let said = String::from_utf8_lossy(&output.stdout);
    let expected: String = KINDS.split_whitespace().map(|kind| format!("{kind} 137\n")).collect();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, expected + "over\n", "{complaints}");
}
