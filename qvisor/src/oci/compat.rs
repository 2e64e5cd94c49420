//! Called as `runsc`, or with `--compat=runsc` first: runsc's command line, put into quark's words.
//!
//! Its flags are Go's: one hyphen or two, a value after `=` or as the next word, but of a switch
//! after `=` only, and none after the first word that is none. Each flag is something that quark
//! has, or tunes what quark has not (then nobody misses it, and the debug log tells), or is refused
//! as something would be missed. The names are those of `runsc flags` and of `runsc help COMMAND`.

use anyhow::{Result, bail};

/// What a flag of runsc is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The same, by the same name.
    Same,
    /// The same switch, by the same name.
    Switch,
    /// Nothing here: it tunes what only runsc has.
    Tuning,
    /// Nothing here, and a switch.
    TuningSwitch,
    /// Understood with these values only; else refused, and why.
    Only(&'static [&'static str], &'static str),
}

use Meaning::{Only, Same, Switch, Tuning, TuningSwitch};

const BOOLS_FALSE: &[&str] = &["false"];

/// Flags before the command.
#[rustfmt::skip]
const GLOBAL: &[(&str, Meaning)] = &[
    ("root", Same), ("log", Same), ("log-format", Same), ("debug", Switch), ("systemd-cgroup", Switch),
    ("host-uds", Same), ("rootless", TuningSwitch), ("platform", Same),
    ("network", Only(&["sandbox", "host"], "the container's configuration says which network it has")),
    ("overlay2", Only(&["none", "root:self", "root:memory"], "quark writes to the container's own root; make a volume read-only instead")),
    ("overlay", Only(BOOLS_FALSE, "quark writes to volumes; make them read-only instead")),
    ("ignore-cgroups", Only(BOOLS_FALSE, "leave linux.cgroupsPath and linux.resources out instead")),
    ("host-fifo", Only(&["none"], "FIFOs in volumes do not lead out of a sandbox")),
    ("nvproxy", Only(BOOLS_FALSE, "there are no GPUs in a sandbox")),
    ("nvproxy-docker", Only(BOOLS_FALSE, "there are no GPUs in a sandbox")),
    ("tpuproxy", Only(BOOLS_FALSE, "there are no TPUs in a sandbox")),
    ("rdmaproxy", Only(BOOLS_FALSE, "there is no RDMA in a sandbox")),
    ("reproduce-nat", Only(BOOLS_FALSE, "the network namespace's own rules count for a sandbox")),
    ("strace", Only(BOOLS_FALSE, "use QUARK_TRACE=1 with --debug")),
    ("metric-server", Only(&[""], "use quark metrics --listen")),
    ("pause-external-networking", Only(BOOLS_FALSE, "the network cannot be held back")),
    ("character-device-policy", Only(&["emulated-only"], "devices of the host are not in a sandbox")),
    ("debug-log", Tuning), ("debug-command", Tuning), ("panic-log", Tuning), ("coverage-report", Tuning),
    ("log-packets", TuningSwitch), ("pcap-log", Tuning), ("debug-log-format", Tuning),
    ("debug-to-user-log", TuningSwitch), ("alsologtostderr", TuningSwitch), ("allow-flag-override", TuningSwitch),
    ("traceback", Tuning), ("final-metrics-log", Tuning), ("strace-syscalls", Tuning), ("strace-log-size", Tuning),
    ("strace-event", TuningSwitch), ("platform_device_path", Tuning), ("watchdog-action", Tuning),
    ("panic-signal", Tuning), ("profile", TuningSwitch), ("ref-leak-mode", Tuning),
    ("cpu-num-from-quota", TuningSwitch), ("oci-seccomp", TuningSwitch), ("enable-core-tags", TuningSwitch),
    ("pod-init-config", Tuning), ("host-settings", Tuning), ("systrap-disable-syscall-patching", TuningSwitch),
    ("systrap-disable-fast-path", TuningSwitch), ("allow-suid", TuningSwitch), ("kvm-use-cpu-nums", TuningSwitch),
    ("control-rpc-stop-timeout", Tuning), ("shared-root", Tuning), ("app-huge-pages", TuningSwitch),
    ("file-access", Tuning), ("file-access-mounts", Tuning), ("gvisor-marker-file", TuningSwitch),
    ("in-sandbox-cgroup", Tuning), ("fdlimit", Tuning), ("dcache", Tuning), ("iouring", TuningSwitch),
    ("directfs", TuningSwitch), ("gofer-network-namespace", Tuning), ("net-raw", TuningSwitch),
    ("allow-packet-socket-write", TuningSwitch), ("allow-live-tcp-migration", TuningSwitch), ("gso", TuningSwitch),
    ("software-gso", TuningSwitch), ("gvisor-gro", TuningSwitch), ("tx-checksum-offload", TuningSwitch),
    ("rx-checksum-offload", TuningSwitch), ("qdisc", Tuning), ("num-network-channels", Tuning),
    ("network-processors-per-channel", Tuning), ("net-disconnect-ok", TuningSwitch),
    ("buffer-pooling", TuningSwitch), ("fuse", TuningSwitch), ("lisafs", TuningSwitch), ("vfs2", TuningSwitch),
    ("cgroupfs", TuningSwitch), ("sidecar-usage-policy", Tuning), ("sidecar-release-enforcement-policy", Tuning),
];

