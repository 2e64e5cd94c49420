//! The cgroup of a container: its files, of either version.

use std::path::PathBuf;

/// Where cgroup file systems are.
const BASE: &str = "/sys/fs/cgroup";

/// The cgroup that a process was in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// cgroup v2, if the host has no other.
    unified: Option<PathBuf>,
    /// With v1: controllers, and their directories.
    controllers: Vec<(String, PathBuf)>,
}

impl Cgroup {
    /// None at all.
    pub const NONE: Self = Self { unified: None, controllers: Vec::new() };

    /// That of a process; an empty one if it is gone.
    pub fn of(pid: i32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let only_v2 = PathBuf::from(BASE).join("cgroup.controllers").exists();
        Self::parse(&text, only_v2)
    }

    fn parse(text: &str, only_v2: bool) -> Self {
        let mut cgroup = Self::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(id), Some(names), Some(path)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let path = path.trim_start_matches('/');
            if id == "0" && only_v2 {
                cgroup.unified = Some(PathBuf::from(BASE).join(path));
            }
            for name in names.split(',').filter(|n| !n.is_empty() && !only_v2) {
                cgroup
                    .controllers
                    .push((name.to_owned(), PathBuf::from(BASE).join(name).join(path)));
            }
        }
        cgroup
    }

    /// Whether it is of version 2.
    pub fn is_unified(&self) -> bool {
        self.unified.is_some()
    }

    /// Reads a file of a controller; empty if there is none.
    pub fn read(&self, controller: &str, file: &str) -> String {
        let v1 = || self.controllers.iter().find(|(name, _)| name == controller).map(|(_, d)| d);
        let dir = self.unified.as_ref().or_else(v1);
        dir.and_then(|d| std::fs::read_to_string(d.join(file)).ok()).unwrap_or_default()
    }

    /// A number in a file of one number ("max" is the largest); 0 if there is none.
    pub fn number(&self, controller: &str, file: &str) -> u64 {
        match self.read(controller, file).trim() {
            "max" => u64::MAX,
            text => text.parse().unwrap_or(0),
        }
    }

    /// How often the host's out-of-memory handling killed in it.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.is_unified() { "memory.events" } else { "memory.oom_control" };
        field(&self.read("memory", file), "oom_kill")
    }
}

/// The number behind a name, in a file with one of both on each line.
pub fn field(text: &str, name: &str) -> u64 {
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(key, _)| *key == name).and_then(|(_, v)| v.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let hybrid = "5:memory:/q/a\n3:cpuacct,cpu:/q/a\n0::/q/a\n";
        let cgroup = Cgroup::parse(hybrid, false);
        let names: Vec<_> =
            cgroup.controllers.iter().map(|(n, d)| (n.as_str(), d.to_str())).collect();
        let expected = [
            ("memory", Some("/sys/fs/cgroup/memory/q/a")),
            ("cpuacct", Some("/sys/fs/cgroup/cpuacct/q/a")),
            ("cpu", Some("/sys/fs/cgroup/cpu/q/a")),
        ];
        assert_eq!(names, expected);
        assert!(!cgroup.is_unified());
        let cgroup = Cgroup::parse("0::/q/b\n", true);
        assert_eq!(cgroup.unified.as_deref(), Some("/sys/fs/cgroup/q/b".as_ref()));
    }

    #[test]
    fn fields_are_whole_names() {
        assert_eq!(field("oom 3\noom_kill 2\n", "oom_kill"), 2);
        assert_eq!(field("oom 3\n", "oom_kill"), 0);
    }
}
