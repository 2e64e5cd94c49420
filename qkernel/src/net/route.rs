//! rtnetlink(7): who may change the network of the container. What may be asked and changed at all
//! the host checks.

use linux_raw_sys::general::CAP_NET_ADMIN;

use super::guest::answer_outside;
use super::local::{Served, code, error};
use super::netlink::{FIRST, Message};
use crate::errno::Errno;
use crate::task::current;

/// The two low bits of a message's type tell what it does; this is to ask.
const GET: u16 = 2;

/// Answers EPERM to changes by those without CAP_NET_ADMIN.
pub fn serve(message: &Message, sequence: u32, port: u32) -> Served {
    let is_change = message.kind >= FIRST && message.kind & 3 != GET;
    let may = || current::get().is_some_and(|thread| thread.creds().capable(CAP_NET_ADMIN));
    if is_change && !may() {
        let refusal = error(message, sequence, port, code(Errno::EPERM));
        return Served::Here(alloc::vec![refusal.to_bytes(sequence, port)]);
    }
    match answer_outside(message, (sequence, port)) {
        Some(answer) => Served::Here(answer),
        None => Served::ByHost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_take_a_capability() {
        for kind in 16..128 {
            let message = Message { kind, flags: 1, body: alloc::vec![0; 16] };
            let is_here = matches!(serve(&message, 1, 2), Served::Here(_));
            // Numbers of namespaces are those of namespaces that programs made.
            assert_eq!(is_here, kind & 3 != GET || kind == 90, "{kind}");
        }
    }
}
