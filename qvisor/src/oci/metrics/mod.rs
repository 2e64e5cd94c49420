//! `quark metrics`: numbers of all containers in Prometheus' text format.

mod families;
mod serve;

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;

pub use families::text;

use super::cli::{self, Global};
use super::info::print;
use super::watch::Watcher;

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A UNIX socket.
    Unix(PathBuf),
    /// HOST:PORT.
    Tcp(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let wrong = || "use HOST:PORT, as 127.0.0.1:9750, or unix:PATH".to_owned();
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Listen::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Listen::Tcp(text.to_owned()))
    }
}

/// `quark metrics`.
///
/// # Errors
/// When standard output is closed, or nobody can listen there.
pub fn metrics(global: &Global, options: &cli::Metrics) -> Result<()> {
    let mut watcher = Watcher::new(global);
    match &options.listen {
        Some(listen) => serve::serve(listen, watcher),
        None => {
            let look = watcher.look();
            look.warn();
            print(&text(&look)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_listen_at() {
        let at = |text: &str| text.parse::<Listen>();
        assert_eq!(at("unix:/run/m.sock"), Ok(Listen::Unix("/run/m.sock".into())));
        assert_eq!(at("[::1]:80"), Ok(Listen::Tcp("[::1]:80".into())));
        for wrong in ["", "unix:", "80", ":80", "localhost", "localhost:http", "localhost:65536"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
