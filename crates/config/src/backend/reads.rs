//! The parameters of a backend's URL for reads from replicas:
//!
//! ```text
//!   reads=prefer-replica&zone=Z&zones=10.1.:Z,10.2.:Y&weights=HOST:PORT:N
//!   &own-writes=all&own-writes-ms=N
//! ```

use respool_engine::settings::{ReadPolicy, Reads};

use crate::address::parse_server;

/// The longest time in milliseconds for which a session reads at primaries after a write.
const OWN_WRITES_MS_MAX: u32 = 3_600_000;

const POLICIES: [(&str, ReadPolicy); 5] = [
    ("primary", ReadPolicy::Primary),
    ("prefer-primary", ReadPolicy::PreferPrimary),
    ("replica", ReadPolicy::Replica),
    ("prefer-replica", ReadPolicy::PreferReplica),
    ("nearest", ReadPolicy::Nearest),
];

/// The names of the parameters, for errors.
pub(crate) const PARAMETERS: &str = "reads, zone, zones, weights, own-writes and own-writes-ms";

/// Parses one parameter into `reads`. `None`: the parameter is not about reads.
pub(crate) fn take(reads: &mut Reads, name: &str, value: &str) -> Option<Result<(), String>> {
    let taken = match name {
        "reads" => policy(value).map(|policy| reads.policy = policy),
        "zone" => zone(value).map(|zone| reads.zone = Some(zone)),
        "zones" => list(value, zone_of_hosts).map(|zones| reads.zones = zones),
        "weights" => list(value, weight).map(|weights| reads.weights = weights),
        "own-writes" => of_all(value).map(|all| reads.all_own_writes = all),
        "own-writes-ms" => own_writes_ms(value).map(|ms| reads.own_writes_ms = ms),
        _ => return None,
    };
    Some(taken)
}

/// Checks the parameters about reads together.
pub(crate) fn check(reads: &Reads) -> Result<(), String> {
    let about_replicas = Reads {
        policy: ReadPolicy::Primary,
        ..Reads::default()
    };
    if reads.policy == ReadPolicy::Primary && *reads != about_replicas {
        return Err(
            "zone, zones, weights, own-writes and own-writes-ms need reads from replicas: say \
             which, such as reads=prefer-replica"
                .into(),
        );
    }
    if reads.zone.is_none() && !reads.zones.is_empty() {
        return Err("zones gives the zones of servers: zone=NAME gives that of respool".into());
    }
    Ok(())
}

/// The parameters that parse as `reads`, in the order of [`PARAMETERS`].
pub(crate) fn parameters(reads: &Reads) -> Vec<(&'static str, String)> {
    if reads.policy == ReadPolicy::Primary {
        return Vec::new();
    }
    let name = POLICIES.iter().find(|(_, policy)| *policy == reads.policy);
    let mut all: Vec<_> = name
        .map(|(name, _)| ("reads", (*name).to_owned()))
        .into_iter()
        .collect();
    all.extend(reads.zone.clone().map(|zone| ("zone", zone)));
    let joined = |list: Vec<String>| (!list.is_empty()).then(|| list.join(","));
    let zones = reads
        .zones
        .iter()
        .map(|(prefix, zone)| format!("{prefix}:{zone}"));
    all.extend(joined(zones.collect()).map(|zones| ("zones", zones)));
    let weights = reads
        .weights
        .iter()
        .map(|(at, weight)| format!("{at}:{weight}"));
    all.extend(joined(weights.collect()).map(|weights| ("weights", weights)));
    if reads.all_own_writes {
        all.push(("own-writes", "all".into()));
    }
    if reads.own_writes_ms != Reads::default().own_writes_ms {
        all.push(("own-writes-ms", reads.own_writes_ms.to_string()));
    }
    all
}

fn policy(value: &str) -> Result<ReadPolicy, String> {
    let named = POLICIES.iter().find(|(name, _)| *name == value);
    let names = POLICIES.map(|(name, _)| name).join(", ");
    named
        .map(|(_, policy)| *policy)
        .ok_or(format!("reads is one of {names}"))
}

fn zone(value: &str) -> Result<String, String> {
    match value {
        "" => Err("a zone has a name".into()),
        _ if value.contains([',', ':']) => {
            Err("the name of a zone has no comma and no colon".into())
        }
        _ => Ok(value.to_owned()),
    }
}

fn list<T>(value: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    value.split(',').map(read).collect()
}

fn zone_of_hosts(value: &str) -> Result<(String, String), String> {
    let (prefix, name) = value
        .rsplit_once(':')
        .ok_or("zones is a list of prefixes of hosts and their zones: zones=10.1.:a,10.2.:b")?;
    Ok((prefix.to_owned(), zone(name)?))
}

fn weight(value: &str) -> Result<(respool_engine::settings::Address, u32), String> {
    const WRONG: &str =
        "weights is a list of HOST:PORT:WEIGHT, and a weight is a number from 0 to 65535";
    let (server, weight) = value.rsplit_once(':').ok_or(WRONG)?;
    let has_port = server
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']'));
    let weight: u16 = weight.parse().map_err(|_| WRONG)?;
    match has_port {
        true => Ok((parse_server(server)?, weight.into())),
        false => Err(WRONG.into()),
    }
}

fn of_all(value: &str) -> Result<bool, String> {
    match value {
        "all" => Ok(true),
        "asked" => Ok(false),
        _ => Err("own-writes is all, or asked (by READWRITE)".into()),
    }
}

fn own_writes_ms(value: &str) -> Result<u32, String> {
    match value.parse() {
        Ok(ms) if ms <= OWN_WRITES_MS_MAX => Ok(ms),
        _ => Err(format!(
            "own-writes-ms is a number up to {OWN_WRITES_MS_MAX}"
        )),
    }
}
