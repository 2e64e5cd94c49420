//! /proc/net.

use alloc::vec::Vec;

use linux_raw_sys::general::S_IFREG;

use super::Node;
use crate::fs::synth::{Dir, file};
use crate::net::tables;

/// The directory: what there is of it is the host's to say.
pub struct NetDir;

impl Dir for NetDir {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let name = tables::find(name)?;
        Some(file(move |_| tables::read(name)))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        tables::names().map(|name| (name.as_bytes().to_vec(), S_IFREG)).collect()
    }
}
