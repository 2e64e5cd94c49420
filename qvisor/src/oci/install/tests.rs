//! Files of engines, as users have them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn scratch() -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name =
        format!("quark-install-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

fn runtime(args: &[&str]) -> Runtime {
    Runtime {
        name: "quark".to_owned(),
        binary: "/usr/local/bin/quark".into(),
        args: args.iter().map(|&a| a.to_owned()).collect(),
        has_shim: false,
    }
}

const CONTAINERD: Engine = Engine::Containerd(Version::Two);

/// Installs; what is there then.
fn installed(engine: Engine, path: &Path, runtime: &Runtime) -> Result<Option<String>> {
    if let Some(change) = registration(engine, path, runtime)? {
        if change.keep == Keep::Now {
            change.file.keep(&change.name)?;
        }
        change.file.replace(change.new.as_deref())?;
    }
    Ok(fs::read_to_string(path).ok())
}

/// Uninstalls; what is there then.
fn removed(engine: Engine, path: &Path, runtime: &Runtime) -> Result<Option<String>> {
    if let Some(change) = removal(engine, path, runtime)? {
        change.file.replace(change.new.as_deref())?;
        change.file.forget(&change.name)?;
    }
    Ok(fs::read_to_string(path).ok())
}

/// There and back: what is there in between, and at the end the same and nothing beside it.
fn round_trip(engine: Engine, text: Option<&str>) -> String {
    let dir = scratch();
    let path = dir.join("config");
    if let Some(text) = text {
        fs::write(&path, text).unwrap();
    }
    let runtime = runtime(&["--hibernate-after=30s"]);
    let between = installed(engine, &path, &runtime).unwrap().unwrap();
    assert_eq!(installed(engine, &path, &runtime).unwrap().as_ref(), Some(&between), "twice");
    assert_eq!(removed(engine, &path, &runtime).unwrap().as_deref(), text, "after {between}");
    assert_eq!(removed(engine, &path, &runtime).unwrap().as_deref(), text, "twice");
    let left = fs::read_dir(&dir).unwrap().count();
    assert_eq!(left, usize::from(text.is_some()));
    fs::remove_dir_all(&dir).unwrap();
    between
}

#[test]
fn docker_keeps_all_that_is_not_ours() {
    let text = "{\n    \"live-restore\": true,\n    \"runtimes\": {\n        \"b\": {\"path\": \"/b\"},\n        \
                \"a\": {\"path\": \"/a\"}\n    },\n    \"data-root\":\"/x\"\n}\n";
    let between = round_trip(Engine::Docker, Some(text));
    let expected = "\"a\": {\"path\": \"/a\"},\n        \"quark\": {\n            \"path\": \
                    \"/usr/local/bin/quark\",\n            \"runtimeArgs\": [\"--hibernate-after=30s\"]\n        }\n    \
                    },\n    \"data-root\":\"/x\"\n}\n";
    assert!(between.ends_with(expected), "{between}");
    for text in [None, Some(""), Some("{}"), Some(" {\n} "), Some("{\"runtimes\":{}}")] {
        let between = round_trip(Engine::Docker, text);
        let value: Value = serde_json::from_str(&between).unwrap();
        let runtime = json!({
            "path": "/usr/local/bin/quark", "runtimeArgs": ["--hibernate-after=30s"]
        });
        assert_eq!(value, json!({"runtimes": {"quark": runtime}}));
    }
}

#[test]
fn containerd_keeps_all_that_is_not_ours() {
    let text = "# ours\nversion = 2\nroot = '/x'   # here\n\n[plugins]\n  \
                [plugins.\"io.containerd.grpc.v1.cri\"] # cri\n    sandbox_image = \"pause\"\n    \
                [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n      snapshotter = \"overlayfs\"\n\n[debug]\n  level = 'info'\n";
    let between = round_trip(CONTAINERD, Some(text));
    for line in text.lines() {
        assert!(between.contains(line), "{line} in {between}");
    }
    assert!(
        between.contains("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.quark]\n"),
        "{between}"
    );
    assert!(between.contains("BinaryName = \"/usr/local/bin/quark\"\n"), "{between}");
    let inline = "version = 3\nplugins = { \"io.containerd.cri.v1.runtime\" = { x = 1 } }\n";
    let between = round_trip(CONTAINERD, Some(inline));
    assert!(between.contains("BinaryName"), "{between}");
    for text in [None, Some(""), Some("# nothing\n"), Some("version = 3\r\n[a]\r\nb = 1\r\n")] {
        round_trip(CONTAINERD, text);
    }
    let fresh = round_trip(Engine::Containerd(Version::Three), None);
    assert!(fresh.starts_with("version = 3\n"), "{fresh}");
    assert!(fresh.contains("[plugins.\"io.containerd.cri.v1.runtime\".containerd"), "{fresh}");
}

#[test]
fn the_shim_of_quark_needs_no_options() {
    let shim = Runtime { has_shim: true, ..runtime(&[]) };
    let text = CONTAINERD.with(None, &shim).unwrap();
    assert!(text.contains("\"io.containerd.quark.v1\"") && !text.contains("BinaryName"), "{text}");
    let (there, engine) = CONTAINERD.registered(Some(&text), "quark").unwrap();
    assert!(there.is_some_and(|there| there.has_shim) && engine == CONTAINERD);
}

#[test]
fn what_others_changed_since_stays() {
    let dir = scratch();
    let (json, toml) = (dir.join("daemon.json"), dir.join("config.toml"));
    fs::write(&json, "{\"debug\": false}").unwrap();
    fs::write(&toml, "version = 2\n").unwrap();
    let runtime = runtime(&[]);
    let text = installed(Engine::Docker, &json, &runtime).unwrap().unwrap();
    fs::write(&json, text.replace("false", "true")).unwrap();
    let left = removed(Engine::Docker, &json, &runtime).unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&left).unwrap(), json!({"debug": true}));
    let text = installed(CONTAINERD, &toml, &runtime).unwrap().unwrap();
    fs::write(&toml, format!("{text}\n[debug]\nlevel = 'debug' # now\n")).unwrap();
    let left = removed(CONTAINERD, &toml, &runtime).unwrap().unwrap();
    assert_eq!(left, "version = 2\n\n[debug]\nlevel = 'debug' # now\n");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn options_change_and_the_first_copy_stays() {
    let dir = scratch();
    let path = dir.join("daemon.json");
    fs::write(&path, "{ }").unwrap();
    installed(Engine::Docker, &path, &runtime(&[])).unwrap();
    let text = installed(Engine::Docker, &path, &runtime(&["--debug"])).unwrap().unwrap();
    assert!(text.contains("--debug"), "{text}");
    assert_eq!(removed(Engine::Docker, &path, &runtime(&[])).unwrap().unwrap(), "{ }");
    fs::remove_dir_all(&dir).unwrap();
}

