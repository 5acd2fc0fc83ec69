//! The pages of `metrics-listen`: `/metrics`, `/live` and `/ready`.
//!
//! ```text
//!   workers ──reports──► driver ──► snapshot ──► exposition ──► http ──► Prometheus
//!                          │          ▲ table
//!                          └──► readiness ───────────────────► http ──► kubelet
//! ```
//!
//! Workers report at least twice a second. A scrape reads their last reports and asks nothing of
//! them, so it costs requests nothing. The pages change nothing: there is only GET and HEAD.

mod exposition;
mod http;
mod process;
mod server_tallies;
mod snapshot;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;

use http_body_util::Full;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use respool_config::plain::plain;
use respool_driver::{OwnListener, Reports};
use respool_engine::Unready;
use tracing::warn;

use exposition::Format;
use http::{Page, Pages};
use process::ProcessFigures;
use server_tallies::{SERVERS_KEPT_MAX, ServerTallies};
use snapshot::{MetricsSnapshot, unready};

use crate::reload::Reloads;
pub(crate) use http::CONNECTIONS_MAX;

pub(crate) use table::{FAMILIES, LEFT_OUT, MetricFamily};

const PLAIN: &str = "text/plain; charset=utf-8";

/// A pool, as readiness sees it.
#[derive(Clone, Debug)]
pub(crate) struct PoolName {
    /// Its name in INFO and in the log.
    pub(crate) name: String,
    /// Whether respool is ready only while a server of the pool answers.
    pub(crate) is_required: bool,
}

/// The pages of this process.
pub(crate) struct ProcessPages {
    reports: Reports,
    reloads: Reloads,
    /// The start, seconds since 1970.
    started_s: f64,
    is_draining: Arc<AtomicBool>,
    /// The counters of servers until the last page. Locked by the scrape that is being written.
    tallies: Mutex<ServerTallies>,
}

/// Serves the pages on a thread of its own, until the end of the process. The returned flag says
/// that respool drains, and so is not ready.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn start(
    listener: &OwnListener,
    reports: Reports,
    reloads: Reloads,
) -> std::io::Result<Arc<AtomicBool>> {
    let socket = listener.socket.try_clone()?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let is_draining = Arc::new(AtomicBool::new(false));
    let pages = Arc::new(ProcessPages {
        reports,
        reloads,
        started_s: since.unwrap_or_default().as_secs_f64(),
        is_draining: is_draining.clone(),
        tallies: Mutex::default(),
    });
    let thread = thread::Builder::new().name("metrics".into());
    thread.spawn(move || http::serve(&socket, &pages))?;
    Ok(is_draining)
}

impl ProcessPages {
    /// The text of `/metrics`. One scrape at a time is written, so that many HTTP clients take no
    /// more than one core from the workers.
    fn metrics(&self, accept: &str) -> Page {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let format = Format::preferred(accept);
        let (names, reports) = self.reports.pools_and_workers();
        let mut snapshot = MetricsSnapshot::new(
            ProcessFigures::read(self.started_s),
            &names,
            self.reports.counters(),
            &reports,
            &mut tallies,
        );
        if snapshot.lacks_names {
            warn!(
                "metrics: {SERVERS_KEPT_MAX} servers have had series of their own since the start, \
                 the maximum number of servers with counters. New servers are part of the series \
                 `other` of their pool. Restart respool to give them series"
            );
        }
        snapshot.reload = self.reloads.report();
        snapshot.certificates = self.reloads.expiries();
        snapshot.renewal_failures = self.reloads.renewal_failures();
        snapshot.times = self.reports.latency();
        snapshot.errors = self.reports.errors_by_name(&snapshot.times);
        match exposition::encode(snapshot, format) {
            Ok(text) => page(StatusCode::OK, format.content_type(), text),
            Err(_) => page(
                StatusCode::INTERNAL_SERVER_ERROR,
                PLAIN,
                "the metrics cannot be written: report this as a defect of respool\n".into(),
            ),
        }
    }

    /// The text of `/ready`.
    fn readiness(&self) -> Page {
        let (names, reports) = self.reports.pools_and_workers();
        let unready = unready(names.len(), &reports);
        let required = self.reloads.required_pools();
        let pool = |name: String| PoolName {
            is_required: required.contains(&name),
            name,
        };
        let pools: Vec<PoolName> = names.into_iter().map(pool).collect();
        let draining = self.is_draining.load(Ordering::Acquire);
        match reasons(&pools, &unready, draining) {
            reasons if reasons.is_empty() => page(StatusCode::OK, PLAIN, "ready\n".into()),
            reasons => page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, reasons),
        }
    }
}

/// The most reasons of one pool on /ready. One more line counts the rest.
const REASONS_MAX: usize = 32;

