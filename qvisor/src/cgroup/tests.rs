//! Parsing of host layouts, and the version 2 files on a directory that stands in for a hierarchy.

use oci_spec::runtime::LinuxResources;

use super::*;

const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
    32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
    41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

fn dirs(mountinfo: &str, own: &str, path: &str) -> Vec<(String, String)> {
    let h = Hierarchies::parse(mountinfo, own).unwrap();
    h.directories(path).unwrap().into_iter().map(|(c, _, d)| (c, d.display().to_string())).collect()
}

#[test]
fn a_hybrid_host_is_version_1() {
    let own = "4:memory:/jobs/a\n1:cpu,cpuacct:/\n0::/\n";
    assert_eq!(Hierarchies::parse(V1, own).unwrap().version, Version::V1);
    let absolute = dirs(V1, own, "/quark/x");
    assert!(absolute.contains(&("memory".into(), "/sys/fs/cgroup/memory/quark/x".into())));
    assert!(absolute.contains(&("cpu".into(), "/sys/fs/cgroup/cpu,cpuacct/quark/x".into())));
    let relative = dirs(V1, own, "x");
    assert!(relative.contains(&("memory".into(), "/sys/fs/cgroup/memory/jobs/a/x".into())));
}

#[test]
fn version_2_is_one_directory() {
    let info = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    assert_eq!(
        dirs(info, "0::/user\n", "/quark/x"),
        [(String::new(), "/sys/fs/cgroup/quark/x".to_owned())]
    );
}

#[test]
fn units_are_where_systemd_has_them() {
    let info = "30 23 0:26 / /c rw - cgroup2 cgroup2 rw\n";
    for (path, place) in [
        ("system.slice:docker:x", "system.slice/docker-x.scope"),
        (":quark:x", "system.slice/quark-x.scope"),
        ("a-b-c.slice:cri:x", "a.slice/a-b.slice/a-b-c.slice/cri-x.scope"),
        ("-.slice::x", "x.scope"),
        ("a.slice::a-b.slice", "a.slice/a-b.slice"),
    ] {
        assert_eq!(dirs(info, "0::/user\n", path), [(String::new(), format!("/c/{place}"))]);
    }
}

#[test]
fn bad_paths_are_refused() {
    let h = Hierarchies::parse(V1, "").unwrap();
    for path in
        ["/a/../b", "/", "a:b", "x.service:q:a", "a--b.slice:q:x", "a.slice:q:../x", "a.slice:q:"]
    {
        assert!(h.directories(path).is_err(), "{path}");
    }
    assert!(Hierarchies::parse("", "").is_err());
}

#[test]
fn shares_become_weights() {
    assert_eq!(limits::weight_of_shares(2), 1);
    assert_eq!(limits::weight_of_shares(1024), 39);
    assert_eq!(limits::weight_of_shares(262_144), 10_000);
}

#[test]
fn version_2_limits_are_written_and_a_missing_file_is_an_error() {
    let base = std::env::temp_dir().join(format!("quark-cgroup-test-{}", std::process::id()));
    let dir = base.join("c");
    fs::create_dir_all(&dir).unwrap();
    for file in ["memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "cgroup.procs"] {
        fs::write(dir.join(file), "").unwrap();
    }
    let cgroup = Cgroup {
        version: Version::V2,
        dirs: BTreeMap::from([(String::new(), dir.clone())]),
        made: Vec::new(),
    };
    let resources = |json: &str| serde_json::from_str::<LinuxResources>(json).unwrap();
    cgroup
        .set_limits(&resources(
            r#"{"memory":{"limit":1000,"swap":1500},"cpu":{"shares":1024,"quota":50000,"period":100000},"pids":{"limit":0}}"#,
        ))
        .unwrap();
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
    assert_eq!(read("memory.max"), "1000");
    assert_eq!(read("memory.swap.max"), "500");
    assert_eq!(read("cpu.max"), "50000 100000");
    assert_eq!(read("cpu.weight"), "39");
    // What is not given stays as it is.
    for (given, set) in [
        (r#"{"cpu":{"quota":20000}}"#, "20000 100000"),
        (r#"{"cpu":{"period":40000}}"#, "20000 40000"),
        (r#"{"cpu":{"quota":-1}}"#, "max 40000"),
    ] {
        fs::write(dir.join("cpu.max"), read("cpu.max") + "\n").unwrap();
        cgroup.set_limits(&resources(given)).unwrap();
        // A plain file keeps the end of what was longer.
        assert!(read("cpu.max").starts_with(set), "{given}");
    }
    let error = cgroup.set_limits(&resources(r#"{"pids":{"limit":7}}"#)).unwrap_err();
    assert!(format!("{error:#}").contains("pids.max"), "{error:#}");
    fs::remove_dir_all(&base).unwrap();
}
