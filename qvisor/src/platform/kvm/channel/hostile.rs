//! A guest that does to the channel whatever it likes: bytes become steps, steps must do no harm.
//! Run by a bounded test here and by the fuzzer in `fuzz/`.

use std::cell::RefCell;
use std::sync::Arc;

use qlib::channel::{
    ANSWER_BYTES, CALL_SLOTS, CHANNEL_BYTES, ChannelLayout, DESC_F_NEXT, DESC_F_WRITE, EVENT_BYTES,
    MAX_VCPUS, PARAMS, QUEUE_CALL, QUEUE_EVENT, QUEUE_SIZE, REQUEST_BYTES,
};
use qlib::host::HostCall;
use qlib::platform::{EVENT_CONTROL, EVENT_READY, EVENT_TIMER, Event};
use qlib::{Gpa, PAGE_SIZE};

use super::Channel;
use crate::sandbox::memory::{GuestMemory, Layout, RAM_UNIT};

const LAYOUT: ChannelLayout = ChannelLayout { start: Gpa(16 * PAGE_SIZE) };
/// The most bytes that the handler writes for one call.
const MAX_WRITE: u64 = 3 * PAGE_SIZE;

/// The guest, and what it may expect to be written.
struct Guest {
    memory: Arc<GuestMemory>,
    channel: Channel,
    avail: [u16; 2],
    /// Pages outside of the channel that calls named.
    named: RefCell<Vec<u64>>,
}

/// Takes bytes from the front; zeros when there are none left.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.word::<1>()[0]
    }

    fn word<const N: usize>(&mut self) -> [u8; N] {
        let (now, later) = self.0.split_at(N.min(self.0.len()));
        self.0 = later;
        let mut word = [0; N];
        word[..now.len()].copy_from_slice(now);
        word
    }
}

impl Guest {
    fn new() -> Guest {
        let layout = Layout { base: None, ram_bytes: RAM_UNIT, window_bytes: 0 };
        let memory = Arc::new(GuestMemory::new(layout).expect("guest memory"));
        let channel = Channel::new(memory.clone(), LAYOUT).expect("a channel");
        let guest = Guest { memory, channel, avail: [0; 2], named: RefCell::default() };
        for slot in 0..CALL_SLOTS {
            let at =
                LAYOUT.call_slots().0 + u64::from(slot) * u64::from(REQUEST_BYTES + ANSWER_BYTES);
            guest.describe(QUEUE_CALL, 2 * slot, at, REQUEST_BYTES, DESC_F_NEXT, 2 * slot + 1);
            let at = at + u64::from(REQUEST_BYTES);
            guest.describe(QUEUE_CALL, 2 * slot + 1, at, ANSWER_BYTES, DESC_F_WRITE, 0);
        }
        for slot in 0..QUEUE_SIZE {
            let at = LAYOUT.event_slots().0 + 32 * u64::from(slot);
            guest.describe(QUEUE_EVENT, slot, at, EVENT_BYTES, DESC_F_WRITE, 0);
        }
        guest
    }

    fn write(&self, gpa: Gpa, bytes: &[u8]) {
        self.memory.write(gpa, bytes).expect("the channel is RAM");
    }

    fn describe(&self, queue: u32, index: u16, gpa: Gpa, len: u32, flags: u16, next: u16) {
        let at = LAYOUT.descriptors(queue) + 16 * u64::from(index % QUEUE_SIZE);
        let tail = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.write(at, [gpa.0.to_le_bytes(), tail.to_le_bytes()].as_flattened());
    }

    fn offer(&mut self, queue: u32, head: u16) {
        let (ring, avail) = (LAYOUT.avail_ring(queue), &mut self.avail[queue as usize]);
        let at = ring + 4 + 2 * u64::from(*avail % QUEUE_SIZE);
        *avail = avail.wrapping_add(1);
        let index = *avail;
        self.write(at, &head.to_le_bytes());
        self.write(ring + 2, &index.to_le_bytes());
    }