/// The reasons why respool is not ready, one a line. Empty: it is ready.
fn reasons(pools: &[PoolName], unready: &[Vec<Unready>], draining: bool) -> String {
    let mut text = String::new();
    if draining {
        text.push_str("respool is stopping\n");
    }
    for (pool, reasons) in pools.iter().zip(unready) {
        if !pool.is_required {
            continue;
        }
        let (shown, rest) = reasons.split_at(reasons.len().min(REASONS_MAX));
        for reason in shown {
            text.push_str(&format!("pool {}: {}\n", pool.name, reason_text(reason)));
        }
        if !rest.is_empty() {
            text.push_str(&format!(
                "pool {}: {} more reasons\n",
                pool.name,
                rest.len()
            ));
        }
    }
    text
}

/// A reason why clients cannot use a pool, in one line.
fn reason_text(reason: &Unready) -> String {
    match reason {
        Unready::NoServer { prefix, cause } => {
            let keys = match prefix.as_deref() {
                None => String::new(),
                Some([]) => " for keys without another prefix".to_owned(),
                Some(prefix) => {
                    let prefix = String::from_utf8_lossy(prefix);
                    format!(" for keys with the prefix `{}`", plain(&prefix))
                }
            };
            match cause.as_str() {
                "" => format!("no server answers{keys}"),
                cause => format!("no server can be used{keys}: {}", plain(cause)),
            }
        }
        Unready::LoginWithdrawn { server } => {
            let server = plain(server);
            format!("{server} does not accept the configured login any more")
        }
    }
}

impl Pages for ProcessPages {
    fn page(&self, request: &Request<()>) -> Page {
        let path = request.uri().path();
        if !["/metrics", "/live", "/ready"].contains(&path) {
            let text = "there are /metrics, /live and /ready\n";
            return page(StatusCode::NOT_FOUND, PLAIN, text.into());
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let text = "only GET and HEAD are allowed\n";
            let mut page = page(StatusCode::METHOD_NOT_ALLOWED, PLAIN, text.into());
            let allowed = HeaderValue::from_static("GET, HEAD");
            page.headers_mut().insert(ALLOW, allowed);
            return page;
        }
        match path {
            "/live" => page(StatusCode::OK, PLAIN, "live\n".into()),
            "/ready" => self.readiness(),
            _ => {
                let accept = request.headers().get_all(ACCEPT).iter();
                let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
                self.metrics(&accept.join(","))
            }
        }
    }
}

fn page(status: StatusCode, content_type: &'static str, text: String) -> Page {
    let mut page = Response::new(Full::from(text));
    *page.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    page.headers_mut().insert(CONTENT_TYPE, content_type);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each required pool that clients cannot use is named with the reason, and with the prefix if
    /// it is about one; others do not count.
    #[test]
    fn readiness_names_each_required_pool_and_prefix() {
        let pool = |name: &str, is_required| PoolName {
            name: name.into(),
            is_required,
        };
        let pools = [
            pool("pages", true),
            pool("jobs", true),
            pool("cache", false),
        ];
        let down = |prefix: Option<&[u8]>| Unready::NoServer {
            prefix: prefix.map(<[u8]>::to_vec),
            cause: String::new(),
        };
        let refused = Unready::NoServer {
            prefix: Some(b"p:".to_vec()),
            cause: "a:1: refused\nthe login".to_owned(),
        };
        let told = |unready: [Vec<Unready>; 3]| reasons(&pools, &unready, false);
        assert_eq!(told([vec![], vec![], vec![down(None)]]), "");
        assert_eq!(
            told([vec![], vec![down(None)], vec![down(None)]]),
            "pool jobs: no server answers\n"
        );
        assert_eq!(
            told([vec![], vec![refused], vec![]]),
            "pool jobs: no server can be used for keys with the prefix `p:`: \
             a:1: refused\\nthe login\n"
        );
        let withdrawn = Unready::LoginWithdrawn {
            server: "a:1".to_owned(),
        };
        let of_prefixes = vec![down(Some(b"")), down(Some(b"se\nss:")), withdrawn];
        assert_eq!(
            told([of_prefixes, vec![], vec![]]),
            "pool pages: no server answers for keys without another prefix\n\
             pool pages: no server answers for keys with the prefix `se\\nss:`\n\
             pool pages: a:1 does not accept the configured login any more\n"
        );
        let many = (0..REASONS_MAX + 2).map(|_| down(Some(b"p"))).collect();
        let text = told([vec![], many, vec![]]);
        assert_eq!(text.lines().count(), REASONS_MAX + 1);
        assert!(text.ends_with("pool jobs: 2 more reasons\n"), "{text}");
        assert_eq!(
            reasons(&pools, &[vec![], vec![], vec![]], true),
            "respool is stopping\n"
        );
    }
}
