//! Changes the settings and the listeners of running workers.
//!
//! ```text
//!   prepare ──► binds new addresses, gives places to new pools; an error changes nothing
//!   apply   ──► one order to each worker, which takes it between two turns
//!           ◄── each worker reports that it has the order
//! ```

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use respool_engine::settings::{Address, PasswordSource, Settings};
use respool_engine::{ListeningPort, NewSettings, PoolPlaces, ReloadReport, Time};

use crate::listen::{self, Listener, SocketFile};
use crate::mailbox::{KeptListener, Mailbox, NewPassword, WorkerOrder, WorkerReload};
use crate::tls::ServerTls;
use crate::worker::SharedState;
use crate::{ListenAddress, SocketAccess, StartError, lock};

/// How long [`PreparedReload::apply`] waits for all workers. A worker that is stuck takes the order
/// later.
const APPLY_WAIT: Duration = Duration::from_secs(10);

/// The most listeners of a process, with those that reloads have removed. A session has the index
/// of its listener in 16 bits.
const LISTENERS_EVER_MAX: usize = 1 << 16;

/// The addresses on which the workers listen. The index of an address is the index of its listener
/// in each worker. No index is given twice: a session of a removed listener keeps its index, and
/// its CONFIG SET must not reach another listener.
#[derive(Debug)]
pub(crate) struct ListeningAddresses {
    slots: Vec<Option<ListeningAddress>>,
    /// Mode, owner and group of sockets in the file system.
    access: SocketAccess,
    /// Whether the workers have ended: nothing listens any more.
    is_closed: bool,
}

/// An address on which the workers listen.
#[derive(Debug)]
pub(crate) struct ListeningAddress {
    /// The address as the configuration has it.
    configured: Address,
    /// The index of the pool of its new sessions.
    pool: usize,
    /// Whether clients reach it over TLS.
    has_tls: bool,
    /// The address, with the port that the kernel chose.
    bound: Address,
    /// The socket file, removed on drop; `None` for TCP.
    _file: Option<SocketFile>,
}

impl ListeningAddresses {
    /// No address yet.
    pub(crate) fn new(access: SocketAccess) -> ListeningAddresses {
        ListeningAddresses {
            slots: Vec::new(),
            access,
            is_closed: false,
        }
    }

