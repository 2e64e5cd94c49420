//! Containers of a pod, as the annotations of Kubernetes' runtime interface tell.

use std::fs;
use std::process::Stdio;

use serde_json::json;

use super::support::place;

#[test]
fn settings_of_a_pod_are_those_of_its_containers() {
    let Some(p) = place() else { return };
    let pod = format!("{}-pod", p.id);
    let bundle = p.dir.join("pod");
    fs::create_dir(&bundle).unwrap();
    p.configure(&["sleep", "1000"], |c| {
        c["root"]["path"] = json!(p.rootfs());
        c["linux"]["namespaces"] = json!([{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]);
        c["linux"]["sysctl"] =
            json!({"kernel.shm_rmid_forced": "1", "kernel.msgmax": "4000", "kernel.msgmni": "40"});
    });
    fs::rename(p.bundle.join("config.json"), bundle.join("config.json")).unwrap();
    let mut command = p.quark(&["run", "--detach", "--bundle", bundle.to_str().unwrap(), &pod]);
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
    let settings = "cd /proc/sys/kernel; cat shm_rmid_forced msgmax msgmni";
    for (sandbox, expected) in
        [(pod.as_str(), "1\n5000\n40\n"), ("no-such-pod", "0\n5000\n32000\n")]
    {
        p.configure(&["sh", "-c", settings], |c| {
            c["linux"]["sysctl"] = json!({"kernel.msgmax": "5000"});
            c["linux"]["namespaces"] = json!([{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]);
            c["annotations"] = json!({
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-id": sandbox,
            });
        });
        assert_eq!(p.good(&["run", &p.id]), expected, "{sandbox}");
    }
    p.good(&["delete", "--force", &pod]);
    assert_eq!(p.leftovers(&pod), [""; 0]);
}