const FILES: (&str, Meaning) =
    ("pass-fd", Only(&[], "only the standard streams can be passed to a guest"));
const EXEC_FILE: (&str, Meaning) =
    ("exec-fd", Only(&["-1"], "the program is found in the container"));

/// Flags of a command; `None`: there is no such command here.
#[rustfmt::skip]
fn flags(command: &str) -> Option<&'static [(&'static str, Meaning)]> {
    Some(match command {
        "create" => &[("bundle", Same), ("console-socket", Same), ("pid-file", Same), ("user-log", Tuning)],
        "run" => &[("bundle", Same), ("console-socket", Same), ("pid-file", Same), ("user-log", Tuning),
            ("detach", Switch), FILES, EXEC_FILE],
        "exec" => &[("additional-gids", Same), ("cap", Same), ("console-socket", Same), ("cwd", Same),
            ("detach", Switch), ("env", Same), ("internal-pid-file", Same), ("pid-file", Same),
            ("process", Same), ("user", Same), FILES, EXEC_FILE],
        "kill" => &[("all", Switch),
            ("pid", Only(&[], "signals go to the container's first process, or to all of them")),
            ("pgid", Only(&[], "signals go to the container's first process, or to all of them"))],
        "wait" => &[("pid", Same), ("rootpid", Same)],
        "delete" => &[("force", Switch)],
        "events" => &[("stats", Switch), ("interval", Same)],
        "list" => &[("quiet", Switch), ("format", Same),
            ("sandbox", Only(BOOLS_FALSE, "each container has a sandbox of its own"))],
        "ps" => &[("format", Same)],
        "spec" => &[("bundle", Same)],
        "update" => &[("resources", Same), ("memory", Same), ("memory-reservation", Same), ("memory-swap", Same),
            ("cpu-period", Same), ("cpu-quota", Same), ("cpu-share", Same), ("cpuset-cpus", Same),
            ("cpuset-mems", Same), ("blkio-weight", Same), ("pids-limit", Same)],
        "do" => &[("volume", Same), ("quiet", TuningSwitch)],
        "checkpoint" => &[("image-path", Same), ("leave-running", Switch), ("compression", Only(&["none"], "images are not compressed")),
            ("direct", TuningSwitch), ("exclude-committed-zero-pages", TuningSwitch)],
        "restore" => &[("bundle", Same), ("console-socket", Same), ("pid-file", Same), ("user-log", Tuning),
            ("detach", Switch), ("image-path", Same), ("background", TuningSwitch), ("direct", TuningSwitch), FILES, EXEC_FILE],
        "state" | "start" | "pause" | "resume" | "features" => &[],
        _ => return None,
    })
}

