//! The command line that containerd gives, in the style of Go's `flag` package.

use anyhow::{Result, bail};

/// The arguments.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// containerd's namespace, which keeps containers of different clients apart.
    pub namespace: String,
    /// The container's ID.
    pub id: String,
    /// The bundle's directory, if it is not the working directory.
    pub bundle: String,
    /// containerd's gRPC socket.
    pub address: String,
    /// The socket that the server serves; it is its standard input.
    pub socket: String,
    /// Log more.
    pub debug: bool,
    /// Print the version.
    pub version: bool,
    /// Print what the runtime is, for containerd 2.
    pub info: bool,
    /// `start` or `delete`; none for the server.
    pub action: Option<String>,
}

impl Args {
    /// Parses arguments: `-name value`, `-name=value`, or the same with two dashes.
    ///
    /// # Errors
    /// For a name that is not known, and a missing value.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Args::default();
        while let Some(arg) = args.next() {
            let Some(option) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                parsed.action = Some(arg);
                break;
            };
            let (name, mut value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            let mut ignored = String::new();
            let place = match name {
                "debug" | "v" | "version" | "info" => {
                    let on = !matches!(value.as_deref(), Some("false" | "0"));
                    match name {
                        "debug" => parsed.debug = on,
                        "info" => parsed.info = on,
                        _ => parsed.version = on,
                    }
                    continue;
                }
                "namespace" => &mut parsed.namespace,
                "id" => &mut parsed.id,
                "bundle" => &mut parsed.bundle,
                "address" => &mut parsed.address,
                "socket" => &mut parsed.socket,
                // Events go over containerd's ttrpc socket.
                "publish-binary" => &mut ignored,
                _ => bail!("unknown option -{name}"),
            };
            match value.take().or_else(|| args.next()) {
                Some(value) => *place = value,
                None => bail!("option -{name} needs a value"),
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_containerd_gives_is_understood() {
        let args = parse(
            "-namespace k8s.io --address=/run/c.sock -publish-binary /bin/containerd -id x -debug \
            -bundle /b delete",
        );
        let expected = Args {
            namespace: "k8s.io".into(),
            address: "/run/c.sock".into(),
            id: "x".into(),
            bundle: "/b".into(),
            debug: true,
            action: Some("delete".into()),
            ..Args::default()
        };
        assert_eq!(args.unwrap(), expected);
        assert!(!parse("-debug=false").unwrap().debug);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse("-id").unwrap_err().to_string(), "option -id needs a value");
        assert_eq!(parse("-what x").unwrap_err().to_string(), "unknown option -what");
    }
}