    /// Binds the addresses of the start. Returns the listeners of each of `count` workers.
    ///
    /// # Errors
    /// One for each address that cannot be bound.
    pub(crate) fn open_all(
        &mut self,
        addresses: &[ListenAddress],
        count: usize,
    ) -> Result<Vec<Vec<Listener>>, Vec<StartError>> {
        let mut of_workers: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
        let mut errors = Vec::new();
        for address in addresses {
            match open(address, (count, self.access), &[]) {
                Ok((listening, listeners)) => {
                    self.slots.push(Some(listening));
                    for (worker, listener) in of_workers.iter_mut().zip(listeners) {
                        worker.push(listener);
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        match errors.is_empty() {
            true => Ok(of_workers),
            false => Err(errors),
        }
    }

    /// The addresses with the ports that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let listening = self.slots.iter().flatten();
        listening.map(|listening| listening.bound.clone()).collect()
    }

    /// The TCP ports of these slots, in their order.
    fn ports_of(&self, slots: impl Iterator<Item = usize>) -> Arc<[ListeningPort]> {
        let port_of = |index: usize| {
            let slot = self.slots.get(index)?.as_ref()?;
            let Address::Tcp { host, port } = &slot.bound else {
                return None;
            };
            Some(ListeningPort {
                listener: index as u16,
                host: host.clone(),
                port: *port,
                pool: slot.pool as u16,
                has_tls: slot.has_tls,
            })
        };
        slots.filter_map(port_of).collect()
    }

    /// The TCP ports of all slots.
    pub(crate) fn ports(&self) -> Arc<[ListeningPort]> {
        self.ports_of(0..self.slots.len())
    }

    /// The workers have ended: removes the socket files.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.slots.clear();
    }
}

/// Binds an address. Returns a socket for each of `count` workers, too.
fn open(
    ListenAddress { address, pool, tls }: &ListenAddress,
    (count, access): (usize, SocketAccess),
    _: &[AddedListener],
) -> Result<(ListeningAddress, Vec<Listener>), StartError> {
    let bound = listen::bind(address, count, access).map_err(|error| StartError::Listen {
        address: address.clone(),
        error,
    })?;
    let path: Option<Arc<str>> = match address {
        Address::Tcp { .. } => None,
        Address::Unix(path) => Some(Arc::from(path.to_string_lossy())),
    };
    let listener = |socket| Listener {
        socket,
        pool: *pool,
        path: path.clone(),
        tls: tls.clone(),
    };
    let listeners = bound.sockets.into_iter().map(listener).collect();
    let listening = ListeningAddress {
        configured: address.clone(),
        pool: *pool,
        has_tls: tls.is_some(),
        bound: bound.address,
        _file: bound.file,
    };
    Ok((listening, listeners))
}

/// As [`open`], but nothing listens, and there are no sockets.
fn check_open(
    ListenAddress { address, pool, tls }: &ListenAddress,
    _: (usize, SocketAccess),
    added: &[AddedListener],
) -> Result<(ListeningAddress, Vec<Listener>), StartError> {
    // Two new addresses that do not listen are not in each other's way yet.
    let is_chosen = |address: &Address| matches!(address, Address::Tcp { port: 0, .. });
    let mut before = added.iter().map(|(_, new, _)| &new.bound);
    let in_way = before.find(|own| !is_chosen(own) && listen::overlap(address, own));
    if let Some(own) = in_way {
        return Err(StartError::ListensAlready {
            address: address.clone(),
            own: own.clone(),
        });
    }
    listen::check(address).map_err(|error| StartError::Listen {
        address: address.clone(),
        error,
    })?;
    let listening = ListeningAddress {
        configured: address.clone(),
        pool: *pool,
        has_tls: tls.is_some(),
        bound: address.clone(),
        _file: None,
    };
    Ok((listening, Vec::new()))
}

/// A new listener: its index, its address, and a socket for each worker.
type AddedListener = (usize, ListeningAddress, Vec<Listener>);

/// Binds an address, or finds out whether it can be bound beside the new listeners before it.
type Open = fn(
    &ListenAddress,
    (usize, SocketAccess),
    &[AddedListener],
) -> Result<(ListeningAddress, Vec<Listener>), StartError>;

/// The configuration of running workers after a reload.
pub struct Reload {
    /// All addresses to listen on. Listeners of other addresses end; their sessions stay.
    pub listeners: Vec<ListenAddress>,
    /// Settings of all workers. The sessions of a pool with other servers move to these. Those of a
    /// pool that is missing are closed.
    pub settings: Settings,
    /// How long sessions may stay in a pool that has other servers or is missing.
    pub drain_timeout: Duration,
    /// New passwords of sources.
    pub passwords: Vec<(PasswordSource, String)>,
    /// TLS to the servers of each pool, in the order of the pools; `None`: plain.
    pub pool_tls: Vec<Option<ServerTls>>,
}

/// Changes the configuration of running workers, one change at a time.
pub struct Reloader(pub(crate) Arc<SharedState>);

/// A change that can be applied: its new addresses are bound. Dropping it closes them again.
pub struct PreparedReload<'a> {
    shared: &'a SharedState,
    reload: Reload,
    /// The listeners that stay.
    kept: Vec<KeptListener>,
    /// The new listeners.
    added: Vec<AddedListener>,
    /// The indices of listeners that end.
    removed: Vec<usize>,
    /// The indices of all listeners, in the order of the configuration.
    in_order: Vec<usize>,
    /// The places of the pools.
    pools: PoolPlaces,
}

/// The outcome of [`PreparedReload::apply`].
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// The time until all workers had the order.
    pub took: Duration,
    /// Number of workers that do not have it yet.
    pub missing: usize,
}