/// An engine that does not know its default runtime does not start.
#[test]
fn the_default_runtime_stays() {
    let toml = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n\
                default_runtime_name = \"quark\"\n";
    for (engine, text) in [(Engine::Docker, "{\"default-runtime\": \"quark\"}"), (CONTAINERD, toml)]
    {
        let dir = scratch();
        let path = dir.join("config");
        fs::write(&path, text).unwrap();
        let there = installed(engine, &path, &runtime(&[])).unwrap();
        let error = format!("{:#}", removed(engine, &path, &runtime(&[])).unwrap_err());
        assert!(error.contains("\"quark\" is the default runtime of"), "{error}");
        assert_eq!(fs::read_to_string(&path).ok(), there);
        let other = there.unwrap().replacen("\"quark\"", "\"runc\"", 1);
        fs::write(&path, other).unwrap();
        let left = removed(engine, &path, &runtime(&[])).unwrap().unwrap();
        assert!(left.contains("runc") && !left.contains("quark"), "{left}");
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn names_are_those_of_the_file_in_its_order() {
    let first = Runtime { name: "z".to_owned(), ..runtime(&[]) };
    for engine in [Engine::Docker, CONTAINERD] {
        let text = engine.with(None, &first).unwrap();
        let text = engine.with(Some(&text), &runtime(&[])).unwrap();
        assert_eq!(engine.names(&text).unwrap(), ["z", "quark"], "{text}");
        assert_eq!(engine.names("").unwrap(), [""; 0]);
    }
}

#[test]
fn what_cannot_be_understood_is_left_alone() {
    let other = "{\"runtimes\": {\"quark\": {\"path\": \"/bin/sh\"}}}";
    let kind = "{\"runtimes\": {\"quark\": {\"runtimeType\": \"io.containerd.runsc.v1\"}}}";
    let foreign = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.quark]\nruntime_type = \"x\"\n";
    let disabled = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";
    for (engine, text, says) in [
        (Engine::Docker, "{\"a\": }", "not valid JSON, which knows no comments (expected value at"),
        (
            Engine::Docker,
            "{\n// why\n\"a\": 1}",
            "knows no comments (key must be a string at line 2",
        ),
        (Engine::Docker, "{\"a\": 1,}", "not valid JSON"),
        (Engine::Docker, "[]", "not a JSON object"),
        (Engine::Docker, "{\"runtimes\": []}", "\"runtimes\" is no object"),
        (Engine::Docker, other, "its runtime \"quark\" is /bin/sh, not /usr/local/bin/quark"),
        (Engine::Docker, kind, "its runtime \"quark\" is not quark"),
        (CONTAINERD, "version = 2\nx = [", "not valid TOML (line 2"),
        (CONTAINERD, "disabled_plugins = [\"cri\"]\n", "of version 1: `containerd config migrate`"),
        (CONTAINERD, "version = 4\n", "of version 4, and only 2 and 3 are known"),
        (CONTAINERD, "version = 2\nplugins = 7\n", "\"plugins\" is no table"),
        (CONTAINERD, foreign, "its runtime \"quark\" is not quark"),
        (CONTAINERD, disabled, "it disables the CRI plugin"),
    ] {
        let dir = scratch();
        let path = dir.join("config");
        fs::write(&path, text).unwrap();
        let error = format!("{:#}", installed(engine, &path, &runtime(&[])).unwrap_err());
        assert!(error.contains(says), "{text}: {error}");
        assert!(error.starts_with(path.to_str().unwrap()) && !error.contains('\n'), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn unusual_files_are_left_alone() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = scratch();
    let path = dir.join("daemon.json");
    let error =
        |path: &Path| format!("{:#}", installed(Engine::Docker, path, &runtime(&[])).unwrap_err());
    fs::create_dir(&path).unwrap();
    assert!(error(&path).contains("is not a file"));
    fs::remove_dir(&path).unwrap();
    symlink(dir.join("real"), &path).unwrap();
    assert!(error(&path).contains("is a symbolic link"));
    fs::remove_file(&path).unwrap();
    fs::write(&path, "{}").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    assert!(error(&path).contains("is read-only (mode 0444)"));
    fs::write(dir.join("bytes"), b"\xff{}").unwrap();
    assert!(error(&dir.join("bytes")).contains("reading"));
    // Its mode stays, and that of the copy is the same.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    installed(Engine::Docker, &path, &runtime(&[])).unwrap();
    for path in [&path, &dir.join("daemon.json.before-quark")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o640);
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// White space between tokens.
fn space() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec![" ", "\n", "\t", "\r\n"]), 0..3)
        .prop_map(|v| v.concat())
}

/// The text of any JSON object, in any layout, its keys distinct.
fn json_object(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i32>().prop_map(|n| n.to_string()),
        any::<f32>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| format!("{n:e}")),
        any::<String>().prop_map(|text| json!(text).to_string()),
        Just("[ 1 ,[],{ } ]".to_owned()),
    ];
    let value = if depth == 0 {
        leaf.boxed()
    } else {
        prop_oneof![3 => leaf, 1 => json_object(depth - 1)].boxed()
    };
    let key = prop_oneof![3 => "[a-z]{1,6}", 1 => any::<String>()];
    (prop::collection::btree_map(key, (value, space(), space(), space()), 0..5), space())
        .prop_map(|(fields, end)| {
            let fields: Vec<String> = fields
                .into_iter()
                .map(|(key, (value, a, b, c))| format!("{a}{}{b}:{c}{value}{a}", json!(key)))
                .collect();
            format!("{{{}{end}}}", fields.join(","))
        })
        .boxed()
}

