//! A sandbox as files: what `quark checkpoint` writes and `quark restore` makes a sandbox of.
//!
//! A sleeping sandbox is its guest memory, its store, and the objects of the host that it has
//! handles for. All of it is in a directory:
//!
//! | file | what |
//! |---|---|
//! | `manifest.json` | [`Manifest`]: what the rest is, and what must be the same at a restore |
//! | `ram` | guest memory, each page at its guest physical address; the rest is holes |
//! | `swap.0`, … | pages of programs, each at its slot; a layer for each image before this one |
//! | `reap` | the working set, in the order in which it is read |
//! | `rw/0`, … | copies of directories in volumes, if it has some |
//! | `sums` | which slots there are, and the checksums of all pages of both |
//!
//! Packed ([`packed`]), all of them but copies of directories are in one file.
//!
//! An image is hostile input: what it says of guest memory the guest could have written itself, and
//! what it names is opened beneath the root and the volumes of the container that it becomes, with
//! the rights that its guest would have had.

pub mod directory;
pub mod files;
pub mod host;
pub mod open;
pub mod packed;
pub mod record;
pub mod seal;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod write;

use qlib::control::RootLayer;
use serde::{Deserialize, Serialize};

use self::host::{Clocks, Host};
use crate::platform::PlatformKind;
use crate::sandbox::hostcall::image::Parts;

/// The form of images that this build writes, and the only one that it reads.
pub const FORMAT: u32 = 3;

/// What an image says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The kernel image that its memory is of ([`build`]).
    pub kernel: String,
    /// Where its programs ran.
    pub host: Host,
    /// What their clocks showed.
    pub clocks: Clocks,
    /// How its programs ran.
    pub platform: PlatformKind,
    /// What the container was.
    pub container: Container,
    /// Guest memory in `ram`, as a checksum of its pages and where they lie.
    pub ram_sum: u64,
    /// The checksum of `sums`.
    pub sums_sum: u64,
    /// How many files there are with pages of programs.
    pub layers: usize,
    /// What the sandbox was besides.
    pub parts: Parts,
    /// The files that [`Parts`] names, by index.
    pub files: Vec<What>,
}

/// What the container of an image was.
#[derive(Debug, Serialize, Deserialize)]
pub struct Container {
    /// Its ID.
    pub id: String,
    /// Guest process ID of its first process.
    pub init: u32,
    /// Where files of the host are mounted in it, besides its root, in the order of its
    /// configuration.
    pub volumes: Vec<String>,
    /// How its terminal was set, if it had one: its guest kernel has set it so, and goes by it.
    pub terminal: Option<TerminalModes>,
    /// The layer that what it wrote to its root is in.
    pub layer: Option<RootLayer>,
    /// The volumes of whose content the image has a copy, in the order of their numbers.
    #[serde(default)]
    pub rw_dirs: Vec<String>,
    /// For a snapshot, the one before it.
    pub parent: Option<String>,
}

/// Modes of a terminal (termios(3)): input, output, control, local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalModes(pub [u32; 4]);

/// An object of the host, as it can be opened anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// What every container is given under this number: its root, its volumes, its standard
    /// streams.
    Given(u32),
    /// A file or directory.
    File(FileName),
    /// A socket.
    Socket(SocketName),
}

/// A file, by where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileName {
    /// 0 for the root, else the number of the volume.
    pub mount: u32,
    /// Its path in there.
    pub path: String,
    /// How it was open (open(2)).
    pub flags: u32,
    /// The file's type, as in st_mode.
    pub kind: u32,
    /// Size in bytes and time of the last change, in nanoseconds, of a file that programs have
    /// mapped to read it: it must not have changed.
    pub version: Option<(u64, i128)>,
}

/// A socket of the Internet family, by what it is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketName {
    /// AF_*.
    pub domain: i32,
    /// SOCK_*.
    pub kind: i32,
    /// IPPROTO_*.
    pub protocol: i32,
    /// What tells it from all others of this host, until that is booted (SO_COOKIE).
    pub cookie: u64,
    /// Its own address, if it has one.
    pub local: Option<std::net::SocketAddr>,
    /// The peer's of a datagram socket.
    pub peer: Option<std::net::SocketAddr>,
    /// A stream that is or was connected. It is reset: its peer has to do with the sandbox that the
    /// image is of.
    pub is_connected: bool,
    /// It listens.
    pub listens: bool,
    /// SO_REUSEADDR.
    pub reuse_address: bool,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// SO_KEEPALIVE.
    pub keep_alive: bool,
    /// SO_BROADCAST.
    pub broadcast: bool,
    /// IPV6_V6ONLY.
    pub only_v6: bool,
    /// TCP_NODELAY.
    pub no_delay: bool,
}

/// A name for the kernel image of this build.
pub fn build() -> &'static str {
    env!("QUARK_KERNEL_BUILD")
}