/// The facts by which a listener is known over a reload.
#[derive(Debug)]
struct KnownListener {
    /// The address as the configuration has it.
    address: Address,
    pool: usize,
    has_tls: bool,
}

/// The index of each wanted listener among those that exist; `None`: it is new. Listeners with port
/// 0 have equal addresses, so such a listener stays with its pool, and with TLS or without. Another
/// address may move to another pool, and begin or end TLS.
fn same_listeners(slots: &[Option<KnownListener>], wanted: &[KnownListener]) -> Vec<Option<usize>> {
    let mut found: Vec<Option<usize>> = vec![None; wanted.len()];
    for must_be_equal in [true, false] {
        for (place, listener) in wanted.iter().enumerate() {
            let is_chosen = matches!(listener.address, Address::Tcp { port: 0, .. });
            if found[place].is_some() || is_chosen && !must_be_equal {
                continue;
            }
            let is_equal = |slot: &KnownListener| {
                slot.pool == listener.pool && slot.has_tls == listener.has_tls
            };
            let is_same = |slot: &Option<KnownListener>| {
                slot.as_ref().is_some_and(|slot| {
                    slot.address == listener.address && (is_equal(slot) || !must_be_equal)
                })
            };
            let mut same = (0..slots.len()).filter(|id| is_same(&slots[*id]));
            found[place] = same.find(|id| !found.contains(&Some(*id)));
        }
    }
    found
}

/// The error of a bind, or that one of respool's `own` addresses is in the way.
fn blame_own<'a>(error: StartError, mut own: impl Iterator<Item = &'a Address>) -> StartError {
    match error {
        StartError::Listen { address, error } if error.kind() == ErrorKind::AddrInUse => {
            match own.find(|own| listen::overlap(&address, own)) {
                Some(own) => StartError::ListensAlready {
                    address,
                    own: own.clone(),
                },
                None => StartError::Listen { address, error },
            }
        }
        other => other,
    }
}

/// The errors of addresses that cannot be bound now. Nothing listens meanwhile.
pub fn check_addresses(addresses: &[Address]) -> Vec<StartError> {
    let checks = addresses.iter().map(|address| {
        listen::check(address).map_err(|error| StartError::Listen {
            address: address.clone(),
            error,
        })
    });
    checks.filter_map(Result::err).collect()
}

impl Reloader {
    /// The errors of those addresses that the workers do not listen on, and that cannot be bound
    /// now. Nothing listens meanwhile.
    pub fn check_addresses(&self, addresses: &[Address]) -> Vec<StartError> {
        // Not locked while a host name is resolved.
        let (configured, bound): (Vec<Address>, Vec<Address>) = {
            let listening = lock(&self.0.listening);
            let own = listening.slots.iter().flatten();
            own.map(|own| (own.configured.clone(), own.bound.clone()))
                .unzip()
        };
        let mut new = addresses.to_vec();
        new.retain(|address| !configured.contains(address));
        let errors = check_addresses(&new).into_iter();
        errors.map(|error| blame_own(error, bound.iter())).collect()
    }

