//! Who may come in where users are the server's: logins that the server withdraws, and passwords that are guessed.

use std::thread;
use std::time::Duration;

use respool_lab::servers::{Proxy, Server};

use super::client::{Client, Value};
use super::target::{Options, Target, before_every_server, installed, respool, wait_until};

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(5);

fn must_log_in(reply: &Value) -> bool {
    reply.error().is_some_and(|text| text.starts_with("NOAUTH"))
}

/// A client that comes now.
fn newcomer_must_log_in(target: &Target) -> bool {
    must_log_in(&target.client().call("GET key"))
}

/// A server wants a password from now on, or has switched its default user off: so must clients that come through respool. A client
/// that was there stays, as its connection to the server would.
#[test]
fn newcomers_must_log_in_once_the_server_wants_it() {
    for change in ["CONFIG SET requirepass new", "ACL SETUSER default off"] {
        before_every_server(&Options::with(&["--threads", "2"]), |target| {
            let mut direct = target.direct_client();
            let app = "ACL SETUSER app on >secret ~* &* +@all";
            assert_eq!(direct.call(app), Value::ok());
            let mut old = target.client();
            assert_eq!(old.call("SET key value"), Value::ok());
            assert_eq!(direct.call(change), Value::ok());
            // Both workers find it out.
            wait_until("newcomers must log in", SOON, || {
                (0..16).all(|_| newcomer_must_log_in(target))
            });
            let mut newcomer = target.client();
            for asked in ["CONFIG GET requirepass", "SET key 2", "SELECT 1", "HELLO 3"] {
                assert!(must_log_in(&newcomer.call(asked)), "{change}: {asked}");
            }
            assert_eq!(newcomer.call("AUTH app secret"), Value::ok());
            assert_eq!(newcomer.call("GET key"), Value::bulk("value"));
            assert_eq!(old.call("GET key"), Value::bulk("value"));
            let log = target.proxy().log();
            let said = log.matches("does not accept the configured login any more");
            assert_eq!(said.count(), 1, "{log}");
            let undone = direct.call_args(&["CONFIG", "SET", "requirepass", ""]);
            assert_eq!(undone, Value::ok());
            let undone = direct.call("ACL SETUSER default on nopass");
            assert_eq!(undone, Value::ok());
            wait_until("newcomers need no password", SOON, || {
                (0..16).all(|_| !newcomer_must_log_in(target))
            });
        });
    }
}

/// The user that the URL names gets another password, is switched off or deleted.
#[test]
fn newcomers_must_log_in_once_the_configured_user_changes() {
    let changes = [
        "ACL SETUSER app resetpass >other",
        "ACL SETUSER app off",
        "ACL DELUSER app",
    ];
    for binary in installed() {
        for change in changes {
            let target = Target::direct(&binary, &Options::default());
            let mut direct = target.direct_client();
            let set = "ACL SETUSER app on >secret ~* &* +@all";
            assert_eq!(direct.call(set), Value::ok());
            let url = format!("--backend=redis://app:secret@{}", target.server.address());
            let args = ["--threads=1", url.as_str()];
            let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
            let client = || Client::connect(proxy.address());
            let mut old = client();
            assert_eq!(old.call("SET key value"), Value::ok());
            assert!(direct.call(change).error().is_none());
            wait_until("newcomers must log in", SOON, || {
                must_log_in(&client().call("GET key"))
            });
            // The server closes the connections of a user that it deletes.
            if !change.contains("DELUSER") {
                assert_eq!(old.call("GET key"), Value::bulk("value"), "{change}");
            }
            let mut newcomer = client();
            assert_eq!(newcomer.call("AUTH default any"), Value::ok());
            assert_eq!(newcomer.call("GET key"), Value::bulk("value"));
            assert_eq!(direct.call("ACL DELUSER app").error(), None);
            assert_eq!(direct.call(set), Value::ok());
            wait_until("newcomers need no password", SOON, || {
                client().call("GET key") == Value::bulk("value")
            });
        }
    }
}

/// One of several servers withdraws the login.
#[test]
fn newcomers_must_log_in_once_any_shard_wants_it() {
    for binary in installed() {
        let start = |_| Server::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let servers: Vec<Server> = (0..3).map(start).collect();
        let hosts: Vec<String> = servers
            .iter()
            .map(|server| server.address().to_string())
            .collect();
        let url = format!("--backend=redis-sharded://{}", hosts.join(","));
        let proxy = Proxy::start(&respool(), &["--threads=1", url.as_str()]);
        let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
        let client = || Client::connect(proxy.address());
        let mut old = client();
        let write_all = |client: &mut Client| {
            (0..30).all(|key| client.call(&format!("SET key:{key} 1")) == Value::ok())
        };
        assert!(write_all(&mut old));
        let mut direct = Client::connect(servers[2].address());
        direct.call("CONFIG SET requirepass new");
        wait_until("newcomers must log in", SOON, || {
            must_log_in(&client().call("GET key"))
        });
        assert!(write_all(&mut old), "it keeps its links");
        for server in &servers[..2] {
            Client::connect(server.address()).call("CONFIG SET requirepass new");
        }
        let mut newcomer = client();
        assert_eq!(newcomer.call("AUTH new"), Value::ok());
        assert!(write_all(&mut newcomer));
        thread::sleep(Duration::from_millis(50));
        assert!(write_all(&mut old));
    }
}
