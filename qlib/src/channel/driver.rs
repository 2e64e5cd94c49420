//! The kernel's side of the channel.
//!
//! Written for few instructions: descriptors are made once (slot *n* is always descriptors *2n* and
//! *2n + 1*), so a call writes its nine words and two of the ring, and nothing is allocated.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::{
    ANSWER_BYTES, ANSWER_WORDS, CALL_SLOTS, CHANNEL_BYTES, ChannelLayout, DESC_F_NEXT,
    DESC_F_WRITE, EVENT_BYTES, EVENT_SLOT_BYTES, EventRecord, PARAMS, Port, QUEUE_CALL,
    QUEUE_EVENT, QUEUE_SIZE, REQUEST_BYTES, REQUEST_WORDS, request_words, set_answer,
};
use crate::Gpa;
use crate::host::HostCall;
use crate::phys::PhysMap;

const SIZE: usize = QUEUE_SIZE as usize;
const CALL_WORDS: usize = REQUEST_WORDS + ANSWER_WORDS;
const EVENT_STRIDE: usize = (EVENT_SLOT_BYTES / 8) as usize;
/// How often the used ring is looked at before [`Hypercall::wait`] is asked.
const SPINS: u32 = 1000;

static_assertions::const_assert!(CALL_SLOTS as u32 == u32::BITS);
static_assertions::const_assert!(CALL_WORDS * 8 == super::CALL_SLOT_BYTES as usize);

/// How the driver reaches the device.
pub trait Hypercall {
    /// Rings: an OUT to `port`.
    fn make(&mut self, port: Port);

    /// Passes some time, at least a microsecond and not for ever: a call that was announced is
    /// still unanswered. `false` when the device has had time enough: the driver then panics. After
    /// `true` it is announced again.
    fn wait(&mut self) -> bool;
}

/// The two rings of a queue. All of it is ours to write but the used ring.
#[derive(Debug)]
struct Queue {
    avail: &'static [AtomicU16; 2 + SIZE + 1],
    /// Flags and index of the used ring.
    used_head: &'static [AtomicU16; 2],
    /// The used ring's entries: descriptor, length.
    used: &'static [AtomicU32; 2 * SIZE],
    /// `avail_event`.
    notify_at: &'static AtomicU16,
    avail_next: u16,
    used_next: u16,
}

fn ram<T>(found: Option<T>) -> T {
    found.expect("the channel lies in RAM")
}

impl Queue {
    fn new(phys: PhysMap, layout: ChannelLayout, queue: u32) -> Queue {
        let used = layout.used_ring(queue);
        let [notify_at] = ram(phys.atomics(layout.avail_event(queue)));
        Queue {
            avail: ram(phys.atomics(layout.avail_ring(queue))),
            used_head: ram(phys.atomics(used)),
            used: ram(phys.atomics(used + 4)),
            notify_at,
            avail_next: 0,
            used_next: 0,
        }
    }

    fn describe(
        phys: PhysMap,
        layout: ChannelLayout,
        queue: u32,
        index: u16,
        buffer: Gpa,
        tail: (u32, u16, u16),
    ) {
        let (len, flags, next) = tail;
        let at = layout.descriptors(queue) + super::DESCRIPTOR_BYTES * u64::from(index);
        let words: &[AtomicU64; 2] = ram(phys.atomics(at));
        words[0].store(buffer.0, Ordering::Relaxed);
        words[1].store(
            u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48,
            Ordering::Relaxed,
        );
    }

    /// Offers the chain that begins at descriptor `head`.
    fn offer(&mut self, head: u16) {
        let at = usize::from(self.avail_next) % SIZE;
        self.avail[2 + at].store(head, Ordering::Relaxed);
        self.avail_next = self.avail_next.wrapping_add(1);
        // What was written before is there for whoever sees the index.
        self.avail[1].store(self.avail_next, Ordering::Release);
    }

    /// Entries of the used ring that were not taken yet. Panics when there are more than were
    /// offered.
    fn pending(&self) -> u16 {
        let pending = self.used_head[1].load(Ordering::Acquire).wrapping_sub(self.used_next);
        assert!(pending <= QUEUE_SIZE, "the channel gave back {pending} buffers at once");
        pending
    }

