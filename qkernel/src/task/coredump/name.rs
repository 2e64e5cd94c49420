//! The name of a core dump (core(5), "Naming of core dump files").

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use super::USES_PID;
use crate::task::Thread;
use crate::task::signal::SigInfo;
use crate::time;

/// The name that a pattern stands for. What a program chooses has no slashes in it.
pub(super) fn expand(pattern: &[u8], thread: &Arc<Thread>, info: &SigInfo, limit: u64) -> Vec<u8> {
    let process = &thread.process;
    let creds = thread.creds();
    let own = |pid| process.pid_namespace.number_of(pid).to_string().into_bytes();
    let mut has_pid = false;
    let mut name = fill_in(pattern, |letter| {
        Some(match letter {
            b'p' => {
                has_pid = true;
                own(process.pid)
            }
            b'P' => process.pid.to_string().into_bytes(),
            b'i' => own(thread.tid()),
            b'I' => thread.tid().to_string().into_bytes(),
            b'u' => creds.uid.to_string().into_bytes(),
            b'g' => creds.gid.to_string().into_bytes(),
            b'd' => process.traits.lock().dumpable.to_string().into_bytes(),
            b's' => info.signal().to_string().into_bytes(),
            b't' => (time::realtime_ns() / 1_000_000_000).to_string().into_bytes(),
            b'h' => plain(thread.namespaces().uts.hostname().as_bytes()),
            b'e' => plain(thread.name().as_bytes()),
            b'f' => {
                let path = process.image.lock().path.clone();
                plain(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
            }
            b'E' => plain(&process.image.lock().path),
            b'c' => limit.to_string().into_bytes(),
            _ => return None,
        })
    });
    if !has_pid && USES_PID.load(Relaxed) != 0 {
        name.push(b'.');
        name.extend_from_slice(&own(process.pid));
    }
    name
}

/// Puts what `value_of` gives in the place of letters after a percent sign; other letters go.
fn fill_in(pattern: &[u8], mut value_of: impl FnMut(u8) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut name = Vec::new();
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.as_slice().first()) {
            (b'%', None) => break,
            (b'%', Some(letter)) => {
                bytes.next();
                match letter {
                    b'%' => name.push(b'%'),
                    letter => name.extend(value_of(*letter).unwrap_or_default()),
                }
            }
            (byte, _) => name.push(*byte),
        }
    }
    name
}

/// Without what would lead elsewhere: slashes, and names of directories.
fn plain(text: &[u8]) -> Vec<u8> {
    match text {
        b"." | b".." => alloc::vec![b'!'; text.len()],
        text => text.iter().map(|byte| if *byte == b'/' { b'!' } else { *byte }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_filled_in() {
        let value = |letter| (letter == b'p').then(|| b"12".to_vec());
        assert_eq!(fill_in(b"/a/core.%p%%%z%", value), b"/a/core.12%");
        assert_eq!(fill_in(b"", value), b"");
        assert_eq!(plain(b"/bin/x"), b"!bin!x");
        assert_eq!(plain(b".."), b"!!");
    }
}
