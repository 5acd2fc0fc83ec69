//! Children that end with their parent.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use respool_driver::spawn_tied;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A child to start, and the channel that gives it back.
struct Order {
    command: Command,
    /// Cores of the thread that asks. A child inherits the cores of the thread that starts it.
    cores: CpuSet,
    done: Sender<io::Result<Child>>,
}

/// Starts a child that the kernel kills when this process ends, however that ends.
///
/// The kernel kills the child when the *thread* that started it ends. Threads of tests and of
/// experiments end before their children. So one thread starts all children, and does nothing else
/// until the process ends.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, taken) = channel::<Order>();
        thread::spawn(move || {
            for mut order in taken {
                let child = sched_setaffinity(None, &order.cores)
                    .map_err(io::Error::from)
                    .and_then(|()| spawn_tied(&mut order.command));
                // The sender of the order waits for it.
                let _ = order.done.send(child);
            }
        });
        orders
    });
    let (done, child) = channel();
    let cores = sched_getaffinity(None)?;
    let order = Order {
        command,
        cores,
        done,
    };
    starter
        .send(order)
        .expect("it takes orders as long as we live");
    child.recv().expect("it answers each")
}