    /// A handler that writes to the memory that a call names, as those of host calls do.
    fn handle(&self, call: &mut HostCall) {
        let len = u64::from(call.seg_count) % MAX_WRITE;
        call.ret = -1;
        if let Some(range) = self.memory.ram_slice(call.segs, len) {
            range.write(&vec![0x5a; len as usize]).expect("it is RAM");
            let pages = call.segs.0 / PAGE_SIZE..(call.segs.0 + len).div_ceil(PAGE_SIZE);
            self.named.borrow_mut().extend(pages);
            call.ret = len as i64;
        }
        call.args = call.args.map(|a| !a);
        // Events may be posted from in here.
        let _ = self.channel.post(&Event {
            kind: EVENT_READY,
            a: call.args[0] % 100,
            b: 1,
            ..Event::default()
        });
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let place =
            |input: &mut Input<'_>| u64::from(u16::from_le_bytes(input.word())) % CHANNEL_BYTES;
        match input.byte() % 12 {
            0 => {
                let bytes = input.word::<8>();
                let at = place(input).min(CHANNEL_BYTES - 8);
                self.write(LAYOUT.start + at, &bytes);
            }
            1 => {
                // All of the channel, or a part of it.
                let (from, to) = (place(input), place(input));
                let mut state = u64::from_le_bytes(input.word()) | 1;
                let noise = (from..to).map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                });
                let noise: Vec<u8> = noise.collect();
                self.write(LAYOUT.start + from, &noise);
            }
            2 | 3 => {
                let (queue, index) = (u32::from(input.byte() & 1), u16::from(input.byte()));
                let near = |at: Gpa, by: u8| Gpa(at.0.wrapping_add(u64::from(by)).wrapping_sub(8));
                let gpa = match input.byte() % 4 {
                    0 => near(LAYOUT.call_slots().0, input.byte()),
                    1 => near(LAYOUT.event_slots().0, input.byte()),
                    2 => Gpa(u64::from(u32::from_le_bytes(input.word()))),
                    _ => Gpa(u64::from_le_bytes(input.word())),
                };
                let len = match input.byte() % 4 {
                    0 => REQUEST_BYTES,
                    1 => ANSWER_BYTES,
                    2 => EVENT_BYTES,
                    _ => u32::from_le_bytes(input.word()),
                };
                let (flags, next) = (u16::from(input.byte() % 8), u16::from(input.byte()));
                self.describe(queue, index, gpa, len, flags, next);
            }
            4 | 5 => {
                // A request, and its offer.
                let slot = u16::from(input.byte()) % CALL_SLOTS;
                let at = LAYOUT.call_slots().0
                    + u64::from(slot) * u64::from(REQUEST_BYTES + ANSWER_BYTES);
                self.write(at, &input.word::<16>());
                let segs = u64::from(u32::from_le_bytes(input.word())) % (RAM_UNIT + PAGE_SIZE);
                let len = u64::from(u16::from_le_bytes(input.word()));
                self.write(at + 56, [segs.to_le_bytes(), len.to_le_bytes()].as_flattened());
                self.offer(QUEUE_CALL, 2 * slot);
            }
            6 => {
                let (queue, head) = (u32::from(input.byte() & 1), u16::from(input.byte()));
                self.offer(queue, head);
            }
            7 => (0..input.byte() % QUEUE_SIZE as u8)
                .for_each(|i| self.offer(QUEUE_EVENT, u16::from(i))),
            8 | 9 => {
                if let Ok(served) = self.channel.serve(&|call| self.handle(call)) {
                    assert!(served <= u32::from(QUEUE_SIZE), "{served} calls at once");
                }
            }
            10 => {
                let kind = [EVENT_READY, EVENT_TIMER, EVENT_CONTROL][usize::from(input.byte()) % 3];
                for a in 0..u64::from(input.byte()) {
                    let _ = self.channel.post(&Event { kind, a, b: 5, ..Event::default() });
                }
            }
            _ => {
                let _ = self.channel.flush_events();
                let vcpu = u32::from(input.byte());
                let known = vcpu < MAX_VCPUS;
                assert_eq!(self.channel.params(vcpu).is_ok_and(|p| p.len() == PARAMS), known);
                assert_eq!(self.channel.set_result(vcpu, 7).is_ok(), known);
            }
        }
    }

    /// Panics when memory was touched that is neither the channel nor named by a call.
    fn check(&self) {
        let channel = LAYOUT.start.0 / PAGE_SIZE..(LAYOUT.start.0 + CHANNEL_BYTES) / PAGE_SIZE;
        let named = self.named.borrow();
        let each = |first: u64, pages: u64| {
            for page in first..first + pages {
                assert!(
                    channel.contains(&page) || named.contains(&page),
                    "page {page} of RAM was touched"
                );
            }
        };
        self.memory.committed(Gpa(0), RAM_UNIT, each).expect("all of RAM");
    }
}

/// Takes the steps that `bytes` stand for. Panics when one of them does harm.
pub fn run(bytes: &[u8]) {
    let mut guest = Guest::new();
    let mut input = Input(bytes);
    for _ in 0..500 {
        if input.0.is_empty() {
            break;
        }
        guest.step(&mut input);
    }
    guest.check();
}