/// daemon.json as anybody might have it; in some there are runtimes.
fn daemon_json() -> impl Strategy<Value = String> {
    let plain = (space(), json_object(2), space()).prop_map(|(a, text, b)| format!("{a}{text}{b}"));
    let runtimes = (json_object(1), space(), space())
        .prop_map(|(inner, a, b)| format!("{a}{{\"runtimes\"{b}:{inner}{a},\"z\":0{b}}}{b}"));
    prop_oneof![plain, runtimes]
}

/// config.toml as anybody might have it.
fn config_toml() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "# a comment",
        "",
        "  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc] # here",
        "\t[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes]",
        "[plugins.\"io.containerd.grpc.v1.cri\"]",
        "[ plugins . 'io.containerd.grpc.v1.cri' . registry ]",
        "[plugins]",
        "[grpc]",
        "[[stream]]",
    ]);
    let end = prop::sample::select(vec!["\n", "\r\n"]);
    (prop::collection::vec(line, 0..10), end, any::<bool>()).prop_map(|(lines, end, whole)| {
        let mut text = format!("version = 2{end}");
        for (at, line) in lines.into_iter().enumerate() {
            text += &format!("{line}{end}");
            if line.ends_with(']') {
                text += &format!("  key-{at}  =  '{at}' # {at}{end}");
            }
        }
        if whole { text } else { text.trim_end().to_owned() }
    })
}