/// The arguments of quark that mean what `arguments`, without the program's name, mean to runsc;
/// and what of them has no meaning here.
///
/// # Errors
/// One line about the flag or command that quark cannot stand in for.
pub fn translate(arguments: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let mut words = arguments.iter().map(String::as_str).peekable();
    let mut out = Vec::new();
    let mut ignored = Vec::new();
    let mut network = None;
    while let Some(word) = words.next_if(|word| is_flag(word)) {
        let name = word.trim_start_matches('-');
        if matches!(name, "version" | "help" | "h") {
            return Ok((
                vec![if name == "version" { "--version" } else { "--help" }.into()],
                ignored,
            ));
        }
        let (name, value) = flag(word, GLOBAL, &mut words, "")?;
        match (name, value.as_deref()) {
            // runsc's other platforms are what quark's is not.
            ("platform", Some("kvm")) => out.push("--platform=kvm".to_owned()),
            ("platform", Some("systrap" | "ptrace")) => out.push("--platform=process".to_owned()),
            ("platform", Some(other)) => {
                bail!("--platform={other}: quark has kvm and systrap (process)")
            }
            ("log-format", Some("json-k8s")) => out.push("--log-format=json".to_owned()),
            ("network", value) => network = value.map(str::to_owned),
            (name, value) => put(name, value, GLOBAL, &mut out, &mut ignored),
        }
    }
    let Some(command) = words.next() else {
        bail!("no command: give one of runsc's, such as create, start, state, exec, delete");
    };
    let Some(known) = flags(command) else {
        bail!("{command}: quark has no such command of runsc's{}", instead(command));
    };
    out.push(command.to_owned());
    if command == "wait" {
        out.push("--format=json".to_owned());
    }
    if command == "do" && network.as_deref() == Some("host") {
        out.push("--network=host".to_owned());
    }
    while let Some(word) = words.next_if(|word| is_flag(word)) {
        let (name, value) = flag(word, known, &mut words, command)?;
        match (name, value.as_deref()) {
            ("rootpid", Some("-1")) | ("pid", Some("-1")) if command == "wait" => {}
            // A container's processes are numbered as in its sandbox.
            ("rootpid", Some(pid)) => out.push(format!("--pid={pid}")),
            ("format", Some("text")) if command == "list" => {}
            (name, value) => put(name, value, known, &mut out, &mut ignored),
        }
    }
    // What follows is no flag, whatever it looks like.
    if words.peek().is_some_and(|word| *word == "--") {
        words.next();
    }
    if command == "do" {
        out.push("--".to_owned());
    }
    out.extend(words.map(str::to_owned));
    Ok((out, ignored))
}

fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word != "--"
}

/// What there is instead of a command of runsc's.
fn instead(command: &str) -> &'static str {
    match command {
        "fscheckpoint" => ": quark checkpoint saves containers whole",
        "port-forward" => ": connect to the container's address",
        "debug" | "profile" => ": use quark events --stats, quark why and quark ps",
        "install" | "uninstall" => " by this name: call it quark",
        _ => "",
    }
}

/// The flag that `word` is, with its value.
fn flag<'a>(
    word: &str,
    known: &[(&'static str, Meaning)],
    words: &mut impl Iterator<Item = &'a str>,
    command: &str,
) -> Result<(&'static str, Option<String>)> {
    let plain = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or(word);
    let (name, value) = match plain.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (plain, None),
    };
    let Some((name, meaning)) = known.iter().find(|(known, _)| *known == name) else {
        let of = if command.is_empty() { String::new() } else { format!("{command}: ") };
        bail!("{of}--{name}: quark knows no such flag of runsc's");
    };
    let is_switch = match meaning {
        Switch | TuningSwitch => true,
        Only(values, _) => *values == BOOLS_FALSE,
        Same | Tuning => false,
    };
    let value = match value {
        Some(value) => Some(value),
        None if is_switch => Some("true".to_owned()),
        None => match words.next() {
            Some(value) => Some(value.to_owned()),
            None => bail!("--{name}: it needs a value"),
        },
    };
    let value = match value {
        Some(value) if is_switch => Some(boolean(name, &value)?.to_string()),
        other => other,
    };
    if let Only(values, why) = meaning
        && !value.as_deref().is_some_and(|value| values.contains(&value))
    {
        bail!("--{name}={}: {why}", value.unwrap_or_default());
    }
    Ok((name, value))
}

/// What Go takes for a switch's value.
fn boolean(name: &str, value: &str) -> Result<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => bail!("--{name}={value}: use true or false"),
    }
}

