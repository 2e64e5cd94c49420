//! Checksums as bytes: there are some for each page that a store holds, and a sandbox stands still
//! while they are put in a message.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;

const SUM_BYTES: usize = size_of::<u32>();

fn to_bytes(sums: &[u32]) -> ByteBuf {
    let mut bytes = vec![0; sums.len() * SUM_BYTES];
    let (places, _) = bytes.as_chunks_mut::<SUM_BYTES>();
    for (place, sum) in places.iter_mut().zip(sums) {
        *place = sum.to_le_bytes();
    }
    ByteBuf::from(bytes)
}

fn from_bytes<E: Error>(bytes: &[u8]) -> Result<Vec<u32>, E> {
    let (sums, rest) = bytes.as_chunks::<SUM_BYTES>();
    match rest {
        [] => Ok(sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect()),
        _ => Err(E::custom("there is a part of a checksum")),
    }
}

/// Those of runs, with the first slot of each.
pub mod of_runs {
    use super::*;

    pub fn serialize<S: Serializer>(runs: &[(u64, Vec<u32>)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(runs.iter().map(|(first, sums)| (first, to_bytes(sums))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(u64, Vec<u32>)>, D::Error> {
        let runs = Vec::<(u64, ByteBuf)>::deserialize(from)?;
        runs.into_iter().map(|(first, sums)| Ok((first, from_bytes(&sums)?))).collect()
    }
}

/// Those of one file, if there is one.
pub mod of_one {
    use super::*;

    pub fn serialize<S: Serializer>(sums: &Option<Vec<u32>>, to: S) -> Result<S::Ok, S::Error> {
        sums.as_deref().map(to_bytes).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u32>>, D::Error> {
        let sums = Option::<ByteBuf>::deserialize(from)?;
        sums.map(|sums| from_bytes(&sums)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stored;

    #[test]
    fn they_are_what_they_were() {
        let swap = vec![(3, vec![1, 0x8765_4321]), (9, vec![]), (10, vec![u32::MAX])];
        for reap in [None, Some(vec![]), Some(vec![5; 3])] {
            let stored = Stored { swap: swap.clone(), reap, ..Stored::default() };
            let bytes = postcard::to_allocvec(&stored).unwrap();
            let again: Stored = postcard::from_bytes(&bytes).unwrap();
            assert_eq!((&again.swap, &again.reap), (&stored.swap, &stored.reap));
            let text = serde_json::to_string(&stored).unwrap();
            let again: Stored = serde_json::from_str(&text).unwrap();
            assert_eq!((again.swap, again.reap), (stored.swap, stored.reap));
        }
        let stored = Stored { reap: Some(vec![7]), ..Stored::default() };
        let mut bytes = postcard::to_allocvec(&stored).unwrap();
        // One byte of four is missing.
        let end = bytes.len();
        assert_eq!(bytes[end - 5..], [4, 7, 0, 0, 0]);
        bytes[end - 5] = 3;
        assert!(postcard::from_bytes::<Stored>(&bytes).is_err());
    }
}
