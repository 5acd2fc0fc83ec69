//! INFO: respool's own section, and the server's sections as the client may see them.

use std::fmt::{Display, Write as _};

use respool_protocol::encode::{self, Version};
use respool_protocol::value::Value;

use crate::base::counters::{Counted, Counters};
use crate::base::handle::SessionId;
use crate::base::reload_report::ReloadReport;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::info_fields::RENAMED;
use crate::local::cluster_facade::as_standalone;

const OUR_SECTION: &[u8] = b"respool";

/// Whether INFO is asked for respool's section alone.
pub(crate) fn asks_for_us_alone(request: &Request<'_>) -> bool {
    let mut sections = request.args().skip(1);
    request.spans.len() > 1 && sections.all(|section| section.eq_ignore_ascii_case(OUR_SECTION))
}

/// Whether respool's section follows the sections that INFO was asked for.
pub(crate) fn adds_our_section(request: &Request<'_>) -> bool {
    let adds = |section: &[u8]| {
        let group = [OUR_SECTION, b"all", b"everything", b"default"];
        group.iter().any(|name| section.eq_ignore_ascii_case(name))
    };
    request.spans.len() == 1 || request.args().skip(1).any(adds)
}

/// The facts of respool's section of INFO. A client of one pool learns no name or address of
/// another pool.
pub(crate) struct InfoFacts {
    pub(crate) process_id: u32,
    /// The port that the client is connected to, or that of the only pool. 0: none.
    pub(crate) tcp_port: u16,
    pub(crate) uptime_s: u64,
    /// The index of the worker that answers.
    pub(crate) worker: usize,
    /// The number of workers.
    pub(crate) workers: usize,
    /// The worker's utilization as INFO shows it.
    pub(crate) utilization: String,
    /// The outcome of reloads of the configuration.
    pub(crate) reloads: ReloadReport,
    /// Counters of the whole process.
    pub(crate) counters: Counters,
    /// The number of servers of the client's pool.
    pub(crate) servers: usize,
    /// The descriptions of these servers. There may be fewer.
    pub(crate) server_lines: Vec<String>,
    /// The descriptions of the links to these servers.
    pub(crate) link_lines: Vec<String>,
}

/// respool's section of INFO.
pub(crate) fn own_section(facts: &InfoFacts) -> String {
    let mut text = String::from("# Respool\r\n");
    let mut field = |name: &str, value: &dyn Display| {
        let _ = write!(text, "{name}:{value}\r\n");
    };
    field("respool_version", &env!("CARGO_PKG_VERSION"));
    field("respool_process_id", &facts.process_id);
    field("respool_tcp_port", &facts.tcp_port);
    field("respool_uptime_in_seconds", &facts.uptime_s);
    field("respool_worker", &facts.worker);
    field("respool_workers", &facts.workers);
    field("respool_worker_utilization", &facts.utilization);
    let reloads = &facts.reloads;
    field("respool_config_epoch", &reloads.epoch);
    field(
        "respool_config_reload_success",
        &u8::from(!reloads.last_failed),
    );
    field("respool_config_reload_failures", &reloads.failures);
    field("respool_config_reload_at", &reloads.last_at);
    for (name, value) in facts.counters.each() {
        field(&format!("respool_{name}"), &value);
    }
    for (old, new) in RENAMED {
        let is_new = |(name, _): &(&str, Counted)| new.strip_prefix("respool_") == Some(*name);
        if let Some((_, value)) = facts.counters.each().find(is_new) {
            field(old, &value);
        }
    }
    let renamed = RENAMED.iter().map(|(old, new)| format!("{old}={new}"));
    let renamed = renamed.collect::<Vec<_>>().join(",");
    field("respool_renamed_fields", &renamed);
    field("respool_servers", &facts.servers);
    for (index, line) in facts.server_lines.iter().enumerate() {
        field(&format!("respool_server_{index}"), line);
    }
    for (index, line) in facts.link_lines.iter().enumerate() {
        field(&format!("respool_link_{index}"), line);
    }
    text
}

/// Sends INFO to the session's server. The reply is changed if the client sees a plain server, or
/// if respool's section follows.
pub(crate) fn ask_info(plane: &mut DataPlane, id: SessionId, request: &Request<'_>) -> Dispatched {
    let ours = adds_our_section(request);
    let looks_into = ours || plane.has_nodes(id);
    let completion = looks_into.then_some(Completion::Local(LocalCompletion::Info { ours }));
    plane.dispatch_on_link(id, request.bytes, true, completion)
}

/// The server's reply to INFO as a session may see it. `own`: respool's section, if it follows.
pub(crate) fn shown_info(
    plane: &DataPlane,
    session: SessionId,
    own: Option<&str>,
    reply: &[u8],
) -> Vec<u8> {
    let Some(Value::Bulk(text)) = Value::read(reply) else {
        return reply.to_vec();
    };
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if plane.hides_nodes(session) {
        text = as_standalone(&text);
    }
    if let Some(own) = own {
        text.push_str("\r\n");
        text.push_str(own);
    }
    let mut out = Vec::with_capacity(text.len() + 32);
    let session = plane.sessions.get(session);
    let version = session.map_or(Version::Resp2, |session| session.version);
    encode::verbatim(&mut out, version, &text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The section has a line for each server and each link, by number, and the old name of each
    /// renamed counter.
    #[test]
    fn section_shows_each_fact_once() {
        let facts = InfoFacts {
            process_id: 7,
            tcp_port: 6380,
            uptime_s: 61,
            worker: 1,
            workers: 4,
            utilization: "-1".to_owned(),
            reloads: ReloadReport {
                epoch: 3,
                failures: 1,
                last_failed: true,
                last_at: 1_700_000_000,
            },
            counters: Counters {
                servers_down: 3,
                ..Counters::default()
            },
            servers: 9,
            server_lines: vec!["address=a".to_owned(), "address=b".to_owned()],
            link_lines: vec!["server=a".to_owned()],
        };
        let section = own_section(&facts);
        let mut lines = section.split("\r\n");
        assert_eq!(lines.next(), Some("# Respool"));
        for line in [
            "respool_process_id:7",
            "respool_tcp_port:6380",
            "respool_uptime_in_seconds:61",
            "respool_worker:1",
            "respool_workers:4",
            "respool_worker_utilization:-1",
            "respool_config_epoch:3",
            "respool_config_reload_success:0",
            "respool_config_reload_failures:1",
            "respool_config_reload_at:1700000000",
            "respool_servers_down:3",
            "respool_servers_away:3",
            "respool_servers:9",
            "respool_server_0:address=a",
            "respool_server_1:address=b",
            "respool_link_0:server=a",
        ] {
            let count = section.split("\r\n").filter(|shown| *shown == line).count();
            assert_eq!(count, 1, "{line}");
        }
        assert!(section.ends_with("respool_link_0:server=a\r\n"));
    }
}