/// Puts a flag as quark has it.
fn put(
    name: &'static str,
    value: Option<&str>,
    known: &[(&'static str, Meaning)],
    out: &mut Vec<String>,
    ignored: &mut Vec<String>,
) {
    let meaning = known.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning);
    let value = value.unwrap_or_default();
    match meaning {
        Some(Same) => out.push(format!("--{name}={value}")),
        Some(Switch) if value == "true" => out.push(format!("--{name}")),
        Some(Tuning | TuningSwitch) => ignored.push(format!("--{name}={value}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        translate(&words).map(|(out, _)| out.join(" "))
    }

    /// What containerd-shim-runsc-v1 and Docker say to runsc.
    #[test]
    fn engines_are_understood() {
        let global =
            "--root=/run/r --log=/b/log.json --log-format=json --panic-log=/b/p --platform=systrap";
        let root = "--root=/run/r --log=/b/log.json --log-format=json --platform=process";
        for (line, expected) in [
            (
                "create --bundle /b --pid-file /b/init.pid --user-log /b/u id",
                "create --bundle=/b --pid-file=/b/init.pid id",
            ),
            ("start id", "start id"),
            ("state id", "state id"),
            (
                "exec --process /p --console-socket /s --detach --pid-file /q --internal-pid-file /i id",
                "exec --process=/p --console-socket=/s --detach --pid-file=/q --internal-pid-file=/i id",
            ),
            (
                "exec -user 1:2 -cwd /x -cap CAP_X id ls -l --all",
                "exec --user=1:2 --cwd=/x --cap=CAP_X id ls -l --all",
            ),
            ("kill --all id 9", "kill --all id 9"),
            ("kill -all=false id 15", "kill id 15"),
            ("delete --force id", "delete --force id"),
            ("events --stats id", "events --stats id"),
            ("events --interval=5s id", "events --interval=5s id"),
            ("wait id", "wait --format=json id"),
            ("wait -rootpid -1 -pid 7 id", "wait --format=json --pid=7 id"),
            ("ps --format json id", "ps --format=json id"),
            ("list --format=json", "list --format=json"),
            ("list -format text -quiet", "list --quiet"),
            ("update --resources=- id", "update --resources=- id"),
            ("run -detach -bundle=/b id", "run --detach --bundle=/b id"),
            ("do -quiet -volume /a:/b ls -l", "do --volume=/a:/b -- ls -l"),
        ] {
            assert_eq!(
                of(&format!("{global} {line}")).unwrap(),
                format!("{root} {expected}"),
                "{line}"
            );
        }
        let docker = "-root /var/run/docker/runtime-runc/moby -log /l -log-format json create --bundle /b --pid-file /p id";
        let expected = "--root=/var/run/docker/runtime-runc/moby --log=/l --log-format=json create --bundle=/b --pid-file=/p id";
        assert_eq!(of(docker).unwrap(), expected);
        assert_eq!(of("-network=host do id").unwrap(), "do --network=host -- id");
        assert_eq!(of("--version").unwrap(), "--version");
    }

    /// What these words become is a command line of quark's.
    #[test]
    fn what_comes_of_them_is_understood() {
        use clap::Parser;
        for line in [
            "-debug -root=/r -host-uds all -systemd-cgroup=0 -net-raw create -bundle /b id",
            "exec -internal-pid-file /i -additional-gids 5 -env A=b id true",
            "update -memory 64m -cpu-quota -1 -pids-limit -1 id",
            "wait -pid 3 id",
            "list",
            "spec -bundle /x",
            "do -quiet=true true -x",
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let (out, _) = translate(&words).unwrap();
            let parsed = super::super::cli::Cli::try_parse_from(
                std::iter::once("quark".to_owned()).chain(out),
            );
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn what_would_be_missed_is_refused() {
        for (line, says) in [
            ("--network=none run id", "--network=none: the container's configuration says"),
            ("--overlay2=all:memory run id", "--overlay2=all:memory: quark writes"),
            ("--ignore-cgroups run id", "--ignore-cgroups=true: leave linux"),
            ("--nvproxy run id", "there are no GPUs"),
            ("--no-such-flag=1 run id", "--no-such-flag: quark knows no such flag"),
            ("fscheckpoint id", "quark has no such command of runsc's: quark checkpoint"),
            ("checkpoint --compression=flate-best-speed id", "images are not compressed"),
            ("kill -pid 7 id", "signals go to the container's first process"),
            ("run -pass-fd 3:3 id", "only the standard streams"),
            ("--debug=maybe run id", "use true or false"),
            ("--root", "--root: it needs a value"),
            ("", "no command"),
        ] {
            let error = of(line).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{line}: {error}");
        }
        let words = ["--debug-log=/x", "--dcache", "7", "state", "id"].map(str::to_owned);
        let (_, ignored) = translate(&words).unwrap();
        assert_eq!(ignored, ["--debug-log=/x", "--dcache=7"]);
    }
}