    /// Takes the next entry of the used ring, which is there: its descriptor.
    fn take(&mut self, len: u32) -> u32 {
        let at = 2 * (usize::from(self.used_next) % SIZE);
        let (head, written) =
            (self.used[at].load(Ordering::Relaxed), self.used[at + 1].load(Ordering::Relaxed));
        assert!(written == len, "the channel wrote {written} bytes to buffer {head}, not {len}");
        self.used_next = self.used_next.wrapping_add(1);
        head
    }

    /// Asks for an interrupt with the next entry of the used ring (`used_event`).
    fn listen(&self) {
        self.avail[2 + SIZE].store(self.used_next, Ordering::Relaxed);
        // Either the device sees this, or what it wrote is seen here.
        fence(Ordering::SeqCst);
    }

    /// True if the device wanted to be told of the chain that was offered last.
    fn is_awaited(&self) -> bool {
        fence(Ordering::SeqCst);
        self.notify_at.load(Ordering::Relaxed) == self.avail_next.wrapping_sub(1)
    }
}

/// The driver: makes host calls and takes events. It is used by one vCPU at a time, under the
/// kernel lock.
#[derive(Debug)]
pub struct Driver<B> {
    hypercall: B,
    calls: Queue,
    /// The page of call slots.
    slots: &'static [AtomicU64; 512],
    /// Slots that no call occupies, a bit for each.
    free: u32,
    /// Calls that were offered since the last hypercall.
    unannounced: u32,
    events: Queue,
    records: &'static [AtomicU64; EVENT_STRIDE * SIZE],
    /// An interrupt comes with the next event.
    listening: bool,
}

impl<B: Hypercall> Driver<B> {
    /// Sets up both queues in `layout`'s memory, which is all zeros, and offers all event buffers.
    /// Panics when it is not page-aligned RAM.
    pub fn new(phys: PhysMap, layout: ChannelLayout, hypercall: B) -> Driver<B> {
        let start = layout.start;
        assert!(
            start.is_page_aligned() && phys.contains(start, CHANNEL_BYTES),
            "the channel at {start:?} is not whole pages of RAM"
        );
        for slot in 0..CALL_SLOTS {
            let (request, answer) = (2 * slot, 2 * slot + 1);
            let tail = (REQUEST_BYTES, DESC_F_NEXT, answer);
            Queue::describe(phys, layout, QUEUE_CALL, request, layout.request(slot), tail);
            Queue::describe(
                phys,
                layout,
                QUEUE_CALL,
                answer,
                layout.answer(slot),
                (ANSWER_BYTES, DESC_F_WRITE, 0),
            );
        }
        let mut events = Queue::new(phys, layout, QUEUE_EVENT);
        for slot in 0..QUEUE_SIZE {
            Queue::describe(
                phys,
                layout,
                QUEUE_EVENT,
                slot,
                layout.event(slot),
                (EVENT_BYTES, DESC_F_WRITE, 0),
            );
            events.offer(slot);
        }
        Driver {
            hypercall,
            calls: Queue::new(phys, layout, QUEUE_CALL),
            slots: phys.page_table(layout.call_slots().0),
            free: u32::MAX,
            unannounced: 0,
            events,
            records: ram(phys.atomics(layout.event_slots().0)),
            // Zeroed memory asks for an interrupt with the first event.
            listening: true,
        }
    }

    /// Makes a call: sets `ret` and `args`. Deferred calls are made before it.
    pub fn call(&mut self, call: &mut HostCall) {
        let slot = self.offer(call);
        self.announce();
        self.until(1 << slot, call.op);
        let mut answer = [0; ANSWER_WORDS];
        for (to, from) in answer.iter_mut().zip(&self.slot(slot)[REQUEST_WORDS..]) {
            *to = from.load(Ordering::Relaxed);
        }
        set_answer(call, answer);
    }

    /// Makes a call without segments later, whose result nobody asks for: with the next
    /// [`Self::call`] or [`Self::flush`], or when [`CALL_SLOTS`] calls wait. Calls are made in the
    /// order in which they are given here and there.
    pub fn defer(&mut self, call: &HostCall) {
        assert!(
            call.seg_count == 0,
            "call {} has segments, which may be gone when it is made",
            call.op
        );
        self.offer(call);
    }