/// What a TOML text says, without tables that say nothing.
fn said(text: &str) -> Value {
    fn plain(item: &toml_edit::Item) -> Value {
        if let Some(table) = item.as_table_like() {
            let fields = table.iter().map(|(key, item)| (key.to_owned(), plain(item)));
            return Value::Object(fields.filter(|(_, v)| *v != json!({})).collect());
        }
        if let Some(tables) = item.as_array_of_tables() {
            let plain = |table: &toml_edit::Table| plain(&toml_edit::Item::Table(table.clone()));
            return tables.iter().map(plain).collect();
        }
        json!(item.to_string().trim())
    }
    plain(text.parse::<toml_edit::DocumentMut>().unwrap().as_item())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn docker_there_and_back(text in daemon_json()) {
        // As with two equal keys, what is no JSON for Docker is tried elsewhere.
        prop_assume!(serde_json::from_str::<Value>(&text).is_ok());
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        prop_assume!(expected.get("runtimes").is_none_or(Value::is_object));
        let between: Value =
            serde_json::from_str(&round_trip(Engine::Docker, Some(&text))).unwrap();
        expected["runtimes"]["quark"] = between["runtimes"]["quark"].clone();
        prop_assert_eq!(between, expected);
    }

    /// Without what was kept, the same but for white space.
    #[test]
    fn docker_there_and_back_without_a_copy(text in daemon_json()) {
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        prop_assume!(expected.get("runtimes").is_none_or(Value::is_object));
        let between = docker::with(Some(&text), &runtime(&[])).unwrap();
        let left: Value =
            serde_json::from_str(&docker::without(&between, "quark", Some(&text)).unwrap()).unwrap();
        prop_assert_eq!(&left, &expected);
        let left = docker::without(&between, "quark", None).unwrap();
        let left: Value = serde_json::from_str(&left).unwrap();
        if expected.get("runtimes").is_some_and(|r| *r == json!({})) {
            expected.as_object_mut().unwrap().remove("runtimes");
        }
        prop_assert_eq!(left, expected);
    }

    #[test]
    fn containerd_there_and_back(text in config_toml()) {
        prop_assume!(text.parse::<toml_edit::DocumentMut>().is_ok());
        let between = round_trip(CONTAINERD, Some(&text));
        // Without what was kept nothing that is said is lost either.
        let left = containerd::without(&between, "quark").unwrap();
        for comment in text.lines().filter_map(|line| line.split_once('#')).map(|(_, c)| c.trim()) {
            prop_assert!(between.contains(comment), "{} in {}", comment, between);
            prop_assert!(left.contains(comment), "{} in {}", comment, left);
        }
        prop_assert_eq!(said(&left), said(&text));
        prop_assert!(!left.contains("quark"), "{}", left);
    }
}

#[test]
fn a_binary_is_known_by_every_path_to_it() {
    let dir = std::env::temp_dir().join(format!("quark-same-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("bin")).unwrap();
    let binary = dir.join("bin/quark");
    std::fs::write(&binary, "").unwrap();
    std::fs::write(dir.join("other"), "").unwrap();
    std::os::unix::fs::symlink("bin/quark", dir.join("link")).unwrap();
    for same in ["bin/quark", "link", "bin/../bin/quark", "bin/./quark"] {
        assert!(super::is_same(&dir.join(same), &binary), "{same}");
    }
    for other in [dir.join("other"), dir.join("bin"), dir.join("gone"), "quark-of-nobody".into()] {
        assert!(!super::is_same(&other, &binary), "{}", other.display());
    }
    // A name alone is looked for in PATH.
    let shell = std::path::Path::new("/bin/sh").canonicalize().unwrap();
    assert!(super::is_same(std::path::Path::new("sh"), &shell));
    std::fs::remove_dir_all(&dir).unwrap();
}