    /// Binds the addresses that are new. Nothing changes before [`PreparedReload::apply`].
    ///
    /// # Errors
    /// One for each address that cannot be bound, or one if there have been too many pools.
    pub fn prepare(&mut self, reload: Reload) -> Result<PreparedReload<'_>, Vec<StartError>> {
        self.prepare_with(reload, open)
    }

    /// Whether a reload could be prepared now. Nothing changes and nothing listens meanwhile.
    ///
    /// # Errors
    /// Those of [`Reloader::prepare`], except that a socket file may not get its mode or owner.
    pub fn check(&mut self, reload: Reload) -> Result<(), Vec<StartError>> {
        self.prepare_with(reload, check_open).map(drop)
    }

    /// Prepares a reload. `open` binds its new addresses.
    fn prepare_with(
        &mut self,
        mut reload: Reload,
        open: Open,
    ) -> Result<PreparedReload<'_>, Vec<StartError>> {
        let shared = &*self.0;
        let count = shared.mailboxes.len();
        let pools = lock(&shared.pools).renew(&reload.settings.pools);
        let pools = pools.map_err(|error| vec![StartError::Pools(error)])?;
        reload.settings.pools = pools.pools().to_vec();
        for listener in &mut reload.listeners {
            listener.pool = pools.of_config()[listener.pool].into();
        }
        // Not locked for longer: a host name may have to be resolved, and a stop must not wait for
        // that. No other reload changes the slots meanwhile.
        let (slots, bound, access) = {
            let listening = lock(&shared.listening);
            let known = |slot: &Option<ListeningAddress>| {
                let slot = slot.as_ref()?;
                // The listener of a pool with other servers is the same one.
                let pool = pools.in_effect(slot.pool as u16);
                Some(KnownListener {
                    address: slot.configured.clone(),
                    pool: pool.map_or(slot.pool, usize::from),
                    has_tls: slot.has_tls,
                })
            };
            let slots: Vec<Option<KnownListener>> = listening.slots.iter().map(known).collect();
            (slots, listening.addresses(), listening.access)
        };
        let wanted = reload.listeners.iter().map(|listener| KnownListener {
            address: listener.address.clone(),
            pool: listener.pool,
            has_tls: listener.tls.is_some(),
        });
        let same = same_listeners(&slots, &wanted.collect::<Vec<_>>());
        let mut kept: Vec<KeptListener> = Vec::new();
        let mut added: Vec<AddedListener> = Vec::new();
        let mut in_order: Vec<usize> = Vec::new();
        let mut errors: Vec<StartError> = Vec::new();
        for (listener, same) in reload.listeners.iter().zip(same) {
            let index = same.unwrap_or(slots.len() + added.len());
            in_order.push(index);
            if same.is_some() {
                kept.push(KeptListener {
                    index,
                    pool: listener.pool,
                    tls: listener.tls.clone(),
                });
                continue;
            }
            if index >= LISTENERS_EVER_MAX {
                let text = format!(
                    "respool has had {LISTENERS_EVER_MAX} listeners since its start, the most that a \
                     process can have: restart it to add more"
                );
                errors.push(StartError::Listen {
                    address: listener.address.clone(),
                    error: std::io::Error::other(text),
                });
                break;
            }
            match open(listener, (count, access), &added) {
                Ok((listening, sockets)) => added.push((index, listening, sockets)),
                Err(error) => {
                    let added = added.iter().map(|(_, listening, _)| &listening.bound);
                    errors.push(blame_own(error, bound.iter().chain(added)));
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let is_kept = |id: &usize| kept.iter().any(|other| other.index == *id);
        let is_used = |id: &usize| slots[*id].is_some();
        let removed = (0..slots.len())
            .filter(is_used)
            .filter(|id| !is_kept(id))
            .collect();
        Ok(PreparedReload {
            shared,
            reload,
            kept,
            added,
            removed,
            in_order,
            pools,
        })
    }

    /// Tells all workers the outcome of a reload that has changed nothing, for INFO.
    pub fn report(&self, report: ReloadReport) {
        for mailbox in &self.0.mailboxes {
            mailbox.send(WorkerOrder::ReloadReport(report));
        }
    }
}

impl PreparedReload<'_> {
    /// The addresses of new listeners, with the ports that the kernel chose.
    pub fn added(&self) -> Vec<Address> {
        let added = self.added.iter();
        added
            .map(|(_, listening, _)| listening.bound.clone())
            .collect()
    }

    /// Sends the order to all workers, and waits until they have it. `report`: for INFO.
    pub fn apply(self, report: ReloadReport) -> Applied {
        let PreparedReload {
            shared,
            reload,
            kept,
            added,
            removed,
            in_order,
            pools,
        } = self;
        let count = shared.mailboxes.len();
        let began = Instant::now();
        let mut listening = lock(&shared.listening);
        if listening.is_closed {
            return Applied {
                took: began.elapsed(),
                missing: count,
            };
        }
        for id in &removed {
            listening.slots[*id] = None;
        }
        for KeptListener { index, pool, tls } in &kept {
            if let Some(slot) = &mut listening.slots[*index] {
                (slot.pool, slot.has_tls) = (*pool, tls.is_some());
            }
        }
        let mut of_workers: Vec<Vec<(usize, Listener)>> = (0..count).map(|_| Vec::new()).collect();
        for (id, address, listeners) in added {
            if listening.slots.len() <= id {
                listening.slots.resize_with(id + 1, || None);
            }
            listening.slots[id] = Some(address);
            for (worker, listener) in of_workers.iter_mut().zip(listeners) {
                worker.push((id, listener));
            }
        }
        let settings = NewSettings {
            settings: Arc::new(reload.settings),
            at: Time(shared.started.elapsed().as_micros() as u64),
            ports: listening.ports_of(in_order.iter().copied()),
            drain_ms: u32::try_from(reload.drain_timeout.as_millis()).unwrap_or(u32::MAX),
        };
        drop(listening);
        let places = pools.of_config().iter().copied().map(usize::from);
        let pool_tls: Vec<_> = places.zip(reload.pool_tls).collect();
        *lock(&shared.pools) = pools;
        let passwords = reload.passwords.iter();
        let passwords: Vec<NewPassword> = passwords
            .map(|(source, password)| NewPassword {
                source: *source,
                password: password.as_str().into(),
            })
            .collect();
        let (done, applied) = mpsc::channel();
        let order = |added| {
            WorkerOrder::Reload(Box::new(WorkerReload {
                settings: settings.clone(),
                passwords: passwords.clone(),
                pool_tls: pool_tls.clone(),
                kept: kept.clone(),
                added,
                removed: removed.clone(),
                report,
                done: done.clone(),
            }))
        };
        let orders = of_workers.into_iter().map(order).collect();
        Mailbox::send_to_all(&shared.mailboxes, orders);
        drop(done);
        let end = began + APPLY_WAIT;
        let mut missing = count;
        while missing > 0 {
            match applied.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(()) => missing -= 1,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Applied {
            took: began.elapsed(),
            missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(port: u16) -> Address {
        let host = "127.0.0.1".to_owned();
        Address::Tcp { host, port }
    }

    /// Listeners with port 0 stay with their pools, and with TLS or without, in any order. An
    /// address with another port may move to another pool. The place of a removed listener is no
    /// match.
    #[test]
    fn listener_is_known_by_address_pool_and_tls() {
        let known = |port, pool, has_tls| KnownListener {
            address: tcp(port),
            pool,
            has_tls,
        };
        let slots = [
            Some(known(0, 0, false)),
            Some(known(0, 1, false)),
            None,
            Some(known(7, 0, false)),
            Some(known(0, 1, false)),
        ];
        for (wanted, expected) in [
            (
                vec![(0, 1), (0, 0), (7, 0)],
                vec![Some(1), Some(0), Some(3)],
            ),
            (vec![(0, 1), (0, 1), (0, 1)], vec![Some(1), Some(4), None]),
            (vec![(7, 1), (8, 0)], vec![Some(3), None]),
            (vec![(0, 2), (0, 0)], vec![None, Some(0)]),
        ] {
            let listeners = wanted.iter().map(|(port, pool)| known(*port, *pool, false));
            let listeners: Vec<KnownListener> = listeners.collect();
            assert_eq!(same_listeners(&slots, &listeners), expected, "{wanted:?}");
        }
        let slots = [
            Some(known(0, 0, true)),
            Some(known(0, 0, false)),
            Some(known(7, 0, true)),
        ];
        let wanted = [known(0, 0, false), known(0, 0, true), known(7, 0, false)];
        assert_eq!(same_listeners(&slots, &wanted), [Some(1), Some(0), Some(2)]);
    }
}