    /// Makes the deferred calls now.
    pub fn flush(&mut self) {
        if self.unannounced > 0 {
            self.announce();
            self.reap();
        }
    }

    /// Takes the next event. After `None` an interrupt comes with the next one; until then, and
    /// while there are events to take, none comes.
    pub fn next_event(&mut self) -> Option<EventRecord> {
        if self.events.pending() == 0 {
            if self.listening {
                return None;
            }
            self.events.listen();
            self.listening = true;
            if self.events.pending() == 0 {
                return None;
            }
        }
        self.listening = false;
        let slot = self.events.take(EVENT_BYTES);
        assert!(slot < u32::from(QUEUE_SIZE), "the channel gave back event buffer {slot}");
        let [a, b, c, ..] = &self.records.as_chunks::<EVENT_STRIDE>().0[slot as usize];
        let record = EventRecord::from_words([a, b, c].map(|w| w.load(Ordering::Relaxed)));
        self.events.offer(slot as u16);
        if self.events.is_awaited() {
            self.hypercall.make(Port::Event);
        }
        Some(record)
    }

    /// True if there are events to take. For one who is about to wait and has told the device so:
    /// either the device knows of that, or its event is seen here.
    pub fn has_events(&self) -> bool {
        fence(Ordering::SeqCst);
        self.events.pending() > 0
    }

    /// Calls that are offered and not known to have been made.
    pub fn outstanding(&self) -> u32 {
        self.free.count_zeros()
    }

    fn slot(&self, slot: u16) -> &'static [AtomicU64; CALL_WORDS] {
        &self.slots.as_chunks::<CALL_WORDS>().0[usize::from(slot)]
    }

    /// Puts a request into a free slot and offers it; the slot.
    fn offer(&mut self, call: &HostCall) -> u16 {
        if self.free == 0 {
            self.reap();
            if self.free == 0 {
                self.announce();
                self.until(u32::MAX, call.op);
            }
        }
        let slot = self.free.trailing_zeros() as u16;
        for (to, from) in self.slot(slot).iter().zip(request_words(call)) {
            to.store(from, Ordering::Relaxed);
        }
        self.free &= !(1 << slot);
        self.unannounced += 1;
        self.calls.offer(2 * slot);
        slot
    }

    fn announce(&mut self) {
        self.unannounced = 0;
        self.hypercall.make(Port::Call);
    }

    /// Takes back what the device has done.
    fn reap(&mut self) {
        while self.calls.pending() > 0 {
            let head = self.calls.take(ANSWER_BYTES);
            let (slot, odd) = (head / 2, head % 2);
            let outstanding = slot < u32::from(CALL_SLOTS) && self.free & 1 << slot == 0;
            assert!(
                odd == 0 && outstanding,
                "the channel gave back call buffer {head}, which it did not have"
            );
            self.free |= 1 << slot;
        }
    }

    /// Waits until one of `slots` is free. Panics when the device does not come to it; `op` is what
    /// was to be done.
    fn until(&mut self, slots: u32, op: u32) {
        let mut spins = 0;
        loop {
            self.reap();
            if self.free & slots != 0 {
                return;
            }
            if spins < SPINS {
                spins += 1;
                spin_loop();
                continue;
            }
            assert!(
                self.hypercall.wait(),
                "the channel does not answer: {} calls, the last of op {op}",
                self.outstanding()
            );
            spins = 0;
            // It may have stopped at its limit before it came to ours.
            self.announce();
        }
    }
}

/// The parameter block of a vCPU, for hypercalls with more than one argument. The vCPU itself uses
/// it, without the kernel lock.
#[derive(Clone, Copy, Debug)]
pub struct Params(&'static [AtomicU64; PARAMS]);

impl Params {
    /// That of vCPU `vcpu`, which is less than [`super::MAX_VCPUS`].
    pub fn new(phys: PhysMap, layout: ChannelLayout, vcpu: u32) -> Params {
        assert!(vcpu < super::MAX_VCPUS, "vCPU {vcpu} has no parameter block");
        Params(ram(phys.atomics(layout.params(vcpu))))
    }

    /// Sets word `index`, before the hypercall.
    pub fn set(self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Release);
    }

    /// Word `index`, after the hypercall.
    pub fn get(self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }
}
