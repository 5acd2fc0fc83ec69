//! Calls whose outcomes are taken in batches.
//!
//! ```text
//!   caller ── ask ──► slot with its call ◄── take ── thread or event loop
//!   worker ── wake ─► woken slots, eventfd ──────────►
//! ```

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::call::{Call, PendingCall};
use crate::ready::ReadyList;
use crate::{CallError, Client, lock};

/// Calls that are under way at the same time: see [`Client::completions`].
///
/// Each call has a token of the caller's choice. Its outcome is taken with that token, in no order.
/// The calls of a turn are woken together, so a batch of outcomes costs one wake.
///
/// The methods may be called from any thread. Dropping it takes back the requests that have not
/// left.
pub struct Completions {
    client: Client,
    calls: Mutex<CallTable>,
    /// The slots to look at.
    woken: Arc<ReadyList>,
}

#[derive(Default)]
struct CallTable {
    slots: Vec<CallSlot>,
    /// The slots without a call.
    free: Vec<usize>,
    /// The slots of calls by their tokens.
    by_token: HashMap<u64, usize>,
}

struct CallSlot {
    token: u64,
    call: Option<PendingCall>,
    /// Wakes the slot. It outlives its calls.
    waker: Waker,
}

struct SlotWaker {
    slot: usize,
    woken: Arc<ReadyList>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.add(self.slot as u64);
    }
}

impl Completions {
    pub(crate) fn new(client: Client) -> io::Result<Completions> {
        Ok(Completions {
            client,
            calls: Mutex::default(),
            woken: Arc::new(ReadyList::new()?),
        })
    }

    /// Begins a call. Its outcome comes with the token.
    ///
    /// # Errors
    /// [`CallError::Invalid`]: the request cannot be a call, or another call has the token.
    pub fn ask<A: AsRef<[u8]>>(&self, args: &[A], token: u64) -> Result<(), CallError> {
        self.begin(token, || Call::begin(self.client.sessions(), args))
    }

    /// As [`Completions::ask`], for a request that the caller has encoded: one array of bulk
    /// strings.
    ///
    /// # Errors
    /// See [`Completions::ask`].
    pub fn ask_encoded(&self, request: Vec<u8>, token: u64) -> Result<(), CallError> {
        self.begin(token, || {
            Call::begin_encoded(self.client.sessions(), request)
        })
    }

    fn begin(
        &self,
        token: u64,
        call: impl FnOnce() -> Result<Call, CallError>,
    ) -> Result<(), CallError> {
        // In the child of a fork the lock may never be free.
        if self.client.sessions().are_forked() {
            return Err(CallError::forked());
        }
        let mut calls = lock(&self.calls);
        if calls.by_token.contains_key(&token) {
            let text = format!("the token {token} belongs to a call that is under way");
            return Err(CallError::Invalid(text));
        }
        let call = PendingCall::new(Ok(call()?), self.client.clone());
        let slot = calls.put(token, call, &self.woken);
        let is_ready = calls.slots[slot].watch();
        drop(calls);
        if is_ready {
            self.woken.add(slot as u64);
        }
        Ok(())
    }

    /// Takes the request of a call back if it has not left. The outcome comes as any other, and
    /// tells the fate of the request. It does nothing if the outcome is there already.
    pub fn withdraw(&self, token: u64) {
        let calls = lock(&self.calls);
        let slot = calls.by_token.get(&token).map(|slot| &calls.slots[*slot]);
        if let Some(call) = slot.and_then(|slot| slot.call.as_ref()) {
            call.withdraw();
        }
    }

    /// Takes the outcomes that are there, each with the token of its call. It does not block.
    pub fn take(&self, outcomes: &mut Vec<(u64, Result<Vec<u8>, CallError>)>) {
        let woken = self.woken.take();
        let mut calls = lock(&self.calls);
        for index in woken {
            let index = index as usize;
            let slot = &mut calls.slots[index];
            if let Some(outcome) = slot.take() {
                let token = slot.token;
                calls.by_token.remove(&token);
                calls.free.push(index);
                outcomes.push((token, outcome));
            }
        }
    }

    /// Blocks until there may be outcomes to take, or until the deadline. Returns `false` at the
    /// deadline.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            // If the kernel cannot represent the time, the wait has no limit.
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut events = [PollFd::new(&*self.woken, PollFlags::IN)];
            match poll(&mut events, timeout.as_ref()) {
                Ok(0) => return false,
                Err(Errno::INTR) => {}
                // If the system refuses the wait, the caller looks for outcomes at once.
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// The number of calls whose outcomes were not taken.
    pub fn len(&self) -> usize {
        lock(&self.calls).by_token.len()
    }

    /// Whether the outcomes of all calls were taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The descriptor is readable while there may be outcomes to take. [`Completions::take`] clears it.
impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

impl CallSlot {
    /// Has the slot woken when its call can go on. Returns whether it can now.
    fn watch(&self) -> bool {
        let context = &mut Context::from_waker(&self.waker);
        let call = self.call.as_ref();
        call.is_some_and(|call| call.poll_ready(context).is_ready())
    }

    /// Takes the outcome, if it is there. Then the slot is free.
    fn take(&mut self) -> Option<Result<Vec<u8>, CallError>> {
        let context = &mut Context::from_waker(&self.waker);
        match Pin::new(self.call.as_mut()?).poll(context) {
            Poll::Ready(outcome) => {
                self.call = None;
                Some(outcome)
            }
            Poll::Pending => None,
        }
    }
}

impl CallTable {
    /// Puts a call into a slot.
    fn put(&mut self, token: u64, call: PendingCall, woken: &Arc<ReadyList>) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len();
            let woken = woken.clone();
            self.slots.push(CallSlot {
                token,
                call: None,
                waker: Waker::from(Arc::new(SlotWaker { slot, woken })),
            });
            slot
        });
        self.slots[slot].token = token;
        self.slots[slot].call = Some(call);
        self.by_token.insert(token, slot);
        slot
    }
}
