//! Files of /proc that are lists of any length: their text is made a record at a time, as it is
//! read, and never held as a whole.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;

use super::{FileOps, OpenFile};
use crate::errno::Result;
use crate::io::IoBuffer;
use crate::sync::Mutex;

/// Makes the record at a cursor: its text and the next cursor; `None` at the end. The first cursor
/// is 0.
pub type Next = Box<dyn Fn(u64) -> Result<Option<(Vec<u8>, u64)>> + Send + Sync>;

/// An open file of records.
pub struct RecordFile {
    next: Next,
    state: Mutex<Cursor>,
}

#[derive(Default)]
struct Cursor {
    cursor: u64,
    /// The record read last, and the offset in the file at which it begins.
    record: Vec<u8>,
    start: u64,
}

impl RecordFile {
    /// With the records that `next` makes.
    pub fn new(
        next: impl Fn(u64) -> Result<Option<(Vec<u8>, u64)>> + Send + Sync + 'static,
    ) -> Self {
        RecordFile { next: Box::new(next), state: Mutex::default() }
    }

    /// With one record, made anew each time that the file is read from its beginning.
    pub fn whole(text: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self::new(move |cursor| if cursor == 0 { Ok(Some((text()?, 1))) } else { Ok(None) })
    }
}

impl FileOps for RecordFile {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        // Taken out, as making a record may look at anything. Who reads the same file meanwhile
        // begins anew.
        let mut state = core::mem::take(&mut *self.state.lock());
        if offset == 0 || offset < state.start {
            state = Cursor::default();
        }
        let mut at = offset;
        let mut done = 0;
        while buffer.remaining() > 0 {
            let skip = usize::try_from(at - state.start).unwrap_or(usize::MAX);
            if let Some(rest) = state.record.get(skip..).filter(|rest| !rest.is_empty()) {
                let put = match buffer.put(rest) {
                    Err(error) if done == 0 => return Err(error),
                    put => put.unwrap_or(0),
                };
                if put == 0 {
                    break;
                }
                at += put as u64;
                done += put;
                continue;
            }
            let made = match (self.next)(state.cursor) {
                Err(error) if done == 0 => return Err(error),
                made => made.ok().flatten(),
            };
            let Some((record, cursor)) = made else { break };
            state.start += state.record.len() as u64;
            (state.record, state.cursor) = (record, cursor);
        }
        *self.state.lock() = state;
        Ok(done)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::sync::Arc;

    use super::*;

    fn read(file: &OpenFile, length: usize, offset: u64) -> Vec<u8> {
        let mut bytes = alloc::vec![0; length];
        let read = file.ops.read(file, &mut IoBuffer::kernel(&mut bytes), offset).unwrap();
        bytes.truncate(read);
        bytes
    }

    #[test]
    fn any_piece_is_that_of_the_whole() {
        let next = |cursor: u64| {
            Ok((cursor < 100).then(|| (format!("record {cursor}\n").into_bytes(), cursor + 1)))
        };
        let file = OpenFile::new(Arc::new(RecordFile::new(next)), 0);
        let whole = read(&file, 1 << 20, 0);
        assert!(whole.starts_with(b"record 0\nrecord 1\n") && whole.ends_with(b"record 99\n"));
        for (length, offset) in [
            (1, 0),
            (7, 0),
            (7, 500),
            (7, 3),
            (100, whole.len() - 5),
            (9, whole.len()),
            (9, 1 << 30),
        ] {
            let piece = &whole[offset.min(whole.len())..(offset + length).min(whole.len())];
            assert_eq!(read(&file, length, offset as u64), piece, "{length} at {offset}");
        }
    }
}
